//! Nodes that run pods: the part of the embedded engine a kubelet plays elsewhere.
//!
//! One pure state machine ([`lifecycle`]) decides what happens to a pod next; a [`Runtime`] makes it
//! happen (simulated, processes, Docker) and reports back as [`facts::Event`]s; a [`Host`] joins both to
//! the API. Nodes speak only the Kubernetes API and never decide where a pod runs.

pub mod access;
pub mod address;
mod checks;
pub mod complaint;
mod contents;
pub mod devices;
pub mod docker;
pub mod engines;
pub mod facts;
pub mod faults;
pub mod fleet;
pub mod host;
mod image;
pub mod lifecycle;
pub mod process;
pub mod rented;
pub mod runtime;
pub mod simulated;
pub mod spelling;
mod task;
pub mod timeline;

pub use engines::WithEngines;
pub use facts::{Event, Exit, Facts};
pub use host::Host;
pub use lifecycle::{Action, Step, step};
pub use runtime::Runtime;
pub use simulated::Simulated;
