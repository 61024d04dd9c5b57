//! What a workload's tenant lets it have: whether it may be placed at all, and of which kinds of GPU. Pure.
//!
//! The rules are `warp-core`'s; here namespaces become tenants, and what the ledger holds becomes usage.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use k8s_openapi::api::core::v1::Namespace;
use kube::{Resource, ResourceExt};
use warp_api::workload::{Priority, SchedulingStrategy, run_seconds};
use warp_api::{Tenant, reason};
use warp_core::fleet::{Fleet, GpuPool, Request, Work};
use warp_core::tenancy::{Ask, Kind, Tree, Usage, Verdict as Answer, admit};
use warp_runtime::cache::{Cache, Health};

use super::{Claim, Verdict};
use crate::tenant::claims;

/// Every tenant; none where the kind is not installed or may not be read, nothing before it was listed.
pub(super) fn listed(tenants: Option<&Cache<Tenant>>) -> Option<Vec<Arc<Tenant>>> {
    match tenants {
        None => Some(Vec::new()),
        Some(cache) if cache.health() == Health::Starting => None,
        Some(cache) => Some(cache.all()),
    }
}

/// Every tenant, whose namespaces are whose, and what they use.
#[derive(Debug, Default)]
pub(crate) struct Tenancy {
    tree: Tree,
    usage: Usage,
    owners: BTreeMap<String, Arc<Tenant>>,
    /// Namespaces that several claim, one of whom limits something.
    contested: BTreeMap<String, Vec<String>>,
}

impl Tenancy {
    pub(crate) fn new(
        tenants: &[Arc<Tenant>],
        namespaces: &[Arc<Namespace>],
        fleet: &Fleet,
    ) -> Self {
        let mut tenancy = Self::default();
        let there = |tenant: &&Arc<Tenant>| tenant.meta().deletion_timestamp.is_none();
        let tenants: Vec<&Arc<Tenant>> = tenants.iter().filter(there).collect();
        let means = |tenant: &&Arc<Tenant>| tenant.spec.limits() || tenant.spec.defaults.is_some();
        if !tenants.iter().any(means) {
            return tenancy;
        }
        let mut claimed: BTreeMap<String, Vec<&Arc<Tenant>>> = BTreeMap::new();
        for tenant in &tenants {
            // A selector that cannot be read claims nothing; its tenant says so.
            let own = claims(&tenant.spec.namespaces, namespaces).unwrap_or_default();
            for name in own {
                claimed.entry(name).or_default().push(tenant);
            }
        }
        for (namespace, claimants) in claimed {
            match claimants.as_slice() {
                [only] => drop(tenancy.owners.insert(namespace, Arc::clone(only))),
                several if several.iter().any(|tenant| tenant.spec.limits()) => {
                    let names = several.iter().map(|tenant| tenant.name_any());
                    tenancy.contested.insert(namespace, names.collect());
                }
                _ => {}
            }
        }
        // What is wrong with a parent, its tenant says.
        (tenancy.tree, _) = Tree::new(tenants.iter().map(|tenant| tenant.shares()));
        for work in fleet.works() {
            tenancy.count(fleet, work);
        }
        tenancy
    }

    /// Counts what a piece of work holds.
    fn count(&mut self, fleet: &Fleet, work: &Work) {
        let Some(owner) = self.owners.get(&*work.request.namespace) else {
            return;
        };
        let name = Arc::from(owner.name_any());
        let node = fleet.find(&work.node).and_then(|id| fleet.node(id));
        for (at, pool) in node.iter().flat_map(|node| node.gpus.iter().enumerate()) {
            let named = work.request.resources.extended(&pool.resource);
            let taken = work.gpus.as_ref().filter(|taken| taken.pool == at);
            let asked = taken.and(work.request.gpu.as_ref());
            let asked = asked.map_or(0, |gpu| i64::from(gpu.count));
            if named + asked > 0 {
                self.usage.add(&name, &kind(pool), named + asked);
            }
        }
    }

    /// Enters what was just placed.
    pub(super) fn took(&mut self, namespace: &str, pool: &GpuPool, count: u32) {
        if let Some(owner) = self.owners.get(namespace) {
            let name = Arc::from(owner.name_any());
            self.usage.add(&name, &kind(pool), i64::from(count));
        }
    }

    /// The strategy of work that names none.
    pub(super) fn strategy(&self, namespace: &str) -> Option<SchedulingStrategy> {
        let owner = self.owners.get(namespace)?;
        owner.spec.defaults.as_ref()?.scheduling_strategy
    }

    /// Whether running work that does not say may be evicted.
    pub(super) fn preemptible(&self, namespace: &str) -> Option<bool> {
        let owner = self.owners.get(namespace)?;
        owner.spec.defaults.as_ref()?.preemptible
    }

    /// Why nothing of this claim may be placed, wherever.
    pub(super) fn bars(&self, claim: &Claim) -> Option<Verdict> {
        let namespace: &str = &claim.key.namespace;
        if let Some(claimants) = self.contested.get(namespace) {
            return Some(Verdict {
                reason: reason::TENANT_FORBIDS,
                message: format!(
                    "namespace {namespace} is claimed by the tenants {}: nothing of it is placed until only one does",
                    claimants.join(" and ")
                ),
            });
        }
        let owner = self.owners.get(namespace)?;
        let name = owner.name_any();
        if owner.spec.suspend {
            return Some(Verdict {
                reason: reason::TENANT_SUSPENDED,
                message: format!(
                    "tenant {name} is suspended; `warp tenant resume {name}` lets it go on"
                ),
            });
        }
        let message = Self::forbidden(owner, claim)?;
        Some(Verdict {
            reason: reason::TENANT_FORBIDS,
            message,
        })
    }

    fn forbidden(owner: &Tenant, claim: &Claim) -> Option<String> {
        let name = owner.name_any();
        let spec = &owner.spec;
        let asked = claim.priority;
        if !spec.priorities.is_empty() && !spec.priorities.contains(&asked) {
            let may: Vec<&str> = spec.priorities.iter().copied().map(word).collect();
            return Some(format!(
                "tenant {name} may ask for priority {}, not {}; change spec.priority",
                may.join(" or "),
                word(asked)
            ));
        }
        let longest = spec.max_runtime.as_deref()?;
        let limit = run_seconds(longest)?;
        let own = claim.max_runtime_seconds;
        own.is_none_or(|own| own > limit).then(|| {
            format!(
                "work of tenant {name} runs at most {longest}; set spec.maxRuntime to that or less"
            )
        })
    }

    /// Leaves of a request's GPUs those its tenant may have now, for as many pods as ask alike. Says whether any were left
    /// out; an error when none is left.
    pub(crate) fn narrow(
        &self,
        fleet: &Fleet,
        request: &mut Request,
        pods: usize,
    ) -> Result<bool, Verdict> {
        let owner = self.owners.get(&*request.namespace);
        let (Some(owner), Some(gpu)) = (owner, request.gpu.as_mut()) else {
            return Ok(false);
        };
        let name = owner.name_any();
        let mut may = BTreeSet::new();
        let mut refused: Option<Verdict> = None;
        for (_, offered) in fleet.kinds().filter(|(_, kind)| kind.accepted_by(gpu)) {
            let kind = Kind {
                vendor: Arc::clone(&offered.vendor),
                model: Arc::clone(&offered.model),
            };
            let ask = Ask {
                tenant: &name,
                kind: &kind,
                count: i64::from(gpu.count).saturating_mul(i64::try_from(pods).unwrap_or(i64::MAX)),
            };
            let no = if owner.spec.allows(&kind) {
                barred(admit(&self.tree, &self.usage, ask))
            } else {
                Some(Verdict {
                    reason: reason::TENANT_FORBIDS,
                    message: format!(
                        "tenant {name} may use {}; ask for one of these in spec.gpu.models",
                        owner.spec.allowed_models.join(", ")
                    ),
                })
            };
            match no {
                None => drop(may.insert(Arc::clone(&kind.model))),
                // What passes by itself is more hopeful than what never does.
                Some(verdict) if verdict.reason == reason::TENANT_QUOTA_EXCEEDED => {
                    refused = Some(verdict);
                }
                Some(verdict) => drop(refused.get_or_insert(verdict)),
            }
        }
        match (may.is_empty(), refused) {
            (_, None) => Ok(false),
            (true, Some(verdict)) => Err(verdict),
            (false, Some(_)) => {
                gpu.models = may;
                Ok(true)
            }
        }
    }
}

fn barred(answer: Answer) -> Option<Verdict> {
    match answer {
        Answer::Fits { .. } => None,
        Answer::Waits { words, .. } => Some(Verdict {
            reason: reason::TENANT_QUOTA_EXCEEDED,
            message: words,
        }),
        Answer::Never { words } => Some(Verdict {
            reason: reason::TENANT_FORBIDS,
            message: words,
        }),
    }
}

fn kind(pool: &GpuPool) -> Kind {
    Kind {
        vendor: Arc::clone(&pool.vendor),
        model: Arc::clone(&pool.model),
    }
}

fn word(priority: Priority) -> &'static str {
    match priority {
        Priority::Low => "low",
        Priority::Normal => "normal",
        Priority::High => "high",
    }
}
