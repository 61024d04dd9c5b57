//! What the scheduler would do, asked of a snapshot: its own order and its own functions, nothing written.
//! It serves whoever wants to know before (`warp plan`, `run`) or why not (`warp why`, `queue`). Pure.

mod meeting;
mod scenario;
#[cfg(test)]
mod tests;

use std::cmp::Reverse;
use std::collections::BTreeSet;
use std::sync::Arc;

use jiff::Timestamp;
use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::core::v1::{
    Namespace, Node, PersistentVolume, PersistentVolumeClaim, Pod, ResourceQuota,
};
use k8s_openapi::api::storage::v1::StorageClass;
use kube::{Resource, ResourceExt};
use warp_api::workload::Phase;
use warp_api::{GPUWorkload, Tenant, label};
use warp_core::explain::{Change, Nearest};
use warp_runtime::cache::Cache;

use crate::config::Settings;
use crate::ledger::{self, Ledger, Promise, provider_of};
use crate::placement::{Claimant, Decision, Desk, Quotas, Tenancy};
use crate::workload::{Asking, Seen, attempt, over, owns, promise, shell, suspended};
use meeting::Meeting;

/// The objects decisions depend on, as the API shows them at one moment.
#[derive(Clone, Debug, Default)]
pub struct Cluster {
    pub nodes: Vec<Arc<Node>>,
    pub pods: Vec<Arc<Pod>>,
    pub jobs: Vec<Arc<Job>>,
    pub workloads: Vec<Arc<GPUWorkload>>,
    pub namespaces: Vec<Arc<Namespace>>,
    pub claims: Vec<Arc<PersistentVolumeClaim>>,
    pub volumes: Vec<Arc<PersistentVolume>>,
    pub classes: Vec<Arc<StorageClass>>,
    pub quotas: Vec<Arc<ResourceQuota>>,
    pub tenants: Vec<Arc<Tenant>>,
}

/// What would become of one workload now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outlook {
    /// It would be given this place.
    Starts(Start),
    Waits {
        reason: &'static str,
        message: String,
    },
    /// Its spec cannot be carried out.
    Invalid(String),
}

/// A place.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Start {
    pub node: String,
    pub provider: String,
    /// Millionths of a US dollar for one GPU and hour, where the node says it.
    pub price_micros: Option<u64>,
    pub strategy: &'static str,
    /// The decision in one sentence.
    pub why: String,
}

/// A workload in line, with what would become of it.
#[derive(Clone, Debug)]
pub struct InLine {
    pub workload: Arc<GPUWorkload>,
    pub outlook: Outlook,
}

/// Everything there is to say about one workload's place in the queue.
#[derive(Clone, Debug)]
pub struct Look {
    /// Those served before it, in order.
    pub ahead: Vec<InLine>,
    pub outlook: Outlook,
    /// What it asks for, in words.
    pub ask: String,
    /// Nodes by provider and kind of GPU, those that fit first.
    pub groups: Vec<Group>,
    /// Reasons by how many nodes give them first.
    pub evidence: Vec<Evidence>,
    /// The node that lacks least and who holds it, when lack of room is all that is wrong.
    pub nearest: Option<Nearest>,
    /// Workloads of which each alone, suspended, would make room.
    pub in_the_way: Vec<Holder>,
    /// Changes of the workload that make it fit now, each set minimal.
    pub changes: Vec<Vec<Change>>,
}

/// Nodes that are alike to a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Group {
    pub provider: String,
    pub gpu: String,
    pub nodes: usize,
    pub fitting: usize,
    pub idle: i64,
    pub gpus: i64,
    /// Lowest and highest price of a GPU-hour, in millionths of a US dollar.
    pub price_micros: Option<(u64, u64)>,
    /// The node chosen is one of them.
    pub chosen: bool,
    /// Why the others do not fit, most frequent first.
    pub reasons: Vec<(String, usize)>,
}

/// One reason and the nodes that give it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Evidence {
    pub reason: String,
    /// The numbers of the first node.
    pub example: String,
    pub nodes: Vec<String>,
}

/// A workload that holds what another waits for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Holder {
    pub namespace: String,
    pub name: String,
    pub node: String,
    pub gpus: i64,
}

/// Workloads that wait for a place, in the order they are served.
pub fn waiting(cluster: &Cluster, now: Timestamp) -> Vec<Arc<GPUWorkload>> {
    let mut line: Vec<Arc<GPUWorkload>> = cluster.workloads.clone();
    line.retain(|workload| waits(cluster, workload, now));
    line.sort_by_cached_key(|workload| turn(workload));
    line
}

/// Higher priority, then older, then by name. Of two made within one second the scheduler serves the one
/// it saw first, which nobody else knows.
fn turn(workload: &GPUWorkload) -> impl Ord + use<> {
    (
        Reverse(workload.spec.priority),
        workload.creation_timestamp().map(|time| time.0),
        workload.namespace(),
        workload.name_any(),
    )
}

fn waits(cluster: &Cluster, workload: &GPUWorkload, now: Timestamp) -> bool {
    let status = workload.status.as_ref();
    let phase = status.and_then(|status| status.phase).unwrap_or_default();
    let later = status
        .and_then(|status| status.next_retry_time.as_ref())
        .is_some_and(|time| time.0 > now);
    phase == Phase::Pending
        && !workload.spec.suspend
        && !later
        && workload.meta().deletion_timestamp.is_none()
        && !cluster.jobs.iter().any(|job| promises(workload, job))
}

/// Whether a Job is the workload's current attempt and not over.
fn promises(workload: &GPUWorkload, job: &Job) -> bool {
    let current = attempt(workload).to_string();
    job.labels().get(label::ATTEMPT) == Some(&current)
        && owns(workload, job)
        && !over(job)
        && job.meta().deletion_timestamp.is_none()
}

impl Cluster {
    /// What Jobs whose pods are not there yet have been promised.
    fn promised(&self) -> Vec<Promise> {
        let owners = self.pods.iter().flat_map(|pod| pod.owner_references());
        let with_pods: BTreeSet<&str> = owners.map(|owner| owner.uid.as_str()).collect();
        let coming = self.jobs.iter().filter(|job| {
            let uid = job.meta().uid.as_deref().unwrap_or_default();
            !suspended(job)
                && !with_pods.contains(uid)
                && self
                    .workloads
                    .iter()
                    .any(|workload| promises(workload, job))
        });
        coming.filter_map(|job| promise(job)).collect()
    }

    fn ledger(&self, promised: &[Promise]) -> Ledger {
        let storage = ledger::Storage {
            claims: self.claims.clone(),
            volumes: self.volumes.clone(),
            classes: self.classes.clone(),
        };
        ledger::build(&self.nodes, &self.pods, promised)
            .with_surroundings(&self.namespaces, storage)
    }

    fn tenancy(&self, ledger: &Ledger) -> Tenancy {
        Tenancy::new(&self.tenants, &self.namespaces, &ledger.fleet)
    }

    /// Decides for a line; the ledger holds what was placed.
    fn decide(
        &self,
        line: &[Arc<GPUWorkload>],
        settings: &Settings,
        now: Timestamp,
    ) -> (Ledger, Vec<InLine>) {
        let promised = self.promised();
        let mut ledger = self.ledger(&promised);
        let quotas = Quotas::new(self.quotas.clone(), &promised);
        let tenancy = self.tenancy(&ledger);
        // Nothing is made here, so nothing made is looked for.
        let jobs = Cache::new(&[]);
        let asking = |workload: &Arc<GPUWorkload>| {
            let asking = Asking::new(&jobs, Arc::clone(workload), Seen::default(), now);
            asking.map(|asking| Arc::new(asking) as Arc<dyn Claimant>)
        };
        let all: Vec<Option<Arc<dyn Claimant>>> = line.iter().map(asking).collect();
        let wanted: Vec<Arc<dyn Claimant>> = all.iter().flatten().cloned().collect();
        let mut desk = Desk::new(&wanted, quotas, tenancy, settings);
        let told = line.iter().zip(&all).map(|(workload, claimant)| {
            let decision = claimant.as_ref().map_or(Decision::Skip, |claimant| {
                desk.decide(&mut ledger, &**claimant)
            });
            InLine {
                outlook: outlook(&ledger, workload, decision),
                workload: Arc::clone(workload),
            }
        });
        let told = told.collect();
        (ledger, told)
    }
}

fn outlook(ledger: &Ledger, workload: &GPUWorkload, decision: Decision) -> Outlook {
    match decision {
        Decision::Wait(verdict) => Outlook::Waits {
            reason: verdict.reason,
            message: verdict.message,
        },
        Decision::Skip => Outlook::Invalid(match shell(workload) {
            Err(problem) => problem.0,
            Ok(_) => "the place chosen for it is gone again; ask once more".to_owned(),
        }),
        Decision::Place(places) => match places.into_iter().next() {
            None => Outlook::Invalid("it asks for no place".to_owned()),
            Some(place) => {
                let found = ledger.fleet.find(&place.node);
                let found = found.and_then(|id| ledger.fleet.node(id));
                Outlook::Starts(Start {
                    provider: found.map_or("", |node| provider_of(node)).to_owned(),
                    price_micros: found.and_then(|node| node.price_per_gpu_hour_micros),
                    node: place.node,
                    strategy: place.strategy,
                    why: place.why,
                })
            }
        },
    }
}

/// What would become of everybody in line.
pub fn line(cluster: &Cluster, settings: &Settings, now: Timestamp) -> Vec<InLine> {
    let line = waiting(cluster, now);
    cluster.decide(&line, settings, now).1
}

/// What would become of one workload, in the cluster or not yet, and what is in its way. The error says
/// what is wrong with its spec.
pub fn look(
    cluster: &Cluster,
    workload: &GPUWorkload,
    settings: &Settings,
    now: Timestamp,
) -> Result<Look, String> {
    shell(workload).map_err(|problem| problem.0)?;
    let mut own = workload.clone();
    own.meta_mut().uid.get_or_insert_with(|| "planned".into());
    let created = &mut own.meta_mut().creation_timestamp;
    created.get_or_insert(k8s_openapi::apimachinery::pkg::apis::meta::v1::Time(now));
    let own = Arc::new(own);
    let mut line = waiting(cluster, now);
    let same = |other: &Arc<GPUWorkload>| {
        other.name_any() == own.name_any() && other.namespace() == own.namespace()
    };
    line.retain(|other| !same(other));
    line.push(Arc::clone(&own));
    line.sort_by_cached_key(|workload| turn(workload));
    let place = line.iter().position(same).unwrap_or_default();
    let (_, mut told) = cluster.decide(&line, settings, now);
    told.truncate(place + 1);
    let outlook = told.pop().map_or_else(
        || Outlook::Invalid("it is not in line".to_owned()),
        |own| own.outlook,
    );
    // What it meets when its turn comes: those ahead are served.
    let (ledger, _) = cluster.decide(&line[..place], settings, now);
    let asking = Asking::new(&Cache::new(&[]), Arc::clone(&own), Seen::default(), now);
    let asking = asking.ok_or("its spec cannot be carried out")?;
    let meeting = Meeting::new(cluster, &ledger, &own, asking.claim());
    meeting
        .map(|meeting| meeting.look(told, outlook))
        .ok_or_else(|| "it asks for no pod".to_owned())
}
