//! PodDisruptionBudgets: how many pods of a budget may be disrupted now. Evictions themselves are the API server's.

use std::collections::BTreeMap;
use std::sync::Arc;

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::api::policy::v1::{PodDisruptionBudget, PodDisruptionBudgetStatus};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;

use super::ownership::{controller_of, selects};
use super::{Caches, Shared, pods, wired};
use warp_runtime::cache::{Cache, Key};
use warp_runtime::driver::{Controller, SyncError};
use warp_runtime::plan::{Plan, about};

/// An eviction the API server allowed must be seen as a deletion within this time, or it did not happen.
const EVICTION_LIMIT: SignedDuration = SignedDuration::from_mins(2);

#[derive(Debug)]
pub(crate) struct Budgets(Shared);

impl Budgets {
    pub(crate) fn start(shared: &Shared) {
        let queue = wired(shared, Self(shared.clone()));
        let caches = &shared.caches;
        caches
            .budgets
            .on_key(&queue, |budget| Some(Key::of(budget)));
        let budgets = caches.budgets.clone();
        caches.pods.listen(move |old, new| {
            if budgets.is_empty() {
                return;
            }
            for pod in old.into_iter().chain(new) {
                covering(&budgets, pod).for_each(|key| queue.add(key));
            }
        });
    }
}

fn covering(budgets: &Cache<PodDisruptionBudget>, pod: &Pod) -> impl Iterator<Item = Key> {
    let all = budgets.in_namespace(pod.metadata.namespace.as_deref().unwrap_or_default());
    let labels = pod.metadata.labels.clone();
    all.into_iter()
        .filter(move |budget| covers(budget, labels.as_ref()))
        .map(|budget| Key::of(&*budget))
}

fn covers(budget: &PodDisruptionBudget, labels: Option<&super::ownership::Labels>) -> bool {
    let selector = budget.spec.as_ref().and_then(|spec| spec.selector.as_ref());
    selector.is_some_and(|selector| selects(selector, labels))
}

impl Controller for Budgets {
    type Key = Key;
    const NAME: &'static str = "controllermanager";

    async fn sync(&self, key: &Key) -> Result<Option<Timestamp>, SyncError> {
        let caches = &self.0.caches;
        let Some(budget) = caches.budgets.get(key) else {
            return Ok(None);
        };
        let covered: Vec<_> = caches
            .pods
            .in_namespace(&key.namespace)
            .into_iter()
            .filter(|pod| covers(&budget, pod.metadata.labels.as_ref()))
            .collect();
        let expected = expected(&budget, &covered, caches);
        self.0
            .execute(Self::NAME, plan(&budget, &covered, expected, self.0.now()))
            .await
    }
}

fn length(pods: &[Arc<Pod>]) -> i32 {
    i32::try_from(pods.len()).unwrap_or(i32::MAX)
}

fn share(text: &str, whole: i32) -> i32 {
    let percent: i64 = text.trim_end_matches('%').parse().unwrap_or(0);
    let scaled = percent * i64::from(whole);
    i32::try_from(scaled / 100 + i64::from(scaled % 100 > 0)).unwrap_or(i32::MAX)
}

/// (pods expected, pods that must stay healthy)
fn expected(budget: &PodDisruptionBudget, covered: &[Arc<Pod>], caches: &Caches) -> (i32, i32) {
    let Some(spec) = &budget.spec else {
        return (0, 0);
    };
    match (&spec.max_unavailable, &spec.min_available) {
        (Some(most), _) => {
            let whole = scale(covered, caches);
            let unavailable = match most {
                IntOrString::Int(number) => *number,
                IntOrString::String(text) => share(text, whole),
            };
            (whole, (whole - unavailable).max(0))
        }
        (None, Some(IntOrString::Int(least))) => (length(covered), *least),
        (None, Some(IntOrString::String(text))) => {
            let whole = scale(covered, caches);
            (whole, share(text, whole))
        }
        (None, None) => (0, 0),
    }
}

/// How many pods the controllers of these pods want together; pods without one are left out.
fn scale(covered: &[Arc<Pod>], caches: &Caches) -> i32 {
    let mut wanted: BTreeMap<String, i32> = BTreeMap::new();
    for pod in covered {
        let Some(owner) = controller_of(&pod.metadata) else {
            continue;
        };
        let namespace = pod.metadata.namespace.as_deref().unwrap_or_default();
        if let Some(set) = caches
            .stateful_sets
            .get(&Key::new(namespace, &owner.name))
            .filter(|_| owner.kind == "StatefulSet")
        {
            let size = set.spec.as_ref().and_then(|spec| spec.replicas);
            wanted.insert(owner.uid.clone(), size.unwrap_or(1));
            continue;
        }
        let set = caches
            .replica_sets
            .get(&Key::new(namespace, &owner.name))
            .filter(|_| owner.kind == "ReplicaSet");
        let Some(set) = set else { continue };
        let deployment = controller_of(&set.metadata)
            .filter(|owner| owner.kind == "Deployment")
            .and_then(|owner| caches.deployments.get(&Key::new(namespace, &owner.name)));
        match deployment {
            Some(deployment) => {
                let size = deployment
                    .spec
                    .as_ref()
                    .and_then(|spec| spec.replicas)
                    .unwrap_or(1);
                wanted.insert(deployment.metadata.uid.clone().unwrap_or_default(), size);
            }
            None => {
                wanted.insert(
                    owner.uid.clone(),
                    set.spec
                        .as_ref()
                        .and_then(|spec| spec.replicas)
                        .unwrap_or(1),
                );
            }
        }
    }
    wanted.values().sum()
}

fn plan(
    budget: &PodDisruptionBudget,
    covered: &[Arc<Pod>],
    (whole, least): (i32, i32),
    now: Timestamp,
) -> Plan {
    let mut plan = Plan::default();
    let old = budget.status.clone().unwrap_or_default();
    if covered.is_empty() {
        plan.note(
            about(budget),
            false,
            "NoPods",
            "No matching pods found".to_owned(),
        );
    }
    let mut disrupted = old.disrupted_pods.clone().unwrap_or_default();
    disrupted.retain(|name, evicted| {
        let pending = covered
            .iter()
            .any(|pod| pods::name(pod) == name && !pods::is_terminating(pod));
        let until = evicted.0 + EVICTION_LIMIT;
        if pending && until > now {
            plan.look_again(until);
        }
        pending && until > now
    });
    let healthy = covered.iter().filter(|pod| {
        !pods::is_terminating(pod)
            && pods::is_ready(pod)
            && !disrupted.contains_key(pods::name(pod))
    });
    let healthy = i32::try_from(healthy.count()).unwrap_or(i32::MAX);
    let by_number = matches!(
        budget
            .spec
            .as_ref()
            .and_then(|spec| spec.min_available.as_ref()),
        Some(IntOrString::Int(_))
    );
    if !by_number
        && covered
            .iter()
            .any(|pod| controller_of(&pod.metadata).is_none())
    {
        let message = "Some pods this budget covers have no controller, so their number is not known. Set \
                       .spec.minAvailable to a number to count them.";
        plan.note(about(budget), true, "UnmanagedPods", message.to_owned());
    }
    let allowed = if whole > 0 {
        (healthy - least).max(0)
    } else {
        0
    };
    let reason = if allowed > 0 {
        "SufficientPods"
    } else {
        "InsufficientPods"
    };
    let status = PodDisruptionBudgetStatus {
        current_healthy: healthy,
        desired_healthy: least,
        expected_pods: whole,
        disruptions_allowed: allowed,
        disrupted_pods: (!disrupted.is_empty()).then_some(disrupted),
        observed_generation: budget.metadata.generation,
        conditions: Some(condition(
            budget,
            old.conditions.clone(),
            allowed > 0,
            reason,
            now,
        )),
    };
    plan.status(budget, budget.status.as_ref(), &status);
    plan
}

fn condition(
    budget: &PodDisruptionBudget,
    known: Option<Vec<Condition>>,
    allowed: bool,
    reason: &str,
    now: Timestamp,
) -> Vec<Condition> {
    const TYPE: &str = "DisruptionAllowed";
    let status = if allowed { "True" } else { "False" };
    let mut conditions = known.unwrap_or_default();
    let before = conditions.iter().find(|condition| condition.type_ == TYPE);
    let since = before
        .filter(|before| before.status == status)
        .map_or(Time(now), |before| before.last_transition_time.clone());
    let fresh = Condition {
        type_: TYPE.to_owned(),
        status: status.to_owned(),
        reason: reason.to_owned(),
        message: String::new(),
        last_transition_time: since,
        observed_generation: budget.metadata.generation,
    };
    match conditions
        .iter_mut()
        .find(|condition| condition.type_ == TYPE)
    {
        Some(known) => *known = fresh,
        None => conditions.push(fresh),
    }
    conditions
}
