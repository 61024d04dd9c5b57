//! Who asks for places, in words that know no kind: what is asked for, in which order it is served, and how a place
//! becomes writes. A kind that wants places provides [`Claimants`]. Pure data and the seam; nothing is decided here.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Debug;
use std::sync::Arc;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::PodSpec;
use kube::core::ObjectMeta;
use warp_api::workload::{GpuAsk, Priority, SchedulingStrategy, TopologyLevel};
use warp_core::estimate::Features;
use warp_runtime::cache::Key;
use warp_runtime::pass::Pass;
use warp_runtime::plan::Plan;

use super::{Endings, Runner, Verdict};
use crate::ledger::Promise;

/// One that asks for a place for each of its pods: for all of them or for none.
#[derive(Clone, Debug)]
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
    /// Nobody is evicted for it.
    pub(crate) patient: bool,
    /// The longest it may run; none when it does not say.
    pub(crate) max_runtime_seconds: Option<i64>,
    /// The operator's own when it names none.
    pub(crate) strategy: Option<SchedulingStrategy>,
    /// For strategies that leave it to chance: reproducible, and not the same node for everybody.
    pub(crate) dice: u64,
    /// The providers it may use, in order; one `None` when it does not say.
    pub(crate) providers: Vec<Option<String>>,
    /// Nodes that are left out for now.
    pub(crate) avoided: Vec<Arc<str>>,
    /// How close together its pods are.
    pub(crate) near: Option<TopologyLevel>,
    pub(crate) pods: Vec<PodClaim>,
    /// A Job is made when it is placed, which quotas count; one that is there is counted already.
    pub(crate) makes_job: bool,
}

/// What one pod of a claim asks for.
#[derive(Clone, Debug)]
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

/// A claim and how an answer to it is carried out.
pub(crate) trait Claimant: Debug + Send + Sync {
    fn claim(&self) -> &Claim;
    /// A pod of the claim with its GPUs, as quotas will count it.
    fn pod(&self, member: usize, resource: &str) -> PodSpec;
    /// What placing it takes: what must still be so, and the writes. One place for each pod. Asked again after a conflict:
    /// it is for the version that is known by then.
    fn plan(&self, places: &[Place]) -> Plan;
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

/// Everything of one kind that asks for places.
pub(crate) trait Claimants: Debug + Send + Sync {
    /// Those that may be placed now, and what is remembered of the others.
    fn open(&self, now: Timestamp) -> Open;
    /// What has been promised to pods that are not there yet.
    fn promises(&self) -> Vec<Promise>;
    /// When what runs or is promised ends.
    fn endings(&self) -> Endings;
    /// What runs and could make room.
    fn runners(&self, now: Timestamp) -> Vec<Arc<dyn Runner>>;
    /// What holds GPUs and will end, for those who want to know when.
    fn holders(&self) -> Vec<Holder> {
        Vec::new()
    }
}

#[derive(Debug, Default)]
pub(crate) struct Open {
    /// In any order.
    pub(crate) claimants: Vec<Arc<dyn Claimant>>,
    /// Every one that is not finished, by uid.
    pub(crate) uids: BTreeSet<String>,
    /// Those that wait for their next try, by uid.
    pub(crate) held_back: BTreeSet<String>,
}

impl Open {
    pub(crate) fn join(&mut self, other: Self) {
        self.claimants.extend(other.claimants);
        self.uids.extend(other.uids);
        self.held_back.extend(other.held_back);
    }
}
