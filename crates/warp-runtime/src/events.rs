//! Events for users, in two ways: as kube-controller-manager writes them ([`Recorder::new`]), and under names that follow
//! from what they say ([`Recorder::stable`]). Recording never blocks and never fails a controller; repeats raise a count instead of making a new
//! object, and one object that says too much is cut short, as client-go does.

mod stable;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::core::v1::{Event, EventSource};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, Time};
use kube::api::{Api, Patch, PatchParams, PostParams};
use serde_json::json;
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use crate::Clock;
use crate::pass::Observer;
use crate::plan::Note;

/// Events one component may say about one object in a burst, and how long it takes to earn the next.
const BURST: u32 = 25;
const REFILL: Duration = Duration::from_mins(5);
/// Repeats and bursts are forgotten beyond this many, as by client-go; the cost is a second Event object, never a wrong
/// one.
const REMEMBERED: usize = 4096;
const WAITING: usize = 65_536;
const PARALLEL: usize = 8;

#[derive(Clone, Debug)]
pub struct Recorder {
    send: mpsc::Sender<(&'static str, Note)>,
}

impl Recorder {
    /// A recorder and the task that writes what it records.
    pub fn new(
        client: kube::Client,
        clock: Clock,
        shutdown: CancellationToken,
    ) -> (Self, impl Future<Output = ()>) {
        let (send, receive) = mpsc::channel(WAITING);
        (Self { send }, write(client, clock, receive, shutdown))
    }

    /// A recorder whose Events a restarted process finds again, and the task that writes them.
    pub fn stable(
        client: kube::Client,
        clock: Clock,
        identity: &str,
        observer: Arc<dyn Observer>,
        shutdown: CancellationToken,
    ) -> (Self, impl Future<Output = ()> + use<>) {
        let (send, receive) = mpsc::channel(WAITING);
        let identity = identity.to_owned();
        let writer = stable::write(client, clock, identity, observer, receive, shutdown);
        (Self { send }, writer)
    }

    pub fn record(&self, component: &'static str, note: Note) {
        if self.send.try_send((component, note)).is_err() {
            tracing::debug!("event dropped: too many are waiting");
        }
    }
}

#[derive(Default)]
struct Memory {
    /// (component, uid, reason, message) → name of the Event and its count.
    said: BTreeMap<(&'static str, String, String, String), (String, i32)>,
    /// (component, uid) → tokens left and when they were last counted.
    budgets: BTreeMap<(&'static str, String), (u32, jiff::Timestamp)>,
    serial: u64,
}

enum Write {
    New(Box<Event>),
    /// Said before: the Event with its new count.
    Repeat(Box<Event>),
}

async fn write(
    client: kube::Client,
    clock: Clock,
    mut receive: mpsc::Receiver<(&'static str, Note)>,
    shutdown: CancellationToken,
) {
    let mut memory = Memory::default();
    let mut writes = JoinSet::new();
    loop {
        let (component, note) = tokio::select! {
            () = shutdown.cancelled() => break,
            note = receive.recv() => match note {
                Some(note) => note,
                None => break,
            },
        };
        let Some(write) = memory.next(component, note, clock.now()) else {
            continue;
        };
        while writes.len() >= PARALLEL {
            writes.join_next().await;
        }
        let client = client.clone();
        writes.spawn(async move { post(&client, write).await });
    }
    writes.shutdown().await;
}

impl Memory {
    fn next(&mut self, component: &'static str, note: Note, now: jiff::Timestamp) -> Option<Write> {
        let uid = note.about.uid.clone().unwrap_or_default();
        if !self.spend(component, &uid, now) {
            return None;
        }
        let namespace = note
            .about
            .namespace
            .clone()
            .unwrap_or_else(|| "default".to_owned());
        let said = (component, uid, note.reason.clone(), note.message.clone());
        if let Some((name, count)) = self.said.get_mut(&said) {
            *count += 1;
            let mut event = event(component, note, namespace, name.clone(), now);
            event.count = Some(*count);
            return Some(Write::Repeat(Box::new(event)));
        }
        if self.said.len() >= REMEMBERED {
            self.said.clear();
            self.budgets.clear();
        }
        self.serial += 1;
        let stamp = u64::try_from(now.as_nanosecond().max(0))
            .unwrap_or_default()
            .wrapping_add(self.serial);
        let name = format!("{}.{stamp:x}", note.about.name.clone().unwrap_or_default());
        self.said.insert(said, (name.clone(), 1));
        Some(Write::New(Box::new(event(
            component, note, namespace, name, now,
        ))))
    }

    fn spend(&mut self, component: &'static str, uid: &str, now: jiff::Timestamp) -> bool {
        let (tokens, counted) = self
            .budgets
            .entry((component, uid.to_owned()))
            .or_insert((BURST, now));
        let passed = u64::try_from(now.duration_since(*counted).as_secs()).unwrap_or_default();
        let earned = u32::try_from(passed / REFILL.as_secs()).unwrap_or(BURST);
        if earned > 0 {
            *tokens = (*tokens + earned).min(BURST);
            *counted = now;
        }
        if *tokens == 0 {
            return false;
        }
        *tokens -= 1;
        true
    }
}

fn event(
    component: &'static str,
    note: Note,
    namespace: String,
    name: String,
    now: jiff::Timestamp,
) -> Event {
    Event {
        metadata: ObjectMeta {
            name: Some(name),
            namespace: Some(namespace),
            ..ObjectMeta::default()
        },
        involved_object: note.about,
        reason: Some(note.reason),
        message: Some(note.message),
        type_: Some(if note.warning { "Warning" } else { "Normal" }.to_owned()),
        source: Some(EventSource {
            component: Some(component.to_owned()),
            host: None,
        }),
        reporting_component: Some(component.to_owned()),
        first_timestamp: Some(Time(now)),
        last_timestamp: Some(Time(now)),
        count: Some(1),
        ..Event::default()
    }
}

async fn post(client: &kube::Client, write: Write) {
    let (Write::New(event) | Write::Repeat(event)) = &write;
    let namespace = event.metadata.namespace.as_deref().unwrap_or_default();
    let name = event.metadata.name.as_deref().unwrap_or_default();
    let api: Api<Event> = Api::namespaced(client.clone(), namespace);
    let repeated = match &write {
        Write::New(_) => None,
        Write::Repeat(event) => {
            let patch = json!({ "count": event.count, "lastTimestamp": event.last_timestamp });
            let patched = api
                .patch(name, &PatchParams::default(), &Patch::Merge(patch))
                .await;
            Some(patched)
        }
    };
    let outcome = match repeated {
        // Events do not live for ever: one that is gone is said anew.
        Some(Err(kube::Error::Api(status))) if status.is_not_found() => {
            api.create(&PostParams::default(), event).await
        }
        Some(outcome) => outcome,
        None => api.create(&PostParams::default(), event).await,
    };
    if let Err(error) = outcome {
        tracing::debug!(%error, "event not written");
    }
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::core::v1::ObjectReference;
    use kube::api::{DeleteParams, ListParams};
    use warp_apiserver::{ApiServer, Options};

    use super::*;

    fn note(message: &str) -> Note {
        let about = ObjectReference {
            uid: Some("u".to_owned()),
            name: Some("job".to_owned()),
            ..ObjectReference::default()
        };
        Note {
            about,
            warning: false,
            reason: "SuccessfulCreate".to_owned(),
            action: None,
            message: message.to_owned(),
        }
    }

    /// Events are kept for an hour; a controller may say the same thing again much later.
    #[tokio::test]
    async fn a_repeat_of_an_event_that_expired_is_said_anew() {
        let server = ApiServer::start(Options::ephemeral().unwrap())
            .await
            .unwrap();
        let client = server.client("default");
        let events: Api<Event> = Api::namespaced(client.clone(), "default");
        let mut memory = Memory::default();
        let now = server.clock().now();
        let mut say = || {
            let mut note = note("a");
            note.about.namespace = Some("default".to_owned());
            memory.next("c", note, now).unwrap()
        };
        post(&client, say()).await;
        post(&client, say()).await;
        let first = events
            .list(&ListParams::default())
            .await
            .unwrap()
            .items
            .remove(0);
        assert_eq!(first.count, Some(2));
        let name = first.metadata.name.unwrap();
        let params = DeleteParams::default();
        events.delete(&name, &params).await.unwrap();
        post(&client, say()).await;
        let again = events.get(&name).await.unwrap();
        assert_eq!(again.count, Some(3));
        assert_ne!(again.metadata.uid, first.metadata.uid);
        assert_eq!(again.reason.as_deref(), Some("SuccessfulCreate"));
    }

    #[test]
    fn what_was_said_of_many_objects_is_forgotten_in_time() {
        let mut memory = Memory::default();
        for number in 0..3 * REMEMBERED {
            let mut note = note("a");
            note.about.uid = Some(number.to_string());
            let now = jiff::Timestamp::UNIX_EPOCH;
            assert!(memory.next("c", note, now).is_some());
            assert!(memory.said.len() <= REMEMBERED);
            assert!(memory.budgets.len() <= REMEMBERED + 1);
        }
    }

    #[test]
    fn the_same_event_is_counted_and_a_flood_about_one_object_is_cut_short() {
        let mut memory = Memory::default();
        let now = jiff::Timestamp::UNIX_EPOCH;
        assert!(matches!(
            memory.next("c", note("a"), now),
            Some(Write::New(_))
        ));
        assert!(matches!(
            memory.next("c", note("a"), now),
            Some(Write::Repeat(event)) if event.count == Some(2)
        ));
        let written = (0..100)
            .filter(|n| memory.next("c", note(&n.to_string()), now).is_some())
            .count();
        assert_eq!(written, 23);
        let later = now + jiff::SignedDuration::from_secs(700);
        let written = (0..100)
            .filter(|n| memory.next("c", note(&n.to_string()), later).is_some())
            .count();
        assert_eq!(written, 2);
    }
}
