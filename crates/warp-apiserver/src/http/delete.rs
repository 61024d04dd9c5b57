//! Delete: preconditions, grace, propagation and finalizers.

use std::sync::Arc;

use futures::{FutureExt, StreamExt};
use serde_json::{Value, json};

use super::options::{DeleteOptions, ListOptions, Propagation};
use super::selector::Selector;
use super::{Answer, Api, ResourceCall, read};
use crate::admission::{AdmissionRequest, Operation};
use crate::codec::body;
use crate::codec::status::{Status, Subject, deleted};
use crate::registry::{Entry, Resource, definitions};
use crate::store::{Stored, WriteError};

const ORPHAN: &str = "orphan";
const FOREGROUND: &str = "foregroundDeletion";

/// Deletions of a collection under way together.
const AT_ONCE: usize = 64;

/// What became of the object.
enum Outcome {
    Gone(Value),
    /// It stays for finalizers or a grace period.
    Waiting(Value),
}

fn options(request: &ResourceCall<'_>) -> Result<DeleteOptions, Status> {
    let call = &request.call;
    let body = if call.body.is_empty() {
        None
    } else {
        let body = body::decode_object(&call.content_type, &call.body)?.value;
        let kind = body["kind"].as_str().unwrap_or_default();
        if !matches!(kind, "" | "DeleteOptions") {
            return Err(Status::bad_request(format!(
                "expected DeleteOptions in the body of a delete, found {kind}"
            )));
        }
        Some(body)
    };
    DeleteOptions::parse(body.as_ref(), &call.query)
}

pub(super) async fn delete(request: &ResourceCall<'_>) -> Result<Answer, Status> {
    let options = options(request)?;
    let mut warnings = Vec::new();
    let outcome = remove(
        request.api,
        &request.entry,
        &request.key(),
        &options,
        &request.call.user.name,
        &mut warnings,
    )
    .await?;
    let answer = match outcome {
        Outcome::Waiting(object) => Answer::value(200, object),
        Outcome::Gone(object) if request.entry.resource.strategy.return_deleted => {
            Answer::value(200, object)
        }
        Outcome::Gone(object) => {
            let uid = object["metadata"]["uid"].as_str().unwrap_or_default();
            Answer::value(200, deleted(&request.subject(), uid))
        }
    };
    Ok(Answer { warnings, ..answer })
}

/// Deletes every object that matches; answers with what they were.
pub(super) async fn collection(request: &ResourceCall<'_>) -> Result<Answer, Status> {
    let options = options(request)?;
    let query = &request.call.query;
    let resource = &request.entry.resource;
    let mut list = ListOptions::parse(query, false)?;
    list.limit = 0;
    let selector = Selector::parse(
        query.get("labelSelector"),
        query.get("fieldSelector"),
        resource,
    )?;
    let listed = read::select(request, &list, &selector)?;
    let mut items = Vec::new();
    let mut warnings = Vec::new();
    // Many at once share a commit; the answers stay in the order of the list.
    let user: Arc<str> = request.call.user.name.as_str().into();
    let options = Arc::new(options);
    let keys = listed
        .page
        .objects
        .iter()
        .map(|stored| Arc::clone(&stored.key));
    let removals: Vec<_> = keys
        .map(|key| {
            let (api, entry) = (Arc::clone(request.api), Arc::clone(&request.entry));
            let (options, user) = (Arc::clone(&options), Arc::clone(&user));
            async move {
                let mut warnings = Vec::new();
                let removed = remove(&api, &entry, &key, &options, &user, &mut warnings).await;
                (removed, warnings)
            }
            .boxed()
        })
        .collect();
    let mut removals = futures::stream::iter(removals).buffered(AT_ONCE);
    while let Some((result, mut said)) = removals.next().await {
        warnings.append(&mut said);
        match result {
            Ok(Outcome::Gone(mut object) | Outcome::Waiting(mut object)) => {
                if resource.custom.is_none()
                    && let Some(map) = object.as_object_mut()
                {
                    // The list says these for all of them.
                    map.shift_remove("apiVersion");
                    map.shift_remove("kind");
                }
                items.push(object);
            }
            Err(status) if status.code == 404 => {}
            Err(status) => return Err(status),
        }
    }
    warnings.dedup();
    let mut list = json!({
        "kind": resource.list_kind,
        "apiVersion": request.entry.api_version(),
        "metadata": {"resourceVersion": request.api.store.revision().to_string()},
        "items": items,
    });
    if resource.custom.is_some() {
        list["metadata"]["continue"] = "".into();
    }
    let answer = Answer::value(200, list);
    Ok(Answer { warnings, ..answer })
}

/// Deletes a pod on behalf of an eviction.
pub(super) async fn evict(
    request: &ResourceCall<'_>,
    options: &DeleteOptions,
) -> Result<(), Status> {
    let user = &request.call.user.name;
    remove(
        request.api,
        &request.entry,
        &request.key(),
        options,
        user,
        &mut Vec::new(),
    )
    .await
    .map(drop)
}

/// Deletes one object of a definition that is going away.
pub(super) async fn instance(api: &Arc<Api>, entry: &Arc<Entry>, stored: &Stored) {
    let options = DeleteOptions::default();
    let user = crate::auth::User::admin().name;
    let result = remove(api, entry, &stored.key, &options, &user, &mut Vec::new()).await;
    if let Err(status) = result
        && status.code != 404
    {
        tracing::warn!(key = %stored.key, %status, "failed to delete object of a definition");
    }
}

async fn remove(
    api: &Arc<Api>,
    entry: &Arc<Entry>,
    key: &str,
    options: &DeleteOptions,
    user: &str,
    warnings: &mut Vec<String>,
) -> Result<Outcome, Status> {
    let resource = &entry.resource;
    let (namespace, name) = match key.split_once('/') {
        Some((namespace, name)) => (Some(namespace), name),
        None => (None, key),
    };
    let subject = Subject {
        group: &resource.group,
        resource: &resource.plural,
        kind: &resource.kind,
        name,
    };
    loop {
        let Some(current) = api.store.latest(&entry.table, key) else {
            return Err(Status::not_found(&subject));
        };
        let old = entry.read(&current);
        preconditions(options, &old, &subject)?;
        let mut seen = old.clone();
        let mut admission = AdmissionRequest {
            operation: Operation::Delete,
            resource,
            subresource: None,
            namespace,
            name,
            object: &mut seen,
            old: Some(&old),
            user,
            dry_run: options.dry_run,
            options: &options.sent,
        };
        api.admit(&mut admission, warnings)?;
        let step = next_step(api, resource, &old, options, warnings);
        if options.dry_run {
            return Ok(match step {
                Step::Keep => Outcome::Waiting(old),
                Step::Wait(new) => Outcome::Waiting(new),
                Step::Remove(new) => Outcome::Gone(new),
            });
        }
        let written = match &step {
            Step::Keep => return Ok(Outcome::Waiting(old)),
            Step::Wait(new) => {
                api.store
                    .update(&entry.table, entry.draft(key, new), current.revision)
                    .await
            }
            Step::Remove(new) if *new == old => {
                api.store
                    .delete(&entry.table, current.redraft(), current.revision)
                    .await
            }
            Step::Remove(new) => {
                api.store
                    .delete(&entry.table, entry.draft(key, new), current.revision)
                    .await
            }
        };
        match written {
            Ok(stored) if matches!(step, Step::Remove(_)) => {
                return Ok(Outcome::Gone(entry.read(&stored)));
            }
            Ok(stored) => return Ok(Outcome::Waiting(entry.read(&stored))),
            Err(WriteError::Changed) => {}
            Err(WriteError::Gone) => return Err(Status::not_found(&subject)),
            Err(error) => return Err(super::write::disk_error(&error)),
        }
    }
}

pub(super) fn preconditions(
    options: &DeleteOptions,
    old: &Value,
    subject: &Subject<'_>,
) -> Result<(), Status> {
    for (asked, name, label, verb) in [
        (&options.uid, "uid", "UID", "deleted and then recreated"),
        (
            &options.revision,
            "resourceVersion",
            "ResourceVersion",
            "modified",
        ),
    ] {
        let found = old["metadata"][name].as_str().unwrap_or_default();
        if let Some(asked) = asked.as_deref().filter(|asked| *asked != found) {
            return Err(Status::conflict(
                &Subject {
                    resource: subject.kind,
                    ..*subject
                },
                &format!(
                    "the {label} in the precondition ({asked}) does not match the {label} in record ({found}). The object might have been {verb}"
                ),
            ));
        }
    }
    Ok(())
}

enum Step {
    Remove(Value),
    Wait(Value),
    /// It is being deleted already and this request changes nothing.
    Keep,
}

fn next_step(
    api: &Api,
    resource: &Resource,
    old: &Value,
    options: &DeleteOptions,
    warnings: &mut Vec<String>,
) -> Step {
    let mut new = old.clone();
    set_finalizers(resource, &mut new, options, warnings);
    let deleting = old["metadata"]["deletionTimestamp"].is_string();
    let grace = match resource.strategy.grace {
        Some(grace) => grace(old, options.grace).max(0),
        None => 0,
    };
    let before = old["metadata"]["deletionGracePeriodSeconds"].as_i64();
    let blocked = is_blocked(resource, &new);
    if deleting {
        let shorter = before.is_some_and(|before| {
            before > 0 && grace < before && (options.grace.is_some() || grace == 0)
        });
        let left = if shorter { grace } else { before.unwrap_or(0) };
        if !blocked && left == 0 {
            return Step::Remove(last_state(api, resource, new));
        }
        if shorter {
            mark(api, resource, &mut new, grace);
        }
        return if new == *old {
            Step::Keep
        } else {
            Step::Wait(new)
        };
    }
    if !blocked && grace == 0 {
        return Step::Remove(last_state(api, resource, new));
    }
    mark(api, resource, &mut new, grace);
    (resource.strategy.prepare_delete)(&mut new);
    Step::Wait(new)
}

/// Kinds that can be given time show in their last state that it has run out.
fn last_state(api: &Api, resource: &Resource, mut object: Value) -> Value {
    if resource.strategy.grace.is_some() {
        mark(api, resource, &mut object, 0);
    }
    object
}

fn is_blocked(resource: &Resource, object: &Value) -> bool {
    let some = |value: &Value| value.as_array().is_some_and(|list| !list.is_empty());
    some(&object["metadata"]["finalizers"])
        || (resource.strategy.spec_finalizers && some(&object["spec"]["finalizers"]))
}

/// When the deletion of an object was first asked for.
fn asked_at(meta: &Value) -> Option<jiff::Timestamp> {
    let goes: jiff::Timestamp = meta["deletionTimestamp"].as_str()?.parse().ok()?;
    let grace = meta["deletionGracePeriodSeconds"].as_i64().unwrap_or(0);
    goes.checked_sub(jiff::SignedDuration::from_secs(grace))
        .ok()
}

/// Sets the time at which the object may go, counted from when that was first asked for: whoever subtracts the grace
/// learns that moment, also after it was shortened.
fn mark(api: &Api, resource: &Resource, object: &mut Value, grace: i64) {
    let asked = asked_at(&object["metadata"]).unwrap_or_else(|| api.clock.now());
    let at = asked
        .checked_add(jiff::SignedDuration::from_secs(grace))
        .unwrap_or(asked);
    let meta = &mut object["metadata"];
    let first = !meta["deletionTimestamp"].is_string();
    meta["deletionTimestamp"] = crate::clock::seconds(at).into();
    if !resource.strategy.spec_finalizers {
        meta["deletionGracePeriodSeconds"] = grace.into();
    }
    if first
        && resource.strategy.generation
        && let Some(generation) = meta["generation"].as_i64()
    {
        meta["generation"] = (generation + 1).into();
    }
}

/// The garbage collector's finalizers for the chosen propagation, and a definition's own.
fn set_finalizers(
    resource: &Resource,
    object: &mut Value,
    options: &DeleteOptions,
    warnings: &mut Vec<String>,
) {
    let mut list: Vec<String> = object["metadata"]["finalizers"]
        .as_array()
        .into_iter()
        .flatten()
        .filter_map(Value::as_str)
        .map(str::to_owned)
        .collect();
    let has = |list: &[String], name: &str| list.iter().any(|known| known == name);
    let before = list.clone();
    let chosen = options.propagation.or_else(|| {
        if has(&list, ORPHAN) {
            Some(Propagation::Orphan)
        } else if has(&list, FOREGROUND) {
            Some(Propagation::Foreground)
        } else if let Some(text) = resource.strategy.orphan_by_default {
            warnings.push(text.to_owned());
            Some(Propagation::Orphan)
        } else {
            None
        }
    });
    list.retain(|name| name != ORPHAN && name != FOREGROUND);
    match chosen {
        Some(Propagation::Orphan) => list.push(ORPHAN.to_owned()),
        Some(Propagation::Foreground) => list.push(FOREGROUND.to_owned()),
        _ => {}
    }
    if resource.table() == definitions::TABLE
        && !object["metadata"]["deletionTimestamp"].is_string()
        && !has(&list, definitions::CLEANUP)
    {
        list.push(definitions::CLEANUP.to_owned());
    }
    if list == before {
        return;
    }
    let meta = &mut object["metadata"];
    if list.is_empty() {
        if let Some(meta) = meta.as_object_mut() {
            meta.shift_remove("finalizers");
        }
    } else {
        meta["finalizers"] = list.into();
    }
}
