//! A container at a cloud as a node. The operator keeps the node; the first pod that is bound there becomes the container,
//! which is bought then and not before; and the end of either is the end of both. Pure.

use std::collections::BTreeMap;
use std::sync::Arc;

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::core::v1::{Node, NodeSpec, Pod, Taint};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::api::ObjectMeta;
use kube::{Resource, ResourceExt};
use serde_json::json;
use warp_api::gpurequest::{AttemptPod, RequestAttempt, RequestPhase};
use warp_api::{GPURequest, GPURequestStatus, condition, label, reason};
use warp_cloud::join::{Rental, provider_id};
use warp_cloud::{Availability, Decimal, Machine};
use warp_core::gpu;
use warp_runtime::cache::Key;
use warp_runtime::plan::{Action, Call, Encoding, Kind, Plan, Removal, What};

use super::choose::{later, read};
use super::ending::is_ready;
use super::observe::{Open, Seen};
use super::pod_status::{self, End};
use super::say::Said;
use crate::containers::{self, BEAT, Tended};
use crate::ledger::finished;
use crate::workload::tenant_of;

/// What the node of a container offers beside each GPU: less than any of these clouds gives with one. The container has
/// what its cloud gives it.
const CPUS: u32 = 8;
const MEMORY_GIB: u32 = 32;
/// What was seen of a pod this long ago is acted on without looking again.
const YOUNG: SignedDuration = SignedDuration::from_secs(2);

/// Writes down which pod becomes the container: the first that is bound to the node.
pub(super) fn bind(attempt: &mut RequestAttempt, open: &Open, seen: &Seen, now: Timestamp) {
    if !attempt.is_container() || attempt.pod.is_some() || attempt.ending.is_some() {
        return;
    }
    let stays = |pod: &&Arc<Pod>| pod.meta().deletion_timestamp.is_none();
    let order = |pod: &&Arc<Pod>| (pod.creation_timestamp().map(|made| made.0), pod.name_any());
    let Some(pod) = open.pods.iter().filter(stays).min_by_key(order) else {
        return;
    };
    attempt.pod = Some(AttemptPod {
        namespace: pod.namespace().unwrap_or_default(),
        name: pod.name_any(),
        uid: pod.uid().unwrap_or_default(),
        since: Some(Time(now)),
    });
    attempt.caller = Some(seen.process.clone());
    attempt.called_since = Some(Time(now));
}

/// What was last seen of the pod of an attempt, by the API server's own word.
fn tended(attempt: &RequestAttempt, open: &Open) -> Option<Tended> {
    let there = open.tended.there.clone()?;
    let read: Tended = serde_json::from_value(there).ok()?;
    let uid = attempt.pod.as_ref().map(|pod| &pod.uid);
    (read.uid.as_ref() == uid).then_some(read)
}

/// Whether the pod is over or is to go. That it is not in a cache says nothing: a watch may be behind.
fn is_over(attempt: &RequestAttempt, open: &Open) -> bool {
    match &open.own_pod {
        Some(pod) => pod.meta().deletion_timestamp.is_some() || finished(pod),
        None => tended(attempt, open).is_some_and(|seen| {
            let pod = seen.pod;
            pod.is_none_or(|pod| pod.finished || pod.going)
        }),
    }
}

/// Why a container is to go, or its node while there is none.
pub(super) fn ending(
    attempt: &RequestAttempt,
    open: &Open,
    machine: Option<&Machine>,
    seen: &Seen,
) -> Option<&'static str> {
    if !attempt.is_container() {
        return None;
    }
    if attempt.pod.is_none() {
        let stays = |pod: &Arc<Pod>| pod.meta().deletion_timestamp.is_none();
        let kept = open.pods.iter().any(stays) || is_offered(attempt, seen);
        return (!kept).then_some(reason::OFFER_GONE);
    }
    let exited = machine.is_some_and(|machine| machine.exit.is_some());
    (exited || is_over(attempt, open)).then_some(reason::POD_ENDED)
}

/// Whether what the node stands for can still be bought within its price.
fn is_offered(attempt: &RequestAttempt, seen: &Seen) -> bool {
    let provider = seen.providers.iter();
    let mut provider = provider.filter(|known| known.name_any() == attempt.provider);
    let Some(provider) = provider.next() else {
        return false;
    };
    let status = provider.status.clone().unwrap_or_default();
    // A cloud that does not answer for a while sells what it sold before.
    let ready = condition::find(&status.conditions, condition::READY);
    let open = ready
        .is_some_and(|ready| ready.status == "True" || ready.reason == reason::CLOUD_UNREACHABLE);
    let most: Decimal = attempt.price_limit.parse().unwrap_or_default();
    let same = |offer: &warp_cloud::Offer| {
        offer.instance_type == attempt.instance_type
            && offer.region == attempt.region
            && offer.gpus == attempt.gpus
            && offer.availability != Availability::None
            && offer.price <= most
    };
    provider.spec.enabled
        && provider.meta().deletion_timestamp.is_none()
        && open
        && status
            .offers
            .iter()
            .filter_map(read)
            .any(|offer| same(&offer))
}

/// Keeps the node of a container: it is there, offers its GPUs, and says that it lives.
pub(super) fn keep(
    plan: &mut Plan,
    attempt: &RequestAttempt,
    request: &GPURequest,
    open: &Open,
    now: Timestamp,
) {
    let Some(node) = open.node.as_deref() else {
        if attempt.ending.is_none() {
            plan.create_or_find(&object(attempt, request, open));
            plan.because("a container at a cloud is a node");
        }
        return;
    };
    let offered = node.status.as_ref();
    let offered = offered.and_then(|status| status.allocatable.clone());
    let wanted = resources(attempt, open);
    if offered.as_ref() != Some(&wanted) || !crate::ledger::is_ready(node) {
        plan.push(Action::Patch {
            kind: Kind::of::<Node>(),
            key: Key::of(node),
            sub: Some("status"),
            encoding: Encoding::Merge,
            patch: node_status(node, &wanted, now),
        });
        plan.because("the node of a container is what its offer says");
    }
    let beat = SignedDuration::try_from(BEAT).unwrap_or_default();
    let due = open.tended.asked.map_or(now, |asked| later(asked, beat));
    if due <= now {
        look(plan, attempt, request, open, now);
    } else {
        plan.look_again(due);
    }
}

/// Says that the node lives and reads its pod.
fn look(
    plan: &mut Plan,
    attempt: &RequestAttempt,
    request: &GPURequest,
    open: &Open,
    now: Timestamp,
) {
    let failed = open.tended.failed.as_ref();
    if let Some((_, until)) = failed.filter(|(_, until)| *until > now) {
        plan.look_again(*until);
    }
    if !open.tended.busy {
        plan.calls.push(Call {
            outside: containers::NODES,
            for_key: Key::of(request),
            name: attempt.machine.clone(),
            what: What::LookUp,
        });
    }
}

fn object(attempt: &RequestAttempt, request: &GPURequest, open: &Open) -> Node {
    let taint = |key: &str| Taint {
        key: key.to_owned(),
        effect: "NoSchedule".to_owned(),
        ..Taint::default()
    };
    let mut taints = vec![taint(label::CONTAINER)];
    taints.extend(tenant_of(request).map(|_| taint(label::RENTED_FOR)));
    let price: Decimal = attempt.price.parse().unwrap_or_default();
    let each = price / Decimal::from(attempt.gpus.max(1));
    let (namespace, name) = (request.namespace().unwrap_or_default(), request.name_any());
    let rental = Rental {
        cloud: open.kind,
        gpu: &attempt.gpu,
        gpus: attempt.gpus,
        region: &attempt.region,
        instance_type: &attempt.instance_type,
        gpu_hour_price: &each.round_dp(4).normalize().to_string(),
        request: (&namespace, &name),
    };
    let mut labels: BTreeMap<String, String> = rental.labels().into_iter().collect();
    for (key, value) in [
        ("kubernetes.io/hostname", attempt.machine.as_str()),
        ("kubernetes.io/os", "linux"),
        ("kubernetes.io/arch", "amd64"),
        (
            "node.kubernetes.io/exclude-from-external-load-balancers",
            "true",
        ),
    ] {
        labels.insert(key.to_owned(), value.to_owned());
    }
    Node {
        metadata: ObjectMeta {
            name: Some(attempt.machine.clone()),
            labels: Some(labels),
            ..ObjectMeta::default()
        },
        spec: Some(NodeSpec {
            provider_id: Some(provider_id(open.kind, &attempt.machine)),
            taints: Some(taints),
            ..NodeSpec::default()
        }),
        status: None,
    }
}

/// One pod, beside those that run nowhere here: what a DaemonSet puts on every node, and whatever else stays here without
/// asking for its GPUs.
fn resources(attempt: &RequestAttempt, open: &Open) -> BTreeMap<String, Quantity> {
    let model = gpu::named(&attempt.gpu).into_iter().next();
    let gpu = model.map_or("nvidia.com/gpu", |model| model.vendor.resources()[0]);
    let gpus = attempt.gpus;
    let all = [
        ("cpu", (gpus * CPUS).to_string()),
        ("memory", format!("{}Gi", gpus * MEMORY_GIB)),
        ("pods", (1 + open.others).to_string()),
        (gpu, gpus.to_string()),
    ];
    let all = all.into_iter();
    all.map(|(name, amount)| (name.to_owned(), Quantity(amount)))
        .collect()
}

fn node_status(
    node: &Node,
    wanted: &BTreeMap<String, Quantity>,
    now: Timestamp,
) -> serde_json::Value {
    json!({
        "metadata": {"uid": node.uid()},
        "status": {
            "capacity": wanted, "allocatable": wanted,
            "addresses": [{"type": "Hostname", "address": node.name_any()}],
            "nodeInfo": {
                "architecture": "amd64", "operatingSystem": "linux", "osImage": "a container at a cloud",
                "kubeletVersion": "", "kubeProxyVersion": "", "containerRuntimeVersion": "warp://container",
                "kernelVersion": "", "machineID": "", "systemUUID": "", "bootID": "",
            },
            "conditions": [{
                "type": "Ready", "status": "True", "reason": reason::NODE_READY,
                "message": "its offer is valid and its money is reserved",
                "lastHeartbeatTime": Time(now), "lastTransitionTime": Time(now),
            }],
        },
    })
}

/// Tells the pod what the cloud says of its container, and others on the node that there is no room for them.
pub(super) fn tell(
    plan: &mut Plan,
    attempt: &RequestAttempt,
    open: &Open,
    machine: Option<&Machine>,
    now: Timestamp,
) {
    let Some(bound) = &attempt.pod else {
        return;
    };
    let stranger = |pod: &&Arc<Pod>| {
        pod.uid().as_ref() != Some(&bound.uid) && pod.meta().deletion_timestamp.is_none()
    };
    for pod in open.pods.iter().filter(stranger) {
        let why = format!(
            "node {} is one container's, which is pod {}/{}",
            attempt.machine, bound.namespace, bound.name
        );
        pod_status::end(plan, pod, "", &End::Lost(&why), attempt, now);
    }
    let alive = open.own_pod.as_ref().filter(|pod| !finished(pod));
    let (Some(pod), Some(machine)) = (alive, machine) else {
        return;
    };
    let image = image(attempt, open);
    match machine.exit {
        Some(exit) => pod_status::end(plan, pod, &image, &End::Exit(exit), attempt, now),
        None => pod_status::runs(plan, pod, &image, machine, attempt, now),
    }
}

fn image(attempt: &RequestAttempt, open: &Open) -> String {
    let seen = tended(attempt, open).and_then(|seen| seen.pod);
    seen.map(|pod| pod.image).unwrap_or_default()
}

/// Sees to it that the pod says how it ended and, if it is to go, goes. Whether that is done.
pub(super) fn let_go(
    plan: &mut Plan,
    attempt: &RequestAttempt,
    request: &GPURequest,
    open: &Open,
    end: &End<'_>,
    now: Timestamp,
) -> bool {
    let Some(bound) = &attempt.pod else {
        return true;
    };
    if let Some(pod) = open.own_pod.as_deref() {
        if !finished(pod) {
            pod_status::end(plan, pod, &image(attempt, open), end, attempt, now);
            return false;
        }
        let meta = pod.meta();
        let going = meta.deletion_timestamp.is_some();
        if going && meta.deletion_grace_period_seconds != Some(0) {
            remove(plan, bound);
            return false;
        }
        return true;
    }
    match tended(attempt, open) {
        Some(Tended { pod: None, .. }) => true,
        Some(Tended { pod: Some(pod), .. }) if pod.finished && !pod.going => true,
        // Known a moment ago: later it is looked whether it has gone.
        Some(Tended { pod: Some(pod), .. })
            if pod.finished
                && open
                    .tended
                    .asked
                    .is_some_and(|asked| later(asked, YOUNG) > now) =>
        {
            remove(plan, bound);
            plan.look_again(later(now, YOUNG));
            false
        }
        _ => {
            look(plan, attempt, request, open, now);
            plan.look_again(later(now, SignedDuration::from_secs(1)));
            false
        }
    }
}

/// Lets the pods go that are to go from a node and are not its container: there is no kubelet that would.
pub(super) fn clear(plan: &mut Plan, attempt: &RequestAttempt, open: &Open) {
    let own = attempt.pod.as_ref().map(|pod| &pod.uid);
    for pod in &open.going {
        if pod.uid().as_ref() != own && pod.meta().deletion_grace_period_seconds != Some(0) {
            let bound = AttemptPod {
                namespace: pod.namespace().unwrap_or_default(),
                name: pod.name_any(),
                uid: pod.uid().unwrap_or_default(),
                since: None,
            };
            remove(plan, &bound);
            plan.because("nothing of it runs on a container's node");
        }
    }
}

/// Lets a pod go whose container has ended, as the kubelet of a machine would.
fn remove(plan: &mut Plan, bound: &AttemptPod) {
    plan.push(Action::Delete {
        kind: Kind::of::<Pod>(),
        key: Key::new(&bound.namespace, &bound.name),
        uid: bound.uid.clone(),
        version: None,
        options: Removal {
            grace_seconds: Some(0),
            propagation: None,
        },
        outcome: None,
    });
    plan.because("its container at the cloud is gone");
}

/// What a request says of a node for which nothing is bought yet.
pub(super) fn waits(status: &GPURequestStatus, attempt: &RequestAttempt, open: &Open) -> Said {
    let gpu = status.gpu.clone().unwrap_or_default();
    let price = status.price_per_hour.clone().unwrap_or_default();
    let name = &attempt.machine;
    if open.node.as_deref().is_some_and(is_ready) {
        let text = format!(
            "{gpu} on node {name} for {price} an hour from when a pod is bound to it; nothing is bought before"
        );
        return Said::new(RequestPhase::Ready, "True", reason::NODE_READY, text);
    }
    let trouble = open.tended.failed.as_ref();
    let trouble = trouble.map(|(error, _)| format!(": {}", error.message));
    let text = format!(
        "node {name} is made for a container with {gpu}{}",
        trouble.unwrap_or_default()
    );
    Said::new(RequestPhase::Joining, "False", reason::JOINING, text)
}
