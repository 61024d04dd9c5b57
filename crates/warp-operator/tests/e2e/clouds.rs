//! A machine is rented from a fake cloud, joins, and is given back; the account is held while it has machines. The
//! scenario plays the machine's kubelet: it makes the node the cloud's machine would have registered.

use anyhow::{Context, Result, ensure};
use k8s_openapi::api::core::v1::{ConfigMap, Node, Secret};
use kube::Api;
use kube::api::{
    ApiResource, DeleteParams, DynamicObject, GroupVersionKind, Patch, PatchParams, PostParams,
};
use serde_json::{Value, json};
use warp_testkit::wait_for;
use warp_vendor::{Brand, KEY, Vendor};

use super::world::{DEADLINE, SYSTEM, World, condition, message, reason};

pub(super) fn clouds(world: &World) -> Api<DynamicObject> {
    let kind = GroupVersionKind::gvk("gpu.warp.dev", "v1alpha1", "CloudProvider");
    let resource = ApiResource::from_gvk_with_plural(&kind, "cloudproviders");
    Api::all_with(world.client.clone(), &resource)
}

pub(super) fn requests(world: &World, namespace: &str) -> Api<DynamicObject> {
    let kind = GroupVersionKind::gvk("gpu.warp.dev", "v1alpha1", "GPURequest");
    let resource = ApiResource::from_gvk_with_plural(&kind, "gpurequests");
    Api::namespaced_with(world.client.clone(), namespace, &resource)
}

pub(super) async fn until(
    api: &Api<DynamicObject>,
    name: &str,
    what: &str,
    holds: impl Fn(&DynamicObject) -> bool + Send + Sync,
) -> Result<DynamicObject> {
    let seen = wait_for(api, name, what, DEADLINE, |object| {
        object.is_some_and(&holds)
    })
    .await?;
    seen.context("an object that was there is missing")
}

pub(super) async fn gone(api: &Api<DynamicObject>, name: &str) -> Result<()> {
    wait_for(api, name, "gone", DEADLINE, |object| object.is_none()).await?;
    Ok(())
}

fn phase(object: &DynamicObject) -> &str {
    object.data["status"]["phase"].as_str().unwrap_or_default()
}

/// What the machine's kubelet would register. Nothing is ever placed on it: it offers no GPU.
async fn join(world: &World, name: &str) -> Result<()> {
    let nodes: Api<Node> = Api::all(world.client.clone());
    let node: Node = serde_json::from_value(json!({
        "metadata": {"name": name},
        "spec": {"taints": [{"key": "e2e", "effect": "NoSchedule"}]},
    }))?;
    nodes.create(&PostParams::default(), &node).await?;
    let ready = json!({"status": {"conditions": [{
        "type": "Ready", "status": "True", "reason": "KubeletReady", "message": "",
        "lastHeartbeatTime": jiff::Timestamp::now(), "lastTransitionTime": jiff::Timestamp::now(),
    }]}});
    let patch = Patch::Strategic(ready);
    nodes
        .patch_status(name, &PatchParams::default(), &patch)
        .await?;
    Ok(())
}

pub(super) async fn a_machine_is_rented_joins_and_is_given_back(world: &World) -> Result<()> {
    let scene = world.scene("rents").await?;
    let kubectl = world.cluster.kubectl();
    let example = |name: &str| {
        let path = warp_testkit::repository()
            .join("deploy/examples")
            .join(name);
        path.display().to_string()
    };
    kubectl
        .run(&["apply", "-f", &example("cloud.yaml")])
        .await?;
    let cloud = until(&clouds(world), "fake", "ready", |cloud| {
        condition(cloud, "Ready", "status") == "True"
    })
    .await?;
    ensure!(
        cloud.data["status"]["offerCount"].as_i64() > Some(50),
        "{:?}",
        cloud.data
    );
    let file = example("rent.yaml");
    kubectl
        .run(&["apply", "-n", &scene.namespace, "-f", &file])
        .await?;
    let api = requests(world, &scene.namespace);
    let joining = until(&api, "h100", "joining", |request| {
        phase(request) == "Joining"
    })
    .await?;
    ensure!(
        joining.data["status"]["attempts"][0]["region"] == "us-west-1",
        "{:?}",
        joining.data
    );
    let node = joining.data["status"]["nodeName"]
        .as_str()
        .context("no node name")?;
    join(world, node).await?;
    until(&api, "h100", "ready", |request| phase(request) == "Ready").await?;
    clouds(world)
        .delete("fake", &DeleteParams::default())
        .await?;
    let held = until(&clouds(world), "fake", "held", |cloud| {
        reason(cloud) == "MachinesExist"
    })
    .await?;
    ensure!(message(&held).contains(node), "{}", message(&held));
    api.delete("h100", &DeleteParams::default()).await?;
    gone(&api, "h100").await?;
    gone(&clouds(world), "fake").await?;
    let nodes: Api<Node> = Api::all(world.client.clone());
    ensure!(
        nodes.get_opt(node).await?.is_none(),
        "the node goes with its machine"
    );
    accounts(world, node).await
}

/// The cloud has ended the machine, and the ledger says what it bills.
async fn accounts(world: &World, machine: &str) -> Result<()> {
    let maps: Api<ConfigMap> = Api::namespaced(world.client.clone(), SYSTEM);
    let books = maps
        .get("fake-cloud-fake")
        .await?
        .data
        .context("no books")?;
    let machines: Vec<warp_cloud::fake::Rented> = serde_json::from_str(&books["machines"])?;
    ensure!(
        machines.len() == 1 && machines[0].ended.is_some(),
        "{machines:?}"
    );
    let month = machines[0].launched.strftime("%Y-%m").to_string();
    let ledger = maps
        .get(&format!("costs-{month}"))
        .await?
        .data
        .context("no ledger")?;
    let entry: Value = serde_json::from_str(ledger.get(machine).context("no entry")?)?;
    let billed = machines[0].billed(jiff::Timestamp::now()).to_string();
    ensure!(entry["cost"] == billed, "{entry} is not {billed}");
    Ok(())
}

/// The account of a judge of Lambda's API. Nobody else rents there: every other scenario's machines are too dear for it.
fn judged() -> Result<DynamicObject> {
    Ok(serde_json::from_value(json!({
        "apiVersion": "gpu.warp.dev/v1alpha1", "kind": "CloudProvider",
        "metadata": {"name": "judged"},
        "spec": {
            "type": "lambda",
            "credentials": {"secretName": "judged"},
            "settings": {"sshKey": "warp"},
            "limits": {"machines": 1, "pricePerHour": "1.50"},
        },
    }))?)
}

pub(super) async fn a_cloud_with_a_key_is_asked_with_it_and_without_it_nothing_is_bought(
    world: &World,
) -> Result<()> {
    let scene = world.scene("rents-for-money").await?;
    let vendor = Vendor::new(Brand::Lambda);
    let server = vendor.serve().await?;
    let post = PostParams::default();
    clouds(world).create(&post, &judged()?).await?;
    let closed = until(&clouds(world), "judged", "without its Secret", |cloud| {
        reason(cloud) == "BadCredentials"
    })
    .await?;
    ensure!(
        message(&closed).contains("there is no Secret"),
        "{closed:?}"
    );
    ensure!(vendor.recorded().is_empty(), "asked without a key");
    let secrets: Api<Secret> = Api::namespaced(world.client.clone(), SYSTEM);
    let secret: Secret = serde_json::from_value(json!({
        "metadata": {"name": "judged"},
        "stringData": {"apiKey": KEY, "userData": "#cloud-config", "endpoint": server.address()},
    }))?;
    secrets.create(&post, &secret).await?;
    until(&clouds(world), "judged", "open", |cloud| {
        condition(cloud, "Ready", "status") == "True"
    })
    .await?;
    let api = requests(world, &scene.namespace);
    let request: DynamicObject = serde_json::from_value(json!({
        "apiVersion": "gpu.warp.dev/v1alpha1", "kind": "GPURequest",
        "metadata": {"name": "a10"},
        "spec": {"provider": "judged", "gpuType": "A10", "gpuCount": 1, "maxPrice": "1.50"},
    }))?;
    api.create(&post, &request).await?;
    let joining = until(&api, "a10", "joining", |request| {
        phase(request) == "Joining"
    })
    .await?;
    ensure!(
        joining.data["status"]["pricePerHour"] == "1.29",
        "{:?}",
        joining.data
    );
    api.delete("a10", &DeleteParams::default()).await?;
    gone(&api, "a10").await?;
    let machines = vendor.machines();
    ensure!(
        machines.len() == 1 && machines[0].was_ended(),
        "{machines:?}"
    );
    clouds(world)
        .delete("judged", &DeleteParams::default())
        .await?;
    gone(&clouds(world), "judged").await?;
    ensure!(vendor.complaints().is_empty(), "{:?}", vendor.complaints());
    secrets.delete("judged", &DeleteParams::default()).await?;
    Ok(())
}
