//! What tenants go through.

use std::time::Duration;

use anyhow::Result;
use serde_json::{Value, json};
use warp_testkit::fault::world::World;

use super::{delete, for_long, submit, until_phase, workload};

fn tenant(name: &str, namespaces: &Value) -> Value {
    json!({
        "apiVersion": "gpu.warp.dev/v1alpha1", "kind": "Tenant",
        "metadata": {"name": name}, "spec": {"namespaces": namespaces},
    })
}

fn namespace(name: &str) -> Value {
    json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name, "labels": {"team": "red"}}})
}

/// Waits until a number of the status is so.
async fn until_number(world: &World, it: &Value, field: &str, number: i64) -> Result<()> {
    let what = format!("{field} is {number}");
    world
        .until(it, &what, |object| {
            object.is_some_and(|object| object["status"][field] == number)
        })
        .await
}

async fn until_reason(world: &World, it: &Value, reason: &str) -> Result<()> {
    world
        .until(it, reason, |object| {
            object.is_some_and(|object| object["status"]["conditions"][0]["reason"] == reason)
        })
        .await
}

pub(super) async fn counts_what_its_namespaces_use(world: &World) -> Result<()> {
    let it = tenant("team", &json!({"names": ["default"]}));
    world.create(it.clone()).await?;
    until_reason(world, &it, "NamespacesFound").await?;
    let runs = workload("w", json!({"podTemplate": for_long()}));
    submit(world, &runs).await?;
    until_phase(world, &runs, "Running").await?;
    until_number(world, &it, "gpusInUse", 1).await?;
    // No node has as many.
    let waits = workload("x", json!({"gpuCount": 9}));
    submit(world, &waits).await?;
    until_number(world, &it, "gpusWaiting", 9).await?;
    // A request that was held up on its way has arrived by then: what it means for a workload that is gone is the
    // workload's own matter.
    world.pass(Duration::from_mins(2)).await;
    delete(world, &runs).await?;
    until_number(world, &it, "gpusInUse", 0).await
}

pub(super) async fn gains_and_loses_a_namespace_by_its_label(world: &World) -> Result<()> {
    let it = tenant(
        "team",
        &json!({"selector": {"matchLabels": {"team": "red"}}}),
    );
    world.create(it.clone()).await?;
    until_reason(world, &it, "NoNamespace").await?;
    world.create(namespace("red")).await?;
    until_number(world, &it, "namespaceCount", 1).await?;
    let patch = json!({"metadata": {"labels": {"team": "blue"}}});
    world.patch(&namespace("red"), patch).await?;
    until_reason(world, &it, "NoNamespace").await
}

pub(super) async fn is_contested_and_then_alone(world: &World) -> Result<()> {
    let one = tenant("one", &json!({"names": ["default"]}));
    let other = tenant("other", &json!({"names": ["default"]}));
    for it in [&one, &other] {
        world.create(it.clone()).await?;
    }
    for it in [&one, &other] {
        until_reason(world, it, "NamespaceContested").await?;
    }
    delete(world, &other).await?;
    until_reason(world, &one, "NamespacesFound").await
}

/// Its owners are bound and its namespace is shut off; with it, all of that goes.
pub(super) async fn is_shut_off_and_opened(world: &World) -> Result<()> {
    let mut it = tenant("team", &json!({"names": ["default"]}));
    it["spec"]["owners"] = json!([{"kind": "User", "name": "anna"}]);
    it["spec"]["isolation"] = json!({"network": true, "podSecurity": "baseline"});
    world.create(it.clone()).await?;
    let isolated = |object: Option<&Value>, status: &str| {
        let conditions = object.and_then(|object| object["status"]["conditions"].as_array());
        let mut conditions = conditions.into_iter().flatten();
        let found = conditions.find(|found| found["type"] == "Isolated");
        found.map_or(status.is_empty(), |found| found["status"] == status)
    };
    world
        .until(&it, "shut off", |object| isolated(object, "True"))
        .await?;
    let open = json!({"spec": {"owners": null, "isolation": null}});
    world.patch(&it, open).await?;
    world
        .until(&it, "open", |object| isolated(object, ""))
        .await?;
    let namespace =
        json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "default"}});
    world
        .until(&namespace, "without a level", |object| {
            object.is_some_and(|object| {
                object["metadata"]["labels"]["pod-security.kubernetes.io/enforce"].is_null()
            })
        })
        .await
}

pub(super) async fn holds_work_over_its_quota_until_there_is_room(world: &World) -> Result<()> {
    let mut it = tenant("team", &json!({"names": ["default"]}));
    it["spec"]["quota"] = json!([{"gpu": "nvidia", "nominal": 1}]);
    world.create(it.clone()).await?;
    until_reason(world, &it, "NamespacesFound").await?;
    let first = workload("w", json!({"podTemplate": for_long()}));
    submit(world, &first).await?;
    until_phase(world, &first, "Running").await?;
    let second = workload("x", json!({}));
    submit(world, &second).await?;
    super::until_reason(world, &second, "TenantQuotaExceeded").await?;
    // A request that was held up on its way has arrived by then, as above.
    world.pass(Duration::from_mins(2)).await;
    delete(world, &first).await?;
    until_phase(world, &second, "Succeeded").await
}

/// Two tenants of one tree share four GPUs; one of them borrows all and gives back what is asked for.
pub(super) async fn takes_back_what_it_lent(world: &World) -> Result<()> {
    world.create(namespace("other")).await?;
    let mut parent = tenant("all", &json!({"names": ["nobody"]}));
    parent["spec"]["quota"] = json!([{"gpu": "nvidia", "nominal": 0}]);
    world.create(parent).await?;
    for (name, of) in [("lender", "default"), ("borrower", "other")] {
        let mut it = tenant(name, &json!({"names": [of]}));
        it["spec"]["parent"] = json!("all");
        it["spec"]["quota"] = json!([{"gpu": "nvidia", "nominal": 2}]);
        world.create(it.clone()).await?;
        until_reason(world, &it, "NamespacesFound").await?;
    }
    let mut borrows = Vec::new();
    for name in ["x", "y"] {
        let mut it = workload(name, json!({"gpuCount": 2, "podTemplate": for_long()}));
        it["metadata"]["namespace"] = json!("other");
        submit(world, &it).await?;
        until_phase(world, &it, "Running").await?;
        // Longer than the least time it may run, and one has run for less than the other.
        world.pass(Duration::from_mins(2)).await;
        borrows.push(it);
    }
    let it = workload("w", json!({"gpuCount": 2}));
    submit(world, &it).await?;
    until_phase(world, &it, "Succeeded").await?;
    for it in &borrows {
        until_phase(world, it, "Succeeded").await?;
    }
    Ok(())
}
