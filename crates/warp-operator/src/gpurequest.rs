//! The GPURequest controller: buys one machine within a price, follows it to a node, and gives it back.
//!
//! Every attempt is written into the status before the cloud is asked, under a name that is the same for ever; the
//! cloud is searched before anything is repeated; and a request goes only when the cloud says that its machine is gone.

mod bootstrap;
mod caller;
mod choose;
mod container;
mod costs;
mod drive;
mod ending;
mod joining;
mod money;
mod notice;
mod observe;
mod plan;
mod pod_status;
mod prospect;
mod say;
#[cfg(test)]
mod tests;
mod together;
mod told;
mod wanted;

use std::collections::BTreeMap;
use std::sync::Arc;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{ConfigMap, Node, Pod};
use kube::ResourceExt;
use warp_api::{CloudProvider, GPURequest, Tenant};
use warp_cloud::Kind;
use warp_runtime::cache::{Cache, Key};
use warp_runtime::outside::Outside;
use warp_runtime::plan::Plan;
use warp_runtime::reconcile::Reconcile;
use warp_runtime::runtime::{Registration, Runtime, Wakes};

pub(crate) use self::costs::{
    LABEL as LEDGER, of_attempt as cost_of, of_provider as cost_of_earlier,
};
pub(crate) use self::money::machines;
use self::observe::Seen;
pub(crate) use self::observe::unfit_of;
pub(crate) use self::prospect::{Market, prospect};
use crate::context::Context;
use crate::joining::{CERTIFICATES, Certificates, Joining, TOKENS, Tokens};
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
    /// Nodes that are containers.
    tended: Outside,
    tokens: Outside,
    certificates: Outside,
    home: String,
    /// This process among all that ever ran the operator.
    process: String,
    cx: Arc<Context>,
}

impl GpuRequests {
    pub(crate) fn register(
        runtime: &mut Runtime,
        cx: &Arc<Context>,
        all: &Cache<GPURequest>,
        providers: &Cache<CloudProvider>,
        machines: Vec<(Kind, Outside)>,
        tended: Outside,
        joining: &Joining,
    ) {
        let tokens = runtime.outside(TOKENS, NAME, Tokens(joining.clone()));
        let certificates = runtime.outside(CERTIFICATES, NAME, Certificates(joining.clone()));
        let kind = Self {
            all: all.clone(),
            providers: providers.clone(),
            machines,
            tended,
            tokens,
            certificates,
            home: joining.home.clone(),
            process: runtime.process().to_owned(),
            cx: Arc::clone(cx),
        };
        let everyone = all.clone();
        let offers = |provider: Option<&CloudProvider>| {
            provider.map(|provider| {
                let status = provider.status.as_ref();
                let offers = status.map(|status| status.offers.clone());
                let machines = status.map(|status| status.machine_count);
                let circuit = status.and_then(|status| status.circuit.clone());
                (provider.spec.clone(), offers, machines, circuit)
            })
        };
        let (rented, nodes) = (all.clone(), cx.nodes.clone());
        let companions = all.clone();
        let (containers, pods) = (all.clone(), cx.pods.clone());
        runtime.register(
            Registration::of(kind, all)
                // One at a time: what one buys counts against the limits that the next one looks at.
                .workers(1)
                .watches_changes(all, move |old, new| {
                    if together::facts(old) == together::facts(new) {
                        return Vec::new();
                    }
                    let Some(changed) = new.or(old) else {
                        return Vec::new();
                    };
                    let others = together::concerned(changed, &companions.all());
                    others.iter().map(|other| Key::of(&**other)).collect()
                })
                .watches_changes(&pods, move |old, new| {
                    if said_by_pod(old) == said_by_pod(new) {
                        return Vec::new();
                    }
                    let node = new.or(old).and_then(crate::ledger::node_of);
                    let has = |request: &&Arc<GPURequest>| {
                        let attempts = request.status.iter().flat_map(|status| &status.attempts);
                        let mut open = attempts.filter(|attempt| attempt.outcome.is_none());
                        open.any(|one| one.is_container() && Some(one.machine.as_str()) == node)
                    };
                    let all = node.map(|_| containers.all()).unwrap_or_default();
                    all.iter()
                        .filter(has)
                        .map(|request| Key::of(&**request))
                        .collect()
                })
                .watches_changes(providers, move |old, new| {
                    if offers(old) == offers(new) {
                        return Vec::new();
                    }
                    everyone
                        .all()
                        .iter()
                        .map(|request| Key::of(&**request))
                        .collect()
                })
                .watches_changes(&nodes, move |old, new| {
                    if told(old) == told(new) {
                        return Vec::new();
                    }
                    let name = new.or(old).map(ResourceExt::name_any);
                    let has = |request: &&Arc<GPURequest>| {
                        let attempts = request.status.iter().flat_map(|status| &status.attempts);
                        let mut open = attempts.filter(|attempt| attempt.outcome.is_none());
                        open.any(|attempt| Some(&attempt.machine) == name.as_ref())
                    };
                    let all = rented.all();
                    all.iter()
                        .filter(has)
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

/// What a node says that a request for its machine acts on.
fn told(node: Option<&Node>) -> (Option<BTreeMap<String, String>>, bool) {
    let said = node.map(|node| node.annotations().clone());
    (said, node.is_some_and(ending::is_ready))
}

/// What a pod says that the request for the container it is acts on.
fn said_by_pod(pod: Option<&Pod>) -> Option<(Option<String>, Option<&str>, bool, bool)> {
    let pod = pod?;
    let going = pod.metadata.deletion_timestamp.is_some();
    let node = crate::ledger::node_of(pod);
    Some((pod.uid(), node, going, crate::ledger::finished(pod)))
}

/// Counts attempts as they end, and has what is rented read whenever it is asked for.
pub(crate) fn follow_clouds(
    cx: &Context,
    requests: &Cache<GPURequest>,
    providers: &Cache<CloudProvider>,
) {
    let metrics = Arc::clone(&cx.metrics);
    requests.listen(move |old, new| {
        // Only what changes while this process looks on is counted.
        let (Some(old), Some(new)) = (old, new) else {
            return;
        };
        let known = |number: u32| {
            let mut attempts = old.status.iter().flat_map(|status| &status.attempts);
            attempts.any(|attempt| attempt.number == number && attempt.outcome.is_some())
        };
        for attempt in new.status.iter().flat_map(|status| &status.attempts) {
            if let Some(outcome) = attempt.outcome.as_ref().filter(|_| !known(attempt.number)) {
                metrics.attempted(&attempt.provider, outcome);
            }
        }
    });
    let (requests, providers) = (requests.clone(), providers.clone());
    let (tenants, clock) = (cx.tenants.get().cloned(), cx.clock.clone());
    cx.metrics.follow(move |clouds| {
        let tenants = tenants.as_ref().map(Cache::all).unwrap_or_default();
        clouds.count(&providers.all(), &requests.all(), &tenants, clock.now());
    });
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

/// The ConfigMap of one month's costs: one for each tenant, and one for what is no tenant's. Those of containers have parts.
fn costs_key(home: &str, month: &str, tenant: Option<&str>, part: Option<u64>) -> Key {
    let tenant = tenant.map(|tenant| format!("-{tenant}"));
    let part = part.map(|part| format!(".{part}"));
    let name = format!(
        "costs-{month}{}{}",
        tenant.unwrap_or_default(),
        part.unwrap_or_default()
    );
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
