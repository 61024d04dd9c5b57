//! Places ordinary pods on nodes: one loop over one ledger, which every change of a pod or a node updates in place.
//!
//! What fits is `warp-core`'s answer; this module feeds it, binds what it places, makes room by preemption and tells
//! users why a pod waits. It places no GPUs of its own accord: workloads arrive pinned.

use std::collections::{BTreeMap, BTreeSet};
use std::panic::AssertUnwindSafe;
use std::sync::Arc;

use futures::FutureExt;
use k8s_openapi::api::core::v1::Pod;
use parking_lot::Mutex;
use serde_json::json;
use tokio::sync::Notify;
use tokio::task::JoinSet;
use tokio::time::Instant;
use warp_core::fleet::{Fleet, NodeId, Request, Work, WorkState};
use warp_core::schedule::fit::Filter;

use self::verdict::Verdict;
use self::waiting::Waiting;
use crate::background;
use crate::controllers::drive::SyncError;
use crate::controllers::plan::{Action, Encoding, Kind, Plan, about};
use crate::controllers::{Shared, pods};
use crate::informer::Key;

mod ledger;
mod preempt;
pub(crate) mod request;
mod room;
mod score;
#[cfg(test)]
mod tests;
mod verdict;
mod volumes;
mod waiting;

const NAME: &str = "default-scheduler";
/// Writes under way at once; beyond that the loop waits for one to end.
const PARALLEL: usize = 128;
/// Decisions made before the loop looks at changes again.
const BATCH: usize = 256;

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Change {
    Node(Key),
    Pod(Key),
    Namespace(Key),
    /// A claim or a volume: pods may wait for it.
    Volume,
}

#[derive(Debug, Default)]
struct Changes {
    seen: Mutex<BTreeSet<Change>>,
    wake: Notify,
}

impl Changes {
    fn add(&self, change: Change) {
        self.seen.lock().insert(change);
        self.wake.notify_one();
    }
}

/// Starts the scheduler; it begins once every cache has its first list.
pub(crate) fn start(shared: &Shared) {
    let changes = Arc::new(Changes::default());
    let caches = &shared.caches;
    let on = |change: fn(Key) -> Change| {
        let changes = changes.clone();
        move |key: Key| changes.add(change(key))
    };
    let (pod, node, namespace) = (on(Change::Pod), on(Change::Node), on(Change::Namespace));
    caches.pods.listen(move |old, new| {
        if let Some(object) = new.or(old) {
            pod(Key::of(object));
        }
    });
    caches.nodes.listen(move |old, new| {
        if let Some(object) = new.or(old) {
            node(Key::of(object));
        }
    });
    caches.namespaces.listen(move |old, new| {
        if let Some(object) = new.or(old) {
            namespace(Key::of(object));
        }
    });
    let volume = changes.clone();
    caches.claims.listen(move |_, _| volume.add(Change::Volume));
    let volume = changes.clone();
    caches
        .volumes
        .listen(move |_, _| volume.add(Change::Volume));
    let scheduler = Scheduler {
        shared: shared.clone(),
        changes,
        fleet: Fleet::new(),
        waiting: Waiting::default(),
        bound: BTreeMap::new(),
        requests: BTreeMap::new(),
        seeking_company: BTreeSet::new(),
        nominees: BTreeMap::new(),
        writes: JoinSet::new(),
    };
    background::tracked(&shared.tasks, scheduler.run());
}

/// A pod that waits for its victims to end.
#[derive(Debug)]
struct Nominee {
    work: Work,
    priority: i32,
}

/// What a write said that the loop must know.
#[derive(Debug)]
enum Written {
    Bound(Key, Arc<str>, Result<(), SyncError>),
    Told,
    /// Victims may be left, or a pod may not know why it waits.
    Unsaid(Key),
}

#[derive(Debug)]
struct Scheduler {
    shared: Shared,
    changes: Arc<Changes>,
    fleet: Fleet,
    waiting: Waiting,
    /// Pods the ledger holds, with the uid they are held under.
    bound: BTreeMap<Key, Arc<str>>,
    /// What waiting pods ask for, as last seen.
    requests: BTreeMap<Key, Arc<Request>>,
    /// Waiting pods that want to be near others: a pod being bound may be what they wait for.
    seeking_company: BTreeSet<Key>,
    nominees: BTreeMap<Key, Nominee>,
    writes: JoinSet<Written>,
}

impl Scheduler {
    async fn run(mut self) {
        let shutdown = self.shared.shutdown.clone();
        tokio::select! {
            () = shutdown.cancelled() => return,
            () = self.shared.caches.synced() => {}
        }
        loop {
            self.take_changes();
            let next = self.waiting.tick(Instant::now());
            if self.decide() {
                self.collect();
                tokio::task::yield_now().await;
                if shutdown.is_cancelled() {
                    return;
                }
                while self.writes.len() >= PARALLEL {
                    self.collect_one().await;
                }
                continue;
            }
            let changes = self.changes.clone();
            let sleep = async {
                match next {
                    Some(at) => tokio::time::sleep_until(at).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                () = shutdown.cancelled() => return,
                () = changes.wake.notified() => {}
                () = sleep => {}
                Some(written) = self.writes.join_next() => self.take_written(written.ok()),
            }
        }
    }

    fn collect(&mut self) {
        while let Some(written) = self.writes.try_join_next() {
            self.take_written(written.ok());
        }
    }

    async fn collect_one(&mut self) {
        if let Some(written) = self.writes.join_next().await {
            self.take_written(written.ok());
        }
    }

    fn take_written(&mut self, written: Option<Written>) {
        let (key, uid, outcome) = match written {
            Some(Written::Bound(key, uid, outcome)) => (key, uid, outcome),
            Some(Written::Unsaid(key)) => return self.waiting.unsaid(&key, Instant::now()),
            Some(Written::Told) | None => return,
        };
        match outcome {
            Ok(()) => self.forget(&key),
            Err(error) => {
                tracing::debug!(%key, %error, "not bound");
                if self.bound.get(&key) == Some(&uid) {
                    self.bound.remove(&key);
                    self.fleet.release(&uid);
                }
                self.waiting.retry(&key, Instant::now());
                self.changes.add(Change::Pod(key));
            }
        }
    }

    /// Tries waiting pods; false when none is left to try.
    fn decide(&mut self) -> bool {
        for tried in 0..BATCH {
            if self.writes.len() >= PARALLEL {
                return true;
            }
            let Some(key) = self.waiting.take() else {
                return tried > 0;
            };
            let pod = self
                .shared
                .caches
                .pods
                .get(&key)
                .filter(|pod| is_ours(pod) && pods::node(pod).is_none());
            match pod {
                Some(pod) => self.attempt(&key, &pod),
                None => self.forget(&key),
            }
        }
        true
    }

    fn attempt(&mut self, key: &Key, pod: &Arc<Pod>) {
        let Some(mut request) = self.requests.get(key).cloned() else {
            return self.forget(key);
        };
        match volumes::constrain(&self.shared.caches, pod, &request) {
            Ok(None) => {}
            Ok(Some(constrained)) => request = Arc::new(constrained),
            Err(message) => {
                // These are kube-scheduler's words to the letter, the odd end included.
                let text = format!(
                    "0/{} nodes are available: {message}. not found",
                    self.fleet.len()
                );
                return self.refuse(key, pod, text, None);
            }
        }
        let stood_aside = self.stand_aside(key, request.priority);
        if let Some(node) = self.place(pod, &request) {
            self.give_back(stood_aside);
            return self.bind(key, pod, request, &node);
        }
        let verdict = Verdict::new(&self.fleet, &request);
        let chosen = self.preempt(key, pod, &request, &verdict);
        self.give_back(stood_aside);
        match chosen {
            Ok(chosen) => self.make_room(key, pod, &request, &verdict, &chosen),
            Err(why) => self.refuse(key, pod, verdict.message(&why), None),
        }
    }

    /// Takes out the reservations that do not bind this pod: its own and those of lower priority.
    fn stand_aside(&mut self, key: &Key, priority: i32) -> Vec<Work> {
        let aside = self
            .nominees
            .iter()
            .filter(|(nominee, held)| *nominee == key || held.priority < priority);
        let ids: Vec<_> = aside.map(|(_, held)| held.work.id.clone()).collect();
        ids.iter().filter_map(|id| self.fleet.release(id)).collect()
    }

    fn give_back(&mut self, works: Vec<Work>) {
        for work in works {
            if let Err(error) = self.fleet.bind(work) {
                tracing::debug!(%error, "a nomination was lost");
            }
        }
    }

    fn place(&mut self, pod: &Pod, request: &Request) -> Option<Arc<str>> {
        let filter = Filter::new(&self.fleet, request);
        let nodes = self.fleet.nodes().map(|(id, _)| id);
        let fitting: Vec<NodeId> = nodes.filter(|id| filter.fits(*id)).collect();
        let request = score::with_group_spread(&self.shared.caches, pod, request);
        // A place that was promised keeps others out, but makes no node better or worse for them.
        let promised: Vec<_> = self
            .nominees
            .values()
            .map(|held| held.work.id.clone())
            .collect();
        let promised = promised
            .iter()
            .filter_map(|id| self.fleet.release(id))
            .collect();
        let best = score::best(&self.fleet, &request, &fitting);
        self.give_back(promised);
        let best = self.fleet.node(best?)?;
        Some(best.name.clone())
    }

    fn bind(&mut self, key: &Key, pod: &Arc<Pod>, request: Arc<Request>, node: &Arc<str>) {
        self.withdraw(key);
        let uid: Arc<str> = pod.metadata.uid.as_deref().unwrap_or_default().into();
        let since = self.shared.now().as_second();
        let work = Work {
            id: uid.clone(),
            request,
            node: node.clone(),
            gpus: None,
            since,
            state: WorkState::Reserved,
        };
        if let Err(error) = self.fleet.bind(work) {
            tracing::warn!(%key, %error, "placed, but not in the ledger");
            return self.waiting.retry(key, Instant::now());
        }
        self.bound.insert(key.clone(), uid.clone());
        let mut plan = Plan::default();
        let object = json!({
            "apiVersion": "v1",
            "kind": "Binding",
            "metadata": { "name": &*key.name, "namespace": &*key.namespace, "uid": &*uid },
            "target": { "apiVersion": "v1", "kind": "Node", "name": node },
        });
        plan.push(Action::Sub {
            kind: Kind::of::<Pod>(),
            key: key.clone(),
            sub: "binding",
            put: false,
            object,
        });
        plan.note(
            about(&**pod),
            false,
            "Scheduled",
            format!("Successfully assigned {key} to {node}"),
        );
        let (shared, key) = (self.shared.clone(), key.clone());
        let write = async move {
            // A pod whose write panics must not stay "being bound" for ever.
            let bound = AssertUnwindSafe(shared.execute(NAME, plan)).catch_unwind();
            let outcome = bound.await.unwrap_or(Err(SyncError::Panicked));
            Written::Bound(key, uid, outcome.map(|_| ()))
        };
        self.writes.spawn(write.boxed());
    }

    /// Says why a pod waits, in its conditions and in an event.
    fn refuse(&mut self, key: &Key, pod: &Arc<Pod>, message: String, nominated: Option<&str>) {
        self.waiting.park(key, Instant::now());
        // Where it is to go is said again until the pod has it: the write that said so may have failed.
        let promised = self.nominees.get(key).map(|nominee| &*nominee.work.node);
        let told = pod
            .status
            .as_ref()
            .and_then(|status| status.nominated_node_name.as_deref());
        let nominated = nominated.or(promised.filter(|node| told != Some(*node)));
        let mut plan = Plan::default();
        let known = pods::condition(pod, "PodScheduled");
        let same = known.is_some_and(|known| {
            known.status == "False"
                && known.reason.as_deref() == Some("Unschedulable")
                && known.message.as_deref() == Some(&message)
        });
        if !same || nominated.is_some() {
            let since = known
                .filter(|known| known.status == "False")
                .and_then(|known| known.last_transition_time.clone());
            let since = since.unwrap_or_else(|| self.shared.now().into());
            let mut status = json!({ "conditions": [{
                "type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": message,
                "lastProbeTime": null, "lastTransitionTime": since,
            }] });
            if let Some(node) = nominated {
                status["nominatedNodeName"] = json!(node);
            }
            plan.push(status_patch(pod, &status));
        }
        plan.note(about(&**pod), true, "FailedScheduling", message);
        self.write(key, plan);
    }

    fn write(&mut self, key: &Key, plan: Plan) {
        let (shared, key) = (self.shared.clone(), key.clone());
        let write = async move {
            if let Err(error) = shared.execute(NAME, plan).await {
                tracing::debug!(%error, "scheduler write failed");
                return Written::Unsaid(key);
            }
            Written::Told
        };
        self.writes.spawn(write.boxed());
    }
}

fn status_patch(pod: &Pod, status: &serde_json::Value) -> Action {
    Action::Patch {
        kind: Kind::of::<Pod>(),
        key: Key::of(pod),
        sub: Some("status"),
        encoding: Encoding::Strategic,
        patch: json!({ "metadata": { "uid": pod.metadata.uid }, "status": status }),
    }
}

/// A pod this scheduler is to place: no node yet, not gated, not ending, and asking for it by name.
fn is_ours(pod: &Pod) -> bool {
    let Some(spec) = &pod.spec else { return false };
    spec.scheduler_name
        .as_deref()
        .is_none_or(|name| name == NAME)
        && spec.scheduling_gates.as_ref().is_none_or(Vec::is_empty)
        && pods::is_active(pod)
}
