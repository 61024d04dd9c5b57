//! What tenants use, wait for, borrow and may have, and how long their work waits: figures that follow from the tenants'
//! own statuses, read when they are asked for.

use std::sync::Arc;

use kube::ResourceExt;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::{Histogram, exponential_buckets};
use prometheus_client::registry::Registry;
use warp_api::Tenant;

use super::Labels;

/// See the module.
#[derive(Debug)]
pub(crate) struct Tenants {
    gpus: Family<Labels, Gauge>,
    quota: Family<Labels, Gauge>,
    waits: Family<Labels, Histogram, fn() -> Histogram>,
}

impl Default for Tenants {
    fn default() -> Self {
        fn buckets() -> Histogram {
            Histogram::new(exponential_buckets(1.0, 3.0, 13))
        }
        Self {
            gpus: Family::default(),
            quota: Family::default(),
            waits: Family::new_with_constructor(buckets as fn() -> Histogram),
        }
    }
}

fn labels(tenant: &str, gpu: &str, state: &str) -> Labels {
    vec![
        ("tenant", tenant.to_owned()),
        ("gpu", gpu.to_owned()),
        ("state", state.to_owned()),
    ]
}

impl Tenants {
    pub(super) fn register(&self, to: &mut Registry) {
        to.register(
            "warp_tenant_gpus",
            "GPUs of a tenant by model: in use, or waited for",
            self.gpus.clone(),
        );
        to.register(
            "warp_tenant_quota_gpus",
            "Where a tenant stands under each line of a quota: nominal, used, borrowed, available",
            self.quota.clone(),
        );
        to.register(
            "warp_tenant_wait_seconds",
            "Time from the creation of a tenant's work to its placement",
            self.waits.clone(),
        );
    }

    /// Work of a tenant was placed that waited for so long.
    pub(super) fn waited(&self, tenant: &str, seconds: f64) {
        let labels = vec![("tenant", tenant.to_owned())];
        self.waits.get_or_create(&labels).observe(seconds);
    }

    /// Counts everything anew: what is gone is not told any more.
    pub(crate) fn count(&self, tenants: &[Arc<Tenant>]) {
        self.gpus.clear();
        self.quota.clear();
        for tenant in tenants {
            let name = tenant.name_any();
            let Some(status) = &tenant.status else {
                continue;
            };
            for gpus in &status.gpus {
                for (state, count) in [("in_use", gpus.in_use), ("waiting", gpus.waiting)] {
                    let labels = labels(&name, &gpus.model, state);
                    self.gpus.get_or_create(&labels).set(count);
                }
            }
            for line in &status.quota {
                for (state, count) in [
                    ("nominal", line.nominal),
                    ("used", line.used),
                    ("borrowed", line.borrowed),
                    ("available", line.available),
                ] {
                    let labels = labels(&name, &line.gpu, state);
                    self.quota.get_or_create(&labels).set(count);
                }
            }
        }
    }
}
