use std::collections::BTreeMap;
use std::sync::Arc;

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::batch::v1::{Job, JobStatus};
use k8s_openapi::api::core::v1::Pod;
use proptest::prelude::*;
use serde_json::{Value, json};

use super::plan::{Backoff, Seen, plan};
use super::{FINALIZER, status};
use crate::controllers::ownership::controller_reference;
use warp_runtime::plan::{Action, Plan};

fn job(spec: &Value) -> Job {
    let mut whole = json!({
        "selector": { "matchLabels": { "job": "j" } },
        "template": { "metadata": { "labels": { "job": "j" } }, "spec": { "containers": [{ "name": "c" }], "restartPolicy": "Never" } },
        "parallelism": 1, "completions": 1, "backoffLimit": 6
    });
    for (name, value) in spec.as_object().unwrap() {
        whole[name] = value.clone();
    }
    serde_json::from_value(
        json!({ "metadata": { "name": "j", "namespace": "n", "uid": "job" }, "spec": whole }),
    )
    .unwrap()
}

/// An API server, a kubelet and a clock in one: applies plans to a Job and its pods.
struct World {
    job: Job,
    pods: BTreeMap<String, Pod>,
    backoff: Backoff,
    now: Timestamp,
    made: usize,
    /// Every uid that ever stood in the status as succeeded or failed.
    again: Option<Timestamp>,
}

impl World {
    fn new(spec: &Value) -> Self {
        let now = Timestamp::from_second(1_700_000_000).unwrap();
        Self {
            job: job(spec),
            pods: BTreeMap::new(),
            backoff: Backoff::default(),
            now,
            made: 0,
            again: None,
        }
    }

    fn status(&self) -> JobStatus {
        self.job.status.clone().unwrap_or_default()
    }

    /// One pass; only the first `most` actions are carried out, as if the controller had died then.
    fn pass(&mut self, most: usize) -> Plan {
        let candidates = self.pods.values().cloned().map(Arc::new).collect();
        let seen = Seen {
            job: &self.job,
            candidates,
            backoff: self.backoff,
        };
        let (plan, backoff) = plan(&seen, self.now);
        self.backoff = backoff;
        self.again = plan.again;
        for action in plan.actions.iter().take(most) {
            self.apply(action);
        }
        plan
    }

    fn apply(&mut self, action: &Action) {
        match action {
            Action::Create { object, .. } => {
                self.made += 1;
                let mut pod: Pod = serde_json::from_value(object.clone()).unwrap();
                let name = format!("p{:03}", self.made);
                pod.metadata.name = Some(name.clone());
                pod.metadata.uid = Some(name.clone());
                pod.metadata.creation_timestamp = Some(self.now.into());
                pod.status = Some(serde_json::from_value(json!({ "phase": "Running" })).unwrap());
                self.pods.insert(name, pod);
            }
            Action::Delete { key, .. } => {
                let pod = self.pods.get_mut(&*key.name).unwrap();
                pod.metadata.deletion_timestamp = Some(self.now.into());
            }
            Action::Patch {
                key,
                sub: Some("status"),
                patch,
                ..
            } if &*key.name == "j" => {
                let mut whole = json!(self.status());
                json_merge(&mut whole, &patch["status"]);
                self.job.status = Some(serde_json::from_value(whole).unwrap());
            }
            Action::Patch { key, patch, .. } => {
                assert_eq!(
                    patch["metadata"]["$deleteFromPrimitiveList/finalizers"],
                    json!([FINALIZER])
                );
                let pod = self.pods.get_mut(&*key.name).unwrap();
                pod.metadata
                    .finalizers
                    .get_or_insert_default()
                    .retain(|name| name != FINALIZER);
            }
            Action::Sub { .. } | Action::Apply { .. } | Action::Status(_) => {
                panic!("a Job has no business there")
            }
            Action::Note(_) => {}
        }
        self.pods.retain(|_, pod| {
            pod.metadata.deletion_timestamp.is_none()
                || pod
                    .metadata
                    .finalizers
                    .iter()
                    .flatten()
                    .any(|name| name == FINALIZER)
        });
    }

    fn finish(&mut self, name: &str, phase: &str, code: i32) {
        let pod = self.pods.get_mut(name).unwrap();
        pod.status = Some(
            serde_json::from_value(json!({
                "phase": phase,
                "containerStatuses": [{ "name": "c", "image": "", "imageID": "", "ready": false, "restartCount": 0,
                    "state": { "terminated": { "exitCode": code, "finishedAt": self.now } } }]
            }))
            .unwrap(),
        );
    }

    fn running(&self) -> Vec<String> {
        let runs = |pod: &&Pod| {
            pod.status
                .as_ref()
                .and_then(|status| status.phase.as_deref())
                == Some("Running")
                && pod.metadata.deletion_timestamp.is_none()
        };
        self.pods
            .values()
            .filter(runs)
            .map(|pod| pod.metadata.name.clone().unwrap())
            .collect()
    }

    fn settle(&mut self) {
        for _ in 0..20 {
            let before = (
                json!(self.job),
                json!(self.pods.values().collect::<Vec<_>>()),
            );
            self.pass(usize::MAX);
            if before
                == (
                    json!(self.job),
                    json!(self.pods.values().collect::<Vec<_>>()),
                )
            {
                return;
            }
        }
        panic!("the Job does not come to rest: {:?}", self.status());
    }
}

fn json_merge(value: &mut Value, patch: &Value) {
    let Value::Object(patch) = patch else {
        return *value = patch.clone();
    };
    if !value.is_object() {
        *value = json!({});
    }
    for (name, patch) in patch {
        if patch.is_null() {
            value.as_object_mut().unwrap().remove(name);
        } else {
            json_merge(&mut value[name], patch);
        }
    }
}

fn ended(world: &World) -> Option<(String, String)> {
    let condition = status::finished(&world.job)?;
    Some((
        condition.type_.clone(),
        condition.reason.clone().unwrap_or_default(),
    ))
}

#[test]
fn a_failed_pod_is_replaced_only_after_its_delay() {
    let mut world = World::new(&json!({}));
    world.settle();
    world.finish("p001", "Failed", 1);
    world.settle();
    assert!(world.running().is_empty());
    assert_eq!(world.again, Some(world.now + SignedDuration::from_secs(10)));
    world.now += SignedDuration::from_secs(10);
    world.settle();
    assert_eq!(world.running(), ["p002"]);
    world.finish("p002", "Failed", 1);
    world.settle();
    assert_eq!(world.again, Some(world.now + SignedDuration::from_secs(20)));
}

#[test]
fn a_pod_nobody_owns_is_adopted_with_the_finalizer_that_counts_it() {
    let mut world = World::new(&json!({}));
    let stray: Pod = serde_json::from_value(json!({
        "metadata": { "name": "stray", "namespace": "n", "uid": "stray", "labels": { "job": "j" } },
        "spec": { "containers": [] }, "status": { "phase": "Running" }
    }))
    .unwrap();
    world.pods.insert("stray".to_owned(), stray);
    let candidates = world.pods.values().cloned().map(Arc::new).collect();
    let (plan, _) = plan(
        &Seen {
            job: &world.job,
            candidates,
            backoff: Backoff::default(),
        },
        world.now,
    );
    let Some(Action::Patch { patch, .. }) = plan.actions.first() else {
        panic!("{plan:?}")
    };
    assert_eq!(patch["metadata"]["finalizers"], json!([FINALIZER]));
    assert_eq!(
        patch["metadata"]["ownerReferences"],
        json!([controller_reference(&world.job)])
    );
    assert!(
        !plan
            .actions
            .iter()
            .any(|action| matches!(action, Action::Create { .. }))
    );
}

#[test]
fn a_quiet_job_is_left_alone() {
    let mut world = World::new(&json!({ "parallelism": 3, "completions": 5 }));
    world.settle();
    assert!(world.pass(0).actions.is_empty());
}

#[derive(Clone, Debug)]
enum Turn {
    /// A pass that dies after this many actions.
    Pass(usize),
    Succeed(usize),
    Fail(usize),
    Wait,
}

fn turns() -> impl Strategy<Value = Vec<Turn>> {
    let turn = prop_oneof![
        4 => (0..8usize).prop_map(Turn::Pass),
        2 => (0..4usize).prop_map(Turn::Succeed),
        1 => (0..4usize).prop_map(Turn::Fail),
        1 => Just(Turn::Wait),
    ];
    proptest::collection::vec(turn, 0..60)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]
    /// However often the controller dies between two writes, every pod that ended is counted exactly once, and no more
    /// pods run than are wanted.
    #[test]
    fn every_end_is_counted_once_whatever_write_was_the_last(indexed: bool, turns in turns()) {
        let mode = if indexed { "Indexed" } else { "NonIndexed" };
        let spec = json!({ "parallelism": 3, "completions": 6, "backoffLimit": 1000, "completionMode": mode });
        let mut world = World::new(&spec);
        let (mut succeeded, mut failed) = (0, 0);
        for turn in turns {
            match turn {
                Turn::Pass(most) => drop(world.pass(most)),
                Turn::Wait => world.now += SignedDuration::from_mins(20),
                Turn::Succeed(which) => if let Some(name) = world.running().get(which).cloned() {
                    world.finish(&name, "Succeeded", 0);
                    succeeded += 1;
                },
                Turn::Fail(which) => if let Some(name) = world.running().get(which).cloned() {
                    world.finish(&name, "Failed", 1);
                    failed += 1;
                },
            }
            prop_assert!(world.running().len() <= 3);
        }
        world.settle();
        let status = world.status();
        prop_assert_eq!(status.failed.unwrap_or(0), failed);
        prop_assert_eq!(status.succeeded.unwrap_or(0), succeeded);
        prop_assert_eq!(ended(&world).is_some(), succeeded >= 6);
        prop_assert!(status.uncounted_terminated_pods.is_some_and(|open| open.succeeded.is_none() && open.failed.is_none()));
    }
}
