//! A pod's whole life without an API: the state machine and a runtime, driven by their own times. The
//! host does the same against a cluster; tests and what-if questions use this.

use std::collections::BinaryHeap;
use std::sync::Arc;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Pod, PodStatus};

use super::facts::{Event, Facts};
use super::lifecycle::{Step, step};
use super::runtime::Runtime;

/// A pod on a node that does nothing else.
#[derive(Debug)]
pub struct Timeline<'r, R: Runtime> {
    runtime: &'r R,
    pod: Arc<Pod>,
    facts: Facts,
    now: Timestamp,
    queue: BinaryHeap<Queued>,
    order: u64,
    again: Option<Timestamp>,
    finished: bool,
    /// Every different status, with the time it was first true.
    pub history: Vec<(Timestamp, PodStatus)>,
}

/// The earliest first, in the order they became known.
#[derive(Debug)]
struct Queued {
    at: Timestamp,
    order: u64,
    event: Event,
}

impl PartialEq for Queued {
    fn eq(&self, other: &Self) -> bool {
        (self.at, self.order) == (other.at, other.order)
    }
}

impl Eq for Queued {}

impl PartialOrd for Queued {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Queued {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        (other.at, other.order).cmp(&(self.at, self.order))
    }
}

impl<'r, R: Runtime> Timeline<'r, R> {
    pub fn new(runtime: &'r R, pod: Pod, now: Timestamp) -> Self {
        let facts = Facts::from_object(&pod, now);
        let mut timeline = Self {
            runtime,
            pod: Arc::new(pod),
            facts,
            now,
            queue: BinaryHeap::new(),
            order: 0,
            again: None,
            finished: false,
            history: Vec::new(),
        };
        if let Err(refusal) = runtime.admit(&timeline.pod) {
            timeline.facts.refused = Some((refusal.reason, refusal.message));
        }
        for due in runtime.adopt(&timeline.pod, &timeline.facts, now) {
            timeline.push(due.at, due.event);
        }
        timeline.settle();
        timeline
    }

    /// Lets time pass until nothing more happens or `until` comes.
    pub fn run_until(&mut self, until: Timestamp) -> &PodStatus {
        loop {
            let next = [self.queue.peek().map(|queued| queued.at), self.again]
                .into_iter()
                .flatten()
                .min();
            match next {
                Some(at) if at <= until => {
                    self.now = self.now.max(at);
                    self.settle();
                }
                _ => break,
            }
        }
        self.now = self.now.max(until);
        self.status()
    }

    /// Changes the object as a client would, at the present moment.
    pub fn edit(&mut self, change: impl FnOnce(&mut Pod)) {
        change(Arc::make_mut(&mut self.pod));
        self.settle();
    }

    pub fn status(&self) -> &PodStatus {
        &self
            .history
            .last()
            .expect("a timeline begins with a status")
            .1
    }

    /// The object may be removed.
    pub fn is_finished(&self) -> bool {
        self.finished
    }

    fn push(&mut self, at: Timestamp, event: Event) {
        self.order += 1;
        self.queue.push(Queued {
            at,
            order: self.order,
            event,
        });
    }

    /// Takes in what is due and steps until nothing changes at this moment.
    fn settle(&mut self) {
        let spec = self.pod.spec.clone().unwrap_or_default();
        loop {
            while self
                .queue
                .peek()
                .is_some_and(|queued| queued.at <= self.now)
            {
                if let Some(queued) = self.queue.pop() {
                    self.facts.note(&spec, queued.event);
                }
            }
            let Step {
                status,
                actions,
                again,
                finished,
            } = step(&self.pod, &self.facts, self.now);
            if self.facts.reported.as_ref() != Some(&status) || self.history.is_empty() {
                self.facts.reported = Some(status.clone());
                self.history.push((self.now, status));
            }
            self.again = again;
            self.finished = finished;
            if actions.is_empty() {
                return;
            }
            for action in actions {
                self.facts.begin(&action, self.now);
                for due in self.runtime.act(&self.pod, &self.facts, &action, self.now) {
                    self.push(due.at, due.event);
                }
            }
        }
    }
}
