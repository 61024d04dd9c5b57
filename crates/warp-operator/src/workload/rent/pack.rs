//! Renting for several that wait: whether the first of them asks for a larger machine that the others then share. Ten
//! that wait buy what they need together, where that costs no more than ten machines. Pure.

use std::sync::Arc;

use jiff::Timestamp;
use kube::{Resource, ResourceExt};
use warp_api::cloudprovider::{BootstrapType, CloudOffer};
use warp_api::workload::{GpuAsk, Rent};
use warp_api::{CloudProvider, GPURequest, GPUWorkload, condition};
use warp_cloud::Decimal;
use warp_core::purchase::{self, Kind};

use super::beside::{has_nothing, holds, is_over, order};

/// That many are looked at together.
const TOGETHER: usize = 32;

/// A machine for several.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Pack {
    pub(crate) gpus: i32,
    /// What all of them together would pay an hour.
    pub(crate) max_price: Decimal,
    /// For how many it is.
    pub(crate) shared_by: usize,
}

/// The machine that the first of those that wait asks for; none when one for itself is as good, or others come first.
pub(crate) fn plan(
    workload: &GPUWorkload,
    workloads: &[Arc<GPUWorkload>],
    providers: &[Arc<CloudProvider>],
    now: Timestamp,
) -> Option<Pack> {
    let ask = GpuAsk::of(&workload.spec).ok()?;
    let own = paying(workload)?;
    let alike = |other: &&Arc<GPUWorkload>| {
        let rent = other.spec.rent.as_ref();
        let mine = workload.spec.rent.as_ref();
        other.uid() != workload.uid()
            && other.spec.gpu == workload.spec.gpu
            && rent.map(|rent| (&rent.providers, rent.spot))
                == mine.map(|rent| (&rent.providers, rent.spot))
            && has_nothing(other, now)
    };
    let mut others: Vec<&Arc<GPUWorkload>> = workloads.iter().filter(alike).collect();
    if others.iter().any(|other| order(other) < order(workload)) {
        return None;
    }
    others.sort_by_key(|other| order(other));
    let others = others.into_iter().filter_map(|other| {
        let gpus = u32::try_from(other.spec.total_gpus()).ok()?;
        Some((gpus, paying(other)?))
    });
    let mine = u32::try_from(workload.spec.total_gpus()).ok()?;
    let wants: Vec<(u32, Decimal)> = std::iter::once((mine, own))
        .chain(others)
        .take(TOGETHER)
        .collect();
    let kinds = kinds(workload, &ask, providers);
    let sizes: Vec<u32> = wants.iter().map(|(gpus, _)| *gpus).collect();
    let bought = purchase::cheapest(&sizes, &kinds)?;
    let first = bought.into_iter().find(|one| one.holds.contains(&0))?;
    let kind = kinds[first.kind];
    let together: Decimal = first.holds.iter().map(|at| wants[*at].1).sum();
    let dear = Decimal::from(kind.price) > together * Decimal::from(UNIT);
    if first.holds.len() < 2 || dear {
        return None;
    }
    Some(Pack {
        gpus: i32::try_from(kind.gpus).ok()?,
        max_price: together.normalize(),
        shared_by: first.holds.len(),
    })
}

/// Prices are compared in ten-thousandths of a dollar.
pub(super) const UNIT: i64 = 10_000;

/// What a workload pays an hour for its machine. One whose sum is limited pays for its own machine only.
fn paying(workload: &GPUWorkload) -> Option<Decimal> {
    let rent = workload.spec.rent.as_ref()?;
    rent.max_total_price.is_none().then_some(())?;
    rent.max_price.decimal().ok()
}

/// What is sold at the moment that would do.
fn kinds(workload: &GPUWorkload, ask: &GpuAsk, providers: &[Arc<CloudProvider>]) -> Vec<Kind> {
    let Some(rent) = &workload.spec.rent else {
        return Vec::new();
    };
    let fitting = usable(rent, providers).into_iter();
    let fitting = fitting.filter(|(_, offer, _)| holds(ask, &offer.gpu));
    let kinds = fitting.map(|(_, offer, price)| Kind {
        gpus: offer.gpus,
        price,
    });
    kinds.collect()
}

/// What can be rented at the moment from the providers that may be used: each with its price, as spot where that is wanted
/// and sold.
pub(super) fn usable<'a>(
    rent: &Rent,
    providers: &'a [Arc<CloudProvider>],
) -> Vec<(&'a CloudProvider, &'a CloudOffer, u64)> {
    let named = |provider: &&Arc<CloudProvider>| {
        let mut names = rent.providers.iter();
        let known =
            |name: &String| *name == provider.name_any() || name == provider.spec.kind.as_str();
        rent.providers.is_empty() || names.any(known)
    };
    let ready = |provider: &&Arc<CloudProvider>| {
        let conditions = provider.status.iter().flat_map(|status| &status.conditions);
        let mut ready = conditions.filter(|said| said.type_ == condition::READY);
        ready.any(|said| said.status == "True")
            && provider.spec.enabled
            && provider.meta().deletion_timestamp.is_none()
    };
    // A container is one pod's: neither several workloads nor the members of a gang share it.
    let shares = |provider: &&Arc<CloudProvider>| {
        let bootstrap = provider.spec.bootstrap.as_ref();
        bootstrap.is_none_or(|said| said.kind != BootstrapType::Container)
    };
    let usable = providers.iter().filter(named).filter(ready).filter(shares);
    let offers = usable.flat_map(|provider| {
        let offers = provider.status.iter().flat_map(|status| &status.offers);
        offers.map(move |offer| (&**provider, offer))
    });
    let there = offers.filter(|(_, offer)| offer.availability != "none");
    let priced = there.filter_map(|(provider, offer)| {
        let spot = offer.spot_price.as_ref().filter(|_| rent.spot);
        let price: Decimal = spot.unwrap_or(&offer.price).parse().ok()?;
        let price = u64::try_from(price * Decimal::from(UNIT)).ok()?;
        Some((provider, offer, price))
    });
    priced.collect()
}

/// Whether a machine that was asked for several has them still: others count on it.
pub(crate) fn is_shared(request: &GPURequest, workloads: &[Arc<GPUWorkload>]) -> bool {
    let name = request.name_any();
    workloads.iter().any(|other| {
        let status = other.status.as_ref();
        let rent = status.and_then(|status| status.rent.as_ref());
        !is_over(other) && rent.is_some_and(|rent| rent.beside.as_ref() == Some(&name))
    })
}
