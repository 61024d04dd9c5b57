//! Checks of containers: ports, environment, mounts, probes, resources, security.

mod environment;
mod probe;

use std::collections::{BTreeSet, HashSet};

use serde_json::Value;

use environment::{environment, environment_from};
pub(super) use environment::{field_reference, resource_reference};
use probe::lifecycle_and_probes;

use crate::kinds::checks::{
    self, Errors, container_resources, descending_path, named, one_of, one_of_if_set, port_name,
    port_number, required, required_label,
};
use crate::kinds::fields::{at, flag, list, number, text};
use crate::schema::{FieldError, Path};

/// What a container may refer to.
pub(super) struct Surroundings<'a> {
    pub(super) volumes: &'a HashSet<String>,
    pub(super) grace_period: i64,
}

pub(super) fn containers(
    spec: &Value,
    path: &Path,
    around: &Surroundings<'_>,
    errors: &mut Errors,
) {
    let all = list(spec, "containers");
    let path = path.child("containers");
    if all.is_empty() {
        errors.push(FieldError::required(&path, ""));
        return;
    }
    let mut names = HashSet::new();
    for (index, container) in all.iter().enumerate() {
        let path = path.index(index);
        common(container, &path, around, errors);
        unique_name(container, &mut names, &path, errors);
        lifecycle_and_probes(container, &path, around, errors);
        let policy = text(container, "restartPolicy");
        let rules = !list(container, "restartPolicyRules").is_empty();
        if rules && policy.is_empty() {
            let detail = "must specify restartPolicy when restart rules are used";
            errors.push(FieldError::required(&path.child("restartPolicy"), detail));
        }
        one_of_if_set(
            container,
            "restartPolicy",
            &["Always", "Never", "OnFailure"],
            &path,
            errors,
        );
    }
    host_port_conflicts(all, &path, errors);
}

pub(super) fn init_containers(
    spec: &Value,
    path: &Path,
    around: &Surroundings<'_>,
    errors: &mut Errors,
) {
    let path = path.child("initContainers");
    let mut names: HashSet<&str> = list(spec, "containers")
        .iter()
        .map(|c| text(c, "name"))
        .collect();
    for (index, container) in list(spec, "initContainers").iter().enumerate() {
        let here = path.index(index);
        common(container, &here, around, errors);
        one_of_if_set(
            container,
            "restartPolicy",
            &["Always", "Never", "OnFailure"],
            &here,
            errors,
        );
        unique_name(container, &mut names, &here, errors);
        host_port_conflicts(std::slice::from_ref(container), &path, errors);
        if text(container, "restartPolicy") == "Always" {
            lifecycle_and_probes(container, &here, around, errors);
        } else {
            for name in [
                "lifecycle",
                "livenessProbe",
                "readinessProbe",
                "startupProbe",
            ] {
                if at(container, name).is_some() {
                    let detail = "may not be set for init containers without restartPolicy=Always";
                    errors.push(FieldError::forbidden(&here.child(name), detail));
                }
            }
        }
    }
}

pub(super) fn ephemeral_containers(
    spec: &Value,
    path: &Path,
    around: &Surroundings<'_>,
    errors: &mut Errors,
) {
    let path = path.child("ephemeralContainers");
    let mut names: HashSet<&str> = list(spec, "containers")
        .iter()
        .chain(list(spec, "initContainers"))
        .map(|container| text(container, "name"))
        .collect();
    for (index, container) in list(spec, "ephemeralContainers").iter().enumerate() {
        let path = path.index(index);
        common(container, &path, around, errors);
        unique_name(container, &mut names, &path, errors);
        for name in [
            "lifecycle",
            "livenessProbe",
            "readinessProbe",
            "startupProbe",
            "ports",
        ] {
            if at(container, name).is_some() {
                let detail = "cannot be set for an Ephemeral Container";
                errors.push(FieldError::forbidden(&path.child(name), detail));
            }
        }
        let target = text(container, "targetContainerName");
        if !target.is_empty() && !names.contains(target) {
            errors.push(FieldError::not_found(
                &path.child("targetContainerName"),
                target,
            ));
        }
    }
}

fn unique_name<'a>(
    container: &'a Value,
    names: &mut HashSet<&'a str>,
    path: &Path,
    errors: &mut Errors,
) {
    let name = text(container, "name");
    if !names.insert(name) {
        errors.push(FieldError::duplicate(&path.child("name"), name));
    }
}

fn common(container: &Value, path: &Path, around: &Surroundings<'_>, errors: &mut Errors) {
    required_label(text(container, "name"), &path.child("name"), errors);
    let image = text(container, "image");
    required(image, &path.child("image"), errors);
    if image.trim() != image {
        let detail = "must not have leading or trailing whitespace";
        errors.push(FieldError::invalid(&path.child("image"), image, detail));
    }
    let policies = ["File", "FallbackToLogsOnError"];
    one_of(
        container,
        "terminationMessagePolicy",
        &policies,
        path,
        errors,
    );
    ports(container, path, errors);
    environment(container, path, errors);
    environment_from(container, path, errors);
    mounts(container, path, around, errors);
    one_of(
        container,
        "imagePullPolicy",
        &["Always", "IfNotPresent", "Never"],
        path,
        errors,
    );
    container_resources(container.get("resources"), &path.child("resources"), errors);
    security(container, path, errors);
}

fn ports(container: &Value, path: &Path, errors: &mut Errors) {
    let mut names = HashSet::new();
    for (index, value) in list(container, "ports").iter().enumerate() {
        let path = path.child("ports").index(index);
        let name = text(value, "name");
        if !name.is_empty() {
            let problems = port_name(name);
            let valid = problems.is_empty();
            named(problems, name, &path.child("name"), errors);
            if valid && !names.insert(name) {
                errors.push(FieldError::duplicate(&path.child("name"), name));
            }
        }
        match number(value, "containerPort").unwrap_or(0) {
            0 => errors.push(FieldError::required(&path.child("containerPort"), "")),
            number => port_number(number, &path.child("containerPort"), errors),
        }
        if let Some(number) = number(value, "hostPort").filter(|number| *number != 0) {
            port_number(number, &path.child("hostPort"), errors);
        }
        one_of(value, "protocol", &["SCTP", "TCP", "UDP"], &path, errors);
    }
}

fn host_port_conflicts(containers: &[Value], path: &Path, errors: &mut Errors) {
    let mut seen = HashSet::new();
    for (index, container) in containers.iter().enumerate() {
        for (place, value) in list(container, "ports").iter().enumerate() {
            let Some(number) = number(value, "hostPort").filter(|number| *number != 0) else {
                continue;
            };
            let key = format!(
                "{}/{}/{number}",
                text(value, "protocol"),
                text(value, "hostIP")
            );
            if !seen.insert(key.clone()) {
                let path = path
                    .index(index)
                    .child("ports")
                    .index(place)
                    .child("hostPort");
                errors.push(FieldError::duplicate(&path, key));
            }
        }
    }
}

fn mounts(container: &Value, path: &Path, around: &Surroundings<'_>, errors: &mut Errors) {
    let mut points = BTreeSet::new();
    let mounts_path = path.child("volumeMounts");
    for (index, mount) in list(container, "volumeMounts").iter().enumerate() {
        let path = mounts_path.index(index);
        let (name, point) = (text(mount, "name"), text(mount, "mountPath"));
        required(name, &path.child("name"), errors);
        if !around.volumes.contains(name) {
            errors.push(FieldError::not_found(&path.child("name"), name));
        }
        required(point, &path.child("mountPath"), errors);
        if !points.insert(point) {
            errors.push(FieldError::invalid(
                &path.child("mountPath"),
                point,
                "must be unique",
            ));
        }
        let (sub, expression) = (text(mount, "subPath"), text(mount, "subPathExpr"));
        if !sub.is_empty() {
            descending_path(sub, &mounts_path.child("subPath"), errors);
        }
        if !expression.is_empty() {
            if !sub.is_empty() {
                let detail = "subPathExpr and subPath are mutually exclusive";
                errors.push(FieldError::invalid(
                    &path.child("subPathExpr"),
                    expression,
                    detail,
                ));
            }
            descending_path(expression, &mounts_path.child("subPathExpr"), errors);
        }
        let modes = ["Bidirectional", "HostToContainer", "None"];
        one_of_if_set(mount, "mountPropagation", &modes, &mounts_path, errors);
    }
    for (index, device) in list(container, "volumeDevices").iter().enumerate() {
        let path = path.child("volumeDevices").index(index);
        required(text(device, "name"), &path.child("name"), errors);
        required(
            text(device, "devicePath"),
            &path.child("devicePath"),
            errors,
        );
        if !around.volumes.contains(text(device, "name")) {
            errors.push(FieldError::not_found(
                &path.child("name"),
                text(device, "name"),
            ));
        }
    }
}

fn security(container: &Value, path: &Path, errors: &mut Errors) {
    let Some(context) = at(container, "securityContext") else {
        return;
    };
    let path = path.child("securityContext");
    user_ids(context, &path, errors);
    one_of_if_set(
        context,
        "procMount",
        &["Default", "Unmasked"],
        &path,
        errors,
    );
    seccomp(context, &path, errors);
    if at(context, "allowPrivilegeEscalation") == Some(&Value::Bool(false)) {
        if flag(context, "privileged") {
            let detail = "cannot set `allowPrivilegeEscalation` to false and `privileged` to true";
            errors.push(FieldError::invalid(&path, go_context(context), detail).as_struct());
        }
        if list(context, "capabilities.add")
            .iter()
            .any(|cap| cap == "CAP_SYS_ADMIN")
        {
            let detail = "cannot set `allowPrivilegeEscalation` to false and `capabilities.Add` \
                          CAP_SYS_ADMIN";
            errors.push(FieldError::invalid(&path, go_context(context), detail).as_struct());
        }
    }
}

/// A security context as the server's own struct prints.
fn go_context(context: &Value) -> Value {
    const MEMBERS: [(&str, &str); 12] = [
        ("Capabilities", "capabilities"),
        ("Privileged", "privileged"),
        ("SELinuxOptions", "seLinuxOptions"),
        ("WindowsOptions", "windowsOptions"),
        ("RunAsUser", "runAsUser"),
        ("RunAsGroup", "runAsGroup"),
        ("RunAsNonRoot", "runAsNonRoot"),
        ("ReadOnlyRootFilesystem", "readOnlyRootFilesystem"),
        ("AllowPrivilegeEscalation", "allowPrivilegeEscalation"),
        ("ProcMount", "procMount"),
        ("SeccompProfile", "seccompProfile"),
        ("AppArmorProfile", "appArmorProfile"),
    ];
    let member = |name: &str| context.get(name).cloned().unwrap_or(Value::Null);
    MEMBERS
        .iter()
        .map(|(shown, name)| ((*shown).to_owned(), member(name)))
        .collect()
}

pub(super) fn user_ids(context: &Value, path: &Path, errors: &mut Errors) {
    for name in ["runAsUser", "runAsGroup", "fsGroup"] {
        if let Some(id) = number(context, name).filter(|id| !(0..=2_147_483_647).contains(id)) {
            let detail = "must be between 0 and 2147483647, inclusive";
            errors.push(FieldError::invalid(&path.child(name), id, detail));
        }
    }
}

pub(super) fn seccomp(context: &Value, path: &Path, errors: &mut Errors) {
    let Some(profile) = at(context, "seccompProfile") else {
        return;
    };
    let path = path.child("seccompProfile");
    let kind = text(profile, "type");
    let local = at(profile, "localhostProfile");
    match kind {
        "Localhost" if local.is_none() => {
            let detail = "must be set when seccomp type is Localhost";
            errors.push(FieldError::required(
                &path.child("localhostProfile"),
                detail,
            ));
        }
        "Localhost" => {}
        _ if local.is_some() => {
            let detail = "can only be set when seccomp type is Localhost";
            let value = local.cloned().unwrap_or_default();
            errors.push(FieldError::invalid(
                &path.child("localhostProfile"),
                value,
                detail,
            ));
        }
        _ => {}
    }
    let kinds = ["Localhost", "RuntimeDefault", "Unconfined"];
    if kind.is_empty() {
        let detail = "type is required when seccompProfile is set";
        errors.push(FieldError::required(&path.child("type"), detail));
    } else {
        checks::one_of_if_set(profile, "type", &kinds, &path, errors);
    }
}
