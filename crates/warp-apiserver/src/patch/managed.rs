//! `metadata.managedFields`: who owns which field, and server-side apply.
//!
//! Follows the algorithm of Kubernetes' structured merge: an update takes ownership of what it
//! adds or changes, an apply owns exactly what it sends, prunes what it sent before and no longer
//! sends, and conflicts when another manager owns what it would change.

use std::fmt::Write as _;

use serde_json::{Map, Value, json};

use super::fieldset::{FieldSet, Step};
use super::skeleton;
use super::typed::{self, Known};
use crate::codec::status::Status;
use crate::schema::Schema;

/// Managers that only update, beyond which the oldest are folded into one.
const MOST_UPDATERS: usize = 10;
const FOLDED: &str = "ancient-changes";
const BEFORE_APPLY: &str = "before-first-apply";
const LAST_APPLIED: &str = "kubectl.kubernetes.io/last-applied-configuration";

/// Paths nobody owns: identity and what the server keeps.
const UNOWNED: &[&[&str]] = &[
    &["apiVersion"],
    &["kind"],
    &["metadata"],
    &["metadata", "name"],
    &["metadata", "namespace"],
    &["metadata", "creationTimestamp"],
    &["metadata", "selfLink"],
    &["metadata", "uid"],
    &["metadata", "clusterName"],
    &["metadata", "generation"],
    &["metadata", "managedFields"],
    &["metadata", "resourceVersion"],
];

/// Who writes, through what, when.
#[derive(Clone, Copy, Debug)]
pub struct Writer<'a> {
    pub manager: &'a str,
    pub api_version: &'a str,
    pub group: &'a str,
    pub kind: &'a str,
    /// `status`, `scale`, … or empty.
    pub subresource: &'a str,
    /// RFC 3339, whole seconds.
    pub now: &'a str,
    /// Whether the kind is a custom resource.
    pub custom: bool,
    pub schema: &'a Schema,
    /// Paths this endpoint ignores, so they are not owned through it.
    pub reset: &'a [&'a [&'a str]],
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Operation {
    Apply,
    Update,
}

#[derive(Clone, Debug)]
struct Manager {
    name: String,
    operation: Operation,
    api_version: String,
    time: Option<String>,
    subresource: String,
    set: FieldSet,
}

impl Manager {
    fn of(writer: &Writer<'_>, operation: Operation, set: FieldSet) -> Self {
        Self {
            name: writer.manager.to_owned(),
            operation,
            api_version: writer.api_version.to_owned(),
            time: Some(writer.now.to_owned()),
            subresource: writer.subresource.to_owned(),
            set,
        }
    }

    /// An applier is the same one in every version.
    fn is(&self, other: &Self) -> bool {
        self.name == other.name
            && self.operation == other.operation
            && self.subresource == other.subresource
            && (self.operation == Operation::Apply || self.api_version == other.api_version)
    }

    fn describe(&self) -> String {
        let mut text = format!("{:?}", self.name);
        if !self.subresource.is_empty() {
            let _ = write!(text, " with subresource {:?}", self.subresource);
        }
        if self.operation == Operation::Update {
            let _ = write!(text, " using {}", self.api_version);
        }
        text
    }

    fn decode(entry: &Value) -> Option<Self> {
        let text = |name: &str| entry.get(name).and_then(Value::as_str).unwrap_or_default();
        let operation = match text("operation") {
            "Apply" => Operation::Apply,
            "Update" => Operation::Update,
            _ => return None,
        };
        Some(Self {
            name: text("manager").to_owned(),
            operation,
            api_version: text("apiVersion").to_owned(),
            time: entry.get("time").and_then(Value::as_str).map(str::to_owned),
            subresource: text("subresource").to_owned(),
            set: FieldSet::decode(entry.get("fieldsV1").unwrap_or(&json!({})))?,
        })
    }

    fn encode(&self) -> Value {
        let mut entry = Map::new();
        entry.insert("manager".into(), self.name.clone().into());
        let operation = if self.operation == Operation::Apply {
            "Apply"
        } else {
            "Update"
        };
        entry.insert("operation".into(), operation.into());
        entry.insert("apiVersion".into(), self.api_version.clone().into());
        if let Some(time) = &self.time {
            entry.insert("time".into(), time.clone().into());
        }
        entry.insert("fieldsType".into(), "FieldsV1".into());
        entry.insert("fieldsV1".into(), self.set.encode());
        if !self.subresource.is_empty() {
            entry.insert("subresource".into(), self.subresource.clone().into());
        }
        Value::Object(entry)
    }
}

type Managers = Vec<Manager>;

fn decode(list: Option<&Value>) -> Option<Managers> {
    match list {
        None | Some(Value::Null) => Some(Vec::new()),
        Some(list) => list.as_array()?.iter().map(Manager::decode).collect(),
    }
}

fn managed_fields(object: &Value) -> Option<&Value> {
    object.get("metadata")?.get("managedFields")
}

fn take_managed_fields(object: &mut Value) -> Option<Value> {
    object
        .get_mut("metadata")?
        .as_object_mut()?
        .shift_remove("managedFields")
}

fn store(object: &mut Value, mut managers: Managers) {
    managers.retain(|manager| !manager.set.is_empty());
    managers.sort_by(|a, b| {
        let order = |manager: &Manager| {
            (
                manager.operation,
                manager.time.clone().unwrap_or_default(),
                manager.name.clone(),
                manager.api_version.clone(),
                manager.subresource.clone(),
            )
        };
        order(a).cmp(&order(b))
    });
    let Some(meta) = object.get_mut("metadata").and_then(Value::as_object_mut) else {
        return;
    };
    meta.shift_remove("managedFields");
    if !managers.is_empty() {
        let list = managers.iter().map(Manager::encode).collect();
        meta.insert("managedFields".into(), list);
    }
}

/// Removes what nobody owns, and what this endpoint ignores.
fn strip(set: &mut FieldSet, writer: &Writer<'_>) {
    for path in UNOWNED {
        set.remove_exact(path);
    }
    for path in writer.reset {
        set.remove_below(path);
    }
}

/// Takes what changed away from everyone but `keep`.
fn take_from_others(
    managers: &mut Managers,
    changed: &FieldSet,
    removed: &FieldSet,
    keep: Option<usize>,
) {
    for (position, manager) in managers.iter_mut().enumerate() {
        if Some(position) != keep {
            manager.set = manager.set.difference(changed).difference(removed);
        }
    }
}

/// Whether the request asks to forget all managers: exactly one empty entry.
fn is_reset(list: Option<&Value>) -> bool {
    matches!(list.and_then(Value::as_array).map(Vec::as_slice),
        Some([Value::Object(entry)]) if entry.is_empty())
}

/// Tracks a create, update or non-apply patch: `live` is the stored object (`None` on create) and
/// `new` what will be stored.
pub fn update(live: Option<&Value>, new: &mut Value, writer: &Writer<'_>) {
    let sent = take_managed_fields(new);
    let of_live = || {
        live.and_then(|live| decode(managed_fields(live)))
            .unwrap_or_default()
    };
    let mut managers = if !writer.subresource.is_empty() {
        of_live()
    } else if is_reset(sent.as_ref()) {
        Vec::new()
    } else {
        match decode(sent.as_ref()) {
            Some(managers) if !managers.is_empty() => managers,
            _ => of_live(),
        }
    };
    if live.is_some() && managers.is_empty() {
        // Ownership was given up by a reset: it stays so until someone applies.
        return;
    }
    track(live, new, &mut managers, writer);
    store(new, managers);
}

fn track(live: Option<&Value>, new: &Value, managers: &mut Managers, writer: &Writer<'_>) {
    let empty;
    let old = if let Some(live) = live {
        live
    } else {
        empty = if writer.custom {
            json!({"metadata": {}})
        } else {
            skeleton::of(writer.group, writer.kind)
        };
        &empty
    };
    let mut comparison = typed::compare(old, new, &Some(writer.schema.clone()));
    for path in writer.reset {
        comparison.ignore(path);
    }
    let mut changed = comparison.added.union(&comparison.modified);
    take_from_others(managers, &changed, &comparison.removed, None);
    strip(&mut changed, writer);
    if changed.is_empty() {
        return;
    }
    let mut mine = Manager::of(writer, Operation::Update, changed);
    if writer.subresource == "scale" {
        // A change made by scaling carries no time.
        mine.time = None;
    }
    match managers.iter_mut().find(|manager| manager.is(&mine)) {
        Some(manager) => {
            manager.set = manager.set.union(&mine.set);
            manager.time = mine.time;
        }
        None => managers.push(mine),
    }
    fold_oldest(managers, writer);
}

fn fold_oldest(managers: &mut Managers, writer: &Writer<'_>) {
    loop {
        let updaters = managers
            .iter()
            .filter(|manager| manager.operation == Operation::Update);
        if updaters.count() <= MOST_UPDATERS {
            return;
        }
        let oldest = managers
            .iter()
            .enumerate()
            .filter(|(_, manager)| manager.operation == Operation::Update && manager.name != FOLDED)
            .min_by(|(_, a), (_, b)| (&a.time, &a.name).cmp(&(&b.time, &b.name)))
            .map(|(position, _)| position);
        let Some(position) = oldest else { return };
        let old = managers.remove(position);
        let folded = managers
            .iter_mut()
            .find(|manager| manager.name == FOLDED && manager.api_version == old.api_version);
        match folded {
            Some(folded) => {
                folded.set = folded.set.union(&old.set);
                folded.time = folded.time.clone().max(old.time);
            }
            None => managers.push(Manager {
                name: FOLDED.to_owned(),
                subresource: String::new(),
                operation: Operation::Update,
                ..old
            }),
        }
        let _ = writer;
    }
}

/// What an apply came to.
#[derive(Debug)]
pub struct Applied {
    pub object: Value,
}

/// Server-side apply of `config` onto `live` (`None`: the object is created).
pub fn apply(
    live: Option<&Value>,
    config: &Value,
    writer: &Writer<'_>,
    force: bool,
) -> Result<Applied, Status> {
    if managed_fields(config).is_some_and(|list| list.as_array().is_some_and(|l| !l.is_empty())) {
        return Err(Status::bad_request("metadata.managedFields must be nil"));
    }
    let mut config = config.clone();
    take_managed_fields(&mut config);
    let first = attempt(live, &config, writer, force);
    let mut object = match first {
        Err(conflicts) if writer.manager == "kubectl" => {
            // What was applied from the client before is the same user's: it may be taken over.
            let allowed = live
                .and_then(|live| last_applied_set(live, writer))
                .unwrap_or_default();
            let left: Vec<Conflict> = conflicts
                .iter()
                .filter_map(|c| c.without(&allowed))
                .collect();
            if !left.is_empty() {
                return Err(conflict_status(&left));
            }
            attempt(live, &config, writer, true).map_err(|left| conflict_status(&left))?
        }
        other => other.map_err(|conflicts| conflict_status(&conflicts))?,
    };
    if writer.manager == "kubectl" {
        sync_last_applied(&mut object, &config);
    }
    Ok(Applied { object })
}

fn attempt(
    live: Option<&Value>,
    config: &Value,
    writer: &Writer<'_>,
    force: bool,
) -> Result<Value, Vec<Conflict>> {
    let schema = Some(writer.schema.clone());
    let empty = json!({"metadata": {}});
    let mut old = live.unwrap_or(&empty).clone();
    let mut managers = decode(take_managed_fields(&mut old).as_ref()).unwrap_or_default();
    if live.is_some() && managers.is_empty() {
        let before = Writer {
            manager: BEFORE_APPLY,
            subresource: "",
            ..*writer
        };
        track(None, &old, &mut managers, &before);
    }
    // What nobody owns counts as sent until the object is pruned: its name must not go with its last label.
    let set = typed::field_set(config, &schema);
    let mine = Manager::of(writer, Operation::Apply, set);
    let position = managers.iter().position(|manager| manager.is(&mine));
    let before = position.map(|position| managers[position].set.clone());
    let before_time = position.and_then(|position| managers[position].time.clone());
    let position = if let Some(position) = position {
        managers[position] = mine;
        position
    } else {
        managers.push(mine);
        managers.len() - 1
    };
    let mut merged = typed::merge(Some(&old), Some(config), &schema);
    if let Some(before) = before.as_ref().filter(|set| !set.is_empty()) {
        merged = prune(&merged, before, &managers, &schema);
    }
    for path in writer.reset {
        keep_old(&mut merged, &old, path);
    }
    let mut comparison = typed::compare(&old, &merged, &schema);
    for path in writer.reset {
        comparison.ignore(path);
    }
    let changed = comparison.added.union(&comparison.modified);
    let conflicts = Conflict::find(&managers, position, &changed);
    if !force && !conflicts.is_empty() {
        return Err(conflicts);
    }
    take_from_others(&mut managers, &changed, &comparison.removed, Some(position));
    strip(&mut managers[position].set, writer);
    let same_object = live.is_some() && without_version(&old) == without_version(&merged);
    if same_object {
        // The object stays as it is: so does the time (a manager that changed nothing has none),
        // or every reconcile would be a write.
        managers[position].time = before_time;
    }
    store(&mut merged, managers);
    Ok(merged)
}

fn without_version(object: &Value) -> Value {
    let mut object = object.clone();
    if let Some(meta) = object.get_mut("metadata").and_then(Value::as_object_mut) {
        meta.shift_remove("resourceVersion");
    }
    object
}

/// Puts back what an endpoint ignores.
fn keep_old(merged: &mut Value, old: &Value, path: &[&str]) {
    let Some((last, parents)) = path.split_last() else {
        return;
    };
    let mut at = merged;
    let mut from = Some(old);
    for step in parents {
        from = from.and_then(|from| from.get(step));
        match at.get_mut(step) {
            Some(next) => at = next,
            None => return,
        }
    }
    let Some(map) = at.as_object_mut() else {
        return;
    };
    match from.and_then(|from| from.get(last)) {
        Some(value) => {
            map.insert((*last).to_owned(), value.clone());
        }
        None => {
            map.shift_remove(*last);
        }
    }
}

/// Removes what this manager applied before and no longer does, unless another applier owns it or
/// it holds something that was not applied by this manager.
fn prune(merged: &Value, before: &FieldSet, managers: &Managers, schema: &Known) -> Value {
    let before = typed::name_parents(before, schema);
    let gone = |value: &Value, set: &FieldSet| {
        typed::remove(value, set, schema).unwrap_or_else(|| json!({}))
    };
    let all = |value: &Value| typed::name_parents(&typed::field_set(value, schema), schema);
    let pruned = gone(merged, &before);
    let applied = managers
        .iter()
        .filter(|manager| manager.operation == Operation::Apply)
        .fold(FieldSet::default(), |all, manager| all.union(&manager.set));
    let applied = typed::name_parents(&applied, schema);
    let everything = all(merged);
    let pruned = gone(
        merged,
        &everything.difference(&all(&pruned).union(&applied)),
    );
    gone(
        merged,
        &everything.difference(&all(&pruned)).intersection(&before),
    )
}

struct Conflict {
    manager: Manager,
    fields: FieldSet,
}

impl Conflict {
    fn find(managers: &Managers, mine: usize, changed: &FieldSet) -> Vec<Self> {
        managers
            .iter()
            .enumerate()
            .filter(|(position, _)| *position != mine)
            .filter_map(|(_, manager)| {
                let fields = manager.set.intersection(changed);
                (!fields.is_empty()).then(|| Self {
                    manager: manager.clone(),
                    fields,
                })
            })
            .collect()
    }

    fn without(&self, allowed: &FieldSet) -> Option<Self> {
        let fields = self.fields.difference(allowed);
        (!fields.is_empty()).then(|| Self {
            manager: self.manager.clone(),
            fields,
        })
    }
}

fn conflict_status(conflicts: &[Conflict]) -> Status {
    let mut causes = Vec::new();
    let mut lines = Vec::new();
    let mut conflicts: Vec<&Conflict> = conflicts.iter().collect();
    conflicts.sort_by_key(|conflict| {
        let Manager {
            name,
            operation,
            api_version,
            time,
            subresource,
            ..
        } = &conflict.manager;
        (name, operation, api_version, time, subresource)
    });
    for conflict in conflicts {
        let who = conflict.manager.describe();
        lines.push(format!("conflicts with {who}:"));
        for path in conflict.fields.paths() {
            lines.push(format!("- {path}"));
            causes.push(json!({
                "reason": "FieldManagerConflict",
                "message": format!("conflict with {who}"),
                "field": path,
            }));
        }
    }
    let message = match causes.as_slice() {
        [only] => format!(
            "Apply failed with 1 conflict: {}: {}",
            only["message"].as_str().unwrap_or_default(),
            only["field"].as_str().unwrap_or_default()
        ),
        many => format!(
            "Apply failed with {} conflicts: {}",
            many.len(),
            lines.join("\n")
        ),
    };
    Status::apply_conflict(&causes, message)
}

/// The fields of the configuration that client-side apply remembered in an annotation, as far as the object still has them:
/// what differs somebody else has changed since.
fn last_applied_set(live: &Value, writer: &Writer<'_>) -> Option<FieldSet> {
    let text = live["metadata"]["annotations"][LAST_APPLIED].as_str()?;
    let config: Value = serde_json::from_str(text).ok()?;
    if config["apiVersion"] != *writer.api_version {
        return None;
    }
    let schema = Some(writer.schema.clone());
    let changed = typed::compare(&config, live, &schema);
    let set = typed::field_set(&config, &schema);
    let set = set.difference(&changed.modified.union(&changed.added));
    let set = set.difference(&changed.removed);
    let steps = ["metadata", "annotations", LAST_APPLIED];
    let mut annotation = FieldSet::default();
    insert_path(&mut annotation, &steps);
    Some(set.union(&annotation))
}

fn insert_path(set: &mut FieldSet, path: &[&str]) {
    let Some((first, rest)) = path.split_first() else {
        return;
    };
    let entry = set.0.entry(Step::Field((*first).to_owned())).or_default();
    if rest.is_empty() {
        entry.owned = true;
    } else {
        insert_path(&mut entry.below, rest);
    }
}

/// Keeps the annotation of client-side apply in step, if there is one.
fn sync_last_applied(object: &mut Value, config: &Value) {
    let Some(annotations) = object
        .pointer_mut("/metadata/annotations")
        .and_then(Value::as_object_mut)
    else {
        return;
    };
    if !annotations.contains_key(LAST_APPLIED) {
        return;
    }
    let mut config = config.clone();
    if let Some(own) = config
        .pointer_mut("/metadata/annotations")
        .and_then(Value::as_object_mut)
    {
        own.shift_remove(LAST_APPLIED);
    }
    let text = crate::schema::go_json(&config) + "\n";
    annotations.insert(LAST_APPLIED.to_owned(), text.into());
}

#[cfg(test)]
mod tests;
