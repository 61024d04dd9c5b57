//! What of each kind is kept in memory, and what it is found under. Ten thousand finished workloads are ordinary; their
//! environments, probes and managed fields would be most of the process.

use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::core::v1::{Container, Event, Lifecycle, Node, Pod, PodSpec};
use kube::ResourceExt;
use warp_api::{GPUWorkload, label};
use warp_runtime::cache::Shape;

use crate::ledger::{finished, is_behind, node_of};
use crate::workload::over;

/// Objects by the uid of the workload they belong to; Events by the uid of what they are about.
pub(crate) const BY_OWNER: usize = 0;
/// Pods by the node they are bound to.
pub(crate) const BY_NODE: usize = 1;
/// Pods by the uid of the object that made them.
pub(crate) const BY_MAKER: usize = 2;
/// Pods by the uid of the queued object that they carry.
pub(crate) const BY_QUEUED: usize = 3;
/// Pods by the service they are copies of, `namespace/name`.
pub(crate) const BY_SERVICE: usize = 4;

/// Longest text that is taken for a time.
const TIME_CHARACTERS: usize = 64;
/// Longest text that is taken for which GPUs will do: sixteen models and a size.
const GPU_CHARACTERS: usize = 2048;

pub(crate) fn workload() -> Shape<GPUWorkload> {
    Shape {
        keep: |_| true,
        trim: |workload| {
            let phase = workload.status.as_ref().and_then(|status| status.phase);
            // The audit trail names the last writer of the spec and nothing else of these.
            let fields = workload.managed_fields_mut();
            fields.retain(|entry| entry.subresource.is_none());
            for entry in fields.iter_mut() {
                entry.fields_v1 = None;
            }
            if phase.is_some_and(warp_api::Phase::is_final) {
                fields.clear();
                let spec = &mut workload.spec;
                spec.pod_template = None;
                spec.env.clear();
                spec.args.clear();
            }
        },
        indexes: &[],
    }
}

pub(crate) fn job() -> Shape<Job> {
    Shape {
        keep: |_| true,
        trim: |job| {
            job.managed_fields_mut().clear();
            let over = over(job);
            if let Some(spec) = job.spec.as_mut() {
                match spec.template.spec.as_mut() {
                    Some(pod) if !over => trim_pod(pod),
                    _ => spec.template.spec = None,
                }
            }
        },
        indexes: &[|job| job.labels().get(label::WORKLOAD_UID).cloned()],
    }
}

pub(crate) fn pod() -> Shape<Pod> {
    Shape {
        // Finished pods of others hold nothing; of queued objects they tell which are still to come.
        keep: |pod| {
            let told = [label::WORKLOAD_UID, label::QUEUED_UID];
            !finished(pod) || told.iter().any(|name| pod.labels().contains_key(*name))
        },
        trim: |pod| {
            pod.managed_fields_mut().clear();
            keep_annotations(pod);
            let (over, gated) = (finished(pod), is_behind(pod, label::SERVING_GATE));
            if let Some(spec) = pod.spec.as_mut() {
                if over {
                    let node_name = spec.node_name.take();
                    *spec = PodSpec {
                        node_name,
                        ..Default::default()
                    };
                } else {
                    // Where a copy can run is still to be decided, and its volumes have a say.
                    let volumes = gated.then(|| spec.volumes.take()).flatten();
                    trim_pod(spec);
                    spec.volumes = volumes;
                }
            }
        },
        indexes: &[
            |pod| pod.labels().get(label::WORKLOAD_UID).cloned(),
            |pod| node_of(pod).map(str::to_owned),
            |pod| {
                let owner = pod.owner_references().first();
                owner.map(|owner| owner.uid.clone())
            },
            |pod| pod.labels().get(label::QUEUED_UID).cloned(),
            |pod| {
                let service = pod.labels().get(label::INFERENCE_SERVICE)?;
                Some(format!("{}/{service}", pod.namespace()?))
            },
        ],
    }
}

/// Of a pod's annotations only those in which it or its node says when it last saved its work, and which GPUs will do for a
/// copy.
fn keep_annotations(pod: &mut Pod) {
    let annotations = std::mem::take(pod.annotations_mut());
    let gpus = annotations.get_key_value(label::GPU);
    if let Some((name, text)) = gpus.filter(|(_, text)| text.len() <= GPU_CHARACTERS) {
        pod.annotations_mut().insert(name.clone(), text.clone());
    }
    let name = annotations.get(label::CHECKPOINT_ANNOTATION);
    let said = name.and_then(|name| annotations.get_key_value(name));
    let seen = annotations.get_key_value(label::CHECKPOINT_FILE_TIME);
    let told = said.into_iter().chain(seen);
    for (name, time) in told.filter(|(_, time)| time.len() <= TIME_CHARACTERS) {
        pod.annotations_mut().insert(name.clone(), time.clone());
    }
}

pub(crate) fn node() -> Shape<Node> {
    Shape {
        keep: |_| true,
        trim: |node| {
            node.managed_fields_mut().clear();
            // What a rented machine says of itself.
            let told = [warp_cloud::join::GPU_TEST, warp_cloud::join::TAKEN_BACK];
            node.annotations_mut()
                .retain(|name, _| told.contains(&name.as_str()));
            if let Some(status) = node.status.as_mut() {
                status.images = None;
                status.addresses = None;
                status.node_info = None;
                status.volumes_attached = None;
                status.volumes_in_use = None;
            }
        },
        indexes: &[],
    }
}

pub(crate) fn event() -> Shape<Event> {
    Shape {
        keep: |_| true,
        trim: |event| event.managed_fields_mut().clear(),
        indexes: &[|event| event.involved_object.uid.clone()],
    }
}

/// Small kinds that nothing is looked up in.
pub(crate) fn as_it_is<K: ResourceExt>() -> Shape<K> {
    Shape {
        keep: |_| true,
        trim: |object| {
            object.managed_fields_mut().clear();
            object.annotations_mut().clear();
        },
        indexes: &[],
    }
}

/// The same of a template of others, and its volumes, which decide where its pods can run.
pub(crate) fn trim_template(spec: &mut PodSpec) {
    let volumes = spec.volumes.take();
    trim_pod(spec);
    spec.volumes = volumes;
}

/// Keeps what placement reads: resources, ports, affinity, tolerations; and by which signal a container is asked to end.
fn trim_pod(spec: &mut PodSpec) {
    spec.volumes = None;
    spec.ephemeral_containers = None;
    spec.security_context = None;
    spec.image_pull_secrets = None;
    spec.dns_config = None;
    let inits = spec.init_containers.iter_mut().flatten();
    for container in spec.containers.iter_mut().chain(inits) {
        let kept = std::mem::take(container);
        let signal = kept.lifecycle.and_then(|lifecycle| lifecycle.stop_signal);
        *container = Container {
            lifecycle: signal.map(|signal| Lifecycle {
                stop_signal: Some(signal),
                ..Default::default()
            }),
            name: kept.name,
            ports: kept.ports,
            resources: kept.resources,
            restart_policy: kept.restart_policy,
            ..Default::default()
        };
    }
}
