//! What calls cost at worst, and how large their results may be.

use super::check::Checked;
use super::types::{Shape, Size, Type};

/// Looking at a character, and at a character of a regular expression, in units of a step.
pub(super) const TRAVERSAL: f64 = 0.1;
pub(super) const REGEX: f64 = 0.25;
/// The longest regular expression behind a named format.
pub(super) const FORMAT_REGEX: f64 = 128.0;

pub(super) fn scaled(size: u64, factor: f64) -> u64 {
    if size == u64::MAX {
        return u64::MAX;
    }
    let value = (size as f64 * factor).ceil();
    #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)]
    if value >= u64::MAX as f64 {
        u64::MAX
    } else {
        value as u64
    }
}

fn total(costs: impl IntoIterator<Item = u64>) -> u64 {
    costs.into_iter().fold(0, u64::saturating_add)
}

/// The whole cost of a call, its arguments included, with its result.
pub(super) fn of_call<'a>(
    name: &str,
    target: Option<&Checked<'a>>,
    arguments: &[Checked<'a>],
    mut shape: Shape<'a>,
) -> Checked<'a> {
    let receiver = target.map_or(0, |target| target.cost);
    let all = total(arguments.iter().map(|argument| argument.cost));
    match (name, arguments) {
        ("_&&_" | "_||_", _) => {
            return Checked {
                shape,
                cost: receiver.saturating_add(all),
            };
        }
        ("_?_:_", [condition, yes, no]) => {
            let cost = condition.cost.saturating_add(yes.cost.max(no.cost));
            return Checked { shape, cost };
        }
        _ => {}
    }
    let sizes: Vec<Size> = arguments
        .iter()
        .map(|argument| argument.shape.size)
        .collect();
    let (own, size) = match target {
        Some(target) => method(name, &target.shape, &sizes, arguments),
        None => function(name, &sizes, arguments),
    };
    if let Some(size) = size {
        shape.size = size;
    }
    Checked {
        shape,
        cost: total([receiver, all, own]),
    }
}

type Estimate = (u64, Option<Size>);

fn function(name: &str, sizes: &[Size], arguments: &[Checked<'_>]) -> Estimate {
    let text = |index: usize| arguments.get(index).map(|a| &a.shape.kind);
    let sized = |index: usize| matches!(text(index), Some(Type::String | Type::Bytes));
    match (name, sizes) {
        ("_==_" | "_!=_", [a, b]) => (scaled(a.max.min(b.max), TRAVERSAL), None),
        ("_<_" | "_<=_" | "_>_" | "_>=_", [a, b]) if sized(0) || sized(1) => {
            (scaled(a.max.min(b.max), TRAVERSAL), None)
        }
        ("_+_", [a, b]) if sized(0) => (scaled(a.plus(*b).max, TRAVERSAL), None),
        ("@in", [_, within]) if matches!(text(1), Some(Type::List(_))) => (within.max, None),
        ("url" | "jsonpatch.escapeKey", [size]) => (scaled(size.max, TRAVERSAL), Some(*size)),
        (
            "cidr" | "isIP" | "isCIDR" | "ip" | "quantity" | "isQuantity" | "semver" | "isSemver"
            | "isURL",
            [size, ..],
        ) => (scaled(size.max, TRAVERSAL), None),
        ("ip.isCanonical", [size]) => (scaled(size.max, 2.0 * TRAVERSAL), None),
        ("bytes", [size]) if sized(0) => {
            let result = Size {
                min: size.min,
                max: size.max.saturating_mul(4),
            };
            (scaled(size.max, TRAVERSAL), Some(result))
        }
        ("string", [size]) if matches!(text(0), Some(Type::Bytes)) => {
            let result = Size {
                min: size.min / 4,
                max: size.max,
            };
            (scaled(size.max, TRAVERSAL), Some(result))
        }
        ("strings.quote", [size]) => {
            let result = Size {
                min: size.min + 2,
                max: size.max.saturating_mul(2).saturating_add(2),
            };
            (scaled(size.max, TRAVERSAL), Some(result))
        }
        ("dyn", [size]) => (1, Some(*size)),
        ("matches", [string, pattern]) => (matching(*string, *pattern), None),
        ("sets.contains" | "sets.equivalent" | "sets.intersects", [a, b]) => {
            (a.max.saturating_mul(b.max), None)
        }
        _ => (1, None),
    }
}

fn matching(string: Size, pattern: Size) -> u64 {
    let string = scaled(string.max.saturating_add(1), TRAVERSAL);
    string.saturating_mul(scaled(pattern.max, REGEX))
}

fn method(name: &str, target: &Shape<'_>, sizes: &[Size], arguments: &[Checked<'_>]) -> Estimate {
    let own = target.size;
    match (name, sizes) {
        ("contains", [part]) => (
            scaled(own.max, TRAVERSAL).saturating_mul(scaled(part.max, TRAVERSAL)),
            None,
        ),
        ("startsWith" | "endsWith", [part]) => (scaled(part.max, TRAVERSAL), None),
        ("matches", [pattern]) => (matching(own, *pattern), None),
        ("find" | "findAll", [pattern, ..]) => {
            (matching(own, *pattern), Some(Size::up_to(own.max)))
        }
        ("lowerAscii" | "upperAscii" | "substring" | "trim", _) => {
            (scaled(own.max, TRAVERSAL), Some(own))
        }
        ("format", _) => (scaled(own.max, TRAVERSAL), None),
        ("replace", [old, new, ..]) => (
            scaled(own.max, 2.0 * TRAVERSAL),
            Some(replaced(own, *old, *new)),
        ),
        ("split", _) => (scaled(own.max, 2.0 * TRAVERSAL), Some(Size::up_to(own.max))),
        ("join", separators) => {
            let item = match &target.kind {
                Type::List(item) => item.size,
                _ => Size::UNKNOWN,
            };
            let mut size = own.times(item);
            if let [separator] = separators {
                let gaps = Size {
                    min: own.min.saturating_sub(1),
                    max: own.max.saturating_sub(1),
                };
                size = size.plus(separator.times(gaps));
            }
            (scaled(size.max, TRAVERSAL), Some(size))
        }
        ("isSorted" | "sum" | "max" | "min" | "indexOf" | "lastIndexOf", _) => {
            let cost = match &target.kind {
                Type::List(item) => {
                    let text = matches!(item.kind, Type::String | Type::Bytes);
                    let each = if text {
                        scaled(item.size.max, TRAVERSAL)
                    } else {
                        0
                    };
                    own.max.saturating_mul(each.saturating_add(1))
                }
                _ => scaled(own.max, TRAVERSAL),
            };
            (cost, None)
        }
        ("validate", [size]) => {
            let text = scaled(size.max, TRAVERSAL);
            (scaled(text, FORMAT_REGEX * REGEX), None)
        }
        ("containsIP" | "containsCIDR", [size]) => {
            let text = matches!(arguments[0].shape.kind, Type::String);
            let parse = if text { scaled(size.max, TRAVERSAL) } else { 0 };
            (
                parse.saturating_add(if name == "containsIP" { 4 } else { 7 }),
                None,
            )
        }
        _ => (1, None),
    }
}

/// The longest a text may get by replacing.
fn replaced(text: Size, old: Size, new: Size) -> Size {
    let (count, kept) = if old.min == 0 {
        (text.max.saturating_add(1), text.max)
    } else if new.max <= old.min {
        (0, text.max)
    } else {
        (text.max.div_ceil(old.min), 0)
    };
    Size::up_to(count.saturating_mul(new.max).saturating_add(kept))
}
