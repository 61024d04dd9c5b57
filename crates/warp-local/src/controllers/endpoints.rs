//! EndpointSlices: which pods stand behind a Service, and on which ports.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{ObjectReference, Pod, Service, ServicePort};
use k8s_openapi::api::discovery::v1::{Endpoint, EndpointConditions, EndpointPort, EndpointSlice};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use serde_json::json;

use super::ownership::{Labels, controller_reference};
use super::{Shared, pods, wired};
use warp_runtime::cache::{Cache, Key};
use warp_runtime::driver::{Controller, SyncError};
use warp_runtime::plan::{Encoding, Plan, Removal};

const SERVICE: &str = "kubernetes.io/service-name";
const MANAGED_BY: &str = "endpointslice.kubernetes.io/managed-by";
const MANAGER: &str = "endpointslice-controller.k8s.io";
const PER_SLICE: usize = 100;
/// Pods change in crowds: one look a moment later sees them all.
const GATHER: Duration = Duration::from_millis(50);

#[derive(Debug)]
pub(crate) struct Slices(Shared);

impl Slices {
    pub(crate) fn start(shared: &Shared) {
        let queue = wired(shared, Self(shared.clone()));
        let caches = &shared.caches;
        caches
            .services
            .on_key(&queue, |service| Some(Key::of(service)));
        caches.endpoint_slices.on_key(&queue, |slice| {
            let service = slice.metadata.labels.as_ref()?.get(SERVICE)?;
            is_managed(slice).then(|| {
                Key::new(
                    slice.metadata.namespace.as_deref().unwrap_or_default(),
                    service,
                )
            })
        });
        let services = caches.services.clone();
        caches.pods.listen(move |old, new| {
            if services.is_empty() {
                return;
            }
            let keys: BTreeSet<Key> = old
                .into_iter()
                .chain(new)
                .flat_map(|pod| behind(&services, pod))
                .collect();
            for key in keys {
                queue.add_after(key, GATHER);
            }
        });
    }
}

fn is_managed(slice: &EndpointSlice) -> bool {
    slice
        .metadata
        .labels
        .as_ref()
        .and_then(|labels| labels.get(MANAGED_BY))
        .is_some_and(|manager| manager == MANAGER)
}

fn chooses(service: &Service, labels: Option<&Labels>) -> bool {
    let selector = service
        .spec
        .as_ref()
        .and_then(|spec| spec.selector.as_ref())
        .filter(|selector| !selector.is_empty());
    selector.is_some_and(|selector| {
        selector
            .iter()
            .all(|(name, value)| labels.and_then(|labels| labels.get(name)) == Some(value))
    })
}

fn behind(services: &Cache<Service>, pod: &Pod) -> Vec<Key> {
    let all = services.in_namespace(pod.metadata.namespace.as_deref().unwrap_or_default());
    all.iter()
        .filter(|service| chooses(service, pod.metadata.labels.as_ref()))
        .map(|service| Key::of(&**service))
        .collect()
}

impl Controller for Slices {
    type Key = Key;
    const NAME: &'static str = "endpoint-slice-controller";

    async fn sync(&self, key: &Key) -> Result<Option<Timestamp>, SyncError> {
        let caches = &self.0.caches;
        let known: Vec<_> = caches
            .endpoint_slices
            .in_namespace(&key.namespace)
            .into_iter()
            .filter(|slice| {
                let of = slice
                    .metadata
                    .labels
                    .as_ref()
                    .and_then(|labels| labels.get(SERVICE));
                is_managed(slice) && of.is_some_and(|of| **of == *key.name)
            })
            .collect();
        // The slices of a Service that is gone go with it: it owns them.
        let Some(service) = caches.services.get(key) else {
            return Ok(None);
        };
        if service
            .spec
            .as_ref()
            .and_then(|spec| spec.selector.as_ref())
            .is_none()
        {
            return Ok(None);
        }
        let pods = caches.pods.in_namespace(&key.namespace);
        let chosen: Vec<_> = pods
            .into_iter()
            .filter(|pod| chooses(&service, pod.metadata.labels.as_ref()))
            .collect();
        self.0
            .execute(Self::NAME, plan(&service, &chosen, &known))
            .await
    }
}

fn container_port(pod: &Pod, name: &str, protocol: &str) -> Option<i32> {
    let containers = pod.spec.iter().flat_map(|spec| {
        let sidecars = spec
            .init_containers
            .iter()
            .flatten()
            .filter(|container| container.restart_policy.as_deref() == Some("Always"));
        spec.containers.iter().chain(sidecars)
    });
    containers
        .flat_map(|container| container.ports.iter().flatten())
        .find(|port| {
            port.name.as_deref() == Some(name)
                && port.protocol.as_deref().unwrap_or("TCP") == protocol
        })
        .map(|port| port.container_port)
}

/// The ports of a Service on one pod; a named port the pod does not have is left out.
fn ports(service: &Service, pod: &Pod) -> Vec<EndpointPort> {
    let spec = service.spec.as_ref();
    let port = |port: &ServicePort| {
        let protocol = port.protocol.clone().unwrap_or_else(|| "TCP".to_owned());
        let number = match &port.target_port {
            Some(IntOrString::Int(0)) | None => Some(port.port),
            Some(IntOrString::Int(number)) => Some(*number),
            Some(IntOrString::String(name)) => container_port(pod, name, &protocol),
        };
        number.map(|number| EndpointPort {
            name: Some(port.name.clone().unwrap_or_default()),
            port: Some(number),
            protocol: Some(protocol),
            app_protocol: port.app_protocol.clone(),
        })
    };
    spec.iter()
        .flat_map(|spec| spec.ports.iter().flatten())
        .filter_map(port)
        .collect()
}

fn endpoint(service: &Service, pod: &Pod) -> Option<Endpoint> {
    let address = pod
        .status
        .as_ref()?
        .pod_ip
        .clone()
        .filter(|address| !address.is_empty())?;
    if pods::is_finished(pod) {
        return None;
    }
    let everyone = service
        .spec
        .as_ref()
        .and_then(|spec| spec.publish_not_ready_addresses)
        == Some(true);
    let serving = pods::is_ready(pod);
    let ending = pods::is_terminating(pod);
    Some(Endpoint {
        addresses: vec![address],
        conditions: Some(EndpointConditions {
            ready: Some(everyone || (serving && !ending)),
            serving: Some(serving),
            terminating: Some(ending),
        }),
        hostname: pod.spec.as_ref().and_then(|spec| {
            let subdomain = spec.subdomain.as_deref() == service.metadata.name.as_deref();
            spec.hostname.clone().filter(|_| subdomain)
        }),
        node_name: pods::node(pod).map(str::to_owned),
        target_ref: Some(ObjectReference {
            kind: Some("Pod".to_owned()),
            namespace: pod.metadata.namespace.clone(),
            name: pod.metadata.name.clone(),
            uid: pod.metadata.uid.clone(),
            ..ObjectReference::default()
        }),
        ..Endpoint::default()
    })
}

/// Groups endpoints by their ports, at most a hundred to a slice; slices there are are reused before new ones are made.
fn plan(service: &Service, chosen: &[Arc<Pod>], known: &[Arc<EndpointSlice>]) -> Plan {
    let mut plan = Plan::default();
    if service.metadata.deletion_timestamp.is_some() {
        return plan;
    }
    let mut groups: BTreeMap<String, (Vec<EndpointPort>, Vec<Endpoint>)> = BTreeMap::new();
    for pod in chosen {
        if let Some(endpoint) = endpoint(service, pod) {
            let ports = ports(service, pod);
            groups
                .entry(json!(ports).to_string())
                .or_insert_with(|| (ports, Vec::new()))
                .1
                .push(endpoint);
        }
    }
    // A Service with nothing behind it has one empty slice.
    if groups.is_empty() {
        groups.insert(String::new(), (Vec::new(), Vec::new()));
    }
    let mut wanted = Vec::new();
    for (ports, endpoints) in groups.into_values() {
        if endpoints.is_empty() {
            wanted.push((ports, endpoints));
        } else {
            wanted.extend(
                endpoints
                    .chunks(PER_SLICE)
                    .map(|part| (ports.clone(), part.to_vec())),
            );
        }
    }
    let mut free: Vec<_> = known
        .iter()
        .filter(|slice| slice.metadata.deletion_timestamp.is_none())
        .collect();
    for (ports, endpoints) in wanted {
        // One that already says so needs no write.
        let best = free
            .iter()
            .position(|slice| slice.endpoints == endpoints && same_ports(slice, &ports))
            .or_else(|| free.iter().position(|slice| same_ports(slice, &ports)))
            .or((!free.is_empty()).then_some(0));
        match best.map(|at| free.remove(at)) {
            Some(slice) if slice.endpoints == endpoints && same_ports(slice, &ports) => {}
            Some(slice) => plan.patch(
                &**slice,
                Encoding::Merge,
                json!({ "endpoints": endpoints, "ports": ports }),
            ),
            None => plan.create(&slice(service, ports, endpoints), None),
        }
    }
    for slice in free {
        plan.delete(&**slice, Removal::default(), None);
    }
    plan
}

fn same_ports(slice: &EndpointSlice, ports: &[EndpointPort]) -> bool {
    slice.ports.as_deref().unwrap_or_default() == ports
}

fn slice(service: &Service, ports: Vec<EndpointPort>, endpoints: Vec<Endpoint>) -> EndpointSlice {
    let name = service.metadata.name.clone().unwrap_or_default();
    let mut labels = service.metadata.labels.clone().unwrap_or_default();
    labels.insert(SERVICE.to_owned(), name.clone());
    labels.insert(MANAGED_BY.to_owned(), MANAGER.to_owned());
    if service
        .spec
        .as_ref()
        .and_then(|spec| spec.cluster_ip.as_deref())
        == Some("None")
    {
        labels.insert("service.kubernetes.io/headless".to_owned(), String::new());
    }
    EndpointSlice {
        metadata: ObjectMeta {
            generate_name: Some(format!("{name}-")),
            namespace: service.metadata.namespace.clone(),
            labels: Some(labels),
            owner_references: Some(vec![controller_reference(service)]),
            ..ObjectMeta::default()
        },
        address_type: "IPv4".to_owned(),
        endpoints,
        ports: Some(ports),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use warp_runtime::plan::Action;

    fn service() -> Service {
        serde_json::from_value(json!({
            "metadata": { "name": "web", "namespace": "n", "uid": "s" },
            "spec": { "selector": { "app": "web" }, "ports": [{ "port": 80, "targetPort": "http" }] }
        }))
        .unwrap()
    }

    fn pod(number: usize) -> Arc<Pod> {
        Arc::new(
            serde_json::from_value(json!({
                "metadata": { "name": format!("p{number}"), "namespace": "n", "uid": format!("u{number}") },
                "spec": { "containers": [{ "name": "c", "ports": [{ "name": "http", "containerPort": 8080 }] }] },
                "status": { "phase": "Running", "podIP": format!("10.0.0.{number}"), "conditions": [{ "type": "Ready", "status": "True" }] }
            }))
            .unwrap(),
        )
    }

    fn made(plan: &Plan) -> Vec<Arc<EndpointSlice>> {
        let object = |action: &Action| match action {
            Action::Create { object, .. } => {
                Some(Arc::new(serde_json::from_value(object.clone()).unwrap()))
            }
            _ => None,
        };
        plan.actions.iter().filter_map(object).collect()
    }

    #[test]
    fn endpoints_fill_slices_and_a_second_pass_writes_nothing() {
        let pods: Vec<_> = (0..150).map(pod).collect();
        let slices = made(&plan(&service(), &pods, &[]));
        assert_eq!(
            slices
                .iter()
                .map(|slice| slice.endpoints.len())
                .collect::<Vec<_>>(),
            [100, 50]
        );
        assert_eq!(slices[0].ports.as_ref().unwrap()[0].port, Some(8080));
        assert!(plan(&service(), &pods, &slices).actions.is_empty());
    }

    #[test]
    fn an_empty_service_has_one_slice_and_surplus_slices_go() {
        let pods: Vec<_> = (0..150).map(pod).collect();
        let slices = made(&plan(&service(), &pods, &[]));
        let plan = plan(&service(), &[], &slices);
        assert!(
            matches!(
                plan.actions.as_slice(),
                [Action::Patch { .. }, Action::Delete { .. }]
            ),
            "{plan:?}"
        );
    }
}
