//! Who asks for places, in words that know no kind: what is asked for, in which order it is served, and how a place
//! becomes writes. A kind that wants places provides [`Claimants`]. Pure data and the seam; nothing is decided here.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Debug;
use std::sync::Arc;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::PodSpec;
use kube::core::ObjectMeta;
use parking_lot::Mutex;
use warp_api::GPURequest;
use warp_api::workload::{GpuAsk, Priority, SchedulingStrategy, TopologyLevel};
use warp_core::estimate::Features;
use warp_runtime::cache::Key;
use warp_runtime::pass::Pass;
use warp_runtime::plan::Plan;
use warp_runtime::sweep::SweepRegistration;

use super::{Endings, Placement, Runner, Verdict};
use crate::ledger::Promise;

/// One that asks for a place for each of its pods: for all of them or for none.
#[derive(Clone, Debug, PartialEq)]
#[expect(clippy::struct_excessive_bools, reason = "each is said by itself")]
pub(crate) struct Claim {
    /// The controller that is woken with the answer, and its key.
    pub(crate) controller: &'static str,
    pub(crate) key: Key,
    pub(crate) uid: String,
    /// Which spec this is: an answer holds for one.
    pub(crate) generation: i64,
    /// Which state of its object this was read from.
    pub(crate) version: String,
    pub(crate) created: Option<Timestamp>,
    pub(crate) priority: Priority,
    /// What its owner asked for, which its tenant judges: one that follows a copy that has gone stands higher than that.
    pub(crate) asked_priority: Priority,
    /// Nobody is evicted for it.
    pub(crate) patient: bool,
    /// The longest it may run; none when it does not say.
    pub(crate) max_runtime_seconds: Option<i64>,
    /// It serves until it is stopped: no longest run is for it.
    pub(crate) serves: bool,
    /// Seconds of its last run that were saved, and whether it has run at all.
    pub(crate) saved_seconds: i64,
    pub(crate) has_run: bool,
    /// It saves what it does, and may be interrupted for its equals.
    pub(crate) saves: bool,
    /// The operator's own when it names none.
    pub(crate) strategy: Option<SchedulingStrategy>,
    /// For strategies that leave it to chance: reproducible, and not the same node for everybody.
    pub(crate) dice: u64,
    /// The providers it may use, in order; one `None` when it does not say.
    pub(crate) providers: Vec<Option<String>>,
    /// Nodes that are left out for now.
    pub(crate) avoided: Vec<Arc<str>>,
    /// Since when it is shown to the cluster's autoscaler, while it waits.
    pub(crate) shown_since: Option<Timestamp>,
    /// How close together its pods are.
    pub(crate) near: Option<TopologyLevel>,
    pub(crate) pods: Vec<PodClaim>,
    /// The fewest pods it starts with: fewer than all where it is elastic.
    pub(crate) least: usize,
    /// A Job is made when it is placed, which quotas count; one that is there is counted already.
    pub(crate) makes_job: bool,
}

/// What one pod of a claim asks for.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct PodClaim {
    pub(crate) gpus: GpuAsk,
    /// The name its GPUs have already; none where the node decides it.
    pub(crate) resource: Option<Arc<str>>,
    /// With the labels the pod will carry: spread and anti-affinity may select by them.
    pub(crate) meta: ObjectMeta,
    /// Still without its GPUs.
    pub(crate) spec: PodSpec,
}

/// Where one pod of a claim goes and what decided it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Place {
    pub(crate) node: String,
    /// Name of the node's GPU resource.
    pub(crate) resource: String,
    /// What goes with it, by resource name: a share's memory and cores, a tile's card.
    pub(crate) extra: BTreeMap<String, i64>,
    /// Thousandths of a GPU that each unit of the resource counts as.
    pub(crate) milli: u32,
    /// The node label that told the GPU's model.
    pub(crate) evidence: Option<(String, String)>,
    pub(crate) strategy: &'static str,
    pub(crate) provider: String,
    /// The decision in one sentence.
    pub(crate) why: String,
}

impl Claim {
    /// Whether fewer places than it has pods will do.
    pub(crate) fn is_elastic(&self) -> bool {
        self.least < self.pods.len()
    }
}

/// A claim and how an answer to it is carried out.
pub(crate) trait Claimant: Debug + Send + Sync {
    fn claim(&self) -> &Claim;
    /// A pod of the claim with its GPUs, as quotas will count it.
    fn pod(&self, member: usize, resource: &str) -> PodSpec;
    /// What placing it takes: what must still be so, and the writes. One place for each pod. Asked again after a conflict:
    /// it is for the version that is known by then.
    fn plan(&self, places: &[Place], now: Timestamp) -> Plan;
    /// Adds what must still be so for anything to be done on its behalf.
    fn still_waits(&self, plan: &mut Plan);
    /// On whose behalf the plan is carried out, as the scheduler.
    fn pass(&self, correlation: String) -> Pass;
    /// Whether what the plan makes is there.
    fn is_made(&self) -> bool;
    /// What the plan makes is there and belongs to another.
    fn taken(&self) -> Verdict;
    /// The API server refuses what the plan makes or changes.
    fn rejected(&self, message: &str) -> Verdict;
    /// The same claim for its first `members` pods only, where it is elastic.
    fn narrowed(&self, _members: usize) -> Option<Arc<dyn Claimant>> {
        None
    }
    /// Its pods are there already, behind a gate: quotas count them.
    fn is_counted(&self) -> bool {
        false
    }
    /// What is known about how long it will run.
    fn features(&self) -> Features {
        let claim = self.claim();
        let gpus = claim.pods.iter().map(|pod| pod.gpus.count).sum();
        Features {
            tenant: Some(claim.key.namespace.to_string()),
            gpus,
            ..Features::default()
        }
    }
}

/// Work that holds GPUs and will end.
#[derive(Clone, Debug)]
pub(crate) struct Holder {
    pub(crate) key: Key,
    /// Its pods and promises, by their ids in the ledger.
    pub(crate) works: Vec<String>,
    pub(crate) priority: Priority,
    /// What is known about how long it runs.
    pub(crate) features: Features,
    pub(crate) since: Timestamp,
    /// The longest it may run, counted from `since`; none when it does not say.
    pub(crate) longest_seconds: Option<i64>,
}

/// Everything of one kind that asks for places, holds some, or has been promised some: one account for each object. An
/// account follows from the caches, so it is read again only when something it was read from has changed.
pub(crate) trait Claimants: Debug + Send + Sync {
    /// Has the scheduler woken by what makes way for others.
    fn waking(&self) -> Waking;
    /// Every object of the kind.
    fn keys(&self) -> Vec<Key>;
    /// The objects whose account may be another since this was last asked; none when all may be.
    fn changed(&self) -> Option<BTreeSet<Key>> {
        None
    }
    /// What one object means to placement; none when it is gone.
    fn account(&self, key: &Key, now: Timestamp) -> Option<Account>;
    /// Objects something is promised for because pods have gone: they may go after accounts were read and before the ledger
    /// hears of it, and nobody is to see their room in between.
    fn left_behind(&self) -> Vec<Key> {
        Vec::new()
    }
    /// What holds GPUs and will end, for those who want to know when.
    fn holders(&self) -> Vec<Holder> {
        Vec::new()
    }
    /// For whom of the kind a machine is rented.
    fn rents(&self, _: &GPURequest) -> Option<FirstUser> {
        None
    }
}

/// The scheduler while it is registered.
pub(crate) type Scheduler = SweepRegistration<Placement>;
/// Adds to a registration what wakes it.
pub(crate) type Waking = Box<dyn FnOnce(Scheduler) -> Scheduler>;

/// Whom a machine was rented for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct FirstUser {
    pub(crate) key: Key,
    pub(crate) uid: String,
    /// It has its place, or has had it and wants none any more.
    pub(crate) served: bool,
}

/// What one object means to placement.
#[derive(Debug, Default)]
pub(crate) struct Account {
    pub(crate) uid: String,
    /// It is not finished.
    pub(crate) open: bool,
    pub(crate) asks: Asks,
    /// What has been promised to pods of it that are not there yet.
    pub(crate) promises: Vec<Promise>,
    /// When what runs or is promised of it ends.
    pub(crate) endings: Endings,
    /// It runs and could make room.
    pub(crate) runner: Option<Arc<dyn Runner>>,
    /// Time alone changes this account then.
    pub(crate) again: Option<Timestamp>,
}

/// Whether one asks for places now.
#[derive(Debug, Default)]
pub(crate) enum Asks {
    #[default]
    No,
    /// It waits for its next try.
    HeldBack,
    Now(Arc<dyn Claimant>),
}

/// The objects whose account may have changed, as caches tell it.
#[derive(Clone, Debug)]
pub(crate) struct Heard(Arc<Mutex<Noted>>);

#[derive(Debug)]
struct Noted {
    keys: BTreeSet<Key>,
    everything: bool,
}

/// Objects noted one by one: a replica that does not act hears of them without end.
const MOST_NOTED: usize = 16_384;

impl Default for Heard {
    /// Everything is news at first.
    fn default() -> Self {
        Self(Arc::new(Mutex::new(Noted {
            keys: BTreeSet::new(),
            everything: true,
        })))
    }
}

impl Heard {
    pub(crate) fn note(&self, keys: impl IntoIterator<Item = Key>) {
        let mut noted = self.0.lock();
        if noted.everything {
            return;
        }
        noted.keys.extend(keys);
        if noted.keys.len() > MOST_NOTED {
            noted.keys.clear();
            noted.everything = true;
        }
    }

    /// What was noted since this was last asked; none when that is everything.
    pub(crate) fn take(&self) -> Option<BTreeSet<Key>> {
        let mut noted = self.0.lock();
        let keys = std::mem::take(&mut noted.keys);
        (!std::mem::take(&mut noted.everything)).then_some(keys)
    }
}
