//! The scheduler over objects that are put into its caches by hand: it decides as ever, and nothing is written. For
//! figures (`bench/operator/pass`) and tests; no binary uses it.

use std::sync::Arc;
use std::time::{Duration, Instant};

use jiff::Timestamp;
use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::core::v1::{Namespace, Node, Pod};
use kube::Client;
use tokio_util::sync::CancellationToken;
use warp_api::{GPUWorkload, Tenant};
use warp_runtime::pass::Unobserved;
use warp_runtime::runtime::Runtime;
use warp_runtime::{Clock, cache::Cache};

use crate::config::Settings;
use crate::context::Context;
use crate::metrics::Metrics;
use crate::placement::Placement;
use crate::{queuedjob, workload};

/// A scheduler and what it sees.
#[derive(Debug)]
pub struct Rehearsal {
    cx: Arc<Context>,
    scheduler: Placement,
}

/// What one pass decided, and how long that took.
#[derive(Debug)]
pub struct Looked {
    /// Namespace, name and nodes of those that would be placed.
    pub placed: Vec<(String, String, Vec<String>)>,
    /// Those that were told something.
    pub told: usize,
    /// Somebody was looked at.
    pub walked: bool,
    pub took: Duration,
}

impl Rehearsal {
    /// Needs a tokio runtime, and never asks it for anything.
    pub fn new(settings: Settings) -> Self {
        let nobody = tower::service_fn(|_: http::Request<kube::client::Body>| async {
            Err::<http::Response<kube::client::Body>, _>(std::io::Error::other("nobody answers"))
        });
        let client = Client::new(nobody, "default");
        let clock = Clock::system();
        let mut runtime = Runtime::new(
            client,
            clock.clone(),
            "rehearsal",
            Arc::new(Unobserved),
            CancellationToken::new(),
        );
        let metrics = Arc::new(Metrics::default());
        let cx = Context::new(&mut runtime, None, "warp-system", clock, settings, metrics);
        let cx = Arc::new(cx);
        let mut claimants = vec![workload::Claims::following(&cx)];
        claimants.extend(queuedjob::Claims::following(&cx));
        let scheduler = Placement::new(&cx, claimants);
        Self { cx, scheduler }
    }

    /// Compares what is kept with the caches only as often as a release build does, for figures.
    #[must_use]
    pub fn unchecked(self) -> Self {
        let scheduler = self.scheduler.unchecked();
        Self { scheduler, ..self }
    }

    pub fn nodes(&self) -> &Cache<Node> {
        &self.cx.nodes
    }

    pub fn pods(&self) -> &Cache<Pod> {
        &self.cx.pods
    }

    pub fn jobs(&self) -> &Cache<Job> {
        &self.cx.jobs
    }

    pub fn workloads(&self) -> &Cache<GPUWorkload> {
        &self.cx.workloads
    }

    pub fn namespaces(&self) -> &Cache<Namespace> {
        &self.cx.namespaces
    }

    /// Tenants are there from the first call on; nothing is decided before a list of them was put in.
    pub fn tenants(&self) -> &Cache<Tenant> {
        self.cx.tenants.get_or_init(|| Cache::new(&[]))
    }

    /// One pass but for its writes. Those that wait are told.
    pub fn look(&self, now: Timestamp) -> Looked {
        let started = Instant::now();
        let rehearsed = self.scheduler.rehearse(now);
        let took = started.elapsed();
        let walked = rehearsed.is_some();
        let (places, told) = rehearsed.unwrap_or_default();
        let placed = places.into_iter().map(|(claimant, places)| {
            let key = &claimant.claim().key;
            let nodes = places.into_iter().map(|place| place.node).collect();
            (key.namespace.to_string(), key.name.to_string(), nodes)
        });
        Looked {
            placed: placed.collect(),
            told,
            walked,
            took,
        }
    }

    /// Why one waits, as it was last told.
    pub fn verdict(&self, uid: &str, generation: i64) -> Option<(String, String)> {
        let verdict = self.cx.verdicts.get(uid, generation)?;
        Some((verdict.reason.to_owned(), verdict.message))
    }

    /// Forgets what earlier passes found out: the next one reads and decides everything.
    pub fn forget(&self) {
        self.scheduler.forget();
    }
}

#[cfg(test)]
mod tests;
