//! A cache makes its claim, says what it waits for, and goes when nobody mounts it. What it fetches is `warp fetch`'s
//! own suite: nodes of these clusters run nothing.

use anyhow::{Context, Result, ensure};
use k8s_openapi::api::core::v1::{Node, PersistentVolumeClaim, Pod};
use kube::api::{
    ApiResource, DeleteParams, DynamicObject, GroupVersionKind, Patch, PatchParams, PostParams,
};
use kube::{Api, ResourceExt};
use serde_json::json;
use warp_testkit::{wait_for, wait_gone};

use super::world::{DEADLINE, Scene, World, message, reason};

fn caches(world: &World, namespace: &str) -> Api<DynamicObject> {
    let kind = GroupVersionKind::gvk("gpu.warp.dev", "v1alpha1", "ModelCache");
    let resource = ApiResource::from_gvk_with_plural(&kind, "modelcaches");
    Api::namespaced_with(world.client.clone(), namespace, &resource)
}

async fn until(
    api: &Api<DynamicObject>,
    what: &str,
    holds: impl Fn(&DynamicObject) -> bool + Send + Sync,
) -> Result<DynamicObject> {
    let seen = wait_for(api, "tiny", what, DEADLINE, |object| {
        object.is_some_and(&holds)
    })
    .await?;
    seen.context("a cache that was there is missing")
}

pub(super) async fn a_cache_says_what_it_waits_for_and_goes_when_nobody_mounts_it(
    world: &World,
) -> Result<()> {
    let scene = world.scene("cache").await?;
    waits_and_goes(world, &scene).await
}

/// The same in a namespace that is there already.
pub(super) async fn waits_and_goes(world: &World, scene: &Scene<'_>) -> Result<()> {
    let api = caches(world, &scene.namespace);
    let cache = serde_json::from_value(json!({
        "apiVersion": "gpu.warp.dev/v1alpha1", "kind": "ModelCache", "metadata": {"name": "tiny"},
        "spec": {"source": {"huggingface": {"repository": "org/tiny"}}, "size": "1Gi"},
    }))?;
    api.create(&PostParams::default(), &cache).await?;
    // This operator runs in no pod, so it has no image of its own.
    let seen = until(&api, "judged", |cache| reason(cache) == "NoFetchImage").await?;
    ensure!(
        message(&seen).contains("--fetch-image"),
        "{}",
        message(&seen)
    );
    let claims: Api<PersistentVolumeClaim> =
        Api::namespaced(world.client.clone(), &scene.namespace);
    ensure!(
        claims.get_opt("tiny-model").await?.is_some(),
        "no claim was made"
    );
    let user: Pod = serde_json::from_value(json!({
        "metadata": {"name": "engine"},
        "spec": {
            "containers": [{"name": "e", "image": "e", "volumeMounts": [{"name": "m", "mountPath": "/models"}]}],
            "volumes": [{"name": "m", "persistentVolumeClaim": {"claimName": "tiny-model"}}],
        },
    }))?;
    scene.pods().create(&PostParams::default(), &user).await?;
    until(&api, "used", |cache| cache.data["status"]["userCount"] == 1).await?;
    api.delete("tiny", &DeleteParams::default()).await?;
    let held = until(&api, "in use", |cache| reason(cache) == "InUse").await?;
    ensure!(message(&held).contains("engine"), "{}", message(&held));
    scene
        .pods()
        .delete("engine", &DeleteParams::default())
        .await?;
    wait_gone(&api, "tiny", DEADLINE).await?;
    wait_gone(&claims, "tiny-model", DEADLINE).await?;
    Ok(())
}

/// Two caches of the same content have one volume; when the one that was to fetch goes, the other takes over.
pub(super) async fn caches_of_the_same_content_fetch_once(world: &World) -> Result<()> {
    let scene = world.scene("shared").await?;
    let api = caches(world, &scene.namespace);
    let claims: Api<PersistentVolumeClaim> =
        Api::namespaced(world.client.clone(), &scene.namespace);
    let cache = |name: &str| {
        serde_json::from_value(json!({
            "apiVersion": "gpu.warp.dev/v1alpha1", "kind": "ModelCache", "metadata": {"name": name},
            "spec": {"source": {"huggingface": {"repository": "org/tiny"}}, "size": "1Gi"},
        }))
    };
    api.create(&PostParams::default(), &cache("first")?).await?;
    let judged =
        |object: Option<&DynamicObject>| object.is_some_and(|it| reason(it) == "NoFetchImage");
    wait_for(&api, "first", "judged", DEADLINE, judged).await?;
    api.create(&PostParams::default(), &cache("tiny")?).await?;
    let seen = until(&api, "told of the other", |cache| {
        message(cache).contains("ModelCache first fetches the same content")
    })
    .await?;
    ensure!(reason(&seen) == "NoFetchImage", "{}", reason(&seen));
    ensure!(
        claims.get_opt("tiny-model").await?.is_none(),
        "a second volume was made"
    );
    api.delete("first", &DeleteParams::default()).await?;
    wait_gone(&api, "first", DEADLINE).await?;
    wait_for(&claims, "tiny-model", "made", DEADLINE, |claim| {
        claim.is_some()
    })
    .await?;
    api.delete("tiny", &DeleteParams::default()).await?;
    wait_gone(&api, "tiny", DEADLINE).await
}

/// A cache for nodes says what they wait for, and takes back a label that promises a copy there is not.
pub(super) async fn nodes_carry_no_label_without_a_copy(world: &World) -> Result<()> {
    let scene = world.scene("copies").await?;
    let api = caches(world, &scene.namespace);
    let mine = format!("copies-{}", scene.namespace);
    let cache = serde_json::from_value(json!({
        "apiVersion": "gpu.warp.dev/v1alpha1", "kind": "ModelCache", "metadata": {"name": "tiny"},
        "spec": {"source": {"huggingface": {"repository": "org/tiny"}}, "nodes": {"selector": {"models": mine}}},
    }))?;
    api.create(&PostParams::default(), &cache).await?;
    let seen = until(&api, "without a node", |cache| reason(cache) == "NoNodes").await?;
    ensure!(message(&seen).contains(&mine), "{}", message(&seen));
    // Not ready, so that nobody is placed there.
    let nodes: Api<Node> = Api::all(world.client.clone());
    let label = |value: &str| json!({"models": value});
    let node: Node = serde_json::from_value(json!({
        "metadata": {"name": mine, "labels": label(&mine)},
        "spec": {"unschedulable": true},
    }))?;
    nodes.create(&PostParams::default(), &node).await?;
    let told = |cache: &DynamicObject| cache.data["status"]["copies"] == "0/1";
    let seen = until(&api, "waiting for the node", told).await?;
    let copy = &seen.data["status"]["nodes"][0];
    ensure!(copy["message"] == "the node is not ready", "{copy}");
    let held = seen.data["status"]["nodeLabel"].as_str();
    let held = held.context("no label is told")?.to_owned();
    let planted = json!({"metadata": {"labels": {&held: "ready"}}});
    nodes
        .patch(&mine, &PatchParams::default(), &Patch::Merge(&planted))
        .await?;
    wait_for(&nodes, &mine, "without the label", DEADLINE, |node| {
        node.is_some_and(|node| !node.labels().contains_key(&held))
    })
    .await?;
    api.delete("tiny", &DeleteParams::default()).await?;
    wait_gone(&api, "tiny", DEADLINE).await?;
    nodes.delete(&mine, &DeleteParams::default()).await?;
    Ok(())
}

fn services(world: &World, namespace: &str) -> Api<DynamicObject> {
    let kind = GroupVersionKind::gvk("gpu.warp.dev", "v1alpha1", "InferenceService");
    let resource = ApiResource::from_gvk_with_plural(&kind, "inferenceservices");
    Api::namespaced_with(world.client.clone(), namespace, &resource)
}

fn service(name: &str, model: &serde_json::Value) -> Result<DynamicObject> {
    Ok(serde_json::from_value(json!({
        "apiVersion": "gpu.warp.dev/v1alpha1", "kind": "InferenceService",
        "metadata": {"name": name},
        "spec": {"model": model, "engine": {"type": "simulated"}, "gpuCount": 0},
    }))?)
}

/// A service that names a cache waits for it with its reason, starts nothing meanwhile, and keeps it from going.
pub(super) async fn a_service_waits_for_its_cache_and_keeps_it(world: &World) -> Result<()> {
    let scene = world.scene("cached").await?;
    let (caches, services) = (
        caches(world, &scene.namespace),
        services(world, &scene.namespace),
    );
    for (name, model, part) in [
        (
            "both",
            json!({"source": "a/b", "cache": "tiny"}),
            "exactly one of",
        ),
        ("none", json!({"name": "x"}), "exactly one of"),
        (
            "moved",
            json!({"cache": "tiny", "revision": "v1"}),
            "not for a cache",
        ),
    ] {
        let refused = services
            .create(&PostParams::default(), &service(name, &model)?)
            .await;
        let text = refused.err().map(|error| error.to_string());
        let text = text.unwrap_or_default();
        ensure!(text.contains(part), "{name}: {text}");
    }
    services
        .create(
            &PostParams::default(),
            &service("tiny", &json!({"cache": "tiny"}))?,
        )
        .await?;
    let missing = |object: &DynamicObject| reason(object) == "NoSuchModelCache";
    let seen = until(&services, "told that there is no cache", missing).await?;
    ensure!(
        message(&seen).contains("no ModelCache tiny"),
        "{}",
        message(&seen)
    );
    let cache = serde_json::from_value(json!({
        "apiVersion": "gpu.warp.dev/v1alpha1", "kind": "ModelCache", "metadata": {"name": "tiny"},
        "spec": {"source": {"huggingface": {"repository": "org/tiny"}}, "size": "1Gi"},
    }))?;
    caches.create(&PostParams::default(), &cache).await?;
    let waits = |object: &DynamicObject| {
        reason(object) == "WaitingForModel" && message(object).contains("--fetch-image")
    };
    let seen = until(&services, "waiting, with the cache's own reason", waits).await?;
    ensure!(seen.data["status"]["phase"] == "Pending", "{:?}", seen.data);
    let pods = scene.pods().list(&kube::api::ListParams::default()).await?;
    ensure!(pods.items.is_empty(), "a copy was started without a model");
    let named = |cache: &DynamicObject| cache.data["status"]["services"] == json!(["tiny"]);
    until(&caches, "named by the service", named).await?;
    caches.delete("tiny", &DeleteParams::default()).await?;
    let held = until(&caches, "in use", |cache| reason(cache) == "InUse").await?;
    ensure!(
        message(&held).contains("InferenceServices tiny"),
        "{}",
        message(&held)
    );
    services.delete("tiny", &DeleteParams::default()).await?;
    wait_gone(&caches, "tiny", DEADLINE).await
}
