//! Copies on the disks of nodes: which node gets one next, how each is doing, and which go. The first copy says which
//! content it is; every other must be the same.

mod leaving;

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::core::v1::{Node, Pod};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::{Resource, ResourceExt};
use warp_api::modelcache::{CopyPhase, MOUNT, ModelPhase, NodeCopies, NodeCopy};
use warp_api::{ModelCache, ModelCacheStatus, label, reason};
use warp_runtime::plan::Plan;

use super::job::{
    PRETENDED, REPORT_LIMIT, job_condition, last_failure, phase, pods_of, why_waiting,
};
use super::{LISTED, Verdict, complete_verdict, first_of, own_jobs, settings};
use crate::ledger::takes_pods;
use crate::modelcache::objects::content_key;
use crate::modelcache::objects::nodes::{
    bring, copy_name, folder, lend, node_label, peer, share_name,
};
use crate::modelcache::observe::Seen;
use crate::modelcache::report::{LastWords, last_words};

pub(super) use leaving::go;

/// Nodes that are given a copy at once, when there is a first.
const AT_ONCE: usize = 4;
/// How long the others wait for a node to lend its copy before they ask the source.
const LEND_LIMIT: SignedDuration = SignedDuration::from_mins(1);

/// Whether a node is to have a copy.
pub(crate) fn matches(copies: &NodeCopies, node: &Node) -> bool {
    let labels = node.labels();
    let mut wanted = copies.selector.iter();
    wanted.all(|(key, value)| labels.get(key) == Some(value))
}

fn is_simulated(node: &Node) -> bool {
    node.labels()
        .get(label::PROVIDER)
        .is_some_and(|kind| kind == "simulated")
}

/// A node as it was, if it is still that one.
fn same<'a>(copy: &NodeCopy, seen: &'a Seen) -> Option<&'a Node> {
    let nodes = seen.nodes.iter().flatten().map(|node| &**node);
    nodes
        .filter(|node| node.name_any() == copy.name)
        .find(|node| node.uid().as_deref() == Some(&*copy.uid))
}

fn namespace(cache: &ModelCache) -> String {
    cache.namespace().unwrap_or_default()
}

/// What stays of the last status: the complete model, as long as a node has it.
pub(super) fn carry_over(
    cache: &ModelCache,
    copies: &NodeCopies,
    before: &ModelCacheStatus,
    seen: &Seen,
    after: &mut ModelCacheStatus,
) {
    after.volume = None;
    let kept = |copy: &&NodeCopy| same(copy, seen).is_some() || seen.nodes.is_none();
    after.nodes = before.nodes.iter().filter(kept).cloned().collect();
    let held = after.nodes.iter().any(|copy| {
        copy.phase == CopyPhase::Ready && Some(&copy.content_key) == before.content_key.as_ref()
    });
    let namespace = namespace(cache);
    let of_ours = |folder: &str| {
        let mut mine = after.nodes.iter();
        mine.any(|copy| folder == self::folder(copies, &namespace, &copy.content_key))
    };
    let mut users: Vec<String> = seen
        .mounts
        .iter()
        .filter(|mount| of_ours(&mount.folder))
        .map(|mount| mount.pod.clone())
        .collect();
    users.dedup();
    after.user_count = i64::try_from(users.len()).unwrap_or(i64::MAX);
    after.users = users.into_iter().take(LISTED).collect();
    if held {
        after.path.clone_from(&before.path);
        after.commit.clone_from(&before.commit);
        after.digest.clone_from(&before.digest);
        (after.bytes, after.files) = (before.bytes, before.files);
        after.fetched_at.clone_from(&before.fetched_at);
        after.content_key.clone_from(&before.content_key);
        after.folder.clone_from(&before.folder);
        after.node_label.clone_from(&before.node_label);
    } else {
        after.node_label = Some(node_label(&namespace, &content_key(&cache.spec)));
    }
}

/// One pass over all nodes.
struct Pass<'a> {
    cache: &'a ModelCache,
    copies: &'a NodeCopies,
    seen: &'a Seen,
    key: String,
    now: Timestamp,
    /// Names of Jobs that are needed.
    needed: Vec<String>,
}

pub(super) fn decide(
    cache: &ModelCache,
    copies: &NodeCopies,
    seen: &Seen,
    now: Timestamp,
    after: &mut ModelCacheStatus,
    plan: &mut Plan,
) -> Verdict {
    let Some(nodes) = &seen.nodes else {
        return Verdict::pending(
            reason::NODES_NOT_ALLOWED,
            "this operator may not label nodes: leave out spec.nodes, or have an administrator install it with `warp install --print --node-copies` or `kubectl apply -k deploy/node-copies`",
        );
    };
    let mut pass = Pass {
        cache,
        copies,
        seen,
        key: content_key(&cache.spec),
        now,
        needed: Vec::new(),
    };
    let mut wanted: Vec<&Node> = nodes
        .iter()
        .map(|node| &**node)
        .filter(|node| node.meta().deletion_timestamp.is_none() && matches(copies, node))
        .collect();
    // Simulated nodes fetch nothing: where there are others, they say which content it is.
    wanted.sort_by_key(|node| (is_simulated(node), node.name_any()));
    let old = std::mem::take(&mut after.nodes);
    let mut trouble = None;
    let mut fresh = pass.wanted(&wanted, &old, after, &mut trouble, plan);
    let complete = after.content_key.as_ref() == Some(&pass.key);
    let leaving: Vec<NodeCopy> = old
        .into_iter()
        .filter(|copy| {
            let is_wanted = wanted
                .iter()
                .any(|node| node.uid().as_deref() == Some(&*copy.uid));
            !(is_wanted && copy.content_key == pass.key)
        })
        .collect();
    for copy in leaving {
        // What is served stays until there is something else.
        if complete || !matches!(same(&copy, seen), Some(node) if matches(copies, node)) {
            fresh.extend(pass.leave(copy, plan));
        } else {
            fresh.push(copy);
        }
    }
    fresh.sort_by(|a, b| (&a.name, &a.content_key).cmp(&(&b.name, &b.content_key)));
    after.nodes = fresh;
    let is_current = |copy: &&NodeCopy| copy.content_key == pass.key;
    let ready = after.nodes.iter().filter(is_current);
    let ready = ready.filter(|copy| copy.phase == CopyPhase::Ready).count();
    after.copies = Some(format!("{ready}/{}", wanted.len()));
    pass.label(&after.nodes, plan);
    pass.tidy(plan);
    if complete && ready > 0 {
        return on_nodes(after, ready, wanted.len());
    }
    if wanted.is_empty() {
        let labels: Vec<String> = copies
            .selector
            .iter()
            .map(|(key, value)| format!("{key}={value}"))
            .collect();
        let message = format!(
            "no node has the labels {}: label one, or correct spec.nodes.selector",
            labels.join(",")
        );
        return Verdict::pending(reason::NO_NODES, message);
    }
    trouble.unwrap_or_else(|| {
        Verdict::pending(
            reason::FETCH_PENDING,
            "the first copy is about to be fetched",
        )
    })
}

/// What is told of a model that nodes have.
fn on_nodes(after: &ModelCacheStatus, ready: usize, all: usize) -> Verdict {
    let told = complete_verdict(after);
    let failed: Vec<String> = after
        .nodes
        .iter()
        .filter(|copy| copy.phase == CopyPhase::Failed)
        .map(|copy| copy.name.clone())
        .collect();
    let failed = match failed.as_slice() {
        [] => String::new(),
        names => format!("; it failed on {}, status.nodes says why", first_of(names)),
    };
    Verdict {
        message: format!("{}, on {ready} of {all} nodes{failed}", told.message),
        ..told
    }
}

impl Pass<'_> {
    fn jobs(&self) -> impl Iterator<Item = &Job> {
        own_jobs(self.cache, self.seen)
    }

    fn job(&self, name: &str) -> Option<&Job> {
        self.jobs().find(|job| job.name_any() == name)
    }

    fn folder(&self, key: &str) -> String {
        folder(self.copies, &namespace(self.cache), key)
    }

    /// The copies of the nodes that are to have one; `trouble` is what is told while nobody has it.
    fn wanted(
        &mut self,
        wanted: &[&Node],
        old: &[NodeCopy],
        after: &mut ModelCacheStatus,
        trouble: &mut Option<Verdict>,
        plan: &mut Plan,
    ) -> Vec<NodeCopy> {
        let key = self.key.clone();
        let mut told = Vec::new();
        let mut waiting = Vec::new();
        let mut busy = 0;
        for node in wanted {
            let uid = node.uid().unwrap_or_default();
            let mut copy = NodeCopy {
                name: node.name_any(),
                uid: uid.clone(),
                content_key: key.clone(),
                ..NodeCopy::default()
            };
            let known = old
                .iter()
                .find(|one| one.uid == uid && one.content_key == key);
            let name = copy_name(self.cache, &copy.name, &key);
            let is_there = |one: &&NodeCopy| one.phase == CopyPhase::Ready;
            let current = after.content_key.as_ref() == Some(&key);
            if let Some(known) = known.filter(is_there).filter(|_| current) {
                // Its Job has said everything.
                told.push(known.clone());
                continue;
            }
            let Some(job) = self.job(&name).cloned() else {
                waiting.push((*node, copy));
                continue;
            };
            self.needed.push(name);
            // Another node of its name has another disk.
            let earlier = job.creation_timestamp() < node.creation_timestamp();
            if earlier && job.meta().deletion_timestamp.is_none() {
                plan.delete_version(&job);
            }
            let verdict = if earlier {
                let message = "an earlier node of its name was fetching";
                copy.message = Some(message.to_owned());
                Verdict::pending(reason::FETCH_PENDING, message)
            } else {
                self.follow(&job, &mut copy, after, plan)
            };
            if copy.phase != CopyPhase::Ready {
                // While nobody has it, a failure keeps others from failing in the same way.
                let over = copy.phase == CopyPhase::Failed;
                let first = after.content_key.as_ref() != Some(&key);
                busy += usize::from(first || !over);
                after.job_name.get_or_insert(job.name_any());
                after.deadline = after.deadline.take().or(super::deadline(self.cache, &job));
                trouble.get_or_insert(verdict);
            }
            told.push(copy);
        }
        if after.content_key.as_ref() == Some(&key) {
            // What one node still does is told beside that node.
            (after.job_name, after.deadline) = (None, None);
        }
        let others = !waiting.is_empty() || busy > 0;
        let lent = self.lent(&told, others, after, plan);
        for (node, mut copy) in waiting {
            self.begin(node, &mut copy, (&mut busy, &lent), after, trouble, plan);
            told.push(copy);
        }
        told
    }

    /// From where the others take it: one of the nodes that have it lends its copy as long as there are others. Only the
    /// hub's models are lent: of them the hub says what they are.
    fn lent(
        &mut self,
        told: &[NodeCopy],
        others: bool,
        after: &ModelCacheStatus,
        plan: &mut Plan,
    ) -> Lent {
        let complete = after.content_key.as_ref() == Some(&self.key);
        let hub = self.cache.spec.source.huggingface.is_some();
        if !others || !complete || !hub || after.commit.is_none() {
            return Lent::Nowhere;
        }
        let able = told.iter().find(|copy| {
            copy.phase == CopyPhase::Ready && same(copy, self.seen).is_some_and(takes_pods)
        });
        let (Some(able), Some(image)) = (able, &self.seen.fetcher.image) else {
            return Lent::Nowhere;
        };
        let name = share_name(self.cache, &able.name, &self.key);
        self.needed.push(name.clone());
        let Some(job) = self.job(&name) else {
            let folder = self.folder(&self.key);
            let at = &*able.name;
            let fetcher = (&self.seen.fetcher, &**image);
            plan.create_or_find(&lend(self.cache, fetcher, at, (&folder, &self.key)));
            return Lent::Soon;
        };
        let mut over = ["Complete", "Failed"].iter();
        if over.any(|kind| job_condition(job, kind).is_some()) {
            return Lent::Nowhere;
        }
        let running = pods_of(self.seen, job);
        let running = running.iter().find(|pod| phase(pod) == "Running");
        let ip = running.and_then(|pod| pod.status.as_ref()?.pod_ip.as_deref());
        if let Some(ip) = ip {
            return Lent::At(peer(self.cache, ip));
        }
        let until = job.creation_timestamp().map_or(self.now, |made| made.0);
        let until = until.checked_add(LEND_LIMIT).unwrap_or(self.now);
        if self.now >= until {
            return Lent::Nowhere;
        }
        plan.look_again(until);
        Lent::Soon
    }

    /// Has a node fetch, if it is its turn.
    fn begin(
        &mut self,
        node: &Node,
        copy: &mut NodeCopy,
        (busy, lent): (&mut usize, &Lent),
        after: &ModelCacheStatus,
        trouble: &mut Option<Verdict>,
        plan: &mut Plan,
    ) {
        let complete = after.content_key.as_ref() == Some(&self.key);
        let told = if !takes_pods(node) {
            "the node is not ready"
        } else if !complete && *busy > 0 {
            "waits for the first copy"
        } else if *busy >= AT_ONCE {
            "waits for its turn"
        } else if *lent == Lent::Soon {
            "waits for a node that lends its copy"
        } else if let Some(image) = &self.seen.fetcher.image {
            let commit = after.commit.as_deref().filter(|_| complete);
            let folder = self.folder(&self.key);
            let peer = match lent {
                Lent::At(peer) => Some(peer.as_str()),
                Lent::Soon | Lent::Nowhere => None,
            };
            let fetcher = (&self.seen.fetcher, &**image);
            let at = (node, &*folder);
            let job = bring(self.cache, fetcher, at, (&self.key, commit), peer);
            self.needed.push(job.name_any());
            plan.create_or_find(&job);
            *busy += 1;
            "it is about to be fetched"
        } else {
            let message =
                "the operator does not know which image fetches: start it with --fetch-image";
            trouble.get_or_insert(Verdict::pending(reason::NO_FETCH_IMAGE, message));
            message
        };
        copy.message = Some(told.to_owned());
    }

    /// How the Job of one node is doing.
    fn follow(
        &self,
        job: &Job,
        copy: &mut NodeCopy,
        after: &mut ModelCacheStatus,
        plan: &mut Plan,
    ) -> Verdict {
        let pods = pods_of(self.seen, job);
        if job.meta().deletion_timestamp.is_some() {
            copy.message = Some("an earlier fetch is ending".to_owned());
            return Verdict::pending(reason::FETCH_PENDING, "an earlier fetch is ending");
        }
        if let Some((at, ..)) = job_condition(job, "Complete") {
            return self.completed(job, &pods, at.unwrap_or(self.now), copy, after, plan);
        }
        if settings::keep(self.cache, job, plan) == settings::Kept::Anew {
            let message = "the fetch begins again, as the changed spec says";
            copy.message = Some(message.to_owned());
            return Verdict::pending(reason::FETCH_PENDING, message);
        }
        if let Some((_, why, message)) = job_condition(job, "Failed") {
            let (why, words) = match why {
                "DeadlineExceeded" => (
                    reason::FETCH_TIMEOUT.to_owned(),
                    "the fetch took longer than spec.timeout; what came is kept".to_owned(),
                ),
                _ => last_failure(&pods)
                    .unwrap_or_else(|| (reason::FETCH_FAILED.to_owned(), message.to_owned())),
            };
            let words = format!(
                "{words}. delete Job {} to try again, or change the spec",
                job.name_any()
            );
            return failed(copy, &why, &words);
        }
        if pods.iter().any(|pod| phase(pod) == "Running") {
            copy.phase = CopyPhase::Fetching;
            let message = format!(
                "node {} fetches {}",
                copy.name,
                self.cache.spec.source.word()
            );
            return Verdict::new(ModelPhase::Fetching, reason::FETCHING, message);
        }
        let waits = pods.iter().find_map(|pod| why_waiting(pod));
        let (why, words) = waits.unwrap_or_else(|| {
            let words = format!("Job {} has not started its pod", job.name_any());
            (reason::FETCH_PENDING, words)
        });
        copy.message = Some(words.clone());
        Verdict::pending(why, words)
    }

    fn completed(
        &self,
        job: &Job,
        pods: &[&Pod],
        at: Timestamp,
        copy: &mut NodeCopy,
        after: &mut ModelCacheStatus,
        plan: &mut Plan,
    ) -> Verdict {
        let Some(pod) = pods.iter().find(|pod| phase(pod) == "Succeeded") else {
            let until = at.checked_add(REPORT_LIMIT).unwrap_or(self.now);
            if self.now >= until {
                plan.delete_version(job);
            } else {
                plan.look_again(until);
            }
            copy.phase = CopyPhase::Fetching;
            let message = "the fetch has ended; its report is waited for";
            copy.message = Some(message.to_owned());
            return Verdict::new(ModelPhase::Fetching, reason::FETCHING, message);
        };
        let first = after.content_key.as_ref() != Some(&self.key);
        let differs = "what came is not what the other nodes have: the source has changed. Name a revision that stays";
        match last_words(pod) {
            Some(LastWords::Fetched(fetched)) if first => {
                after.path = Some(format!("{MOUNT}/{}", fetched.path));
                after.commit = Some(fetched.commit);
                after.digest = Some(fetched.digest);
                (after.bytes, after.files) = (Some(fetched.bytes), Some(fetched.files));
            }
            Some(LastWords::Fetched(fetched)) => {
                if after.digest.as_ref() != Some(&fetched.digest) {
                    return failed(copy, "ContentMismatch", differs);
                }
            }
            Some(LastWords::Simulated {}) if first => {
                after.path = Some(format!("{MOUNT}/{PRETENDED}"));
                (after.commit, after.digest) = (None, None);
                (after.bytes, after.files) = (Some(0), Some(0));
            }
            Some(LastWords::Simulated {}) => {
                if after.commit.is_some() {
                    let words = "pretended: the node is simulated and holds no files";
                    return failed(copy, reason::SIMULATED_FETCH, words);
                }
            }
            Some(LastWords::Failed(_)) | None => {
                let words = format!(
                    "Job {} ended well and pod {} left no report: an image that is not warp's says nothing. Mend that, then delete the Job",
                    job.name_any(),
                    pod.name_any()
                );
                return failed(copy, reason::NO_REPORT, &words);
            }
        }
        if first {
            let namespace = namespace(self.cache);
            after.fetched_at = Some(Time(at));
            after.content_key = Some(self.key.clone());
            after.folder = Some(self.folder(&self.key));
            after.node_label = Some(node_label(&namespace, &self.key));
        }
        copy.phase = CopyPhase::Ready;
        copy.message = None;
        copy.fetched_at = Some(Time(at));
        Verdict::new(ModelPhase::Ready, reason::MODEL_FETCHED, "")
    }
}

/// From where a copy can be had besides the source.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Lent {
    Nowhere,
    Soon,
    At(String),
}

fn failed(copy: &mut NodeCopy, why: &str, words: &str) -> Verdict {
    copy.phase = CopyPhase::Failed;
    copy.message = Some(format!("{why}: {words}"));
    let message = format!("on node {}: {words}", copy.name);
    Verdict::new(ModelPhase::Failed, why, message)
}
