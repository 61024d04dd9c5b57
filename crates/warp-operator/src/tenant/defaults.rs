//! Whose a namespace is, and what its work gets from that tenant where it does not say. Follows the caches and tells who asks when it may
//! have changed; nothing is decided here.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use k8s_openapi::api::core::v1::Namespace;
use kube::{Resource, ResourceExt};
use parking_lot::{Mutex, RwLock};
use warp_api::Tenant;
use warp_api::tenant::TenantDefaults;
use warp_runtime::cache::Cache;

use super::{claimable, claims};

/// The tenant of a namespace.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Owner {
    pub(crate) name: Arc<str>,
    /// What it says for work that does not.
    pub(crate) defaults: TenantDefaults,
}

type ByNamespace = BTreeMap<String, Owner>;
type Listener = Box<dyn Fn(Option<&str>) + Send + Sync>;

/// What tenants say for work that does not, read again only after a change.
#[derive(Default)]
pub(crate) struct Defaults {
    sources: RwLock<Option<(Cache<Tenant>, Cache<Namespace>)>>,
    /// Some tenant has said something once.
    said: AtomicBool,
    changes: AtomicU64,
    known: Mutex<(u64, Arc<ByNamespace>)>,
    listeners: RwLock<Vec<Listener>>,
}

impl fmt::Debug for Defaults {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.debug_struct("Defaults").finish_non_exhaustive()
    }
}

impl Defaults {
    /// Follows tenants and namespaces from now on.
    pub(super) fn follow(self: &Arc<Self>, tenants: &Cache<Tenant>, spaces: &Cache<Namespace>) {
        *self.sources.write() = Some((tenants.clone(), spaces.clone()));
        let this = Arc::clone(self);
        tenants.listen(move |old, new| {
            if new.is_some_and(says_anything) {
                this.said.store(true, Ordering::SeqCst);
            }
            // Also one that says nothing may claim what is another's.
            if said(old) != said(new) {
                this.changed(None);
            }
        });
        let this = Arc::clone(self);
        spaces.listen(move |old, new| {
            let namespace = new.or(old).map(ResourceExt::name_any);
            if claimable(old) != claimable(new) {
                this.changed(namespace.as_deref());
            }
        });
    }

    fn is_said(&self) -> bool {
        self.said.load(Ordering::SeqCst)
    }

    fn changed(&self, namespace: Option<&str>) {
        self.changes.fetch_add(1, Ordering::SeqCst);
        if !self.is_said() {
            return;
        }
        for listener in &*self.listeners.read() {
            listener(namespace);
        }
    }

    /// Has `listener` told when work of a namespace may get something else, or of any namespace.
    pub(crate) fn listen(&self, listener: impl Fn(Option<&str>) + Send + Sync + 'static) {
        self.listeners.write().push(Box::new(listener));
    }

    /// What work of a namespace gets where it does not say.
    pub(crate) fn of(&self, namespace: &str) -> TenantDefaults {
        let known = self.is_said().then(|| self.known());
        let owner = known.as_ref().and_then(|known| known.get(namespace));
        owner.map(|owner| owner.defaults).unwrap_or_default()
    }

    /// The tenant of a namespace, where only one claims it.
    pub(crate) fn tenant_of(&self, namespace: &str) -> Option<Arc<str>> {
        let known = self.known();
        known.get(namespace).map(|owner| Arc::clone(&owner.name))
    }

    fn known(&self) -> Arc<ByNamespace> {
        let mut known = self.known.lock();
        // Read before the caches are: what changes meanwhile is read again.
        let changes = self.changes.load(Ordering::SeqCst);
        if known.0 != changes {
            let sources = self.sources.read();
            let read = sources
                .as_ref()
                .map(|(tenants, spaces)| by_namespace(&tenants.all(), &spaces.all()));
            *known = (changes, Arc::new(read.unwrap_or_default()));
        }
        Arc::clone(&known.1)
    }
}

/// Whose namespaces are. One that several claim is nobody's.
pub(crate) fn by_namespace(tenants: &[Arc<Tenant>], spaces: &[Arc<Namespace>]) -> ByNamespace {
    let mut found: BTreeMap<String, Vec<Owner>> = BTreeMap::new();
    let there = |tenant: &&Arc<Tenant>| tenant.meta().deletion_timestamp.is_none();
    for tenant in tenants.iter().filter(there) {
        // A selector that cannot be read claims nothing; its tenant says so.
        for namespace in claims(&tenant.spec.namespaces, spaces).unwrap_or_default() {
            let owner = Owner {
                name: Arc::from(tenant.name_any()),
                defaults: tenant.spec.defaults.unwrap_or_default(),
            };
            found.entry(namespace).or_default().push(owner);
        }
    }
    let alone = found.into_iter().filter_map(|(namespace, all)| {
        let [only] = all.as_slice() else { return None };
        Some((namespace, only.clone()))
    });
    alone.collect()
}

fn says_anything(tenant: &Tenant) -> bool {
    tenant.spec.defaults.is_some()
}

/// What of a tenant decides what its work gets.
fn said(tenant: Option<&Tenant>) -> Option<(impl PartialEq + '_, bool)> {
    tenant.map(|tenant| {
        let gone = tenant.meta().deletion_timestamp.is_some();
        ((&tenant.spec.defaults, &tenant.spec.namespaces), gone)
    })
}
