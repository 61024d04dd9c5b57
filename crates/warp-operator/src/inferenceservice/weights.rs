//! Where the weights of a service lie that names a ModelCache: the complete model in it, or what the service waits for.
//! Pure.

use kube::{Resource, ResourceExt};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use warp_api::modelcache::{ModelPhase, ModelProgress};
use warp_api::{InferenceService, ModelCacheStatus, condition, reason};

use super::observe::Seen;
use super::wanted::Refusal;

/// A complete model on a claim or on the disks of nodes, as a pod sees it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Weights {
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub(super) claim: String,
    pub(super) path: String,
    /// The folder of nodes instead of a claim.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) folder: Option<String>,
    /// The label of nodes that have it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) label: Option<String>,
}

/// The weights a service's copies are to load; none for one that names no cache. `rendered` is what its Deployment was
/// made from: a model that is served stays served while another is fetched. When that fails, the complete model that the
/// cache still holds is served by all.
pub(super) fn of(
    service: &InferenceService,
    seen: &Seen,
    rendered: Option<&Value>,
) -> Result<Option<Weights>, Refusal> {
    let Some(name) = &service.spec.model.cache else {
        return Ok(None);
    };
    let Some(cache) = seen.cache.as_deref() else {
        let namespace = service.namespace().unwrap_or_default();
        let message = format!(
            "there is no ModelCache {name} in namespace {namespace}: make one, or correct spec.model.cache"
        );
        return Err(later(reason::NO_SUCH_MODEL_CACHE, message));
    };
    let status = cache.status.clone().unwrap_or_default();
    let published = published(&status);
    let going = cache.meta().deletion_timestamp.is_some();
    // What it says of an older spec says nothing of this one.
    let current = status.observed_generation == cache.meta().generation;
    if !going && current && status.phase == ModelPhase::Ready && published.is_some() {
        return Ok(published);
    }
    let kept = rendered.and_then(|rendered| {
        serde_json::from_value::<Weights>(rendered.get("weights")?.clone()).ok()
    });
    if kept.is_some() && kept == published {
        return Ok(kept);
    }
    if going {
        let message = format!(
            "ModelCache {name} is being deleted: delete this service too, or name another cache in spec.model.cache"
        );
        return Err(later(reason::NO_SUCH_MODEL_CACHE, message));
    }
    if current && status.phase == ModelPhase::Failed {
        if published.is_some() {
            return Ok(published);
        }
        let message = failed(name, &status);
        return Err(later(reason::MODEL_CACHE_FAILED, message));
    }
    Err(later(
        reason::WAITING_FOR_MODEL,
        waiting(name, &status, current),
    ))
}

/// What is said of a service whose cache failed to fetch what its spec names now, and still holds another model.
pub(super) fn stale(service: &InferenceService, seen: &Seen) -> Option<String> {
    let name = service.spec.model.cache.as_ref()?;
    let cache = seen.cache.as_deref()?;
    let status = cache.status.as_ref()?;
    let current = status.observed_generation == cache.meta().generation;
    if !current || status.phase != ModelPhase::Failed {
        return None;
    }
    published(status)?;
    let commit = status.commit.as_ref();
    let commit = commit.map_or(String::new(), |commit| format!(" ({commit})"));
    let why = failed(name, status);
    Some(format!(
        "the complete model that the cache still holds{commit} is served: {why}"
    ))
}

fn failed(name: &str, status: &ModelCacheStatus) -> String {
    let why = condition::find(&status.conditions, condition::READY);
    let why = why.map_or("unknown", |ready| ready.reason.as_str());
    let told = status.message.as_deref().unwrap_or_default();
    format!("ModelCache {name} failed ({why}): {told}")
}

fn published(status: &ModelCacheStatus) -> Option<Weights> {
    let path = status.served_path()?.to_owned();
    let (claim, folder) = match (&status.volume, &status.folder) {
        (Some(claim), _) => (claim.clone(), None),
        (None, folder) => (String::new(), Some(folder.clone()?)),
    };
    Some(Weights {
        claim,
        path,
        label: status.node_label.clone().filter(|_| folder.is_some()),
        folder,
    })
}

fn later(reason: &'static str, message: String) -> Refusal {
    Refusal {
        reason,
        message,
        waits: true,
    }
}

fn waiting(name: &str, status: &ModelCacheStatus, current: bool) -> String {
    if !current {
        return format!("waits for ModelCache {name}: it has not been looked at yet");
    }
    let phase = match status.phase {
        ModelPhase::Fetching => "Fetching",
        ModelPhase::Optimizing => "Optimizing",
        ModelPhase::Ready => "Ready, with no path yet",
        ModelPhase::Pending | ModelPhase::Failed => "Pending",
    };
    let progress = status.progress.as_ref().map(far).unwrap_or_default();
    let deadline = status.deadline.as_ref();
    let deadline = deadline.map_or(String::new(), |time| {
        format!("; it must be complete by {:.0}", time.0)
    });
    let told = match (&status.progress, &status.message) {
        (None, Some(message)) => format!(" ({message})"),
        _ => String::new(),
    };
    format!("waits for ModelCache {name}: {phase}{progress}{told}{deadline}")
}

fn far(progress: &ModelProgress) -> String {
    let left = progress.seconds_left.map_or(String::new(), |seconds| {
        let left = match seconds {
            ..120 => format!("{seconds} s"),
            120..7200 => format!("{} min", seconds / 60),
            _ => format!("{} h", seconds / 3600),
        };
        format!(", about {left} left")
    });
    format!(
        ", {} of {} bytes{left}",
        progress.percent, progress.bytes_total
    )
}
