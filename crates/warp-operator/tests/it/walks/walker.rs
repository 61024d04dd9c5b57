//! One user with one workload, and what the API says to them.

use anyhow::{Context, Result, bail, ensure};
use kube::Api;
use kube::api::{DynamicObject, Patch, PatchParams, PostParams};
use serde_json::{Value, json};
use warp_testkit::fault::world::World;

use super::leaves::Leaf;

/// What the API said to a write.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Answer {
    Accepted,
    /// With its words.
    Refused(String),
}

impl Answer {
    pub(crate) fn accepted(&self) -> bool {
        *self == Self::Accepted
    }

    /// Whether it was refused in these words.
    pub(crate) fn says(&self, words: &str) -> bool {
        matches!(self, Self::Refused(said) if said.contains(words))
    }

    fn of(outcome: Result<(), kube::Error>) -> Result<Self> {
        match outcome {
            Ok(()) => Ok(Self::Accepted),
            Err(kube::Error::Api(status)) if matches!(status.code, 400 | 422) => {
                Ok(Self::Refused(status.message.clone()))
            }
            Err(error) => Err(error.into()),
        }
    }
}

/// The words with which a field is refused while it runs and after its end.
pub(crate) fn frozen(field: &str) -> String {
    if matches!(field, "modelName" | "gpuCount") {
        return "modelName and gpuCount may not change while it runs or after its end".to_owned();
    }
    format!("{field} may not change while it runs or after its end")
}

/// Whether only what steers a workload may be changed: it runs or has ended.
pub(crate) fn is_frozen(object: &Value) -> bool {
    let phase = object["status"]["phase"].as_str();
    matches!(phase, Some("Running" | "Succeeded" | "Failed"))
}

/// Somebody in a namespace of their own, with one workload called `walk`.
#[derive(Clone, Debug)]
pub(crate) struct User {
    pub(crate) namespace: String,
}

impl User {
    pub(crate) fn new(namespace: impl Into<String>) -> Self {
        Self {
            namespace: namespace.into(),
        }
    }

    /// With a namespace that can have pods.
    pub(crate) async fn arrives(world: &World, namespace: impl Into<String>) -> Result<Self> {
        let user = Self::new(namespace);
        let manifest =
            json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": user.namespace}});
        world.create(manifest).await?;
        world.ready(&user.namespace).await?;
        Ok(user)
    }

    pub(crate) fn manifest(&self, name: &str, spec: &Value) -> Value {
        json!({"apiVersion": "gpu.warp.dev/v1alpha1", "kind": "GPUWorkload",
            "metadata": {"name": name, "namespace": self.namespace}, "spec": spec})
    }

    fn api(&self, world: &World) -> Result<Api<DynamicObject>> {
        world.api_of(&self.manifest("walk", &Value::Null))
    }

    pub(crate) async fn create(&self, world: &World, spec: &Value) -> Result<Answer> {
        self.create_called("walk", world, spec).await
    }

    /// What is refused leaves nothing.
    pub(crate) async fn create_called(
        &self,
        name: &str,
        world: &World,
        spec: &Value,
    ) -> Result<Answer> {
        let object = serde_json::from_value(self.manifest(name, spec))?;
        let api = self.api(world)?;
        let made = api.create(&PostParams::default(), &object).await;
        let said = Answer::of(made.map(drop))?;
        ensure!(
            said.accepted() || api.get_opt(name).await?.is_none(),
            "{}: a refused workload was made",
            self.namespace
        );
        Ok(said)
    }

    pub(crate) async fn get(&self, world: &World) -> Result<Value> {
        let found = self.find(world).await?;
        found.with_context(|| format!("{} has no workload", self.namespace))
    }

    /// Their workload, which runs.
    pub(crate) async fn running(&self, world: &World) -> Result<Value> {
        let object = self.get(world).await?;
        let status = &object["status"];
        ensure!(
            status["phase"] == "Running",
            "{} is {status}",
            self.namespace
        );
        Ok(object)
    }

    /// Their workload, which has this spec and nothing else, and the operator has seen it.
    pub(crate) async fn observed(&self, world: &World, spec: &Value) -> Result<Value> {
        let object = self.get(world).await?;
        ensure!(
            object["spec"] == *spec,
            "the spec is {}, not {spec}",
            object["spec"]
        );
        ensure!(
            object["status"]["observedGeneration"] == object["metadata"]["generation"],
            "the edit was not observed: {}",
            object["status"]
        );
        Ok(object)
    }

    pub(crate) async fn find(&self, world: &World) -> Result<Option<Value>> {
        let object = self.api(world)?.get_opt("walk").await?;
        Ok(object.map(serde_json::to_value).transpose()?)
    }

    /// Puts another spec in place of the one there is. What is refused changes nothing.
    pub(crate) async fn replace(&self, world: &World, spec: &Value) -> Result<Answer> {
        let (answer, _) = self.replace_what_is(world, spec).await?;
        Ok(answer)
    }

    /// The same, and the object as it was when that was answered.
    pub(crate) async fn replace_what_is(
        &self,
        world: &World,
        spec: &Value,
    ) -> Result<(Answer, Value)> {
        let api = self.api(world)?;
        // The operator writes too: whoever is told of a conflict looks again.
        for _ in 0..20 {
            let before = self.get(world).await?;
            let mut after = before.clone();
            after["spec"] = spec.clone();
            let object = serde_json::from_value(after)?;
            let replaced = api.replace("walk", &PostParams::default(), &object).await;
            if matches!(&replaced, Err(kube::Error::Api(status)) if status.code == 409) {
                continue;
            }
            let said = Answer::of(replaced.map(drop))?;
            if !said.accepted() {
                self.unchanged(world, &before).await?;
            }
            return Ok((said, before));
        }
        bail!("{}: conflicts without end", self.namespace)
    }

    /// Sets or takes away one label or annotation. What is refused changes nothing.
    pub(crate) async fn mark(
        &self,
        world: &World,
        list: &str,
        name: &str,
        value: &Value,
    ) -> Result<Answer> {
        let before = self.get(world).await?;
        let patch = json!({"metadata": {list: {name: value}}});
        let patched = self
            .api(world)?
            .patch("walk", &PatchParams::default(), &Patch::Merge(patch))
            .await;
        let said = Answer::of(patched.map(drop))?;
        if !said.accepted() {
            self.unchanged(world, &before).await?;
        }
        Ok(said)
    }

    /// Everything that is the user's is as it was; the status is the operator's.
    async fn unchanged(&self, world: &World, before: &Value) -> Result<()> {
        let own = |object: &Value| {
            let mut meta = object["metadata"].clone();
            for name in ["resourceVersion", "managedFields"] {
                meta.as_object_mut().and_then(|meta| meta.remove(name));
            }
            (meta, object["spec"].clone())
        };
        let left = self.get(world).await?;
        ensure!(
            own(&left) == own(before),
            "{}: a refused change changed {before} to {left}",
            self.namespace
        );
        Ok(())
    }
}

/// A user who wants one leaf to have one value in the end.
#[derive(Clone, Debug)]
pub(crate) struct Walker {
    pub(crate) user: User,
    pub(crate) leaf: Leaf,
    /// The spec they end with.
    pub(crate) goal: Value,
}

impl Walker {
    /// What the goal is about, for messages.
    pub(crate) fn value(&self) -> &Value {
        &self.goal[self.leaf.field()]
    }

    /// Whether it runs on as if nothing had happened after its pod failed so often: it may be retried,
    /// it does not end by itself, and it has not said itself when it leaves a node that is silent.
    pub(crate) fn sturdy(&self, failures: i64) -> bool {
        let retries = self.goal["retryPolicy"]["maxRetries"].as_i64();
        let ends = ["command", "args", "maxRuntime"];
        let gives_up = self.goal["retryPolicy"]["onMemberFailure"] == "fail";
        retries >= Some(failures)
            && !gives_up
            && ends.iter().all(|field| self.goal.get(field).is_none())
            && !self.leaf.path.contains("tolerations")
    }
}
