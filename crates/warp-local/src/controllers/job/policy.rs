//! Pod failure policies and success policies: what a Job's author wants a failure or a success to mean.

use std::collections::BTreeSet;

use k8s_openapi::api::batch::v1::{Job, PodFailurePolicyRule, SuccessPolicy};
use k8s_openapi::api::core::v1::{ContainerStatus, Pod};

use super::index::{self, Indexes};
use crate::controllers::pods;

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    /// Counts towards the back-off limits.
    Count,
    Ignore,
    FailIndex,
    /// Ends the whole Job, with this explanation.
    FailJob(String),
}

/// What the Job's pod failure policy says of a failed pod.
pub(super) fn verdict(job: &Job, pod: &Pod) -> Verdict {
    let rules = job
        .spec
        .as_ref()
        .and_then(|spec| spec.pod_failure_policy.as_ref())
        .map(|policy| &policy.rules);
    for (number, rule) in rules.into_iter().flatten().enumerate() {
        let Some(because) = exit_code(rule, pod).or_else(|| pod_condition(rule, pod)) else {
            continue;
        };
        return match rule.action.as_str() {
            "Ignore" => Verdict::Ignore,
            "FailIndex" => Verdict::FailIndex,
            "FailJob" => {
                Verdict::FailJob(format!("{because} matching FailJob rule at index {number}"))
            }
            _ => Verdict::Count,
        };
    }
    Verdict::Count
}

fn place(pod: &Pod) -> String {
    format!(
        "{}/{}",
        pod.metadata.namespace.as_deref().unwrap_or_default(),
        pods::name(pod)
    )
}

fn exit_code(rule: &PodFailurePolicyRule, pod: &Pod) -> Option<String> {
    let wanted = rule.on_exit_codes.as_ref()?;
    let status = pod.status.as_ref()?;
    let containers = status
        .container_statuses
        .iter()
        .flatten()
        .chain(status.init_container_statuses.iter().flatten());
    let named = |status: &&ContainerStatus| {
        wanted
            .container_name
            .as_ref()
            .is_none_or(|name| *name == status.name)
    };
    containers.filter(named).find_map(|status| {
        let code = status.state.as_ref()?.terminated.as_ref()?.exit_code;
        let listed = wanted.values.contains(&code);
        let matches = code != 0
            && if wanted.operator == "In" {
                listed
            } else {
                !listed
            };
        matches.then(|| {
            format!(
                "Container {} for pod {} failed with exit code {code}",
                status.name,
                place(pod)
            )
        })
    })
}

fn pod_condition(rule: &PodFailurePolicyRule, pod: &Pod) -> Option<String> {
    rule.on_pod_conditions.iter().flatten().find_map(|wanted| {
        let found = pods::condition(pod, &wanted.type_)?;
        let status = wanted.status.as_deref().unwrap_or("True");
        (found.status == status)
            .then(|| format!("Pod {} has condition {}", place(pod), wanted.type_))
    })
}

/// Has an index failed for good with this pod?
pub(super) fn fails_index(job: &Job, pod: &Pod) -> bool {
    let limit = job
        .spec
        .as_ref()
        .and_then(|spec| spec.backoff_limit_per_index);
    match verdict(job, pod) {
        Verdict::FailIndex => true,
        Verdict::Ignore => false,
        Verdict::Count | Verdict::FailJob(_) => {
            limit.is_some_and(|limit| index::annotation(pod, index::FAILURES).unwrap_or(0) >= limit)
        }
    }
}

/// Which rule of a success policy the succeeded indexes meet.
pub(super) fn success(
    policy: &SuccessPolicy,
    completions: i32,
    succeeded: &Indexes,
) -> Option<String> {
    policy.rules.iter().enumerate().find_map(|(number, rule)| {
        let met = match &rule.succeeded_indexes {
            Some(text) => {
                let wanted = index::parse(Some(text), completions);
                let reached = wanted
                    .intersection(succeeded)
                    .collect::<BTreeSet<_>>()
                    .len();
                let enough = rule
                    .succeeded_count
                    .map_or(wanted.len(), |count| usize::try_from(count).unwrap_or(0));
                reached >= enough
            }
            None => rule
                .succeeded_count
                .is_some_and(|count| succeeded.len() >= usize::try_from(count).unwrap_or(0)),
        };
        met.then(|| format!("Matched rules at index {number}"))
    })
}
