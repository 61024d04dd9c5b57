//! Simulated nodes on which engines really run: a pod that asks for `warp engine` and nothing else is a process of this
//! machine with an address of its own; every other pod exists only as times.
//!
//! Nothing but that one verb is run for a simulated node, whatever a pod asks for.
#![allow(
    clippy::result_large_err,
    reason = "the API server's own error, made once per refused request"
)]

use std::collections::BTreeSet;
use std::sync::Arc;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Container, Node, Pod};
use warp_apiserver::codec::status::Status;
use warp_apiserver::hooks::{ExecOptions, ExecSession, HookFuture, LogOptions};

use super::access::{Access, LogStream};
use super::devices::Devices;
use super::facts::Facts;
use super::lifecycle::Action;
use super::process::{COMMAND_ANNOTATION, Process, WARP_IMAGE};
use super::runtime::{Due, Health, Refusal, Runtime};
use super::simulated::Simulated;

/// The verb that is run.
const VERB: &str = "engine";

/// See the module.
#[derive(Debug)]
pub struct WithEngines {
    simulated: Simulated,
    engines: Process,
}

impl WithEngines {
    pub fn new(simulated: Simulated, engines: Process) -> Self {
        Self { simulated, engines }
    }

    fn of(&self, pod: &Pod) -> &dyn Runtime {
        if asks_for_engine(pod) {
            &self.engines
        } else {
            &self.simulated
        }
    }

    fn shown(&self, pod: &Pod) -> &dyn Access {
        if asks_for_engine(pod) {
            &self.engines
        } else {
            &self.simulated
        }
    }
}

/// Whether the pod is one engine and nothing that could run anything else.
fn asks_for_engine(pod: &Pod) -> bool {
    let Some(spec) = &pod.spec else {
        return false;
    };
    let told = pod.metadata.annotations.iter().flatten();
    let commanded = told
        .into_iter()
        .any(|(name, _)| name.starts_with(COMMAND_ANNOTATION));
    let alone = spec.init_containers.iter().flatten().next().is_none() && !commanded;
    alone && !spec.containers.is_empty() && spec.containers.iter().all(is_engine)
}

fn is_engine(container: &Container) -> bool {
    let verb = container.args.iter().flatten().next();
    let probes = [
        &container.startup_probe,
        &container.readiness_probe,
        &container.liveness_probe,
    ];
    let executes = probes
        .iter()
        .any(|probe| probe.as_ref().is_some_and(|probe| probe.exec.is_some()));
    let lifecycle = container.lifecycle.as_ref();
    let hook = lifecycle.and_then(|lifecycle| lifecycle.pre_stop.as_ref());
    container.image.as_deref() == Some(WARP_IMAGE)
        && container.command.iter().flatten().next().is_none()
        && verb.is_some_and(|verb| verb == VERB)
        && !executes
        && hook.is_none_or(|hook| hook.exec.is_none())
}

impl Runtime for WithEngines {
    fn name(&self) -> &'static str {
        self.simulated.name()
    }

    fn has_real_devices(&self) -> bool {
        false
    }

    fn is_own_image(&self, image: &str) -> bool {
        self.simulated.is_own_image(image)
    }

    fn admit(&self, pod: &Pod) -> Result<(), Refusal> {
        self.of(pod).admit(pod)
    }

    fn act(&self, pod: &Arc<Pod>, facts: &Facts, action: &Action, now: Timestamp) -> Vec<Due> {
        self.of(pod).act(pod, facts, action, now)
    }

    fn adopt(&self, pod: &Arc<Pod>, facts: &Facts, now: Timestamp) -> Vec<Due> {
        self.of(pod).adopt(pod, facts, now)
    }

    fn changed(&self, pod: &Arc<Pod>, facts: &Facts, now: Timestamp) -> Option<Vec<Due>> {
        self.of(pod).changed(pod, facts, now)
    }

    fn held_devices(&self, pod: &Pod) -> Option<Devices> {
        self.of(pod).held_devices(pod)
    }

    fn forget(&self, pod: &Pod) {
        self.of(pod).forget(pod);
    }

    fn keep_only(&self, known: &BTreeSet<String>) {
        self.engines.keep_only(known);
    }

    fn health(&self, node: &Node) -> Health {
        self.simulated.health(node)
    }

    fn device_lost(
        &self,
        pod: &Arc<Pod>,
        facts: &Facts,
        containers: &[String],
        now: Timestamp,
    ) -> Vec<Due> {
        self.of(pod).device_lost(pod, facts, containers, now)
    }
}

impl Access for WithEngines {
    fn logs(&self, pod: &Pod, container: &str, options: &LogOptions) -> Result<LogStream, Status> {
        self.shown(pod).logs(pod, container, options)
    }

    fn exec(
        &self,
        pod: &Pod,
        container: &str,
        options: &ExecOptions,
    ) -> Result<ExecSession, Status> {
        // Never by the engines' own runtime: it would run anything on this machine.
        self.simulated.exec(pod, container, options)
    }

    fn attach(
        &self,
        pod: &Pod,
        container: &str,
        options: &ExecOptions,
    ) -> Result<ExecSession, Status> {
        self.shown(pod).attach(pod, container, options)
    }

    fn addresses(&self, pod: &Pod) -> HookFuture<Vec<String>> {
        self.shown(pod).addresses(pod)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pod(change: impl FnOnce(&mut serde_json::Value)) -> Pod {
        let mut pod = serde_json::json!({
            "metadata": { "name": "a", "uid": "a", "annotations": {} },
            "spec": { "containers": [{
                "name": "engine",
                "image": WARP_IMAGE,
                "args": ["engine", "--model", "m"],
                "readinessProbe": { "httpGet": { "path": "/health", "port": 8000 } },
                "lifecycle": { "preStop": { "sleep": { "seconds": 1 } } },
            }] },
        });
        change(&mut pod);
        serde_json::from_value(pod).unwrap()
    }

    #[test]
    fn an_engine_is_run_and_nothing_that_could_run_something_else() {
        assert!(asks_for_engine(&pod(|_| {})));
        let main = "/spec/containers/0";
        let changes: [(&str, serde_json::Value); 6] = [
            ("image", serde_json::json!("local://")),
            ("command", serde_json::json!(["sh"])),
            ("args", serde_json::json!(["node", "process"])),
            ("args", serde_json::json!([])),
            (
                "startupProbe",
                serde_json::json!({ "exec": { "command": ["id"] } }),
            ),
            (
                "lifecycle",
                serde_json::json!({ "preStop": { "exec": { "command": ["id"] } } }),
            ),
        ];
        for (field, value) in changes {
            let told = value.to_string();
            let changed = pod(|pod| {
                if let Some(container) = pod.pointer_mut(main) {
                    container[field] = value;
                }
            });
            assert!(!asks_for_engine(&changed), "{field} {told}");
        }
        let commanded = pod(|pod| {
            pod["metadata"]["annotations"]["process.gpu.warp.dev/command.engine"] =
                serde_json::json!("[\"id\"]");
        });
        assert!(!asks_for_engine(&commanded));
        let second = pod(|pod| {
            pod["spec"]["initContainers"] =
                serde_json::json!([{ "name": "init", "image": WARP_IMAGE, "args": ["engine"] }]);
        });
        assert!(!asks_for_engine(&second));
    }
}
