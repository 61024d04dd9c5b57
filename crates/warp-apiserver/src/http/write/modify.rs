//! Read, change, write: repeated until nothing came in between.

use serde_json::Value;

use super::super::options::WriteOptions;
use super::super::{Answer, ResourceCall};
use super::{admit, disk_error, named, prepare, writer};
use crate::admission::Operation;
use crate::codec::status::Status;
use crate::patch::managed;
use crate::registry::Resource;
use crate::store::WriteError;

/// Through which path an object is changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::http) enum Mode {
    Main,
    Status,
    Scale,
    Finalize,
    Binding,
}

impl Mode {
    pub(in crate::http) fn subresource(self) -> &'static str {
        match self {
            Self::Main => "",
            Self::Status => "status",
            Self::Scale => "scale",
            Self::Finalize => "finalize",
            Self::Binding => "binding",
        }
    }
}

/// A new version of an object.
#[derive(Debug)]
pub(in crate::http) struct Produced {
    pub(in crate::http) object: Value,
    /// Whether its managed fields are computed already.
    pub(in crate::http) tracked: bool,
}

type Produce<'a> = &'a (dyn Fn(&Value, &mut Vec<String>) -> Result<Produced, Status> + Sync);

/// Tries before a patch without a version gives up.
const TRIES: usize = 64;

pub(in crate::http) async fn modify(
    request: &ResourceCall<'_>,
    options: &WriteOptions,
    mode: Mode,
    warnings: Vec<String>,
    produce: Produce<'_>,
) -> Result<Answer, Status> {
    let store = &request.api.store;
    let entry = &request.entry;
    let key = request.key();
    let counted = matches!(
        entry.table.name(),
        "services" | "persistentvolumeclaims" | "pods"
    );
    let _turn = if counted && mode == Mode::Main {
        request.turn().await
    } else {
        None
    };
    for _ in 0..TRIES {
        let mut warnings = warnings.clone();
        let Some(current) = store.latest(&entry.table, &key) else {
            return Err(Status::not_found(&request.subject()));
        };
        let old = entry.read(&current);
        let Produced {
            object: mut new,
            tracked,
        } = produce(&old, &mut warnings)?;
        identity(request, &mut new, &old, mode)?;
        version(request, &new, current.revision, mode)?;
        if !tracked {
            let now = request.api.clock.now_text();
            let writer = writer(request, options, &now, mode);
            managed::update(Some(&old), &mut new, &writer);
        }
        prepare::for_update(&entry.resource, mode, &mut new, &old);
        admit(
            request,
            Operation::Update,
            &mut new,
            Some(&old),
            options,
            &mut warnings,
        )?;
        let name = request.target.name.as_deref().unwrap_or_default();
        request.check_escalation(name, &new, Some(&old))?;
        if mode != Mode::Binding {
            prepare::check(request, &new, Some(&old), mode, &mut warnings)
                .map_err(|status| status.with_warnings(warnings.clone()))?;
        }
        prepare::size(request, &new)?;
        warnings.extend((entry.resource.strategy.warnings)(&new));
        if unchanged(&mut new, &old) {
            store
                .settled(current.revision)
                .await
                .map_err(|error| disk_error(&error))?;
            return Ok(Answer {
                warnings,
                ..Answer::bytes(200, entry.bytes(&current))
            });
        }
        if options.dry_run {
            return Ok(Answer {
                warnings,
                ..Answer::value(200, new)
            });
        }
        let draft = entry.draft(&key, &new);
        let written = if finished(&entry.resource, &new, &old) {
            store.delete(&entry.table, draft, current.revision).await
        } else {
            store.update(&entry.table, draft, current.revision).await
        };
        match written {
            Ok(stored) => {
                return Ok(Answer {
                    warnings,
                    ..Answer::bytes(200, entry.bytes(&stored))
                });
            }
            Err(WriteError::Changed) => {}
            Err(WriteError::Gone) => return Err(Status::not_found(&request.subject())),
            Err(error) => return Err(disk_error(&error)),
        }
    }
    Err(Status::modified(&request.subject()))
}

/// The new object must be the one in the path.
fn identity(
    request: &ResourceCall<'_>,
    new: &mut Value,
    old: &Value,
    mode: Mode,
) -> Result<(), Status> {
    let name = request.target.name.as_deref().unwrap_or_default();
    let sent = new["metadata"]["name"].as_str().unwrap_or_default();
    if sent != name && !(sent.is_empty() && mode != Mode::Main) {
        return Err(Status::bad_request(if sent.is_empty() {
            "name must be provided".to_owned()
        } else {
            format!("the name of the object ({sent}) does not match the name on the URL ({name})")
        }));
    }
    new["metadata"]["name"] = name.into();
    if let Some(namespace) = &request.target.namespace {
        let sent = new["metadata"]["namespace"].as_str().unwrap_or_default();
        if !sent.is_empty() && sent != namespace {
            return Err(Status::bad_request(
                "the namespace of the provided object does not match the namespace sent on the request",
            ));
        }
        new["metadata"]["namespace"] = namespace.clone().into();
    }
    let sent = new["metadata"]["uid"].as_str().unwrap_or_default();
    let uid = old["metadata"]["uid"].as_str().unwrap_or_default();
    if !sent.is_empty() && sent != uid && request.call.method != http::Method::PATCH {
        let resource = &request.entry.resource;
        let folder = match &resource.custom {
            Some(_) => format!("{}/{}", resource.group, resource.plural),
            None => resource.plural.clone(),
        };
        return Err(Status::conflict(
            &request.subject(),
            &format!(
                "StorageError: invalid object, Code: 4, Key: /registry/{folder}/{}, ResourceVersion: 0, AdditionalErrorMsg: Precondition failed: UID in precondition: {sent}, UID in object meta: {uid}",
                request.key()
            ),
        ));
    }
    Ok(())
}

/// The version the client replaces must be the present one.
fn version(
    request: &ResourceCall<'_>,
    new: &Value,
    current: u64,
    mode: Mode,
) -> Result<(), Status> {
    let name = request.target.name.as_deref().unwrap_or_default();
    match new["metadata"]["resourceVersion"]
        .as_str()
        .unwrap_or_default()
    {
        "" | "0" => {
            let strict = !request.entry.resource.strategy.unconditional_update;
            let update = request.call.method == http::Method::PUT;
            if strict && update && matches!(mode, Mode::Main | Mode::Status) {
                return Err(prepare::version_required(request, name));
            }
            Ok(())
        }
        version => match version.parse::<u64>() {
            Ok(version) if version == current => Ok(()),
            Ok(_) => Err(Status::modified(&named(request, name))),
            Err(_) => Err(Status::plain_failure(format!(
                "strconv.ParseUint: parsing {version:?}: invalid syntax"
            ))),
        },
    }
}

/// Whether only times of managed fields differ; then the old ones are kept and nothing is written.
fn unchanged(new: &mut Value, old: &Value) -> bool {
    let strip = |object: &Value| {
        let mut object = object.clone();
        if let Some(list) = object
            .pointer_mut("/metadata/managedFields")
            .and_then(Value::as_array_mut)
        {
            for entry in list.iter_mut().filter_map(Value::as_object_mut) {
                entry.shift_remove("time");
            }
            list.sort_by_cached_key(ToString::to_string);
        }
        object
    };
    if *new == *old {
        return true;
    }
    if new.get("spec") != old.get("spec") || new.get("status") != old.get("status") {
        return false;
    }
    strip(new) == strip(old)
}

/// Whether the object was only waiting for what this change takes away.
pub(in crate::http) fn finished(resource: &Resource, new: &Value, old: &Value) -> bool {
    let meta = &new["metadata"];
    let empty = |value: &Value| value.as_array().is_none_or(Vec::is_empty);
    old["metadata"]["deletionTimestamp"].is_string()
        && empty(&meta["finalizers"])
        && meta["deletionGracePeriodSeconds"].as_i64().unwrap_or(0) == 0
        && (!resource.strategy.spec_finalizers || empty(&new["spec"]["finalizers"]))
}
