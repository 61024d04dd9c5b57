//! What others do to a workload's Job and pod: drains and preemption, and people with kubectl.

use anyhow::{Context, Result, ensure};
use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::api::events::v1::Event;
use kube::ResourceExt;
use kube::api::{DeleteParams, EvictParams, Patch, PatchParams};
use serde_json::{Value, json};
use warp_testkit::{Behaviour, NodeShape, until, wait_gone};

use super::world::{DEADLINE, Scene, World, message, phase, reason, retries, spec, text, with};

/// What the Event of a reason about a workload says.
async fn told(scene: &Scene<'_>, name: &str, wanted: &str) -> Result<String> {
    told_of(scene, name, wanted, "").await
}

/// The same of the one that names `part`, where there are several.
async fn told_of(scene: &Scene<'_>, name: &str, wanted: &str, part: &str) -> Result<String> {
    let events = kube::Api::<Event>::namespaced(scene.workloads().into_client(), &scene.namespace);
    let heard = || async {
        let all = events.list(&kube::api::ListParams::default()).await?;
        let about = |event: &Event| {
            event.regarding.as_ref().and_then(|it| it.name.as_deref()) == Some(name)
        };
        let all = all.into_iter().filter(about);
        anyhow::Ok(all.map(|event| (event.reason, event.note.unwrap_or_default())))
    };
    let found = until(&format!("told of {wanted}"), DEADLINE, || async {
        let mut all = heard().await?;
        let found =
            all.find(|(reason, note)| reason.as_deref() == Some(wanted) && note.contains(part));
        Ok(found.map(|(_, note)| note))
    })
    .await;
    if found.is_err() {
        let said: Vec<_> = heard().await?.collect();
        let status = scene.get(name).await?.data["status"].clone();
        return found.with_context(|| format!("told were {said:#?}; {name} is {status:#}"));
    }
    found
}

/// It runs again, in another pod than before.
async fn again(scene: &Scene<'_>, name: &str, before: &Pod) -> Result<kube::api::DynamicObject> {
    wait_gone::<Pod>(&scene.pods(), &before.name_any(), DEADLINE)
        .await
        .ok();
    let object = scene
        .until(name, "running again", |object| {
            phase(object) == "Running" && reason(object) == "Running"
        })
        .await?;
    let pod = scene.live_pod(name).await?;
    ensure!(pod.uid() != before.uid(), "{name} was not started again");
    Ok(object)
}

pub(super) async fn an_evicted_workload_is_placed_again_without_a_retry(
    world: &World,
) -> Result<()> {
    let scene = world.scene("evict").await?;
    // Not a single retry to use up.
    let spec = with(
        spec(1, &Behaviour::hang()),
        json!({"retryPolicy": {"maxRetries": 0}}),
    );
    scene.submit("drained", spec).await?;
    scene.until_phase("drained", "Running").await?;
    for count in 1..=2 {
        let pod = scene.live_pod("drained").await?;
        let node = pod.spec.as_ref().and_then(|spec| spec.node_name.clone());
        scene
            .pods()
            .evict(&pod.name_any(), &EvictParams::default())
            .await?;
        let object = scene
            .until("drained", "disrupted and running", |object| {
                object.data["status"]["disruptions"] == count && phase(object) == "Running"
            })
            .await?;
        ensure!(retries(&object) == 0, "{:?}", object.data["status"]);
        let node = node.unwrap_or_default();
        told_of(&scene, "drained", "Evicted", &node).await?;
    }
    // The third is one too many.
    let limit = json!({"retryPolicy": {"maxRetries": 0, "maxDisruptions": 2}});
    scene.change("drained", limit).await?;
    let pod = scene.live_pod("drained").await?;
    scene
        .pods()
        .evict(&pod.name_any(), &EvictParams::default())
        .await?;
    let object = scene.until_phase("drained", "Failed").await?;
    ensure!(reason(&object) == "Evicted" && message(&object).contains("maxDisruptions"));
    Ok(())
}

/// A node of a model no other scenario asks for: to be emptied by a taint.
pub(super) fn tainted() -> NodeShape {
    NodeShape::nvidia("p100", "Tesla-P100-PCIE-16GB", 16_384, "pascal", 1)
}

pub(super) async fn a_taint_that_evicts_uses_no_retry(world: &World) -> Result<()> {
    let scene = world.scene("taint").await?;
    let kubectl = world.cluster.kubectl();
    let only = json!({"gpu": {"models": ["P100"]}, "retryPolicy": {"maxRetries": 0}});
    scene
        .submit("moved", with(spec(1, &Behaviour::hang()), only))
        .await?;
    scene.until_phase("moved", "Running").await?;
    let taint = "maintenance=now:NoExecute";
    kubectl.run(&["taint", "node", "p100-0", taint]).await?;
    // There is no other node of its model.
    let object = scene.until_reason("moved", "NodesTainted").await?;
    ensure!(phase(&object) == "Pending", "{:?}", object.data["status"]);
    ensure!(message(&object).contains(taint), "{}", message(&object));
    told_of(&scene, "moved", "Evicted", "p100-0").await?;
    let off = format!("{taint}-");
    kubectl.run(&["taint", "node", "p100-0", &off]).await?;
    let object = scene.until_phase("moved", "Running").await?;
    ensure!(
        retries(&object) == 0 && object.data["status"]["disruptions"] == 1,
        "{:?}",
        object.data["status"]
    );
    scene.release("moved", &Behaviour::succeed()).await?;
    scene.until_phase("moved", "Succeeded").await?;
    Ok(())
}

async fn suspend(scene: &Scene<'_>, job: &str, on: bool) -> Result<()> {
    let patch = json!({"spec": {"suspend": on}});
    scene
        .jobs()
        .patch(job, &PatchParams::default(), &Patch::Merge(patch))
        .await?;
    Ok(())
}

pub(super) async fn a_job_suspended_by_hand_gives_its_gpus_back(world: &World) -> Result<()> {
    let scene = world.scene("halted").await?;
    scene.submit("halted", spec(1, &Behaviour::hang())).await?;
    let object = scene.until_phase("halted", "Running").await?;
    let job = text(&object, "/status/jobName").to_owned();
    let pod = scene.live_pod("halted").await?;
    suspend(&scene, &job, true).await?;
    let object = scene.until_reason("halted", "JobSuspended").await?;
    ensure!(phase(&object) == "Pending", "{:?}", object.data["status"]);
    ensure!(message(&object).contains(&job), "{}", message(&object));
    let status = &object.data["status"];
    ensure!(
        status.get("deadline").is_none() && status.get("assignedNode").is_none(),
        "{status:?}"
    );
    wait_gone::<Pod>(&scene.pods(), &pod.name_any(), DEADLINE).await?;
    suspend(&scene, &job, false).await?;
    let object = again(&scene, "halted", &pod).await?;
    ensure!(retries(&object) == 0);
    scene.release("halted", &Behaviour::succeed()).await?;
    scene.until_phase("halted", "Succeeded").await?;
    Ok(())
}

pub(super) async fn a_job_or_pod_deleted_by_hand_is_called_that(world: &World) -> Result<()> {
    let scene = world.scene("deleted").await?;
    scene.submit("job", spec(1, &Behaviour::hang())).await?;
    let object = scene.until_phase("job", "Running").await?;
    let pod = scene.live_pod("job").await?;
    let job = text(&object, "/status/jobName").to_owned();
    let params = DeleteParams::background();
    scene.jobs().delete(&job, &params).await?;
    let object = again(&scene, "job", &pod).await?;
    ensure!(retries(&object) == 0, "{:?}", object.data["status"]);
    let text = told(&scene, "job", "JobDeleted").await?;
    ensure!(text.contains(&job), "{text}");

    scene.submit("pod", spec(1, &Behaviour::hang())).await?;
    let object = scene.until_phase("pod", "Running").await?;
    let job = self::text(&object, "/status/jobName").to_owned();
    let pod = scene.live_pod("pod").await?;
    scene
        .pods()
        .delete(&pod.name_any(), &DeleteParams::default())
        .await?;
    // A pod that went before the operator looked is named by its Job, whose name is the first part of its own.
    let text = told(&scene, "pod", "PodDeleted").await?;
    ensure!(text.contains(&job), "{text}");
    let object = again(&scene, "pod", &pod).await?;
    ensure!(retries(&object) == 1, "{:?}", object.data["status"]);
    Ok(())
}

pub(super) async fn a_pod_left_by_its_job_is_followed_to_its_end(world: &World) -> Result<()> {
    let scene = world.scene("orphan").await?;
    scene.submit("left", spec(1, &Behaviour::hang())).await?;
    let object = scene.until_phase("left", "Running").await?;
    let job = text(&object, "/status/jobName").to_owned();
    scene.jobs().delete(&job, &DeleteParams::orphan()).await?;
    let object = scene.until_reason("left", "JobOrphaned").await?;
    ensure!(phase(&object) == "Running", "{:?}", object.data["status"]);
    scene.canary("canary").await?;
    ensure!(scene.pods_of("left").await?.len() == 1, "it runs twice");
    // How it ends is how the attempt ends; the next one has a Job again.
    scene.release("left", &Behaviour::exit(3)).await?;
    let text = told(&scene, "left", "NonZeroExit").await?;
    ensure!(text.contains("exit code 3"), "{text}");
    let object = scene
        .until("left", "in its second attempt", |object| {
            reason(object) == "Running" && retries(object) == 1
        })
        .await?;
    let next = self::text(&object, "/status/jobName");
    ensure!(next != job, "{:?}", object.data["status"]);
    Ok(())
}

/// Where PodSecurity enforces `restricted`, the simple form runs once it says that it is not root's.
pub(super) async fn the_simple_form_runs_where_pods_are_restricted(world: &World) -> Result<()> {
    let scene = world.scene("restricted").await?;
    world
        .cluster
        .kubectl()
        .run(&[
            "label",
            "namespace",
            &scene.namespace,
            "pod-security.kubernetes.io/enforce=restricted",
        ])
        .await?;
    let user: Value = json!({"podSecurityContext": {"runAsNonRoot": true, "runAsUser": 1000}});
    scene
        .submit("allowed", with(spec(1, &Behaviour::succeed()), user))
        .await?;
    scene.until_phase("allowed", "Succeeded").await?;
    scene.canary("plain").await?;
    let root = json!({"podSecurityContext": {"runAsNonRoot": false}});
    scene
        .submit("roots", with(spec(1, &Behaviour::succeed()), root))
        .await?;
    let object = scene.until_reason("roots", "PodsRefused").await?;
    let said = message(&object);
    ensure!(
        said.contains("runAsNonRoot") && said.contains("spec.podSecurityContext"),
        "{said}"
    );
    // Everything else is in order by default.
    for other in ["allowPrivilegeEscalation", "capabilities", "seccompProfile"] {
        ensure!(!said.contains(other), "{said}");
    }
    let jobs: Vec<Job> = scene.jobs_of("roots").await?;
    jobs.first().context("a Job without pods")?;
    Ok(())
}
