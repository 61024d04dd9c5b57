//! Work of other kinds than Jobs in the queue. Their controllers do not run here: the test does what they do, which is to
//! say that an object is suspended, and to make and delete its pods.

use anyhow::{Context, Result, ensure};
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::api::{
    ApiResource, DeleteParams, DynamicObject, GroupVersionKind, ListParams, Patch, PatchParams,
    PostParams,
};
use kube::runtime::wait::Condition;
use kube::runtime::wait::conditions::is_crd_established;
use kube::{Api, ResourceExt};
use serde_json::{Value, json};
use warp_testkit::{Behaviour, NodeShape, until, wait_for};

use super::operator::binary;
use super::queued;
use super::world::{DEADLINE, Scene, World, is_live};

const REASON: &str = "gpu.warp.dev/queue-reason";
const NODES: &str = "gpu.warp.dev/nodes";
const PRODUCT: &str = "NVIDIA-RTX-A4000";

/// Two nodes of one GPU of a model no other scenario asks for.
pub(super) fn two() -> NodeShape {
    NodeShape::nvidia("a4000", PRODUCT, 16_376, "ampere", 1)
}

/// One kind: how its CRD is named, and what is where in its objects.
#[derive(Clone, Copy)]
#[allow(
    clippy::struct_field_names,
    reason = "the API's own words: a kind has a field `kind`"
)]
struct Kind {
    group: &'static str,
    version: &'static str,
    kind: &'static str,
    plural: &'static str,
    suspend: &'static str,
    /// The templates with GPUs and how many pods each makes.
    templates: &'static [(&'static str, usize)],
}

const KINDS: [Kind; 4] = [
    Kind {
        group: "jobset.x-k8s.io",
        version: "v1alpha2",
        kind: "JobSet",
        plural: "jobsets",
        suspend: "/spec/suspend",
        templates: &[("/spec/replicatedJobs/1/template/spec/template", 2)],
    },
    Kind {
        group: "kubeflow.org",
        version: "v1",
        kind: "PyTorchJob",
        plural: "pytorchjobs",
        suspend: "/spec/runPolicy/suspend",
        templates: &[
            ("/spec/pytorchReplicaSpecs/Master/template", 1),
            ("/spec/pytorchReplicaSpecs/Worker/template", 1),
        ],
    },
    Kind {
        group: "kubeflow.org",
        version: "v2beta1",
        kind: "MPIJob",
        plural: "mpijobs",
        suspend: "/spec/runPolicy/suspend",
        templates: &[("/spec/mpiReplicaSpecs/Worker/template", 2)],
    },
    Kind {
        group: "ray.io",
        version: "v1",
        kind: "RayJob",
        plural: "rayjobs",
        suspend: "/spec/suspend",
        templates: &[("/spec/rayClusterSpec/workerGroupSpecs/0/template", 2)],
    },
];

impl Kind {
    fn resource(&self) -> ApiResource {
        let named = GroupVersionKind::gvk(self.group, self.version, self.kind);
        ApiResource::from_gvk_with_plural(&named, self.plural)
    }

    fn api(&self, scene: &Scene<'_>) -> Api<DynamicObject> {
        let client = scene.world.client.clone();
        Api::namespaced_with(client, &scene.namespace, &self.resource())
    }

    /// An object for one GPU of `product` in each of two pods.
    fn object(&self, name: &str, product: &str, gpus: usize) -> Result<DynamicObject> {
        let with = template(product, Some(gpus));
        let without = template(product, None);
        let mut spec = match self.kind {
            "JobSet" => json!({"replicatedJobs": [
                {"name": "leader", "replicas": 1, "template": {"spec": {"template": without}}},
                {"name": "workers", "replicas": 1, "template": {"spec": {
                    "parallelism": 2, "completions": 2, "template": with,
                }}},
            ]}),
            "PyTorchJob" => json!({"pytorchReplicaSpecs": {
                "Master": {"replicas": 1, "template": with}, "Worker": {"replicas": 1, "template": with},
            }}),
            "MPIJob" => json!({"mpiReplicaSpecs": {
                "Launcher": {"replicas": 1, "template": without}, "Worker": {"replicas": 2, "template": with},
            }}),
            _ => json!({"rayClusterSpec": {
                "headGroupSpec": {"template": without},
                "workerGroupSpecs": [{"groupName": "gpu", "replicas": 2, "template": with}],
            }}),
        };
        if self.suspend.contains("runPolicy") {
            spec["runPolicy"] = json!({"suspend": true});
        } else {
            spec["suspend"] = json!(true);
        }
        Ok(serde_json::from_value(json!({
            "apiVersion": format!("{}/{}", self.group, self.version), "kind": self.kind,
            "metadata": {
                "name": name,
                "labels": {"gpu.warp.dev/queue": "true"},
                "annotations": {"gpu.warp.dev/priority": "low"},
            },
            "spec": spec,
        }))?)
    }

    fn is_suspended(&self, object: &DynamicObject) -> bool {
        object.data.pointer(self.suspend) == Some(&json!(true))
    }
}

fn template(product: &str, gpus: Option<usize>) -> Value {
    let limits = gpus.map(|gpus| json!({"limits": {"nvidia.com/gpu": gpus.to_string()}}));
    json!({"metadata": {"labels": {"app": "train"}}, "spec": {
        "restartPolicy": "Never",
        "nodeSelector": {"nvidia.com/gpu.product": product},
        "containers": [{
            "name": "main", "image": "registry.example/scenario:1",
            "env": Behaviour::hang().env(), "resources": limits.unwrap_or_else(|| json!({})),
        }],
    }})
}

/// Installs minimal CRDs of the kinds.
pub(super) async fn install(world: &World) -> Result<()> {
    for kind in KINDS {
        install_kind(world, (kind.group, kind.version), (kind.kind, kind.plural)).await?;
    }
    Ok(())
}

/// Installs a kind of others whose objects may say anything.
pub(super) async fn install_kind(
    world: &World,
    (group, version): (&str, &str),
    (kind, plural): (&str, &str),
) -> Result<()> {
    let definitions = Api::<CustomResourceDefinition>::all(world.client.clone());
    let name = format!("{plural}.{group}");
    let any = json!({"type": "object", "x-kubernetes-preserve-unknown-fields": true});
    let definition = serde_json::from_value(json!({
        "metadata": {
            "name": name,
            "annotations": {"api-approved.kubernetes.io": "unapproved, minimal copy for a test"},
        },
        "spec": {
            "group": group, "scope": "Namespaced",
            "names": {
                "kind": kind, "plural": plural, "singular": kind.to_lowercase(),
                "listKind": format!("{kind}List"),
            },
            "versions": [{
                "name": version, "served": true, "storage": true, "subresources": {"status": {}},
                "schema": {"openAPIV3Schema": {
                    "type": "object", "properties": {"spec": any, "status": any},
                }},
            }],
        },
    }))?;
    definitions
        .create(&PostParams::default(), &definition)
        .await?;
    wait_for(&definitions, &name, "established", DEADLINE, |crd| {
        is_crd_established().matches_object(crd)
    })
    .await?;
    let named = GroupVersionKind::gvk(group, version, kind);
    let resource = ApiResource::from_gvk_with_plural(&named, plural);
    let api: Api<DynamicObject> = Api::all_with(world.client.clone(), &resource);
    until("it can be listed", DEADLINE, || async {
        let listed = api.list_metadata(&ListParams::default()).await;
        Ok(listed.ok().map(drop))
    })
    .await?;
    Ok(())
}

/// Says what the kind's controller says of a suspended object.
async fn is_seen(scene: &Scene<'_>, kind: &Kind, name: &str) -> Result<()> {
    let status = if kind.kind == "RayJob" {
        json!({"jobDeploymentStatus": "Suspended"})
    } else {
        json!({"conditions": [{"type": "Suspended", "status": "True"}]})
    };
    say(scene, kind, name, status).await
}

async fn say(scene: &Scene<'_>, kind: &Kind, name: &str, status: Value) -> Result<()> {
    let patch = Patch::Merge(json!({"status": status}));
    let params = PatchParams::default();
    kind.api(scene).patch_status(name, &params, &patch).await?;
    Ok(())
}

async fn create(
    scene: &Scene<'_>,
    kind: &Kind,
    name: &str,
    gpus: (&str, usize),
) -> Result<DynamicObject> {
    let object = kind.object(name, gpus.0, gpus.1)?;
    let created = kind
        .api(scene)
        .create(&PostParams::default(), &object)
        .await?;
    is_seen(scene, kind, name).await?;
    Ok(created)
}

fn said<'a>(object: &'a DynamicObject, annotation: &str) -> &'a str {
    let found = object.annotations().get(annotation);
    found.map(String::as_str).unwrap_or_default()
}

async fn until_it(
    scene: &Scene<'_>,
    kind: &Kind,
    name: &str,
    what: &str,
    holds: impl Fn(&DynamicObject) -> bool + Send + Sync,
) -> Result<DynamicObject> {
    let seen = wait_for(&kind.api(scene), name, what, DEADLINE, |object| {
        object.is_some_and(&holds)
    })
    .await
    .with_context(|| format!("of {} {name}", kind.kind))?;
    seen.context("an object that was there is missing")
}

async fn until_waits(scene: &Scene<'_>, kind: &Kind, name: &str) -> Result<DynamicObject> {
    until_it(scene, kind, name, "waits", |object| {
        said(object, REASON) == "WaitingForCapacity"
            && kind.is_suspended(object)
            && said(object, NODES).is_empty()
    })
    .await
}

async fn pods_of(scene: &Scene<'_>, name: &str) -> Result<Vec<Pod>> {
    let of = format!("test={name}");
    let mut pods = scene
        .pods()
        .list(&ListParams::default().labels(&of))
        .await?;
    pods.items.retain(is_live);
    Ok(pods.items)
}

/// Waits until an object is resumed, makes its pods as its controller does, and waits until they run, each on its node.
async fn runs(scene: &Scene<'_>, kind: &Kind, name: &str) -> Result<()> {
    let placed = until_it(scene, kind, name, "resumed at its place", |object| {
        !kind.is_suspended(object) && !said(object, NODES).is_empty()
    })
    .await?;
    say(
        scene,
        kind,
        name,
        json!({"conditions": null, "jobDeploymentStatus": "Running"}),
    )
    .await?;
    let mut number = 0;
    for (at, pods) in kind.templates {
        let template = placed.data.pointer(at).context("a template is gone")?;
        for _ in 0..*pods {
            let mut pod: Pod = serde_json::from_value(template.clone())?;
            pod.metadata.generate_name = Some(format!("{name}-{number}-"));
            pod.labels_mut().insert("test".to_owned(), name.to_owned());
            scene.pods().create(&PostParams::default(), &pod).await?;
            number += 1;
        }
    }
    let what = format!("the pods of {name} run");
    let nodes = until(&what, DEADLINE, || async {
        let pods = pods_of(scene, name).await?;
        let running = pods.iter().filter(|pod| {
            let status = pod.status.as_ref();
            status.and_then(|status| status.phase.as_deref()) == Some("Running")
        });
        let nodes = running.filter_map(|pod| pod.spec.as_ref()?.node_name.clone());
        let mut nodes: Vec<String> = nodes.collect();
        nodes.sort_unstable();
        Ok((nodes.len() == number).then_some(nodes))
    })
    .await?;
    let mut given: Vec<&str> = said(&placed, NODES).split(',').collect();
    given.sort_unstable();
    ensure!(nodes == given, "{nodes:?} instead of {given:?}");
    Ok(())
}

/// Deletes the pods of an object, as its controller does when it is suspended or has ended.
async fn ends(scene: &Scene<'_>, name: &str) -> Result<()> {
    for pod in pods_of(scene, name).await? {
        let now = DeleteParams::default().grace_period(0);
        scene.pods().delete(&pod.name_any(), &now).await?;
    }
    Ok(())
}

async fn finishes(scene: &Scene<'_>, kind: &Kind, name: &str) -> Result<()> {
    let ended = match kind.kind {
        "RayJob" => json!({"jobDeploymentStatus": "Complete"}),
        "JobSet" => json!({"conditions": [{"type": "Completed", "status": "True"}]}),
        _ => json!({"conditions": [{"type": "Succeeded", "status": "True"}]}),
    };
    say(scene, kind, name, ended).await?;
    ends(scene, name).await
}

/// What the `warp` command prints, with the rights of the administrator.
async fn warp(world: &World, scene: &Scene<'_>, arguments: &[&str]) -> Result<String> {
    let output = tokio::process::Command::new(binary()?)
        .args(arguments)
        .args(["-n", &scene.namespace])
        .env("KUBECONFIG", world.cluster.kubeconfig())
        .output()
        .await?;
    let error = String::from_utf8_lossy(&output.stderr);
    let printed = String::from_utf8_lossy(&output.stdout);
    Ok(format!("{printed}{error}"))
}

pub(super) async fn other_kinds_wait_are_placed_and_make_room(world: &World) -> Result<()> {
    let scene = world.scene("other-kinds").await?;
    let [first, rest @ ..] = KINDS;
    let one = (PRODUCT, 1);
    let created = create(&scene, &first, "first", one).await?;
    runs(&scene, &first, "first").await?;
    for (number, kind) in rest.iter().enumerate() {
        let name = format!("next-{number}");
        create(&scene, kind, &name, one).await?;
        until_waits(&scene, kind, &name).await?;
    }
    let queue = warp(world, &scene, &["queue"]).await?;
    for line in [
        "pytorchjob/next-0",
        "mpijob/next-1",
        "rayjob/next-2",
        "2 × 1",
    ] {
        ensure!(queue.contains(line), "{line} is not in: {queue}");
    }
    let why = warp(world, &scene, &["why", "pytorchjob/next-0"]).await?;
    ensure!(why.contains("pytorchjob/next-0 waits"), "{why}");
    let plan = warp(world, &scene, &["plan", "mpijob/next-1"]).await?;
    ensure!(plan.contains("mpijob/next-1 waits"), "{plan}");
    typo_is_told(&scene, &rest[0]).await?;
    // What is more urgent takes the place of the first, which is queued again as it was.
    queued::urgent(&scene, PRODUCT).await?;
    until_it(&scene, &first, "first", "suspended", |object| {
        first.is_suspended(object)
    })
    .await?;
    ends(&scene, "first").await?;
    is_seen(&scene, &first, "first").await?;
    let waits = until_waits(&scene, &first, "first").await?;
    ensure!(
        waits.data["spec"] == created.data["spec"],
        "{:?}",
        waits.data
    );
    queued::urgent_ends(&scene).await?;
    // Then each in its turn.
    runs(&scene, &first, "first").await?;
    finishes(&scene, &first, "first").await?;
    for (number, kind) in rest.iter().enumerate() {
        let name = format!("next-{number}");
        runs(&scene, kind, &name).await?;
        finishes(&scene, kind, &name).await?;
    }
    Ok(())
}

/// A label that says neither yes nor no is told, and nothing is done.
async fn typo_is_told(scene: &Scene<'_>, kind: &Kind) -> Result<()> {
    let mut object = kind.object("typo", PRODUCT, 1)?;
    object
        .labels_mut()
        .insert("gpu.warp.dev/queue".to_owned(), "yes".to_owned());
    kind.api(scene)
        .create(&PostParams::default(), &object)
        .await?;
    let said = queued::told(scene, "typo", "InvalidSpec").await?;
    ensure!(said[0].contains("'yes'"), "{said:?}");
    Ok(())
}

/// One of each kind in the one namespace that an operator has, where only one fits at a time.
pub(super) async fn are_placed(scene: &Scene<'_>, gpu: (&str, usize)) -> Result<()> {
    for kind in KINDS {
        let name = kind.kind.to_lowercase();
        create(scene, &kind, &name, gpu).await?;
        runs(scene, &kind, &name).await?;
        finishes(scene, &kind, &name).await?;
    }
    Ok(())
}
