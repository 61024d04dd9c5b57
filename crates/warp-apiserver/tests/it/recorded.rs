//! The recorded answers of a real server: what it accepts, refuses (in which words) and stores.
//!
//! Runs the kinds and the schema engine without HTTP. `answers.json` was recorded from Kubernetes
//! 1.35; cases marked `loose: message` are only compared by whether they are refused.

use std::collections::BTreeMap;

use serde::Deserialize;
use serde_json::{Value, json};
use warp_apiserver::kinds;
use warp_apiserver::registry::resource::Resource;
use warp_apiserver::schema::{FieldError, Schema};

#[derive(Deserialize)]
struct Answer {
    code: u16,
    #[serde(default)]
    causes: Vec<String>,
    #[serde(default)]
    message: Option<String>,
    #[serde(default)]
    stored: Option<Value>,
}

#[derive(Deserialize)]
struct Answers {
    crd_schemas: BTreeMap<String, Answer>,
    custom_resources: BTreeMap<String, Vec<Answer>>,
    builtin: BTreeMap<String, Answer>,
}

fn answers() -> Answers {
    serde_json::from_str(include_str!("recorded/answers.json")).expect("answers are JSON")
}

fn cases(text: &str) -> Vec<Value> {
    serde_saphyr::from_str(text).expect("cases are YAML")
}

fn text<'a>(value: &'a Value, path: &str) -> &'a str {
    value
        .pointer(path)
        .and_then(Value::as_str)
        .unwrap_or_default()
}

/// What our side says about one write.
enum Verdict {
    Stored(Value),
    Refused(Vec<String>),
    Undecodable(String),
}

fn refused(errors: &[FieldError]) -> Verdict {
    let mut lines: Vec<String> = errors
        .iter()
        .map(|error| format!("{}: {}", error.field, error.body()))
        .collect();
    lines.sort();
    lines.dedup();
    Verdict::Refused(lines)
}

/// Collects every difference, so that one run shows them all.
#[derive(Default)]
struct Differences(Vec<String>);

impl Differences {
    fn compare(&mut self, name: &str, loose: bool, answer: &Answer, verdict: &Verdict) {
        let accepted = matches!(verdict, Verdict::Stored(_));
        if accepted != (answer.code < 400) {
            let ours = match verdict {
                Verdict::Stored(_) => "accepted".to_owned(),
                Verdict::Refused(lines) => lines.join("\n      "),
                Verdict::Undecodable(text) => text.clone(),
            };
            self.0.push(format!(
                "{name}: answered {} ({:?} {:?}), ours: {ours}",
                answer.code, answer.message, answer.causes
            ));
            return;
        }
        match verdict {
            Verdict::Refused(lines) if !loose => {
                let mut expected = answer.causes.clone();
                expected.dedup();
                if *lines != expected {
                    self.0.push(format!(
                        "{name}:\n  theirs {}\n  ours   {}",
                        expected.join("\n         "),
                        lines.join("\n         ")
                    ));
                }
            }
            Verdict::Stored(ours) => {
                if let Some(theirs) = &answer.stored
                    && ours != theirs
                {
                    self.0
                        .push(format!("{name}:\n  theirs {theirs}\n  ours   {ours}"));
                }
            }
            _ => {}
        }
    }

    fn assert_none(self) {
        assert!(
            self.0.is_empty(),
            "{} differences:\n{}",
            self.0.len(),
            self.0.join("\n")
        );
    }
}

fn definition(schema: &Value, status: bool) -> Value {
    let mut version = json!({
        "name": "v1", "served": true, "storage": true, "schema": {"openAPIV3Schema": schema},
    });
    if status {
        version["subresources"] = json!({"status": {}});
    }
    json!({
        "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
        "metadata": {"name": "things.example.com"},
        "spec": {
            "group": "example.com", "scope": "Namespaced",
            "names": {"plural": "things", "kind": "Thing"}, "versions": [version],
        },
    })
}

/// One write of a built-in object, as the server does it without admission and metadata.
fn write(resource: &Resource, object: &Value, old: Option<&Value>, strict: bool) -> Verdict {
    let mut object = object.clone();
    let unknown = resource.schema.unknown_fields(&object);
    if strict && !unknown.is_empty() {
        return Verdict::Undecodable(unknown.join(", "));
    }
    resource.schema.prune(&mut object);
    if let Some(problem) = resource.schema.decode_error(&object) {
        return Verdict::Undecodable(problem);
    }
    (resource.strategy.default)(&mut object);
    if resource.namespaced {
        object["metadata"]["namespace"] = json!("cases");
    }
    match old {
        None => {
            object["metadata"]["uid"] = json!("the-uid");
            (resource.strategy.prepare_create)(&mut object);
        }
        Some(old) => {
            object["metadata"]["uid"] = old["metadata"]["uid"].clone();
            (resource.strategy.prepare_update)(&mut object, old);
        }
    }
    let name = text(&object, "/metadata/name");
    let mut errors: Vec<FieldError> = (resource.strategy.validate_name)(name)
        .into_iter()
        .map(|problem| {
            let path = warp_apiserver::schema::Path::new("metadata.name");
            FieldError::invalid(&path, name, problem)
        })
        .collect();
    kinds::metadata::labels(
        object.pointer("/metadata/labels"),
        &warp_apiserver::schema::Path::new("metadata.labels"),
        &mut errors,
    );
    errors.extend((resource.strategy.validate)(&object));
    if let Some(old) = old {
        errors.extend((resource.strategy.validate_update)(&object, old));
    }
    if errors.is_empty() {
        Verdict::Stored(object)
    } else {
        refused(&errors)
    }
}

#[test]
fn schemas_of_definitions_are_judged_as_a_real_server_judges_them() {
    let answers = answers().crd_schemas;
    let all = kinds::builtin();
    let resource = all
        .iter()
        .find(|r| r.kind == "CustomResourceDefinition")
        .expect("served");
    let mut differences = Differences::default();
    for case in cases(include_str!("recorded/crd_schemas.yaml")) {
        let name = text(&case, "/name");
        let object = definition(&case["schema"], case["status"] == json!(true));
        let verdict = write(resource, &object, None, false);
        differences.compare(name, case["loose"] == "message", &answers[name], &verdict);
    }
    differences.assert_none();
}

#[test]
fn custom_resources_are_judged_as_a_real_server_judges_them() {
    let answers = answers().custom_resources;
    let mut differences = Differences::default();
    for case in cases(include_str!("recorded/custom_resources.yaml")) {
        let name = text(&case, "/name");
        let read = |schema: &Value| Schema::from_crd(schema, false).expect("the schema is valid");
        let mut schema = read(&case["schema"]);
        let mut stored: Option<Value> = None;
        let steps = case["steps"].as_array().expect("steps");
        for (index, (step, answer)) in steps.iter().zip(&answers[name]).enumerate() {
            if step["tighten"] == json!(true) {
                schema = read(&case["tightened"]);
            }
            let fresh = index == 0 || step["fresh"] == json!(true);
            let mut object = step.clone();
            if let Some(map) = object.as_object_mut() {
                map.remove("fresh");
                map.remove("tighten");
                map.insert("apiVersion".into(), json!("example.com/v1"));
                map.insert("kind".into(), json!("Thing"));
                map.insert(
                    "metadata".into(),
                    json!({"name": format!("t{index}"), "namespace": "cases"}),
                );
            }
            schema.prune(&mut object);
            schema.apply_defaults(&mut object);
            let old = if fresh { None } else { stored.as_ref() };
            let errors = schema.validate(&object, old);
            let verdict = if errors.is_empty() {
                if !fresh || index == 0 {
                    stored = Some(object.clone());
                }
                let map = object.as_object_mut().expect("an object");
                for member in ["apiVersion", "kind", "metadata"] {
                    map.remove(member);
                }
                Verdict::Stored(object)
            } else {
                refused(&errors)
            };
            differences.compare(&format!("{name}[{index}] {step}"), false, answer, &verdict);
        }
    }
    differences.assert_none();
}

/// Members only a running server fills: addresses, and what admission adds to pods.
fn without_admission(kind: &str, mut object: Value) -> Value {
    let mut labelled = true;
    if let Some(metadata) = object["metadata"].as_object_mut() {
        for member in [
            "uid",
            "creationTimestamp",
            "resourceVersion",
            "managedFields",
            "generation",
        ] {
            metadata.remove(member);
        }
    }
    if let Some(spec) = object["spec"].as_object_mut() {
        match kind {
            "Pod" => {
                for member in [
                    "tolerations",
                    "priority",
                    "preemptionPolicy",
                    "serviceAccount",
                    "serviceAccountName",
                    "volumes",
                    "priorityClassName",
                ] {
                    spec.remove(member);
                }
                for container in ["containers", "initContainers"] {
                    for container in spec
                        .get_mut(container)
                        .and_then(Value::as_array_mut)
                        .into_iter()
                        .flatten()
                    {
                        if let Some(map) = container.as_object_mut() {
                            map.remove("volumeMounts");
                        }
                    }
                }
            }
            "Service" => {
                for member in ["clusterIP", "clusterIPs", "ipFamilies", "ipFamilyPolicy"] {
                    spec.remove(member);
                }
            }
            "Job" => {
                spec.remove("selector");
                labelled = false;
                if let Some(meta) = spec
                    .get_mut("template")
                    .and_then(|t| t.get_mut("metadata"))
                    .and_then(Value::as_object_mut)
                {
                    meta.remove("labels");
                }
            }
            _ => {}
        }
    }
    if !labelled && let Some(metadata) = object["metadata"].as_object_mut() {
        metadata.remove("labels");
    }
    // Times only the server knows.
    if let Some(status) = object["status"].as_object_mut() {
        status.remove("lastPhaseTransitionTime");
        for condition in status
            .get_mut("conditions")
            .and_then(Value::as_array_mut)
            .into_iter()
            .flatten()
        {
            condition["lastTransitionTime"] = Value::Null;
        }
    }
    // Finalizers and taints that admission or controllers add.
    match kind {
        "PersistentVolumeClaim" | "PersistentVolume" => {
            object["metadata"]
                .as_object_mut()
                .map(|map| map.remove("finalizers"));
        }
        "Node" => {
            object["spec"]
                .as_object_mut()
                .map(|map| map.remove("taints"));
        }
        _ => {}
    }
    object
}

#[test]
fn built_in_objects_are_defaulted_and_judged_as_a_real_server_does() {
    let answers = answers().builtin;
    let all = kinds::builtin();
    let mut differences = Differences::default();
    for case in cases(include_str!("recorded/builtin.yaml")) {
        let name = text(&case, "/name");
        let object = &case["object"];
        let resource = all
            .iter()
            .find(|r| r.kind == object["kind"] && r.api_version() == object["apiVersion"])
            .expect("the kind is served");
        let strict = case["strict"] == json!(true);
        let mut verdict = write(resource, object, None, strict);
        if let (Verdict::Stored(old), Some(update)) = (&verdict, case.get("update")) {
            let mut merged = old.clone();
            json_patch::merge(&mut merged, update);
            verdict = write(resource, &merged, Some(&old.clone()), strict);
        }
        if let Verdict::Stored(object) = verdict {
            verdict = Verdict::Stored(without_admission(&resource.kind, object));
        }
        let theirs = &answers[name];
        let answer = Answer {
            code: theirs.code,
            causes: theirs.causes.clone(),
            message: theirs.message.clone(),
            stored: theirs
                .stored
                .clone()
                .map(|object| without_admission(&resource.kind, object)),
        };
        differences.compare(name, case["loose"] == "message", &answer, &verdict);
    }
    differences.assert_none();
}

/// The same cases as requests for two running servers, in the form of the differential suite.
pub(crate) fn requests() -> Vec<(String, Vec<Value>)> {
    let definitions = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";
    let mut all = Vec::new();
    for case in cases(include_str!("recorded/crd_schemas.yaml")) {
        let object = definition(&case["schema"], case["status"] == json!(true));
        let request = format!("POST {definitions}?dryRun=All&fieldValidation=Ignore");
        all.push((
            format!("schemas: {}", text(&case, "/name")),
            vec![json!({"request": request, "body": object})],
        ));
    }
    let served = kinds::builtin();
    for case in cases(include_str!("recorded/builtin.yaml")) {
        let object = &case["object"];
        let resource = served
            .iter()
            .find(|r| r.kind == object["kind"] && r.api_version() == object["apiVersion"])
            .expect("the kind is served");
        let mut body = object.clone();
        // Everything around what is compared: no token volume, and events about this namespace.
        if resource.kind == "Pod" && body["spec"].is_object() {
            body["spec"]["automountServiceAccountToken"] = json!(false);
        }
        if body["involvedObject"]["namespace"] == "cases" {
            body["involvedObject"]["namespace"] = json!("{ns}");
        }
        let root = if resource.group.is_empty() {
            "/api"
        } else {
            "/apis"
        };
        let place = if resource.namespaced {
            "/namespaces/{ns}"
        } else {
            ""
        };
        let validation = if case["strict"] == json!(true) {
            "Strict"
        } else {
            "Ignore"
        };
        let path = format!(
            "{root}/{}{place}/{}",
            resource.api_version(),
            resource.plural
        );
        let query = format!("dryRun=All&fieldValidation={validation}");
        let mut steps = Vec::new();
        if resource.kind == "Pod" {
            // Made by a controller where there is one.
            steps.push(json!({
                "request": "POST /api/v1/namespaces/{ns}/serviceaccounts", "ignore": true,
                "body": {"metadata": {"name": "default"}},
            }));
        }
        steps.push(json!({"request": format!("POST {path}?{query}"), "body": body}));
        all.push((format!("kinds: {}", text(&case, "/name")), steps));
    }
    all.extend(custom_resource_requests());
    all
}

/// Custom resources of a group of their own, each created once.
fn custom_resource_requests() -> Vec<(String, Vec<Value>)> {
    let mut all = Vec::new();
    for case in cases(include_str!("recorded/custom_resources.yaml")) {
        let mut object = definition(&case["schema"], false);
        object["metadata"]["name"] = json!("things.{ns}.example.com");
        object["spec"]["group"] = json!("{ns}.example.com");
        let definitions = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";
        let things = "/apis/{ns}.example.com/v1/namespaces/{ns}/things";
        let mut steps = vec![
            json!({"request": format!("POST {definitions}"), "body": object, "ignore": true}),
            json!({
                "request": format!("GET {things}"), "until": "ThingList", "ignore": true,
            }),
        ];
        for (index, step) in case["steps"].as_array().expect("steps").iter().enumerate() {
            if index > 0 && step["fresh"] != json!(true) {
                continue;
            }
            let mut body = step.clone();
            let map = body.as_object_mut().expect("an object");
            map.remove("fresh");
            map.insert("apiVersion".into(), json!("{ns}.example.com/v1"));
            map.insert("kind".into(), json!("Thing"));
            map.insert("metadata".into(), json!({"name": format!("t{index}")}));
            steps.push(json!({"request": format!("POST {things}"), "body": body}));
        }
        let remove = format!("DELETE {definitions}/things.{{ns}}.example.com");
        steps.push(json!({"request": remove, "ignore": true}));
        all.push((format!("custom: {}", text(&case, "/name")), steps));
    }
    all
}
