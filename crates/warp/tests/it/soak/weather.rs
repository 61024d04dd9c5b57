//! What the API server does to the requests of one operator, changed while the operator lives.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use anyhow::Result;
use http::Request;
use kube::Client;
use kube::client::Body;
use tower::ServiceExt;
use warp_core::random::Random;
use warp_testkit::fault::{Faults, Plan, Proxy};

/// What may happen to a write, to a read and to a watch. Nothing here lasts for minutes: the soak is
/// to be loud, not slow.
const WRITES: [&str; 10] = [
    "409",
    "429",
    "429=1",
    "500",
    "503",
    "504-applied",
    "500-applied",
    "reset",
    "reset-applied",
    "delay=1s",
];
const READS: [&str; 7] = ["429=1", "500", "503", "504", "reset", "delay=2s", "stale=4"];
const WATCHES: [&str; 6] = ["cut=3", "expire=2", "duplicate", "merge", "410", "503"];
/// Writes that matter more than their share of all.
const CHOSEN: [&str; 6] = [
    "write",
    "write",
    "create/jobs",
    "delete/jobs",
    "patch/gpuworkloads/status",
    "update/leases",
];

/// Rules for the next seconds. Every watch ends after a while, so that the next storm meets new ones.
pub(super) fn storm(random: &mut Random) -> Plan {
    let mut rules = Vec::new();
    for _ in 0..4 + random.below(6) {
        let (selector, fault) = match random.below(5) {
            0 => ("read", READS[random.below(READS.len())]),
            1 => ("watch", WATCHES[random.below(WATCHES.len())]),
            _ => (
                CHOSEN[random.below(CHOSEN.len())],
                WRITES[random.below(WRITES.len())],
            ),
        };
        let (nth, count) = (1 + random.below(12), 1 + random.below(4));
        rules.push(format!("{selector}#{nth}+{count}:{fault}"));
    }
    rules.push("write#40~2s:403".to_owned());
    rules.push("watch#1+all:cut=60".to_owned());
    rules.join("; ").parse().expect("rules of this module")
}

/// The way of one operator to the API server.
pub(super) struct Gate {
    now: Arc<Mutex<Faults>>,
    proxy: Proxy,
}

impl Gate {
    pub(super) async fn open(upstream: Client, plan: Plan) -> Result<Self> {
        let now = Arc::new(Mutex::new(Faults::new(plan)));
        let weather = Arc::clone(&now);
        let through = tower::service_fn(move |request: Request<Body>| {
            let upstream = upstream.clone();
            let faults = weather.lock().unwrap().clone();
            let server = tower::service_fn(move |request| {
                let upstream = upstream.clone();
                async move { upstream.send(request).await }
            });
            faults.service(server).oneshot(request)
        });
        // The proxy itself troubles and remembers nothing.
        let open = Faults::none();
        open.disarm();
        let proxy = Proxy::start(Client::new(through, "default"), open).await?;
        Ok(Self { now, proxy })
    }

    /// Changes the weather and gives what it was.
    pub(super) fn change(&self, faults: Faults) -> Faults {
        std::mem::replace(&mut *self.now.lock().unwrap(), faults)
    }

    pub(super) fn write_kubeconfig(&self, folder: &Path, name: &str) -> Result<PathBuf> {
        self.proxy.write_kubeconfig(folder, name)
    }
}
