//! Copies on the disks of nodes: which node gets one next, how each is doing, and which go. The first copy says which
//! content it is; every other must be the same.

mod evicting;
mod following;
mod leaving;
mod room;

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::core::v1::Node;
use kube::{Resource, ResourceExt};
use warp_api::modelcache::{CopyPhase, NodeCopies, NodeCopy};
use warp_api::{ModelCache, ModelCacheStatus, label, reason};
use warp_runtime::plan::Plan;

use super::job::{job_condition, phase, pods_of};
use super::{LISTED, Verdict, complete_verdict, first_of, last_used, own_jobs};
use crate::ledger::takes_pods;
use crate::modelcache::objects::content_key;
use crate::modelcache::objects::nodes::{
    bring, copy_name, drop_name, folder, lend, node_label, peer, share_name,
};
use crate::modelcache::observe::Seen;
use room::{Room, Say};

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
    now: Timestamp,
    after: &mut ModelCacheStatus,
) {
    after.volume = None;
    let kept = |copy: &&NodeCopy| same(copy, seen).is_some() || seen.nodes.is_none();
    after.nodes = before.nodes.iter().filter(kept).cloned().collect();
    for copy in &mut after.nodes {
        let folder = folder(copies, &namespace(cache), &copy.content_key);
        last_used::of_copy(copy, &folder, seen, now);
    }
    let of_copies = after.nodes.iter().filter_map(|copy| copy.last_used.clone());
    after.last_used = of_copies.chain(before.last_used.clone()).max();
    let held = after.nodes.iter().any(|copy| {
        // What made room for others comes back as the same model: services that sleep meanwhile keep it.
        let evicting = copy.phase == CopyPhase::Removing && copy.message.is_some();
        let there = matches!(copy.phase, CopyPhase::Ready | CopyPhase::Evicted) || evicting;
        there && Some(&copy.content_key) == before.content_key.as_ref()
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
        after.verified_files = before.verified_files;
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
    /// Whether no node has it: what comes first says what it is.
    nowhere: bool,
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
        nowhere: true,
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
    let room = pass.room(&wanted, &old, after);
    let mut fresh = pass.wanted((&wanted, &room), &old, after, &mut trouble, plan);
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
        let told = on_nodes(after, ready, wanted.len());
        return match room.contradiction() {
            Some(words) => Verdict {
                message: format!("{}; {words}", told.message),
                ..told
            },
            None => told,
        };
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
    let evicted = after.nodes.iter().any(|copy| {
        copy.phase == CopyPhase::Evicted
            || copy.phase == CopyPhase::Removing && copy.content_key == pass.key
    });
    trouble.unwrap_or_else(|| {
        if evicted {
            let message = "no node has a copy: they made room for others, as status.nodes says. One comes back when there is room, or when a pod or a service waits for it";
            return Verdict::pending(reason::EVICTED, message);
        }
        Verdict::pending(
            reason::FETCH_PENDING,
            "the first copy is about to be fetched",
        )
    })
}

/// What is told of a model that nodes have.
fn on_nodes(after: &ModelCacheStatus, ready: usize, all: usize) -> Verdict {
    let told = complete_verdict(after);
    let on = |phase: CopyPhase, words: &str| {
        let copies = after.nodes.iter().filter(|copy| copy.phase == phase);
        let names: Vec<String> = copies.map(|copy| copy.name.clone()).collect();
        match names.as_slice() {
            [] => String::new(),
            names => format!("; it {words} {}, status.nodes says why", first_of(names)),
        }
    };
    let failed = on(CopyPhase::Failed, "failed on");
    let evicted = on(CopyPhase::Evicted, "made room for others on");
    Verdict {
        message: format!(
            "{}, on {ready} of {all} nodes{failed}{evicted}",
            told.message
        ),
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
        (wanted, room): (&[&Node], &Room),
        old: &[NodeCopy],
        after: &mut ModelCacheStatus,
        trouble: &mut Option<Verdict>,
        plan: &mut Plan,
    ) -> Vec<NodeCopy> {
        let key = self.key.clone();
        let ready = |one: &NodeCopy| one.content_key == key && one.phase == CopyPhase::Ready;
        self.nowhere = !old.iter().any(ready);
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
            if let Some(known) = known {
                copy.clone_from(known);
                (copy.phase, copy.message, copy.fetched_at) = (CopyPhase::Pending, None, None);
                if let Some(why) = self.goes(known, room) {
                    if let Some(left) = self.evict(known.clone(), why, plan) {
                        told.push(left);
                        continue;
                    }
                    (copy.bytes, copy.room) = (None, None);
                }
            }
            let name = copy_name(self.cache, &copy.name, &key);
            let is_there = |one: &&NodeCopy| one.phase == CopyPhase::Ready;
            let current = after.content_key.as_ref() == Some(&key);
            if let Some(known) = known.filter(is_there).filter(|_| current) {
                // Its Job has said everything.
                told.push(known.clone());
                continue;
            }
            let Some(job) = self.job(&name).cloned() else {
                copy.room = None;
                waiting.push((*node, copy, known));
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
        // Nobody lends to those that wait for room.
        let mut coming = waiting.iter().map(|(_, copy, _)| room.say(&copy.uid));
        let others = coming.any(|say| matches!(say, Say::Come(_))) || busy > 0;
        let lent = self.lent(&told, others, after, plan);
        for (node, mut copy, known) in waiting {
            let say = room.say(&copy.uid);
            let refused = match &say {
                Say::Come(_) => None,
                Say::Later(reason, words) => Some((*reason, words.clone())),
            };
            // What made room stays so until it really comes, or is waited for.
            let evicted = known.filter(|known| known.phase == CopyPhase::Evicted);
            let evicted = evicted.filter(|_| self.seen.waiting.is_empty());
            if let Some((reason, words)) = refused {
                if evicted.is_none() {
                    let message = format!("node {}: {words}", copy.name);
                    trouble.get_or_insert(Verdict::pending(reason, message));
                }
                copy.message = Some(words);
            } else {
                let at = (node, (say, room));
                self.begin(at, &mut copy, (&mut busy, &lent), after, trouble, plan);
            }
            let name = copy_name(self.cache, &copy.name, &key);
            if let Some(evicted) = evicted.filter(|_| !self.needed.contains(&name)) {
                copy = evicted.clone();
            }
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
        (node, (say, room)): (&Node, (Say, &Room)),
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
        } else if self
            .job(&drop_name(self.cache, &copy.name, &self.key))
            .is_some()
        {
            "its earlier copy is being removed"
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
            if let Say::Come(given) = say {
                copy.room = given;
                copy.bytes = copy.bytes.or(after.bytes.filter(|_| complete));
            }
            let job = bring(
                self.cache,
                fetcher,
                at,
                (&self.key, commit),
                (peer, copy.room),
            );
            plan.premises.extend(room.premises(&copy.uid));
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
}

/// From where a copy can be had besides the source.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Lent {
    Nowhere,
    Soon,
    At(String),
}
