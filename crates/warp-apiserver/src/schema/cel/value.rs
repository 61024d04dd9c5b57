//! What expressions work on: the resource's own JSON, looked at where it lies, and what is made from it.
//!
//! Nothing of a resource is copied before it is used. Lists remember what the schema says about them,
//! because sets and maps compare and add up differently. The interpreter's libraries take `CelValue`s;
//! the translation for them is here too.

mod scalar;

use std::collections::{BTreeMap, HashMap};
use std::rc::Rc;
use std::sync::Arc;

use kube_cel::cel::Value as CelValue;
use kube_cel::cel::objects::{Key, Map as CelMap, OptionalValue};
use serde_json::{Map, Value};

use crate::schema::{Additional, ListKind, Schema};

pub(super) use scalar::escape;

/// A value; cheap to clone.
#[derive(Debug, Clone)]
pub(super) enum Val<'a> {
    /// Text of the resource or of the expression. Made text is `Plain`.
    Text(&'a str),
    /// A scalar, or a value of a library; never a list, a map or an optional.
    Plain(CelValue),
    Object(Members<'a>),
    List(List<'a>),
    Map(Rc<BTreeMap<Key, Self>>),
    Optional(Option<Rc<Self>>),
    /// What a loop has come to when a step failed: a later step may make up for it.
    Fault(Arc<str>),
}

/// An object or map of the resource.
#[derive(Debug, Clone, Copy)]
pub(super) struct Members<'a> {
    map: &'a Map<String, Value>,
    schema: Option<&'a Schema>,
}

#[derive(Debug, Clone)]
pub(super) struct List<'a> {
    items: Items<'a>,
    pub(super) kind: ListKind<'a>,
}

#[derive(Debug, Clone)]
enum Items<'a> {
    Given(&'a [Value], Option<&'a Schema>),
    Made(Rc<Vec<Val<'a>>>),
}

impl<'a> Val<'a> {
    pub(super) const NULL: Self = Self::Plain(CelValue::Null);

    /// A value of the resource.
    pub(super) fn given(value: &'a Value, schema: Option<&'a Schema>) -> Self {
        match value {
            Value::Null => Self::NULL,
            Value::Bool(value) => Self::from(*value),
            Value::Number(number) => Self::Plain(scalar::number(schema, number)),
            Value::String(text) => {
                scalar::formatted(schema, text).map_or(Self::Text(text), Self::Plain)
            }
            Value::Array(items) => Self::List(List {
                items: Items::Given(items, schema.and_then(Schema::items)),
                kind: schema.map_or(ListKind::Atomic, Schema::list_kind),
            }),
            Value::Object(map) => Self::Object(Members { map, schema }),
        }
    }

    pub(super) fn list(items: Vec<Self>) -> Self {
        Self::List(List::made(items, ListKind::Atomic))
    }

    pub(super) fn text(text: String) -> Self {
        Self::Plain(CelValue::String(Arc::new(text)))
    }

    pub(super) fn optional(value: Option<Self>) -> Self {
        Self::Optional(value.map(Rc::new))
    }

    pub(super) fn as_str(&self) -> Option<&str> {
        match self {
            Self::Text(text) => Some(text),
            Self::Plain(CelValue::String(text)) => Some(text),
            _ => None,
        }
    }

    pub(super) fn as_bool(&self) -> Option<bool> {
        match self {
            Self::Plain(CelValue::Bool(value)) => Some(*value),
            _ => None,
        }
    }

    /// How many characters, bytes, elements or members there are; `None` for what has none.
    pub(super) fn size(&self) -> Option<usize> {
        match self {
            Self::Text(_) | Self::Plain(CelValue::String(_)) => {
                self.as_str().map(|text| text.chars().count())
            }
            Self::Plain(CelValue::Bytes(bytes)) => Some(bytes.len()),
            Self::Object(members) => Some(members.map.len()),
            Self::List(list) => Some(list.len()),
            Self::Map(map) => Some(map.len()),
            Self::Plain(_) | Self::Optional(_) | Self::Fault(_) => None,
        }
    }

    /// The member of that name; `None` when it is not there or this has no members.
    pub(super) fn member(&self, name: &str) -> Option<Self> {
        match self {
            Self::Object(members) => members.get(name),
            Self::Map(map) => map.get(&Key::from(name)).cloned(),
            _ => None,
        }
    }

    /// Whether it has members by name.
    pub(super) fn has_members(&self) -> bool {
        matches!(self, Self::Object(_) | Self::Map(_))
    }

    /// A text that two equal scalars have in common; `None` for what is no scalar.
    pub(super) fn scalar_key(&self) -> Option<String> {
        match self {
            Self::Text(_) | Self::Plain(CelValue::String(_)) => {
                self.as_str().map(|text| format!("\"{text}"))
            }
            Self::Plain(CelValue::Int(number)) => Some(number.to_string()),
            Self::Plain(CelValue::UInt(number)) => Some(number.to_string()),
            Self::Plain(other) => Some(format!("{other:?}")),
            _ => None,
        }
    }

    /// As the libraries take it.
    pub(super) fn to_cel(&self) -> CelValue {
        match self {
            Self::Text(text) => CelValue::String(Arc::new((*text).to_owned())),
            Self::Plain(value) => value.clone(),
            Self::Object(members) => {
                let members = members.iter();
                let map: HashMap<Key, CelValue> = members
                    .map(|(name, value)| (Key::from(name), value.to_cel()))
                    .collect();
                CelValue::Map(CelMap { map: Arc::new(map) })
            }
            Self::List(list) => {
                CelValue::List(Arc::new(list.iter().map(|item| item.to_cel()).collect()))
            }
            Self::Map(map) => {
                let entries = map.iter();
                let map = entries.map(|(key, value)| (key.clone(), value.to_cel()));
                CelValue::Map(CelMap {
                    map: Arc::new(map.collect()),
                })
            }
            Self::Optional(value) => {
                let value = value.as_ref().map(|value| value.to_cel());
                CelValue::Opaque(Arc::new(
                    value.map_or_else(OptionalValue::none, OptionalValue::of),
                ))
            }
            Self::Fault(_) => CelValue::Null,
        }
    }

    /// What a library returned.
    pub(super) fn from_cel(value: &CelValue) -> Self {
        match value {
            CelValue::List(items) => Self::list(items.iter().map(Self::from_cel).collect()),
            CelValue::Map(map) => {
                let entries = map.map.iter();
                let entries = entries.map(|(key, value)| (key.clone(), Self::from_cel(value)));
                Self::Map(Rc::new(entries.collect()))
            }
            CelValue::Opaque(opaque) => match opaque.downcast_ref::<OptionalValue>() {
                Some(optional) => Self::optional(optional.value().map(Self::from_cel)),
                None => Self::Plain(value.clone()),
            },
            plain => Self::Plain(plain.clone()),
        }
    }
}

impl From<bool> for Val<'_> {
    fn from(value: bool) -> Self {
        Self::Plain(CelValue::Bool(value))
    }
}

impl<'a> Members<'a> {
    /// A map's keys are data; an object's members have names.
    fn is_map(&self) -> bool {
        self.schema.is_some_and(|schema| {
            matches!(
                schema.node().additional,
                Additional::Schema(_) | Additional::Any
            )
        })
    }

    pub(super) fn schema_of(&self, name: &str) -> Option<&'a Schema> {
        let schema = self.schema?;
        schema.field(name).or_else(|| schema.additional())
    }

    fn get(&self, name: &str) -> Option<Val<'a>> {
        let (key, value) = if self.is_map() || !name.contains("__") {
            self.map.get_key_value(name)?
        } else {
            let mut members = self.map.iter();
            members.find(|(key, _)| escape(key).as_deref() == Some(name))?
        };
        self.visible(key, value)
    }

    /// An object's member that is null counts as absent.
    fn visible(&self, key: &str, value: &'a Value) -> Option<Val<'a>> {
        let absent = value.is_null() && !self.is_map();
        (!absent).then(|| Val::given(value, self.schema_of(key)))
    }

    /// The members expressions can see, by the names they use.
    pub(super) fn iter(self) -> impl Iterator<Item = (String, Val<'a>)> {
        let is_map = self.is_map();
        self.map.iter().filter_map(move |(key, value)| {
            let name = if is_map {
                Some(key.clone())
            } else {
                escape(key)
            };
            Some((name?, self.visible(key, value)?))
        })
    }

    /// Everything as it lies there.
    pub(super) fn raw(self) -> &'a Map<String, Value> {
        self.map
    }

    /// One member of `raw`.
    pub(super) fn at(self, key: &str) -> Option<Val<'a>> {
        let value = self.map.get(key)?;
        self.visible(key, value)
    }
}

impl<'a> List<'a> {
    pub(super) fn made(items: Vec<Val<'a>>, kind: ListKind<'a>) -> Self {
        Self {
            items: Items::Made(Rc::new(items)),
            kind,
        }
    }

    /// Whether it is the resource's own.
    pub(super) fn is_given(&self) -> bool {
        matches!(self.items, Items::Given(..))
    }

    pub(super) fn len(&self) -> usize {
        match &self.items {
            Items::Given(items, _) => items.len(),
            Items::Made(items) => items.len(),
        }
    }

    pub(super) fn get(&self, index: usize) -> Option<Val<'a>> {
        match &self.items {
            Items::Given(items, schema) => items.get(index).map(|value| Val::given(value, *schema)),
            Items::Made(items) => items.get(index).cloned(),
        }
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = Val<'a>> {
        (0..self.len()).map_while(|index| self.get(index))
    }

    /// The elements to add to: the list's own when nobody else holds it. Says how many were copied.
    pub(super) fn into_items(self) -> (Vec<Val<'a>>, usize) {
        match self.items {
            Items::Made(items) => match Rc::try_unwrap(items) {
                Ok(items) => (items, 0),
                Err(shared) => (shared.to_vec(), shared.len()),
            },
            Items::Given(..) => (self.iter().collect(), self.len()),
        }
    }
}
