//! What claims have in common: those of one shape ask for the same in the same way, so that what is found out about one
//! holds for all. Pure.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::sync::Arc;

use k8s_openapi::api::core::v1::PodSpec;
use warp_core::fleet::Request;
use warp_core::schedule::{Ask, Mix};

use super::Claim;
use super::request::base_request;
use crate::ledger::Ledger;

/// A shape's number.
pub(super) type ShapeId = u64;

/// How the name of a shape begins that one claim has for itself.
const ALONE: &str = "only ";

/// The shapes of those that wait.
#[derive(Debug, Default)]
pub(super) struct Shapes {
    ids: BTreeMap<Arc<str>, ShapeId>,
    all: BTreeMap<ShapeId, Shape>,
    /// No number is given twice.
    last: ShapeId,
}

#[derive(Debug)]
struct Shape {
    name: Arc<str>,
    /// Its claims stand for each other.
    shared: bool,
    claims: usize,
    /// One of them, for what they ask of nodes.
    first: Arc<dyn super::Claimant>,
    /// The same as a request, and the state of nodes and volumes that was found in.
    asked: Option<(u64, Request)>,
}

impl Shapes {
    /// Takes a claim in.
    pub(super) fn join(&mut self, claimant: &Arc<dyn super::Claimant>) -> ShapeId {
        let name = name(claimant.claim(), claimant.is_counted());
        let known = self.ids.get(name.as_str());
        if let Some((id, shape)) = known.and_then(|id| Some((*id, self.all.get_mut(id)?))) {
            shape.claims += 1;
            return id;
        }
        let name: Arc<str> = Arc::from(name);
        self.last += 1;
        let shape = Shape {
            shared: !name.starts_with(ALONE),
            name: Arc::clone(&name),
            claims: 1,
            first: Arc::clone(claimant),
            asked: None,
        };
        self.all.insert(self.last, shape);
        self.ids.insert(name, self.last);
        self.last
    }

    /// Lets a claim go.
    pub(super) fn leave(&mut self, id: ShapeId) {
        let Some(shape) = self.all.get_mut(&id) else {
            return;
        };
        shape.claims -= 1;
        if shape.claims == 0 {
            self.ids.remove(&shape.name);
            self.all.remove(&id);
        }
    }

    /// Whether claims of a shape stand for each other.
    pub(super) fn is_shared(&self, id: ShapeId) -> bool {
        self.all.get(&id).is_some_and(|shape| shape.shared)
    }

    /// Adds what waits to what is expected. `structure` is the state of nodes, namespaces and volumes.
    pub(super) fn count(&mut self, mix: &mut Mix, ledger: &Ledger, structure: u64) {
        for shape in self.all.values_mut() {
            let claim = shape.first.claim();
            let Some(pod) = claim.pods.first() else {
                continue;
            };
            let known = shape.asked.take().filter(|(of, _)| *of == structure);
            let (_, request) = shape
                .asked
                .insert(known.unwrap_or_else(|| (structure, base_request(ledger, pod))));
            let pods = shape.claims.saturating_mul(claim.pods.len());
            mix.see_many(&Ask::new(&ledger.fleet, request), pods as f64);
        }
    }
}

/// Everything of a claim that decides where it fits and what is said of it, but for its namespace; its uid where other
/// pods decide it too.
fn name(claim: &Claim, is_counted: bool) -> String {
    let mut name = String::new();
    let alike = claim.pods.first().filter(|first| {
        let same = |pod: &super::PodClaim| {
            (&pod.gpus, &pod.resource, &pod.spec) == (&first.gpus, &first.resource, &first.spec)
        };
        is_plain(&first.spec) && claim.pods.iter().all(same)
    });
    let spec = alike.map(|pod| serde_json::to_string(&pod.spec));
    let Some((pod, Ok(spec))) = alike.zip(spec) else {
        let rank = (claim.priority, claim.patient, &claim.avoided);
        return format!("{ALONE}{} {} {rank:?}", claim.uid, claim.version);
    };
    // Writing to a String cannot fail.
    let _ = write!(
        name,
        "{is_counted} {:?} {} {:?} {:?} {:?} {:?} {:?} {} {} {} {:?} {:?} {spec}",
        claim.priority,
        claim.patient,
        claim.max_runtime_seconds,
        claim.strategy,
        claim.providers,
        claim.avoided,
        claim.near,
        claim.makes_job,
        claim.pods.len(),
        claim.least,
        pod.gpus,
        pod.resource,
    );
    name
}

/// Whether neither the pods of others nor volumes of a namespace say where a pod may be.
fn is_plain(spec: &PodSpec) -> bool {
    let affinity = spec.affinity.as_ref();
    let by_pods = affinity.is_some_and(|affinity| {
        affinity.pod_affinity.is_some() || affinity.pod_anti_affinity.is_some()
    });
    let spread = spec.topology_spread_constraints.as_ref();
    let volumes = spec.volumes.iter().flatten();
    let mut claimed = volumes
        .filter(|volume| volume.persistent_volume_claim.is_some() || volume.ephemeral.is_some());
    !by_pods && spread.is_none_or(Vec::is_empty) && claimed.next().is_none()
}
