//! Showing a workload that waits to whoever adds nodes. Cluster Autoscaler and Karpenter add one for pods that are marked
//! `Unschedulable`; a workload that waits has no pod. So a Job makes pods that ask for what it asks for, and each is
//! marked. They name a scheduler that does not exist: nobody ever binds one, whatever room comes, and which node the
//! workload gets stays the ledger's to say. They go as soon as it does not wait any more. Pure but for `see`, which reads.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use jiff::Timestamp;
use k8s_openapi::api::batch::v1::{Job, JobSpec};
use k8s_openapi::api::core::v1::{
    Container, Node, NodeSelectorRequirement, NodeSelectorTerm, Pod, PodSecurityContext, PodSpec,
    PodTemplateSpec, SeccompProfile, SecurityContext,
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, Time};
use kube::{Resource, ResourceExt};
use serde_json::json;
use warp_api::workload::{GpuAsk, ShownStatus, WhenPending};
use warp_api::{GPUWorkload, Phase, condition, label};
use warp_core::gpu::Catalogue;
use warp_core::random::Fingerprint;
use warp_runtime::cache::Key;
use warp_runtime::plan::{Action, Encoding, Kind, Plan};

use super::assess::over;
use super::course::Course;
use super::objects::{confined, owned_by, shell};
use super::pod::made_by;
use super::rent::{CAPACITY, append};
use super::spec_hash::spec_hash;
use crate::config::Settings;
use crate::context::Context;
use crate::ledger::devices;
use crate::shapes::BY_MAKER;

/// Failures of pods that nobody runs say nothing.
const ANY_NUMBER: i32 = 1_000_000;
/// Longest name of a Job whose pods carry it as a label.
const NAME: usize = 63;

/// What stands in for a workload now.
#[derive(Clone, Debug, Default)]
pub(crate) struct Shown {
    pub(crate) jobs: Vec<Arc<Job>>,
    pub(crate) pods: Vec<Arc<Pod>>,
    /// Values of node labels that tell of other GPUs than it asks for, by label: a node that has one is no help.
    pub(crate) unfit: BTreeMap<String, BTreeSet<String>>,
    /// A ResourceQuota of its namespace that would count them against the workload itself.
    pub(crate) counted_by: Option<String>,
}

/// Read for the workload's own pass only.
pub(super) fn see(cx: &Context, workload: &GPUWorkload) -> Shown {
    let asked = workload.spec.when_pending == Some(WhenPending::Ungate);
    let known = workload.status.as_ref();
    if !asked && known.is_none_or(|status| status.shown.is_none()) {
        return Shown::default();
    }
    let namespace = workload.namespace().unwrap_or_default();
    let mut jobs = cx.stand_ins.in_namespace(&namespace);
    let uid = workload.meta().uid.as_deref();
    jobs.retain(|job| {
        let mut owners = job.owner_references().iter();
        owners.any(|owner| owner.controller == Some(true) && Some(owner.uid.as_str()) == uid)
    });
    let pods = jobs.iter().flat_map(|job| {
        let uid = job.meta().uid.as_deref().unwrap_or_default();
        cx.pods.by(BY_MAKER, uid)
    });
    let quotas = cx.quotas.in_namespace(&namespace);
    let counts = quotas.iter().find(|quota| {
        let hard = quota
            .spec
            .iter()
            .flat_map(|spec| spec.hard.iter().flatten());
        let mut names = hard.map(|(name, _)| name.as_str());
        names.any(counts_pods)
    });
    let catalogue = cx.gpus.catalogue();
    let unfit = GpuAsk::among(&workload.spec, &catalogue)
        .map(|ask| unfit(&ask, &cx.nodes.all(), &catalogue))
        .unwrap_or_default();
    Shown {
        unfit,
        counted_by: counts.map(|quota| quota.name_any()),
        pods: pods.collect(),
        jobs,
    }
}

/// What tells of GPUs that an ask is not met by. What it is met by is not named: nodes that are still to be made may have
/// no such label yet.
fn unfit(
    ask: &GpuAsk,
    nodes: &[Arc<Node>],
    catalogue: &Catalogue,
) -> BTreeMap<String, BTreeSet<String>> {
    let devices = nodes.iter().flat_map(|node| devices(node, catalogue));
    let mine = devices.filter(|device| device.vendor == ask.vendor);
    let told = mine.filter_map(|device| {
        let met = ask.met_by(&device);
        device.evidence.map(|evidence| (met, evidence))
    });
    let (good, bad): (Vec<_>, Vec<_>) = told.partition(|(met, _)| *met);
    let good: BTreeSet<_> = good.into_iter().map(|(_, evidence)| evidence).collect();
    let mut unfit: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for (_, (key, value)) in bad {
        if !good.contains(&(key.clone(), value.clone())) {
            unfit.entry(key).or_default().insert(value);
        }
    }
    unfit
}

/// Whether a quota of this name counts what pods ask for, pods, or Jobs.
fn counts_pods(name: &str) -> bool {
    let named = ["pods", "count/pods", "count/jobs.batch", "cpu", "memory"];
    let asked = name.starts_with("requests.") && name != "requests.storage";
    named.contains(&name) || asked || name.starts_with("limits.")
}

/// Adds to a course what showing takes, and to its status how that stands.
pub(super) fn arrange(
    course: &mut Course,
    workload: &GPUWorkload,
    (shown, catalogue): (&Shown, &Catalogue),
    settings: &Settings,
    now: Timestamp,
) {
    let asked = workload.spec.when_pending == Some(WhenPending::Ungate);
    let known = workload.status.as_ref();
    if !asked && shown.jobs.is_empty() && known.is_none_or(|known| known.shown.is_none()) {
        return;
    }
    let Some(mut status) = course.status.clone().or_else(|| known.cloned()) else {
        return;
    };
    let ready = condition::find(&status.conditions, condition::READY);
    let lacks = ready.is_some_and(|ready| CAPACITY.contains(&ready.reason.as_str()));
    let waits = asked && status.phase == Some(Phase::Pending) && lacks;
    let wanted = waits
        .then(|| stand_in(workload, catalogue, &shown.unfit, settings))
        .flatten();
    let (told, wanted) = match (wanted, &shown.counted_by) {
        (None, _) => (None, None),
        (Some(_), _) if !settings.show_pending => (
            Some("it is shown to no autoscaler: this operator runs without --show-pending (warp install --print --show-pending)".to_owned()),
            None,
        ),
        (Some(_), Some(quota)) => (
            Some(format!(
                "it is shown to no autoscaler: ResourceQuota {quota} would count what stands in for it"
            )),
            None,
        ),
        (Some(job), None) => (
            Some(format!("Job {} shows it to the cluster's autoscaler", job.name_any())),
            Some(job),
        ),
    };
    let name = wanted.as_ref().map(ResourceExt::name_any);
    for job in &shown.jobs {
        let other = Some(job.name_any()) != name || over(job);
        if other && job.meta().deletion_timestamp.is_none() {
            course.steps.delete_version(&**job);
            course
                .steps
                .because("nothing has to stand in for its workload");
        }
    }
    if let Some(job) = &wanted {
        let there = shown.jobs.iter().any(|one| Some(one.name_any()) == name);
        if !there {
            course.steps.create_or_find(job);
            course
                .steps
                .because("its workload waits and is shown to the cluster's autoscaler");
        }
        mark(&mut course.steps, shown);
    }
    status.shown = name.map(|job_name| ShownStatus {
        since: status
            .shown
            .as_ref()
            .map_or(Time(now), |shown| shown.since.clone()),
        job_name,
    });
    if let (Some(told), true) = (told, course.status.is_some()) {
        append(&mut status, &told);
    }
    course.status = Some(status);
}

/// Marks pods that nobody has: that is all an autoscaler goes by.
fn mark(steps: &mut Plan, shown: &Shown) {
    for pod in &shown.pods {
        let own = shown.jobs.iter().any(|job| made_by(job, pod));
        let going = pod.meta().deletion_timestamp.is_some();
        if !own || going || is_marked(pod) {
            continue;
        }
        let now = pod.meta().creation_timestamp.clone();
        steps.push(Action::Patch {
            kind: Kind::of::<Pod>(),
            key: Key::of(&**pod),
            sub: Some("status"),
            encoding: Encoding::Merge,
            patch: json!({
                "metadata": {"uid": pod.meta().uid},
                "status": {"conditions": [{
                    "type": "PodScheduled", "status": "False", "reason": "Unschedulable",
                    "message": "it stands in for a GPUWorkload that waits for GPUs, and never runs",
                    "lastTransitionTime": now,
                }]},
            }),
        });
        steps.because("an autoscaler looks for pods that are marked so");
    }
}

fn is_marked(pod: &Pod) -> bool {
    let status = pod.status.as_ref();
    let conditions = status.and_then(|status| status.conditions.as_ref());
    let mut conditions = conditions.into_iter().flatten();
    conditions.any(|found| found.type_ == "PodScheduled")
}

/// The Job whose pods stand in for a workload; none where its spec is wrong.
fn stand_in(
    workload: &GPUWorkload,
    catalogue: &Catalogue,
    unfit: &BTreeMap<String, BTreeSet<String>>,
    settings: &Settings,
) -> Option<Job> {
    let shell = shell(workload, catalogue).ok()?;
    let resource = shell.ask.resources().into_iter().next()?;
    let mut pod = shell.pod(&resource);
    for (key, values) in unfit {
        keep_off(&mut pod, key, values);
    }
    let labels = [(label::STANDS_IN_FOR.to_owned(), workload.name_any())];
    let members = i32::try_from(workload.spec.members()).ok();
    Some(Job {
        metadata: ObjectMeta {
            name: Some(name(workload, unfit)),
            namespace: workload.namespace(),
            labels: Some(labels.clone().into()),
            owner_references: owned_by(workload),
            ..Default::default()
        },
        spec: Some(JobSpec {
            backoff_limit: Some(ANY_NUMBER),
            completions: members,
            parallelism: members,
            template: PodTemplateSpec {
                metadata: Some(ObjectMeta {
                    labels: Some(labels.into()),
                    ..Default::default()
                }),
                spec: Some(idle(pod, &settings.stand_in_image)),
            },
            ..Default::default()
        }),
        status: None,
    })
}

/// The same pod, of which nothing is left but what decides where it could be.
fn idle(pod: PodSpec, image: &str) -> PodSpec {
    let containers = pod.containers.into_iter().map(|container| Container {
        name: container.name,
        image: Some(image.to_owned()),
        resources: container.resources,
        security_context: Some(confined(SecurityContext::default(), None)),
        ..Default::default()
    });
    PodSpec {
        containers: containers.collect(),
        node_selector: pod.node_selector,
        affinity: pod.affinity,
        tolerations: pod.tolerations,
        runtime_class_name: pod.runtime_class_name,
        scheduler_name: Some(label::NO_SCHEDULER.to_owned()),
        restart_policy: Some("Never".to_owned()),
        termination_grace_period_seconds: Some(0),
        automount_service_account_token: Some(false),
        enable_service_links: Some(false),
        security_context: Some(PodSecurityContext {
            run_as_non_root: Some(true),
            seccomp_profile: Some(SeccompProfile {
                type_: "RuntimeDefault".to_owned(),
                localhost_profile: None,
            }),
            ..Default::default()
        }),
        ..Default::default()
    }
}

/// Adds to every alternative of a pod's node affinity that a label has none of these values.
fn keep_off(pod: &mut PodSpec, key: &str, values: &BTreeSet<String>) {
    let affinity = pod.affinity.get_or_insert_default();
    let affinity = affinity.node_affinity.get_or_insert_default();
    let required = affinity
        .required_during_scheduling_ignored_during_execution
        .get_or_insert_default();
    let terms = &mut required.node_selector_terms;
    if terms.is_empty() {
        terms.push(NodeSelectorTerm::default());
    }
    for term in terms {
        let expressions = term.match_expressions.get_or_insert_default();
        expressions.push(NodeSelectorRequirement {
            key: key.to_owned(),
            operator: "NotIn".to_owned(),
            values: Some(values.iter().cloned().collect()),
        });
    }
}

/// `<workload>-<first 8 of its uid>-shown-<6 of a number>`, at most 63 bytes. The number is of all that makes the pods:
/// where that changes it is shown anew.
fn name(workload: &GPUWorkload, unfit: &BTreeMap<String, BTreeSet<String>>) -> String {
    let uid: String = workload.uid().unwrap_or_default().chars().take(8).collect();
    let print = Fingerprint::default()
        .text(&spec_hash(&workload.spec))
        .text(&format!("{unfit:?}"));
    let print: String = format!("{:016x}", print.get()).chars().take(6).collect();
    let tail = format!("-{uid}-shown-{print}");
    let own = workload.name_any();
    let head: String = own.chars().take(NAME.saturating_sub(tail.len())).collect();
    format!("{}{tail}", head.trim_end_matches(['-', '.']))
}
