//! Changes of a workload as commands to paste. A change no field of the workload expresses is said in
//! words alone.

use serde_json::{Value, json};
use warp_api::GPUWorkload;
use warp_core::explain::{Change, OtherUnit};

use super::Step;
use crate::cluster::quoted;

/// One step for each set of changes, in the order given.
pub(crate) fn steps(workload: &GPUWorkload, changes: &[Vec<Change>], flags: &str) -> Vec<Step> {
    let name = workload.metadata.name.as_deref().unwrap_or_default();
    changes
        .iter()
        .map(|set| {
            let words: Vec<String> = set.iter().map(ToString::to_string).collect();
            let patch = patch(workload, set);
            Step {
                what: words.join(" and "),
                command: patch.map(|patch| {
                    format!(
                        "warp patch gpuw/{name}{flags} -p {}",
                        quoted(&patch.to_string())
                    )
                }),
            }
        })
        .collect()
}

/// The merge patch that makes all of the changes.
fn patch(workload: &GPUWorkload, changes: &[Change]) -> Option<Value> {
    let mut whole = json!({"spec": {}});
    for change in changes {
        merge(&mut whole["spec"], one(workload, change)?);
    }
    Some(whole)
}

fn merge(into: &mut Value, from: Value) {
    match (into, from) {
        (Value::Object(into), Value::Object(from)) => {
            for (key, value) in from {
                merge(into.entry(key).or_insert(json!({})), value);
            }
        }
        (into, from) => *into = from,
    }
}

/// The fields of the spec a change sets.
fn one(workload: &GPUWorkload, change: &Change) -> Option<Value> {
    let spec = &workload.spec;
    let models = spec.gpu.as_ref().map_or(&[][..], |gpu| &gpu.models);
    let template = spec.pod_template.as_ref();
    let pod = template.and_then(|template| template.spec.as_ref());
    match change {
        // GPUs a template names itself would have to change with the count.
        Change::FewerGpus(count) if pod.is_none() => Some(json!({"gpuCount": count})),
        Change::SmallerFraction(milli) => {
            let digits = format!("{milli:03}");
            Some(json!({"gpu": {"fraction": format!("0.{}", digits.trim_end_matches('0'))}}))
        }
        Change::Unit(other) if pod.is_none() => Some(match other {
            OtherUnit::Whole => json!({"gpu": {
                "sharing": null, "fraction": null, "partition": null, "isolation": null,
            }}),
            OtherUnit::Shared(isolation) => json!({"gpuCount": 1, "gpu": {
                "sharing": "shared", "fraction": null, "partition": null, "isolation": isolation.as_str(),
            }}),
            OtherUnit::Partition(name) => json!({"gpu": {
                "sharing": null, "fraction": null, "partition": name, "isolation": null,
            }}),
        }),
        Change::AlsoModel(model) => {
            let mut models: Vec<&str> = models.iter().map(String::as_str).collect();
            models.push(model);
            Some(json!({"gpu": {"models": models}}))
        }
        Change::Vendor(vendor) if models.is_empty() => Some(json!({"gpu": {"vendor": vendor}})),
        Change::LessGpuMemory(0) => Some(json!({"gpu": {"minMemory": null}})),
        Change::LessGpuMemory(bytes) => {
            Some(json!({"gpu": {"minMemory": format!("{}Mi", bytes >> 20)}}))
        }
        Change::LessCpu(milli) if pod.is_none() => Some(asked("cpu", &format!("{milli}m"))),
        Change::LessMemory(bytes) if pod.is_none() => Some(asked("memory", &bytes.to_string())),
        Change::Less(name, amount) if pod.is_none() => Some(asked(name, &amount.to_string())),
        Change::DropSelector(key) if pod.is_some() => {
            Some(json!({"podTemplate": {"spec": {"nodeSelector": {&**key: null}}}}))
        }
        Change::DropNodeName if pod.is_some() => {
            Some(json!({"podTemplate": {"spec": {"nodeName": null}}}))
        }
        Change::DropNodeAffinity if pod.is_some() => {
            Some(json!({"podTemplate": {"spec": {"affinity": {"nodeAffinity": null}}}}))
        }
        Change::Tolerate(taint) => {
            let mut tolerations = serde_json::to_value(pod?.tolerations.as_deref()).ok()?;
            if tolerations.is_null() {
                tolerations = json!([]);
            }
            tolerations.as_array_mut()?.push(json!({
                "key": taint.key, "operator": "Equal", "value": taint.value,
                "effect": format!("{:?}", taint.effect),
            }));
            Some(json!({"podTemplate": {"spec": {"tolerations": tolerations}}}))
        }
        _ => None,
    }
}

/// A smaller request; a limit of the same name would otherwise stand for it.
fn asked(name: &str, amount: &str) -> Value {
    json!({"resources": {"requests": {name: amount}}})
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use warp_core::fleet::{Effect, Taint};

    use super::*;

    fn workload(spec: &Value) -> GPUWorkload {
        serde_json::from_value(json!({
            "apiVersion": "gpu.warp.dev/v1alpha1", "kind": "GPUWorkload",
            "metadata": {"name": "train"}, "spec": spec,
        }))
        .unwrap()
    }

    #[test]
    fn changes_of_one_set_become_one_command() {
        let found = workload(
            &json!({"modelName": "m", "gpuCount": 8, "image": "i", "gpu": {"models": ["H100"]}}),
        );
        let changes = [vec![
            Change::FewerGpus(4),
            Change::AlsoModel(Arc::from("A100-80GB")),
        ]];
        let told = steps(&found, &changes, " -n a");
        assert_eq!(told[0].what, "ask for 4 GPUs and accept model A100-80GB");
        let command = told[0].command.as_deref().unwrap();
        let patch = command
            .strip_prefix("warp patch gpuw/train -n a -p '")
            .unwrap();
        let patch: Value = serde_json::from_str(patch.strip_suffix('\'').unwrap()).unwrap();
        assert_eq!(
            patch,
            json!({"spec": {"gpu": {"models": ["H100", "A100-80GB"]}, "gpuCount": 4}})
        );
    }

    #[test]
    fn a_toleration_is_added_to_those_the_template_has() {
        let found = workload(
            &json!({"modelName": "m", "gpuCount": 1, "podTemplate": {"spec": {
            "containers": [{"name": "c", "image": "i"}], "tolerations": [{"key": "a", "operator": "Exists"}]}}}),
        );
        let taint = Taint::new("team", "x", Effect::NoSchedule);
        let patch = patch(&found, &[Change::Tolerate(taint)]).unwrap();
        let added = &patch["spec"]["podTemplate"]["spec"]["tolerations"];
        assert_eq!(added[0]["key"], "a");
        assert_eq!(
            added[1],
            json!({"key": "team", "operator": "Equal", "value": "x", "effect": "NoSchedule"})
        );
    }

    #[test]
    fn what_no_field_expresses_is_said_without_a_command() {
        let found = workload(&json!({"modelName": "m", "gpuCount": 1, "image": "i"}));
        let told = steps(&found, &[vec![Change::DropSpread(0)]], "");
        assert_eq!(told[0].command, None);
        let taint = Taint::new("team", "x", Effect::NoSchedule);
        assert_eq!(patch(&found, &[Change::Tolerate(taint)]), None);
    }
}
