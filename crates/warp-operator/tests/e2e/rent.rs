//! A workload that waits long enough gets a machine of its own, and a tenant's budget decides whether anything is
//! bought. The scenarios play the machine's kubelet: they make the node the cloud's machine would have registered.

use anyhow::{Context, Result, ensure};
use k8s_openapi::api::authentication::v1::SelfSubjectReview;
use k8s_openapi::api::core::v1::{ConfigMap, Node};
use kube::Api;
use kube::api::{DeleteParams, DynamicObject, Patch, PatchParams, PostParams};
use serde_json::{Value, json};
use warp_testkit::{Behaviour, wait_for};

use super::clouds::{clouds, gone, requests, until};
use super::tenant::tenants;
use super::world::{
    DEADLINE, Feature, SYSTEM, World, condition, message, phase, reason, spec, with,
};

/// On what people make: who they are.
const USER: &str = "gpu.warp.dev/user";

/// Who this test is to the API server.
async fn me(world: &World) -> Result<String> {
    let reviews: Api<SelfSubjectReview> = Api::all(world.client.clone());
    let said = reviews
        .create(&PostParams::default(), &SelfSubjectReview::default())
        .await?;
    let name = said.status.and_then(|status| status.user_info?.username);
    name.context("nobody")
}

/// A cloud for one scenario. Others that rent from anybody take another at the same price.
async fn open(world: &World, name: &str) -> Result<()> {
    let cloud: DynamicObject = serde_json::from_value(json!({
        "apiVersion": "gpu.warp.dev/v1alpha1", "kind": "CloudProvider", "metadata": {"name": name},
        "spec": {"type": "fake", "priority": 100, "regions": ["us-west-1"]},
    }))?;
    clouds(world).create(&PostParams::default(), &cloud).await?;
    until(&clouds(world), name, "ready", |cloud| {
        condition(cloud, "Ready", "status") == "True"
    })
    .await?;
    Ok(())
}

async fn close(world: &World, name: &str) -> Result<()> {
    clouds(world).delete(name, &DeleteParams::default()).await?;
    gone(&clouds(world), name).await
}

/// What the kubelet of a machine with two H200 would register.
async fn join(world: &World, name: &str) -> Result<()> {
    join_with(world, name, "NVIDIA-H200", "143771").await
}

async fn join_with(world: &World, name: &str, product: &str, memory: &str) -> Result<()> {
    join_of(world, name, product, memory, 2).await
}

async fn join_of(world: &World, name: &str, product: &str, memory: &str, gpus: u32) -> Result<()> {
    let nodes: Api<Node> = Api::all(world.client.clone());
    let node: Node = serde_json::from_value(json!({"metadata": {"name": name, "labels": {
        "kubernetes.io/hostname": name, "kubernetes.io/os": "linux", "kubernetes.io/arch": "amd64",
        "nvidia.com/gpu.product": product, "nvidia.com/gpu.memory": memory, "nvidia.com/gpu.count": gpus.to_string(),
    }}}))?;
    nodes.create(&PostParams::default(), &node).await?;
    let has =
        json!({"cpu": "32", "memory": "128Gi", "pods": "110", "nvidia.com/gpu": gpus.to_string()});
    let ready = json!({"status": {"capacity": has, "allocatable": has, "conditions": [{
        "type": "Ready", "status": "True", "reason": "KubeletReady", "message": "",
        "lastHeartbeatTime": jiff::Timestamp::now(), "lastTransitionTime": jiff::Timestamp::now(),
    }]}});
    nodes
        .patch_status(name, &PatchParams::default(), &Patch::Strategic(ready))
        .await?;
    Ok(())
}

fn h200(rent: &Value) -> Value {
    let gpu = json!({"gpu": {"models": ["H200"]}, "rent": rent});
    with(spec(1, &Behaviour::hang()), gpu)
}

pub(super) async fn a_workload_that_waits_is_placed_on_a_machine_rented_for_it(
    world: &World,
) -> Result<()> {
    let scene = world.scene("waits-and-rents").await?;
    let others = world.scene("waits-beside").await?;
    open(world, "for-waiting").await?;
    let asks = |price: &str, after: &str| {
        h200(&json!({"maxPrice": price, "after": after, "providers": ["for-waiting"]}))
    };
    // Nobody has such a GPU.
    others
        .submit(
            "beside",
            with(
                spec(1, &Behaviour::hang()),
                json!({"gpu": {"models": ["H200"]}}),
            ),
        )
        .await?;
    scene.submit("patient", asks("5", "8h")).await?;
    let told = scene
        .until("patient", "told when a machine is rented", |object| {
            message(object).contains("a machine is rented for it at")
        })
        .await?;
    ensure!(
        told.data["status"]["rent"]["request"].is_null()
            && told.data["status"]["rent"]["rentsAt"].is_string(),
        "{:?}",
        told.data
    );
    scene.submit("train", asks("5", "0s")).await?;
    let rents = scene
        .until("train", "renting", |object| {
            object.data["status"]["rent"]["request"].is_string()
        })
        .await?;
    let name = rents.data["status"]["rent"]["request"]
        .as_str()
        .context("no request")?;
    let api = requests(world, &scene.namespace);
    let joining = until(&api, name, "joining", |request| {
        request.data["status"]["phase"] == "Joining"
    })
    .await?;
    let node = joining.data["status"]["nodeName"]
        .as_str()
        .context("no node name")?;
    join(world, node).await?;
    let placed = scene
        .until("train", "on its machine", |object| {
            object.data["status"]["assignedNode"] == node
        })
        .await?;
    ensure!(
        placed.data["status"]["rent"]["pricePerHour"] == "4.64",
        "{:?}",
        placed.data
    );
    // What it leaves is for its own namespace: the other one is looked at and waits.
    scene
        .until("patient", "beside it", |object| {
            object.data["status"]["assignedNode"] == node
        })
        .await?;
    let waits = others.get("beside").await?;
    ensure!(phase(&waits) == "Pending", "{waits:?}");
    scene.delete("patient").await?;
    scene.delete("train").await?;
    gone(&api, name).await?;
    let nodes: Api<Node> = Api::all(world.client.clone());
    ensure!(
        nodes.get_opt(node).await?.is_none(),
        "the node goes with its machine"
    );
    others.delete("beside").await?;
    // What was not bought is taken back when it is not wanted any more.
    scene.submit("poor", asks("0.10", "0s")).await?;
    let held = scene
        .until("poor", "told why nothing is bought", |object| {
            message(object).contains("above maxPrice 0.10")
        })
        .await?;
    let name = held.data["status"]["rent"]["request"]
        .as_str()
        .context("no request")?;
    scene.change("poor", json!({"suspend": true})).await?;
    gone(&api, name).await?;
    scene.delete("poor").await?;
    close(world, "for-waiting").await
}

/// No machine has eight of these: two with four are bought together, and the gang runs on both.
pub(super) async fn a_gang_that_no_machine_holds_is_placed_on_several_rented_together(
    world: &World,
) -> Result<()> {
    let scene = world.scene("rents-several").await?;
    let cloud = "for-gangs";
    open(world, cloud).await?;
    let asks = json!({
        "gpu": {"models": ["A10"]}, "replicas": 2,
        "rent": {"maxPrice": 10, "after": "0s", "providers": [cloud]},
    });
    scene
        .submit("wide", with(spec(4, &Behaviour::hang()), asks))
        .await?;
    let rents = scene
        .until("wide", "renting", |object| {
            object.data["status"]["rent"]["others"][0].is_string()
        })
        .await?;
    let rent = &rents.data["status"]["rent"];
    let names = [&rent["request"], &rent["others"][0]];
    let api = requests(world, &scene.namespace);
    let mut nodes = Vec::new();
    for name in names {
        let name = name.as_str().context("no name")?;
        let joining = until(&api, name, "joining", |request| phase(request) == "Joining").await?;
        let node = joining.data["status"]["nodeName"].as_str();
        nodes.push(node.context("no node name")?.to_owned());
    }
    join_of(world, &nodes[0], "NVIDIA-A10", "23028", 4).await?;
    until(
        &api,
        names[0].as_str().unwrap_or_default(),
        "ready",
        |request| phase(request) == "Ready",
    )
    .await?;
    let waits = scene.get("wide").await?;
    ensure!(phase(&waits) == "Pending", "one is not enough: {waits:?}");
    join_of(world, &nodes[1], "NVIDIA-A10", "23028", 4).await?;
    let placed_on = scene
        .until("wide", "placed", |object| {
            object.data["status"]["assignedNodes"][1].is_object()
        })
        .await?;
    let mut placed: Vec<&str> = placed_on.data["status"]["assignedNodes"]
        .as_array()
        .into_iter()
        .flatten()
        .filter_map(|node| node["name"].as_str())
        .collect();
    placed.sort_unstable();
    nodes.sort_unstable();
    ensure!(placed == nodes, "{placed:?} and not {nodes:?}");
    ensure!(
        placed_on.data["status"]["rent"]["pricePerHour"] == "6.18",
        "{:?}",
        placed_on.data["status"]["rent"]
    );
    scene.delete("wide").await?;
    for name in names {
        gone(&api, name.as_str().unwrap_or_default()).await?;
    }
    close(world, cloud).await
}

/// The cloud takes a machine back and says so before: its work moves to another one that is rented meanwhile.
pub(super) async fn a_spot_machine_is_replaced_before_it_is_taken_back(
    world: &World,
) -> Result<()> {
    let scene = world.scene("taken-back").await?;
    let cloud = "for-interruptions";
    open(world, cloud).await?;
    let api = requests(world, &scene.namespace);
    let request: DynamicObject = serde_json::from_value(json!({
        "apiVersion": "gpu.warp.dev/v1alpha1", "kind": "GPURequest", "metadata": {"name": "rtx"},
        "spec": {"provider": cloud, "gpuType": "RTX 4090", "spotInstance": true, "maxSpotPrice": "0.30", "maxPrice": 2},
    }))?;
    api.create(&PostParams::default(), &request).await?;
    let machine = |request: &DynamicObject, at: usize| {
        let name = request.data["status"]["attempts"][at]["machine"].as_str();
        name.map(str::to_owned).context("no machine")
    };
    let joining = until(&api, "rtx", "joining", |request| {
        phase(request) == "Joining"
    })
    .await?;
    let first = machine(&joining, 0)?;
    join_with(world, &first, "NVIDIA-GeForce-RTX-4090", "24564").await?;
    let gpu = json!({"gpu": {"models": ["RTX 4090"]}});
    scene
        .submit("train", with(spec(1, &Behaviour::hang()), gpu))
        .await?;
    scene
        .until("train", "on the machine", |object| {
            object.data["status"]["assignedNode"] == first.as_str()
        })
        .await?;
    let maps: Api<ConfigMap> = Api::namespaced(world.client.clone(), SYSTEM);
    let script = json!({"interrupt": [first], "noticeSeconds": 30}).to_string();
    let patch = json!({"data": {"script": script}});
    let books = format!("fake-cloud-{cloud}");
    maps.patch(&books, &PatchParams::default(), &Patch::Merge(patch))
        .await?;
    let both = until(&api, "rtx", "two machines", |request| {
        let attempts = &request.data["status"]["attempts"];
        attempts[0]["outcome"].is_null() && attempts[1]["machine"].is_string()
    })
    .await?;
    let attempts = &both.data["status"]["attempts"];
    ensure!(attempts[0]["noticedAt"].is_string(), "{attempts}");
    ensure!(
        attempts[1]["spot"] == false,
        "on demand: the only spot place takes machines back: {attempts}"
    );
    let second = machine(&both, 1)?;
    until(&api, "rtx", "taken back", |request| {
        request.data["status"]["attempts"][0]["outcome"] == "SpotInterrupted"
    })
    .await?;
    until(&api, "rtx", "joining again", |request| {
        phase(request) == "Joining"
    })
    .await?;
    join_with(world, &second, "NVIDIA-GeForce-RTX-4090", "24564").await?;
    let moved = scene
        .until("train", "on the other machine", |object| {
            object.data["status"]["assignedNode"] == second.as_str()
        })
        .await?;
    ensure!(
        moved.data["status"]["retryCount"]
            .as_i64()
            .unwrap_or_default()
            == 0,
        "{moved:?}"
    );
    until(&clouds(world), cloud, "the interruption counted", |cloud| {
        cloud.data["status"]["interruptionsThisMonth"] == 1
    })
    .await?;
    scene.delete("train").await?;
    api.delete("rtx", &DeleteParams::default()).await?;
    gone(&api, "rtx").await?;
    close(world, cloud).await
}

/// On a cluster a policy sees to it; the engine of `warp up` writes the name itself, which its own tests show.
pub(super) async fn nobody_names_another_as_the_one_who_made_it(world: &World) -> Result<()> {
    if !world.has(Feature::Webhooks) {
        return Ok(());
    }
    let policy = warp_testkit::repository().join("deploy/creators/policy.yaml");
    let policy = std::fs::read_to_string(policy)?;
    let kubectl = world.cluster.kubectl();
    kubectl.run_with(&["apply", "-f", "-"], &policy).await?;
    let scene = world.scene("names").await?;
    let api = requests(world, &scene.namespace);
    let request = |name: &str, user: &str| -> Result<DynamicObject> {
        Ok(serde_json::from_value(json!({
            "apiVersion": "gpu.warp.dev/v1alpha1", "kind": "GPURequest",
            "metadata": {"name": name, "annotations": {USER: user}},
            "spec": {"provider": "nobody", "gpuType": "H200"},
        }))?)
    };
    let dry = PostParams {
        dry_run: true,
        ..PostParams::default()
    };
    let forged = request("forged", "somebody-else")?;
    let refusal = warp_testkit::until("another's name refused", DEADLINE, || async {
        Ok(api.create(&dry, &forged).await.err())
    })
    .await?;
    ensure!(
        refusal
            .to_string()
            .contains("names who made it and does not change"),
        "{refusal}"
    );
    let own = me(world).await?;
    api.create(&PostParams::default(), &request("own", &own)?)
        .await?;
    let change = json!({"metadata": {"annotations": {USER: "somebody-else"}}});
    let changed = api
        .patch("own", &PatchParams::default(), &Patch::Merge(change))
        .await;
    ensure!(changed.is_err(), "{changed:?}");
    api.delete("own", &DeleteParams::default()).await?;
    gone(&api, "own").await?;
    kubectl.run_with(&["delete", "-f", "-"], &policy).await?;
    Ok(())
}

pub(super) async fn a_budget_holds_what_could_pass_it_until_it_is_raised(
    world: &World,
) -> Result<()> {
    let scene = world.scene("budget").await?;
    open(world, "for-budgets").await?;
    let tenant: DynamicObject = serde_json::from_value(json!({
        "apiVersion": "gpu.warp.dev/v1alpha1", "kind": "Tenant", "metadata": {"name": "thrifty"},
        "spec": {"namespaces": {"names": [scene.namespace]}, "budget": {"perDay": 10}},
    }))?;
    tenants(world)
        .create(&PostParams::default(), &tenant)
        .await?;
    until(&tenants(world), "thrifty", "its budget known", |tenant| {
        condition(tenant, "WithinBudget", "reason") == "BudgetKept"
    })
    .await?;
    let api = requests(world, &scene.namespace);
    // Two days hold a whole one whatever the time of day is.
    let request: DynamicObject = serde_json::from_value(json!({
        "apiVersion": "gpu.warp.dev/v1alpha1", "kind": "GPURequest",
        "metadata": {"name": "h200", "annotations": {USER: me(world).await?}},
        "spec": {"provider": "for-budgets", "gpuType": "H200", "maxPrice": 5, "maxLifetime": "48h"},
    }))?;
    api.create(&PostParams::default(), &request).await?;
    let held = until(&api, "h200", "held", |request| {
        reason(request) == "BudgetReached"
    })
    .await?;
    let said = message(&held);
    ensure!(
        said.contains("tenant thrifty may spend 10.00 a day") && said.contains("5.00 an hour for"),
        "{said}"
    );
    ensure!(held.data["status"]["attempts"].is_null(), "{:?}", held.data);
    let raise = json!({"spec": {"budget": {"perDay": "1000"}}});
    tenants(world)
        .patch("thrifty", &PatchParams::default(), &Patch::Merge(&raise))
        .await?;
    let joining = until(&api, "h200", "bought", |request| {
        request.data["status"]["phase"] == "Joining"
    })
    .await?;
    let machine = joining.data["status"]["nodeName"]
        .as_str()
        .context("no node name")?;
    until(&tenants(world), "thrifty", "one machine", |tenant| {
        let budget = &tenant.data["status"]["budget"];
        budget["machines"] == 1 && budget["pricePerHour"] == "4.64"
    })
    .await?;
    api.delete("h200", &DeleteParams::default()).await?;
    gone(&api, "h200").await?;
    until(&tenants(world), "thrifty", "nothing reserved", |tenant| {
        let budget = &tenant.data["status"]["budget"];
        budget["machines"] == 0 && budget["reservedThisMonth"] == "0.00"
    })
    .await?;
    let month = joining.data["status"]["attempts"][0]["billedFrom"]
        .as_str()
        .and_then(|from| from.get(..7))
        .context("no start")?;
    let maps: Api<ConfigMap> = Api::namespaced(world.client.clone(), SYSTEM);
    let ledger = wait_for(
        &maps,
        &format!("costs-{month}-thrifty"),
        "the ledger",
        DEADLINE,
        |map| map.is_some(),
    )
    .await?;
    let entries = ledger.and_then(|map| map.data).unwrap_or_default();
    let entry: Value = serde_json::from_str(entries.get(machine).context("no entry")?)?;
    ensure!(
        entry["tenant"] == "thrifty"
            && entry["cost"].is_string()
            && entry["user"] == me(world).await?,
        "{entry}"
    );
    tenants(world)
        .delete("thrifty", &DeleteParams::default())
        .await?;
    close(world, "for-budgets").await
}
