//! OpenAPI documents, one of version 3 per group and version, and one of version 2: what kubectl's apply, explain and create read.
//!
//! Built-in definitions come from the schemars feature of k8s-openapi, with the facts it does not
//! know (list keys, merge keys, enumerations, defaults) added from the table; custom resources'
//! are what their author wrote, with the implied metadata.

mod definitions;
mod paths;
pub(crate) mod swagger;

#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::sync::Arc;

use serde_json::{Map, Value, json};

use crate::registry::resource::Resource;

/// The document of one group and version.
pub fn document(resources: &[Arc<Resource>]) -> Value {
    let mut components = BTreeMap::new();
    let mut all = Map::new();
    for resource in resources {
        let name = definition_name(resource);
        if resource.custom.is_some() {
            components.insert(name.clone(), custom_definition(resource));
            definitions::add_metadata(&mut components);
        } else {
            definitions::add(resource, &mut components);
        }
        paths::add(resource, &name, &mut all);
        for subresource in &resource.subresources {
            if let Some((group, version, kind)) = subresource.kind() {
                definitions::add_named(group, version, kind, &mut components);
            }
        }
    }
    let components: Map<String, Value> = components.into_iter().collect();
    json!({
        "openapi": "3.0.0",
        "info": {"title": "Kubernetes", "version": "v1.35"},
        "paths": all,
        "components": {"schemas": components},
    })
}

/// `io.k8s.api.core.v1.Pod` or, for a custom group, its domain backwards: `com.example.v1.Thing`.
fn definition_name(resource: &Resource) -> String {
    if resource.custom.is_none()
        && let Some(name) = definitions::name(&resource.group, &resource.version, &resource.kind)
    {
        return name;
    }
    let mut parts: Vec<&str> = resource.group.split('.').rev().collect();
    parts.extend([resource.version.as_str(), resource.kind.as_str()]);
    parts.join(".")
}

fn group_version_kind(resource: &Resource) -> Value {
    json!({"group": resource.group, "kind": resource.kind, "version": resource.version})
}

/// The schema as written, with apiVersion, kind and metadata described as everywhere.
fn custom_definition(resource: &Resource) -> Value {
    let source = resource.schema.node().source.as_deref();
    let mut schema = source.cloned().unwrap_or_else(|| json!({"type": "object"}));
    if let Some(map) = schema.as_object_mut() {
        let preserves = resource.schema.preserves_unknown();
        let described = map
            .get("properties")
            .and_then(Value::as_object)
            .is_some_and(|p| !p.is_empty());
        if preserves && !described {
            map.insert(
                "x-kubernetes-preserve-unknown-fields".to_owned(),
                Value::Bool(true),
            );
        }
        let properties = map.entry("properties").or_insert_with(|| json!({}));
        properties["apiVersion"] = json!({
            "type": "string", "description": definitions::API_VERSION,
        });
        properties["kind"] = json!({"type": "string", "description": definitions::KIND});
        properties["metadata"] = json!({
            "allOf": [{"$ref": format!("#/components/schemas/{}", definitions::OBJECT_META)}],
            "description": "Standard object's metadata.",
        });
        map.insert(
            "x-kubernetes-group-version-kind".to_owned(),
            json!([group_version_kind(resource)]),
        );
    }
    schema
}
