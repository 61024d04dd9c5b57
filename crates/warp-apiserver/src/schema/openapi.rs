//! OpenAPI documents, one of version 3 per group and version, and one of version 2: what kubectl's apply, explain and create read.
//!
//! Built-in definitions come from the schemars feature of k8s-openapi, with the facts it does not
//! know (list keys, merge keys, enumerations, defaults) added from the table; custom resources'
//! are made of what their author wrote (`custom`).

mod custom;
mod definitions;
mod paths;
pub(crate) mod swagger;

#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::sync::Arc;

use serde_json::{Map, Value, json};

use custom::Form;
pub(crate) use definitions::metadata_text;

use crate::registry::resource::Resource;

/// The document of one group and version.
pub fn document(resources: &[Arc<Resource>]) -> Value {
    let mut components = BTreeMap::new();
    let mut all = Map::new();
    for resource in resources {
        if resource.custom.is_some() {
            let kind = custom::kind(resource, Form::Three);
            components.insert(definition_name(resource), kind);
        } else {
            definitions::add(resource, &mut components);
        }
        definitions::add_metadata(&mut components);
        if resource.allows("list") {
            let list = custom::list(resource, Form::Three);
            components.insert(list_definition_name(resource), list);
        }
        paths::add(resource, &mut all);
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

/// The name of the definition of its list.
fn list_definition_name(resource: &Resource) -> String {
    let own = definition_name(resource);
    let package = own.rsplit_once('.').map_or("", |(package, _)| package);
    format!("{package}.{}", resource.list_kind)
}

fn group_version_kind(resource: &Resource) -> Value {
    json!({"group": resource.group, "kind": resource.kind, "version": resource.version})
}
