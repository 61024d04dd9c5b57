//! Objects of one kind as the API last told them, with an index by owner, and with our own writes
//! visible before the watch brings them back.
//!
//! A decision must never be made on a state older than our own last write: the scheduler would
//! place the next workload on GPUs it has just given away. So what a write returned is kept here
//! until the watch has passed it.

mod trim;
mod watch;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::Arc;

use jiff::Timestamp;
use kube::{Resource, ResourceExt};
use parking_lot::RwLock;

use crate::clock;

pub(crate) use trim::{as_it_is, event, job, node, pod, workload};
pub(crate) use watch::{Source, follow};

/// Longest time an own write is believed without the watch confirming it.
const OWN_SECONDS: i64 = 60;

/// Namespace and name; the namespace is empty for cluster-wide kinds.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Key {
    pub(crate) namespace: String,
    pub(crate) name: String,
}

impl Key {
    pub(crate) fn new(namespace: &str, name: &str) -> Self {
        Self {
            namespace: namespace.to_owned(),
            name: name.to_owned(),
        }
    }

    pub(crate) fn of<K: ResourceExt>(object: &K) -> Self {
        Self {
            namespace: object.namespace().unwrap_or_default(),
            name: object.name_any(),
        }
    }
}

impl fmt::Display for Key {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{}/{}", self.namespace, self.name)
    }
}

/// What a kind keeps in memory: which objects, how much of them, and under which owner.
#[derive(Debug)]
pub(crate) struct Shape<K> {
    pub(crate) keep: fn(&K) -> bool,
    pub(crate) trim: fn(&mut K),
    pub(crate) owner: fn(&K) -> Option<String>,
}

/// All objects of one kind.
#[derive(Debug)]
pub(crate) struct Cache<K> {
    state: RwLock<State<K>>,
    /// Why the API server refuses the watch, while it does.
    stuck: RwLock<Option<String>>,
    shape: Shape<K>,
}

#[derive(Debug)]
struct State<K> {
    objects: BTreeMap<Key, Arc<K>>,
    owned: BTreeMap<String, BTreeSet<Key>>,
    /// Objects of a list in progress; they replace the others at its end.
    listing: Option<BTreeMap<Key, Arc<K>>>,
    /// Own writes the watch has not shown yet.
    own: BTreeMap<Key, Own>,
    /// Lists completed so far.
    lists: u64,
    /// Newest version the watch has shown.
    newest: u64,
    synced: bool,
}

/// A write of ours that the watch has not shown.
#[derive(Debug)]
struct Own {
    version: u64,
    /// How long it is believed against a list that does not show it.
    until: Timestamp,
    /// Lists that were complete when it was made.
    lists: u64,
}

/// An object before and after a step; never both absent.
#[derive(Debug)]
pub(crate) struct Changed<K> {
    pub(crate) before: Option<Arc<K>>,
    pub(crate) after: Option<Arc<K>>,
}

impl<K> Changed<K> {
    /// The newest form there is.
    pub(crate) fn latest(&self) -> Option<&K> {
        self.after.as_deref().or(self.before.as_deref())
    }
}

/// One step of a watch, already converted and filtered.
#[derive(Debug)]
pub(crate) enum Step<K> {
    Listing,
    Listed(K),
    ListDone,
    Applied(K),
    Deleted(Key, u64),
}

impl<K> Cache<K>
where
    K: Resource<DynamicType = ()> + Clone,
{
    pub(crate) fn new(shape: Shape<K>) -> Self {
        let state = State {
            objects: BTreeMap::new(),
            owned: BTreeMap::new(),
            listing: None,
            own: BTreeMap::new(),
            lists: 0,
            newest: 0,
            synced: false,
        };
        Self {
            state: RwLock::new(state),
            stuck: RwLock::new(None),
            shape,
        }
    }

    pub(crate) fn get(&self, key: &Key) -> Option<Arc<K>> {
        self.state.read().objects.get(key).cloned()
    }

    pub(crate) fn all(&self) -> Vec<Arc<K>> {
        self.state.read().objects.values().cloned().collect()
    }

    /// The objects the index files under one owner.
    pub(crate) fn owned_by(&self, owner: &str) -> Vec<Arc<K>> {
        let state = self.state.read();
        let keys = state.owned.get(owner).into_iter().flatten();
        keys.filter_map(|key| state.objects.get(key).cloned())
            .collect()
    }

    /// Whether one list has been completed.
    pub(crate) fn synced(&self) -> bool {
        self.state.read().synced
    }

    /// Why the API server refuses the watch, while it does.
    pub(crate) fn stuck(&self) -> Option<String> {
        self.stuck.read().clone()
    }

    /// Remembers that the API server refuses the watch, or that it no longer does.
    pub(crate) fn set_stuck(&self, why: Option<String>) {
        *self.stuck.write() = why;
    }

    /// Takes in what one of our own writes returned.
    pub(crate) fn note(&self, mut object: K, now: Timestamp) {
        let version = version(&object);
        let mut state = self.state.write();
        // A watch that is already past this version has shown it, or its end.
        if version == 0 || version <= state.newest || !(self.shape.keep)(&object) {
            return;
        }
        (self.shape.trim)(&mut object);
        let key = Key::of(&object);
        let own = Own {
            version,
            until: clock::after(now, OWN_SECONDS),
            lists: state.lists,
        };
        state.own.insert(key.clone(), own);
        state.put(key, Arc::new(object), self.shape.owner);
    }

    /// Forgets own writes that a later list did not show and no event since, such as an object deleted
    /// before that list was made. A watch that is merely silent makes nothing disappear.
    pub(crate) fn forget_unconfirmed(&self, now: Timestamp) -> Vec<Arc<K>> {
        let mut state = self.state.write();
        let lists = state.lists;
        let old = state
            .own
            .iter()
            .filter(|(_, own)| own.until <= now && own.lists < lists);
        let old: Vec<Key> = old.map(|(key, _)| key.clone()).collect();
        old.iter()
            .filter_map(|key| {
                state.own.remove(key);
                state.remove(key, self.shape.owner)
            })
            .collect()
    }

    /// Takes one step of the watch and returns what changed.
    pub(crate) fn step(&self, step: Step<K>) -> Vec<Changed<K>> {
        let mut state = self.state.write();
        match step {
            Step::Listing => {
                state.listing = Some(BTreeMap::new());
                Vec::new()
            }
            Step::Listed(object) => {
                if let Some(object) = self.kept(object) {
                    let key = Key::of(&*object);
                    state.listing.get_or_insert_default().insert(key, object);
                }
                Vec::new()
            }
            Step::ListDone => state.relist(self.shape.owner),
            Step::Applied(object) => {
                let (key, version) = (Key::of(&object), version(&object));
                state.newest = state.newest.max(version);
                if state.own.get(&key).is_some_and(|own| own.version > version) {
                    return Vec::new();
                }
                state.own.remove(&key);
                let before = match self.kept(object) {
                    Some(object) => state.put(key.clone(), object, self.shape.owner),
                    None => state.remove(&key, self.shape.owner),
                };
                let after = state.objects.get(&key).cloned();
                changed(before, after)
            }
            Step::Deleted(key, version) => {
                state.newest = state.newest.max(version);
                if state.own.get(&key).is_some_and(|own| own.version > version) {
                    return Vec::new();
                }
                state.own.remove(&key);
                let before = state.remove(&key, self.shape.owner);
                changed(before, None)
            }
        }
    }

    fn kept(&self, mut object: K) -> Option<Arc<K>> {
        if !(self.shape.keep)(&object) {
            return None;
        }
        (self.shape.trim)(&mut object);
        Some(Arc::new(object))
    }
}

impl<K> State<K>
where
    K: Resource<DynamicType = ()> + Clone,
{
    fn put(&mut self, key: Key, object: Arc<K>, owner: fn(&K) -> Option<String>) -> Option<Arc<K>> {
        let before = self.remove(&key, owner);
        if let Some(owner) = owner(&object) {
            self.owned.entry(owner).or_default().insert(key.clone());
        }
        self.objects.insert(key, object);
        before
    }

    fn remove(&mut self, key: &Key, owner: fn(&K) -> Option<String>) -> Option<Arc<K>> {
        let before = self.objects.remove(key)?;
        if let Some(owner) = owner(&before)
            && let Some(keys) = self.owned.get_mut(&owner)
        {
            keys.remove(key);
            if keys.is_empty() {
                self.owned.remove(&owner);
            }
        }
        Some(before)
    }

    /// Swaps in a completed list at once, so that no reader sees half of it. Own writes newer than
    /// everything listed stay.
    fn relist(&mut self, owner: fn(&K) -> Option<String>) -> Vec<Changed<K>> {
        let listed = self.listing.take().unwrap_or_default();
        let newest = listed
            .values()
            .map(|object| version(&**object))
            .max()
            .unwrap_or(0);
        let before = std::mem::take(&mut self.objects);
        self.owned.clear();
        let kept: Vec<Key> = self
            .own
            .iter()
            .filter(|(_, own)| own.version > newest)
            .map(|(key, _)| key.clone())
            .collect();
        self.own.retain(|key, _| kept.contains(key));
        self.newest = self.newest.max(newest);
        self.synced = true;
        self.lists += 1;
        for (key, object) in listed {
            self.put(key, object, owner);
        }
        for key in kept {
            if let Some(object) = before.get(&key) {
                self.put(key, Arc::clone(object), owner);
            }
        }
        let gone = before.keys().filter(|key| !self.objects.contains_key(key));
        let keys = gone.chain(self.objects.keys());
        keys.flat_map(|key| changed(before.get(key).cloned(), self.objects.get(key).cloned()))
            .collect()
    }
}

fn changed<K>(before: Option<Arc<K>>, after: Option<Arc<K>>) -> Vec<Changed<K>> {
    if before.is_none() && after.is_none() {
        Vec::new()
    } else {
        vec![Changed { before, after }]
    }
}

/// Resource versions of one kind grow; an unreadable one counts as older than all.
fn version<K: ResourceExt>(object: &K) -> u64 {
    object
        .resource_version()
        .and_then(|text| text.parse().ok())
        .unwrap_or(0)
}

#[cfg(test)]
mod tests;
