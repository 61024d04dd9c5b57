//! Gangs: several pods that start together. What a spec says of them and how a status folds them.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{GPUWorkloadSpec, GPUWorkloadStatus, GpuAsk};

/// How close together the members of a gang are.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Topology {
    /// A level of the cluster (`host`, `rack`, `zone` and `region`, unless the operator's `--topology-levels` names
    /// others), or the key of a node label: nodes with the same value are close together. A node without the label is
    /// close to no other.
    #[schemars(length(min = 1, max = 316))]
    pub level: String,
    /// What happens when no such place has room for all.
    #[serde(default)]
    pub mode: Closeness,
}

/// What happens when the members do not fit close together.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub enum Closeness {
    /// The gang waits.
    #[default]
    Required,
    /// It is placed anywhere.
    Preferred,
}

/// How a gang starts by MPI.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Mpi {
    /// Processes that may run in each member, as the hostfile says it. Absent: one for each GPU.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 1024))]
    pub slots: Option<i32>,
    /// Where the members' SSH servers listen. Absent: 2222.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1024, max = 65535))]
    pub port: Option<i32>,
}

impl Mpi {
    /// Where the members' SSH servers listen.
    pub fn port(&self) -> i32 {
        self.port.unwrap_or(2222)
    }
}

/// A node and the members of a gang it has.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct AssignedNode {
    /// Its name.
    pub name: String,
    /// Ranks of the members placed there, such as `0-3,7`.
    pub ranks: String,
}

impl GPUWorkloadSpec {
    /// Pods that run together.
    pub fn members(&self) -> u32 {
        let asked = self.replicas.and_then(|count| u32::try_from(count).ok());
        asked.filter(|count| *count > 0).unwrap_or(1)
    }

    /// The fewest members it starts with.
    pub fn least_members(&self) -> u32 {
        let least = self
            .min_replicas
            .and_then(|count| u32::try_from(count).ok());
        let least = least.filter(|count| *count > 0);
        least.map_or(self.members(), |least| least.min(self.members()))
    }

    /// Whether it is several pods that start together.
    pub fn is_gang(&self) -> bool {
        self.members() > 1
    }

    /// All GPUs it asks for.
    pub fn total_gpus(&self) -> i32 {
        let members = i32::try_from(self.members()).unwrap_or(i32::MAX);
        self.gpu_count.saturating_mul(members)
    }

    /// What it asks for, in words: `2 nvidia GPUs`, or `4 × 2 nvidia GPUs` for a gang.
    pub fn describe_ask(&self) -> String {
        let each = GpuAsk::of(self).map_or_else(|problem| problem.0, |ask| ask.describe());
        match (self.least_members(), self.members()) {
            (_, 1) => each,
            (least, many) if least < many => format!("{least}-{many} × {each}"),
            (_, many) => format!("{many} × {each}"),
        }
    }
}

impl GPUWorkloadStatus {
    /// The nodes of the current attempt in words, if it has any: `a`, or `a (2), b (1)` for a gang.
    pub fn places(&self) -> Option<String> {
        if self.assigned_nodes.is_empty() {
            return self.assigned_node.clone();
        }
        let names = self.assigned_nodes.iter();
        let named = names.map(|node| (node.name.as_str(), ranks(&node.ranks)));
        Some(in_words(named))
    }

    /// Members of the current attempt of a gang that were given a node; none when it has no places.
    pub fn placed_members(&self) -> Option<usize> {
        let members = self.assigned_nodes.iter().map(|node| ranks(&node.ranks));
        Some(members.sum()).filter(|members| *members > 0)
    }

    /// Whether the current attempt was given a node.
    pub fn is_on(&self, node: &str) -> bool {
        let mut members = self.assigned_nodes.iter();
        self.assigned_node.as_deref() == Some(node) || members.any(|other| other.name == node)
    }
}

/// Nodes by rank, as a status says them: each once, in the order of its first member.
pub fn fold_nodes<'a>(by_rank: impl IntoIterator<Item = &'a str>) -> Vec<AssignedNode> {
    let mut order: Vec<&str> = Vec::new();
    let mut members: BTreeMap<&str, Vec<usize>> = BTreeMap::new();
    for (rank, node) in by_rank.into_iter().enumerate() {
        let found = members.entry(node).or_default();
        if found.is_empty() {
            order.push(node);
        }
        found.push(rank);
    }
    let folded = order.into_iter().map(|node| AssignedNode {
        name: node.to_owned(),
        ranks: fold_ranks(&members[node]),
    });
    folded.collect()
}

/// Nodes by rank in words: `a (2), b (1)`.
pub fn nodes_in_words<'a>(by_rank: impl IntoIterator<Item = &'a str>) -> String {
    let folded = fold_nodes(by_rank);
    let named = folded.iter();
    in_words(named.map(|node| (node.name.as_str(), ranks(&node.ranks))))
}

/// Rising numbers as `0-3,7`.
pub fn fold_ranks(ranks: &[usize]) -> String {
    let mut runs: Vec<(usize, usize)> = Vec::new();
    for &rank in ranks {
        match runs.last_mut() {
            Some((_, last)) if *last + 1 == rank => *last = rank,
            _ => runs.push((rank, rank)),
        }
    }
    let runs = runs.into_iter().map(|(first, last)| {
        if first == last {
            first.to_string()
        } else {
            format!("{first}-{last}")
        }
    });
    runs.collect::<Vec<_>>().join(",")
}

/// Nodes named in words before the rest is counted.
const NAMED: usize = 4;

fn in_words<'a>(nodes: impl ExactSizeIterator<Item = (&'a str, usize)>) -> String {
    let more = nodes.len().saturating_sub(NAMED);
    let named = nodes.take(NAMED);
    let mut words: Vec<String> = named
        .map(|(name, count)| format!("{name} ({count})"))
        .collect();
    if more > 0 {
        words.push(format!("{more} more nodes"));
    }
    words.join(", ")
}

/// How many ranks `0-3,7` names.
fn ranks(folded: &str) -> usize {
    let runs = folded.split(',').filter(|run| !run.is_empty());
    let size = |run: &str| {
        let (first, last) = run.split_once('-').unwrap_or((run, run));
        let (first, last) = (first.parse::<usize>().ok()?, last.parse::<usize>().ok()?);
        last.checked_sub(first).map(|more| more + 1)
    };
    runs.filter_map(size).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nodes_are_folded_and_told_in_words() {
        let folded = fold_nodes(["b", "b", "a", "b"]);
        let said: Vec<_> = folded
            .iter()
            .map(|node| (node.name.as_str(), node.ranks.as_str()))
            .collect();
        assert_eq!(said, [("b", "0-1,3"), ("a", "2")]);
        let status = GPUWorkloadStatus {
            assigned_nodes: folded,
            ..Default::default()
        };
        assert_eq!(status.places().as_deref(), Some("b (3), a (1)"));
        assert!(status.is_on("a") && !status.is_on("c"));
        let names: Vec<String> = (0..9).map(|number| format!("n{number}")).collect();
        let many = GPUWorkloadStatus {
            assigned_nodes: fold_nodes(names.iter().map(String::as_str)),
            ..Default::default()
        };
        assert_eq!(
            many.places().as_deref(),
            Some("n0 (1), n1 (1), n2 (1), n3 (1), 5 more nodes")
        );
    }

    #[test]
    fn a_gang_asks_for_its_members() {
        let spec = GPUWorkloadSpec {
            gpu_count: 2,
            replicas: Some(4),
            ..Default::default()
        };
        assert_eq!(spec.describe_ask(), "4 × 2 nvidia GPUs");
        assert_eq!(spec.total_gpus(), 8);
        let one = GPUWorkloadSpec {
            replicas: Some(1),
            ..spec
        };
        assert!(!one.is_gang());
        assert_eq!(one.describe_ask(), "2 nvidia GPUs");
    }
}
