//! Gangs: all members start or none does, and what ends one ends all.

use anyhow::{Context, Result, ensure};
use k8s_openapi::api::core::v1::{Pod, Secret, Service};
use kube::api::{EvictParams, ListParams, Patch, PatchParams};
use kube::{Api, ResourceExt};
use serde_json::{Value, json};
use warp_testkit::{Behaviour, NodeShape, until};

use super::world::{
    DEADLINE, Scene, World, condition, is_live, message, phase, reason, retries, spec, with,
};

/// Three nodes of a model no other scenario asks for: two in one zone, one in another.
pub(super) fn zoned() -> [(NodeShape, usize); 2] {
    let zone = |name: &str| {
        NodeShape::nvidia(name, "NVIDIA-A16", 15_356, "ampere", 2)
            .label("topology.kubernetes.io/zone", name)
    };
    [(zone("east"), 2), (zone("west"), 1)]
}

/// Two nodes of another.
pub(super) fn paired() -> NodeShape {
    NodeShape::nvidia("pair", "NVIDIA-A40", 46_068, "ampere", 2)
}

/// Two nodes for a gang that makes do with one.
pub(super) fn elastic() -> NodeShape {
    NodeShape::nvidia("a4500", "NVIDIA-RTX-A4500", 20_470, "ampere", 2)
}

/// A gang of members that want a whole node each.
fn gang(model: &str, members: u32, behaviour: &Behaviour, more: Value) -> Value {
    let own = json!({"replicas": members, "gpu": {"models": [model]}});
    with(with(spec(2, behaviour), own), more)
}

async fn live_members(scene: &Scene<'_>, name: &str) -> Result<Vec<Pod>> {
    let mut pods = scene.pods_of(name).await?;
    pods.retain(is_live);
    pods.sort_by_key(rank);
    Ok(pods)
}

fn rank(pod: &Pod) -> Option<usize> {
    let label = "batch.kubernetes.io/job-completion-index";
    pod.labels().get(label)?.parse().ok()
}

async fn until_runs(scene: &Scene<'_>, name: &str, ready: &str) -> Result<()> {
    scene
        .until(name, "all members run", |object| {
            phase(object) == "Running" && object.data["status"]["ready"] == ready
        })
        .await?;
    Ok(())
}

pub(super) async fn all_members_start_or_none(world: &World) -> Result<()> {
    let scene = world.scene("gang").await?;
    let hang = Behaviour::hang();
    scene
        .submit("three", gang("NVIDIA-A16", 3, &hang, json!({})))
        .await?;
    until_runs(&scene, "three", "3/3").await?;
    check_members(&scene, "three", 3).await?;
    // Nothing of the next one is made while it does not fit whole.
    scene
        .submit("two", gang("NVIDIA-A16", 2, &hang, json!({})))
        .await?;
    let object = scene.until_reason("two", "WaitingForCapacity").await?;
    let said = message(&object);
    ensure!(said.contains("0 of 2 members fit"), "{said}");
    ensure!(scene.jobs_of("two").await?.is_empty(), "a Job was made");
    scene.change("three", json!({"suspend": true})).await?;
    until_runs(&scene, "two", "2/2").await?;
    scene.delete("two").await?;
    scene.change("three", json!({"suspend": false})).await?;
    until_runs(&scene, "three", "3/3").await?;
    for pod in live_members(&scene, "three").await? {
        go_on(&scene, &pod, &Behaviour::succeed()).await?;
    }
    scene.until_phase("three", "Succeeded").await?;
    scene.delete("three").await?;
    close_together(&scene).await
}

/// The members of a gang: each on its own node, told who it is, under one name.
async fn check_members(scene: &Scene<'_>, name: &str, size: usize) -> Result<()> {
    let object = scene.get(name).await?;
    let nodes = object.data["status"]["assignedNodes"].as_array();
    ensure!(nodes.is_some_and(|nodes| nodes.len() == size), "{nodes:?}");
    ensure!(condition(&object, "Placed", "status") == "True");
    let job = scene.jobs_of(name).await?.remove(0);
    let master = format!("{}-0.", job.name_any());
    let pods = live_members(scene, name).await?;
    ensure!(pods.len() == size, "{} pods", pods.len());
    let mut used = Vec::new();
    for (at, pod) in pods.iter().enumerate() {
        ensure!(rank(pod) == Some(at), "ranks are not 0..{size}");
        let spec = pod.spec.as_ref().context("no spec")?;
        ensure!(
            spec.scheduling_gates.is_none(),
            "{:?}",
            spec.scheduling_gates
        );
        used.extend(spec.node_name.clone());
        let env = spec.containers[0].env.iter().flatten();
        let value = |wanted: &str| {
            let found = env.clone().find(|variable| variable.name == wanted);
            found.and_then(|variable| variable.value.clone())
        };
        ensure!(value("WORLD_SIZE") == Some(size.to_string()));
        let addr = value("MASTER_ADDR").unwrap_or_default();
        ensure!(addr.starts_with(&master), "{addr} is not under {master}");
        let below = spec.subdomain.clone().unwrap_or_default();
        ensure!(addr.ends_with(&format!(".{below}")), "{addr}, {below}");
        let services: Api<Service> = Api::namespaced(scene.world.client.clone(), &scene.namespace);
        let service = services.get(&below).await?.spec.context("no spec")?;
        ensure!(service.cluster_ip.as_deref() == Some("None"));
    }
    used.sort();
    used.dedup();
    ensure!(used.len() == size, "whole nodes were asked for: {used:?}");
    Ok(())
}

async fn close_together(scene: &Scene<'_>) -> Result<()> {
    let zone = json!({"topology": {"level": "zone"}});
    let hang = Behaviour::hang();
    scene
        .submit("wide", gang("NVIDIA-A16", 3, &hang, zone.clone()))
        .await?;
    let object = scene.until_reason("wide", "NeverFits").await?;
    let said = message(&object);
    ensure!(
        said.contains("in one zone: 2 of 3 members fit"),
        "no zone has three: {said}"
    );
    scene
        .submit("near", gang("NVIDIA-A16", 2, &hang, zone))
        .await?;
    until_runs(scene, "near", "2/2").await?;
    for pod in live_members(scene, "near").await? {
        let node = pod.spec.and_then(|spec| spec.node_name).unwrap_or_default();
        ensure!(node.starts_with("east-"), "a member is on {node}");
    }
    Ok(())
}

async fn go_on(scene: &Scene<'_>, pod: &Pod, behaviour: &Behaviour) -> Result<()> {
    let patch = json!({"metadata": {"annotations": behaviour.annotations()}});
    let params = PatchParams::default();
    scene
        .pods()
        .patch(&pod.name_any(), &params, &Patch::Merge(patch))
        .await?;
    Ok(())
}

pub(super) async fn an_elastic_gang_starts_with_what_fits_and_fails_when_told(
    world: &World,
) -> Result<()> {
    let scene = world.scene("elastic").await?;
    let (model, hang) = ("A4500", Behaviour::hang());
    let holds = with(spec(2, &hang), json!({"gpu": {"models": [model]}}));
    scene.submit("holds", holds).await?;
    scene.until_phase("holds", "Running").await?;
    let more = json!({
        "minReplicas": 1, "retryPolicy": {"onMemberFailure": "fail"},
        "mpi": {"slots": 3}, "command": ["mpirun", "train"],
    });
    scene.submit("grows", gang(model, 2, &hang, more)).await?;
    until_runs(&scene, "grows", "1/1").await?;
    check_members(&scene, "grows", 1).await?;
    // Room alone changes nothing of one that runs; its next attempt takes it.
    scene.delete("holds").await?;
    scene.change("grows", json!({"suspend": true})).await?;
    scene.until_reason("grows", "Suspended").await?;
    until("all pods are gone", DEADLINE, || async {
        let pods = scene.pods().list(&ListParams::default()).await?;
        Ok(pods.items.is_empty().then_some(()))
    })
    .await?;
    scene.change("grows", json!({"suspend": false})).await?;
    until_runs(&scene, "grows", "2/2").await?;
    check_members(&scene, "grows", 2).await?;
    check_mpi(&scene, "grows").await?;
    let members = live_members(&scene, "grows").await?;
    go_on(&scene, &members[1], &Behaviour::exit(3)).await?;
    let object = scene.until_phase("grows", "Failed").await?;
    ensure!(
        retries(&object) == 0 && reason(&object) == "NonZeroExit",
        "{:?}",
        object.data["status"]
    );
    Ok(())
}

/// What the members of an MPI gang are given: one key pair in a Secret of the workload's, and each other's names.
async fn check_mpi(scene: &Scene<'_>, name: &str) -> Result<()> {
    let pod = live_members(scene, name).await?.remove(0);
    let spec = pod.spec.context("no spec")?;
    let below = spec.subdomain.clone().unwrap_or_default();
    let secrets: Api<Secret> = Api::namespaced(scene.world.client.clone(), &scene.namespace);
    let secret = secrets.get(&below).await?;
    let owned = secret
        .owner_references()
        .iter()
        .any(|owner| owner.name == name);
    let entries: Vec<&String> = secret
        .data
        .iter()
        .flatten()
        .map(|(entry, _)| entry)
        .collect();
    ensure!(owned && entries == ["key", "key.pub"], "{entries:?}");
    let container = &spec.containers[0];
    let command = container.command.clone().unwrap_or_default();
    ensure!(command.ends_with(&["mpirun".to_owned(), "train".to_owned()]));
    let value = |wanted: &str| {
        let mut env = container.env.iter().flatten();
        let found = env.find(|variable| variable.name == wanted);
        found.and_then(|variable| variable.value.clone())
    };
    ensure!(value("WARP_MPI_SLOTS").as_deref() == Some("3"));
    let second = value("WARP_MPI_HOST_1").unwrap_or_default();
    ensure!(second.contains("-1.") && value("WARP_MPI_HOST_2").is_none());
    ensure!(
        value("WARP_MPI_KEY").is_none(),
        "the key is in the pod's spec"
    );
    Ok(())
}

pub(super) async fn what_ends_one_member_ends_all(world: &World) -> Result<()> {
    let scene = world.scene("ends").await?;
    let pair = || gang("NVIDIA-A40", 2, &Behaviour::hang(), json!({}));
    scene.submit("pair", pair()).await?;
    until_runs(&scene, "pair", "2/2").await?;
    // Taken away by the cluster: no retry is used.
    let first = live_members(&scene, "pair").await?;
    scene
        .pods()
        .evict(&first[0].name_any(), &EvictParams::default())
        .await?;
    let object = scene
        .until("pair", "disrupted and running", |object| {
            object.data["status"]["disruptions"] == 1
                && phase(object) == "Running"
                && reason(object) == "Running"
        })
        .await?;
    ensure!(retries(&object) == 0, "{:?}", object.data["status"]);
    let second = live_members(&scene, "pair").await?;
    ensure!(second.len() == 2, "{} pods", second.len());
    for pod in &second {
        ensure!(
            first.iter().all(|old| old.uid() != pod.uid()),
            "a member was left over"
        );
    }
    // Failed by itself: one retry for all.
    go_on(&scene, &second[1], &Behaviour::exit(3)).await?;
    let object = scene
        .until("pair", "tried again", |object| {
            retries(object) == 1 && phase(object) == "Running" && reason(object) == "Running"
        })
        .await?;
    ensure!(object.data["status"]["disruptions"] == 1);
    ensure!(live_members(&scene, "pair").await?.len() == 2);
    scene.delete("pair").await?;
    scene.until_empty().await?;
    let services: Api<Service> = Api::namespaced(world.client.clone(), &scene.namespace);
    let left = services.list(&ListParams::default()).await?.items;
    ensure!(
        left.iter()
            .all(|service| service.name_any() == "kubernetes"),
        "a Service is left"
    );
    Ok(())
}
