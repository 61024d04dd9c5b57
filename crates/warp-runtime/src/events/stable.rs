//! Events whose name follows from what they say, so that a restarted controller finds the one it wrote before instead of
//! adding another: the same thing said again about the same object raises a count.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::events::v1::Event;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{MicroTime, ObjectMeta};
use kube::api::{Api, Patch, PatchParams, PostParams};
use serde_json::json;
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use crate::Clock;
use crate::fingerprint;
use crate::pass::Observer;
use crate::plan::Note;

/// Kubernetes' limit of an Event's note.
const NOTE_BYTES: usize = 1024;
/// Counts kept; beyond it all begin again at 2, which only understates a count.
const REMEMBERED: usize = 4096;
/// The longest one Event may take: the next ones wait behind it.
const DEADLINE: Duration = Duration::from_secs(15);
/// What counters call them.
const EVENTS: &str = "events";

pub(super) async fn write(
    client: kube::Client,
    clock: Clock,
    identity: String,
    observer: Arc<dyn Observer>,
    mut receive: mpsc::Receiver<(&'static str, Note)>,
    shutdown: CancellationToken,
) {
    let mut counts = BTreeMap::new();
    loop {
        let (component, note) = tokio::select! {
            () = shutdown.cancelled() => return,
            note = receive.recv() => match note {
                Some(note) => note,
                None => return,
            },
        };
        let event = event(component, &identity, note, clock.now());
        let told =
            tokio::time::timeout(DEADLINE, publish(&client, &*observer, &mut counts, &event)).await;
        match told {
            Ok(Ok(())) => {}
            // The status has the truth; a lost Event is logged and otherwise nothing.
            Ok(Err(error)) => {
                tracing::warn!(reason = event.reason, %error, "failed to publish event");
            }
            Err(_) => tracing::warn!(reason = event.reason, "no answer to an event in time"),
        }
    }
}

async fn publish(
    client: &kube::Client,
    observer: &dyn Observer,
    counts: &mut BTreeMap<String, i32>,
    event: &Event,
) -> Result<(), kube::Error> {
    let name = event.metadata.name.clone().unwrap_or_default();
    let namespace = event.metadata.namespace.as_deref().unwrap_or_default();
    let api: Api<Event> = Api::namespaced(client.clone(), namespace);
    if let Some(&seen) = counts.get(&name) {
        observer.sends("patch", EVENTS);
        if count_up(&api, event, seen).await? {
            counts.insert(name, seen.saturating_add(1));
            return Ok(());
        }
        counts.remove(&name);
    }
    observer.sends("create", EVENTS);
    match api.create(&PostParams::default(), event).await {
        Ok(_) => remember(counts, name, 1),
        // Written by an earlier process.
        Err(kube::Error::Api(status)) if status.is_already_exists() => {
            observer.sends("patch", EVENTS);
            if count_up(&api, event, 1).await? {
                remember(counts, name, 2);
            }
        }
        Err(error) => return Err(error),
    }
    Ok(())
}

fn remember(counts: &mut BTreeMap<String, i32>, name: String, count: i32) {
    if counts.len() >= REMEMBERED {
        counts.clear();
    }
    counts.insert(name, count);
}

/// Raises the count of an Event that exists; false when it is gone: Events live an hour.
async fn count_up(api: &Api<Event>, event: &Event, seen: i32) -> Result<bool, kube::Error> {
    let count = seen.saturating_add(1);
    let body = json!({"series": {"count": count, "lastObservedTime": event.event_time}});
    let name = event.metadata.name.as_deref().unwrap_or_default();
    match api
        .patch(name, &PatchParams::default(), &Patch::Merge(&body))
        .await
    {
        Ok(_) => Ok(true),
        Err(kube::Error::Api(status)) if status.is_not_found() => Ok(false),
        Err(error) => Err(error),
    }
}

fn event(component: &'static str, identity: &str, note: Note, now: Timestamp) -> Event {
    let about = note.about;
    let print = fingerprint::of(&[
        about.uid.as_deref().unwrap_or_default(),
        &note.reason,
        &note.message,
    ]);
    let object = about.name.as_deref().unwrap_or_default();
    let prefix: String = object.chars().take(200).collect();
    let namespace = about.namespace.as_deref().unwrap_or("default");
    Event {
        metadata: ObjectMeta {
            name: Some(format!("{prefix}.{print:016x}")),
            namespace: Some(namespace.to_owned()),
            ..ObjectMeta::default()
        },
        action: Some(
            note.action
                .map_or_else(|| note.reason.clone(), str::to_owned),
        ),
        reason: Some(note.reason),
        note: Some(shortened(&note.message)),
        type_: Some(if note.warning { "Warning" } else { "Normal" }.to_owned()),
        event_time: Some(MicroTime(now)),
        reporting_controller: Some(format!("gpu.warp.dev/{component}")),
        reporting_instance: Some(identity.chars().take(128).collect()),
        regarding: Some(about),
        ..Event::default()
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

#[cfg(test)]
mod tests {
    use k8s_openapi::api::core::v1::ObjectReference;
    use kube::api::ListParams;
    use warp_apiserver::{ApiServer, Options};

    use super::*;
    use crate::pass::Unobserved;

    fn note(message: &str) -> Note {
        Note {
            about: ObjectReference {
                uid: Some("u".to_owned()),
                name: Some("team".to_owned()),
                ..ObjectReference::default()
            },
            warning: true,
            reason: "Contested".to_owned(),
            action: None,
            message: message.to_owned(),
        }
    }

    #[tokio::test]
    async fn a_restarted_controller_finds_the_event_it_wrote_before() {
        let server = ApiServer::start(Options::ephemeral().unwrap())
            .await
            .unwrap();
        let client = server.client("default");
        let now = server.clock().now();
        for (text, processes) in [("a", 2), ("b", 1)] {
            for _ in 0..processes {
                let mut counts = BTreeMap::new();
                let event = event("tenant", "one", note(text), now);
                publish(&client, &Unobserved, &mut counts, &event)
                    .await
                    .unwrap();
            }
        }
        let events: Api<Event> = Api::namespaced(client, "default");
        let found = events.list(&ListParams::default()).await.unwrap();
        let mut counts: Vec<_> = found
            .iter()
            .map(|event| {
                (
                    event.note.clone(),
                    event.series.as_ref().map(|series| series.count),
                )
            })
            .collect();
        counts.sort();
        let expected = [("a", Some(2)), ("b", None)];
        assert_eq!(
            counts,
            expected.map(|(note, count)| (Some(note.to_owned()), count))
        );
    }

    #[test]
    fn a_long_note_is_cut_at_a_character() {
        let text = shortened(&"ü".repeat(2000));
        assert!(text.len() <= NOTE_BYTES && text.ends_with('…'));
    }
}
