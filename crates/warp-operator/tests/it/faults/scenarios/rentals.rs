//! What workloads that rent and tenants with a budget go through, and the accounts at the end.

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};
use warp_cloud::fake::Script;
use warp_testkit::fault::world::World;

use super::clouds::{accounts_are_right, machines_end, open, request};
use super::{behaves, delete, submit, until_phase, until_reason, workload};

fn rents(name: &str, run_time: &str, rent: Value) -> Value {
    let template = behaves(json!({"run-time": run_time}));
    let spec = json!({"gpu": {"models": ["H100"]}, "podTemplate": template, "rent": rent});
    workload(name, spec)
}

/// Waits until renting stands so.
async fn until_rent(world: &World, it: &Value, phase: &str) -> Result<()> {
    world
        .until(it, phase, |object| {
            object.is_some_and(|object| object["status"]["rent"]["phase"] == phase)
        })
        .await
}

pub(super) async fn rents_runs_and_gives_back(world: &World) -> Result<()> {
    open(world, &Script::default()).await?;
    let rent = json!({"maxPrice": 3.5, "after": "5m", "idleTimeout": "10m"});
    let it = rents("w", "60s", rent);
    submit(world, &it).await?;
    until_phase(world, &it, "Succeeded").await?;
    until_rent(world, &it, "Ended").await?;
    accounts_are_right(world, None).await
}

pub(super) async fn is_held_by_a_budget_until_that_is_raised(world: &World) -> Result<()> {
    open(world, &Script::default()).await?;
    let tenant = json!({
        "apiVersion": "gpu.warp.dev/v1alpha1", "kind": "Tenant", "metadata": {"name": "team"},
        "spec": {"namespaces": {"names": ["default"]}, "budget": {"perDay": 5}},
    });
    world.create(tenant.clone()).await?;
    let it = request("r", &json!({"maxLifetime": "4h"}));
    world.create(it.clone()).await?;
    until_reason(world, &it, "BudgetReached").await?;
    world
        .patch(&tenant, json!({"spec": {"budget": {"perDay": 50}}}))
        .await?;
    until_phase(world, &it, "Ready").await?;
    delete(world, &it).await?;
    let ledger = machines_end(world, "-team").await?;
    let [entry] = ledger.values().collect::<Vec<_>>()[..] else {
        anyhow::bail!("{ledger:?}");
    };
    let cost = entry["cost"].as_str().context("no cost")?;
    ensure!(entry["tenant"] == "team" && cost != "0", "{entry}");
    world
        .until(&tenant, "nothing reserved", |object| {
            object.is_some_and(|object| object["status"]["budget"]["machines"] == 0)
        })
        .await
}

/// A gang of two that needs two machines: they are sold with eight GPUs only.
fn gang(rent: Value) -> Value {
    let template = behaves(json!({"run-time": "60s"}));
    let spec = json!({"gpu": {"models": ["B200"]}, "replicas": 2, "gpuCount": 8, "podTemplate": template, "rent": rent});
    workload("g", spec)
}

pub(super) async fn rents_all_machines_of_a_gang(world: &World) -> Result<()> {
    open(world, &Script::default()).await?;
    let it = gang(json!({"maxPrice": 120, "after": "0s", "idleTimeout": "10m"}));
    submit(world, &it).await?;
    until_phase(world, &it, "Succeeded").await?;
    until_rent(world, &it, "Ended").await?;
    accounts_are_right(world, None).await?;
    let bought = machines_end(world, "").await?.len();
    ensure!(bought == 2, "{bought} machines were bought");
    Ok(())
}

/// The account may have one machine: the other one never comes.
pub(super) async fn gives_back_what_came_when_not_all_do(world: &World) -> Result<()> {
    let script = Script {
        machine_limit: Some(1),
        ..Script::default()
    };
    open(world, &script).await?;
    let it = gang(json!({"maxPrice": 120, "after": "0s", "within": "20m"}));
    submit(world, &it).await?;
    world
        .until(&it, "told that not all came", |object| {
            let said = object.and_then(|object| object["status"]["message"].as_str());
            said.is_some_and(|said| said.contains("not all machines for it came"))
        })
        .await?;
    accounts_are_right(world, None).await
}

/// The workload a machine was rented for goes while another uses what it left.
pub(super) async fn leaves_its_machine_to_those_that_use_it(world: &World) -> Result<()> {
    open(world, &Script::default()).await?;
    // Sold with eight GPUs only.
    let wants = |name: &str, rent: Value| {
        let template = behaves(json!({"run-time": "40m"}));
        let spec = json!({"gpu": {"models": ["B200"]}, "podTemplate": template, "rent": rent});
        workload(name, spec)
    };
    let rent = json!({"maxPrice": 60, "after": "0s", "idleTimeout": "10m"});
    let first = wants("w", rent.clone());
    submit(world, &first).await?;
    until_phase(world, &first, "Running").await?;
    let second = wants("v", rent);
    submit(world, &second).await?;
    until_phase(world, &second, "Running").await?;
    delete(world, &first).await?;
    until_phase(world, &second, "Succeeded").await?;
    let retried = world.api_of(&second)?.get("v").await?;
    ensure!(
        retried.data["status"]["disruptions"].as_i64().unwrap_or(0) == 0,
        "{retried:?}"
    );
    accounts_are_right(world, None).await
}
