//! Decisions about GPUs: pure functions of their arguments. No I/O, no clock, no Kubernetes types;
//! the crate's own `clippy.toml` enforces it.

pub mod estimate;
pub mod preempt;
pub mod queue;
pub mod simulate;
