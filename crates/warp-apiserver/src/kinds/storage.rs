//! PersistentVolume and StorageClass.

use serde_json::{Value, json};

use super::checks::{Errors, immutable, named, one_of_if_set, required};
use super::config::is_deleting;
use super::fields::{at, entries, flag, list, text};
use super::{Described, claim, columns, describe, keep_status, metadata, pod, typed};
use crate::registry::resource::{Strategy, Subresource};
use crate::schema::{FieldError, Path};

pub(super) fn descriptors() -> Vec<Described> {
    vec![volume(), class()]
}

/// `RWO,ROX,RWX,RWOP`, in that order, each once.
pub(super) fn access_modes_text(modes: &[Value]) -> String {
    let has = |mode: &str| modes.iter().any(|known| known == mode);
    [
        ("ReadWriteOnce", "RWO"),
        ("ReadOnlyMany", "ROX"),
        ("ReadWriteMany", "RWX"),
        ("ReadWriteOncePod", "RWOP"),
    ]
    .iter()
    .filter(|(mode, _)| has(mode))
    .map(|(_, short)| *short)
    .collect::<Vec<_>>()
    .join(",")
}

fn volume() -> Described {
    let with = columns::with;
    describe("", "v1", "PersistentVolume", "persistentvolumes")
        .short("pv")
        .cluster()
        .subresources([Subresource::Status])
        .columns(vec![
            columns::name(),
            with("Capacity", "string", 0, |o, _| {
                json!(text(o, "spec.capacity.storage"))
            }),
            with("Access Modes", "string", 0, |o, _| {
                json!(access_modes_text(list(o, "spec.accessModes")))
            }),
            with("Reclaim Policy", "string", 0, |o, _| {
                json!(text(o, "spec.persistentVolumeReclaimPolicy"))
            }),
            with("Status", "string", 0, |o, _| {
                json!(if is_deleting(o) {
                    "Terminating"
                } else {
                    text(o, "status.phase")
                })
            }),
            with("Claim", "string", 0, |o, _| match at(o, "spec.claimRef") {
                Some(claim) => json!(format!(
                    "{}/{}",
                    text(claim, "namespace"),
                    text(claim, "name")
                )),
                None => json!(""),
            }),
            with("StorageClass", "string", 0, |o, _| {
                json!(text(o, "spec.storageClassName"))
            }),
            with("VolumeAttributesClass", "string", 0, |o, _| {
                columns::unset_if_empty(text(o, "spec.volumeAttributesClassName"))
            }),
            with("Reason", "string", 0, |o, _| {
                json!(text(o, "status.reason"))
            }),
            columns::age(),
            with("VolumeMode", "string", 1, |o, _| {
                columns::unset_if_empty(text(o, "spec.volumeMode"))
            }),
        ])
        .strategy(Strategy {
            default: |object| typed::round_trip("core.PersistentVolume", object),
            prepare_create: |object| object["status"] = json!({"phase": "Pending"}),
            prepare_update: keep_status,
            validate: validate_volume,
            validate_update: |new, old| {
                let mut errors = Vec::new();
                if source(new) != source(old) {
                    let detail = "spec.persistentvolumesource is immutable after creation\n";
                    let path = Path::new("spec.persistentvolumesource");
                    errors.push(FieldError::forbidden(&path, detail));
                }
                immutable(new, old, "spec.volumeMode", &mut errors);
                errors
            },
            return_deleted: true,
            ..Strategy::default()
        })
}

const NOT_SOURCES: [&str; 9] = [
    "capacity",
    "accessModes",
    "claimRef",
    "persistentVolumeReclaimPolicy",
    "storageClassName",
    "mountOptions",
    "volumeMode",
    "nodeAffinity",
    "volumeAttributesClassName",
];

fn source(object: &Value) -> Vec<(&String, &Value)> {
    entries(object, "spec")
        .filter(|(name, _)| !NOT_SOURCES.contains(&name.as_str()))
        .collect()
}

fn validate_volume(object: &Value) -> Errors {
    let mut errors = Vec::new();
    let path = Path::new("spec");
    let spec = object.get("spec").unwrap_or(&Value::Null);
    claim::access_modes(spec, "", &path, &mut errors);
    let capacity: Vec<_> = entries(spec, "capacity").collect();
    if capacity.is_empty() {
        errors.push(FieldError::required(&path.child("capacity"), ""));
    }
    if capacity.len() != 1 || capacity[0].0 != "storage" {
        let value = spec.get("capacity").cloned().unwrap_or(Value::Null);
        errors.push(FieldError::not_supported(
            &path.child("capacity"),
            value,
            &["storage"],
        ));
    }
    for (name, amount) in capacity {
        claim::positive(amount, &path.child("capacity").key(name), &mut errors);
    }
    let policies = ["Delete", "Recycle", "Retain"];
    one_of_if_set(
        spec,
        "persistentVolumeReclaimPolicy",
        &policies,
        &path,
        &mut errors,
    );
    let affinity = at(spec, "nodeAffinity.required");
    if let Some(selector) = affinity {
        let path = path.child("nodeAffinity").child("required");
        pod::node_selector(selector, &path, &mut errors);
    }
    let sources = source(object);
    if sources.is_empty() {
        errors.push(FieldError::required(&path, "must specify a volume type"));
    }
    for (index, (name, value)) in sources.into_iter().enumerate() {
        let here = path.child(name);
        if index > 0 {
            let detail = "may not specify more than 1 volume type";
            errors.push(FieldError::forbidden(&here, detail));
            continue;
        }
        match name.as_str() {
            "hostPath" | "local" => {
                required(text(value, "path"), &here.child("path"), &mut errors);
                super::checks::no_back_steps(text(value, "path"), &here.child("path"), &mut errors);
                if name == "local" && affinity.is_none() {
                    let detail = "Local volume requires node affinity";
                    errors.push(FieldError::required(&path.child("nodeAffinity"), detail));
                }
            }
            "nfs" => {
                required(text(value, "server"), &here.child("server"), &mut errors);
                required(text(value, "path"), &here.child("path"), &mut errors);
            }
            "csi" => {
                required(text(value, "driver"), &here.child("driver"), &mut errors);
                required(
                    text(value, "volumeHandle"),
                    &here.child("volumeHandle"),
                    &mut errors,
                );
            }
            _ => {}
        }
    }
    let class = text(spec, "storageClassName");
    if !class.is_empty() {
        named(
            metadata::subdomain(class),
            class,
            &path.child("storageClassName"),
            &mut errors,
        );
    }
    one_of_if_set(
        spec,
        "volumeMode",
        &["Block", "Filesystem"],
        &path,
        &mut errors,
    );
    errors
}

fn class() -> Described {
    let with = columns::with;
    describe("storage.k8s.io", "v1", "StorageClass", "storageclasses")
        .short("sc")
        .cluster()
        .columns(vec![
            with("Name", "string", 0, |o, _| {
                let default = o
                    .pointer("/metadata/annotations")
                    .and_then(|map| map.get("storageclass.kubernetes.io/is-default-class"))
                    .is_some_and(|value| value == "true");
                let name = text(o, "metadata.name");
                json!(if default {
                    format!("{name} (default)")
                } else {
                    name.to_owned()
                })
            }),
            with("Provisioner", "string", 0, |o, _| {
                json!(text(o, "provisioner"))
            }),
            with("ReclaimPolicy", "string", 0, |o, _| {
                json!(text(o, "reclaimPolicy"))
            }),
            with("VolumeBindingMode", "string", 0, |o, _| {
                json!(text(o, "volumeBindingMode"))
            }),
            with("AllowVolumeExpansion", "boolean", 0, |o, _| {
                json!(flag(o, "allowVolumeExpansion"))
            }),
            columns::age(),
        ])
        .strategy(Strategy {
            default: |object| typed::round_trip("storage.StorageClass", object),
            validate: |object| {
                let mut errors = Vec::new();
                let root = Path::root();
                let provisioner = text(object, "provisioner");
                let path = Path::new("provisioner");
                required(provisioner, &path, &mut errors);
                if !provisioner.is_empty() {
                    let problems = metadata::qualified_name(&provisioner.to_lowercase());
                    named(problems, provisioner, &path, &mut errors);
                }
                one_of_if_set(
                    object,
                    "reclaimPolicy",
                    &["Delete", "Retain"],
                    &root,
                    &mut errors,
                );
                let modes = ["Immediate", "WaitForFirstConsumer"];
                one_of_if_set(object, "volumeBindingMode", &modes, &root, &mut errors);
                errors
            },
            validate_update: |new, old| {
                let mut errors = Vec::new();
                for name in ["parameters", "provisioner"] {
                    if at(new, name) != at(old, name) {
                        let detail = "updates to parameters are forbidden.";
                        let detail = if name == "provisioner" {
                            "updates to provisioner are forbidden."
                        } else {
                            detail
                        };
                        errors.push(FieldError::forbidden(&Path::new(name), detail));
                    }
                }
                for name in ["reclaimPolicy", "volumeBindingMode"] {
                    immutable(new, old, name, &mut errors);
                }
                errors
            },
            ..Strategy::default()
        })
}
