//! What an administrator says of providers, the groups of nodes with one value of the label `gpu.warp.dev/provider`: a
//! ConfigMap whose key `weights` says how they are compared, and whose other keys are providers. An entry that cannot be
//! used is told and left out; the rest holds.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::ConfigMap;
use serde::Deserialize;
use serde::de::DeserializeOwned;
use warp_core::provider::{MOST_WEIGHT, Weights};

use crate::gpus::{BadEntry, one_line};

/// Its name, in the operator's own namespace.
pub const CONFIG_MAP: &str = "warp-providers";
/// The key that is no provider.
pub const WEIGHTS: &str = "weights";
/// Entries that are read.
const MOST: usize = 256;
/// The longest start that can be said, a day.
const LONGEST_START: u64 = 86_400;

/// What is said of all of them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ProviderRules {
    /// How they are compared; none when nobody wants work that names no provider to compare them.
    pub weights: Option<Weights>,
    pub providers: BTreeMap<String, ProviderRule>,
}

/// What is said of one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ProviderRule {
    /// GPUs of its nodes that may be held at once.
    #[serde(default)]
    pub max_gpus: Option<u32>,
    /// How long a start takes, until starts were measured there.
    #[serde(default)]
    pub start_seconds: Option<u64>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct Said {
    #[serde(default)]
    cost: u32,
    #[serde(default)]
    start: u32,
    #[serde(default)]
    capacity: u32,
    #[serde(default)]
    health: u32,
}

/// What is said with this ConfigMap, and what of it could not be used.
pub fn rules(map: Option<&ConfigMap>) -> (ProviderRules, Vec<BadEntry>) {
    let (mut known, mut bad) = (ProviderRules::default(), Vec::new());
    let entries = map.and_then(|map| map.data.as_ref());
    for (number, (name, text)) in entries.into_iter().flatten().enumerate() {
        let read = if number >= MOST {
            Err(format!("only the first {MOST} entries are read"))
        } else if name == WEIGHTS {
            weights(text).map(|weights| known.weights = Some(weights))
        } else {
            rule(text).map(|rule| {
                known.providers.insert(name.clone(), rule);
            })
        };
        bad.extend(read.err().map(|problem| BadEntry {
            name: name.clone(),
            problem,
        }));
    }
    (known, bad)
}

fn yaml<T: DeserializeOwned>(text: &str) -> Result<T, String> {
    serde_saphyr::from_str(text).map_err(|error| one_line(&error.to_string()))
}

fn weights(text: &str) -> Result<Weights, String> {
    let Said {
        cost,
        start,
        capacity,
        health,
    } = yaml(text)?;
    let all = [cost, start, capacity, health];
    if all.iter().any(|weight| *weight > MOST_WEIGHT) {
        return Err(format!("a weight is a number from 0 to {MOST_WEIGHT}"));
    }
    if all == [0; 4] {
        return Err("at least one of cost, start, capacity and health must count".to_owned());
    }
    Ok(Weights {
        cost,
        start,
        capacity,
        health,
    })
}

fn rule(text: &str) -> Result<ProviderRule, String> {
    let rule: ProviderRule = yaml(text)?;
    if rule.start_seconds.is_some_and(|said| said > LONGEST_START) {
        return Err(format!("startSeconds is at most {LONGEST_START}"));
    }
    Ok(rule)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn what_cannot_be_used_is_told_and_the_rest_is_taken() {
        let map: ConfigMap = serde_json::from_value(json!({"data": {
            "weights": "{cost: 60, health: 40}",
            "onprem": "maxGpus: 64\n",
            "cloud": "{maxGpus: 0, startSeconds: 90}",
            "a-typo": "{maxGPUs: 3}",
            "b-size": "{maxGpus: many}",
            "c-slow": "{startSeconds: 100000}",
            "d-yaml": "maxGpus: [",
            "e-less": "{maxGpus: -1}",
        }}))
        .unwrap();
        let (known, bad) = rules(Some(&map));
        assert_eq!(
            known.weights,
            Some(Weights {
                cost: 60,
                start: 0,
                capacity: 0,
                health: 40
            })
        );
        assert_eq!(known.providers["onprem"].max_gpus, Some(64));
        let cloud = known.providers["cloud"];
        assert_eq!((cloud.max_gpus, cloud.start_seconds), (Some(0), Some(90)));
        assert_eq!(known.providers.len(), 2);
        let bad: Vec<&str> = bad.iter().map(|bad| bad.name.as_str()).collect();
        assert_eq!(bad, ["a-typo", "b-size", "c-slow", "d-yaml", "e-less"]);
        assert_eq!(rules(None), (ProviderRules::default(), Vec::new()));
    }

    #[test]
    fn weights_that_say_nothing_or_too_much_are_refused() {
        for (text, says) in [
            ("{cost: 0}", "at least one"),
            ("{}", "at least one"),
            ("{cost: 1001}", "0 to 1000"),
            ("{cost: -1}", ""),
            ("{price: 3}", "price"),
            ("fast", ""),
        ] {
            let map: ConfigMap =
                serde_json::from_value(json!({"data": {"weights": text}})).unwrap();
            let (known, bad) = rules(Some(&map));
            assert_eq!(known.weights, None, "{text}");
            assert!(bad.len() == 1 && bad[0].problem.contains(says), "{bad:?}");
        }
    }
}
