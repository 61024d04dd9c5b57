//! Everything a provider's plan needs, read from the caches and from what was last seen of the account. No decisions.

use std::collections::BTreeMap;
use std::sync::Arc;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::ConfigMap;
use kube::ResourceExt;
use warp_api::{CloudProvider, GPURequest, reason};
use warp_cloud::Mark;
use warp_runtime::outside::Sight;

use super::calls::Listed;
use super::clouds::mark;
use super::{CloudProviders, INVENTORY};
use crate::gpurequest::LEDGER;

/// What is known about an account.
#[derive(Clone, Debug, Default)]
pub(crate) struct Seen {
    /// The name the account is called by outside.
    pub(crate) outside: &'static str,
    pub(crate) sight: Sight,
    pub(crate) listed: Option<Listed>,
    pub(crate) requests: Vec<Arc<GPURequest>>,
    pub(crate) mark: Option<Mark>,
    /// Machines of this account that the cloud took back this month; none while the ledger is not read.
    pub(crate) interruptions: Option<i64>,
    /// When the cloud was last told to end a machine of nobody, by the machine's id.
    pub(crate) told: BTreeMap<String, Timestamp>,
}

pub(super) fn see(kind: &CloudProviders, provider: &CloudProvider) -> Seen {
    // The cloud is looked at before the requests are: a machine bought in between has its request here already.
    let sight = kind.inventory.sight(&provider.name_any());
    let listed = sight.there.clone();
    Seen {
        outside: INVENTORY,
        listed: listed.and_then(|listed| serde_json::from_value(listed).ok()),
        sight,
        requests: kind.requests.all(),
        mark: mark(&kind.cx),
        interruptions: interruptions(kind, &provider.name_any()),
        told: told(kind, provider),
    }
}

fn interruptions(kind: &CloudProviders, provider: &str) -> Option<i64> {
    let ledgers = kind.cx.costs.get().filter(|ledgers| ledgers.is_synced())?;
    let month = kind.cx.clock.now().strftime("%Y-%m").to_string();
    let of_month = |ledger: &Arc<ConfigMap>| ledger.labels().get(LEDGER) == Some(&month);
    let ledgers = ledgers.all().into_iter().filter(of_month);
    let taken = |text: &&String| {
        let entry: serde_json::Value = serde_json::from_str(text).unwrap_or_default();
        entry["provider"] == provider && entry["ending"] == reason::SPOT_INTERRUPTED
    };
    let counts = ledgers.map(|ledger| {
        let entries = ledger.data.iter().flatten().map(|(_, text)| text);
        entries.filter(taken).count()
    });
    i64::try_from(counts.sum::<usize>()).ok()
}

fn told(kind: &CloudProviders, provider: &CloudProvider) -> BTreeMap<String, Timestamp> {
    let machines = provider.status.iter().flat_map(|status| &status.machines);
    let unowned = machines.filter(|machine| machine.unowned_since.is_some());
    let asked = unowned.filter_map(|machine| {
        let name = format!("{}/{}", provider.name_any(), machine.id);
        Some((machine.id.clone(), kind.inventory.sight(&name).asked?))
    });
    asked.collect()
}
