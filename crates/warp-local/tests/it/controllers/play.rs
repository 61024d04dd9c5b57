//! Plays a scenario in a namespace of its own.

use std::collections::BTreeMap;

use anyhow::{Context, Result, bail};
use futures::stream::{self, BoxStream, StreamExt};
use k8s_openapi::api::core::v1::Pod;
use kube::api::{
    Api, ApiResource, DeleteParams, DynamicObject, EvictParams, GroupVersionKind, ListParams,
    Patch, PatchParams, PostParams, PropagationPolicy,
};
use kube::{Client, ResourceExt};
use serde_json::{Value, json};
use warp_testkit::{Cluster, PATIENCE, changes};

use super::script::{Owner, Scenario, Step, contains, settings};

const KINDS: [(&str, &str, &str); 21] = [
    ("", "v1", "Event"),
    ("", "v1", "Pod"),
    ("", "v1", "ConfigMap"),
    ("", "v1", "Secret"),
    ("", "v1", "Service"),
    ("", "v1", "Namespace"),
    ("", "v1", "ServiceAccount"),
    ("", "v1", "ResourceQuota"),
    ("", "v1", "PersistentVolumeClaim"),
    ("", "v1", "PersistentVolume"),
    ("", "v1", "Endpoints"),
    ("", "v1", "Node"),
    ("batch", "v1", "Job"),
    ("apps", "v1", "ReplicaSet"),
    ("apps", "v1", "Deployment"),
    ("apps", "v1", "StatefulSet"),
    ("apps", "v1", "ControllerRevision"),
    ("discovery.k8s.io", "v1", "EndpointSlice"),
    ("policy", "v1", "PodDisruptionBudget"),
    ("scheduling.k8s.io", "v1", "PriorityClass"),
    ("storage.k8s.io", "v1", "StorageClass"),
];

/// A namespace in a cluster.
pub(super) struct Stage {
    client: Client,
    pub(super) namespace: String,
}

impl Stage {
    pub(super) async fn open(cluster: &Cluster, scenario: &Scenario) -> Result<Self> {
        let short: String = scenario
            .name
            .chars()
            .map(|c| if c.is_ascii_alphanumeric() { c } else { '-' })
            .take(40)
            .collect();
        let namespace = cluster
            .namespace(&format!("s-{}", short.to_lowercase().trim_matches('-')))
            .await?;
        Ok(Self {
            client: cluster.client().await?,
            namespace,
        })
    }

    pub(super) fn api(&self, kind: &str) -> Result<Api<DynamicObject>> {
        self.api_in(kind, &self.namespace)
    }

    fn api_in(&self, kind: &str, namespace: &str) -> Result<Api<DynamicObject>> {
        let Some((group, version, _)) = KINDS.iter().find(|(_, _, known)| *known == kind) else {
            bail!("the scenarios know no kind '{kind}'");
        };
        let resource = ApiResource::from_gvk(&GroupVersionKind::gvk(group, version, kind));
        let everywhere = [
            "Namespace",
            "Node",
            "PersistentVolume",
            "PriorityClass",
            "StorageClass",
        ];
        Ok(if everywhere.contains(&kind) {
            Api::all_with(self.client.clone(), &resource)
        } else {
            Api::namespaced_with(self.client.clone(), namespace, &resource)
        })
    }

    pub(super) async fn list(&self, kind: &str) -> Result<Vec<Value>> {
        let list = self.api(kind)?.list(&ListParams::default()).await?;
        Ok(list.items.into_iter().map(|object| json!(object)).collect())
    }

    /// Says so whenever an object of one of `kinds` may have changed, and once when it begins to listen.
    pub(super) fn changes<'a>(
        &self,
        kinds: impl Iterator<Item = &'a str>,
    ) -> Result<BoxStream<'static, ()>> {
        let feeds = kinds
            .map(|kind| Ok(changes(self.api(kind)?)))
            .collect::<Result<Vec<_>>>()?;
        Ok(stream::select_all(feeds).boxed())
    }

    /// `$NAMESPACE` in a scenario is the namespace it is played in.
    fn own(&self, value: &Value) -> Value {
        let text = value.to_string().replace("$NAMESPACE", &self.namespace);
        serde_json::from_str(&text).unwrap_or_else(|_| value.clone())
    }

    fn own_name(&self, name: &str) -> String {
        name.replace("$NAMESPACE", &self.namespace)
    }

    pub(super) async fn play(&self, scenario: &Scenario) -> Result<()> {
        for (number, step) in scenario.steps.iter().enumerate() {
            let shown = format!(
                "step {} ({})",
                number + 1,
                serde_json::to_string(&json!(format!("{step:?}")))?
            );
            self.step(step).await.context(shown)?;
        }
        Ok(())
    }

    async fn step(&self, step: &Step) -> Result<()> {
        let namespace = &self.namespace;
        match step {
            Step::Job(made) => self.create(&made.job(namespace)).await,
            Step::Deployment(made) => self.create(&made.replicated("Deployment", namespace)).await,
            Step::ReplicaSet(made) => self.create(&made.replicated("ReplicaSet", namespace)).await,
            Step::StatefulSet(made) => {
                self.create(&made.replicated("StatefulSet", namespace))
                    .await
            }
            Step::Pod(made) => self.create(&made.pod(namespace)).await,
            Step::Create(object) => self.create(object).await,
            Step::Patch {
                kind,
                name,
                with,
                sub,
            } => {
                let (api, name, with) = (self.api(kind)?, self.own_name(name), self.own(with));
                let params = PatchParams::default();
                match sub.as_deref() {
                    Some("status") => {
                        api.patch_status(&name, &params, &Patch::Merge(with))
                            .await?
                    }
                    _ => api.patch(&name, &params, &Patch::Merge(with)).await?,
                };
                Ok(())
            }
            Step::Delete {
                kind,
                name,
                propagation,
                grace,
            } => {
                let params = DeleteParams {
                    propagation_policy: match propagation.as_deref() {
                        Some("Foreground") => Some(PropagationPolicy::Foreground),
                        Some("Orphan") => Some(PropagationPolicy::Orphan),
                        Some(_) => Some(PropagationPolicy::Background),
                        None => None,
                    },
                    grace_period_seconds: *grace,
                    ..DeleteParams::default()
                };
                self.api(kind)?
                    .delete(&self.own_name(name), &params)
                    .await?;
                Ok(())
            }
            Step::Await { kind, name, has } => {
                self.wait(kind, &self.own_name(name), has.as_ref()).await
            }
            Step::AwaitAny { kind, has } => {
                let wanted = self.own(has);
                warp_testkit::until(&format!("some {kind} has {wanted}"), PATIENCE, || async {
                    let all = self.list(kind).await?;
                    Ok(all
                        .iter()
                        .any(|found| contains(found, &wanted))
                        .then_some(()))
                })
                .await
            }
            Step::AwaitPods { labels, count, has } => {
                self.wait_pods(labels, *count, has.as_ref()).await
            }
            Step::PodsDo { labels, runs } => {
                let annotations: BTreeMap<_, _> = settings(runs).into_iter().collect();
                for pod in self.pods(labels).await? {
                    let patch = json!({ "metadata": { "annotations": annotations } });
                    self.api("Pod")?
                        .patch(
                            &pod.name_any(),
                            &PatchParams::default(),
                            &Patch::Merge(patch),
                        )
                        .await?;
                }
                Ok(())
            }
            Step::LabelPods { labels, to } => {
                for pod in self.pods(labels).await? {
                    let patch = Patch::Merge(json!({ "metadata": { "labels": to } }));
                    self.api("Pod")?
                        .patch(&pod.name_any(), &PatchParams::default(), &patch)
                        .await?;
                }
                Ok(())
            }
            Step::Own { kind, name, owner } => self.own_by(kind, name, owner).await,
            Step::Evict { labels, refused } => self.evict(labels, *refused).await,
            Step::DeletePods { labels } => {
                for pod in self.pods(labels).await? {
                    self.api("Pod")?
                        .delete(&pod.name_any(), &DeleteParams::default())
                        .await?;
                }
                Ok(())
            }
        }
    }

    async fn own_by(&self, kind: &str, name: &str, owner: &Owner) -> Result<()> {
        let found = self.api(&owner.kind)?.get(&owner.name).await?;
        let reference = json!([{
            "apiVersion": found.types.as_ref().map(|types| types.api_version.clone()),
            "kind": owner.kind, "name": owner.named.as_ref().unwrap_or(&owner.name),
            "uid": found.uid(), "blockOwnerDeletion": owner.blocks,
        }]);
        let patch = json!({ "metadata": { "ownerReferences": reference } });
        self.api(kind)?
            .patch(name, &PatchParams::default(), &Patch::Merge(patch))
            .await?;
        Ok(())
    }

    /// A budget's status may still be on its way after a change, so a refusal is asked for again.
    async fn evict(&self, labels: &BTreeMap<String, String>, refused: bool) -> Result<()> {
        let pods: Api<Pod> = Api::namespaced(self.client.clone(), &self.namespace);
        let what = if refused { "refused" } else { "allowed" };
        warp_testkit::until(&format!("an eviction is {what}"), PATIENCE, || async {
            let all = self.pods(labels).await?;
            let pod = all
                .iter()
                .find(|pod| pod.metadata.deletion_timestamp.is_none());
            let name = pod.context("no pod to evict")?.name_any();
            match pods.evict(&name, &EvictParams::default()).await {
                Ok(_) if refused => bail!("the eviction of {name} was allowed"),
                Ok(_) => Ok(Some(())),
                Err(kube::Error::Api(status)) if status.code == 429 => Ok(refused.then_some(())),
                Err(error) => Err(error.into()),
            }
        })
        .await
    }

    /// Creates an object, with the uids of owners it names by name alone filled in.
    async fn create(&self, object: &Value) -> Result<()> {
        let mut object = self.own(object);
        let kind = object["kind"].as_str().unwrap_or_default().to_owned();
        if let Some(owners) = object["metadata"]
            .get_mut("ownerReferences")
            .and_then(Value::as_array_mut)
        {
            for owner in owners {
                if owner["uid"].is_null() {
                    let kind = owner["kind"].as_str().unwrap_or_default();
                    let name = owner["name"].as_str().unwrap_or_default();
                    let found = match owner["namespace"].as_str() {
                        Some(namespace) => self.api_in(kind, namespace)?.get(name).await?,
                        None => self.api(kind)?.get(name).await?,
                    };
                    owner["uid"] = json!(found.uid());
                    owner.as_object_mut().map(|owner| owner.remove("namespace"));
                }
            }
        }
        let object: DynamicObject = serde_json::from_value(object)?;
        self.api(&kind)?
            .create(&PostParams::default(), &object)
            .await?;
        Ok(())
    }

    async fn pods(&self, labels: &BTreeMap<String, String>) -> Result<Vec<DynamicObject>> {
        let selector: Vec<_> = labels
            .iter()
            .map(|(name, value)| format!("{name}={value}"))
            .collect();
        let list = self
            .api("Pod")?
            .list(&ListParams::default().labels(&selector.join(",")))
            .await?;
        Ok(list.items)
    }

    async fn wait(&self, kind: &str, name: &str, has: Option<&Value>) -> Result<()> {
        let api = self.api(kind)?;
        let what = has.map_or_else(|| "gone".to_owned(), ToString::to_string);
        let wanted = has.map(|has| self.own(has));
        warp_testkit::until(&format!("{kind} {name} is {what}"), PATIENCE, || async {
            let found = api.get_opt(name).await?;
            let holds = match (&found, &wanted) {
                (Some(found), Some(wanted)) => contains(&json!(found), wanted),
                (None, None) => true,
                _ => false,
            };
            Ok(holds.then_some(()))
        })
        .await
    }

    async fn wait_pods(
        &self,
        labels: &BTreeMap<String, String>,
        count: usize,
        has: Option<&Value>,
    ) -> Result<()> {
        let empty = json!({});
        let part = has.unwrap_or(&empty);
        warp_testkit::until(
            &format!("{count} pods of {labels:?} have {part}"),
            PATIENCE,
            || async {
                let pods = self.pods(labels).await?;
                let found = pods
                    .iter()
                    .filter(|pod| contains(&json!(pod), part))
                    .count();
                Ok((found == count).then_some(()))
            },
        )
        .await
    }
}
