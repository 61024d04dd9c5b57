//! Which spec a Job was made from. The spec may change until the Job runs: whoever changes it in the moment it is placed
//! must not be left with a Job of the spec before. Pure.

use k8s_openapi::api::batch::v1::Job;
use kube::ResourceExt;
use warp_api::workload::{GPUWorkloadSpec, PLACED_FIELDS};
use warp_api::{GPUWorkload, label};
use warp_core::random::Fingerprint;

/// A number for what of a spec makes a Job. A field that is absent counts for nothing, so that a field of a later version
/// changes nothing for those that do not use it.
pub(super) fn spec_hash(spec: &GPUWorkloadSpec) -> String {
    let spec = serde_json::to_value(spec).unwrap_or_default();
    let present = PLACED_FIELDS
        .iter()
        .filter_map(|field| Some((field, spec.get(field)?)));
    let print = present.fold(Fingerprint::default(), |print, (field, value)| {
        print.text(field).text(&value.to_string())
    });
    format!("{:016x}", print.get())
}

/// Whether a Job was made from another spec than the workload has now. One that does not say is taken for its own: it
/// was made by an operator that let no spec change.
pub(super) fn outdated(workload: &GPUWorkload, job: &Job) -> bool {
    let made_from = job.annotations().get(label::SPEC_HASH);
    made_from.is_some_and(|made_from| *made_from != spec_hash(&workload.spec))
}
