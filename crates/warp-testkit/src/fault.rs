//! Faults between a controller and its API server, a world in virtual time to meet them in, and the
//! judges of what comes of it.
//!
//! Owns: the layer every request of a controller under test goes through ([`Faults`]), the plan that
//! drives it and prints as one line ([`Plan`]), the same layer as a proxy in front of a real API
//! server ([`Proxy`]), a cluster in this process in virtual time ([`world`]), the history of every
//! object in it ([`history`]), the invariants it must keep ([`judge`]) and the exhaustive loop
//! ([`campaign`]). Must not know what the controller under test does.

pub mod campaign;
pub mod history;
pub mod judge;
pub mod world;

mod layer;
mod plan;
mod proxy;
mod request;
mod watch;

pub use layer::{FaultService, Faults, Record, Tally};
pub use plan::{Extent, Fault, Plan, PlanError, Rule, Selector};
pub use proxy::Proxy;
pub use request::{Call, Class};

#[cfg(test)]
mod tests;
