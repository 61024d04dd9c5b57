//! StatefulSets: pods with names, claims and an order that stay, and the history of what they were made from.

use std::sync::Arc;

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::apps::v1::{ControllerRevision, StatefulSet};
use k8s_openapi::api::core::v1::{PersistentVolumeClaim, Pod};
use kube::Api;

use self::plan::{Seen, plan};
use super::ownership::{controller_of, orphans_of};
use super::{BY_OWNER, PODS_BY_OWNER, Shared, wired};
use warp_runtime::cache::Key;
use warp_runtime::driver::{Controller, SyncError};
use warp_runtime::plan::Plan;

mod claims;
mod identity;
mod plan;
mod revision;
#[cfg(test)]
mod tests;

/// When to look again at a revision that is there and was not heard of yet.
const UNHEARD: SignedDuration = SignedDuration::from_secs(1);

#[derive(Debug)]
pub(crate) struct StatefulSets(Shared);

impl StatefulSets {
    pub(crate) fn start(shared: &Shared) {
        let queue = wired(shared, Self(shared.clone()));
        let caches = &shared.caches;
        caches
            .stateful_sets
            .on_key(&queue, |set| Some(Key::of(set)));
        caches
            .controller_revisions
            .on_key(&queue, |revision: &ControllerRevision| {
                let owner = controller_of(&revision.metadata)?;
                let owner = Some(owner).filter(|owner| owner.kind == "StatefulSet")?;
                let namespace = revision.metadata.namespace.as_deref()?;
                Some(Key::new(namespace, &owner.name))
            });
        // A pod concerns the set that controls it and the set whose name it bears: it may be adopted, or be in the way.
        let sets = caches.stateful_sets.clone();
        let pod_queue = queue.clone();
        caches.pods.listen(move |old, new| {
            if sets.is_empty() {
                return;
            }
            for pod in old.into_iter().chain(new) {
                let namespace = pod.metadata.namespace.as_deref().unwrap_or_default();
                let owner = controller_of(&pod.metadata);
                let owner = owner.filter(|owner| owner.kind == "StatefulSet");
                let owner = owner.map(|owner| owner.name.as_str());
                let parent = identity::parse(super::pods::name(pod)).map(|(parent, _)| parent);
                let parent = parent.filter(|parent| Some(*parent) != owner);
                for name in owner.into_iter().chain(parent) {
                    let key = Key::new(namespace, name);
                    if sets.get(&key).is_some() {
                        pod_queue.add(key);
                    }
                }
            }
        });
        // A claim that ends may be what a pod waits for.
        let sets = caches.stateful_sets.clone();
        caches.claims.listen(move |old, new| {
            let (Some(claim), None) = (old, new) else {
                return;
            };
            let namespace = claim.metadata.namespace.as_deref().unwrap_or_default();
            let name = claim.metadata.name.as_deref().unwrap_or_default();
            for set in sets.in_namespace(namespace) {
                if claims::may_be_of(&set, name) {
                    queue.add(Key::of(&*set));
                }
            }
        });
    }

    /// The name of the revision that would be made is taken. By its like, it was only not heard of yet; by something else, the
    /// next name must differ.
    async fn taken(
        &self,
        set: &StatefulSet,
        wanted: &ControllerRevision,
    ) -> Result<Option<Timestamp>, SyncError> {
        let namespace = set.metadata.namespace.as_deref().unwrap_or_default();
        let revisions: Api<ControllerRevision> =
            Api::namespaced(self.0.client().clone(), namespace);
        let name = wanted.metadata.name.as_deref().unwrap_or_default();
        let found = revisions.get_opt(name).await;
        let found = found.map_err(|source| SyncError::Read {
            what: format!("ControllerRevision {name}"),
            source: Box::new(source),
        })?;
        if found.is_none_or(|found| revision::is_same(set, &found, wanted)) {
            return Ok(Some(self.0.now() + UNHEARD));
        }
        let mut plan = Plan::default();
        let old = set.status.clone().unwrap_or_default();
        let mut new = old.clone();
        new.collision_count = Some(old.collision_count.unwrap_or(0) + 1);
        plan.status(set, Some(&old), &new);
        self.0.execute(Self::NAME, plan).await
    }
}

impl Controller for StatefulSets {
    type Key = Key;
    const NAME: &'static str = "statefulset-controller";

    async fn sync(&self, key: &Key) -> Result<Option<Timestamp>, SyncError> {
        let caches = &self.0.caches;
        let Some(set) = caches.stateful_sets.get(key) else {
            return Ok(None);
        };
        let uid = set.metadata.uid.clone().unwrap_or_default();
        let orphans = orphans_of(&key.namespace);
        let mut pods = caches.pods.by(PODS_BY_OWNER, &uid);
        pods.extend(caches.pods.by(PODS_BY_OWNER, &orphans));
        let mut revisions = caches.controller_revisions.by(BY_OWNER, &uid);
        revisions.extend(caches.controller_revisions.by(BY_OWNER, &orphans));
        let pod =
            |name: &str| -> Option<Arc<Pod>> { caches.pods.get(&Key::new(&key.namespace, name)) };
        let claim = |name: &str| -> Option<Arc<PersistentVolumeClaim>> {
            caches.claims.get(&Key::new(&key.namespace, name))
        };
        let seen = Seen {
            set: &set,
            pods,
            revisions,
            pod: &pod,
            claim: &claim,
        };
        let (plan, made) = plan(&seen, self.0.now());
        let outcome = self.0.execute(Self::NAME, plan).await;
        if let (Err(SyncError::Execute(error)), Some(made)) = (&outcome, made)
            && error.verb == "create"
            && warp_runtime::execute::status_of(&error.source)
                .is_some_and(kube::core::Status::is_already_exists)
        {
            return self.taken(&set, &made).await;
        }
        outcome
    }
}
