//! The GPURequest controller: buys one machine within a price, follows it to a node, and gives it back.
//!
//! Every attempt is written into the status before the cloud is asked, under a name that is the same for ever; the
//! cloud is searched before anything is repeated; and a request goes only when the cloud says that its machine is gone.

mod choose;
mod costs;
mod drive;
mod money;
mod observe;
mod plan;
mod say;
#[cfg(test)]
mod tests;
mod wanted;

use std::sync::Arc;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::ConfigMap;
use warp_api::{CloudProvider, GPURequest, Tenant};
use warp_cloud::Kind;
use warp_runtime::cache::{Cache, Key};
use warp_runtime::outside::Outside;
use warp_runtime::plan::Plan;
use warp_runtime::reconcile::Reconcile;
use warp_runtime::runtime::{Registration, Runtime, Wakes};

pub(crate) use self::costs::LABEL as LEDGER;
pub(crate) use self::money::machines;
use self::observe::Seen;
use crate::context::Context;
use crate::tenant;

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

/// Wakes whom it concerns when what is spent or reserved changes: tenants with a budget, and requests that one holds; and
/// every open request when a budget or a tenant's namespaces change.
pub(crate) fn follow_money(cx: &Context, requests: &Cache<GPURequest>, wakes: &Wakes) {
    let Some(tenants) = cx.tenants.get().cloned() else {
        return;
    };
    let (told, all, payers) = (wakes.clone(), requests.clone(), tenants.clone());
    requests.listen(move |old, new| {
        if money::facts(old) == money::facts(new) {
            return;
        }
        let limited = tenant::with_budgets(&payers);
        for key in &limited {
            told.wake_after(tenant::NAME, key.clone(), tenant::GATHER);
        }
        let held = |request: &&Arc<GPURequest>| !limited.is_empty() && money::is_held(request);
        for request in all.all().iter().filter(held) {
            told.wake(NAME, Key::of(&**request));
        }
    });
    let (told, all) = (wakes.clone(), requests.clone());
    tenants.listen(move |old, new| {
        let said = |tenant: Option<&Tenant>| {
            tenant.map(|tenant| {
                let spec = &tenant.spec;
                (
                    spec.budget.clone(),
                    spec.parent.clone(),
                    spec.namespaces.clone(),
                )
            })
        };
        if said(old) != said(new) {
            for request in all.all() {
                told.wake(NAME, Key::of(&*request));
            }
        }
    });
}

/// The name a machine is called by outside.
fn outside_name(provider: &str, machine: &str) -> String {
    format!("{provider}/{machine}")
}

/// The ConfigMap of one month's costs: one for each tenant, and one for what is no tenant's.
fn costs_key(home: &str, month: &str, tenant: Option<&str>) -> Key {
    let name = match tenant {
        None => format!("costs-{month}"),
        Some(tenant) => format!("costs-{month}-{tenant}"),
    };
    Key::new(home, &name)
}

/// Costs are kept in objects of this kind.
type Ledger = ConfigMap;

impl Reconcile for GpuRequests {
    type Object = GPURequest;
    type Seen = Seen;
    const NAME: &'static str = NAME;
    const MANAGER: &'static str = "warp-gpurequest";

    async fn observe(&self, request: &Arc<GPURequest>) -> Seen {
        observe::see(self, request, self.cx.clock.now())
    }

    fn plan(&self, request: &GPURequest, seen: &Seen, now: Timestamp) -> Plan {
        plan::plan(request, seen, now)
    }
}
