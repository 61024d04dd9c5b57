//! Lost and deleted nodes, on a real kube-controller-manager and on ours: what becomes of their pods.

use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::core::v1::{Node, Pod};
use kube::api::{Api, ListParams, Patch, PatchParams, PostParams};
use kube::{Client, Resource, ResourceExt};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;
use warp_local::controllers::{Clock, Options, run};
use warp_testkit::{Cluster, NodeShape, PATIENCE, until};

use super::script::Made;

/// What the quick test bed tells kube-controller-manager.
const GRACE: Duration = Duration::from_secs(10);

async fn cluster(api_only: bool) -> Result<Cluster> {
    let builder = Cluster::real().quick_node_loss();
    let builder = if api_only {
        builder.api_server_only()
    } else {
        builder
    };
    builder
        .nodes(NodeShape::cpu().named("kept"), 1)
        .nodes(NodeShape::cpu().named("lost").in_group("lost"), 1)
        .start()
        .await
}

fn made(name: &str, pod: &Value) -> Made {
    serde_json::from_value(
        json!({ "name": name, "runs": "hang", "labels": { "app": name }, "pod": pod }),
    )
    .expect("a description of an object")
}

async fn create<K>(client: &Client, namespace: &str, object: Value) -> Result<()>
where
    K: Resource<DynamicType = (), Scope = k8s_openapi::NamespaceResourceScope>
        + Clone
        + Serialize
        + DeserializeOwned
        + std::fmt::Debug,
{
    let api: Api<K> = Api::namespaced(client.clone(), namespace);
    let object: K = serde_json::from_value(object)?;
    api.create(&PostParams::default(), &object).await?;
    Ok(())
}

/// (app, node, phase, ends, why it is disrupted) of every pod, with how many are like that.
async fn pods(client: &Client, namespace: &str) -> Result<BTreeMap<String, usize>> {
    let api: Api<Pod> = Api::namespaced(client.clone(), namespace);
    let mut found = BTreeMap::new();
    for pod in api.list(&ListParams::default()).await?.items {
        let status = pod.status.clone().unwrap_or_default();
        let conditions = status.conditions.unwrap_or_default();
        let disrupted = conditions
            .iter()
            .find(|condition| condition.type_ == "DisruptionTarget")
            .and_then(|condition| condition.reason.clone())
            .unwrap_or_default();
        let line = format!(
            "{} on {}: {} ends={} {disrupted}",
            pod.labels().get("app").cloned().unwrap_or_default(),
            pod.spec
                .clone()
                .and_then(|spec| spec.node_name)
                .unwrap_or_default(),
            status.phase.unwrap_or_default(),
            pod.metadata.deletion_timestamp.is_some(),
        );
        *found.entry(line).or_default() += 1;
    }
    Ok(found)
}

async fn taints(client: &Client, node: &str) -> Result<Vec<(String, String)>> {
    let nodes: Api<Node> = Api::all(client.clone());
    let taints = nodes.get(node).await?.spec.and_then(|spec| spec.taints);
    let mut taints: Vec<_> = taints
        .unwrap_or_default()
        .into_iter()
        .map(|taint| (taint.key, taint.effect))
        .collect();
    taints.sort();
    Ok(taints)
}

/// Everything that is compared: taken at three moments that do not depend on how fast a cluster is.
#[derive(Debug, PartialEq)]
struct Told {
    taints_when_lost: Vec<(String, String)>,
    when_replaced: BTreeMap<String, usize>,
    when_deleted: BTreeMap<String, usize>,
    failed: i32,
}

async fn play(cluster: &Cluster) -> Result<Told> {
    let client = cluster.client().await?;
    let namespace = cluster.namespace("loss").await?;
    // On the node that will be lost first: the other is closed to them until then.
    let cordon = json!({ "spec": { "unschedulable": true } });
    let nodes: Api<Node> = Api::all(client.clone());
    let patch = Patch::Merge(&cordon);
    nodes
        .patch("kept-0", &PatchParams::default(), &patch)
        .await?;
    let web = made("web", &json!({})).replicated("Deployment", &namespace);
    create::<Deployment>(&client, &namespace, web).await?;
    let mut job = made("job", &json!({})).job(&namespace);
    job["spec"]["podFailurePolicy"] = json!({ "rules": [{ "action": "Ignore", "onPodConditions": [{ "type": "DisruptionTarget" }] }] });
    job["spec"]["podReplacementPolicy"] = json!("Failed");
    create::<Job>(&client, &namespace, job).await?;
    let tolerant = made(
        "tolerant",
        &json!({ "tolerations": [{ "operator": "Exists" }], "nodeSelector": { "kubernetes.io/hostname": "lost-0" } }),
    );
    create::<Pod>(&client, &namespace, tolerant.pod(&namespace)).await?;
    let running = |app: &str, node: &str| format!("{app} on {node}: Running ends=false ");
    until(
        "every pod runs on the node to be lost",
        PATIENCE,
        || async {
            let found = pods(&client, &namespace).await?;
            let all = ["web", "job", "tolerant"]
                .iter()
                .all(|app| found.contains_key(&running(app, "lost-0")));
            Ok(all.then_some(()))
        },
    )
    .await?;
    let open = json!({ "spec": { "unschedulable": null } });
    let patch = Patch::Merge(&open);
    nodes
        .patch("kept-0", &PatchParams::default(), &patch)
        .await?;
    cluster.lose("lost");
    let taints_when_lost = until("the lost node evicts", PATIENCE, || async {
        let taints = taints(&client, "lost-0").await?;
        Ok((taints.len() == 2).then_some(taints))
    })
    .await?;
    // The Deployment is whole again elsewhere; the Job waits until its pod is known to have ended.
    let when_replaced = until("what can be replaced is", PATIENCE, || async {
        let found = pods(&client, &namespace).await?;
        let replaced = found.contains_key(&running("web", "kept-0"));
        let evicted = found.keys().filter(|line| line.contains("ends=true"));
        Ok((replaced && evicted.count() == 2).then_some(found))
    })
    .await?;
    cluster.delete_node("lost-0").await?;
    let when_deleted = until("pods of a deleted node go", PATIENCE, || async {
        let found = pods(&client, &namespace).await?;
        let gone = !found.keys().any(|line| line.contains("lost-0"));
        let replaced = found.contains_key(&running("job", "kept-0"));
        Ok((gone && replaced).then_some(found))
    })
    .await?;
    let jobs: Api<Job> = Api::namespaced(client.clone(), &namespace);
    let status = jobs.get("job").await?.status.unwrap_or_default();
    Ok(Told {
        taints_when_lost,
        when_replaced,
        when_deleted,
        failed: status.failed.unwrap_or(0),
    })
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lost_node_is_tainted_and_emptied_as_by_kube_controller_manager() -> Result<()> {
    let (theirs, ours) = tokio::try_join!(cluster(false), cluster(true))?;
    let shutdown = CancellationToken::new();
    let options = Options {
        root_ca: Some("a certificate".to_owned()),
        node_grace: GRACE,
        ..Options::default()
    };
    let client = ours.client().await?;
    tokio::spawn(run(client, Clock::system(), options, shutdown.clone()));
    let (there, here) = tokio::join!(play(&theirs), play(&ours));
    shutdown.cancel();
    let (there, here) = (there.context("kubernetes")?, here.context("warp")?);
    ensure!(there == here, "kubernetes: {there:#?}\nwarp: {here:#?}");
    Ok(())
}
