//! What new pods get: a service account, a priority, and patience with nodes that falter.

use serde_json::{Value, json};

use super::{Admission, AdmissionRequest, Operation, ReadState, Refusal, Warnings};
use crate::kinds::fields::{at, flag, list, number, text};

/// Every pod runs as some service account.
pub(super) struct ServiceAccounts;

impl Admission for ServiceAccounts {
    fn admit(
        &self,
        request: &mut AdmissionRequest<'_>,
        state: &dyn ReadState,
    ) -> Result<Warnings, Refusal> {
        if !request.is(Operation::Create, "pods") {
            return Ok(Warnings::new());
        }
        let named = text(request.object, "spec.serviceAccountName").to_owned();
        let name = if named.is_empty() { "default" } else { &named };
        let namespace = request.namespace.unwrap_or_default();
        let account = state.get("serviceaccounts", Some(namespace), name);
        // The default account is made by a controller; a pod does not have to wait for it here,
        // because no token is mounted.
        if account.is_none() && name != "default" {
            return Err(Refusal::forbidden(format!(
                "error looking up service account {namespace}/{name}: serviceaccount \"{name}\" \
                 not found"
            )));
        }
        let name = json!(name);
        request.object["spec"]["serviceAccountName"] = name.clone();
        request.object["spec"]["serviceAccount"] = name;
        if list(request.object, "spec.imagePullSecrets").is_empty()
            && let Some(secrets) = account
                .as_ref()
                .and_then(|account| at(account, "imagePullSecrets"))
        {
            request.object["spec"]["imagePullSecrets"] = secrets.clone();
        }
        Ok(Warnings::new())
    }
}

/// Names of priority classes become numbers, and those of runtime classes are of nothing.
pub(super) struct Priorities;

impl Admission for Priorities {
    fn admit(
        &self,
        request: &mut AdmissionRequest<'_>,
        state: &dyn ReadState,
    ) -> Result<Warnings, Refusal> {
        if request.is(Operation::Create, "priorityclasses.scheduling.k8s.io")
            || request.is(Operation::Update, "priorityclasses.scheduling.k8s.io")
        {
            only_one_default(request, state)?;
        } else if request.is(Operation::Create, "pods") {
            pod_priority(request.object, state)?;
            runtime_class(request.object)?;
        }
        Ok(Warnings::new())
    }
}

/// There are no runtime classes here: a pod that names one would run with what it did not ask for.
fn runtime_class(pod: &Value) -> Result<(), Refusal> {
    match text(pod, "spec.runtimeClassName") {
        "" => Ok(()),
        name => Err(Refusal::forbidden(format!(
            "pod rejected: RuntimeClass {name:?} not found"
        ))),
    }
}

fn default_class(state: &dyn ReadState) -> Option<Value> {
    state
        .list("priorityclasses.scheduling.k8s.io", None)
        .into_iter()
        .filter(|class| flag(class, "globalDefault"))
        .min_by_key(|class| number(class, "value").unwrap_or(0))
}

fn only_one_default(request: &AdmissionRequest<'_>, state: &dyn ReadState) -> Result<(), Refusal> {
    if !flag(request.object, "globalDefault") {
        return Ok(());
    }
    match default_class(state).filter(|known| text(known, "metadata.name") != request.name) {
        Some(known) => Err(Refusal::forbidden(format!(
            "PriorityClass {} is already marked as globalDefault",
            text(&known, "metadata.name")
        ))),
        None => Ok(()),
    }
}

fn pod_priority(pod: &mut Value, state: &dyn ReadState) -> Result<(), Refusal> {
    let name = text(pod, "spec.priorityClassName").to_owned();
    let class = if name.is_empty() {
        default_class(state)
    } else {
        let found = state.get("priorityclasses.scheduling.k8s.io", None, &name);
        if found.is_none() {
            return Err(Refusal::forbidden(format!(
                "no PriorityClass with name {name} was found"
            )));
        }
        found
    };
    let value = class
        .as_ref()
        .and_then(|class| number(class, "value"))
        .unwrap_or(0);
    let policy = match class.as_ref().map(|class| text(class, "preemptionPolicy")) {
        None | Some("") => "PreemptLowerPriority",
        Some(policy) => policy,
    }
    .to_owned();
    if let Some(given) = number(pod, "spec.priority").filter(|given| *given != value) {
        return Err(Refusal::forbidden(format!(
            "the integer value of priority ({given}) must not be provided in pod spec; priority \
             admission controller computed {value} from the given PriorityClass name"
        )));
    }
    let given = text(pod, "spec.preemptionPolicy");
    if !given.is_empty() && given != policy {
        return Err(Refusal::forbidden(format!(
            "the string value of PreemptionPolicy ({given}) must not be provided in pod spec; \
             priority admission controller computed {policy} from the given PriorityClass name"
        )));
    }
    if let Some(class) = class {
        pod["spec"]["priorityClassName"] = json!(text(&class, "metadata.name"));
    }
    pod["spec"]["priority"] = json!(value);
    pod["spec"]["preemptionPolicy"] = json!(policy);
    Ok(())
}

/// Pods stay five minutes on a node that is not ready or cannot be reached.
pub(super) struct DefaultTolerations;

impl Admission for DefaultTolerations {
    fn admit(
        &self,
        request: &mut AdmissionRequest<'_>,
        _state: &dyn ReadState,
    ) -> Result<Warnings, Refusal> {
        if !request.is(Operation::Create, "pods") && !request.is(Operation::Update, "pods") {
            return Ok(Warnings::new());
        }
        let mut tolerations = list(request.object, "spec.tolerations").to_vec();
        let before = tolerations.len();
        for key in [
            "node.kubernetes.io/not-ready",
            "node.kubernetes.io/unreachable",
        ] {
            let tolerated = tolerations[..before].iter().any(|toleration| {
                let (known, effect) = (text(toleration, "key"), text(toleration, "effect"));
                (known == key || known.is_empty()) && (effect == "NoExecute" || effect.is_empty())
            });
            if !tolerated {
                tolerations.push(json!({
                    "key": key, "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 300,
                }));
            }
        }
        if tolerations.len() > before {
            request.object["spec"]["tolerations"] = Value::Array(tolerations);
        }
        Ok(Warnings::new())
    }
}
