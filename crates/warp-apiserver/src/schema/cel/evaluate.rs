//! Runs the rules of a schema on an object.

use std::sync::LazyLock;

use kube_cel::KubeCelExt as _;
use kube_cel::cel::objects::OptionalValue;
use kube_cel::cel::{Context, ExecutionError, Value as CelValue};
use serde_json::Value;

use super::Rule;
use super::value::to_cel;
use crate::schema::validate::{correlate_item, same};
use crate::schema::{FieldError, Path, Schema};

/// Registering the libraries costs more than most rules; they are the same for every rule.
static LIBRARIES: LazyLock<Context<'static>> = LazyLock::new(|| {
    let mut context = Context::default().with_all();
    // The interpreter has no type values: names stand for them, which is all rules compare.
    context.add_function("type", type_of);
    for name in [
        "bool",
        "int",
        "uint",
        "double",
        "string",
        "bytes",
        "list",
        "map",
        "null_type",
    ] {
        context.add_variable_from_value(name, type_value(name));
    }
    context
});

fn type_value(name: &str) -> CelValue {
    CelValue::String(std::sync::Arc::new(format!("type {name}")))
}

#[allow(clippy::needless_pass_by_value, clippy::unnecessary_wraps)]
fn type_of(value: CelValue) -> Result<CelValue, ExecutionError> {
    Ok(type_value(match value {
        CelValue::Bool(_) => "bool",
        CelValue::Int(_) => "int",
        CelValue::UInt(_) => "uint",
        CelValue::Float(_) => "double",
        CelValue::String(_) => "string",
        CelValue::Bytes(_) => "bytes",
        CelValue::List(_) => "list",
        CelValue::Map(_) => "map",
        CelValue::Null => "null_type",
        _ => "other",
    }))
}

/// The longest message an expression may produce.
const LONGEST_MESSAGE: usize = 5 * 1024;

pub(in crate::schema) fn evaluate(
    schema: &Schema,
    object: &Value,
    old: Option<&Value>,
) -> Vec<FieldError> {
    let mut errors = Vec::new();
    walk(schema, object, old, &Path::root(), false, &mut errors);
    errors
}

/// Rules on a default value: once as if it had always been there, once as if it were new.
pub(in crate::schema) fn evaluate_at(
    schema: &Schema,
    value: &Value,
    path: &Path,
) -> Vec<FieldError> {
    let mut errors = Vec::new();
    walk_with(
        schema,
        value,
        Some(value),
        path,
        Ratchet::Never,
        &mut errors,
    );
    if errors.is_empty() {
        walk_with(schema, value, None, path, Ratchet::Never, &mut errors);
    }
    errors
}

/// Whether failures of rules that do not look at the old value are forgiven here.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Ratchet {
    Never,
    /// The nearest value that can be matched with an old one is unchanged.
    Unchanged,
    Changed,
}

fn walk(
    schema: &Schema,
    value: &Value,
    old: Option<&Value>,
    path: &Path,
    unchanged: bool,
    errors: &mut Vec<FieldError>,
) {
    let unchanged = old.map_or(unchanged, |old| same(old, value));
    let ratchet = if unchanged {
        Ratchet::Unchanged
    } else {
        Ratchet::Changed
    };
    walk_with(schema, value, old, path, ratchet, errors);
}

fn walk_with(
    schema: &Schema,
    value: &Value,
    old: Option<&Value>,
    path: &Path,
    ratchet: Ratchet,
    errors: &mut Vec<FieldError>,
) {
    let node = schema.node();
    if !node.has_rules || value.is_null() {
        return;
    }
    if !node.rules.is_empty() {
        let forgiven = ratchet == Ratchet::Unchanged;
        run(
            schema,
            value,
            old.filter(|old| !old.is_null()),
            path,
            forgiven,
            errors,
        );
    }
    let mut descend = |schema: &Schema, value: &Value, old: Option<&Value>, path: &Path| {
        if ratchet == Ratchet::Never {
            walk_with(schema, value, old, path, ratchet, errors);
        } else {
            walk(
                schema,
                value,
                old,
                path,
                ratchet == Ratchet::Unchanged && old.is_none(),
                errors,
            );
        }
    };
    match value {
        Value::Object(map) => {
            for (name, member) in &node.properties {
                if let Some(value) = map.get(name) {
                    let old = old.filter(|_| !node.atomic).and_then(|old| old.get(name));
                    descend(member, value, old, &path.child(name));
                }
            }
            if let Some(member) = node.additional_schema() {
                let names = map
                    .iter()
                    .filter(|(name, _)| !node.properties.contains_key(*name));
                for (name, value) in names {
                    let old = old.filter(|_| !node.atomic).and_then(|old| old.get(name));
                    descend(member, value, old, &path.key(name));
                }
            }
        }
        Value::Array(list) => {
            let Some(items) = &node.items else { return };
            for (index, item) in list.iter().enumerate() {
                let old = old.and_then(|old| correlate_item(node, item, old));
                descend(items, item, old, &path.index(index));
            }
        }
        _ => {}
    }
}

/// The rules of one node on one value.
fn run(
    schema: &Schema,
    value: &Value,
    old: Option<&Value>,
    path: &Path,
    forgiven: bool,
    errors: &mut Vec<FieldError>,
) {
    let node = schema.node();
    let type_name = node.kind.map_or("", |kind| kind.name());
    let current = to_cel(Some(schema), value);
    let previous = old.map(|old| to_cel(Some(schema), old));
    for rule in &node.rules {
        let programs = rule.programs();
        let program = match &programs.rule {
            Ok(program) => program,
            Err(error) => {
                let detail = format!("rule compile error: {error}");
                errors.push(FieldError::invalid(path, type_name, detail));
                continue;
            }
        };
        if programs.uses_old_self && previous.is_none() && !rule.optional_old_self {
            continue;
        }
        let mut context = LIBRARIES.new_inner_scope();
        context.add_variable_from_value("self", current.clone());
        if rule.optional_old_self {
            let optional = previous
                .clone()
                .map_or_else(OptionalValue::none, OptionalValue::of);
            context.add_variable_from_value(
                "oldSelf",
                CelValue::Opaque(std::sync::Arc::new(optional)),
            );
        } else if let Some(previous) = &previous {
            context.add_variable_from_value("oldSelf", previous.clone());
        }
        let error = match program.execute(&context) {
            Ok(CelValue::Bool(true)) => continue,
            Ok(_) => failure(schema, value, rule, &context, path),
            Err(error) => {
                let detail = format!("{} evaluating rule: {}", go_error(&error), rule_text(rule));
                errors.push(FieldError::invalid(path, type_name, detail));
                continue;
            }
        };
        if programs.uses_old_self || !forgiven {
            errors.push(error);
        }
    }
}

fn failure(
    schema: &Schema,
    value: &Value,
    rule: &Rule,
    context: &Context<'_>,
    path: &Path,
) -> FieldError {
    let detail = message(rule, context).unwrap_or_else(|| match &rule.message {
        Some(text) => text.trim().to_owned(),
        None => format!("failed rule: {}", rule_text(rule)),
    });
    let mut path = path.clone();
    if let Some(below) = &rule.field_path {
        path = path.child(&normalised(below));
    }
    let mut error = match rule.reason.as_deref() {
        Some("FieldValueForbidden") => return FieldError::forbidden(&path, detail),
        Some("FieldValueRequired") => return FieldError::required(&path, detail),
        Some("FieldValueDuplicate") => FieldError::duplicate(&path, value.clone()),
        _ => FieldError::invalid(&path, value.clone(), detail),
    };
    if matches!(
        schema.node().kind.map(super::super::JsonType::name),
        Some("object" | "array")
    ) {
        error.value = None;
    }
    error
}

fn message(rule: &Rule, context: &Context<'_>) -> Option<String> {
    let program = rule.programs().message.as_ref()?;
    let Ok(CelValue::String(text)) = program.execute(context) else {
        return None;
    };
    let text = text.trim();
    let usable = !text.is_empty() && text.len() <= LONGEST_MESSAGE && !text.contains('\n');
    usable.then(|| text.to_owned())
}

/// `.spec['a.b']` as it stands in a path: `spec[a.b]`, without the leading dot.
fn normalised(text: &str) -> String {
    text.trim()
        .trim_start_matches('.')
        .replace("['", "[")
        .replace("']", "]")
}

fn rule_text(rule: &Rule) -> String {
    match &rule.message {
        Some(message) => message.trim().to_owned(),
        None => rule.expression.trim().to_owned(),
    }
}

/// The wording of the reference implementation for the errors users meet.
fn go_error(error: &ExecutionError) -> String {
    match error {
        ExecutionError::NoSuchKey(key) => format!("no such key: {key}"),
        ExecutionError::NoSuchOverload => "no such overload".to_owned(),
        ExecutionError::DivisionByZero(_) => "division by zero".to_owned(),
        ExecutionError::RemainderByZero(_) => "modulus by zero".to_owned(),
        ExecutionError::Overflow(..) => "integer overflow".to_owned(),
        ExecutionError::IndexOutOfBounds(index) => format!("index out of bounds: {index:?}"),
        other => other.to_string(),
    }
}
