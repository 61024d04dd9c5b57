//! Everything a request's plan needs, read from the caches and from what was last seen of its machine. No decisions.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Node, Pod};
use kube::{Resource, ResourceExt};
use warp_api::gpurequest::RequestAttempt;
use warp_api::{CloudProvider, GPURequest, GPUWorkload, label};
use warp_cloud::{Kind, Mark};
use warp_core::gpu::{Catalogue, Vendor};
use warp_runtime::cache::Key;
use warp_runtime::outside::Sight;

use super::{GpuRequests, outside_name};
use crate::budget::Purse;
use crate::cloudprovider::clouds::mark;
use crate::containers::fit;
use crate::ledger;
use crate::shapes::BY_NODE;
use crate::workload::{shell, tenant_of};

/// What is known about a request.
#[derive(Clone, Debug, Default)]
pub(crate) struct Seen {
    pub(crate) providers: Vec<Arc<CloudProvider>>,
    pub(crate) requests: Vec<Arc<GPURequest>>,
    pub(crate) mark: Option<Mark>,
    /// The money of tenants.
    pub(crate) purse: Purse,
    /// This process, as attempts name who may ask the cloud.
    pub(crate) process: String,
    /// Who made the request, or the workload it was made for.
    pub(crate) creator: Option<String>,
    /// Why the workload it was made for cannot be one container at a cloud.
    pub(crate) unfit: Option<String>,
    /// Where costs are kept.
    pub(crate) home: String,
    /// The machines of the attempts that are open, the newest last.
    pub(crate) open: Vec<Open>,
}

/// What is known about the machine of an open attempt.
#[derive(Clone, Debug)]
pub(crate) struct Open {
    /// Of the attempt.
    pub(crate) number: u32,
    pub(crate) kind: Kind,
    pub(crate) sight: Sight,
    pub(crate) settle: Duration,
    pub(crate) node: Option<Arc<Node>>,
    /// It was rented for a workload that is gone or going.
    pub(crate) ownerless: bool,
    /// Pods use its GPUs, or work is on its way there.
    pub(crate) used: bool,
    /// Pods on its node that a drain moves: all but those a DaemonSet or the node itself put there. Of a container's node
    /// only those that ask for GPUs.
    pub(crate) pods: Vec<Arc<Pod>>,
    /// How many others are there besides, on a container's node.
    pub(crate) others: u32,
    /// Pods that are to go from a container's node, whosever they are.
    pub(crate) going: Vec<Arc<Pod>>,
    /// The pod that is its container, where it is one and its pod is in the cache.
    pub(crate) own_pod: Option<Arc<Pod>>,
    /// Of such a container's node: when it last said that it lives, and how its pod was then.
    pub(crate) tended: Sight,
    /// What became of its token, and which certificates were asked for.
    pub(crate) token: Sight,
    pub(crate) certificates: Sight,
}

pub(super) fn see(kind: &GpuRequests, request: &GPURequest, now: Timestamp) -> Seen {
    let providers = kind.providers.all();
    let requests = kind.all.all();
    Seen {
        open: open(kind, request, &providers, now),
        providers,
        purse: Purse::read(&kind.cx, &requests, now),
        requests,
        mark: mark(&kind.cx),
        process: kind.process.clone(),
        creator: creator(kind, request),
        unfit: unfit(kind, request),
        home: kind.home.clone(),
    }
}

/// Who made a request: of one that was made for a workload, who made that.
fn creator(kind: &GpuRequests, request: &GPURequest) -> Option<String> {
    let said = |annotations: &BTreeMap<String, String>| annotations.get(label::USER).cloned();
    let Some((key, uid)) = tenant_of(request) else {
        return said(request.annotations());
    };
    let owner = kind.cx.workloads.get(&key);
    let owner = owner.filter(|owner| owner.uid() == Some(uid))?;
    said(owner.annotations())
}

fn open(
    kind: &GpuRequests,
    request: &GPURequest,
    providers: &[Arc<CloudProvider>],
    now: Timestamp,
) -> Vec<Open> {
    let attempts = request.status.iter().flat_map(|status| &status.attempts);
    let open = attempts.filter(|attempt| attempt.outcome.is_none());
    let ownerless = is_ownerless(kind, request);
    let mut open: Vec<Open> = open
        .filter_map(|attempt| machine(kind, attempt, providers, now))
        .collect();
    for one in &mut open {
        one.ownerless = ownerless;
    }
    open
}

fn is_ownerless(kind: &GpuRequests, request: &GPURequest) -> bool {
    let Some((key, uid)) = tenant_of(request) else {
        return false;
    };
    let owner = kind.cx.workloads.get(&key);
    let there =
        owner.filter(|owner| owner.uid() == Some(uid) && owner.meta().deletion_timestamp.is_none());
    there.is_none()
}

fn machine(
    kind: &GpuRequests,
    attempt: &RequestAttempt,
    providers: &[Arc<CloudProvider>],
    now: Timestamp,
) -> Option<Open> {
    // A provider that was taken away by force is still asked under its kind: the answer says what is wrong.
    let provider = providers
        .iter()
        .find(|known| known.name_any() == attempt.provider);
    let of = provider.map_or("fake", |provider| provider.spec.kind.as_str());
    let of = Kind::of(of)?;
    let outside = kind.outside(of)?;
    let node = kind.cx.nodes.get(&Key::new("", &attempt.machine));
    let there = pods_on(kind, &attempt.machine);
    let going = |pod: &&Arc<Pod>| attempt.is_container() && pod.meta().deletion_timestamp.is_some();
    let going: Vec<Arc<Pod>> = there.iter().filter(going).cloned().collect();
    let (pods, others): (Vec<_>, Vec<_>) = there
        .into_iter()
        .partition(|pod| !is_of_node(pod) && (!attempt.is_container() || asks_for_gpus(pod)));
    Some(Open {
        number: attempt.number,
        kind: of,
        sight: outside.sight(&outside_name(&attempt.provider, &attempt.machine)),
        settle: of.capabilities().settle(),
        ownerless: false,
        used: node.is_some() && used(kind, &attempt.machine, now),
        going,
        others: u32::try_from(others.len()).unwrap_or(u32::MAX),
        pods,
        own_pod: own_pod(kind, attempt),
        tended: if attempt.is_container() {
            kind.tended.sight(&attempt.machine)
        } else {
            Sight::default()
        },
        node,
        token: kind.tokens.sight(&attempt.machine),
        certificates: kind.certificates.sight(&attempt.machine),
    })
}

/// Pods on a node that are not over.
fn pods_on(kind: &GpuRequests, node: &str) -> Vec<Arc<Pod>> {
    let mut pods = kind.cx.pods.by(BY_NODE, node);
    pods.retain(|pod| !ledger::finished(pod));
    pods
}

/// Whether a DaemonSet or the node itself put a pod there.
fn is_of_node(pod: &Pod) -> bool {
    let mut owners = pod.owner_references().iter();
    owners.any(|owner| matches!(owner.kind.as_str(), "DaemonSet" | "Node"))
}

fn asks_for_gpus(pod: &Pod) -> bool {
    let Some(spec) = pod.spec.as_ref() else {
        return false;
    };
    let asked = ledger::request(&pod.metadata, spec).resources.extended;
    asked
        .iter()
        .any(|(name, count)| *count > 0 && Vendor::of_resource(name).is_some())
}

fn own_pod(kind: &GpuRequests, attempt: &RequestAttempt) -> Option<Arc<Pod>> {
    let bound = attempt.pod.as_ref()?;
    let found = kind.cx.pods.get(&Key::new(&bound.namespace, &bound.name));
    found.filter(|pod| pod.uid().as_ref() == Some(&bound.uid))
}

/// Why the workload a request was made for cannot be one container at a cloud.
fn unfit(kind: &GpuRequests, request: &GPURequest) -> Option<String> {
    let (key, uid) = tenant_of(request)?;
    let owner = kind.cx.workloads.get(&key);
    let owner = owner.filter(|owner| owner.uid() == Some(uid))?;
    unfit_of(&owner, &kind.cx.gpus.catalogue())
}

/// Why a workload cannot be one container at a cloud.
pub(crate) fn unfit_of(workload: &GPUWorkload, catalogue: &Catalogue) -> Option<String> {
    if workload.spec.is_gang() {
        return Some("its members are several pods that must reach each other".to_owned());
    }
    let shell = shell(workload, catalogue).ok()?;
    fit::objection(shell.template.spec.as_ref()?)
}

/// Whether pods hold GPUs of a node, or a workload was given it. A pod that should have ended by now holds nothing: its node
/// may never say that it did.
fn used(kind: &GpuRequests, node: &str, now: Timestamp) -> bool {
    let holds = |pod: &Arc<Pod>| {
        let ends = pod.meta().deletion_timestamp.as_ref();
        if ends.is_some_and(|ends| ends.0 <= now) {
            return false;
        }
        let bound = pod.spec.as_ref().and_then(|spec| spec.node_name.as_deref());
        let phase = pod
            .status
            .as_ref()
            .and_then(|status| status.phase.as_deref());
        if bound != Some(node) || matches!(phase, Some("Succeeded" | "Failed")) {
            return false;
        }
        asks_for_gpus(pod)
    };
    let given = kind.cx.workloads.all().into_iter().any(|workload| {
        let status = workload.status.as_ref();
        let here = status.is_some_and(|status| status.is_on(node));
        let phase = status.and_then(|status| status.phase);
        here && !phase.is_some_and(warp_api::Phase::is_final)
    });
    given || kind.cx.pods.all().iter().any(holds)
}
