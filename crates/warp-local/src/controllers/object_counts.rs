//! How many objects of each kind every namespace has, from what garbage collection watches anyway.

use std::collections::BTreeMap;
use std::sync::Arc;

use parking_lot::{Mutex, RwLock};

use warp_runtime::cache::store::Store;

type Listener = Box<dyn Fn(&str) + Send + Sync>;

#[derive(Default)]
pub(crate) struct ObjectCounts {
    /// By group and plural.
    kinds: Mutex<BTreeMap<(String, String), Arc<Store>>>,
    listeners: RwLock<Vec<Listener>>,
}

impl std::fmt::Debug for ObjectCounts {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ObjectCounts").finish_non_exhaustive()
    }
}

impl ObjectCounts {
    pub(super) fn watch(&self, group: &str, plural: &str, store: Arc<Store>) {
        self.kinds
            .lock()
            .insert((group.to_owned(), plural.to_owned()), store);
    }

    pub(super) fn forget(&self, group: &str, plural: &str) {
        self.kinds
            .lock()
            .remove(&(group.to_owned(), plural.to_owned()));
    }

    /// Calls `listener` with every namespace in which an object came or went.
    pub(super) fn listen(&self, listener: impl Fn(&str) + Send + Sync + 'static) {
        self.listeners.write().push(Box::new(listener));
    }

    pub(super) fn changed(&self, namespace: &str) {
        for listener in self.listeners.read().iter() {
            listener(namespace);
        }
    }

    /// None when the kind is not served.
    pub(super) fn count(&self, group: &str, plural: &str, namespace: &str) -> Option<usize> {
        let store = self
            .kinds
            .lock()
            .get(&(group.to_owned(), plural.to_owned()))
            .cloned()?;
        Some(store.count_in(namespace))
    }
}
