//! Plays a scenario in a namespace of its own.

use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use kube::api::{
    Api, ApiResource, DeleteParams, DynamicObject, GroupVersionKind, ListParams, Patch,
    PatchParams, PostParams, PropagationPolicy,
};
use kube::{Client, ResourceExt};
use serde_json::{Value, json};
use warp_testkit::Cluster;

use super::script::{Scenario, Step, contains, settings};

const PATIENCE: Duration = Duration::from_secs(90);
const KINDS: [(&str, &str, &str); 14] = [
    ("", "v1", "Pod"),
    ("", "v1", "ConfigMap"),
    ("", "v1", "Secret"),
    ("", "v1", "Service"),
    ("", "v1", "Namespace"),
    ("", "v1", "ServiceAccount"),
    ("", "v1", "ResourceQuota"),
    ("", "v1", "PersistentVolumeClaim"),
    ("", "v1", "Node"),
    ("batch", "v1", "Job"),
    ("apps", "v1", "ReplicaSet"),
    ("apps", "v1", "Deployment"),
    ("policy", "v1", "PodDisruptionBudget"),
    ("scheduling.k8s.io", "v1", "PriorityClass"),
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
        let Some((group, version, _)) = KINDS.iter().find(|(_, _, known)| *known == kind) else {
            bail!("the scenarios know no kind '{kind}'");
        };
        let resource = ApiResource::from_gvk(&GroupVersionKind::gvk(group, version, kind));
        Ok(if matches!(kind, "Namespace" | "Node" | "PriorityClass") {
            Api::all_with(self.client.clone(), &resource)
        } else {
            Api::namespaced_with(self.client.clone(), &self.namespace, &resource)
        })
    }

    pub(super) async fn list(&self, kind: &str) -> Result<Vec<Value>> {
        let list = self.api(kind)?.list(&ListParams::default()).await?;
        Ok(list.items.into_iter().map(|object| json!(object)).collect())
    }

    pub(super) async fn list_events(&self) -> Result<Vec<Value>> {
        let resource = ApiResource::from_gvk(&GroupVersionKind::gvk("", "v1", "Event"));
        let api: Api<DynamicObject> =
            Api::namespaced_with(self.client.clone(), &self.namespace, &resource);
        let list = api.list(&ListParams::default()).await?;
        Ok(list.items.into_iter().map(|object| json!(object)).collect())
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
                    let found = self
                        .api(owner["kind"].as_str().unwrap_or_default())?
                        .get(owner["name"].as_str().unwrap_or_default())
                        .await?;
                    owner["uid"] = json!(found.uid());
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
