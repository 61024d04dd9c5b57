//! Where a volume can be reached from, as its own affinity, its labels and its class say.

use std::sync::Arc;

use k8s_openapi::api::core::v1::{PersistentVolume, TopologySelectorTerm};
use kube::ResourceExt;
use warp_core::fleet::{Expression, NodeTerm, Operator, Reach};

use super::node_terms;

/// Labels that name a volume's zone or region, with their name today.
const TOPOLOGY: [(&str, &str); 4] = [
    (
        "failure-domain.beta.kubernetes.io/zone",
        "topology.kubernetes.io/zone",
    ),
    (
        "failure-domain.beta.kubernetes.io/region",
        "topology.kubernetes.io/region",
    ),
    ("topology.kubernetes.io/zone", "topology.kubernetes.io/zone"),
    (
        "topology.kubernetes.io/region",
        "topology.kubernetes.io/region",
    ),
];

/// Between the zones of a volume that is in several.
const BETWEEN: &str = "__";

/// Where the volume of a claim can be reached; empty means everywhere.
pub fn reach(claim: &str, volume: &PersistentVolume) -> Vec<Reach> {
    let spec = volume.spec.as_ref();
    let affinity = spec.and_then(|spec| spec.node_affinity.as_ref()?.required.as_ref());
    let mut found = Vec::new();
    if let Some(required) = affinity {
        found.push(Reach {
            claim: Arc::from(claim),
            nodes: node_terms(required),
        });
    }
    for (key, today) in TOPOLOGY {
        if let Some(zones) = volume.labels().get(key) {
            found.push(Reach {
                claim: Arc::from(claim),
                nodes: zonal(key, today, zones),
            });
        }
    }
    found
}

/// Nodes in one of the zones. A node without any such label is in no zone and reaches all of them.
fn zonal(key: &str, today: &str, zones: &str) -> Vec<NodeTerm> {
    let zones: Vec<&str> = zones.split(BETWEEN).collect();
    let term = |expressions: Vec<Expression>| NodeTerm {
        match_expressions: expressions,
        match_fields: Vec::new(),
    };
    let absent = |key: &str| Expression::new(key, Operator::DoesNotExist, &[]);
    let mut terms = vec![
        term(vec![Expression::new(key, Operator::In, &zones)]),
        term(TOPOLOGY.map(|(key, _)| absent(key)).to_vec()),
    ];
    if key != today {
        terms.push(term(vec![
            absent(key),
            Expression::new(today, Operator::In, &zones),
        ]));
    }
    terms
}

/// Where a class may make its volumes; `None` means everywhere.
pub fn allowed(topologies: &[TopologySelectorTerm]) -> Option<Vec<NodeTerm>> {
    let term = |one: &TopologySelectorTerm| NodeTerm {
        match_expressions: one
            .match_label_expressions
            .iter()
            .flatten()
            .map(|one| {
                let values: Vec<&str> = one.values.iter().map(String::as_str).collect();
                Expression::new(&one.key, Operator::In, &values)
            })
            .collect(),
        match_fields: Vec::new(),
    };
    (!topologies.is_empty()).then(|| topologies.iter().map(term).collect())
}
