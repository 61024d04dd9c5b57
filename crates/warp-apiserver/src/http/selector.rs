//! Label and field selectors: parsed from the query, matched against the index.

use crate::codec::status::Status;
use crate::registry::Resource;
use crate::store::Stored;

/// What a list or watch is narrowed to.
#[derive(Clone, Debug, Default)]
pub(crate) struct Selector {
    labels: Vec<Requirement>,
    fields: Vec<FieldRequirement>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Requirement {
    key: String,
    operator: Operator,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Operator {
    Exists,
    Absent,
    In(Vec<String>),
    NotIn(Vec<String>),
    Greater(i64),
    Less(i64),
}

#[derive(Clone, Debug)]
struct FieldRequirement {
    place: Place,
    value: String,
    equal: bool,
}

#[derive(Clone, Copy, Debug)]
enum Place {
    Name,
    Namespace,
    Indexed(usize),
}

impl Selector {
    pub(crate) fn parse(labels: &str, fields: &str, resource: &Resource) -> Result<Self, Status> {
        Ok(Self {
            labels: parse_labels(labels)?,
            fields: parse_fields(fields, resource)?,
        })
    }

    pub(crate) fn is_everything(&self) -> bool {
        self.labels.is_empty() && self.fields.is_empty()
    }

    /// Whether every object matches.
    pub(crate) fn is_empty(&self) -> bool {
        self.labels.is_empty() && self.fields.is_empty()
    }

    pub(crate) fn matches(&self, object: &Stored) -> bool {
        self.labels
            .iter()
            .all(|requirement| requirement.matches(object))
            && self.fields.iter().all(|field| {
                let found = match field.place {
                    Place::Name => object.name(),
                    Place::Namespace => object.namespace().unwrap_or_default(),
                    Place::Indexed(position) => {
                        object.index.fields.get(position).map_or("", |value| value)
                    }
                };
                (found == field.value) == field.equal
            })
    }
}

impl Requirement {
    fn matches(&self, object: &Stored) -> bool {
        let found = object.index.label(&self.key);
        match &self.operator {
            Operator::Exists => found.is_some(),
            Operator::Absent => found.is_none(),
            Operator::In(values) => found.is_some_and(|found| values.iter().any(|v| v == found)),
            Operator::NotIn(values) => found.is_none_or(|found| values.iter().all(|v| v != found)),
            Operator::Greater(than) => number(found).is_some_and(|found| found > *than),
            Operator::Less(than) => number(found).is_some_and(|found| found < *than),
        }
    }
}

fn number(text: Option<&str>) -> Option<i64> {
    text?.parse().ok()
}

/// Splits at commas outside parentheses.
fn split(text: &str) -> Vec<&str> {
    let mut parts = Vec::new();
    let (mut depth, mut start) = (0_usize, 0);
    for (at, byte) in text.bytes().enumerate() {
        match byte {
            b'(' => depth += 1,
            b')' => depth = depth.saturating_sub(1),
            b',' if depth == 0 => {
                parts.push(&text[start..at]);
                start = at + 1;
            }
            _ => {}
        }
    }
    parts.push(&text[start..]);
    parts
}

fn refuse(problem: &str) -> Status {
    Status::bad_request(format!("unable to parse requirement: {problem}"))
}

fn parse_labels(text: &str) -> Result<Vec<Requirement>, Status> {
    if text.trim().is_empty() {
        return Ok(Vec::new());
    }
    split(text)
        .into_iter()
        .map(|part| parse_label(part.trim()))
        .collect()
}

fn parse_label(part: &str) -> Result<Requirement, Status> {
    let of = |key: &str, operator| checked(key.trim(), operator);
    if let Some(key) = part.strip_prefix('!') {
        return of(key, Operator::Absent);
    }
    if let Some((head, list)) = part.split_once('(') {
        let list = list
            .trim_end()
            .strip_suffix(')')
            .ok_or_else(|| refuse("found '', expected: ',' or ')'"))?;
        let values = list
            .split(',')
            .map(|value| value.trim().to_owned())
            .collect();
        let mut words = head.split_whitespace();
        return match (words.next(), words.next(), words.next()) {
            (Some(key), Some("in"), None) => of(key, Operator::In(values)),
            (Some(key), Some("notin"), None) => of(key, Operator::NotIn(values)),
            _ => Err(refuse(&format!(
                "found '{part}', expected: in, notin, =, ==, !=, gt, lt"
            ))),
        };
    }
    if let Some((key, value)) = part.split_once("!=") {
        return of(key, Operator::NotIn(vec![value.trim().to_owned()]));
    }
    if let Some((key, value)) = part.split_once("==").or_else(|| part.split_once('=')) {
        return of(key, Operator::In(vec![value.trim().to_owned()]));
    }
    let compare = |value: &str| {
        value.trim().parse().map_err(|_| {
            refuse(
                "values[0]: Invalid value: for 'Gt', 'Lt' operators, the value must be an integer",
            )
        })
    };
    if let Some((key, value)) = part.split_once('>') {
        return of(key, Operator::Greater(compare(value)?));
    }
    if let Some((key, value)) = part.split_once('<') {
        return of(key, Operator::Less(compare(value)?));
    }
    if let Some(second) = part.split_whitespace().nth(1) {
        return Err(refuse(&format!(
            "found '{second}', expected: in, notin, =, ==, !=, gt, lt"
        )));
    }
    of(part, Operator::Exists)
}

fn checked(key: &str, operator: Operator) -> Result<Requirement, Status> {
    use crate::kinds::metadata::{label_value, qualified_name};
    let problems = qualified_name(key);
    if !problems.is_empty() {
        return Err(refuse(&format!(
            "key: Invalid value: \"{key}\": {}",
            problems.join("; ")
        )));
    }
    if let Operator::In(values) | Operator::NotIn(values) = &operator {
        for value in values {
            let problems = label_value(value);
            if !problems.is_empty() {
                return Err(refuse(&format!(
                    "values[0][{key}]: Invalid value: \"{value}\": {}",
                    problems.join("; ")
                )));
            }
        }
    }
    Ok(Requirement {
        key: key.to_owned(),
        operator,
    })
}

fn parse_fields(text: &str, resource: &Resource) -> Result<Vec<FieldRequirement>, Status> {
    if text.is_empty() {
        return Ok(Vec::new());
    }
    let mut found = Vec::new();
    for term in split_escaped(text)
        .into_iter()
        .filter(|term| !term.is_empty())
    {
        let (name, value, equal) = term
            .split_once("!=")
            .map(|(name, value)| (name, value, false))
            .or_else(|| {
                term.split_once("==")
                    .map(|(name, value)| (name, value, true))
            })
            .or_else(|| {
                term.split_once('=')
                    .map(|(name, value)| (name, value, true))
            })
            .ok_or_else(|| {
                Status::bad_request(format!(
                    "invalid selector: '{text}'; can't understand '{term}'"
                ))
            })?;
        let place = match name {
            "metadata.name" => Place::Name,
            "metadata.namespace" => Place::Namespace,
            _ => resource
                .selectable_fields
                .iter()
                .position(|field| field.name == name)
                .map(Place::Indexed)
                .ok_or_else(|| unknown_field(name, resource))?,
        };
        found.push(FieldRequirement {
            place,
            value: unescape(value),
            equal,
        });
    }
    Ok(found)
}

/// Whether a text can be read as a selector of labels.
pub(crate) fn can_be_labels(text: &str) -> bool {
    parse_labels(text).is_ok()
}

/// Whether a text can be read as a selector of fields, whichever there are.
pub(crate) fn can_be_fields(text: &str) -> bool {
    let mut terms = split_escaped(text).into_iter();
    terms.all(|term| term.is_empty() || term.contains('='))
}

/// The name every object a field selector selects must have, if it says one.
pub(crate) fn exact_name(text: &str) -> Option<String> {
    let mut exact = None;
    for term in split_escaped(text)
        .into_iter()
        .filter(|term| !term.is_empty())
    {
        if term.contains("!=") {
            continue;
        }
        // A selector that cannot be read selects nothing by name.
        let (name, value) = term.split_once("==").or_else(|| term.split_once('='))?;
        if name == "metadata.name" && exact.is_none() {
            exact = Some(unescape(value));
        }
    }
    exact
}

fn unknown_field(name: &str, resource: &Resource) -> Status {
    if resource.custom.is_some() || !resource.selectable_fields.is_empty() {
        return Status::bad_request(format!("field label not supported: {name}"));
    }
    Status::bad_request(format!(
        "\"{name}\" is not a known field selector: only \"metadata.name\", \"metadata.namespace\""
    ))
}

fn split_escaped(text: &str) -> Vec<&str> {
    let mut parts = Vec::new();
    let (mut start, mut escaped) = (0, false);
    for (at, byte) in text.bytes().enumerate() {
        match byte {
            _ if escaped => escaped = false,
            b'\\' => escaped = true,
            b',' => {
                parts.push(&text[start..at]);
                start = at + 1;
            }
            _ => {}
        }
    }
    parts.push(&text[start..]);
    parts
}

fn unescape(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut escaped = false;
    for c in text.chars() {
        if escaped || c != '\\' {
            out.push(c);
            escaped = false;
        } else {
            escaped = true;
        }
    }
    out
}
