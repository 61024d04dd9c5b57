//! Pod security standards: a namespace may forbid pods that reach for the machine they run on.
//!
//! Owns `baseline` and `restricted` as the `pod-security.kubernetes.io/enforce` label of a namespace
//! asks for them. Pinned versions of a standard are read as the latest; `warn` and `audit` say nothing.

use serde_json::Value;

use super::{Admission, AdmissionRequest, Operation, ReadState, Refusal, Warnings};
use crate::kinds::fields::{at, flag, list, number, text};

const LABEL: &str = "pod-security.kubernetes.io/enforce";

/// Capabilities a container has anyway.
const DEFAULT_CAPABILITIES: [&str; 13] = [
    "AUDIT_WRITE",
    "CHOWN",
    "DAC_OVERRIDE",
    "FOWNER",
    "FSETID",
    "KILL",
    "MKNOD",
    "NET_BIND_SERVICE",
    "SETFCAP",
    "SETGID",
    "SETPCAP",
    "SETUID",
    "SYS_CHROOT",
];
/// Kernel settings that concern nobody but the pod.
const SAFE_SYSCTLS: [&str; 11] = [
    "kernel.shm_rmid_forced",
    "net.ipv4.ip_local_port_range",
    "net.ipv4.ip_unprivileged_port_start",
    "net.ipv4.tcp_syncookies",
    "net.ipv4.ping_group_range",
    "net.ipv4.ip_local_reserved_ports",
    "net.ipv4.tcp_keepalive_time",
    "net.ipv4.tcp_fin_timeout",
    "net.ipv4.tcp_keepalive_intvl",
    "net.ipv4.tcp_keepalive_probes",
    "net.ipv4.tcp_rmem",
];
/// Volumes that do not reach beyond the pod.
const OWN_VOLUMES: [&str; 8] = [
    "configMap",
    "csi",
    "downwardAPI",
    "emptyDir",
    "ephemeral",
    "persistentVolumeClaim",
    "projected",
    "secret",
];

pub(super) struct PodSecurity;

impl Admission for PodSecurity {
    fn admit(
        &self,
        request: &mut AdmissionRequest<'_>,
        state: &dyn ReadState,
    ) -> Result<Warnings, Refusal> {
        if !request.is(Operation::Create, "pods") {
            return Ok(Warnings::new());
        }
        let Some(namespace) = state.get("namespaces", None, request.namespace.unwrap_or_default())
        else {
            return Ok(Warnings::new());
        };
        let labels = at(&namespace, "metadata.labels");
        let level = labels.and_then(|labels| labels.get(LABEL)?.as_str());
        let (name, restricted) = match level {
            None | Some("privileged") => return Ok(Warnings::new()),
            Some("baseline") => ("baseline", false),
            // A level nobody knows is taken for the strictest.
            Some(_) => ("restricted", true),
        };
        let broken = violations(request.object, restricted);
        if broken.is_empty() {
            return Ok(Warnings::new());
        }
        Err(Refusal::forbidden(format!(
            "violates PodSecurity \"{name}:latest\": {}",
            broken.join(", ")
        )))
    }
}

/// Every container of a pod, whatever its sort.
fn containers(pod: &Value) -> impl Iterator<Item = &Value> {
    ["initContainers", "containers", "ephemeralContainers"]
        .into_iter()
        .flat_map(|sort| list(&pod["spec"], sort))
}

/// `container "a"` or `containers "a", "b"` of those that `test` finds; none when it finds none.
fn named(pod: &Value, test: impl Fn(&Value) -> bool) -> Option<String> {
    let found: Vec<String> = containers(pod)
        .filter(|container| test(container))
        .map(|container| format!("{:?}", text(container, "name")))
        .collect();
    many("container", &found)
}

fn many(what: &str, found: &[String]) -> Option<String> {
    match found {
        [] => None,
        [one] => Some(format!("{what} {one}")),
        more => Some(format!("{what}s {}", more.join(", "))),
    }
}

/// What of a standard a pod breaks, in Kubernetes' words and order.
fn violations(pod: &Value, restricted: bool) -> Vec<String> {
    let mut broken = Vec::new();
    if !restricted {
        broken.extend(added_capabilities(
            pod,
            &DEFAULT_CAPABILITIES,
            "non-default capabilities",
        ));
    }
    broken.extend(host_namespaces(pod));
    if !restricted {
        broken.extend(host_paths(pod));
    }
    broken.extend(host_ports(pod));
    let privileged = named(pod, |container| {
        flag(container, "securityContext.privileged")
    });
    broken.extend(
        privileged
            .map(|who| format!("privileged ({who} must not set securityContext.privileged=true)")),
    );
    let mounts = named(pod, |container| {
        !matches!(text(container, "securityContext.procMount"), "" | "Default")
    });
    broken.extend(mounts.map(|who| {
        format!(
            "procMount ({who} must not set securityContext.procMount to anything but \"Default\")"
        )
    }));
    broken.extend(sysctls(pod));
    if restricted {
        broken.extend(restrictions(pod));
    } else {
        broken.extend(unconfined(pod));
    }
    broken
}

fn added_capabilities(pod: &Value, allowed: &[&str], title: &str) -> Option<String> {
    let foreign = |container: &Value| -> Vec<String> {
        list(container, "securityContext.capabilities.add")
            .iter()
            .filter_map(Value::as_str)
            .filter(|name| !allowed.contains(name))
            .map(|name| format!("{name:?}"))
            .collect()
    };
    let who = named(pod, |container| !foreign(container).is_empty())?;
    let mut names: Vec<String> = containers(pod).flat_map(foreign).collect();
    names.sort();
    names.dedup();
    Some(format!(
        "{title} ({who} must not include {} in securityContext.capabilities.add)",
        names.join(", ")
    ))
}

fn host_namespaces(pod: &Value) -> Option<String> {
    let shared: Vec<String> = ["hostNetwork", "hostPID", "hostIPC"]
        .into_iter()
        .filter(|name| flag(&pod["spec"], name))
        .map(|name| format!("{name}=true"))
        .collect();
    (!shared.is_empty()).then(|| format!("host namespaces ({})", shared.join(", ")))
}

fn host_paths(pod: &Value) -> Option<String> {
    let volumes: Vec<String> = list(pod, "spec.volumes")
        .iter()
        .filter(|volume| volume.get("hostPath").is_some())
        .map(|volume| format!("{:?}", text(volume, "name")))
        .collect();
    many("volume", &volumes).map(|which| format!("hostPath volumes ({which})"))
}

fn host_ports(pod: &Value) -> Option<String> {
    let ports = |container: &Value| -> Vec<i64> {
        let all = list(container, "ports").iter();
        all.filter_map(|port| number(port, "hostPort").filter(|port| *port != 0))
            .collect()
    };
    let found: Vec<String> = containers(pod)
        .filter(|container| !ports(container).is_empty())
        .map(|container| format!("{:?}", text(container, "name")))
        .collect();
    let mut numbers: Vec<i64> = containers(pod).flat_map(ports).collect();
    numbers.sort_unstable();
    numbers.dedup();
    let numbers: Vec<String> = numbers.iter().map(ToString::to_string).collect();
    let verb = if found.len() > 1 { "use" } else { "uses" };
    let which = many("hostPort", &numbers)?;
    Some(format!(
        "hostPort ({} {verb} {which})",
        many("container", &found)?
    ))
}

fn sysctls(pod: &Value) -> Option<String> {
    let unsafe_ones: Vec<&str> = list(pod, "spec.securityContext.sysctls")
        .iter()
        .map(|setting| text(setting, "name"))
        .filter(|name| !SAFE_SYSCTLS.contains(name))
        .collect();
    (!unsafe_ones.is_empty()).then(|| format!("forbidden sysctls ({})", unsafe_ones.join(", ")))
}

fn unconfined(pod: &Value) -> Option<String> {
    let at_pod = text(pod, "spec.securityContext.seccompProfile.type") == "Unconfined";
    let who = named(pod, |container| {
        text(container, "securityContext.seccompProfile.type") == "Unconfined"
    });
    let who = match (at_pod, who) {
        (false, None) => return None,
        (true, None) => "pod".to_owned(),
        (false, Some(who)) => who,
        (true, Some(who)) => format!("pod and {who}"),
    };
    Some(format!(
        "seccompProfile ({who} must not set securityContext.seccompProfile.type to \"Unconfined\")"
    ))
}

/// What `restricted` asks for beyond `baseline`.
fn restrictions(pod: &Value) -> Vec<String> {
    let mut broken = Vec::new();
    let escalating = named(pod, |container| {
        at(container, "securityContext.allowPrivilegeEscalation") != Some(&Value::Bool(false))
    });
    broken.extend(escalating.map(|who| {
        format!("allowPrivilegeEscalation != false ({who} must set securityContext.allowPrivilegeEscalation=false)")
    }));
    let dropped = named(pod, |container| {
        !list(container, "securityContext.capabilities.drop").contains(&Value::from("ALL"))
    });
    let added = added_capabilities(pod, &["NET_BIND_SERVICE"], "");
    let inner = |text: String| {
        text.trim_start_matches(" (")
            .trim_end_matches(')')
            .to_owned()
    };
    let capabilities: Vec<String> = dropped
        .map(|who| format!("{who} must set securityContext.capabilities.drop=[\"ALL\"]"))
        .into_iter()
        .chain(added.map(inner))
        .collect();
    if !capabilities.is_empty() {
        broken.push(format!(
            "unrestricted capabilities ({})",
            capabilities.join("; ")
        ));
    }
    broken.extend(foreign_volumes(pod));
    let root = at(pod, "spec.securityContext.runAsNonRoot") == Some(&Value::Bool(true));
    let may_be_root = named(pod, |container| {
        match at(container, "securityContext.runAsNonRoot") {
            Some(own) => own != &Value::Bool(true),
            None => !root,
        }
    });
    broken.extend(may_be_root.map(|who| {
        format!("runAsNonRoot != true (pod or {who} must set securityContext.runAsNonRoot=true)")
    }));
    let zero = |value: &Value, path: &str| number(value, path) == Some(0);
    let as_root = named(pod, |container| {
        zero(container, "securityContext.runAsUser")
    });
    if zero(pod, "spec.securityContext.runAsUser") {
        broken.push("runAsUser=0 (pod must not set runAsUser=0)".to_owned());
    } else if let Some(who) = as_root {
        broken.push(format!("runAsUser=0 ({who} must not set runAsUser=0)"));
    }
    let confined = |profile: &str| matches!(profile, "RuntimeDefault" | "Localhost");
    let pod_confined = confined(text(pod, "spec.securityContext.seccompProfile.type"));
    let open = named(pod, |container| {
        match text(container, "securityContext.seccompProfile.type") {
            "" => !pod_confined,
            own => !confined(own),
        }
    });
    broken.extend(open.map(|who| {
        format!("seccompProfile (pod or {who} must set securityContext.seccompProfile.type to \"RuntimeDefault\" or \"Localhost\")")
    }));
    broken
}

fn foreign_volumes(pod: &Value) -> Option<String> {
    let (mut names, mut kinds) = (Vec::new(), Vec::new());
    for volume in list(pod, "spec.volumes") {
        let fields = volume
            .as_object()
            .into_iter()
            .flat_map(|fields| fields.keys());
        let kind = fields
            .filter(|key| *key != "name")
            .map(String::as_str)
            .next();
        if let Some(kind) = kind.filter(|kind| !OWN_VOLUMES.contains(kind)) {
            names.push(format!("{:?}", text(volume, "name")));
            kinds.push(format!("{kind:?}"));
        }
    }
    kinds.sort();
    kinds.dedup();
    let verb = if names.len() > 1 { "use" } else { "uses" };
    let which = many("restricted volume type", &kinds)?;
    Some(format!(
        "restricted volume types ({} {verb} {which})",
        many("volume", &names)?
    ))
}
