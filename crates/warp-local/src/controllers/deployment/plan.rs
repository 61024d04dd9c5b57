//! What to do about one Deployment. A pass makes one step (scale some sets, or create one) and writes the status; the
//! change of the sets brings the next pass.

use std::collections::BTreeMap;
use std::sync::Arc;

use jiff::Timestamp;
use k8s_openapi::api::apps::v1::{Deployment, DeploymentStatus, ReplicaSet};
use serde_json::{Value, json};

use super::{replicas, revision, status};
use crate::controllers::ownership::{claim, is_empty};
use warp_runtime::plan::{Encoding, Plan, Propagation, Removal, about, as_json, merge_difference};

pub(super) struct Seen<'a> {
    pub(super) deployment: &'a Deployment,
    /// The Deployment's sets and the sets nobody controls.
    pub(super) candidates: Vec<Arc<ReplicaSet>>,
    /// Does a set still have pods that have not ended?
    pub(super) has_pods: &'a (dyn Fn(&ReplicaSet) -> bool + Sync),
}

struct Pass<'a> {
    seen: &'a Seen<'a>,
    deployment: &'a Deployment,
    /// Oldest first.
    sets: Vec<Arc<ReplicaSet>>,
    new: Option<Arc<ReplicaSet>>,
    old: Vec<Arc<ReplicaSet>>,
    revision: i64,
    status: DeploymentStatus,
    /// Set once something was scaled or created: the rest waits for the next pass.
    moved: bool,
    /// Annotations of the Deployment to write with its status.
    annotate: Option<Value>,
    now: Timestamp,
    plan: Plan,
}

pub(super) fn plan(seen: &Seen<'_>, now: Timestamp) -> Plan {
    let deployment = seen.deployment;
    let mut plan = Plan::default();
    let Some(spec) = &deployment.spec else {
        return plan;
    };
    if is_empty(&spec.selector) {
        let message = "This deployment is selecting all pods. A non-empty selector is required.";
        plan.note(about(deployment), true, "SelectingAll", message.to_owned());
        return plan;
    }
    let mut sets = claim::<Deployment, ReplicaSet, _>(
        deployment,
        &spec.selector,
        seen.candidates.clone(),
        &mut plan,
        None,
    )
    .mine;
    sets.sort_by_key(|set| revision::age(set));
    let new = revision::current(deployment, &sets).cloned();
    let old: Vec<_> = sets
        .iter()
        .filter(|set| {
            new.as_ref()
                .is_none_or(|new| new.metadata.uid != set.metadata.uid)
        })
        .cloned()
        .collect();
    let latest_old = old
        .iter()
        .map(|set| revision::revision(set))
        .max()
        .unwrap_or(0);
    let mut pass = Pass {
        seen,
        deployment,
        sets,
        new,
        old,
        revision: latest_old + 1,
        status: deployment.status.clone().unwrap_or_default(),
        moved: false,
        annotate: None,
        now,
        plan,
    };
    pass.run();
    pass.plan
}

impl Pass<'_> {
    fn run(&mut self) {
        if self.deployment.metadata.deletion_timestamp.is_some() {
            return self.write_counts();
        }
        status::tell_pause(self.deployment, &mut self.status, self.now);
        let paused = self.deployment.spec.as_ref().and_then(|spec| spec.paused) == Some(true);
        if paused || self.is_scaling() {
            self.refresh_new();
            self.scale();
            if paused {
                self.clean_up();
            }
            return self.write_counts();
        }
        if replicas::is_rolling(self.deployment) {
            self.roll();
        } else {
            self.recreate();
        }
        let counted = self.count();
        if !self.moved && status::is_complete(self.deployment, &counted) {
            self.clean_up();
        }
        let new = self.new.clone();
        let status = status::progress(
            self.deployment,
            counted,
            &self.sets,
            new.as_deref(),
            self.now,
            &mut self.plan,
        );
        self.write(&status);
    }

    fn count(&self) -> DeploymentStatus {
        status::count(
            self.deployment,
            &self.status,
            &self.sets,
            self.new.as_deref(),
            self.now,
        )
    }

    fn write_counts(&mut self) {
        let counted = self.count();
        self.write(&counted);
    }

    fn write(&mut self, status: &DeploymentStatus) {
        let annotations = self.annotate.take();
        self.plan.status_and_annotations(
            self.deployment,
            self.deployment.status.as_ref(),
            status,
            annotations,
        );
    }

    /// Was the Deployment's size changed since its sets were last sized?
    fn is_scaling(&self) -> bool {
        let wanted = replicas::wanted(self.deployment);
        self.sets
            .iter()
            .filter(|set| replicas::of(set) > 0)
            .any(|set| {
                let said = revision::annotation(&set.metadata, revision::DESIRED)
                    .and_then(|text| text.parse::<i32>().ok());
                said.is_some_and(|said| said != wanted)
            })
    }

    fn active_old(&self) -> Vec<Arc<ReplicaSet>> {
        self.old
            .iter()
            .filter(|set| replicas::of(set) > 0)
            .cloned()
            .collect()
    }

    /// Brings the annotations of the new set, and the Deployment's own revision, up to date.
    fn refresh_new(&mut self) {
        let Some(new) = self.new.clone() else { return };
        let annotations = revision::annotations(self.deployment, Some(&new), self.revision);
        let wanted_seconds = self
            .deployment
            .spec
            .as_ref()
            .and_then(|spec| spec.min_ready_seconds);
        let seconds = new.spec.as_ref().and_then(|spec| spec.min_ready_seconds);
        let mut patch = json!({});
        if let Some(change) = difference(new.metadata.annotations.as_ref(), &annotations) {
            patch["metadata"]["annotations"] = change;
        }
        if wanted_seconds.unwrap_or(0) != seconds.unwrap_or(0) {
            patch["spec"]["minReadySeconds"] = json!(wanted_seconds);
        }
        if patch != json!({}) {
            self.plan.patch(&*new, Encoding::Merge, patch);
        }
        self.set_revision(
            annotations
                .get(revision::REVISION)
                .map_or("", String::as_str),
        );
        let name = new.metadata.name.as_deref().unwrap_or_default();
        let known = status::condition(&self.status, status::PROGRESSING);
        let done = known.and_then(|known| known.reason.as_deref()) == Some(status::COMPLETE);
        if known.is_none() {
            let message = format!("Found new replica set \"{name}\"");
            self.progressing("FoundNewReplicaSet", &message);
        } else if done && self.annotate.is_some() && !annotations.contains_key(revision::HISTORY) {
            // It was made, and whoever made it did not get to say so: "done" is said of the one before.
            self.tell_created(name);
        }
    }

    fn progressing(&mut self, reason: &str, message: &str) {
        status::set(
            &mut self.status,
            status::PROGRESSING,
            "True",
            reason,
            message,
            self.now,
        );
    }

    fn tell_created(&mut self, name: &str) {
        let message = format!("Created new replica set \"{name}\"");
        self.progressing("NewReplicaSetCreated", &message);
    }

    fn set_revision(&mut self, number: &str) {
        if revision::annotation(&self.deployment.metadata, revision::REVISION) != Some(number) {
            self.annotate = Some(json!({ revision::REVISION: number }));
        }
    }

    fn create_new(&mut self) {
        let all: Vec<&ReplicaSet> = self.sets.iter().map(|set| &**set).collect();
        let size = replicas::of_new(self.deployment, &all, 0);
        let set = revision::new_set(self.deployment, size, self.revision);
        let name = set.metadata.name.clone().unwrap_or_default();
        self.plan.create(&set, None);
        if size > 0 {
            let message = format!("Scaled up replica set {name} from 0 to {size}");
            self.plan
                .note(about(self.deployment), false, "ScalingReplicaSet", message);
        }
        self.set_revision(&self.revision.to_string());
        self.tell_created(&name);
        self.moved = true;
    }

    /// Sizes a set, and writes down on it the size of the whole it was sized for.
    fn resize(&mut self, set: &ReplicaSet, size: i32) {
        let before = replicas::of(set);
        let desired = replicas::wanted(self.deployment).to_string();
        let most = replicas::most(self.deployment).to_string();
        let noted = revision::annotation(&set.metadata, revision::DESIRED) == Some(&desired)
            && revision::annotation(&set.metadata, revision::MOST) == Some(&most);
        if before == size && noted {
            return;
        }
        let mut patch = json!({ "metadata": { "annotations": { revision::DESIRED: desired, revision::MOST: most } } });
        if before != size {
            patch["spec"] = json!({ "replicas": size });
            let name = set.metadata.name.as_deref().unwrap_or_default();
            let direction = if size > before { "up" } else { "down" };
            let message = format!("Scaled {direction} replica set {name} from {before} to {size}");
            self.plan
                .note(about(self.deployment), false, "ScalingReplicaSet", message);
            self.moved = true;
        }
        self.plan.patch(set, Encoding::Merge, patch);
    }

    fn roll(&mut self) {
        let Some(new) = self.new.clone() else {
            return self.create_new();
        };
        self.refresh_new();
        let wanted = replicas::wanted(self.deployment);
        let size = replicas::of(&new);
        let all: Vec<&ReplicaSet> = self.sets.iter().map(|set| &**set).collect();
        let next = if size > wanted {
            wanted
        } else {
            replicas::of_new(self.deployment, &all, size)
        };
        if next != size {
            return self.resize(&new, next);
        }
        let old = self.active_old();
        let borrowed: Vec<&ReplicaSet> = old.iter().map(|set| &**set).collect();
        let sizes = replicas::shrink_old(self.deployment, Some(&new), &borrowed);
        for (set, size) in old.iter().zip(sizes) {
            if replicas::of(set) != size {
                self.resize(set, size);
            }
        }
    }

    fn recreate(&mut self) {
        if self.new.is_some() {
            self.refresh_new();
        }
        for set in self.active_old() {
            self.resize(&set, 0);
        }
        if self.moved || self.old.iter().any(|set| (self.seen.has_pods)(set)) {
            return;
        }
        match self.new.clone() {
            None => self.create_new(),
            Some(new) if replicas::of(&new) != replicas::wanted(self.deployment) => {
                self.resize(&new, replicas::wanted(self.deployment));
            }
            Some(_) => {}
        }
    }

    /// The Deployment's size changed, or it is paused: only sizes follow, no rollout.
    fn scale(&mut self) {
        let wanted = replicas::wanted(self.deployment);
        let active: Vec<_> = self
            .sets
            .iter()
            .filter(|set| replicas::of(set) > 0)
            .cloned()
            .collect();
        let only = match active.as_slice() {
            [] => self.new.clone().or_else(|| self.old.last().cloned()),
            [one] => Some(one.clone()),
            _ => None,
        };
        if let Some(only) = only {
            if replicas::of(&only) != wanted {
                self.resize(&only, wanted);
            }
            return;
        }
        let saturated = self.new.as_ref().is_some_and(|new| {
            let said = revision::annotation(&new.metadata, revision::DESIRED)
                .and_then(|text| text.parse().ok());
            replicas::of(new) == wanted
                && said == Some(wanted)
                && replicas::available(new) == wanted
        });
        if saturated {
            for set in self.active_old() {
                self.resize(&set, 0);
            }
        } else if replicas::is_rolling(self.deployment) {
            self.scale_in_proportion(active);
        }
    }

    fn scale_in_proportion(&mut self, mut active: Vec<Arc<ReplicaSet>>) {
        let total: i32 = active.iter().map(|set| replicas::of(set)).sum();
        let allowed = if replicas::wanted(self.deployment) > 0 {
            replicas::most(self.deployment)
        } else {
            0
        };
        // Largest first; among equals the newer first when growing, the older first when shrinking.
        active.sort_by_key(|set| revision::age(set));
        if allowed > total {
            active.reverse();
        }
        active.sort_by_key(|set| std::cmp::Reverse(replicas::of(set)));
        let shapes: Vec<_> = active
            .iter()
            .map(|set| {
                let most = revision::annotation(&set.metadata, revision::MOST)
                    .and_then(|text| text.parse().ok());
                (replicas::of(set), most)
            })
            .collect();
        for (set, size) in active
            .iter()
            .zip(replicas::proportional(self.deployment, &shapes))
        {
            self.resize(set, size);
        }
    }

    /// Deletes the oldest sets beyond the history that is kept.
    fn clean_up(&mut self) {
        let Some(limit) = self
            .deployment
            .spec
            .as_ref()
            .and_then(|spec| spec.revision_history_limit)
        else {
            return;
        };
        let mut dead: Vec<_> = self
            .old
            .iter()
            .filter(|set| {
                let status = set.status.clone().unwrap_or_default();
                status.replicas == 0
                    && replicas::of(set) == 0
                    && set.metadata.deletion_timestamp.is_none()
                    && set.metadata.generation <= status.observed_generation
            })
            .cloned()
            .collect();
        dead.sort_by_key(|set| revision::revision(set));
        let too_many = dead
            .len()
            .saturating_sub(usize::try_from(limit).unwrap_or(usize::MAX));
        for set in dead.into_iter().take(too_many) {
            let options = Removal {
                grace_seconds: None,
                propagation: Some(Propagation::Background),
            };
            self.plan.delete(&*set, options, None);
        }
    }
}

fn difference(
    old: Option<&BTreeMap<String, String>>,
    new: &BTreeMap<String, String>,
) -> Option<serde_json::Value> {
    let old = old.map_or_else(|| json!({}), as_json);
    merge_difference(&old, &as_json(new))
}
