//! Nodes.
#![allow(
    clippy::unwrap_used,
    clippy::duration_suboptimal_units,
    reason = "a test that cannot go on has failed"
)]

mod docker;
mod refusals;
mod simulated;
mod streams;
mod virtual_time;
