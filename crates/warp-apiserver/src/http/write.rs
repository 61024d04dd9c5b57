//! Create, update and patch: one pipeline for every kind.
//!
//! decode → defaults → managed fields → admission → prepare → validate → store. An update reads
//! the newest version, computes the new one and writes it only if nothing changed in between.

mod decode;
pub(super) mod modify;
mod prepare;
mod replicas;

use std::sync::atomic::Ordering;

use serde_json::Value;

use super::options::WriteOptions;
use super::{Answer, ResourceCall};
use crate::admission::{AdmissionRequest, Operation, quota};
use crate::auth::rbac::{Action, On};
use crate::codec::body::{self, Body, media_type};
use crate::codec::status::{Status, Subject};
use crate::patch::managed::{self, Writer};
use crate::patch::{json as json_patch, merge, strategic};
use crate::schema::Schema;
use crate::store::WriteError;
pub(super) use decode::decode;
pub(super) use modify::{Mode, Produced, modify};

/// Tries at a free generated name.
const NAME_TRIES: usize = 8;
const NAME_LETTERS: &[u8] = b"bcdfghjklmnpqrstvwxz2456789";

pub(super) fn disk_error(error: &WriteError) -> Status {
    Status::internal(error)
}

pub(super) async fn create(request: &ResourceCall<'_>) -> Result<Answer, Status> {
    let call = &request.call;
    let options = WriteOptions::parse(&call.query, &call.user_agent, "CreateOptions", false)?;
    let mut warnings = Vec::new();
    let body = body::decode_object(&call.content_type, &call.body)?;
    let object = decode(request, body, options.validation, &mut warnings)?;
    let warned = warnings.clone();
    create_object(request, object, &options, warnings, false)
        .await
        .map_err(|status| status.with_warnings(warned))
}

/// Stores a decoded object; `tracked` when its managed fields are in place.
pub(super) async fn create_object(
    request: &ResourceCall<'_>,
    mut object: Value,
    options: &WriteOptions,
    mut warnings: Vec<String>,
    tracked: bool,
) -> Result<Answer, Status> {
    let resource = &request.entry.resource;
    if request.entry.terminating.load(Ordering::Acquire) {
        let mut status = Status::method_not_allowed(&request.subject(), "create");
        "create not allowed while custom resource definition is terminating"
            .clone_into(&mut status.message);
        return Err(status);
    }
    prepare::place(request, &mut object)?;
    if !tracked {
        let now = request.api.clock.now_text();
        managed::update(
            None,
            &mut object,
            &writer(request, options, &now, Mode::Main),
        );
    }
    let generated = prepare::needs_name(&object);
    let _turn = request.turn().await;
    let tries = if generated.is_some() { NAME_TRIES } else { 1 };
    for left in (0..tries).rev() {
        // The last try needs no copy for another one.
        let mut object = if left == 0 {
            std::mem::take(&mut object)
        } else {
            object.clone()
        };
        if let Some(prefix) = &generated {
            object["metadata"]["name"] = generate_name(prefix).into();
        }
        prepare::stamp(request, &mut object);
        admit(
            request,
            Operation::Create,
            &mut object,
            None,
            options,
            &mut warnings,
        )?;
        let written_name = match &generated {
            Some(_) => String::new(),
            None => object["metadata"]["name"]
                .as_str()
                .unwrap_or_default()
                .to_owned(),
        };
        request.check_escalation(&written_name, &object, None)?;
        prepare::for_create(resource, &mut object, &request.api.clock.now_text());
        prepare::check(request, &object, None, Mode::Main, &mut warnings)?;
        let name = object["metadata"]["name"]
            .as_str()
            .unwrap_or_default()
            .to_owned();
        let key = crate::store::key(request.target.namespace.as_deref(), &name);
        prepare::size(request, &object)?;
        warnings.extend((resource.strategy.warnings)(&object));
        warnings.extend(resource.stored_only.map(str::to_owned));
        if options.dry_run {
            if request.entry.table.get(&key).is_some() {
                return Err(Status::already_exists(&named(request, &name)));
            }
            return Ok(Answer {
                warnings,
                ..Answer::value(201, object)
            });
        }
        let draft = request.entry.draft(&key, &object);
        match request.api.store.create(&request.entry.table, draft).await {
            Ok(stored) => {
                count_quota(request, &object).await;
                let bytes = request.entry.bytes(&stored);
                return Ok(Answer {
                    warnings,
                    ..Answer::bytes(201, bytes)
                });
            }
            Err(WriteError::Exists) if generated.is_some() => warnings.clear(),
            Err(WriteError::Exists) => {
                return Err(Status::already_exists(&named(request, &name)));
            }
            Err(error) => return Err(disk_error(&error)),
        }
    }
    Err(Status::name_generation_exhausted(&request.subject()))
}

fn named<'a>(request: &'a ResourceCall<'_>, name: &'a str) -> Subject<'a> {
    Subject {
        name,
        ..request.subject()
    }
}

/// Brings the status of the namespace's quotas up to date with a new object, as clients expect of
/// a server that enforces them. A quota changed meanwhile is counted again.
async fn count_quota(request: &ResourceCall<'_>, object: &Value) {
    let namespace = request.target.namespace.as_deref();
    let Some(entry) = request
        .api
        .registry
        .served()
        .kind("", "ResourceQuota")
        .cloned()
    else {
        return;
    };
    let quotas = entry.table.all(namespace);
    if namespace.is_none() || quotas.is_empty() {
        return;
    }
    let objects: Vec<Value> = request
        .entry
        .table
        .all(namespace)
        .iter()
        .map(|stored| stored.value())
        .collect();
    let table = request.entry.table.name();
    for stored in quotas {
        let key = &stored.key;
        while let Some(current) = request.api.store.latest(&entry.table, key) {
            let mut quota = current.value();
            let before = quota["status"].clone();
            for (name, amount) in quota::used_with(&quota, table, object, &objects) {
                quota["status"]["used"][name] = amount.into();
            }
            if quota["status"] == before {
                break;
            }
            let draft = entry.draft(key, &quota);
            let written = request
                .api
                .store
                .update(&entry.table, draft, current.revision)
                .await;
            if !matches!(written, Err(WriteError::Changed)) {
                break;
            }
        }
    }
}

fn generate_name(prefix: &str) -> String {
    let random = crate::codec::random::<5>();
    let prefix: String = prefix.chars().take(58).collect();
    let suffix = random
        .iter()
        .map(|byte| char::from(NAME_LETTERS[usize::from(*byte) % NAME_LETTERS.len()]));
    prefix.chars().chain(suffix).collect()
}

pub(super) fn writer<'a>(
    request: &'a ResourceCall<'_>,
    options: &'a WriteOptions,
    now: &'a str,
    mode: Mode,
) -> Writer<'a> {
    let resource = &request.entry.resource;
    Writer {
        manager: &options.manager,
        api_version: request.entry.api_version(),
        group: &resource.group,
        kind: &resource.kind,
        subresource: mode.subresource(),
        now,
        custom: resource.custom.is_some(),
        schema: &resource.schema,
        reset: prepare::reset(resource, mode),
    }
}

pub(super) fn admit(
    request: &ResourceCall<'_>,
    operation: Operation,
    object: &mut Value,
    old: Option<&Value>,
    options: &WriteOptions,
    warnings: &mut Vec<String>,
) -> Result<(), Status> {
    let name = object["metadata"]["name"]
        .as_str()
        .unwrap_or_default()
        .to_owned();
    let mut admission = AdmissionRequest {
        operation,
        resource: &request.entry.resource,
        subresource: request.target.subresource.as_deref(),
        namespace: request.target.namespace.as_deref(),
        name: &name,
        object,
        old,
        user: &request.call.user.name,
        dry_run: options.dry_run,
        options: &Value::Null,
    };
    request.api.admit(&mut admission, warnings)
}

impl ResourceCall<'_> {
    /// Writes that are judged by what others hold wait for each other, so that each sees the ones
    /// before it: services (addresses, ports), and whatever a quota of the namespace counts.
    pub(super) async fn turn(&self) -> Option<tokio::sync::MutexGuard<'_, ()>> {
        let namespace = self.target.namespace.as_deref()?;
        if self.entry.table.name() != "services" {
            let quotas = self.api.store.table("resourcequotas");
            if quotas.is_empty() || quotas.all(Some(namespace)).is_empty() {
                return None;
            }
        }
        Some(self.api.turn.lock().await)
    }
}

pub(super) async fn update(request: &ResourceCall<'_>) -> Result<Answer, Status> {
    update_as(request, Mode::Main).await
}

pub(super) async fn update_as(request: &ResourceCall<'_>, mode: Mode) -> Result<Answer, Status> {
    let call = &request.call;
    let options = WriteOptions::parse(&call.query, &call.user_agent, "UpdateOptions", false)?;
    let mut warnings = Vec::new();
    let body = body::decode_object(&call.content_type, &call.body)?;
    let object = decode(request, body, options.validation, &mut warnings)?;
    let exists = request
        .api
        .store
        .latest(&request.entry.table, &request.key())
        .is_some();
    if !exists && mode == Mode::Main && request.entry.resource.strategy.create_on_update {
        may_create(request)?;
        return create_object(request, object, &options, warnings, false).await;
    }
    let warned = warnings.clone();
    modify(request, &options, mode, warnings, &|_, _| {
        Ok(Produced {
            object: object.clone(),
            tracked: false,
        })
    })
    .await
    .map_err(|status| status.with_warnings(warned))
}

/// A write that finds nothing to change makes the object, for which its user needs the right to create it.
fn may_create(request: &ResourceCall<'_>) -> Result<(), Status> {
    let target = &request.target;
    let action = Action::Resource(On {
        verb: "create",
        group: &target.group,
        resource: &target.resource,
        subresource: "",
        namespace: target.namespace.as_deref().unwrap_or_default(),
        name: target.name.as_deref().unwrap_or_default(),
    });
    request.api.require(&request.call.user, &action)
}

/// The patch types, by media type.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PatchKind {
    Json,
    Merge,
    Strategic,
    Apply,
}

impl PatchKind {
    pub(super) fn of(content_type: &str, strategic: bool) -> Result<Self, Status> {
        match media_type(content_type) {
            "application/json-patch+json" => Ok(Self::Json),
            "application/merge-patch+json" => Ok(Self::Merge),
            "application/strategic-merge-patch+json" if strategic => Ok(Self::Strategic),
            "application/apply-patch+yaml" => Ok(Self::Apply),
            _ if strategic => Err(Status::no_such_patch()),
            _ => Err(Status::unsupported_media(&[
                "application/json-patch+json",
                "application/merge-patch+json",
                "application/apply-patch+yaml",
            ])),
        }
    }

    pub(super) fn decode(self, bytes: &[u8]) -> Result<Body, Status> {
        if self == Self::Apply {
            return body::decode_yaml(bytes);
        }
        let mut reader = body::decode_json(bytes);
        if let Err(status) = &mut reader {
            status.message = format!("error decoding patch: {}", status.message);
        }
        reader
    }

    /// The patched object; not for apply.
    pub(super) fn apply(
        self,
        old: &Value,
        patch: &Value,
        schema: &Schema,
    ) -> Result<Value, Status> {
        let mut new = old.clone();
        match self {
            Self::Json => json_patch::apply(&mut new, patch)?,
            Self::Merge | Self::Apply => merge::apply(&mut new, patch),
            Self::Strategic => strategic::apply(&mut new, patch, schema)?,
        }
        if new.is_object() {
            Ok(new)
        } else {
            Err(Status::bad_request("the patched object is not an object"))
        }
    }
}

pub(super) async fn patch(request: &ResourceCall<'_>) -> Result<Answer, Status> {
    patch_as(request, Mode::Main).await
}

pub(super) async fn patch_as(request: &ResourceCall<'_>, mode: Mode) -> Result<Answer, Status> {
    let call = &request.call;
    let resource = &request.entry.resource;
    let kind = PatchKind::of(&call.content_type, resource.custom.is_none())?;
    let options = WriteOptions::parse(
        &call.query,
        &call.user_agent,
        "PatchOptions",
        kind == PatchKind::Apply,
    )?;
    let body = kind.decode(&call.body)?;
    let mut warnings = Vec::new();
    if kind == PatchKind::Apply {
        return apply(request, &options, mode, body, warnings).await;
    }
    decode::strict_patch(&body, options.validation, &call.body, &mut warnings)?;
    let patch = body.value;
    modify(request, &options, mode, warnings, &|old, warnings| {
        let new = kind.apply(old, &patch, &resource.schema)?;
        let object = decode::patched(request, new, options.validation, warnings)?;
        Ok(Produced {
            object,
            tracked: false,
        })
    })
    .await
}

async fn apply(
    request: &ResourceCall<'_>,
    options: &WriteOptions,
    mode: Mode,
    body: Body,
    mut warnings: Vec<String>,
) -> Result<Answer, Status> {
    let is_named = body.value["metadata"]["name"].is_string();
    let config = decode::applied(request, body, options.validation, &mut warnings)?;
    let exists = request
        .api
        .store
        .latest(&request.entry.table, &request.key())
        .is_some();
    let now = request.api.clock.now_text();
    let of = |live: Option<&Value>| -> Result<Value, Status> {
        let writer = writer(request, options, &now, mode);
        let mut applied = managed::apply(live, &config, &writer, options.force)?.object;
        decode::settle(request, &mut applied);
        Ok(applied)
    };
    if !exists {
        if mode != Mode::Main {
            return Err(Status::not_found(&request.subject()));
        }
        if !is_named {
            let name = request.target.name.as_deref().unwrap_or_default();
            return Err(Status::bad_request(format!(
                "the name of the object ({name} based on URL) was undeterminable: name must be provided"
            )));
        }
        if let Some(uid) = config["metadata"]["uid"]
            .as_str()
            .filter(|uid| !uid.is_empty())
        {
            return Err(Status::conflict(
                &request.subject(),
                &format!(
                    "uid mismatch: the provided object specified uid {uid}, and no existing object was found"
                ),
            ));
        }
        may_create(request)?;
        return create_object(request, of(None)?, options, warnings, true).await;
    }
    modify(request, options, mode, warnings, &|old, _| {
        Ok(Produced {
            object: of(Some(old))?,
            tracked: true,
        })
    })
    .await
}
