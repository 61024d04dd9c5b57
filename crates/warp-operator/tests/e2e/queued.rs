//! Jobs of others in the queue: held suspended, placed, pinned, resumed, and suspended again for what is more urgent.

use anyhow::{Context, Result, ensure};
use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::core::v1::{Event, Pod};
use k8s_openapi::api::scheduling::v1::PriorityClass;
use kube::api::{DeleteParams, ListParams, Patch, PatchParams, PostParams};
use kube::{Api, ResourceExt};
use serde_json::{Value, json};
use warp_testkit::{Behaviour, NodeShape, repository, until, wait_for, wait_gone};

use super::run::check_pinned;
use super::world::{DEADLINE, Scene, World, is_live, phase, spec, with};

const QUEUE: &str = "gpu.warp.dev/queue";
const REASON: &str = "gpu.warp.dev/queue-reason";
const WAITING_FOR: &str = "gpu.warp.dev/waiting-for";
const POSITION: &str = "gpu.warp.dev/queue-position";
const NODES: &str = "gpu.warp.dev/nodes";

/// One GPU of a model no other scenario asks for.
pub(super) fn single() -> NodeShape {
    NodeShape::nvidia("a6000", "NVIDIA-RTX-A6000", 49_140, "ampere", 1)
}

/// One GPU for those that take each other's place.
pub(super) fn taken() -> NodeShape {
    NodeShape::nvidia("p4", "NVIDIA-P4", 7_680, "pascal", 1)
}

/// Two nodes of one GPU for a wide Job.
pub(super) fn pair() -> NodeShape {
    NodeShape::nvidia("v100", "NVIDIA-V100-SXM2-16GB", 16_384, "volta", 1)
}

/// A plain Job for one GPU of a product, changed by `more`.
fn job(name: &str, product: &str, behaviour: &Behaviour, more: Value) -> Value {
    let base = json!({
        "apiVersion": "batch/v1", "kind": "Job",
        "metadata": {"name": name, "labels": {QUEUE: "true"}},
        "spec": {
            "suspend": true, "backoffLimit": 0,
            "template": {"spec": {
                "restartPolicy": "Never",
                "nodeSelector": {"nvidia.com/gpu.product": product},
                "containers": [{
                    "name": "main", "image": "registry.example/scenario:1", "env": behaviour.env(),
                    "resources": {"limits": {"nvidia.com/gpu": "1"}},
                }],
            }},
        },
    });
    with(base, more)
}

async fn create(scene: &Scene<'_>, job: Value) -> Result<Job> {
    let job: Job = serde_json::from_value(job)?;
    Ok(scene.jobs().create(&PostParams::default(), &job).await?)
}

/// Waits until a Job is as told and gives it as it then was.
async fn until_job(
    scene: &Scene<'_>,
    name: &str,
    what: &str,
    holds: impl Fn(&Job) -> bool + Send + Sync,
) -> Result<Job> {
    let seen = wait_for(&scene.jobs(), name, what, DEADLINE, |job| {
        job.is_some_and(&holds)
    })
    .await
    .with_context(|| format!("in namespace '{}'", scene.namespace))?;
    seen.context("a Job that was there is missing")
}

fn said<'a>(job: &'a Job, annotation: &str) -> &'a str {
    let found = job.annotations().get(annotation);
    found.map(String::as_str).unwrap_or_default()
}

fn is_suspended(job: &Job) -> bool {
    job.spec.as_ref().and_then(|spec| spec.suspend) == Some(true)
}

fn is_complete(job: &Job) -> bool {
    let conditions = job
        .status
        .as_ref()
        .and_then(|status| status.conditions.as_ref());
    let mut conditions = conditions.into_iter().flatten();
    conditions.any(|found| found.type_ == "Complete" && found.status == "True")
}

async fn until_waits(scene: &Scene<'_>, name: &str, reason: &str) -> Result<Job> {
    let job = until_job(scene, name, reason, |job| said(job, REASON) == reason).await?;
    ensure!(is_suspended(&job), "{name} waits and is not suspended");
    Ok(job)
}

async fn until_complete(scene: &Scene<'_>, name: &str) -> Result<()> {
    until_job(scene, name, "complete", is_complete).await?;
    Ok(())
}

async fn pods_of(scene: &Scene<'_>, name: &str) -> Result<Vec<Pod>> {
    let of = format!("batch.kubernetes.io/job-name={name}");
    let mut pods = scene
        .pods()
        .list(&ListParams::default().labels(&of))
        .await?
        .items;
    pods.retain(is_live);
    Ok(pods)
}

/// Waits until as many pods of a Job run.
async fn until_runs(scene: &Scene<'_>, name: &str, pods: usize) -> Result<Vec<Pod>> {
    let running = |pod: &Pod| {
        let status = pod.status.as_ref();
        status.and_then(|status| status.phase.as_deref()) == Some("Running")
    };
    until(
        &format!("{pods} pods of '{name}' run"),
        DEADLINE,
        || async {
            let mut found = pods_of(scene, name).await?;
            found.retain(running);
            Ok((found.len() == pods).then_some(found))
        },
    )
    .await
}

/// Makes the live pods of a Job go on as told.
async fn release(scene: &Scene<'_>, name: &str, behaviour: &Behaviour) -> Result<()> {
    for pod in pods_of(scene, name).await? {
        let patch = Patch::Merge(json!({"metadata": {"annotations": behaviour.annotations()}}));
        let (name, params) = (pod.name_any(), PatchParams::default());
        scene.pods().patch(&name, &params, &patch).await?;
    }
    Ok(())
}

/// Waits until an Event about a Job has this reason; what it says.
pub(super) async fn told(scene: &Scene<'_>, name: &str, reason: &str) -> Result<Vec<String>> {
    let events: Api<Event> = Api::namespaced(scene.world.client.clone(), &scene.namespace);
    until(&format!("'{name}' is told {reason}"), DEADLINE, || async {
        let all = events.list(&ListParams::default()).await?;
        let own = all.into_iter().filter(|event| {
            event.involved_object.name.as_deref() == Some(name)
                && event.reason.as_deref() == Some(reason)
        });
        let said: Vec<String> = own.filter_map(|event| event.message).collect();
        Ok((!said.is_empty()).then_some(said))
    })
    .await
}

fn node_of(pod: &Pod) -> &str {
    let spec = pod.spec.as_ref();
    let node = spec.and_then(|spec| spec.node_name.as_deref());
    node.unwrap_or_default()
}

pub(super) async fn jobs_and_workloads_wait_in_one_line(world: &World) -> Result<()> {
    let scene = world.scene("queued").await?;
    let a6000 = |name: &str| job(name, "NVIDIA-RTX-A6000", &Behaviour::hang(), json!({}));
    create(&scene, a6000("first")).await?;
    let pods = until_runs(&scene, "first", 1).await?;
    check_pinned(&pods[0], "a6000-0")?;
    let first = scene.jobs().get("first").await?;
    ensure!(said(&first, NODES) == "a6000-0" && said(&first, REASON) == "Placed");
    told(&scene, "first", "Scheduled").await?;
    // One after the other, and a workload behind them.
    create(&scene, a6000("second")).await?;
    let second = until_waits(&scene, "second", "WaitingForCapacity").await?;
    ensure!(
        !said(&second, POSITION).is_empty(),
        "it has no place in line"
    );
    ensure!(
        said(&second, WAITING_FOR).contains("nodes fit"),
        "{}",
        said(&second, WAITING_FOR)
    );
    told(&scene, "second", "WaitingForCapacity").await?;
    ensure!(
        pods_of(&scene, "second").await?.is_empty(),
        "a pod was made"
    );
    let model = json!({"gpu": {"models": ["A6000"]}});
    let work = with(spec(1, &Behaviour::hang()), model);
    scene.submit("third", work).await?;
    scene.until_reason("third", "WaitingForCapacity").await?;
    create(&scene, a6000("gone")).await?;
    until_waits(&scene, "gone", "WaitingForCapacity").await?;
    create(&scene, a6000("last")).await?;
    until_waits(&scene, "last", "WaitingForCapacity").await?;
    // Deleted while it waits: nobody waits for it.
    scene
        .jobs()
        .delete("gone", &DeleteParams::background())
        .await?;
    wait_gone(&scene.jobs(), "gone", DEADLINE).await?;
    release(&scene, "first", &Behaviour::succeed()).await?;
    until_complete(&scene, "first").await?;
    until_runs(&scene, "second", 1).await?;
    ensure!(phase(&scene.get("third").await?) == "Pending");
    release(&scene, "second", &Behaviour::succeed()).await?;
    scene.until_phase("third", "Running").await?;
    ensure!(
        is_suspended(&scene.jobs().get("last").await?),
        "it went before its turn"
    );
    scene.release("third", &Behaviour::succeed()).await?;
    until_runs(&scene, "last", 1).await?;
    release(&scene, "last", &Behaviour::succeed()).await?;
    until_complete(&scene, "last").await
}

pub(super) async fn pods_of_a_wide_job_start_together(world: &World) -> Result<()> {
    let scene = world.scene("wide-job").await?;
    let v100 = |name: &str, more: Value| {
        let product = "NVIDIA-V100-SXM2-16GB";
        job(name, product, &Behaviour::hang(), json!({"spec": more}))
    };
    create(&scene, v100("small", json!({}))).await?;
    until_runs(&scene, "small", 1).await?;
    let two = json!({"parallelism": 2, "completions": 2, "completionMode": "Indexed"});
    create(&scene, v100("wide", two)).await?;
    let wide = until_waits(&scene, "wide", "WaitingForCapacity").await?;
    let said_of = said(&wide, WAITING_FOR);
    ensure!(said_of.contains("1 of 2 members fit"), "{said_of}");
    ensure!(
        pods_of(&scene, "wide").await?.is_empty(),
        "half of it was made"
    );
    release(&scene, "small", &Behaviour::succeed()).await?;
    let pods = until_runs(&scene, "wide", 2).await?;
    let mut nodes: Vec<&str> = pods.iter().map(node_of).collect();
    nodes.sort_unstable();
    ensure!(nodes == ["v100-0", "v100-1"], "{nodes:?}");
    release(&scene, "wide", &Behaviour::succeed()).await?;
    until_complete(&scene, "wide").await
}

pub(super) async fn a_job_is_suspended_for_work_of_higher_priority(world: &World) -> Result<()> {
    let scene = world.scene("evicted-job").await?;
    let class: PriorityClass = serde_json::from_value(json!({
        "metadata": {"name": format!("{}-low", scene.namespace)}, "value": -1,
    }))?;
    let classes: Api<PriorityClass> = Api::all(world.client.clone());
    classes.create(&PostParams::default(), &class).await?;
    let p4 = |name: &str, more: Value| job(name, "NVIDIA-P4", &Behaviour::hang(), more);
    let low = json!({"spec": {"template": {"spec": {"priorityClassName": class.name_any()}}}});
    let created = create(&scene, p4("goes", low)).await?;
    until_runs(&scene, "goes", 1).await?;
    let high = json!({"metadata": {"annotations": {"gpu.warp.dev/priority": "high"}}});
    create(&scene, p4("urgent", high)).await?;
    until_runs(&scene, "urgent", 1).await?;
    let waits = until_job(&scene, "goes", "queued as it was", |job| {
        is_suspended(job)
            && said(job, REASON) == "WaitingForCapacity"
            && said(job, NODES).is_empty()
    })
    .await?;
    let template = |job: &Job| job.spec.as_ref().map(|spec| spec.template.clone());
    ensure!(
        template(&waits) == template(&created),
        "its template is not what it was"
    );
    told(&scene, "goes", "Preempted").await?;
    release(&scene, "urgent", &Behaviour::succeed()).await?;
    until_complete(&scene, "urgent").await?;
    until_runs(&scene, "goes", 1).await?;
    by_hand(&scene).await?;
    classes
        .delete(&class.name_any(), &DeleteParams::default())
        .await?;
    Ok(())
}

/// What somebody does to a placed Job is left so.
async fn by_hand(scene: &Scene<'_>) -> Result<()> {
    let suspend = |suspend: bool| json!({"spec": {"suspend": suspend}});
    let change = |change: Value| async move {
        let params = PatchParams::default();
        let patch = Patch::Merge(change);
        scene.jobs().patch("goes", &params, &patch).await.map(drop)
    };
    change(suspend(true)).await?;
    let job = until_waits(scene, "goes", "JobSuspended").await?;
    ensure!(said(&job, NODES) == "p4-0", "its place is not remembered");
    // The cluster's scheduler refuses a pod beside one that still ends.
    until_runs(scene, "goes", 0).await?;
    change(suspend(false)).await?;
    let pods = until_runs(scene, "goes", 1).await?;
    check_pinned(&pods[0], "p4-0")?;
    change(suspend(true)).await?;
    until_waits(scene, "goes", "JobSuspended").await?;
    until_runs(scene, "goes", 0).await?;
    change(json!({"metadata": {"annotations": {"gpu.warp.dev/requeued": "by-hand"}}})).await?;
    until_runs(scene, "goes", 1).await?;
    release(scene, "goes", &Behaviour::succeed()).await?;
    until_complete(scene, "goes").await
}

pub(super) async fn what_is_not_held_is_told_and_not_stopped(world: &World) -> Result<()> {
    let scene = world.scene("unheld").await?;
    let h100 = |name: &str, more: Value| {
        let product = "NVIDIA-H100-80GB-HBM3";
        job(name, product, &Behaviour::hang(), more)
    };
    create(&scene, h100("runs", json!({"spec": {"suspend": false}}))).await?;
    let free = until_job(&scene, "runs", "told", |job| said(job, REASON) == "NotHeld").await?;
    ensure!(!is_suspended(&free) && said(&free, NODES).is_empty());
    let said_of = told(&scene, "runs", "NotHeld").await?;
    ensure!(
        said_of.len() == 1 && said_of[0].contains("spec.suspend: true"),
        "{said_of:?}"
    );
    until_runs(&scene, "runs", 1).await?;
    release(&scene, "runs", &Behaviour::succeed()).await?;
    until_complete(&scene, "runs").await?;
    // Nothing is done to a Job that does not ask for it.
    let plain = json!({"metadata": {"labels": {QUEUE: "false"}}});
    create(&scene, h100("plain", plain)).await?;
    let cpu = json!({"spec": {"template": {"spec": {"containers": [
        {"name": "main", "image": "registry.example/scenario:1"},
    ]}}}});
    create(&scene, h100("wrong", cpu)).await?;
    let wrong = until_waits(&scene, "wrong", "InvalidSpec").await?;
    let why = said(&wrong, WAITING_FOR);
    ensure!(why.contains("no whole GPU"), "{why}");
    let plain = scene.jobs().get("plain").await?;
    ensure!(
        is_suspended(&plain) && plain.annotations().is_empty(),
        "{plain:?}"
    );
    Ok(())
}

pub(super) async fn the_example_of_a_queued_job_runs(world: &World) -> Result<()> {
    let scene = world.scene("queued-example").await?;
    let example = repository().join("deploy/examples/queued-job.yaml");
    let example = example.display().to_string();
    let kubectl = world.cluster.kubectl();
    kubectl
        .run(&["-n", &scene.namespace, "apply", "-f", &example])
        .await?;
    until_complete(&scene, "queued").await?;
    let job = scene.jobs().get("queued").await?;
    ensure!(!said(&job, NODES).is_empty(), "{job:?}");
    Ok(())
}

/// A Job of high priority that takes the place of what is less urgent, and runs until it is told to end.
pub(super) async fn urgent(scene: &Scene<'_>, product: &str) -> Result<()> {
    let high = json!({"metadata": {"annotations": {"gpu.warp.dev/priority": "high"}}});
    create(scene, job("urgent", product, &Behaviour::hang(), high)).await?;
    Ok(())
}

pub(super) async fn urgent_ends(scene: &Scene<'_>) -> Result<()> {
    until_runs(scene, "urgent", 1).await?;
    release(scene, "urgent", &Behaviour::succeed()).await?;
    until_complete(scene, "urgent").await
}

/// The same in the one namespace that an operator has: what it needs there.
pub(super) async fn is_placed_and_evicted(scene: &Scene<'_>) -> Result<()> {
    let h100 = |name: &str, priority: &str| {
        let all = json!({"nvidia.com/gpu": "8"});
        let more = json!({
            "metadata": {"annotations": {"gpu.warp.dev/priority": priority}},
            "spec": {"template": {"spec": {"containers": [{
                "name": "main", "image": "registry.example/scenario:1",
                "env": Behaviour::hang().env(), "resources": {"limits": all},
            }]}}},
        });
        job(name, "NVIDIA-H100-80GB-HBM3", &Behaviour::hang(), more)
    };
    create(scene, h100("low-job", "low")).await?;
    until_runs(scene, "low-job", 1).await?;
    create(scene, h100("high-job", "high")).await?;
    until_runs(scene, "high-job", 1).await?;
    release(scene, "high-job", &Behaviour::succeed()).await?;
    until_runs(scene, "low-job", 1).await?;
    scene
        .jobs()
        .delete("low-job", &DeleteParams::background())
        .await?;
    wait_gone(&scene.jobs(), "low-job", DEADLINE).await
}
