//! Checks of a pod spec as a whole, wherever it occurs.

use serde_json::{Value, json};

use super::container::{self, Surroundings};
use super::{placement, volume};
use crate::kinds::checks::{
    Errors, container_resources, named, one_of, one_of_if_set, required_label,
};
use crate::kinds::fields::{at, entries, flag, list, number, text};
use crate::kinds::metadata;
use crate::schema::{FieldError, Path};

/// Every check of a pod spec. `pod` says whether it is a pod's own or a template's.
pub(in crate::kinds) fn validate(spec: &Value, path: &Path, pod: bool, errors: &mut Errors) {
    let volumes = volume::volumes(spec, path, errors);
    let grace_period = number(spec, "terminationGracePeriodSeconds").unwrap_or(30);
    let around = Surroundings {
        volumes: &volumes,
        grace_period,
    };
    container::containers(spec, path, &around, errors);
    container::init_containers(spec, path, &around, errors);
    container::ephemeral_containers(spec, path, &around, errors);
    if at(spec, "resources").is_some() {
        container_resources(spec.get("resources"), &path.child("resources"), errors);
    }
    host_network(spec, path, pod, errors);
    one_of(
        spec,
        "restartPolicy",
        &["Always", "OnFailure", "Never"],
        path,
        errors,
    );
    let policies = ["ClusterFirst", "ClusterFirstWithHostNet", "Default", "None"];
    one_of(spec, "dnsPolicy", &policies, path, errors);
    metadata::labels(
        spec.get("nodeSelector"),
        &path.child("nodeSelector"),
        errors,
    );
    security(spec, path, errors);
    placement::affinity(spec, path, errors);
    dns_config(spec, path, errors);
    for (index, gate) in list(spec, "readinessGates").iter().enumerate() {
        let kind = text(gate, "conditionType");
        let path = path
            .child("readinessGates")
            .index(index)
            .child("conditionType");
        named(metadata::qualified_name(kind), kind, &path, errors);
    }
    placement::scheduling_gates(spec, path, errors);
    placement::spread(spec, path, errors);
    names(spec, path, errors);
    if let Some(seconds) = number(spec, "activeDeadlineSeconds")
        .filter(|seconds| !(1..=2_147_483_647).contains(seconds))
    {
        let detail = "must be between 1 and 2147483647, inclusive";
        errors.push(FieldError::invalid(
            &path.child("activeDeadlineSeconds"),
            seconds,
            detail,
        ));
    }
    placement::tolerations(spec, path, errors);
    host_aliases(spec, path, errors);
    let policies = ["Never", "PreemptLowerPriority"];
    one_of_if_set(spec, "preemptionPolicy", &policies, path, errors);
    if at(spec, "overhead").is_some() {
        let overhead = json!({"limits": spec["overhead"]});
        container_resources(Some(&overhead), &path.child("overhead"), errors);
    }
    if let Some(os) = at(spec, "os") {
        one_of(os, "name", &["linux", "windows"], &path.child("os"), errors);
    }
}

fn names(spec: &Value, path: &Path, errors: &mut Errors) {
    for name in [
        "serviceAccountName",
        "nodeName",
        "priorityClassName",
        "runtimeClassName",
    ] {
        let value = text(spec, name);
        if !value.is_empty() {
            named(metadata::subdomain(value), value, &path.child(name), errors);
        }
    }
    for name in ["hostname", "subdomain"] {
        let value = text(spec, name);
        if !value.is_empty() {
            required_label(value, &path.child(name), errors);
        }
    }
}

fn host_network(spec: &Value, path: &Path, pod: bool, errors: &mut Errors) {
    if !flag(spec, "hostNetwork") {
        return;
    }
    for (index, container) in list(spec, "containers").iter().enumerate() {
        for (place, port) in list(container, "ports").iter().enumerate() {
            let host = number(port, "hostPort").unwrap_or(0);
            let inner = number(port, "containerPort").unwrap_or(0);
            if (pod || host != 0) && host != inner {
                let path = path
                    .child("containers")
                    .index(index)
                    .child("ports")
                    .index(place);
                let detail = "must match `containerPort` when `hostNetwork` is true";
                errors.push(FieldError::invalid(&path.child("hostPort"), host, detail));
            }
        }
    }
}

fn security(spec: &Value, path: &Path, errors: &mut Errors) {
    let Some(context) = at(spec, "securityContext") else {
        return;
    };
    let path = path.child("securityContext");
    container::user_ids(context, &path, errors);
    container::seccomp(context, &path, errors);
    for (index, group) in list(context, "supplementalGroups").iter().enumerate() {
        let group = group.as_i64().unwrap_or(0);
        if !(0..=2_147_483_647).contains(&group) {
            let path = path.child("supplementalGroups").index(index);
            let detail = "must be between 0 and 2147483647, inclusive";
            errors.push(FieldError::invalid(&path, group, detail));
        }
    }
    let policies = ["Always", "OnRootMismatch"];
    one_of_if_set(context, "fsGroupChangePolicy", &policies, &path, errors);
    if flag(spec, "shareProcessNamespace") && flag(spec, "hostPID") {
        let detail = "ShareProcessNamespace and HostPID cannot both be enabled";
        errors.push(FieldError::invalid(
            &path.child("shareProcessNamespace"),
            true,
            detail,
        ));
    }
}

fn dns_config(spec: &Value, path: &Path, errors: &mut Errors) {
    let servers = list(spec, "dnsConfig.nameservers");
    let path = path.child("dnsConfig");
    if text(spec, "dnsPolicy") == "None" {
        if at(spec, "dnsConfig").is_none() {
            let detail = "must provide `dnsConfig` when `dnsPolicy` is None";
            errors.push(FieldError::required(&path, detail));
            return;
        }
        if servers.is_empty() {
            let detail = "must provide at least one DNS nameserver when `dnsPolicy` is None";
            errors.push(FieldError::required(&path.child("nameservers"), detail));
        }
    }
    if servers.len() > 3 {
        let detail = "must not have more than 3 nameservers";
        let path = path.child("nameservers");
        errors.push(FieldError::invalid(
            &path,
            spec["dnsConfig"]["nameservers"].clone(),
            detail,
        ));
    }
    for (index, server) in servers.iter().enumerate() {
        let address = server.as_str().unwrap_or_default();
        ip_address(address, &path.child("nameservers").index(index), errors);
    }
    for (index, option) in list(spec, "dnsConfig.options").iter().enumerate() {
        if text(option, "name").is_empty() {
            let detail = "must not be empty";
            errors.push(FieldError::required(
                &path.child("options").index(index),
                detail,
            ));
        }
    }
}

pub(in crate::kinds) fn ip_address(address: &str, path: &Path, errors: &mut Errors) {
    if address.parse::<std::net::IpAddr>().is_err() {
        let detail = "must be a valid IP address, (e.g. 10.9.8.7 or 2001:db8::ffff)";
        errors.push(FieldError::invalid(path, address, detail));
    }
}

fn host_aliases(spec: &Value, path: &Path, errors: &mut Errors) {
    for (index, alias) in list(spec, "hostAliases").iter().enumerate() {
        let path = path.child("hostAliases").index(index);
        ip_address(text(alias, "ip"), &path.child("ip"), errors);
        for (place, name) in list(alias, "hostnames").iter().enumerate() {
            let name = name.as_str().unwrap_or_default();
            let path = path.child("hostnames").index(place);
            named(metadata::subdomain(name), name, &path, errors);
        }
    }
}

/// The template of a workload: its metadata and spec.
pub(in crate::kinds) fn template(template: &Value, path: &Path, errors: &mut Errors) {
    metadata::template(template.get("metadata"), &path.child("metadata"), errors);
    annotations(
        template,
        &path.child("metadata").child("annotations"),
        errors,
    );
    validate(
        template.get("spec").unwrap_or(&Value::Null),
        &path.child("spec"),
        false,
        errors,
    );
    if !list(template, "spec.ephemeralContainers").is_empty() {
        let detail = "ephemeral containers not allowed in pod template";
        let path = path.child("spec").child("ephemeralContainers");
        errors.push(FieldError::forbidden(&path, detail));
    }
}

/// Annotations that mean something to the server.
pub(super) fn annotations(object: &Value, path: &Path, errors: &mut Errors) {
    const COST: &str = "controller.kubernetes.io/pod-deletion-cost";
    for (name, value) in entries(object, "metadata.annotations") {
        let value = value.as_str().unwrap_or_default();
        let whole = value.parse::<i32>().is_ok() && !value.starts_with('+');
        if name == COST && !(whole && (value == "0" || !value.starts_with('0'))) {
            errors.push(FieldError::invalid(
                &path.key(name),
                value,
                "must be a 32bit integer",
            ));
        }
    }
}
