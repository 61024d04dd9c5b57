use std::sync::Arc;

use jiff::Timestamp;
use k8s_openapi::api::apps::v1::{Deployment, ReplicaSet};
use proptest::prelude::*;
use serde_json::json;

use super::plan::{Seen, plan};
use super::{replicas, revision};
use warp_runtime::plan::{Action, Plan};

fn deployment(size: i32, surge: i32, unavailable: i32) -> Deployment {
    serde_json::from_value(json!({
        "metadata": { "name": "web", "namespace": "n", "uid": "d", "generation": 1 },
        "spec": {
            "replicas": size, "selector": { "matchLabels": { "app": "web" } }, "revisionHistoryLimit": 10,
            "progressDeadlineSeconds": 600,
            "strategy": { "type": "RollingUpdate", "rollingUpdate": { "maxSurge": surge, "maxUnavailable": unavailable } },
            "template": { "metadata": { "labels": { "app": "web" } }, "spec": { "containers": [{ "name": "c", "image": "i:1" }] } }
        }
    }))
    .unwrap()
}

/// An API server and ReplicaSets that always get their pods: some of them available.
struct World {
    deployment: Deployment,
    sets: Vec<ReplicaSet>,
}

impl World {
    fn pass(&mut self) -> Plan {
        let candidates = self.sets.iter().cloned().map(Arc::new).collect();
        let seen = Seen {
            deployment: &self.deployment,
            candidates,
            has_pods: &|_| false,
        };
        let plan = plan(&seen, Timestamp::UNIX_EPOCH);
        for action in &plan.actions {
            self.apply(action);
        }
        plan
    }

    fn apply(&mut self, action: &Action) {
        match action {
            Action::Create { object, .. } => {
                let mut set: ReplicaSet = serde_json::from_value(object.clone()).unwrap();
                set.metadata.uid = set.metadata.name.clone();
                let number = i64::try_from(self.sets.len()).unwrap();
                set.metadata.creation_timestamp =
                    Some(Timestamp::from_second(number).unwrap().into());
                self.sets.push(set);
            }
            Action::Patch {
                key,
                sub: None,
                patch,
                ..
            } => {
                let set = self
                    .sets
                    .iter_mut()
                    .find(|set| set.metadata.name.as_deref() == Some(&key.name))
                    .unwrap();
                if let Some(size) = patch["spec"]["replicas"].as_i64() {
                    set.spec.as_mut().unwrap().replicas = Some(i32::try_from(size).unwrap());
                }
                let annotations = patch["metadata"]["annotations"]
                    .as_object()
                    .cloned()
                    .unwrap_or_default();
                for (name, value) in annotations {
                    set.metadata
                        .annotations
                        .get_or_insert_default()
                        .insert(name, value.as_str().unwrap().to_owned());
                }
            }
            Action::Delete { key, .. } => self
                .sets
                .retain(|set| set.metadata.name.as_deref() != Some(&key.name)),
            _ => {}
        }
    }

    /// Pods start: at most `most` per set become available.
    fn start(&mut self, most: i32) {
        for set in &mut self.sets {
            let size = replicas::of(set);
            let mut status = set.status.clone().unwrap_or_default();
            status.replicas = size;
            status.available_replicas =
                Some((status.available_replicas.unwrap_or(0) + most).min(size));
            set.status = Some(status);
        }
    }

    fn sizes(&self) -> Vec<i32> {
        self.sets.iter().map(replicas::of).collect()
    }

    fn change(&mut self, image: &str) {
        let spec = self.deployment.spec.as_mut().unwrap();
        spec.template.spec.as_mut().unwrap().containers[0].image = Some(image.to_owned());
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(40))]
    /// At every step of a rollout no more pods exist and no fewer are available than the strategy allows, and it ends
    /// with the newest set alone.
    #[test]
    fn a_rollout_stays_within_its_bounds_and_ends(
        size in 1..12i32, surge in 0..5i32, unavailable in 0..5i32,
        starts in proptest::collection::vec(0..4i32, 60), change_at in 5..40usize,
    ) {
        let mut world = World { deployment: deployment(size, surge, unavailable), sets: Vec::new() };
        world.pass();
        world.start(size);
        let (surge, unavailable) = replicas::bounds(&world.deployment);
        world.change("i:2");
        for (turn, started) in starts.into_iter().enumerate() {
            if turn == change_at {
                world.change("i:3");
            }
            world.pass();
            prop_assert!(world.sizes().iter().sum::<i32>() <= size + surge, "{:?}", world.sizes());
            // What is scaled down takes unavailable pods first.
            for set in &mut world.sets {
                let left = replicas::of(set).min(replicas::available(set));
                if let Some(status) = &mut set.status {
                    status.available_replicas = Some(left);
                }
            }
            let available: i32 = world.sets.iter().map(replicas::available).sum();
            prop_assert!(available >= size - unavailable, "{available} of {size}");
            world.start(started);
        }
        for _ in 0..60 {
            world.pass();
            world.start(size);
        }
        let current: Vec<_> = world.sets.iter().cloned().map(Arc::new).collect();
        let newest = revision::current(&world.deployment, &current).unwrap();
        prop_assert_eq!(replicas::of(newest), size);
        prop_assert_eq!(world.sizes().iter().sum::<i32>(), size);
        let quiet = world.pass().actions.iter().all(|action| matches!(action, Action::Patch { sub: Some("status"), .. }));
        prop_assert!(quiet, "a finished rollout still moves");
    }

    /// Whatever the sizes, proportional scaling gives every set its share and the whole what is allowed.
    #[test]
    fn proportional_scaling_adds_up(sizes in proptest::collection::vec(1..20i32, 2..5), wanted in 0..60i32, surge in 0..6i32) {
        let mut sizes = sizes;
        sizes.sort_unstable_by(|one, other| other.cmp(one));
        let total: i32 = sizes.iter().sum();
        let deployment = deployment(wanted, surge, 1);
        let shapes: Vec<_> = sizes.iter().map(|size| (*size, Some(total))).collect();
        let scaled = replicas::proportional(&deployment, &shapes);
        let allowed = if wanted > 0 { wanted + surge } else { 0 };
        prop_assert_eq!(scaled.iter().sum::<i32>(), allowed, "{:?} -> {:?}", sizes, &scaled);
        prop_assert!(scaled.iter().all(|size| *size >= 0));
    }
}

#[test]
fn going_back_to_an_old_template_keeps_its_history() {
    let mut world = World {
        deployment: deployment(1, 1, 0),
        sets: Vec::new(),
    };
    world.pass();
    world.start(1);
    world.change("i:2");
    for _ in 0..6 {
        world.pass();
        world.start(1);
    }
    world.change("i:1");
    for _ in 0..6 {
        world.pass();
        world.start(1);
    }
    let annotations = world.sets[0].metadata.annotations.clone().unwrap();
    assert_eq!(annotations[revision::REVISION], "3");
    assert_eq!(annotations[revision::HISTORY], "1");
}

#[test]
fn the_hash_of_a_template_spells_no_word_and_differs_after_a_collision() {
    let template = deployment(1, 1, 0).spec.unwrap().template;
    let (plain, after) = (
        revision::hash(&template, None),
        revision::hash(&template, Some(1)),
    );
    assert_ne!(plain, after);
    assert!(
        plain.chars().all(|letter| !"aeiou013".contains(letter)),
        "{plain}"
    );
}

#[test]
fn as_many_replicas_as_a_number_can_say_are_no_overflow() {
    let huge = deployment(i32::MAX, 5, 0);
    assert_eq!(replicas::most(&huge), i32::MAX);
    assert_eq!(replicas::of_new(&huge, &[], 0), i32::MAX);
    assert_eq!(
        replicas::proportional(&huge, &[(i32::MAX, Some(1)), (i32::MAX, Some(1))]),
        [i32::MAX, i32::MAX]
    );
}
