//! Which of the nodes a pod fits it gets: the one kube-scheduler would score highest. The scores are the core's; this
//! module adds what only the API knows, the group a pod belongs to by its Services and its controller.

use std::borrow::Cow;
use std::cmp::Reverse;
use std::sync::Arc;

use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;
use warp_api::pod as reading;
use warp_core::fleet::{
    Expression, Fleet, NodeId, Operator, Request, Selector, Spread, SpreadRules,
};
use warp_core::schedule::score;

use crate::controllers::Caches;
use crate::informer::Key;

/// How a group is spread when its pods say nothing of it: topology key and allowed skew.
const DEFAULT_SPREAD: [(&str, u32); 2] = [
    ("kubernetes.io/hostname", 3),
    ("topology.kubernetes.io/zone", 5),
];

/// The best of the nodes a request fits. Of equal ones the one with the fewest pods, then the first by name.
pub(super) fn best(fleet: &Fleet, request: &Request, fitting: &[NodeId]) -> Option<NodeId> {
    if let [only] = fitting {
        return Some(*only);
    }
    let scores = score::scores(fleet, request, fitting);
    let scored = fitting.iter().zip(scores);
    let best = scored.min_by_key(|(id, score)| {
        let name = fleet.node(**id).map(|node| node.name.clone());
        (Reverse(*score), fleet.works_on(**id).count(), name)
    });
    best.map(|(id, _)| *id)
}

/// The request with the spread of its group, where the pod states none of its own.
pub(super) fn with_group_spread<'a>(
    caches: &Caches,
    pod: &Pod,
    request: &'a Request,
) -> Cow<'a, Request> {
    let own = pod
        .spec
        .as_ref()
        .and_then(|spec| spec.topology_spread_constraints.as_ref());
    if own.is_some_and(|own| !own.is_empty()) {
        return Cow::Borrowed(request);
    }
    let group = group(caches, pod, request);
    if group.is_empty() {
        return Cow::Borrowed(request);
    }
    let mut request = request.clone();
    let spread = DEFAULT_SPREAD.iter().map(|(key, max_skew)| Spread {
        max_skew: *max_skew,
        topology_key: Arc::from(*key),
        selector: Some(group.clone()),
        ..Spread::default()
    });
    request.preferences.spread = spread.collect();
    request.preferences.spread_by = SpreadRules::Cluster;
    Cow::Owned(request)
}

/// Selects the pods that the Services and the controller of this one mean, too. Empty: it belongs to no group.
fn group(caches: &Caches, pod: &Pod, request: &Request) -> Selector {
    let mut group = Selector::default();
    for service in caches.services.in_namespace(&request.namespace) {
        let selector = service
            .spec
            .as_ref()
            .and_then(|spec| spec.selector.as_ref());
        // A Service without a selector has endpoints of its own; it means no pods.
        let Some(selector) = selector.filter(|selector| !selector.is_empty()) else {
            continue;
        };
        let labels = reading::labels(Some(selector));
        if labels
            .iter()
            .all(|(key, value)| request.labels.get(key) == Some(value))
        {
            group.match_labels.extend(labels);
        }
    }
    let owners = pod.metadata.owner_references.iter().flatten();
    let Some(owner) = owners
        .into_iter()
        .find(|owner| owner.controller == Some(true))
    else {
        return group;
    };
    let key = Key::new(&request.namespace, &owner.name);
    match (owner.api_version.as_str(), owner.kind.as_str()) {
        ("v1", "ReplicationController") => {
            let found = caches.replication_controllers.get(&key);
            let selector = found
                .as_ref()
                .and_then(|found| found.spec.as_ref()?.selector.as_ref());
            group.match_labels.extend(reading::labels(selector));
        }
        ("apps/v1", "ReplicaSet") => {
            let found = caches.replica_sets.get(&key);
            require(
                &mut group,
                found
                    .as_ref()
                    .and_then(|found| Some(&found.spec.as_ref()?.selector)),
            );
        }
        ("apps/v1", "StatefulSet") => {
            let found = caches.stateful_sets.get(&key);
            require(
                &mut group,
                found
                    .as_ref()
                    .and_then(|found| Some(&found.spec.as_ref()?.selector)),
            );
        }
        _ => {}
    }
    group
}

/// Adds what a controller selects; where a Service asks another value of the same label, both must hold.
fn require(group: &mut Selector, selector: Option<&LabelSelector>) {
    let Some(selector) = selector.map(reading::selector) else {
        return;
    };
    let equal = selector
        .match_labels
        .into_iter()
        .map(|(key, value)| Expression {
            key,
            operator: Operator::In,
            values: vec![value],
        });
    group.match_expressions.extend(equal);
    group.match_expressions.extend(selector.match_expressions);
}
