//! Pods that are containers at a cloud: what such a container is told, and the signs of life of the node its pod is on.
//!
//! Owns the calls to the API server for that. Whether a pod can be a container is decided in `containers/fit.rs`, pure;
//! when one is bought and what its pod says is a plan of the GPURequest controller. No value of a Secret is ever told in
//! a status, a log or an Event.

pub(crate) mod fit;

use std::collections::BTreeMap;
use std::fmt::{self, Debug};
use std::sync::Weak;
use std::time::Duration;

use futures::future::BoxFuture;
use k8s_openapi::api::coordination::v1::{Lease, LeaseSpec};
use k8s_openapi::api::core::v1::{ConfigMap, Pod, Secret};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{MicroTime, OwnerReference};
use kube::api::{ObjectMeta, Patch, PatchParams};
use kube::{Api, Client, Resource, ResourceExt};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use warp_api::GPURequest;
use warp_api::gpurequest::{AttemptPod, RequestAttempt};
use warp_cloud::{Class, Container, Failure, Now};
use warp_runtime::cache::{Cache, Key};
use warp_runtime::outside::{External, Limits, OutsideError};
use warp_runtime::plan::as_json;

use self::fit::Object;
use crate::context::Context;
use crate::ledger::{finished, node_of};

/// What plans call the nodes of containers by.
pub(crate) const NODES: &str = "container-nodes";
/// Where nodes say that they live.
const LEASES: &str = "kube-node-lease";
/// How often one says so, and for how many seconds that holds.
pub(crate) const BEAT: Duration = Duration::from_secs(10);
const HOLDS_SECONDS: i32 = 40;
/// Who writes the signs of life.
const MANAGER: &str = "warp-container-nodes";

/// What is known of a node and of the pod that is its container, as the API server itself says it.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Tended {
    /// The pod that was looked for.
    pub(crate) uid: Option<String>,
    /// None when there is no such pod any more.
    pub(crate) pod: Option<Bound>,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Bound {
    /// The container's name and image.
    pub(crate) container: String,
    pub(crate) image: String,
    pub(crate) finished: bool,
    /// It is to go, and nobody has let it yet.
    pub(crate) going: bool,
}

/// Why a container was not asked for.
pub(crate) enum Refusal {
    /// The pod cannot be one: asking again changes nothing.
    Pod(String),
    Failure(Failure),
}

/// See the module.
pub(crate) struct Containers {
    pub(crate) client: Client,
    pub(crate) requests: Cache<GPURequest>,
    pub(crate) now: Now,
    pub(crate) cx: Weak<Context>,
}

impl Debug for Containers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Containers").finish_non_exhaustive()
    }
}

impl Containers {
    /// The container of an attempt: its pod as it is now, with every value put in.
    pub(crate) async fn container(&self, attempt: &RequestAttempt) -> Result<Container, Refusal> {
        let gone = || Refusal::Pod("its pod is gone".to_owned());
        let bound = attempt.pod.as_ref().ok_or_else(gone)?;
        let found = self.pod(bound).await.map_err(Refusal::Failure)?;
        let pod = found.ok_or_else(gone)?;
        let over = finished(&pod) || pod.meta().deletion_timestamp.is_some();
        if over || node_of(&pod) != Some(attempt.machine.as_str()) {
            return Err(Refusal::Pod("its pod is over".to_owned()));
        }
        let spec = pod.spec.clone().unwrap_or_default();
        if let Some(why) = fit::objection(&spec) {
            return Err(Refusal::Pod(why));
        }
        let own = &spec.containers[0];
        let fields = |field: &str| match field {
            "metadata.name" => pod.name_any(),
            "metadata.namespace" => bound.namespace.clone(),
            "metadata.uid" => bound.uid.clone(),
            _ => attempt.machine.clone(),
        };
        let mut env: Vec<(String, String)> = Vec::new();
        for (name, value) in fit::environment(own, fields) {
            match value {
                fit::Value::Text(text) => {
                    let text = fit::expanded(&text, &env);
                    env.push((name, text));
                }
                fit::Value::Key {
                    object,
                    key,
                    optional,
                } => {
                    let data = self.data(&bound.namespace, &object, optional).await?;
                    match data.into_iter().find(|(one, _)| *one == key) {
                        Some((_, value)) => env.push((name, value)),
                        None if optional => {}
                        None => {
                            let what = words(&bound.namespace, &object);
                            return Err(Refusal::Pod(format!("{what} has no key {key}")));
                        }
                    }
                }
                fit::Value::Whole {
                    object,
                    prefix,
                    optional,
                } => {
                    let data = self.data(&bound.namespace, &object, optional).await?;
                    env.extend(
                        data.into_iter()
                            .map(|(key, value)| (format!("{prefix}{key}"), value)),
                    );
                }
            }
        }
        let expand = |list: Option<&Vec<String>>| {
            let texts = list.into_iter().flatten();
            texts.map(|text| fit::expanded(text, &env)).collect()
        };
        let (command, args) = (expand(own.command.as_ref()), expand(own.args.as_ref()));
        // Of several with one name the last one holds.
        let last: BTreeMap<String, String> = env.into_iter().collect();
        let env = last.into_iter();
        Ok(Container {
            image: own.image.clone().unwrap_or_default(),
            command,
            args,
            env: env
                .map(|(name, value)| (name, warp_cloud::Secret::new(value)))
                .collect(),
        })
    }

    /// The pod that was bound, if it is still there.
    async fn pod(&self, bound: &AttemptPod) -> Result<Option<Pod>, Failure> {
        let pods: Api<Pod> = Api::namespaced(self.client.clone(), &bound.namespace);
        let found = pods.get_opt(&bound.name).await;
        let found = found.map_err(|error| {
            let words = format!(
                "failed to read pod {}/{}: {error}",
                bound.namespace, bound.name
            );
            Failure::new(Class::Transient, words)
        })?;
        Ok(found.filter(|pod| pod.uid().as_ref() == Some(&bound.uid)))
    }

    /// What a Secret or ConfigMap has. One the operator may not read is refused by name.
    async fn data(
        &self,
        namespace: &str,
        object: &Object,
        optional: bool,
    ) -> Result<Vec<(String, String)>, Refusal> {
        let client = self.client.clone();
        let found = match object {
            Object::Secret(name) => {
                let found = Api::<Secret>::namespaced(client, namespace)
                    .get_opt(name)
                    .await;
                found.map(|found| found.map(|one| secret_texts(one.data.unwrap_or_default())))
            }
            Object::ConfigMap(name) => {
                let found = Api::<ConfigMap>::namespaced(client, namespace)
                    .get_opt(name)
                    .await;
                found.map(|found| {
                    found.map(|one| one.data.unwrap_or_default().into_iter().collect())
                })
            }
        };
        let what = words(namespace, object);
        match found {
            Ok(Some(data)) => Ok(data),
            Ok(None) if optional => Ok(Vec::new()),
            Ok(None) => Err(Refusal::Pod(format!("there is no {what}"))),
            Err(kube::Error::Api(status)) if status.code == 403 => Err(Refusal::Pod(format!(
                "the operator may not read {what}: let warp-operator get it by a Role, or write the value into the pod"
            ))),
            Err(error) => {
                let words = format!("failed to read {what}: {error}");
                Err(Refusal::Failure(Failure::new(Class::Transient, words)))
            }
        }
    }

    /// Says that the node of a container lives, and reads its pod.
    async fn tend(&self, machine: &str) -> Result<Tended, Failure> {
        self.beat(machine).await?;
        let attempt = self.attempt(machine);
        let Some(bound) = attempt.and_then(|attempt| attempt.pod) else {
            return Ok(Tended::default());
        };
        let pod = self.pod(&bound).await?.map(|pod| {
            let meta = pod.meta();
            let going =
                meta.deletion_timestamp.is_some() && meta.deletion_grace_period_seconds != Some(0);
            let container = pod.spec.as_ref().and_then(|spec| spec.containers.first());
            let container = container.cloned().unwrap_or_default();
            Bound {
                container: container.name,
                image: container.image.unwrap_or_default(),
                finished: finished(&pod),
                going,
            }
        });
        Ok(Tended {
            uid: Some(bound.uid),
            pod,
        })
    }

    async fn beat(&self, machine: &str) -> Result<(), Failure> {
        let node = self
            .cx
            .upgrade()
            .and_then(|cx| cx.nodes.get(&Key::new("", machine)));
        let Some(node) = node else {
            return Ok(());
        };
        let lease = Lease {
            metadata: ObjectMeta {
                name: Some(machine.to_owned()),
                namespace: Some(LEASES.to_owned()),
                // It goes with its node.
                owner_references: Some(vec![OwnerReference {
                    api_version: "v1".to_owned(),
                    kind: "Node".to_owned(),
                    name: machine.to_owned(),
                    uid: node.uid().unwrap_or_default(),
                    ..OwnerReference::default()
                }]),
                ..ObjectMeta::default()
            },
            spec: Some(LeaseSpec {
                holder_identity: Some(machine.to_owned()),
                lease_duration_seconds: Some(HOLDS_SECONDS),
                renew_time: Some(MicroTime((self.now)())),
                ..LeaseSpec::default()
            }),
        };
        let leases: Api<Lease> = Api::namespaced(self.client.clone(), LEASES);
        let params = PatchParams::apply(MANAGER).force();
        let written = leases.patch(machine, &params, &Patch::Apply(&lease)).await;
        written.map(|_| ()).map_err(|error| {
            let words = format!("failed to renew the lease of node {machine}: {error}");
            Failure::new(Class::Transient, words)
        })
    }

    fn attempt(&self, machine: &str) -> Option<RequestAttempt> {
        let requests = self.requests.all();
        let mut attempts = requests
            .iter()
            .filter_map(|request| request.status.as_ref())
            .flat_map(|status| &status.attempts);
        attempts.find(|attempt| attempt.machine == machine).cloned()
    }
}

fn words(namespace: &str, object: &Object) -> String {
    match object {
        Object::Secret(name) => format!("Secret {namespace}/{name}"),
        Object::ConfigMap(name) => format!("ConfigMap {namespace}/{name}"),
    }
}

/// Values that are text: others cannot be in an environment.
fn secret_texts(data: BTreeMap<String, k8s_openapi::ByteString>) -> Vec<(String, String)> {
    let texts = data.into_iter();
    let texts = texts.filter_map(|(key, value)| Some((key, String::from_utf8(value.0).ok()?)));
    texts.collect()
}

/// The nodes of containers, each by its name: to look one up is to say that it lives.
#[derive(Debug)]
pub(crate) struct Nodes(pub(crate) std::sync::Arc<Containers>);

impl External for Nodes {
    fn limits(&self) -> Limits {
        Limits {
            call_deadline: BEAT,
            settle: Duration::ZERO,
            max_age: BEAT,
            retry: Duration::from_secs(2),
        }
    }

    fn look_up<'a>(&'a self, name: &'a str) -> BoxFuture<'a, Result<Option<Value>, OutsideError>> {
        Box::pin(async move {
            let tended = self.0.tend(name).await;
            let tended = tended.map_err(|failure| OutsideError {
                message: failure.words,
                is_refusal: false,
            })?;
            Ok(Some(as_json(&tended)))
        })
    }

    fn make<'a>(&'a self, _: &'a str, _: &'a Value) -> BoxFuture<'a, Result<Value, OutsideError>> {
        Box::pin(async { Err(by_plans()) })
    }

    fn remove<'a>(&'a self, _: &'a str) -> BoxFuture<'a, Result<(), OutsideError>> {
        Box::pin(async { Err(by_plans()) })
    }
}

/// Nodes are objects of the cluster: plans make and delete them.
fn by_plans() -> OutsideError {
    OutsideError {
        message: "a node is made and deleted by a plan".to_owned(),
        is_refusal: true,
    }
}
