//! The GPUWorkload controller: follows each workload's Job and pods and says what they mean.
//!
//! It never chooses a node: a workload without a Job waits for the scheduler, which makes one.

mod assess;
mod checkpoint;
mod claim;
mod course;
mod evict;
mod failure;
mod gang;
mod members;
mod mpi;
mod objects;
mod observe;
mod plan;
mod pod;
mod rank;
mod rent;
mod say;
mod shown;
mod spec_hash;
#[cfg(test)]
mod tests;
mod timeline;

use std::sync::Arc;

use jiff::Timestamp;
use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::core::v1::{Event, Node, Pod};
use k8s_openapi::api::scheduling::v1::PriorityClass;
use kube::{Resource, ResourceExt};
use warp_api::{GPUWorkload, Phase, label};
use warp_core::estimate::Features;
use warp_runtime::cache::{Cache, Key};
use warp_runtime::pass::Pass;
use warp_runtime::plan::Plan;
use warp_runtime::reconcile::Reconcile;
use warp_runtime::runtime::{Registration, Runtime};

use crate::context::Context;
use crate::ledger;
use crate::shapes::BY_NODE;

pub(crate) use assess::attempt;
pub(crate) use assess::{over, suspended};
#[cfg(test)]
pub(crate) use claim::promise;
pub(crate) use claim::{Asking, Claims, ends_of, promises, providers};
pub(crate) use evict::{Running, evict_pod};
pub(crate) use gang::{is_gated, let_go};
pub(crate) use objects::shell;
pub(crate) use pod::started;
pub(crate) use rank::{Class, Given, Rank, class_name, rank};
pub(crate) use rent::{Prospect, foresee as foresee_rent, rents, tenant_of};

pub(crate) use observe::Seen;
use observe::see_all;

/// Names the controller in logs, metrics, readiness and wake-ups.
pub(crate) const NAME: &str = "gpuworkload";
/// Field manager of the status.
const MANAGER: &str = "warp-workload";

/// The kind as the runtime runs it.
#[derive(Debug)]
struct Workloads {
    cx: Arc<Context>,
}

/// Registers the kind: what it reads, and which changes concern which workloads.
pub(crate) fn register(runtime: &mut Runtime, cx: &Arc<Context>) {
    let kind = Workloads { cx: Arc::clone(cx) };
    let (wakes, concerned) = (runtime.wakes(), cx.workloads.clone());
    cx.defaults.listen(move |namespace| {
        for key in of_tenant(&concerned, namespace) {
            wakes.wake(NAME, key);
        }
    });
    let (jobs, pods, everyone) = (cx.jobs.clone(), cx.pods.clone(), cx.workloads.clone());
    runtime.register(
        Registration::of(kind, &cx.workloads)
            .watches(&cx.jobs, |job| owner_key(job).into_iter().collect())
            .watches(&cx.stand_ins, |job| stood_in_for(job).into_iter().collect())
            .watches(&cx.pods, |pod| {
                let key = owner_key(pod).or_else(|| stood_in_for(pod));
                key.into_iter().collect()
            })
            .watches(&cx.refusals, move |event| {
                event_key(&jobs, event).into_iter().collect()
            })
            .watches_changes(&cx.priorities, move |old, new| {
                let said = |class: Option<&PriorityClass>| class.map(Class::from);
                match new.or(old) {
                    Some(class) if said(old) != said(new) => of_class(&everyone, class),
                    _ => Vec::new(),
                }
            })
            .watches_changes(&cx.nodes, move |old, new| {
                // Heartbeats change a node's status all the time and mean nothing here.
                match new.or(old) {
                    Some(node) if ledger::node_matters(old, new) => keys_on(&pods, node),
                    _ => Vec::new(),
                }
            }),
    );
}

impl Reconcile for Workloads {
    type Object = GPUWorkload;
    type Seen = Seen;
    const NAME: &'static str = NAME;
    const MANAGER: &'static str = MANAGER;

    async fn observe(&self, workload: &Arc<GPUWorkload>) -> Seen {
        see_all(&self.cx, workload)
    }

    fn plan(&self, workload: &GPUWorkload, seen: &Seen, now: Timestamp) -> Plan {
        plan::plan(workload, seen, &self.cx.settings, now).into_plan(workload, now)
    }

    fn sign(&self, pass: &Pass, plan: &mut Plan) {
        timeline::sign(pass, plan);
    }
}

/// The workload an object of ours belongs to, by its labels.
pub(crate) fn owner_key<K: ResourceExt>(object: &K) -> Option<Key> {
    let name = object.labels().get(label::WORKLOAD)?;
    object.labels().get(label::WORKLOAD_UID)?;
    Some(Key::new(&object.namespace()?, name))
}

/// The workload that an object stands in for.
fn stood_in_for<K: ResourceExt>(object: &K) -> Option<Key> {
    let name = object.labels().get(label::STANDS_IN_FOR)?;
    Some(Key::new(&object.namespace()?, name))
}

/// The workload whose Job an Event is about.
fn event_key(jobs: &Cache<Job>, event: &Event) -> Option<Key> {
    let object = &event.involved_object;
    let key = Key::new(object.namespace.as_deref()?, object.name.as_deref()?);
    owner_key(&*jobs.get(&key)?)
}

/// Whether a change of a workload concerns others: one that was not finished goes, or its spec is another. A new one
/// asks for itself.
pub(crate) fn line_matters(old: Option<&GPUWorkload>, new: Option<&GPUWorkload>) -> bool {
    let Some(old) = old else { return false };
    let phase = old.status.as_ref().and_then(|status| status.phase);
    let leaves = new.is_none_or(|new| {
        let leaving = |one: &GPUWorkload| one.meta().deletion_timestamp.is_some();
        new.meta().generation != old.meta().generation || leaving(new) != leaving(old)
    });
    leaves && !phase.is_some_and(Phase::is_final)
}

/// What tells how long a workload runs.
pub(crate) fn features(workload: &GPUWorkload) -> Features {
    let spec = &workload.spec;
    Features {
        tenant: workload.namespace(),
        model: Some(spec.model_name.clone()),
        image: spec.image.clone(),
        gpus: u32::try_from(spec.total_gpus()).unwrap_or(0),
    }
}

/// Workloads that hear about a change of a PriorityClass: those it decides for.
fn of_class(workloads: &Cache<GPUWorkload>, class: &PriorityClass) -> Vec<Key> {
    let name = class.name_any();
    let all = workloads.all();
    let named = all
        .iter()
        .filter(|workload| class_name(workload) == Some(&name));
    named.map(|workload| Key::of(&**workload)).collect()
}

/// Workloads that hear of what tenants say for work of a namespace, or of any: those that have not ended.
fn of_tenant(workloads: &Cache<GPUWorkload>, namespace: Option<&str>) -> Vec<Key> {
    let all = match namespace {
        Some(namespace) => workloads.in_namespace(namespace),
        None => workloads.all(),
    };
    let open = all.iter().filter(|workload| {
        let phase = workload.status.as_ref().and_then(|status| status.phase);
        !phase.is_some_and(Phase::is_final)
    });
    open.map(|workload| Key::of(&**workload)).collect()
}

/// Workloads that hear about a change of a node: those with pods on it.
fn keys_on(pods: &Cache<Pod>, node: &Node) -> Vec<Key> {
    let here = pods.by(BY_NODE, &node.name_any());
    here.iter().filter_map(|pod| owner_key(&**pod)).collect()
}

/// Whether a Job belongs to this very workload: not to an earlier one of the same name, and not to
/// somebody in another namespace who wrote our labels on a Job of theirs.
pub(crate) fn owns(workload: &GPUWorkload, job: &Job) -> bool {
    let uid = workload.meta().uid.as_deref();
    uid.is_some()
        && job.meta().namespace == workload.meta().namespace
        && job.labels().get(label::WORKLOAD_UID).map(String::as_str) == uid
        && job
            .owner_references()
            .iter()
            .any(|owner| owner.controller == Some(true) && Some(owner.uid.as_str()) == uid)
}
