//! What a piece of work would rather have. None of it is required: `fit` never looks at it.

use serde::{Deserialize, Serialize};

use super::request::{PodTerm, Spread};
use super::select::NodeTerm;

/// Where the work would rather run, in Kubernetes' words.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default, deny_unknown_fields)]
pub struct Preferences {
    pub node_affinity: Vec<Weighted<NodeTerm>>,
    pub pod_affinity: Vec<Weighted<PodTerm>>,
    pub pod_anti_affinity: Vec<Weighted<PodTerm>>,
    /// `ScheduleAnyway` topology spread constraints.
    pub spread: Vec<Spread>,
    /// Whose rules `spread` are. Under the cluster's a node may lack one of the labels and still
    /// count for the others; under the work's own it then counts for none.
    pub spread_by: SpreadRules,
}

impl Preferences {
    pub fn is_empty(&self) -> bool {
        self.node_affinity.is_empty() && self.spread.is_empty() && !self.speak_of_pods()
    }

    /// Whether other pods' places matter by affinity.
    pub fn speak_of_pods(&self) -> bool {
        !(self.pod_affinity.is_empty() && self.pod_anti_affinity.is_empty())
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Weighted<T> {
    /// 1 to 100.
    pub weight: i32,
    pub term: T,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum SpreadRules {
    #[default]
    Own,
    Cluster,
}

/// CPU and memory as scores by load count them: what is asked for, and a small amount for every
/// container that asks for nothing, so that such pods do not all gather on one node.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Load {
    pub cpu_milli: i64,
    pub memory_bytes: i64,
}

impl Load {
    pub(super) fn add(&mut self, other: Self, sign: i64) {
        let add = |mine: i64, other: i64| mine.saturating_add(sign.saturating_mul(other));
        self.cpu_milli = add(self.cpu_milli, other.cpu_milli);
        self.memory_bytes = add(self.memory_bytes, other.memory_bytes);
    }
}
