//! The types of expressions, with how large their values may get.

use std::fmt;
use std::sync::Arc;

use serde_json::{Map, Value};

use super::value::escape;

/// The largest request a server reads; it bounds whatever a schema leaves open.
const REQUEST: u64 = 3 * 1024 * 1024;

/// How many elements (or characters) a value may have.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Size {
    pub(super) min: u64,
    pub(super) max: u64,
}

impl Size {
    pub(super) const UNKNOWN: Self = Self {
        min: 0,
        max: u64::MAX,
    };
    pub(super) const ONE: Self = Self { min: 1, max: 1 };

    pub(super) fn up_to(max: u64) -> Self {
        Self { min: 0, max }
    }

    pub(super) fn exactly(size: u64) -> Self {
        Self {
            min: size,
            max: size,
        }
    }

    pub(super) fn plus(self, other: Self) -> Self {
        Self {
            min: self.min.saturating_add(other.min),
            max: self.max.saturating_add(other.max),
        }
    }

    pub(super) fn times(self, other: Self) -> Self {
        Self {
            min: self.min.saturating_mul(other.min),
            max: self.max.saturating_mul(other.max),
        }
    }

    pub(super) fn union(self, other: Self) -> Self {
        Self {
            min: self.min.min(other.min),
            max: self.max.max(other.max),
        }
    }
}

/// A type.
#[derive(Debug, Clone)]
pub(super) enum Type<'a> {
    Dyn,
    Null,
    Bool,
    Int,
    Uint,
    Double,
    String,
    Bytes,
    Duration,
    Timestamp,
    /// The type of types.
    Meta,
    List(Arc<Shape<'a>>),
    Map(Arc<Shape<'a>>, Arc<Shape<'a>>),
    /// A described object; `true` when it has the members every object has.
    Object(&'a Map<String, Value>, bool),
    /// The `metadata` every object has.
    Metadata,
    Optional(Arc<Shape<'a>>),
    /// A type of a library: `quantity`, `url`.
    Named(&'static str),
    /// Not known yet: the elements of an empty list.
    Free,
}

/// A type together with a size.
#[derive(Debug, Clone)]
pub(super) struct Shape<'a> {
    pub(super) kind: Type<'a>,
    pub(super) size: Size,
}

impl<'a> Shape<'a> {
    /// A value whose size nothing tells: scalars are one, the rest may be anything.
    pub(super) fn of(kind: Type<'a>) -> Self {
        let size = match kind {
            Type::Bool
            | Type::Int
            | Type::Uint
            | Type::Double
            | Type::Duration
            | Type::Timestamp
            | Type::Null
            | Type::Meta => Size::ONE,
            _ => Size::UNKNOWN,
        };
        Self { kind, size }
    }

    pub(super) fn sized(kind: Type<'a>, size: Size) -> Self {
        Self { kind, size }
    }

    pub(super) fn list(item: Self, size: Size) -> Self {
        Self {
            kind: Type::List(Arc::new(item)),
            size,
        }
    }

    pub(super) fn optional(value: Self) -> Self {
        let size = value.size;
        Self {
            kind: Type::Optional(Arc::new(value)),
            size,
        }
    }

    /// The shape of what a schema describes; `None` for what expressions cannot see.
    pub(super) fn of_schema(schema: &'a Map<String, Value>, root: bool) -> Option<Self> {
        let whole = |name: &str| schema.get(name).and_then(Value::as_i64).map(not_negative);
        if flag(schema, "x-kubernetes-int-or-string") {
            let longest = whole("maxLength").map_or(REQUEST - 2, |most| most.saturating_mul(4));
            return Some(Self::sized(Type::Dyn, Size::up_to(longest)));
        }
        let plain = |kind: Type<'a>| Some(Self::sized(kind, Size::up_to(0)));
        match schema
            .get("type")
            .and_then(Value::as_str)
            .unwrap_or_default()
        {
            "array" => {
                let items = schema.get("items").and_then(Value::as_object)?;
                let embedded = flag(items, "x-kubernetes-embedded-resource");
                let item = Self::of_schema(items, embedded)?;
                let most = whole("maxItems")
                    .unwrap_or_else(|| (REQUEST - 2) / (smallest(items, embedded) + 1));
                Some(Self::list(item, Size::up_to(most)))
            }
            "object" => {
                let member = schema
                    .get("additionalProperties")
                    .and_then(Value::as_object);
                let Some(member) = member else {
                    return plain(Type::Object(schema, root));
                };
                let embedded = flag(member, "x-kubernetes-embedded-resource");
                let value = Self::of_schema(member, embedded)?;
                let most = whole("maxProperties")
                    .unwrap_or_else(|| (REQUEST - 2) / (smallest(member, embedded) + 6));
                let key = Self::sized(Type::String, Size::up_to(0));
                let kind = Type::Map(Arc::new(key), Arc::new(value));
                Some(Self::sized(kind, Size::up_to(most)))
            }
            "string" => Some(string_shape(schema, whole("maxLength"))),
            "boolean" => plain(Type::Bool),
            "number" => plain(Type::Double),
            "integer" => plain(Type::Int),
            _ => None,
        }
    }

    /// A member of an object or map by the name expressions use.
    pub(super) fn member(&self, name: &str) -> Result<Self, String> {
        match &self.kind {
            Type::Dyn | Type::Free => Ok(Self::of(Type::Dyn)),
            Type::Map(_, value) => Ok((**value).clone()),
            Type::Optional(inner) => {
                let found = inner.member(name)?;
                Ok(match found.kind {
                    Type::Optional(_) => found,
                    _ => Self::optional(found),
                })
            }
            Type::Metadata if matches!(name, "name" | "generateName") => {
                Ok(Self::sized(Type::String, Size::up_to(REQUEST - 2)))
            }
            Type::Object(schema, root) => object_member(schema, *root, name)
                .ok_or_else(|| format!("undefined field '{name}'")),
            Type::Metadata => Err(format!("undefined field '{name}'")),
            other => Err(format!("type '{other}' does not support field selection")),
        }
    }
}

fn object_member<'a>(schema: &'a Map<String, Value>, root: bool, name: &str) -> Option<Shape<'a>> {
    if root {
        match name {
            "apiVersion" | "kind" => {
                return Some(Shape::sized(Type::String, Size::up_to(REQUEST - 2)));
            }
            "metadata" => return Some(Shape::sized(Type::Metadata, Size::up_to(0))),
            _ => {}
        }
    }
    let members = schema.get("properties").and_then(Value::as_object)?;
    let (_, member) = members
        .iter()
        .find(|(known, _)| escape(known).as_deref() == Some(name))?;
    let member = member.as_object()?;
    Shape::of_schema(member, flag(member, "x-kubernetes-embedded-resource"))
}

fn string_shape<'a>(schema: &Map<String, Value>, longest: Option<u64>) -> Shape<'a> {
    let format = schema
        .get("format")
        .and_then(Value::as_str)
        .unwrap_or_default();
    match format {
        "byte" => Shape::sized(Type::Bytes, Size::up_to(longest.unwrap_or(REQUEST - 2))),
        "duration" => Shape::sized(Type::Duration, Size::up_to(32)),
        "date" => Shape::sized(Type::Timestamp, Size::up_to(12)),
        "date-time" => Shape::sized(Type::Timestamp, Size::up_to(32)),
        _ => {
            let names = schema.get("enum").and_then(Value::as_array);
            let listed = names.filter(|names| !names.is_empty()).map(|names| {
                let lengths = names.iter().filter_map(Value::as_str).map(str::len);
                lengths.max().unwrap_or(0) as u64
            });
            let most = longest
                .map(|longest| longest.saturating_mul(4))
                .or(listed)
                .unwrap_or(REQUEST - 2);
            Shape::sized(Type::String, Size::up_to(most))
        }
    }
}

fn flag(schema: &Map<String, Value>, name: &str) -> bool {
    schema.get(name).and_then(Value::as_bool).unwrap_or(false)
}

fn not_negative(value: i64) -> u64 {
    u64::try_from(value).unwrap_or(0)
}

/// The fewest bytes a value of this schema takes in a request.
fn smallest(schema: &Map<String, Value>, root: bool) -> u64 {
    if flag(schema, "x-kubernetes-int-or-string") {
        return 1;
    }
    match schema
        .get("type")
        .and_then(Value::as_str)
        .unwrap_or_default()
    {
        "boolean" => 4,
        "integer" | "number" => 1,
        "string" => match schema
            .get("format")
            .and_then(Value::as_str)
            .unwrap_or_default()
        {
            "duration" => 3,
            "date" => 12,
            "date-time" => 21,
            _ => 2,
        },
        "object"
            if schema
                .get("additionalProperties")
                .is_some_and(Value::is_object) =>
        {
            2
        }
        "object" => {
            let required = schema.get("required").and_then(Value::as_array);
            let members = schema.get("properties").and_then(Value::as_object);
            let sizes = required
                .into_iter()
                .flatten()
                .filter_map(Value::as_str)
                .filter_map(|name| {
                    let member = members?.get(name)?.as_object()?;
                    if root && matches!(name, "apiVersion" | "kind" | "metadata") {
                        return Some(name.len() as u64 + 2 + 4);
                    }
                    Shape::of_schema(member, false)?;
                    let open = member.get("default").is_none_or(Value::is_null);
                    open.then(|| name.len() as u64 + smallest(member, false) + 4)
                });
            2 + sizes.sum::<u64>()
        }
        _ => 2,
    }
}

/// How often a rule may run when nothing bounds the lists above it.
pub(super) fn most_values(schema: &Map<String, Value>, root: bool) -> u64 {
    REQUEST / (smallest(schema, root) + 1)
}

impl fmt::Display for Type<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Dyn | Self::Free => f.write_str("dyn"),
            Self::Null => f.write_str("null"),
            Self::Bool => f.write_str("bool"),
            Self::Int => f.write_str("int"),
            Self::Uint => f.write_str("uint"),
            Self::Double => f.write_str("double"),
            Self::String => f.write_str("string"),
            Self::Bytes => f.write_str("bytes"),
            Self::Duration => f.write_str("google.protobuf.Duration"),
            Self::Timestamp => f.write_str("google.protobuf.Timestamp"),
            Self::Meta => f.write_str("type(dyn)"),
            Self::List(item) => write!(f, "list({})", item.kind),
            Self::Map(key, value) => write!(f, "map({}, {})", key.kind, value.kind),
            Self::Object(..) | Self::Metadata => f.write_str("object"),
            Self::Optional(value) => write!(f, "optional_type({})", value.kind),
            Self::Named(name) => f.write_str(name),
        }
    }
}

/// Whether a value of one type may stand where the other is expected.
pub(super) fn fits(left: &Type<'_>, right: &Type<'_>) -> bool {
    match (left, right) {
        (Type::Dyn | Type::Free, _) | (_, Type::Dyn | Type::Free) => true,
        (Type::Null, other) | (other, Type::Null) => takes_null(other),
        (Type::List(a), Type::List(b)) | (Type::Optional(a), Type::Optional(b)) => {
            fits(&a.kind, &b.kind)
        }
        (Type::Map(ak, av), Type::Map(bk, bv)) => {
            fits(&ak.kind, &bk.kind) && fits(&av.kind, &bv.kind)
        }
        (Type::Object(a, _), Type::Object(b, _)) => std::ptr::eq(*a, *b) || a == b,
        (Type::Named(a), Type::Named(b)) => a == b,
        // What is left has no parts: the same kind or not.
        (a, b) => std::mem::discriminant(a) == std::mem::discriminant(b),
    }
}

/// Objects, times and library types may be compared with null.
fn takes_null(kind: &Type<'_>) -> bool {
    matches!(
        kind,
        Type::Null
            | Type::Object(..)
            | Type::Metadata
            | Type::Duration
            | Type::Timestamp
            | Type::Named(_)
            | Type::Optional(_)
    )
}
