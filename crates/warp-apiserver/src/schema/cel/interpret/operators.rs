//! Operators on values. Lists the schema calls sets or maps compare without regard to order and add up
//! by element or key; what counts is the operand on the left, as in Kubernetes.

use std::cmp::Ordering;
use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use kube_cel::cel::Value as CelValue;
use kube_cel::cel::objects::Key;

use super::spending::Meter;
use super::{Outcome, Stop, go_error};
use crate::schema::ListKind;
use crate::schema::cel::value::{List, Members, Val};
use crate::schema::validate::same;

pub(super) fn equal(left: &Val<'_>, right: &Val<'_>) -> bool {
    if let (Some(a), Some(b)) = (left.as_str(), right.as_str()) {
        return a == b;
    }
    match (left, right) {
        (Val::List(a), Val::List(b)) => a.len() == b.len() && equal_lists(a, b),
        (Val::Object(a), Val::Object(b)) => equal_objects(*a, *b),
        (Val::Object(a), Val::Map(_)) => {
            left.size() == right.size()
                && a.iter().all(|(name, value)| {
                    let other = right.member(&name);
                    other.is_some_and(|other| equal(&value, &other))
                })
        }
        (Val::Map(_), Val::Object(_)) => equal(right, left),
        (Val::Map(a), Val::Map(b)) => {
            a.len() == b.len()
                && a.iter().all(|(key, value)| {
                    let other = b.get(key);
                    other.is_some_and(|other| equal(value, other))
                })
        }
        (Val::Optional(a), Val::Optional(b)) => match (a, b) {
            (Some(a), Some(b)) => equal(a, b),
            (a, b) => a.is_none() && b.is_none(),
        },
        (Val::Plain(a), Val::Plain(b)) => a == b,
        _ => false,
    }
}

/// Two lists of one length.
fn equal_lists(left: &List<'_>, right: &List<'_>) -> bool {
    match left.kind {
        ListKind::Atomic => {
            let mut pairs = left.iter().zip(right.iter());
            pairs.all(|(a, b)| equal(&a, &b))
        }
        ListKind::Set => {
            let known: Option<HashSet<String>> = left.iter().map(|it| it.scalar_key()).collect();
            match known {
                Some(known) => right
                    .iter()
                    .all(|it| it.scalar_key().is_some_and(|key| known.contains(&key))),
                None => right.iter().all(|it| left.iter().any(|of| equal(&of, &it))),
            }
        }
        ListKind::Map(keys) => {
            let known: HashMap<_, _> = left.iter().map(|it| (list_key(keys, &it), it)).collect();
            right.iter().all(|it| {
                let other = known.get(&list_key(keys, &it));
                other.is_some_and(|other| equal(other, &it))
            })
        }
    }
}

/// What an element of a map-like list is known by.
fn list_key(keys: &[String], item: &Val<'_>) -> Vec<Option<String>> {
    let member = |name: &String| match item {
        Val::Object(members) => members.at(name),
        other => other.member(name),
    };
    keys.iter()
        .map(|name| member(name).and_then(|value| value.scalar_key()))
        .collect()
}

fn equal_objects(left: Members<'_>, right: Members<'_>) -> bool {
    left.raw().len() == right.raw().len()
        && left.raw().iter().all(|(key, value)| {
            if left.schema_of(key).is_some() {
                return match (left.at(key), right.at(key)) {
                    (Some(a), Some(b)) => equal(&a, &b),
                    (a, b) => a.is_none() && b.is_none(),
                };
            }
            // What no schema describes is compared as it is.
            let other = right.raw().get(key);
            other.is_none_or(|other| same(value, other))
        })
}

/// The order of two values; `None` when one of them is no number at all.
pub(super) fn order(left: &Val<'_>, right: &Val<'_>) -> Result<Option<Ordering>, Stop> {
    if let (Some(a), Some(b)) = (left.as_str(), right.as_str()) {
        return Ok(Some(a.cmp(b)));
    }
    match (left, right) {
        (Val::Plain(CelValue::Bytes(a)), Val::Plain(CelValue::Bytes(b))) => Ok(Some(a.cmp(b))),
        (Val::Plain(CelValue::Null), _) | (_, Val::Plain(CelValue::Null)) => {
            Err(Stop::no_overload())
        }
        (Val::Plain(a), Val::Plain(b)) => match a.partial_cmp(b) {
            Some(order) => Ok(Some(order)),
            None if is_number(a) && is_number(b) => Ok(None),
            None => Err(Stop::no_overload()),
        },
        _ => Err(Stop::no_overload()),
    }
}

fn is_number(value: &CelValue) -> bool {
    matches!(
        value,
        CelValue::Int(_) | CelValue::UInt(_) | CelValue::Float(_)
    )
}

/// Whether a list has an element, or a map a key.
pub(super) fn contains(within: &Val<'_>, item: &Val<'_>) -> Result<bool, Stop> {
    match within {
        // A list of the resource asks its elements, one that was made asks what is looked for.
        Val::List(list) if list.is_given() => Ok(list.iter().any(|known| equal(&known, item))),
        Val::List(list) => Ok(list.iter().any(|known| equal(item, &known))),
        Val::Object(_) => {
            let name = item.as_str().ok_or_else(Stop::no_overload)?;
            Ok(within.member(name).is_some())
        }
        Val::Map(map) => {
            let key = key(item)?;
            Ok(map.contains_key(&key) || sibling(&key).is_some_and(|key| map.contains_key(&key)))
        }
        _ => Err(Stop::no_overload()),
    }
}

/// An element by index, or a member by key.
pub(super) fn index<'a>(within: &Val<'a>, at: &Val<'a>) -> Outcome<'a> {
    match within {
        Val::List(list) => {
            let Val::Plain(CelValue::Int(index)) = at else {
                return Err(Stop::no_overload());
            };
            let found = usize::try_from(*index).ok();
            let found = found.and_then(|index| list.get(index));
            found.ok_or_else(|| Stop::fault(format!("index out of bounds: {index}")))
        }
        Val::Object(_) => {
            let name = at.as_str().ok_or_else(Stop::no_overload)?;
            let found = within.member(name);
            found.ok_or_else(|| Stop::no_key(name))
        }
        Val::Map(map) => {
            let key = key(at)?;
            let found = map.get(&key);
            let found = found.or_else(|| map.get(&sibling(&key)?));
            found.cloned().ok_or_else(|| Stop::no_key(&key.to_string()))
        }
        _ => Err(Stop::no_overload()),
    }
}

pub(super) fn key(value: &Val<'_>) -> Result<Key, Stop> {
    if let Some(text) = value.as_str() {
        return Ok(Key::from(text));
    }
    match value {
        Val::Plain(CelValue::Int(number)) => Ok(Key::Int(*number)),
        Val::Plain(CelValue::UInt(number)) => Ok(Key::Uint(*number)),
        Val::Plain(CelValue::Bool(value)) => Ok(Key::Bool(*value)),
        _ => Err(Stop::fault("unsupported key type".to_owned())),
    }
}

/// The same number as a key of the other whole-number type.
fn sibling(key: &Key) -> Option<Key> {
    match key {
        Key::Int(number) => u64::try_from(*number).ok().map(Key::Uint),
        Key::Uint(number) => i64::try_from(*number).ok().map(Key::Int),
        _ => None,
    }
}

pub(super) fn add<'a>(left: Val<'a>, right: Val<'a>, meter: &mut Meter) -> Outcome<'a> {
    if let (Some(a), Some(b)) = (left.as_str(), right.as_str()) {
        return Ok(Val::text(format!("{a}{b}")));
    }
    match (left, right) {
        (Val::List(a), Val::List(b)) => add_lists(a, &b, meter),
        (Val::Plain(CelValue::Bytes(a)), Val::Plain(CelValue::Bytes(b))) => {
            let joined = [a.as_slice(), b.as_slice()].concat();
            Ok(Val::Plain(CelValue::Bytes(Arc::new(joined))))
        }
        (left, right) => arithmetic("_+_", &left, &right),
    }
}

fn add_lists<'a>(left: List<'a>, right: &List<'a>, meter: &mut Meter) -> Outcome<'a> {
    let kind = left.kind;
    let (mut items, copied) = left.into_items();
    meter.copied(copied.saturating_add(right.len()))?;
    match kind {
        ListKind::Atomic => items.extend(right.iter()),
        ListKind::Set => {
            let mut known: HashSet<_> = items.iter().map(Val::scalar_key).collect();
            items.extend(right.iter().filter(|it| known.insert(it.scalar_key())));
        }
        ListKind::Map(keys) => {
            let places = items.iter().enumerate();
            let places: HashMap<_, _> = places.map(|(at, it)| (list_key(keys, it), at)).collect();
            for item in right.iter() {
                match places.get(&list_key(keys, &item)) {
                    Some(at) => items[*at] = item,
                    None => items.push(item),
                }
            }
        }
    }
    Ok(Val::List(List::made(items, kind)))
}

/// Numbers and times.
pub(super) fn arithmetic<'a>(name: &str, left: &Val<'a>, right: &Val<'a>) -> Outcome<'a> {
    let (Val::Plain(a), Val::Plain(b)) = (left, right) else {
        return Err(Stop::no_overload());
    };
    let (a, b) = (a.clone(), b.clone());
    let result = match name {
        "_+_" => a + b,
        "_-_" => a - b,
        "_*_" => a * b,
        "_/_" => a / b,
        _ => a % b,
    };
    result
        .map(Val::Plain)
        .map_err(|error| Stop::Fault(go_error(&error).into()))
}

pub(super) fn negate<'a>(value: &Val<'a>) -> Outcome<'a> {
    match value {
        Val::Plain(CelValue::Int(number)) => number
            .checked_neg()
            .map(|number| Val::Plain(CelValue::Int(number)))
            .ok_or_else(|| Stop::fault("integer overflow".to_owned())),
        Val::Plain(CelValue::Float(number)) => Ok(Val::Plain(CelValue::Float(-number))),
        _ => Err(Stop::no_overload()),
    }
}
