//! Two operators, one leader.

use anyhow::{Context, Result, ensure};
use k8s_openapi::api::coordination::v1::Lease;
use kube::api::ListParams;
use kube::{Api, ResourceExt};
use warp_testkit::{Behaviour, Cluster, Engine, NodeShape, Signal, wait_for};

use super::Used;
use super::role;
use super::world::{DEADLINE, SYSTEM, World, retries, spec};

const ELECT: &[&str] = &["--leader-elect"];

pub(super) async fn two_operators(engine: Engine) -> Result<Used> {
    let cluster = Cluster::on(engine)
        .audited()
        .nodes(NodeShape::h100(8), 2)
        .start()
        .await?;
    let world = World::install(cluster, &[]).await?;
    let scene = world.scene("leader").await?;
    let mut first = world.operator(ELECT)?;
    scene.canary("alone").await?;
    let leases = Api::<Lease>::namespaced(world.client.clone(), SYSTEM);
    let held = leases.list(&ListParams::default()).await?.items;
    ensure!(held.len() == 1, "one lease, not {}", held.len());
    let lease = held[0].name_any();
    let leader = holder(&held[0]);
    ensure!(!leader.is_empty());

    let mut second = world.operator(ELECT)?;
    scene.canary("both").await?;
    ensure!(
        holder(&leases.get(&lease).await?) == leader,
        "a healthy leader stays"
    );

    // Frozen, it still believes to lead; the other waits until the lease has run out.
    first
        .signal(Signal::Stop)
        .with_context(|| first.log_tail())?;
    let taken = wait_for(&leases, &lease, "taken over", DEADLINE, |lease| {
        lease.is_some_and(|lease| !holder(lease).is_empty() && holder(lease) != leader)
    })
    .await
    .with_context(|| second.log_tail())?
    .context("the lease is gone")?;
    scene
        .canary("after")
        .await
        .with_context(|| second.log_tail())?;

    // Awake again it finds out before it writes: everything is made once.
    first
        .signal(Signal::Continue)
        .with_context(|| first.log_tail())?;
    for number in 0..10 {
        scene
            .submit(&format!("w{number}"), spec(1, &Behaviour::succeed()))
            .await?;
    }
    for number in 0..10 {
        let name = format!("w{number}");
        let object = scene.until_phase(&name, "Succeeded").await?;
        ensure!(retries(&object) == 0);
        ensure!(
            scene.jobs_of(&name).await?.len() == 1,
            "{name} was made twice"
        );
    }
    ensure!(
        holder(&leases.get(&lease).await?) == holder(&taken),
        "the frozen one took the lease back"
    );
    ensure!(second.is_running());

    // A leader that is asked to end gives the lease back at once.
    let third = world.operator(ELECT)?;
    ensure!(second.terminate().await? == 0);
    drop(first);
    scene
        .canary("handed-over")
        .await
        .with_context(|| third.log_tail())?;
    ensure!(third.terminate().await? == 0);
    role::used(&world).await
}

fn holder(lease: &Lease) -> String {
    lease
        .spec
        .as_ref()
        .and_then(|spec| spec.holder_identity.clone())
        .unwrap_or_default()
}
