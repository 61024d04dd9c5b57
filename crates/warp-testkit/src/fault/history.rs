//! Everything that ever was in a world, in order, and how it ended, in a form that two runs can be
//! compared in.
//!
//! Two runs never agree on uids, generated names, times, addresses and versions. The first four are
//! replaced by what they stand for; versions are left out. What still differs between fault-free runs
//! is learnt and left out too ([`Learnt`]).

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;
use warp_apiserver::store::{Batch, EventKind, Store};

/// Kinds that say nothing about what became of anything.
const SIGNS: [&str; 2] = ["Event", "Lease"];
/// Tables that are not looked at: signs of life, and the kinds themselves, which nobody under test
/// touches and which are larger than everything else together.
const UNSEEN: [&str; 3] = ["leases", "events", "customresourcedefinitions"];

/// One change of one object.
#[derive(Clone, Debug)]
pub struct Change {
    pub revision: u64,
    pub kind: EventKind,
    pub object: Value,
    /// What it was before; for a deletion the state that was deleted.
    pub previous: Option<Value>,
}

impl Change {
    /// Kind of the object.
    pub fn of(&self) -> &str {
        self.object["kind"].as_str().unwrap_or_default()
    }

    pub fn uid(&self) -> &str {
        text(&self.object, "/metadata/uid")
    }
}

/// The text at a place in an object, empty where there is none.
pub fn text<'a>(object: &'a Value, pointer: &str) -> &'a str {
    object
        .pointer(pointer)
        .and_then(Value::as_str)
        .unwrap_or_default()
}

/// Every change after a revision, signs of life left out.
pub fn changes(store: &Store, after: u64) -> Vec<Change> {
    let mut found = Vec::new();
    for table in store.tables() {
        if unseen(table.name()) {
            continue;
        }
        let from = after.max(table.oldest());
        let Ok(mut cursor) = table.watch_from(from) else {
            continue;
        };
        while let Batch::Events(events) = cursor.read(1024) {
            for event in events {
                let object = event.object.value();
                let previous = event.previous.as_ref().map(|object| object.value());
                let change = Change {
                    revision: event.revision(),
                    kind: event.kind,
                    object,
                    previous,
                };
                if !SIGNS.contains(&change.of()) && !only_heartbeat(&change) {
                    found.push(change);
                }
            }
        }
    }
    found.sort_by_key(|change| change.revision);
    found
}

/// The tables whose history has lost its beginning: a scenario too long to be judged.
pub fn incomplete(store: &Store) -> Vec<String> {
    let tables = store.tables().into_iter();
    let cut = tables.filter(|table| !unseen(table.name()) && table.has_forgotten());
    cut.map(|table| format!("the history of {} has lost its beginning", table.name()))
        .collect()
}

fn unseen(table: &str) -> bool {
    UNSEEN.iter().any(|unseen| table.ends_with(unseen))
}

/// Whether only the time of a node's last sign of life changed.
fn only_heartbeat(change: &Change) -> bool {
    if change.of() != "Node" {
        return false;
    }
    let Some(before) = &change.previous else {
        return false;
    };
    let still = |object: &Value| {
        let mut object = object.clone();
        strip(&mut object);
        for condition in object["status"]["conditions"]
            .as_array_mut()
            .into_iter()
            .flatten()
        {
            if let Some(fields) = condition.as_object_mut() {
                fields.remove("lastHeartbeatTime");
            }
        }
        object
    };
    still(before) == still(&change.object)
}

/// What is left and what came and went, in comparable form.
#[derive(Clone, Debug, Default)]
pub struct Ending {
    /// Objects by kind, namespace and comparable name; several share one when their names were
    /// generated.
    pub objects: BTreeMap<String, Vec<Value>>,
    /// How often something of that name was created and deleted.
    pub traffic: BTreeMap<String, (u64, u64)>,
}

impl Ending {
    pub fn of(store: &Store, dawn: u64) -> Self {
        let changes = changes(store, dawn);
        let mut last: BTreeMap<String, Value> = BTreeMap::new();
        let tables = store.tables();
        for table in tables.iter().filter(|table| !unseen(table.name())) {
            for stored in table.all(None) {
                if stored.revision <= dawn {
                    continue;
                }
                let object = stored.value();
                if !SIGNS.contains(&text(&object, "/kind")) {
                    last.insert(format!("{}/{}", table.name(), stored.key), object);
                }
            }
        }
        let names = Names::of(changes.iter().map(|change| &change.object));
        let mut ending = Self::default();
        for (_, mut object) in last {
            strip(&mut object);
            order_conditions(&mut object);
            names.replace(&mut object);
            let key = key(&object);
            ending.objects.entry(key).or_default().push(object);
        }
        for objects in ending.objects.values_mut() {
            objects.sort_by_cached_key(ToString::to_string);
        }
        for change in &changes {
            let mut head = change.object.clone();
            if let Some(fields) = head.as_object_mut() {
                fields.retain(|name, _| matches!(name.as_str(), "kind" | "metadata"));
            }
            names.replace(&mut head);
            let count = ending.traffic.entry(key(&head)).or_default();
            match change.kind {
                EventKind::Added => count.0 += 1,
                EventKind::Deleted => count.1 += 1,
                EventKind::Modified => {}
            }
        }
        ending.traffic.retain(|_, count| *count != (0, 0));
        ending
    }
}

fn key(object: &Value) -> String {
    format!(
        "{} {}/{}",
        text(object, "/kind"),
        text(object, "/metadata/namespace"),
        text(object, "/metadata/name")
    )
}

/// Takes away what is different in every run.
fn strip(object: &mut Value) {
    if let Some(meta) = object["metadata"].as_object_mut() {
        meta.remove("resourceVersion");
        meta.remove("managedFields");
    }
}

/// Conditions are a map by type, whose order is that of their last changes: a fault may change it.
fn order_conditions(value: &mut Value) {
    match value {
        Value::Array(items) => items.iter_mut().for_each(order_conditions),
        Value::Object(fields) => {
            if let Some(Value::Array(conditions)) = fields.get_mut("conditions") {
                conditions.sort_by(|one, other| text(one, "/type").cmp(text(other, "/type")));
            }
            fields.values_mut().for_each(order_conditions);
        }
        _ => {}
    }
}

/// What uids and generated names stand for.
struct Names {
    /// Longest first, so that a name inside another is replaced after it.
    known: Vec<(String, String)>,
}

impl Names {
    fn of<'a>(objects: impl Iterator<Item = &'a Value>) -> Self {
        let mut known = BTreeSet::new();
        for object in objects {
            let (name, prefix) = (
                text(object, "/metadata/name"),
                text(object, "/metadata/generateName"),
            );
            let uid = text(object, "/metadata/uid");
            if !prefix.is_empty() {
                known.insert((name.to_owned(), format!("{prefix}*")));
            }
            if let Some(short) = uid.get(..8) {
                known.insert((uid.to_owned(), format!("uid of {}", text(object, "/kind"))));
                known.insert((short.to_owned(), "uid".to_owned()));
            }
        }
        let mut known: Vec<_> = known.into_iter().collect();
        known.sort_by_key(|(name, _)| std::cmp::Reverse(name.len()));
        Self { known }
    }

    fn replace(&self, value: &mut Value) {
        match value {
            Value::String(text) => {
                for (name, meaning) in &self.known {
                    if text.contains(name.as_str()) {
                        *text = text.replace(name.as_str(), meaning);
                    }
                }
                *text = without_times(text);
            }
            Value::Array(items) => items.iter_mut().for_each(|item| self.replace(item)),
            Value::Object(fields) => fields.values_mut().for_each(|field| self.replace(field)),
            _ => {}
        }
    }
}

/// Times and pod addresses replaced by what they are.
pub(super) fn without_times(text: &str) -> String {
    let shape = |pattern: &str, at: &str| {
        let fits = at.len() >= pattern.len()
            && pattern.bytes().zip(at.bytes()).all(|(wanted, have)| {
                if wanted == b'0' {
                    have.is_ascii_digit()
                } else {
                    wanted == have
                }
            });
        fits.then_some(pattern.len())
    };
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(next) = rest.chars().next() {
        if let Some(mut length) = shape("0000-00-00T00:00:00", rest) {
            let fraction = rest[length..]
                .bytes()
                .take_while(|byte| byte.is_ascii_digit() || *byte == b'.')
                .count();
            length += fraction;
            if rest[length..].starts_with('Z') {
                length += 1;
            }
            out.push_str("some time");
            rest = &rest[length..];
        } else if rest.starts_with("10.128.") {
            let length = rest
                .bytes()
                .take_while(|byte| byte.is_ascii_digit() || *byte == b'.')
                .count();
            out.push_str("some address");
            rest = &rest[length..];
        } else {
            out.push(next);
            rest = &rest[next.len_utf8()..];
        }
    }
    out
}

/// What fault-free runs agree on, and where they do not.
#[derive(Clone, Debug)]
pub struct Learnt {
    reference: Ending,
    /// Objects, or paths in objects, that differ between runs without any fault.
    loose: BTreeSet<String>,
}

impl Learnt {
    /// From one reference, further runs of the same scenario, and ends of paths that are not compared.
    /// What an object says may depend on when somebody looked; how many there are, came and went may
    /// not, and is given back where the runs disagree.
    pub fn from(reference: Ending, others: &[Ending], ignored: &[&str]) -> (Self, Vec<Difference>) {
        let mut learnt = Self {
            reference,
            loose: ignored.iter().map(|path| format!("*{path}")).collect(),
        };
        let mut numbers = Vec::new();
        for other in others {
            for difference in learnt.differences(other) {
                if difference.number {
                    numbers.push(difference);
                } else {
                    learnt.loose.insert(difference.at);
                }
            }
        }
        (learnt, numbers)
    }

    pub fn loose(&self) -> &BTreeSet<String> {
        &self.loose
    }

    /// Where `other` ended differently, loose places left out.
    pub fn differences(&self, other: &Ending) -> Vec<Difference> {
        let mut found = Vec::new();
        let keys: BTreeSet<&String> = self
            .reference
            .objects
            .keys()
            .chain(other.objects.keys())
            .collect();
        for key in keys {
            let (want, have) = (self.reference.objects.get(key), other.objects.get(key));
            let (want, have) = (
                want.map_or(&[][..], Vec::as_slice),
                have.map_or(&[][..], Vec::as_slice),
            );
            if want.len() != have.len() {
                found.push(Difference::number(key, want.len(), have.len()));
                continue;
            }
            for (want, have) in want.iter().zip(have) {
                compare(key, want, have, &mut found);
            }
        }
        let keys: BTreeSet<&String> = self
            .reference
            .traffic
            .keys()
            .chain(other.traffic.keys())
            .collect();
        for key in keys {
            let (want, have) = (
                self.reference.traffic.get(key).copied().unwrap_or_default(),
                other.traffic.get(key).copied().unwrap_or_default(),
            );
            if want.0 != have.0 {
                let at = format!("{key}/#created");
                found.push(Difference::number(&at, want.0, have.0));
            }
            if want.1 != have.1 {
                let at = format!("{key}/#deleted");
                found.push(Difference::number(&at, want.1, have.1));
            }
        }
        found.retain(|difference| !self.is_loose(&difference.at));
        found
    }

    fn is_loose(&self, at: &str) -> bool {
        self.loose
            .iter()
            .any(|loose| match loose.strip_prefix('*') {
                Some(end) => at.ends_with(end) || at.contains(&format!("{end}/")),
                None => {
                    at == loose
                        || at
                            .strip_prefix(loose.as_str())
                            .is_some_and(|rest| rest.starts_with('/'))
                }
            })
    }
}

/// One place where two runs ended differently.
#[derive(Clone, Debug)]
pub struct Difference {
    pub at: String,
    pub want: String,
    pub have: String,
    /// How many of something there are or were, and not what one says.
    pub number: bool,
}

impl Difference {
    fn new(at: &str, want: impl std::fmt::Display, have: impl std::fmt::Display) -> Self {
        Self {
            at: at.to_owned(),
            want: want.to_string(),
            have: have.to_string(),
            number: false,
        }
    }

    fn number(at: &str, want: impl std::fmt::Display, have: impl std::fmt::Display) -> Self {
        Self {
            number: true,
            ..Self::new(at, want, have)
        }
    }
}

impl std::fmt::Display for Difference {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(
            out,
            "{}: {} without the fault, {} with it",
            self.at, self.want, self.have
        )
    }
}

fn compare(at: &str, want: &Value, have: &Value, found: &mut Vec<Difference>) {
    match (want, have) {
        (Value::Object(one), Value::Object(other)) => {
            let names: BTreeSet<&String> = one.keys().chain(other.keys()).collect();
            for name in names {
                let at = format!("{at}/{name}");
                match (one.get(name), other.get(name)) {
                    (Some(one), Some(other)) => compare(&at, one, other, found),
                    (one, other) => {
                        let say = |value: Option<&Value>| {
                            value.map_or_else(|| "nothing".to_owned(), ToString::to_string)
                        };
                        found.push(Difference::new(&at, say(one), say(other)));
                    }
                }
            }
        }
        (Value::Array(one), Value::Array(other)) if one.len() == other.len() => {
            for (place, (one, other)) in one.iter().zip(other).enumerate() {
                compare(&format!("{at}/{place}"), one, other, found);
            }
        }
        _ if want == have => {}
        _ => found.push(Difference::new(at, want, have)),
    }
}
