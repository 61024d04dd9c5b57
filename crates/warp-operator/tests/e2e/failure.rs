//! What goes wrong says so: cause, and what to do next.

use anyhow::{Context, Result, ensure};
use kube::ResourceExt;
use kube::api::{DeleteParams, PostParams};
use serde_json::{Value, json};
use warp_testkit::behaviour::Kind;
use warp_testkit::{Behaviour, Webhook, until};

use super::run::claim;
use super::world::{
    DEADLINE, Feature, Scene, World, condition, message, phase, retries, spec, with,
};

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
    // Looked at before a node is chosen: no Job is made for nothing.
    quota
        .submit("stalled", spec(1, &Behaviour::succeed()))
        .await?;
    let object = quota.until_reason("stalled", "QuotaExceeded").await?;
    ensure!(
        message(&object).contains("quota none of namespace"),
        "{}",
        message(&object)
    );
    ensure!(quota.jobs_of("stalled").await?.is_empty());
    kubectl
        .run(&[
            "label",
            "namespace",
            &secure.namespace,
            "pod-security.kubernetes.io/enforce=restricted",
        ])
        .await?;
    let root = json!({"podSecurityContext": {"runAsNonRoot": false}});
    refused(&secure, root, "PodSecurity").await?;
    kubectl
        .run(&["-n", &quota.namespace, "delete", "quota", "none"])
        .await?;
    let object = quota.until_phase("stalled", "Succeeded").await?;
    ensure!(retries(&object) == 0, "a refused pod used a retry");
    Ok(())
}

async fn refused(scene: &Scene<'_>, more: Value, cause: &str) -> Result<()> {
    scene
        .submit("stalled", with(spec(1, &Behaviour::succeed()), more))
        .await?;
    let object = scene.until_reason("stalled", "PodsRefused").await?;
    ensure!(message(&object).contains(cause), "{}", message(&object));
    Ok(())
}

/// A webhook is the third way pods are refused: whoever runs the cluster wrote the reason.
pub(super) async fn pods_refused_by_a_webhook_are_explained(world: &World) -> Result<()> {
    if !world.has(Feature::Webhooks) {
        return Ok(());
    }
    let scene = world.scene("webhook").await?;
    let webhook = Webhook::refusing("no GPUs without a cost centre").await?;
    let name = format!("{}.example.com", scene.namespace);
    let configuration = json!({
        "apiVersion": "admissionregistration.k8s.io/v1",
        "kind": "ValidatingWebhookConfiguration",
        "metadata": {"name": name},
        "webhooks": [{
            "name": name,
            "clientConfig": {"url": webhook.url(), "caBundle": webhook.ca_bundle()},
            "rules": [{
                "apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["pods"],
            }],
            "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": scene.namespace}},
            "failurePolicy": "Fail",
            "sideEffects": "None",
            "admissionReviewVersions": ["v1"],
        }],
    });
    let kubectl = world.cluster.kubectl();
    kubectl
        .run_with(&["apply", "-f", "-"], &configuration.to_string())
        .await?;
    // The API server calls a new webhook only once its own watch has shown it.
    until("the webhook is called", DEADLINE, || async {
        let probe = json!({
            "metadata": {"name": "probe"},
            "spec": {"containers": [{"name": "c", "image": "i:1"}]},
        });
        let params = PostParams {
            dry_run: true,
            ..PostParams::default()
        };
        let made = scene
            .pods()
            .create(&params, &serde_json::from_value(probe)?)
            .await;
        Ok(made.is_err().then_some(()))
    })
    .await?;
    refused(&scene, json!({}), "no GPUs without a cost centre").await?;
    kubectl
        .run(&["delete", "validatingwebhookconfiguration", &name])
        .await?;
    let object = scene.until_phase("stalled", "Succeeded").await?;
    ensure!(retries(&object) == 0, "a refused pod used a retry");
    Ok(())
}

/// While a claim is missing nothing can run, so nothing is kept from others: pods that wait for the
/// cluster's scheduler hold no GPUs there either.
pub(super) async fn a_missing_claim_keeps_no_gpu_from_others(world: &World) -> Result<()> {
    let scene = world.scene("waits").await?;
    let only = json!({"gpu": {"models": ["A10"]}});
    let volume = json!({"volumes": [
        {"name": "data", "persistentVolumeClaim": {"claimName": "late"}},
    ]});
    let patient = with(with(spec(1, &Behaviour::succeed()), only.clone()), volume);
    scene.submit("patient", patient).await?;
    scene.until_reason("patient", "VolumeNotReady").await?;
    // The cluster has one GPU of this model.
    scene
        .submit("quick", with(spec(1, &Behaviour::hang()), only))
        .await?;
    scene.until_phase("quick", "Running").await?;
    // The claim comes while the GPU is taken: the workload waits for it as any other, without a retry.
    claim(world, &scene.namespace, "late").await?;
    scene.until_reason("patient", "WaitingForCapacity").await?;
    scene.release("quick", &Behaviour::succeed()).await?;
    let object = scene.until_phase("patient", "Succeeded").await?;
    ensure!(retries(&object) == 0, "waiting used a retry");
    Ok(())
}

/// What the API server refuses is the workload's to know, and a corrected one goes on.
pub(super) async fn a_job_that_cannot_be_made_says_why(world: &World) -> Result<()> {
    let scene = world.scene("rejected").await?;
    let template = json!({
        "modelName": "scenario", "gpuCount": 1,
        "podTemplate": {"spec": {"containers": [{
            "name": "main", "image": "image:1",
            "volumeMounts": [{"name": "nowhere", "mountPath": "/data"}],
        }]}},
    });
    scene.submit("mount", template).await?;
    let object = scene.until_reason("mount", "JobRejected").await?;
    ensure!(message(&object).contains("nowhere"), "{}", message(&object));

    // Somebody else's Job has the name of the first attempt's.
    let held = with(spec(1, &Behaviour::succeed()), json!({"suspend": true}));
    let created = scene.submit("taken", held).await?;
    scene.until_reason("taken", "Suspended").await?;
    let uid = created.uid().context("no uid")?;
    let name = format!("taken-{}-0", &uid[..8]);
    let stranger = json!({
        "metadata": {"name": name},
        "spec": {"suspend": true, "template": {"spec": {
            "restartPolicy": "Never", "containers": [{"name": "c", "image": "i:1"}],
        }}},
    });
    scene
        .jobs()
        .create(&PostParams::default(), &serde_json::from_value(stranger)?)
        .await?;
    scene.change("taken", json!({"suspend": false})).await?;
    let object = scene.until_reason("taken", "JobRejected").await?;
    ensure!(message(&object).contains(&name), "{}", message(&object));
    ensure!(phase(&object) == "Pending");
    scene
        .jobs()
        .delete(&name, &DeleteParams::background())
        .await?;
    let object = scene.until_phase("taken", "Succeeded").await?;
    ensure!(retries(&object) == 0, "a taken name used a retry");
    Ok(())
}
