//! The GPURequest controller: buys one machine within a price, follows it to a node, and gives it back.
//!
//! Every attempt is written into the status before the cloud is asked, under a name that is the same for ever; the
//! cloud is searched before anything is repeated; and a request goes only when the cloud says that its machine is gone.

mod choose;
mod costs;
mod drive;
mod observe;
mod plan;
mod say;
#[cfg(test)]
mod tests;
mod wanted;

use std::sync::Arc;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::ConfigMap;
use warp_api::{CloudProvider, GPURequest};
use warp_cloud::Kind;
use warp_runtime::cache::{Cache, Key};
use warp_runtime::outside::Outside;
use warp_runtime::plan::Plan;
use warp_runtime::reconcile::Reconcile;
use warp_runtime::runtime::{Registration, Runtime};

use self::observe::Seen;
use crate::context::Context;

/// Names the controller in logs, metrics, readiness and wake-ups.
pub(crate) const NAME: &str = "gpurequest";
/// Keeps a request until its machine is gone.
const FINALIZER: &str = "gpu.warp.dev/rental";

/// The kind as the runtime runs it.
#[derive(Debug)]
pub(crate) struct GpuRequests {
    all: Cache<GPURequest>,
    providers: Cache<CloudProvider>,
    machines: Vec<(Kind, Outside)>,
    home: String,
    cx: Arc<Context>,
}

impl GpuRequests {
    pub(crate) fn register(
        runtime: &mut Runtime,
        cx: &Arc<Context>,
        all: &Cache<GPURequest>,
        providers: &Cache<CloudProvider>,
        machines: Vec<(Kind, Outside)>,
        home: &str,
    ) {
        let kind = Self {
            all: all.clone(),
            providers: providers.clone(),
            machines,
            home: home.to_owned(),
            cx: Arc::clone(cx),
        };
        let everyone = all.clone();
        let offers = |provider: Option<&CloudProvider>| {
            provider.map(|provider| {
                let status = provider.status.as_ref();
                let offers = status.map(|status| status.offers.clone());
                let machines = status.map(|status| status.machine_count);
                (provider.spec.clone(), offers, machines)
            })
        };
        runtime.register(
            Registration::of(kind, all)
                // One at a time: what one buys counts against the limits that the next one looks at.
                .workers(1)
                .watches_changes(providers, move |old, new| {
                    if offers(old) == offers(new) {
                        return Vec::new();
                    }
                    everyone
                        .all()
                        .iter()
                        .map(|request| Key::of(&**request))
                        .collect()
                }),
        );
    }

    fn outside(&self, kind: Kind) -> Option<&Outside> {
        let mut all = self.machines.iter();
        all.find(|(known, _)| *known == kind)
            .map(|(_, outside)| outside)
    }
}

/// The name a machine is called by outside.
fn outside_name(provider: &str, machine: &str) -> String {
    format!("{provider}/{machine}")
}

/// The ConfigMap of one month's costs.
fn costs_key(home: &str, month: &str) -> Key {
    Key::new(home, &format!("costs-{month}"))
}

/// Costs are kept in objects of this kind.
type Ledger = ConfigMap;

impl Reconcile for GpuRequests {
    type Object = GPURequest;
    type Seen = Seen;
    const NAME: &'static str = NAME;
    const MANAGER: &'static str = "warp-gpurequest";

    async fn observe(&self, request: &Arc<GPURequest>) -> Seen {
        observe::see(self, request)
    }

    fn plan(&self, request: &GPURequest, seen: &Seen, now: Timestamp) -> Plan {
        plan::plan(request, seen, now)
    }
}
