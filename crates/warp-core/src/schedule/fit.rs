//! Whether a request fits a node: the filters of kube-scheduler, plus card and GPU kind.
//!
//! `reasons(fleet, request, node)` is the whole interface for one question; a `Filter` answers many
//! nodes for one request, counting other pods once. The order of the filters and every rule in them
//! follow kube-scheduler's default plugins: NodeUnschedulable, NodeName, TaintToleration,
//! NodeAffinity, NodePorts, NodeResourcesFit, VolumeBinding and VolumeZone, PodTopologySpread,
//! InterPodAffinity.

mod gpus;
mod node;
pub(super) mod pods;
pub(super) mod spread;

use crate::fleet::{Fleet, KindSet, NodeId, Request};

use super::reason::Reason;
use pods::OtherPods;
use spread::Spreads;

pub use gpus::usable_pools;

/// Everything that keeps `request` off `node`, in the order of the filters. Empty: it fits.
/// An unknown node gives no reasons, because there is nothing to fit.
pub fn reasons(fleet: &Fleet, request: &Request, node: NodeId) -> Vec<Reason> {
    Filter::new(fleet, request).reasons(node)
}

/// Collects failures, or only whether there was one: building a reason costs allocations that the
/// yes-or-no question must not pay.
pub(super) trait Failures {
    fn fail(&mut self, reason: impl FnOnce() -> Reason);
    /// No need to look further.
    fn done(&self) -> bool;
}

impl Failures for Vec<Reason> {
    fn fail(&mut self, reason: impl FnOnce() -> Reason) {
        self.push(reason());
    }

    fn done(&self) -> bool {
        false
    }
}

/// Only whether anything failed.
#[derive(Default)]
struct Failed(bool);

impl Failures for Failed {
    fn fail(&mut self, _: impl FnOnce() -> Reason) {
        self.0 = true;
    }

    fn done(&self) -> bool {
        self.0
    }
}

/// One request against many nodes.
#[derive(Debug)]
pub struct Filter<'a> {
    fleet: &'a Fleet,
    request: &'a Request,
    kinds: KindSet,
    /// The request does not contradict itself.
    sound: bool,
    pods: OtherPods<'a>,
    spreads: Spreads,
}

impl<'a> Filter<'a> {
    pub fn new(fleet: &'a Fleet, request: &'a Request) -> Self {
        let kinds = request
            .gpu
            .as_ref()
            .map(|gpu| fleet.accepted(gpu))
            .unwrap_or_default();
        Self {
            fleet,
            request,
            kinds,
            sound: request.contradictions().is_empty(),
            pods: OtherPods::count(fleet, request),
            spreads: Spreads::count(fleet, request),
        }
    }

    /// Whether the request does not contradict itself; one that does fits nowhere.
    pub const fn is_sound(&self) -> bool {
        self.sound
    }

    pub fn fits(&self, node: NodeId) -> bool {
        self.fits_alone(node) && self.fits_others(node)
    }

    /// The filters that depend on the request and this node alone. Their answer holds until the
    /// node changes.
    pub fn fits_alone(&self, node: NodeId) -> bool {
        self.fits_but_for_memory(node) && self.fits_memory(node)
    }

    /// `fits_alone` without the memory. Requests come in few shapes once their memory is left out,
    /// so this answer is worth remembering.
    pub fn fits_but_for_memory(&self, node: NodeId) -> bool {
        let mut failed = Failed(!self.sound);
        self.alone(node, &mut failed);
        !failed.0
    }

    pub fn fits_memory(&self, node: NodeId) -> bool {
        let mut failed = Failed::default();
        self.memory(node, &mut failed);
        !failed.0
    }

    /// Whether any filter looks at other pods. When not, `fits_others` is always true.
    pub fn watches_others(&self) -> bool {
        self.request.constraints.watch_other_pods() || self.pods.matter()
    }

    /// The filters that depend on pods elsewhere, on ports and on volumes.
    pub fn fits_others(&self, node: NodeId) -> bool {
        let mut failed = Failed::default();
        self.others(node, &mut failed);
        !failed.0
    }

    pub fn reasons(&self, node: NodeId) -> Vec<Reason> {
        let contradictions = self.request.contradictions();
        if !contradictions.is_empty() {
            return contradictions
                .into_iter()
                .map(Reason::Contradiction)
                .collect();
        }
        let mut reasons = Vec::new();
        self.alone(node, &mut reasons);
        self.memory(node, &mut reasons);
        self.others(node, &mut reasons);
        reasons
    }

    fn alone(&self, id: NodeId, failures: &mut impl Failures) {
        let (Some(node), Some(free)) = (self.fleet.node(id), self.fleet.free(id)) else {
            return;
        };
        node::admits(node, self.request, failures);
        if failures.done() {
            return;
        }
        node::has_room(node, free, self.request, failures);
        if failures.done() {
            return;
        }
        if let Some(gpu) = &self.request.gpu {
            gpus::has_gpus(self.fleet, node, free, gpu, &self.kinds, failures);
        }
    }

    fn memory(&self, id: NodeId, failures: &mut impl Failures) {
        if let (Some(node), Some(free)) = (self.fleet.node(id), self.fleet.free(id)) {
            node::has_memory(node, free, self.request, failures);
        }
    }

    fn others(&self, id: NodeId, failures: &mut impl Failures) {
        let Some(node) = self.fleet.node(id) else {
            return;
        };
        pods::ports(self.fleet, id, self.request, failures);
        if failures.done() {
            return;
        }
        node::reaches_volumes(node, self.request, failures);
        if failures.done() {
            return;
        }
        self.spreads.check(node, failures);
        if failures.done() {
            return;
        }
        self.pods.check(node, failures);
    }

    pub fn kinds(&self) -> &KindSet {
        &self.kinds
    }
}
