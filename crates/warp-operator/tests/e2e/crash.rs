//! The operator is killed, in every phase and in the middle of many writes, and started again.

use std::collections::BTreeSet;

use anyhow::{Context, Result, ensure};
use kube::ResourceExt;
use kube::api::ListParams;
use warp_testkit::{Behaviour, Cluster, Engine, NodeShape, until};

use super::Used;
use super::delete::every_phase;
use super::role;
use super::run::claim;
use super::world::{DEADLINE, Scene, World, phase, reason, retries, spec, text};

pub(super) async fn killed_in_every_phase(engine: Engine) -> Result<Used> {
    let cluster = Cluster::on(engine)
        .audited()
        .nodes(NodeShape::h100(8), 4)
        .start()
        .await?;
    let world = World::install(cluster, &[]).await?;
    held_in_every_phase(&world).await?;
    in_the_middle_of_a_crowd(&world).await?;
    role::used(&world).await
}

/// The world moves on while nobody watches; whoever comes back finds its way from the API alone.
async fn held_in_every_phase(world: &World) -> Result<()> {
    let scene = world.scene("killed").await?;
    let operator = world.operator(&[])?;
    let all = every_phase();
    for held in &all {
        scene.submit(held.name, held.spec.clone()).await?;
    }
    for held in &all {
        scene
            .until(held.name, held.name, |object| {
                phase(object) == held.phase && held.reason.is_none_or(|r| reason(object) == r)
            })
            .await
            .with_context(|| operator.log_tail())?;
    }
    let retry_at = text(&scene.get("backoff").await?, "/status/nextRetryTime").to_owned();
    operator.kill()?;

    claim(world, &scene.namespace, "absent").await?;
    scene.release("scheduled", &Behaviour::succeed()).await?;
    scene.release("running", &Behaviour::exit(1)).await?;
    scene.delete("failed").await?;
    scene.submit("newborn", spec(1, &Behaviour::hang())).await?;

    let operator = world.operator(&[])?;
    for (name, wanted, attempts) in [
        ("scheduled", "Succeeded", 1),
        ("newborn", "Running", 1),
        ("running", "Running", 2),
    ] {
        let object = scene
            .until(name, wanted, |object| {
                phase(object) == wanted && retries(object) + 1 == attempts
            })
            .await
            .with_context(|| operator.log_tail())?;
        let jobs = scene.jobs_of(name).await?;
        ensure!(
            jobs.len() == usize::try_from(attempts)?,
            "{name}: {object:?}"
        );
    }
    // The claim appeared while the operator was away; the pod's containers hang, so it runs.
    scene.until_phase("scheduling", "Running").await?;
    // What had nothing to wait for is as it was.
    scene.canary("canary").await?;
    let backoff = scene.get("backoff").await?;
    ensure!(reason(&backoff) == "RetryBackoff");
    ensure!(
        text(&backoff, "/status/nextRetryTime") == retry_at,
        "the wait began again"
    );
    ensure!(phase(&scene.get("succeeded").await?) == "Succeeded");
    ensure!(scene.jobs_of("succeeded").await?.len() == 1);
    until(
        "the Jobs of a deleted workload are gone",
        DEADLINE,
        || async { Ok(scene.jobs_of("failed").await?.is_empty().then_some(())) },
    )
    .await?;
    ensure!(operator.terminate().await? == 0);
    Ok(())
}

/// Kills after every few Jobs made and after every few workloads finished.
async fn in_the_middle_of_a_crowd(world: &World) -> Result<()> {
    const CROWD: usize = 24;
    let scene = world.scene("storm").await?;
    let mut operator = world.operator(&[])?;
    for number in 0..CROWD {
        scene
            .submit(&format!("w{number}"), spec(2, &Behaviour::succeed()))
            .await?;
    }
    for made in [1, 2, 5, 9, 14, 20] {
        jobs_reach(&scene, made)
            .await
            .with_context(|| operator.log_tail())?;
        operator.kill()?;
        operator = world.operator(&[])?;
    }
    for finished in [6, 15] {
        finished_reach(&scene, finished)
            .await
            .with_context(|| operator.log_tail())?;
        operator.kill()?;
        operator = world.operator(&[])?;
    }
    for number in 0..CROWD {
        let object = scene
            .until_phase(&format!("w{number}"), "Succeeded")
            .await?;
        ensure!(retries(&object) == 0, "a crash used a retry: {object:?}");
    }
    let jobs = scene.jobs().list(&ListParams::default()).await?.items;
    let owners: BTreeSet<String> = jobs
        .iter()
        .filter_map(|job| job.labels().get("gpu.warp.dev/workload").cloned())
        .collect();
    ensure!(
        jobs.len() == CROWD && owners.len() == CROWD,
        "{} Jobs for {CROWD} workloads of which {} have one",
        jobs.len(),
        owners.len()
    );
    let pods = scene.pods().list(&ListParams::default()).await?.items;
    ensure!(
        pods.len() == CROWD,
        "{} pods for {CROWD} workloads",
        pods.len()
    );
    ensure!(operator.terminate().await? == 0);
    Ok(())
}

async fn jobs_reach(scene: &Scene<'_>, count: usize) -> Result<()> {
    until(&format!("{count} Jobs are made"), DEADLINE, || async {
        let jobs = scene.jobs().list_metadata(&ListParams::default()).await?;
        Ok((jobs.items.len() >= count).then_some(()))
    })
    .await
}

async fn finished_reach(scene: &Scene<'_>, count: usize) -> Result<()> {
    until(&format!("{count} have finished"), DEADLINE, || async {
        let all = scene.workloads().list(&ListParams::default()).await?;
        let done = all.items.iter().filter(|w| phase(w) == "Succeeded").count();
        Ok((done >= count).then_some(()))
    })
    .await
}
