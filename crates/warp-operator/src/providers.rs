//! Providers of nodes: what an administrator says of them in a ConfigMap of the operator's own namespace, and what the
//! status of workloads tells of attempts there. A change is heard and holds from the next look on.
//!
//! An operator that may not read the ConfigMap goes by the rest: nothing waits for this.

use std::sync::Arc;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::ConfigMap;
use kube::ResourceExt;
use parking_lot::Mutex;
use warp_api::GPUWorkload;
use warp_api::providers::{self, CONFIG_MAP, ProviderRules};
use warp_runtime::cache::Cache;
use warp_runtime::runtime::Runtime;

use crate::placement::{History, Providers};
use crate::said;

/// What is known now.
#[derive(Clone, Debug, Default)]
pub(crate) struct NodeProviders(Arc<Mutex<Known>>);

#[derive(Debug, Default)]
struct Known {
    rules: Arc<ProviderRules>,
    history: History,
}

impl NodeProviders {
    /// Follows the ConfigMap of this namespace, and workloads.
    pub(crate) fn follow(
        runtime: &mut Runtime,
        home: &str,
        workloads: &Cache<GPUWorkload>,
    ) -> Self {
        let known = Self::default();
        let heard = known.clone();
        said::follow(runtime, home, CONFIG_MAP, move |new| heard.set(new));
        let heard = known.clone();
        workloads.listen(move |old: Option<&GPUWorkload>, new| heard.hear(old, new));
        known
    }

    /// How providers stand.
    pub(crate) fn standing(&self, now: Timestamp) -> Providers {
        let known = self.0.lock();
        Providers::new(Arc::clone(&known.rules), &known.history, now)
    }

    /// Takes in what a workload tells, or that it is gone.
    fn hear(&self, old: Option<&GPUWorkload>, new: Option<&GPUWorkload>) {
        let mut known = self.0.lock();
        let uid = |workload: &GPUWorkload| workload.uid().unwrap_or_default();
        if let Some(old) = old.filter(|old| new.is_none_or(|new| uid(new) != uid(old))) {
            known.history.note(&uid(old), &[]);
        }
        if let Some(new) = new {
            let told = new
                .status
                .as_ref()
                .map_or(&[][..], |told| &told.recent_attempts);
            known.history.note(&uid(new), told);
        }
    }

    /// Takes a ConfigMap in, or that there is none; whether anything else is said now.
    fn set(&self, map: Option<&ConfigMap>) -> bool {
        let (rules, bad) = providers::rules(map);
        said::warn(CONFIG_MAP, map, &bad);
        let mut known = self.0.lock();
        if *known.rules == rules {
            return false;
        }
        known.rules = Arc::new(rules);
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
    fn what_is_said_holds_until_it_is_taken_back() {
        let known = NodeProviders::default();
        let said = || known.0.lock().rules.providers.len();
        assert!(known.set(Some(&map(&json!({"cloud": "{maxGpus: 8}"})))));
        assert_eq!(said(), 1);
        let again = map(&json!({"cloud": "{maxGpus: 8}", "bad": "no"}));
        assert!(
            !known.set(Some(&again)),
            "a bad entry beside it changes nothing"
        );
        assert!(known.set(None));
        assert_eq!(said(), 0);
    }

    #[test]
    fn a_workload_that_is_gone_takes_along_what_it_told() {
        let known = NodeProviders::default();
        let told: GPUWorkload = serde_json::from_value(json!({
            "apiVersion": "gpu.warp.dev/v1alpha1", "kind": "GPUWorkload",
            "metadata": {"name": "w", "namespace": "default", "uid": "u"},
            "spec": {"modelName": "m", "gpuCount": 1, "image": "a"},
            "status": {"recentAttempts": [
                {"number": 0, "provider": "cloud", "placedAt": "2026-11-15T12:00:00Z", "endedAt": "2026-11-15T12:01:00Z", "reason": "NodeLost"},
            ]},
        }))
        .unwrap();
        let now = "2026-11-15T12:02:00Z".parse().unwrap();
        let nothing = known.standing(now);
        known.hear(None, Some(&told));
        let first = known.standing(now);
        assert_ne!(first, nothing);
        known.hear(Some(&told), Some(&told));
        assert_eq!(known.standing(now), first, "told once");
        known.hear(Some(&told), None);
        assert_eq!(known.standing(now), nothing);
    }
}
