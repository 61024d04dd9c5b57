//! What a controller remembers of objects beyond what they say themselves. It goes with the object: a map that were
//! only emptied when somebody looks at an object would keep those nobody looks at again.

use std::collections::BTreeMap;
use std::fmt::{self, Debug};
use std::sync::Arc;

use kube::Resource;
use parking_lot::Mutex;

use crate::cache::{Cache, Key};

pub struct ObjectMemory<K, V> {
    cache: Cache<K>,
    by_uid: Arc<Mutex<BTreeMap<String, V>>>,
}

impl<K, V> Debug for ObjectMemory<K, V> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ObjectMemory").finish_non_exhaustive()
    }
}

fn uid<K: Resource>(object: &K) -> &str {
    object.meta().uid.as_deref().unwrap_or_default()
}

impl<K, V> ObjectMemory<K, V>
where
    K: Resource + Send + Sync + 'static,
    V: Clone + Send + 'static,
{
    /// Nothing yet; what is remembered of an object is forgotten when `cache` hears of its end.
    pub fn of(cache: &Cache<K>) -> Self {
        let by_uid: Arc<Mutex<BTreeMap<String, V>>> = Arc::default();
        let known = by_uid.clone();
        cache.listen(move |old, new| {
            if let Some(old) = old
                && new.is_none_or(|new| uid(new) != uid(old))
            {
                known.lock().remove(uid(old));
            }
        });
        Self {
            cache: cache.clone(),
            by_uid,
        }
    }

    pub fn get(&self, object: &K) -> Option<V> {
        self.by_uid.lock().get(uid(object)).cloned()
    }

    pub fn forget(&self, object: &K) -> Option<V> {
        self.by_uid.lock().remove(uid(object))
    }

    /// Remembers `value` of `object`, unless it is gone: the cache forgets an object before it says so, so whoever looks
    /// under the lock either finds it gone or is heard by the listener.
    pub fn set(&self, object: &K, value: V) {
        let mut by_uid = self.by_uid.lock();
        let known = self.cache.get(&Key::of(object));
        if known.is_some_and(|known| uid(&*known) == uid(object)) {
            by_uid.insert(uid(object).to_owned(), value);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use k8s_openapi::api::core::v1::ConfigMap;
    use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
    use proptest::prelude::*;

    use super::*;

    fn object(name: u8, life: u8) -> ConfigMap {
        ConfigMap {
            metadata: ObjectMeta {
                namespace: Some("n".to_owned()),
                name: Some(name.to_string()),
                uid: Some(format!("{name}-{life}")),
                resource_version: Some(life.to_string()),
                ..ObjectMeta::default()
            },
            ..ConfigMap::default()
        }
    }

    proptest! {
        /// Objects come, go and come again under their names, and are remembered before and after they went.
        #[test]
        fn nothing_is_remembered_of_objects_that_are_gone(
            steps in proptest::collection::vec((0_u8..5, 0_u8..3, 0_u8..4), 1..60),
        ) {
            let cache = Cache::new(&[]);
            let remembered = ObjectMemory::of(&cache);
            for (name, life, step) in steps {
                let it = object(name, life);
                match step {
                    0 => cache.put(it),
                    1 => cache.remove(&it),
                    2 => cache.replace(vec![it], None),
                    _ => {
                        remembered.set(&it, life);
                        let there = cache.all().iter().any(|known| uid(&**known) == uid(&it));
                        prop_assert_eq!(remembered.get(&it), there.then_some(life));
                    }
                }
                let all = cache.all();
                let live: BTreeSet<&str> = all.iter().map(|known| uid(&**known)).collect();
                let kept = remembered.by_uid.lock();
                prop_assert!(kept.keys().all(|uid| live.contains(uid.as_str())), "{:?}", kept.keys());
            }
        }
    }
}
