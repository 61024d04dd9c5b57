//! A tenant says which namespaces are its own and what they use, whoever created them.

use anyhow::{Context, Result, ensure};
use kube::Api;
use kube::api::{
    ApiResource, DeleteParams, DynamicObject, GroupVersionKind, Patch, PatchParams, PostParams,
};
use serde_json::{Value, json};
use warp_testkit::{Behaviour, NodeShape, wait_for};

use super::world::{DEADLINE, World, condition, message, phase, reason, spec, with};

pub(super) fn tenants(world: &World) -> Api<DynamicObject> {
    let kind = GroupVersionKind::gvk("gpu.warp.dev", "v1alpha1", "Tenant");
    let resource = ApiResource::from_gvk_with_plural(&kind, "tenants");
    Api::all_with(world.client.clone(), &resource)
}

async fn claim(world: &World, name: &str, namespaces: Value) -> Result<DynamicObject> {
    let tenant = serde_json::from_value(json!({
        "apiVersion": "gpu.warp.dev/v1alpha1", "kind": "Tenant",
        "metadata": {"name": name}, "spec": {"namespaces": namespaces},
    }))?;
    Ok(tenants(world)
        .create(&PostParams::default(), &tenant)
        .await?)
}

async fn until(
    world: &World,
    name: &str,
    what: &str,
    holds: impl Fn(&DynamicObject) -> bool + Send + Sync,
) -> Result<DynamicObject> {
    let seen = wait_for(&tenants(world), name, what, DEADLINE, |object| {
        object.is_some_and(&holds)
    })
    .await?;
    seen.context("a tenant that was there is missing")
}

fn number(tenant: &DynamicObject, field: &str) -> i64 {
    tenant.data["status"][field].as_i64().unwrap_or(-1)
}

pub(super) async fn a_tenant_counts_what_its_namespaces_use(world: &World) -> Result<()> {
    let scene = world.scene("tenant").await?;
    claim(world, "team", json!({"names": [scene.namespace]})).await?;
    let seen = until(world, "team", "ready", |tenant| {
        condition(tenant, "Ready", "status") == "True"
    })
    .await?;
    ensure!(seen.data["status"]["namespaces"] == json!([scene.namespace]));
    scene.submit("runs", spec(2, &Behaviour::hang())).await?;
    scene.until_phase("runs", "Running").await?;
    let used = until(world, "team", "two GPUs in use", |tenant| {
        number(tenant, "gpusInUse") == 2 && number(tenant, "gpusWaiting") == 0
    })
    .await?;
    ensure!(
        used.data["status"]["gpus"][0]["model"] == "H100-80GB",
        "{:?}",
        used.data
    );
    // No node has as many.
    scene.submit("waits", spec(16, &Behaviour::hang())).await?;
    until(world, "team", "sixteen waited for", |tenant| {
        number(tenant, "gpusWaiting") == 16
    })
    .await?;
    let table = world
        .cluster
        .kubectl()
        .run(&["get", "gten", "team"])
        .await?;
    ensure!(
        table.contains("IN-USE") && table.contains("True"),
        "{table}"
    );
    for name in ["runs", "waits"] {
        scene.delete(name).await?;
    }
    until(world, "team", "nothing used", |tenant| {
        number(tenant, "gpusInUse") == 0 && number(tenant, "gpusWaiting") == 0
    })
    .await?;
    tenants(world)
        .delete("team", &DeleteParams::default())
        .await?;
    Ok(())
}

pub(super) async fn the_example_waits_for_its_namespaces(world: &World) -> Result<()> {
    let example = warp_testkit::repository().join("deploy/examples/tenant.yaml");
    let path = example.display().to_string();
    let kubectl = world.cluster.kubectl();
    kubectl.run(&["apply", "-f", &path]).await?;
    let seen = until(world, "research", "judged", |tenant| {
        !reason(tenant).is_empty()
    })
    .await?;
    ensure!(reason(&seen) == "NoNamespace", "{:?}", seen.data);
    kubectl.run(&["delete", "-f", &path]).await?;
    Ok(())
}

/// Owners may work in their tenant's namespace and nobody else's pods reach it, until the tenant says otherwise.
pub(super) async fn owners_and_walls_follow_their_tenant(world: &World) -> Result<()> {
    let scene = world.scene("owned").await?;
    let kubectl = world.cluster.kubectl();
    let namespace = scene.namespace.as_str();
    let kubectl = &kubectl;
    let may = |verb: &'static str| async move {
        let asked = [
            "auth",
            "can-i",
            verb,
            "configmaps",
            "-n",
            namespace,
            "--as=anna",
        ];
        let said = kubectl.run(&asked).await;
        said.is_ok_and(|said| said.trim() == "yes")
    };
    // The API server takes a moment to take a binding in.
    let rights = |verb: &'static str, expected: bool| async move {
        let what = format!("anna may {verb}: {expected}");
        let holds = || async move { Ok((may(verb).await == expected).then_some(())) };
        warp_testkit::until(&what, DEADLINE, holds).await
    };
    ensure!(!may("create").await, "anna has rights from elsewhere");
    claim(world, "owned", json!({"names": [namespace]})).await?;
    let change = |spec: Value| async move {
        let patch = Patch::Merge(json!({"spec": spec}));
        let params = PatchParams::default();
        let changed = tenants(world).patch("owned", &params, &patch).await?;
        let generation = changed.metadata.generation;
        until(world, "owned", "in place", move |tenant| {
            let conditions = tenant.data["status"]["conditions"].as_array();
            let mut conditions = conditions.into_iter().flatten();
            let isolated = conditions.find(|found| found["type"] == "Isolated");
            tenant.data["status"]["observedGeneration"].as_i64() == generation
                && isolated.is_none_or(|found| found["status"] == "True")
        })
        .await
    };
    let isolation = json!({"network": true, "podSecurity": "baseline"});
    let owners = json!([{"kind": "User", "name": "anna"}]);
    change(json!({"owners": owners, "isolation": isolation})).await?;
    rights("create", true).await?;
    let walls = [
        "get",
        "rolebinding,networkpolicy",
        "-n",
        namespace,
        "-o",
        "name",
    ];
    let made = kubectl.run(&walls).await?;
    ensure!(
        made.contains("warp-tenant-owned-edit")
            && made.contains("networkpolicy.networking.k8s.io/warp-tenant-owned"),
        "{made}"
    );
    let host =
        json!({"volumes": [{"name": "host", "mountPath": "/host", "hostPath": {"path": "/"}}]});
    scene
        .submit("mounts", with(spec(1, &Behaviour::succeed()), host))
        .await?;
    scene.until_reason("mounts", "PodsRefused").await?;
    scene.delete("mounts").await?;
    // Another role is another binding, and the first one goes.
    change(json!({"ownersRole": "view"})).await?;
    rights("create", false).await?;
    rights("list", true).await?;
    change(json!({"owners": null, "ownersRole": null, "isolation": null})).await?;
    rights("list", false).await?;
    let left = || async {
        let left = kubectl.run(&walls).await?;
        Ok((!left.contains("warp-tenant")).then_some(()))
    };
    warp_testkit::until("nothing is left of it", DEADLINE, left).await?;
    let asked = [
        "get",
        "namespace",
        namespace,
        "-o",
        "jsonpath={.metadata.labels}",
    ];
    let open = || async {
        let labels = kubectl.run(&asked).await?;
        Ok((!labels.contains("pod-security")).then_some(()))
    };
    warp_testkit::until("no level is enforced", DEADLINE, open).await?;
    tenants(world)
        .delete("owned", &DeleteParams::default())
        .await?;
    Ok(())
}

pub(super) async fn a_namespace_that_two_tenants_claim_is_said_on_both(
    world: &World,
) -> Result<()> {
    let scene = world.scene("contested").await?;
    for name in ["first", "second"] {
        claim(world, name, json!({"names": [scene.namespace]})).await?;
    }
    for (name, other) in [("first", "second"), ("second", "first")] {
        let seen = until(world, name, "contested", |tenant| {
            reason(tenant) == "NamespaceContested"
        })
        .await?;
        ensure!(message(&seen).contains(other), "{}", message(&seen));
    }
    tenants(world)
        .delete("second", &DeleteParams::default())
        .await?;
    until(world, "first", "alone", |tenant| {
        reason(tenant) == "NamespacesFound"
    })
    .await?;
    tenants(world)
        .delete("first", &DeleteParams::default())
        .await?;
    Ok(())
}

pub(super) async fn a_quota_holds_until_it_is_raised(world: &World) -> Result<()> {
    let scene = world.scene("quota").await?;
    let tenant = serde_json::from_value(json!({
        "apiVersion": "gpu.warp.dev/v1alpha1", "kind": "Tenant", "metadata": {"name": "limited"},
        "spec": {"namespaces": {"names": [scene.namespace]}, "quota": [{"gpu": "nvidia", "nominal": 3}]},
    }))?;
    tenants(world)
        .create(&PostParams::default(), &tenant)
        .await?;
    until(world, "limited", "ready", |tenant| {
        condition(tenant, "Ready", "status") == "True"
    })
    .await?;
    scene.submit("first", spec(2, &Behaviour::hang())).await?;
    scene.until_phase("first", "Running").await?;
    scene.submit("second", spec(2, &Behaviour::hang())).await?;
    let waits = scene.until_reason("second", "TenantQuotaExceeded").await?;
    ensure!(
        message(&waits).contains("uses 2 of its 3"),
        "{}",
        message(&waits)
    );
    until(world, "limited", "its standing told", |tenant| {
        let line = &tenant.data["status"]["quota"][0];
        line["used"] == 2 && line["nominal"] == 3 && line["available"] == 1
    })
    .await?;
    let raise = json!({"spec": {"quota": [{"gpu": "nvidia", "nominal": 4}]}});
    tenants(world)
        .patch("limited", &PatchParams::default(), &Patch::Merge(&raise))
        .await?;
    scene.until_phase("second", "Running").await?;
    for name in ["first", "second"] {
        scene.delete(name).await?;
    }
    tenants(world)
        .delete("limited", &DeleteParams::default())
        .await?;
    Ok(())
}

pub(super) async fn work_that_says_no_priority_has_its_tenants(world: &World) -> Result<()> {
    let scene = world.scene("defaults").await?;
    let tenant = serde_json::from_value(json!({
        "apiVersion": "gpu.warp.dev/v1alpha1", "kind": "Tenant", "metadata": {"name": "modest"},
        "spec": {"namespaces": {"names": [scene.namespace]}, "defaults": {"priority": "low"}},
    }))?;
    tenants(world)
        .create(&PostParams::default(), &tenant)
        .await?;
    for (name, more) in [
        ("silent", json!({})),
        ("said", json!({"priority": "normal"})),
    ] {
        let suspended = with(spec(1, &Behaviour::hang()), json!({"suspend": true}));
        scene.submit(name, with(suspended, more)).await?;
    }
    let has = |priority: &'static str, preemptible: bool| {
        move |object: &DynamicObject| {
            let status = &object.data["status"];
            status["priority"] == priority && status["preemptible"] == preemptible
        }
    };
    scene
        .until("silent", "to have its tenant's", has("low", true))
        .await?;
    scene
        .until("said", "to have its own", has("normal", false))
        .await?;
    let raise = json!({"spec": {"defaults": {"priority": "high"}}});
    tenants(world)
        .patch("modest", &PatchParams::default(), &Patch::Merge(&raise))
        .await?;
    scene
        .until("silent", "to have the new one", has("high", false))
        .await?;
    for name in ["silent", "said"] {
        scene.delete(name).await?;
    }
    tenants(world)
        .delete("modest", &DeleteParams::default())
        .await?;
    Ok(())
}

/// A node of a model no other scenario asks for: to be lent.
pub(super) fn shared() -> NodeShape {
    NodeShape::nvidia("l2", "NVIDIA-L2", 23_034, "ada-lovelace", 2)
}

pub(super) async fn a_tenant_takes_back_what_it_lent(world: &World) -> Result<()> {
    let (lender, borrower) = (world.scene("lender").await?, world.scene("borrower").await?);
    let made = |name: &str, spec: Value| {
        serde_json::from_value::<DynamicObject>(json!({
            "apiVersion": "gpu.warp.dev/v1alpha1", "kind": "Tenant",
            "metadata": {"name": name}, "spec": spec,
        }))
    };
    let quota = |nominal: i64| json!([{"gpu": "L2", "nominal": nominal}]);
    let tree = json!({"namespaces": {"names": ["nobody-here"]}, "quota": quota(0)});
    let mut all = vec![made("tree", tree)?];
    for (name, scene) in [("lends", &lender), ("borrows", &borrower)] {
        let spec = json!({
            "namespaces": {"names": [scene.namespace]}, "parent": "tree", "quota": quota(1),
        });
        all.push(made(name, spec)?);
    }
    for tenant in &all {
        tenants(world)
            .create(&PostParams::default(), tenant)
            .await?;
    }
    for name in ["lends", "borrows"] {
        until(world, name, "ready", |tenant| {
            condition(tenant, "Ready", "status") == "True"
        })
        .await?;
    }
    let ask = |more: Value| {
        let model = json!({"gpu": {"models": ["L2"]}});
        with(with(spec(1, &Behaviour::hang()), model), more)
    };
    // Priority is no matter between tenants; what is not to be evicted is left alone.
    for (name, more) in [
        ("stays", json!({"priority": "high", "preemptible": false})),
        ("goes", json!({"priority": "high"})),
    ] {
        borrower.submit(name, ask(more)).await?;
        borrower.until_phase(name, "Running").await?;
    }
    lender
        .submit("owed", ask(json!({"priority": "low"})))
        .await?;
    lender.until_phase("owed", "Running").await?;
    let object = borrower
        .until("goes", "to have given back", |object| {
            object.data["status"]["disruptions"] == 1 && reason(object) == "TenantQuotaExceeded"
        })
        .await?;
    ensure!(object.data["status"]["retryCount"] == 0);
    let object = borrower.get("stays").await?;
    ensure!(phase(&object) == "Running", "{:?}", object.data["status"]);
    lender.release("owed", &Behaviour::succeed()).await?;
    borrower.until_phase("goes", "Running").await?;
    for name in ["stays", "goes"] {
        borrower.delete(name).await?;
    }
    for name in ["lends", "borrows", "tree"] {
        tenants(world)
            .delete(name, &DeleteParams::default())
            .await?;
    }
    Ok(())
}
