//! Node objects: registering them and keeping what they say true.

use futures::stream::{self, StreamExt, TryStreamExt};
use k8s_openapi::api::core::v1::{Node, NodeStatus};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::api::{Api, Patch, PatchParams, PostParams};
use serde_json::json;

use super::super::fleet::Shape;
use super::{Host, HostError};

const AT_ONCE: usize = 32;

/// Creates the nodes that are missing and refreshes the others, as a kubelet does when it starts.
pub(super) async fn register(host: &Host) -> Result<(), HostError> {
    stream::iter(&host.shapes)
        .map(Ok)
        .try_for_each_concurrent(AT_ONCE, |shape| async move {
            let now = Time(host.clock.now());
            register_one(&host.client, shape, now)
                .await
                .map_err(|source| HostError::Register {
                    name: shape.name.clone(),
                    source: Box::new(source),
                })
        })
        .await
}

async fn register_one(client: &kube::Client, shape: &Shape, now: Time) -> Result<(), kube::Error> {
    let api: Api<Node> = Api::all(client.clone());
    let object = shape.object(&shape.devices, &now);
    match api.create(&PostParams::default(), &object).await {
        // A server may take the status of a new node or leave it out.
        Ok(made) if has_capacity(&made) => return Ok(()),
        Ok(_) => {}
        Err(kube::Error::Api(status)) if status.is_already_exists() => {
            let labels = json!({"metadata": {"labels": shape.labels}});
            api.patch(&shape.name, &PatchParams::default(), &Patch::Merge(labels))
                .await?;
        }
        Err(error) => return Err(error),
    }
    write_status(client, &shape.name, &shape.status(&shape.devices, &now)).await
}

fn has_capacity(node: &Node) -> bool {
    node.status
        .as_ref()
        .and_then(|status| status.capacity.as_ref())
        .is_some_and(|capacity| !capacity.is_empty())
}

pub(super) async fn write_status(
    client: &kube::Client,
    name: &str,
    status: &NodeStatus,
) -> Result<(), kube::Error> {
    let api: Api<Node> = Api::all(client.clone());
    let patch = Patch::Strategic(json!({"status": status}));
    api.patch_status(name, &PatchParams::default(), &patch)
        .await
        .map(|_| ())
}

/// The status a node should have, when the one it has says something else.
pub(super) fn correction(
    shape: &Shape,
    healthy: &std::collections::BTreeMap<String, u32>,
    seen: &Node,
    now: &Time,
) -> Option<NodeStatus> {
    let wanted = shape.status(healthy, now);
    let status = seen.status.as_ref();
    let ready = status
        .and_then(|status| status.conditions.as_ref())
        .is_some_and(|conditions| {
            conditions
                .iter()
                .any(|condition| condition.type_ == "Ready" && condition.status == "True")
        });
    let same = status.is_some_and(|status| {
        status.allocatable == wanted.allocatable && status.capacity == wanted.capacity
    });
    (!ready || !same).then_some(wanted)
}
