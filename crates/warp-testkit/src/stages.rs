//! KWOK's configuration: how simulated nodes become ready and how simulated pods live and fail.
//!
//! Owns: one KWOK `Stage` per transition, chosen by [`crate::behaviour`]. KWOK ships stages for
//! the happy path only, so all of them are written here. Must not start anything.

use serde_json::{Value, json};

use crate::behaviour::{self, Kind};

/// The text of KWOK's `--config` file: JSON documents, which are YAML too.
pub(crate) fn config() -> String {
    let mut stages = vec![node_ready(), pod_running(), pod_succeeds()];
    stages.extend(failures());
    stages.extend(waiting());
    stages.extend(termination());
    let documents: Vec<String> = stages
        .iter()
        .map(|stage| {
            format!(
                "{stage:#}
"
            )
        })
        .collect();
    documents.join(
        "---
",
    )
}

/// A jq expression for one setting of a pod: the annotation, else the variable of any container.
fn setting(annotation: &str) -> String {
    let variable = behaviour::variable(annotation);
    format!(
        "(.metadata.annotations[\"{annotation}\"] // \
         ([.spec.containers[].env[]? | select(.name == \"{variable}\") | .value] | first))"
    )
}

fn is(key: &str, values: &[&str]) -> Value {
    json!({"key": key, "operator": "In", "values": values})
}

fn is_not(key: &str, values: &[&str]) -> Value {
    json!({"key": key, "operator": "NotIn", "values": values})
}

fn behaves(kinds: &[Kind]) -> Value {
    let names: Vec<&str> = kinds.iter().map(|kind| kind.name()).collect();
    is(&setting(behaviour::BEHAVIOUR), &names)
}

fn alive() -> Value {
    json!({"key": ".metadata.deletionTimestamp", "operator": "DoesNotExist"})
}

fn dying() -> Value {
    json!({"key": ".metadata.deletionTimestamp", "operator": "Exists"})
}

/// Not deleted for good yet. As text: KWOK compares no numbers.
fn with_grace() -> Value {
    is_not("(.metadata.deletionGracePeriodSeconds | tostring)", &["0"])
}

fn phase(phases: &[&str]) -> Value {
    is(".status.phase", phases)
}

fn stage(kind: &str, name: &str, when: &[Value], delay: &Value, next: &Value) -> Value {
    json!({
        "apiVersion": "kwok.x-k8s.io/v1alpha1",
        "kind": "Stage",
        "metadata": {"name": name},
        "spec": {
            "resourceRef": {"apiGroup": "v1", "kind": kind},
            "selector": {"matchExpressions": when},
            "delay": delay,
            "next": next,
        },
    })
}

fn after(milliseconds: u32, annotation: &str) -> Value {
    json!({
        "durationMilliseconds": milliseconds,
        "durationFrom": {"jq": {"expression": setting(annotation)}},
    })
}

fn node_ready() -> Value {
    let template = r"
conditions:
{{ range NodeConditions }}
- type: {{ .type | Quote }}
  status: {{ .status | Quote }}
  reason: {{ .reason | Quote }}
  message: {{ .message | Quote }}
  lastHeartbeatTime: {{ Now | Quote }}
  lastTransitionTime: {{ Now | Quote }}
{{ end }}
addresses:
- {type: InternalIP, address: {{ NodeIP | Quote }}}
- {type: Hostname, address: {{ NodeName | Quote }}}
";
    let not_ready = is_not(
        ".status.conditions.[] | select( .type == \"Ready\" ) | .status",
        &["True"],
    );
    stage(
        "Node",
        "node-ready",
        &[not_ready],
        &json!({}),
        &json!({"statusTemplate": template}),
    )
}

fn pod_running() -> Value {
    let template = r#"
{{ $now := Now }}
phase: Running
startTime: {{ $now | Quote }}
conditions:
- {type: Initialized, status: "True", lastTransitionTime: {{ $now | Quote }}}
- {type: ContainersReady, status: "True", lastTransitionTime: {{ $now | Quote }}}
- {type: Ready, status: "True", lastTransitionTime: {{ $now | Quote }}}
containerStatuses:
{{ range .spec.containers }}
- name: {{ .name | Quote }}
  image: {{ .image | Quote }}
  imageID: ""
  ready: true
  started: true
  restartCount: 0
  state: {running: {startedAt: {{ $now | Quote }}}}
{{ end }}
initContainerStatuses:
{{ range .spec.initContainers }}
- name: {{ .name | Quote }}
  image: {{ .image | Quote }}
  imageID: ""
  ready: true
  restartCount: 0
  {{ if eq .restartPolicy "Always" }}
  started: true
  state: {running: {startedAt: {{ $now | Quote }}}}
  {{ else }}
  state: {terminated: {exitCode: 0, reason: Completed, startedAt: {{ $now | Quote }}, finishedAt: {{ $now | Quote }}}}
  {{ end }}
{{ end }}
"#;
    let held = [
        Kind::Stuck,
        Kind::PullError,
        Kind::InvalidImage,
        Kind::ConfigError,
    ]
    .map(Kind::name);
    stage(
        "Pod",
        "pod-running",
        &[
            alive(),
            phase(&["Pending"]),
            is_not(&setting(behaviour::BEHAVIOUR), &held),
        ],
        &after(0, behaviour::START_AFTER),
        &json!({"statusTemplate": template}),
    )
}

/// The status of a pod all of whose containers have ended the same way; `code` is the part of the
/// template that sets `$code`.
fn ended(phase: &str, code: &str, reason: &str, extra: &str) -> String {
    let template = r#"
{{ $now := Now }}
{{ $root := . }}
@CODE@
phase: @PHASE@
@EXTRA@
conditions:
- {type: ContainersReady, status: "False", lastTransitionTime: {{ $now | Quote }}}
- {type: Ready, status: "False", lastTransitionTime: {{ $now | Quote }}}
containerStatuses:
{{ range .spec.containers }}
- name: {{ .name | Quote }}
  image: {{ .image | Quote }}
  imageID: ""
  ready: false
  started: false
  restartCount: 0
  state:
    terminated:
      exitCode: {{ $code }}
      reason: @REASON@
      startedAt: {{ or $root.status.startTime $now | Quote }}
      finishedAt: {{ $now | Quote }}
{{ end }}
"#;
    template
        .replace("@PHASE@", phase)
        .replace("@EXTRA@", extra)
        .replace("@REASON@", reason)
        .replace("@CODE@", code)
}

/// The exit code is what the stage says.
fn fixed_code(code: u8) -> String {
    format!("{{{{ $code := {code} }}}}")
}

/// The exit code is what the pod says, 1 if it says nothing.
fn asked_code() -> String {
    let template = r#"{{ $code := "1" }}
{{ range .spec.containers }}{{ range .env }}
{{ if eq .name "@VARIABLE@" }}{{ $code = .value }}{{ end }}
{{ end }}{{ end }}
{{ with index (or .metadata.annotations dict) "@ANNOTATION@" }}{{ $code = . }}{{ end }}"#;
    template
        .replace("@VARIABLE@", &behaviour::variable(behaviour::EXIT_CODE))
        .replace("@ANNOTATION@", behaviour::EXIT_CODE)
}

fn pod_succeeds() -> Value {
    let held = [Kind::Hang, Kind::Exit, Kind::OutOfMemory, Kind::Evicted].map(Kind::name);
    stage(
        "Pod",
        "pod-succeeds",
        &[
            alive(),
            phase(&["Running"]),
            is(".metadata.ownerReferences.[].kind", &["Job"]),
            is_not(&setting(behaviour::BEHAVIOUR), &held),
        ],
        &after(500, behaviour::RUN_FOR),
        &json!({"statusTemplate": ended("Succeeded", &fixed_code(0), "Completed", "")}),
    )
}

fn failures() -> Vec<Value> {
    let evicted = r#"reason: Evicted
message: "The node was low on resource: ephemeral-storage."
"#;
    [
        (Kind::Exit, ended("Failed", &asked_code(), "Error", "")),
        (
            Kind::OutOfMemory,
            ended("Failed", &fixed_code(137), "OOMKilled", ""),
        ),
        (
            Kind::Evicted,
            ended("Failed", &fixed_code(137), "Error", evicted),
        ),
    ]
    .into_iter()
    .map(|(kind, template)| {
        stage(
            "Pod",
            &format!("pod-{}", kind.name()),
            &[alive(), phase(&["Running"]), behaves(&[kind])],
            &after(500, behaviour::RUN_FOR),
            &json!({"statusTemplate": template}),
        )
    })
    .collect()
}

/// Pods that are bound and never start: the kubelet says why in the container's waiting state.
fn waiting() -> Vec<Value> {
    let blocked = |kind: Kind, name: &str, seen: Value, delay: u32, reason: &str, message: &str| {
        let template = r#"
phase: Pending
conditions:
- {type: Initialized, status: "True", lastTransitionTime: {{ Now | Quote }}}
- {type: ContainersReady, status: "False", reason: ContainersNotReady, lastTransitionTime: {{ Now | Quote }}}
- {type: Ready, status: "False", reason: ContainersNotReady, lastTransitionTime: {{ Now | Quote }}}
containerStatuses:
{{ range .spec.containers }}
- name: {{ .name | Quote }}
  image: {{ .image | Quote }}
  imageID: ""
  ready: false
  started: false
  restartCount: 0
  state: {waiting: {reason: @REASON@, message: {{ printf "@MESSAGE@" .image | Quote }}}}
{{ end }}
"#
        .replace("@REASON@", reason)
        .replace("@MESSAGE@", message);
        stage(
            "Pod",
            &format!("pod-{name}"),
            &[alive(), phase(&["Pending"]), behaves(&[kind]), seen],
            &after(delay, behaviour::START_AFTER),
            &json!({"statusTemplate": template}),
        )
    };
    let reason = ".status.containerStatuses.[]? | .state.waiting.reason";
    let fresh = || json!({"key": reason, "operator": "DoesNotExist"});
    vec![
        blocked(
            Kind::PullError,
            "pull-error",
            fresh(),
            0,
            "ErrImagePull",
            "failed to pull image %q: not found",
        ),
        blocked(
            Kind::PullError,
            "pull-back-off",
            is(reason, &["ErrImagePull"]),
            300,
            "ImagePullBackOff",
            "Back-off pulling image %q: not found",
        ),
        blocked(
            Kind::InvalidImage,
            "invalid-image",
            fresh(),
            0,
            "InvalidImageName",
            "Failed to apply default image tag %q: couldn't parse image name",
        ),
        blocked(
            Kind::ConfigError,
            "config-error",
            fresh(),
            0,
            "CreateContainerConfigError",
            "secret \\\"missing\\\" not found (image %s)",
        ),
        blocked(
            Kind::Stuck,
            "stuck",
            fresh(),
            0,
            "ContainerCreating",
            "%.0s",
        ),
    ]
}

/// As a kubelet does it: the containers end first, then the object goes.
fn termination() -> Vec<Value> {
    vec![
        stage(
            "Pod",
            "pod-stops",
            &[dying(), phase(&["Pending", "Running"])],
            &after(0, behaviour::STOP_AFTER),
            &json!({"statusTemplate": ended("Failed", &fixed_code(143), "Error", "")}),
        ),
        stage(
            "Pod",
            "pod-delete",
            // Once: KWOK deletes by name alone, and a second delete would end the next pod of a StatefulSet.
            &[dying(), phase(&["Succeeded", "Failed"]), with_grace()],
            &json!({}),
            &json!({"delete": true}),
        ),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_placeholder_survives_and_names_are_unique() {
        let text = config();
        assert!(!text.contains('@'), "{text}");
        let mut names: Vec<String> = text
            .split("---\n")
            .filter(|document| !document.trim().is_empty())
            .map(|document| {
                let stage: Value = serde_json::from_str(document).unwrap();
                stage["metadata"]["name"].as_str().unwrap().to_owned()
            })
            .collect();
        let all = names.len();
        names.sort();
        names.dedup();
        assert_eq!(names.len(), all);
    }
}
