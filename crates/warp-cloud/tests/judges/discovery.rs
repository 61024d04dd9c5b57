//! Google's Compute Engine by its discovery document: every request is one of a method it has, with parameters it takes
//! and a body of fields it knows, and what our judge answers is what it says it answers.

use std::collections::BTreeMap;

use serde_json::Value;
use warp_vendor::{Brand, Recorded};

use super::stand::Stand;
use super::{say, told};

struct Document(Value);

/// A method that a request is one of, with what its path says.
struct Found<'a> {
    method: &'a Value,
    path: BTreeMap<String, String>,
}

impl Document {
    fn read() -> Self {
        let path = told("WARP_GCP_DISCOVERY");
        let text = std::fs::read_to_string(&path);
        let text = text.unwrap_or_else(|error| panic!("failed to read {path}: {error}"));
        Self(serde_json::from_str(&text).expect("a discovery document"))
    }

    fn methods<'a>(resource: &'a Value, all: &mut Vec<&'a Value>) {
        all.extend(
            resource["methods"]
                .as_object()
                .into_iter()
                .flat_map(|all| all.values()),
        );
        for inner in resource["resources"]
            .as_object()
            .into_iter()
            .flat_map(|all| all.values())
        {
            Self::methods(inner, all);
        }
    }

    fn method(&self, record: &Recorded) -> Option<Found<'_>> {
        let mut all = Vec::new();
        Self::methods(&self.0, &mut all);
        let base = self.0["basePath"].as_str()?;
        let rest: Vec<&str> = record.path.strip_prefix(base)?.split('/').collect();
        all.into_iter().find_map(|method| {
            let shape: Vec<&str> = method["flatPath"].as_str()?.split('/').collect();
            if shape.len() != rest.len() || method["httpMethod"] != record.method.as_str() {
                return None;
            }
            let mut path = BTreeMap::new();
            for (want, have) in shape.iter().zip(&rest) {
                match want
                    .strip_prefix('{')
                    .and_then(|name| name.strip_suffix('}'))
                {
                    Some(name) => {
                        path.insert(name.to_owned(), (*have).to_owned());
                    }
                    None if want == have => {}
                    None => return None,
                }
            }
            Some(Found { method, path })
        })
    }

    fn judge(&self, record: &Recorded) -> Vec<String> {
        let Some(found) = self.method(record) else {
            return vec!["there is no such method".to_owned()];
        };
        let mut wrong = Vec::new();
        let own = found.method["parameters"].as_object();
        let everywhere = self.0["parameters"].as_object();
        let parameter = |name: &str| {
            let own = own.and_then(|all| all.get(name));
            own.or_else(|| everywhere.and_then(|all| all.get(name)))
        };
        let sent = record.query.iter().chain(&found.path);
        for (name, value) in sent {
            match parameter(name) {
                None => wrong.push(format!("it takes no parameter {name}")),
                Some(known) => self.value(&typed(known, value), known, name, &mut wrong),
            }
        }
        for (name, known) in own.into_iter().flatten() {
            let there = record.query.contains_key(name) || found.path.contains_key(name);
            if known["required"] == true && !there {
                wrong.push(format!("parameter {name} is missing"));
            }
        }
        match found.method.get("request") {
            Some(body) => self.value(&record.body, body, "body", &mut wrong),
            None if !record.body.is_null() => wrong.push("it takes no body".to_owned()),
            None => {}
        }
        if (200..300).contains(&record.status)
            && let Some(answer) = found.method.get("response")
        {
            self.value(&record.answer, answer, "answer", &mut wrong);
        }
        wrong
    }

    /// Checks a value against a schema; `at` is where it stands.
    fn value(&self, value: &Value, schema: &Value, at: &str, wrong: &mut Vec<String>) {
        if let Some(name) = schema["$ref"].as_str() {
            return self.value(value, &self.0["schemas"][name], at, wrong);
        }
        let right = match schema["type"].as_str() {
            Some("string") => value.is_string(),
            Some("boolean") => value.is_boolean(),
            Some("integer") => value.is_i64() || value.is_u64(),
            Some("number") => value.is_number(),
            Some("array") => value.is_array(),
            Some("object") => value.is_object(),
            _ => true,
        };
        if !right {
            wrong.push(format!("{at} is no {}: {value}", schema["type"]));
            return;
        }
        if let Some(words) = schema["enum"].as_array()
            && !words.contains(value)
        {
            wrong.push(format!("{at} is none of its words: {value}"));
        }
        for (place, item) in value.as_array().into_iter().flatten().enumerate() {
            self.value(item, &schema["items"], &format!("{at}[{place}]"), wrong);
        }
        for (name, inner) in value.as_object().into_iter().flatten() {
            let at = format!("{at}.{name}");
            match (
                schema["properties"].get(name),
                schema.get("additionalProperties"),
            ) {
                (Some(known), _) | (None, Some(known)) => self.value(inner, known, &at, wrong),
                (None, None) => wrong.push(format!("there is no field {at}")),
            }
        }
    }
}

/// A parameter is text on the wire: read as what it is meant to be.
fn typed(known: &Value, text: &str) -> Value {
    match known["type"].as_str() {
        Some("integer" | "number" | "boolean") => {
            serde_json::from_str(text).unwrap_or_else(|_| text.into())
        }
        _ => text.into(),
    }
}

#[tokio::test(start_paused = true)]
async fn what_is_asked_of_google_is_in_its_own_description() {
    let document = Document::read();
    let stand = Stand::new(Brand::Gcp);
    let provider = &stand.provider;
    let launch = stand.launch(1).await;
    let bought = provider.launch(&launch).await.expect("a machine");
    let mut spot = stand.launch(2).await;
    spot.spot = true;
    provider.launch(&spot).await.expect("a spot machine");
    provider.machines("warp-", &[]).await.expect("a list");
    provider.status(&bought.id).await.expect("a machine");
    provider.terminate(&bought.id).await.expect("the end");
    let mut judged = 0;
    for record in stand.vendor.recorded() {
        // Prices are another API's, and its description is another document.
        if record.path.starts_with("/v1/services/") {
            continue;
        }
        let wrong = document.judge(&record);
        assert_eq!(wrong, Vec::<String>::new(), "{record:#?}");
        judged += 1;
    }
    assert!(judged >= 7, "only {judged} requests were judged");
    let revision = &document.0["revision"];
    say(&format!(
        "{judged} requests and answers judged by Google's description of {revision}, 0 refused"
    ));
}

/// Whether the judge can refuse at all.
#[test]
fn a_field_google_does_not_know_is_refused() {
    let document = Document::read();
    let record = Recorded {
        method: "POST".to_owned(),
        path: "/compute/v1/projects/p/zones/z/instances".to_owned(),
        query: [("requestID".to_owned(), "1".to_owned())].into(),
        body: serde_json::json!({
            "name": "n", "shape": "round", "scheduling": {"provisioningModel": "CHEAP", "preemptible": "yes"},
        }),
        status: 400,
        answer: Value::Null,
    };
    let wrong = document.judge(&record);
    for part in [
        "requestID",
        "body.shape",
        "provisioningModel",
        "preemptible",
    ] {
        assert!(
            wrong.iter().any(|said| said.contains(part)),
            "{part}: {wrong:?}"
        );
    }
    assert_eq!(wrong.len(), 4, "{wrong:?}");
}
