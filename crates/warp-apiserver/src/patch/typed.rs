//! Values seen through their schema: which parts are merged member by member, which are one whole.
//!
//! Field sets, comparison, merge and removal all walk values by the same rules: maps member by
//! member unless atomic, lists as sets or keyed items when the schema says so, the rest as wholes.

use std::collections::BTreeMap;

use serde_json::{Map, Value};

use super::fieldset::{Atom, Entry, FieldSet, Step};
use crate::schema::{ListKind, MapKind, Schema};

/// The schema of a place, if anything is known about it.
pub(super) type Known = Option<Schema>;

/// How a value is walked.
enum Shape {
    Whole,
    Map,
    List,
}

fn shape(schema: &Known, value: &Value) -> Shape {
    match value {
        Value::Object(_) => match schema {
            Some(schema) if schema.map_kind() == MapKind::Atomic => Shape::Whole,
            _ => Shape::Map,
        },
        Value::Array(_) => match schema {
            Some(schema) if schema.list_kind() != ListKind::Atomic => Shape::List,
            _ => Shape::Whole,
        },
        _ => Shape::Whole,
    }
}

/// The schema of a member, and whether the schema names it (rather than admitting any name).
fn member(schema: &Known, name: &str) -> (Known, bool) {
    let Some(schema) = schema else {
        return (None, false);
    };
    match schema.field(name) {
        Some(field) => (Some(field.clone()), true),
        // Objects in objects: their metadata is typed whatever the schema says.
        None if name == "metadata" && schema.is_embedded() => {
            (Schema::builtin("meta", "v1", "ObjectMeta"), true)
        }
        None if schema.is_embedded() && matches!(name, "apiVersion" | "kind") => (None, true),
        None => (schema.additional().cloned(), false),
    }
}

fn items(schema: &Known) -> Known {
    schema.as_ref().and_then(|schema| schema.items().cloned())
}

/// How an item of a keyed list or a set is addressed.
fn item_step(schema: &Known, item: &Value) -> Step {
    let kind = schema.as_ref().map_or(ListKind::Atomic, Schema::list_kind);
    let ListKind::Map(keys) = kind else {
        return Step::Item(Atom(item.clone()));
    };
    let below = items(schema);
    let mut fields: Vec<(String, Atom)> = keys
        .iter()
        .filter_map(|key| {
            let value = match item.get(key) {
                Some(value) if !value.is_null() => value.clone(),
                _ => below.as_ref()?.field(key)?.default()?.clone(),
            };
            Some((key.clone(), Atom(value)))
        })
        .collect();
    fields.sort();
    Step::Key(fields)
}

fn is_absent(value: Option<&Value>) -> bool {
    match value {
        None | Some(Value::Null) => true,
        Some(Value::Object(map)) => map.is_empty(),
        Some(Value::Array(list)) => list.is_empty(),
        Some(_) => false,
    }
}

/// Every field of a configuration.
pub(super) fn field_set(value: &Value, schema: &Known) -> FieldSet {
    fields_of(value, schema).below
}

fn fields_of(value: &Value, schema: &Known) -> Entry {
    let mut set = FieldSet::default();
    match (shape(schema, value), value) {
        (Shape::Map, Value::Object(map)) => {
            for (name, value) in map {
                let (schema, named) = member(schema, name);
                let mut entry = fields_of(value, &schema);
                let hollow = value.is_null() || value.as_object().is_some_and(Map::is_empty);
                entry.owned |= hollow || !named;
                set.insert(Step::Field(name.clone()), entry);
            }
        }
        (Shape::List, Value::Array(list)) => {
            let below = items(schema);
            for item in list {
                let mut entry = fields_of(item, &below);
                entry.owned = true;
                set.insert(item_step(schema, item), entry);
            }
        }
        _ => return Entry::leaf(),
    }
    Entry {
        owned: false,
        below: set,
    }
}

/// What changed between two values.
#[derive(Debug, Default)]
pub(super) struct Comparison {
    pub(super) added: FieldSet,
    pub(super) modified: FieldSet,
    pub(super) removed: FieldSet,
}

impl Comparison {
    pub(super) fn ignore(&mut self, path: &[&str]) {
        self.added.remove_below(path);
        self.modified.remove_below(path);
        self.removed.remove_below(path);
    }
}

/// The three entries of one place.
#[derive(Default)]
struct Change {
    added: Entry,
    modified: Entry,
    removed: Entry,
}

impl Change {
    fn of_whole(old: Option<&Value>, new: Option<&Value>) -> Self {
        let mut change = Self::default();
        match (old, new) {
            (None, Some(_)) => change.added.owned = true,
            (Some(_), None) => change.removed.owned = true,
            (Some(old), Some(new)) => change.modified.owned = old != new,
            (None, None) => {}
        }
        change
    }

    fn insert(&mut self, step: &Step, below: Self) {
        self.added.below.insert(step.clone(), below.added);
        self.modified.below.insert(step.clone(), below.modified);
        self.removed.below.insert(step.clone(), below.removed);
    }
}

pub(super) fn compare(old: &Value, new: &Value, schema: &Known) -> Comparison {
    let change = change_of(Some(old), Some(new), schema);
    Comparison {
        added: change.added.below,
        modified: change.modified.below,
        removed: change.removed.below,
    }
}

fn change_of(old: Option<&Value>, new: Option<&Value>, schema: &Known) -> Change {
    if old.is_some() && old == new {
        return Change::default();
    }
    if is_absent(old) && is_absent(new) {
        return Change::of_whole(old, new);
    }
    let form = |value: Option<&Value>| match value {
        Some(value) if !value.is_null() => Some((value.is_object(), shape(schema, value))),
        _ => None,
    };
    let (old_form, new_form) = (form(old), form(new));
    let mut change = match (&old_form, &new_form) {
        (Some((true, Shape::Map)), Some((true, Shape::Map)) | None)
        | (None, Some((true, Shape::Map))) => compare_maps(old, new, schema),
        (Some((false, Shape::List)), Some((false, Shape::List)) | None)
        | (None, Some((false, Shape::List))) => compare_lists(old, new, schema),
        (Some((_, Shape::Map | Shape::List)), Some(_))
        | (Some(_), Some((_, Shape::Map | Shape::List))) => {
            // The value became another kind of thing: all of it went, all of it came.
            let mut change = change_of(old, None, schema);
            change.added = change_of(None, new, schema).added;
            return change;
        }
        _ => return Change::of_whole(old, new),
    };
    change.added.owned |= old.is_none();
    change.removed.owned |= new.is_none();
    change
}

fn compare_maps(old: Option<&Value>, new: Option<&Value>, schema: &Known) -> Change {
    let mut change = Change::default();
    let old = old.and_then(Value::as_object);
    let new = new.and_then(Value::as_object);
    let mut visit = |name: &String, old: Option<&Value>, new: Option<&Value>| {
        let (below, _) = member(schema, name);
        change.insert(&Step::Field(name.clone()), change_of(old, new, &below));
    };
    for (name, value) in old.into_iter().flatten() {
        visit(name, Some(value), new.and_then(|new| new.get(name)));
    }
    for (name, value) in new.into_iter().flatten() {
        if old.is_none_or(|old| !old.contains_key(name)) {
            visit(name, None, Some(value));
        }
    }
    change
}

fn by_step<'a>(schema: &Known, list: Option<&'a Value>) -> BTreeMap<Step, Vec<&'a Value>> {
    let mut found: BTreeMap<Step, Vec<&Value>> = BTreeMap::new();
    for item in list.and_then(Value::as_array).into_iter().flatten() {
        found.entry(item_step(schema, item)).or_default().push(item);
    }
    found
}

fn compare_lists(old: Option<&Value>, new: Option<&Value>, schema: &Known) -> Change {
    let mut change = Change::default();
    let below = items(schema);
    let old = by_step(schema, old);
    let new = by_step(schema, new);
    let empty = Vec::new();
    for step in old
        .keys()
        .chain(new.keys().filter(|step| !old.contains_key(step)))
    {
        let olds = old.get(step).unwrap_or(&empty);
        let news = new.get(step).unwrap_or(&empty);
        let item = if olds.len() <= 1 && news.len() <= 1 {
            change_of(olds.first().copied(), news.first().copied(), &below)
        } else {
            // Items with the same key cannot be told apart: they are compared as one whole.
            let mut item = Change::default();
            item.added.owned = olds.is_empty();
            item.removed.owned = news.is_empty();
            item.modified.owned = !olds.is_empty() && !news.is_empty() && olds != news;
            item
        };
        change.insert(step, item);
    }
    change
}

/// `live` with `config` laid over it.
pub(super) fn merge(live: Option<&Value>, config: Option<&Value>, schema: &Known) -> Value {
    let (Some(old), Some(new)) = (live, config) else {
        return config.or(live).cloned().unwrap_or(Value::Null);
    };
    match (shape(schema, old), shape(schema, new), old, new) {
        (Shape::Map, Shape::Map, Value::Object(old), Value::Object(new)) => {
            let mut merged = old.clone();
            for (name, value) in new {
                let (below, _) = member(schema, name);
                let value = merge(old.get(name), Some(value), &below);
                merged.insert(name.clone(), value);
            }
            Value::Object(merged)
        }
        (Shape::List, Shape::List, Value::Array(old), Value::Array(new)) => {
            Value::Array(merge_lists(old, new, schema))
        }
        (Shape::Map | Shape::List, Shape::Whole, _, Value::Null) => old.clone(),
        _ => new.clone(),
    }
}

/// Items of both lists: shared ones in the order of the configuration, others kept near their
/// neighbours.
fn merge_lists(old: &[Value], new: &[Value], schema: &Known) -> Vec<Value> {
    let below = items(schema);
    let old_steps: Vec<Step> = old.iter().map(|item| item_step(schema, item)).collect();
    let new_steps: Vec<Step> = new.iter().map(|item| item_step(schema, item)).collect();
    let old_at: BTreeMap<&Step, &Value> = old_steps.iter().zip(old).collect();
    let in_new: std::collections::BTreeSet<&Step> = new_steps.iter().collect();
    let mut shared = new_steps
        .iter()
        .filter(|step| old_at.contains_key(step))
        .peekable();
    let mut taken = std::collections::BTreeSet::new();
    let mut merged = Vec::with_capacity(old.len() + new.len());
    let (mut left, mut right) = (0, 0);
    while left < old.len() || right < new.len() {
        if let (Some(l), Some(r)) = (old_steps.get(left), new_steps.get(right)) {
            if l == r {
                taken.insert(l);
                merged.push(merge(Some(&old[left]), Some(&new[right]), &below));
                left += 1;
                right += 1;
                shared.next();
                continue;
            }
            if in_new.contains(l) && shared.peek().is_some_and(|next| *next != l) {
                left += 1;
                continue;
            }
        }
        if let Some(l) = old_steps.get(left) {
            if !in_new.contains(l) {
                merged.push(old[left].clone());
                left += 1;
                continue;
            }
            if taken.contains(l) {
                left += 1;
            }
        }
        if let Some(r) = new_steps.get(right) {
            taken.insert(r);
            merged.push(merge(old_at.get(r).copied(), Some(&new[right]), &below));
            right += 1;
            if shared.peek() == Some(&r) {
                shared.next();
            }
        }
    }
    merged
}

/// `value` without the paths in `gone`; `None` when nothing of it is left.
pub(super) fn remove(value: &Value, gone: &FieldSet, schema: &Known) -> Option<Value> {
    match (shape(schema, value), value) {
        (Shape::Map, Value::Object(map)) if !map.is_empty() => {
            let mut kept = Map::new();
            for (name, value) in map {
                match gone.get(&Step::Field(name.clone())) {
                    None => {
                        kept.insert(name.clone(), value.clone());
                    }
                    Some(entry) if entry.owned => {}
                    Some(entry) => {
                        let (below, _) = member(schema, name);
                        if let Some(value) = remove(value, &entry.below, &below) {
                            kept.insert(name.clone(), value);
                        }
                    }
                }
            }
            (!kept.is_empty()).then_some(Value::Object(kept))
        }
        (Shape::List, Value::Array(list)) if !list.is_empty() => {
            let below = items(schema);
            let kept: Vec<Value> = list
                .iter()
                .filter_map(|item| match gone.get(&item_step(schema, item)) {
                    None => Some(item.clone()),
                    Some(entry) if entry.owned => None,
                    Some(entry) => remove(item, &entry.below, &below),
                })
                .collect();
            (!kept.is_empty()).then_some(Value::Array(kept))
        }
        _ => Some(value.clone()),
    }
}

/// Adds every field the schema names that has members below it: a struct counts as present when
/// something in it is.
pub(super) fn name_parents(set: &FieldSet, schema: &Known) -> FieldSet {
    let mut named = FieldSet::default();
    for (step, entry) in &set.0 {
        let (below, is_named) = match step {
            Step::Field(name) => member(schema, name),
            _ => (items(schema), false),
        };
        let entry = Entry {
            owned: entry.owned || (is_named && !entry.below.is_empty()),
            below: name_parents(&entry.below, &below),
        };
        named.insert(step.clone(), entry);
    }
    named
}
