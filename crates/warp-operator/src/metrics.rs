//! Counters of the process. The four `warp_gpuworkload_*` names and labels are the first design's.

mod clouds;
mod tenants;

use std::collections::BTreeMap;
use std::fmt::{self, Debug};
use std::sync::OnceLock;
use std::time::Duration;

use prometheus_client::encoding::text::encode;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::{Histogram, exponential_buckets};
use prometheus_client::registry::Registry;

pub(crate) use self::clouds::Clouds;
pub(crate) use self::tenants::Tenants;

/// The controllers of kinds, by name: every kind of the table, and those of others that can be queued.
fn controllers() -> impl Iterator<Item = String> {
    let kinds = warp_api::kinds::KINDS.iter();
    let names = kinds.map(|entry| entry.kind.to_ascii_lowercase());
    let others = crate::queuedjob::KINDS.iter();
    names.chain(others.map(|kind| kind.controller.to_owned()))
}

type Labels = Vec<(&'static str, String)>;

/// Reads what only a cache knows.
struct Follow<T>(Box<dyn Fn(&T) + Send + Sync>);

impl<T> Debug for Follow<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Follow")
    }
}

/// Every metric with the registry they are printed from.
#[derive(Debug)]
pub(crate) struct Metrics {
    registry: Registry,
    scheduled: Family<Labels, Counter>,
    failed: Family<Labels, Counter>,
    retries: Counter,
    placement: Histogram,
    decision: Histogram,
    repairs: Counter,
    waits: Histogram,
    reasons: Family<Labels, Gauge>,
    gpus: Family<Labels, Gauge>,
    pending: Gauge,
    evictions: Counter,
    lost: Counter,
    unheld: Gauge,
    writes: Family<Labels, Counter>,
    watch_errors: Family<Labels, Counter>,
    leader: Gauge,
    /// Passes of every kind, by its controller.
    kinds: BTreeMap<String, Family<Labels, Histogram>>,
    kind_ready: Family<Labels, Gauge>,
    /// What is rented and what it costs; read when it is printed.
    clouds: Clouds,
    follow: OnceLock<Follow<Clouds>>,
    /// What tenants use and wait for; read when it is printed.
    tenants: Tenants,
    follow_tenants: OnceLock<Follow<Tenants>>,
}

impl Default for Metrics {
    fn default() -> Self {
        fn buckets() -> Histogram {
            Histogram::new(exponential_buckets(0.001, 2.5, 11))
        }
        let mut metrics = Self {
            registry: Registry::default(),
            scheduled: Family::default(),
            failed: Family::default(),
            retries: Counter::default(),
            placement: buckets(),
            decision: buckets(),
            repairs: Counter::default(),
            waits: Histogram::new(exponential_buckets(1.0, 3.0, 13)),
            reasons: Family::default(),
            gpus: Family::default(),
            pending: Gauge::default(),
            evictions: Counter::default(),
            lost: Counter::default(),
            unheld: Gauge::default(),
            writes: Family::default(),
            watch_errors: Family::default(),
            leader: Gauge::default(),
            kinds: controllers()
                .map(|name| {
                    let passes = Family::new_with_constructor(buckets as fn() -> Histogram);
                    (name, passes)
                })
                .collect(),
            kind_ready: Family::default(),
            clouds: Clouds::default(),
            follow: OnceLock::new(),
            tenants: Tenants::default(),
            follow_tenants: OnceLock::new(),
        };
        metrics.register();
        metrics
    }
}

impl Metrics {
    fn register(&mut self) {
        let to = &mut self.registry;
        to.register(
            "warp_gpuworkload_scheduled",
            "Placements made",
            self.scheduled.clone(),
        );
        to.register(
            "warp_gpuworkload_failed",
            "Workloads that ended in Failed",
            self.failed.clone(),
        );
        to.register(
            "warp_gpuworkload_retries",
            "Attempts started after a failed one",
            self.retries.clone(),
        );
        to.register(
            "warp_scheduler_pass_duration_seconds",
            "Time of one pass over all pending workloads",
            self.placement.clone(),
        );
        to.register(
            "warp_scheduler_decision_duration_seconds",
            "Time of that until everything was decided, before the first write",
            self.decision.clone(),
        );
        to.register(
            "warp_scheduler_ledger_repairs",
            "Times the kept ledger differed from what the API shows and was read anew",
            self.repairs.clone(),
        );
        to.register(
            "warp_scheduler_wait_seconds",
            "Time from the creation of work to its placement",
            self.waits.clone(),
        );
        to.register(
            "warp_scheduler_waiting",
            "Work without a place by the reason it was last found to wait for",
            self.reasons.clone(),
        );
        to.register(
            "warp_scheduler_gpus",
            "Whole GPUs of all nodes: allocated (or sick), idle on nodes of which none is, or stranded beside those",
            self.gpus.clone(),
        );
        to.register(
            "warp_scheduler_pending_workloads",
            "Workloads without a place",
            self.pending.clone(),
        );
        to.register(
            "warp_scheduler_evictions",
            "Running work asked to end for other work",
            self.evictions.clone(),
        );
        to.register(
            "warp_scheduler_lost_gpu_seconds",
            "GPU-seconds those had run for when they were asked",
            self.lost.clone(),
        );
        to.register(
            "warp_queuedjob_unheld_jobs",
            "Unfinished Jobs with the label of the queue that run without having been placed",
            self.unheld.clone(),
        );
        to.register(
            "warp_operator_writes",
            "Writes to the API by verb and resource",
            self.writes.clone(),
        );
        to.register(
            "warp_operator_watch_errors",
            "Watches that broke, by resource",
            self.watch_errors.clone(),
        );
        to.register(
            "warp_operator_leader",
            "1 while this replica acts",
            self.leader.clone(),
        );
        to.register(
            "warp_operator_kind_ready",
            "1 while a kind can be read and acted on",
            self.kind_ready.clone(),
        );
        self.clouds.register(to);
        self.tenants.register(to);
        for (name, passes) in &self.kinds {
            to.register(
                format!("warp_{name}_reconcile_duration_seconds"),
                "Time of one pass over one object",
                passes.clone(),
            );
        }
    }

    pub(crate) fn scheduled(&self, strategy: &str) {
        self.scheduled
            .get_or_create(&vec![("strategy", strategy.to_owned())])
            .inc();
    }

    pub(crate) fn evicted(&self, lost_gpu_seconds: u64) {
        self.evictions.inc();
        self.lost.inc_by(lost_gpu_seconds);
    }

    pub(crate) fn unheld(&self, jobs: usize) {
        self.unheld.set(i64::try_from(jobs).unwrap_or(i64::MAX));
    }

    pub(crate) fn failed(&self, reason: &str) {
        self.failed
            .get_or_create(&vec![("reason", snake(reason))])
            .inc();
    }

    pub(crate) fn retried(&self) {
        self.retries.inc();
    }

    pub(crate) fn reconciled(&self, controller: &str, took: Duration, ok: bool) {
        let result = if ok { "success" } else { "error" };
        debug_assert!(
            self.kinds.contains_key(controller),
            "{controller} is in no table and not measured"
        );
        if let Some(passes) = self.kinds.get(controller) {
            let labels = vec![("result", result.to_owned())];
            passes.get_or_create(&labels).observe(took.as_secs_f64());
        }
    }

    pub(crate) fn kind_ready(&self, controller: &str, ready: bool) {
        self.kind_ready
            .get_or_create(&vec![("kind", controller.to_owned())])
            .set(i64::from(ready));
    }

    pub(crate) fn placed(&self, took: Duration, pending: usize) {
        self.placement.observe(took.as_secs_f64());
        self.pending.set(i64::try_from(pending).unwrap_or(i64::MAX));
    }

    pub(crate) fn decided(&self, took: Duration) {
        self.decision.observe(took.as_secs_f64());
    }

    /// Work was placed that waited for so long, of a tenant where its namespace has one.
    pub(crate) fn waited(&self, tenant: Option<&str>, seconds: f64) {
        self.waits.observe(seconds);
        if let Some(tenant) = tenant {
            self.tenants.waited(tenant, seconds);
        }
    }

    /// How many wait, by reason: of those that are not named nobody does any more.
    pub(crate) fn waiting(&self, reasons: &BTreeMap<&'static str, usize>) {
        self.reasons.clear();
        for (reason, count) in reasons {
            let labels = vec![("reason", snake(reason))];
            let count = i64::try_from(*count).unwrap_or(i64::MAX);
            self.reasons.get_or_create(&labels).set(count);
        }
    }

    /// How the GPUs of the fleet are used.
    pub(crate) fn fleet(&self, states: [(&'static str, usize); 3]) {
        for (state, count) in states {
            let labels = vec![("state", state.to_owned())];
            let count = i64::try_from(count).unwrap_or(i64::MAX);
            self.gpus.get_or_create(&labels).set(count);
        }
    }

    pub(crate) fn repaired(&self) {
        self.repairs.inc();
    }

    pub(crate) fn wrote(&self, verb: &'static str, resource: &str) {
        let labels = vec![("verb", verb.to_owned()), ("resource", resource.to_owned())];
        self.writes.get_or_create(&labels).inc();
    }

    pub(crate) fn watch_broke(&self, resource: &str) {
        self.watch_errors
            .get_or_create(&vec![("resource", resource.to_owned())])
            .inc();
    }

    pub(crate) fn leads(&self, leads: bool) {
        self.leader.set(i64::from(leads));
    }

    /// An attempt to rent a machine is over.
    pub(crate) fn attempted(&self, provider: &str, outcome: &str) {
        self.clouds.attempted(provider, outcome);
    }

    /// What is rented is read by `follow` whenever it is printed.
    pub(crate) fn follow(&self, follow: impl Fn(&Clouds) + Send + Sync + 'static) {
        self.follow.set(Follow(Box::new(follow))).ok();
    }

    /// What tenants use is read by `follow` whenever it is printed.
    pub(crate) fn follow_tenants(&self, follow: impl Fn(&Tenants) + Send + Sync + 'static) {
        self.follow_tenants.set(Follow(Box::new(follow))).ok();
    }

    /// The OpenMetrics text of everything.
    pub(crate) fn render(&self) -> String {
        if let Some(Follow(follow)) = self.follow.get() {
            follow(&self.clouds);
        }
        if let Some(Follow(follow)) = self.follow_tenants.get() {
            follow(&self.tenants);
        }
        let mut text = String::new();
        // Writing to a String cannot fail.
        let _ = encode(&mut text, &self.registry);
        text
    }
}

/// `NonZeroExit` → `non_zero_exit`, the form the first design's labels had.
fn snake(reason: &str) -> String {
    let mut out = String::new();
    for character in reason.chars() {
        if character.is_ascii_uppercase() && !out.is_empty() {
            out.push('_');
        }
        out.push(character.to_ascii_lowercase());
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_loop_says_who_waits_for_what_and_how_the_fleet_is_used() {
        let metrics = Metrics::default();
        metrics.waiting(&BTreeMap::from([("NeverFits", 2)]));
        metrics.waiting(&BTreeMap::from([("WaitingForCapacity", 7)]));
        metrics.fleet([("allocated", 5), ("idle", 8), ("stranded", 3)]);
        metrics.waited(Some("red"), 4.0);
        metrics.waited(None, 4.0);
        metrics.repaired();
        let text = metrics.render();
        for line in [
            "warp_scheduler_waiting{reason=\"waiting_for_capacity\"} 7",
            "warp_scheduler_gpus{state=\"stranded\"} 3",
            "warp_scheduler_wait_seconds_count 2",
            "warp_tenant_wait_seconds_count{tenant=\"red\"} 1",
            "warp_scheduler_ledger_repairs_total 1",
        ] {
            assert!(text.contains(line), "{line} not in\n{text}");
        }
        assert!(
            !text.contains("never_fits"),
            "nobody waits for that any more"
        );
    }

    #[test]
    fn tenants_are_told_as_their_statuses_have_them() {
        let tenant = |gpus: i64| {
            let tenant = serde_json::json!({
                "apiVersion": "gpu.warp.dev/v1alpha1", "kind": "Tenant", "metadata": {"name": "red"},
                "spec": {"namespaces": {"names": ["a"]}},
                "status": {
                    "gpus": [{"model": "H100-80GB", "inUse": gpus, "waiting": 2}],
                    "quota": [{"gpu": "nvidia", "nominal": 4, "used": gpus, "borrowed": 1, "available": 0}]}});
            std::sync::Arc::new(serde_json::from_value(tenant).expect("a tenant"))
        };
        let metrics = Metrics::default();
        let count = std::sync::atomic::AtomicI64::new(4);
        metrics.follow_tenants(move |tenants| {
            tenants.count(&[tenant(
                count.fetch_add(1, std::sync::atomic::Ordering::SeqCst),
            )]);
        });
        metrics.render();
        let text = metrics.render();
        for line in [
            "warp_tenant_gpus{tenant=\"red\",gpu=\"H100-80GB\",state=\"in_use\"} 5",
            "warp_tenant_gpus{tenant=\"red\",gpu=\"H100-80GB\",state=\"waiting\"} 2",
            "warp_tenant_quota_gpus{tenant=\"red\",gpu=\"nvidia\",state=\"nominal\"} 4",
            "warp_tenant_quota_gpus{tenant=\"red\",gpu=\"nvidia\",state=\"borrowed\"} 1",
        ] {
            assert!(text.contains(line), "{line} not in\n{text}");
        }
    }

    #[test]
    fn the_first_designs_names_and_labels_are_kept() {
        let metrics = Metrics::default();
        metrics.scheduled("leastLoaded");
        metrics.failed("NonZeroExit");
        metrics.retried();
        metrics.reconciled(crate::workload::NAME, Duration::from_millis(3), true);
        let text = metrics.render();
        for line in [
            "warp_gpuworkload_scheduled_total{strategy=\"leastLoaded\"} 1",
            "warp_gpuworkload_failed_total{reason=\"non_zero_exit\"} 1",
            "warp_gpuworkload_retries_total 1",
            "warp_gpuworkload_reconcile_duration_seconds_count{result=\"success\"} 1",
        ] {
            assert!(text.contains(line), "{line} not in\n{text}");
        }
    }
}
