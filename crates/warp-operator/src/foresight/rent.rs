//! What is or would be rented for a workload that waits, at what price and when, or why nothing is. Pure.

use std::sync::Arc;

use jiff::Timestamp;
use kube::ResourceExt;
use warp_api::workload::RentStatus;
use warp_api::{CloudProvider, GPURequest, GPUWorkload};
use warp_cloud::Decimal;

use super::{Cluster, Outlook};
use crate::gpurequest::{Market, prospect, unfit_of};
use crate::workload::{Prospect, foresee_rent};

/// Renting for one workload.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Renting {
    /// In words.
    pub message: String,
    /// Why nothing is bought, where a request would say so.
    pub reason: Option<&'static str>,
    /// When something is asked for.
    pub at: Option<Timestamp>,
    /// Dollars an hour for all machines, as they are sold now or were bought.
    pub price_per_hour: Option<String>,
}

impl Renting {
    fn said(message: String) -> Self {
        Self {
            message,
            reason: None,
            at: None,
            price_per_hour: None,
        }
    }
}

pub(super) fn renting(
    cluster: &Cluster,
    workload: &GPUWorkload,
    outlook: &Outlook,
    now: Timestamp,
) -> Option<Renting> {
    let Outlook::Waits { reason, .. } = outlook else {
        return None;
    };
    let namespace = workload.namespace();
    let own = |other: &Option<String>| *other == namespace;
    let requests = cluster.requests.iter();
    let requests = requests.filter(|one| own(&one.namespace())).cloned();
    let others: Vec<Arc<GPUWorkload>> = cluster
        .workloads
        .iter()
        .filter(|one| own(&one.namespace()))
        .cloned()
        .collect();
    let clouds = cluster.clouds.as_deref();
    let prospect = foresee_rent(
        workload,
        reason,
        requests.collect(),
        &others,
        clouds.unwrap_or_default(),
        now,
    )?;
    let state = workload.status.as_ref();
    let state = state.and_then(|status| status.rent.clone());
    let rent = workload.spec.rent.as_ref();
    let most = rent.and_then(|rent| rent.max_price.decimal().ok());
    let most = most.unwrap_or_default();
    Some(match prospect {
        Prospect::TakesBack(names) => Renting::said(format!(
            "nothing is rented for it any more: {} {} taken back",
            requests_named(&names),
            if names.len() == 1 { "is" } else { "are" }
        )),
        Prospect::Tells(names, said) => {
            let state = state.unwrap_or_default();
            let said = format!(
                "{said}; {} told what spec.rent says now",
                match names.as_slice() {
                    [_] => "it is",
                    _ => "they are",
                }
            );
            underway(&said, &state)
        }
        Prospect::Changes(asked) => {
            let names: Vec<String> = asked.iter().map(ResourceExt::name_any).collect();
            let names = requests_named(&names);
            let Some(providers) = clouds else {
                return Some(Renting::said(format!(
                    "{names}, which bought nothing yet, may then cost at most {most} an hour; you may not read what clouds sell"
                )));
            };
            // What they may have reserved is theirs to use.
            let is_other = |one: &&Arc<GPURequest>| {
                let mut own = asked.iter();
                !own.any(|own| own.metadata.uid == one.metadata.uid)
            };
            let others: Vec<Arc<GPURequest>> =
                cluster.requests.iter().filter(is_other).cloned().collect();
            let market = market(cluster, providers, &others);
            let unfit = unfit_of(workload, &cluster.catalogue);
            match bought(&asked, &market, unfit, now) {
                Err((reason, message)) => Renting {
                    reason: Some(reason),
                    ..Renting::said(format!(
                        "{names} would buy nothing with this spec.rent as things are ({reason}): {message}"
                    ))
                },
                Ok((what, price)) => Renting {
                    at: Some(now),
                    price_per_hour: Some(price),
                    ..Renting::said(format!(
                        "{names}, which bought nothing yet, would then buy at once: {what} (spec.rent.maxPrice {most})"
                    ))
                },
            }
        }
        Prospect::Useless => Renting::said(
            "nothing is rented for it: another machine would not end this wait".to_owned(),
        ),
        Prospect::Nothing(problem) => {
            Renting::said(format!("no machine would be rented for it: {problem}"))
        }
        Prospect::Underway(said) => underway(&said, &state.unwrap_or_default()),
        Prospect::Asks(asked, at) => {
            let begun = state.and_then(|state| state.waiting_since).is_some();
            let when = if at <= now {
                "at once".to_owned()
            } else if begun {
                format!("at {at:.0} unless room comes free")
            } else {
                let after = rent.and_then(|rent| rent.after.as_deref());
                let after = after.unwrap_or("10m");
                format!("after {after} unless room comes free")
            };
            let Some(providers) = clouds else {
                let message = format!(
                    "what holds it is rented {when}, for at most {most} an hour; you may not read what clouds sell"
                );
                return Some(Renting {
                    at: Some(at),
                    ..Renting::said(message)
                });
            };
            let market = market(cluster, providers, &cluster.requests);
            let unfit = unfit_of(workload, &cluster.catalogue);
            match bought(&asked, &market, unfit, now) {
                Err((reason, message)) => Renting {
                    reason: Some(reason),
                    ..Renting::said(format!(
                        "no machine would be rented for it as things are ({reason}): {message}"
                    ))
                },
                Ok((what, price)) => Renting {
                    at: Some(at),
                    price_per_hour: Some(price),
                    ..Renting::said(format!(
                        "rented for it {when}: {what} (spec.rent.maxPrice {most})"
                    ))
                },
            }
        }
    })
}

fn market<'a>(
    cluster: &'a Cluster,
    providers: &'a [Arc<CloudProvider>],
    requests: &'a [Arc<GPURequest>],
) -> Market<'a> {
    Market {
        providers,
        requests,
        tenants: &cluster.tenants,
        namespaces: &cluster.namespaces,
        ledgers: &cluster.ledgers,
    }
}

fn requests_named(names: &[String]) -> String {
    match names {
        [only] => format!("GPURequest {only}"),
        several => format!("GPURequests {}", several.join(", ")),
    }
}

/// What requests would buy in words, and its price.
fn bought(
    asked: &[GPURequest],
    market: &Market<'_>,
    unfit: Option<String>,
    now: Timestamp,
) -> Result<(String, String), (&'static str, String)> {
    let bought = prospect(asked, market, unfit, now)?;
    let price: Decimal = bought.iter().map(|one| one.price).sum();
    let each: Vec<String> = bought.into_iter().map(|one| one.what).collect();
    let what = match each.as_slice() {
        [only] => only.clone(),
        several => format!(
            "{} machines, all or none, for {price} an hour: {}",
            several.len(),
            several.join(", ")
        ),
    };
    Ok((what, price.to_string()))
}

/// What the operator says of requests that are there, with what they buy.
fn underway(said: &str, state: &RentStatus) -> Renting {
    let chosen = state.gpu.as_ref().zip(state.price_per_hour.as_ref());
    let chosen = chosen.map(|(gpu, price)| format!(" ({gpu} for {price} an hour)"));
    Renting {
        price_per_hour: state.price_per_hour.clone(),
        ..Renting::said(format!("{said}{}", chosen.unwrap_or_default()))
    }
}
