//! What evaluating costs, counted as Kubernetes counts it, so that the same rules on the same data run
//! out of the same budget.

use kube_cel::cel::Value as CelValue;

use super::super::cost::{FORMAT_REGEX, REGEX, TRAVERSAL, scaled};
use super::Stop;
use crate::schema::cel::value::Val;

/// The most one evaluation may cost.
const CALL_LIMIT: u64 = 1_000_000;
/// The most elements one evaluation may copy into longer lists. Kubernetes joins lists without copying
/// and charges nothing for it; this is what bounds the memory here. Whoever looks at that many elements
/// is over the limit above.
const COPY_LIMIT: usize = 2_000_000;

const READING: [&str; 17] = [
    "url",
    "lowerAscii",
    "upperAscii",
    "substring",
    "trim",
    "jsonpatch.escapeKey",
    "cidr",
    "isIP",
    "isCIDR",
    "quantity",
    "isQuantity",
    "semver",
    "isSemver",
    "startsWith",
    "endsWith",
    "strings.quote",
    "format",
];

#[derive(Debug, Default)]
pub(super) struct Meter {
    spent: u64,
    copied: usize,
}

impl Meter {
    pub(super) fn spent(&self) -> u64 {
        self.spent
    }

    pub(super) fn spend(&mut self, cost: u64) -> Result<(), Stop> {
        self.spent = self.spent.saturating_add(cost);
        if self.spent > CALL_LIMIT {
            return Err(Stop::OverLimit);
        }
        Ok(())
    }

    pub(super) fn copied(&mut self, elements: usize) -> Result<(), Stop> {
        self.copied = self.copied.saturating_add(elements);
        if self.copied > COPY_LIMIT {
            return Err(Stop::OverLimit);
        }
        Ok(())
    }
}

/// The size a value is charged by; one for what has no size.
fn size(value: &Val<'_>) -> u64 {
    match value {
        Val::Optional(Some(inner)) => size(inner),
        other => other.size().map_or(1, |size| size as u64),
    }
}

pub(super) fn comparing(left: &Val<'_>, right: &Val<'_>) -> u64 {
    match left {
        Val::Plain(CelValue::Opaque(_)) => 1,
        _ => scaled(size(left).min(size(right)), TRAVERSAL),
    }
}

pub(super) fn ordering(left: &Val<'_>, right: &Val<'_>) -> u64 {
    if left.as_str().is_some() || matches!(left, Val::Plain(CelValue::Bytes(_))) {
        comparing(left, right)
    } else {
        1
    }
}

pub(super) fn adding(left: &Val<'_>, right: &Val<'_>) -> u64 {
    if left.as_str().is_some() || matches!(left, Val::Plain(CelValue::Bytes(_))) {
        scaled(size(left).saturating_add(size(right)), TRAVERSAL)
    } else {
        1
    }
}

pub(super) fn searching(within: &Val<'_>) -> u64 {
    match within {
        Val::List(list) => list.len() as u64,
        _ => 1,
    }
}

/// Looking at everything in a value once.
fn traversal(value: &Val<'_>) -> u64 {
    #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)]
    let text = |length: usize| (length as f64 * TRAVERSAL) as u64;
    match value {
        Val::Text(_) | Val::Plain(CelValue::String(_)) => text(value.as_str().map_or(0, str::len)),
        Val::Plain(CelValue::Bytes(bytes)) => text(bytes.len()),
        Val::List(list) => list.iter().map(|item| traversal(&item)).sum(),
        Val::Object(members) => members
            .iter()
            .map(|(name, value)| text(name.len()) + traversal(&value))
            .sum(),
        Val::Map(map) => map.values().map(|value| 1 + traversal(value)).sum(),
        Val::Plain(_) | Val::Optional(_) | Val::Fault(_) => 1,
    }
}

fn matching(text: &Val<'_>, pattern: u64) -> u64 {
    scaled(size(text).saturating_add(1), TRAVERSAL).saturating_mul(pattern)
}

/// A function's own cost; the receiver of a method is its first argument.
pub(super) fn calling(name: &str, arguments: &[Val<'_>], result: &Val<'_>) -> u64 {
    let read = |factor: f64| arguments.first().map_or(1, |it| scaled(size(it), factor));
    let parsed = |at: usize| match arguments.get(at) {
        Some(it) if it.as_str().is_some() => scaled(size(it), TRAVERSAL),
        _ => 0,
    };
    if reads_once(name, arguments) {
        return read(TRAVERSAL);
    }
    match (name, arguments) {
        ("isSorted" | "sum" | "max" | "min" | "indexOf" | "lastIndexOf", [it, ..]) => traversal(it),
        ("replace" | "split" | "ip.isCanonical", _) => read(2.0 * TRAVERSAL),
        ("join", _) => scaled(size(result), 2.0 * TRAVERSAL),
        ("find" | "findAll" | "matches", [text, pattern, ..]) => {
            matching(text, scaled(size(pattern), REGEX))
        }
        ("validate", [_, text]) => matching(text, scaled(1, FORMAT_REGEX * REGEX)),
        ("contains", [text, part]) => {
            scaled(size(text), TRAVERSAL).saturating_mul(scaled(size(part), TRAVERSAL))
        }
        ("containsIP", _) => 4 + parsed(1),
        ("containsCIDR", _) => 7 + parsed(1),
        ("sets.contains" | "sets.equivalent" | "sets.intersects", [a, b]) => {
            size(a).saturating_mul(size(b))
        }
        _ => 1,
    }
}

/// Whether a function looks at each character of its first argument once.
fn reads_once(name: &str, arguments: &[Val<'_>]) -> bool {
    match (name, arguments) {
        ("ip" | "bytes", [it]) => it.as_str().is_some(),
        ("string", [it]) => matches!(it, Val::Plain(CelValue::Bytes(_))),
        _ => READING.contains(&name),
    }
}
