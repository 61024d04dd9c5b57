//! The downward API: fields of a pod and of its resources as text.

use k8s_openapi::api::core::v1::{Container, ObjectFieldSelector, Pod, ResourceFieldSelector};
use warp_core::resources::Quantity;

use super::ContentError;

/// The machine's share a container gets when it sets no limit.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Machine {
    pub(crate) cpu_milli: i64,
    pub(crate) memory: i64,
}

/// Where a pod is; empty where it is not known.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Place<'a> {
    pub(crate) pod: &'a str,
    pub(crate) host: &'a str,
}

/// A field of the pod, as `fieldRef` names it.
pub(crate) fn of_pod(
    pod: &Pod,
    selector: &ObjectFieldSelector,
    place: Place<'_>,
) -> Result<String, ContentError> {
    let path = selector.field_path.as_str();
    let meta = &pod.metadata;
    let spec = pod.spec.as_ref();
    let text = |value: Option<&String>| Ok(value.cloned().unwrap_or_default());
    match path {
        "metadata.name" => text(meta.name.as_ref()),
        "metadata.namespace" => text(meta.namespace.as_ref()),
        "metadata.uid" => text(meta.uid.as_ref()),
        "metadata.labels" => Ok(lines(meta.labels.as_ref())),
        "metadata.annotations" => Ok(lines(meta.annotations.as_ref())),
        "spec.nodeName" => text(spec.and_then(|spec| spec.node_name.as_ref())),
        "spec.serviceAccountName" => text(spec.and_then(|spec| spec.service_account_name.as_ref())),
        "status.hostIP" | "status.hostIPs" => Ok(place.host.to_owned()),
        "status.podIP" | "status.podIPs" => Ok(place.pod.to_owned()),
        _ => {
            let keyed = |prefix: &str| path.strip_prefix(prefix)?.strip_suffix("']");
            if let Some(key) = keyed("metadata.labels['") {
                return text(meta.labels.as_ref().and_then(|labels| labels.get(key)));
            }
            if let Some(key) = keyed("metadata.annotations['") {
                return text(
                    meta.annotations
                        .as_ref()
                        .and_then(|annotations| annotations.get(key)),
                );
            }
            Err(ContentError::Unsupported(format!(
                "field \"{path}\" is not offered to containers"
            )))
        }
    }
}

fn lines(map: Option<&std::collections::BTreeMap<String, String>>) -> String {
    let lines: Vec<String> = map
        .into_iter()
        .flatten()
        .map(|(key, value)| format!("{key}={value:?}"))
        .collect();
    lines.join("\n")
}

/// A container's request or limit, divided as `resourceFieldRef` says and rounded up.
pub(crate) fn of_resources(
    containers: &[&Container],
    own: &Container,
    selector: &ResourceFieldSelector,
    machine: Machine,
) -> Result<String, ContentError> {
    let container = match &selector.container_name {
        Some(name) => containers
            .iter()
            .find(|container| container.name == *name)
            .copied()
            .unwrap_or(own),
        None => own,
    };
    let resources = container.resources.clone().unwrap_or_default();
    let (kind, name) = selector.resource.split_once('.').ok_or_else(|| {
        ContentError::Unsupported(format!("resource \"{}\" is not offered", selector.resource))
    })?;
    let given = match kind {
        "limits" => resources.limits,
        "requests" => resources.requests,
        _ => None,
    };
    let is_cpu = name == "cpu";
    let amount = match given.unwrap_or_default().get(name) {
        Some(quantity) => milli(&quantity.0, name)?,
        None if kind == "limits" && is_cpu => i128::from(machine.cpu_milli),
        None if kind == "limits" && name == "memory" => i128::from(machine.memory) * 1000,
        None => 0,
    };
    let divisor = match &selector.divisor {
        Some(divisor) if divisor.0 != "0" && !divisor.0.is_empty() => {
            milli(&divisor.0, name)?.max(1)
        }
        _ => 1000,
    };
    Ok(((amount + divisor - 1) / divisor).to_string())
}

fn milli(text: &str, name: &str) -> Result<i128, ContentError> {
    text.parse::<Quantity>()
        .and_then(Quantity::milli)
        .map(i128::from)
        .map_err(|error| ContentError::Unsupported(format!("{name}: {error}")))
}
