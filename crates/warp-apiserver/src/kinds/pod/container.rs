//! Checks of containers: ports, environment, mounts, probes, resources, security.

use std::collections::{BTreeSet, HashSet};

use serde_json::Value;

use crate::kinds::checks::{
    self, Errors, container_resources, descending_path, env_name, named, not_negative, one_of,
    one_of_if_set, port, port_name, port_number, required, required_label,
};
use crate::kinds::fields::{at, flag, list, number, text};
use crate::kinds::metadata;
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

const ENV_FIELDS: [&str; 8] = [
    "metadata.name",
    "metadata.namespace",
    "metadata.uid",
    "spec.nodeName",
    "spec.serviceAccountName",
    "status.hostIP",
    "status.hostIPs",
    "status.podIP",
];
const ENV_FIELDS_MORE: &str = "status.podIPs";
const RESOURCE_FIELDS: [&str; 6] = [
    "limits.cpu",
    "limits.ephemeral-storage",
    "limits.memory",
    "requests.cpu",
    "requests.ephemeral-storage",
    "requests.memory",
];

fn environment(container: &Value, path: &Path, errors: &mut Errors) {
    for (index, variable) in list(container, "env").iter().enumerate() {
        let path = path.child("env").index(index);
        let name = text(variable, "name");
        if name.is_empty() {
            errors.push(FieldError::required(&path.child("name"), ""));
        } else {
            named(env_name(name), name, &path.child("name"), errors);
        }
        let Some(source) = at(variable, "valueFrom") else {
            continue;
        };
        let path = path.child("valueFrom");
        let mut sources = 0;
        if let Some(reference) = at(source, "fieldRef") {
            sources += 1;
            field_reference(reference, &path.child("fieldRef"), true, errors);
        }
        if let Some(reference) = at(source, "resourceFieldRef") {
            sources += 1;
            resource_reference(reference, &path.child("resourceFieldRef"), false, errors);
        }
        for kind in ["configMapKeyRef", "secretKeyRef"] {
            if let Some(reference) = at(source, kind) {
                sources += 1;
                key_reference(reference, &path.child(kind), errors);
            }
        }
        if at(source, "fileKeyRef").is_some() {
            sources += 1;
        }
        let detail = match sources {
            0 => {
                "must specify one of: `fieldRef`, `resourceFieldRef`, `configMapKeyRef`, \
                 `secretKeyRef` or `fileKeyRef`"
            }
            _ if !text(variable, "value").is_empty() => {
                "may not be specified when `value` is not empty"
            }
            1 => continue,
            _ => "may not have more than one field specified at a time",
        };
        errors.push(FieldError::invalid(&path, "", detail));
    }
}

pub(super) fn field_reference(reference: &Value, path: &Path, env: bool, errors: &mut Errors) {
    if text(reference, "apiVersion").is_empty() {
        errors.push(FieldError::required(&path.child("apiVersion"), ""));
        return;
    }
    let field = text(reference, "fieldPath");
    if field.is_empty() {
        errors.push(FieldError::required(&path.child("fieldPath"), ""));
        return;
    }
    if let Some((base, subscript)) = field
        .strip_suffix("']")
        .and_then(|rest| rest.split_once("['"))
    {
        match base {
            "metadata.annotations" => {
                named(
                    metadata::qualified_name(&subscript.to_lowercase()),
                    subscript,
                    path,
                    errors,
                );
            }
            "metadata.labels" => {
                named(metadata::qualified_name(subscript), subscript, path, errors);
            }
            _ => {
                let detail = format!(
                    "error converting fieldPath: field label does not support subscript: {field}"
                );
                errors.push(FieldError::invalid(&path.child("fieldPath"), field, detail));
            }
        }
        return;
    }
    let whole = ["metadata.annotations", "metadata.labels"];
    let known = ENV_FIELDS.contains(&field) || field == ENV_FIELDS_MORE || whole.contains(&field);
    if !known {
        let detail = format!("error converting fieldPath: field label not supported: {field}");
        errors.push(FieldError::invalid(&path.child("fieldPath"), field, detail));
    } else if env && whole.contains(&field) {
        let mut allowed = ENV_FIELDS.to_vec();
        allowed.push(ENV_FIELDS_MORE);
        errors.push(FieldError::not_supported(
            &path.child("fieldPath"),
            field,
            &allowed,
        ));
    } else if !env
        && ![
            "metadata.annotations",
            "metadata.labels",
            "metadata.name",
            "metadata.namespace",
            "metadata.uid",
        ]
        .contains(&field)
    {
        let allowed = [
            "metadata.annotations",
            "metadata.labels",
            "metadata.name",
            "metadata.namespace",
            "metadata.uid",
        ];
        errors.push(FieldError::not_supported(
            &path.child("fieldPath"),
            field,
            &allowed,
        ));
    }
}

pub(super) fn resource_reference(
    reference: &Value,
    path: &Path,
    volume: bool,
    errors: &mut Errors,
) {
    let resource = text(reference, "resource");
    if volume && text(reference, "containerName").is_empty() {
        errors.push(FieldError::required(&path.child("containerName"), ""));
    } else if resource.is_empty() {
        errors.push(FieldError::required(&path.child("resource"), ""));
    } else if !RESOURCE_FIELDS.contains(&resource)
        && !resource.starts_with("limits.hugepages-")
        && !resource.starts_with("requests.hugepages-")
    {
        let path = path.child("resource");
        errors.push(FieldError::not_supported(&path, resource, &RESOURCE_FIELDS));
    }
}

fn key_reference(reference: &Value, path: &Path, errors: &mut Errors) {
    required(text(reference, "name"), &path.child("name"), errors);
    let key = text(reference, "key");
    if key.is_empty() {
        errors.push(FieldError::required(&path.child("key"), ""));
    } else {
        named(metadata::config_key(key), key, &path.child("key"), errors);
    }
}

fn environment_from(container: &Value, path: &Path, errors: &mut Errors) {
    let path = path.child("envFrom");
    for (index, source) in list(container, "envFrom").iter().enumerate() {
        let here = path.index(index);
        let prefix = text(source, "prefix");
        named(env_name(prefix), prefix, &here.child("prefix"), errors);
        let mut sources = 0;
        for kind in ["configMapRef", "secretRef"] {
            if let Some(reference) = at(source, kind) {
                sources += 1;
                required(
                    text(reference, "name"),
                    &here.child(kind).child("name"),
                    errors,
                );
            }
        }
        let detail = match sources {
            0 => "must specify one of: `configMapRef` or `secretRef`",
            1 => continue,
            _ => "may not have more than one field specified at a time",
        };
        errors.push(FieldError::invalid(&path, "", detail));
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

fn lifecycle_and_probes(
    container: &Value,
    path: &Path,
    around: &Surroundings<'_>,
    errors: &mut Errors,
) {
    for hook in ["postStart", "preStop"] {
        if let Some(handler) = at(container, &format!("lifecycle.{hook}")) {
            handlers(
                handler,
                &path.child("lifecycle").child(hook),
                around.grace_period,
                errors,
            );
        }
    }
    for name in ["livenessProbe", "readinessProbe", "startupProbe"] {
        let Some(probe) = at(container, name) else {
            continue;
        };
        let path = path.child(name);
        handlers(probe, &path, around.grace_period, errors);
        for field in [
            "initialDelaySeconds",
            "timeoutSeconds",
            "periodSeconds",
            "successThreshold",
            "failureThreshold",
        ] {
            not_negative(probe, field, &path, errors);
        }
        let grace = number(probe, "terminationGracePeriodSeconds");
        let grace_path = path.child("terminationGracePeriodSeconds");
        if let Some(seconds) = grace.filter(|seconds| *seconds <= 0) {
            errors.push(FieldError::invalid(
                &grace_path,
                seconds,
                "must be greater than 0",
            ));
        }
        if name == "readinessProbe" {
            if let Some(seconds) = grace {
                let detail = "must not be set for readinessProbes";
                errors.push(FieldError::invalid(&grace_path, seconds, detail));
            }
        } else if let Some(times) = number(probe, "successThreshold").filter(|times| *times != 1) {
            errors.push(FieldError::invalid(
                &path.child("successThreshold"),
                times,
                "must be 1",
            ));
        }
    }
}

fn handlers(handler: &Value, path: &Path, grace_period: i64, errors: &mut Errors) {
    let mut found = 0;
    for kind in ["exec", "httpGet", "tcpSocket", "grpc", "sleep"] {
        let Some(action) = at(handler, kind) else {
            continue;
        };
        let path = path.child(kind);
        found += 1;
        if found > 1 {
            errors.push(FieldError::forbidden(
                &path,
                "may not specify more than 1 handler type",
            ));
            continue;
        }
        match kind {
            "exec" => {
                if list(action, "command").is_empty() {
                    errors.push(FieldError::required(&path.child("command"), ""));
                }
            }
            "httpGet" => {
                required(text(action, "path"), &path.child("path"), errors);
                port(action.get("port"), &path.child("port"), errors);
                one_of_if_set(action, "scheme", &["HTTP", "HTTPS"], &path, errors);
                for header in list(action, "httpHeaders") {
                    http_header(text(header, "name"), &path.child("httpHeaders"), errors);
                }
            }
            "tcpSocket" => port(action.get("port"), &path.child("port"), errors),
            "grpc" => port_number(
                number(action, "port").unwrap_or(0),
                &path.child("port"),
                errors,
            ),
            _ => {
                let seconds = number(action, "seconds").unwrap_or(0);
                if !(0..=grace_period).contains(&seconds) {
                    let detail = format!(
                        "must be non-negative and less than terminationGracePeriodSeconds \
                         ({grace_period}). Enable AllowPodLifecycleSleepActionZeroValue feature \
                         gate for zero sleep."
                    );
                    errors.push(FieldError::invalid(&path, seconds, detail));
                }
            }
        }
    }
    if found == 0 {
        errors.push(FieldError::required(path, "must specify a handler type"));
    }
}

fn http_header(name: &str, path: &Path, errors: &mut Errors) {
    let valid = !name.is_empty() && name.chars().all(|c| c.is_ascii_alphanumeric() || c == '-');
    if !valid {
        let detail = "a valid HTTP header must consist of alphanumeric characters or '-' (e.g. \
                      'X-Header-Name', regex used for validation is '[-A-Za-z0-9]+')";
        errors.push(FieldError::invalid(path, name, detail));
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
            errors.push(FieldError::invalid(&path, context.clone(), detail));
        }
        if list(context, "capabilities.add")
            .iter()
            .any(|cap| cap == "CAP_SYS_ADMIN")
        {
            let detail = "cannot set `allowPrivilegeEscalation` to false and `capabilities.Add` \
                          CAP_SYS_ADMIN";
            errors.push(FieldError::invalid(&path, context.clone(), detail));
        }
    }
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
