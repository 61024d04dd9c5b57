//! Shared caches: one list and one watch per kind, whoever reads them.
//!
//! A cache owns the newest state this process has seen of one kind, indexes over it, and the *watermark*: the newest
//! resource version seen. Watch events of one kind arrive in the order of their versions, so "has my own write come
//! back?" is one comparison, and no controller keeps a list of what it expects. A cache never writes to the API.
//!
//! Only this file knows types: the `store` behind a cache and the `feed` that fills it are the same code for every
//! kind, compiled once.

use std::fmt::{self, Debug, Display};
use std::marker::PhantomData;
use std::sync::Arc;

use futures::StreamExt;
use futures::future::BoxFuture;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::api::Resource;
use serde::de::DeserializeOwned;
use tokio_util::sync::CancellationToken;

use crate::pass::Observer;
use crate::queue::Queue;

pub mod feed;
mod selection;
pub mod store;
#[cfg(test)]
mod tests;

pub use self::feed::Source;
use self::store::{Entry, Store};

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
        Self::in_meta(object.meta())
    }

    pub fn in_meta(meta: &ObjectMeta) -> Self {
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

/// Which objects a cache keeps, how much of them, and what they are found under.
#[derive(Clone, Copy, Debug)]
pub struct Shape<K: 'static> {
    pub keep: fn(&K) -> bool,
    pub trim: fn(&mut K),
    pub indexes: &'static [IndexBy<K>],
}

/// How reading one kind from the API server goes, for `/readyz`, metrics and people.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Health {
    /// The first list has not been answered.
    Starting,
    Current,
    /// The API server does not serve the kind: its CRD is not installed.
    Missing,
    /// The API server does not let us read it; with its own words.
    Refused(String),
    /// It did not answer, or not well; with the error.
    Failing(String),
}

impl Health {
    pub fn is_current(&self) -> bool {
        *self == Self::Current
    }
}

impl Display for Health {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Starting => f.write_str("waiting for the first list"),
            Self::Current => f.write_str("current"),
            Self::Missing => {
                f.write_str("the API server does not serve this kind: install its CRD")
            }
            Self::Refused(reason) => write!(f, "no right to read it: {reason}"),
            Self::Failing(error) => write!(f, "cannot be read at the moment: {error}"),
        }
    }
}

/// The newest state seen of one kind.
pub struct Cache<K> {
    store: Arc<Store>,
    kind: PhantomData<fn() -> K>,
}

impl<K> Clone for Cache<K> {
    fn clone(&self) -> Self {
        Self {
            store: self.store.clone(),
            kind: PhantomData,
        }
    }
}

impl<K> Debug for Cache<K> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Cache")
            .field("watermark", &self.store.watermark())
            .finish_non_exhaustive()
    }
}

impl<K: Resource + Send + Sync + 'static> Cache<K> {
    pub fn new(indexes: &[IndexBy<K>]) -> Self {
        let indexes = indexes.iter().map(|by| {
            let by = *by;
            Box::new(move |entry: &dyn Entry| by(store::seen_as(entry))) as store::IndexBy
        });
        Self {
            store: Arc::new(Store::new(indexes.collect(), None)),
            kind: PhantomData,
        }
    }

    /// A cache that keeps some objects, and some of each.
    #[expect(
        clippy::needless_pass_by_value,
        reason = "callers write it at the call"
    )]
    pub fn shaped(shape: Shape<K>) -> Self {
        let Shape {
            keep,
            trim,
            indexes,
        } = shape;
        let indexes = indexes.iter().map(|by| {
            let by = *by;
            Box::new(move |entry: &dyn Entry| by(store::seen_as(entry))) as store::IndexBy
        });
        let admit = move |mut entry: Arc<dyn Entry>| {
            if !keep(store::seen_as(&*entry)) {
                return None;
            }
            // A fresh entry has one holder; one that others hold already is as it should be.
            if let Some(entry) = Arc::get_mut(&mut entry) {
                let any: &mut dyn std::any::Any = entry;
                if let Some(object) = any.downcast_mut() {
                    trim(object);
                }
            }
            Some(entry)
        };
        Self {
            store: Arc::new(Store::new(indexes.collect(), Some(Box::new(admit)))),
            kind: PhantomData,
        }
    }

    /// Whether a first list has arrived.
    pub fn is_synced(&self) -> bool {
        self.store.watermark() > 0
    }

    /// Whether nothing is there that a first list would still bring: it has arrived, or the API server does not have the
    /// kind for us. One that could not be answered says nothing.
    pub fn is_answered(&self) -> bool {
        self.is_synced() || matches!(self.health(), Health::Missing | Health::Refused(_))
    }

    /// Whether the API server has the kind: its last list was answered.
    pub fn is_served(&self) -> bool {
        self.store.is_served()
    }

    /// How reading it goes.
    pub fn health(&self) -> Health {
        self.store.health()
    }

    /// What the cache keeps its objects in, for those who need not know their kind.
    pub fn store(&self) -> &Arc<Store> {
        &self.store
    }

    /// Calls `listener` with the old and the new state of every object that changes from now on. Listeners run in the
    /// watch task: they may enqueue, never block.
    pub fn listen(&self, listener: impl Fn(Option<&K>, Option<&K>) + Send + Sync + 'static) {
        self.store.listen(Box::new(move |old, new| {
            listener(old.map(store::seen_as), new.map(store::seen_as));
        }));
    }

    pub fn get(&self, key: &Key) -> Option<Arc<K>> {
        self.store.get(key).map(store::typed)
    }

    pub fn all(&self) -> Vec<Arc<K>> {
        typed(self.store.all())
    }

    /// Does any object answer to `holds`? Asked under the lock: it must be quick.
    pub fn any(&self, holds: impl Fn(&K) -> bool) -> bool {
        self.store.any(&|entry| holds(store::seen_as(entry)))
    }

    pub fn len(&self) -> usize {
        self.store.len()
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    pub fn in_namespace(&self, namespace: &str) -> Vec<Arc<K>> {
        typed(self.store.in_namespace(namespace))
    }

    /// The objects found under `value` in the index at position `index` of those given to [`Cache::new`].
    pub fn by(&self, index: usize, value: &str) -> Vec<Arc<K>> {
        typed(self.store.by(index, value))
    }

    /// Adds the key that `of` gives for the old or the new state of every object that changes.
    pub fn on_key<Q>(
        &self,
        queue: &Arc<Queue<Q>>,
        of: impl Fn(&K) -> Option<Q> + Send + Sync + 'static,
    ) where
        Q: Ord + Clone + std::fmt::Debug + Send + Sync + 'static,
    {
        let queue = queue.clone();
        self.listen(move |old, new| {
            let (old, new) = (old.and_then(&of), new.and_then(&of));
            if old != new
                && let Some(key) = old
            {
                queue.add(key);
            }
            if let Some(key) = new {
                queue.add(key);
            }
        });
    }

    /// Takes one object as the newest state of its key.
    pub fn put(&self, object: K) {
        self.store.put(Arc::new(object));
    }

    /// Takes the last state of an object that no longer exists.
    pub fn remove(&self, last: &K) {
        self.store.remove(last);
    }

    /// Takes a whole list: what it does not name is gone.
    pub fn replace(&self, objects: Vec<K>, version: Option<&str>) {
        let entries = objects.into_iter().map(|object| Arc::new(object) as _);
        self.store.replace(entries.collect(), version);
    }
}

fn typed<K: Send + Sync + 'static>(entries: Vec<Arc<dyn Entry>>) -> Vec<Arc<K>> {
    entries.into_iter().map(store::typed).collect()
}

/// Keeps `cache` equal to the API until `shutdown`: list, watch from there, list again when the watch is too old.
pub fn fill<K>(
    client: kube::Client,
    source: Source,
    cache: &Cache<K>,
    shutdown: CancellationToken,
) -> BoxFuture<'static, ()>
where
    K: Resource + DeserializeOwned + Send + Sync + 'static,
{
    fill_observed(client, source, cache, None, shutdown)
}

/// The same, with somebody told of watches that break.
pub(crate) fn fill_observed<K>(
    client: kube::Client,
    source: Source,
    cache: &Cache<K>,
    observer: Option<Arc<dyn Observer>>,
    shutdown: CancellationToken,
) -> BoxFuture<'static, ()>
where
    K: Resource + DeserializeOwned + Send + Sync + 'static,
{
    cache.store.set_selection(source.selection());
    let changes = feed::into_store::<K>(client, source, cache.store.clone(), observer);
    Box::pin(keep(cache.store.clone(), changes, shutdown))
}

async fn keep(store: Arc<Store>, mut changes: feed::Feed, shutdown: CancellationToken) {
    loop {
        let change = tokio::select! {
            () = shutdown.cancelled() => return,
            change = changes.next() => change,
        };
        if let Some(change) = change {
            store.take(change);
        }
    }
}
