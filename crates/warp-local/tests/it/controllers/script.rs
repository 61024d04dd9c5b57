//! Scenarios as data: what is done, in order, and what is compared at the end.

use std::collections::BTreeMap;

use serde::Deserialize;
use serde_json::{Value, json};
use warp_testkit::behaviour::variable;

#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(super) struct Scenario {
    pub(super) name: String,
    pub(super) steps: Vec<Step>,
    /// Why the ends differ, for the reference page; they must then differ.
    #[serde(default)]
    pub(super) differs: Option<String>,
    /// Kinds to compare that usually are not.
    #[serde(default)]
    pub(super) also: Vec<String>,
    /// Leave events out of the comparison, where their number depends on timing.
    #[serde(default)]
    pub(super) ignore_events: bool,
    /// Leave out what pods look like, where it depends on timing.
    #[serde(default)]
    pub(super) ignore_pods: bool,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(super) enum Step {
    Job(Made),
    Deployment(Made),
    ReplicaSet(Made),
    StatefulSet(Made),
    Pod(Made),
    /// Any object, as it is.
    Create(Value),
    /// A merge patch, or a strategic one.
    Patch {
        kind: String,
        name: String,
        with: Value,
        sub: Option<String>,
    },
    Delete {
        kind: String,
        name: String,
        propagation: Option<String>,
        grace: Option<u32>,
    },
    /// Waits until an object contains `has`, or is gone.
    Await {
        kind: String,
        name: String,
        has: Option<Value>,
    },
    /// Waits until some object of a kind contains `has`, whatever its name.
    AwaitAny {
        kind: String,
        has: Value,
    },
    /// Waits until exactly `count` pods of `labels` contain `has`.
    AwaitPods {
        labels: BTreeMap<String, String>,
        count: usize,
        has: Option<Value>,
    },
    /// Tells pods how to go on.
    PodsDo {
        labels: BTreeMap<String, String>,
        runs: String,
    },
    /// Gives pods other labels.
    LabelPods {
        labels: BTreeMap<String, String>,
        to: BTreeMap<String, String>,
    },
    DeletePods {
        labels: BTreeMap<String, String>,
    },
    /// Makes one object the owner of another, by uid, after both exist.
    Own {
        kind: String,
        name: String,
        owner: Owner,
    },
    /// Asks for the eviction of one pod of `labels`; `refused` when a budget does not allow it.
    Evict {
        labels: BTreeMap<String, String>,
        #[serde(default)]
        refused: bool,
    },
}

#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(super) struct Owner {
    pub(super) kind: String,
    pub(super) name: String,
    /// The name the reference gives, where it is a wrong one.
    pub(super) named: Option<String>,
    #[serde(default)]
    pub(super) blocks: bool,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(super) struct Made {
    pub(super) name: String,
    #[serde(default)]
    pub(super) runs: Option<String>,
    #[serde(default)]
    pub(super) spec: Value,
    #[serde(default)]
    pub(super) metadata: Value,
    /// Merged into the pod's spec.
    #[serde(default)]
    pub(super) pod: Value,
    #[serde(default)]
    pub(super) labels: BTreeMap<String, String>,
    #[serde(default)]
    pub(super) restart: Option<String>,
}

/// `exit 3`, `succeed`, `hang`, `succeed after 2s`: the settings of the simulated container.
pub(super) fn settings(runs: &str) -> Vec<(&'static str, String)> {
    use warp_testkit::behaviour::{BEHAVIOUR, EXIT_CODE, RUN_FOR, STOP_AFTER};
    let mut words = runs.split_whitespace();
    let mut settings = vec![(BEHAVIOUR, words.next().unwrap_or("hang").to_owned())];
    while let Some(word) = words.next() {
        match word {
            "after" => settings.push((RUN_FOR, words.next().unwrap_or("0s").to_owned())),
            "stopping" => settings.push((STOP_AFTER, words.next().unwrap_or("0s").to_owned())),
            code => settings.push((EXIT_CODE, code.to_owned())),
        }
    }
    settings
}

impl Made {
    fn container(&self, pod: bool) -> Value {
        let runs = self.runs.as_deref().unwrap_or("hang");
        let env: Vec<Value> = settings(runs)
            .into_iter()
            .map(|(key, value)| json!({ "name": variable(key), "value": value }))
            .collect();
        let mut spec = json!({
            "containers": [{ "name": "main", "image": "registry.invalid/main:1", "env": env }],
            "terminationGracePeriodSeconds": 1,
        });
        if pod || self.restart.is_some() {
            spec["restartPolicy"] = json!(self.restart.as_deref().unwrap_or("Never"));
        }
        merge(&mut spec, &self.pod);
        spec
    }

    fn object(&self, kind: &str, api_version: &str, namespace: &str) -> Value {
        let mut object = json!({
            "apiVersion": api_version, "kind": kind,
            "metadata": { "name": self.name, "namespace": namespace },
            "spec": self.spec,
        });
        merge(&mut object["metadata"], &self.metadata);
        if object["spec"].is_null() {
            object["spec"] = json!({});
        }
        object
    }

    pub(super) fn job(&self, namespace: &str) -> Value {
        let mut job = self.object("Job", "batch/v1", namespace);
        let mut template =
            json!({ "metadata": { "labels": self.labels }, "spec": self.container(true) });
        merge(&mut template, &job["spec"]["template"].clone());
        job["spec"]["template"] = template;
        job
    }

    pub(super) fn replicated(&self, kind: &str, namespace: &str) -> Value {
        let mut object = self.object(kind, "apps/v1", namespace);
        let labels = if self.labels.is_empty() {
            json!({ "app": self.name })
        } else {
            json!(self.labels)
        };
        object["spec"]["selector"] = json!({ "matchLabels": labels });
        let mut template =
            json!({ "metadata": { "labels": labels }, "spec": self.container(false) });
        merge(&mut template, &object["spec"]["template"].clone());
        object["spec"]["template"] = template;
        object
    }

    pub(super) fn pod(&self, namespace: &str) -> Value {
        let mut pod = self.object("Pod", "v1", namespace);
        pod["metadata"]["labels"] = json!(self.labels);
        let mut spec = self.container(true);
        merge(&mut spec, &self.spec);
        pod["spec"] = spec;
        pod
    }
}

/// Merges `other` into `value`: objects by key, everything else replaced.
pub(super) fn merge(value: &mut Value, other: &Value) {
    match (value, other) {
        (Value::Object(mine), Value::Object(theirs)) => {
            for (name, theirs) in theirs {
                merge(mine.entry(name.clone()).or_insert(Value::Null), theirs);
            }
        }
        (_, Value::Null) => {}
        (value, other) => *value = other.clone(),
    }
}

/// Is everything in `part` also in `whole`? A list contains a list when each element finds one that contains it.
pub(super) fn contains(whole: &Value, part: &Value) -> bool {
    match (whole, part) {
        (Value::Object(whole), Value::Object(part)) => part
            .iter()
            .all(|(name, part)| contains(whole.get(name).unwrap_or(&Value::Null), part)),
        (Value::Array(whole), Value::Array(part)) => part
            .iter()
            .all(|part| whole.iter().any(|whole| contains(whole, part))),
        (Value::Null, Value::Number(number)) => number.as_i64() == Some(0),
        (whole, part) => whole == part,
    }
}
