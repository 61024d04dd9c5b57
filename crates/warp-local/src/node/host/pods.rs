//! The loop over every pod of the host's nodes: news in (watch, reports, timers, write results), steps of
//! the state machine, actions and writes out. Nothing in it waits for the network.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, BinaryHeap};
use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::{HostIP, Node, Pod, PodIP, PodStatus};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use tokio::sync::{Semaphore, mpsc};

use super::super::checks::{self, Answer, Gate};
use super::super::facts::{Event, Facts, Sandbox, later};
use super::super::fleet::Shape;
use super::super::lifecycle::{Action, Step, step};
use super::super::runtime::{Due, Refusal, Report, Runtime};
use super::room::Room;
use super::writes::{Outcome, Write, Written, says};
use super::{Host, Options, Silent, nodes, notes};
use crate::background;
use crate::controllers::Clock;
use crate::controllers::events::Recorder;
use crate::informer::Source;
use crate::informer::feed::{self, Change, Feed};
use crate::informer::store::typed;

const FIRST_RETRY: Duration = Duration::from_millis(200);
const LONGEST_RETRY: Duration = Duration::from_secs(10);
/// How often the health of real devices is asked for.
const HEALTH: Duration = Duration::from_secs(10);
/// Timers that are not worth clearing.
const FEW_TIMERS: usize = 1024;
/// A step that asks for actions is followed by another; a pod that never settles is a bug, not a loop.
const MOST_STEPS: usize = 64;
/// The component name in events.
const COMPONENT: &str = "kubelet";

struct Member {
    room: Room,
    /// The object as last seen, where health is asked for again and again.
    seen: Option<Arc<Node>>,
    lost: bool,
    /// What its object asks for that means nothing, as last told.
    told: Vec<String>,
}

struct Tracked {
    pod: Arc<Pod>,
    facts: Facts,
    node: String,
    /// A write is on its way.
    writing: bool,
    /// The version our last write made: older news is no news about the status.
    version: u64,
    removed: bool,
    failures: u32,
    not_before: Option<Timestamp>,
    wake: Option<Timestamp>,
}

/// An entry of the timer queue, the earliest first.
struct Timer {
    at: Timestamp,
    order: u64,
    uid: String,
    event: Option<Event>,
}

impl PartialEq for Timer {
    fn eq(&self, other: &Self) -> bool {
        self.order == other.order
    }
}

impl Eq for Timer {}

impl PartialOrd for Timer {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Timer {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        (self.at, self.order).cmp(&(other.at, other.order))
    }
}

/// What the API said to a question that was asked before an action.
struct Answered {
    uid: String,
    action: Action,
    answer: Answer,
}

enum News {
    Pod(Change),
    Node(Change),
    Report(Report),
    Answer(Answered),
    Written(Written),
    Time,
    Health,
}

pub(super) struct Loop {
    client: kube::Client,
    clock: Clock,
    runtime: Arc<dyn Runtime>,
    reports: mpsc::UnboundedReceiver<Report>,
    options: Options,
    recorder: Recorder,
    silent: Silent,
    members: BTreeMap<String, Member>,
    pods: BTreeMap<String, Tracked>,
    /// Ticks when a runtime's devices may have changed unasked; simulated ones do not.
    health: Option<tokio::time::Interval>,
    timers: BinaryHeap<Reverse<Timer>>,
    order: u64,
    permits: Arc<Semaphore>,
    written: mpsc::UnboundedReceiver<Written>,
    results: mpsc::UnboundedSender<Written>,
    answered: mpsc::UnboundedReceiver<Answered>,
    answers: mpsc::UnboundedSender<Answered>,
}

impl Loop {
    pub(super) fn new(host: Host, silent: Silent, recorder: Recorder) -> Self {
        let (results, written) = mpsc::unbounded_channel();
        let (answers, answered) = mpsc::unbounded_channel();
        let members = host
            .shapes
            .into_iter()
            .map(|shape| {
                let name = shape.name.clone();
                let member = Member {
                    room: Room::new(shape),
                    seen: None,
                    lost: false,
                    told: Vec::new(),
                };
                (name, member)
            })
            .collect();
        let asked = host.reports.is_some() && host.runtime.has_real_devices();
        let health = asked.then(|| {
            let mut timer = tokio::time::interval(HEALTH);
            timer.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
            timer
        });
        // A runtime that reports nothing by itself gets a channel that stays open and empty.
        let reports = host.reports.unwrap_or_else(|| mpsc::unbounded_channel().1);
        Self {
            client: host.client,
            clock: host.clock,
            runtime: host.runtime,
            reports,
            permits: Arc::new(Semaphore::new(host.options.writes)),
            options: host.options,
            recorder,
            silent,
            members,
            pods: BTreeMap::new(),
            health,
            timers: BinaryHeap::new(),
            order: 0,
            written,
            results,
            answered,
            answers,
        }
    }

    pub(super) async fn run(mut self) {
        let mut pods = self.watch_pods();
        let mut nodes = self.watch_nodes();
        loop {
            match self.news(&mut pods, &mut nodes).await {
                News::Pod(event) => self.pod_event(event),
                News::Node(event) => self.node_event(event),
                News::Report(report) => {
                    self.note(&report.uid, report.event);
                    self.advance(&report.uid);
                }
                News::Answer(answered) => self.answer(answered),
                News::Written(written) => self.write_done(written),
                News::Time => self.fire(),
                News::Health => self.look_at_devices(),
            }
        }
    }

    fn watch_pods(&self) -> Feed {
        // A field selector names one value: one node is asked for by name, several by "any node".
        let fields = match self.members.keys().next() {
            Some(only) if self.members.len() == 1 => format!("spec.nodeName={only}"),
            _ => "spec.nodeName!=".to_owned(),
        };
        feed::of::<Pod>(self.client.clone(), Source::all::<Pod>().fields(&fields))
    }

    fn watch_nodes(&self) -> Feed {
        feed::of::<Node>(self.client.clone(), Source::all::<Node>())
    }

    async fn news(&mut self, pods: &mut Feed, nodes: &mut Feed) -> News {
        let now = self.clock.now();
        let pause = self.timers.peek().map(|Reverse(timer)| {
            Duration::try_from(timer.at.duration_since(now)).unwrap_or_default()
        });
        let timer = async {
            match pause {
                Some(pause) => tokio::time::sleep(pause).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            Some(written) = self.written.recv() => News::Written(written),
            Some(report) = self.reports.recv() => News::Report(report),
            Some(answered) = self.answered.recv() => News::Answer(answered),
            Some(event) = pods.next() => News::Pod(event),
            Some(event) = nodes.next() => News::Node(event),
            () = timer => News::Time,
            () = tick(&mut self.health) => News::Health,
        }
    }

    fn pod_event(&mut self, event: Change) {
        match event {
            Change::Listed(pods, _) => self.pods_listed(pods.into_iter().map(typed).collect()),
            Change::Set(pod) => self.pod_seen(typed(pod)),
            Change::Removed(pod) => {
                if let Some(uid) = &pod.meta().uid {
                    self.pod_gone(uid);
                }
            }
            Change::Reached(_) => {}
        }
    }

    fn pods_listed(&mut self, pods: Vec<Arc<Pod>>) {
        let uids = pods.iter().filter_map(|pod| pod.metadata.uid.clone());
        let listed: BTreeSet<String> = uids.collect();
        // Pods that ran here before hold devices and room no new pod may be given.
        let (known, new): (Vec<_>, Vec<_>) = pods.into_iter().partition(|pod| has_started(pod));
        for pod in known.into_iter().chain(new) {
            self.pod_seen(pod);
        }
        let gone: Vec<String> = self
            .pods
            .keys()
            .filter(|uid| !listed.contains(*uid))
            .cloned()
            .collect();
        for uid in gone {
            self.pod_gone(&uid);
        }
        self.runtime.keep_only(&listed);
    }

    fn pod_seen(&mut self, pod: Arc<Pod>) {
        let Some(node) = pod.spec.as_ref().and_then(|spec| spec.node_name.clone()) else {
            return;
        };
        let Some(uid) = pod
            .metadata
            .uid
            .clone()
            .filter(|_| self.members.contains_key(&node))
        else {
            return;
        };
        let version = version(&pod);
        if let Some(tracked) = self.pods.get_mut(&uid) {
            if version >= tracked.version && !tracked.writing {
                tracked.facts.reported.clone_from(&pod.status);
            }
            let told = tracked.pod.metadata.annotations != pod.metadata.annotations;
            tracked.pod = pod;
            if told {
                self.annotations_changed(&uid);
            }
        } else {
            self.take_on(&uid, node, pod);
        }
        self.advance(&uid);
    }

    /// What a runtime expects of a pod may follow from its annotations; once the pod is being ended,
    /// nothing is expected anew.
    fn annotations_changed(&mut self, uid: &str) {
        let Some(tracked) = self.pods.get(uid) else {
            return;
        };
        let stopping = tracked.facts.containers.values().any(|seen| {
            seen.run
                .as_ref()
                .is_some_and(|run| run.stopping.is_some() && run.exit.is_none())
        });
        if stopping {
            return;
        }
        let now = self.clock.now();
        let Some(due) = self.runtime.changed(&tracked.pod, &tracked.facts, now) else {
            return;
        };
        self.timers
            .retain(|Reverse(timer)| timer.uid != uid || timer.event.is_none());
        self.expect(uid, due);
    }

    /// A pod this process sees for the first time: new, or under way since before it started.
    fn take_on(&mut self, uid: &str, node: String, pod: Arc<Pod>) {
        let now = self.clock.now();
        let mut facts = Facts::from_object(&pod, now);
        let known = has_started(&pod);
        let ended = facts.sandbox == Sandbox::Gone;
        let mut due = Vec::new();
        if !ended && let Some(member) = self.members.get_mut(&node) {
            let refusal = member
                .room
                .admit(&*self.runtime, uid, &pod, &mut facts, known);
            if let Some(Refusal { reason, message }) = refusal {
                self.recorder
                    .record(COMPONENT, notes::about_refusal(&pod, &reason, &message));
                facts.refused = Some((reason, message));
            }
            if known {
                due = self.runtime.adopt(&pod, &facts, now);
            }
        }
        let tracked = Tracked {
            pod,
            facts,
            node,
            writing: false,
            version: 0,
            removed: false,
            failures: 0,
            not_before: None,
            wake: None,
        };
        self.pods.insert(uid.to_owned(), tracked);
        self.expect(uid, due);
    }

    fn pod_gone(&mut self, uid: &str) {
        let Some(tracked) = self.pods.remove(uid) else {
            return;
        };
        if let Some(member) = self.members.get_mut(&tracked.node) {
            member.room.release(uid);
        }
        self.runtime.forget(&tracked.pod);
        // Timers of pods that are gone would stay until they are due, for days perhaps.
        if self.timers.len() > 4 * self.pods.len() + FEW_TIMERS {
            let pods = &self.pods;
            self.timers
                .retain(|Reverse(timer)| pods.contains_key(&timer.uid));
        }
    }

    /// Queues events that are known to come; the ones that are due are taken in at once.
    fn expect(&mut self, uid: &str, due: Vec<Due>) {
        let now = self.clock.now();
        for Due { at, event } in due {
            if at <= now {
                self.note(uid, event);
            } else {
                self.at(at, uid, Some(event));
            }
        }
    }

    fn at(&mut self, at: Timestamp, uid: &str, event: Option<Event>) {
        self.order += 1;
        self.timers.push(Reverse(Timer {
            at,
            order: self.order,
            uid: uid.to_owned(),
            event,
        }));
    }

    fn fire(&mut self) {
        let now = self.clock.now();
        while self
            .timers
            .peek()
            .is_some_and(|Reverse(timer)| timer.at <= now)
        {
            let Some(Reverse(timer)) = self.timers.pop() else {
                return;
            };
            match timer.event {
                Some(event) => self.note(&timer.uid, event),
                None => {
                    if let Some(tracked) = self.pods.get_mut(&timer.uid) {
                        tracked.wake = None;
                    }
                }
            }
            self.advance(&timer.uid);
        }
    }

    fn note(&mut self, uid: &str, event: Event) {
        let Some(tracked) = self.pods.get_mut(uid) else {
            return;
        };
        if let Some(note) = notes::about_event(&tracked.pod, &tracked.facts, &event)
            && (note.warning || self.options.chatty)
        {
            self.recorder.record(COMPONENT, note);
        }
        if let Some(spec) = &tracked.pod.spec {
            tracked.facts.note(spec, event);
        }
    }

    /// Steps a pod until it settles, then reports what changed.
    fn advance(&mut self, uid: &str) {
        for _ in 0..MOST_STEPS {
            let now = self.clock.now();
            let Some(tracked) = self.pods.get_mut(uid) else {
                return;
            };
            let next = step(&tracked.pod, &tracked.facts, now);
            if next.actions.is_empty() {
                return self.settled(uid, next, now);
            }
            let mut due = Vec::new();
            for action in &next.actions {
                if let Some(note) = notes::about_action(&tracked.pod, action)
                    && self.options.chatty
                {
                    self.recorder.record(COMPONENT, note);
                }
                tracked.facts.begin(action, now);
                match checks::before(&*self.runtime, &self.client, &tracked.pod, action) {
                    Gate::Open => {
                        due.extend(self.runtime.act(&tracked.pod, &tracked.facts, action, now));
                    }
                    Gate::Shut(reason, message) => {
                        let event = checks::event(action, reason, message, now);
                        due.extend(event.map(|event| Due { at: now, event }));
                    }
                    Gate::Ask(question) => {
                        let (uid, action) = (uid.to_owned(), action.clone());
                        let answers = self.answers.clone();
                        background::spawn(async move {
                            let answer = question.await;
                            // Nobody listens any more only when the host has ended.
                            answers
                                .send(Answered {
                                    uid,
                                    action,
                                    answer,
                                })
                                .ok();
                        });
                    }
                }
            }
            self.expect(uid, due);
        }
        tracing::error!(
            pod = uid,
            "the pod does not settle; it is looked at again when it changes"
        );
    }

    /// Goes on with an action the API was asked about, unless the pod has gone another way since.
    fn answer(&mut self, answered: Answered) {
        let Answered {
            uid,
            action,
            answer,
        } = answered;
        let now = self.clock.now();
        let Some(tracked) = self.pods.get(&uid) else {
            return;
        };
        if !tracked.facts.awaits(&action) {
            return;
        }
        for (reason, message) in answer.warnings {
            self.recorder
                .record(COMPONENT, notes::warning(&tracked.pod, reason, message));
        }
        let due = match answer.refused {
            None => self.runtime.act(&tracked.pod, &tracked.facts, &action, now),
            Some(message) => {
                let event = checks::event(&action, "", message, now);
                event
                    .map(|event| Due { at: now, event })
                    .into_iter()
                    .collect()
            }
        };
        self.expect(&uid, due);
        self.advance(&uid);
    }

    fn settled(&mut self, uid: &str, next: Step, now: Timestamp) {
        let Some(tracked) = self.pods.get_mut(uid) else {
            return;
        };
        if let Some(again) = next.again
            && tracked.wake.is_none_or(|wake| again < wake)
        {
            tracked.wake = Some(again);
            self.at(again, uid, None);
        }
        let Some(tracked) = self.pods.get_mut(uid) else {
            return;
        };
        let Some(member) = self.members.get_mut(&tracked.node) else {
            return;
        };
        if matches!(next.status.phase.as_deref(), Some("Succeeded" | "Failed")) {
            member.room.release(uid);
        }
        let waiting = tracked.not_before.is_some_and(|at| now < at);
        if member.lost || tracked.writing || waiting || tracked.removed {
            return;
        }
        let status = with_host(next.status, &tracked.pod, &member.room.shape);
        let write = if !says(tracked.facts.reported.as_ref(), &status) {
            Write::status(&tracked.pod, status)
        } else if next.finished {
            Write::remove(&tracked.pod)
        } else {
            return;
        };
        tracked.writing = true;
        let (client, permits, results) = (
            self.client.clone(),
            self.permits.clone(),
            self.results.clone(),
        );
        background::spawn(async move {
            let _permit = permits.acquire_owned().await;
            // Nobody listens any more only when the host has ended.
            results.send(write.send(&client).await).ok();
        });
    }

    fn write_done(&mut self, written: Written) {
        let now = self.clock.now();
        let uid = written.uid;
        let Some(tracked) = self.pods.get_mut(&uid) else {
            return;
        };
        tracked.writing = false;
        match written.outcome {
            Outcome::Reported { status, version } => {
                tracked.failures = 0;
                tracked.not_before = None;
                tracked.version = tracked.version.max(version);
                tracked.facts.reported = Some(*status);
            }
            // The watch tells when it is gone, and what became of it.
            Outcome::Removed | Outcome::Gone => tracked.removed = true,
            Outcome::Failed(why) => {
                tracing::warn!(pod = tracked.pod.metadata.name, %why, "status not written, trying again");
                let delay =
                    (FIRST_RETRY * 2u32.saturating_pow(tracked.failures.min(8))).min(LONGEST_RETRY);
                tracked.failures += 1;
                let at = later(now, delay);
                tracked.not_before = Some(at);
                self.at(at, &uid, None);
            }
        }
        self.advance(&uid);
    }

    fn node_event(&mut self, event: Change) {
        match event {
            Change::Listed(nodes, _) => {
                for node in nodes {
                    self.node_seen(&typed(node), false);
                }
            }
            Change::Set(node) => self.node_seen(&typed(node), false),
            Change::Removed(node) => self.node_seen(&typed(node), true),
            Change::Reached(_) => {}
        }
    }

    fn node_seen(&mut self, node: &Arc<Node>, gone: bool) {
        let name = node.metadata.name.clone().unwrap_or_default();
        let now = self.clock.now();
        let Some(member) = self.members.get_mut(&name) else {
            return;
        };
        if self.health.is_some() {
            member.seen = Some(node.clone()).filter(|_| !gone);
        }
        member.room.relabel(node);
        let health = self.runtime.health(node);
        for message in health
            .unknown
            .iter()
            .filter(|text| !member.told.contains(text))
        {
            self.recorder
                .record(COMPONENT, notes::about_node(node, message));
        }
        member.told = health.unknown;
        let was_lost = member.lost;
        member.lost = health.lost || gone;
        if member.lost {
            self.silent.write().insert(name.clone());
            return;
        }
        self.silent.write().remove(&name);
        let hit = member.room.ledger.set_broken(health.broken);
        if let Some(status) = member.room.correction(node, &Time(now)) {
            let (client, name) = (self.client.clone(), name.clone());
            background::spawn(async move {
                if let Err(error) = nodes::write_status(&client, &name, &status).await {
                    tracing::warn!(node = %name, %error, "node status not written");
                }
            });
        }
        for uid in hit {
            self.devices_lost(&uid, now);
        }
        if was_lost {
            let own: Vec<String> = self
                .pods
                .iter()
                .filter(|(_, tracked)| tracked.node == name)
                .map(|(uid, _)| uid.clone())
                .collect();
            for uid in own {
                self.advance(&uid);
            }
        }
    }

    fn look_at_devices(&mut self) {
        let seen: Vec<Arc<Node>> = self
            .members
            .values()
            .filter_map(|member| member.seen.clone())
            .collect();
        for node in seen {
            self.node_seen(&node, false);
        }
    }

    fn devices_lost(&mut self, uid: &str, now: Timestamp) {
        let Some(tracked) = self.pods.get(uid) else {
            return;
        };
        let Some(member) = self.members.get(&tracked.node) else {
            return;
        };
        let hit: Vec<String> = tracked
            .facts
            .devices
            .iter()
            .filter(|(_, held)| {
                held.iter().any(|(resource, numbers)| {
                    numbers
                        .iter()
                        .any(|number| member.room.ledger.is_broken(resource, *number))
                })
            })
            .map(|(container, _)| container.clone())
            .collect();
        let due = self
            .runtime
            .device_lost(&tracked.pod, &tracked.facts, &hit, now);
        self.expect(uid, due);
        self.advance(uid);
    }
}

fn has_started(pod: &Pod) -> bool {
    pod.status
        .as_ref()
        .is_some_and(|status| status.start_time.is_some())
}

async fn tick(timer: &mut Option<tokio::time::Interval>) {
    match timer {
        Some(timer) => drop(timer.tick().await),
        None => std::future::pending().await,
    }
}

/// Adds where the pod is; one in the host's network is at the host's address.
fn with_host(mut status: PodStatus, pod: &Pod, shape: &Shape) -> PodStatus {
    if pod.spec.as_ref().and_then(|spec| spec.host_network) == Some(true) {
        status.pod_ip = Some(shape.address.clone());
        status.pod_ips = Some(vec![PodIP {
            ip: shape.address.clone(),
        }]);
    }
    status.host_ip = Some(shape.address.clone());
    status.host_ips = Some(vec![HostIP {
        ip: shape.address.clone(),
    }]);
    status
}

fn version(pod: &Pod) -> u64 {
    pod.metadata
        .resource_version
        .as_ref()
        .and_then(|version| version.parse().ok())
        .unwrap_or_default()
}
