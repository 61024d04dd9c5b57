//! Pods.

mod columns;
mod container;
mod placement;
pub(super) mod spec;
mod update;
mod volume;

pub(super) use placement::{node_selector, taint_effect};

use serde_json::{Value, json};

use super::checks::Errors;
use super::fields::{flag, list, number, text};
use super::{Described, describe, resources, typed};
use crate::registry::resource::{SelectableField, Strategy, Subresource};
use crate::schema::Path;

pub(super) fn descriptor() -> Described {
    describe("", "v1", "Pod", "pods")
        .short("po")
        .category("all")
        .subresources([
            Subresource::Attach,
            Subresource::Binding,
            Subresource::Eviction,
            Subresource::Exec,
            Subresource::Log,
            Subresource::PortForward,
            Subresource::Status,
        ])
        .columns(columns::columns())
        .selectable([
            SelectableField::new("spec.nodeName"),
            SelectableField::new("spec.restartPolicy"),
            SelectableField::new("spec.schedulerName"),
            SelectableField::new("spec.serviceAccountName"),
            SelectableField::at("spec.hostNetwork", "spec.hostNetwork", "false"),
            SelectableField::new("status.phase"),
            SelectableField::new("status.podIP"),
            SelectableField::new("status.nominatedNodeName"),
        ])
        .strategy(Strategy {
            default: |object| typed::round_trip("core.Pod", object),
            prepare_create,
            prepare_update: |object, old| copy_status(object, old),
            validate,
            validate_update: update::validate,
            generation: true,
            return_deleted: true,
            grace: Some(grace),
            ..Strategy::default()
        })
}

fn prepare_create(pod: &mut Value) {
    let quality = resources::quality_of_service(pod.get("spec").unwrap_or(&Value::Null));
    pod["status"] = json!({"phase": "Pending", "qosClass": quality});
    if !list(pod, "spec.schedulingGates").is_empty() {
        pod["status"]["conditions"] = json!([{
            "type": "PodScheduled",
            "status": "False",
            "lastProbeTime": null,
            "lastTransitionTime": null,
            "reason": "SchedulingGated",
            "message": "Scheduling is blocked due to non-empty scheduling gates",
        }]);
    }
}

fn copy_status(pod: &mut Value, old: &Value) {
    if let Some(status) = old.get("status") {
        pod["status"] = status.clone();
    }
}

fn validate(pod: &Value) -> Errors {
    let mut errors = Vec::new();
    spec::annotations(
        pod,
        &Path::new("metadata").child("annotations"),
        &mut errors,
    );
    let spec = pod.get("spec").unwrap_or(&Value::Null);
    spec::validate(spec, &Path::new("spec"), true, &mut errors);
    errors
}

/// How long a deleted pod may take: what is asked, else what the pod says; pods nobody runs go at
/// once.
fn grace(pod: &Value, asked: Option<i64>) -> i64 {
    let running = !text(pod, "spec.nodeName").is_empty();
    let finished = matches!(text(pod, "status.phase"), "Failed" | "Succeeded");
    if !running || finished {
        return 0;
    }
    let period = asked
        .or_else(|| number(pod, "spec.terminationGracePeriodSeconds"))
        .unwrap_or(30);
    if period < 0 { 1 } else { period }
}

/// Whether a pod still holds what it asked for.
pub(crate) fn is_terminal(pod: &Value) -> bool {
    matches!(text(pod, "status.phase"), "Failed" | "Succeeded")
        || (number(pod, "metadata.deletionGracePeriodSeconds") == Some(0)
            && !flag(pod, "spec.hostNetwork")
            && text(pod, "spec.nodeName").is_empty())
}
