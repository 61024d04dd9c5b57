//! Upgrade and uninstall with live objects.

use std::collections::BTreeMap;

use anyhow::{Context, Result, ensure};
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::api::ListParams;
use kube::{Api, ResourceExt};
use warp_testkit::{Cluster, Engine, NodeShape, until, wait_gone};

use super::Used;
use super::delete::every_phase;
use super::role;
use super::world::{DEADLINE, Scene, World, manifests, phase, reason};

pub(super) async fn upgrade_and_uninstall(engine: Engine) -> Result<Used> {
    let cluster = Cluster::on(engine)
        .audited()
        .nodes(NodeShape::h100(8), 2)
        .start()
        .await?;
    let world = World::install(cluster, &[]).await?;
    let scene = world.scene("live").await?;
    upgrade(&world, &scene).await?;
    let used = role::used(&world).await?;
    Box::pin(uninstall(&world, &scene)).await?;
    Ok(used)
}

async fn upgrade(world: &World, scene: &Scene<'_>) -> Result<()> {
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
    let elsewhere = world.scene("elsewhere").await?;
    elsewhere.canary("before").await?;
    let before = versions(scene).await?;
    ensure!(operator.terminate().await? == 0, "a clean end");

    let newer = manifests(&["--image", "registry.example/warp:next"]).await?;
    world
        .cluster
        .kubectl()
        .run_with(&["apply", "-f", "-"], &newer)
        .await?;
    let operator = world.operator(&[])?;
    // It has seen all of them when it has dealt with one that came later.
    elsewhere
        .canary("after")
        .await
        .with_context(|| operator.log_tail())?;
    let after = versions(scene).await?;
    ensure!(
        before == after,
        "an upgrade changed live objects\nbefore: {before:#?}\nafter: {after:#?}"
    );
    ensure!(operator.terminate().await? == 0);
    Ok(())
}

/// Every workload, Job and pod of a namespace with its uid and version: any write shows.
async fn versions(scene: &Scene<'_>) -> Result<BTreeMap<String, String>> {
    let all = ListParams::default();
    let mut versions = BTreeMap::new();
    let mut note = |kind: &str, object: &dyn Fn() -> (String, Option<String>, Option<String>)| {
        let (name, uid, version) = object();
        let text = format!(
            "{} {}",
            uid.unwrap_or_default(),
            version.unwrap_or_default()
        );
        versions.insert(format!("{kind}/{name}"), text);
    };
    for object in scene.workloads().list(&all).await?.items {
        note("workload", &|| {
            (object.name_any(), object.uid(), object.resource_version())
        });
    }
    for object in scene.jobs().list(&all).await?.items {
        note("job", &|| {
            (object.name_any(), object.uid(), object.resource_version())
        });
    }
    for object in scene.pods().list(&all).await?.items {
        note("pod", &|| {
            (object.name_any(), object.uid(), object.resource_version())
        });
    }
    Ok(versions)
}

/// Everything at once, with live objects and a running operator: no finalizer holds anything up.
async fn uninstall(world: &World, scene: &Scene<'_>) -> Result<()> {
    let operator = world.operator(&[])?;
    // The garbage collector learns of new kinds every 30 s; a kind that goes before it was learnt
    // leaves its dependents behind, whoever owned them.
    scene.delete("succeeded").await?;
    until("the garbage collector knows the kind", DEADLINE, || async {
        Ok(scene.jobs_of("succeeded").await?.is_empty().then_some(()))
    })
    .await?;
    let all = manifests(&[]).await?;
    world
        .cluster
        .kubectl()
        .run_with(
            &["delete", "--ignore-not-found", "--timeout=90s", "-f", "-"],
            &all,
        )
        .await?;
    let definitions = Api::<CustomResourceDefinition>::all(world.client.clone());
    wait_gone(&definitions, "gpuworkloads.gpu.warp.dev", DEADLINE).await?;
    for job in scene.jobs().list(&ListParams::default()).await?.items {
        wait_gone(&scene.jobs(), &job.name_any(), DEADLINE).await?;
    }
    for pod in scene.pods().list(&ListParams::default()).await?.items {
        wait_gone(&scene.pods(), &pod.name_any(), DEADLINE).await?;
    }
    drop(operator);
    Ok(())
}
