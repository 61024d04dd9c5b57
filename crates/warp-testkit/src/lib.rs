//! A cluster in a test: a real Kubernetes control plane or the embedded engine, with simulated GPU
//! nodes, and what tests need to drive and judge it.
//!
//! Owns: starting and ending the control plane, node shapes, the behaviour of simulated pods,
//! credentials, waiting on watches, and reading the audit log. Must not know what Warp's operator
//! does: scenarios live with the crate they judge.

pub mod audit;
pub mod behaviour;
pub mod canary;
pub mod cluster;
pub mod fault;
pub mod kubectl;
pub mod node;
pub mod oracle;
pub mod page;
pub mod process;
pub mod wait;
pub mod webhook;

mod binaries;
mod stages;

pub use behaviour::Behaviour;
pub use binaries::{control_plane, repository};
pub use cluster::{Builder, Cluster, Engine};
pub use fault::{Faults, Plan};
pub use node::NodeShape;
pub use oracle::SchedulerOracle;
pub use process::{Process, Signal};
pub use wait::{PATIENCE, changes, until, wait_for, wait_gone};
pub use warp_apiserver::store::EventKind;
pub use webhook::Webhook;
