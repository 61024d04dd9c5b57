//! What cannot work is refused or explained, once.

use anyhow::{Context, Result, ensure};
use kube::ResourceExt;
use serde_json::{Value, json};
use warp_testkit::Behaviour;
use warp_testkit::audit::count;
use warp_testkit::behaviour::Kind;

use super::world::{World, message, phase, spec, with};

/// Requests about one bad workload from its first sight to long after: status, Job, Events. A retry
/// storm is hundreds.
const REQUESTS: usize = 14;

pub(super) async fn what_cannot_work_is_explained_once(world: &World) -> Result<()> {
    let run = || spec(1, &Behaviour::succeed());
    let claim = json!({"volumes": [
        {"name": "data", "persistentVolumeClaim": {"claimName": "nowhere"}},
    ]});
    let cases: [(&str, Value, &str, &str); 6] = [
        (
            "unknown-model",
            with(run(), json!({"gpu": {"models": ["Z9000"]}})),
            "NoSuchGpu",
            "Z9000",
        ),
        (
            "part-of-a-gpu",
            with(run(), json!({"gpu": {"models": ["H100-MIG-1g.10gb"]}})),
            "InvalidSpec",
            "1g.10gb",
        ),
        (
            "nobody-has",
            with(run(), json!({"gpu": {"models": ["B200"]}})),
            "NoSuchGpu",
            "B200",
        ),
        (
            "too-many",
            with(run(), json!({"gpuCount": 12})),
            "NeverFits",
            "12",
        ),
        (
            "no-image",
            spec(1, &Behaviour::new(Kind::PullError)),
            "ImagePullFailed",
            "registry.example/scenario:1",
        ),
        ("no-claim", with(run(), claim), "VolumeNotReady", "nowhere"),
    ];
    let mut scenes = Vec::new();
    for (name, spec, ..) in &cases {
        let scene = world.scene(name).await?;
        scene.submit("bad", spec.clone()).await?;
        scenes.push(scene);
    }
    for ((name, _, reason, cause), scene) in cases.iter().zip(&scenes) {
        let object = scene.until_reason("bad", reason).await?;
        ensure!(
            message(&object).contains(cause),
            "{name}: {}",
            message(&object)
        );
        ensure!(
            message(&object).len() > cause.len() + 20,
            "{name}: no next step in '{}'",
            message(&object)
        );
        ensure!(!matches!(phase(&object), "Failed" | "Succeeded"), "{name}");
    }
    // Other work goes on beside them, which gives a storm time to show.
    let busy = world.scene("busy").await?;
    for number in 0..3 {
        busy.canary(&format!("canary-{number}")).await?;
    }
    for ((name, ..), scene) in cases.iter().zip(&scenes) {
        let requests = scene.requests().await?;
        ensure!(
            !requests.is_empty(),
            "{name}: the operator never wrote its status"
        );
        ensure!(
            requests.len() <= REQUESTS,
            "{name}: {} requests: {:#?}",
            requests.len(),
            count(&requests)
        );
        ensure!(requests.iter().all(|request| request.code != 403));
    }
    Ok(())
}

pub(super) async fn bad_objects_are_refused_by_the_api(world: &World) -> Result<()> {
    let scene = world.scene("refuse").await?;
    let run = || spec(1, &Behaviour::hang());
    let template = json!({"podTemplate": {"spec": {"containers": [{"name": "a", "image": "b"}]}}});
    let mut neither = run();
    neither
        .as_object_mut()
        .context("an object")?
        .remove("image");
    let cases: [(&str, Value, &str); 8] = [
        (
            "both",
            with(run(), template),
            "exactly one of image and podTemplate",
        ),
        ("neither", neither, "exactly one of image and podTemplate"),
        ("zero", with(run(), json!({"gpuCount": 0})), "gpuCount"),
        (
            "seventeen",
            with(run(), json!({"gpuCount": 17})),
            "gpuCount",
        ),
        ("unknown", with(run(), json!({"gpuKount": 1})), "gpuKount"),
        (
            "priority",
            with(run(), json!({"priority": "urgent"})),
            "priority",
        ),
        (
            "runtime",
            with(run(), json!({"maxRuntime": "soon"})),
            "maxRuntime",
        ),
        (
            "volume",
            with(run(), json!({"volumes": [{"name": "v"}]})),
            "exactly one of",
        ),
    ];
    for (name, spec, cause) in cases {
        let refused = scene.submit(name, spec).await;
        let error = refused
            .err()
            .with_context(|| format!("'{name}' was accepted"))?;
        let text = format!("{error:#}");
        ensure!(text.contains(cause), "'{name}' is refused with: {text}");
    }
    // While it runs what was placed may not change; what steers it may.
    scene.submit("placed", run()).await?;
    scene.until_phase("placed", "Running").await?;
    let moved = scene.change("placed", json!({"gpuCount": 2})).await;
    let text = format!("{:#}", moved.err().context("gpuCount was changed")?);
    ensure!(text.contains("while it runs"), "{text}");
    let image = scene.change("placed", json!({"image": "other:1"})).await;
    ensure!(image.is_err(), "image was changed while it runs");
    let steered = scene
        .change(
            "placed",
            json!({
                "priority": "high", "maxRuntime": "1h", "ttlSecondsAfterFinished": 600,
                "retryPolicy": {"maxRetries": 5},
            }),
        )
        .await?;
    let generation = steered.metadata.generation;
    scene
        .until("placed", "observed", |object| {
            object
                .data
                .pointer("/status/observedGeneration")
                .and_then(Value::as_i64)
                == generation
                && phase(object) == "Running"
        })
        .await?;
    ensure!(
        scene.jobs_of("placed").await?.len() == 1,
        "{}",
        steered.name_any()
    );
    Ok(())
}
