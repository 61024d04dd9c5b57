//! What a tenant's limits mean to decisions: names become kinds of GPU, lines become quotas.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use warp_core::gpu::{self, Vendor};
use warp_core::tenancy::{self, Covers, GPU, Kind, Quota};

use super::{Tenant, TenantSpec};

/// What a name of a quota stands for: a vendor, the models of the catalogue it names, else a product by that name. Letter
/// case says nothing, or the same GPUs would be counted under two lines.
pub fn covers(name: &str) -> Covers {
    let mut vendors = Vendor::ALL.into_iter();
    let vendor = vendors.find(|one| one.as_str().eq_ignore_ascii_case(name));
    if let Some(vendor) = vendor {
        return Covers::Vendor(Arc::from(vendor.as_str()));
    }
    let known = gpu::named(name);
    // A part is not the GPU it is cut from: a share of it is no share of whole ones.
    if known.is_empty() || gpu::partition(name).is_some() {
        return Covers::Models(BTreeSet::from([Arc::from(name.to_lowercase())]));
    }
    Covers::Models(known.iter().map(|model| Arc::from(model.name)).collect())
}

impl Tenant {
    /// The tenant as quotas see it, which count thousandths of GPUs.
    pub fn shares(&self) -> tenancy::Tenant {
        let mut quota: BTreeMap<Covers, Quota> = BTreeMap::new();
        for line in &self.spec.quota {
            // Two names of the same models promise what both say.
            let entry = quota.entry(covers(&line.gpu)).or_insert(Quota {
                nominal: 0,
                borrow_limit: line.borrow_limit.map(|limit| limit.saturating_mul(GPU)),
                lend_limit: line.lend_limit.map(|limit| limit.saturating_mul(GPU)),
            });
            let nominal = line.nominal.max(0).saturating_mul(GPU);
            entry.nominal = entry.nominal.saturating_add(nominal);
        }
        tenancy::Tenant {
            name: Arc::from(self.metadata.name.as_deref().unwrap_or_default()),
            parent: self.spec.parent.as_deref().map(Arc::from),
            weight: self
                .spec
                .weight
                .map_or(1, |weight| weight.max(1).unsigned_abs()),
            quota,
        }
    }
}

impl TenantSpec {
    /// Whether work of this tenant may use a kind of GPU at all.
    pub fn allows(&self, kind: &Kind) -> bool {
        self.allowed_models.is_empty()
            || self
                .allowed_models
                .iter()
                .any(|name| covers(name).covers(kind))
    }

    /// Whether it limits anything.
    pub fn limits(&self) -> bool {
        self.suspend
            || self.parent.is_some()
            || self.max_runtime.is_some()
            || !self.quota.is_empty()
            || !self.allowed_models.is_empty()
            || !self.priorities.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn kind(vendor: &str, model: &str) -> Kind {
        Kind {
            vendor: Arc::from(vendor),
            model: Arc::from(model),
        }
    }

    #[test]
    fn a_name_stands_for_a_vendor_its_models_or_a_product() {
        assert_eq!(covers("amd"), Covers::Vendor(Arc::from("amd")));
        assert!(covers("H100-80GB").covers(&kind("nvidia", "H100-80GB")));
        assert!(!covers("H100-80GB").covers(&kind("nvidia", "A100-80GB")));
        assert!(!covers("A100-MIG").covers(&kind("nvidia", "A100-80GB")));
        assert!(covers("MyCard-1").covers(&kind("nvidia", "MyCard-1")));
    }

    #[test]
    fn letter_case_makes_no_second_line() {
        for (one, other) in [
            ("MyCard-1", "mycard-1"),
            ("NVIDIA", "nvidia"),
            ("h100", "H100"),
        ] {
            assert_eq!(covers(one), covers(other));
        }
        assert!(covers("mycard-1").covers(&kind("nvidia", "MyCard-1")));
    }

    #[test]
    fn what_is_allowed_follows_the_names() {
        let spec = TenantSpec {
            allowed_models: vec!["A100-80GB".to_owned(), "amd".to_owned()],
            ..TenantSpec::default()
        };
        assert!(spec.allows(&kind("nvidia", "A100-80GB")));
        assert!(spec.allows(&kind("amd", "MI300X")));
        assert!(!spec.allows(&kind("nvidia", "H100-80GB")));
        assert!(TenantSpec::default().allows(&kind("nvidia", "H100-80GB")));
        assert!(spec.limits() && !TenantSpec::default().limits());
    }
}
