//! The schema below `podTemplate`: Kubernetes' own, made small enough to ship in a CRD.
//!
//! Descriptions go (they are Kubernetes' own documentation and ten times the size of the rest);
//! list-map keys, which the generated types do not carry, are put back, so that server-side apply
//! merges containers and volumes by name as it does in a Deployment.

use serde_json::{Value, json};

use crate::crd::{list_map, walk};

/// Lists below a container and their keys.
const CONTAINER_LISTS: &[(&str, &[&str])] = &[
    ("env", &["name"]),
    ("ports", &["containerPort", "protocol"]),
    ("volumeMounts", &["mountPath"]),
    ("volumeDevices", &["devicePath"]),
    ("resources.claims", &["name"]),
];

/// Lists below the pod spec and their keys.
const POD_LISTS: &[(&str, &[&str])] = &[
    ("containers", &["name"]),
    ("initContainers", &["name"]),
    ("volumes", &["name"]),
    ("imagePullSecrets", &["name"]),
    ("hostAliases", &["ip"]),
    (
        "topologySpreadConstraints",
        &["topologyKey", "whenUnsatisfiable"],
    ),
    ("resourceClaims", &["name"]),
    ("schedulingGates", &["name"]),
];

/// Drops what Kubernetes' documentation says below a field of ours; our own sentence stays.
pub(crate) fn undescribed(field: &mut Value) {
    let description = field.get("description").cloned();
    walk(field, &mut |schema| {
        schema.remove("description");
    });
    if let (Some(description), Some(object)) = (description, field.as_object_mut()) {
        object.insert("description".to_owned(), description);
    }
}

/// Rewrites the derived schema of a PodTemplateSpec in place.
pub(crate) fn trim(template: &mut Value) {
    undescribed(template);
    // Only labels and annotations of a template reach a pod.
    let text_map = json!({"type": "object", "additionalProperties": {"type": "string"}});
    template["properties"]["metadata"] =
        json!({"type": "object", "properties": {"labels": text_map, "annotations": text_map}});
    let Some(spec) = template
        .get_mut("properties")
        .and_then(|all| all.get_mut("spec"))
    else {
        return;
    };
    // Ephemeral containers are added to running pods, never by a template.
    if let Some(properties) = spec["properties"].as_object_mut() {
        properties.remove("ephemeralContainers");
    }
    for (path, keys) in POD_LISTS {
        list_map(spec, path, keys);
    }
    // A list-map key must be required or have a default.
    spec["properties"]["imagePullSecrets"]["items"]["properties"]["name"]["default"] = json!("");
    for list in ["containers", "initContainers"] {
        let container = &mut spec["properties"][list]["items"];
        for (path, keys) in CONTAINER_LISTS {
            list_map(container, path, keys);
        }
        container["properties"]["ports"]["items"]["properties"]["protocol"]["default"] =
            json!("TCP");
    }
}
