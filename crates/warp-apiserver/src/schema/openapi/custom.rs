//! What is published of a custom resource: the schema its author wrote, in the words of each version of
//! OpenAPI, with what every object has.
//!
//! Version 2 cannot say everything, and kubectl refuses what it says badly: there whatever may be null or
//! keeps unknown fields is left open, as Kubernetes leaves it.

use serde_json::{Map, Value, json};

use super::definitions::{LIST_META, OBJECT_META, common};
use super::{definition_name, list_definition_name};
use crate::registry::resource::Resource;

/// A version of OpenAPI.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Form {
    Two,
    Three,
}

impl Form {
    fn reference(self, name: &str) -> String {
        match self {
            Self::Two => format!("#/definitions/{name}"),
            Self::Three => format!("#/components/schemas/{name}"),
        }
    }

    /// A reference with words beside it, which version 3 ignores unless the reference is wrapped.
    fn described(self, name: &str, description: &str) -> Value {
        let reference = json!({"$ref": self.reference(name)});
        match self {
            Self::Two => {
                json!({"description": description, "$ref": self.reference(name)})
            }
            Self::Three => json!({"description": description, "allOf": [reference]}),
        }
    }
}

const KIND: &str = "x-kubernetes-group-version-kind";
const PRESERVE: &str = "x-kubernetes-preserve-unknown-fields";
const JUNCTORS: [&str; 3] = ["allOf", "anyOf", "oneOf"];

/// Keywords that are published as they were written.
const PLAIN: [&str; 28] = [
    "description",
    "type",
    "nullable",
    "format",
    "title",
    "default",
    "maximum",
    "exclusiveMaximum",
    "minimum",
    "exclusiveMinimum",
    "maxLength",
    "minLength",
    "pattern",
    "maxItems",
    "minItems",
    "uniqueItems",
    "multipleOf",
    "enum",
    "maxProperties",
    "minProperties",
    "required",
    PRESERVE,
    "x-kubernetes-embedded-resource",
    "x-kubernetes-int-or-string",
    "x-kubernetes-list-map-keys",
    "x-kubernetes-list-type",
    "x-kubernetes-map-type",
    "x-kubernetes-validations",
];

/// The definition of the kind.
pub(super) fn kind(resource: &Resource, form: Form) -> Value {
    let source = resource.schema.node().source.as_deref();
    let open = form == Form::Two && resource.schema.preserves_unknown();
    let mut out = match source.and_then(Value::as_object) {
        // Properties would make kubectl refuse every other one.
        Some(source) if !open => {
            let mut out = published(source, form);
            add_common(&mut out, form);
            out
        }
        _ => Map::from_iter([("type".to_owned(), json!("object"))]),
    };
    identify(&mut out, resource, &resource.kind);
    Value::Object(out)
}

/// The definition of its list.
pub(super) fn list(resource: &Resource, form: Form) -> Value {
    let items = form.reference(&definition_name(resource));
    let list = json!({
        "type": "object",
        "description": format!("{} is a list of {}", resource.list_kind, resource.kind),
        "required": ["items"],
        "properties": {
            "apiVersion": common("apiVersion"),
            "kind": common("kind"),
            "metadata": form.described(LIST_META, "The list's own metadata."),
            "items": {
                "type": "array",
                "description": format!("List of {}.", resource.plural),
                "items": {"$ref": items},
            },
        },
    });
    let Value::Object(mut out) = list else {
        return list;
    };
    identify(&mut out, resource, &resource.list_kind);
    Value::Object(out)
}

/// Everything version 2 says about custom resources.
pub(super) fn definitions_of_version_two(resource: &Resource) -> [(String, Value); 2] {
    [
        (definition_name(resource), kind(resource, Form::Two)),
        (list_definition_name(resource), list(resource, Form::Two)),
    ]
}

fn identify(out: &mut Map<String, Value>, resource: &Resource, kind: &str) {
    out.insert(
        KIND.to_owned(),
        json!([{"group": resource.group, "kind": kind, "version": resource.version}]),
    );
    if resource.custom.is_some() && !resource.selectable_fields.is_empty() {
        let fields = resource.selectable_fields.iter();
        let fields: Vec<Value> = fields.map(|f| json!({"fieldPath": f.name})).collect();
        out.insert("x-kubernetes-selectable-fields".to_owned(), json!(fields));
    }
}

fn metadata(form: Form) -> Value {
    let text = common("metadata")["description"].clone();
    form.described(OBJECT_META, text.as_str().unwrap_or_default())
}

/// Adds what every object has.
fn add_common(schema: &mut Map<String, Value>, form: Form) {
    let properties = schema.entry("properties").or_insert_with(|| json!({}));
    properties["apiVersion"] = common("apiVersion");
    properties["kind"] = common("kind");
    properties["metadata"] = metadata(form);
}

fn flag(schema: &Map<String, Value>, name: &str) -> bool {
    schema.get(name) == Some(&Value::Bool(true))
}

/// Says nothing, so it is not said: only a default may be `false` or empty.
fn is_silent(name: &str, value: &Value) -> bool {
    match value {
        Value::Null => true,
        _ if name == "default" => false,
        Value::Bool(set) => !set,
        Value::String(text) => text.is_empty(),
        Value::Array(list) => list.is_empty(),
        _ => false,
    }
}

fn published(source: &Map<String, Value>, form: Form) -> Map<String, Value> {
    let mut out: Map<String, Value> = source
        .iter()
        .filter(|(name, value)| PLAIN.contains(&name.as_str()) && !is_silent(name, value))
        .map(|(name, value)| (name.clone(), value.clone()))
        .collect();
    let open = form == Form::Two && (flag(source, "nullable") || flag(source, PRESERVE));
    if !open {
        members(source, form, &mut out);
    }
    match source.get("additionalProperties") {
        Some(Value::Object(others)) => {
            out.insert(
                "additionalProperties".to_owned(),
                published(others, form).into(),
            );
        }
        Some(Value::Bool(any)) => {
            out.insert("additionalProperties".to_owned(), (*any).into());
        }
        _ => {}
    }
    match form {
        Form::Two => leave_open(source, &mut out),
        Form::Three => junctors(source, &mut out),
    }
    if flag(source, "x-kubernetes-embedded-resource")
        && !(form == Form::Two && flag(source, PRESERVE))
    {
        embed(&mut out, form);
    }
    out
}

fn members(source: &Map<String, Value>, form: Form, out: &mut Map<String, Value>) {
    if let Some(items) = source.get("items").and_then(Value::as_object) {
        out.insert("items".to_owned(), published(items, form).into());
    }
    let properties = source.get("properties").and_then(Value::as_object);
    let properties: Map<String, Value> = properties
        .into_iter()
        .flatten()
        .filter_map(|(name, member)| Some((name, member.as_object()?)))
        .map(|(name, member)| (name.clone(), published(member, form).into()))
        .collect();
    if !properties.is_empty() {
        out.insert("properties".to_owned(), properties.into());
    }
}

/// What version 2 cannot say is not constrained there.
fn leave_open(source: &Map<String, Value>, out: &mut Map<String, Value>) {
    let is = |out: &Map<String, Value>, kind: &str| out.get("type") == Some(&json!(kind));
    // Clients must not fill in defaults themselves; nobody else reads this version.
    out.remove("default");
    let nullable = out.remove("nullable").is_some();
    if nullable
        || (is(out, "array") && !out.contains_key("items"))
        || (is(out, "object") && flag(source, PRESERVE))
    {
        out.remove("type");
    }
    let may_be_null = |value: Option<&Value>| {
        value
            .and_then(Value::as_object)
            .is_some_and(|schema| flag(schema, "nullable"))
    };
    if may_be_null(source.get("additionalProperties")) {
        out.remove("required");
    }
    // A member that may be null cannot be required there: null counts as absent.
    if out.contains_key("properties")
        && let Some(Value::Array(required)) = out.get_mut("required")
    {
        let member = |name: &str| source.get("properties").and_then(|all| all.get(name));
        required.retain(|name| !may_be_null(name.as_str().and_then(member)));
        if required.is_empty() {
            out.remove("required");
        }
    }
}

/// Combinations of schemas, and the one that a number or text stands for.
fn junctors(source: &Map<String, Value>, out: &mut Map<String, Value>) {
    for name in JUNCTORS {
        let list = source.get(name).and_then(Value::as_array);
        let list: Vec<Value> = list
            .into_iter()
            .flatten()
            .filter_map(Value::as_object)
            .map(|schema| published(schema, Form::Three).into())
            .collect();
        if !list.is_empty() {
            out.insert(name.to_owned(), list.into());
        }
    }
    if let Some(not) = source.get("not").and_then(Value::as_object) {
        out.insert("not".to_owned(), published(not, Form::Three).into());
    }
    if !flag(source, "x-kubernetes-int-or-string") {
        return;
    }
    let either = json!([{"type": "integer"}, {"type": "string"}]);
    let first = out.get("allOf").and_then(|list| list.get(0));
    let said = out.get("anyOf") == Some(&either)
        || first.and_then(|first| first.get("anyOf")) == Some(&either);
    if said {
        return;
    }
    if !out.contains_key("anyOf") {
        out.insert("anyOf".to_owned(), either);
    } else if let Some(Value::Array(all)) = out.get_mut("allOf") {
        all.insert(0, json!({"anyOf": either}));
    } else {
        out.insert("allOf".to_owned(), json!([{"anyOf": either}]));
    }
}

/// An embedded object has what every object has.
fn embed(out: &mut Map<String, Value>, form: Form) {
    add_common(out, form);
    let required = out.entry("required").or_insert_with(|| json!([]));
    if let Some(list) = required.as_array_mut() {
        for name in ["kind", "apiVersion"] {
            if !list.iter().any(|known| known == name) {
                list.push(name.into());
            }
        }
    }
}
