//! The table of kinds. CRDs, golden files, reference pages, `warp status` and metrics derive from it; roles, examples,
//! controllers, fault scenarios, walks and `make undeploy` are checked against it by tests: a new kind is a file here, a folder in `warp-operator`,
//! one line in [`KINDS`], and what the tests then name.

use serde_json::Value;

use crate::crd;

/// One kind and where its parts are.
#[derive(Clone, Copy, Debug)]
pub struct KindEntry {
    pub kind: &'static str,
    pub plural: &'static str,
    pub short_name: &'static str,
    /// What several are called where they are counted, as in `warp status`.
    pub noun: &'static str,
    pub namespaced: bool,
    /// Its CRD, ready to be applied.
    pub crd: fn() -> Value,
    /// A manifest in `deploy/examples/` that the tests apply.
    pub example: &'static str,
    /// Its controller: a file and a folder of this name in `crates/warp-operator/src`. Its metrics carry the kind in lower
    /// case.
    pub controller: &'static str,
}

/// Every kind of the group.
pub const KINDS: &[KindEntry] = &[
    KindEntry {
        kind: "GPUWorkload",
        plural: "gpuworkloads",
        short_name: "gpuw",
        noun: "workloads",
        namespaced: true,
        crd: crd::gpu_workload,
        example: "train.yaml",
        controller: "workload",
    },
    KindEntry {
        kind: "Tenant",
        plural: "tenants",
        short_name: "gten",
        noun: "tenants",
        namespaced: false,
        crd: crd::tenant,
        example: "tenant.yaml",
        controller: "tenant",
    },
    KindEntry {
        kind: "InferenceService",
        plural: "inferenceservices",
        short_name: "isvc",
        noun: "services",
        namespaced: true,
        crd: crd::inference_service,
        example: "serve.yaml",
        controller: "inferenceservice",
    },
    KindEntry {
        kind: "GPURequest",
        plural: "gpurequests",
        short_name: "gpur",
        noun: "requests",
        namespaced: true,
        crd: crd::gpu_request,
        example: "rent.yaml",
        controller: "gpurequest",
    },
    KindEntry {
        kind: "CloudProvider",
        plural: "cloudproviders",
        short_name: "gpucp",
        noun: "clouds",
        namespaced: false,
        crd: crd::cloud_provider,
        example: "cloud.yaml",
        controller: "cloudprovider",
    },
    KindEntry {
        kind: "ModelCache",
        plural: "modelcaches",
        short_name: "mcache",
        noun: "caches",
        namespaced: true,
        crd: crd::model_cache,
        example: "model-cache.yaml",
        controller: "modelcache",
    },
];

impl KindEntry {
    /// The generated CRD below the root of the repository.
    pub fn crd_path(&self) -> String {
        format!("deploy/crds/{}.{}.yaml", self.plural, crate::GROUP)
    }

    /// The generated reference page below the root of the repository.
    pub fn reference_path(&self) -> String {
        format!("docs/reference/{}.md", self.kind.to_lowercase())
    }
}
