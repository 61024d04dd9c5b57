//! [`crate::behaviour`] on the embedded engine's simulated nodes.
//!
//! Owns: saying a pod's behaviour in the words of the simulated runtime, which does the rest. Must not act itself.

use std::collections::BTreeSet;
use std::sync::Arc;

use k8s_openapi::api::core::v1::{Node, Pod};
use k8s_openapi::jiff::Timestamp;
use warp_local::node::devices::Devices;
use warp_local::node::runtime::{Due, Health, Refusal};
use warp_local::node::simulated::PREFIX;
use warp_local::node::{Action, Facts, Runtime, Simulated};

use crate::behaviour::{BEHAVIOUR, EXIT_CODE, Kind, RUN_FOR, START_AFTER, STOP_AFTER, variable};

/// How long a container runs that does not say it.
const RUN_TIME: &str = "500ms";

/// The simulated runtime, told by the testbed's annotations and variables.
#[derive(Debug, Default)]
pub(super) struct Scripted(Simulated);

/// One setting of a pod: the annotation, else the variable of any container.
fn setting(pod: &Pod, annotation: &str) -> Option<String> {
    let told = pod.metadata.annotations.as_ref();
    if let Some(value) = told.and_then(|all| all.get(annotation)) {
        return Some(value.clone());
    }
    let variable = variable(annotation);
    let containers = pod.spec.iter().flat_map(|spec| &spec.containers);
    containers
        .flat_map(|container| container.env.iter().flatten())
        .find(|env| env.name == variable)
        .and_then(|env| env.value.clone())
}

/// What the simulated runtime calls it.
fn words(pod: &Pod) -> Vec<(&'static str, String)> {
    let run_for = || setting(pod, RUN_FOR).unwrap_or_else(|| RUN_TIME.to_owned());
    let forever = || ("run-time", "forever".to_owned());
    let owners = pod.metadata.owner_references.iter().flatten();
    let of_a_job = owners.into_iter().any(|owner| owner.kind == "Job");
    let kind = setting(pod, BEHAVIOUR).and_then(|name| Kind::from_name(&name));
    let mut words = match kind.unwrap_or(Kind::Succeed) {
        Kind::Succeed if of_a_job => {
            vec![("run-time", run_for()), ("exit-code", "0".to_owned())]
        }
        Kind::Succeed | Kind::Hang => vec![forever()],
        Kind::Exit => {
            let code = setting(pod, EXIT_CODE).unwrap_or_else(|| "1".to_owned());
            vec![("run-time", run_for()), ("exit-code", code)]
        }
        Kind::OutOfMemory => vec![("oom-after", run_for())],
        Kind::Evicted => vec![forever(), ("evict-after", run_for())],
        Kind::PullError => vec![("pull-error", "not found".to_owned())],
        Kind::InvalidImage => vec![
            ("pull-error", "couldn't parse image name".to_owned()),
            ("pull-reason", "InvalidImageName".to_owned()),
        ],
        Kind::ConfigError => vec![("config-error", "secret \"missing\" not found".to_owned())],
        Kind::Stuck => vec![("pull-time", "forever".to_owned())],
    };
    let times = [(START_AFTER, "pull-time"), (STOP_AFTER, "stop-time")];
    words.extend(times.iter().filter_map(|(ours, theirs)| {
        let time = setting(pod, ours)?;
        Some((*theirs, time))
    }));
    words
}

fn told(pod: &Pod) -> Arc<Pod> {
    let mut pod = pod.clone();
    let words = words(&pod);
    let annotations = pod.metadata.annotations.get_or_insert_default();
    annotations.extend(
        words
            .into_iter()
            .map(|(name, value)| (format!("{PREFIX}{name}"), value)),
    );
    Arc::new(pod)
}

impl Runtime for Scripted {
    fn name(&self) -> &'static str {
        self.0.name()
    }

    fn is_own_image(&self, image: &str) -> bool {
        self.0.is_own_image(image)
    }

    fn has_real_devices(&self) -> bool {
        self.0.has_real_devices()
    }

    fn admit(&self, pod: &Pod) -> Result<(), Refusal> {
        self.0.admit(&told(pod))
    }

    fn act(&self, pod: &Arc<Pod>, facts: &Facts, action: &Action, now: Timestamp) -> Vec<Due> {
        self.0.act(&told(pod), facts, action, now)
    }

    fn adopt(&self, pod: &Arc<Pod>, facts: &Facts, now: Timestamp) -> Vec<Due> {
        self.0.adopt(&told(pod), facts, now)
    }

    fn changed(&self, pod: &Arc<Pod>, facts: &Facts, now: Timestamp) -> Option<Vec<Due>> {
        self.0.changed(&told(pod), facts, now)
    }

    fn held_devices(&self, pod: &Pod) -> Option<Devices> {
        self.0.held_devices(pod)
    }

    fn forget(&self, pod: &Pod) {
        self.0.forget(pod);
    }

    fn keep_only(&self, known: &BTreeSet<String>) {
        self.0.keep_only(known);
    }

    fn health(&self, node: &Node) -> Health {
        self.0.health(node)
    }

    fn device_lost(
        &self,
        pod: &Arc<Pod>,
        facts: &Facts,
        containers: &[String],
        now: Timestamp,
    ) -> Vec<Due> {
        self.0.device_lost(&told(pod), facts, containers, now)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;
    use crate::Behaviour;
    use serde_json::json;

    fn said(pod: serde_json::Value) -> BTreeMap<&'static str, String> {
        words(&serde_json::from_value(pod).unwrap())
            .into_iter()
            .collect()
    }

    #[test]
    fn an_annotation_wins_over_a_variable_and_every_kind_is_understood() {
        let env = Behaviour::exit(3).env();
        let spec = json!({"containers": [{"name": "c", "image": "i", "env": env}]});
        assert_eq!(said(json!({"spec": spec}))["exit-code"], "3");
        let released = Behaviour::succeed().annotations();
        let owner = json!([{"apiVersion": "batch/v1", "kind": "Job", "name": "j", "uid": "u"}]);
        let metadata = json!({"annotations": released, "ownerReferences": owner});
        assert_eq!(
            said(json!({"spec": spec, "metadata": metadata}))["exit-code"],
            "0"
        );
        for kind in Kind::ALL {
            let annotations = Behaviour::new(kind).annotations();
            assert_eq!(Kind::from_name(kind.name()), Some(kind));
            let pod = json!({"metadata": {"annotations": annotations}, "spec": spec});
            let pod: Pod = serde_json::from_value(pod).unwrap();
            assert!(Scripted::default().admit(&pod).is_ok(), "{kind:?}");
        }
    }
}
