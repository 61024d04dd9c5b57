//! One field error, worded as Kubernetes words it, and the path it names.
//!
//! Owns rendering only: which errors exist is decided by the validators.

use std::fmt::{self, Write as _};

use serde_json::{Value, json};

/// Why a field was refused. The names are the `reason` of a Status cause.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FieldErrorKind {
    Required,
    Invalid,
    TypeInvalid,
    NotSupported,
    Duplicate,
    Forbidden,
    TooLong,
    TooMany,
    NotFound,
    Internal,
}

impl FieldErrorKind {
    /// The `reason` of the Status cause.
    pub fn reason(self) -> &'static str {
        match self {
            Self::Required => "FieldValueRequired",
            Self::Invalid => "FieldValueInvalid",
            Self::TypeInvalid => "FieldValueTypeInvalid",
            Self::NotSupported => "FieldValueNotSupported",
            Self::Duplicate => "FieldValueDuplicate",
            Self::Forbidden => "FieldValueForbidden",
            Self::TooLong => "FieldValueTooLong",
            Self::TooMany => "FieldValueTooMany",
            Self::NotFound => "FieldValueNotFound",
            Self::Internal => "InternalError",
        }
    }

    fn text(self) -> &'static str {
        match self {
            Self::Required => "Required value",
            Self::Invalid | Self::TypeInvalid => "Invalid value",
            Self::NotSupported => "Unsupported value",
            Self::Duplicate => "Duplicate value",
            Self::Forbidden => "Forbidden",
            Self::TooLong => "Too long",
            Self::TooMany => "Too many",
            Self::NotFound => "Not found",
            Self::Internal => "Internal error",
        }
    }
}

/// One refused field.
#[derive(Debug, Clone, PartialEq)]
pub struct FieldError {
    pub kind: FieldErrorKind,
    /// The path as Kubernetes prints it; a path without elements prints as `<nil>`.
    pub field: String,
    /// The refused value; absent where Kubernetes does not print one.
    pub value: Option<Value>,
    pub detail: String,
}

impl FieldError {
    fn new(kind: FieldErrorKind, path: &Path, value: Option<Value>, detail: String) -> Self {
        Self {
            kind,
            field: path.to_string(),
            value,
            detail,
        }
    }

    pub fn required(path: &Path, detail: impl Into<String>) -> Self {
        Self::new(FieldErrorKind::Required, path, None, detail.into())
    }

    pub fn invalid(path: &Path, value: impl Into<Value>, detail: impl Into<String>) -> Self {
        Self::new(
            FieldErrorKind::Invalid,
            path,
            Some(value.into()),
            detail.into(),
        )
    }

    pub fn type_invalid(path: &Path, value: impl Into<Value>, detail: impl Into<String>) -> Self {
        Self::new(
            FieldErrorKind::TypeInvalid,
            path,
            Some(value.into()),
            detail.into(),
        )
    }

    pub fn not_supported<S: AsRef<str>>(
        path: &Path,
        value: impl Into<Value>,
        supported: &[S],
    ) -> Self {
        let names: Vec<String> = supported
            .iter()
            .map(|name| go_quote(name.as_ref()))
            .collect();
        let detail = if names.is_empty() {
            String::new()
        } else {
            format!("supported values: {}", names.join(", "))
        };
        Self::new(
            FieldErrorKind::NotSupported,
            path,
            Some(value.into()),
            detail,
        )
    }

    pub fn duplicate(path: &Path, value: impl Into<Value>) -> Self {
        Self::new(
            FieldErrorKind::Duplicate,
            path,
            Some(value.into()),
            String::new(),
        )
    }

    pub fn forbidden(path: &Path, detail: impl Into<String>) -> Self {
        Self::new(FieldErrorKind::Forbidden, path, None, detail.into())
    }

    pub fn not_found(path: &Path, value: impl Into<Value>) -> Self {
        Self::new(
            FieldErrorKind::NotFound,
            path,
            Some(value.into()),
            String::new(),
        )
    }

    pub fn internal(path: &Path, detail: impl Into<String>) -> Self {
        Self::new(FieldErrorKind::Internal, path, None, detail.into())
    }

    pub fn too_long(path: &Path, max: i64) -> Self {
        let unit = if max == 1 { "byte" } else { "bytes" };
        let detail = format!("may not be more than {max} {unit}");
        Self::new(FieldErrorKind::TooLong, path, None, detail)
    }

    pub fn too_many(path: &Path, actual: i64, max: i64) -> Self {
        let unit = if max == 1 { "item" } else { "items" };
        let detail = format!("must have at most {max} {unit}");
        Self::new(FieldErrorKind::TooMany, path, Some(json!(actual)), detail)
    }

    /// The message without the path: what a Status cause carries.
    pub fn body(&self) -> String {
        let mut text = self.kind.text().to_owned();
        if let Some(value) = &self.value {
            let _ = write!(text, ": {}", go_value(value));
        }
        if !self.detail.is_empty() {
            let _ = write!(text, ": {}", self.detail);
        }
        text
    }

    /// One entry of `status.details.causes`.
    pub fn cause(&self) -> Value {
        json!({"reason": self.kind.reason(), "message": self.body(), "field": self.field})
    }
}

impl fmt::Display for FieldError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.field, self.body())
    }
}

/// The text of several errors as an Invalid status carries it: one alone, more in brackets,
/// each distinct message once.
pub fn aggregate(errors: &[FieldError]) -> String {
    let mut seen: Vec<String> = Vec::new();
    for error in errors {
        let text = error.to_string();
        if !seen.contains(&text) {
            seen.push(text);
        }
    }
    match seen.len() {
        0 => String::new(),
        1 => seen.remove(0),
        _ => format!("[{}]", seen.join(", ")),
    }
}

/// A field path: `spec.containers[0].env[KEY]`.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Path(String);

impl Path {
    pub fn root() -> Self {
        Self::default()
    }

    pub fn new(text: impl Into<String>) -> Self {
        Self(text.into())
    }

    #[must_use]
    pub fn child(&self, name: &str) -> Self {
        if self.0.is_empty() {
            Self(name.to_owned())
        } else {
            Self(format!("{}.{name}", self.0))
        }
    }

    #[must_use]
    pub fn index(&self, index: usize) -> Self {
        Self(format!("{}[{index}]", self.0))
    }

    #[must_use]
    pub fn key(&self, key: &str) -> Self {
        Self(format!("{}[{key}]", self.0))
    }

    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for Path {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.0.is_empty() { "<nil>" } else { &self.0 })
    }
}

/// A value inside a message: strings quoted as Go quotes them, the rest as Go's JSON.
fn go_value(value: &Value) -> String {
    match value {
        Value::String(text) => go_quote(text),
        Value::Number(number) if number.is_f64() => go_float(number.as_f64().unwrap_or_default()),
        other => go_json(other),
    }
}

/// Go's `%v` of a float: plain notation below 1e21.
pub(crate) fn go_float(value: f64) -> String {
    let magnitude = value.abs();
    if value == 0.0 || (1e-4..1e21).contains(&magnitude) {
        format!("{value}")
    } else {
        let text = format!("{value:e}");
        let (mantissa, exponent) = text.split_once('e').unwrap_or((&text, "0"));
        let exponent: i32 = exponent.parse().unwrap_or_default();
        let sign = if exponent < 0 { '-' } else { '+' };
        format!("{mantissa}e{sign}{:02}", exponent.abs())
    }
}

/// Go's `strconv.Quote`.
pub fn go_quote(text: &str) -> String {
    let mut out = String::with_capacity(text.len() + 2);
    out.push('"');
    for c in text.chars() {
        match c {
            '"' => out.push_str("\\\""),
            '\\' => out.push_str("\\\\"),
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            '\u{7}' => out.push_str("\\a"),
            '\u{8}' => out.push_str("\\b"),
            '\u{c}' => out.push_str("\\f"),
            '\u{b}' => out.push_str("\\v"),
            c if (c as u32) < 0x20 || c as u32 == 0x7f => {
                let _ = write!(out, "\\x{:02x}", c as u32);
            }
            c => out.push(c),
        }
    }
    out.push('"');
    out
}

/// Go's `json.Marshal` of an unstructured value: keys sorted, `<`, `>` and `&` escaped.
pub fn go_json(value: &Value) -> String {
    let mut out = String::new();
    write_go_json(value, &mut out);
    out
}

fn write_go_json(value: &Value, out: &mut String) {
    match value {
        Value::Object(map) => {
            let mut keys: Vec<&String> = map.keys().collect();
            keys.sort();
            out.push('{');
            for (i, key) in keys.into_iter().enumerate() {
                if i > 0 {
                    out.push(',');
                }
                write_go_string(key, out);
                out.push(':');
                write_go_json(&map[key], out);
            }
            out.push('}');
        }
        Value::Array(list) => {
            out.push('[');
            for (i, item) in list.iter().enumerate() {
                if i > 0 {
                    out.push(',');
                }
                write_go_json(item, out);
            }
            out.push(']');
        }
        Value::String(text) => write_go_string(text, out),
        other => {
            let _ = write!(out, "{other}");
        }
    }
}

fn write_go_string(text: &str, out: &mut String) {
    let plain = Value::String(text.to_owned()).to_string();
    for c in plain.chars() {
        match c {
            '<' => out.push_str("\\u003c"),
            '>' => out.push_str("\\u003e"),
            '&' => out.push_str("\\u0026"),
            '\u{2028}' => out.push_str("\\u2028"),
            '\u{2029}' => out.push_str("\\u2029"),
            c => out.push(c),
        }
    }
}
