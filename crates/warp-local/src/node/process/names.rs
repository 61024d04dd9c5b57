//! Names of other pods in a container's environment. Processes of one machine share its resolver, which knows no pods, so
//! where a cluster's DNS would answer, the address is put in place of the name before the process starts.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::Pod;
use kube::Api;
use kube::api::ListParams;

use super::Shared;
use crate::node::contents::ContentError;

/// Puts addresses in place of values that are names under the pod's own subdomain (`<hostname>.<subdomain>`). A pod that has
/// not started has no address yet: it is given the one it will have.
pub(super) async fn resolve(
    shared: &Shared,
    pod: &Pod,
    variables: &mut BTreeMap<String, String>,
) -> Result<(), ContentError> {
    let spec = pod.spec.as_ref();
    let Some(subdomain) = spec.and_then(|spec| spec.subdomain.as_deref()) else {
        return Ok(());
    };
    let below = format!(".{subdomain}");
    let named = |value: &str| value.ends_with(&below);
    if !variables.values().any(|value| named(value)) {
        return Ok(());
    }
    let namespace = pod.metadata.namespace.as_deref().unwrap_or("default");
    let pods: Api<Pod> = Api::namespaced(shared.client.clone(), namespace);
    let listed = pods.list(&ListParams::default()).await;
    let listed = listed.map_err(|source| ContentError::Read {
        kind: "pods",
        name: subdomain.to_owned(),
        source: Box::new(source),
    })?;
    for value in variables.values_mut().filter(|value| named(value)) {
        let host = value.strip_suffix(&below);
        let found = listed
            .iter()
            .find(|other| is_called(other, host, subdomain));
        if let Some(found) = found {
            *value = address(shared, found);
        }
    }
    Ok(())
}

fn is_called(pod: &Pod, host: Option<&str>, subdomain: &str) -> bool {
    let spec = pod.spec.as_ref();
    let own = spec.and_then(|spec| spec.hostname.as_deref());
    let below = spec.and_then(|spec| spec.subdomain.as_deref());
    host.is_some()
        && own == host
        && below == Some(subdomain)
        && pod.metadata.deletion_timestamp.is_none()
}

fn address(shared: &Shared, pod: &Pod) -> String {
    let status = pod.status.as_ref();
    let known = status.and_then(|status| status.pod_ip.clone());
    let uid = pod.metadata.uid.as_deref().unwrap_or_default();
    known.unwrap_or_else(|| {
        let own = shared.own_address(pod, uid);
        own.map_or_else(|| shared.address.clone(), |own| own.to_string())
    })
}
