//! The simulated runtime: containers that exist only as times. Every event is computed when its cause
//! happens, so a fleet costs one timer per change and runs in virtual time.

mod access;
mod annotations;
mod behaviour;
mod command;

#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};
use std::net::Ipv4Addr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Node, Pod};
use parking_lot::RwLock;

use super::devices::Devices;
use super::facts::{Event, Exit, Facts, Image, containers, later};
use super::lifecycle::{Action, ProbeKind};
use super::runtime::{Due, Health, Refusal, Runtime};

pub use annotations::PREFIX;
pub(in crate::node) use annotations::{LOST_GPUS, NAMES, NODE_LOST};
pub use behaviour::{Behaviour, Defaults, Fate, Pull};

/// See the module.
#[derive(Default)]
pub struct Simulated {
    defaults: Defaults,
    next_ip: AtomicU32,
    /// Behaviour set on node objects, by node name; absent for nodes without any.
    nodes: RwLock<BTreeMap<String, BTreeMap<String, String>>>,
    /// For those who follow a log until its container ends.
    client: Option<kube::Client>,
}

impl std::fmt::Debug for Simulated {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Simulated")
            .field("defaults", &self.defaults)
            .finish_non_exhaustive()
    }
}

impl Simulated {
    pub fn new(defaults: Defaults) -> Self {
        Self {
            defaults,
            ..Self::default()
        }
    }

    /// Pods get the addresses from the `first` on: a second set of simulated nodes has others than the first.
    #[must_use]
    pub fn with_addresses_from(mut self, first: u32) -> Self {
        self.next_ip = AtomicU32::new(first);
        self
    }

    /// Lets logs be followed, with a client of the cluster the nodes are in.
    #[must_use]
    pub fn followed_through(self, client: kube::Client) -> Self {
        Self {
            client: Some(client),
            ..self
        }
    }

    /// What a container of the pod does, from its annotations, its node's, its command and the defaults.
    pub fn behaviour(&self, pod: &Pod, container: &str) -> Result<Behaviour, String> {
        let none = BTreeMap::new();
        let nodes = self.nodes.read();
        let of_node = pod
            .spec
            .as_ref()
            .and_then(|spec| spec.node_name.as_ref())
            .and_then(|node| nodes.get(node))
            .unwrap_or(&none);
        behaviour::of(pod, container, of_node, &self.defaults)
    }

    /// The lines the container has printed.
    pub fn output(&self, pod: &Pod, container: &str) -> Vec<String> {
        self.behaviour(pod, container)
            .map(|behaviour| behaviour.output)
            .unwrap_or_default()
    }

    fn address(&self) -> String {
        let offset = self.next_ip.fetch_add(1, Ordering::Relaxed) % 0x007f_fffe;
        Ipv4Addr::from(u32::from(Ipv4Addr::new(10, 128, 0, 1)) + offset).to_string()
    }

    fn start(&self, pod: &Pod, container: &str, attempt: u32, now: Timestamp) -> Vec<Due> {
        let uid = pod.metadata.uid.as_deref().unwrap_or_default();
        if let Ok(behaviour) = self.behaviour(pod, container)
            && let Some(message) = behaviour.config_error
        {
            return vec![Due {
                at: now,
                event: Event::Misconfigured {
                    container: container.to_owned(),
                    attempt,
                    reason: "CreateContainerConfigError".to_owned(),
                    message,
                    at: now,
                },
            }];
        }
        let started = Due {
            at: now,
            event: Event::Started {
                container: container.to_owned(),
                attempt,
                id: format!("simulated://{uid}/{container}/{attempt}"),
                at: now,
            },
        };
        let mut due = vec![started];
        due.extend(self.ends_of(pod, container, attempt, now));
        due
    }

    /// When and how a run that began at `started` ends by itself, or its whole pod with it.
    fn ends_of(&self, pod: &Pod, container: &str, attempt: u32, started: Timestamp) -> Vec<Due> {
        let Ok(behaviour) = self.behaviour(pod, container) else {
            return Vec::new();
        };
        let fate = behaviour.fate(attempt);
        let own = fate.after.map(|after| {
            let at = later(started, after);
            exited(container, attempt, fate.exit(at))
        });
        let evicted = behaviour.evict_after.map(|after| Due {
            at: later(started, after),
            event: Event::Evicted {
                message: "The node was low on resource: ephemeral-storage.".to_owned(),
            },
        });
        own.into_iter().chain(evicted).collect()
    }

    fn pull(&self, pod: &Pod, facts: &Facts, container: &str, now: Timestamp) -> Vec<Due> {
        let Ok(behaviour) = self.behaviour(pod, container) else {
            return Vec::new();
        };
        let Some(at) = behaviour.pull.time.map(|time| later(now, time)) else {
            return Vec::new();
        };
        let described = pod
            .spec
            .as_ref()
            .and_then(|spec| containers(spec).find(|candidate| candidate.name == container));
        let image = described
            .and_then(|container| container.image.clone())
            .unwrap_or_default();
        // No image is on a simulated node before somebody pulls it.
        if described.and_then(|found| found.image_pull_policy.as_deref()) == Some("Never") {
            let event = Event::PullFailed {
                container: container.to_owned(),
                reason: "ErrImageNeverPull".to_owned(),
                message: format!(
                    "Container image \"{image}\" is not present with pull policy of Never"
                ),
                at: now,
            };
            return vec![Due { at: now, event }];
        }
        let tries = facts
            .container(container)
            .map_or(0, |seen| seen.pulls.tries());
        let event = match &behaviour.pull.error {
            Some(error)
                if behaviour
                    .pull
                    .failures
                    .is_none_or(|failures| tries < failures) =>
            {
                Event::PullFailed {
                    container: container.to_owned(),
                    reason: behaviour.pull.reason.clone(),
                    message: format!("failed to pull image \"{image}\": {error}"),
                    at,
                }
            }
            _ => Event::Pulled {
                container: container.to_owned(),
                image_id: format!("simulated://{image}"),
            },
        };
        vec![Due { at, event }]
    }

    fn stop(
        &self,
        pod: &Pod,
        container: &str,
        attempt: u32,
        grace: Duration,
        now: Timestamp,
    ) -> Vec<Due> {
        let time = self
            .behaviour(pod, container)
            .map_or(Some(Duration::ZERO), |behaviour| behaviour.stop_time);
        let (at, code) = match time {
            Some(time) if time < grace || time.is_zero() && grace.is_zero() => {
                (later(now, time), 143)
            }
            _ => (later(now, grace), 137),
        };
        vec![exited(container, attempt, Exit::with_code(code, at))]
    }

    fn probe(
        &self,
        pod: &Pod,
        facts: &Facts,
        container: &str,
        attempt: u32,
        kind: ProbeKind,
        now: Timestamp,
    ) -> Vec<Due> {
        let started = facts
            .container(container)
            .and_then(|seen| seen.run.as_ref()?.started)
            .unwrap_or(now);
        let ok = self
            .behaviour(pod, container)
            .map_or(true, |behaviour| match kind {
                ProbeKind::Liveness => behaviour
                    .live_for
                    .is_none_or(|time| now < later(started, time)),
                ProbeKind::Startup | ProbeKind::Readiness => behaviour
                    .ready_after
                    .is_some_and(|time| now >= later(started, time)),
            });
        let message = if ok {
            String::new()
        } else {
            "simulated failure".to_owned()
        };
        vec![Due {
            at: now,
            event: Event::Probed {
                container: container.to_owned(),
                attempt,
                kind,
                ok,
                message,
                at: now,
            },
        }]
    }
}

fn exited(container: &str, attempt: u32, exit: Exit) -> Due {
    Due {
        at: exit.at,
        event: Event::Exited {
            container: container.to_owned(),
            attempt,
            exit,
        },
    }
}

impl Runtime for Simulated {
    fn name(&self) -> &'static str {
        "simulated"
    }

    fn is_own_image(&self, image: &str) -> bool {
        image == super::process::WARP_IMAGE
    }

    fn has_real_devices(&self) -> bool {
        false
    }

    fn admit(&self, pod: &Pod) -> Result<(), Refusal> {
        let Some(spec) = &pod.spec else {
            return Ok(());
        };
        containers(spec)
            .try_for_each(|container| self.behaviour(pod, &container.name).map(|_| ()))
            .map_err(|message| Refusal {
                reason: "InvalidSimulation".to_owned(),
                message,
            })
    }

    fn act(&self, pod: &Arc<Pod>, facts: &Facts, action: &Action, now: Timestamp) -> Vec<Due> {
        match action {
            Action::Prepare => vec![Due {
                at: now,
                event: Event::Prepared {
                    ip: Some(self.address()),
                },
            }],
            Action::Pull { container } => self.pull(pod, facts, container, now),
            Action::Start { container, attempt } => self.start(pod, container, *attempt, now),
            Action::Probe {
                container,
                attempt,
                kind,
            } => self.probe(pod, facts, container, *attempt, *kind, now),
            Action::Stop {
                container,
                attempt,
                grace,
            } => self.stop(pod, container, *attempt, *grace, now),
            Action::Teardown => vec![Due {
                at: now,
                event: Event::TornDown,
            }],
        }
    }

    fn adopt(&self, pod: &Arc<Pod>, facts: &Facts, _now: Timestamp) -> Vec<Due> {
        let mut due = Vec::new();
        for (name, seen) in &facts.containers {
            if let Some(run) = seen.run.as_ref().filter(|run| run.exit.is_none())
                && let Some(started) = run.started
            {
                due.extend(self.ends_of(pod, name, run.attempt, started));
            }
        }
        due
    }

    fn changed(&self, pod: &Arc<Pod>, facts: &Facts, now: Timestamp) -> Option<Vec<Due>> {
        let mut due = self.adopt(pod, facts, now);
        for (name, seen) in &facts.containers {
            if let Image::Pulling { .. } = seen.image {
                due.extend(self.pull(pod, facts, name, now));
            }
        }
        Some(due)
    }

    fn held_devices(&self, _pod: &Pod) -> Option<Devices> {
        None
    }

    fn forget(&self, _pod: &Pod) {}

    fn keep_only(&self, _known: &BTreeSet<String>) {}

    fn health(&self, node: &Node) -> Health {
        let found = annotations::on_node(node);
        let name = node.metadata.name.clone().unwrap_or_default();
        let mut nodes = self.nodes.write();
        if found.behaviour.is_empty() {
            nodes.remove(&name);
        } else {
            nodes.insert(name, found.behaviour);
        }
        let capacity = node
            .status
            .as_ref()
            .and_then(|status| status.capacity.as_ref());
        let broken: BTreeMap<String, BTreeSet<u32>> = capacity
            .into_iter()
            .flatten()
            .filter(|(resource, _)| warp_core::gpu::Vendor::of_resource(resource).is_some())
            .map(|(resource, quantity)| {
                let total = quantity.0.parse().unwrap_or_default();
                (resource.clone(), found.lost_gpus.among(total))
            })
            .filter(|(_, numbers)| !numbers.is_empty())
            .collect();
        Health {
            lost: found.lost,
            broken,
            unknown: found.unknown,
        }
    }

    fn device_lost(
        &self,
        _pod: &Arc<Pod>,
        facts: &Facts,
        containers: &[String],
        now: Timestamp,
    ) -> Vec<Due> {
        containers
            .iter()
            .filter_map(|name| {
                let run = facts
                    .container(name)?
                    .run
                    .as_ref()
                    .filter(|run| run.exit.is_none())?;
                let exit = Exit {
                    message: Some("GPU fell off the bus (simulated)".to_owned()),
                    ..Exit::with_code(1, now)
                };
                Some(exited(name, run.attempt, exit))
            })
            .collect()
    }
}
