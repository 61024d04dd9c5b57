//! What the server does to an object on its way in, and the checks every object passes.

use serde_json::{Map, Value, json};

use super::super::ResourceCall;
use super::modify::Mode;
use crate::codec::status::Status;
use crate::registry::{Resource, validate_metadata, validate_metadata_update};
use crate::schema::{FieldError, Path};

/// Puts the object where the path says, refusing one that says otherwise.
pub(super) fn place(request: &ResourceCall<'_>, object: &mut Value) -> Result<(), Status> {
    let meta = &mut object["metadata"];
    let sent = meta["namespace"].as_str().unwrap_or_default().to_owned();
    match &request.target.namespace {
        Some(namespace) => {
            if !sent.is_empty() && sent != *namespace {
                return Err(Status::bad_request(
                    "the namespace of the provided object does not match the namespace sent on the request",
                ));
            }
            meta["namespace"] = namespace.clone().into();
        }
        None if sent.is_empty() => {
            if let Some(meta) = meta.as_object_mut() {
                meta.shift_remove("namespace");
            }
        }
        None => {}
    }
    if let Some(name) = &request.target.name {
        let sent = meta["name"].as_str().unwrap_or_default();
        if sent != name {
            return Err(Status::bad_request(if sent.is_empty() {
                "name must be provided".to_owned()
            } else {
                format!(
                    "the name of the object ({sent}) does not match the name on the URL ({name})"
                )
            }));
        }
    } else if meta["resourceVersion"]
        .as_str()
        .is_some_and(|version| !version.is_empty())
    {
        return Err(Status::plain_failure(
            "resourceVersion should not be set on objects to be created",
        ));
    }
    Ok(())
}

/// The prefix, when a name must be generated.
pub(super) fn needs_name(object: &Value) -> Option<String> {
    let meta = &object["metadata"];
    let named = meta["name"].as_str().is_some_and(|name| !name.is_empty());
    let prefix = meta["generateName"].as_str().unwrap_or_default();
    (!named && !prefix.is_empty()).then(|| prefix.to_owned())
}

/// Identity and times of a new object, in the order Kubernetes writes them.
pub(super) fn stamp(request: &ResourceCall<'_>, object: &mut Value) {
    let Some(meta) = object["metadata"].as_object_mut() else {
        return;
    };
    for name in [
        "uid",
        "resourceVersion",
        "creationTimestamp",
        "deletionTimestamp",
        "deletionGracePeriodSeconds",
        "selfLink",
        "generation",
    ] {
        meta.shift_remove(name);
    }
    let mut stamped = Map::new();
    for name in ["name", "generateName", "namespace"] {
        if let Some(value) = meta.shift_remove(name) {
            stamped.insert(name.to_owned(), value);
        }
    }
    stamped.insert("uid".to_owned(), crate::codec::new_uid().into());
    if request.entry.resource.strategy.generation {
        stamped.insert("generation".to_owned(), 1.into());
    }
    stamped.insert(
        "creationTimestamp".to_owned(),
        request.api.clock.now_text().into(),
    );
    stamped.append(meta);
    *meta = stamped;
}

pub(super) fn for_create(resource: &Resource, object: &mut Value, now: &str) {
    if resource.has_status()
        && !resource.strategy.keep_status
        && let Some(map) = object.as_object_mut()
    {
        map.shift_remove("status");
    }
    (resource.strategy.prepare_create)(object);
    // Conditions a kind is born with begin now.
    let conditions = object
        .pointer_mut("/status/conditions")
        .and_then(Value::as_array_mut);
    for condition in conditions.into_iter().flatten() {
        if condition["lastTransitionTime"].is_null() {
            condition["lastTransitionTime"] = now.into();
        }
    }
}

/// Paths an endpoint ignores.
pub(super) fn reset(resource: &Resource, mode: Mode) -> &'static [&'static [&'static str]] {
    match mode {
        Mode::Main if resource.has_status() && !resource.strategy.keep_status => &[&["status"]],
        Mode::Main => &[],
        Mode::Status if resource.custom.is_some() => &[&["spec"]],
        Mode::Status => &[
            &["spec"],
            &["metadata", "deletionTimestamp"],
            &["metadata", "ownerReferences"],
        ],
        Mode::Scale | Mode::Finalize | Mode::Binding => &[&["status"]],
    }
}

fn copy(to: &mut Value, from: &Value, name: &str) {
    match from.get(name) {
        Some(value) => to[name] = value.clone(),
        None => {
            if let Some(map) = to.as_object_mut() {
                map.shift_remove(name);
            }
        }
    }
}

/// Keeps what this endpoint may not change.
pub(super) fn for_update(resource: &Resource, mode: Mode, new: &mut Value, old: &Value) {
    let sent = new["metadata"].take();
    let mut meta = sent;
    for name in ["uid", "deletionTimestamp", "deletionGracePeriodSeconds"] {
        if meta.get(name).is_none_or(Value::is_null) {
            copy(&mut meta, &old["metadata"], name);
        }
    }
    copy(&mut meta, &old["metadata"], "creationTimestamp");
    copy(&mut meta, &old["metadata"], "generation");
    copy(&mut meta, &old["metadata"], "resourceVersion");
    match mode {
        Mode::Main => {
            new["metadata"] = meta;
            if resource.has_status() {
                copy(new, old, "status");
            }
            (resource.strategy.prepare_update)(new, old);
        }
        Mode::Status => {
            let mut base = old.clone();
            copy(&mut base, new, "status");
            if resource.custom.is_some() {
                copy(&mut base["metadata"], &meta, "managedFields");
            } else {
                copy(&mut meta, &old["metadata"], "ownerReferences");
                base["metadata"] = meta;
            }
            *new = base;
            (resource.strategy.prepare_status_update)(new, old);
        }
        Mode::Finalize => keep(new, old, meta, &["finalizers"]),
        Mode::Scale | Mode::Binding => new["metadata"] = meta,
    }
    count_generation(resource, mode, new, old);
}

/// The old object with some members of its spec replaced.
fn keep(new: &mut Value, old: &Value, meta: Value, members: &[&str]) {
    let mut base = old.clone();
    for name in members {
        copy(&mut base["spec"], &new["spec"], name);
    }
    base["metadata"] = meta;
    *new = base;
}

/// The generation counts changes of what the user asks for.
fn count_generation(resource: &Resource, mode: Mode, new: &mut Value, old: &Value) {
    if !resource.strategy.generation || matches!(mode, Mode::Status | Mode::Binding) {
        return;
    }
    let changed = if resource.custom.is_some() {
        let ignored = |name: &str| {
            matches!(name, "metadata" | "apiVersion" | "kind")
                || (name == "status" && resource.has_status())
        };
        let rest = |object: &Value| -> Map<String, Value> {
            let members = object.as_object().into_iter().flatten();
            members
                .filter(|(name, _)| !ignored(name))
                .map(|(name, value)| (name.clone(), value.clone()))
                .collect()
        };
        rest(new) != rest(old)
    } else {
        new.get("spec") != old.get("spec")
    };
    if changed {
        let before = old["metadata"]["generation"].as_i64().unwrap_or(0);
        new["metadata"]["generation"] = (before + 1).into();
    }
}

/// Everything that must hold of what is stored.
pub(super) fn check(
    request: &ResourceCall<'_>,
    new: &Value,
    old: Option<&Value>,
    mode: Mode,
    warnings: &mut Vec<String>,
) -> Result<(), Status> {
    let resource = &request.entry.resource;
    let strategy = &resource.strategy;
    let mut errors = validate_metadata(new, resource);
    if let Some(old) = old {
        // Kubernetes runs these twice, before the kind's own checks and with them, and says so.
        let fixed = validate_metadata_update(new, old);
        errors.extend(fixed.iter().cloned());
        errors.extend(fixed);
    }
    match (mode, &resource.custom, old) {
        (_, Some(_), old) => {
            let mut forgiven = Vec::new();
            let scale = super::replicas::check(resource, new, mode);
            let found = resource
                .schema
                .validate_noting(new, old, scale, &mut forgiven);
            errors.extend(found);
            warnings.extend(forgiven.iter().map(FieldError::to_string));
        }
        (Mode::Status, None, Some(old)) => {
            errors.extend((strategy.validate_status_update)(new, old));
        }
        (_, None, None) => errors.extend((strategy.validate)(new)),
        (_, None, Some(old)) => {
            errors.extend((strategy.validate)(new));
            errors.extend((strategy.validate_update)(new, old));
        }
    }
    if errors.is_empty() {
        return Ok(());
    }
    let name = new["metadata"]["name"].as_str().unwrap_or_default();
    Err(Status::invalid(&super::named(request, name), &errors))
}

/// Refuses what would not fit.
pub(super) fn size(request: &ResourceCall<'_>, object: &Value) -> Result<(), Status> {
    let limit = request.api.limits.object;
    // The request was limited already; only an object grown by patches can exceed this.
    if request.call.body.len() < limit / 4 && request.target.name.is_none() {
        return Ok(());
    }
    let size = object.to_string().len();
    if size > limit {
        return Err(Status::too_large(format!(
            "the object would be {size} bytes and at most {limit} are stored: split it"
        )));
    }
    Ok(())
}

/// A `PUT` that does not say which version it replaces.
pub(super) fn version_required(request: &ResourceCall<'_>, name: &str) -> Status {
    let error = FieldError::invalid(
        &Path::new("metadata.resourceVersion"),
        json!(0),
        "must be specified for an update",
    );
    let mut subject = super::named(request, name);
    if request.entry.resource.custom.is_some() {
        subject.kind = subject.resource;
        return Status::invalid(&subject, &[error]);
    }
    let mut status = Status::invalid(&subject, &[error]);
    // Kubernetes prints the missing number in hexadecimal.
    status.message = status
        .message
        .replace("Invalid value: 0:", "Invalid value: 0x0:");
    if let Some(cause) = status
        .details
        .as_mut()
        .and_then(|d| d.pointer_mut("/causes/0/message"))
    {
        *cause = "Invalid value: 0x0: must be specified for an update".into();
    }
    status
}
