//! Empties a namespace that is being deleted: pods first, then everything else, then the namespace's own finalizer.
//! What remains, and why, is said in the namespace's conditions.

use std::collections::BTreeMap;

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::core::v1::{Namespace, NamespaceCondition, NamespaceStatus};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::api::{Api, DeleteParams, ListParams, ObjectList, PartialObjectMeta};
use kube::core::Request;
use kube::discovery::verbs;
use serde_json::Value;

use super::served_kinds::{Served, served};
use super::{Shared, wired};
use warp_runtime::cache::Key;
use warp_runtime::driver::{Controller, SyncError, later};
use warp_runtime::plan::{Action, Kind, Plan, as_json};

const FINALIZER: &str = "kubernetes";
/// How long to wait for others' finalizers before looking again.
const FINALIZERS_WAIT: SignedDuration = SignedDuration::from_secs(5);
/// How long to wait for news of a namespace that is being deleted to some and not to others.
const NEWS_WAIT: SignedDuration = SignedDuration::from_secs(15);

#[derive(Debug)]
pub(crate) struct Namespaces(Shared);

impl Namespaces {
    pub(crate) fn start(shared: &Shared) {
        let queue = wired(shared, Self(shared.clone()));
        let ending = |namespace: &Namespace| namespace.metadata.deletion_timestamp.is_some();
        shared.caches.namespaces.on_key(&queue, move |namespace| {
            ending(namespace).then(|| Key::of(namespace))
        });
        // The last pod's end is what most deletions wait for: no need to poll for it.
        let namespaces = shared.caches.namespaces.clone();
        shared.caches.pods.listen(move |old, new| {
            let (Some(pod), None) = (old, new) else {
                return;
            };
            let key = Key::new("", pod.metadata.namespace.as_deref().unwrap_or_default());
            if namespaces
                .get(&key)
                .is_some_and(|namespace| ending(&namespace))
            {
                queue.add(key);
            }
        });
    }

    async fn empty(&self, namespace: &str) -> Content {
        let mut content = Content::default();
        let kinds = match served(self.0.client()).await {
            Ok(kinds) => kinds,
            Err(error) => {
                content.discovery_error = Some(error.to_string());
                return content;
            }
        };
        let (pods, others): (Vec<_>, Vec<_>) = kinds
            .into_iter()
            .filter(|kind| kind.namespaced && kind.can(verbs::DELETE) && kind.can(verbs::LIST))
            .partition(|kind| kind.group.is_empty() && kind.kind.plural == "pods");
        for kind in &pods {
            self.empty_kind(namespace, kind, &mut content).await;
        }
        // Pods may still use the secrets, volumes and policies around them.
        if !content.remaining.is_empty() || !content.errors.is_empty() {
            return content;
        }
        for kind in &others {
            self.empty_kind(namespace, kind, &mut content).await;
        }
        content
    }

    async fn empty_kind(&self, namespace: &str, served: &Served, content: &mut Content) {
        match self.delete_all(namespace, served).await {
            Ok(left) => content.count(served, &left),
            // A kind that vanished since discovery has no objects.
            Err(kube::Error::Api(status)) if status.is_not_found() || status.code == 405 => {}
            Err(error) => content
                .errors
                .push(format!("{}: {error}", served.kind.plural)),
        }
    }

    async fn delete_all(
        &self,
        namespace: &str,
        served: &Served,
    ) -> Result<Vec<PartialObjectMeta>, kube::Error> {
        let client = self.0.client();
        let request = Request::new(served.kind.path(Some(namespace)));
        let list = || {
            request
                .list_metadata(&ListParams::default())
                .map_err(kube::Error::BuildRequest)
        };
        let before: ObjectList<PartialObjectMeta> = client.request(list()?).await?;
        if before
            .items
            .iter()
            .all(|object| object.metadata.deletion_timestamp.is_some())
        {
            return Ok(before.items);
        }
        let params = DeleteParams::background();
        if served.can(verbs::DELETE_COLLECTION) {
            let request = request
                .delete_collection(&params, &ListParams::default())
                .map_err(kube::Error::BuildRequest)?;
            client.request::<Value>(request).await?;
        } else {
            for object in &before.items {
                let name = object.metadata.name.as_deref().unwrap_or_default();
                let request = request
                    .delete(name, &params)
                    .map_err(kube::Error::BuildRequest)?;
                match client.request::<Value>(request).await {
                    Err(kube::Error::Api(status)) if status.is_not_found() => {}
                    deleted => drop(deleted?),
                }
            }
        }
        let after: ObjectList<PartialObjectMeta> = client.request(list()?).await?;
        Ok(after.items)
    }
}

impl Controller for Namespaces {
    type Key = Key;
    const NAME: &'static str = "namespace-controller";
    const WORKERS: usize = 10;

    async fn sync(&self, key: &Key) -> Result<Option<Timestamp>, SyncError> {
        let ending = |namespace: &Namespace| namespace.metadata.deletion_timestamp.is_some();
        if !self
            .0
            .caches
            .namespaces
            .get(key)
            .is_some_and(|namespace| ending(&namespace))
        {
            return Ok(None);
        }
        // A pass asks for every kind there is: not for a namespace that is gone and was not heard of.
        let api: Api<Namespace> = Api::all(self.0.client().clone());
        let newest = api.get_opt(&key.name).await;
        let newest = newest.map_err(|source| SyncError::Read {
            what: format!("namespace {}", key.name),
            source: Box::new(source),
        })?;
        let Some(namespace) = newest.filter(ending) else {
            // One of the two is behind. When the cache hears that it is gone, nobody looks any more.
            return Ok(Some(later(self.0.now(), NEWS_WAIT)));
        };
        let finalizers = namespace
            .spec
            .as_ref()
            .and_then(|spec| spec.finalizers.as_deref())
            .unwrap_or_default();
        if !finalizers.iter().any(|name| name == FINALIZER) {
            return Ok(None);
        }
        let content = self.empty(&key.name).await;
        self.0
            .execute(Self::NAME, plan(&namespace, &content, self.0.now()))
            .await
    }
}

/// What a pass over a namespace found and could not do.
#[derive(Debug, Default)]
struct Content {
    /// `pods.` → how many are left.
    remaining: BTreeMap<String, usize>,
    finalizers: BTreeMap<String, usize>,
    /// The longest time the objects left may still take by their own grace period.
    grace_seconds: i64,
    errors: Vec<String>,
    discovery_error: Option<String>,
}

impl Content {
    fn count(&mut self, served: &Served, left: &[PartialObjectMeta]) {
        if left.is_empty() {
            return;
        }
        *self
            .remaining
            .entry(format!("{}.{}", served.kind.plural, served.group))
            .or_default() += left.len();
        for object in left {
            for finalizer in object.metadata.finalizers.iter().flatten() {
                *self.finalizers.entry(finalizer.clone()).or_default() += 1;
            }
            self.grace_seconds = self.grace_seconds.max(
                object
                    .metadata
                    .deletion_grace_period_seconds
                    .unwrap_or_default(),
            );
        }
    }

    fn is_empty(&self) -> bool {
        self.remaining.is_empty() && self.errors.is_empty() && self.discovery_error.is_none()
    }

    fn conditions(&self) -> [(&'static str, bool, &'static str, String); 5] {
        let discovery = match &self.discovery_error {
            None => (
                false,
                "ResourcesDiscovered",
                "All resources successfully discovered".to_owned(),
            ),
            Some(error) => (
                true,
                "DiscoveryFailed",
                format!("Discovery failed for some groups, {error}"),
            ),
        };
        let errors = if self.errors.is_empty() {
            let text = "All content successfully deleted, may be waiting on finalization";
            (false, "ContentDeleted", text.to_owned())
        } else {
            let text = self.errors.join(", ");
            (
                true,
                "ContentDeletionFailed",
                format!(
                    "Failed to delete all resource types, {} remaining: {text}",
                    self.errors.len()
                ),
            )
        };
        let listed = |map: &BTreeMap<String, usize>, verb: &str| {
            let each: Vec<_> = map
                .iter()
                .map(|(name, count)| format!("{name} {verb} {count} resource instances"))
                .collect();
            each.join(", ")
        };
        let remaining = if self.remaining.is_empty() {
            (
                false,
                "ContentRemoved",
                "All content successfully removed".to_owned(),
            )
        } else {
            (
                true,
                "SomeResourcesRemain",
                format!(
                    "Some resources are remaining: {}",
                    listed(&self.remaining, "has")
                ),
            )
        };
        let finalizers = if self.finalizers.is_empty() {
            (
                false,
                "ContentHasNoFinalizers",
                "All content-preserving finalizers finished".to_owned(),
            )
        } else {
            let text = listed(&self.finalizers, "in");
            (
                true,
                "SomeFinalizersRemain",
                format!("Some content in the namespace has finalizers remaining: {text}"),
            )
        };
        [
            (
                "NamespaceDeletionDiscoveryFailure",
                discovery.0,
                discovery.1,
                discovery.2,
            ),
            (
                "NamespaceDeletionGroupVersionParsingFailure",
                false,
                "ParsedGroupVersions",
                "All legacy kube types successfully parsed".to_owned(),
            ),
            (
                "NamespaceDeletionContentFailure",
                errors.0,
                errors.1,
                errors.2,
            ),
            (
                "NamespaceContentRemaining",
                remaining.0,
                remaining.1,
                remaining.2,
            ),
            (
                "NamespaceFinalizersRemaining",
                finalizers.0,
                finalizers.1,
                finalizers.2,
            ),
        ]
    }
}

fn plan(namespace: &Namespace, content: &Content, now: Timestamp) -> Plan {
    let mut plan = Plan::default();
    let old = namespace.status.clone().unwrap_or_default();
    let mut conditions = old.conditions.clone().unwrap_or_default();
    for (type_, holds, reason, message) in content.conditions() {
        let status = if holds { "True" } else { "False" };
        let known = conditions
            .iter_mut()
            .find(|condition| condition.type_ == type_);
        let fresh = |transition: Option<Time>| NamespaceCondition {
            type_: type_.to_owned(),
            status: status.to_owned(),
            reason: Some(reason.to_owned()),
            message: Some(message.clone()),
            last_transition_time: transition,
        };
        match known {
            Some(known) if known.status == status => {
                *known = fresh(known.last_transition_time.clone());
            }
            Some(known) => *known = fresh(Some(Time(now))),
            None => conditions.push(fresh(Some(Time(now)))),
        }
    }
    let new = NamespaceStatus {
        phase: Some("Terminating".to_owned()),
        conditions: Some(conditions),
    };
    if content.is_empty() {
        let mut object = as_json(namespace);
        let kept = namespace
            .spec
            .iter()
            .flat_map(|spec| spec.finalizers.iter().flatten())
            .filter(|name| *name != FINALIZER);
        object["spec"]["finalizers"] = kept.cloned().collect::<Vec<_>>().into();
        plan.push(Action::Sub {
            kind: Kind::of::<Namespace>(),
            key: Key::of(namespace),
            sub: "finalize",
            put: true,
            object,
        });
        return plan;
    }
    plan.status(namespace, Some(&old), &new);
    let wait = if content.errors.is_empty()
        && content.discovery_error.is_none()
        && content.finalizers.is_empty()
    {
        SignedDuration::from_secs(content.grace_seconds / 2 + 1)
    } else {
        FINALIZERS_WAIT
    };
    plan.look_again(later(now, wait));
    plan
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::core::v1::NamespaceSpec;
    use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;

    use super::*;

    fn ending() -> Namespace {
        Namespace {
            metadata: ObjectMeta {
                name: Some("n".to_owned()),
                ..ObjectMeta::default()
            },
            spec: Some(NamespaceSpec {
                finalizers: Some(vec!["kubernetes".to_owned(), "mine.dev/x".to_owned()]),
            }),
            status: None,
        }
    }

    #[test]
    fn an_empty_namespace_loses_only_its_own_finalizer() {
        let plan = plan(&ending(), &Content::default(), Timestamp::UNIX_EPOCH);
        let [
            Action::Sub {
                object,
                sub: "finalize",
                ..
            },
        ] = plan.actions.as_slice()
        else {
            panic!("{plan:?}")
        };
        assert_eq!(
            object["spec"]["finalizers"],
            serde_json::json!(["mine.dev/x"])
        );
    }

    #[test]
    fn what_remains_is_said_in_conditions_and_a_repeat_writes_nothing() {
        let content = Content {
            remaining: [("pods.".to_owned(), 1)].into(),
            finalizers: [("e2e.example/hold".to_owned(), 1)].into(),
            ..Content::default()
        };
        let first = plan(&ending(), &content, Timestamp::UNIX_EPOCH);
        let [Action::Patch { patch, .. }] = first.actions.as_slice() else {
            panic!("{first:?}")
        };
        let status: NamespaceStatus = serde_json::from_value(patch["status"].clone()).unwrap();
        let texts: Vec<_> = status
            .conditions
            .iter()
            .flatten()
            .filter_map(|condition| condition.message.clone())
            .collect();
        assert!(
            texts.contains(
                &"Some resources are remaining: pods. has 1 resource instances".to_owned()
            ),
            "{texts:?}"
        );
        let again = Namespace {
            status: Some(status),
            ..ending()
        };
        let second = plan(
            &again,
            &content,
            Timestamp::UNIX_EPOCH + SignedDuration::from_secs(9),
        );
        assert!(
            second.actions.is_empty() && second.again.is_some(),
            "{second:?}"
        );
    }
}
