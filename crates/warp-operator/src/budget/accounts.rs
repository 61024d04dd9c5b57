//! Whose money is spent on which machines: requests and ledgers, read as the machines of tenants. No decisions.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{ConfigMap, Namespace};
use kube::{Resource, ResourceExt};
use serde::Deserialize;
use warp_api::{GPURequest, Tenant};
use warp_cloud::Decimal;
use warp_runtime::cache::Health;

use super::{Course, Machine};
use crate::context::Context;
use crate::gpurequest;
use crate::tenant::claims;

/// What is known about the money of tenants.
#[derive(Clone, Debug, Default)]
pub(crate) enum Purse {
    /// There are no tenants.
    #[default]
    Nobodys,
    /// The first lists are still to come.
    NotYet,
    /// Nothing may be bought before more is known.
    Unknown(String),
    Of(Arc<Accounts>),
}

impl Purse {
    pub(crate) fn read(cx: &Context, requests: &[Arc<GPURequest>], now: Timestamp) -> Self {
        let Some(cache) = cx.tenants.get() else {
            return Self::Nobodys;
        };
        if !cache.is_answered() {
            return Self::NotYet;
        }
        let mut tenants = cache.all();
        tenants.retain(|tenant| tenant.meta().deletion_timestamp.is_none());
        if tenants.is_empty() {
            return Self::Nobodys;
        }
        let limited = tenants.iter().any(|tenant| tenant.spec.budget.is_some());
        let ledgers = match cx.costs.get().filter(|_| limited) {
            None => Vec::new(),
            Some(cache) if cache.is_synced() => cache.all(),
            Some(cache) if cache.health() == Health::Starting => return Self::NotYet,
            Some(cache) => {
                return Self::Unknown(format!(
                    "the ledger of costs cannot be read: {}",
                    cache.health()
                ));
            }
        };
        let namespaces = cx.namespaces.all();
        let accounts = Accounts::new(tenants, &namespaces, requests, &ledgers, now);
        Self::Of(Arc::new(accounts))
    }
}

/// Whose money a namespace spends.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Owner {
    Nobody,
    Tenant(String),
    /// Several claim it.
    Contested(Vec<String>),
}

/// Every tenant with the machines it pays for.
#[derive(Clone, Debug, Default)]
pub(crate) struct Accounts {
    tenants: Vec<Arc<Tenant>>,
    owners: BTreeMap<String, Vec<String>>,
    machines: Vec<Machine>,
}

/// What of a ledger's entry counts.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Entry {
    tenant: Option<String>,
    machine: String,
    price_per_hour: Decimal,
    from: Timestamp,
    until: Option<Timestamp>,
}

impl Accounts {
    pub(crate) fn new(
        tenants: Vec<Arc<Tenant>>,
        namespaces: &[Arc<Namespace>],
        requests: &[Arc<GPURequest>],
        ledgers: &[Arc<ConfigMap>],
        now: Timestamp,
    ) -> Self {
        let mut owners: BTreeMap<String, Vec<String>> = BTreeMap::new();
        for tenant in &tenants {
            // A selector that cannot be read claims nothing; its tenant says so.
            let own = claims(&tenant.spec.namespaces, namespaces).unwrap_or_default();
            for namespace in own {
                owners.entry(namespace).or_default().push(tenant.name_any());
            }
        }
        let mut accounts = Self {
            tenants,
            owners,
            machines: Vec::new(),
        };
        for request in requests {
            let namespace = request.namespace().unwrap_or_default();
            let owner = match accounts.owner(&namespace) {
                Owner::Tenant(name) => Some(name),
                _ => None,
            };
            let own = gpurequest::machines(request, owner.as_deref(), now);
            accounts.machines.extend(own);
        }
        let known: BTreeSet<String> = accounts
            .machines
            .iter()
            .map(|machine| machine.name.clone())
            .collect();
        let texts = ledgers.iter().filter_map(|ledger| ledger.data.as_ref());
        let entries = texts.flat_map(BTreeMap::values);
        let entries = entries.filter_map(|text| serde_json::from_str::<Entry>(text).ok());
        for entry in entries.filter(|entry| !known.contains(&entry.machine)) {
            let Some(tenant) = entry.tenant else { continue };
            let course = match entry.until {
                Some(until) => Course::Over {
                    from: entry.from,
                    until,
                },
                // Its request was taken away by force: nobody knows that it is gone.
                None => Course::Runs {
                    from: entry.from,
                    ends: None,
                    idle: false,
                    going: true,
                },
            };
            accounts.machines.push(Machine {
                name: entry.machine,
                tenant,
                price: entry.price_per_hour,
                course,
            });
        }
        accounts
    }

    pub(crate) fn owner(&self, namespace: &str) -> Owner {
        match self.owners.get(namespace).map(Vec::as_slice) {
            None | Some([]) => Owner::Nobody,
            Some([only]) => Owner::Tenant(only.clone()),
            Some(several) => Owner::Contested(several.to_vec()),
        }
    }

    fn tenant(&self, name: &str) -> Option<&Arc<Tenant>> {
        self.tenants.iter().find(|tenant| tenant.name_any() == name)
    }

    /// A tenant and its parents, nearest first. A circle is gone round once.
    fn line(&self, name: &str) -> Vec<&Arc<Tenant>> {
        let mut line: Vec<&Arc<Tenant>> = Vec::new();
        let mut next = self.tenant(name);
        while let Some(tenant) = next {
            if line
                .iter()
                .any(|known| known.name_any() == tenant.name_any())
            {
                break;
            }
            line.push(tenant);
            let parent = tenant.spec.parent.as_deref();
            next = parent.and_then(|parent| self.tenant(parent));
        }
        line
    }

    /// The tenants whose budgets a purchase of this one has to keep to: itself and its parents.
    pub(crate) fn payers(&self, name: &str) -> Vec<&Arc<Tenant>> {
        let mut line = self.line(name);
        line.retain(|tenant| tenant.spec.budget.is_some());
        line
    }

    /// The machines a tenant's budget pays for: its own and those of every tenant below it.
    pub(crate) fn machines(&self, payer: &str) -> Vec<Machine> {
        let below = |machine: &&Machine| {
            let line = self.line(&machine.tenant);
            machine.tenant == payer || line.iter().any(|tenant| tenant.name_any() == payer)
        };
        self.machines.iter().filter(below).cloned().collect()
    }
}
