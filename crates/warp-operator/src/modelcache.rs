//! The ModelCache controller: a claim, and a Job that fetches the model into it (`warp fetch`).
//!
//! The Job's pod leaves the result as its last words and answers for its progress while it runs; nothing in it talks to
//! the API server, so it needs no rights. Fetching and verifying are `warp_fetch`'s; here is only when, into what, and
//! what is told about it.

mod objects;
mod observe;
mod plan;
mod report;
mod share;
#[cfg(test)]
mod tests;

use std::sync::Arc;

use jiff::Timestamp;
use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::core::v1::{Node, NodeCondition, NodeStatus, PersistentVolumeClaim, Pod};
use kube::ResourceExt;
use warp_api::{InferenceService, ModelCache, label};
use warp_runtime::cache::{Cache, Shape, Source};
use warp_runtime::plan::Plan;
use warp_runtime::reconcile::{Reconcile, Refusal};
use warp_runtime::runtime::{Registration, Runtime};

use crate::config::Settings;
use crate::inferenceservice;
pub use objects::Fetcher;
use observe::Seen;

/// Names the controller in logs, metrics, readiness and wake-ups.
pub(crate) const NAME: &str = "modelcache";

/// The kind as the runtime runs it.
#[derive(Debug)]
pub(crate) struct ModelCaches {
    caches: Cache<ModelCache>,
    claims: Cache<PersistentVolumeClaim>,
    jobs: Cache<Job>,
    pods: Cache<Pod>,
    /// Nodes, where this operator may label them.
    nodes: Option<Cache<Node>>,
    /// Services, where this operator may read them.
    services: Option<Cache<InferenceService>>,
    fetcher: Fetcher,
    identity: String,
}

impl ModelCaches {
    /// The caches of one namespace or all.
    pub(crate) fn all(runtime: &mut Runtime, namespace: Option<&str>) -> Cache<ModelCache> {
        runtime.cache(
            Source::within::<ModelCache>(namespace).with_managed_fields(),
            shape(),
        )
    }

    /// Registers the kind for one namespace or all: what it reads, and which changes concern which caches.
    pub(crate) fn register(
        runtime: &mut Runtime,
        namespace: Option<&str>,
        caches: &Cache<ModelCache>,
        services: Option<&Cache<InferenceService>>,
        settings: &Settings,
        identity: &str,
    ) {
        let claims = runtime.cache(
            Source::within::<PersistentVolumeClaim>(namespace),
            Shape {
                // By name, not by label: a claim of somebody else in the place of ours must be seen.
                keep: |claim: &PersistentVolumeClaim| claim.name_any().ends_with("-model"),
                trim: |_| {},
                indexes: &[],
            },
        );
        let jobs = runtime.cache(
            Source::within::<Job>(namespace).labels(label::MODEL_CACHE),
            Shape {
                keep: |_| true,
                trim: |_| {},
                indexes: &[],
            },
        );
        let pods = runtime.cache(Source::within::<Pod>(namespace), pod_shape());
        let labels = namespace.is_none() && settings.node_copies;
        let nodes = labels.then(|| runtime.cache(Source::all::<Node>(), node_shape()));
        let kind = Self {
            caches: caches.clone(),
            nodes: nodes.clone(),
            claims: claims.clone(),
            jobs: jobs.clone(),
            pods: pods.clone(),
            services: services.cloned(),
            fetcher: settings.fetcher.clone(),
            identity: identity.to_owned(),
        };
        let (known, sharing) = (caches.clone(), caches.clone());
        let copied = caches.clone();
        let mut registration = Registration::of(kind, caches)
            .watches(caches, move |cache| share::concerned(cache, &sharing))
            .owns(&claims)
            .owns(&jobs)
            .labels(&pods, label::MODEL_CACHE)
            .watches(&pods, move |pod| observe::users_caches(pod, &known));
        if let Some(nodes) = &nodes {
            registration =
                registration.watches(nodes, move |node| observe::caches_on(node, &copied));
        }
        runtime.register(match services {
            Some(services) => registration.watches(services, |service| {
                inferenceservice::cache_of(service).into_iter().collect()
            }),
            None => registration,
        });
    }
}

fn shape() -> Shape<ModelCache> {
    Shape {
        keep: |_| true,
        trim: |cache| {
            // The audit trail names the last writer of the spec and nothing else of these.
            let fields = cache.managed_fields_mut();
            fields.retain(|entry| entry.subresource.is_none());
            for entry in fields.iter_mut() {
                entry.fields_v1 = None;
            }
        },
        indexes: share::INDEXES,
    }
}

/// Nodes, with what tells whether they are to have copies and can be given one.
fn node_shape() -> Shape<Node> {
    Shape {
        keep: |_| true,
        trim: |node| {
            node.annotations_mut().clear();
            if let Some(status) = &mut node.status {
                let ready = status.conditions.take().unwrap_or_default();
                let ready = ready.into_iter().filter(|one| one.type_ == "Ready");
                *status = NodeStatus {
                    // When it was last heard of is news without meaning.
                    conditions: Some(
                        ready
                            .map(|one| NodeCondition {
                                last_heartbeat_time: None,
                                ..one
                            })
                            .collect(),
                    ),
                    ..NodeStatus::default()
                };
            }
        },
        indexes: &[],
    }
}

/// Pods that mount a claim or a folder of their node, or that run the operator itself; of each what tells who uses what and how it goes.
fn pod_shape() -> Shape<Pod> {
    Shape {
        keep: |pod| {
            observe::claims_of(pod).next().is_some()
                || observe::folders_of(pod).next().is_some()
                || observe::is_operator(pod)
        },
        trim: |pod| {
            pod.annotations_mut().clear();
        },
        indexes: &[],
    }
}

impl Reconcile for ModelCaches {
    type Object = ModelCache;
    type Seen = Seen;
    const NAME: &'static str = NAME;
    const MANAGER: &'static str = "warp-modelcache";

    async fn observe(&self, cache: &Arc<ModelCache>) -> Seen {
        observe::see(self, cache).await
    }

    fn plan(&self, cache: &ModelCache, seen: &Seen, now: Timestamp) -> Plan {
        plan::plan(cache, seen, now)
    }

    fn refused(
        &self,
        cache: &ModelCache,
        seen: &Seen,
        refusal: &Refusal,
        now: Timestamp,
    ) -> Option<Plan> {
        Some(plan::rejected(cache, seen, refusal, now))
    }
}
