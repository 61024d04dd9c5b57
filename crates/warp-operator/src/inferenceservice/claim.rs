//! How services ask for places: each copy that waits behind its gate is a claim of its own, and its place becomes one
//! change of its pod. The Deployment is never touched by it, so whoever scales may have it. Pure but for reading the
//! caches.

use std::collections::BTreeSet;
use std::sync::Arc;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Pod, PodSpec};
use k8s_openapi::api::scheduling::v1::PriorityClass;
use kube::{Resource, ResourceExt};
use serde_json::json;
use warp_api::inferenceservice::{EngineKind, LeftOutNode};
use warp_api::workload::{GPUWorkloadSpec, GpuAsk, GpuRequirement, Priority};
use warp_api::{InferenceService, label, reason};
use warp_core::gpu::Vendor;
use warp_core::random::Fingerprint;
use warp_runtime::cache::{Cache, Key};
use warp_runtime::pass::Pass;
use warp_runtime::plan::{Encoding, Plan};

use super::copies::{self, claim_id, is_copy};
use super::evict::Running;
use super::lingering::{InLine, Lingering};
use super::vendor::unsupported_models;
use super::{NAME, group, of_class};
use crate::context::Context;
use crate::ledger::{self, is_behind, let_through};
use crate::placement::{
    self, Account, Asks, Claim, Claimant, Claimants, Heard, Place, PodClaim, Runner, Verdict,
    Waking,
};
use crate::queuedjob::without;
use crate::shapes::BY_SERVICE;
use crate::workload::{Class, Rank, providers};

/// What of a pod decides that something is done on its behalf.
const DECISIVE: [&str; 2] = ["/metadata/deletionTimestamp", "/spec/schedulingGates"];

/// All copies of services, as those who ask for places: one account for each pod.
#[derive(Debug)]
pub(crate) struct Claims {
    cx: Arc<Context>,
    services: Cache<InferenceService>,
    heard: Heard,
    /// Those of them that are in line.
    in_line: InLine,
}

impl Claims {
    /// Claims of which the changes are told, and the places of copies that have gone, which are kept until these ask.
    pub(crate) fn following(
        cx: &Arc<Context>,
        services: &Cache<InferenceService>,
    ) -> [Box<dyn Claimants>; 2] {
        let heard = Heard::default();
        let in_line = InLine::default();
        follow(cx, services, &heard);
        let claims = Self {
            cx: Arc::clone(cx),
            services: services.clone(),
            heard,
            in_line: in_line.clone(),
        };
        [
            Box::new(claims),
            Box::new(Lingering::following(cx, services, in_line)),
        ]
    }
}

/// Notes every copy whose account may have changed with an object it is read from: what one copy means depends on the
/// others of its service.
fn follow(cx: &Context, services: &Cache<InferenceService>, heard: &Heard) {
    let (noting, pods) = (heard.clone(), cx.pods.clone());
    cx.pods.listen(move |old, new| {
        for pod in old.into_iter().chain(new) {
            if let Some(service) = service_of(pod) {
                noting.note([Key::of(pod)]);
                noting.note(keys(&pods.by(BY_SERVICE, &service.to_string())));
            }
        }
    });
    let (noting, pods) = (heard.clone(), cx.pods.clone());
    services.listen(move |old, new| {
        if let Some(service) = old.or(new) {
            noting.note(keys(&pods.by(BY_SERVICE, &Key::of(service).to_string())));
        }
    });
    let (noting, pods, all) = (heard.clone(), cx.pods.clone(), services.clone());
    cx.priorities.listen(move |old, new| {
        for service in new
            .or(old)
            .map(|class| of_class(&all, class))
            .into_iter()
            .flatten()
        {
            noting.note(keys(&pods.by(BY_SERVICE, &service.to_string())));
        }
    });
}

fn keys(pods: &[Arc<Pod>]) -> Vec<Key> {
    pods.iter().map(|pod| Key::of(&**pod)).collect()
}

/// The service a pod says it is a copy of.
pub(super) fn service_of(pod: &Pod) -> Option<Key> {
    let name = pod.labels().get(label::INFERENCE_SERVICE)?;
    Some(Key::new(&pod.namespace()?, name))
}

/// What the class a service names says, if it is there.
pub(super) fn class_of(
    priorities: &Cache<PriorityClass>,
    service: &InferenceService,
) -> Option<Class> {
    let name = service.spec.priority_class_name.as_deref()?;
    let class = priorities.get(&Key::new("", name))?;
    Some(Class::from(&*class))
}

impl Claimants for Claims {
    /// Services wake the scheduler themselves: it does not need them to be served.
    fn waking(&self) -> Waking {
        Box::new(|scheduler| scheduler)
    }

    fn keys(&self) -> Vec<Key> {
        let pods = self.cx.pods.all().into_iter();
        let copies: Vec<_> = pods.filter(|pod| service_of(pod).is_some()).collect();
        keys(&copies)
    }

    fn changed(&self) -> Option<BTreeSet<Key>> {
        self.heard.take()
    }

    fn account(&self, key: &Key, now: Timestamp) -> Option<Account> {
        let account = self.read(key, now);
        let asks = account
            .as_ref()
            .is_some_and(|account| matches!(account.asks, Asks::Now(_) | Asks::HeldBack));
        let pod = self.cx.pods.get(key);
        let changed = self.in_line.set(key, asks);
        if let Some(service) = pod.and_then(|pod| service_of(&pod)).filter(|_| changed) {
            // A place may have been kept for it, which is let go now that it has its turn.
            self.in_line.tell(service);
            self.cx.wakes.wake_sweep(placement::NAME);
        }
        account
    }
}

impl Claims {
    fn read(&self, key: &Key, now: Timestamp) -> Option<Account> {
        let cx = &self.cx;
        let pod = cx.pods.get(key)?;
        let service = self.services.get(&service_of(&pod)?)?;
        let mut pods = cx.pods.by(BY_SERVICE, &Key::of(&*service).to_string());
        let name = service.name_any();
        let group = group::members(&pods, &pod, &name);
        pods.retain(|pod| is_copy(pod, &name));
        let pod = pods.iter().find(|one| one.uid() == pod.uid())?;
        let waiting = copies::waiting(&pods);
        let before = waiting.iter().position(|one| one.uid() == pod.uid());
        let before = before.filter(|_| service.meta().deletion_timestamp.is_none());
        let mut account = Account {
            uid: claim_id(pod),
            open: before.is_some(),
            again: copies::next_step(&service, now),
            ..Account::default()
        };
        // One whose class is missing is told so by its own pass.
        let Ok(rank) = copies::rank(&service, class_of(&cx.priorities, &service)) else {
            return Some(account);
        };
        let Some(before) = before else {
            // One pod of a group is no room for anybody, and the group goes as a whole: nobody takes it.
            if !group.is_empty() {
                return Some(account);
            }
            let mut surplus = copies::surplus(&service, &pods, now).into_iter();
            let may_go = surplus.any(|one| one.uid() == pod.uid());
            let running = may_go.then(|| Running::of(&service, pod, rank.priority));
            account.runner = running
                .flatten()
                .map(|one| Arc::new(one) as Arc<dyn Runner>);
            return Some(account);
        };
        // All of a group are placed together: until all wait, none asks.
        if !group.is_empty() && !group::all_wait(&group) {
            return Some(account);
        }
        let generation = service.meta().generation.unwrap_or_default();
        let held = cx.verdicts.held_until(&account.uid, generation);
        if let Some(until) = held.filter(|until| *until > now) {
            account.again = account.again.into_iter().chain([until]).min();
            account.asks = Asks::HeldBack;
            return Some(account);
        }
        let staying = copies::placed(&pods, false);
        let placed = staying + copies::placed(&pods, true);
        let first = staying + before < copies::kept(&service, now);
        // Nobody is stopped for a copy beyond those wanted: it is for a change of the spec, which goes without. Nor for one
        // that goes first: what its service has by right is its turn, not what others run.
        let beyond = placed + before >= copies::wanted(&service);
        let spares = beyond || (first && rank.priority < Priority::High);
        let patient = rank.patient || spares;
        let turn = Turn {
            rank: Rank { patient, ..rank },
            first,
        };
        let refused = refused_nodes(&service, now).map(|node| node.until.0);
        account.again = account.again.into_iter().chain(refused).min();
        let one = [Arc::clone(pod)];
        let together = if group.is_empty() { &one[..] } else { &group };
        if let Some(asking) = Asking::together(&cx.pods, &service, together, turn, now) {
            account.asks = Asks::Now(Arc::new(asking));
        }
        Some(account)
    }
}

/// The nodes that did not take a copy a while ago.
pub(super) fn refused_nodes(
    service: &InferenceService,
    now: Timestamp,
) -> impl Iterator<Item = &LeftOutNode> {
    let status = service.status.iter();
    let refused = status.flat_map(|status| &status.refused_nodes);
    refused.filter(move |node| node.until.0 > now)
}

/// Whether a change of a service changes where its copies stand in the line, or which of them may go.
pub(super) fn line_matters(old: Option<&InferenceService>, new: Option<&InferenceService>) -> bool {
    let form = |service: &InferenceService| {
        let spec = &service.spec;
        let status = service.status.as_ref();
        (
            service.uid(),
            service.meta().generation,
            service.meta().deletion_timestamp.is_some(),
            spec.priority,
            status.map(|status| (status.replicas, status.refused_nodes.clone())),
        )
    };
    old.map(form) != new.map(form)
}

/// The GPUs a pod asks for, and under which name. Which of the vendor's will do is in its annotations; in its affinity, if an
/// older Warp made it.
pub(super) fn gpus(pod: &Pod, engine: EngineKind) -> Option<(GpuAsk, &'static str)> {
    let asked = ledger::request(&pod.metadata, pod.spec.as_ref()?).resources;
    let mut vendors = Vendor::ALL.into_iter();
    vendors.find_map(|vendor| {
        let mut names = vendor.resources().iter();
        let resource = *names.find(|name| asked.extended(name) > 0)?;
        let count = u32::try_from(asked.extended(resource)).unwrap_or(u32::MAX);
        let which = which(pod, count).filter(|which| which.vendor == vendor);
        let ask = GpuAsk {
            except: unsupported_models(engine, vendor),
            ..which.unwrap_or_else(|| GpuAsk::whole(vendor, count))
        };
        Some((ask, resource))
    })
}

/// Which GPUs a pod says will do.
fn which(pod: &Pod, count: u32) -> Option<GpuAsk> {
    let text = pod.annotations().get(label::GPU)?;
    let gpu: GpuRequirement = serde_json::from_str(text).ok()?;
    let like = GPUWorkloadSpec {
        gpu: Some(gpu.into()),
        gpu_count: i32::try_from(count).ok()?,
        ..GPUWorkloadSpec::default()
    };
    GpuAsk::of(&like).ok()
}

/// When it is a copy's turn.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Turn {
    pub(crate) rank: Rank,
    /// It takes the place of a copy that nobody may take from its service: before all other work.
    pub(crate) first: bool,
}

/// One copy that waits for its place, or for a place for each of its pods.
#[derive(Debug)]
pub(crate) struct Asking {
    known: Cache<Pod>,
    service: Arc<InferenceService>,
    /// The leader first, where there are several.
    pods: Vec<Arc<Pod>>,
    claim: Claim,
}

impl Asking {
    /// None when a pod of it asks for no GPU: somebody changed it on its way.
    pub(crate) fn together(
        known: &Cache<Pod>,
        service: &Arc<InferenceService>,
        pods: &[Arc<Pod>],
        turn: Turn,
        now: Timestamp,
    ) -> Option<Self> {
        Some(Self {
            known: known.clone(),
            claim: claim(service, pods, turn, now)?,
            service: Arc::clone(service),
            pods: pods.to_vec(),
        })
    }

    /// A copy of one pod.
    #[cfg(test)]
    pub(crate) fn new(
        known: &Cache<Pod>,
        service: &Arc<InferenceService>,
        pod: &Arc<Pod>,
        turn: Turn,
        now: Timestamp,
    ) -> Option<Self> {
        Self::together(known, service, &[Arc::clone(pod)], turn, now)
    }
}

impl Claimant for Asking {
    fn claim(&self) -> &Claim {
        &self.claim
    }

    fn pod(&self, member: usize, _: &str) -> PodSpec {
        let pod = self.pods.get(member).and_then(|pod| pod.spec.clone());
        pod.unwrap_or_default()
    }

    /// The API server itself refuses the change for a pod that was let go by another.
    fn plan(&self, places: &[Place], _: Timestamp) -> Plan {
        let mut plan = Plan::default();
        for (pod, place) in self.pods.iter().zip(places) {
            let mut patch = let_through(pod, label::SERVING_GATE, &place.node);
            patch["metadata"]["annotations"] = json!({
                label::PLACEMENT: place.why,
                label::STRATEGY: place.strategy,
            });
            plan.patch(&**pod, Encoding::Merge, patch);
        }
        plan
    }

    fn still_waits(&self, plan: &mut Plan) {
        for pod in &self.pods {
            plan.only_if_shows(&**pod, &DECISIVE);
        }
    }

    fn pass(&self, correlation: String) -> Pass {
        let (component, manager) = (placement::NAME, placement::MANAGER);
        Pass::over(component, manager, &*self.service, correlation)
    }

    fn is_made(&self) -> bool {
        self.pods.iter().all(|pod| {
            let known = self.known.get(&Key::of(&**pod));
            known.is_some_and(|known| {
                known.uid() == pod.uid() && !is_behind(&known, label::SERVING_GATE)
            })
        })
    }

    fn is_counted(&self) -> bool {
        true
    }

    fn taken(&self) -> Verdict {
        Verdict {
            reason: reason::COPY_REJECTED,
            message: "its pod was changed while it was being placed; it is tried again".to_owned(),
        }
    }

    fn rejected(&self, message: &str) -> Verdict {
        Verdict {
            reason: reason::COPY_REJECTED,
            message: format!(
                "the API server refused the change that lets its pod go to its node: {message}; correct the namespace's policy"
            ),
        }
    }
}

/// What a copy asks for.
fn claim(
    service: &InferenceService,
    pods: &[Arc<Pod>],
    turn: Turn,
    now: Timestamp,
) -> Option<Claim> {
    let Turn { rank, first } = turn;
    let pod = pods.first()?;
    let asked = pods.iter().map(|pod| {
        let (gpus, resource) = gpus(pod, service.spec.engine.kind)?;
        Some(PodClaim {
            gpus,
            resource: Some(Arc::from(resource)),
            meta: pod.metadata.clone(),
            spec: without(pod.spec.as_ref()?, resource),
        })
    });
    let asked = asked.collect::<Option<Vec<_>>>()?;
    let avoided = refused_nodes(service, now);
    let uid = pod.uid().unwrap_or_default();
    Some(Claim {
        controller: NAME,
        key: Key::of(service),
        uid: claim_id(pod),
        generation: service.meta().generation.unwrap_or_default(),
        version: pod.resource_version().unwrap_or_default(),
        // Older than everything.
        created: pod
            .creation_timestamp()
            .map(|time| time.0)
            .filter(|_| !first),
        priority: if first { Priority::High } else { rank.priority },
        asked_priority: rank.priority,
        patient: rank.patient,
        max_runtime_seconds: None,
        serves: true,
        saved_seconds: 0,
        has_run: false,
        saves: false,
        strategy: None,
        dice: Fingerprint::default().text(&uid).get(),
        providers: providers(service),
        shown_since: None,
        avoided: avoided.map(|node| Arc::from(node.name.as_str())).collect(),
        near: None,
        least: asked.len(),
        pods: asked,
        makes_job: false,
    })
}
