//! What each kind reads, and how reading it goes, for `/readyz`, metrics and people.

use std::fmt::{self, Display};
use std::sync::Arc;

use kube::Resource;
use parking_lot::RwLock;

use crate::cache::store::Store;
use crate::cache::{Cache, Health};
use crate::kind::Kind;
use crate::reconcile::blocks;

/// What a kind reads, by the plural of each kind.
#[derive(Clone, Debug, Default)]
pub(crate) struct Needs(Vec<(Kind, Arc<Store>)>);

impl Needs {
    pub(crate) fn of<K>(cache: &Cache<K>) -> Self
    where
        K: Resource<DynamicType = ()> + Send + Sync + 'static,
    {
        let mut needs = Self::default();
        needs.add(cache);
        needs
    }

    /// Adds what a cache holds, once.
    pub(crate) fn add<K>(&mut self, cache: &Cache<K>)
    where
        K: Resource<DynamicType = ()> + Send + Sync + 'static,
    {
        let mut known = self.0.iter();
        if !known.any(|(_, store)| Arc::ptr_eq(store, cache.store())) {
            self.0.push((Kind::of::<K>(), cache.store().clone()));
        }
    }

    pub(crate) fn blocked(&self) -> bool {
        self.needed().any(|(_, store)| blocks(&store.health()))
    }

    /// What nothing is done without: the first, which a controller is for, and the others but for what need not be there.
    fn needed(&self) -> impl Iterator<Item = &(Kind, Arc<Store>)> {
        let all = self.0.iter().enumerate();
        all.filter(|(at, (_, store))| *at == 0 || !store.is_optional())
            .map(|(_, needed)| needed)
    }

    pub(crate) async fn synced(&self) {
        for (_, store) in &self.0 {
            store.synced().await;
        }
    }
}

/// How one kind is doing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KindHealth {
    /// The controller.
    pub name: &'static str,
    /// What it reads and cannot read as it should, with how that goes.
    pub troubles: Vec<(String, Health)>,
}

impl KindHealth {
    pub fn is_ready(&self) -> bool {
        self.troubles.is_empty()
    }
}

impl Display for KindHealth {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.is_ready() {
            return write!(f, "{}: ok", self.name);
        }
        write!(f, "{}:", self.name)?;
        for (number, (plural, health)) in self.troubles.iter().enumerate() {
            let separator = if number == 0 { "" } else { ";" };
            write!(f, "{separator} {plural}: {health}")?;
        }
        Ok(())
    }
}

/// How every registered kind is doing, for `/readyz`, metrics and people.
#[derive(Clone, Debug, Default)]
pub struct Readiness(Arc<RwLock<Vec<(&'static str, Needs)>>>);

impl Readiness {
    pub(super) fn add(&self, name: &'static str, needs: Needs) {
        self.0.write().push((name, needs));
    }

    pub fn kinds(&self) -> Vec<KindHealth> {
        let kinds = self.0.read();
        let health = kinds.iter().map(|(name, needs)| {
            let troubles = needs.needed().filter_map(|(kind, store)| {
                let health = store.health();
                (!health.is_current()).then(|| (kind.plural.clone(), health))
            });
            KindHealth {
                name,
                troubles: troubles.collect(),
            }
        });
        health.collect()
    }
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::core::v1::{ConfigMap, Secret};

    use super::*;

    #[test]
    fn what_need_not_be_there_stops_its_own_controller_and_nobody_else() {
        let (maps, secrets) = (Cache::<ConfigMap>::new(&[]), Cache::<Secret>::new(&[]));
        maps.store().set_health(Health::Current);
        secrets.store().set_optional();
        let refused = Health::Refused("no".to_owned());
        secrets.store().set_health(refused.clone());
        let mut others = Needs::of(&maps);
        others.add(&secrets);
        let own = Needs::of(&secrets);
        assert!(!others.blocked() && own.blocked());
        let readiness = Readiness::default();
        readiness.add("others", others);
        readiness.add("own", own);
        let kinds = readiness.kinds();
        assert!(kinds[0].is_ready(), "{}", kinds[0]);
        assert_eq!(kinds[1].troubles, [("secrets".to_owned(), refused)]);
    }
}
