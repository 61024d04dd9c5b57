//! ConfigMaps of the operator's own namespace in which an administrator says something for all. A change is heard and
//! holds from the next look on; an operator that may not read them goes without: nothing waits for this.

use k8s_openapi::api::core::v1::ConfigMap;
use kube::ResourceExt;
use warp_api::gpus::BadEntry;
use warp_runtime::cache::Source;
use warp_runtime::runtime::Runtime;

use crate::{placement, shapes};

/// Follows one of them. `hear` takes it in, or that there is none, and says whether anything else is said now.
pub(crate) fn follow(
    runtime: &mut Runtime,
    home: &str,
    name: &str,
    hear: impl Fn(Option<&ConfigMap>) -> bool + Send + Sync + 'static,
) {
    let only = format!("metadata.name={name}");
    let source = Source::within::<ConfigMap>(Some(home)).fields(&only);
    let maps = runtime.cache(source, shapes::as_it_is());
    let wakes = runtime.wakes();
    maps.listen(move |_, new: Option<&ConfigMap>| {
        if hear(new) {
            wakes.wake_sweep(placement::NAME);
        }
    });
}

/// Logs what could not be used.
pub(crate) fn warn(name: &'static str, map: Option<&ConfigMap>, bad: &[BadEntry]) {
    let version = map.and_then(ResourceExt::resource_version);
    for entry in bad {
        tracing::warn!(
            configmap = name,
            version,
            entry = entry.name,
            problem = entry.problem,
            "an entry is left out"
        );
    }
}
