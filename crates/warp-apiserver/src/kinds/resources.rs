//! What pods ask for: requests and limits summed the way scheduling and quota count them.

use std::collections::BTreeMap;

use serde_json::Value;

use super::Quantity;
use super::fields::{entries, list, text};

/// Amounts by resource name.
pub type Amounts = BTreeMap<String, Quantity>;

/// Reads a resource list; values that are not quantities do not count.
pub fn amounts(value: Option<&Value>) -> Amounts {
    value
        .and_then(Value::as_object)
        .into_iter()
        .flatten()
        .filter_map(|(name, amount)| Some((name.clone(), Quantity::of(amount)?)))
        .collect()
}

/// `left + right`, by resource.
pub fn add(left: &mut Amounts, right: &Amounts) {
    for (name, amount) in right {
        let sum = left.get(name).map_or(*amount, |known| known.plus(*amount));
        left.insert(name.clone(), sum);
    }
}

/// The larger of both, by resource.
fn at_least(left: &mut Amounts, right: &Amounts) {
    for (name, amount) in right {
        if left.get(name).is_none_or(|known| known < amount) {
            left.insert(name.clone(), *amount);
        }
    }
}

/// What a pod spec requests: containers together, or the largest step of initialisation.
pub fn pod_requests(spec: &Value) -> Amounts {
    with_overhead(spec, total(spec, "requests"))
}

/// What a pod spec is limited to.
pub fn pod_limits(spec: &Value) -> Amounts {
    with_overhead(spec, total(spec, "limits"))
}

fn with_overhead(spec: &Value, mut sum: Amounts) -> Amounts {
    let overhead: Amounts = entries(spec, "overhead")
        .filter_map(|(name, amount)| Some((name.clone(), Quantity::of(amount)?)))
        .filter(|(name, _)| sum.contains_key(name))
        .collect();
    add(&mut sum, &overhead);
    sum
}

fn total(spec: &Value, which: &str) -> Amounts {
    let of = |container: &Value| amounts(container.get("resources").and_then(|r| r.get(which)));
    let mut sum = Amounts::new();
    for container in list(spec, "containers") {
        add(&mut sum, &of(container));
    }
    // Init containers that keep running count with the containers; the others one at a time,
    // next to the ones that kept running before them.
    let (mut running, mut peak) = (Amounts::new(), Amounts::new());
    for container in list(spec, "initContainers") {
        let mut step = of(container);
        if text(container, "restartPolicy") == "Always" {
            add(&mut running, &step);
            step = running.clone();
        } else {
            add(&mut step, &running);
        }
        at_least(&mut peak, &step);
    }
    add(&mut sum, &running);
    at_least(&mut sum, &peak);
    // Pod-level amounts, where given, are what counts.
    for (name, amount) in amounts(spec.get("resources").and_then(|r| r.get(which))) {
        sum.insert(name, amount);
    }
    sum
}

/// `Guaranteed`, `Burstable` or `BestEffort`.
pub fn quality_of_service(spec: &Value) -> &'static str {
    let counted = |name: &str| matches!(name, "cpu" | "memory");
    let level = |resources: Option<&Value>, which: &str| -> Amounts {
        amounts(resources.and_then(|r| r.get(which)))
            .into_iter()
            .filter(|(name, amount)| counted(name) && !amount.is_zero())
            .collect()
    };
    let all: Vec<Option<&Value>> = match spec.get("resources") {
        Some(resources)
            if !level(Some(resources), "limits").is_empty()
                || !level(Some(resources), "requests").is_empty() =>
        {
            vec![Some(resources)]
        }
        _ => list(spec, "containers")
            .iter()
            .chain(list(spec, "initContainers"))
            .map(|container| container.get("resources"))
            .collect(),
    };
    let mut asks = false;
    let mut guaranteed = true;
    for resources in all {
        let (requests, limits) = (level(resources, "requests"), level(resources, "limits"));
        asks |= !requests.is_empty() || !limits.is_empty();
        guaranteed &= limits.len() == 2
            && requests
                .iter()
                .all(|(name, amount)| limits.get(name) == Some(amount));
    }
    match (asks, guaranteed) {
        (false, _) => "BestEffort",
        (true, true) => "Guaranteed",
        (true, false) => "Burstable",
    }
}
