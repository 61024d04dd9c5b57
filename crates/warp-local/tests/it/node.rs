//! Nodes.

mod docker;
mod simulated;
