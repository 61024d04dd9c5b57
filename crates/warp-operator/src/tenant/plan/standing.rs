//! Where a tenant stands under the quotas that bind it. Pure.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use kube::{Resource, ResourceExt};
use warp_api::Tenant;
use warp_api::tenant::TenantStanding;
use warp_core::gpu::{self, Catalogue, Model, Vendor};
use warp_core::tenancy::{GPU, Kind, Tree, Usage, standing};

use super::super::observe::Seen;
use super::claims;

/// Its standing under each line, and what is wrong with its place in the tree.
pub(super) fn of(tenant: &Tenant, seen: &Seen) -> (Vec<TenantStanding>, Option<String>) {
    let there = |one: &&Arc<Tenant>| one.meta().deletion_timestamp.is_none();
    let tenants: Vec<&Arc<Tenant>> = seen.tenants.iter().filter(there).collect();
    let (tree, problems) = Tree::new(tenants.iter().map(|tenant| tenant.shares()));
    let name = tenant.name_any();
    let problem = problems.into_iter().find(|one| *one.tenant == *name);
    let lines = standing(&tree, &usage(&tenants, seen), &name);
    // A part of a GPU that is used is a whole one nobody else can count on.
    let up = |milli: i64| milli / GPU + i64::from(milli % GPU > 0);
    let told = lines.into_iter().map(|(covers, standing)| TenantStanding {
        gpu: covers.to_string(),
        nominal: standing.nominal / GPU,
        used: up(standing.used),
        borrowed: up(standing.borrowed),
        available: standing.available / GPU,
    });
    (told.collect(), problem.map(|problem| problem.what))
}

/// What every tenant uses in the namespaces it has for itself.
fn usage(tenants: &[&Arc<Tenant>], seen: &Seen) -> Usage {
    let mut owners: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for tenant in tenants {
        let own = claims(&tenant.spec.namespaces, &seen.namespaces).unwrap_or_default();
        for namespace in own {
            owners
                .entry(namespace)
                .or_default()
                .insert(tenant.name_any());
        }
    }
    let mut usage = Usage::default();
    for (namespace, tenants) in owners {
        let (Some(only), 1) = (tenants.first(), tenants.len()) else {
            continue;
        };
        let name: Arc<str> = Arc::from(only.as_str());
        let used = seen.usage.get(&namespace);
        for (model, count) in used.iter().flat_map(|used| &used.in_use) {
            usage.add(&name, &kind(model, &seen.gpus), *count);
        }
    }
    usage
}

/// A kind of GPU from the name it is counted under: a vendor's where the model is not known.
fn kind(name: &str, gpus: &Catalogue) -> Kind {
    let by_vendor = Vendor::ALL.into_iter().find(|one| one.as_str() == name);
    let known = |model: &&'static Model| model.name == name;
    let vendor = by_vendor
        .or_else(|| gpus.models().find(known).map(|model| model.vendor))
        .or_else(|| gpu::named(name).first().map(|model| model.vendor))
        .or_else(|| gpu::vendor_of(name))
        .unwrap_or(Vendor::Nvidia);
    Kind {
        vendor: Arc::from(vendor.as_str()),
        model: Arc::from(if by_vendor.is_some() { "" } else { name }),
    }
}

#[cfg(test)]
mod tests {
    use warp_core::gpu::Row;

    use super::*;

    #[test]
    fn a_model_an_administrator_added_is_its_own_vendors() {
        let mut gpus = Catalogue::default();
        let added = gpus.add(&Row {
            name: "MI980X".to_owned(),
            vendor: Vendor::Amd,
            memory_gib: 512,
            devices_per_card: 1,
            aliases: Vec::new(),
            architecture: None,
        });
        added.expect("a model");
        assert_eq!(&*kind("MI980X", &gpus).vendor, "amd");
        assert_eq!(&*kind("H100-80GB", &gpus).vendor, "nvidia");
        assert_eq!(&*kind("intel", &gpus).vendor, "intel");
    }
}
