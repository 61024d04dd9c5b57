//! The objects of one kind, of whatever kind: by key, by index, and who hears of changes. The types are put back on by
//! [`super::Cache`], so that this code exists once and not once for each kind.

use std::any::Any;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::{self, Debug};
use std::sync::Arc;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::Resource;
use parking_lot::RwLock;
use tokio::sync::watch;

use super::Key;
use super::feed::Change;

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

struct State {
    objects: Objects,
    /// Objects by what an index finds them under.
    indexes: Vec<(IndexBy, BTreeMap<String, Objects>)>,
}

pub struct Store {
    state: RwLock<State>,
    listeners: RwLock<Vec<Listener>>,
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
    pub fn new(indexes: Vec<IndexBy>) -> Self {
        let state = State {
            objects: BTreeMap::new(),
            indexes: indexes
                .into_iter()
                .map(|by| (by, BTreeMap::new()))
                .collect(),
        };
        Self {
            state: RwLock::new(state),
            listeners: RwLock::new(Vec::new()),
            watermark: watch::Sender::new(0),
        }
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
            Change::Set(entry) => self.put(&entry),
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
        let version = version
            .and_then(|text| text.parse::<u64>().ok())
            .unwrap_or_default();
        // Every change wakes those who wait for a deletion, so an equal version counts as a change too.
        self.watermark
            .send_modify(|seen| *seen = (*seen).max(version));
    }

    pub fn put(&self, entry: &Arc<dyn Entry>) {
        let old = self.state.write().put(entry);
        self.notify(old.as_ref(), Some(entry));
        self.advance(entry.meta().resource_version.as_deref());
    }

    pub fn remove(&self, last: &dyn Entry) {
        let old = self.state.write().remove(&Key::in_meta(last.meta()));
        if old.is_some() {
            self.notify(old.as_ref(), None);
        }
        self.advance(last.meta().resource_version.as_deref());
    }

    pub fn replace(&self, entries: Vec<Arc<dyn Entry>>, version: Option<&str>) {
        let mut stale: BTreeSet<Key> = self.state.read().objects.keys().cloned().collect();
        for entry in entries {
            let key = Key::in_meta(entry.meta());
            stale.remove(&key);
            let same = self.get(&key).is_some_and(|known| {
                known.meta().resource_version == entry.meta().resource_version
            });
            if !same {
                self.put(&entry);
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

impl State {
    fn within<'a>(&'a self, namespace: &'a str) -> impl Iterator<Item = &'a Arc<dyn Entry>> {
        self.objects
            .range(Key::new(namespace, "")..)
            .take_while(move |(key, _)| &*key.namespace == namespace)
            .map(|(_, entry)| entry)
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
