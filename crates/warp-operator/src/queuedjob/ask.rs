//! What a queued object asks for: how many pods at once, of how many GPUs under which name, and its priority. Pure.

use std::sync::Arc;

use k8s_openapi::api::core::v1::{Container, Pod, PodSpec};
use kube::ResourceExt;
use kube::core::ObjectMeta;
use warp_api::label;
use warp_api::workload::{GpuAsk, Priority};
use warp_core::gpu::Vendor;

use super::objects::{group_of, nodes, staying, unpin};
use super::queued::{Group, Queued};
use crate::ledger;

/// Most pods of one Job at once, as of a gang.
const MOST_PODS: usize = 512;

/// What the pods of an object ask for that ask for GPUs. The others run wherever the cluster's scheduler puts them.
#[derive(Clone, Debug)]
pub(crate) struct Ask {
    /// By template, none without pods.
    pub(crate) groups: Vec<GroupAsk>,
    pub(crate) vendor: Vendor,
    /// The name all its GPUs have.
    pub(crate) resource: &'static str,
}

/// What the pods of one template ask for.
#[derive(Clone, Debug)]
pub(crate) struct GroupAsk {
    /// Which of the object's templates.
    pub(crate) template: usize,
    /// Pods at once, each placed.
    pub(crate) pods: usize,
    pub(crate) gpus: GpuAsk,
    /// Of one pod.
    pub(crate) meta: ObjectMeta,
    /// One pod with its GPUs, and without the place it was given before.
    pub(crate) pod: PodSpec,
}

impl GroupAsk {
    /// One pod without its GPUs.
    pub(super) fn without_gpus(&self, resource: &str) -> PodSpec {
        without(&self.pod, resource)
    }

    fn describe(&self) -> String {
        match self.pods {
            1 => self.gpus.describe(),
            pods => format!("{pods} × {}", self.gpus.describe()),
        }
    }
}

impl Ask {
    /// Pods of all templates at once.
    pub(crate) fn pods(&self) -> usize {
        self.groups.iter().map(|group| group.pods).sum()
    }

    /// GPUs of all pods together.
    pub(crate) fn total_gpus(&self) -> u64 {
        let each = |group: &GroupAsk| u64::from(group.gpus.count) * group.pods as u64;
        self.groups.iter().map(each).sum()
    }

    /// What the pod of a place asks for: places are in the order of the templates.
    pub(super) fn of_place(&self, place: usize) -> Option<&GroupAsk> {
        let groups = self.groups.iter();
        let mut all = groups.flat_map(|group| std::iter::repeat_n(group, group.pods));
        all.nth(place)
    }

    /// In words.
    pub(crate) fn describe(&self) -> String {
        let groups: Vec<String> = self.groups.iter().map(GroupAsk::describe).collect();
        groups.join(" + ")
    }
}

/// A pod without a resource it asks for.
pub(crate) fn without(pod: &PodSpec, resource: &str) -> PodSpec {
    let mut pod = pod.clone();
    let inits = pod.init_containers.iter_mut().flatten();
    for container in pod.containers.iter_mut().chain(inits) {
        take_out(container, resource);
    }
    pod
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

/// Reads an object; the error says what of it cannot be queued, and what to do.
pub(crate) fn ask(job: &Queued) -> Result<Ask, String> {
    if let Some(problem) = &job.problem {
        return Err(problem.clone());
    }
    let kind = job.kind;
    let mut found: Vec<((Vendor, &'static str), GroupAsk)> = Vec::new();
    let mut wants_pods = false;
    for (template, group) in job.groups.iter().enumerate() {
        let pods = at_once(job, group);
        if pods == 0 {
            continue;
        }
        wants_pods = true;
        let mut meta = group.meta.clone();
        meta.namespace = job.namespace();
        meta.name = Some(job.name_any());
        let mut pod = group.pod.clone();
        unpin(&mut pod, &nodes(job).unwrap_or_default(), kind.is_job());
        let asked = ledger::request(&meta, &pod).resources;
        let vendors = Vendor::ALL.into_iter();
        let names =
            vendors.flat_map(|vendor| vendor.resources().iter().map(move |name| (vendor, *name)));
        for named in names.filter(|(_, name)| asked.extended(name) > 0) {
            let count = u32::try_from(asked.extended(named.1)).unwrap_or(u32::MAX);
            let gpus = GpuAsk::whole(named.0, count);
            let (meta, pod) = (meta.clone(), pod.clone());
            found.push((
                named,
                GroupAsk {
                    template,
                    pods,
                    gpus,
                    meta,
                    pod,
                },
            ));
        }
    }
    if !wants_pods {
        return Err(format!(
            "it wants no pod at all: set {} to 1 or more to have it placed",
            kind.width
        ));
    }
    let mut names: Vec<(Vendor, &'static str)> = found.iter().map(|(named, _)| *named).collect();
    names.dedup();
    let (vendor, resource) = match names.as_slice() {
        [one] => *one,
        [] => {
            return Err(format!(
                "its pods ask for no whole GPU: ask for one in {}, such as nvidia.com/gpu: 1, or take the label {} off",
                kind.template,
                label::QUEUE
            ));
        }
        several => {
            let names: Vec<&str> = several.iter().map(|(_, name)| *name).collect();
            return Err(format!(
                "its pods ask for {}, and its pods are placed for GPUs of one name: make two {}s of it",
                names.join(" and "),
                kind.kind
            ));
        }
    };
    let ask = Ask {
        groups: found.into_iter().map(|(_, group)| group).collect(),
        vendor,
        resource,
    };
    let pods = ask.pods();
    if pods > MOST_PODS {
        return Err(format!(
            "it wants {pods} pods at once, and at most {MOST_PODS} are placed together: lower {}",
            kind.width
        ));
    }
    Ok(ask)
}

/// How many pods one template makes at once, as the Job controller counts it.
fn at_once(job: &Queued, group: &Group) -> usize {
    match group.completions {
        Some(completions) => completions.saturating_sub(job.succeeded).min(group.pods),
        None => group.pods,
    }
}

/// How many pods of one template are wanted now, where `pods` are all that are known of the object. A Job says how many
/// have ended well; pods of the others are kept in sight until they are deleted.
pub(super) fn wanted(job: &Queued, template: usize, pods: &[Arc<Pod>]) -> usize {
    let Some(group) = job.groups.get(template) else {
        return 0;
    };
    if job.kind.is_job() {
        return match group.completions {
            None if job.succeeded > 0 => staying(pods).len(),
            _ => at_once(job, group),
        };
    }
    let done = pods.iter().filter(|pod| {
        let status = pod.status.as_ref();
        let phase = status.and_then(|status| status.phase.as_deref());
        phase == Some("Succeeded") && group_of(job, pod) == Some(template)
    });
    group.pods.saturating_sub(done.count())
}

/// The PriorityClass of its pods.
fn class_name(job: &Queued) -> Option<&str> {
    let named = |group: &'_ Group| group.pod.priority_class_name.is_some();
    let group = job.groups.iter().find(|group| named(group))?;
    let named = group.pod.priority_class_name.as_deref();
    named.filter(|named| !named.is_empty())
}

/// Whether nobody is evicted for it: `policy` knows the preemption policy of a PriorityClass.
pub(crate) fn patient(job: &Queued, policy: impl Fn(&str) -> Option<String>) -> bool {
    let policy = class_name(job).and_then(policy);
    policy.as_deref() == Some("Never")
}

/// Its priority: what its annotation says, else by the value of its pods' PriorityClass, whose values `class` knows:
/// above zero is high, below zero is low; else `usual`, what its tenant says. The error says what cannot be read.
pub(crate) fn priority(
    job: &Queued,
    class: impl Fn(&str) -> Option<i32>,
    usual: Option<Priority>,
) -> Result<Priority, String> {
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
        return Ok(usual.unwrap_or_default());
    };
    match class(named) {
        Some(value) => Ok(Priority::of_class(value)),
        None => Err(format!(
            "its pods name the PriorityClass {named}, which is not there: create it, or name another in {}",
            job.kind.template
        )),
    }
}
