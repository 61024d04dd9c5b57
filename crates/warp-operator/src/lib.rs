//! The controllers: they watch a cluster through its API alone, decide with `warp-core`, and write
//! back through one executor.
//!
//! Every kind follows the same pattern: `observe` (read, decide nothing) → `plan` (pure) → `apply`
//! (choose nothing). Placement is one global loop in `scheduler`.

mod apply;
mod audit;
mod cache;
mod clock;
mod config;
mod context;
mod driver;
pub mod ledger;
mod metrics;
mod plan;
#[cfg(test)]
mod purity;
mod readiness;
mod retry;
mod run;
mod scheduler;
mod serve;
mod tenant;
mod workload;

pub use audit::TARGET as AUDIT_TARGET;
pub use clock::Clock;
pub use config::{Config, Endpoint, LeaderConfig, Settings};
pub use retry::client;
pub use run::{RunError, run};
