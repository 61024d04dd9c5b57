//! Renting for a gang that no single machine holds: the machines that hold all its members, of one model and in one place,
//! for the fewest dollars an hour. Pure.

use std::collections::BTreeMap;
use std::sync::Arc;

use kube::ResourceExt;
use warp_api::gpurequest::Together;
use warp_api::price::Price;
use warp_api::workload::GpuAsk;
use warp_api::{CloudProvider, GPURequest, GPURequestSpec, GPUWorkload, RequestPhase, reason};
use warp_cloud::Decimal;
use warp_core::purchase::{self, Kind};

use super::beside::holds;
use super::pack::{UNIT, usable};

/// More machines are not bought together.
const MOST: usize = 16;
/// More GPUs are not asked for in one machine.
const MOST_GPUS: i32 = 16;

/// A model in one region of one cloud: between others the members of a gang would hardly hear each other.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Place {
    provider: String,
    region: String,
    model: String,
}

/// Machines that hold a gang.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Several {
    pub(crate) place: Place,
    /// GPUs of each machine, and its share of the price.
    machines: Vec<(u32, u64)>,
}

/// The machines for a gang; none where one holds it, or nothing better than one can be said. `own` are the requests that
/// were made for it: a place where not all came is not tried again.
pub(crate) fn plan(
    workload: &GPUWorkload,
    own: &[Arc<GPURequest>],
    providers: &[Arc<CloudProvider>],
) -> Option<Result<Several, String>> {
    let rent = workload.spec.rent.as_ref()?;
    let ask = GpuAsk::of(&workload.spec).ok()?;
    let most = rent.max_price.decimal().ok()?;
    let members = usize::try_from(workload.spec.members()).ok()?;
    let each = u32::try_from(workload.spec.gpu_count).ok()?;
    if members < 2 {
        return None;
    }
    let mut places: BTreeMap<Place, Vec<Kind>> = BTreeMap::new();
    let mut alone: Option<u64> = None;
    for (provider, offer, price) in usable(rent, providers) {
        let total = u32::try_from(workload.spec.total_gpus()).ok()?;
        if !holds(&ask, &offer.gpu) {
            continue;
        }
        if offer.gpus >= total {
            if Decimal::from(price) <= most * Decimal::from(UNIT) {
                return None;
            }
            alone = Some(alone.map_or(price, |known| known.min(price)));
        }
        let place = Place {
            provider: provider.name_any(),
            region: offer.region.clone(),
            model: offer.gpu.clone(),
        };
        places.entry(place).or_default().push(Kind {
            gpus: offer.gpus,
            price,
        });
    }
    let wants = vec![each; members];
    let tried = tried(own);
    let mut found: Vec<(u64, Several)> = Vec::new();
    for (place, kinds) in places {
        let Some(bought) = purchase::cheapest(&wants, &kinds) else {
            continue;
        };
        let price = purchase::price(&bought, &kinds);
        let machines = bought.iter().map(|one| kinds[one.kind]);
        let machines = machines.map(|kind| (kind.gpus, kind.price)).collect();
        found.push((price, Several { place, machines }));
    }
    found.retain(|(_, several)| (2..=MOST).contains(&several.machines.len()));
    found.sort_by_key(|(price, several)| (*price, several.machines.len(), several.place.clone()));
    let cheapest = found.first().map(|(price, _)| *price);
    found.retain(|(_, several)| !tried.contains(&several.place));
    let within = |(price, _): &&(u64, Several)| Decimal::from(*price) <= most * Decimal::from(UNIT);
    if let Some((_, several)) = found.iter().find(within) {
        return Some(Ok(several.clone()));
    }
    if !tried.is_empty() {
        return Some(Err(format!(
            "not all machines for it came where they were tried ({}), and no other place has them within spec.rent.maxPrice {most}; delete its GPURequests to try there again",
            words(&tried)
        )));
    }
    // Where one machine is cheaper, or none is sold at all, the request for one says what there is.
    let dearer = match (cheapest, alone) {
        (Some(several), Some(alone)) => alone <= several,
        (cheapest, _) => cheapest.is_none(),
    };
    if dearer && workload.spec.total_gpus() <= MOST_GPUS {
        return None;
    }
    let needs = workload.spec.describe_ask();
    Some(Err(cheapest.map_or_else(
        || format!("no cloud sells {MOST} machines or fewer in one place that hold its {needs}"),
        |price| {
            let price = Decimal::from(price) / Decimal::from(UNIT);
            format!(
                "machines that hold its {needs} cost {} an hour, above spec.rent.maxPrice {most}: raise it, or ask for less",
                price.normalize()
            )
        },
    )))
}

/// Where machines for it did not all come.
fn tried(own: &[Arc<GPURequest>]) -> Vec<Place> {
    let failed = own
        .iter()
        .filter(|request| request.spec.together.is_some() && is_incomplete(request));
    let mut places: Vec<Place> = failed
        .filter_map(|request| {
            Some(Place {
                provider: request.spec.provider.clone()?,
                region: request.spec.region.clone()?,
                model: request.spec.gpu_models.first()?.clone(),
            })
        })
        .collect();
    places.sort();
    places.dedup();
    places
}

/// Whether a request came to nothing because not all did.
pub(super) fn is_incomplete(request: &GPURequest) -> bool {
    let Some(status) = request.status.as_ref() else {
        return false;
    };
    let conditions = status.conditions.iter();
    let mut said = conditions.map(|said| said.reason.as_str());
    status.phase == RequestPhase::Failed && said.any(|said| said == reason::NOT_ALL_RENTED)
}

fn words(places: &[Place]) -> String {
    let each = places
        .iter()
        .map(|place| format!("{} in {} of {}", place.model, place.region, place.provider));
    each.collect::<Vec<_>>().join(", ")
}

/// The part of a price that one machine may cost, rounded down: together they are never more than was allowed.
pub(super) fn share(whole: Decimal, own: Decimal, all: Decimal) -> Price {
    let part = (whole * own / all).trunc_with_scale(4).normalize();
    Price(serde_json::Value::String(part.to_string()))
}

impl Several {
    pub(super) fn count(&self) -> usize {
        self.machines.len()
    }

    /// What the request of each machine says, from what one for all of them would. `name` is the same in all.
    pub(super) fn specs(
        &self,
        whole: &GPURequestSpec,
        name: &str,
        within: Option<&str>,
    ) -> Vec<GPURequestSpec> {
        let all: u64 = self.machines.iter().map(|(_, price)| *price).sum();
        let part = |price: Option<&Price>, own: u64| {
            let whole = price?.decimal().ok()?;
            Some(share(whole, Decimal::from(own), Decimal::from(all.max(1))))
        };
        let each = self.machines.iter().map(|(gpus, price)| GPURequestSpec {
            provider: Some(self.place.provider.clone()),
            providers: Vec::new(),
            region: Some(self.place.region.clone()),
            gpu_models: vec![self.place.model.clone()],
            gpu_vendor: None,
            gpu_count: i32::try_from(*gpus).unwrap_or(i32::MAX),
            max_price: part(whole.max_price.as_ref(), *price),
            max_total_price: part(whole.max_total_price.as_ref(), *price),
            together: Some(Together {
                name: name.to_owned(),
                machines: i32::try_from(self.machines.len()).unwrap_or(i32::MAX),
                within: within.map(str::to_owned),
            }),
            ..whole.clone()
        });
        each.collect()
    }
}
