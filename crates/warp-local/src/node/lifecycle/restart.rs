//! Whether a container that ended is started again.

use k8s_openapi::api::core::v1::{Container, ContainerRestartRule};

use super::super::facts::Exit;
use super::is_sidecar;

/// The pod's policy, overridden by the container's own policy and its rules.
pub fn restarts(pod_policy: &str, container: &Container, is_init: bool, exit: &Exit) -> bool {
    if is_init && is_sidecar(container) {
        return true;
    }
    if exit.code != 0
        && container
            .restart_policy_rules
            .iter()
            .flatten()
            .any(|rule| matches(rule, exit.code))
    {
        return true;
    }
    match container.restart_policy.as_deref().unwrap_or(pod_policy) {
        // An init container that succeeded has done its work.
        "Always" => !is_init || exit.code != 0,
        "OnFailure" => exit.code != 0,
        _ => false,
    }
}

fn matches(rule: &ContainerRestartRule, code: i32) -> bool {
    let Some(codes) = rule
        .exit_codes
        .as_ref()
        .filter(|_| rule.action == "Restart")
    else {
        return false;
    };
    let listed = codes.values.iter().flatten().any(|value| *value == code);
    match codes.operator.as_str() {
        "In" => listed,
        "NotIn" => !listed,
        _ => false,
    }
}
