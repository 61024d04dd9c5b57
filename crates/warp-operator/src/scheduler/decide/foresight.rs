//! What the scheduler would do, asked of a snapshot: its own order and its own functions, nothing written.
//! It serves whoever wants to know before (`warp plan`, `run`) or why not (`warp why`, `queue`). Pure.

mod scenario;
#[cfg(test)]
mod tests;

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::sync::Arc;

use jiff::Timestamp;
use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::core::v1::{
    Namespace, Node, PersistentVolume, PersistentVolumeClaim, Pod, ResourceQuota,
};
use k8s_openapi::api::storage::v1::StorageClass;
use kube::{Resource, ResourceExt};
use warp_api::workload::{GpuAsk, Phase};
use warp_api::{GPUWorkload, Tenant, label};
use warp_core::explain::{Change, Explanation, Nearest, smallest_changes};
use warp_core::fleet::{Expression, Fleet, Node as FleetNode, Operator, Request};
use warp_core::schedule::Reason;
use warp_core::schedule::fit::Filter;

use super::{Decision, Quotas, Tenancy, all, base_request, providers, refused_nodes, require};
use crate::config::Settings;
use crate::ledger::{self, Ledger, provider_of};
use crate::workload::{Shell, attempt, over, owns, shell, suspended};

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
    fn promised(&self) -> Vec<Arc<Job>> {
        let mut jobs = self.jobs.clone();
        jobs.retain(|job| {
            !suspended(job)
                && self
                    .workloads
                    .iter()
                    .any(|workload| promises(workload, job))
        });
        jobs
    }

    fn ledger(&self, promised: &[Arc<Job>]) -> Ledger {
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
        let quotas = Quotas::new(self.quotas.clone(), &promised, &self.pods);
        let tenancy = self.tenancy(&ledger);
        let decisions = all(&mut ledger, line, quotas, tenancy, settings, now);
        let told = decisions.into_iter().map(|(workload, decision)| InLine {
            outlook: outlook(&ledger, &workload, decision),
            workload,
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
        Decision::Place { job, strategy, why } => {
            let node = job.annotations().get(label::NODE).cloned();
            let node = node.unwrap_or_default();
            let found = ledger.fleet.find(&node);
            let found = found.and_then(|id| ledger.fleet.node(id));
            Outlook::Starts(Start {
                provider: found.map_or("", |node| provider_of(node)).to_owned(),
                price_micros: found.and_then(|node| node.price_per_gpu_hour_micros),
                node,
                strategy,
                why,
            })
        }
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
    let shell = shell(workload).map_err(|problem| problem.0)?;
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
    Ok(Meeting::new(cluster, &ledger, &own, &shell, now).look(told, outlook))
}

/// One workload and the fleet at its turn.
struct Meeting<'a> {
    cluster: &'a Cluster,
    ledger: &'a Ledger,
    workload: &'a GPUWorkload,
    ask: &'a GpuAsk,
    request: Request,
    refused: Vec<Arc<str>>,
    /// Its tenant leaves it every kind of GPU it asks for.
    free: bool,
}

impl<'a> Meeting<'a> {
    fn new(
        cluster: &'a Cluster,
        ledger: &'a Ledger,
        workload: &'a GPUWorkload,
        shell: &'a Shell,
        now: Timestamp,
    ) -> Self {
        let mut request = base_request(ledger, workload, shell);
        // Kinds its tenant may not have now would be no help; when it may have none, the outlook says so.
        let narrowed = cluster.tenancy(ledger).narrow(&ledger.fleet, &mut request);
        let named: Vec<Arc<str>> = providers(workload)
            .into_iter()
            .flatten()
            .map(Arc::from)
            .collect();
        if !named.is_empty() {
            let here = Expression {
                key: Arc::from(label::PROVIDER),
                operator: Operator::In,
                values: named,
            };
            require(&mut request, Some(&here), None);
        }
        Self {
            cluster,
            ledger,
            workload,
            ask: &shell.ask,
            request,
            refused: refused_nodes(workload, now),
            free: matches!(narrowed, Ok(false)),
        }
    }

    fn look(&self, ahead: Vec<InLine>, outlook: Outlook) -> Look {
        let fleet = &self.ledger.fleet;
        let starts = match &outlook {
            Outlook::Starts(start) => Some(start.node.as_str()),
            _ => None,
        };
        let explained = Explanation::new(fleet, &self.request);
        let waits = starts.is_none();
        let nearest = explained.nearest.filter(|_| waits).map(|nearest| *nearest);
        let mut changes = Vec::new();
        if waits && self.free {
            changes = smallest_changes(fleet, &self.request);
            // An affinity that the operator adds is not the owner's to drop.
            let template = self.workload.spec.pod_template.as_ref();
            let own = template.and_then(|template| template.spec.as_ref()?.affinity.as_ref());
            let own = own.is_some_and(|affinity| affinity.node_affinity.is_some());
            changes.retain(|set| own || !set.contains(&Change::DropNodeAffinity));
        }
        Look {
            ahead,
            ask: self.ask.describe(),
            groups: self.groups(starts),
            evidence: self.evidence(),
            in_the_way: nearest
                .as_ref()
                .map(|nearest| self.in_the_way(nearest))
                .unwrap_or_default(),
            nearest,
            changes,
            outlook,
        }
    }

    /// The first reason of a node, if it does not fit.
    fn obstacle(
        &self,
        filter: &Filter<'_>,
        id: warp_core::fleet::NodeId,
    ) -> Option<(String, String)> {
        let reasons = filter.reasons(id);
        if let Some(first) = reasons.first() {
            return Some((first.label(), Reason::numbers(first)));
        }
        let name = self.ledger.fleet.node(id).map(|node| &node.name)?;
        let refused = "refused by the cluster's scheduler a moment ago";
        self.refused
            .contains(name)
            .then(|| (refused.to_owned(), refused.to_owned()))
    }

    fn evidence(&self) -> Vec<Evidence> {
        let filter = Filter::new(&self.ledger.fleet, &self.request);
        let mut folded: BTreeMap<String, Evidence> = BTreeMap::new();
        for (id, node) in self.ledger.fleet.nodes() {
            if let Some((reason, example)) = self.obstacle(&filter, id) {
                let entry = folded.entry(reason.clone()).or_insert_with(|| Evidence {
                    reason,
                    example,
                    nodes: Vec::new(),
                });
                entry.nodes.push(node.name.to_string());
            }
        }
        let mut list: Vec<Evidence> = folded.into_values().collect();
        list.sort_by(|one, other| {
            let more = other.nodes.len().cmp(&one.nodes.len());
            more.then_with(|| one.reason.cmp(&other.reason))
        });
        list
    }

    fn groups(&self, chosen: Option<&str>) -> Vec<Group> {
        let fleet = &self.ledger.fleet;
        let filter = Filter::new(fleet, &self.request);
        let mut groups: BTreeMap<(String, String), (Group, BTreeMap<String, usize>)> =
            BTreeMap::new();
        for (id, node) in fleet.nodes().filter(|(_, node)| !node.gpus.is_empty()) {
            let key = (provider_of(node).to_owned(), gpus_of(node));
            let (group, reasons) = groups.entry(key.clone()).or_insert_with(|| {
                let (provider, gpu) = key;
                let group = Group {
                    provider,
                    gpu,
                    nodes: 0,
                    fitting: 0,
                    idle: 0,
                    gpus: 0,
                    price_micros: None,
                    chosen: false,
                    reasons: Vec::new(),
                };
                (group, BTreeMap::new())
            });
            group.nodes += 1;
            let (idle, all) = cards(fleet, id, node);
            group.idle += idle;
            group.gpus += all;
            group.chosen |= chosen == Some(&*node.name);
            if let Some(price) = node.price_per_gpu_hour_micros {
                let (low, high) = group.price_micros.unwrap_or((price, price));
                group.price_micros = Some((low.min(price), high.max(price)));
            }
            match self.obstacle(&filter, id) {
                Some((reason, _)) => *reasons.entry(reason).or_default() += 1,
                None => group.fitting += 1,
            }
        }
        let mut list: Vec<Group> = groups
            .into_values()
            .map(|(mut group, reasons)| {
                group.reasons = reasons.into_iter().collect();
                group
                    .reasons
                    .sort_by(|one, other| other.1.cmp(&one.1).then_with(|| one.0.cmp(&other.0)));
                group
            })
            .collect();
        list.sort_by_key(|group| {
            (
                !group.chosen,
                Reverse(group.fitting),
                group.provider.clone(),
            )
        });
        list
    }

    /// Workloads on the nearest node of which each alone, taken off, would leave room: tried, not guessed.
    fn in_the_way(&self, nearest: &Nearest) -> Vec<Holder> {
        let mut found: Vec<Holder> = Vec::new();
        for holder in &nearest.holders {
            let mut without = self.ledger.fleet.clone();
            let Some(work) = without.release(&holder.id) else {
                continue;
            };
            let fits = without
                .find(&nearest.node)
                .is_some_and(|id| Filter::new(&without, &self.request).fits(id));
            let pod = self
                .cluster
                .pods
                .iter()
                .find(|pod| pod.meta().uid.as_deref() == Some(&*holder.id));
            let owner = pod.and_then(|pod| pod.labels().get(label::WORKLOAD));
            if let (true, Some(owner)) = (fits, owner) {
                found.push(Holder {
                    namespace: holder.namespace.to_string(),
                    name: owner.clone(),
                    node: work.node.to_string(),
                    gpus: holder.amount / 1000,
                });
            }
        }
        found
    }
}

/// The kinds of GPU of a node, for people.
fn gpus_of(node: &FleetNode) -> String {
    let names = node.gpus.iter().map(|pool| {
        if pool.model.is_empty() {
            pool.vendor.to_string()
        } else {
            pool.model.to_string()
        }
    });
    names.collect::<Vec<_>>().join("+")
}

/// Idle and all GPUs of a node.
fn cards(fleet: &Fleet, id: warp_core::fleet::NodeId, node: &FleetNode) -> (i64, i64) {
    let mut sums = (0, 0);
    for pool in &node.gpus {
        let all = node.allocatable.extended(&pool.resource).max(0);
        let free = fleet
            .free(id)
            .map_or(0, |free| free.resources.extended(&pool.resource));
        sums = (sums.0 + free.clamp(0, all), sums.1 + all);
    }
    sums
}
