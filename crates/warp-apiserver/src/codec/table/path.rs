//! The JSON paths of printer columns: members, indices, wildcards, filters and recursive descent.

use serde_json::Value;

/// The values a path finds. A path that cannot be read finds nothing.
pub(super) fn find<'a>(text: &str, root: &'a Value) -> Vec<&'a Value> {
    let Some(steps) = parse(text) else {
        return Vec::new();
    };
    let mut found = vec![root];
    for step in &steps {
        found = found
            .into_iter()
            .flat_map(|value| step.apply(value))
            .collect();
    }
    found
}

#[derive(Debug, PartialEq)]
enum Step {
    Member(String),
    Index(i64),
    All,
    Descend(String),
    Filter {
        path: Vec<Self>,
        operator: Option<(String, Value)>,
    },
}

impl Step {
    fn apply<'a>(&self, value: &'a Value) -> Vec<&'a Value> {
        match self {
            Self::Member(name) => value.get(name.as_str()).into_iter().collect(),
            Self::Index(index) => {
                let Some(list) = value.as_array() else {
                    return Vec::new();
                };
                let length = i64::try_from(list.len()).unwrap_or(i64::MAX);
                let index = if *index < 0 { index + length } else { *index };
                usize::try_from(index)
                    .ok()
                    .and_then(|i| list.get(i))
                    .into_iter()
                    .collect()
            }
            Self::All => match value {
                Value::Array(list) => list.iter().collect(),
                Value::Object(map) => map.values().collect(),
                _ => Vec::new(),
            },
            Self::Descend(name) => {
                let mut found = Vec::new();
                descend(name, value, &mut found);
                found
            }
            Self::Filter { path, operator } => {
                let Some(list) = value.as_array() else {
                    return Vec::new();
                };
                list.iter()
                    .filter(|item| passes(path, operator.as_ref(), item))
                    .collect()
            }
        }
    }
}

fn descend<'a>(name: &str, value: &'a Value, found: &mut Vec<&'a Value>) {
    found.extend(value.get(name));
    match value {
        Value::Array(list) => list.iter().for_each(|item| descend(name, item, found)),
        Value::Object(map) => map.values().for_each(|item| descend(name, item, found)),
        _ => {}
    }
}

fn passes(path: &[Step], operator: Option<&(String, Value)>, item: &Value) -> bool {
    let mut found = vec![item];
    for step in path {
        found = found
            .into_iter()
            .flat_map(|value| step.apply(value))
            .collect();
    }
    let Some((operator, wanted)) = operator else {
        return !found.is_empty();
    };
    let Some(value) = found.first() else {
        return false;
    };
    let order = match (value.as_f64(), wanted.as_f64()) {
        (Some(a), Some(b)) => a.partial_cmp(&b),
        _ => value.as_str().zip(wanted.as_str()).map(|(a, b)| a.cmp(b)),
    };
    match operator.as_str() {
        "==" => *value == wanted,
        "!=" => *value != wanted,
        ">" => order.is_some_and(std::cmp::Ordering::is_gt),
        ">=" => order.is_some_and(std::cmp::Ordering::is_ge),
        "<" => order.is_some_and(std::cmp::Ordering::is_lt),
        "<=" => order.is_some_and(std::cmp::Ordering::is_le),
        _ => false,
    }
}

fn parse(text: &str) -> Option<Vec<Step>> {
    let text = text.trim();
    let text = text
        .strip_prefix('{')
        .and_then(|t| t.strip_suffix('}'))
        .unwrap_or(text);
    let mut rest = text.strip_prefix('$').unwrap_or(text);
    let mut steps = Vec::new();
    while !rest.is_empty() {
        if let Some(after) = rest.strip_prefix("..") {
            let (name, after) = member(after);
            steps.push(Step::Descend(name));
            rest = after;
        } else if let Some(after) = rest.strip_prefix('.') {
            if after.is_empty() {
                break;
            }
            if after.starts_with('[') {
                rest = after;
                continue;
            }
            let (name, after) = member(after);
            steps.push(if name == "*" {
                Step::All
            } else {
                Step::Member(name)
            });
            rest = after;
        } else if let Some(after) = rest.strip_prefix('[') {
            let end = closing(after)?;
            steps.push(bracket(after[..end].trim())?);
            rest = &after[end + 1..];
        } else {
            let (name, after) = member(rest);
            steps.push(Step::Member(name));
            rest = after;
        }
    }
    Some(steps)
}

/// A member name up to the next `.` or `[`; `\.` is a dot in the name.
fn member(text: &str) -> (String, &str) {
    let mut name = String::new();
    let mut letters = text.char_indices();
    while let Some((index, c)) = letters.next() {
        match c {
            '\\' => name.extend(letters.next().map(|(_, c)| c)),
            '.' | '[' => return (name, &text[index..]),
            c => name.push(c),
        }
    }
    (name, "")
}

/// The end of a bracket, minding quotes and nested brackets.
fn closing(text: &str) -> Option<usize> {
    let (mut depth, mut quote) = (0, None);
    for (index, c) in text.char_indices() {
        match (quote, c) {
            (Some(open), c) if c == open => quote = None,
            (None, '\'' | '"') => quote = Some(c),
            (None, '[') => depth += 1,
            (None, ']') if depth == 0 => return Some(index),
            (None, ']') => depth -= 1,
            // Anything else, and everything inside quotes.
            _ => {}
        }
    }
    None
}

fn bracket(text: &str) -> Option<Step> {
    if text == "*" {
        return Some(Step::All);
    }
    if let Some(name) = unquote(text) {
        return Some(Step::Member(name));
    }
    if let Some(inner) = text.strip_prefix("?(").and_then(|t| t.strip_suffix(')')) {
        return filter(inner);
    }
    text.parse().ok().map(Step::Index)
}

fn unquote(text: &str) -> Option<String> {
    let inner = text
        .strip_prefix('\'')
        .and_then(|t| t.strip_suffix('\''))
        .or_else(|| text.strip_prefix('"').and_then(|t| t.strip_suffix('"')))?;
    Some(
        inner
            .replace("\\.", ".")
            .replace("\\'", "'")
            .replace("\\\"", "\""),
    )
}

fn filter(text: &str) -> Option<Step> {
    let found = ["==", "!=", ">=", "<=", ">", "<"]
        .iter()
        .filter_map(|operator| text.find(operator).map(|index| (index, *operator)))
        .min_by_key(|(index, operator)| (*index, std::cmp::Reverse(operator.len())));
    let (path, operator) = match found {
        None => (text, None),
        Some((index, operator)) => {
            let wanted = text[index + operator.len()..].trim();
            let wanted = match unquote(wanted) {
                Some(text) => Value::String(text),
                None => serde_json::from_str(wanted).ok()?,
            };
            (&text[..index], Some((operator.to_owned(), wanted)))
        }
    };
    let path = parse(path.trim().strip_prefix('@')?)?;
    Some(Step::Filter { path, operator })
}
