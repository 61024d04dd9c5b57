//! Judges a value against a schema and words every refusal as a real server does.
//!
//! The order is a real server's: schema, embedded metadata, list uniqueness, then CEL rules (only
//! when nothing found before makes their answer meaningless).

mod embedded;
mod lists;
mod outcome;

use serde_json::{Map, Value, json};

use embedded::embedded_objects;
pub(super) use lists::correlate_item;
use lists::list_keys;
use outcome::{Finding, Outcome};

use super::error::{FieldErrorKind, go_json};
use super::{
    Additional, FieldError, JsonType, Limits, Node, Path, Schema, cel, formats, go_float, go_quote,
};

/// Everything a custom resource is checked for apart from its own metadata.
pub(super) fn custom_resource(
    schema: &Schema,
    object: &Value,
    old: Option<&Value>,
    also: Vec<FieldError>,
    forgiven: &mut Vec<FieldError>,
) -> Vec<FieldError> {
    let mut errors = values(schema, object, old, "").into_field_errors(&Path::root());
    errors.extend(also);
    embedded_objects(schema, object, &Path::root(), true, &mut errors);
    let mut lists = Vec::new();
    if let Some(old) = old {
        list_keys(schema, old, &Path::root(), &mut lists);
    }
    if lists.is_empty() {
        list_keys(schema, object, &Path::root(), &mut errors);
    }
    let blocking = errors.iter().any(|error| {
        matches!(
            error.kind,
            FieldErrorKind::NotSupported
                | FieldErrorKind::Required
                | FieldErrorKind::TooLong
                | FieldErrorKind::TooMany
                | FieldErrorKind::TypeInvalid
        )
    });
    if cel::has_rules(schema) {
        if blocking {
            errors.push(FieldError::invalid(
                &Path::root(),
                Value::Null,
                "some validation rules were not checked because the object was invalid; correct \
                 the existing errors to complete validation",
            ));
        } else {
            let (refused, before) = cel::evaluate(schema, object, old);
            errors.extend(refused);
            forgiven.extend(before);
        }
    }
    errors
}

/// Checks a default value where it stands in a schema.
pub(super) fn default_value(schema: &Schema, value: &Value, path: &Path) -> Vec<FieldError> {
    let mut errors = Vec::new();
    embedded_objects(schema, value, path, false, &mut errors);
    if errors.is_empty() {
        errors = values(schema, value, None, "").into_field_errors(path);
    }
    if errors.is_empty() && cel::has_rules(schema) {
        errors = cel::evaluate_at(schema, value, path);
    }
    errors
}

/// The JSON schema check of one value, without what is unchanged from `old`.
fn values(schema: &Schema, value: &Value, old: Option<&Value>, path: &str) -> Outcome {
    let node = schema.node();
    let mut outcome = Outcome::default();
    check_type(node, value, path, &mut outcome);
    let limits = node.limits.as_deref();
    if !value.is_null() {
        if let Some(limits) = limits {
            check_combinations(limits, value, path, &mut outcome);
            check_scalar(limits, value, path, &mut outcome);
        }
        check_format(node, value, path, &mut outcome);
        if let Value::Array(list) = value {
            check_list(node, limits, list, old, path, &mut outcome);
        }
    }
    if let Some(limits) = limits {
        check_enum(limits, value, path, &mut outcome);
    }
    if let Value::Object(map) = value {
        check_map(node, limits, map, old, path, &mut outcome);
    }
    outcome.matched += 1;
    if !outcome.errors.is_empty() && old.is_some_and(|old| same(old, value)) {
        // What was stored before the rule existed stays acceptable until it changes.
        return Outcome {
            errors: Vec::new(),
            matched: outcome.matched,
        };
    }
    outcome
}

fn type_of(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "boolean",
        Value::Number(number) if number.is_f64() => "number",
        Value::Number(_) => "integer",
        Value::String(_) => "string",
        Value::Array(_) => "array",
        Value::Object(_) => "object",
    }
}

fn is_whole(value: &Value) -> bool {
    value
        .as_f64()
        .is_some_and(|number| number.is_finite() && number.fract() == 0.0)
}

fn check_type(node: &Node, value: &Value, path: &str, outcome: &mut Outcome) {
    let allowed: &[JsonType] = match (node.int_or_string, &node.kind) {
        (true, _) => &[JsonType::Integer, JsonType::String],
        (false, Some(kind)) => std::slice::from_ref(kind),
        (false, None) => return,
    };
    let names = || {
        allowed
            .iter()
            .map(|kind| kind.name())
            .collect::<Vec<_>>()
            .join(",")
    };
    if value.is_null() {
        if node.nullable {
            outcome.matched += 1;
        } else {
            outcome.wrong_type(path, &names(), "null");
        }
        return;
    }
    let fits = allowed.iter().any(|kind| match (kind, value) {
        (JsonType::Object, Value::Object(_))
        | (JsonType::Array, Value::Array(_))
        | (JsonType::String, Value::String(_))
        | (JsonType::Boolean, Value::Bool(_))
        | (JsonType::Number, Value::Number(_)) => true,
        (JsonType::Integer, Value::Number(_)) => is_whole(value),
        _ => false,
    });
    if fits {
        outcome.matched += 1;
    } else {
        outcome.wrong_type(path, &names(), type_of(value));
    }
}

fn check_combinations(limits: &Limits, value: &Value, path: &str, outcome: &mut Outcome) {
    let quoted = go_quote(path);
    if !limits.any_of.is_empty() {
        let results: Vec<_> = limits
            .any_of
            .iter()
            .map(|s| values(s, value, None, path))
            .collect();
        if let Some(result) = results.iter().position(|result| result.errors.is_empty()) {
            outcome.matched += results[result].matched;
        } else {
            let text = format!("{quoted} must validate at least one schema (anyOf)");
            outcome.errors.push(Finding::Whole(text));
            merge_closest(results, outcome);
        }
    }
    if !limits.one_of.is_empty() {
        let results: Vec<_> = limits
            .one_of
            .iter()
            .map(|s| values(s, value, None, path))
            .collect();
        let valid = results
            .iter()
            .filter(|result| result.errors.is_empty())
            .count();
        if valid != 1 {
            let found = match valid {
                0 => "Found none valid".to_owned(),
                many => format!("Found {many} valid alternatives"),
            };
            let text = format!("{quoted} must validate one and only one schema (oneOf). {found}");
            outcome.errors.push(Finding::Whole(text));
            if valid == 0 {
                merge_closest(results, outcome);
            }
        }
    }
    if !limits.all_of.is_empty() {
        let results: Vec<_> = limits
            .all_of
            .iter()
            .map(|s| values(s, value, None, path))
            .collect();
        let valid = results
            .iter()
            .filter(|result| result.errors.is_empty())
            .count();
        for result in results {
            outcome.merge(result);
        }
        if valid != limits.all_of.len() {
            let none = if valid == 0 { ". None validated" } else { "" };
            let text = format!("{quoted} must validate all the schemas (allOf){none}");
            outcome.errors.push(Finding::Whole(text));
        }
    }
    if let Some(not) = &limits.not
        && values(not, value, None, path).errors.is_empty()
    {
        let text = format!("{quoted} must not validate the schema (not)");
        outcome.errors.push(Finding::Whole(text));
    }
}

/// The branch most of whose checks passed says best what is missing; the first one on a tie.
fn merge_closest(results: Vec<Outcome>, outcome: &mut Outcome) {
    let mut best: Option<Outcome> = None;
    for result in results {
        if best
            .as_ref()
            .is_none_or(|best| result.matched > best.matched)
        {
            best = Some(result);
        }
    }
    if let Some(best) = best {
        outcome.merge(best);
    }
}

fn check_scalar(limits: &Limits, value: &Value, path: &str, outcome: &mut Outcome) {
    match value {
        Value::String(text) => check_string(limits, text, path, outcome),
        Value::Number(_) => check_number(limits, value, path, outcome),
        _ => {}
    }
}

fn check_string(limits: &Limits, text: &str, path: &str, outcome: &mut Outcome) {
    let length = i64::try_from(text.chars().count()).unwrap_or(i64::MAX);
    if let Some(max) = limits.max_length.filter(|max| length > *max) {
        let error = FieldError::too_long(&Path::root(), max);
        outcome.field(path, error.kind, error.value, error.detail);
    } else if let Some(min) = limits.min_length.filter(|min| length < *min) {
        outcome.invalid(path, text, &format!("should be at least {min} chars long"));
    } else if let Some(pattern) = limits
        .pattern
        .as_ref()
        .filter(|pattern| !pattern.regex.is_match(text))
    {
        outcome.invalid(path, text, &format!("should match '{}'", pattern.text));
    }
}

fn check_number(limits: &Limits, value: &Value, path: &str, outcome: &mut Outcome) {
    let number = value.as_f64().unwrap_or_default();
    let whole = !value.as_number().is_some_and(serde_json::Number::is_f64);
    // A whole number is compared with the whole part of the bound, as the real check does.
    let bound = |bound: f64| if whole { bound.trunc() } else { bound };
    if let Some(factor) = limits.multiple_of {
        let ratio = number / bound(factor);
        if ratio.fract() != 0.0 || !ratio.is_finite() {
            let text = format!("should be a multiple of {}", go_float(bound(factor)));
            outcome.invalid(path, value.clone(), &text);
        }
    }
    if let Some(minimum) = limits.minimum.map(bound) {
        let (fails, words) = if limits.exclusive_minimum {
            (number <= minimum, "should be greater than")
        } else {
            (number < minimum, "should be greater than or equal to")
        };
        if fails {
            outcome.invalid(
                path,
                value.clone(),
                &format!("{words} {}", go_float(minimum)),
            );
        }
    }
    if let Some(maximum) = limits.maximum.map(bound) {
        let (fails, words) = if limits.exclusive_maximum {
            (number >= maximum, "should be less than")
        } else {
            (number > maximum, "should be less than or equal to")
        };
        if fails {
            outcome.invalid(
                path,
                value.clone(),
                &format!("{words} {}", go_float(maximum)),
            );
        }
    }
    outcome.matched += 1;
}

fn check_format(node: &Node, value: &Value, path: &str, outcome: &mut Outcome) {
    let (Some(format), Value::String(text)) = (&node.format, value) else {
        return;
    };
    if formats::matches(format, text) == Some(false) {
        let detail = format!(
            "{path} in body must be of type {format}: {}",
            go_quote(text)
        );
        outcome.field(path, FieldErrorKind::TypeInvalid, Some(json!(text)), detail);
    }
}

fn check_list(
    node: &Node,
    limits: Option<&Limits>,
    list: &[Value],
    old: Option<&Value>,
    path: &str,
    outcome: &mut Outcome,
) {
    if let Some(items) = &node.items {
        for (index, item) in list.iter().enumerate() {
            let old = old.and_then(|old| correlate_item(node, item, old));
            outcome.merge(values(items, item, old, &format!("{path}[{index}]")));
        }
    }
    let size = i64::try_from(list.len()).unwrap_or(i64::MAX);
    if let Some(min) = limits
        .and_then(|limits| limits.min_items)
        .filter(|min| size < *min)
    {
        outcome.invalid(path, size, &format!("should have at least {min} items"));
    }
    if let Some(max) = limits
        .and_then(|limits| limits.max_items)
        .filter(|max| size > *max)
    {
        let error = FieldError::too_many(&Path::root(), size, max);
        outcome.field(path, error.kind, error.value, error.detail);
    }
    outcome.matched += 1;
}

fn check_enum(limits: &Limits, value: &Value, path: &str, outcome: &mut Outcome) {
    if limits.allowed.is_empty() || limits.allowed.iter().any(|allowed| same(allowed, value)) {
        return;
    }
    let names: Vec<String> = limits
        .allowed
        .iter()
        .map(|value| value.as_str().map_or_else(|| go_json(value), str::to_owned))
        .collect();
    let error = FieldError::not_supported(&Path::root(), value.clone(), &names);
    outcome.field(path, error.kind, error.value, error.detail);
}

fn check_map(
    node: &Node,
    limits: Option<&Limits>,
    map: &Map<String, Value>,
    old: Option<&Value>,
    path: &str,
    outcome: &mut Outcome,
) {
    let size = i64::try_from(map.len()).unwrap_or(i64::MAX);
    if let Some(min) = limits
        .and_then(|limits| limits.min_properties)
        .filter(|min| size < *min)
    {
        outcome.invalid(
            path,
            size,
            &format!("should have at least {min} properties"),
        );
    }
    if let Some(max) = limits
        .and_then(|limits| limits.max_properties)
        .filter(|max| size > *max)
    {
        let error = FieldError::too_many(&Path::root(), size, max);
        outcome.field(path, error.kind, error.value, error.detail);
    }
    let below = |name: &str| {
        if path.is_empty() {
            name.to_owned()
        } else {
            format!("{path}.{name}")
        }
    };
    let old_member = |name: &str| old.and_then(|old| old.get(name));
    let mut names: Vec<&String> = map.keys().collect();
    names.sort();
    for name in &names {
        if node.properties.contains_key(*name) {
            continue;
        }
        match &node.additional {
            Additional::Refused => {
                let detail = format!("{path}.{name} in body is a forbidden property");
                outcome.field(path, FieldErrorKind::Invalid, Some(json!(name)), detail);
            }
            Additional::Schema(schema) => {
                let below = format!("{path}.{name}");
                outcome.merge(values(schema, &map[*name], old_member(name), &below));
            }
            Additional::Any | Additional::Unset => {}
        }
    }
    for (name, schema) in &node.properties {
        if let Some(value) = map.get(name) {
            // A changed apiVersion is not visible here, so these two are always judged.
            let hidden = path.is_empty() && matches!(name.as_str(), "apiVersion" | "kind");
            let old = if hidden { None } else { old_member(name) };
            outcome.merge(values(schema, value, old, &below(name)));
        }
    }
    for name in limits
        .map(|limits| limits.required.as_slice())
        .unwrap_or_default()
    {
        if !map.contains_key(name) {
            let below = format!("{path}.{name}");
            outcome.field(&below, FieldErrorKind::Required, None, String::new());
        }
    }
    outcome.matched += 1;
}

/// Equality that does not tell 1 from 1.0.
pub(super) fn same(left: &Value, right: &Value) -> bool {
    match (left, right) {
        (Value::Number(a), Value::Number(b)) => {
            a == b || (a.is_f64() != b.is_f64() && a.as_f64() == b.as_f64())
        }
        (Value::Array(a), Value::Array(b)) => {
            a.len() == b.len() && a.iter().zip(b).all(|(a, b)| same(a, b))
        }
        (Value::Object(a), Value::Object(b)) => {
            a.len() == b.len()
                && a.iter()
                    .all(|(name, a)| b.get(name).is_some_and(|b| same(a, b)))
        }
        _ => left == right,
    }
}
