//! Copies that span nodes: which pods are one copy, how many nodes it takes, the StatefulSets it is made of, and when it is
//! started again. A copy is a leader that answers and workers that help it; they have their places together and end together.
//! Pure.

use std::collections::BTreeMap;
use std::sync::Arc;

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::apps::v1::StatefulSet;
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::{Resource, ResourceExt};
use serde_json::{Value, json};
use warp_api::inferenceservice::{EngineKind, GroupStatus, InferenceServiceSpec, MultiNode};
use warp_api::workload::GpuAsk;
use warp_api::{InferenceService, label, reason};
use warp_runtime::driver::later;
use warp_runtime::plan::{Plan, about};

use super::assess::{Numbers, is_ready, transition};
use super::copies::{self, goes, waits};
use super::objects::{self, CONTAINER};
use super::observe::{NodeGpus, Seen};
use crate::ledger::finished;
use crate::workload::evict_pod;

/// Longest name of a service whose copies span nodes: those of its StatefulSets become labels, with a hash.
const LONGEST_NAME: usize = 44;
/// How long only some of a group may have a place: they get it one after the other.
const HALF_PLACED: SignedDuration = SignedDuration::from_secs(10);
/// How long a group is left alone that was started again; twice as long each time, up to the longest.
const PAUSE: i64 = 10;
const LONGEST_PAUSE: i64 = 300;
/// How long pods of a group that is started again may take to be seen going before they are asked to once more.
const TO_GO: SignedDuration = SignedDuration::from_secs(5);
/// A group that has answered for so long has no past.
const SOUND: SignedDuration = SignedDuration::from_mins(10);
/// Which member of its StatefulSet a pod is.
const INDEX: &str = "apps.kubernetes.io/pod-index";

/// What a pod of a group does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Role {
    Leader,
    Worker,
}

impl Role {
    pub(super) fn as_str(self) -> &'static str {
        match self {
            Self::Leader => "leader",
            Self::Worker => "worker",
        }
    }
}

/// Over how many nodes a copy spans: one, if a node that is there has all its GPUs, or if it cannot be spread.
pub(super) fn span(spec: &InferenceServiceSpec, ask: &GpuAsk, nodes: &[NodeGpus]) -> u32 {
    let split = spec.split();
    let engine = matches!(spec.engine.kind, EngineKind::Vllm | EngineKind::Simulated);
    let asked = spec.multi_node.unwrap_or_default() == MultiNode::Auto;
    if !engine || !asked || split.data != 1 || split.pipeline < 2 {
        return 1;
    }
    let fitting = nodes.iter().filter(|node| ask.met_by(&node.device));
    let most = fitting.map(|node| node.device.count).max().unwrap_or(0);
    let (all, stages) = (
        u64::from(ask.count),
        u64::try_from(split.pipeline).unwrap_or(1),
    );
    if most == 0 || most >= all {
        return 1;
    }
    let found = (2..=stages).find(|nodes| stages % nodes == 0 && all / nodes <= most);
    found.map_or(1, |nodes| u32::try_from(nodes).unwrap_or(1))
}

/// Why a service whose copies span nodes cannot be.
pub(super) fn refusal(service: &InferenceService) -> Option<String> {
    let long = service.name_any().len() > LONGEST_NAME;
    long.then(|| {
        format!(
            "a copy spans several nodes, and then a service's name is at most {LONGEST_NAME} characters: give it a shorter one, or set spec.multiNode to never"
        )
    })
}

fn leader_set(service: &str, copy: u32) -> String {
    format!("{service}-{copy}")
}

fn worker_set(service: &str, copy: u32) -> String {
    format!("{service}-{copy}-w")
}

/// The Service that gives the pods of all groups names.
pub(super) fn names(service: &str) -> String {
    format!("{service}-nodes")
}

/// Which copy of a service a pod belongs to, and as what. Labels are anybody's to write: its StatefulSet says the same.
pub(super) fn member_of(pod: &Pod, service: &str) -> Option<(u32, Role)> {
    let copy: u32 = pod.labels().get(label::SERVING_COPY)?.parse().ok()?;
    let owners = pod.metadata.owner_references.iter().flatten();
    let mut owners = owners.filter(|owner| owner.controller == Some(true));
    let owner = owners.find(|owner| owner.kind == "StatefulSet")?;
    if owner.name == leader_set(service, copy) {
        Some((copy, Role::Leader))
    } else if owner.name == worker_set(service, copy) {
        Some((copy, Role::Worker))
    } else {
        None
    }
}

fn index(pod: &Pod) -> u32 {
    let index = pod.labels().get(INDEX);
    index.and_then(|index| index.parse().ok()).unwrap_or(0)
}

/// The pods of the copy that `pod` belongs to, the leader first; none where a copy is one pod.
pub(super) fn members(pods: &[Arc<Pod>], pod: &Pod, service: &str) -> Vec<Arc<Pod>> {
    match member_of(pod, service) {
        Some((copy, _)) => of_copy(pods, copy, service),
        None => Vec::new(),
    }
}

/// The pods of one copy, the leader first.
pub(super) fn of_copy(pods: &[Arc<Pod>], copy: u32, service: &str) -> Vec<Arc<Pod>> {
    let of_copy = pods
        .iter()
        .filter_map(|pod| Some((member_of(pod, service)?, pod)));
    let mut found: Vec<_> = of_copy
        .filter(|((of, _), _)| *of == copy)
        .map(|((_, role), pod)| (role, index(pod), Arc::clone(pod)))
        .collect();
    found.sort_by_key(|(role, index, _)| (*role, *index));
    found.into_iter().map(|(_, _, pod)| pod).collect()
}

/// Whether all pods of a group are there and wait for their places.
pub(super) fn all_wait(group: &[Arc<Pod>]) -> bool {
    group.iter().all(|pod| waits(pod)) && is_whole(group)
}

fn is_whole(group: &[Arc<Pod>]) -> bool {
    let said = group.first().and_then(|pod| {
        let nodes = pod.labels().get(label::SERVING_NODES)?;
        nodes.parse::<usize>().ok()
    });
    said == Some(group.len())
}

/// The Service in front of nobody: it gives every pod of a group a name before it answers.
pub(super) fn names_service(service: &InferenceService) -> Value {
    let name = names(&service.name_any());
    let mut meta = objects::owned(service);
    meta["name"] = json!(name);
    json!({
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": meta,
        "spec": {
            "clusterIP": "None",
            "publishNotReadyAddresses": true,
            "selector": { label::INFERENCE_SERVICE: service.name_any() },
        },
    })
}

/// The StatefulSets of one copy. Their pods are replaced by us alone: a group goes as a whole.
pub(super) fn sets(service: &InferenceService, rendered: &Value, copy: u32) -> [Value; 2] {
    let name = service.name_any();
    let nodes = rendered["nodes"].as_u64().unwrap_or(1);
    [
        (Role::Leader, leader_set(&name, copy), 1, 0, "template"),
        (
            Role::Worker,
            worker_set(&name, copy),
            nodes.saturating_sub(1),
            1,
            "workers",
        ),
    ]
    .map(|(role, set, replicas, start, template)| {
        let own = json!({
            label::INFERENCE_SERVICE: name,
            label::SERVING_COPY: copy.to_string(),
            label::SERVING_ROLE: role.as_str(),
        });
        let mut meta = objects::owned(service);
        meta["name"] = json!(set);
        meta["annotations"] = json!({ label::RENDERED: rendered.to_string() });
        meta["labels"][label::SERVING_COPY] = json!(copy.to_string());
        meta["labels"][label::SERVING_ROLE] = json!(role.as_str());
        let mut template = rendered[template].clone();
        template["metadata"]["labels"][label::SERVING_COPY] = json!(copy.to_string());
        let leader = format!("{}-0.{}", leader_set(&name, copy), names(&name));
        if let Some(env) = template
            .pointer_mut("/spec/containers/0/env")
            .and_then(Value::as_array_mut)
        {
            env.insert(0, json!({ "name": "MASTER_ADDR", "value": leader }));
        }
        json!({
            "apiVersion": "apps/v1",
            "kind": "StatefulSet",
            "metadata": meta,
            "spec": {
                "serviceName": names(&name),
                "replicas": replicas,
                "ordinals": { "start": start },
                "podManagementPolicy": "Parallel",
                "updateStrategy": { "type": "OnDelete" },
                "revisionHistoryLimit": 2,
                "selector": { "matchLabels": own },
                "template": template,
            },
        })
    })
}

/// The StatefulSets that are not wanted: all, or those of copies beyond a number.
pub(super) fn surplus<'a>(
    service: &InferenceService,
    seen: &'a Seen,
    wanted: u32,
) -> impl Iterator<Item = &'a Arc<StatefulSet>> {
    let name = service.name_any();
    let names: Vec<String> = (0..wanted)
        .flat_map(|copy| [leader_set(&name, copy), worker_set(&name, copy)])
        .collect();
    let sets = seen.sets.iter();
    let sets = sets.filter(|set| set.meta().deletion_timestamp.is_none());
    sets.filter(move |set| !names.contains(&set.name_any()))
}

/// Copies there are StatefulSets for; none where there are none.
pub(super) fn current(seen: &Seen) -> Option<u32> {
    let leads = |set: &StatefulSet| {
        let role = set.labels().get(label::SERVING_ROLE);
        role.is_some_and(|role| role == Role::Leader.as_str())
    };
    let leaders = seen.sets.iter().filter(|set| leads(set));
    let leaders = leaders.filter(|set| set.meta().deletion_timestamp.is_none());
    let count = leaders.count();
    (count > 0).then(|| u32::try_from(count).unwrap_or(u32::MAX))
}

/// One copy as it stands.
struct Group<'a> {
    name: String,
    pods: Vec<&'a Arc<Pod>>,
    /// Some pod of it was made from another template than its StatefulSet has now.
    old: bool,
    known: Option<&'a GroupStatus>,
}

impl Group<'_> {
    fn leader(&self) -> Option<&Pod> {
        let leads = |pod: &&&Arc<Pod>| {
            pod.labels().get(label::SERVING_ROLE).map(String::as_str) == Some("leader")
        };
        self.pods.iter().find(leads).map(|pod| &***pod)
    }

    fn is_ready(&self) -> bool {
        self.leader().is_some_and(is_ready)
    }

    /// What broke it, if anything did; or when that may be said.
    fn broken(&self, now: Timestamp) -> Result<Option<String>, Timestamp> {
        for pod in self.pods.iter().filter(|pod| !goes(pod)) {
            let status = pod.status.as_ref();
            let engine = status.and_then(|status| {
                let statuses = status.container_statuses.iter().flatten();
                statuses.into_iter().find(|one| one.name == CONTAINER)
            });
            if engine.is_some_and(|engine| engine.restart_count > 0) || finished(pod) {
                return Ok(Some(format!("{} ended", pod.name_any())));
            }
        }
        let waiting = self.pods.iter().filter(|pod| waits(pod)).count();
        if waiting == 0 || waiting == self.pods.len() {
            return Ok(None);
        }
        // Some have a place and some do not: they were let go a moment ago, or one was lost.
        let placed = self
            .pods
            .iter()
            .filter(|pod| !waits(pod) && !goes(pod))
            .filter_map(|pod| {
                transition(pod, "PodScheduled").or(pod.creation_timestamp().map(|time| time.0))
            });
        match placed.max().map(|at| later(at, HALF_PLACED)) {
            Some(at) if at > now => Err(at),
            Some(_) => Ok(Some(format!("{waiting} of its pods lost their place"))),
            None => Ok(None),
        }
    }

    /// Pods made before a moment, by at least a second: that is how exact the API's times are.
    fn older_than(&self, moment: Timestamp) -> Vec<Arc<Pod>> {
        let second = SignedDuration::from_secs(1);
        let pods = self.pods.iter().filter(|pod| !goes(pod));
        let old = pods.filter(|pod| {
            let made = pod.creation_timestamp();
            made.is_some_and(|made| later(made.0, second) <= moment)
        });
        old.map(|pod| Arc::clone(pod)).collect()
    }

    fn pause(&self) -> SignedDuration {
        let times = self.known.map_or(0, |known| known.restarts).clamp(0, 10);
        let seconds = PAUSE.saturating_mul(1 << times).min(LONGEST_PAUSE);
        SignedDuration::from_secs(if times == 0 { 0 } else { seconds })
    }
}

fn groups<'a>(service: &'a InferenceService, seen: &'a Seen, wanted: u32) -> Vec<Group<'a>> {
    let name = service.name_any();
    let mut pods: BTreeMap<u32, Vec<&Arc<Pod>>> = BTreeMap::new();
    for pod in seen.pods.iter().chain(&seen.workers) {
        if let Some((copy, _)) = member_of(pod, &name) {
            pods.entry(copy).or_default().push(pod);
        }
    }
    let known = service.status.iter().flat_map(|status| &status.groups);
    let known: Vec<&GroupStatus> = known.collect();
    (0..wanted)
        .map(|copy| {
            let set = leader_set(&name, copy);
            let pods = pods.remove(&copy).unwrap_or_default();
            Group {
                old: pods.iter().any(|pod| is_old(pod, seen)),
                known: known.iter().find(|known| known.name == set).copied(),
                name: set,
                pods,
            }
        })
        .collect()
}

/// Whether a pod's StatefulSet has another template than the pod was made from.
fn is_old(pod: &Pod, seen: &Seen) -> bool {
    let owners = pod.metadata.owner_references.iter().flatten();
    let mut owners = owners.filter(|owner| owner.controller == Some(true));
    let set = owners.find_map(|owner| seen.sets.iter().find(|set| set.name_any() == owner.name));
    let Some(set) = set else { return false };
    let status = set.status.as_ref();
    let known = status.and_then(|status| status.observed_generation) >= set.meta().generation;
    let newest = status.and_then(|status| status.update_revision.as_ref());
    known && newest.is_some() && pod.labels().get("controller-revision-hash") != newest
}

/// What the groups come to.
pub(super) fn numbers(service: &InferenceService, seen: &Seen, wanted: u32) -> Numbers {
    let all = groups(service, seen, wanted);
    let count = |number: usize| i32::try_from(number).unwrap_or(i32::MAX);
    let settled = seen.sets.iter().all(|set| {
        let status = set.status.as_ref();
        status.and_then(|status| status.observed_generation) >= set.meta().generation
    });
    let updated = all.iter().filter(|group| {
        let whole = group.leader().is_some_and(|leader| !goes(leader));
        whole && !group.old
    });
    Numbers {
        total: count(seen.pods.iter().filter(|pod| !goes(pod)).count()),
        ready: count(seen.pods.iter().filter(|pod| is_ready(pod)).count()),
        updated: if settled { count(updated.count()) } else { 0 },
    }
}

/// What is said of every group, and which of their pods go.
#[derive(Debug, Default)]
pub(super) struct Tended {
    pub(super) groups: Vec<GroupStatus>,
    going: Vec<Arc<Pod>>,
    /// Groups that answered, and that are of the newest spec, of those that go.
    pub(super) ready: i32,
    pub(super) updated: i32,
}

impl Tended {
    /// A group that goes serves nobody for long.
    fn count(&mut self, group: &Group<'_>) {
        let whole = group.leader().is_some_and(|leader| !goes(leader));
        self.ready += i32::from(group.is_ready());
        self.updated += i32::from(whole && !group.old);
    }

    fn end(&mut self, group: &Group<'_>) {
        self.count(group);
        let pods = group.pods.iter().filter(|pod| !goes(pod));
        self.going.extend(pods.map(|pod| Arc::clone(pod)));
    }

    /// Has the pods go. After the status is written, which counts it: what is not carried out is found there and made up for.
    pub(super) fn carry_out(&self, plan: &mut Plan) {
        for pod in &self.going {
            evict_pod(plan, pod);
        }
    }
}

/// What is said of every group, and what is done about them: one that broke is started again as a whole, and those of an old
/// spec are replaced one after the other, unless theirs can never be placed.
pub(super) fn tend(
    plan: &mut Plan,
    service: &InferenceService,
    seen: &Seen,
    (wanted, replaces): (u32, bool),
    now: Timestamp,
) -> Tended {
    let all = groups(service, seen, wanted);
    let answering = all.iter().filter(|group| group.is_ready()).count();
    let mut moved = false;
    let mut tended = Tended::default();
    for group in all.iter().rev() {
        let mut status = GroupStatus {
            name: group.name.clone(),
            ready: group.is_ready(),
            nodes: places(group),
            restarts: group.known.map_or(0, |known| known.restarts),
            restarted_at: group.known.and_then(|known| known.restarted_at.clone()),
        };
        let since = status.restarted_at.as_ref().map(|time| time.0);
        let left: Vec<_> = since.map_or_else(Vec::new, |since| group.older_than(since));
        if !left.is_empty() {
            // It was started again, and these have not gone yet.
            let due = since.map_or(now, |since| later(since, TO_GO));
            if due > now {
                plan.look_again(due);
            } else {
                tended.going.extend(left);
            }
            status.ready = false;
            tended.count(group);
            tended.groups.push(status);
            continue;
        }
        let sound = group
            .leader()
            .and_then(|leader| transition(leader, "Ready"));
        if status.ready && sound.is_some_and(|since| later(since, SOUND) <= now) {
            status.restarts = 0;
        }
        let allowed = since.map_or(now, |since| later(since, group.pause()));
        match group.broken(now) {
            Err(at) => plan.look_again(at),
            Ok(Some(_)) if allowed > now => plan.look_again(allowed),
            Ok(Some(why)) => {
                status.restarts = status.restarts.saturating_add(1);
                status.restarted_at = Some(Time(now));
                let message = format!("{}: {why}; all of its pods are started again", group.name);
                plan.note(about(service), true, reason::GROUP_RESTARTED, message);
                status.ready = false;
                tended.end(group);
            }
            // In place: what waits for a node has none to give up, and goes at once.
            Ok(None) if group.old && replaces && !moved => {
                if !group.is_ready() || answering == all.len() {
                    moved = true;
                    status.ready = false;
                    tended.end(group);
                }
            }
            Ok(None) => {}
        }
        tended.groups.push(status);
    }
    tended.groups.reverse();
    tended
}

fn places(group: &Group<'_>) -> Vec<String> {
    let mut pods = group.pods.clone();
    pods.retain(|pod| !goes(pod));
    pods.sort_by_key(|pod| index(pod));
    pods.iter().filter_map(|pod| copies::place(pod)).collect()
}
