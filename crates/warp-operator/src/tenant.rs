//! The Tenant controller: which namespaces belong to a tenant, which GPUs they use and wait for, where it stands
//! under its quota, who runs its namespaces and how these are shut off.
//!
//! Nothing is placed or refused here: the scheduler keeps the limits.

mod defaults;
mod isolation;
mod observe;
mod plan;
#[cfg(test)]
mod tests;

use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::Namespace;
use k8s_openapi::api::networking::v1::NetworkPolicy;
use k8s_openapi::api::rbac::v1::RoleBinding;
use kube::ResourceExt;
use warp_api::{Tenant, label};
use warp_runtime::cache::{Cache, Key, Shape, Source};
use warp_runtime::plan::Plan;
use warp_runtime::reconcile::Reconcile;
use warp_runtime::runtime::{Registration, Runtime, Wakes};

use crate::context::Context;
use crate::{ledger, queuedjob};
pub(crate) use defaults::{Defaults, by_namespace};
use observe::Seen;
pub(crate) use observe::UsageByNamespace;
pub(crate) use plan::claims;

/// Names the controller in logs, metrics, readiness and wake-ups.
pub(crate) const NAME: &str = "tenant";
/// Pods come and go in crowds; what they use is told once for all of them.
pub(crate) const GATHER: Duration = Duration::from_secs(1);

/// What shuts namespaces off, as the caches have it.
#[derive(Clone, Debug)]
struct Walls {
    bindings: Cache<RoleBinding>,
    policies: Cache<NetworkPolicy>,
}

impl Walls {
    fn follow(runtime: &mut Runtime) -> Self {
        let made = |source: Source| source.labels(label::TENANT);
        Self {
            bindings: runtime.cache(made(Source::all::<RoleBinding>()), whole()),
            policies: runtime.cache(made(Source::all::<NetworkPolicy>()), whole()),
        }
    }
}

/// The kind as the runtime runs it.
#[derive(Debug)]
pub(crate) struct Tenants {
    all: Cache<Tenant>,
    usage: Arc<UsageByNamespace>,
    /// What was made for tenants in their namespaces, where that is this operator's to do.
    walls: Option<Walls>,
    cx: Arc<Context>,
}

impl Tenants {
    /// Registers the kind: what it reads, and which changes concern which tenants.
    pub(crate) fn register(runtime: &mut Runtime, cx: &Arc<Context>) {
        let tenants = runtime.cache(Source::all::<Tenant>().with_managed_fields(), shape());
        let usage = Arc::<UsageByNamespace>::default();
        let isolates = cx.settings.isolate_tenants;
        let walls = isolates.then(|| Walls::follow(runtime));
        let kind = Self {
            all: tenants.clone(),
            usage: usage.clone(),
            walls: walls.clone(),
            cx: Arc::clone(cx),
        };
        let notice = Notice {
            tenants: tenants.clone(),
            usage,
            wakes: runtime.wakes(),
        };
        // Its limits are the scheduler's to keep.
        cx.tenants.set(tenants.clone()).ok();
        cx.defaults.follow(&tenants, &cx.namespaces);
        let told = tenants.clone();
        cx.metrics
            .follow_tenants(move |figures| figures.count(&told.all()));
        let placing = runtime.wakes();
        let (everyone, others) = (tenants.clone(), tenants.clone());
        let mut registration = Registration::of(kind, &tenants);
        if let Some(Walls { bindings, policies }) = &walls {
            registration = registration.owns(bindings).owns(policies);
        }
        runtime.register(
            registration
                .watches_changes(&cx.namespaces, move |old, new| {
                    if claimable(old) == claimable(new) {
                        return Vec::new();
                    }
                    keys(&everyone)
                })
                // What one tenant claims decides what the others have.
                .watches_changes(&tenants, move |old, new| {
                    if old.map(|old| &old.spec) == new.map(|new| &new.spec) {
                        return Vec::new();
                    }
                    placing.wake_sweep(crate::placement::NAME);
                    keys(&others)
                })
                .reads(&cx.workloads)
                .reads(&cx.queued.jobs)
                .reads(&cx.pods)
                .reads(&cx.nodes),
        );
        notice.listen(cx);
    }
}

/// What decides whether a namespace belongs to a tenant.
fn claimable(
    namespace: Option<&Namespace>,
) -> Option<(String, &std::collections::BTreeMap<String, String>)> {
    namespace.map(|namespace| (namespace.name_any(), namespace.labels()))
}

/// Tenants whose money is counted.
pub(crate) fn with_budgets(tenants: &Cache<Tenant>) -> Vec<Key> {
    let all = tenants.all();
    let limited = all.iter().filter(|tenant| tenant.spec.budget.is_some());
    limited.map(|tenant| Key::of(&**tenant)).collect()
}

fn keys(tenants: &Cache<Tenant>) -> Vec<Key> {
    tenants
        .all()
        .iter()
        .map(|tenant| Key::of(&**tenant))
        .collect()
}

fn shape() -> Shape<Tenant> {
    Shape {
        keep: |_| true,
        trim: |tenant| {
            // The audit trail names the last writer of the spec and nothing else of these.
            let fields = tenant.managed_fields_mut();
            fields.retain(|entry| entry.subresource.is_none());
            for entry in fields.iter_mut() {
                entry.fields_v1 = None;
            }
        },
        indexes: &[],
    }
}

/// Children keep their annotations: what was applied last is told there.
fn whole<K: ResourceExt>() -> Shape<K> {
    Shape {
        keep: |_| true,
        trim: |object| object.managed_fields_mut().clear(),
        indexes: &[],
    }
}

/// How the watches of pods, nodes and workloads tell tenants that something changed.
#[derive(Clone, Debug)]
struct Notice {
    tenants: Cache<Tenant>,
    usage: Arc<UsageByNamespace>,
    wakes: Wakes,
}

impl Notice {
    fn listen(self, cx: &Context) {
        let told = self.clone();
        cx.workloads.listen(move |_, _| told.usage_changed());
        let told = self.clone();
        cx.queued.listen(move |old, new| {
            if queuedjob::line_matters(old, new) {
                told.usage_changed();
            }
        });
        let told = self.clone();
        cx.pods.listen(move |old, new| {
            if ledger::pod_matters(old, new) {
                told.usage_changed();
            }
        });
        cx.nodes.listen(move |old, new| {
            if ledger::node_matters(old, new) {
                self.usage_changed();
            }
        });
    }

    /// What is used or waited for may have changed.
    fn usage_changed(&self) {
        self.usage.outdated();
        for key in keys(&self.tenants) {
            self.wakes.wake_after(NAME, key, GATHER);
        }
    }
}

impl Reconcile for Tenants {
    type Object = Tenant;
    type Seen = Seen;
    const NAME: &'static str = NAME;
    const MANAGER: &'static str = "warp-tenant";

    async fn observe(&self, _: &Arc<Tenant>) -> Seen {
        observe::see(self)
    }

    fn plan(&self, tenant: &Tenant, seen: &Seen, now: Timestamp) -> Plan {
        plan::plan(tenant, seen, now)
    }
}
