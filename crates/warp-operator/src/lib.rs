//! The controllers: they watch a cluster through its API alone, decide with `warp-core`, and write
//! back through one executor.
//!
//! Every kind stands on `warp-runtime`: `observe` (read, decide nothing) → `plan` (pure) → the one executor
//! (chooses nothing). Placement is one global loop in `placement`.

mod audit;
mod budget;
mod clock;
mod cloudprovider;
mod config;
mod containers;
mod context;
mod estimates;
pub mod foresight;
mod gpurequest;
mod gpus;
mod inferenceservice;
mod joining;
pub mod ledger;
mod metrics;
mod modelcache;
mod placement;
mod providers;
#[cfg(test)]
mod purity;
mod queuedjob;
mod readiness;
#[doc(hidden)]
pub mod rehearsal;
mod retry;
mod run;
mod said;
mod serve;
mod shapes;
mod tenant;
mod workload;

pub use audit::TARGET as AUDIT_TARGET;
pub use config::{Config, Endpoint, LeaderConfig, QueuePolicy, STAND_IN_IMAGE, Settings};
pub use estimates::KEPT as DURATIONS;
pub use modelcache::Fetcher;
pub use retry::client;
pub use run::{RunError, run};
pub use warp_runtime::Clock;
