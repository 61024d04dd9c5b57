//! The kinds of `gpu.warp.dev`, one file each, with the words every part of Warp shares about them:
//! labels, condition types, reasons.
//!
//! Owns the schema and what it means (defaults, rules, reading of its text fields). It talks to no
//! cluster and decides nothing about placement.

pub mod condition;
pub mod crd;
pub mod kinds;
pub mod label;
pub mod pod;
mod pod_template;
pub mod reason;
pub mod reference;
pub mod tenant;
pub mod workload;

pub use tenant::{Tenant, TenantSpec, TenantStatus};
pub use workload::{GPUWorkload, GPUWorkloadSpec, GPUWorkloadStatus, Phase};

/// The API group of every kind.
pub const GROUP: &str = "gpu.warp.dev";
