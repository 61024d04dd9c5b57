//! Which pod holds which device of a node. The scheduler counts; the node hands out the devices
//! themselves, refuses a pod it has too few for, and remembers the ones that broke.

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::api::core::v1::{Container, PodSpec};

use super::facts::containers;

/// Device numbers a pod holds: container → resource → numbers.
pub type Devices = BTreeMap<String, BTreeMap<String, Vec<u32>>>;

/// A refusal in the words of a kubelet's device manager.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "Allocate failed due to requested number of devices unavailable for {resource}. Requested: {wanted}, Available: {free}, which is unexpected"
)]
pub struct Unavailable {
    pub resource: String,
    pub wanted: usize,
    pub free: usize,
}

/// One node's devices.
#[derive(Clone, Debug, Default)]
pub struct Ledger {
    total: BTreeMap<String, u32>,
    holders: BTreeMap<(String, u32), String>,
    broken: BTreeMap<String, BTreeSet<u32>>,
}

impl Ledger {
    pub fn new(total: BTreeMap<String, u32>) -> Self {
        Self {
            total,
            ..Self::default()
        }
    }

    /// Gives `uid` the devices its containers ask for, all or none. Init containers share with the main
    /// ones, as they run before them; sidecars have their own.
    pub fn take(&mut self, uid: &str, spec: &PodSpec) -> Result<Devices, Unavailable> {
        let mut taken = Devices::new();
        let mut for_init: BTreeMap<String, Vec<u32>> = BTreeMap::new();
        let main = spec.containers.iter();
        let init = spec.init_containers.iter().flatten();
        for container in main {
            for (resource, wanted) in self.wanted(container) {
                let got = self.take_some(uid, &resource, wanted)?;
                for_init.entry(resource.clone()).or_default().extend(&got);
                taken
                    .entry(container.name.clone())
                    .or_default()
                    .insert(resource, got);
            }
        }
        for container in init {
            for (resource, wanted) in self.wanted(container) {
                let shared = super::lifecycle::is_sidecar(container);
                let pool = for_init.entry(resource.clone()).or_default();
                let mut got: Vec<u32> = Vec::new();
                if !shared {
                    got.extend(pool.iter().take(wanted));
                }
                if got.len() < wanted {
                    let more = self.take_some(uid, &resource, wanted - got.len())?;
                    if !shared {
                        for_init.entry(resource.clone()).or_default().extend(&more);
                    }
                    got.extend(more);
                }
                taken
                    .entry(container.name.clone())
                    .or_default()
                    .insert(resource, got);
            }
        }
        Ok(taken)
    }

    /// Records what a pod already held before this node was restarted.
    pub fn retake(&mut self, uid: &str, held: &Devices) {
        for (resource, numbers) in held.values().flatten() {
            for number in numbers {
                self.holders
                    .insert((resource.clone(), *number), uid.to_owned());
            }
        }
    }

    pub fn release(&mut self, uid: &str) {
        self.holders.retain(|_, holder| holder != uid);
    }

    /// Replaces the set of broken devices; returns the pods that hold one that just broke.
    pub fn set_broken(&mut self, broken: BTreeMap<String, BTreeSet<u32>>) -> BTreeSet<String> {
        let fresh: BTreeSet<String> = broken
            .iter()
            .flat_map(|(resource, numbers)| numbers.iter().map(move |number| (resource, number)))
            .filter(|(resource, number)| {
                !self
                    .broken
                    .get(*resource)
                    .is_some_and(|known| known.contains(number))
            })
            .filter_map(|(resource, number)| {
                self.holders.get(&(resource.clone(), *number)).cloned()
            })
            .collect();
        self.broken = broken;
        fresh
    }

    pub fn is_broken(&self, resource: &str, number: u32) -> bool {
        self.broken
            .get(resource)
            .is_some_and(|known| known.contains(&number))
    }

    /// Devices a scheduler may count on, by resource.
    pub fn healthy(&self) -> BTreeMap<String, u32> {
        self.total
            .iter()
            .map(|(resource, total)| {
                let broken = self.broken.get(resource).map_or(0, |numbers| {
                    u32::try_from(numbers.range(..total).count()).unwrap_or(u32::MAX)
                });
                (resource.clone(), total - broken)
            })
            .collect()
    }

    fn wanted(&self, container: &Container) -> Vec<(String, usize)> {
        let Some(resources) = &container.resources else {
            return Vec::new();
        };
        let limits = resources.limits.iter().chain(&resources.requests).flatten();
        let mut wanted: BTreeMap<String, usize> = BTreeMap::new();
        for (name, quantity) in limits {
            if let Some(count) = quantity.0.parse().ok().filter(|count| *count > 0)
                && self.total.contains_key(name)
            {
                wanted.entry(name.clone()).or_insert(count);
            }
        }
        wanted.into_iter().collect()
    }

    fn take_some(
        &mut self,
        uid: &str,
        resource: &str,
        wanted: usize,
    ) -> Result<Vec<u32>, Unavailable> {
        let total = self.total.get(resource).copied().unwrap_or_default();
        let free: Vec<u32> = (0..total)
            .filter(|number| {
                !self.is_broken(resource, *number)
                    && !self.holders.contains_key(&(resource.to_owned(), *number))
            })
            .collect();
        if free.len() < wanted {
            self.release(uid);
            return Err(Unavailable {
                resource: resource.to_owned(),
                wanted,
                free: free.len(),
            });
        }
        let got = free[..wanted].to_vec();
        for number in &got {
            self.holders
                .insert((resource.to_owned(), *number), uid.to_owned());
        }
        Ok(got)
    }
}

/// True when a container of the pod asks for any device this ledger counts.
pub fn asks_for_devices(ledger: &Ledger, spec: &PodSpec) -> bool {
    containers(spec).any(|container| !ledger.wanted(container).is_empty())
}
