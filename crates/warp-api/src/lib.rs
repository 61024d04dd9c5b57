//! The kinds of `gpu.warp.dev`, one file each, with the words every part of Warp shares about them:
//! labels, condition types, reasons.
//!
//! Owns the schema and what it means (defaults, rules, reading of its text fields). It talks to no
//! cluster and decides nothing about placement.

pub mod cloudprovider;
pub mod condition;
pub mod crd;
pub mod gpurequest;
pub mod gpus;
pub mod inferenceservice;
pub mod kinds;
pub mod label;
pub mod modelcache;
pub mod pod;
mod pod_template;
pub mod price;
pub mod providers;
pub mod reason;
pub mod reference;
pub mod tenant;
pub mod workload;

pub use cloudprovider::{CloudProvider, CloudProviderSpec, CloudProviderStatus};
pub use gpurequest::{GPURequest, GPURequestSpec, GPURequestStatus, RequestPhase};
pub use inferenceservice::{InferenceService, InferenceServiceSpec, InferenceServiceStatus};
pub use modelcache::{ModelCache, ModelCacheSpec, ModelCacheStatus};
pub use tenant::{Tenant, TenantSpec, TenantStatus};
pub use workload::{GPUWorkload, GPUWorkloadSpec, GPUWorkloadStatus, Phase};

/// The API group of every kind.
pub const GROUP: &str = "gpu.warp.dev";

/// Version of every kind.
pub const VERSION: &str = "v1alpha1";
