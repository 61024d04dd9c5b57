//! Namespace, Node, Lease, PriorityClass and PodDisruptionBudget.

use std::collections::HashSet;

use serde_json::{Value, json};

use super::checks::{
    Errors, NEGATIVE, amount, count_or_percent, immutable, named, not_negative, not_over_whole,
};
use super::fields::{at, entries, flag, list, number, text};
use super::{Described, columns, describe, empty_status, keep_status, metadata, pod, typed};
use crate::registry::name;
use crate::registry::resource::{SelectableField, Strategy, Subresource};
use crate::schema::{FieldError, Path};

pub(super) fn descriptors() -> Vec<Described> {
    vec![
        namespace(),
        node(),
        lease(),
        priority_class(),
        disruption_budget(),
    ]
}

fn namespace() -> Described {
    describe("", "v1", "Namespace", "namespaces")
        .short("ns")
        .cluster()
        .subresources([Subresource::Finalize, Subresource::Status])
        .columns(vec![
            columns::name(),
            columns::with("Status", "string", 0, |object, _| {
                json!(text(object, "status.phase"))
            }),
            columns::age(),
        ])
        .selectable([
            SelectableField::new("status.phase"),
            SelectableField::at("name", "metadata.name", ""),
        ])
        .strategy(Strategy {
            default: |object| typed::round_trip("core.Namespace", object),
            prepare_create: |object| {
                object["status"] = json!({"phase": "Active"});
                let mut finalizers = list(object, "spec.finalizers").to_vec();
                if !finalizers.iter().any(|name| name == "kubernetes") {
                    finalizers.push(json!("kubernetes"));
                }
                object["spec"]["finalizers"] = Value::Array(finalizers);
                typed::round_trip("core.Namespace", object);
            },
            prepare_update: |object, old| {
                if let Some(finalizers) = old.pointer("/spec/finalizers") {
                    object["spec"]["finalizers"] = finalizers.clone();
                }
                keep_status(object, old);
            },
            prepare_delete: |object| object["status"]["phase"] = json!("Terminating"),
            validate: |object| {
                let mut errors = Vec::new();
                for finalizer in list(object, "spec.finalizers") {
                    let finalizer = finalizer.as_str().unwrap_or_default();
                    let path = Path::new("spec.finalizers");
                    named(
                        metadata::qualified_name(finalizer),
                        finalizer,
                        &path,
                        &mut errors,
                    );
                    if !finalizer.contains('/') && finalizer != "kubernetes" {
                        let detail =
                            "name is neither a standard finalizer name nor is it fully qualified";
                        errors.push(FieldError::invalid(&path, finalizer, detail));
                    }
                }
                errors
            },
            validate_name: name::label,
            spec_finalizers: true,
            ..Strategy::default()
        })
}

fn node() -> Described {
    let with = columns::with;
    describe("", "v1", "Node", "nodes")
        .short("no")
        .cluster()
        .subresources([Subresource::Status])
        .columns(vec![
            columns::name(),
            with("Status", "string", 0, |node, _| json!(node_status(node))),
            with("Roles", "string", 0, |node, _| columns::none_if_empty(&node_roles(node))),
            columns::age(),
            with("Version", "string", 0, |node, _| json!(text(node, "status.nodeInfo.kubeletVersion"))),
            with("Internal-IP", "string", 1, |node, _| columns::none_if_empty(address(node, "InternalIP"))),
            with("External-IP", "string", 1, |node, _| columns::none_if_empty(address(node, "ExternalIP"))),
            with("OS-Image", "string", 1, |node, _| unknown(text(node, "status.nodeInfo.osImage"))),
            with("Kernel-Version", "string", 1, |node, _| unknown(text(node, "status.nodeInfo.kernelVersion"))),
            with("Container-Runtime", "string", 1, |node, _| {
                unknown(text(node, "status.nodeInfo.containerRuntimeVersion"))
            }),
        ])
        .selectable([SelectableField::at("spec.unschedulable", "spec.unschedulable", "false")])
        .strategy(Strategy {
            default: |object| typed::round_trip("core.Node", object),
            // A node reports its own status when it registers.
            keep_status: true,
            prepare_update: keep_status,
            validate: validate_node,
            validate_update: |new, old| {
                let mut errors = Vec::new();
                for name in ["spec.podCIDR", "spec.providerID"] {
                    let (after, before) = (text(new, name), text(old, name));
                    if !before.is_empty() && before != after {
                        let detail = "node updates may only change labels, taints, or capacity (or configSource, if the DynamicKubeletConfig feature gate is enabled)";
                        errors.push(FieldError::forbidden(&Path::new(name), detail));
                    }
                }
                errors
            },
            ..Strategy::default()
        })
}

fn unknown(text: &str) -> Value {
    json!(if text.is_empty() { "<unknown>" } else { text })
}

fn node_status(node: &Value) -> String {
    let ready = list(node, "status.conditions")
        .iter()
        .find(|c| text(c, "type") == "Ready");
    let mut parts = vec![match ready.map(|condition| text(condition, "status")) {
        Some("True") => "Ready",
        Some(_) => "NotReady",
        None => "Unknown",
    }];
    if flag(node, "spec.unschedulable") {
        parts.push("SchedulingDisabled");
    }
    parts.join(",")
}

fn node_roles(node: &Value) -> String {
    let mut roles: Vec<&str> = entries(node, "metadata.labels")
        .filter_map(|(key, value)| {
            let role = key
                .strip_prefix("node-role.kubernetes.io/")
                .filter(|role| !role.is_empty());
            role.or_else(|| {
                (key == "kubernetes.io/role")
                    .then(|| value.as_str())
                    .flatten()
            })
        })
        .collect();
    roles.sort_unstable();
    roles.dedup();
    roles.join(",")
}

fn address<'a>(node: &'a Value, kind: &str) -> &'a str {
    list(node, "status.addresses")
        .iter()
        .find(|address| text(address, "type") == kind)
        .map_or("", |address| text(address, "address"))
}

fn validate_node(node: &Value) -> Errors {
    let mut errors = Vec::new();
    let path = Path::new("metadata.taints");
    let mut seen = HashSet::new();
    for (index, taint) in list(node, "spec.taints").iter().enumerate() {
        let path = path.index(index);
        let (key, value, effect) = (
            text(taint, "key"),
            text(taint, "value"),
            text(taint, "effect"),
        );
        named(
            metadata::qualified_name(key),
            key,
            &path.child("key"),
            &mut errors,
        );
        let problems = metadata::label_value(value);
        if !problems.is_empty() {
            let detail = problems.join(";");
            errors.push(FieldError::invalid(&path.child("value"), value, detail));
        }
        if effect.is_empty() {
            errors.push(FieldError::required(&path.child("effect"), ""));
        } else {
            pod::taint_effect(effect, &path.child("effect"), &mut errors);
        }
        if !seen.insert((key, effect)) {
            let shown = json!({"Key": key, "Value": value, "Effect": effect, "TimeAdded": null});
            let mut error = FieldError::duplicate(&path, shown).as_struct();
            "taints must be unique by key and effect pair".clone_into(&mut error.detail);
            errors.push(error);
        }
    }
    for which in ["capacity", "allocatable"] {
        for (name, value) in entries(node, &format!("status.{which}")) {
            let path = Path::new("status").child(which).key(name);
            amount(name, value, &path, &mut errors);
        }
    }
    errors
}

fn lease() -> Described {
    describe("coordination.k8s.io", "v1", "Lease", "leases")
        .columns(vec![
            columns::name(),
            columns::with("Holder", "string", 0, |object, _| {
                json!(text(object, "spec.holderIdentity"))
            }),
            columns::age(),
        ])
        .strategy(Strategy {
            default: |object| typed::round_trip("coordination.Lease", object),
            validate: |object| {
                let mut errors = Vec::new();
                let spec = Path::new("spec");
                for (name, least, detail) in [
                    ("leaseDurationSeconds", 1, "must be greater than 0"),
                    ("leaseTransitions", 0, NEGATIVE),
                ] {
                    if let Some(value) =
                        number(object, &format!("spec.{name}")).filter(|v| *v < least)
                    {
                        errors.push(FieldError::invalid(&spec.child(name), value, detail));
                    }
                }
                errors
            },
            create_on_update: true,
            unconditional_update: false,
            ..Strategy::default()
        })
}

fn priority_class() -> Described {
    const HIGHEST: i64 = 1_000_000_000;
    describe("scheduling.k8s.io", "v1", "PriorityClass", "priorityclasses")
        .short("pc")
        .cluster()
        .columns(vec![
            columns::name(),
            columns::with("Value", "integer", 0, |object, _| json!(number(object, "value").unwrap_or(0))),
            columns::with("Global-Default", "boolean", 0, |object, _| json!(flag(object, "globalDefault"))),
            columns::age(),
            columns::with("PreemptionPolicy", "string", 0, |object, _| {
                json!(text(object, "preemptionPolicy"))
            }),
        ])
        .strategy(Strategy {
            default: |object| typed::round_trip("scheduling.PriorityClass", object),
            generation: true,
            validate: |object| {
                let mut errors = Vec::new();
                let name = text(object, "metadata.name");
                let value = number(object, "value").unwrap_or(0);
                if name.starts_with("system-") {
                    let known = match name {
                        "system-node-critical" => Some(2_000_001_000),
                        "system-cluster-critical" => Some(2_000_000_000),
                        _ => None,
                    };
                    match known {
                        None => errors.push(FieldError::forbidden(
                            &Path::new("metadata.name"),
                            "priority class names with 'system-' prefix are reserved for system use only. error: ".to_owned()
                                + &format!("{name} is not a known system priority class"),
                        )),
                        Some(expected) if expected != value => errors.push(FieldError::forbidden(
                            &Path::new("metadata.name"),
                            format!("priority class names with 'system-' prefix are reserved for system use only. error: value of {name} PriorityClass must be {expected}"),
                        )),
                        Some(_) => {}
                    }
                } else if value > HIGHEST {
                    let detail = format!("maximum allowed value of a user defined priority is {HIGHEST}");
                    errors.push(FieldError::forbidden(&Path::new("value"), detail));
                }
                let policies = ["Never", "PreemptLowerPriority"];
                super::checks::one_of_if_set(object, "preemptionPolicy", &policies, &Path::root(), &mut errors);
                errors
            },
            validate_update: |new, old| {
                let mut errors = Vec::new();
                if number(new, "value") != number(old, "value") {
                    let detail = "may not be changed in an update.";
                    errors.push(FieldError::forbidden(&Path::new("value"), detail));
                }
                immutable(new, old, "preemptionPolicy", &mut errors);
                errors
            },
            ..Strategy::default()
        })
}

fn disruption_budget() -> Described {
    describe(
        "policy",
        "v1",
        "PodDisruptionBudget",
        "poddisruptionbudgets",
    )
    .short("pdb")
    .subresources([Subresource::Status])
    .columns(vec![
        columns::name(),
        columns::with("Min Available", "string", 0, |o, _| {
            json!(amount_text(o, "spec.minAvailable"))
        }),
        columns::with("Max Unavailable", "string", 0, |o, _| {
            json!(amount_text(o, "spec.maxUnavailable"))
        }),
        columns::with("Allowed Disruptions", "integer", 0, |o, _| {
            json!(number(o, "status.disruptionsAllowed").unwrap_or(0))
        }),
        columns::age(),
    ])
    .strategy(Strategy {
        default: |object| typed::round_trip("policy.PodDisruptionBudget", object),
        prepare_create: |object| {
            empty_status(object);
            typed::round_trip("policy.PodDisruptionBudget", object);
        },
        prepare_update: keep_status,
        validate: |object| {
            let mut errors = Vec::new();
            let spec = Path::new("spec");
            let both = ["minAvailable", "maxUnavailable"];
            if both
                .iter()
                .all(|name| at(object, &format!("spec.{name}")).is_some())
            {
                let detail = "minAvailable and maxUnavailable cannot be both set";
                let part = |name: &str| object.pointer(&format!("/spec/{name}")).cloned();
                let value = json!({
                    "MinAvailable": part("minAvailable"), "Selector": part("selector"),
                    "MaxUnavailable": part("maxUnavailable"),
                    "UnhealthyPodEvictionPolicy": part("unhealthyPodEvictionPolicy"),
                });
                errors.push(FieldError::invalid(&spec, value, detail).as_struct());
            }
            for name in both {
                let value = at(object, &format!("spec.{name}"));
                count_or_percent(value, &spec.child(name), &mut errors);
                not_over_whole(value, &spec.child(name), &mut errors);
            }
            if let Some(selector) = at(object, "spec.selector") {
                metadata::label_selector(selector, &spec.child("selector"), &mut errors);
            }
            let policies = ["AlwaysAllow", "IfHealthyBudget"];
            let object = object.get("spec").unwrap_or(&Value::Null);
            super::checks::one_of_if_set(
                object,
                "unhealthyPodEvictionPolicy",
                &policies,
                &spec,
                &mut errors,
            );
            errors
        },
        validate_status_update: |new, _| {
            let mut errors = Vec::new();
            let status = new.get("status").unwrap_or(&Value::Null);
            for name in [
                "disruptionsAllowed",
                "currentHealthy",
                "desiredHealthy",
                "expectedPods",
            ] {
                not_negative(status, name, &Path::new("status"), &mut errors);
            }
            errors
        },
        generation: true,
        unconditional_update: false,
        ..Strategy::default()
    })
}

fn amount_text(object: &Value, path: &str) -> String {
    match at(object, path) {
        Some(Value::String(text)) => text.clone(),
        Some(other) => other.to_string(),
        None => "N/A".to_owned(),
    }
}
