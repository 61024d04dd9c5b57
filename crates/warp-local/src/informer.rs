//! Shared caches: one list and one watch per kind, whoever reads them.
//!
//! A cache owns the newest state this process has seen of one kind, indexes over it, and the *watermark*: the newest
//! resource version seen. Watch events of one kind arrive in the order of their versions, so "has my own write come
//! back?" is one comparison, and no controller keeps a list of what it expects. A cache never writes to the API.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::{self, Debug, Display};
use std::sync::Arc;
use std::time::Duration;

use futures::{TryStreamExt, pin_mut};
use kube::api::{ListParams, ObjectList, Resource, WatchEvent, WatchParams};
use kube::core::Request;
use parking_lot::RwLock;
use serde::de::DeserializeOwned;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

#[cfg(test)]
mod tests;

/// Namespace and name; the namespace of a cluster-scoped object is empty.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Key {
    pub namespace: Arc<str>,
    pub name: Arc<str>,
}

impl Key {
    pub fn new(namespace: &str, name: &str) -> Self {
        Self {
            namespace: namespace.into(),
            name: name.into(),
        }
    }

    pub fn of<K: Resource>(object: &K) -> Self {
        let meta = object.meta();
        Self::new(
            meta.namespace.as_deref().unwrap_or_default(),
            meta.name.as_deref().unwrap_or_default(),
        )
    }

    /// The namespace as the API wants it: none for cluster-scoped objects.
    pub fn scope(&self) -> Option<&str> {
        (!self.namespace.is_empty()).then_some(&*self.namespace)
    }
}

impl Display for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.namespace.is_empty() {
            f.write_str(&self.name)
        } else {
            write!(f, "{}/{}", self.namespace, self.name)
        }
    }
}

impl Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        Display::fmt(self, f)
    }
}

/// What an object is found under in one index; `None` leaves it out.
pub type IndexBy<K> = fn(&K) -> Option<String>;

/// Objects by what an index finds them under.
type Index<K> = BTreeMap<String, BTreeMap<Key, Arc<K>>>;

type Listener<K> = Box<dyn Fn(Option<&Arc<K>>, Option<&Arc<K>>) + Send + Sync>;

struct State<K> {
    objects: BTreeMap<Key, Arc<K>>,
    indexes: Vec<(IndexBy<K>, Index<K>)>,
}

struct Inner<K> {
    state: RwLock<State<K>>,
    listeners: RwLock<Vec<Listener<K>>>,
    /// 0 until the first list has arrived.
    watermark: watch::Sender<u64>,
}

/// The newest state seen of one kind.
pub struct Cache<K> {
    inner: Arc<Inner<K>>,
}

impl<K> Clone for Cache<K> {
    fn clone(&self) -> Self {
        Self {
            inner: self.inner.clone(),
        }
    }
}

impl<K> Debug for Cache<K> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Cache")
            .field("watermark", &*self.inner.watermark.borrow())
            .finish_non_exhaustive()
    }
}

impl<K: Resource> Cache<K> {
    pub fn new(indexes: &[IndexBy<K>]) -> Self {
        let state = State {
            objects: BTreeMap::new(),
            indexes: indexes.iter().map(|by| (*by, BTreeMap::new())).collect(),
        };
        Self {
            inner: Arc::new(Inner {
                state: RwLock::new(state),
                listeners: RwLock::new(Vec::new()),
                watermark: watch::Sender::new(0),
            }),
        }
    }

    /// Calls `listener` with the old and the new state of every object that changes from now on. Listeners run in the
    /// watch task: they may enqueue, never block.
    pub fn listen(
        &self,
        listener: impl Fn(Option<&Arc<K>>, Option<&Arc<K>>) + Send + Sync + 'static,
    ) {
        self.inner.listeners.write().push(Box::new(listener));
    }

    pub fn get(&self, key: &Key) -> Option<Arc<K>> {
        self.inner.state.read().objects.get(key).cloned()
    }

    pub fn all(&self) -> Vec<Arc<K>> {
        self.inner.state.read().objects.values().cloned().collect()
    }

    /// Does any object answer to `holds`? Asked under the lock: it must be quick.
    pub fn any(&self, holds: impl Fn(&K) -> bool) -> bool {
        let state = self.inner.state.read();
        state.objects.values().any(|object| holds(object))
    }

    pub fn len(&self) -> usize {
        self.inner.state.read().objects.len()
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    pub fn in_namespace(&self, namespace: &str) -> Vec<Arc<K>> {
        let from = Key::new(namespace, "");
        let state = self.inner.state.read();
        state
            .objects
            .range(from..)
            .take_while(|(key, _)| &*key.namespace == namespace)
            .map(|(_, object)| object.clone())
            .collect()
    }

    /// The objects found under `value` in the index at position `index` of those given to [`Cache::new`].
    pub fn by(&self, index: usize, value: &str) -> Vec<Arc<K>> {
        let state = self.inner.state.read();
        let Some((_, found)) = state.indexes.get(index) else {
            return Vec::new();
        };
        found
            .get(value)
            .map(|objects| objects.values().cloned().collect())
            .unwrap_or_default()
    }

    /// Waits until the first list has arrived.
    pub async fn synced(&self) {
        // An error means the sender is gone, and this cache holds the sender.
        let _ = self
            .inner
            .watermark
            .subscribe()
            .wait_for(|seen| *seen > 0)
            .await;
    }

    /// Waits until `version` and everything before it has been seen.
    pub async fn seen(&self, version: u64) {
        let _ = self
            .inner
            .watermark
            .subscribe()
            .wait_for(|seen| *seen >= version)
            .await;
    }

    /// Waits until the object `uid` under `key` is gone or marked as being deleted.
    pub async fn gone(&self, key: &Key, uid: &str) {
        let mut changes = self.inner.watermark.subscribe();
        loop {
            changes.mark_unchanged();
            let there = self.get(key).is_some_and(|object| {
                object.meta().uid.as_deref() == Some(uid)
                    && object.meta().deletion_timestamp.is_none()
            });
            if !there || changes.changed().await.is_err() {
                return;
            }
        }
    }

    fn notify(&self, old: Option<&Arc<K>>, new: Option<&Arc<K>>) {
        for listener in self.inner.listeners.read().iter() {
            listener(old, new);
        }
    }

    fn advance(&self, version: Option<&str>) {
        let version = version
            .and_then(|text| text.parse::<u64>().ok())
            .unwrap_or_default();
        // Every change wakes those who wait for a deletion, so an equal version counts as a change too.
        self.inner
            .watermark
            .send_modify(|seen| *seen = (*seen).max(version));
    }

    /// Takes one object as the newest state of its key.
    pub(crate) fn put(&self, mut object: K) {
        let meta = object.meta_mut();
        meta.managed_fields = None;
        let version = meta.resource_version.clone();
        let key = Key::of(&object);
        let object = Arc::new(object);
        let old = self.inner.state.write().put(&key, &object);
        self.notify(old.as_ref(), Some(&object));
        self.advance(version.as_deref());
    }

    /// Takes the last state of an object that no longer exists.
    pub(crate) fn remove(&self, last: &K) {
        let old = self.inner.state.write().remove(&Key::of(last));
        if let Some(old) = old {
            self.notify(Some(&old), None);
        }
        self.advance(last.meta().resource_version.as_deref());
    }

    /// Takes a whole list: what it does not name is gone.
    pub(crate) fn replace(&self, objects: Vec<K>, version: Option<&str>) {
        let mut stale: BTreeSet<Key> = self.inner.state.read().objects.keys().cloned().collect();
        for object in objects {
            let key = Key::of(&object);
            stale.remove(&key);
            let same = self.get(&key).is_some_and(|known| {
                known.meta().resource_version == object.meta().resource_version
            });
            if !same {
                self.put(object);
            }
        }
        for key in stale {
            let old = self.inner.state.write().remove(&key);
            if let Some(old) = old {
                self.notify(Some(&old), None);
            }
        }
        // A list of an empty store may carry version 0 on some servers; being synced is said by any non-zero value.
        self.advance(version.or(Some("1")));
        self.advance(Some("1"));
    }
}

impl<K> State<K> {
    fn put(&mut self, key: &Key, object: &Arc<K>) -> Option<Arc<K>> {
        let old = self.objects.insert(key.clone(), object.clone());
        for (by, index) in &mut self.indexes {
            let before = old.as_deref().and_then(*by);
            let after = by(object);
            if before != after {
                unindex(index, before.as_deref(), key);
            }
            if let Some(after) = after {
                index
                    .entry(after)
                    .or_default()
                    .insert(key.clone(), object.clone());
            }
        }
        old
    }

    fn remove(&mut self, key: &Key) -> Option<Arc<K>> {
        let old = self.objects.remove(key)?;
        for (by, index) in &mut self.indexes {
            unindex(index, by(&old).as_deref(), key);
        }
        Some(old)
    }
}

fn unindex<K>(index: &mut Index<K>, value: Option<&str>, key: &Key) {
    let Some(value) = value else { return };
    if let Some(found) = index.get_mut(value) {
        found.remove(key);
        if found.is_empty() {
            index.remove(value);
        }
    }
}

/// Where a cache is filled from: a path and what it asks for.
#[derive(Clone, Debug)]
pub struct Source {
    path: String,
    metadata_only: bool,
    field_selector: Option<String>,
}

impl Source {
    /// Every object of `K` in every namespace.
    pub fn all<K: Resource<DynamicType = ()>>() -> Self {
        Self {
            path: K::url_path(&(), None),
            metadata_only: false,
            field_selector: None,
        }
    }

    /// Every object of `K` in one namespace.
    pub fn namespaced<K: Resource<DynamicType = ()>>(namespace: &str) -> Self {
        Self {
            path: K::url_path(&(), Some(namespace)),
            metadata_only: false,
            field_selector: None,
        }
    }

    /// Only the metadata of every object under a resource's path.
    pub fn metadata(path: String) -> Self {
        Self {
            path,
            metadata_only: true,
            field_selector: None,
        }
    }

    #[must_use]
    pub fn fields(mut self, selector: &str) -> Self {
        self.field_selector = Some(selector.to_owned());
        self
    }

    fn list_request(&self) -> Result<http::Request<Vec<u8>>, kube::core::request::Error> {
        let mut params = ListParams::default();
        params.field_selector.clone_from(&self.field_selector);
        let request = Request::new(&self.path);
        if self.metadata_only {
            request.list_metadata(&params)
        } else {
            request.list(&params)
        }
    }

    fn watch_request(
        &self,
        version: &str,
    ) -> Result<http::Request<Vec<u8>>, kube::core::request::Error> {
        let mut params = WatchParams::default();
        params.field_selector.clone_from(&self.field_selector);
        let request = Request::new(&self.path);
        if self.metadata_only {
            request.watch_metadata(&params, version)
        } else {
            request.watch(&params, version)
        }
    }
}

const FIRST_RETRY: Duration = Duration::from_millis(50);
const LAST_RETRY: Duration = Duration::from_secs(10);

/// Keeps `cache` equal to the API until `shutdown`: list, watch from there, list again when the watch is too old.
pub async fn fill<K>(
    client: kube::Client,
    source: Source,
    cache: Cache<K>,
    shutdown: CancellationToken,
) where
    K: Resource + Clone + DeserializeOwned + Debug + Send + Sync + 'static,
{
    let mut delay = FIRST_RETRY;
    while !shutdown.is_cancelled() {
        let started = tokio::time::Instant::now();
        let ended = tokio::select! {
            () = shutdown.cancelled() => return,
            ended = list_and_watch(&client, &source, &cache) => ended,
        };
        if let Err(error) = ended {
            // A kind this server does not serve has no objects; it may be served later.
            if matches!(&error, kube::Error::Api(status) if status.code == 404) {
                cache.replace(Vec::new(), None);
            }
            tracing::debug!(path = source.path, %error, "watch ended, listing again");
        }
        delay = if started.elapsed() > LAST_RETRY {
            FIRST_RETRY
        } else {
            (delay * 2).min(LAST_RETRY)
        };
        tokio::select! {
            () = shutdown.cancelled() => return,
            () = tokio::time::sleep(delay) => {}
        }
    }
}

async fn list_and_watch<K>(
    client: &kube::Client,
    source: &Source,
    cache: &Cache<K>,
) -> Result<(), kube::Error>
where
    K: Resource + Clone + DeserializeOwned + Debug + Send + Sync + 'static,
{
    let request = source.list_request().map_err(kube::Error::BuildRequest)?;
    let list: ObjectList<K> = client.request(request).await?;
    let mut version = list.metadata.resource_version.clone().unwrap_or_default();
    cache.replace(list.items, Some(&version));
    loop {
        let request = source
            .watch_request(&version)
            .map_err(kube::Error::BuildRequest)?;
        let started = tokio::time::Instant::now();
        let events = client.request_events::<K>(request).await?;
        pin_mut!(events);
        while let Some(event) = events.try_next().await? {
            match event {
                WatchEvent::Added(object) | WatchEvent::Modified(object) => {
                    version = object.meta().resource_version.clone().unwrap_or(version);
                    cache.put(object);
                }
                WatchEvent::Deleted(object) => {
                    version = object.meta().resource_version.clone().unwrap_or(version);
                    cache.remove(&object);
                }
                WatchEvent::Bookmark(bookmark) => {
                    version = bookmark.metadata.resource_version;
                    cache.advance(Some(&version));
                }
                WatchEvent::Error(status) => return Err(kube::Error::Api(status)),
            }
        }
        // A server that closes watches at once must not be asked in a tight loop.
        if started.elapsed() < FIRST_RETRY {
            tokio::time::sleep(FIRST_RETRY).await;
        }
    }
}
