//! Decisions about GPUs: what fits where, which place is best, what runs next, what is in the way.
//!
//! The crate owns the model of a fleet and every choice made over it. It does no I/O, has no clock
//! and knows no Kubernetes types: a decision is a function of (snapshot, seed) and nothing else. Its
//! own `clippy.toml` enforces it.

pub mod breaker;
pub mod check;
pub mod engine;
pub mod estimate;
pub mod explain;
pub mod fleet;
pub mod gpu;
pub mod preempt;
pub mod provider;
pub mod purchase;
pub mod queue;
pub mod random;
pub mod resources;
pub mod rollout;
pub mod room;
pub mod scale;
pub mod schedule;
pub mod simulate;
pub mod size;
pub mod tenancy;
