//! Affinity to nodes and to pods, required and preferred, and the selectors in it.

use std::sync::Arc;

use k8s_openapi::api::core::v1::{
    NodeAffinity, NodeSelectorRequirement, NodeSelectorTerm, PodAffinityTerm, PodSpec,
    WeightedPodAffinityTerm,
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;
use warp_core::fleet::{Expression, NodeTerm, Operator, PodTerm, Selector, Weighted};

use super::{labels, node_terms, texts};

fn node(spec: &PodSpec) -> Option<&NodeAffinity> {
    spec.affinity.as_ref()?.node_affinity.as_ref()
}

pub(super) fn required_node(spec: &PodSpec) -> Option<Vec<NodeTerm>> {
    let required = node(spec)?
        .required_during_scheduling_ignored_during_execution
        .as_ref();
    required.map(node_terms)
}

pub(super) fn preferred_node(spec: &PodSpec) -> Vec<Weighted<NodeTerm>> {
    let preferred = node(spec).and_then(|node| {
        node.preferred_during_scheduling_ignored_during_execution
            .as_ref()
    });
    let preferred = preferred.into_iter().flatten();
    preferred
        .map(|one| Weighted {
            weight: one.weight,
            term: node_term(&one.preference),
        })
        .collect()
}

pub(super) fn required_near(spec: &PodSpec) -> Vec<PodTerm> {
    let near = spec.affinity.as_ref().and_then(|affinity| {
        affinity
            .pod_affinity
            .as_ref()?
            .required_during_scheduling_ignored_during_execution
            .as_ref()
    });
    near.into_iter().flatten().map(pod_term).collect()
}

pub(super) fn required_apart(spec: &PodSpec) -> Vec<PodTerm> {
    let apart = spec.affinity.as_ref().and_then(|affinity| {
        affinity
            .pod_anti_affinity
            .as_ref()?
            .required_during_scheduling_ignored_during_execution
            .as_ref()
    });
    apart.into_iter().flatten().map(pod_term).collect()
}

pub(super) fn preferred_near(spec: &PodSpec) -> Vec<Weighted<PodTerm>> {
    let near = spec.affinity.as_ref().and_then(|affinity| {
        affinity
            .pod_affinity
            .as_ref()?
            .preferred_during_scheduling_ignored_during_execution
            .as_ref()
    });
    near.into_iter().flatten().map(weighted).collect()
}

pub(super) fn preferred_apart(spec: &PodSpec) -> Vec<Weighted<PodTerm>> {
    let apart = spec.affinity.as_ref().and_then(|affinity| {
        affinity
            .pod_anti_affinity
            .as_ref()?
            .preferred_during_scheduling_ignored_during_execution
            .as_ref()
    });
    apart.into_iter().flatten().map(weighted).collect()
}

fn weighted(one: &WeightedPodAffinityTerm) -> Weighted<PodTerm> {
    Weighted {
        weight: one.weight,
        term: pod_term(&one.pod_affinity_term),
    }
}

fn pod_term(term: &PodAffinityTerm) -> PodTerm {
    PodTerm {
        selector: term.label_selector.as_ref().map(selector),
        topology_key: Arc::from(term.topology_key.as_str()),
        namespaces: texts(term.namespaces.as_ref()).into_iter().collect(),
        namespace_selector: term.namespace_selector.as_ref().map(selector),
        match_label_keys: texts(term.match_label_keys.as_ref()),
        mismatch_label_keys: texts(term.mismatch_label_keys.as_ref()),
    }
}

pub(super) fn node_term(term: &NodeSelectorTerm) -> NodeTerm {
    let read = |requirements: Option<&Vec<NodeSelectorRequirement>>| {
        let requirements = requirements.into_iter().flatten();
        requirements
            .map(|one| expression(&one.key, &one.operator, one.values.as_ref()))
            .collect()
    };
    NodeTerm {
        match_expressions: read(term.match_expressions.as_ref()),
        match_fields: read(term.match_fields.as_ref()),
    }
}

pub fn selector(selector: &LabelSelector) -> Selector {
    let requirements = selector.match_expressions.iter().flatten();
    Selector {
        match_labels: labels(selector.match_labels.as_ref()),
        match_expressions: requirements
            .map(|one| expression(&one.key, &one.operator, one.values.as_ref()))
            .collect(),
    }
}

/// The API server accepts no other operator; one of a later version is read as `In`, the narrowest.
fn expression(key: &str, operator: &str, values: Option<&Vec<String>>) -> Expression {
    Expression {
        key: Arc::from(key),
        operator: match operator {
            "NotIn" => Operator::NotIn,
            "Exists" => Operator::Exists,
            "DoesNotExist" => Operator::DoesNotExist,
            "Gt" => Operator::Gt,
            "Lt" => Operator::Lt,
            _ => Operator::In,
        },
        values: texts(values),
    }
}
