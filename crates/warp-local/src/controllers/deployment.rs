//! Deployments: rolls from one ReplicaSet to the next. Decides only about sets; pods are the sets' affair.

use std::sync::Arc;

use jiff::Timestamp;
use k8s_openapi::api::apps::v1::{Deployment, ReplicaSet};
use k8s_openapi::api::core::v1::Pod;

use self::plan::{Seen, plan};
use super::ownership::{controller_of, orphans_of, selects};
use super::{BY_OWNER, PODS_BY_OWNER, Shared, pods, wired};
use warp_runtime::cache::{Cache, Key};
use warp_runtime::driver::{Controller, SyncError};
use warp_runtime::plan::Plan;

mod plan;
mod replicas;
mod revision;
mod status;
#[cfg(test)]
mod tests;

pub(super) use self::revision::hash as template_hash;

#[derive(Debug)]
pub(crate) struct Deployments(Shared);

impl Deployments {
    pub(crate) fn start(shared: &Shared) {
        let queue = wired(shared, Self(shared.clone()));
        let caches = &shared.caches;
        caches
            .deployments
            .on_key(&queue, |deployment| Some(Key::of(deployment)));
        let deployments = caches.deployments.clone();
        let set_queue = queue.clone();
        caches.replica_sets.listen(move |old, new| {
            let (before, after) = (old.and_then(deployment_of), new.and_then(deployment_of));
            if before != after
                && let Some(key) = before
            {
                set_queue.add(key);
            }
            match (after, new) {
                (Some(after), _) => set_queue.add(after),
                (None, Some(set)) if controller_of(&set.metadata).is_none() => {
                    adopters(&deployments, set).for_each(|key| set_queue.add(key));
                }
                _ => {}
            }
        });
        // Recreate waits for the last old pod to be gone.
        let sets = caches.replica_sets.clone();
        caches.pods.listen(move |old, new| {
            let (Some(pod), None) = (old, new) else {
                return;
            };
            let owner = controller_of(&pod.metadata).filter(|owner| owner.kind == "ReplicaSet");
            let set = owner.and_then(|owner| {
                sets.get(&Key::new(pod.metadata.namespace.as_deref()?, &owner.name))
            });
            set.and_then(|set| deployment_of(&set))
                .into_iter()
                .for_each(|key| queue.add(key));
        });
    }
}

fn deployment_of(set: &ReplicaSet) -> Option<Key> {
    let owner = controller_of(&set.metadata).filter(|owner| owner.kind == "Deployment")?;
    Some(Key::new(set.metadata.namespace.as_deref()?, &owner.name))
}

fn adopters<'a>(
    deployments: &Cache<Deployment>,
    set: &'a ReplicaSet,
) -> impl Iterator<Item = Key> + use<'a> {
    let all = deployments.in_namespace(set.metadata.namespace.as_deref().unwrap_or_default());
    all.into_iter()
        .filter(|deployment| {
            let selector = deployment.spec.as_ref().map(|spec| &spec.selector);
            selector.is_some_and(|selector| selects(selector, set.metadata.labels.as_ref()))
        })
        .map(|deployment| Key::of(&*deployment))
}

impl Controller for Deployments {
    type Key = Key;
    const NAME: &'static str = "deployment-controller";

    async fn sync(&self, key: &Key) -> Result<Option<Timestamp>, SyncError> {
        let caches = &self.0.caches;
        let Some(deployment) = caches.deployments.get(key) else {
            return Ok(None);
        };
        let uid = deployment.metadata.uid.as_deref().unwrap_or_default();
        let mut candidates = caches.replica_sets.by(BY_OWNER, uid);
        candidates.extend(
            caches
                .replica_sets
                .by(BY_OWNER, &orphans_of(&key.namespace)),
        );
        let running = |set: &ReplicaSet| {
            let uid = set.metadata.uid.as_deref().unwrap_or_default();
            caches
                .pods
                .by(PODS_BY_OWNER, uid)
                .iter()
                .any(|pod: &Arc<Pod>| !pods::is_finished(pod))
        };
        let seen = Seen {
            deployment: &deployment,
            candidates,
            has_pods: &running,
        };
        let outcome = self.0.execute(Self::NAME, plan(&seen, self.0.now())).await;
        if let Err(SyncError::Execute(error)) = &outcome
            && error.verb == "create"
            && warp_runtime::execute::status_of(&error.source)
                .is_some_and(kube::core::Status::is_already_exists)
        {
            return self.0.execute(Self::NAME, collision(&deployment)).await;
        }
        outcome
    }
}

/// Another set has the name the new one would get: the next hash differs.
fn collision(deployment: &Deployment) -> Plan {
    let mut plan = Plan::default();
    let old = deployment.status.clone().unwrap_or_default();
    let mut new = old.clone();
    new.collision_count = Some(old.collision_count.unwrap_or(0) + 1);
    plan.status(deployment, Some(&old), &new);
    plan
}
