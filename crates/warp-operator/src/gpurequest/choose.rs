//! Which offer a request buys next, or why none. Pure: prices, places, limits and what was refused lately come in.

use std::collections::BTreeMap;
use std::sync::Arc;

use jiff::{SignedDuration, Timestamp};
use kube::{Resource, ResourceExt};
use warp_api::cloudprovider::{BootstrapType, CloudOffer};
use warp_api::gpurequest::RequestAttempt;
use warp_api::price::Price;
use warp_api::{CloudProvider, GPURequest, condition, reason};
use warp_cloud::{Availability, Class, Decimal, Kind, Offer, in_region};
use warp_core::gpu;

use super::bootstrap;
use super::wanted::Wanted;
use crate::cloudprovider::circuit;

/// A price that was not limited may rise by this many hundredths before it is bought.
const SLACK: i64 = 110;
/// A machine must be affordable for this long, in minutes.
const LEAST_MINUTES: i64 = 10;
/// A place that was sold out is left out for this long, and twice as long every time again.
const SOLD_OUT: SignedDuration = SignedDuration::from_mins(3);
const DOUBLINGS: u32 = 5;
/// An account that refused everything, or a machine that came to nothing.
const ACCOUNT: SignedDuration = SignedDuration::from_mins(15);

/// What to do next.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Choice {
    Buy(Box<Candidate>),
    Wait {
        reason: &'static str,
        message: String,
        /// When it may be otherwise; none when something has to change first.
        until: Option<Timestamp>,
    },
}

/// One offer of one provider, with the price it may be bought at.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Candidate {
    pub(super) provider: String,
    pub(super) offer: Offer,
    pub(super) spot: bool,
    pub(super) price: Decimal,
    pub(super) limit: Decimal,
    pub(super) bootstrap: BootstrapType,
}

/// Why offers were not taken.
#[derive(Default)]
struct Rejected {
    models: usize,
    places: usize,
    sold_out: usize,
    limits: BTreeMap<String, String>,
    /// Providers that are left alone for a while, and until when.
    circuits: BTreeMap<String, (String, Option<Timestamp>)>,
    budget: usize,
    /// The cheapest that was too dear.
    dear: Option<(Decimal, String)>,
    /// When the first of those left out may be asked again.
    later: Option<Timestamp>,
}

/// What the choice is made from besides the spec.
pub(super) struct Market<'a> {
    pub(super) providers: &'a [Arc<CloudProvider>],
    pub(super) requests: &'a [Arc<GPURequest>],
    /// The requests that do not belong together with this one.
    pub(super) strangers: &'a [Arc<GPURequest>],
    /// How many more are bought with this one, all or none.
    pub(super) together: u32,
    pub(super) attempts: &'a [RequestAttempt],
    pub(super) spent: Decimal,
    /// Since when a spot machine is waited for.
    pub(super) spot_since: Timestamp,
    pub(super) now: Timestamp,
}

pub(super) fn choose(wanted: &Wanted, market: &Market<'_>) -> Choice {
    let usable = match usable(wanted, market) {
        Ok(usable) => usable,
        Err(wait) => return wait,
    };
    let mut rejected = Rejected::default();
    if let Some(spot) = &wanted.spot {
        // A cloud does not tell a container that ended from one it has taken back.
        let whole = |provider: &CloudProvider| {
            bootstrap::of(wanted, provider) != Ok(BootstrapType::Container)
        };
        let selling = |provider: &&&CloudProvider| {
            Kind::of(provider.spec.kind.as_str()).is_some_and(|kind| kind.capabilities().spot)
                && whole(provider)
        };
        let names: Vec<String> = usable.iter().map(|provider| provider.name_any()).collect();
        let selling: Vec<&CloudProvider> = usable.iter().filter(selling).copied().collect();
        if selling.is_empty() {
            return Choice::Wait {
                reason: reason::SPOT_NOT_SOLD,
                message: format!(
                    "{} sells no spot machines: take spotInstance out, or name another provider",
                    names.join(", ")
                ),
                until: None,
            };
        }
        if let Some(best) = best(
            wanted,
            market,
            &selling,
            true,
            spot.max_price,
            &mut rejected,
        ) {
            return Choice::Buy(Box::new(best));
        }
        let until = later(market.spot_since, spot.wait);
        if market.now < until {
            let text = rejected.dear.map_or_else(
                || "none is offered".to_owned(),
                |(price, what)| format!("the cheapest is {what} at {price} an hour"),
            );
            return Choice::Wait {
                reason: reason::WAITING_FOR_SPOT,
                message: format!(
                    "no spot machine within the price: {text}; on demand from {until:.0} on"
                ),
                until: Some(until),
            };
        }
        rejected = Rejected::default();
    }
    match best(
        wanted,
        market,
        &usable,
        false,
        wanted.max_price,
        &mut rejected,
    ) {
        Some(best) => Choice::Buy(Box::new(best)),
        None => explained(wanted, rejected, market),
    }
}

/// The providers that may be used at the moment, or why there are none.
fn usable<'a>(wanted: &Wanted, market: &Market<'a>) -> Result<Vec<&'a CloudProvider>, Choice> {
    let named = |provider: &&CloudProvider| {
        wanted.providers.is_empty()
            || wanted
                .providers
                .iter()
                .any(|name| *name == provider.name_any() || name == provider.spec.kind.as_str())
    };
    let wait = |message: String| Choice::Wait {
        reason: reason::NO_PROVIDER,
        message,
        until: None,
    };
    let all: Vec<&CloudProvider> = market.providers.iter().map(|known| &**known).collect();
    if all.is_empty() {
        let text = "there is no CloudProvider: create one (deploy/examples/cloud.yaml)";
        return Err(wait(text.to_owned()));
    }
    let all: Vec<&CloudProvider> = all.into_iter().filter(named).collect();
    if all.is_empty() {
        let known: Vec<String> = market.providers.iter().map(|one| one.name_any()).collect();
        return Err(wait(format!(
            "there is no CloudProvider {}: there are {}",
            wanted.providers.join(", "),
            known.join(", ")
        )));
    }
    let is_ready = |provider: &&CloudProvider| {
        let status = provider.status.as_ref();
        let conditions = status.map(|status| status.conditions.as_slice());
        let ready = condition::find(conditions.unwrap_or_default(), condition::READY);
        provider.spec.enabled
            && provider.meta().deletion_timestamp.is_none()
            && ready.is_some_and(|ready| ready.status == "True")
    };
    let ready: Vec<&CloudProvider> = all.iter().copied().filter(is_ready).collect();
    if ready.is_empty() {
        let each = all.iter().map(|provider| {
            let status = provider.status.as_ref();
            let said = status.and_then(|status| status.message.clone());
            format!(
                "{} ({})",
                provider.name_any(),
                said.unwrap_or_else(|| "not asked yet".to_owned())
            )
        });
        let each: Vec<String> = each.collect();
        return Err(wait(format!(
            "no CloudProvider is ready: {}",
            each.join(", ")
        )));
    }
    let fit = |provider: &&CloudProvider| bootstrap::of(wanted, provider).is_ok();
    let fitting: Vec<&CloudProvider> = ready.iter().copied().filter(fit).collect();
    if fitting.is_empty() {
        let each = ready
            .iter()
            .filter_map(|provider| bootstrap::of(wanted, provider).err());
        let each: Vec<String> = each.collect();
        return Err(Choice::Wait {
            reason: reason::NOT_ALLOWED,
            message: each.join("; "),
            until: None,
        });
    }
    Ok(fitting)
}

/// What makes one offer better than another, the most important first.
type Rank = (usize, Decimal, i32, u32, String);

/// The best offer, and what speaks against the others.
fn best(
    wanted: &Wanted,
    market: &Market<'_>,
    providers: &[&CloudProvider],
    spot: bool,
    max_price: Option<Decimal>,
    rejected: &mut Rejected,
) -> Option<Candidate> {
    let mut found: Vec<(Rank, Candidate)> = Vec::new();
    for provider in providers {
        let name = provider.name_any();
        let offers = provider.status.iter().flat_map(|status| &status.offers);
        for offer in offers.filter_map(read) {
            let Some(place) = fits(wanted, &offer, rejected) else {
                continue;
            };
            let Some(price) = offer.price_of(spot) else {
                rejected.models += 1;
                continue;
            };
            if offer.availability == Availability::None {
                rejected.sold_out += 1;
                continue;
            }
            if max_price.is_some_and(|most| price > most) {
                let dearer = rejected
                    .dear
                    .as_ref()
                    .is_some_and(|(known, _)| *known <= price);
                if !dearer {
                    let what = format!(
                        "{} x {} of {name} in {}",
                        offer.gpus, offer.gpu, offer.region
                    );
                    rejected.dear = Some((price, what));
                }
                continue;
            }
            if !affordable(wanted, market.spent, price) {
                rejected.budget += 1;
                continue;
            }
            if let Some(until) = left_out_until(market.attempts, &name, &offer, spot)
                && market.now < until
            {
                rejected.later = Some(rejected.later.map_or(until, |known| known.min(until)));
                continue;
            }
            if let Some(open) = circuit::objection(provider, &name, market.strangers, market.now) {
                rejected.circuits.insert(name.clone(), open);
                continue;
            }
            if let Some(limit) = over_limit(provider, market, price) {
                rejected.limits.insert(name.clone(), limit);
                continue;
            }
            let limit = max_price.unwrap_or_else(|| (price * Decimal::new(SLACK, 2)).round_dp(4));
            let rank = (
                place,
                price,
                provider.spec.priority,
                offer.gpus,
                format!("{name} {} {}", offer.instance_type, offer.region),
            );
            let candidate = Candidate {
                provider: name.clone(),
                offer,
                spot,
                price,
                limit,
                bootstrap: bootstrap::of(wanted, provider).unwrap_or_default(),
            };
            found.push((rank, candidate));
        }
    }
    found.sort_by(|one, other| one.0.cmp(&other.0));
    found.into_iter().next().map(|(_, candidate)| candidate)
}

/// An offer as a provider's status writes it.
pub(super) fn read(offer: &CloudOffer) -> Option<Offer> {
    let availability = serde_json::from_value(offer.availability.clone().into());
    Some(Offer {
        gpu: offer.gpu.clone(),
        gpus: offer.gpus,
        region: offer.region.clone(),
        instance_type: offer.instance_type.clone(),
        price: offer.price.parse().ok()?,
        spot_price: offer
            .spot_price
            .as_ref()
            .and_then(|price| price.parse().ok()),
        availability: availability.unwrap_or_default(),
    })
}

/// How good the place of an offer is, if the offer will do at all.
fn fits(wanted: &Wanted, offer: &Offer, rejected: &mut Rejected) -> Option<usize> {
    let model = gpu::named(&offer.gpu).into_iter().next();
    let memory = model.map_or(0, |model| model.memory_gib);
    let theirs = |vendor| model.is_some_and(|model| model.vendor == vendor);
    let right = (wanted.models.is_empty() || wanted.models.contains(&offer.gpu.as_str()))
        && wanted.vendor.is_none_or(theirs);
    if !right || memory < wanted.min_memory_gib || offer.gpus < wanted.gpus {
        rejected.models += 1;
        return None;
    }
    if wanted.regions.is_empty() {
        return Some(0);
    }
    let place = wanted
        .regions
        .iter()
        .position(|name| in_region(&offer.region, name));
    if place.is_none() {
        rejected.places += 1;
    }
    place
}

/// Whether what is left of the budget pays for a useful time.
fn affordable(wanted: &Wanted, spent: Decimal, price: Decimal) -> bool {
    let least = price * Decimal::from(LEAST_MINUTES) / Decimal::from(60);
    wanted.max_total.is_none_or(|most| spent + least <= most)
}

/// Until when an offer is left out because of how earlier attempts ended.
fn left_out_until(
    attempts: &[RequestAttempt],
    provider: &str,
    offer: &Offer,
    spot: bool,
) -> Option<Timestamp> {
    let mut until = None;
    let mut refused = 0;
    for attempt in attempts
        .iter()
        .filter(|attempt| attempt.provider == provider)
    {
        let same = attempt.instance_type == offer.instance_type
            && attempt.region == offer.region
            && attempt.spot == spot;
        // A place that takes machines back takes the next one back too.
        if let Some(noticed) = attempt.noticed_at.as_ref().filter(|_| same) {
            until = until.max(Some(later(noticed.0, ACCOUNT)));
        }
        let (Some(outcome), Some(at)) = (&attempt.outcome, &attempt.ended_at) else {
            continue;
        };
        // Neither says anything of the place.
        if [
            reason::POD_ENDED,
            reason::CONTAINER_REFUSED,
            reason::OFFER_GONE,
        ]
        .contains(&&**outcome)
        {
            continue;
        }
        let class = Class::of(outcome);
        let out = if class.is_some_and(Class::is_of_account) {
            ACCOUNT
        } else if !same {
            continue;
        } else if class.is_some() {
            refused += 1;
            SOLD_OUT * 2_i32.pow((refused - 1).min(DOUBLINGS))
        } else {
            // A machine that was bought and came to nothing.
            ACCOUNT
        };
        until = until.max(Some(later(at.0, out)));
    }
    until
}

/// What the provider's limits say against one more machine at this price.
fn over_limit(provider: &CloudProvider, market: &Market<'_>, price: Decimal) -> Option<String> {
    let limits = provider.spec.limits.as_ref()?;
    let name = provider.name_any();
    let open = market
        .requests
        .iter()
        .filter_map(|request| request.status.as_ref())
        .flat_map(|status| &status.attempts)
        .filter(|attempt| attempt.provider == name && attempt.outcome.is_none());
    let (mut machines, mut hourly) = (0_u32, Decimal::ZERO);
    for attempt in open {
        machines += 1;
        let price = attempt.billed_price.as_ref().unwrap_or(&attempt.price);
        hourly += price.parse::<Decimal>().unwrap_or_default();
    }
    if let Some(most) = limits.machines
        && machines.saturating_add(market.together) >= most
    {
        let all = market.together.saturating_add(1);
        let wanted = (all > 1).then(|| format!(", and {all} are wanted together"));
        return Some(format!(
            "{machines} of {most} machines are rented{}",
            wanted.unwrap_or_default()
        ));
    }
    // One that cannot be read buys nothing; the provider says so itself.
    let most = limits.price_per_hour.as_ref().map(Price::decimal)?;
    match most {
        Ok(most) if hourly + price * Decimal::from(market.together + 1) <= most => None,
        Ok(most) => Some(format!(
            "{hourly} of {most} dollars an hour are spent, and {} more are wanted",
            price * Decimal::from(market.together + 1)
        )),
        Err(problem) => Some(problem),
    }
}

/// Why nothing will do, with what would help.
fn explained(wanted: &Wanted, rejected: Rejected, market: &Market<'_>) -> Choice {
    let gpu = wanted.gpu();
    let wait = |reason, message, until| Choice::Wait {
        reason,
        message,
        until,
    };
    if let Some(until) = rejected.later {
        let last = market
            .attempts
            .iter()
            .rev()
            .find_map(|attempt| attempt.reason.clone());
        let text = format!(
            "every offer of {gpu} was refused lately ({}); tried again at {until:.0}",
            last.unwrap_or_default()
        );
        return wait(reason::RETRYING, text, Some(until));
    }
    if let Some((_, (text, until))) = rejected.circuits.into_iter().next() {
        return wait(reason::CIRCUIT_OPEN, text, until);
    }
    // Those within the hourly price that the rest of the money does not pay for come first: a higher price would not help.
    if rejected.budget > 0 {
        let text = format!(
            "maxTotalPrice {} leaves less than {LEAST_MINUTES} minutes ({} is spent): raise it",
            wanted.max_total.unwrap_or_default(),
            market.spent
        );
        return wait(reason::PRICE_TOO_LOW, text, None);
    }
    if let Some((price, what)) = rejected.dear {
        let most = wanted.max_price.unwrap_or_default();
        let text = format!(
            "the cheapest is {what} at {price} an hour, above maxPrice {most}: raise it, or ask for less"
        );
        return wait(reason::PRICE_TOO_LOW, text, None);
    }
    if let Some((name, why)) = rejected.limits.into_iter().next() {
        let text = format!("CloudProvider {name}: {why}; it goes on when one is given back");
        return wait(reason::PROVIDER_LIMIT, text, None);
    }
    let text = if rejected.sold_out > 0 {
        format!("{gpu} is sold out everywhere: wait, or ask for another model")
    } else if rejected.places > 0 {
        format!(
            "no provider offers {gpu} in {}: name another region",
            wanted.regions.join(", ")
        )
    } else {
        format!("no provider offers {gpu}: ask for another model or fewer (see warp offers)")
    };
    wait(reason::NO_OFFER, text, None)
}

pub(super) fn later(at: Timestamp, time: SignedDuration) -> Timestamp {
    at.checked_add(time).unwrap_or(Timestamp::MAX)
}
