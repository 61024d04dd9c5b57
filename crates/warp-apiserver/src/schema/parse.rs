//! Reads a JSON schema into the model. Assumes the structural checks have passed; anything it
//! cannot represent is an error, never skipped.

use serde_json::{Map, Value};

use super::{Additional, JsonType, Limits, ListType, Node, Pattern, Schema, cel};

type Parsed<T> = Result<T, String>;

/// The root of a custom resource: metadata members are implied.
pub(super) fn root(schema: &Value, preserve_unknown: bool) -> Parsed<Schema> {
    let mut node = node(schema)?;
    node.embedded = true;
    node.preserve_unknown |= preserve_unknown;
    cel::attach(&mut node, true);
    Ok(Schema::from_node(node))
}

fn child(schema: &Value) -> Parsed<Schema> {
    let mut node = node(schema)?;
    cel::attach(&mut node, false);
    Ok(Schema::from_node(node))
}

/// A schema below `allOf` and its like: only values are judged there, rules are not allowed.
fn nested(schema: &Value) -> Parsed<Schema> {
    Ok(Schema::from_node(node(schema)?))
}

fn node(schema: &Value) -> Parsed<Node> {
    let map = schema.as_object().ok_or("a schema must be an object")?;
    let flag = |name: &str| map.get(name).and_then(Value::as_bool).unwrap_or(false);
    let mut properties = std::collections::BTreeMap::new();
    if let Some(Value::Object(members)) = map.get("properties") {
        for (name, member) in members {
            properties.insert(name.clone(), child(member)?);
        }
    }
    let additional = match map.get("additionalProperties") {
        None | Some(Value::Null) => Additional::Unset,
        Some(Value::Bool(true)) => Additional::Any,
        Some(Value::Bool(false)) => Additional::Refused,
        Some(other) => Additional::Schema(child(other)?),
    };
    let list_type = match text(map, "x-kubernetes-list-type") {
        None => ListType::Unset,
        Some("set") => ListType::Set,
        Some("map") => ListType::Map,
        Some(_) => ListType::Atomic,
    };
    Ok(Node {
        kind: text(map, "type").and_then(JsonType::parse),
        format: text(map, "format").map(Into::into),
        nullable: flag("nullable"),
        default: map.get("default").filter(|value| !value.is_null()).cloned(),
        properties,
        items: map
            .get("items")
            .filter(|value| !value.is_null())
            .map(child)
            .transpose()?,
        additional,
        int_or_string: flag("x-kubernetes-int-or-string"),
        preserve_unknown: flag("x-kubernetes-preserve-unknown-fields"),
        embedded: flag("x-kubernetes-embedded-resource"),
        list_type,
        list_keys: strings(map, "x-kubernetes-list-map-keys"),
        atomic: text(map, "x-kubernetes-map-type") == Some("atomic"),
        limits: limits(map)?.map(Box::new),
        rules: cel::rules(map.get("x-kubernetes-validations"))?,
        ..Node::default()
    })
}

fn limits(map: &Map<String, Value>) -> Parsed<Option<Limits>> {
    const KEYS: [&str; 18] = [
        "maximum",
        "exclusiveMaximum",
        "minimum",
        "exclusiveMinimum",
        "multipleOf",
        "maxLength",
        "minLength",
        "pattern",
        "maxItems",
        "minItems",
        "maxProperties",
        "minProperties",
        "required",
        "enum",
        "allOf",
        "anyOf",
        "oneOf",
        "not",
    ];
    if !KEYS.iter().any(|key| map.contains_key(*key)) {
        return Ok(None);
    }
    let float = |name: &str| map.get(name).and_then(Value::as_f64);
    let whole = |name: &str| map.get(name).and_then(Value::as_i64);
    let flag = |name: &str| map.get(name).and_then(Value::as_bool).unwrap_or(false);
    let list = |name: &str| -> Parsed<Vec<Schema>> {
        match map.get(name) {
            Some(Value::Array(list)) => list.iter().map(nested).collect(),
            _ => Ok(Vec::new()),
        }
    };
    let pattern = match text(map, "pattern").filter(|text| !text.is_empty()) {
        None => None,
        Some(text) => Some(compile_pattern(text)?),
    };
    Ok(Some(Limits {
        maximum: float("maximum"),
        exclusive_maximum: flag("exclusiveMaximum"),
        minimum: float("minimum"),
        exclusive_minimum: flag("exclusiveMinimum"),
        multiple_of: float("multipleOf"),
        max_length: whole("maxLength"),
        min_length: whole("minLength"),
        pattern,
        max_items: whole("maxItems"),
        min_items: whole("minItems"),
        max_properties: whole("maxProperties"),
        min_properties: whole("minProperties"),
        required: strings(map, "required"),
        allowed: map
            .get("enum")
            .and_then(Value::as_array)
            .cloned()
            .unwrap_or_default(),
        all_of: list("allOf")?,
        any_of: list("anyOf")?,
        one_of: list("oneOf")?,
        not: map
            .get("not")
            .filter(|value| !value.is_null())
            .map(nested)
            .transpose()?,
    }))
}

/// Go's regular expressions and ours share their syntax (both descend from RE2) up to a few
/// escapes; a size limit keeps a hostile pattern from using the memory of the server.
pub(super) fn compile_pattern(text: &str) -> Parsed<Pattern> {
    let regex = regex::RegexBuilder::new(&text.replace("\\z", "$"))
        .size_limit(4 << 20)
        .build()
        .map_err(|error| error.to_string())?;
    Ok(Pattern {
        text: text.to_owned(),
        regex,
    })
}

fn text<'a>(map: &'a Map<String, Value>, name: &str) -> Option<&'a str> {
    map.get(name)
        .and_then(Value::as_str)
        .filter(|text| !text.is_empty())
}

fn strings(map: &Map<String, Value>, name: &str) -> Vec<String> {
    map.get(name)
        .and_then(Value::as_array)
        .map(|list| {
            list.iter()
                .filter_map(Value::as_str)
                .map(str::to_owned)
                .collect()
        })
        .unwrap_or_default()
}
