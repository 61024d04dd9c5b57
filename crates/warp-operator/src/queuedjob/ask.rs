//! What a queued Job asks for: how many pods at once, of how many GPUs under which name, and its priority. Pure.

use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::core::v1::{Container, PodSpec};
use kube::ResourceExt;
use kube::core::ObjectMeta;
use warp_api::label;
use warp_api::workload::{GpuAsk, Priority};
use warp_core::gpu::Vendor;

use super::objects::{nodes, unpin};
use crate::ledger;

/// Most pods of one Job at once, as of a gang.
const MOST_PODS: usize = 512;

/// What the pods of a Job ask for.
#[derive(Clone, Debug)]
pub(crate) struct Ask {
    /// Pods at once, each placed.
    pub(crate) pods: usize,
    pub(crate) gpus: GpuAsk,
    /// The name its GPUs have.
    pub(crate) resource: &'static str,
    /// Of one pod.
    pub(crate) meta: ObjectMeta,
    /// One pod with its GPUs, and without the place it was given before.
    pub(crate) pod: PodSpec,
}

impl Ask {
    /// One pod without its GPUs.
    pub(super) fn without_gpus(&self) -> PodSpec {
        let mut pod = self.pod.clone();
        let inits = pod.init_containers.iter_mut().flatten();
        for container in pod.containers.iter_mut().chain(inits) {
            take_out(container, self.resource);
        }
        pod
    }

    /// GPUs of all pods together.
    pub(crate) fn total_gpus(&self) -> u64 {
        u64::from(self.gpus.count).saturating_mul(self.pods as u64)
    }
}

fn take_out(container: &mut Container, resource: &str) {
    if let Some(resources) = container.resources.as_mut() {
        for list in [&mut resources.limits, &mut resources.requests] {
            if let Some(list) = list.as_mut() {
                list.remove(resource);
            }
        }
    }
}

/// Reads a Job; the error says what of it cannot be queued, and what to do.
pub(crate) fn ask(job: &Job) -> Result<Ask, String> {
    let spec = job.spec.as_ref();
    let template = spec.map(|spec| &spec.template);
    let template = template.ok_or("it has no pod template")?;
    let mut meta = template.metadata.clone().unwrap_or_default();
    meta.namespace = job.namespace();
    meta.name = Some(job.name_any());
    let mut pod = template.spec.clone().unwrap_or_default();
    unpin(&mut pod, &nodes(job).unwrap_or_default());
    let pods = wanted(job, 0);
    if pods == 0 {
        return Err(
            "it wants no pod at all: set spec.parallelism to 1 or more to have it placed"
                .to_owned(),
        );
    }
    if pods > MOST_PODS {
        return Err(format!(
            "it wants {pods} pods at once, and at most {MOST_PODS} are placed together: lower spec.parallelism"
        ));
    }
    let asked = ledger::request(&meta, &pod).resources;
    let vendors = Vendor::ALL.into_iter();
    let names =
        vendors.flat_map(|vendor| vendor.resources().iter().map(move |name| (vendor, *name)));
    let found: Vec<(Vendor, &'static str)> =
        names.filter(|(_, name)| asked.extended(name) > 0).collect();
    let (vendor, resource) = match found.as_slice() {
        [one] => *one,
        [] => {
            return Err(format!(
                "its pods ask for no whole GPU: ask for one in spec.template, such as nvidia.com/gpu: 1, or take the label {} off",
                label::QUEUE
            ));
        }
        several => {
            let names: Vec<&str> = several.iter().map(|(_, name)| *name).collect();
            return Err(format!(
                "its pods ask for {}, and a pod is placed for GPUs of one name: make two Jobs of it",
                names.join(" and ")
            ));
        }
    };
    let count = u32::try_from(asked.extended(resource)).unwrap_or(u32::MAX);
    Ok(Ask {
        pods,
        gpus: GpuAsk::whole(vendor, count),
        resource,
        meta,
        pod,
    })
}

/// How many pods it wants at once, of which `live` are there. As the Job controller counts it.
pub(super) fn wanted(job: &Job, live: usize) -> usize {
    let spec = job.spec.as_ref();
    let number = |number: i32| usize::try_from(number).unwrap_or(0);
    let status = job.status.as_ref();
    let succeeded = status.and_then(|status| status.succeeded).map_or(0, number);
    let parallelism = spec.and_then(|spec| spec.parallelism).map_or(1, number);
    match spec.and_then(|spec| spec.completions).map(number) {
        Some(completions) => completions.saturating_sub(succeeded).min(parallelism),
        None if succeeded > 0 => live,
        None => parallelism,
    }
}

/// The PriorityClass of its pods.
fn class_name(job: &Job) -> Option<&str> {
    let spec = job.spec.as_ref()?;
    let pod = spec.template.spec.as_ref()?;
    let named = pod.priority_class_name.as_deref();
    named.filter(|named| !named.is_empty())
}

/// Whether nobody is evicted for it: `policy` knows the preemption policy of a PriorityClass.
pub(crate) fn patient(job: &Job, policy: impl Fn(&str) -> Option<String>) -> bool {
    let policy = class_name(job).and_then(policy);
    policy.as_deref() == Some("Never")
}

/// Its priority: what its annotation says, else by the value of its pods' PriorityClass, whose values `class` knows:
/// above zero is high, below zero is low. The error says what cannot be read.
pub(crate) fn priority(job: &Job, class: impl Fn(&str) -> Option<i32>) -> Result<Priority, String> {
    if let Some(said) = job.annotations().get(label::PRIORITY) {
        return match said.as_str() {
            "high" => Ok(Priority::High),
            "normal" => Ok(Priority::Normal),
            "low" => Ok(Priority::Low),
            other => Err(format!(
                "its annotation {} is '{other}': write high, normal or low",
                label::PRIORITY
            )),
        };
    }
    let Some(named) = class_name(job) else {
        return Ok(Priority::Normal);
    };
    match class(named) {
        Some(value) => Ok(Priority::of_class(value)),
        None => Err(format!(
            "its pods name the PriorityClass {named}, which is not there: create it, or name another in spec.template"
        )),
    }
}
