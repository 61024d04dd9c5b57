//! What a workload's tenant lets it have: whether it may be placed at all, and of which kinds of GPU. Pure.
//!
//! The rules are `warp-core`'s; here namespaces become tenants, and what the ledger holds becomes usage.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use k8s_openapi::api::core::v1::Namespace;
use kube::{Resource, ResourceExt};
use warp_api::workload::{Priority, SchedulingStrategy, run_seconds};
use warp_api::{Tenant, reason};
use warp_core::fleet::{Fleet, GpuPool, GpuRequest, Request, Work};
use warp_core::schedule::reclaim::held;
use warp_core::tenancy::{
    Ask, Kind, Tree, Turn, Usage, Verdict as Answer, admit, gpus, is_entitled, turn,
};
use warp_runtime::cache::{Cache, Key};

use super::{Claim, Verdict};
use crate::tenant::claims;

/// Every tenant; none where the kind is not installed or may not be read, nothing before it was listed.
pub(super) fn listed(tenants: Option<&Cache<Tenant>>) -> Option<Vec<Arc<Tenant>>> {
    match tenants {
        None => Some(Vec::new()),
        Some(cache) => cache.is_answered().then(|| cache.all()),
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
    /// What others may not borrow: those it is promised to wait for it. It counts as used.
    reserved: Arc<Vec<Reserved>>,
}

/// GPUs that are kept for a tenant that waits for its share.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Reserved {
    tenant: Arc<str>,
    kind: Kind,
    count: i64,
    /// Who waits for work of its own tenant to end: what comes later of that tenant waits behind it. None where only other
    /// tenants are kept off.
    first: Option<Key>,
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
        for (kind, count) in held(fleet, work) {
            self.usage.add(&name, &kind, count);
        }
    }

    /// Enters what was just placed.
    pub(super) fn took(&mut self, namespace: &str, pool: &GpuPool, milli: i64) {
        if let Some(owner) = self.owners.get(namespace) {
            let name = Arc::from(owner.name_any());
            self.usage.add(&name, &kind(pool), milli);
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
        let asked = claim.asked_priority;
        if !spec.priorities.is_empty() && !spec.priorities.contains(&asked) {
            let may: Vec<&str> = spec.priorities.iter().copied().map(word).collect();
            return Some(format!(
                "tenant {name} may ask for priority {}, not {}; change spec.priority",
                may.join(" or "),
                word(asked)
            ));
        }
        let longest = spec.max_runtime.as_deref().filter(|_| !claim.serves)?;
        let limit = run_seconds(longest)?;
        let own = claim.max_runtime_seconds;
        own.is_none_or(|own| own > limit).then(|| {
            format!(
                "work of tenant {name} runs at most {longest}; set spec.maxRuntime to that or less"
            )
        })
    }

    /// Whether any tenant has a say in a namespace.
    pub(super) fn rules(&self, namespace: &str) -> bool {
        self.owners.contains_key(namespace) || self.contested.contains_key(namespace)
    }

    /// Whether tenants lend each other anything.
    pub(crate) fn lends(&self) -> bool {
        let mut owners = self.owners.values();
        owners.any(|owner| owner.spec.parent.is_some())
    }

    /// The tenant of a namespace.
    pub(super) fn tenant(&self, namespace: &str) -> Option<Arc<str>> {
        let owner = self.owners.get(namespace)?;
        Some(Arc::from(owner.name_any()))
    }

    /// The tree and what is used of it, as one tenant sees it: what is kept for itself is not in its way.
    pub(super) fn seen_by(&self, tenant: &str) -> (&Tree, Usage) {
        let mut usage = self.usage.clone();
        let own = self.reserved.iter();
        for kept in own.filter(|kept| *kept.tenant == *tenant && kept.first.is_none()) {
            usage.add(&kept.tenant, &kept.kind, -kept.count);
        }
        (&self.tree, usage)
    }

    /// What is kept so far in this pass.
    pub(crate) fn reserved(&self) -> &Arc<Vec<Reserved>> {
        &self.reserved
    }

    /// Keeps GPUs from those who would borrow them, or from later work of the same tenant.
    pub(crate) fn reserve(&mut self, kept: Reserved) {
        if kept.first.is_none() {
            self.usage.add(&kept.tenant, &kept.kind, kept.count);
        }
        Arc::make_mut(&mut self.reserved).push(kept);
    }

    /// The kinds of GPU that a tenant is promised so many of, of those a request accepts, each as what would be kept of it.
    pub(super) fn promised(
        &self,
        fleet: &Fleet,
        namespace: &str,
        gpu: &GpuRequest,
        pods: usize,
    ) -> Vec<Reserved> {
        let Some(owner) = self.owners.get(namespace) else {
            return Vec::new();
        };
        let tenant: Arc<str> = Arc::from(owner.name_any());
        let (tree, usage) = self.seen_by(&tenant);
        let mut found = Vec::new();
        for (kind, count) in asks(fleet, gpu, pods) {
            let ask = Ask {
                tenant: &tenant,
                kind: &kind,
                count,
            };
            if owner.spec.allows(&kind) && is_entitled(tree, &usage, ask) {
                found.push(Reserved {
                    tenant: Arc::clone(&tenant),
                    kind,
                    count,
                    first: None,
                });
            }
        }
        found
    }

    /// What a claim waits for that its tenant's share covers as soon as the tenant's own work has ended, unless somebody
    /// of the tenant waits for the same before it.
    pub(super) fn first_in_line(
        &self,
        fleet: &Fleet,
        claim: &Claim,
        gpu: &GpuRequest,
    ) -> Option<Reserved> {
        let owner = self.owners.get(&*claim.key.namespace)?;
        let tenant: Arc<str> = Arc::from(owner.name_any());
        let mut idle = self.usage.clone();
        idle.clear(&tenant);
        let mut asked = asks(fleet, gpu, claim.pods.len()).into_iter();
        let (kind, count) = asked.find(|(kind, count)| {
            let ask = Ask {
                tenant: &tenant,
                kind,
                count: *count,
            };
            owner.spec.allows(kind) && is_entitled(&self.tree, &idle, ask)
        })?;
        let taken = self.ahead(&tenant, &kind).next().is_some();
        (!taken).then(|| Reserved {
            tenant,
            kind,
            count,
            first: Some(claim.key.clone()),
        })
    }

    /// Who of a tenant waits for such GPUs before whoever comes now.
    fn ahead<'a>(&'a self, tenant: &'a str, kind: &'a Kind) -> impl Iterator<Item = &'a Reserved> {
        let kept = self.reserved.iter();
        kept.filter(move |kept| {
            kept.first.is_some() && *kept.tenant == *tenant && kept.kind == *kind
        })
    }

    /// Why a claim that its tenant's share would cover waits behind another of the tenant.
    fn behind(&self, tree: &Tree, usage: &Usage, ask: Ask<'_>) -> Option<Verdict> {
        let first = self.ahead(ask.tenant, ask.kind).next()?;
        let mut later = usage.clone();
        later.add(&first.tenant, &first.kind, first.count);
        barred(admit(tree, &later, ask))?;
        let key = first.first.as_ref()?;
        Some(Verdict {
            reason: reason::TENANT_QUOTA_EXCEEDED,
            message: format!(
                "it is behind {key}, which waits for {} {} of tenant {}'s quota",
                gpus(first.count),
                first.kind.model,
                first.tenant
            ),
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
        let (tree, usage) = self.seen_by(&name);
        let mut may = BTreeSet::new();
        let mut refused: Option<Verdict> = None;
        for (kind, count) in asks(fleet, gpu, pods) {
            let ask = Ask {
                tenant: &name,
                kind: &kind,
                count,
            };
            let no = if owner.spec.allows(&kind) {
                barred(admit(tree, &usage, ask)).or_else(|| self.behind(tree, &usage, ask))
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

/// The kinds of GPU a request accepts, and how many thousandths of them so many pods ask for. A model that is handed out in
/// several ways counts by the largest.
fn asks(fleet: &Fleet, gpu: &GpuRequest, pods: usize) -> Vec<(Kind, i64)> {
    let pods = i64::try_from(pods).unwrap_or(i64::MAX);
    let mut found: Vec<(Kind, i64)> = Vec::new();
    for (_, offered) in fleet.kinds().filter(|(_, kind)| kind.accepted_by(gpu)) {
        let count = offered.unit.counts(gpu).saturating_mul(pods);
        let kind = Kind {
            vendor: Arc::clone(&offered.vendor),
            model: Arc::clone(&offered.model),
        };
        match found.iter_mut().find(|(known, _)| *known == kind) {
            Some((_, most)) => *most = count.max(*most),
            None => found.push((kind, count)),
        }
    }
    found
}

impl Reserved {
    pub(super) fn tenant(&self) -> &Arc<str> {
        &self.tenant
    }

    pub(super) fn ask(&self) -> Ask<'_> {
        Ask {
            tenant: &self.tenant,
            kind: &self.kind,
            count: self.count,
        }
    }

    pub(super) fn kind(&self) -> &Kind {
        &self.kind
    }
}

/// Tenants' use as it grows while a line is put in order.
#[derive(Debug)]
pub(super) struct Tally<'a> {
    tenancy: &'a Tenancy,
    usage: Usage,
}

impl<'a> Tally<'a> {
    pub(super) fn new(tenancy: &'a Tenancy) -> Self {
        Self {
            usage: tenancy.usage.clone(),
            tenancy,
        }
    }

    /// Counts what a claim asks for if its tenant's share covers that; whether it does. Who has no tenant, or is promised
    /// nothing because nothing limits it, stands where it stands.
    pub(super) fn is_within(
        &mut self,
        fleet: &Fleet,
        namespace: &str,
        gpu: &GpuRequest,
        pods: usize,
    ) -> bool {
        let tree = &self.tenancy.tree;
        let Some(tenant) = self.tenancy.tenant(namespace) else {
            return true;
        };
        let mut limited = false;
        for (kind, count) in asks(fleet, gpu, pods) {
            let ask = Ask {
                tenant: &tenant,
                kind: &kind,
                count,
            };
            if is_entitled(tree, &self.usage, ask) {
                self.usage.add(&tenant, &kind, count);
                return true;
            }
            limited |= turn(tree, &self.usage, ask) != Turn::default();
        }
        !limited
    }

    /// Its turn among those who borrow, counted as if it had what it asks for.
    pub(super) fn turn(
        &self,
        fleet: &Fleet,
        namespace: &str,
        gpu: &GpuRequest,
        pods: usize,
    ) -> (Turn, Option<Reserved>) {
        let Some(tenant) = self.tenancy.tenant(namespace) else {
            return (Turn::default(), None);
        };
        let turns = asks(fleet, gpu, pods).into_iter().map(|(kind, count)| {
            let kept = Reserved {
                tenant: Arc::clone(&tenant),
                kind,
                count,
                first: None,
            };
            (turn(&self.tenancy.tree, &self.usage, kept.ask()), kept)
        });
        let best = turns.min_by_key(|(turn, _)| *turn);
        best.map_or((Turn::default(), None), |(turn, kept)| (turn, Some(kept)))
    }

    pub(super) fn count(&mut self, kept: &Reserved) {
        self.usage.add(&kept.tenant, &kept.kind, kept.count);
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
