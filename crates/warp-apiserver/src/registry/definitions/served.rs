//! What an established definition makes the server serve: one resource for each served version.

use serde_json::{Map, Value};

use super::{strings, text};
use crate::http::Api;
use crate::registry::resource::{self, Cell, Column, Custom, SelectableField};
use crate::registry::{self, Resource, ScalePaths, Strategy, Subresource};
use crate::schema::Schema;
use crate::schema::openapi::metadata_text;

const CUSTOM_VERBS: &[&str] = &[
    "delete",
    "deletecollection",
    "get",
    "list",
    "patch",
    "create",
    "update",
    "watch",
];

pub(super) fn versions(definition: &Value) -> &[Value] {
    definition["spec"]["versions"]
        .as_array()
        .map_or(&[], Vec::as_slice)
}

pub(super) fn serve(api: &Api, definition: &Value) {
    let served = resources(definition);
    let group = text(definition, "/spec/group");
    let plural = text(definition, "/spec/names/plural");
    let before = api.registry.served();
    let same = served.iter().all(|resource| {
        before
            .find(&resource.group, &resource.version, &resource.plural)
            .is_some_and(|entry| {
                registry::same_serving(&entry.resource, resource)
                    && format!("{:?}", entry.resource.columns) == format!("{:?}", resource.columns)
                    && entry.resource.short_names == resource.short_names
                    && entry.resource.categories == resource.categories
            })
    });
    let count = before
        .entries()
        .iter()
        .filter(|entry| entry.resource.group == group && entry.resource.plural == plural)
        .count();
    if !same || count != served.len() {
        api.registry.replace_custom(group, plural, served);
    }
}

/// The descriptors of a definition's served versions.
fn resources(definition: &Value) -> Vec<Resource> {
    let group = text(definition, "/spec/group");
    let storage = versions(definition)
        .iter()
        .find(|version| version["storage"] == true)
        .map(|version| text(version, "/name"))
        .unwrap_or_default();
    let storage = resource::api_version(group, storage);
    versions(definition)
        .iter()
        .filter(|version| version["served"] == true)
        .filter_map(|version| resource(definition, version, &storage))
        .collect()
}

fn resource(definition: &Value, version: &Value, storage: &str) -> Option<Resource> {
    let names = &definition["spec"]["names"];
    let schema_json = &version["schema"]["openAPIV3Schema"];
    let preserve = definition["spec"]["preserveUnknownFields"] == true;
    let schema = if schema_json.is_object() {
        match Schema::from_checked(schema_json, preserve) {
            Ok(schema) => schema,
            Err(errors) => {
                let name = text(definition, "/metadata/name");
                let problem = crate::schema::aggregate(&errors);
                tracing::warn!(definition = name, problem, "failed to serve definition");
                return None;
            }
        }
    } else {
        Schema::anything()
    };
    let group = text(definition, "/spec/group");
    let name = text(version, "/name");
    let kind = text(names, "/kind");
    let mut resource = Resource::new(group, name, kind, text(names, "/plural"), schema);
    text(names, "/listKind").clone_into(&mut resource.list_kind);
    text(names, "/singular").clone_into(&mut resource.singular);
    resource.short_names = strings(&names["shortNames"]);
    resource.categories = strings(&names["categories"]);
    resource.namespaced = text(definition, "/spec/scope") == "Namespaced";
    resource.verbs = CUSTOM_VERBS;
    resource.strategy = Strategy {
        generation: true,
        unconditional_update: false,
        validate_name: registry::name::subdomain,
        ..Strategy::default()
    };
    let subresources = &version["subresources"];
    if subresources["status"].is_object() {
        resource.subresources.push(Subresource::Status);
    }
    if subresources["scale"].is_object() {
        let scale = &subresources["scale"];
        resource.subresources.push(Subresource::Scale(ScalePaths {
            spec_replicas: text(scale, "/specReplicasPath").to_owned(),
            status_replicas: text(scale, "/statusReplicasPath").to_owned(),
            selector: scale["labelSelectorPath"].as_str().map(str::to_owned),
        }));
    }
    resource.columns = columns(version);
    resource.selectable_fields = version["selectableFields"]
        .as_array()
        .into_iter()
        .flatten()
        .filter_map(|field| field["jsonPath"].as_str())
        .map(|path| SelectableField::new(path.trim_start_matches('.')))
        .collect();
    let deprecation = (version["deprecated"] == true).then(|| {
        version["deprecationWarning"].as_str().map_or_else(
            || format!("{group}/{name} {kind} is deprecated"),
            str::to_owned,
        )
    });
    resource.custom = Some(Custom {
        epoch: epoch(name, schema_json, preserve),
        storage_version: storage.to_owned(),
        deprecation,
    });
    Some(resource)
}

fn epoch(version: &str, schema: &Value, preserve: bool) -> u64 {
    let text = format!("{version}\n{preserve}\n{schema}");
    let digest = ring::digest::digest(&ring::digest::SHA256, text.as_bytes());
    let head = digest
        .as_ref()
        .first_chunk::<8>()
        .copied()
        .unwrap_or_default();
    u64::from_le_bytes(head).max(1)
}

fn columns(version: &Value) -> Vec<Column> {
    let column =
        |name: &str, kind: &str, format: &str, description: &str, priority, path: &str| Column {
            name: name.to_owned(),
            kind: kind.to_owned(),
            format: format.to_owned(),
            description: description.to_owned(),
            priority,
            cell: Cell::Path(path.to_owned()),
        };
    let mut columns = vec![column(
        "Name",
        "string",
        "name",
        &metadata_text("name"),
        0,
        ".metadata.name",
    )];
    let listed: Vec<&Map<String, Value>> = version["additionalPrinterColumns"]
        .as_array()
        .into_iter()
        .flatten()
        .filter_map(Value::as_object)
        .collect();
    if listed.is_empty() {
        let age = &metadata_text("creationTimestamp");
        columns.push(column(
            "Age",
            "date",
            "",
            age,
            0,
            ".metadata.creationTimestamp",
        ));
    }
    for listed in listed {
        let get = |name: &str| listed.get(name).and_then(Value::as_str).unwrap_or_default();
        let priority = listed.get("priority").and_then(Value::as_i64).unwrap_or(0);
        columns.push(column(
            get("name"),
            get("type"),
            get("format"),
            &match get("description") {
                "" => format!(
                    "Custom resource definition column (in JSONPath format): {}",
                    get("jsonPath")
                ),
                described => described.to_owned(),
            },
            i32::try_from(priority).unwrap_or(0),
            get("jsonPath"),
        ));
    }
    columns
}
