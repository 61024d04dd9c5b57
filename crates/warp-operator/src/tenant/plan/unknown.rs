//! Names in a tenant's limits that stand for no GPU anybody knows: they would limit nothing. Pure.

use std::collections::BTreeSet;

use kube::ResourceExt;
use warp_api::Tenant;
use warp_core::gpu::{Catalogue, Vendor};

/// What is wrong with the names of GPUs in a tenant's limits. `there` has the models that nodes show, which the
/// catalogue may not know.
pub(super) fn of(tenant: &Tenant, known: &Catalogue, there: &BTreeSet<String>) -> Option<String> {
    let lines = tenant.spec.quota.iter().map(|line| ("quota", &line.gpu));
    let allowed = tenant.spec.allowed_models.iter();
    let named = lines.chain(allowed.map(|name| ("allowedModels", name)));
    let mut wrong = named.filter(|(_, name)| !is_known(name, known, there));
    let (field, name) = wrong.next()?;
    let near =
        nearest(name, known).map_or_else(String::new, |near| format!("; did you mean {near}?"));
    Some(format!(
        "spec.{field} of {} names {name}, which is no GPU model, no vendor, and on no node: it limits nothing{near}",
        tenant.name_any()
    ))
}

fn is_known(name: &str, known: &Catalogue, there: &BTreeSet<String>) -> bool {
    Vendor::ALL
        .into_iter()
        .any(|vendor| vendor.as_str().eq_ignore_ascii_case(name))
        || !known.named(name).is_empty()
        || there.contains(name)
}

/// The known name that differs least, where that is a slip of the hand.
fn nearest(text: &str, known: &Catalogue) -> Option<String> {
    let text = text.to_ascii_uppercase();
    let vendors = Vendor::ALL.into_iter().map(Vendor::as_str);
    // `H100` is said for `H100-80GB` and its sisters.
    let models = known.models().map(|model| model.name);
    let families = models.clone().filter_map(|name| name.split('-').next());
    let names = models.chain(families).chain(vendors);
    let far = |name: &str| distance(&text, &name.to_ascii_uppercase());
    let near = names.map(|name| (far(name), name)).min()?;
    (near.0 <= 2).then(|| near.1.to_owned())
}

/// How many characters have to be added, left out or changed.
fn distance(one: &str, other: &str) -> usize {
    let other: Vec<char> = other.chars().collect();
    let mut row: Vec<usize> = (0..=other.len()).collect();
    for (at, here) in one.chars().enumerate() {
        let mut corner = std::mem::replace(&mut row[0], at + 1);
        for (to, there) in other.iter().enumerate() {
            let change = corner + usize::from(here != *there);
            corner = row[to + 1];
            row[to + 1] = change.min(row[to] + 1).min(corner + 1);
        }
    }
    row[other.len()]
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn said(spec: &Value) -> Option<String> {
        let mut tenant = json!({
            "apiVersion": "gpu.warp.dev/v1alpha1", "kind": "Tenant", "metadata": {"name": "red"},
            "spec": {"namespaces": {"names": ["a"]}}});
        for (key, value) in spec.as_object().into_iter().flatten() {
            tenant["spec"][key] = value.clone();
        }
        let there = BTreeSet::from(["Own-Make-7".to_owned()]);
        let tenant = serde_json::from_value(tenant).expect("a tenant");
        of(&tenant, &Catalogue::default(), &there)
    }

    #[test]
    fn a_quota_of_a_gpu_nobody_knows_is_told_with_what_was_meant() {
        let line = |gpu: &str| json!({"quota": [{"gpu": gpu, "nominal": 1}]});
        for known in ["H100", "A100-80GB", "nvidia", "AMD", "Own-Make-7"] {
            assert_eq!(said(&line(known)), None, "{known}");
        }
        let told = said(&line("H10O")).expect("it is told");
        assert!(
            told.contains("names H10O") && told.contains("did you mean H100"),
            "{told}"
        );
        let told = said(&line("abacus-9000")).expect("it is told");
        assert!(!told.contains("did you mean"), "{told}");
        let told = said(&json!({"allowedModels": ["nvidea"]})).expect("it is told");
        assert!(told.contains("did you mean nvidia?"), "{told}");
    }
}
