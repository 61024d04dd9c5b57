//! Every leaf of the kind's schema, and values for it that the schema allows and that it does not.
//!
//! Owns reading the CRD: nothing about workloads is written down here but which parts of a pod
//! template Warp reads or writes, and values where any text would be refused.

use std::sync::LazyLock;

use serde_json::{Map, Value, json};

/// The schema of the kind's spec.
static SPEC: LazyLock<Value> = LazyLock::new(|| {
    let definition = warp_api::crd::gpu_workload();
    warp_api::crd::schema(&definition)["properties"]["spec"].clone()
});

/// Parts of `podTemplate` that Warp reads to place a pod or writes into it. Each must exist in the
/// schema; a path covers everything below it.
const TEMPLATE: &[&str] = &[
    "metadata.labels",
    "metadata.annotations",
    "spec.restartPolicy",
    "spec.priorityClassName",
    "spec.nodeName",
    "spec.nodeSelector",
    "spec.tolerations",
    "spec.affinity.nodeAffinity.requiredDuringSchedulingIgnoredDuringExecution",
    "spec.affinity.podAffinity.requiredDuringSchedulingIgnoredDuringExecution",
    "spec.affinity.podAntiAffinity.requiredDuringSchedulingIgnoredDuringExecution",
    "spec.topologySpreadConstraints",
    "spec.overhead",
    "spec.resources.requests",
    "spec.resources.limits",
    "spec.containers[].name",
    "spec.containers[].env[].name",
    "spec.containers[].env[].value",
    "spec.containers[].resources.requests",
    "spec.containers[].resources.limits",
    "spec.containers[].ports",
    "spec.initContainers[].name",
    "spec.initContainers[].restartPolicy",
    "spec.initContainers[].resources.requests",
    "spec.initContainers[].resources.limits",
    "spec.initContainers[].ports",
];

/// Values by the last name of a path, where a schema says "text" and the cluster means more.
const HINTS: &[(&str, &[&str])] = &[
    ("maxRuntime", &["90m", "1h30m", "7s"]),
    ("priorityClassName", &["walk", "system-node-critical"]),
    ("gracePeriod", &["45s", "2m"]),
    ("period", &["10m", "1h30m"]),
    ("annotation", &["walk/saved-at", "saved"]),
    ("minMemory", &["10Gi", "16384Mi"]),
    ("maxPrice", &["2.50", "3"]),
    ("maxTotalPrice", &["20", "1.5"]),
    ("after", &["90m", "2h"]),
    ("idleTimeout", &["10m", "1h30m"]),
    ("within", &["10m", "1h30m"]),
    ("models[]", &["H100", "A100-80GB"]),
    ("fraction", &["0.25", "0.500"]),
    ("partition", &["1g.10gb", "MIG-3g.40gb"]),
    ("image", &["walk:2", "registry.example/walk/deep:3"]),
    ("mountPath", &["/walk", "/walk/deep"]),
    ("path", &["/walk", "/var/walk"]),
    ("operator", &["Exists", "In"]),
    ("effect", &["NoSchedule", "NoExecute"]),
    ("whenUnsatisfiable", &["DoNotSchedule", "ScheduleAnyway"]),
    ("nodeAffinityPolicy", &["Honor", "Ignore"]),
    ("nodeTaintsPolicy", &["Honor", "Ignore"]),
    (
        "topologyKey",
        &["kubernetes.io/hostname", "topology.kubernetes.io/zone"],
    ),
    ("protocol", &["TCP", "UDP"]),
    ("hostIP", &["127.0.0.1", "0.0.0.0"]),
    ("restartPolicy", &["Never", "Always"]),
    ("fieldPath", &["metadata.name", "spec.nodeName"]),
    ("resource", &["limits.cpu", "requests.memory"]),
    ("apiVersion", &["v1"]),
    ("key", &["walk", "gpu.warp.dev/walk"]),
    ("nodeName", &["h100-1"]),
];

/// Values the schema allows and a rule refuses, with the rule's words.
const RULED: &[(&str, &str, &str)] = &[
    (
        "podTemplate.spec.nodeName",
        "h100-1",
        "nodeName goes around the scheduler",
    ),
    (
        "podTemplate.spec.restartPolicy",
        "Always",
        "restartPolicy must be Never",
    ),
    ("gpu.isolation", "none", "isolation is for shared GPUs"),
    ("gpu.isolation", "software", "isolation is for shared GPUs"),
    ("gpu.isolation", "hardware", "isolation is for shared GPUs"),
];

/// One field that holds a value and nothing of ours below it.
#[derive(Clone, Debug)]
pub(crate) struct Leaf {
    /// From `spec` on: `gpu.models[]`, `resources.limits{}`.
    pub(crate) path: String,
    pub(crate) schema: Value,
}

impl Leaf {
    /// The field of the spec it is in.
    pub(crate) fn field(&self) -> &str {
        let end = self.path.find(['.', '[', '{']).unwrap_or(self.path.len());
        &self.path[..end]
    }

    pub(crate) fn in_template(&self) -> bool {
        self.field() == "podTemplate"
    }

    fn kind(&self) -> &str {
        if self.schema["x-kubernetes-int-or-string"] == true {
            return "quantity";
        }
        self.schema["type"].as_str().unwrap_or_default()
    }

    /// Values a rule refuses although the schema allows them, with its words.
    pub(crate) fn ruled(&self) -> Vec<(Value, &'static str)> {
        RULED
            .iter()
            .filter(|(path, ..)| *path == self.path)
            .map(|(_, value, words)| (json!(value), *words))
            .collect()
    }

    /// Values the schema and the rules allow; none for a field that is not to be set. Whether the
    /// cluster can do anything with them is another matter, and the walk's.
    pub(crate) fn allowed(&self) -> Vec<Value> {
        let ruled = self.ruled();
        let mut values = self.plausible();
        values.retain(|value| ruled.iter().all(|(refused, _)| refused != value));
        values
    }

    fn plausible(&self) -> Vec<Value> {
        let name = self.path.rsplit('.').next().unwrap_or_default();
        if let Some((_, values)) = HINTS.iter().find(|(hint, _)| *hint == name)
            && self.schema.get("enum").is_none()
        {
            let values = values.iter().map(|value| json!(value));
            return if self.kind() == "array" {
                values.map(|value| json!([value])).collect()
            } else {
                values.collect()
            };
        }
        let number = |name: &str| self.schema[name].as_f64();
        match self.kind() {
            "boolean" => vec![json!(true), json!(false)],
            "integer" => {
                let least = number("minimum").unwrap_or(1.0);
                let most = number("maximum").unwrap_or(least + 9.0);
                [least, least + 1.0, most].map(whole).to_vec()
            }
            "quantity" => vec![json!("1"), json!("500m"), json!(2)],
            "array" => vec![json!(["walk"]), json!(["sleep", "60"])],
            "object" if self.of_quantities() => vec![
                json!({"cpu": "1"}),
                json!({"cpu": "500m", "memory": "1Gi"}),
                json!({"memory": "2Gi", "ephemeral-storage": "1Gi"}),
            ],
            "object" => vec![
                json!({"walk": "1"}),
                json!({"gpu.warp.dev/walk": "2", "walk": "3"}),
            ],
            _ => match self.schema["enum"].as_array() {
                Some(values) => values
                    .iter()
                    .filter(|value| !value.is_null())
                    .cloned()
                    .collect(),
                None => vec![json!("walk"), json!("walk-2")],
            },
        }
    }

    fn of_quantities(&self) -> bool {
        self.schema["additionalProperties"]["x-kubernetes-int-or-string"] == true
    }

    /// Values the schema forbids; none of a price, which is a number or a text: the controller judges it.
    pub(crate) fn forbidden(&self) -> Vec<Value> {
        if self.schema["x-kubernetes-preserve-unknown-fields"] == true {
            return Vec::new();
        }
        let number = |name: &str| self.schema[name].as_f64();
        let length = |name: &str| {
            self.schema[name]
                .as_u64()
                .and_then(|n| usize::try_from(n).ok())
        };
        let mut values = match self.kind() {
            "boolean" => vec![json!("walk"), json!(1)],
            "integer" => vec![json!("walk"), json!(1.5), json!(true)],
            "quantity" => vec![json!(true), json!({"walk": 1})],
            "array" => vec![json!("walk"), json!([{"walk": 1}]), json!([1])],
            "object" => vec![json!("walk"), json!({"walk": {"walk": 1}}), json!(["walk"])],
            _ => vec![json!(1), json!({"walk": 1}), json!(["walk"])],
        };
        if self.schema.get("enum").is_some() {
            values.push(json!("walk"));
        }
        if let Some(least) = number("minimum") {
            values.push(whole(least - 1.0));
        }
        if let Some(most) = number("maximum") {
            values.push(whole(most + 1.0));
        }
        if let Some(most) = length("maxLength").filter(|_| self.kind() == "string") {
            values.push(json!("a".repeat(most + 1)));
        }
        if length("minLength").is_some_and(|least| least > 0) {
            values.push(json!(""));
        }
        if self.schema.get("pattern").is_some() {
            values.push(json!(" walk:!"));
        }
        if let Some(most) = length("maxItems") {
            values.push(
                (0..=most)
                    .map(|number| json!(format!("walk-{number}")))
                    .collect(),
            );
        }
        values
    }
}

#[allow(
    clippy::cast_possible_truncation,
    reason = "bounds of a schema are whole and small"
)]
fn whole(number: f64) -> Value {
    json!(number as i64)
}

/// Fields whose schema is Kubernetes' own.
const FOREIGN: [&str; 3] = ["podTemplate", "securityContext", "podSecurityContext"];

/// Leaves of the security contexts: those Warp fills in or reads, and those people set.
const CONTEXTS: [&str; 5] = [
    "securityContext.allowPrivilegeEscalation",
    "securityContext.privileged",
    "securityContext.capabilities.drop",
    "podSecurityContext.runAsNonRoot",
    "podSecurityContext.runAsUser",
];

/// Every leaf Warp defines, reads or writes.
pub(crate) fn all() -> Vec<Leaf> {
    let spec: &Value = &SPEC;
    let mut found = Vec::new();
    for (name, schema) in spec["properties"].as_object().into_iter().flatten() {
        if !FOREIGN.contains(&name.as_str()) {
            descend(name, schema, &mut found);
        }
    }
    for path in CONTEXTS {
        let schema = at(spec, path);
        assert!(!schema.is_null(), "the spec has no field {path}");
        descend(path, schema, &mut found);
    }
    for path in TEMPLATE {
        let path = format!("podTemplate.{path}");
        let schema = at(spec, &path);
        assert!(!schema.is_null(), "podTemplate has no field {path}");
        descend(&path, schema, &mut found);
    }
    found
}

fn descend(path: &str, schema: &Value, found: &mut Vec<Leaf>) {
    if let Some(properties) = schema["properties"].as_object() {
        for (name, schema) in properties {
            descend(&format!("{path}.{name}"), schema, found);
        }
        return;
    }
    let items = &schema["items"];
    if schema["type"] == "array" && items["properties"].is_object() {
        return descend(&format!("{path}[]"), items, found);
    }
    let suffix = match schema["type"].as_str() {
        Some("array") => "[]",
        Some("object") => "{}",
        _ => "",
    };
    found.push(Leaf {
        path: format!("{path}{suffix}"),
        schema: schema.clone(),
    });
}

/// The schema at a path below the spec.
fn at<'a>(spec: &'a Value, path: &str) -> &'a Value {
    let mut place = spec;
    for step in path.split('.') {
        place = &place["properties"][step.trim_end_matches("[]")];
        if step.ends_with("[]") {
            place = &place["items"];
        }
    }
    place
}

/// A spec with one leaf set, and whatever that leaf's surroundings require.
pub(crate) fn with(base: &Value, leaf: &Leaf, value: Value) -> Value {
    let mut schema: &Value = &SPEC;
    let mut spec = base.clone();
    let mut place = &mut spec;
    let steps: Vec<&str> = leaf.path.split('.').collect();
    for (number, step) in steps.iter().enumerate() {
        let name = step.trim_end_matches("[]").trim_end_matches("{}");
        schema = &schema["properties"][name];
        if number + 1 == steps.len() {
            place[name] = value;
            break;
        }
        let list = step.ends_with("[]");
        if list {
            schema = &schema["items"];
        }
        if place.get(name).is_none_or(Value::is_null) {
            let made = surroundings(name, schema);
            place[name] = if list { json!([made]) } else { made };
        }
        place = if list {
            &mut place[name][0]
        } else {
            &mut place[name]
        };
    }
    one_source(&mut spec);
    saved_somehow(&mut spec);
    // The fewest of no gang is refused.
    if spec.get("minReplicas").is_some() && spec.get("replicas").is_none() {
        spec["replicas"] = spec["minReplicas"].clone();
    }
    spec
}

/// An object with what its schema requires, and what the API server would fill in.
fn surroundings(name: &str, schema: &Value) -> Value {
    let mut made = Map::new();
    for field in schema["required"].as_array().into_iter().flatten() {
        let field = field.as_str().unwrap_or_default();
        let inner = &schema["properties"][field];
        let value = match inner["type"].as_str() {
            Some("array") if inner["items"]["properties"].is_object() => {
                json!([surroundings(field, &inner["items"])])
            }
            Some("object") => surroundings(field, inner),
            _ => {
                let leaf = Leaf {
                    path: format!("{name}.{field}"),
                    schema: inner.clone(),
                };
                leaf.allowed().swap_remove(0)
            }
        };
        made.insert(field.to_owned(), value);
    }
    for (field, inner) in schema["properties"].as_object().into_iter().flatten() {
        if let Some(filled_in) = inner.get("default") {
            made.entry(field).or_insert_with(|| filled_in.clone());
        }
    }
    if name.to_lowercase().ends_with("containers") {
        made.insert("image".to_owned(), json!("walk:1"));
    }
    Value::Object(made)
}

/// A checkpoint says how work is saved.
fn saved_somehow(spec: &mut Value) {
    let Some(checkpoint) = spec.get_mut("checkpoint") else {
        return;
    };
    let ways = ["signal", "period", "annotation", "path"];
    if checkpoint.is_object() && ways.iter().all(|way| checkpoint.get(way).is_none()) {
        checkpoint["period"] = json!("10m");
    }
}

/// A volume has exactly one source.
fn one_source(spec: &mut Value) {
    for volume in spec["volumes"].as_array_mut().into_iter().flatten() {
        let sources = ["persistentVolumeClaim", "emptyDir", "hostPath"];
        if sources.iter().all(|source| volume.get(source).is_none()) {
            volume["emptyDir"] = json!({});
        }
    }
    if spec["volumes"].is_null()
        && let Some(fields) = spec.as_object_mut()
    {
        fields.remove("volumes");
    }
}
