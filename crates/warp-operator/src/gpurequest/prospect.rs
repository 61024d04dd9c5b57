//! What would become of requests that are not made yet: the purchase each would make now, or why not. Pure.

use std::sync::Arc;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{ConfigMap, Namespace};
use kube::Resource;
use warp_api::{CloudProvider, GPURequest, RequestPhase, Tenant};
use warp_cloud::{Decimal, Mark};
use warp_runtime::plan::Plan;

use super::observe::Seen;
use super::plan::next;
use crate::budget::{Accounts, Purse};

/// What is sold, and whose money buys it.
pub(crate) struct Market<'a> {
    pub(crate) providers: &'a [Arc<CloudProvider>],
    pub(crate) requests: &'a [Arc<GPURequest>],
    pub(crate) tenants: &'a [Arc<Tenant>],
    pub(crate) namespaces: &'a [Arc<Namespace>],
    /// What was spent by requests that are gone.
    pub(crate) ledgers: &'a [Arc<ConfigMap>],
}

/// One machine that would be bought.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Bought {
    /// Which, where and for how much.
    pub(crate) what: String,
    pub(crate) price: Decimal,
}

/// What would be bought for requests, all of them or none, or the reason and the words why not. `unfit` says why what they
/// are for cannot be one container at a cloud.
pub(crate) fn prospect(
    asked: &[GPURequest],
    market: &Market<'_>,
    unfit: Option<String>,
    now: Timestamp,
) -> Result<Vec<Bought>, (&'static str, String)> {
    let mut tenants = market.tenants.to_vec();
    tenants.retain(|tenant| tenant.meta().deletion_timestamp.is_none());
    let purse = if tenants.is_empty() {
        Purse::Nobodys
    } else {
        let accounts = Accounts::new(
            tenants,
            market.namespaces,
            market.requests,
            market.ledgers,
            now,
        );
        Purse::Of(Arc::new(accounts))
    };
    let mut requests = market.requests.to_vec();
    requests.extend(asked.iter().cloned().map(Arc::new));
    let seen = Seen {
        providers: market.providers.to_vec(),
        requests,
        // Nothing is bought here: no name is used.
        mark: Some(Mark::of_cluster("")),
        purse,
        unfit,
        ..Seen::default()
    };
    let each = asked.iter().map(|request| {
        let mut status = request.status.clone().unwrap_or_default();
        let said = next(&mut Plan::default(), &mut status, request, &seen, now);
        match status.attempts.last() {
            Some(bought) if said.phase == RequestPhase::Provisioning => Ok(Bought {
                what: format!(
                    "{} x {} from {} in {} for {}{} an hour",
                    bought.gpus,
                    bought.gpu,
                    bought.provider,
                    bought.region,
                    bought.price,
                    if bought.spot { " (spot)" } else { "" }
                ),
                price: bought.price.parse().unwrap_or_default(),
            }),
            _ => Err((said.reason(), said.message().to_owned())),
        }
    });
    each.collect()
}
