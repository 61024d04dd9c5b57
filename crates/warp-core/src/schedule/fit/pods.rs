//! What other pods do to a request: host ports, pod affinity, anti-affinity in both directions.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use crate::fleet::{Expression, Fleet, Labels, Node, NodeId, Operator, PodTerm, Request, Selector};

use super::Failures;
use crate::schedule::reason::Reason;

pub(super) fn ports(fleet: &Fleet, id: NodeId, request: &Request, failures: &mut impl Failures) {
    if request.constraints.host_ports.is_empty() {
        return;
    }
    for work in fleet.works_on(id) {
        for theirs in &work.request.constraints.host_ports {
            if request
                .constraints
                .host_ports
                .iter()
                .any(|mine| mine.conflicts(theirs))
            {
                let (port, holder) = (theirs.port, || Arc::clone(&work.request.name));
                failures.fail(|| Reason::HostPort {
                    port,
                    holder: holder(),
                });
            }
        }
    }
}

/// One topology domain: a label key and its value.
type Domain = (Arc<str>, Arc<str>);

/// Where the pods are that a request wants near, wants away, or that want it away.
#[derive(Debug)]
pub(super) struct OtherPods<'a> {
    request: &'a Request,
    /// Domains with a pod that matches all affinity terms.
    wanted: BTreeSet<Domain>,
    /// Domains with a pod that matches one of the anti-affinity terms, and one such pod.
    avoided: Vec<BTreeMap<Arc<str>, Arc<str>>>,
    /// Domains a bound pod keeps this request out of.
    repelled: BTreeMap<Domain, Arc<str>>,
    first_of_its_group: bool,
}

impl<'a> OtherPods<'a> {
    pub(super) fn count(fleet: &Fleet, request: &'a Request) -> Self {
        let constraints = &request.constraints;
        let mut pods = Self {
            request,
            wanted: BTreeSet::new(),
            avoided: vec![BTreeMap::new(); constraints.pod_anti_affinity.len()],
            repelled: BTreeMap::new(),
            first_of_its_group: false,
        };
        pods.count_repelling(fleet);
        if constraints.pod_affinity.is_empty() && constraints.pod_anti_affinity.is_empty() {
            return pods;
        }
        for work in fleet.works() {
            let Some(node) = fleet.find(&work.node).and_then(|id| fleet.node(id)) else {
                continue;
            };
            pods.count_near(fleet, &work.request, node);
            pods.count_avoided(fleet, &work.request, node);
        }
        // A group's first pod would otherwise wait for itself.
        let wants = |term: &PodTerm| selects(fleet, term, Side::Asking, request, request);
        pods.first_of_its_group =
            pods.wanted.is_empty() && constraints.pod_affinity.iter().all(wants);
        pods
    }

    fn count_repelling(&mut self, fleet: &Fleet) {
        for work in fleet.repelling() {
            let Some(node) = fleet.find(&work.node).and_then(|id| fleet.node(id)) else {
                continue;
            };
            for term in &work.request.constraints.pod_anti_affinity {
                if let Some(value) = node.labels.get(&term.topology_key)
                    && selects(fleet, term, Side::Bound, &work.request, self.request)
                {
                    let domain = (Arc::clone(&term.topology_key), Arc::clone(value));
                    self.repelled.insert(domain, Arc::clone(&work.request.name));
                }
            }
        }
    }

    fn count_near(&mut self, fleet: &Fleet, other: &Request, node: &Node) {
        let terms = &self.request.constraints.pod_affinity;
        let wants = |term: &PodTerm| selects(fleet, term, Side::Asking, self.request, other);
        if terms.is_empty() || !terms.iter().all(wants) {
            return;
        }
        for term in terms {
            if let Some(value) = node.labels.get(&term.topology_key) {
                self.wanted
                    .insert((Arc::clone(&term.topology_key), Arc::clone(value)));
            }
        }
    }

    fn count_avoided(&mut self, fleet: &Fleet, other: &Request, node: &Node) {
        for (term, domains) in self
            .request
            .constraints
            .pod_anti_affinity
            .iter()
            .zip(&mut self.avoided)
        {
            if let Some(value) = node.labels.get(&term.topology_key)
                && selects(fleet, term, Side::Asking, self.request, other)
            {
                domains.insert(Arc::clone(value), Arc::clone(&other.name));
            }
        }
    }

    /// Whether bound pods keep the request out of anything, though it says nothing of pods itself.
    pub(super) fn matter(&self) -> bool {
        !self.repelled.is_empty()
    }

    pub(super) fn check(&self, node: &Node, failures: &mut impl Failures) {
        let constraints = &self.request.constraints;
        for term in &constraints.pod_affinity {
            let key = || Arc::clone(&term.topology_key);
            match node.labels.get(&term.topology_key) {
                None => failures.fail(|| Reason::NoTopologyLabel { key: key() }),
                Some(value) => {
                    let near = self.wanted.contains(&(key(), Arc::clone(value)));
                    if !near && !self.first_of_its_group {
                        failures.fail(|| Reason::PodAffinity { key: key() });
                    }
                }
            }
        }
        for (term, domains) in constraints.pod_anti_affinity.iter().zip(&self.avoided) {
            if let Some(holder) = node
                .labels
                .get(&term.topology_key)
                .and_then(|v| domains.get(v))
            {
                let (key, holder) = (Arc::clone(&term.topology_key), Arc::clone(holder));
                failures.fail(|| Reason::PodAntiAffinity { key, holder });
            }
        }
        for ((key, value), holder) in &self.repelled {
            if node.labels.get(key) == Some(value) {
                let (key, holder) = (Arc::clone(key), Arc::clone(holder));
                failures.fail(|| Reason::Repelled { key, holder });
                return;
            }
        }
    }
}

/// Whose term it is: kube-scheduler reads the two differently.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::schedule) enum Side {
    /// The pod that is to be placed.
    Asking,
    /// A pod that has its place.
    Bound,
}

/// Whether a term of `owner` selects the pod `other`.
pub(in crate::schedule) fn selects(
    fleet: &Fleet,
    term: &PodTerm,
    side: Side,
    owner: &Request,
    other: &Request,
) -> bool {
    let Some(selector) = &term.selector else {
        return false;
    };
    in_namespaces(fleet, term, side, owner, &other.namespace)
        && selector.matches(&other.labels)
        && keys_match(
            &term.match_label_keys,
            &owner.labels,
            &other.labels,
            Operator::In,
        )
        && keys_match(
            &term.mismatch_label_keys,
            &owner.labels,
            &other.labels,
            Operator::NotIn,
        )
}

fn in_namespaces(
    fleet: &Fleet,
    term: &PodTerm,
    side: Side,
    owner: &Request,
    namespace: &Arc<str>,
) -> bool {
    if term.namespaces.is_empty() && term.namespace_selector.is_none() {
        return owner.namespace == *namespace;
    }
    let none = Labels::new();
    let labels = fleet.namespace_labels(namespace).unwrap_or(&none);
    // As kube-scheduler has it: what a pod that asks says of namespaces is also held against no labels
    // at all, so a selector that is true of none (`NotIn`, `DoesNotExist`) selects every namespace.
    let selected = |selector: &Selector| {
        selector.matches(labels) || (side == Side::Asking && selector.matches(&none))
    };
    term.namespaces.contains(namespace) || term.namespace_selector.as_ref().is_some_and(selected)
}

/// `matchLabelKeys` and `mismatchLabelKeys`: the owner's own value of each key becomes part of the
/// selector; keys the owner lacks are ignored.
pub(super) fn keys_match(
    keys: &[Arc<str>],
    owner: &Labels,
    other: &Labels,
    operator: Operator,
) -> bool {
    keys.iter().all(|key| {
        owner.get(key).is_none_or(|value| {
            let values = vec![Arc::clone(value)];
            let expression = Expression {
                key: Arc::clone(key),
                operator,
                values,
            };
            expression.matches(other.get(key).map(|v| &**v))
        })
    })
}
