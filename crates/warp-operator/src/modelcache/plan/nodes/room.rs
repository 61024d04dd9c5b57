//! Room for copies in one folder of each node: what the caches that keep copies there have and want, for
//! [`warp_core::room`] to decide, and what each is told about it.
//!
//! Every cache decides about all and carries out what concerns itself: they all see the same, so they all decide the same.

use std::collections::BTreeMap;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::Node;
use kube::{Resource, ResourceExt};
use warp_api::modelcache::{CopyPhase, NodeCopies, NodeCopy};
use warp_api::{ModelCache, ModelCacheStatus, reason};
use warp_core::resources::Quantity;
use warp_core::room::{Answer, Call, Decision, Held, Keep, Want, decide};
use warp_runtime::plan::{Premise, Seen as AsSeen};

use super::super::first_of;
use super::{Pass, matches};
use crate::modelcache::objects::content_key;
use crate::modelcache::objects::nodes::copy_name;

/// What a copy that is to come is told: with how many bytes, where there is a limit, or why not yet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Say {
    Come(Option<i64>),
    Later(&'static str, String),
}

/// The room of all nodes that are to have a copy; none is limited where no cache says how much.
#[derive(Debug, Default)]
pub(super) struct Room {
    limit: Option<Limit>,
    /// By the node's uid.
    grounds: BTreeMap<String, Ground>,
    own: String,
    priority: i32,
}

#[derive(Debug)]
struct Limit {
    bytes: u64,
    path: String,
    /// The cache that says so.
    by: String,
    /// What the cache itself says otherwise.
    contradicted: Option<String>,
}

/// What is on one node.
#[derive(Debug, Default)]
struct Ground {
    held: BTreeMap<String, Held>,
    wants: BTreeMap<String, Want>,
    /// Caches, by what they hold.
    names: BTreeMap<String, String>,
    decision: Decision,
    premises: Vec<Premise>,
}

/// One cache, as it stands on a node.
struct Party<'a> {
    cache: &'a ModelCache,
    copies: &'a NodeCopies,
    status: &'a ModelCacheStatus,
    needed: bool,
    own: bool,
}

fn full_name(cache: &ModelCache) -> String {
    let namespace = cache.namespace().unwrap_or_default();
    format!("{namespace}/{}", cache.name_any())
}

/// What lies in one place: caches of one namespace share what is the same.
fn place(cache: &ModelCache, key: &str) -> String {
    format!("{}/{key}", cache.namespace().unwrap_or_default())
}

fn bytes(text: &str) -> u64 {
    let parsed = text.parse::<Quantity>().ok();
    let value = parsed.and_then(|quantity| quantity.value().ok());
    value.map_or(u64::MAX, unsigned)
}

fn unsigned(count: i64) -> u64 {
    u64::try_from(count).unwrap_or_default()
}

impl Pass<'_> {
    /// Looks at the room of the nodes that are to have a copy.
    pub(super) fn room(
        &self,
        wanted: &[&Node],
        old: &[NodeCopy],
        after: &ModelCacheStatus,
    ) -> Room {
        let mut room = Room {
            limit: self.limit(),
            grounds: BTreeMap::new(),
            own: place(self.cache, &self.key),
            priority: self.copies.priority,
        };
        let Some(limit) = &room.limit else {
            return room;
        };
        let mut now = after.clone();
        now.nodes = old.to_vec();
        let none = ModelCacheStatus::default();
        let mut parties = vec![Party {
            cache: self.cache,
            copies: self.copies,
            status: &now,
            needed: !self.seen.waiting.is_empty(),
            own: true,
        }];
        for neighbour in &self.seen.neighbours {
            let cache = &*neighbour.cache;
            let Some(copies) = &cache.spec.nodes else {
                continue;
            };
            parties.push(Party {
                cache,
                copies,
                status: cache.status.as_ref().unwrap_or(&none),
                needed: neighbour.needed,
                own: false,
            });
        }
        for node in wanted {
            let uid = node.uid().unwrap_or_default();
            let mut ground = Ground::default();
            for party in &parties {
                self.count(party, node, limit, &mut ground);
            }
            if !ground.held.contains_key(&room.own) && !ground.wants.contains_key(&room.own) {
                let size = self.size(&now);
                let want = parties[0].want(&room.own, size, false);
                ground.wants.insert(room.own.clone(), want);
            }
            ground.wants.retain(|id, _| !ground.held.contains_key(id));
            let held: Vec<Held> = ground.held.values().cloned().collect();
            let wants: Vec<Want> = ground.wants.values().cloned().collect();
            ground.decision = decide(limit.bytes, &held, &wants);
            room.grounds.insert(uid, ground);
        }
        room
    }

    /// Bytes of the content that is wanted, if they are known.
    fn size(&self, now: &ModelCacheStatus) -> Option<u64> {
        let complete = now.content_key.as_ref() == Some(&self.key);
        let known = now.nodes.iter().filter(|copy| copy.content_key == self.key);
        let known = known.filter_map(|copy| copy.bytes).max();
        now.bytes.filter(|_| complete).or(known).map(unsigned)
    }

    /// The oldest cache that says how much room there is decides.
    fn limit(&self) -> Option<Limit> {
        let around = self.seen.neighbours.iter().map(|one| &*one.cache);
        let all = around.chain([self.cache]);
        let given = all.filter_map(|cache| {
            let quota = cache.spec.nodes.as_ref()?.quota.as_deref()?;
            let going = cache.meta().deletion_timestamp.is_some();
            let rank = (cache.creation_timestamp(), full_name(cache));
            (!going).then_some((rank, quota))
        });
        let ((_, by), quota) = given.min_by(|a, b| a.0.cmp(&b.0))?;
        let own = self.copies.quota.as_deref();
        let other = own.filter(|own| bytes(own) != bytes(quota));
        let path = self.copies.path.trim_end_matches('/').to_owned();
        Some(Limit {
            bytes: bytes(quota),
            contradicted: other.map(|own| {
                format!(
                    "spec.nodes.quota is {own}, and ModelCache {by}, which is older, gives {path} {quota}: that holds, and no copy is added until both say the same or one says nothing"
                )
            }),
            path,
            by,
        })
    }

    /// What one cache has on a node, or wants there.
    fn count(&self, party: &Party<'_>, node: &Node, limit: &Limit, ground: &mut Ground) {
        let uid = node.uid().unwrap_or_default();
        let copies = party.status.nodes.iter().filter(|copy| copy.uid == uid);
        if !party.own && (matches(party.copies, node) || copies.clone().next().is_some()) {
            let seen = AsSeen::of(party.cache);
            ground.premises.push(Premise::Unchanged(seen));
        }
        let going = party.cache.meta().deletion_timestamp.is_some();
        let quota = party.copies.quota.as_deref();
        let refused = going || quota.is_some_and(|quota| bytes(quota) != limit.bytes);
        for copy in copies {
            let id = place(party.cache, &copy.content_key);
            ground
                .names
                .entry(id.clone())
                .or_insert_with(|| full_name(party.cache));
            let size = copy.bytes.or(party
                .status
                .bytes
                .filter(|_| party.status.content_key.as_ref() == Some(&copy.content_key)));
            let began = copy.room.is_some() && self.begun(party, copy);
            let coming = copy.phase == CopyPhase::Fetching || began;
            let there = matches!(
                copy.phase,
                CopyPhase::Ready | CopyPhase::Failed | CopyPhase::Removing
            );
            if there || coming {
                let one = party.held(copy, (&id, size), coming && !there, going);
                match ground.held.get_mut(&id) {
                    Some(known) => join(known, &one),
                    None => {
                        ground.held.insert(id, one);
                    }
                }
            } else if copy.content_key == content_key(&party.cache.spec)
                && (party.own || !refused && size.is_some())
            {
                let evicted = copy.phase == CopyPhase::Evicted;
                let want = party.want(&id, size.map(unsigned), evicted);
                ground.wants.entry(id).or_insert(want);
            }
        }
    }

    /// Whether a copy that was promised room is really under way.
    fn begun(&self, party: &Party<'_>, copy: &NodeCopy) -> bool {
        let job = || copy_name(self.cache, &copy.name, &copy.content_key);
        !party.own || self.job(&job()).is_some()
    }
}

impl Party<'_> {
    fn held(
        &self,
        copy: &NodeCopy,
        (id, size): (&str, Option<i64>),
        coming: bool,
        going: bool,
    ) -> Held {
        let current = copy.content_key == content_key(&self.cache.spec);
        let keep = if coming && size.is_none() && copy.room.is_some() {
            Some(Keep::Measuring)
        } else if coming {
            Some(Keep::Coming)
        } else if copy.user_count > 0 {
            Some(Keep::Used)
        } else if self.needed && current {
            Some(Keep::Needed)
        } else if self.copies.pinned {
            Some(Keep::Pinned)
        } else {
            None
        };
        let used = copy.last_used.as_ref().or(copy.fetched_at.as_ref());
        Held {
            id: id.to_owned(),
            bytes: size.or(copy.room).map_or(0, unsigned),
            priority: self.copies.priority,
            last_used: used.map_or(0, |time| time.0.as_millisecond()),
            keep,
            leaving: copy.phase == CopyPhase::Removing || going && copy.user_count == 0,
        }
    }

    fn want(&self, id: &str, bytes: Option<u64>, evicted: bool) -> Want {
        let made = self.cache.creation_timestamp();
        Want {
            id: id.to_owned(),
            bytes,
            priority: self.copies.priority,
            call: match (self.needed, evicted) {
                (true, _) => Call::Needed,
                (false, true) => Call::Returning,
                (false, false) => Call::New,
            },
            since: made.map_or(0, |time| Timestamp::as_second(time.0)),
        }
    }
}

/// Two caches that have the same: whoever wants to keep it keeps it.
fn join(known: &mut Held, other: &Held) {
    known.bytes = known.bytes.max(other.bytes);
    known.priority = known.priority.max(other.priority);
    known.last_used = known.last_used.max(other.last_used);
    known.keep = known.keep.or(other.keep);
    // One that is deleted leaves it to the other.
    known.leaving = known.leaving && other.leaving;
}

impl Room {
    /// What another cache says about the quota, where this one says something else.
    pub(super) fn contradiction(&self) -> Option<&str> {
        self.limit.as_ref()?.contradicted.as_deref()
    }

    /// Why the copy of a node makes room, if it does.
    pub(super) fn evicts(&self, uid: &str) -> Option<String> {
        let (ground, limit) = (self.grounds.get(uid)?, self.limit.as_ref()?);
        let cause = ground.decision.evicted(&self.own)?;
        Some(match cause {
            Some(other) => format!(
                "it made room for ModelCache {}",
                ground.names.get(other).map_or(other, String::as_str)
            ),
            None => format!(
                "copies took more than the {} bytes that {} may have (spec.nodes.quota of ModelCache {})",
                limit.bytes, limit.path, limit.by
            ),
        })
    }

    /// What must not have changed for a copy to come to a node: two that come at once must not have the same room.
    pub(super) fn premises(&self, uid: &str) -> Vec<Premise> {
        let ground = self.grounds.get(uid);
        ground.map_or_else(Vec::new, |ground| ground.premises.clone())
    }

    /// What the copy of a node is told that is to come.
    pub(super) fn say(&self, uid: &str) -> Say {
        let (Some(limit), Some(ground)) = (&self.limit, self.grounds.get(uid)) else {
            return Say::Come(None);
        };
        if let Some(words) = &limit.contradicted {
            return Say::Later(reason::QUOTA_CONTRADICTS, words.clone());
        }
        if let Some(held) = ground.held.get(&self.own) {
            // Another cache of the same content has it, or is getting it.
            if held.leaving {
                let words = "its earlier copy is being removed".to_owned();
                return Say::Later(reason::WAITING_FOR_ROOM, words);
            }
            return Say::Come(Some(i64::try_from(held.bytes).unwrap_or(i64::MAX)));
        }
        let size = ground.wants.get(&self.own).and_then(|want| want.bytes);
        let size = size.unwrap_or_default();
        match ground.decision.answer(&self.own) {
            Some(Answer::Come { room }) => Say::Come(Some(i64::try_from(room).unwrap_or(i64::MAX))),
            Some(Answer::Soon) => {
                let goes =
                    |held: &&Held| held.leaving || ground.decision.evicted(&held.id).is_some();
                let going = ground.held.values().filter(goes);
                let names: Vec<String> = going.map(|held| ground.name(&held.id)).collect();
                let words = format!(
                    "room is being made: it comes when {} is removed",
                    first_of(&names)
                );
                Say::Later(reason::WAITING_FOR_ROOM, words)
            }
            Some(Answer::Measured) => {
                let one = ground
                    .held
                    .values()
                    .find(|held| held.keep == Some(Keep::Measuring));
                let one = one.map_or_else(|| "another".to_owned(), |held| ground.name(&held.id));
                let words = format!(
                    "waits for room: how much is left is known when {one} is, which is being fetched"
                );
                Say::Later(reason::WAITING_FOR_ROOM, words)
            }
            Some(Answer::TooLarge) => {
                let words = format!(
                    "it has {size} bytes and never fits: {} may have {} on a node. Raise spec.nodes.quota of ModelCache {}, or name another path",
                    limit.path, limit.bytes, limit.by
                );
                Say::Later(reason::QUOTA_TOO_SMALL, words)
            }
            Some(Answer::Waits) | None => {
                Say::Later(reason::WAITING_FOR_ROOM, self.lacks(ground, limit, size))
            }
        }
    }

    /// What holds the room, and what would free it.
    fn lacks(&self, ground: &Ground, limit: &Limit, size: u64) -> String {
        let taken: u64 = ground.held.values().map(|held| held.bytes).sum();
        let free = limit.bytes.saturating_sub(taken);
        let mut held: Vec<&Held> = ground.held.values().collect();
        held.sort_by_key(|held| std::cmp::Reverse(held.bytes));
        let held = held.into_iter().map(|held| {
            let why = match held.keep {
                Some(Keep::Used) => "in use",
                Some(Keep::Needed) => "waited for",
                Some(Keep::Pinned) => "pinned",
                Some(Keep::Coming | Keep::Measuring) => "being fetched",
                None if held.priority > self.priority => "of a higher priority",
                None => "idle",
            };
            format!(
                "ModelCache {} ({} bytes, {why})",
                ground.name(&held.id),
                held.bytes
            )
        });
        let held: Vec<String> = held.collect();
        format!(
            "waits for room: it needs {size} bytes, and of the {} that {} may have {free} are free; {} have the rest. End what uses one of them, delete or unpin it, raise spec.nodes.priority of this cache, or spec.nodes.quota of ModelCache {}",
            limit.bytes,
            limit.path,
            first_of(&held),
            limit.by
        )
    }
}

impl Ground {
    fn name(&self, id: &str) -> String {
        let known = self.names.get(id).map(String::as_str);
        known.unwrap_or(id).to_owned()
    }
}
