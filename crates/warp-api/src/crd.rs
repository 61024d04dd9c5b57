//! From the derived CRD to the one we ship: rules attached, pod template trimmed, text made stable.

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::CustomResourceExt;
use serde_json::{Map, Value, json};

use crate::kinds::KINDS;
use crate::{
    CloudProvider, GPURequest, GPUWorkload, InferenceService, ModelCache, Tenant, cloudprovider,
    gpurequest, inferenceservice, modelcache, pod_template, tenant as tenant_kind, workload,
};

/// A CEL rule and where it hangs: a path of property names from the root, `[]` for list items.
#[derive(Clone, Copy, Debug)]
pub struct Rule {
    pub at: &'static str,
    pub rule: &'static str,
    pub message: &'static str,
}

/// The CRD of every kind, as JSON, ready to be applied.
pub fn all() -> Vec<Value> {
    KINDS.iter().map(|entry| (entry.crd)()).collect()
}

/// `gpuworkloads.gpu.warp.dev`.
pub fn gpu_workload() -> Value {
    let mut crd = plain(&GPUWorkload::crd());
    let schema = schema_mut(&mut crd);
    walk(schema, &mut without_null);
    if let Some(template) = at_mut(schema, "spec.podTemplate") {
        pod_template::trim(template);
    }
    for field in ["spec.securityContext", "spec.podSecurityContext"] {
        if let Some(context) = at_mut(schema, field) {
            pod_template::undescribed(context);
        }
    }
    list_map(schema, "spec.volumes", &["name"]);
    list_map(schema, "spec.env", &["name"]);
    list_map(schema, "status.conditions", &["type"]);
    list_map(schema, "status.refusedNodes", &["name"]);
    set(
        schema,
        "spec.gpu.models",
        "x-kubernetes-list-type",
        json!("set"),
    );
    attach(schema, workload::RULES);
    crd
}

/// `tenants.gpu.warp.dev`.
pub fn tenant() -> Value {
    let mut crd = plain(&Tenant::crd());
    let schema = schema_mut(&mut crd);
    walk(schema, &mut without_null);
    list_map(schema, "status.conditions", &["type"]);
    list_map(schema, "status.gpus", &["model"]);
    for path in ["spec.namespaces.names", "status.namespaces"] {
        set(schema, path, "x-kubernetes-list-type", json!("set"));
    }
    attach(schema, tenant_kind::RULES);
    crd
}

/// `inferenceservices.gpu.warp.dev`.
pub fn inference_service() -> Value {
    let mut crd = plain(&InferenceService::crd());
    let schema = schema_mut(&mut crd);
    walk(schema, &mut without_null);
    list_map(schema, "spec.engine.env", &["name"]);
    list_map(schema, "spec.model.adapters", &["name"]);
    list_map(schema, "status.conditions", &["type"]);
    list_map(schema, "status.timeline", &["step"]);
    for path in ["spec.gpu.models", "status.addresses"] {
        set(schema, path, "x-kubernetes-list-type", json!("set"));
    }
    attach(schema, inferenceservice::RULES);
    crd
}

/// `gpurequests.gpu.warp.dev`.
pub fn gpu_request() -> Value {
    let mut crd = plain(&GPURequest::crd());
    let schema = schema_mut(&mut crd);
    walk(schema, &mut without_null);
    list_map(schema, "status.conditions", &["type"]);
    list_map(schema, "status.attempts", &["number"]);
    for path in ["spec.providers", "spec.gpuModels", "spec.regionPreference"] {
        set(schema, path, "x-kubernetes-list-type", json!("set"));
    }
    attach(schema, gpurequest::RULES);
    crd
}

/// `cloudproviders.gpu.warp.dev`.
pub fn cloud_provider() -> Value {
    let mut crd = plain(&CloudProvider::crd());
    let schema = schema_mut(&mut crd);
    walk(schema, &mut without_null);
    list_map(schema, "status.conditions", &["type"]);
    list_map(schema, "status.machines", &["id"]);
    set(
        schema,
        "spec.regions",
        "x-kubernetes-list-type",
        json!("set"),
    );
    attach(schema, cloudprovider::RULES);
    crd
}

/// `modelcaches.gpu.warp.dev`.
pub fn model_cache() -> Value {
    let mut crd = plain(&ModelCache::crd());
    let schema = schema_mut(&mut crd);
    walk(schema, &mut without_null);
    list_map(schema, "status.conditions", &["type"]);
    attach(schema, modelcache::RULES);
    crd
}

/// The schema inside a CRD of ours.
pub fn schema(crd: &Value) -> &Value {
    &crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
}

fn schema_mut(crd: &mut Value) -> &mut Value {
    &mut crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
}

fn plain(crd: &CustomResourceDefinition) -> Value {
    serde_json::to_value(crd).expect("a CRD is plain data and always serialises")
}

/// A null for a field that is not nullable is dropped by the API server, which is what people mean
/// by it; a nullable field would keep it and then fail `has()`.
fn without_null(schema: &mut Map<String, Value>) {
    schema.remove("nullable");
    if let Some(choices) = schema.get_mut("enum").and_then(Value::as_array_mut) {
        choices.retain(|choice| !choice.is_null());
    }
}

fn attach(schema: &mut Value, rules: &[Rule]) {
    for rule in rules {
        let place = at_mut(schema, rule.at).and_then(Value::as_object_mut);
        let place = place.expect("every rule names a place of the schema, which a test checks");
        let list = place
            .entry("x-kubernetes-validations")
            .or_insert_with(|| json!([]));
        if let Some(list) = list.as_array_mut() {
            list.push(json!({"rule": rule.rule, "message": rule.message}));
        }
    }
}

fn set(schema: &mut Value, path: &str, key: &str, value: Value) {
    if let Some(place) = at_mut(schema, path).and_then(Value::as_object_mut) {
        place.insert(key.to_owned(), value);
    }
}

/// Marks a list as a map by `keys`, so that two appliers own different items of it.
pub(crate) fn list_map(schema: &mut Value, path: &str, keys: &[&str]) {
    set(schema, path, "x-kubernetes-list-type", json!("map"));
    set(schema, path, "x-kubernetes-list-map-keys", json!(keys));
}

/// The schema at a path such as `spec.volumes[]`.
pub(crate) fn at_mut<'a>(schema: &'a mut Value, path: &str) -> Option<&'a mut Value> {
    let mut place = schema;
    for step in path.split('.').filter(|step| !step.is_empty()) {
        let name = step.trim_end_matches("[]");
        place = place.get_mut("properties")?.get_mut(name)?;
        if step.ends_with("[]") {
            place = place.get_mut("items")?;
        }
    }
    Some(place)
}

/// Visits every schema below (and including) one.
pub(crate) fn walk(schema: &mut Value, visit: &mut impl FnMut(&mut Map<String, Value>)) {
    let Some(object) = schema.as_object_mut() else {
        return;
    };
    visit(object);
    if let Some(properties) = object.get_mut("properties").and_then(Value::as_object_mut) {
        for property in properties.values_mut() {
            walk(property, visit);
        }
    }
    for key in ["items", "additionalProperties"] {
        if let Some(inner) = object.get_mut(key) {
            walk(inner, visit);
        }
    }
}
