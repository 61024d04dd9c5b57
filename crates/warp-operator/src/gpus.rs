//! The GPU models that are known: the catalogue's, and those an administrator adds in a ConfigMap of the operator's own
//! namespace. A change is heard and holds from the next look on.
//!
//! An operator that may not read it knows the catalogue's: nothing waits for this.

use std::sync::Arc;

use k8s_openapi::api::core::v1::ConfigMap;
use parking_lot::RwLock;
use warp_api::gpus::{self, CONFIG_MAP};
use warp_core::gpu::Catalogue;
use warp_runtime::runtime::Runtime;

use crate::said;

/// What is known now.
#[derive(Clone, Debug, Default)]
pub(crate) struct Gpus(Arc<RwLock<Arc<Catalogue>>>);

impl Gpus {
    /// Follows the ConfigMap of this namespace.
    pub(crate) fn follow(runtime: &mut Runtime, home: &str) -> Self {
        let known = Self::default();
        let heard = known.clone();
        said::follow(runtime, home, CONFIG_MAP, move |new| heard.set(new));
        known
    }

    pub(crate) fn catalogue(&self) -> Arc<Catalogue> {
        Arc::clone(&self.0.read())
    }

    /// Takes a ConfigMap in, or that there is none; whether anything else is known now.
    fn set(&self, map: Option<&ConfigMap>) -> bool {
        let (catalogue, bad) = gpus::catalogue(map);
        said::warn(CONFIG_MAP, map, &bad);
        let mut known = self.0.write();
        if **known == catalogue {
            return false;
        }
        *known = Arc::new(catalogue);
        true
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn map(data: &Value) -> ConfigMap {
        serde_json::from_value(json!({"metadata": {"name": CONFIG_MAP}, "data": data})).unwrap()
    }

    #[test]
    fn what_is_added_is_known_until_it_is_taken_away() {
        let gpus = Gpus::default();
        let named = || gpus.catalogue().named("mi970x").len();
        assert!(gpus.set(Some(&map(
            &json!({"MI970X": "{vendor: amd, memory: 432Gi}"})
        ))));
        assert_eq!(named(), 1);
        let again = map(&json!({"MI970X": "{vendor: amd, memory: 432Gi}", "bad": "no"}));
        assert!(
            !gpus.set(Some(&again)),
            "a bad entry beside it changes nothing"
        );
        assert!(gpus.set(None));
        assert_eq!(named(), 0);
    }
}
