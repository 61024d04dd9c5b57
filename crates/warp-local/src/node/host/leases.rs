//! The leases that tell the cluster its nodes are alive. Renewals are spread over the interval and cost
//! one small patch each.

use std::time::Duration;

use futures::stream::{self, StreamExt};
use jiff::Timestamp;
use k8s_openapi::api::coordination::v1::{Lease, LeaseSpec};
use k8s_openapi::api::core::v1::{Namespace, Node};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{MicroTime, ObjectMeta, OwnerReference};
use kube::api::{Api, Patch, PatchParams, PostParams};
use kube::core::Request;

use super::Silent;
use crate::controllers::Clock;

const NAMESPACE: &str = "kube-node-lease";
const SECONDS: i32 = 40;
const AT_ONCE: usize = 16;
/// Renewals are due in steps of this.
const TICK: Duration = Duration::from_secs(1);

/// Renews for ever.
pub(super) async fn keep(
    client: kube::Client,
    clock: Clock,
    names: Vec<String>,
    silent: Silent,
    every: Duration,
) {
    let ticks = usize::try_from((every.as_millis() / TICK.as_millis()).max(1)).unwrap_or(1);
    // At once the first time: a node without a lease may count as lost.
    renew(&client, &clock, names.iter(), &silent).await;
    let mut timer = tokio::time::interval(TICK);
    timer.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    for tick in (0..ticks).cycle() {
        timer.tick().await;
        renew(
            &client,
            &clock,
            names.iter().skip(tick).step_by(ticks),
            &silent,
        )
        .await;
    }
}

async fn renew(
    client: &kube::Client,
    clock: &Clock,
    names: impl Iterator<Item = &String>,
    silent: &Silent,
) {
    let due: Vec<&String> = {
        let silent = silent.read();
        names.filter(|name| !silent.contains(*name)).collect()
    };
    stream::iter(due)
        .for_each_concurrent(AT_ONCE, |name| async move {
            if let Err(error) = renew_one(client, name, clock.now()).await {
                tracing::warn!(node = %name, %error, "lease not renewed");
            }
        })
        .await;
}

async fn renew_one(client: &kube::Client, name: &str, now: Timestamp) -> Result<(), kube::Error> {
    let path = format!("/apis/coordination.k8s.io/v1/namespaces/{NAMESPACE}/leases");
    let patch = Patch::Merge(serde_json::json!({"spec": {"renewTime": MicroTime(now)}}));
    let request = Request::new(path).patch(name, &PatchParams::default(), &patch);
    let request = request.map_err(kube::Error::BuildRequest)?;
    match client.request_text(request).await {
        Ok(_) => Ok(()),
        Err(kube::Error::Api(status)) if status.is_not_found() => create(client, name, now).await,
        Err(error) => Err(error),
    }
}

async fn create(client: &kube::Client, name: &str, now: Timestamp) -> Result<(), kube::Error> {
    let nodes: Api<Node> = Api::all(client.clone());
    let Some(node) = nodes.get_opt(name).await? else {
        return Ok(());
    };
    let owner = OwnerReference {
        api_version: "v1".to_owned(),
        kind: "Node".to_owned(),
        name: name.to_owned(),
        uid: node.metadata.uid.unwrap_or_default(),
        ..OwnerReference::default()
    };
    let lease = Lease {
        metadata: ObjectMeta {
            name: Some(name.to_owned()),
            namespace: Some(NAMESPACE.to_owned()),
            owner_references: Some(vec![owner]),
            ..ObjectMeta::default()
        },
        spec: Some(LeaseSpec {
            holder_identity: Some(name.to_owned()),
            lease_duration_seconds: Some(SECONDS),
            renew_time: Some(MicroTime(now)),
            ..LeaseSpec::default()
        }),
    };
    let api: Api<Lease> = Api::namespaced(client.clone(), NAMESPACE);
    match api.create(&PostParams::default(), &lease).await {
        Err(kube::Error::Api(status)) if status.is_not_found() => {
            let namespaces: Api<Namespace> = Api::all(client.clone());
            let namespace = Namespace {
                metadata: ObjectMeta {
                    name: Some(NAMESPACE.to_owned()),
                    ..ObjectMeta::default()
                },
                ..Namespace::default()
            };
            match namespaces.create(&PostParams::default(), &namespace).await {
                Err(kube::Error::Api(status)) if status.is_already_exists() => {}
                other => drop(other?),
            }
            api.create(&PostParams::default(), &lease).await.map(|_| ())
        }
        Err(kube::Error::Api(status)) if status.is_already_exists() => Ok(()),
        other => other.map(|_| ()),
    }
}
