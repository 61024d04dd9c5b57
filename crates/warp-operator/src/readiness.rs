//! Whether the operator could do its work if there were any: every kind it watches is served and may
//! be read, and what it writes it may write.
//!
//! Owns: the answer of `/readyz`. Asks the API server about rights only when somebody asks here. Must
//! not stop anything: a right that comes back needs no restart.

use std::collections::BTreeSet;
use std::time::Duration;

use futures::future::join_all;
use k8s_openapi::api::authorization::v1::{
    ResourceAttributes, SelfSubjectAccessReview, SelfSubjectAccessReviewSpec,
};
use kube::api::PostParams;
use kube::{Api, Client};
use tokio::sync::Mutex;
use tokio::time::Instant;

use warp_runtime::cache::Health;
use warp_runtime::runtime::Readiness as Kinds;

use crate::{placement, workload};

/// How long an answer about rights is believed.
const BELIEVED: Duration = Duration::from_secs(20);
/// A probe is asked every few seconds; a slow API server must not pile them up.
const ANSWER_LIMIT: Duration = Duration::from_secs(2);

/// Group, resource, verb of everything the operator needs besides its first lists; a test compares it
/// with the shipped role.
const NEEDED: [(&str, &str, &str); 18] = [
    ("", "nodes", "watch"),
    ("", "pods", "watch"),
    ("", "events", "watch"),
    ("", "resourcequotas", "watch"),
    ("", "namespaces", "watch"),
    ("", "persistentvolumeclaims", "watch"),
    ("", "persistentvolumes", "watch"),
    ("storage.k8s.io", "storageclasses", "watch"),
    ("batch", "jobs", "watch"),
    ("gpu.warp.dev", "gpuworkloads", "watch"),
    ("gpu.warp.dev", "gpuworkloads", "delete"),
    ("gpu.warp.dev", "gpuworkloads/status", "patch"),
    ("batch", "jobs", "create"),
    ("batch", "jobs", "delete"),
    ("batch", "jobs", "patch"),
    ("", "pods/eviction", "create"),
    ("events.k8s.io", "events", "create"),
    ("events.k8s.io", "events", "patch"),
];

/// What is read everywhere, whatever namespace is served.
const EVERYWHERE: [&str; 5] = [
    "nodes",
    "pods",
    "namespaces",
    "persistentvolumes",
    "storageclasses",
];

pub(crate) struct Readiness {
    client: Client,
    namespace: Option<String>,
    kinds: Kinds,
    rights: Mutex<Option<(Instant, Vec<String>)>>,
}

impl Readiness {
    pub(crate) fn new(client: Client, namespace: Option<String>, kinds: Kinds) -> Self {
        Self {
            client,
            namespace,
            kinds,
            rights: Mutex::new(None),
        }
    }

    /// What keeps the operator from working, each with what to do; empty when nothing does.
    pub(crate) async fn missing(&self) -> Vec<String> {
        let (mut missing, reading) = self.unread();
        missing.extend(self.refused().await);
        if missing.is_empty() && reading {
            missing.push("still reading the cluster".to_owned());
        }
        missing
    }

    /// How every kind is doing.
    pub(crate) fn kinds(&self) -> &Kinds {
        &self.kinds
    }

    /// What the API server will not let workloads and their placement be decided on, and whether a first list is still
    /// on its way. What fails for a moment passes by itself.
    fn unread(&self) -> (Vec<String>, bool) {
        let ours = [workload::NAME, placement::NAME];
        let kinds = self.kinds.kinds().into_iter();
        let troubles = kinds
            .filter(|kind| ours.contains(&kind.name))
            .flat_map(|kind| kind.troubles);
        let (mut said, mut reading) = (BTreeSet::new(), false);
        for (resource, health) in troubles {
            let hint = match health {
                Health::Missing => {
                    "the API server does not know this resource: is the CRD installed (warp install --print --crds-only)?"
                }
                Health::Refused(_) => {
                    "this account may not list and watch them, or is not known (apply the roles of `warp install --print`)"
                }
                Health::Starting => {
                    reading = true;
                    continue;
                }
                Health::Failing(_) | Health::Current => continue,
            };
            said.insert(format!("{resource}: {hint}"));
        }
        (said.into_iter().collect(), reading)
    }

    async fn refused(&self) -> Vec<String> {
        let mut known = self.rights.lock().await;
        if let Some((when, refused)) = &*known
            && when.elapsed() < BELIEVED
        {
            return refused.clone();
        }
        let questions = NEEDED.map(|(group, resource, verb)| async move {
            let allowed = self.may(group, resource, verb).await;
            (allowed == Some(false)).then(|| {
                format!("this account may not {verb} {resource} (apply the roles of `warp install --print`)")
            })
        });
        let refused = tokio::time::timeout(ANSWER_LIMIT, join_all(questions)).await;
        // An API server that does not answer says nothing about rights: the last answer stands.
        if let Ok(refused) = refused {
            let refused = refused.into_iter().flatten().collect();
            *known = Some((Instant::now(), refused));
        }
        known
            .as_ref()
            .map(|(_, refused)| refused.clone())
            .unwrap_or_default()
    }

    /// Whether this account may; `None` where it cannot be asked.
    async fn may(&self, group: &str, resource: &str, verb: &str) -> Option<bool> {
        let (resource, subresource) = match resource.split_once('/') {
            Some((resource, part)) => (resource, Some(part.to_owned())),
            None => (resource, None),
        };
        let question = SelfSubjectAccessReview {
            spec: SelfSubjectAccessReviewSpec {
                resource_attributes: Some(ResourceAttributes {
                    group: Some(group.to_owned()),
                    resource: Some(resource.to_owned()),
                    subresource,
                    verb: Some(verb.to_owned()),
                    namespace: self
                        .namespace
                        .clone()
                        .filter(|_| !EVERYWHERE.contains(&resource)),
                    ..ResourceAttributes::default()
                }),
                ..SelfSubjectAccessReviewSpec::default()
            },
            ..SelfSubjectAccessReview::default()
        };
        let api: Api<SelfSubjectAccessReview> = Api::all(self.client.clone());
        let answer = api.create(&PostParams::default(), &question).await.ok()?;
        answer.status.map(|status| status.allowed)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use serde_json::Value;

    use super::NEEDED;

    #[test]
    fn what_is_asked_about_is_what_the_shipped_role_grants() {
        let file = include_str!("../../../deploy/rbac/cluster/role.yaml");
        let role = file.split("\n---\n").next().unwrap();
        let role: Value = serde_saphyr::from_str(role).unwrap();
        let mut granted = BTreeSet::new();
        let texts = |value: &Value| -> Vec<String> {
            let list = value.as_array().into_iter().flatten();
            list.filter_map(Value::as_str).map(str::to_owned).collect()
        };
        for rule in role["rules"].as_array().unwrap() {
            for group in texts(&rule["apiGroups"]) {
                for resource in texts(&rule["resources"]) {
                    for verb in texts(&rule["verbs"]) {
                        granted.insert((group.clone(), resource.clone(), verb));
                    }
                }
            }
        }
        granted.retain(|(_, _, verb)| !matches!(verb.as_str(), "get" | "list"));
        // A kind on the runtime stops alone and says so itself.
        let others = [
            "tenants",
            "inferenceservices",
            "deployments",
            "statefulsets",
            "services",
            "gpurequests",
            "cloudproviders",
            "modelcaches",
            "priorityclasses",
            "jobsets",
            "pytorchjobs",
            "mpijobs",
            "rayjobs",
        ];
        granted.retain(|(_, resource, _)| !others.iter().any(|kind| resource.starts_with(kind)));
        // What those kinds do with objects that workloads only read, and what gangs and queued Jobs alone need: an
        // operator that may not let their pods go still serves everything else.
        let theirs = [
            ("nodes", "delete"),
            ("jobs/status", "patch"),
            ("persistentvolumeclaims", "create"),
            ("pods", "patch"),
            ("secrets", "create"),
        ];
        granted.retain(|(_, resource, verb)| !theirs.contains(&(resource, verb)));
        let asked = NEEDED.map(|(group, resource, verb)| {
            (group.to_owned(), resource.to_owned(), verb.to_owned())
        });
        assert_eq!(granted, BTreeSet::from(asked));
    }
}
