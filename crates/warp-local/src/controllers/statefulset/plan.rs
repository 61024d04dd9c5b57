//! What to do about one StatefulSet: one step where the order counts, all at once where it does not.

use std::collections::BTreeSet;
use std::sync::Arc;

use jiff::Timestamp;
use k8s_openapi::api::apps::v1::{ControllerRevision, StatefulSet, StatefulSetStatus};
use k8s_openapi::api::core::v1::{Pod, PodTemplateSpec};

use super::revision::{self, Which};
use super::{claims, identity};
use crate::controllers::ownership::claim;
use crate::controllers::pods;
use warp_runtime::plan::{Outcome, Plan, Removal, about};

pub(super) struct Seen<'a> {
    pub(super) set: &'a StatefulSet,
    /// The set's pods and the pods nobody controls.
    pub(super) pods: Vec<Arc<Pod>>,
    /// The set's revisions and those nobody controls.
    pub(super) revisions: Vec<Arc<ControllerRevision>>,
    /// Any pod of the namespace by name: one of another owner may stand where a pod of the set belongs.
    pub(super) pod: &'a (dyn Fn(&str) -> Option<Arc<Pod>> + Sync),
    pub(super) claim: claims::Lookup<'a>,
}

/// The place of one ordinal.
enum Place {
    Taken(Arc<Pod>),
    Empty(i32),
}

struct Pass<'a> {
    seen: &'a Seen<'a>,
    set: &'a StatefulSet,
    now: Timestamp,
    /// One pod at a time, in order.
    ordered: bool,
    min_ready: i32,
    current: Arc<ControllerRevision>,
    update: Arc<ControllerRevision>,
    places: Vec<Place>,
    /// Pods whose ordinal the set no longer has, the highest first.
    condemned: Vec<(i32, Arc<Pod>)>,
    status: StatefulSetStatus,
    plan: Plan,
}

/// The plan, and the revision it makes, if it does.
pub(super) fn plan(seen: &Seen<'_>, now: Timestamp) -> (Plan, Option<ControllerRevision>) {
    let set = seen.set;
    let mut plan = Plan::default();
    let Some(spec) = &set.spec else {
        return (plan, None);
    };
    let members = seen.pods.iter().filter(|pod| {
        let parent = identity::parse(pods::name(pod)).map(|(parent, _)| parent);
        parent == Some(identity::name_of(set))
    });
    let members: Vec<_> = members.cloned().collect();
    let mine = claim::<StatefulSet, Pod, _>(set, &spec.selector, members, &mut plan, None).mine;
    let kept = seen.revisions.clone();
    let mut revisions =
        claim::<StatefulSet, ControllerRevision, _>(set, &spec.selector, kept, &mut plan, None)
            .mine;
    revisions.sort_by_key(|revision| {
        let created = revision.metadata.creation_timestamp.as_ref();
        (
            revision.revision,
            created.map(|time| time.0),
            revision.metadata.name.clone(),
        )
    });
    let (current, update) = match revision::which(set, &revisions) {
        Which::Known { current, update } => (current, update),
        // What is being deleted needs no history.
        _ if set.metadata.deletion_timestamp.is_some() => return (plan, None),
        Which::Again(known, number) => {
            revision::renumber(&known, number, &mut plan);
            return (plan, None);
        }
        Which::New(new) => {
            plan.create(&*new, None);
            return (plan, Some(*new));
        }
    };
    let live: BTreeSet<&str> = [revision::name(&current), revision::name(&update)]
        .into_iter()
        .chain(mine.iter().map(|pod| identity::revision(pod)))
        .collect();
    let mut pass = Pass::of(seen, &mine, (current.clone(), update.clone()), now, plan);
    if set.metadata.deletion_timestamp.is_none() {
        pass.run();
        revision::forget(set, &revisions, &live, &mut pass.plan);
    }
    pass.finish();
    (pass.plan, None)
}

fn is_running_and_ready(pod: &Pod) -> bool {
    pods::phase(pod) == "Running" && pods::is_ready(pod)
}

impl<'a> Pass<'a> {
    fn of(
        seen: &'a Seen<'a>,
        mine: &[Arc<Pod>],
        (current, update): (Arc<ControllerRevision>, Arc<ControllerRevision>),
        now: Timestamp,
        plan: Plan,
    ) -> Self {
        let set = seen.set;
        let spec = set.spec.as_ref();
        let (start, size) = identity::range(set);
        let ordinal = |pod: &Pod| identity::parse(pods::name(pod)).map(|(_, ordinal)| ordinal);
        let mut places: Vec<Place> = (0..size)
            .map(|at| Place::Empty(start.saturating_add(at)))
            .collect();
        let mut condemned = Vec::new();
        for pod in mine {
            let Some(ordinal) = ordinal(pod) else {
                continue;
            };
            let at = usize::try_from(i64::from(ordinal) - i64::from(start)).ok();
            match at.and_then(|at| places.get_mut(at)) {
                Some(place) => *place = Place::Taken(pod.clone()),
                None => condemned.push((ordinal, pod.clone())),
            }
        }
        condemned.sort_by_key(|(ordinal, _)| std::cmp::Reverse(*ordinal));
        let policy = spec.and_then(|spec| spec.pod_management_policy.as_deref());
        let mut pass = Self {
            seen,
            set,
            now,
            ordered: policy != Some("Parallel"),
            min_ready: spec.and_then(|spec| spec.min_ready_seconds).unwrap_or(0),
            current,
            update,
            places,
            condemned,
            status: StatefulSetStatus::default(),
            plan,
        };
        pass.count(mine);
        pass
    }

    fn is_available(&mut self, pod: &Pod) -> bool {
        match pods::is_available(pod, self.min_ready, self.now) {
            Ok(()) => true,
            Err(Some(at)) => {
                self.plan.look_again(at);
                false
            }
            Err(None) => false,
        }
    }

    fn count(&mut self, mine: &[Arc<Pod>]) {
        let (mut ready, mut available, mut current, mut updated) = (0, 0, 0, 0);
        for pod in mine {
            if is_running_and_ready(pod) {
                ready += 1;
                available += i32::from(self.is_available(pod));
            }
            if !pods::is_terminating(pod) {
                let revision = identity::revision(pod);
                current += i32::from(revision == revision::name(&self.current));
                updated += i32::from(revision == revision::name(&self.update));
            }
        }
        let some = |number: i32| (number > 0).then_some(number);
        let known = self.set.status.as_ref();
        self.status = StatefulSetStatus {
            observed_generation: self.set.metadata.generation,
            replicas: i32::try_from(mine.len()).unwrap_or(i32::MAX),
            ready_replicas: some(ready),
            available_replicas: Some(available),
            current_replicas: some(current),
            updated_replicas: some(updated),
            current_revision: Some(revision::name(&self.current).to_owned()),
            update_revision: Some(revision::name(&self.update).to_owned()),
            collision_count: Some(known.and_then(|known| known.collision_count).unwrap_or(0)),
            conditions: known.and_then(|known| known.conditions.clone()),
        };
    }

    fn run(&mut self) {
        if self.fill() {
            return;
        }
        for (ordinal, pod) in self.condemned.clone() {
            claims::own(self.set, &pod, ordinal, self.seen.claim, &mut self.plan);
        }
        if self.shrink() {
            return;
        }
        self.roll();
    }

    /// Sees to every place in turn; true when what comes after must wait.
    fn fill(&mut self) -> bool {
        for at in 0..self.places.len() {
            let waits = match &self.places[at] {
                Place::Empty(ordinal) => {
                    let ordinal = *ordinal;
                    self.make(ordinal)
                }
                Place::Taken(pod) => {
                    let pod = pod.clone();
                    self.keep(&pod)
                }
            };
            if waits && self.ordered {
                return true;
            }
        }
        false
    }

    fn make(&mut self, ordinal: i32) -> bool {
        let (set, claim) = (self.set, self.seen.claim);
        let name = format!("{}-{ordinal}", identity::name_of(set));
        // Whoever bears the name and is not the set's must go first.
        if (self.seen.pod)(&name).is_some() || claims::obstacle(set, ordinal, claim) {
            return true;
        }
        let (revision, template) = self.made_from(ordinal);
        let pod = identity::pod(set, &template, &revision, ordinal);
        claims::make(set, ordinal, claim, &mut self.plan);
        let outcome = self.outcome("Create", &name);
        self.plan.create(&pod, Some(outcome));
        true
    }

    /// The revision a new pod is made from: below the partition the one before the update.
    fn made_from(&self, ordinal: i32) -> (String, PodTemplateSpec) {
        let spec = self.set.spec.as_ref();
        let strategy = spec.and_then(|spec| spec.update_strategy.as_ref());
        let rolls = strategy.and_then(|strategy| strategy.type_.as_deref()) != Some("OnDelete");
        let known = self.set.status.as_ref();
        let before = match strategy.and_then(|strategy| strategy.rolling_update.as_ref()) {
            Some(rolling) => rolling.partition.unwrap_or(0),
            None if rolls => known.and_then(|known| known.current_replicas).unwrap_or(0),
            None => 0,
        };
        let (start, _) = identity::range(self.set);
        let revision = if i64::from(ordinal) < i64::from(start) + i64::from(before) {
            &self.current
        } else {
            &self.update
        };
        (
            revision::name(revision).to_owned(),
            revision::template(revision).unwrap_or_default(),
        )
    }

    /// A pod that is there: replaced when it has ended, waited for when it is not ready.
    fn keep(&mut self, pod: &Arc<Pod>) -> bool {
        let Some((_, ordinal)) = identity::parse(pods::name(pod)) else {
            return false;
        };
        if pods::is_finished(pod) {
            if !pods::is_terminating(pod) {
                self.delete(pod);
            }
            return true;
        }
        let (set, claim) = (self.set, self.seen.claim);
        if pods::phase(pod) == "Pending" {
            claims::make(set, ordinal, claim, &mut self.plan);
        }
        claims::own(set, pod, ordinal, claim, &mut self.plan);
        let stands = !pods::is_terminating(pod) && is_running_and_ready(pod);
        if self.ordered && !(stands && self.is_available(pod)) {
            return true;
        }
        identity::keep(set, pod, ordinal, &mut self.plan);
        false
    }

    fn is_unavailable(&mut self, pod: &Pod) -> bool {
        pods::is_terminating(pod) || !self.is_available(pod)
    }

    /// The first pod, from the lowest ordinal, that does not serve; a place without a pod counts.
    fn first_unavailable(&mut self) -> Option<Arc<Pod>> {
        let mut all = Vec::new();
        for place in &self.places {
            match place {
                Place::Taken(pod) => all.push(pod.clone()),
                Place::Empty(_) => return None,
            }
        }
        all.extend(self.condemned.iter().rev().map(|(_, pod)| pod.clone()));
        all.into_iter().find(|pod| self.is_unavailable(pod))
    }

    /// Takes pods away, the highest ordinal first; true when what comes after must wait.
    fn shrink(&mut self) -> bool {
        let first = self.first_unavailable().map(|pod| pod.metadata.uid.clone());
        for (_, pod) in self.condemned.clone() {
            if pods::is_terminating(&pod) {
                if self.ordered {
                    return true;
                }
                continue;
            }
            let stands = is_running_and_ready(&pod) && self.is_available(&pod);
            if self.ordered && !stands && first.as_ref() != Some(&pod.metadata.uid) {
                return true;
            }
            self.delete(&pod);
            if self.ordered {
                return true;
            }
        }
        false
    }

    /// Replaces the highest pod that is not of the update, once all above it serve.
    fn roll(&mut self) {
        let spec = self.set.spec.as_ref();
        let strategy = spec.and_then(|spec| spec.update_strategy.as_ref());
        if strategy.and_then(|strategy| strategy.type_.as_deref()) == Some("OnDelete") {
            return;
        }
        let partition = strategy
            .and_then(|strategy| strategy.rolling_update.as_ref()?.partition)
            .unwrap_or(0);
        let from = usize::try_from(partition).unwrap_or(0);
        for at in (from..self.places.len()).rev() {
            let Place::Taken(pod) = &self.places[at] else {
                return;
            };
            let pod = pod.clone();
            let updated = identity::revision(&pod) == revision::name(&self.update);
            if !updated && !pods::is_terminating(&pod) {
                let left = self.status.current_replicas.unwrap_or(0);
                self.status.current_replicas = Some(left - 1).filter(|left| *left > 0);
                self.delete(&pod);
                return;
            }
            if self.is_unavailable(&pod) {
                return;
            }
        }
    }

    fn outcome(&self, verb: &str, pod: &str) -> Outcome {
        let set = identity::name_of(self.set);
        let (done, failed) = if verb == "Create" {
            ("SuccessfulCreate", "FailedCreate")
        } else {
            ("SuccessfulDelete", "FailedDelete")
        };
        let said = format!("{verb} Pod {pod} in StatefulSet {set}");
        Outcome {
            about: about(self.set),
            done: (done, format!("{said} successful").into()),
            failed: (failed, format!("{said} failed error: {{}}").into()),
        }
    }

    fn delete(&mut self, pod: &Pod) {
        let outcome = self.outcome("Delete", pods::name(pod));
        self.plan.delete(pod, Removal::default(), Some(outcome));
    }

    /// Writes the status; an update that is done is the current revision.
    fn finish(&mut self) {
        let spec = self.set.spec.as_ref();
        let (_, wanted) = identity::range(self.set);
        let strategy = spec.and_then(|spec| spec.update_strategy.as_ref());
        let rolls = strategy.and_then(|strategy| strategy.type_.as_deref()) != Some("OnDelete");
        let status = &mut self.status;
        if rolls
            && status.updated_replicas.unwrap_or(0) == wanted
            && status.ready_replicas.unwrap_or(0) == wanted
            && status.replicas == wanted
        {
            status.current_replicas = status.updated_replicas;
            status.current_revision.clone_from(&status.update_revision);
        }
        // First: a pod that is refused must not hide what is so.
        let rest = std::mem::take(&mut self.plan.actions);
        self.plan
            .status(self.set, self.set.status.as_ref(), &self.status);
        self.plan.actions.extend(rest);
    }
}
