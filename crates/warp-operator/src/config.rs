//! What the process is told: flags and environment become one `Config` before anything starts.

use std::net::{SocketAddr, TcpListener};
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

use warp_api::workload::{SchedulingStrategy, TopologyLevels};
use warp_core::schedule::PriceWeight;

use crate::modelcache::Fetcher;

/// Everything `run` needs besides a client.
#[derive(Clone, Debug)]
pub struct Config {
    /// Workloads, Jobs and Events of this namespace only; `None` for all. Nodes and pods are always
    /// read cluster-wide, or the ledger would be wrong.
    pub namespace: Option<String>,
    /// Name of this instance, unique among replicas.
    pub identity: String,
    /// Namespace of what the operator keeps for itself (how long work has run); `None` keeps it in memory only.
    pub home: Option<String>,
    /// Lease to hold while acting; `None` acts at once.
    pub leader: Option<LeaderConfig>,
    /// Where `/healthz` and `/readyz` answer.
    pub health_addr: Option<Endpoint>,
    /// Where `/metrics` answers; may be the same place.
    pub metrics_addr: Option<Endpoint>,
    pub settings: Settings,
}

/// A place to answer at.
#[derive(Clone, Debug)]
pub enum Endpoint {
    /// Listened on once the operator runs.
    At(SocketAddr),
    /// Listened on already, by a caller that had to know the port before.
    Bound(Arc<TcpListener>),
}

impl Endpoint {
    pub(crate) fn is_same(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::At(one), Self::At(other)) => one == other,
            (Self::Bound(one), Self::Bound(other)) => Arc::ptr_eq(one, other),
            _ => false,
        }
    }
}

/// Which lease decides who acts.
#[derive(Clone, Debug)]
pub struct LeaderConfig {
    pub namespace: String,
    pub lease: String,
}

/// Who may start before somebody who came earlier and waits for room.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum QueuePolicy {
    /// Whoever does not take the room that is kept for the first in line.
    #[default]
    Easy,
    /// Nobody who could use the same nodes.
    Fifo,
    /// Anybody: wide work may wait for ever.
    SkipAhead,
    /// Anybody, those first that are expected to be done soonest: long and wide work may wait for ever.
    Sjf,
    /// Anybody, those first that have had least so far; they evict checkpointed work that has had far more.
    Las,
    /// Short and narrow work first, within limits: nobody waits for more than a week and what runs then.
    Warp,
}

impl QueuePolicy {
    /// Whether it goes by how long work has run so far.
    pub fn learns(self) -> bool {
        matches!(self, Self::Sjf | Self::Las | Self::Warp)
    }
}

impl FromStr for QueuePolicy {
    type Err = String;

    fn from_str(name: &str) -> Result<Self, String> {
        match name {
            "easy" => Ok(Self::Easy),
            "fifo" => Ok(Self::Fifo),
            "skipAhead" => Ok(Self::SkipAhead),
            "sjf" => Ok(Self::Sjf),
            "las" => Ok(Self::Las),
            "warp" => Ok(Self::Warp),
            _ => Err(format!(
                "there is no queue policy {name:?}; pass easy, fifo, skipAhead, sjf, las or warp"
            )),
        }
    }
}

/// What pods name that stand in for work which waits.
pub const STAND_IN_IMAGE: &str = "registry.k8s.io/pause:3.10";

/// Numbers that decisions depend on.
#[derive(Clone, Debug)]
#[expect(
    clippy::struct_excessive_bools,
    reason = "each is a flag of the process"
)]
pub struct Settings {
    /// Strategy of workloads that name none.
    pub default_strategy: SchedulingStrategy,
    /// Who may start before somebody who came earlier.
    pub queue_policy: QueuePolicy,
    /// What a cheaper node is worth to the strategy `warp`.
    pub price_weight: PriceWeight,
    /// A placed attempt that does not run after this time has failed.
    pub start_timeout: Duration,
    /// A node silent for this long is taken for dead: its attempt counts as failed and the next one
    /// may start although the old one cannot be proven gone.
    pub node_loss_timeout: Duration,
    /// A node the cluster's scheduler refused is left out for this long.
    pub refusal_timeout: Duration,
    /// Work that has run for less is not evicted for work of higher priority.
    pub min_run_time: Duration,
    /// Whether running work that saves what it does is moved elsewhere where a gang starts by that.
    pub defragment: bool,
    /// The words for how close together the members of a gang are.
    pub topology_levels: Arc<TopologyLevels>,
    /// What fetches models.
    pub fetcher: Fetcher,
    /// Whether owners of tenants are bound and their namespaces shut off, which takes rights of its own.
    pub isolate_tenants: bool,
    /// Whether copies of models are kept on nodes and those labelled, which takes rights of its own.
    pub node_copies: bool,
    /// Whether work that waits may be shown to the cluster's autoscaler, which takes rights of its own.
    pub show_pending: bool,
    /// Whether autoscalers of others are told how to scale services, which takes rights of its own.
    pub autoscalers: bool,
    /// The image that pods which stand in for it name. They never run.
    pub stand_in_image: String,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            default_strategy: SchedulingStrategy::Warp,
            queue_policy: QueuePolicy::default(),
            price_weight: PriceWeight::IGNORED,
            start_timeout: Duration::from_mins(30),
            node_loss_timeout: Duration::from_mins(5),
            refusal_timeout: Duration::from_mins(5),
            min_run_time: Duration::from_mins(1),
            defragment: false,
            topology_levels: Arc::default(),
            fetcher: Fetcher::default(),
            isolate_tenants: false,
            node_copies: false,
            show_pending: false,
            autoscalers: false,
            stand_in_image: STAND_IN_IMAGE.to_owned(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_policy_of_the_core_can_be_asked_for_and_nothing_else() {
        for name in warp_core::queue::NAMES {
            let policy: QueuePolicy = name.parse().expect(name);
            assert_eq!(crate::placement::policy(policy).name(), name);
        }
        let problem = "fastest".parse::<QueuePolicy>().unwrap_err();
        assert!(
            problem.contains("\"fastest\"") && problem.contains("easy, fifo"),
            "{problem}"
        );
    }
}
