//! What is made for a gang: one indexed Job whose pods are born gated, the Service that gives them names, and the change
//! that tells a pod its node and lets it go. Pure.
//!
//! A gang's places are remembered on its Job, by rank. Its pods wait behind a gate until all of them are there; then each
//! is pinned and let go by one write. Until its pod is pinned, a member's place is kept by a promise.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::core::v1::{
    EnvVar, EnvVarSource, ObjectFieldSelector, Pod, PodSchedulingGate, PodSpec, Service,
    ServicePort, ServiceSpec,
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::{Resource, ResourceExt};
use serde_json::Value;
use warp_api::workload::BadSpec;
use warp_api::{GPUWorkload, label};

use super::mpi;
use super::objects::{Shell, attempt_job, job_name, owned_by};
use super::pod::ended;
use crate::ledger::{Promise, is_behind, let_through, node_of, pin, pinned_to};
use crate::placement::Place;

/// Where rank 0 listens for the others, unless the workload says otherwise.
const MASTER_PORT: u16 = 29_500;
/// Longest name of a Job whose pods are hosts named after it: the rank follows, of up to 512 members.
const HOST: usize = 63 - "-511".len();

/// What a gang's pods may not say themselves: their names are how the members find each other.
pub(super) fn check(pod: &PodSpec) -> Result<(), BadSpec> {
    let own = [("hostname", &pod.hostname), ("subdomain", &pod.subdomain)];
    match own.into_iter().find(|(_, value)| value.is_some()) {
        None => Ok(()),
        Some((field, _)) => Err(BadSpec(format!(
            "spec.podTemplate.spec.{field} names a pod, but the members of a gang get their own names; leave it out"
        ))),
    }
}

/// A name that begins a host's name: a letter first, and no dots.
pub(super) fn host_name(name: &str, tail: &str) -> String {
    let mut head = name.replace('.', "-");
    if !head.starts_with(|first: char| first.is_ascii_lowercase()) {
        head.insert(0, 'g');
    }
    let head: String = head.chars().take(HOST.saturating_sub(tail.len())).collect();
    format!("{}{tail}", head.trim_end_matches('-'))
}

/// The Service whose name the members' host names end with: one for all attempts.
pub(super) fn service_name(workload: &GPUWorkload) -> String {
    let uid: String = workload.uid().unwrap_or_default().chars().take(8).collect();
    host_name(&workload.name_any(), &format!("-{uid}"))
}

/// The Service behind the members' names. It has no address of its own, and names pods before they are ready: they have to
/// find each other to become so.
pub(crate) fn service(workload: &GPUWorkload) -> Service {
    let uid = workload.uid().unwrap_or_default();
    let labels = [
        (label::WORKLOAD, workload.name_any()),
        (label::WORKLOAD_UID, uid.clone()),
        (label::CONTROLLER, label::CONTROLLER_NAME.to_owned()),
    ];
    let labels = labels.map(|(key, value)| (key.to_owned(), value));
    Service {
        metadata: ObjectMeta {
            name: Some(service_name(workload)),
            namespace: workload.namespace(),
            labels: Some(labels.into_iter().collect()),
            owner_references: owned_by(workload),
            ..Default::default()
        },
        spec: Some(ServiceSpec {
            cluster_ip: Some("None".to_owned()),
            publish_not_ready_addresses: Some(true),
            selector: Some([(label::WORKLOAD_UID.to_owned(), uid)].into()),
            ports: Some(vec![ServicePort {
                name: Some("rendezvous".to_owned()),
                port: i32::from(MASTER_PORT),
                ..Default::default()
            }]),
            ..Default::default()
        }),
        status: None,
    }
}

impl Shell {
    /// The Job of one attempt of a gang: a pod for each place, none of them pinned yet.
    pub(crate) fn gang_job(
        &self,
        workload: &GPUWorkload,
        attempt: i32,
        places: &[Place],
    ) -> Option<Job> {
        let first = places.first()?;
        let mut template = self.with_gpus(workload, attempt, first);
        let pod = template.spec.get_or_insert_default();
        pin(pod, None, models(places));
        let name = job_name(workload, attempt);
        let service = service_name(workload);
        let master = format!("{name}-0.{service}");
        add_variables(pod, workload, places.len(), &master);
        if let Some(mpi) = &workload.spec.mpi {
            let hosts = (0..places.len()).map(|rank| format!("{name}-{rank}.{service}"));
            mpi::equip(pod, self.main, workload, mpi, hosts);
        }
        pod.subdomain = Some(service);
        let gates = pod.scheduling_gates.get_or_insert_default();
        gates.push(PodSchedulingGate {
            name: label::GANG_GATE.to_owned(),
        });
        let nodes: Vec<&str> = places.iter().map(|place| place.node.as_str()).collect();
        let nodes = (label::NODES, nodes.join(","));
        let mut job = attempt_job(workload, attempt, first, nodes, template);
        let spec = job.spec.get_or_insert_default();
        let size = i32::try_from(places.len()).unwrap_or(i32::MAX);
        spec.completion_mode = Some("Indexed".to_owned());
        spec.completions = Some(size);
        spec.parallelism = Some(size);
        Some(job)
    }
}

/// The label that tells the GPU model of every place, with its values; none where they are told by different labels.
fn models(places: &[Place]) -> Option<(String, Vec<String>)> {
    let (key, _) = places.first()?.evidence.as_ref()?;
    let mut values = BTreeSet::new();
    for place in places {
        let (same, value) = place.evidence.as_ref()?;
        if same != key {
            return None;
        }
        values.insert(value.clone());
    }
    Some((key.clone(), values.into_iter().collect()))
}

/// Tells every container of a member who it is and where the first one is. A container is one process of the gang, so
/// `RANK` counts pods; a launcher that starts one process for each GPU reads the `PET_` variables and counts anew.
fn add_variables(pod: &mut PodSpec, workload: &GPUWorkload, members: usize, master: &str) {
    let members = members.to_string();
    let gpus = workload.spec.gpu_count.to_string();
    let port = MASTER_PORT.to_string();
    let said: [(&str, Option<&str>); 13] = [
        ("RANK", None),
        ("NODE_RANK", None),
        ("PET_NODE_RANK", None),
        ("WORLD_SIZE", Some(&members)),
        ("NNODES", Some(&members)),
        ("PET_NNODES", Some(&members)),
        ("LOCAL_RANK", Some("0")),
        ("LOCAL_WORLD_SIZE", Some("1")),
        ("PET_NPROC_PER_NODE", Some(&gpus)),
        ("MASTER_ADDR", Some(master)),
        ("PET_MASTER_ADDR", Some(master)),
        ("MASTER_PORT", Some(&port)),
        ("PET_MASTER_PORT", Some(&port)),
    ];
    let inits = pod.init_containers.iter_mut().flatten();
    for container in pod.containers.iter_mut().chain(inits) {
        let env = container.env.get_or_insert_default();
        for (name, value) in said {
            if env.iter().any(|have| have.name == name) {
                continue;
            }
            let rank = value.is_none().then(|| EnvVarSource {
                field_ref: Some(ObjectFieldSelector {
                    api_version: None,
                    field_path: format!("metadata.annotations['{}']", label::RANK),
                }),
                ..Default::default()
            });
            env.push(EnvVar {
                name: name.to_owned(),
                value: value.map(str::to_owned),
                value_from: rank,
            });
        }
    }
}

/// How many members the Job of a gang has; none for the Job of one pod.
pub(crate) fn size(job: &Job) -> Option<usize> {
    let spec = job.spec.as_ref()?;
    let indexed = spec.completion_mode.as_deref() == Some("Indexed");
    usize::try_from(spec.completions?).ok().filter(|_| indexed)
}

/// The node of each member of a Job, by rank.
pub(super) fn nodes(job: &Job) -> Vec<&str> {
    let said = job.annotations().get(label::NODES);
    said.map(|list| list.split(',').collect())
        .unwrap_or_default()
}

/// Which member a pod is.
pub(super) fn rank(pod: &Pod) -> Option<usize> {
    pod.labels().get(label::RANK)?.parse().ok()
}

/// Whether a pod waits behind the gang's gate.
pub(crate) fn is_gated(pod: &Pod) -> bool {
    is_behind(pod, label::GANG_GATE)
}

/// The change that pins a gated pod to its node and lets it go.
pub(crate) fn let_go(pod: &Pod, node: &str) -> Value {
    let_through(pod, label::GANG_GATE, node)
}

/// What the members of a Job are promised whose pods do not hold their places yet. Nothing once one of them has ended:
/// by then all were there.
pub(crate) fn promises(job: &Job, pods: &[Arc<Pod>]) -> Vec<Promise> {
    let status = job.status.as_ref();
    let over = |count: Option<i32>| count.unwrap_or(0) > 0;
    let begun = status.is_some_and(|status| over(status.succeeded) || over(status.failed));
    let (Some(uid), Some(_), false) = (job.uid(), size(job), begun) else {
        return Vec::new();
    };
    let Some(template) = job.spec.as_ref().map(|spec| &spec.template) else {
        return Vec::new();
    };
    if pods.iter().any(|pod| ended(pod)) {
        return Vec::new();
    }
    let mut meta = template.metadata.clone().unwrap_or_default();
    meta.namespace.clone_from(&job.metadata.namespace);
    meta.name.clone_from(&job.metadata.name);
    let mut holding: BTreeMap<usize, bool> = BTreeMap::new();
    let staying = |pod: &&Arc<Pod>| pod.meta().deletion_timestamp.is_none();
    for pod in pods.iter().filter(staying) {
        let holds = node_of(pod).is_some() || pod.spec.as_ref().and_then(pinned_to).is_some();
        if let Some(rank) = rank(pod) {
            *holding.entry(rank).or_default() |= holds;
        }
    }
    let nodes = nodes(job);
    let kept = nodes.iter().enumerate().filter_map(|(member, node)| {
        let there = holding.get(&member).copied();
        if there == Some(true) {
            return None;
        }
        let mut spec = template.spec.clone()?;
        pin(&mut spec, Some(node), None);
        Some(Promise {
            owner: promise_id(&uid, member),
            meta: meta.clone(),
            spec,
            counted: there.is_some(),
        })
    });
    kept.collect()
}

/// What a member's promise is called in the ledger.
pub(super) fn promise_id(job_uid: &str, member: usize) -> String {
    format!("{job_uid}/{member}")
}
