//! Keeps the scheduler's ledger equal to the caches: nodes, the pods on them, those that wait, and those that were
//! promised a place.

use std::collections::BTreeSet;
use std::sync::Arc;

use k8s_openapi::api::core::v1::Pod;
use tokio::time::Instant;
use warp_core::fleet::{Request, Work, WorkState};

use super::{Change, Nominee, Scheduler, is_ours, request};
use crate::controllers::{PODS_BY_NODE, pods};
use crate::informer::Key;

impl Scheduler {
    /// Brings the ledger up to date with the caches.
    pub(super) fn take_changes(&mut self) {
        let seen = std::mem::take(&mut *self.changes.seen.lock());
        let mut room = false;
        for change in seen {
            room |= match change {
                Change::Node(key) => self.take_node(&key),
                Change::Pod(key) => self.take_pod(&key),
                Change::Namespace(key) => {
                    let namespace = self.shared.caches.namespaces.get(&key);
                    let labels = namespace.and_then(|namespace| namespace.metadata.labels.clone());
                    let labels = request::labels(labels.as_ref());
                    let changed = self.fleet.namespace_labels(&key.name) != Some(&labels);
                    self.fleet.set_namespace(&key.name, labels);
                    changed
                }
                Change::Volume => true,
            };
        }
        if room && self.waiting.has_parked() {
            self.waiting.stir(Instant::now());
        }
    }

    fn take_node(&mut self, key: &Key) -> bool {
        let Some(node) = self.shared.caches.nodes.get(key) else {
            if let Some((_, works)) = self.fleet.remove_node(&key.name) {
                let gone: BTreeSet<Arc<str>> = works.into_iter().map(|work| work.id).collect();
                self.bound.retain(|_, uid| !gone.contains(uid));
                self.nominees
                    .retain(|_, nominee| !gone.contains(&nominee.work.id));
                // Whoever had to stay away from its pods, or to spread over it too, may fit now.
                return true;
            }
            return false;
        };
        let node = request::node(&node);
        let known = self
            .fleet
            .find(&key.name)
            .and_then(|id| self.fleet.node(id));
        if known.is_some_and(|known| **known == node) {
            return false;
        }
        let before = self.fleet.set_node(node);
        if before.is_none() {
            for pod in self.shared.caches.pods.by(PODS_BY_NODE, &key.name) {
                self.hold(&Key::of(&*pod), &pod);
            }
        }
        true
    }

    /// True when room was made.
    fn take_pod(&mut self, key: &Key) -> bool {
        let pod = self.shared.caches.pods.get(key);
        let uid = pod.as_ref().and_then(|pod| pod.metadata.uid.clone());
        let mut freed = false;
        if let Some(held) = self.bound.get(key).cloned()
            && (uid.as_deref() != Some(&*held)
                || pod.as_ref().is_some_and(|pod| pods::is_finished(pod)))
        {
            self.bound.remove(key);
            freed = self.fleet.release(&held).is_some();
        }
        match pod {
            Some(pod) if pods::node(&pod).is_some() => {
                self.forget(key);
                if !pods::is_finished(&pod) {
                    self.hold(key, &pod);
                }
                // A bound pod may be the one another wants to be near.
                freed || !self.seeking_company.is_empty()
            }
            Some(pod) if is_ours(&pod) => {
                self.await_place(key, &pod);
                freed
            }
            _ => {
                let nominated = self.nominees.contains_key(key);
                self.forget(key);
                freed || nominated
            }
        }
    }

    pub(super) fn forget(&mut self, key: &Key) {
        self.waiting.remove(key);
        self.requests.remove(key);
        self.seeking_company.remove(key);
        self.withdraw(key);
    }

    /// Enters a bound pod into the ledger, or brings its entry up to date.
    fn hold(&mut self, key: &Key, pod: &Pod) {
        let (Some(uid), Some(node)) = (pod.metadata.uid.as_deref(), pods::node(pod)) else {
            return;
        };
        if pods::is_finished(pod) {
            return;
        }
        let state = if pods::is_terminating(pod) {
            WorkState::Terminating
        } else {
            WorkState::Running
        };
        if let Some(held) = self.fleet.work(uid) {
            let same = *held.node == *node
                && (held.state == WorkState::Terminating) == (state == WorkState::Terminating);
            if same && held.request.labels == request::labels(pod.metadata.labels.as_ref()) {
                return;
            }
            self.fleet.release(uid);
        }
        let started = pod
            .status
            .as_ref()
            .and_then(|status| status.start_time.as_ref())
            .or(pod.metadata.creation_timestamp.as_ref());
        let work = Work {
            id: uid.into(),
            request: Arc::new(request::request(pod)),
            node: node.into(),
            gpus: None,
            since: started.map_or(0, |time| time.0.as_second()),
            state,
        };
        let id = work.id.clone();
        // A pod on a node that is not known yet is entered when the node appears.
        if self.fleet.bind(work).is_ok() {
            self.bound.insert(key.clone(), id);
        }
    }

    fn await_place(&mut self, key: &Key, pod: &Arc<Pod>) {
        if self.bound.contains_key(key) {
            return;
        }
        let request = Arc::new(request::request(pod));
        let known = self.requests.insert(key.clone(), request.clone());
        if request.constraints.pod_affinity.is_empty() {
            self.seeking_company.remove(key);
        } else {
            self.seeking_company.insert(key.clone());
        }
        let priority = request.priority;
        self.waiting.add(key, priority);
        if known.is_some_and(|known| known != request) {
            self.waiting.wake(key);
        }
        let nominated = pod
            .status
            .as_ref()
            .and_then(|status| status.nominated_node_name.as_deref());
        if let Some(node) = nominated.filter(|_| !self.nominees.contains_key(key)) {
            self.nominate(key, pod, &request, node);
        }
    }

    pub(super) fn nominate(&mut self, key: &Key, pod: &Pod, request: &Arc<Request>, node: &str) {
        self.withdraw(key);
        let work = Work {
            id: format!(
                "nominated/{}",
                pod.metadata.uid.as_deref().unwrap_or_default()
            )
            .into(),
            request: request.clone(),
            node: node.into(),
            gpus: None,
            since: 0,
            state: WorkState::Reserved,
        };
        if self.fleet.bind(work.clone()).is_ok() {
            self.nominees.insert(
                key.clone(),
                Nominee {
                    work,
                    priority: request.priority,
                },
            );
        }
    }

    pub(super) fn withdraw(&mut self, key: &Key) {
        if let Some(nominee) = self.nominees.remove(key) {
            self.fleet.release(&nominee.work.id);
        }
    }
}
