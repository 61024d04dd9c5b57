//! ReplicaSets: keeps as many pods as are wanted, adopts what matches and lets go of what does not.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::apps::v1::{ReplicaSet, ReplicaSetCondition, ReplicaSetStatus};
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

use super::ownership::{claim, controller_of, controller_reference, orphans_of, selects};
use super::{BY_OWNER, PODS_BY_OWNER, Shared, pods, wired};
use warp_runtime::cache::Key;
use warp_runtime::driver::{Controller, SyncError};
use warp_runtime::object_memory::ObjectMemory;
use warp_runtime::plan::{Outcome, Plan, Removal, about};

#[cfg(test)]
mod tests;

const PER_PASS: usize = 500;
const FAILURE: &str = "ReplicaFailure";
/// Pods change in crowds: one look a moment later sees them all.
const GATHER: Duration = Duration::from_millis(20);

#[derive(Debug)]
pub(crate) struct ReplicaSets {
    shared: Shared,
    /// Why pods could last not be created or deleted.
    failures: ObjectMemory<ReplicaSet, Failure>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Failure {
    reason: &'static str,
    message: String,
}

impl ReplicaSets {
    pub(crate) fn start(shared: &Shared) {
        let queue = wired(
            shared,
            Self {
                shared: shared.clone(),
                failures: ObjectMemory::of(&shared.caches.replica_sets),
            },
        );
        shared
            .caches
            .replica_sets
            .on_key(&queue, |set| Some(Key::of(set)));
        let sets = shared.caches.replica_sets.clone();
        shared.caches.pods.listen(move |old, new| {
            let set_of = |pod: &Pod| {
                let owner =
                    controller_of(&pod.metadata).filter(|owner| owner.kind == "ReplicaSet")?;
                Some(Key::new(pod.metadata.namespace.as_deref()?, &owner.name))
            };
            let (before, after) = (old.and_then(&set_of), new.and_then(set_of));
            if before != after
                && let Some(before) = before
            {
                queue.add(before);
            }
            match (after, new) {
                (Some(after), _) => queue.add_after(after, GATHER),
                (None, Some(pod))
                    if controller_of(&pod.metadata).is_none() && pod.metadata.labels.is_some() =>
                {
                    for set in
                        sets.in_namespace(pod.metadata.namespace.as_deref().unwrap_or_default())
                    {
                        let selector = set.spec.as_ref().map(|spec| &spec.selector);
                        if selector
                            .is_some_and(|selector| selects(selector, pod.metadata.labels.as_ref()))
                        {
                            queue.add(Key::of(&*set));
                        }
                    }
                }
                _ => {}
            }
        });
    }

    /// How many pods of the sets of the same Deployment stand on each node: fuller nodes lose pods first.
    fn crowding(&self, set: &ReplicaSet) -> BTreeMap<String, usize> {
        let caches = &self.shared.caches;
        let related = match controller_of(&set.metadata) {
            Some(owner) => caches.replica_sets.by(BY_OWNER, &owner.uid),
            None => caches.replica_sets.get(&Key::of(set)).into_iter().collect(),
        };
        let mut crowding = BTreeMap::new();
        for set in related {
            for pod in caches.pods.by(
                PODS_BY_OWNER,
                set.metadata.uid.as_deref().unwrap_or_default(),
            ) {
                if let Some(node) = pods::node(&pod).filter(|_| pods::is_active(&pod)) {
                    *crowding.entry(node.to_owned()).or_default() += 1;
                }
            }
        }
        crowding
    }
}

impl Controller for ReplicaSets {
    type Key = Key;
    const NAME: &'static str = "replicaset-controller";

    async fn sync(&self, key: &Key) -> Result<Option<Timestamp>, SyncError> {
        let caches = &self.shared.caches;
        let Some(set) = caches.replica_sets.get(key) else {
            return Ok(None);
        };
        let uid = set.metadata.uid.clone().unwrap_or_default();
        let mut candidates = caches.pods.by(PODS_BY_OWNER, &uid);
        candidates.extend(caches.pods.by(PODS_BY_OWNER, &orphans_of(&key.namespace)));
        let failure = self.failures.forget(&set);
        let seen = Seen {
            set: &set,
            candidates,
            failure: failure.as_ref(),
            crowding: &|| self.crowding(&set),
        };
        let outcome = self
            .shared
            .execute(Self::NAME, plan(&seen, self.shared.now()))
            .await;
        if let Err(SyncError::Execute(error)) = &outcome {
            let reason = match error.verb {
                "create" => Some("FailedCreate"),
                "delete" => Some("FailedDelete"),
                _ => None,
            };
            if let Some(reason) = reason {
                let message = error.reason();
                self.failures.set(&set, Failure { reason, message });
            }
        }
        outcome
    }
}

struct Seen<'a> {
    set: &'a ReplicaSet,
    candidates: Vec<Arc<Pod>>,
    /// Why the last pass could not finish.
    failure: Option<&'a Failure>,
    /// Asked only when pods must go.
    crowding: &'a (dyn Fn() -> BTreeMap<String, usize> + Sync),
}

fn plan(seen: &Seen<'_>, now: Timestamp) -> Plan {
    let set = seen.set;
    let mut plan = Plan::default();
    let Some(spec) = &set.spec else {
        return plan;
    };
    let mine = claim::<ReplicaSet, Pod, _>(
        set,
        &spec.selector,
        seen.candidates.clone(),
        &mut plan,
        None,
    )
    .mine;
    let active: Vec<_> = mine
        .iter()
        .filter(|pod| pods::is_active(pod))
        .cloned()
        .collect();
    let terminating = mine
        .iter()
        .filter(|pod| pods::is_terminating(pod) && !pods::is_finished(pod))
        .count();
    let status = status(set, &active, terminating, seen.failure, now, &mut plan);
    plan.status(set, set.status.as_ref(), &status);
    if set.metadata.deletion_timestamp.is_none() {
        manage(seen, &active, now, &mut plan);
    }
    plan
}

fn manage(seen: &Seen<'_>, active: &[Arc<Pod>], now: Timestamp, plan: &mut Plan) {
    let set = seen.set;
    let wanted = usize::try_from(
        set.spec
            .as_ref()
            .and_then(|spec| spec.replicas)
            .unwrap_or(1),
    )
    .unwrap_or(0);
    let name = set.metadata.name.as_deref().unwrap_or_default();
    if active.len() < wanted {
        let template = set
            .spec
            .as_ref()
            .and_then(|spec| spec.template.clone())
            .unwrap_or_default();
        let namespace = set.metadata.namespace.as_deref().unwrap_or_default();
        let pod = pods::from_template(&template, namespace, name, controller_reference(set));
        for _ in 0..(wanted - active.len()).min(PER_PASS) {
            let outcome = Outcome {
                about: about(set),
                done: ("SuccessfulCreate", "Created pod: {}".into()),
                failed: ("FailedCreate", "Error creating: {}".into()),
            };
            plan.create(&pod, Some(outcome));
        }
    } else if active.len() > wanted {
        let surplus = active.len() - wanted;
        for pod in surplus_pods(seen, active, surplus, now) {
            let outcome = Outcome {
                about: about(set),
                done: ("SuccessfulDelete", "Deleted pod: {}".into()),
                failed: ("FailedDelete", "Error deleting: {}".into()),
            };
            plan.delete(&*pod, Removal::default(), Some(outcome));
        }
    }
}

fn surplus_pods(
    seen: &Seen<'_>,
    active: &[Arc<Pod>],
    surplus: usize,
    now: Timestamp,
) -> Vec<Arc<Pod>> {
    if surplus == active.len() {
        return active.to_vec();
    }
    let crowding = (seen.crowding)();
    let mut ranked: Vec<_> = active
        .iter()
        .map(|pod| {
            let doubled = pods::node(pod)
                .and_then(|node| crowding.get(node))
                .copied()
                .unwrap_or(0);
            (pods::deletion_rank(pod, doubled, now), pod.clone())
        })
        .collect();
    ranked.sort_by(|one, other| one.0.cmp(&other.0));
    ranked
        .into_iter()
        .take(surplus.min(PER_PASS))
        .map(|(_, pod)| pod)
        .collect()
}

fn count(length: usize) -> i32 {
    i32::try_from(length).unwrap_or(i32::MAX)
}

fn status(
    set: &ReplicaSet,
    active: &[Arc<Pod>],
    terminating: usize,
    failure: Option<&Failure>,
    now: Timestamp,
    plan: &mut Plan,
) -> ReplicaSetStatus {
    let spec = set.spec.as_ref();
    let template = spec.and_then(|spec| spec.template.as_ref()?.metadata.as_ref()?.labels.as_ref());
    let labelled = active.iter().filter(|pod| {
        template.into_iter().flatten().all(|(name, value)| {
            pod.metadata
                .labels
                .as_ref()
                .and_then(|labels| labels.get(name))
                == Some(value)
        })
    });
    let seconds = spec.and_then(|spec| spec.min_ready_seconds).unwrap_or(0);
    let mut available = 0;
    for pod in active {
        match pods::is_available(pod, seconds, now) {
            Ok(()) => available += 1,
            Err(Some(at)) => plan.look_again(at),
            Err(None) => {}
        }
    }
    let some = |number: usize| (number > 0).then(|| count(number));
    let old = set.status.clone().unwrap_or_default();
    ReplicaSetStatus {
        replicas: count(active.len()),
        fully_labeled_replicas: some(labelled.count()),
        ready_replicas: some(active.iter().filter(|pod| pods::is_ready(pod)).count()),
        available_replicas: some(available),
        terminating_replicas: Some(count(terminating)),
        observed_generation: set.metadata.generation,
        conditions: conditions(old.conditions, failure, now),
    }
}

/// The failure of the last pass is a condition until a pass succeeds.
fn conditions(
    old: Option<Vec<ReplicaSetCondition>>,
    failure: Option<&Failure>,
    now: Timestamp,
) -> Option<Vec<ReplicaSetCondition>> {
    let mut conditions = old.unwrap_or_default();
    let known = conditions
        .iter()
        .find(|condition| condition.type_ == FAILURE)
        .cloned();
    conditions.retain(|condition| condition.type_ != FAILURE);
    if let Some(failure) = failure {
        conditions.push(known.unwrap_or_else(|| ReplicaSetCondition {
            type_: FAILURE.to_owned(),
            status: "True".to_owned(),
            reason: Some(failure.reason.to_owned()),
            message: Some(failure.message.clone()),
            last_transition_time: Some(Time(now)),
        }));
    }
    (!conditions.is_empty()).then_some(conditions)
}
