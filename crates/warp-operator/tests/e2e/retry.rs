//! Attempts after the first one.

use anyhow::{Context, Result, ensure};
use kube::ResourceExt;
use kube::api::DynamicObject;
use serde_json::json;
use warp_testkit::Behaviour;

use super::world::{World, phase, reason, retries, spec, text, with};

pub(super) async fn a_second_attempt_may_succeed(world: &World) -> Result<()> {
    let scene = world.scene("again").await?;
    scene.submit("flaky", spec(1, &Behaviour::hang())).await?;
    scene.until_phase("flaky", "Running").await?;
    scene.release("flaky", &Behaviour::exit(1)).await?;
    let waits = scene
        .until("flaky", "waiting for its retry", |object| {
            reason(object) == "RetryBackoff"
        })
        .await?;
    ensure!(
        !text(&waits, "/status/nextRetryTime").is_empty(),
        "a wait without a deadline"
    );
    let second = scene
        .until("flaky", "in its second attempt", |object| {
            retries(object) == 1 && phase(object) == "Running"
        })
        .await?;
    let jobs = scene.jobs_of("flaky").await?;
    ensure!(jobs.len() == 2, "one Job per attempt");
    ensure!(jobs[1].name_any() == text(&second, "/status/jobName"));
    scene.release("flaky", &Behaviour::succeed()).await?;
    let object = scene.until_phase("flaky", "Succeeded").await?;
    ensure!(retries(&object) == 1);
    remembers(
        &object,
        &["Running", "RetryBackoff", "Running", "Succeeded"],
    )
}

/// Whether its status tells these in this order, each with who wrote it and in which pass.
fn remembers(object: &DynamicObject, reasons: &[&str]) -> Result<()> {
    let told = object.data.pointer("/status/timeline").cloned();
    let told = told.unwrap_or_default();
    let mut wanted = reasons.iter().peekable();
    for entry in told.as_array().into_iter().flatten() {
        if wanted
            .peek()
            .is_some_and(|reason| entry["reason"] == ***reason)
        {
            wanted.next();
        }
        for field in ["time", "actor", "cause", "correlation"] {
            ensure!(entry[field].as_str() > Some(""), "{field} of {entry}");
        }
    }
    ensure!(wanted.next().is_none(), "{reasons:?} in {told:#}");
    Ok(())
}

pub(super) async fn attempts_are_exhausted_and_no_more(world: &World) -> Result<()> {
    let scene = world.scene("exhausted").await?;
    let created = scene
        .submit(
            "hopeless",
            with(
                spec(1, &Behaviour::exit(9)),
                json!({"retryPolicy": {"maxRetries": 2, "backoffSeconds": 1}}),
            ),
        )
        .await?;
    let object = scene.until_phase("hopeless", "Failed").await?;
    ensure!(retries(&object) == 2);
    scene.canary("after").await?;
    let jobs = scene.jobs_of("hopeless").await?;
    let uid = created.uid().context("no uid")?;
    let expected: Vec<String> = (0..3)
        .map(|attempt| format!("hopeless-{}-{attempt}", &uid[..8]))
        .collect();
    let names: Vec<String> = jobs.iter().map(ResourceExt::name_any).collect();
    ensure!(names == expected, "Jobs are {names:?}");
    // The wait doubles; times of the API have whole seconds.
    for (attempt, pair) in jobs.windows(2).enumerate() {
        let ended = pair[0]
            .status
            .as_ref()
            .and_then(|status| status.conditions.as_ref())
            .and_then(|all| all.iter().find(|c| c.type_ == "Failed"))
            .and_then(|c| c.last_transition_time.clone())
            .context("the earlier Job has not failed")?;
        let began = pair[1].creation_timestamp().context("no creation time")?;
        let waited = began.0.as_second() - ended.0.as_second();
        ensure!(
            waited >= (1 << attempt) - 1,
            "attempt {attempt}: {waited} s"
        );
    }
    Ok(())
}
