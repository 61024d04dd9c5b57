//! What the scheduler would do, asked of a snapshot: its own order and its own functions, nothing written.
//! It serves whoever wants to know before (`warp plan`, `run`) or why not (`warp why`, `queue`). Pure.

mod gang;
mod jobs;
mod meeting;
mod preempt;
mod rent;
mod scenario;
#[cfg(test)]
mod tests;

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::sync::{Arc, OnceLock};

use jiff::Timestamp;
use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::core::v1::{
    ConfigMap, Namespace, Node, PersistentVolume, PersistentVolumeClaim, Pod, ResourceQuota,
};
use k8s_openapi::api::scheduling::v1::PriorityClass;
use k8s_openapi::api::storage::v1::StorageClass;
use kube::core::ObjectMeta;
use kube::{Resource, ResourceExt};
use warp_api::providers::ProviderRules;
use warp_api::tenant::TenantDefaults;
use warp_api::workload::{Phase, Priority, fold_nodes};
use warp_api::{CloudProvider, GPURequest, GPUWorkload, Tenant, condition, label, reason};
use warp_core::explain::{Change, Nearest};
use warp_core::gpu::Catalogue;
use warp_runtime::cache::{Cache, Key};

use crate::config::Settings;
use crate::estimates::learnt_in;
use crate::ledger::{self, Ledger, Promise, Reading, provider_of};
use crate::placement::{
    Bought, Claim, Claimant, Decision, Desk, Endings, Evictable, History, Line, Order, Place,
    Providers, Quotas, Rented, Runner, Tenancy, by_share,
};
pub use crate::queuedjob::{End, KINDS, Queued, QueuedKind, kind_named};
use crate::tenant::by_namespace;
use crate::workload::{
    Asking, Class, Given, Running, Seen, attempt, class_name, ends_of, over, owns, promises, rank,
    rents, shell, suspended,
};
pub use gang::GangChanges;
pub use jobs::{Hold, QueuedJob, Waiter, everybody, hold_of, jobs_without_place, outlook_of_job};
use meeting::Meeting;
pub use preempt::Preempting;
pub use rent::Renting;

/// Holders of what a workload waits for that are tried one by one.
const HOLDERS: usize = 8;

/// The objects decisions depend on, as the API shows them at one moment.
#[derive(Clone, Debug, Default)]
pub struct Cluster {
    pub nodes: Vec<Arc<Node>>,
    pub pods: Vec<Arc<Pod>>,
    pub jobs: Vec<Arc<Job>>,
    /// Work of others that says anything of the queue, Jobs among it.
    pub queued: Vec<Arc<Queued>>,
    pub workloads: Vec<Arc<GPUWorkload>>,
    pub namespaces: Vec<Arc<Namespace>>,
    pub claims: Vec<Arc<PersistentVolumeClaim>>,
    pub volumes: Vec<Arc<PersistentVolume>>,
    pub classes: Vec<Arc<StorageClass>>,
    pub quotas: Vec<Arc<ResourceQuota>>,
    pub tenants: Vec<Arc<Tenant>>,
    pub priorities: Vec<Arc<PriorityClass>>,
    /// What is rented, and for whom.
    pub requests: Vec<Arc<GPURequest>>,
    /// What clouds sell; none for who may not read it.
    pub clouds: Option<Vec<Arc<CloudProvider>>>,
    /// What tenants with budgets have spent on machines whose requests are gone.
    pub ledgers: Vec<Arc<ConfigMap>>,
    /// The GPU models that are known.
    pub catalogue: Arc<Catalogue>,
    /// What an administrator says of providers.
    pub provider_rules: Arc<ProviderRules>,
    /// What the operator has learnt about run times (`warp-durations` of its namespace), for policies that go by it.
    pub learnt: Option<Arc<ConfigMap>>,
    /// What tenants say for work that does not, once somebody has asked.
    pub defaults: OnceLock<BTreeMap<String, TenantDefaults>>,
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

/// A place, or the places of a gang.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Start {
    /// The node of each member, by rank.
    pub nodes: Vec<String>,
    /// The provider of the first.
    pub provider: String,
    /// Millionths of a US dollar for one GPU and hour, on average of the members, where all nodes say it.
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
    /// Jobs of others that are served before it.
    pub jobs_ahead: Vec<QueuedJob>,
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
    /// What is or would be rented for it while it waits, if it asks for that.
    pub rent: Option<Renting>,
    /// Whose place it may take later, while it waits for room.
    pub preempts: Option<Preempting>,
    /// What would let a gang start now.
    pub gang: GangChanges,
    /// The tenant of its namespace, where only one claims it.
    pub tenant: Option<Arc<Tenant>>,
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
    line.sort_by_cached_key(|workload| cluster.turn(workload));
    line
}

/// What decides who is served first.
type Turn = (
    Reverse<Priority>,
    Option<Timestamp>,
    Timestamp,
    Option<String>,
    String,
);

fn waits(cluster: &Cluster, workload: &GPUWorkload, now: Timestamp) -> bool {
    let status = workload.status.as_ref();
    let phase = status.and_then(|status| status.phase).unwrap_or_default();
    let later = status
        .and_then(|status| status.next_retry_time.as_ref())
        .is_some_and(|time| time.0 > now);
    let rejected = status.is_some_and(|status| {
        let ready = condition::find(&status.conditions, condition::READY);
        ready.is_some_and(|ready| ready.reason == reason::JOB_REJECTED)
    });
    phase == Phase::Pending
        // It gets no place: the API server refuses what is made of it.
        && !rejected
        && !workload.spec.suspend
        && !later
        && workload.meta().deletion_timestamp.is_none()
        && !cluster.jobs.iter().any(|job| is_current(workload, job))
}

/// Whether a Job is the workload's current attempt and not over.
fn is_current(workload: &GPUWorkload, job: &Job) -> bool {
    let current = attempt(workload).to_string();
    job.labels().get(label::ATTEMPT) == Some(&current)
        && owns(workload, job)
        && !over(job)
        && job.meta().deletion_timestamp.is_none()
}

/// When the operator first saw a workload.
fn queued_at(workload: &GPUWorkload) -> Option<Timestamp> {
    let status = workload.status.as_ref()?;
    Some(status.queued_at.as_ref()?.0)
}

/// A workload, its Jobs and its pods.
type Belongings<'a> = (&'a Arc<GPUWorkload>, Vec<Arc<Job>>, Vec<Arc<Pod>>);

impl Cluster {
    /// Higher priority, then older, then who came first, then by name. One the operator has not looked at yet comes after
    /// those it has told to wait.
    fn turn(&self, workload: &GPUWorkload) -> Turn {
        let status = workload.status.as_ref();
        let queued = status.and_then(|status| status.queued_at.as_ref());
        (
            Reverse(self.priority_of_workload(workload)),
            workload.creation_timestamp().map(|time| time.0),
            queued.map_or(Timestamp::MAX, |queued| queued.0),
            workload.namespace(),
            workload.name_any(),
        )
    }

    /// What decides a workload's place in line: its own priority, or the PriorityClass it names.
    pub fn priority_of_workload(&self, workload: &GPUWorkload) -> Priority {
        let rank = rank(workload, self.given_to(workload));
        rank.unwrap_or_default().priority
    }

    /// The PriorityClass a workload names. Who may not read any takes every class for the usual one.
    fn class_of(&self, workload: &GPUWorkload) -> Option<Class> {
        let name = class_name(workload)?;
        let mut classes = self.priorities.iter();
        let found = classes.find(|class| class.name_any() == name);
        let usual = PriorityClass::default();
        let unread = self.priorities.is_empty().then_some(&usual);
        found.map(|class| &**class).or(unread).map(Class::from)
    }

    /// What decides a workload's rank besides itself. Who may not read tenants goes by what the workload was told.
    fn given_to(&self, workload: &GPUWorkload) -> Given {
        let namespace = workload.meta().namespace.as_deref().unwrap_or_default();
        let mut defaults = self.defaults_of(namespace);
        if self.tenants.is_empty() {
            let status = workload.status.as_ref();
            defaults.priority = status.and_then(|status| status.priority);
        }
        Given {
            class: self.class_of(workload),
            defaults,
        }
    }

    /// What the tenant of a namespace says for work that does not.
    fn defaults_of(&self, namespace: &str) -> TenantDefaults {
        let known = self.defaults.get_or_init(|| {
            let said = self.tenants.iter().any(|one| one.spec.defaults.is_some());
            let read = || by_namespace(&self.tenants, &self.namespaces);
            let owners = said.then(read).unwrap_or_default().into_iter();
            owners
                .map(|(namespace, owner)| (namespace, owner.defaults))
                .collect()
        });
        known.get(namespace).copied().unwrap_or_default()
    }

    /// The tenant of a workload's namespace, where only one claims it.
    fn tenant_of(&self, workload: &GPUWorkload) -> Option<Arc<Tenant>> {
        let namespace = workload.namespace()?;
        let owners = by_namespace(&self.tenants, &self.namespaces);
        let name = &*owners.get(&namespace)?.name;
        let mut tenants = self.tenants.iter();
        tenants.find(|one| one.name_any() == name).cloned()
    }

    /// What Jobs whose pods are not there yet have been promised.
    fn promised(&self) -> Vec<Promise> {
        let mut made: BTreeMap<&str, Vec<Arc<Pod>>> = BTreeMap::new();
        for pod in &self.pods {
            for owner in pod.owner_references() {
                made.entry(&owner.uid).or_default().push(Arc::clone(pod));
            }
        }
        let open = self.jobs.iter().filter(|job| {
            let mut workloads = self.workloads.iter();
            !suspended(job) && workloads.any(|workload| is_current(workload, job))
        });
        let kept = open.flat_map(|job| {
            let uid = job.meta().uid.as_deref().unwrap_or_default();
            promises(job, made.get(uid).map_or(&[], Vec::as_slice))
        });
        kept.chain(self.promised_to_jobs()).collect()
    }

    fn ledger(&self, promised: &[Promise], settings: &Settings) -> Ledger {
        let reading = Reading {
            catalogue: Arc::clone(&self.catalogue),
            levels: Arc::clone(&settings.topology_levels),
        };
        let storage = ledger::Storage {
            claims: self.claims.clone(),
            volumes: self.volumes.clone(),
            classes: self.classes.clone(),
        };
        ledger::build_among(&reading, &self.nodes, &self.pods, promised)
            .with_surroundings(&self.namespaces, storage)
    }

    /// What is known of a workload that has nothing yet.
    fn seen(&self, workload: &GPUWorkload, settings: &Settings) -> Seen {
        Seen {
            given: self.given_to(workload),
            catalogue: Arc::clone(&self.catalogue),
            levels: Arc::clone(&settings.topology_levels),
            ..Seen::default()
        }
    }

    /// Every workload with its Jobs and pods, by their labels.
    fn belongings(&self) -> impl Iterator<Item = Belongings<'_>> {
        let mut pods: BTreeMap<&str, Vec<Arc<Pod>>> = BTreeMap::new();
        for pod in &self.pods {
            if let Some(uid) = pod.labels().get(label::WORKLOAD_UID) {
                pods.entry(uid).or_default().push(Arc::clone(pod));
            }
        }
        let mut jobs: BTreeMap<&str, Vec<Arc<Job>>> = BTreeMap::new();
        for job in &self.jobs {
            if let Some(uid) = job.labels().get(label::WORKLOAD_UID) {
                jobs.entry(uid).or_default().push(Arc::clone(job));
            }
        }
        self.workloads.iter().map(move |workload| {
            let uid = workload.meta().uid.as_deref().unwrap_or_default();
            let jobs = jobs.remove(uid).unwrap_or_default();
            (workload, jobs, pods.remove(uid).unwrap_or_default())
        })
    }

    /// When what runs or is promised ends.
    fn endings(&self) -> Endings {
        let all = self.belongings();
        all.flat_map(|(workload, jobs, pods)| ends_of(workload, &pods, &jobs))
            .chain(self.endings_of_jobs())
            .collect()
    }

    /// What runs and could make room.
    fn runners(&self, now: Timestamp) -> Vec<Arc<dyn Runner>> {
        let all = self.belongings();
        let running = all.filter_map(|(workload, jobs, pods)| {
            let known = (self.given_to(workload), &self.catalogue);
            Running::of(workload, &jobs, &pods, known, now)
        });
        running
            .map(|one| Arc::new(one) as Arc<dyn Runner>)
            .chain(self.running_jobs())
            .collect()
    }

    /// The nodes that were rented for somebody.
    fn rented(&self) -> Rented {
        let workload = |key: &Key| {
            let mut all = self.workloads.iter();
            all.find(|one| Key::of(&***one) == *key).cloned()
        };
        let first = |request: &GPURequest| rents(request, workload);
        Rented::new(&self.requests, first, &self.tenants, &self.namespaces)
    }

    /// What is said of providers, and how they stand.
    fn providers(&self, now: Timestamp) -> Providers {
        let history = History::of(self.workloads.iter().map(|one| &**one));
        Providers::new(Arc::clone(&self.provider_rules), &history, now)
    }

    fn tenancy(&self, ledger: &Ledger) -> Tenancy {
        Tenancy::new(&self.tenants, &self.namespaces, &ledger.fleet)
    }

    /// A line in the order it is served: the place of each in the list it is from, and how it asks; none where its spec is
    /// wrong.
    fn in_turn(
        &self,
        line: &[Arc<GPUWorkload>],
        jobs: &[QueuedJob],
        (ledger, tenancy): (&Ledger, &Tenancy),
        settings: &Settings,
        now: Timestamp,
    ) -> Vec<(Whose, Option<Arc<dyn Claimant>>)> {
        // Nothing is made here, so nothing made is looked for.
        let made = Cache::new(&[]);
        let asking = |workload: &Arc<GPUWorkload>| {
            let asking = Asking::new(
                &made,
                Arc::clone(workload),
                self.seen(workload, settings),
                now,
            );
            asking.map(|asking| Arc::new(asking) as Arc<dyn Claimant>)
        };
        let workloads = line.iter().enumerate();
        let workloads =
            workloads.map(|(at, one)| (queued_at(one), Whose::Workload(at), asking(one)));
        let others = jobs.iter().enumerate();
        let others = others.map(|(at, one)| (one.queued_at(), Whose::Job(at), one.asking(now)));
        let mut all: Vec<_> = workloads.chain(others).collect();
        let wanted = all.iter().filter_map(|(_, _, claimant)| claimant.as_ref());
        let order = self.order(wanted, settings, now);
        // Whose spec is wrong is in nobody's way.
        all.sort_by_cached_key(|(queued, _, claimant)| {
            let turn = claimant.as_ref();
            let turn = turn.map(|claimant| order.turn(&**claimant, *queued, now));
            (turn.is_none(), turn)
        });
        let all = all.into_iter().map(|(_, who, claimant)| (who, claimant));
        let (asking, wrong): (Vec<_>, Vec<_>) = all.partition(|(_, claimant)| claimant.is_some());
        let wanted = asking.iter().filter_map(|(_, claimant)| claimant.clone());
        let wanted: Vec<Arc<dyn Claimant>> = wanted.collect();
        let order = by_share(&wanted, tenancy, ledger);
        let order = order.unwrap_or_else(|| (0..asking.len()).collect());
        let ordered = order.into_iter().map(|at| asking[at].clone());
        ordered.chain(wrong).collect()
    }

    /// The order those that wait are served in.
    fn order<'a>(
        &self,
        wanted: impl Iterator<Item = &'a Arc<dyn Claimant>>,
        settings: &Settings,
        now: Timestamp,
    ) -> Order {
        let learnt = self.learnt.as_deref();
        let durations = learnt.map(learnt_in).unwrap_or_default();
        let running = self.runners(now);
        let held = running
            .iter()
            .map(|one| (one.runs().gpus, one.runs().saves));
        let asked = wanted.map(|claimant| {
            let claim = claimant.claim();
            let gpus = claim.pods.iter().map(|pod| u64::from(pod.gpus.count));
            (gpus.sum::<u64>(), claim.saves)
        });
        let (mut all, mut evictable) = (0, 0);
        for (gpus, saves) in held.chain(asked) {
            all += gpus;
            evictable += if saves { gpus } else { 0 };
        }
        let share = if all == 0 {
            0.0
        } else {
            evictable as f64 / all as f64
        };
        Order::at(settings.queue_policy, durations, share, now)
    }

    /// The cluster as it would be if a workload were suspended.
    fn without(&self, holder: &Holder) -> Self {
        let is_of = |meta: &ObjectMeta| {
            let labels = meta.labels.as_ref();
            meta.namespace.as_deref() == Some(&holder.namespace)
                && labels.and_then(|labels| labels.get(label::WORKLOAD)) == Some(&holder.name)
        };
        let mut without = self.clone();
        without.pods.retain(|pod| !is_of(pod.meta()));
        without.jobs.retain(|job| !is_of(job.meta()));
        without
    }

    /// Decides for a line, workloads and queued Jobs each in their turn; `next` is told which nodes are kept from it.
    fn decide(
        &self,
        line: &[Arc<GPUWorkload>],
        jobs: &[QueuedJob],
        next: Option<&Claim>,
        settings: &Settings,
        now: Timestamp,
    ) -> Decided {
        let promised = self.promised();
        let mut ledger = self.ledger(&promised, settings);
        let quotas = Quotas::new(self.quotas.clone(), &promised);
        let tenancy = self.tenancy(&ledger);
        let all = self.in_turn(line, jobs, (&ledger, &tenancy), settings, now);
        let wanted = all.iter().filter_map(|(_, claimant)| claimant.clone());
        let wanted: Vec<Arc<dyn Claimant>> = wanted.collect();
        // Where nothing is remembered of earlier passes, room is kept where they would keep it now.
        let order = self.order(wanted.iter(), settings, now);
        let kept = Line::new(settings.queue_policy, now, || self.endings(), Vec::new());
        let kept = kept.ordered_by(&order);
        let evictable = Evictable::new(self.runners(now), now, settings.min_run_time);
        let bought = Bought::new(&self.nodes, &ledger, &wanted, now);
        let mut desk = Desk::new(&wanted, quotas, tenancy, kept, settings)
            .ordered_by(&order)
            .evicting(evictable)
            .keeping(self.rented())
            .keeping_bought(bought)
            .comparing(self.providers(now));
        let (mut told, mut of_jobs) = (Vec::new(), Vec::new());
        let mut going = Vec::new();
        for (who, claimant) in &all {
            let decision = claimant.as_ref().map_or(Decision::Skip, |claimant| {
                desk.decide(&mut ledger, &**claimant)
            });
            if let Decision::Evict(runners, ..) = &decision {
                let names = runners.iter().map(|one| one.runs().key.to_string());
                going.push((*who, names.collect()));
            }
            match who {
                Whose::Workload(at) => told.push(InLine {
                    outlook: outlook(&ledger, decision, || {
                        shell(&line[*at], &self.catalogue).err().map(|bad| bad.0)
                    }),
                    workload: Arc::clone(&line[*at]),
                }),
                Whose::Job(at) => {
                    let job = &jobs[*at].job;
                    let bad = || crate::queuedjob::ask(job).err();
                    of_jobs.push((Arc::clone(job), outlook(&ledger, decision, bad)));
                }
            }
        }
        let kept = next.map(|claim| desk.line().off_limits(claim));
        Decided {
            order: all.into_iter().map(|(who, _)| who).collect(),
            ledger,
            told,
            going,
            jobs: of_jobs,
            kept: kept.unwrap_or_default(),
        }
    }
}

/// Somebody in line, by the place in the list of its kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Whose {
    Workload(usize),
    Job(usize),
}

/// What became of a line.
struct Decided {
    /// In which order they were served.
    order: Vec<Whose>,
    /// With what was placed.
    ledger: Ledger,
    told: Vec<InLine>,
    /// Who is asked to end for whom.
    going: Vec<(Whose, Vec<String>)>,
    jobs: Vec<(Arc<Queued>, Outlook)>,
    /// Nodes kept from the next one.
    kept: Vec<Arc<str>>,
}

impl Decided {
    /// What would become of one of the workloads in line.
    fn outlook_of(&self, place: usize) -> Option<&Outlook> {
        let workloads = self.order.iter();
        let mut workloads = workloads.filter(|who| matches!(who, Whose::Workload(_)));
        let at = workloads.position(|who| *who == Whose::Workload(place))?;
        self.told.get(at).map(|told| &told.outlook)
    }

    /// Who would go for one of the workloads in line.
    fn going_for(&self, place: usize) -> Option<Vec<String>> {
        let mut going = self.going.iter();
        let found = going.find(|(who, _)| *who == Whose::Workload(place))?;
        Some(found.1.clone())
    }
}

fn outlook(
    ledger: &Ledger,
    decision: Decision,
    problem: impl FnOnce() -> Option<String>,
) -> Outlook {
    match decision {
        Decision::Wait(verdict) | Decision::Evict(_, _, verdict) => Outlook::Waits {
            reason: verdict.reason,
            message: verdict.message,
        },
        Decision::Skip => {
            Outlook::Invalid(problem().unwrap_or_else(|| {
                "the place chosen for it is gone again; ask once more".to_owned()
            }))
        }
        Decision::Place(places) => match places.first() {
            None => Outlook::Invalid("it asks for no place".to_owned()),
            Some(first) => {
                let (strategy, why) = (first.strategy, first.why.clone());
                let found = |name: &str| ledger.fleet.node(ledger.fleet.find(name)?);
                // A share costs what it is of its GPU.
                let price = |place: &Place| {
                    let whole = found(&place.node)?.price_per_gpu_hour_micros?;
                    Some(whole * u64::from(place.milli) / 1000)
                };
                let prices: Option<Vec<u64>> = places.iter().map(price).collect();
                let members = places.len() as u64;
                Outlook::Starts(Start {
                    provider: found(&first.node)
                        .map_or("", |node| provider_of(node))
                        .to_owned(),
                    price_micros: prices.map(|prices| prices.iter().sum::<u64>() / members),
                    nodes: places.into_iter().map(|place| place.node).collect(),
                    strategy,
                    why,
                })
            }
        },
    }
}

impl Start {
    /// Where it starts, in words.
    pub fn places(&self) -> String {
        match self.nodes.as_slice() {
            [node] => node.clone(),
            nodes => {
                let status = warp_api::GPUWorkloadStatus {
                    assigned_nodes: fold_nodes(nodes.iter().map(String::as_str)),
                    ..Default::default()
                };
                status.places().unwrap_or_default()
            }
        }
    }
}

/// What would become of everybody in line.
pub fn line(cluster: &Cluster, settings: &Settings, now: Timestamp) -> Vec<InLine> {
    let line = waiting(cluster, now);
    let jobs = cluster.jobs_in_line();
    cluster.decide(&line, &jobs, None, settings, now).told
}

/// What would become of one workload, in the cluster or not yet, and what is in its way. The error says
/// what is wrong with its spec.
pub fn look(
    cluster: &Cluster,
    workload: &GPUWorkload,
    settings: &Settings,
    now: Timestamp,
) -> Result<Look, String> {
    shell(workload, &cluster.catalogue).map_err(|problem| problem.0)?;
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
    line.sort_by_cached_key(|workload| cluster.turn(workload));
    let place = line.iter().position(same).unwrap_or_default();
    let jobs = cluster.jobs_in_line();
    let decided = cluster.decide(&line, &jobs, None, settings, now);
    let mut before = decided.order;
    let mine = |who: &Whose| *who == Whose::Workload(place);
    before.truncate(before.iter().position(mine).unwrap_or_default());
    let of_workloads = |who: &Whose| match who {
        Whose::Workload(at) => Some(Arc::clone(&line[*at])),
        Whose::Job(_) => None,
    };
    let line_ahead: Vec<Arc<GPUWorkload>> = before.iter().filter_map(of_workloads).collect();
    let of_jobs = |who: &Whose| match who {
        Whose::Workload(_) => None,
        Whose::Job(at) => Some(jobs[*at].clone()),
    };
    let jobs_ahead: Vec<QueuedJob> = before.iter().filter_map(of_jobs).collect();
    let mut told = decided.told;
    told.truncate(line_ahead.len() + 1);
    let outlook = told.pop().map_or_else(
        || Outlook::Invalid("it is not in line".to_owned()),
        |own| own.outlook,
    );
    let asking = Asking::new(
        &Cache::new(&[]),
        Arc::clone(&own),
        cluster.seen(&own, settings),
        now,
    );
    let asking = asking.ok_or("its spec cannot be carried out")?;
    let claim = asking.claim();
    // What it meets when its turn comes: those ahead are served.
    let ahead = cluster.decide(&line_ahead, &jobs_ahead, Some(claim), settings, now);
    let closed = cluster.providers(now).closed(&ahead.ledger, claim);
    let meeting = Meeting::new(cluster, &ahead.ledger, &own, claim, (ahead.kept, closed));
    let meeting = meeting.ok_or_else(|| "it asks for no pod".to_owned())?;
    let mut look = meeting.look(told, jobs_ahead, outlook);
    look.rent = rent::renting(cluster, &own, &look.outlook, now);
    look.tenant = cluster.tenant_of(&own);
    let mine = (place, &look.outlook);
    look.preempts = preempt::preempting(cluster, (&line, &jobs), mine, settings, now);
    let room = [reason::WAITING_FOR_CAPACITY, reason::NEVER_FITS];
    let waits_for_room =
        matches!(&look.outlook, Outlook::Waits { reason, .. } if room.contains(reason));
    if own.spec.is_gang() && waits_for_room {
        let starts = |changed: GPUWorkload| {
            let mut line = line.clone();
            line[place] = Arc::new(changed);
            let decided = cluster.decide(&line, &jobs, None, settings, now);
            matches!(decided.outlook_of(place), Some(Outlook::Starts(_)))
        };
        look.gang = gang::changes(&own, starts);
    }
    // Whoever is ahead would have the room first.
    look.in_the_way.truncate(HOLDERS);
    look.in_the_way.retain(|holder| {
        let without = cluster.without(holder);
        let decided = without.decide(&line, &jobs, None, settings, now);
        matches!(decided.outlook_of(place), Some(Outlook::Starts(_)))
    });
    Ok(look)
}
