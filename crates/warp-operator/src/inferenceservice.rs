//! The InferenceService controller: a Deployment and a Service per service, and a status that says where it stands. A copy
//! that spans nodes is two StatefulSets instead (`group.rs`).
//!
//! It creates no pods and chooses no nodes: its pods are born behind a gate, and the scheduler gives each its node
//! (`claim.rs`). Which arguments an engine takes is in `arguments.rs`, what a vendor's GPUs
//! need in `vendor.rs`, what is created in `objects.rs`, what a status says in `assess.rs`.

mod adapters;
mod arguments;
mod assess;
mod autoscaler;
mod claim;
mod copies;
mod evict;
mod figures;
mod group;
mod lingering;
mod objects;
mod observe;
mod plan;
mod pools;
mod scrape;
mod status;
#[cfg(test)]
mod tests;
mod unplaced;
mod vendor;
mod wanted;
mod weights;

use std::sync::Arc;

use jiff::Timestamp;
use k8s_openapi::api::apps::v1::{Deployment, StatefulSet};
use k8s_openapi::api::autoscaling::v2::HorizontalPodAutoscaler;
use k8s_openapi::api::core::v1::{Pod, Service};
use k8s_openapi::api::scheduling::v1::PriorityClass;
use kube::ResourceExt;
use warp_api::{InferenceService, ModelCache, label};
use warp_runtime::cache::{Cache, Key, Shape, Source};
use warp_runtime::plan::Plan;
use warp_runtime::reconcile::{Reconcile, Refusal};
use warp_runtime::runtime::{Registration, Runtime};

use crate::context::Context;
use crate::placement;
use crate::workload::Class;
use autoscaler::ScaledObject;
use observe::Seen;

pub(crate) use claim::Claims;

/// Names the controller in logs, metrics, readiness and wake-ups.
pub(crate) const NAME: &str = "inferenceservice";

/// The kind as the runtime runs it.
#[derive(Debug)]
pub(crate) struct InferenceServices {
    deployments: Cache<Deployment>,
    services: Cache<Service>,
    sets: Cache<StatefulSet>,
    pods: Cache<Pod>,
    caches: Cache<ModelCache>,
    /// Autoscalers of others; none: no right to tell any.
    autoscalers: Option<(Cache<HorizontalPodAutoscaler>, Cache<ScaledObject>)>,
    loads: scrape::Loads,
    /// Whether engines are asked also where nothing follows from it but what is told.
    asks: bool,
    cx: Arc<Context>,
}

impl InferenceServices {
    /// Every service; found by `namespace/cache` if it names a ModelCache.
    pub(crate) fn all(runtime: &mut Runtime) -> Cache<InferenceService> {
        runtime.cache(
            Source::all::<InferenceService>().with_managed_fields(),
            shape(),
        )
    }

    /// Registers the kind: what it reads, and which changes concern which services.
    pub(crate) fn register(
        runtime: &mut Runtime,
        cx: &Arc<Context>,
        all: &Cache<InferenceService>,
        caches: &Cache<ModelCache>,
        asks: bool,
    ) {
        let ours = format!("{}={}", label::CONTROLLER, label::CONTROLLER_NAME);
        let deployments = runtime.cache(Source::all::<Deployment>().labels(&ours), whole());
        let services = runtime.cache(Source::all::<Service>().labels(&ours), whole());
        let sets = runtime.cache(Source::all::<StatefulSet>().labels(&ours), whole());
        let pods = runtime.cache(
            Source::all::<Pod>().labels(label::INFERENCE_SERVICE),
            Shape {
                keep: |_| true,
                trim: |pod: &mut Pod| {
                    pod.managed_fields_mut().clear();
                    pod.annotations_mut().clear();
                },
                indexes: &[|pod: &Pod| {
                    let service = pod.labels().get(label::INFERENCE_SERVICE)?;
                    Some(format!("{}/{service}", pod.namespace()?))
                }],
            },
        );
        let autoscalers = cx.settings.autoscalers.then(|| {
            // By name, not by label: one of somebody else in the place of ours must be seen.
            let hpas = runtime.cache_if_served(Source::all::<HorizontalPodAutoscaler>(), whole());
            let scaled = runtime.cache_if_served(Source::all::<ScaledObject>(), whole());
            (hpas, scaled)
        });
        let kind = Self {
            autoscalers: autoscalers.clone(),
            deployments: deployments.clone(),
            services: services.clone(),
            sets: sets.clone(),
            pods: pods.clone(),
            caches: caches.clone(),
            loads: scrape::Loads::default(),
            asks,
            cx: Arc::clone(cx),
        };
        // Where its copies stand in the line is the scheduler's to know.
        let wakes = cx.wakes.clone();
        all.listen(move |old, new| {
            if claim::line_matters(old, new) {
                wakes.wake_sweep(placement::NAME);
            }
        });
        let (known, everyone) = (all.clone(), all.clone());
        let mut registration = Registration::of(kind, all);
        if let Some((hpas, scaled)) = &autoscalers {
            registration = registration.owns(hpas).owns(scaled);
        }
        runtime.register(
            registration
                .owns(&deployments)
                .owns(&services)
                .owns(&sets)
                .labels(&pods, label::INFERENCE_SERVICE)
                .watches_changes(&cx.priorities, move |old, new| {
                    let said = |class: Option<&PriorityClass>| class.map(Class::from);
                    match new.or(old) {
                        Some(class) if said(old) != said(new) => of_class(&everyone, class),
                        _ => Vec::new(),
                    }
                })
                .watches(caches, move |cache| {
                    let named = known.by(0, &Key::of(cache).to_string());
                    named.iter().map(|service| Key::of(&**service)).collect()
                }),
        );
    }
}

/// The services that name a PriorityClass.
fn of_class(services: &Cache<InferenceService>, class: &PriorityClass) -> Vec<Key> {
    let name = class.name_any();
    let all = services.all().into_iter();
    all.filter(|service| service.spec.priority_class_name.as_ref() == Some(&name))
        .map(|service| Key::of(&*service))
        .collect()
}

fn shape() -> Shape<InferenceService> {
    Shape {
        keep: |_| true,
        trim: |service| {
            // The audit trail names the last writer of the spec and nothing else of these.
            let fields = service.managed_fields_mut();
            fields.retain(|entry| entry.subresource.is_none());
            for entry in fields.iter_mut() {
                entry.fields_v1 = None;
            }
        },
        indexes: &[|service: &InferenceService| cache_of(service).map(|key| key.to_string())],
    }
}

/// The ModelCache a service names.
pub(crate) fn cache_of(service: &InferenceService) -> Option<Key> {
    let name = service.spec.model.cache.as_ref()?;
    Some(Key::new(&service.namespace()?, name))
}

fn whole<K: ResourceExt>() -> Shape<K> {
    Shape {
        keep: |_| true,
        trim: |_| {},
        indexes: &[],
    }
}

impl Reconcile for InferenceServices {
    type Object = InferenceService;
    type Seen = Seen;
    const NAME: &'static str = NAME;
    const MANAGER: &'static str = "warp-inference";

    async fn observe(&self, service: &Arc<InferenceService>) -> Seen {
        observe::see(self, service).await
    }

    fn plan(&self, service: &InferenceService, seen: &Seen, now: Timestamp) -> Plan {
        plan::plan(service, seen, now)
    }

    fn refused(
        &self,
        service: &InferenceService,
        seen: &Seen,
        refusal: &Refusal,
        now: Timestamp,
    ) -> Option<Plan> {
        Some(plan::rejected(service, seen, refusal, now))
    }

    fn gone(&self, key: &Key) {
        self.loads.forget(key);
    }
}
