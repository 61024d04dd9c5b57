//! Nodes.

mod simulated;
