//! What a pass wants done: plain data, in order. Nothing here talks to a server.

use jiff::Timestamp;
use kube::Resource;
use kube::core::{ApiResource, DynamicObject, ObjectMeta, TypeMeta};
use serde::Serialize;
use serde_json::Value;

/// The outcome of a plan: writes in order, the status that holds, what people should be told, and
/// when to look again without any event.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Plan<S> {
    pub(crate) writes: Vec<Write>,
    /// The status the object should have; `None` leaves it as it is.
    pub(crate) status: Option<S>,
    pub(crate) events: Vec<Note>,
    pub(crate) again: Option<Timestamp>,
    /// The object waits for a placement that may be decided now.
    pub(crate) place: bool,
    /// Why the status is what it is, for the audit trail.
    pub(crate) why: String,
}

impl<S> Plan<S> {
    pub(crate) fn nothing() -> Self {
        Self {
            writes: Vec::new(),
            status: None,
            events: Vec::new(),
            again: None,
            place: false,
            why: String::new(),
        }
    }
}

/// One write and why it is made, for the audit trail.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Write {
    pub(crate) what: Change,
    pub(crate) why: String,
}

/// What a write does.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Change {
    /// Change nothing, and go on only if there is no node of this name: a watch may be behind.
    NodeGone(String),
    /// Change nothing, and go on only if this object is still as it was seen.
    Unchanged(Target),
    /// Make an object that must not exist yet. Finding it there is success: names are deterministic.
    Create(Box<Want>),
    /// Change some fields of exactly this version of an object.
    Merge(Target, Value),
    /// Delete exactly this version of an object, its dependents after it. Gone already is success.
    Delete(Target),
}

/// An object to be made.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Want {
    pub(crate) resource: ApiResource,
    pub(crate) namespace: String,
    pub(crate) name: String,
    pub(crate) body: DynamicObject,
}

impl Want {
    /// Erases a typed object. The executor then needs no case per kind.
    pub(crate) fn of<K>(object: &K) -> Self
    where
        K: Resource<DynamicType = ()> + Serialize,
    {
        let resource = ApiResource::erase::<K>(&());
        let mut data = serde_json::to_value(object).unwrap_or_default();
        if let Some(fields) = data.as_object_mut() {
            for name in ["metadata", "apiVersion", "kind"] {
                fields.remove(name);
            }
        }
        let metadata: ObjectMeta = object.meta().clone();
        let types = TypeMeta {
            api_version: resource.api_version.clone(),
            kind: resource.kind.clone(),
        };
        Self {
            namespace: metadata.namespace.clone().unwrap_or_default(),
            name: metadata.name.clone().unwrap_or_default(),
            resource,
            body: DynamicObject {
                types: Some(types),
                metadata,
                data,
            },
        }
    }
}

/// An object as it was seen: writes to it fail if it has changed since.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Target {
    pub(crate) resource: ApiResource,
    pub(crate) namespace: String,
    pub(crate) name: String,
    pub(crate) uid: String,
    pub(crate) resource_version: String,
}

impl Target {
    pub(crate) fn of<K>(object: &K) -> Self
    where
        K: Resource<DynamicType = ()>,
    {
        let meta = object.meta();
        Self {
            resource: ApiResource::erase::<K>(&()),
            namespace: meta.namespace.clone().unwrap_or_default(),
            name: meta.name.clone().unwrap_or_default(),
            uid: meta.uid.clone().unwrap_or_default(),
            resource_version: meta.resource_version.clone().unwrap_or_default(),
        }
    }
}

/// Something people should see in `kubectl describe`: a transition, never a state.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Note {
    pub(crate) warning: bool,
    pub(crate) reason: &'static str,
    pub(crate) action: &'static str,
    pub(crate) text: String,
}
