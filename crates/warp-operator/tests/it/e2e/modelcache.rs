//! A cache makes its claim, says what it waits for, and goes when nobody mounts it. What it fetches is `warp fetch`'s
//! own suite: nodes of these clusters run nothing.

use anyhow::{Context, Result, ensure};
use k8s_openapi::api::core::v1::{PersistentVolumeClaim, Pod};
use kube::Api;
use kube::api::{ApiResource, DeleteParams, DynamicObject, GroupVersionKind, PostParams};
use serde_json::json;
use warp_testkit::{wait_for, wait_gone};

use super::world::{DEADLINE, World, message, reason};

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
