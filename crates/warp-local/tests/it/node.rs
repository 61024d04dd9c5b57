//! Nodes.

mod docker;
mod simulated;
mod virtual_time;
