//! One user with one workload, and the nodes that come and go around them.

use anyhow::{Context, Result, bail, ensure};
use k8s_openapi::api::core::v1::Node;
use kube::Api;
use kube::ResourceExt;
use kube::api::{DynamicObject, ListParams, Patch, PatchParams, PostParams};
use serde_json::{Value, json};
use warp_testkit::fault::world::World;

use super::leaves::Leaf;

/// What the API said to a write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Answer {
    Accepted,
    /// Refused because it is placed.
    Frozen,
    /// Refused because it is wrong.
    Refused,
}

/// A user, in a namespace of their own, who wants one leaf to have one value in the end.
#[derive(Clone, Debug)]
pub(crate) struct Walker {
    pub(crate) namespace: String,
    pub(crate) leaf: Leaf,
    /// The spec they end with.
    pub(crate) goal: Value,
}

impl Walker {
    /// What the goal is about, for messages.
    pub(crate) fn value(&self) -> &Value {
        &self.goal[self.leaf.field()]
    }

    fn manifest(&self, spec: &Value) -> Value {
        json!({"apiVersion": "gpu.warp.dev/v1alpha1", "kind": "GPUWorkload",
            "metadata": {"name": "walk", "namespace": self.namespace}, "spec": spec})
    }

    fn api(&self, world: &World) -> Result<Api<DynamicObject>> {
        world.api_of(&self.manifest(&Value::Null))
    }

    pub(crate) async fn create(&self, world: &World, spec: &Value) -> Result<Answer> {
        let object = serde_json::from_value(self.manifest(spec))?;
        let made = self
            .api(world)?
            .create(&PostParams::default(), &object)
            .await;
        answer(made.map(drop))
    }

    pub(crate) async fn get(&self, world: &World) -> Result<Value> {
        let object = self.api(world)?.get("walk").await;
        Ok(serde_json::to_value(
            object.with_context(|| self.namespace.clone())?,
        )?)
    }

    /// Puts another spec in place of the one there is. What is refused changes nothing.
    pub(crate) async fn replace(&self, world: &World, spec: &Value) -> Result<Answer> {
        let api = self.api(world)?;
        // The operator writes too: whoever is told of a conflict looks again.
        for _ in 0..20 {
            let before = self.get(world).await?;
            let mut after = before.clone();
            after["spec"] = spec.clone();
            let replaced = api
                .replace(
                    "walk",
                    &PostParams::default(),
                    &serde_json::from_value(after)?,
                )
                .await;
            if matches!(&replaced, Err(kube::Error::Api(status)) if status.code == 409) {
                continue;
            }
            let said = answer(replaced.map(drop))?;
            if said != Answer::Accepted {
                let left = self.get(world).await?;
                ensure!(
                    left["spec"] == before["spec"]
                        && left["metadata"]["generation"] == before["metadata"]["generation"],
                    "{}: a refused change changed something",
                    self.leaf.path
                );
            }
            return Ok(said);
        }
        bail!("{}: conflicts without end", self.namespace)
    }
}

fn answer(outcome: Result<(), kube::Error>) -> Result<Answer> {
    match outcome {
        Ok(()) => Ok(Answer::Accepted),
        Err(kube::Error::Api(status)) if status.message.contains("after placement") => {
            Ok(Answer::Frozen)
        }
        Err(kube::Error::Api(status)) if matches!(status.code, 400 | 422) => Ok(Answer::Refused),
        Err(error) => Err(error.into()),
    }
}

/// The first nodes of the world.
pub(crate) struct Nodes {
    api: Api<Node>,
    names: Vec<String>,
}

impl Nodes {
    pub(crate) async fn of(world: &World) -> Result<Self> {
        let api: Api<Node> = Api::all(world.client.clone());
        let names: Vec<String> = api
            .list(&ListParams::default())
            .await?
            .iter()
            .map(ResourceExt::name_any)
            .collect();
        ensure!(names.len() > 1, "a world with too few nodes");
        Ok(Self { api, names })
    }

    async fn patch(&self, name: &str, patch: Value) -> Result<()> {
        self.api
            .patch(name, &PatchParams::default(), &Patch::Merge(patch))
            .await?;
        Ok(())
    }

    /// Nothing new is placed on them.
    pub(crate) async fn close(&self) -> Result<()> {
        for name in &self.names {
            self.patch(name, json!({"spec": {"unschedulable": true}}))
                .await?;
        }
        Ok(())
    }

    pub(crate) async fn open(&self) -> Result<()> {
        for name in &self.names {
            let healthy = json!({"spec": {"unschedulable": null},
                "metadata": {"annotations": {"sim.gpu.warp.dev/node-lost": null}, "labels": {"walk": null}}});
            self.patch(name, healthy).await?;
        }
        Ok(())
    }

    /// One falls silent or comes back, another gets new labels.
    pub(crate) async fn trouble(&self, round: usize) -> Result<()> {
        let lost = if round == 0 {
            json!("true")
        } else {
            Value::Null
        };
        let annotations =
            json!({"metadata": {"annotations": {"sim.gpu.warp.dev/node-lost": lost}}});
        self.patch(&self.names[0], annotations).await?;
        let labels = json!({"metadata": {"labels": {"walk": format!("{round}")}}});
        self.patch(&self.names[1], labels).await
    }
}
