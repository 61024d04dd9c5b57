//! From a body to an object of the kind: unknown and duplicate fields, types, defaults.

use serde_json::{Value, json};

use super::super::ResourceCall;
use super::super::options::Validation;
use crate::codec::body::Body;
use crate::codec::status::Status;
use crate::patch::skeleton;
use crate::schema::{FieldError, Path};

/// The object in a create or update.
pub(in crate::http) fn decode(
    request: &ResourceCall<'_>,
    body: Body,
    validation: Validation,
    warnings: &mut Vec<String>,
) -> Result<Value, Status> {
    let resource = &request.entry.resource;
    let Body {
        mut value,
        mut strict,
    } = body;
    identify(request, &mut value)?;
    strict.extend(unknown(request, &value));
    if resource.custom.is_none() && strict.len() > 1 {
        in_order_of_appearance(&mut strict, &request.call.body);
    }
    complain(strict, validation, warnings, |problem| {
        Status::bad_request(format!(
            "{kind} in version \"{version}\" cannot be handled as a {kind}: {problem}",
            kind = resource.kind,
            version = resource.version,
        ))
    })?;
    resource.schema.prune(&mut value);
    types(request, &value, |problem| {
        Status::bad_request(format!(
            "{kind} in version \"{version}\" cannot be handled as a {kind}: {problem}",
            kind = resource.kind,
            version = resource.version,
        ))
    })?;
    settle(request, &mut value);
    Ok(value)
}

/// Checks or completes kind and version.
fn identify(request: &ResourceCall<'_>, value: &mut Value) -> Result<(), Status> {
    let resource = &request.entry.resource;
    let expected = request.entry.api_version();
    let shown: String = value.to_string().chars().take(400).collect();
    let Some(map) = value.as_object_mut() else {
        return Err(Status::bad_request(
            "couldn't get version/kind; json parse error: the body must be an object",
        ));
    };
    let text = |name: &str| {
        map.get(name)
            .and_then(Value::as_str)
            .unwrap_or_default()
            .to_owned()
    };
    let (kind, version) = (text("kind"), text("apiVersion"));
    if resource.custom.is_some() && kind.is_empty() {
        return Err(Status::bad_request(format!(
            "Object 'Kind' is missing in '{shown}'"
        )));
    }
    let foreign = (version != expected && (!version.is_empty() || resource.custom.is_some()))
        || (!kind.is_empty() && kind != resource.kind);
    if foreign {
        return Err(Status::bad_request(foreign_kind(request, &kind, &version)));
    }
    map.insert("apiVersion".to_owned(), expected.into());
    map.insert("kind".to_owned(), resource.kind.clone().into());
    let meta = map.entry("metadata").or_insert_with(|| json!({}));
    if meta.is_null() {
        *meta = json!({});
    }
    if !meta.is_object() {
        return Err(Status::bad_request(format!(
            "{} in version \"{}\" cannot be handled as a {}: json: cannot unmarshal {} into Go struct field {}.metadata of type v1.ObjectMeta",
            resource.kind,
            resource.version,
            resource.kind,
            go_kind(meta),
            resource.kind
        )));
    }
    Ok(())
}

/// How Kubernetes words a body of another kind or version.
fn foreign_kind(request: &ResourceCall<'_>, kind: &str, version: &str) -> String {
    let resource = &request.entry.resource;
    let expected = request.entry.api_version();
    if resource.custom.is_some() && kind == resource.kind {
        return format!(
            "the API version in the data ({version}) does not match the expected API version ({expected})"
        );
    }
    let version = if version.is_empty() {
        expected
    } else {
        version
    };
    let (group, short) = version.split_once('/').unwrap_or(("", version));
    let served = request.api.registry.served();
    let known = served
        .kind(group, kind)
        .is_some_and(|entry| entry.resource.version == short);
    let package = if resource.group.is_empty() {
        "core"
    } else {
        resource.group.split('.').next().unwrap_or_default()
    };
    let problem = if known {
        format!(
            "converting ({short}.{kind}) to ({package}.{}): unknown conversion",
            resource.kind
        )
    } else {
        format!(
            "no kind \"{kind}\" is registered for version \"{version}\" in scheme \"pkg/runtime/scheme.go:111\""
        )
    };
    format!(
        "{kind} in version \"{short}\" cannot be handled as a {}: {problem}",
        resource.kind
    )
}

fn go_kind(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "bool",
        Value::Number(_) => "number",
        Value::String(_) => "string",
        Value::Array(_) => "array",
        Value::Object(_) => "object",
    }
}

/// Typed decoding complains as it reads: complaints are sorted by where their field is in the body
/// (a duplicate is noticed at its second appearance).
fn in_order_of_appearance(strict: &mut [String], body: &[u8]) {
    let text = String::from_utf8_lossy(body);
    strict.sort_by_cached_key(|complaint| {
        let path = complaint.split('"').nth(1).unwrap_or_default();
        let name = path.rsplit('.').next().unwrap_or_default();
        let name = name.split('[').next().unwrap_or_default();
        let skip = usize::from(complaint.starts_with("duplicate"));
        text.match_indices(&format!("\"{name}\""))
            .nth(skip)
            .map_or(usize::MAX, |(at, _)| at)
    });
}

fn unknown(request: &ResourceCall<'_>, value: &Value) -> Vec<String> {
    let paths = request.entry.resource.schema.unknown_fields(value);
    paths
        .into_iter()
        .map(|path| format!("unknown field \"{path}\""))
        .collect()
}

fn complain(
    strict: Vec<String>,
    validation: Validation,
    warnings: &mut Vec<String>,
    refuse: impl FnOnce(String) -> Status,
) -> Result<(), Status> {
    if strict.is_empty() {
        return Ok(());
    }
    match validation {
        Validation::Ignore => Ok(()),
        Validation::Warn => {
            warnings.extend(strict);
            Ok(())
        }
        Validation::Strict => Err(refuse(format!(
            "strict decoding error: {}",
            strict.join(", ")
        ))),
    }
}

/// Refuses values of the wrong JSON type.
fn types(
    request: &ResourceCall<'_>,
    value: &Value,
    refuse: impl Fn(String) -> Status,
) -> Result<(), Status> {
    let resource = &request.entry.resource;
    if resource.custom.is_none() {
        if let Some(problem) = resource.schema.decode_error(value) {
            return Err(refuse(problem));
        }
    } else if let Some(schema) = crate::schema::Schema::builtin("meta", "v1", "ObjectMeta")
        && let Some(problem) = schema.decode_error(&value["metadata"])
    {
        return Err(refuse(problem));
    }
    Ok(())
}

/// What decoding adds: members a typed kind always has, and defaults.
pub(super) fn settle(request: &ResourceCall<'_>, value: &mut Value) {
    let resource = &request.entry.resource;
    if resource.custom.is_some() {
        skeleton::drop_nulls(&mut value["metadata"]);
        drop_empty(&mut value["metadata"]);
        resource.schema.apply_defaults(value);
    } else {
        skeleton::drop_nulls(value);
        (resource.strategy.default)(value);
    }
}

/// Metadata is typed for every kind: maps and lists without anything in them are not there.
fn drop_empty(metadata: &mut Value) {
    if let Some(map) = metadata.as_object_mut() {
        map.retain(|_, value| match value {
            Value::Object(map) => !map.is_empty(),
            Value::Array(list) => !list.is_empty(),
            _ => true,
        });
    }
}

fn invalid_patch(patch: &[u8], problem: String) -> Status {
    let sent = String::from_utf8_lossy(patch).into_owned();
    let error = FieldError::invalid(&Path::new("patch"), sent, problem);
    let subject = crate::codec::status::Subject {
        group: "",
        resource: "",
        kind: "",
        name: "",
    };
    Status::invalid(&subject, &[error])
}

/// Duplicate fields of a patch.
pub(super) fn strict_patch(
    body: &Body,
    validation: Validation,
    sent: &[u8],
    warnings: &mut Vec<String>,
) -> Result<(), Status> {
    complain(body.strict.clone(), validation, warnings, |problem| {
        invalid_patch(sent, problem)
    })
}

/// An object after a JSON, merge or strategic patch.
pub(super) fn patched(
    request: &ResourceCall<'_>,
    mut value: Value,
    validation: Validation,
    warnings: &mut Vec<String>,
) -> Result<Value, Status> {
    let resource = &request.entry.resource;
    identify(request, &mut value)?;
    let unknown = unknown(request, &value);
    // The text of the object is only needed when it is refused.
    let refuse = |value: &Value, problem| invalid_patch(value.to_string().as_bytes(), problem);
    complain(unknown, validation, warnings, |problem| {
        refuse(&value, problem)
    })?;
    resource.schema.prune(&mut value);
    types(request, &value, |problem| refuse(&value, problem))?;
    settle(request, &mut value);
    Ok(value)
}

/// The configuration of a server-side apply.
pub(super) fn applied(
    request: &ResourceCall<'_>,
    body: Body,
    validation: Validation,
    warnings: &mut Vec<String>,
) -> Result<Value, Status> {
    let resource = &request.entry.resource;
    let Body { mut value, strict } = body;
    complain(strict, validation, warnings, |problem| {
        let problem = problem.trim_start_matches("strict decoding error: ");
        Status::bad_request(format!(
            "error strict decoding YAML: yaml: unmarshal errors:\n  {problem}"
        ))
    })?;
    let foreign = resource.custom.is_some()
        && (value["kind"] != *resource.kind || value["apiVersion"] != *request.entry.api_version());
    if foreign || !value["kind"].is_string() || !value["apiVersion"].is_string() {
        let version = value["apiVersion"].as_str().unwrap_or_default();
        let (group, version) = version.split_once('/').unwrap_or(("", version));
        let kind = value["kind"].as_str().unwrap_or_default();
        return Err(Status::bad_request(format!(
            "invalid object type: {group}/{version}, Kind={kind}"
        )));
    }
    let sent_namespace = value["metadata"]["namespace"]
        .as_str()
        .unwrap_or_default()
        .to_owned();
    identify(request, &mut value)?;
    let name = request.target.name.clone().unwrap_or_default();
    match value["metadata"]["name"].as_str() {
        Some(sent) if sent != name => {
            return Err(Status::bad_request(format!(
                "the name of the object ({sent}) does not match the name on the URL ({name})"
            )));
        }
        _ => value["metadata"]["name"] = name.clone().into(),
    }
    let refuse = |problem: String| {
        Status::plain_failure(format!(
            "failed to create typed patch object ({sent_namespace}/{name}; {}/{}, Kind={}): {problem}",
            resource.group, resource.version, resource.kind
        ))
    };
    if let Some(path) = resource.schema.unknown_fields(&value).first() {
        return Err(refuse(format!(".{path}: field not declared in schema")));
    }
    types(request, &value, refuse)?;
    Ok(value)
}
