//! Limit ranges: defaults for containers that say nothing, bounds for those that do.

use std::collections::BTreeMap;

use serde_json::{Map, Value, json};

use super::{Admission, AdmissionRequest, Operation, ReadState, Refusal, Warnings};
use crate::kinds::Quantity;
use crate::kinds::fields::{at, list, text};
use crate::kinds::resources::{self, Amounts};

pub(super) struct LimitRanges;

impl Admission for LimitRanges {
    fn admit(
        &self,
        request: &mut AdmissionRequest<'_>,
        state: &dyn ReadState,
    ) -> Result<Warnings, Refusal> {
        let pod = request.is(Operation::Create, "pods");
        let claim = request.is(Operation::Create, "persistentvolumeclaims")
            || request.is(Operation::Update, "persistentvolumeclaims");
        if !pod && !claim {
            return Ok(Warnings::new());
        }
        let ranges = state.list("limitranges", request.namespace);
        let items: Vec<&Value> = ranges
            .iter()
            .flat_map(|range| list(range, "spec.limits"))
            .collect();
        if pod {
            for range in &ranges {
                fill(request.object, range);
            }
        }
        let mut problems = Vec::new();
        for item in items {
            match (text(item, "type"), pod) {
                ("Container", true) => {
                    let spec = request.object.get("spec").unwrap_or(&Value::Null);
                    for kind in ["containers", "initContainers"] {
                        for container in list(spec, kind) {
                            let resources = container.get("resources").unwrap_or(&Value::Null);
                            let requests = resources::amounts(resources.get("requests"));
                            let limits = resources::amounts(resources.get("limits"));
                            check(item, "Container", &requests, &limits, &mut problems);
                        }
                    }
                }
                ("Pod", true) => {
                    let spec = request.object.get("spec").unwrap_or(&Value::Null);
                    let requests = resources::pod_requests(spec);
                    let limits = resources::pod_limits(spec);
                    check(item, "Pod", &requests, &limits, &mut problems);
                }
                ("PersistentVolumeClaim", false) => {
                    let requests =
                        resources::amounts(at(request.object, "spec.resources.requests"));
                    check_claim(item, &requests, &mut problems);
                }
                _ => {}
            }
        }
        match problems.len() {
            0 => Ok(Warnings::new()),
            1 => Err(Refusal::forbidden(problems.remove(0))),
            _ => Err(Refusal::forbidden(format!("[{}]", problems.join(", ")))),
        }
    }
}

/// Defaults of a limit range for the containers of a pod, noted in an annotation.
fn fill(pod: &mut Value, range: &Value) {
    let mut notes = Vec::new();
    let (mut requests, mut limits) = (BTreeMap::new(), BTreeMap::new());
    for item in list(range, "spec.limits")
        .iter()
        .filter(|item| text(item, "type") == "Container")
    {
        for (member, into) in [("defaultRequest", &mut requests), ("default", &mut limits)] {
            let amounts = item.get(member).and_then(Value::as_object);
            for (name, amount) in amounts.into_iter().flatten() {
                into.insert(name.clone(), amount.clone());
            }
        }
    }
    for (kind, word) in [
        ("containers", "container"),
        ("initContainers", "init container"),
    ] {
        let containers = pod
            .pointer_mut(&format!("/spec/{kind}"))
            .and_then(Value::as_array_mut);
        for container in containers.into_iter().flatten() {
            let name = text(container, "name").to_owned();
            for (member, amounts) in [("requests", &requests), ("limits", &limits)] {
                let set = merge(container, member, amounts);
                if !set.is_empty() {
                    let what = member.trim_end_matches('s');
                    notes.push(format!("{} {what} for {word} {name}", set.join(", ")));
                }
            }
        }
    }
    if !notes.is_empty() {
        let text = format!("LimitRanger plugin set: {}", notes.join("; "));
        let annotations = &mut pod["metadata"]["annotations"];
        if !annotations.is_object() {
            *annotations = Value::Object(Map::new());
        }
        annotations["kubernetes.io/limit-ranger"] = json!(text);
    }
}

fn merge(container: &mut Value, member: &str, amounts: &BTreeMap<String, Value>) -> Vec<String> {
    if amounts.is_empty() {
        return Vec::new();
    }
    let known = &mut container["resources"][member];
    if !known.is_object() {
        *known = Value::Object(Map::new());
    }
    let Some(known) = known.as_object_mut() else {
        return Vec::new();
    };
    let mut set = Vec::new();
    for (name, amount) in amounts {
        if !known.contains_key(name) {
            known.insert(name.clone(), amount.clone());
            set.push(name.clone());
        }
    }
    set
}

fn check(
    item: &Value,
    kind: &str,
    requests: &Amounts,
    limits: &Amounts,
    problems: &mut Vec<String>,
) {
    for (name, min) in resources::amounts(item.get("min")) {
        let least = format!("minimum {name} usage per {kind} is {min}");
        match requests.get(&name) {
            None => problems.push(format!("{least}.  No request is specified")),
            Some(request) if *request < min => {
                problems.push(format!("{least}, but request is {request}"));
            }
            Some(_) => {}
        }
        if let Some(limit) = limits.get(&name).filter(|limit| **limit < min) {
            problems.push(format!("{least}, but limit is {limit}"));
        }
    }
    for (name, max) in resources::amounts(item.get("max")) {
        let most = format!("maximum {name} usage per {kind} is {max}");
        match limits.get(&name) {
            None => problems.push(format!("{most}.  No limit is specified")),
            Some(limit) if *limit > max => problems.push(format!("{most}, but limit is {limit}")),
            Some(_) => {}
        }
        if let Some(request) = requests.get(&name).filter(|request| **request > max) {
            problems.push(format!("{most}, but request is {request}"));
        }
    }
    for (name, most) in resources::amounts(item.get("maxLimitRequestRatio")) {
        let words = format!("{name} max limit to request ratio per {kind} is {most}");
        match (requests.get(&name), limits.get(&name)) {
            (Some(request), Some(limit)) if !request.is_zero() => {
                let ratio = limit.as_f64() / request.as_f64();
                if ratio > most.as_f64() {
                    problems.push(format!("{words}, but provided ratio is {ratio:.6}"));
                }
            }
            (None, _) | (Some(_), Some(_)) => {
                problems.push(format!(
                    "{words}, but no request is specified or request is 0"
                ));
            }
            (Some(_), None) => {
                problems.push(format!("{words}, but no limit is specified or limit is 0"));
            }
        }
    }
}

fn check_claim(item: &Value, requests: &Amounts, problems: &mut Vec<String>) {
    let asked = requests.get("storage").copied().unwrap_or(Quantity::ZERO);
    let kind = "PersistentVolumeClaim";
    if let Some(min) = resources::amounts(item.get("min"))
        .get("storage")
        .filter(|min| asked < **min)
    {
        problems.push(format!(
            "minimum storage usage per {kind} is {min}, but request is {asked}"
        ));
    }
    if let Some(max) = resources::amounts(item.get("max"))
        .get("storage")
        .filter(|max| asked > **max)
    {
        problems.push(format!(
            "maximum storage usage per {kind} is {max}, but request is {asked}"
        ));
    }
}
