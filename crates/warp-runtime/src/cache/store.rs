//! The objects of one kind, of whatever kind: by key, by index, and who hears of changes. The types are put back on by
//! [`super::Cache`], so that this code exists once and not once for each kind.
//!
//! Own writes are shown before the watch brings them: a decision must never be made on a state older than the last
//! write of the process that decides. What a write returned stays until the watch, or a list, has passed its version.

use std::any::Any;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::{self, Debug};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::Resource;
use parking_lot::{Mutex, RwLock};
use tokio::sync::watch;

use super::feed::Change;
use super::selection::Selection;
use super::{Health, Key};

/// An object whose kind only its cache knows.
pub trait Entry: Any + Send + Sync {
    fn meta(&self) -> &ObjectMeta;
}

impl<K: Resource + Send + Sync + 'static> Entry for K {
    fn meta(&self) -> &ObjectMeta {
        Resource::meta(self)
    }
}

impl Debug for dyn Entry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}", Key::in_meta(self.meta()))
    }
}

const ONE_KIND: &str = "a store holds objects of the kind its cache puts in";

/// An entry as the kind it is of.
pub fn typed<K: Send + Sync + 'static>(entry: Arc<dyn Entry>) -> Arc<K> {
    let any: Arc<dyn Any + Send + Sync> = entry;
    any.downcast().expect(ONE_KIND)
}

/// A look at an entry as the kind it is of.
pub fn seen_as<K: 'static>(entry: &dyn Entry) -> &K {
    let any: &dyn Any = entry;
    any.downcast_ref().expect(ONE_KIND)
}

pub type IndexBy = Box<dyn Fn(&dyn Entry) -> Option<String> + Send + Sync>;
pub type Listener = Box<dyn Fn(Option<&dyn Entry>, Option<&dyn Entry>) + Send + Sync>;
type Objects = BTreeMap<Key, Arc<dyn Entry>>;

/// What of a freshly read object is kept; `None` keeps nothing of it.
pub type Admit = Box<dyn Fn(Arc<dyn Entry>) -> Option<Arc<dyn Entry>> + Send + Sync>;

/// Which state of which object has arrived.
struct News {
    version: u64,
    uid: Option<String>,
}

struct State {
    objects: Objects,
    /// The newest version the watch or a list has brought.
    newest: u64,
    /// Versions of own writes that the watch has not shown yet.
    own: BTreeMap<Key, u64>,
    /// Objects (by uid) that an own request ended, while the watch has not said so.
    ended: BTreeMap<Key, String>,
    /// Objects by what an index finds them under.
    indexes: Vec<(IndexBy, BTreeMap<String, Objects>)>,
}

pub struct Store {
    state: RwLock<State>,
    admit: Option<Admit>,
    /// Which objects of the kind belong here; all where nothing fills it.
    selection: OnceLock<Selection>,
    health: Mutex<Health>,
    listeners: RwLock<Vec<Listener>>,
    optional: AtomicBool,
    /// The API server has the kind, as far as it was asked.
    served: AtomicBool,
    /// 0 until the first list has arrived.
    watermark: watch::Sender<u64>,
}

impl Debug for Store {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Store")
            .field("watermark", &self.watermark())
            .finish_non_exhaustive()
    }
}

impl Store {
    pub fn new(indexes: Vec<IndexBy>, admit: Option<Admit>) -> Self {
        let state = State {
            objects: BTreeMap::new(),
            newest: 0,
            own: BTreeMap::new(),
            ended: BTreeMap::new(),
            indexes: indexes
                .into_iter()
                .map(|by| (by, BTreeMap::new()))
                .collect(),
        };
        Self {
            state: RwLock::new(state),
            admit,
            selection: OnceLock::new(),
            health: Mutex::new(Health::Starting),
            optional: AtomicBool::new(false),
            served: AtomicBool::new(false),
            listeners: RwLock::new(Vec::new()),
            watermark: watch::Sender::new(0),
        }
    }

    /// Whether others go on although it cannot be read.
    pub(crate) fn is_optional(&self) -> bool {
        self.optional.load(Ordering::Relaxed)
    }

    pub(crate) fn set_optional(&self) {
        self.optional.store(true, Ordering::Relaxed);
    }

    pub(crate) fn is_served(&self) -> bool {
        self.served.load(Ordering::Relaxed)
    }

    pub(crate) fn set_served(&self, served: bool) {
        self.served.store(served, Ordering::Relaxed);
    }

    /// How reading from the API server goes.
    pub fn health(&self) -> Health {
        self.health.lock().clone()
    }

    pub(crate) fn set_health(&self, health: Health) {
        *self.health.lock() = health;
    }

    pub(crate) fn set_selection(&self, selection: Selection) {
        // A cache is filled from one source.
        let _ = self.selection.set(selection);
    }

    /// Whether every object of the kind belongs here.
    pub(crate) fn is_whole(&self) -> bool {
        self.selection.get().is_none_or(Selection::is_whole)
    }

    pub fn listen(&self, listener: Listener) {
        self.listeners.write().push(listener);
    }

    pub fn watermark(&self) -> u64 {
        *self.watermark.borrow()
    }

    pub fn get(&self, key: &Key) -> Option<Arc<dyn Entry>> {
        self.state.read().objects.get(key).cloned()
    }

    pub fn all(&self) -> Vec<Arc<dyn Entry>> {
        self.state.read().objects.values().cloned().collect()
    }

    pub fn any(&self, holds: &dyn Fn(&dyn Entry) -> bool) -> bool {
        let state = self.state.read();
        state.objects.values().any(|entry| holds(&**entry))
    }

    pub fn len(&self) -> usize {
        self.state.read().objects.len()
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    pub fn in_namespace(&self, namespace: &str) -> Vec<Arc<dyn Entry>> {
        let state = self.state.read();
        state.within(namespace).cloned().collect()
    }

    pub fn count_in(&self, namespace: &str) -> usize {
        self.state.read().within(namespace).count()
    }

    pub fn by(&self, index: usize, value: &str) -> Vec<Arc<dyn Entry>> {
        let state = self.state.read();
        let found = state.indexes.get(index).and_then(|(_, by)| by.get(value));
        found
            .map(|objects| objects.values().cloned().collect())
            .unwrap_or_default()
    }

    /// Waits until the first list has arrived.
    pub async fn synced(&self) {
        self.seen(1).await;
    }

    /// Waits until `version` and everything before it has been seen.
    pub async fn seen(&self, version: u64) {
        let mut watermark = self.watermark.subscribe();
        // An error means the sender is gone, and this store holds the sender.
        let _ = watermark.wait_for(|seen| *seen >= version).await;
    }

    /// Waits until the object `uid` under `key` is gone or marked as being deleted.
    pub async fn gone(&self, key: &Key, uid: &str) {
        let mut changes = self.watermark.subscribe();
        loop {
            changes.mark_unchanged();
            let there = self.get(key).is_some_and(|entry| {
                let meta = entry.meta();
                meta.uid.as_deref() == Some(uid) && meta.deletion_timestamp.is_none()
            });
            if !there || changes.changed().await.is_err() {
                return;
            }
        }
    }

    pub fn take(&self, change: Change) {
        match change {
            Change::Listed(entries, version) => self.replace(entries, version.as_deref()),
            Change::Set(entry) => self.put(entry),
            Change::Removed(last) => self.remove(&*last),
            Change::Reached(version) => self.advance(Some(&version)),
        }
    }

    fn notify(&self, old: Option<&Arc<dyn Entry>>, new: Option<&Arc<dyn Entry>>) {
        let (old, new) = (old.map(|old| &**old), new.map(|new| &**new));
        for listener in self.listeners.read().iter() {
            listener(old, new);
        }
    }

    fn advance(&self, version: Option<&str>) {
        let version = version.and_then(|text| text.parse::<u64>().ok());
        self.advance_to(version.unwrap_or_default());
    }

    fn advance_to(&self, version: u64) {
        // Every change wakes those who wait for a deletion, so an equal version counts as a change too.
        self.watermark
            .send_modify(|seen| *seen = (*seen).max(version));
    }

    pub fn put(&self, entry: Arc<dyn Entry>) {
        let version = version_of(&*entry);
        self.show(entry, State::passes);
        self.advance_to(version);
    }

    /// Takes in what an own write returned. The watch may be ahead of it already, and then it says nothing new.
    pub fn take_own(&self, entry: Arc<dyn Entry>) {
        let version = version_of(&*entry);
        let selection = self.selection.get();
        let belongs = selection.map_or(Some(true), |selection| selection.brings(entry.meta()));
        // What was ours and is no longer: the watch says so.
        if belongs == Some(false) {
            return;
        }
        // Only its admission could tell whether an unknown object is one of those this cache selects.
        let known_only = belongs.is_none() && self.admit.is_none();
        self.show(entry, |state, key, _| {
            let stale = version <= state.newest
                || state.own.get(key).is_some_and(|own| *own >= version)
                || (known_only && !state.objects.contains_key(key));
            if !stale {
                state.own.insert(key.clone(), version);
            }
            !stale
        });
        // Those who wait for a deletion look again.
        self.advance_to(0);
    }

    /// Takes in that an own request ended the object `uid` under `key`.
    pub fn take_own_end(&self, key: &Key, uid: &str) {
        let mut state = self.state.write();
        let there = state
            .objects
            .get(key)
            .and_then(|entry| entry.meta().uid.as_deref());
        if there != Some(uid) {
            return;
        }
        state.ended.insert(key.clone(), uid.to_owned());
        state.own.remove(key);
        let old = state.remove(key);
        drop(state);
        self.notify(old.as_ref(), None);
        self.advance_to(0);
    }

    /// Shows a state of an object to readers and listeners if it `is_news`, as far as the cache keeps it.
    fn show(&self, entry: Arc<dyn Entry>, is_news: impl FnOnce(&mut State, &Key, &News) -> bool) {
        let key = Key::in_meta(entry.meta());
        let news = News {
            version: version_of(&*entry),
            uid: entry.meta().uid.clone(),
        };
        let kept = match &self.admit {
            Some(admit) => admit(entry),
            None => Some(entry),
        };
        let mut state = self.state.write();
        if !is_news(&mut state, &key, &news) {
            return;
        }
        let old = match &kept {
            Some(entry) => state.put(entry),
            None => state.remove(&key),
        };
        drop(state);
        // The watch brings back what an own write has shown already.
        let echo = old.as_ref().zip(kept.as_ref()).is_some_and(|(old, new)| {
            old.meta().uid == new.meta().uid
                && news.version > 0
                && version_of(&**old) == news.version
        });
        if !echo && (old.is_some() || kept.is_some()) {
            self.notify(old.as_ref(), kept.as_ref());
        }
    }

    pub fn remove(&self, last: &dyn Entry) {
        let key = Key::in_meta(last.meta());
        let mut state = self.state.write();
        state.newest = state.newest.max(version_of(last));
        state.ended.remove(&key);
        // An own write that is newer than this end made the next object of the name.
        let newer = state
            .own
            .get(&key)
            .is_some_and(|own| *own > version_of(last));
        let old = if newer {
            None
        } else {
            state.own.remove(&key);
            state.remove(&key)
        };
        drop(state);
        if old.is_some() {
            self.notify(old.as_ref(), None);
        }
        self.advance_to(version_of(last));
    }

    pub fn replace(&self, entries: Vec<Arc<dyn Entry>>, version: Option<&str>) {
        let listed_at = version
            .and_then(|text| text.parse().ok())
            .unwrap_or(u64::MAX);
        let mut stale: BTreeSet<Key> = {
            let mut state = self.state.write();
            // Everything up to the list's version is in the list, own writes included.
            state.own.retain(|_, own| *own > listed_at);
            if version.is_some() && listed_at != u64::MAX {
                state.newest = state.newest.max(listed_at);
            }
            let own: BTreeSet<Key> = state.own.keys().cloned().collect();
            let keys = state.objects.keys();
            keys.filter(|key| !own.contains(*key)).cloned().collect()
        };
        for entry in entries {
            let key = Key::in_meta(entry.meta());
            stale.remove(&key);
            let same = self.get(&key).is_some_and(|known| {
                known.meta().resource_version == entry.meta().resource_version
            });
            if !same {
                self.put(entry);
            }
        }
        for key in stale {
            let old = self.state.write().remove(&key);
            if old.is_some() {
                self.notify(old.as_ref(), None);
            }
        }
        // A list of an empty store may carry version 0 on some servers; being synced is said by any non-zero value.
        self.advance(version.or(Some("1")));
        self.advance(Some("1"));
    }
}

/// Resource versions of one kind grow; an unreadable one counts as older than all.
pub(crate) fn version_of(entry: &dyn Entry) -> u64 {
    let version = entry.meta().resource_version.as_deref();
    version
        .and_then(|text| text.parse().ok())
        .unwrap_or_default()
}

impl State {
    fn within<'a>(&'a self, namespace: &'a str) -> impl Iterator<Item = &'a Arc<dyn Entry>> {
        self.objects
            .range(Key::new(namespace, "")..)
            .take_while(move |(key, _)| &*key.namespace == namespace)
            .map(|(_, entry)| entry)
    }

    /// Whether news of an object is as new as what the process itself did to it.
    fn passes(&mut self, key: &Key, news: &News) -> bool {
        self.newest = self.newest.max(news.version);
        if self.own.get(key).is_some_and(|own| *own > news.version) {
            return false;
        }
        self.own.remove(key);
        match self.ended.get(key) {
            Some(ended) if Some(ended) == news.uid.as_ref() => false,
            Some(_) => {
                self.ended.remove(key);
                true
            }
            None => true,
        }
    }

    fn put(&mut self, entry: &Arc<dyn Entry>) -> Option<Arc<dyn Entry>> {
        let key = Key::in_meta(entry.meta());
        let old = self.objects.insert(key.clone(), entry.clone());
        for (by, index) in &mut self.indexes {
            let before = old.as_deref().and_then(&*by);
            let after = by(&**entry);
            if before != after {
                unindex(index, before.as_deref(), &key);
            }
            if let Some(after) = after {
                index
                    .entry(after)
                    .or_default()
                    .insert(key.clone(), entry.clone());
            }
        }
        old
    }

    fn remove(&mut self, key: &Key) -> Option<Arc<dyn Entry>> {
        let old = self.objects.remove(key)?;
        for (by, index) in &mut self.indexes {
            unindex(index, by(&*old).as_deref(), key);
        }
        Some(old)
    }
}

fn unindex(index: &mut BTreeMap<String, Objects>, value: Option<&str>, key: &Key) {
    let Some(value) = value else { return };
    if let Some(found) = index.get_mut(value) {
        found.remove(key);
        if found.is_empty() {
            index.remove(value);
        }
    }
}
