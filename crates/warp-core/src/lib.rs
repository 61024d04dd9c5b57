//! Decisions without I/O, clock or Kubernetes types.

pub mod gpu;
