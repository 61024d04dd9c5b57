//! What model caches go through. Simulated nodes fetch nothing: what a fetch would say stands on the node.

use anyhow::Result;
use serde_json::{Value, json};
use warp_testkit::fault::world::World;

use super::delete;

const COMMIT: &str = "0123456789abcdef0123456789abcdef01234567";
const NEXT: &str = "123456789abcdef0123456789abcdef012345678";

fn cache(revision: &str) -> Value {
    json!({
        "apiVersion": "gpu.warp.dev/v1alpha1", "kind": "ModelCache",
        "metadata": {"name": "m", "namespace": "default"},
        "spec": {"source": {"huggingface": {"repository": "org/tiny", "revision": revision}}},
    })
}

/// From now on, pods on every node end with these last words.
async fn nodes_say(world: &World, words: &Value) -> Result<()> {
    let text = if words.is_null() {
        Value::Null
    } else {
        json!(words.to_string())
    };
    let class = json!({
        "apiVersion": "storage.k8s.io/v1", "kind": "StorageClass", "provisioner": "gpu.warp.dev/local-directory",
        "metadata": {"name": "local", "annotations": {"storageclass.kubernetes.io/is-default-class": "true"}},
    });
    // There already, the second time.
    let _ = world.create(class).await;
    for name in ["big-0", "big-1", "small-0"] {
        let node = json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": name}});
        let annotations = json!({"sim.gpu.warp.dev/message": text});
        world
            .patch(&node, json!({"metadata": {"annotations": annotations}}))
            .await?;
    }
    Ok(())
}

fn fetched(digest: &str) -> Value {
    json!({"fetched": {
        "commit": COMMIT, "digest": digest, "files": 3, "bytes": 99,
        "path": format!("models--org--tiny/snapshots/{COMMIT}"),
    }})
}

async fn until(world: &World, field: &'static str, value: &'static str) -> Result<()> {
    let what = format!("{field} is {value}");
    world
        .until(&cache("main"), &what, |object| {
            object.is_some_and(|object| object["status"][field] == value)
        })
        .await
}

async fn until_reason(world: &World, reason: &'static str) -> Result<()> {
    world
        .until(&cache("main"), reason, |object| {
            object.is_some_and(|object| object["status"]["conditions"][0]["reason"] == reason)
        })
        .await
}

fn service() -> Value {
    json!({
        "apiVersion": "gpu.warp.dev/v1alpha1", "kind": "InferenceService",
        "metadata": {"name": "chat", "namespace": "default"},
        "spec": {"model": {"cache": "m"}, "engine": {"type": "simulated"}},
    })
}

/// A service that names a cache before there is one starts when it is ready, and holds it until it is gone itself.
pub(super) async fn waits_for_its_cache_and_holds_it(world: &World) -> Result<()> {
    nodes_say(world, &fetched("sha256:1")).await?;
    let (it, served) = (cache("main"), service());
    world.create(served.clone()).await?;
    super::until_reason(world, &served, "NoSuchModelCache").await?;
    world.create(it.clone()).await?;
    super::until_phase(world, &served, "Ready").await?;
    world
        .until(&it, "used", |object| {
            object.is_some_and(|object| {
                object["status"]["services"] == json!(["chat"])
                    && object["status"]["userCount"] == 1
            })
        })
        .await?;
    world
        .api_of(&it)?
        .delete("m", &kube::api::DeleteParams::default())
        .await?;
    until_reason(world, "InUse").await?;
    delete(world, &served).await?;
    world.until(&it, "gone", |object| object.is_none()).await
}

/// The cache gets another complete model: the copies are replaced by ones that serve it.
pub(super) async fn follows_its_cache_to_another_model(world: &World) -> Result<()> {
    nodes_say(world, &fetched("sha256:1")).await?;
    let (it, served) = (cache("main"), service());
    world.create(it.clone()).await?;
    world.create(served.clone()).await?;
    super::until_phase(world, &served, "Ready").await?;
    let mut words = fetched("sha256:2");
    words["fetched"]["path"] = json!(format!("models--org--tiny/snapshots/{NEXT}"));
    nodes_say(world, &words).await?;
    world
        .patch(
            &it,
            json!({"spec": {"source": {"huggingface": {"revision": "v2"}}}}),
        )
        .await?;
    until(world, "digest", "sha256:2").await?;
    let deployment = json!({
        "apiVersion": "apps/v1", "kind": "Deployment",
        "metadata": {"name": "chat", "namespace": "default"},
    });
    world
        .until(&deployment, "of the new model", |object| {
            object.is_some_and(|object| {
                let text = object["spec"]["template"].to_string();
                text.contains(NEXT) && object["status"]["updatedReplicas"] == 1
            })
        })
        .await?;
    super::until_phase(world, &served, "Ready").await
}

pub(super) async fn is_fetched_and_goes_when_nobody_mounts_it(world: &World) -> Result<()> {
    nodes_say(world, &fetched("sha256:1")).await?;
    let it = cache("main");
    world.create(it.clone()).await?;
    until(world, "phase", "Ready").await?;
    let user = json!({
        "apiVersion": "v1", "kind": "Pod", "metadata": {"name": "engine", "namespace": "default"},
        "spec": {
            "containers": [{"name": "e", "image": "e", "volumeMounts": [{"name": "m", "mountPath": "/models", "readOnly": true}]}],
            "volumes": [{"name": "m", "persistentVolumeClaim": {"claimName": "m-model", "readOnly": true}}],
        },
    });
    world.create(user.clone()).await?;
    world
        .until(&it, "one user", |object| {
            object.is_some_and(|object| object["status"]["userCount"] == 1)
        })
        .await?;
    world
        .api_of(&it)?
        .delete("m", &kube::api::DeleteParams::default())
        .await?;
    until_reason(world, "InUse").await?;
    delete(world, &user).await?;
    world.until(&it, "gone", |object| object.is_none()).await
}

pub(super) async fn fails_is_mended_and_fetched_again(world: &World) -> Result<()> {
    nodes_say(world, &json!({"nothing": 1})).await?;
    let it = cache("main");
    world.create(it.clone()).await?;
    until_reason(world, "NoReport").await?;
    nodes_say(world, &fetched("sha256:1")).await?;
    // Another selection is another fetch.
    world
        .patch(&it, json!({"spec": {"ignorePatterns": ["*.md"]}}))
        .await?;
    until(world, "phase", "Ready").await
}

pub(super) async fn changes_its_revision_while_it_is_fetched(world: &World) -> Result<()> {
    nodes_say(world, &fetched("sha256:1")).await?;
    let it = cache("main");
    world.create(it.clone()).await?;
    until(world, "phase", "Fetching").await?;
    nodes_say(world, &fetched("sha256:2")).await?;
    world
        .patch(
            &it,
            json!({"spec": {"source": {"huggingface": {"revision": "v2"}}}}),
        )
        .await?;
    until(world, "source", "hf://org/tiny@v2").await?;
    until(world, "digest", "sha256:2").await?;
    until(world, "phase", "Ready").await
}

/// A model is made of the fetched one, then another by another image; until then the first stays.
pub(super) async fn is_optimized_and_then_optimized_otherwise(world: &World) -> Result<()> {
    nodes_say(world, &fetched("sha256:1")).await?;
    let mut it = cache("main");
    it["spec"]["optimize"] = json!({"image": "quantizer:1", "args": ["$(MODEL_PATH)"]});
    world.create(it.clone()).await?;
    until_reason(world, "Optimized").await?;
    world
        .patch(&it, json!({"spec": {"optimize": {"image": "quantizer:2"}}}))
        .await?;
    world
        .until(&it, "made by the second image", |object| {
            object.is_some_and(|object| {
                object["status"]["optimized"]["image"] == "quantizer:2"
                    && object["status"]["phase"] == "Ready"
            })
        })
        .await?;
    delete(world, &it).await
}

/// Two caches of the same content: one Job, one volume; the one that fetched goes when the other is gone.
pub(super) async fn is_fetched_once_for_two(world: &World) -> Result<()> {
    nodes_say(world, &fetched("sha256:1")).await?;
    let it = cache("main");
    let mut other = cache("main");
    other["metadata"]["name"] = json!("n");
    world.create(it.clone()).await?;
    until(world, "phase", "Ready").await?;
    world.create(other.clone()).await?;
    world
        .until(&other, "shared", |object| {
            object.is_some_and(|object| {
                object["status"]["phase"] == "Ready"
                    && object["status"]["sharedFrom"] == "m"
                    && object["status"]["volume"] == "m-model"
            })
        })
        .await?;
    world
        .until(&it, "lent", |object| {
            object.is_some_and(|object| object["status"]["sharedBy"] == json!(["n"]))
        })
        .await?;
    world
        .api_of(&it)?
        .delete("m", &kube::api::DeleteParams::default())
        .await?;
    until_reason(world, "InUse").await?;
    delete(world, &other).await?;
    world.until(&it, "gone", |object| object.is_none()).await
}

/// The limits of a fetch are changed while it runs.
pub(super) async fn gets_other_limits_while_it_is_fetched(world: &World) -> Result<()> {
    nodes_say(world, &fetched("sha256:1")).await?;
    let it = cache("main");
    world.create(it.clone()).await?;
    until(world, "phase", "Fetching").await?;
    world
        .patch(&it, json!({"spec": {"timeout": "48h", "bandwidth": "5Mi"}}))
        .await?;
    until(world, "phase", "Ready").await?;
    delete(world, &it).await
}

/// Nodes keep copies; a service runs where one is; a node that no longer matches loses its own; all go with the cache.
pub(super) async fn is_copied_to_nodes_and_removed_again(world: &World) -> Result<()> {
    nodes_say(world, &fetched("sha256:1")).await?;
    let mut it = cache("main");
    it["spec"]["nodes"] = json!({"selector": {"copies": "yes"}});
    for name in ["big-0", "big-1"] {
        let node = json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": name}});
        let labels = json!({"metadata": {"labels": {"copies": "yes"}}});
        world.patch(&node, labels).await?;
    }
    world.create(it.clone()).await?;
    let copies = |wanted: &'static str| {
        move |object: Option<&Value>| object.is_some_and(|it| it["status"]["copies"] == wanted)
    };
    world.until(&it, "on both", copies("2/2")).await?;
    let served = service();
    world.create(served.clone()).await?;
    super::until_phase(world, &served, "Ready").await?;
    delete(world, &served).await?;
    let node = json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "big-1"}});
    let labels = json!({"metadata": {"labels": {"copies": null}}});
    world.patch(&node, labels).await?;
    world
        .until(&it, "on one", |object| {
            object.is_some_and(|object| {
                object["status"]["copies"] == "1/1"
                    && object["status"]["nodes"].as_array().map(Vec::len) == Some(1)
            })
        })
        .await?;
    world
        .until(&node, "unlabelled", |object| {
            object.is_some_and(|object| {
                !object["metadata"]["labels"]
                    .to_string()
                    .contains("models.gpu.warp.dev/")
            })
        })
        .await?;
    delete(world, &it).await
}

/// Two models on one node with room for one: the idle one makes room, and comes back when a service waits for it.
pub(super) async fn makes_room_on_a_node_and_comes_back(world: &World) -> Result<()> {
    nodes_say(world, &fetched("sha256:1")).await?;
    let node = json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "big-0"}});
    let labels = json!({"metadata": {"labels": {"copies": "yes"}}});
    world.patch(&node, labels).await?;
    let kept = |name: &str, repository: &str| {
        let mut it = cache("main");
        it["metadata"]["name"] = json!(name);
        it["spec"]["source"]["huggingface"]["repository"] = json!(repository);
        it["spec"]["nodes"] = json!({"selector": {"copies": "yes"}, "quota": "150"});
        it
    };
    let (it, other) = (kept("m", "org/tiny"), kept("n", "org/other"));
    let copies = |wanted: &'static str| {
        move |object: Option<&Value>| object.is_some_and(|it| it["status"]["copies"] == wanted)
    };
    world.create(it.clone()).await?;
    world.until(&it, "there", copies("1/1")).await?;
    // What the fetch of the second finds out with the 51 bytes it may have.
    let lacks = json!({"failed": {"reason": "TooLarge", "message": "99 bytes", "bytes": 99}});
    let exit_with =
        |code: Value| json!({"metadata": {"annotations": {"sim.gpu.warp.dev/exit-code": code}}});
    nodes_say(world, &lacks).await?;
    world.patch(&node, exit_with(json!("3"))).await?;
    world.create(other.clone()).await?;
    world
        .until(&other, "measured", |object| {
            object.is_some_and(|it| {
                let copy = &it["status"]["nodes"][0];
                copy["bytes"] == 99 && copy["phase"] == "Pending"
            })
        })
        .await?;
    nodes_say(world, &fetched("sha256:1")).await?;
    world.patch(&node, exit_with(Value::Null)).await?;
    world.until(&other, "there instead", copies("1/1")).await?;
    world
        .until(&it, "evicted", |object| {
            object.is_some_and(|it| {
                let copy = &it["status"]["nodes"][0];
                it["status"]["copies"] == "0/1"
                    && copy["phase"] == "Evicted"
                    && copy["message"] == "it made room for ModelCache default/n"
                    && it["status"]["conditions"][0]["reason"] == "Evicted"
            })
        })
        .await?;
    let served = service();
    world.create(served.clone()).await?;
    super::until_phase(world, &served, "Ready").await?;
    world
        .until(&other, "evicted in turn", |object| {
            object.is_some_and(|it| it["status"]["nodes"][0]["phase"] == "Evicted")
        })
        .await?;
    world.until(&it, "back", copies("1/1")).await?;
    delete(world, &served).await?;
    delete(world, &it).await?;
    // Room again.
    world.until(&other, "back as well", copies("1/1")).await?;
    delete(world, &other).await
}
