//! How many replicas each set of a Deployment gets. Pure arithmetic.

use k8s_openapi::api::apps::v1::{Deployment, ReplicaSet};
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;

pub(super) fn wanted(deployment: &Deployment) -> i32 {
    deployment
        .spec
        .as_ref()
        .and_then(|spec| spec.replicas)
        .unwrap_or(1)
}

pub(super) fn of(set: &ReplicaSet) -> i32 {
    set.spec
        .as_ref()
        .and_then(|spec| spec.replicas)
        .unwrap_or(1)
}

pub(super) fn available(set: &ReplicaSet) -> i32 {
    set.status
        .as_ref()
        .and_then(|status| status.available_replicas)
        .unwrap_or(0)
}

pub(super) fn is_rolling(deployment: &Deployment) -> bool {
    let strategy = deployment
        .spec
        .as_ref()
        .and_then(|spec| spec.strategy.as_ref());
    strategy
        .and_then(|strategy| strategy.type_.as_deref())
        .unwrap_or("RollingUpdate")
        == "RollingUpdate"
}

/// Users may ask for as many as a number can say: sums stop there.
fn total(numbers: impl Iterator<Item = i32>) -> i32 {
    numbers.fold(0, i32::saturating_add)
}

/// A number, or a share of `total`.
fn resolve(value: Option<&IntOrString>, default: &str, total: i32, up: bool) -> i32 {
    let share = |text: &str| {
        let percent: i64 = text.trim_end_matches('%').parse().unwrap_or(0);
        let scaled = percent.saturating_mul(i64::from(total));
        i32::try_from(if up {
            scaled.div_euclid(100) + i64::from(scaled.rem_euclid(100) > 0)
        } else {
            scaled / 100
        })
        .unwrap_or(i32::MAX)
    };
    match value {
        Some(IntOrString::Int(number)) => *number,
        Some(IntOrString::String(text)) => share(text),
        None => share(default),
    }
}

/// (maxSurge, maxUnavailable); never both zero, or nothing could ever move.
pub(super) fn bounds(deployment: &Deployment) -> (i32, i32) {
    let total = wanted(deployment);
    if !is_rolling(deployment) {
        return (0, 0);
    }
    let strategy = deployment
        .spec
        .as_ref()
        .and_then(|spec| spec.strategy.as_ref()?.rolling_update.as_ref());
    let surge = resolve(
        strategy.and_then(|rolling| rolling.max_surge.as_ref()),
        "25%",
        total,
        true,
    );
    let mut unavailable = resolve(
        strategy.and_then(|rolling| rolling.max_unavailable.as_ref()),
        "25%",
        total,
        false,
    );
    if surge == 0 && unavailable == 0 {
        unavailable = 1;
    }
    (surge, unavailable.min(total.max(0)))
}

/// The most pods a Deployment may have; what its sets' annotation says.
pub(super) fn most(deployment: &Deployment) -> i32 {
    wanted(deployment).saturating_add(bounds(deployment).0)
}

/// How many replicas the newest set gets now.
pub(super) fn of_new(deployment: &Deployment, all: &[&ReplicaSet], new: i32) -> i32 {
    let wanted = wanted(deployment);
    if !is_rolling(deployment) {
        return wanted;
    }
    let current = total(all.iter().map(|set| of(set)));
    let room = most(deployment).saturating_sub(current);
    if room <= 0 {
        new
    } else {
        new + room.min(wanted - new)
    }
}

/// New sizes of old sets in a rolling update: unhealthy replicas first, then what availability allows.
pub(super) fn shrink_old(
    deployment: &Deployment,
    new: Option<&ReplicaSet>,
    old: &[&ReplicaSet],
) -> Vec<i32> {
    let mut sizes: Vec<i32> = old.iter().map(|set| of(set)).collect();
    let old_total = total(sizes.iter().copied());
    if old_total == 0 {
        return sizes;
    }
    let least = wanted(deployment) - bounds(deployment).1;
    let new_available = new.map_or(0, available);
    // What the new set has and what it lacks cancel out but for its available replicas.
    let mut room = old_total
        .saturating_add(new_available)
        .saturating_sub(least);
    if room <= 0 {
        return sizes;
    }
    for (size, set) in sizes.iter_mut().zip(old) {
        let unhealthy = (*size - available(set)).clamp(0, room);
        *size -= unhealthy;
        room -= unhealthy;
    }
    let up = total(old.iter().map(|set| available(set))).saturating_add(new_available);
    let mut spare = up.saturating_sub(least).max(0);
    for size in &mut sizes {
        let less = (*size).min(spare);
        *size -= less;
        spare -= less;
    }
    sizes
}

/// Spreads a change of the Deployment's size over its sets in proportion to their own. `sets` are (size, size of the
/// whole that was annotated on the set), largest first.
pub(super) fn proportional(deployment: &Deployment, sets: &[(i32, Option<i32>)]) -> Vec<i32> {
    let total = total(sets.iter().map(|(size, _)| *size));
    let wanted = wanted(deployment);
    let allowed = if wanted > 0 { most(deployment) } else { 0 };
    let change = allowed - total;
    let known = deployment
        .status
        .as_ref()
        .and_then(|status| status.replicas)
        .unwrap_or(0);
    let mut added = 0;
    let mut sizes: Vec<i32> = sets
        .iter()
        .map(|&(size, annotated)| {
            if size == 0 || change == 0 || added == change {
                return size;
            }
            let share = if wanted == 0 {
                -size
            } else {
                let whole = annotated.filter(|whole| *whole > 0).unwrap_or(known.max(1));
                let scaled = f64::from(size) * f64::from(allowed) / f64::from(whole);
                #[allow(
                    clippy::cast_possible_truncation,
                    reason = "replica counts are far below 2^31"
                )]
                let rounded = scaled.round() as i32;
                rounded - size
            };
            let left = change - added;
            let share = if change > 0 {
                share.min(left)
            } else {
                share.max(left)
            };
            added += share;
            size + share
        })
        .collect();
    if let Some(first) = sizes.first_mut() {
        *first = first.saturating_add(change - added).max(0);
    }
    sizes
}
