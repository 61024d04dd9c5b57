//! Judges requests and answers by an OpenAPI description: as much of JSON Schema as the vendors' files use.

use std::collections::BTreeSet;

use serde_json::Value;
use warp_vendor::Recorded;

pub(crate) type Problem = String;

pub(crate) struct Description {
    root: Value,
}

/// Names of properties a schema has spoken of.
type Spoken = BTreeSet<String>;

impl Description {
    pub(crate) fn new(root: Value) -> Self {
        Self { root }
    }

    fn resolve<'a>(&'a self, mut node: &'a Value) -> &'a Value {
        while let Some(reference) = node["$ref"].as_str() {
            node = self
                .root
                .pointer(&reference[1..])
                .expect("a reference that leads somewhere");
        }
        node
    }

    /// The operation of a path and its template's names.
    fn operation(&self, record: &Recorded) -> Option<&Value> {
        // One vendor's paths end with a slash that its description leaves out.
        let given: Vec<&str> = record.path.trim_end_matches('/').split('/').collect();
        let paths = self.root["paths"].as_object()?;
        let mut fitting: Vec<(usize, &Value)> = Vec::new();
        for (template, item) in paths {
            let parts: Vec<&str> = template.split('/').collect();
            let same = parts.len() == given.len()
                && parts
                    .iter()
                    .zip(&given)
                    .all(|(part, given)| part.starts_with('{') || part == given);
            let operation = &item[record.method.to_lowercase()];
            if same && operation.is_object() {
                let holes = parts.iter().filter(|part| part.starts_with('{')).count();
                fitting.push((holes, operation));
            }
        }
        fitting.sort_by_key(|(holes, _)| *holes);
        fitting.first().map(|(_, operation)| *operation)
    }

    pub(crate) fn judge(&self, record: &Recorded) -> Vec<Problem> {
        let Some(operation) = self.operation(record) else {
            return vec![format!("there is no {} {}", record.method, record.path)];
        };
        let mut problems = Vec::new();
        let parameters = operation["parameters"].as_array().into_iter().flatten();
        let parameters: Vec<&Value> = parameters.map(|known| self.resolve(known)).collect();
        for (name, value) in &record.query {
            let known = parameters
                .iter()
                .find(|known| known["in"] == "query" && known["name"] == *name);
            match known {
                None => problems.push(format!("there is no parameter {name}")),
                Some(known) => {
                    let schema = self.resolve(&known["schema"]);
                    let text = Value::String(value.clone());
                    let items = if schema["type"] == "array" {
                        &schema["items"]
                    } else {
                        schema
                    };
                    if self.resolve(items)["enum"].is_array() {
                        self.check(items, &text, name, &mut problems);
                    }
                }
            }
        }
        let asked = self.resolve(&operation["requestBody"]);
        let schema = &asked["content"]["application/json"]["schema"];
        if schema.is_object() && !record.body.is_null() {
            // A request is held to what is described even where the vendor would look away.
            let spoken = self.check(schema, &record.body, "request", &mut problems);
            let names = record
                .body
                .as_object()
                .into_iter()
                .flat_map(serde_json::Map::keys);
            let strange = names.filter(|name| !spoken.contains(*name));
            problems.extend(strange.map(|name| format!("request.{name} is not described")));
        } else if !record.body.is_null() {
            problems.push("a body where none is described".to_owned());
        }
        self.answer(operation, record, &mut problems);
        problems
    }

    fn answer(&self, operation: &Value, record: &Recorded, problems: &mut Vec<Problem>) {
        let responses = &operation["responses"];
        let exact = &responses[record.status.to_string()];
        let response = self.resolve(if exact.is_object() {
            exact
        } else {
            &responses["default"]
        });
        if !response.is_object() {
            problems.push(format!("no answer {} is described", record.status));
            return;
        }
        let content = response["content"].as_object();
        let schema = content.and_then(|content| content.values().next());
        if let Some(schema) = schema
            .map(|content| &content["schema"])
            .filter(|schema| schema.is_object())
        {
            self.check(schema, &record.answer, "answer", problems);
        }
    }

    /// Whether `value` fits; what it says of properties is returned for whoever closes the object.
    fn check(
        &self,
        schema: &Value,
        value: &Value,
        at: &str,
        problems: &mut Vec<Problem>,
    ) -> Spoken {
        let schema = self.resolve(schema);
        let mut spoken = Spoken::new();
        if !fits_type(&schema["type"], value) {
            problems.push(format!("{at}: {value} is no {}", schema["type"]));
            return spoken;
        }
        if let Some(words) = schema["enum"].as_array()
            && !words.contains(value)
        {
            problems.push(format!("{at}: {value} is none of {words:?}"));
        }
        if !schema["const"].is_null() && schema["const"] != *value {
            problems.push(format!("{at}: {value} is not {}", schema["const"]));
        }
        bounds(schema, value, at, problems);
        for part in schema["allOf"].as_array().into_iter().flatten() {
            spoken.extend(self.check(part, value, at, problems));
        }
        for word in ["anyOf", "oneOf"] {
            if let Some(parts) = schema[word].as_array() {
                let tried = parts.iter().map(|part| {
                    let mut wrong = Vec::new();
                    let spoken = self.check(part, value, at, &mut wrong);
                    (wrong, spoken)
                });
                let tried: Vec<_> = tried.collect();
                match tried.iter().find(|(wrong, _)| wrong.is_empty()) {
                    Some((_, more)) => spoken.extend(more.iter().cloned()),
                    None => problems.push(format!("{at}: {value} fits none of {word}: {tried:?}")),
                }
            }
        }
        if let Some(object) = value.as_object() {
            self.object(schema, object, at, &mut spoken, problems);
        }
        for (number, item) in value.as_array().into_iter().flatten().enumerate() {
            if schema["items"].is_object() {
                self.check(&schema["items"], item, &format!("{at}[{number}]"), problems);
            }
        }
        spoken
    }

    fn object(
        &self,
        schema: &Value,
        object: &serde_json::Map<String, Value>,
        at: &str,
        spoken: &mut Spoken,
        problems: &mut Vec<Problem>,
    ) {
        for name in schema["required"]
            .as_array()
            .into_iter()
            .flatten()
            .filter_map(Value::as_str)
        {
            if !object.contains_key(name) {
                problems.push(format!("{at}.{name} is missing"));
            }
        }
        for (name, value) in object {
            let known = &schema["properties"][name];
            let more = &schema["additionalProperties"];
            if known.is_object() {
                spoken.insert(name.clone());
                self.check(known, value, &format!("{at}.{name}"), problems);
            } else if more.is_object() {
                spoken.insert(name.clone());
                self.check(more, value, &format!("{at}.{name}"), problems);
            } else if *more == false {
                problems.push(format!("{at}.{name} is not described"));
            }
        }
        if schema["unevaluatedProperties"] == false {
            for name in object.keys().filter(|name| !spoken.contains(*name)) {
                problems.push(format!("{at}.{name} is not described"));
            }
        }
    }
}

fn fits_type(wanted: &Value, value: &Value) -> bool {
    let fits = |word: &str| match word {
        "object" => value.is_object(),
        "array" => value.is_array(),
        "string" => value.is_string(),
        "boolean" => value.is_boolean(),
        "integer" => value.is_i64() || value.is_u64(),
        "number" => value.is_number(),
        "null" => value.is_null(),
        _ => true,
    };
    match wanted {
        Value::String(word) => fits(word),
        Value::Array(words) => words.iter().filter_map(Value::as_str).any(fits),
        _ => true,
    }
}

fn bounds(schema: &Value, value: &Value, at: &str, problems: &mut Vec<Problem>) {
    let mut told = |good: bool, what: &str| {
        if !good {
            problems.push(format!("{at}: {value} breaks {what}"));
        }
    };
    if let Some(text) = value.as_str() {
        let letters = u64::try_from(text.chars().count()).unwrap_or(u64::MAX);
        told(
            schema["maxLength"]
                .as_u64()
                .is_none_or(|most| letters <= most),
            "maxLength",
        );
        told(
            schema["minLength"]
                .as_u64()
                .is_none_or(|least| letters >= least),
            "minLength",
        );
    }
    if let Some(number) = value.as_f64() {
        told(
            schema["minimum"]
                .as_f64()
                .is_none_or(|least| number >= least),
            "minimum",
        );
        told(
            schema["maximum"].as_f64().is_none_or(|most| number <= most),
            "maximum",
        );
    }
    if let Some(list) = value.as_array() {
        let long = u64::try_from(list.len()).unwrap_or(u64::MAX);
        told(
            schema["maxItems"].as_u64().is_none_or(|most| long <= most),
            "maxItems",
        );
    }
}
