//! Sets of fields: the algebra server-side apply is made of, and its `FieldsV1` form.

use std::cmp::Ordering;
use std::collections::BTreeMap;
use std::fmt;

use serde_json::{Map, Value};

/// One step of a path. The order of the variants is the order in `FieldsV1`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Step {
    Field(String),
    /// An item of a list, by its key fields (sorted by name).
    Key(Vec<(String, Atom)>),
    /// An item of a set, by its value.
    Item(Atom),
    Index(i64),
}

/// A JSON value with a total order.
#[derive(Clone, Debug, PartialEq)]
pub struct Atom(pub Value);

impl Eq for Atom {}

impl PartialOrd for Atom {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Atom {
    fn cmp(&self, other: &Self) -> Ordering {
        fn rank(value: &Value) -> u8 {
            match value {
                Value::Number(_) => 0,
                Value::String(_) => 1,
                Value::Bool(_) => 2,
                Value::Array(_) => 3,
                Value::Object(_) => 4,
                Value::Null => 5,
            }
        }
        match (&self.0, &other.0) {
            (Value::Number(a), Value::Number(b)) => match (a.as_i64(), b.as_i64()) {
                (Some(a), Some(b)) => a.cmp(&b),
                _ => a
                    .as_f64()
                    .unwrap_or_default()
                    .total_cmp(&b.as_f64().unwrap_or_default()),
            },
            (Value::String(a), Value::String(b)) => a.cmp(b),
            (Value::Bool(a), Value::Bool(b)) => a.cmp(b),
            (a, b) if rank(a) == rank(b) => a.to_string().cmp(&b.to_string()),
            (a, b) => rank(a).cmp(&rank(b)),
        }
    }
}

/// How messages print a path: `.spec.containers[name="web"].image`.
impl fmt::Display for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Field(name) => write!(f, ".{name}"),
            Self::Key(fields) => {
                f.write_str("[")?;
                for (position, (name, value)) in fields.iter().enumerate() {
                    let comma = if position == 0 { "" } else { "," };
                    write!(f, "{comma}{name}={}", value.0)?;
                }
                f.write_str("]")
            }
            Self::Item(value) => write!(f, "[={}]", value.0),
            Self::Index(index) => write!(f, "[{index}]"),
        }
    }
}

impl Step {
    fn encode(&self) -> String {
        match self {
            Self::Field(name) => format!("f:{name}"),
            Self::Key(fields) => {
                let map: Map<String, Value> = fields
                    .iter()
                    .map(|(name, value)| (name.clone(), value.0.clone()))
                    .collect();
                format!("k:{}", Value::Object(map))
            }
            Self::Item(value) => format!("v:{}", value.0),
            Self::Index(index) => format!("i:{index}"),
        }
    }

    fn decode(text: &str) -> Option<Self> {
        let (kind, rest) = text.split_once(':')?;
        match kind {
            "f" => Some(Self::Field(rest.to_owned())),
            "v" => serde_json::from_str(rest)
                .ok()
                .map(|value| Self::Item(Atom(value))),
            "i" => rest.parse().ok().map(Self::Index),
            "k" => {
                let fields: Map<String, Value> = serde_json::from_str(rest).ok()?;
                let mut fields: Vec<_> = fields
                    .into_iter()
                    .map(|(name, value)| (name, Atom(value)))
                    .collect();
                fields.sort();
                Some(Self::Key(fields))
            }
            _ => None,
        }
    }
}

/// A set of paths.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FieldSet(pub(super) BTreeMap<Step, Entry>);

/// What a set says about one step: whether the path ending here is in it, and what is below.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Entry {
    pub(super) owned: bool,
    pub(super) below: FieldSet,
}

impl Entry {
    pub(super) fn is_empty(&self) -> bool {
        !self.owned && self.below.is_empty()
    }

    pub(super) fn leaf() -> Self {
        Self {
            owned: true,
            below: FieldSet::default(),
        }
    }
}

impl FieldSet {
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(super) fn insert(&mut self, step: Step, entry: Entry) {
        if !entry.is_empty() {
            self.0.insert(step, entry);
        }
    }

    pub(super) fn get(&self, step: &Step) -> Option<&Entry> {
        self.0.get(step)
    }

    /// Combines two sets; `owned` decides for each path, and paths it refuses disappear.
    fn combine(&self, other: &Self, owned: fn(bool, bool) -> bool, only: Only) -> Self {
        let nothing = Entry::default();
        let mut result = Self::default();
        let mut add = |step: &Step, left: &Entry, right: &Entry| {
            let entry = Entry {
                owned: owned(left.owned, right.owned),
                below: left.below.combine(&right.below, owned, only),
            };
            result.insert(step.clone(), entry);
        };
        for (step, left) in &self.0 {
            match other.0.get(step) {
                Some(right) => add(step, left, right),
                None if only == Only::Both => {}
                None => add(step, left, &nothing),
            }
        }
        if only == Only::Any {
            for (step, right) in &other.0 {
                if !self.0.contains_key(step) {
                    add(step, &nothing, right);
                }
            }
        }
        result
    }

    #[must_use]
    pub fn union(&self, other: &Self) -> Self {
        if self.is_empty() {
            return other.clone();
        }
        if other.is_empty() {
            return self.clone();
        }
        self.combine(other, |left, right| left || right, Only::Any)
    }

    #[must_use]
    pub fn intersection(&self, other: &Self) -> Self {
        self.combine(other, |left, right| left && right, Only::Both)
    }

    #[must_use]
    pub fn difference(&self, other: &Self) -> Self {
        if other.is_empty() {
            return self.clone();
        }
        self.combine(other, |left, right| left && !right, Only::Left)
    }

    /// Forgets a path of fields and everything below it.
    pub fn remove_below(&mut self, path: &[&str]) {
        let Some((first, rest)) = path.split_first() else {
            return;
        };
        let step = Step::Field((*first).to_owned());
        if rest.is_empty() {
            self.0.remove(&step);
        } else if let Some(entry) = self.0.get_mut(&step) {
            entry.below.remove_below(rest);
            if entry.is_empty() {
                self.0.remove(&step);
            }
        }
    }

    /// Forgets exactly one path, keeping what is below it.
    pub fn remove_exact(&mut self, path: &[&str]) {
        let Some((first, rest)) = path.split_first() else {
            return;
        };
        let step = Step::Field((*first).to_owned());
        let Some(entry) = self.0.get_mut(&step) else {
            return;
        };
        if rest.is_empty() {
            entry.owned = false;
        } else {
            entry.below.remove_exact(rest);
        }
        if entry.is_empty() {
            self.0.remove(&step);
        }
    }

    /// Every path, printed, in the order Kubernetes tells them: those of a level before those below it.
    pub fn paths(&self) -> Vec<String> {
        let mut found = Vec::new();
        self.collect(&mut String::new(), &mut found);
        found
    }

    fn collect(&self, prefix: &mut String, found: &mut Vec<String>) {
        let owned = self.0.iter().filter(|(_, entry)| entry.owned);
        found.extend(owned.map(|(step, _)| format!("{prefix}{step}")));
        for (step, entry) in &self.0 {
            let length = prefix.len();
            prefix.push_str(&step.to_string());
            entry.below.collect(prefix, found);
            prefix.truncate(length);
        }
    }

    /// The `fieldsV1` form.
    pub fn encode(&self) -> Value {
        let mut map = Map::new();
        for (step, entry) in &self.0 {
            let mut below = match entry.below.encode() {
                Value::Object(map) => map,
                _ => Map::new(),
            };
            if entry.owned && !below.is_empty() {
                below.shift_insert(0, ".".to_owned(), Value::Object(Map::new()));
            }
            map.insert(step.encode(), Value::Object(below));
        }
        Value::Object(map)
    }

    /// Reads the `fieldsV1` form; `None` when it is malformed.
    pub fn decode(value: &Value) -> Option<Self> {
        let mut set = Self::default();
        for (name, below) in value.as_object()? {
            if name == "." {
                continue;
            }
            let members = below.as_object()?;
            let entry = Entry {
                owned: members.is_empty() || members.contains_key("."),
                below: Self::decode(below)?,
            };
            set.0.insert(Step::decode(name)?, entry);
        }
        Some(set)
    }
}

/// Which steps a combination looks at.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Only {
    Any,
    Left,
    Both,
}
