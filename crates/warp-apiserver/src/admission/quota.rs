//! Resource quota: what a namespace may hold in total.
//!
//! Usage is counted from the objects themselves, so it cannot drift; the caller keeps two creates
//! from counting at the same time.

use serde_json::Value;

use super::{Admission, AdmissionRequest, Operation, ReadState, Refusal, Warnings};
use crate::kinds::Quantity;
use crate::kinds::fields::{at, flag, list, number, text};
use crate::kinds::resources::{self, Amounts};

pub(super) struct Quotas;

impl Admission for Quotas {
    fn admit(
        &self,
        request: &mut AdmissionRequest<'_>,
        state: &dyn ReadState,
    ) -> Result<Warnings, Refusal> {
        let writes = matches!(request.operation, Operation::Create | Operation::Update);
        let Some(namespace) = request
            .namespace
            .filter(|_| writes && request.subresource.is_none())
        else {
            return Ok(Warnings::new());
        };
        let table = request.resource.table();
        for quota in state.list("resourcequotas", Some(namespace)) {
            check(&quota, request, &table, namespace, state)?;
        }
        Ok(Warnings::new())
    }
}

fn check(
    quota: &Value,
    request: &AdmissionRequest<'_>,
    table: &str,
    namespace: &str,
    state: &dyn ReadState,
) -> Result<(), Refusal> {
    let hard = resources::amounts(at(quota, "spec.hard"));
    let in_scope = |object: &Value| matches_scopes(quota, table, object);
    if !in_scope(request.object) {
        return Ok(());
    }
    let name = text(quota, "metadata.name");
    if table == "pods" && request.operation == Operation::Create {
        must_specify(name, &hard, request.object)?;
    }
    let mut asked = limited_to(usage(table, request.object), &hard);
    if let Some(old) = request.old.filter(|old| in_scope(old)) {
        let before = usage(table, old);
        asked = asked
            .into_iter()
            .map(|(name, amount)| {
                let before = before.get(&name).copied().unwrap_or(Quantity::ZERO);
                (name, amount.minus(before))
            })
            .filter(|(_, grown)| *grown > Quantity::ZERO)
            .collect();
    }
    if asked.is_empty() {
        return Ok(());
    }
    let mut used = Amounts::new();
    for object in state.list(table, Some(namespace)) {
        if in_scope(&object) {
            resources::add(&mut used, &usage(table, &object));
        }
    }
    let over: Vec<&String> = asked
        .iter()
        .filter(|(name, amount)| {
            let used = used.get(*name).copied().unwrap_or(Quantity::ZERO);
            used.plus(**amount) > hard[*name]
        })
        .map(|(name, _)| name)
        .collect();
    if over.is_empty() {
        return Ok(());
    }
    let show = |amounts: &Amounts| {
        over.iter()
            .map(|name| {
                format!(
                    "{name}={}",
                    amounts.get(*name).copied().unwrap_or(Quantity::ZERO)
                )
            })
            .collect::<Vec<_>>()
            .join(",")
    };
    Err(Refusal::forbidden(format!(
        "exceeded quota: {name}, requested: {}, used: {}, limited: {}",
        show(&asked),
        show(&used),
        show(&hard)
    )))
}

/// What a quota's status says is used once `object` is stored: the names it counts for, each with
/// the total over `objects` of its kind (the new one included).
pub(crate) fn used_with(
    quota: &Value,
    table: &str,
    object: &Value,
    objects: &[Value],
) -> Vec<(String, String)> {
    if !matches_scopes(quota, table, object) {
        return Vec::new();
    }
    let hard = resources::amounts(at(quota, "spec.hard"));
    let mut used = Amounts::new();
    for object in objects {
        if matches_scopes(quota, table, object) {
            resources::add(&mut used, &usage(table, object));
        }
    }
    limited_to(usage(table, object), &hard)
        .into_keys()
        .map(|name| {
            let amount = used.get(&name).copied().unwrap_or(Quantity::ZERO);
            (name, amount.to_string())
        })
        .collect()
}

fn limited_to(amounts: Amounts, hard: &Amounts) -> Amounts {
    amounts
        .into_iter()
        .filter(|(name, _)| hard.contains_key(name))
        .collect()
}

/// A quota on compute makes every container say what it needs.
fn must_specify(quota: &str, hard: &Amounts, pod: &Value) -> Result<(), Refusal> {
    let mut missing: Vec<String> = Vec::new();
    for (resource, member, name) in [
        ("cpu", "requests", "cpu"),
        ("memory", "requests", "memory"),
        ("requests.cpu", "requests", "cpu"),
        ("requests.memory", "requests", "memory"),
        ("limits.cpu", "limits", "cpu"),
        ("limits.memory", "limits", "memory"),
    ] {
        if !hard.contains_key(resource) {
            continue;
        }
        let whole = at(pod, &format!("spec.resources.{member}.{name}")).is_some();
        let without: Vec<&str> = list(pod, "spec.containers")
            .iter()
            .chain(list(pod, "spec.initContainers"))
            .filter(|container| {
                let given = container.get("resources").and_then(|r| r.get(member));
                given.and_then(|amounts| amounts.get(name)).is_none()
            })
            .map(|container| text(container, "name"))
            .collect();
        if !without.is_empty() && !whole {
            missing.push(format!("{resource} for: {}", without.join(",")));
        }
    }
    if missing.is_empty() {
        return Ok(());
    }
    missing.sort();
    Err(Refusal::forbidden(format!(
        "failed quota: {quota}: must specify {}",
        missing.join("; ")
    )))
}

/// What one object counts for, by every name a quota may use.
pub(crate) fn usage(table: &str, object: &Value) -> Amounts {
    let one = Quantity::from_whole(1);
    let mut amounts = Amounts::new();
    if table == "pods" && crate::kinds::pod::is_terminal(object) {
        // Finished pods hold nothing, but they are still there to be counted as objects.
        amounts.insert("count/pods".to_owned(), one);
        return amounts;
    }
    amounts.insert(format!("count/{table}"), one);
    match table {
        "pods" => {
            amounts.insert("pods".to_owned(), one);
            pod_usage(object, &mut amounts);
        }
        "services" => {
            amounts.insert("services".to_owned(), one);
            let kind = text(object, "spec.type");
            let count = i64::try_from(list(object, "spec.ports").len()).unwrap_or(i64::MAX);
            if kind == "LoadBalancer" {
                amounts.insert("services.loadbalancers".to_owned(), one);
            }
            let ports = kind == "NodePort"
                || (kind == "LoadBalancer" && flag(object, "spec.allocateLoadBalancerNodePorts"));
            if ports {
                amounts.insert("services.nodeports".to_owned(), Quantity::from_whole(count));
            }
        }
        "persistentvolumeclaims" => claim_usage(object, &mut amounts),
        "configmaps" | "secrets" | "resourcequotas" | "replicationcontrollers" => {
            amounts.insert(table.to_owned(), one);
        }
        _ => {}
    }
    amounts
}

fn pod_usage(pod: &Value, amounts: &mut Amounts) {
    let spec = pod.get("spec").unwrap_or(&Value::Null);
    for (name, amount) in resources::pod_requests(spec) {
        if matches!(name.as_str(), "cpu" | "memory" | "ephemeral-storage")
            || name.starts_with("hugepages-")
        {
            amounts.insert(name.clone(), amount);
        }
        amounts.insert(format!("requests.{name}"), amount);
    }
    for (name, amount) in resources::pod_limits(spec) {
        amounts.insert(format!("limits.{name}"), amount);
    }
}

fn claim_usage(claim: &Value, amounts: &mut Amounts) {
    let one = Quantity::from_whole(1);
    let class = text(claim, "spec.storageClassName");
    amounts.insert("persistentvolumeclaims".to_owned(), one);
    let storage = at(claim, "spec.resources.requests.storage").and_then(Quantity::of);
    if !class.is_empty() {
        let prefix = format!("{class}.storageclass.storage.k8s.io");
        amounts.insert(format!("{prefix}/persistentvolumeclaims"), one);
        if let Some(storage) = storage {
            amounts.insert(format!("{prefix}/requests.storage"), storage);
        }
    }
    if let Some(storage) = storage {
        amounts.insert("requests.storage".to_owned(), storage);
    }
}

/// Whether a quota's scopes choose an object. Only pods have scopes; a scoped quota leaves the
/// rest alone.
fn matches_scopes(quota: &Value, table: &str, object: &Value) -> bool {
    let scopes = list(quota, "spec.scopes");
    let expressions = list(quota, "spec.scopeSelector.matchExpressions");
    if scopes.is_empty() && expressions.is_empty() {
        return true;
    }
    if table != "pods" {
        return false;
    }
    scopes
        .iter()
        .filter_map(Value::as_str)
        .all(|scope| in_scope(scope, "Exists", &[], object))
        && expressions.iter().all(|expression| {
            let values: Vec<&str> = list(expression, "values")
                .iter()
                .filter_map(Value::as_str)
                .collect();
            in_scope(
                text(expression, "scopeName"),
                text(expression, "operator"),
                &values,
                object,
            )
        })
}

fn in_scope(scope: &str, operator: &str, values: &[&str], pod: &Value) -> bool {
    let spec = pod.get("spec").unwrap_or(&Value::Null);
    let deadline = number(spec, "activeDeadlineSeconds").is_some_and(|seconds| seconds >= 0);
    match scope {
        "Terminating" => deadline,
        "NotTerminating" => !deadline,
        "BestEffort" => resources::quality_of_service(spec) == "BestEffort",
        "NotBestEffort" => resources::quality_of_service(spec) != "BestEffort",
        "PriorityClass" => {
            let class = text(spec, "priorityClassName");
            match operator {
                "In" => values.contains(&class),
                "NotIn" => !values.contains(&class),
                "DoesNotExist" => class.is_empty(),
                _ => !class.is_empty(),
            }
        }
        "CrossNamespacePodAffinity" => {
            let terms = ["podAffinity", "podAntiAffinity"].iter().flat_map(|kind| {
                [
                    "requiredDuringSchedulingIgnoredDuringExecution",
                    "preferredDuringSchedulingIgnoredDuringExecution",
                ]
                .iter()
                .flat_map(move |when| list(spec, &format!("affinity.{kind}.{when}")))
            });
            terms.into_iter().any(|term| {
                let term = term.get("podAffinityTerm").unwrap_or(term);
                !list(term, "namespaces").is_empty() || at(term, "namespaceSelector").is_some()
            })
        }
        _ => false,
    }
}
