//! Events, aggregated: the same thing said again about the same object raises a count.
//!
//! The name of an Event follows from what it says, so that a restarted operator finds the one it
//! wrote before instead of adding another.

use std::collections::BTreeMap;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::ObjectReference;
use k8s_openapi::api::events::v1::Event;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::MicroTime;
use kube::api::{Patch, PatchParams};
use kube::core::{ApiResource, ObjectMeta};
use kube::{Resource, ResourceExt};
use parking_lot::Mutex;
use serde_json::json;
use warp_core::random::Fingerprint;

use super::{ApplyError, Executor, is_reason};
use crate::plan::{Note, Want};

const CONTROLLER: &str = "gpu.warp.dev/warp-operator";
/// Kubernetes' limit of an Event's note.
const NOTE_BYTES: usize = 1024;
/// Counts kept; beyond it the oldest names start again at 2, which only understates a count.
const REMEMBERED: usize = 4096;

/// The object an Event is about.
#[derive(Clone, Debug)]
pub(crate) struct Regarding(ObjectReference);

impl Regarding {
    pub(crate) fn of<K: Resource<DynamicType = ()>>(object: &K) -> Self {
        Self(ObjectReference {
            api_version: Some(K::api_version(&()).into_owned()),
            kind: Some(K::kind(&()).into_owned()),
            name: Some(object.name_any()),
            namespace: object.namespace(),
            uid: object.uid(),
            resource_version: object.resource_version(),
            field_path: None,
        })
    }
}

pub(super) struct Recorder {
    identity: String,
    /// How often each was told, and when in the order of telling.
    counts: Mutex<BTreeMap<String, (i32, u64)>>,
}

impl Recorder {
    pub(super) fn new(identity: &str) -> Self {
        Self {
            identity: identity.to_owned(),
            counts: Mutex::default(),
        }
    }

    pub(super) async fn publish(
        &self,
        executor: &Executor,
        about: &Regarding,
        note: &Note,
    ) -> Result<(), ApplyError> {
        let now = executor.clock.now();
        let event = self.event(about, note, now);
        let name = event.name_any();
        let seen = self.counts.lock().get(&name).map(|count| count.0);
        let counted = match seen {
            None => false,
            Some(count) => self.count_up(executor, about, &name, count, now).await?,
        };
        if counted || self.make(executor, &event).await? {
            return Ok(());
        }
        // Written by an earlier process, and perhaps gone again by now: then the next one is made.
        self.count_up(executor, about, &name, 1, now).await?;
        Ok(())
    }

    /// Makes the Event; false when it exists.
    async fn make(&self, executor: &Executor, event: &Event) -> Result<bool, ApplyError> {
        let want = Want::of(event);
        let api = executor.api(&want.resource, &want.namespace);
        let params = kube::api::PostParams::default();
        let call = api.create(&params, &want.body);
        match executor
            .call("create", &want.resource, "", &want.name, call)
            .await
        {
            Ok(_) => {
                self.remember(want.name, 1);
                Ok(true)
            }
            Err(error) if is_reason(&error, "AlreadyExists") => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Raises the count of an Event that exists; false when it is gone: Events live an hour.
    async fn count_up(
        &self,
        executor: &Executor,
        about: &Regarding,
        name: &str,
        seen: i32,
        now: Timestamp,
    ) -> Result<bool, ApplyError> {
        let count = seen.saturating_add(1);
        let resource = ApiResource::erase::<Event>(&());
        let api = executor.api(&resource, about.0.namespace.as_deref().unwrap_or("default"));
        let body = json!({"series": {"count": count, "lastObservedTime": MicroTime(now)}});
        let (params, patch) = (PatchParams::default(), Patch::Merge(&body));
        let call = api.patch(name, &params, &patch);
        match executor.call("patch", &resource, "", name, call).await {
            Ok(_) => {
                self.remember(name.to_owned(), count);
                Ok(true)
            }
            Err(error) if error.status().is_some_and(|status| status.code == 404) => {
                self.counts.lock().remove(name);
                Ok(false)
            }
            Err(error) => Err(error),
        }
    }

    fn remember(&self, name: String, count: i32) {
        let mut counts = self.counts.lock();
        let order = counts.values().map(|(_, order)| order + 1).max();
        if counts.len() >= REMEMBERED {
            let oldest = counts.iter().min_by_key(|(_, (_, order))| *order);
            if let Some(oldest) = oldest.map(|(name, _)| name.clone()) {
                counts.remove(&oldest);
            }
        }
        counts.insert(name, (count, order.unwrap_or_default()));
    }

    fn event(&self, about: &Regarding, note: &Note, now: Timestamp) -> Event {
        let regarding = about.0.clone();
        let object = regarding.name.clone().unwrap_or_default();
        let print = Fingerprint::default()
            .text(regarding.uid.as_deref().unwrap_or_default())
            .text(note.reason)
            .text(&note.text)
            .get();
        let prefix: String = object.chars().take(200).collect();
        Event {
            metadata: ObjectMeta {
                name: Some(format!("{prefix}.{print:016x}")),
                namespace: Some(
                    regarding
                        .namespace
                        .clone()
                        .unwrap_or_else(|| "default".to_owned()),
                ),
                ..Default::default()
            },
            action: Some(note.action.to_owned()),
            reason: Some(note.reason.to_owned()),
            note: Some(shortened(&note.text)),
            type_: Some(if note.warning { "Warning" } else { "Normal" }.to_owned()),
            event_time: Some(MicroTime(now)),
            reporting_controller: Some(CONTROLLER.to_owned()),
            reporting_instance: Some(self.identity.chars().take(128).collect()),
            regarding: Some(regarding),
            ..Default::default()
        }
    }
}

fn shortened(text: &str) -> String {
    if text.len() <= NOTE_BYTES {
        return text.to_owned();
    }
    let mut end = NOTE_BYTES - '…'.len_utf8();
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    format!("{}…", &text[..end])
}
