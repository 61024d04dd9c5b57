//! Where a rule stands in a schema: how often it may run and what that may cost.

use std::cell::RefCell;

use serde_json::{Map, Value};

use super::cost;
use crate::schema::{FieldError, Path};

/// The most one rule may be estimated to cost, and all rules of a schema together.
const RULE_LIMIT: u64 = 10_000_000;
const TOTAL_LIMIT: u64 = 100_000_000;

/// The estimated cost of all rules of one schema.
#[derive(Debug, Default)]
pub(crate) struct Budget(RefCell<Spent>);

#[derive(Debug, Default)]
struct Spent {
    total: u64,
    most_expensive: Vec<(u64, Path)>,
}

impl Budget {
    fn add(&self, path: &Path, cost: u64) {
        if cost == 0 {
            return;
        }
        let mut spent = self.0.borrow_mut();
        spent.total = spent.total.saturating_add(cost);
        spent.most_expensive.push((cost, path.clone()));
        spent
            .most_expensive
            .sort_by_key(|(cost, _)| std::cmp::Reverse(*cost));
        spent.most_expensive.truncate(4);
    }

    /// Refusals once every rule has been seen.
    pub(crate) fn errors(&self, path: &Path) -> Vec<FieldError> {
        let spent = self.0.borrow();
        if spent.total <= TOTAL_LIMIT {
            return Vec::new();
        }
        let detail = "contributed to estimated rule cost total exceeding cost limit for entire \
                      OpenAPIv3 schema";
        let mut errors: Vec<FieldError> = spent
            .most_expensive
            .iter()
            .map(|(_, path)| FieldError::forbidden(path, detail))
            .collect();
        let name = "x-kubernetes-validations estimated rule cost total for entire OpenAPIv3 schema";
        errors.push(FieldError::forbidden(
            path,
            over_budget(name, spent.total, TOTAL_LIMIT),
        ));
        errors
    }
}

#[allow(clippy::cast_precision_loss)]
fn over_budget(name: &str, cost: u64, limit: u64) -> String {
    let factor = cost as f64 / limit as f64;
    let factor = if factor > 100.0 {
        "more than 100x".to_owned()
    } else if factor < 1.5 {
        format!("{factor:.6}x")
    } else {
        format!("{factor:.1}x")
    };
    format!(
        "{name} exceeds budget by factor of {factor} (try simplifying the rule, or adding \
         maxItems, maxProperties, and maxLength where arrays, maps, and strings are declared)"
    )
}

/// The place of one schema node.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Scope<'a> {
    root: bool,
    schema: &'a Map<String, Value>,
    /// How many values of this schema one object may hold; `None` when nothing bounds it.
    cardinality: Option<u64>,
    budget: &'a Budget,
}

impl<'a> Scope<'a> {
    pub(crate) fn root(schema: &'a Value, budget: &'a Budget) -> Self {
        static EMPTY: std::sync::LazyLock<Map<String, Value>> = std::sync::LazyLock::new(Map::new);
        let schema = schema.as_object().unwrap_or(&EMPTY);
        Self {
            root: true,
            schema,
            cardinality: Some(1),
            budget,
        }
    }

    pub(crate) fn is_root(&self) -> bool {
        self.root
    }

    pub(crate) fn property(&self, schema: &'a Map<String, Value>) -> Self {
        Self {
            root: false,
            schema,
            ..*self
        }
    }

    pub(crate) fn items(&self, list: &Map<String, Value>, schema: &'a Map<String, Value>) -> Self {
        self.repeated(list.get("maxItems"), schema)
    }

    pub(crate) fn additional(
        &self,
        map: &Map<String, Value>,
        schema: &'a Map<String, Value>,
    ) -> Self {
        self.repeated(map.get("maxProperties"), schema)
    }

    fn repeated(&self, most: Option<&Value>, schema: &'a Map<String, Value>) -> Self {
        let most = most.and_then(Value::as_u64);
        let cardinality = match (self.cardinality, most) {
            (Some(above), Some(most)) => Some(above.saturating_mul(most)),
            _ => None,
        };
        Self {
            root: false,
            schema,
            cardinality,
            ..*self
        }
    }

    /// Counts a rule's cost, once per value it may run on.
    pub(super) fn observe(&self, path: &Path, cost: u64, name: &str) -> Option<FieldError> {
        let times = self
            .cardinality
            .unwrap_or_else(|| cost::most_values(self.schema));
        self.observe_flat(path, cost.saturating_mul(times), name)
    }

    pub(super) fn observe_flat(&self, path: &Path, cost: u64, name: &str) -> Option<FieldError> {
        self.budget.add(path, cost);
        (cost > RULE_LIMIT)
            .then(|| FieldError::forbidden(path, over_budget(name, cost, RULE_LIMIT)))
    }
}

/// Follows a `fieldPath` or `jsonPath` through a schema: `.spec.name` or `.labels['a.b']`.
pub(crate) fn field_path<'a>(
    schema: &'a Map<String, Value>,
    text: &str,
    brackets: bool,
) -> Result<(Path, &'a Map<String, Value>), String> {
    const MISSING: &str = "does not refer to a valid field";
    const END: &str = "unexpected end of JSON path";
    let mut path = Path::root();
    let mut here = schema;
    let mut tokens = tokens(text).into_iter();
    while let Some(token) = tokens.next() {
        let name = match token {
            "[" if !brackets => return Err("array notation is not allowed".to_owned()),
            "[" => {
                let quoted = tokens.next().ok_or(END)?;
                let inner = quoted
                    .strip_prefix('\'')
                    .and_then(|rest| rest.strip_suffix('\''))
                    .ok_or_else(|| format!("expected single quoted string but got {quoted}"))?;
                match tokens.next() {
                    Some("]") => {}
                    Some(other) => return Err(format!("expected ] but got {other}")),
                    None => return Err(END.to_owned()),
                }
                unescape(inner)?
            }
            "." => tokens.next().ok_or(END)?.to_owned(),
            other => return Err(format!("expected [ or . but got: {other}")),
        };
        if let Some(properties) = here.get("properties").and_then(Value::as_object) {
            path = path.child(&name);
            here = properties
                .get(&name)
                .and_then(Value::as_object)
                .ok_or(MISSING)?;
        } else if let Some(member) = here.get("additionalProperties").and_then(Value::as_object) {
            path = path.key(&name);
            here = member;
        } else {
            return Err(MISSING.to_owned());
        }
    }
    Ok((path, here))
}

fn unescape(text: &str) -> Result<String, String> {
    let mut out = String::new();
    let mut letters = text.chars();
    while let Some(c) = letters.next() {
        if c != '\\' {
            out.push(c);
            continue;
        }
        match letters.next() {
            Some('n') => out.push('\n'),
            Some('r') => out.push('\r'),
            Some('t') => out.push('\t'),
            Some(c @ ('\'' | '\\')) => out.push(c),
            Some(c) => return Err(format!("invalid string literal: invalid escape char \\{c}")),
            None => return Err("invalid string literal: invalid escape char \\".to_owned()),
        }
    }
    Ok(out)
}

/// Splits at `.`, `[` and `]`, which are tokens themselves; quoted text is one token.
fn tokens(text: &str) -> Vec<&str> {
    let mut out = Vec::new();
    let mut rest = text;
    while let Some(first) = rest.chars().next() {
        let end = match first {
            '.' | '[' | ']' => 1,
            '\'' => {
                let mut escaped = false;
                rest.char_indices()
                    .skip(1)
                    .find(|(_, c)| {
                        let end = *c == '\'' && !escaped;
                        escaped = *c == '\\' && !escaped;
                        end
                    })
                    .map_or(rest.len(), |(index, _)| index + 1)
            }
            _ => rest.find(['.', '[', ']']).unwrap_or(rest.len()),
        };
        let (token, after) = rest.split_at(end);
        out.push(token);
        rest = after;
    }
    out
}
