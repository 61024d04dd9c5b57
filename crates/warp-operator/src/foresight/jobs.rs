//! Jobs of others that are queued, in the one line with workloads: in which order, what they hold, and what would become
//! of them. Pure.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::sync::Arc;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt;
use warp_api::workload::Priority;
use warp_api::{GPUWorkload, label};

use super::{Cluster, Outlook, Turn, Whose, waiting};
use crate::config::Settings;
use crate::ledger::{Promise, finished};
use crate::placement::{Claimant, Endings, Runner};
use crate::queuedjob::{
    Ask, Asking, Queued, Running, Standing, ask, ends_of, in_words_of, patient, priority, promises,
    queued_at, standing,
};

/// A queued Job that has not ended.
#[derive(Clone, Debug)]
pub struct QueuedJob {
    pub job: Arc<Queued>,
    pub priority: Priority,
    /// Nobody is evicted for it.
    patient: bool,
    /// Of all its pods together; none where its spec is wrong.
    pub gpus: u64,
    /// What it asks for, in words.
    pub ask: String,
    /// It waits for a place. Others wait for something else, such as a hand.
    pub in_line: bool,
}

/// What keeps a queued object, as far as a hand can change it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Hold {
    /// Nothing: it has its place, or runs without one.
    Runs,
    /// It waits in the queue.
    Waits,
    /// It had a place and was suspended by hand.
    Stopped,
    /// It is held and has left the queue: its label says no.
    OutOfLine,
    Over,
    /// It never asked to be queued, or is another's.
    Foreign,
}

/// What keeps an object.
pub fn hold_of(job: &Queued) -> Hold {
    let said = job.labels().contains_key(label::QUEUE);
    match standing(job, &[]) {
        _ if job.over() => Hold::Over,
        Standing::Placed | Standing::Unheld => Hold::Runs,
        Standing::Stopped => Hold::Stopped,
        Standing::Aside if said && job.suspended() => Hold::OutOfLine,
        Standing::Aside | Standing::Mislabelled => Hold::Foreign,
        Standing::Queued | Standing::Settling | Standing::Restarting | Standing::Leaving => {
            Hold::Waits
        }
    }
}

/// Who is in line.
#[derive(Clone, Debug)]
pub enum Waiter {
    Workload(Arc<GPUWorkload>),
    Job(QueuedJob),
}

/// Everybody in line, in the order they are served. Whose spec is wrong has no place in it.
pub fn everybody(cluster: &Cluster, settings: &Settings, now: Timestamp) -> Vec<Waiter> {
    let (line, jobs) = (waiting(cluster, now), cluster.jobs_in_line());
    let ledger = cluster.ledger(&cluster.promised(), settings);
    let tenancy = cluster.tenancy(&ledger);
    let order = cluster.in_turn(&line, &jobs, (&ledger, &tenancy), settings, now);
    let waiter = |who: Whose| match who {
        Whose::Workload(at) => Waiter::Workload(Arc::clone(&line[at])),
        Whose::Job(at) => Waiter::Job(jobs[at].clone()),
    };
    let asking = order.into_iter().filter(|(_, asking)| asking.is_some());
    asking.map(|(who, _)| waiter(who)).collect()
}

/// Queued Jobs that have no place, in line or not.
pub fn jobs_without_place(cluster: &Cluster) -> Vec<QueuedJob> {
    let pods = cluster.pods_by_maker();
    let jobs = cluster.queued.iter().filter_map(|job| {
        let found = standing(job, pods.of(job));
        let waits = !matches!(
            found,
            Standing::Aside | Standing::Placed | Standing::Unheld | Standing::Mislabelled
        );
        waits.then(|| cluster.described(job, found))
    });
    jobs.collect()
}

/// What would become of one queued Job now; none when it does not wait for a place.
pub fn outlook_of_job(
    cluster: &Cluster,
    job: &Queued,
    settings: &Settings,
    now: Timestamp,
) -> Option<Outlook> {
    let line = waiting(cluster, now);
    let jobs = cluster.jobs_in_line();
    let decided = cluster.decide(&line, &jobs, None, settings, now);
    let mut told = decided.jobs.into_iter();
    let (_, outlook) = told.find(|(found, _)| found.uid() == job.uid())?;
    Some(match outlook {
        Outlook::Waits { reason, message } => Outlook::Waits {
            reason,
            message: in_words_of(job.kind, &message),
        },
        other => other,
    })
}

impl QueuedJob {
    pub(super) fn turn(&self) -> Turn {
        (
            Reverse(self.priority),
            self.job.creation_timestamp().map(|time| time.0),
            queued_at(&self.job).unwrap_or(Timestamp::MAX),
            self.job.namespace(),
            self.job.name_any(),
        )
    }

    /// When the operator first saw it.
    pub(super) fn queued_at(&self) -> Option<Timestamp> {
        queued_at(&self.job)
    }

    pub(super) fn asking(&self, now: Timestamp) -> Option<Arc<dyn Claimant>> {
        // Nothing is changed here, so nothing changed is looked for.
        let asked = (self.priority, self.patient);
        let asking = Asking::new(None, Arc::clone(&self.job), asked, now)?;
        Some(Arc::new(asking))
    }
}

/// Pods by the queued object they belong to.
pub(super) struct Made(BTreeMap<String, Vec<Arc<Pod>>>);

impl Made {
    pub(super) fn of(&self, job: &Queued) -> &[Arc<Pod>] {
        let uid = job.metadata.uid.as_deref().unwrap_or_default();
        self.0.get(uid).map_or(&[], Vec::as_slice)
    }
}

impl Cluster {
    fn pods_by_maker(&self) -> Made {
        let mut made: BTreeMap<String, Vec<Arc<Pod>>> = BTreeMap::new();
        for pod in &self.pods {
            let queued = pod.labels().get(label::QUEUED_UID);
            let owner = pod.owner_references().first().filter(|_| !finished(pod));
            // What others stand between is known by its label, also when it has ended.
            if let Some(uid) = queued.or(owner.map(|owner| &owner.uid)) {
                let pods = made.entry(uid.clone()).or_default();
                pods.push(Arc::clone(pod));
            }
        }
        Made(made)
    }

    /// Who may not read PriorityClasses takes every class for the usual one.
    fn priority_of(&self, job: &Queued) -> Priority {
        let class = |name: &str| {
            let mut classes = self.priorities.iter();
            let found = classes.find(|class| class.name_any() == name);
            found.map(|class| class.value)
        };
        let namespace = job.metadata.namespace.as_deref().unwrap_or_default();
        priority(job, class, self.defaults_of(namespace).priority).unwrap_or_default()
    }

    fn is_patient(&self, job: &Queued) -> bool {
        patient(job, |name| {
            let mut classes = self.priorities.iter();
            let found = classes.find(|class| class.name_any() == name)?;
            found.preemption_policy.clone()
        })
    }

    fn described(&self, job: &Arc<Queued>, standing: Standing) -> QueuedJob {
        let asked = ask(job);
        QueuedJob {
            priority: self.priority_of(job),
            patient: self.is_patient(job),
            gpus: asked.as_ref().map_or(0, Ask::total_gpus),
            in_line: standing == Standing::Queued && asked.is_ok(),
            ask: asked.map_or_else(|_| "-".to_owned(), |asked| asked.describe()),
            job: Arc::clone(job),
        }
    }

    /// Queued Jobs that wait for a place, in order.
    pub(super) fn jobs_in_line(&self) -> Vec<QueuedJob> {
        let mut jobs = jobs_without_place(self);
        jobs.retain(|job| job.in_line);
        jobs.sort_by_cached_key(QueuedJob::turn);
        jobs
    }

    /// What queued Jobs have been promised for pods that are not there yet.
    pub(super) fn promised_to_jobs(&self) -> Vec<Promise> {
        let pods = self.pods_by_maker();
        let jobs = self.queued.iter();
        let placed = jobs.filter(|job| standing(job, pods.of(job)) == Standing::Placed);
        placed.flat_map(|job| promises(job, pods.of(job))).collect()
    }

    pub(super) fn endings_of_jobs(&self) -> Endings {
        let pods = self.pods_by_maker();
        let jobs = self.queued.iter();
        let ours = jobs.filter(|job| standing(job, pods.of(job)) == Standing::Placed);
        ours.flat_map(|job| ends_of(job, pods.of(job))).collect()
    }

    pub(super) fn running_jobs(&self) -> Vec<Arc<dyn Runner>> {
        let pods = self.pods_by_maker();
        let running = self.queued.iter().filter_map(|job| {
            let running = Running::of(job, pods.of(job), self.priority_of(job))?;
            Some(Arc::new(running) as Arc<dyn Runner>)
        });
        running.collect()
    }
}
