//! One pass of one controller over one object: on whose behalf something is written, and the id that ties together
//! what the pass did. And who hears of it: counters and the audit trail are the caller's.

use std::fmt::Debug;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::Resource;
use serde_json::Value;

/// On whose behalf a plan is carried out.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Pass {
    /// The controller.
    pub component: &'static str,
    /// The field manager of its creates and merge patches; none leaves it to the API server.
    pub manager: Option<&'static str>,
    /// `Kind/namespace/name` of the object; empty for controllers that look at more than one.
    pub object: String,
    pub generation: i64,
    /// The field manager that last wrote the object's spec: Kubernetes does not tell a controller which user did.
    pub cause: String,
    pub correlation: String,
}

impl Pass {
    /// A pass of a controller that keeps no trail.
    pub fn of_component(component: &'static str) -> Self {
        Self {
            component,
            ..Self::default()
        }
    }

    pub fn over<K: Resource<DynamicType = ()>>(
        component: &'static str,
        manager: &'static str,
        object: &K,
        correlation: String,
    ) -> Self {
        Self::about(
            component,
            manager,
            (&K::kind(&()), object.meta()),
            correlation,
        )
    }

    /// The same for an object whose kind is known only when the program runs.
    pub fn about(
        component: &'static str,
        manager: &'static str,
        (kind, meta): (&str, &ObjectMeta),
        correlation: String,
    ) -> Self {
        let name = meta.name.as_deref().unwrap_or_default();
        Self {
            component,
            manager: Some(manager),
            object: match meta.namespace.as_deref() {
                Some(namespace) => format!("{kind}/{namespace}/{name}"),
                None => format!("{kind}/{name}"),
            },
            generation: meta.generation.unwrap_or_default(),
            cause: cause(meta),
            correlation,
        }
    }
}

/// The field manager that wrote the object's spec last.
fn cause(meta: &ObjectMeta) -> String {
    let writers = meta.managed_fields.iter().flatten();
    let writers = writers.filter(|entry| entry.subresource.is_none());
    let last = writers.max_by_key(|entry| entry.time.as_ref().map(|time| time.0));
    last.and_then(|entry| entry.manager.clone())
        .unwrap_or_else(|| "unknown".to_owned())
}

/// Correlation ids: this process's name and a number, so that two replicas never share one.
#[derive(Debug)]
pub struct Correlation {
    identity: String,
    passes: AtomicU64,
}

impl Correlation {
    pub fn new(identity: &str) -> Self {
        Self {
            identity: identity.to_owned(),
            passes: AtomicU64::new(0),
        }
    }

    pub fn next(&self) -> String {
        let number = self.passes.fetch_add(1, Ordering::Relaxed);
        format!("{}-{number}", self.identity)
    }
}

/// Who hears what controllers do. Called often and from every worker: it must be quick.
pub trait Observer: Debug + Send + Sync {
    /// A write is sent.
    fn sends(&self, _verb: &'static str, _resource: &str) {}
    /// A write was made, on behalf of `pass` and because of `why`. Bodies are never told: they may hold secrets.
    fn wrote(&self, _pass: &Pass, _verb: &'static str, _what: &str, _why: &str) {}
    /// The status of the pass's object was written: what its controller said in it before, and says now.
    fn status_written(&self, _pass: &Pass, _before: &Value, _after: &Value) {}
    /// A watch of `resource` broke and is begun again.
    fn watch_broke(&self, _resource: &str, _error: &kube::Error) {}
    /// A pass ended.
    fn reconciled(&self, _controller: &'static str, _took: Duration, _ok: bool) {}
}

/// Nobody listens.
#[derive(Debug)]
pub struct Unobserved;

impl Observer for Unobserved {}
