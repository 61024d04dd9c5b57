//! What the process is told: flags and environment become one `Config` before anything starts.

use std::net::SocketAddr;
use std::time::Duration;

use warp_api::workload::SchedulingStrategy;

/// Everything `run` needs besides a client.
#[derive(Clone, Debug)]
pub struct Config {
    /// Workloads, Jobs and Events of this namespace only; `None` for all. Nodes and pods are always
    /// read cluster-wide, or the ledger would be wrong.
    pub namespace: Option<String>,
    /// Name of this instance, unique among replicas.
    pub identity: String,
    /// Lease to hold while acting; `None` acts at once.
    pub leader: Option<LeaderConfig>,
    pub health_addr: Option<SocketAddr>,
    pub metrics_addr: Option<SocketAddr>,
    pub settings: Settings,
}

/// Which lease decides who acts.
#[derive(Clone, Debug)]
pub struct LeaderConfig {
    pub namespace: String,
    pub lease: String,
}

/// Numbers that decisions depend on.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Strategy of workloads that name none.
    pub default_strategy: SchedulingStrategy,
    /// A placed attempt that does not run after this time has failed.
    pub start_timeout: Duration,
    /// A node silent for this long is taken for dead: its attempt counts as failed and the next one
    /// may start although the old one cannot be proven gone.
    pub node_loss_timeout: Duration,
    /// A node the cluster's scheduler refused is left out for this long.
    pub refusal_timeout: Duration,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            default_strategy: SchedulingStrategy::Warp,
            start_timeout: Duration::from_mins(30),
            node_loss_timeout: Duration::from_mins(5),
            refusal_timeout: Duration::from_mins(5),
        }
    }
}
