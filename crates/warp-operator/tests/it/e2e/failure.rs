//! What goes wrong says so: cause, and what to do next.

use anyhow::{Result, ensure};
use serde_json::json;
use warp_testkit::Behaviour;
use warp_testkit::behaviour::Kind;

use super::run::claim;
use super::world::{Scene, World, condition, message, phase, retries, spec, with};

/// One attempt, no more.
fn once() -> serde_json::Value {
    json!({"retryPolicy": {"maxRetries": 0}})
}

pub(super) async fn a_failed_container_says_how(world: &World) -> Result<()> {
    let scene = world.scene("ended").await?;
    let cases = [
        ("exit", Behaviour::exit(3), "NonZeroExit", "3"),
        (
            "oom",
            Behaviour::new(Kind::OutOfMemory),
            "OutOfMemory",
            "memory",
        ),
        ("evicted", Behaviour::new(Kind::Evicted), "Evicted", "vict"),
    ];
    for (name, behaviour, ..) in &cases {
        scene.submit(name, with(spec(1, behaviour), once())).await?;
    }
    for (name, _, reason, cause) in &cases {
        let object = scene.until_phase(name, "Failed").await?;
        ensure!(
            condition(&object, "Succeeded", "reason") == *reason,
            "{name}: {:?}",
            object.data["status"]
        );
        ensure!(
            message(&object).contains(cause),
            "{name}: {}",
            message(&object)
        );
        ensure!(retries(&object) == 0);
        ensure!(scene.jobs_of(name).await?.len() == 1);
    }
    Ok(())
}

pub(super) async fn a_container_that_cannot_start_says_why(world: &World) -> Result<()> {
    let scene = world.scene("start").await?;
    let image = "registry.example/scenario:1";
    let cases = [
        ("pull", Kind::PullError, "ImagePullFailed", image),
        (
            "config",
            Kind::ConfigError,
            "ContainerCreateFailed",
            "secret",
        ),
    ];
    for (name, kind, ..) in &cases {
        scene.submit(name, spec(1, &Behaviour::new(*kind))).await?;
    }
    scene
        .submit("name", spec(1, &Behaviour::new(Kind::InvalidImage)))
        .await?;
    for (name, _, reason, cause) in &cases {
        let object = scene.until_reason(name, reason).await?;
        ensure!(
            message(&object).contains(cause),
            "{name}: {}",
            message(&object)
        );
        ensure!(
            phase(&object) == "Scheduled",
            "{name} is {}",
            phase(&object)
        );
    }
    // A pull error may pass: the attempt that waits for it goes on.
    scene.release("pull", &Behaviour::succeed()).await?;
    let object = scene.until_phase("pull", "Succeeded").await?;
    ensure!(retries(&object) == 0);
    // A name that cannot be parsed never will be: no attempt is wasted on it.
    let object = scene.until_phase("name", "Failed").await?;
    ensure!(condition(&object, "Succeeded", "reason") == "InvalidImageName");
    ensure!(message(&object).contains(image), "{}", message(&object));
    ensure!(retries(&object) == 0);
    Ok(())
}

pub(super) async fn a_missing_claim_is_named_and_then_found(world: &World) -> Result<()> {
    let scene = world.scene("claim").await?;
    let volume = json!({"volumes": [
        {"name": "data", "persistentVolumeClaim": {"claimName": "absent"}},
    ]});
    scene
        .submit("claims", with(spec(1, &Behaviour::succeed()), volume))
        .await?;
    let object = scene.until_reason("claims", "VolumeNotReady").await?;
    ensure!(message(&object).contains("absent"), "{}", message(&object));
    ensure!(retries(&object) == 0);
    claim(world, &scene.namespace, "absent").await?;
    let object = scene.until_phase("claims", "Succeeded").await?;
    ensure!(retries(&object) == 0);
    Ok(())
}

/// The Job of a refused pod has no pod and no condition, only Events: the commonest silent stall.
pub(super) async fn pods_refused_by_admission_are_explained(world: &World) -> Result<()> {
    let quota = world.scene("quota").await?;
    let secure = world.scene("secure").await?;
    let kubectl = world.cluster.kubectl();
    kubectl
        .run(&[
            "-n",
            &quota.namespace,
            "create",
            "quota",
            "none",
            "--hard=requests.nvidia.com/gpu=0",
        ])
        .await?;
    kubectl
        .run(&[
            "label",
            "namespace",
            &secure.namespace,
            "pod-security.kubernetes.io/enforce=restricted",
        ])
        .await?;
    refused(&quota, "exceeded quota").await?;
    refused(&secure, "PodSecurity").await?;
    // Once the quota is gone the Job's own retries make the pod.
    kubectl
        .run(&["-n", &quota.namespace, "delete", "quota", "none"])
        .await?;
    let object = quota.until_phase("stalled", "Succeeded").await?;
    ensure!(retries(&object) == 0, "a refused pod used a retry");
    Ok(())
}

async fn refused(scene: &Scene<'_>, cause: &str) -> Result<()> {
    scene
        .submit("stalled", spec(1, &Behaviour::succeed()))
        .await?;
    let object = scene.until_reason("stalled", "PodsRefused").await?;
    ensure!(message(&object).contains(cause), "{}", message(&object));
    Ok(())
}
