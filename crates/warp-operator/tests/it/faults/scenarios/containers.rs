//! What pods go through that are containers at a cloud, and the accounts at the end: no pod has two, none is left, and each
//! costs in the ledger what the cloud bills.

use anyhow::{Result, ensure};
use serde_json::{Value, json};
use warp_cloud::fake::Script;
use warp_testkit::fault::world::World;

use super::clouds::{accounts_are_right, cloud_does, open_as, read, request};
use super::{delete, submit, until_phase, workload};

/// A cloud that sells containers, and a node that stands for one.
async fn node(world: &World, spec: &Value) -> Result<Value> {
    let cloud = json!({"type": "fake", "bootstrap": {"type": "container"}});
    open_as(world, &Script::default(), &cloud).await?;
    let it = request("r", spec);
    world.create(it.clone()).await?;
    until_phase(world, &it, "Ready").await?;
    let books = read(world).await?;
    ensure!(
        books.machines.is_empty(),
        "bought before there is a pod: {books:?}"
    );
    Ok(it)
}

fn pod(more: Value) -> Value {
    let mut it = json!({
        "apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p", "namespace": "default"},
        "spec": {
            "restartPolicy": "Never",
            "tolerations": [{"key": "gpu.warp.dev/container", "operator": "Exists"}],
            "containers": [{
                "name": "c", "image": "train:1", "args": ["sleep", "600"],
                "resources": {"limits": {"nvidia.com/gpu": "1"}},
            }],
        },
    });
    for (field, value) in more.as_object().into_iter().flatten() {
        it["spec"][field] = value.clone();
    }
    it
}

/// As many containers were bought, and each ran this image.
async fn bought(world: &World, count: usize) -> Result<()> {
    let books = read(world).await?;
    let ran = books.machines.iter().filter(|one| {
        let runs = one.container.as_ref();
        runs.is_some_and(|runs| runs.image == "train:1")
    });
    let all = books.machines.len();
    ensure!(ran.count() == count && all == count, "{books:?}");
    Ok(())
}

/// Waits until the node of the next container stands where the last one's did.
async fn until_next(world: &World, it: &Value) -> Result<()> {
    world
        .until(it, "the next node is ready", |object| {
            object.is_some_and(|object| {
                let status = &object["status"];
                status["phase"] == "Ready"
                    && status["attemptCount"] == 2
                    && status["attempts"][1]["pod"].is_null()
            })
        })
        .await
}

pub(super) async fn becomes_the_container_of_a_pod(world: &World) -> Result<()> {
    let it = node(world, &json!({})).await?;
    let user = pod(json!({}));
    world.create(user.clone()).await?;
    until_phase(world, &user, "Succeeded").await?;
    until_next(world, &it).await?;
    bought(world, 1).await?;
    delete(world, &it).await?;
    accounts_are_right(world, None).await
}

pub(super) async fn ends_the_container_of_a_pod_that_goes(world: &World) -> Result<()> {
    let it = node(world, &json!({})).await?;
    let user = pod(json!({}));
    world.create(user.clone()).await?;
    until_phase(world, &user, "Running").await?;
    delete(world, &user).await?;
    until_next(world, &it).await?;
    bought(world, 1).await?;
    delete(world, &it).await?;
    accounts_are_right(world, None).await
}

pub(super) async fn refuses_a_pod_that_cannot_be_a_container(world: &World) -> Result<()> {
    let it = node(world, &json!({})).await?;
    let user = pod(json!({"volumes": [{"name": "data", "emptyDir": {}}]}));
    world.create(user.clone()).await?;
    world
        .until(&user, "refused by name", |object| {
            object.is_some_and(|object| {
                let said = object["status"]["message"].as_str().unwrap_or_default();
                object["status"]["reason"] == "ContainerRefused" && said.contains("volume data")
            })
        })
        .await?;
    until_next(world, &it).await?;
    bought(world, 0).await?;
    delete(world, &it).await?;
    accounts_are_right(world, None).await
}

/// The request goes while its container runs: both go, and the pod says so.
pub(super) async fn is_deleted_with_a_pod_on_its_container(world: &World) -> Result<()> {
    let it = node(world, &json!({})).await?;
    let user = pod(json!({}));
    world.create(user.clone()).await?;
    until_phase(world, &user, "Running").await?;
    delete(world, &it).await?;
    bought(world, 1).await?;
    // Its node is gone: so is the pod, or it will be.
    world
        .until(&user, "over", |object| {
            object.is_none_or(|object| object["status"]["phase"] == "Failed")
        })
        .await?;
    accounts_are_right(world, None).await
}

fn rents(args: Value) -> Value {
    let template = json!({"spec": {
        "restartPolicy": "Never",
        "containers": [{"name": "gpu-workload", "image": "train:1", "args": args}],
    }});
    let rent = json!({"maxPrice": 3.5, "after": "0s", "idleTimeout": "10m"});
    workload(
        "w",
        json!({"gpu": {"models": ["H100"]}, "podTemplate": template, "rent": rent}),
    )
}

async fn until_given_back(world: &World, it: &Value) -> Result<()> {
    world
        .until(it, "given back", |object| {
            object.is_some_and(|object| object["status"]["rent"]["phase"] == "Ended")
        })
        .await
}

pub(super) async fn rents_a_container_runs_and_gives_back(world: &World) -> Result<()> {
    let cloud = json!({"type": "fake", "bootstrap": {"type": "container"}});
    open_as(world, &Script::default(), &cloud).await?;
    let it = rents(json!(["sleep", "60"]));
    submit(world, &it).await?;
    until_phase(world, &it, "Succeeded").await?;
    until_given_back(world, &it).await?;
    bought(world, 1).await?;
    accounts_are_right(world, None).await
}

/// The cloud loses the container without a word: the workload runs again, without a retry.
pub(super) async fn loses_its_container_and_rents_another(world: &World) -> Result<()> {
    let cloud = json!({"type": "fake", "bootstrap": {"type": "container"}});
    open_as(world, &Script::default(), &cloud).await?;
    let it = rents(json!(["sleep", "900"]));
    submit(world, &it).await?;
    until_phase(world, &it, "Running").await?;
    let now = world.clock.now();
    cloud_does(world, |books| {
        for machine in books.machines.iter_mut().filter(|one| one.ended.is_none()) {
            machine.ended = Some(now);
        }
    })
    .await?;
    until_phase(world, &it, "Succeeded").await?;
    let after = world.api_of(&it)?.get("w").await?;
    ensure!(
        after.data["status"]["retryCount"].as_i64().unwrap_or(0) == 0,
        "{after:?}"
    );
    until_given_back(world, &it).await?;
    bought(world, 2).await?;
    accounts_are_right(world, None).await
}
