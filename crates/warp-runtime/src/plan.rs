//! What a controller wants done, as plain data. Deciding makes a [`Plan`]; only the executor acts on one.
//!
//! This file has the data; `plan/children.rs` has the ways to say what should be so of other objects, of finalizers and
//! of the status.

mod children;

use std::borrow::Cow;
use std::collections::BTreeMap;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::ObjectReference;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::Resource;
use serde::Serialize;
use serde_json::{Map, Value, json};

pub use self::children::is_controlled_by;
use crate::cache::Key;
pub use crate::kind::Kind;
pub use crate::outside::{Call, What};

/// An event for users, as `kubectl describe` shows it.
#[derive(Clone, Debug, PartialEq)]
pub struct Note {
    pub about: ObjectReference,
    pub warning: bool,
    pub reason: String,
    /// What was done about it; the reason, where nothing else is said.
    pub action: Option<&'static str>,
    pub message: String,
}

/// What is told about one create or delete once its outcome is known. `{}` in a text becomes the object's name, or the
/// error.
#[derive(Clone, Debug, PartialEq)]
pub struct Outcome {
    pub about: ObjectReference,
    pub done: (&'static str, Cow<'static, str>),
    pub failed: (&'static str, Cow<'static, str>),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Encoding {
    Merge,
    Strategic,
}

#[derive(Clone, Debug, PartialEq)]
pub enum Action {
    Create {
        kind: Kind,
        namespace: Option<String>,
        object: Value,
        /// Finding it there already is success: its name says what it is.
        or_found: bool,
        outcome: Option<Outcome>,
    },
    /// Posts to or replaces a subresource (`binding`, `finalize`).
    Sub {
        kind: Kind,
        key: Key,
        sub: &'static str,
        put: bool,
        object: Value,
    },
    Patch {
        kind: Kind,
        key: Key,
        sub: Option<&'static str>,
        encoding: Encoding,
        patch: Value,
    },
    Delete {
        kind: Kind,
        key: Key,
        uid: String,
        version: Option<String>,
        options: Removal,
        outcome: Option<Outcome>,
    },
    Note(Note),
    /// Makes the fields `manager` has of an object exactly those of `object`, by server-side apply. Not sent when the
    /// cache shows that it is so.
    Apply {
        kind: Kind,
        key: Key,
        manager: &'static str,
        object: Value,
    },
    /// Makes `status` the whole of what `manager` has in the status of one version of an object.
    Status(Box<Status>),
}

/// A status to write, and the one the object has: they differ.
#[derive(Clone, Debug, PartialEq)]
pub struct Status {
    pub seen: Seen,
    pub manager: &'static str,
    pub before: Value,
    pub after: Value,
}

/// An object as it was seen: what carries this goes through only if it has not changed since.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Seen {
    pub kind: Kind,
    pub key: Key,
    pub uid: String,
    pub version: String,
}

impl Seen {
    pub fn of<K: Resource<DynamicType = ()>>(object: &K) -> Self {
        Self::of_kind(Kind::of::<K>(), object.meta())
    }

    /// The same for an object whose kind is known only when the program runs.
    pub fn of_kind(kind: Kind, meta: &ObjectMeta) -> Self {
        Self {
            kind,
            key: Key::in_meta(meta),
            uid: meta.uid.clone().unwrap_or_default(),
            version: meta.resource_version.clone().unwrap_or_default(),
        }
    }
}

/// What must be so for a plan to be carried out. The executor asks the API server itself: a watch may be behind, and
/// some beliefs cannot be acted on and taken back.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Premise {
    /// This object is still as it was seen.
    Unchanged(Seen),
    /// There is no object of this name.
    Absent(Kind, Key),
    /// This object (its version aside) still shows these values under these JSON pointers; null is what is not there.
    Shows(Seen, Vec<(&'static str, Value)>),
}

/// A key of a controller that is to be looked at again because of what this plan did.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Wake {
    /// The controller, by its name.
    pub controller: &'static str,
    pub key: Key,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Removal {
    pub grace_seconds: Option<u32>,
    pub propagation: Option<Propagation>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Propagation {
    Background,
    Foreground,
    Orphan,
}

/// What to do, in this order, if the premises hold; whom to wake; and when to look again.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Plan {
    /// Asked before the first action or call; one that does not hold ends the pass.
    pub premises: Vec<Premise>,
    pub actions: Vec<Action>,
    /// Why, for the audit trail.
    pub why: String,
    /// Why single actions are taken, by their position, where that is not why the rest is.
    pub reasons: BTreeMap<usize, String>,
    pub wake: Vec<Wake>,
    /// Calls outside the cluster. They begin only in a pass that writes nothing: what they are for has then been
    /// recorded by a pass before.
    pub calls: Vec<Call>,
    pub again: Option<Timestamp>,
}

impl Plan {
    /// Whether carrying it out asks or tells the API server nothing.
    pub fn is_idle(&self) -> bool {
        self.actions.is_empty() && self.wake.is_empty() && self.calls.is_empty()
    }

    pub fn push(&mut self, action: Action) {
        self.actions.push(action);
    }

    /// Gives the last action a reason of its own.
    pub fn because(&mut self, why: &str) {
        if let Some(last) = self.actions.len().checked_sub(1) {
            self.reasons.insert(last, why.to_owned());
        }
    }

    pub fn look_again(&mut self, at: Timestamp) {
        self.again = Some(self.again.map_or(at, |known| known.min(at)));
    }

    pub fn note(&mut self, about: ObjectReference, warning: bool, reason: &str, message: String) {
        self.push(Action::Note(Note {
            about,
            warning,
            reason: reason.to_owned(),
            action: None,
            message,
        }));
    }

    /// Writes `new` as the status of `object`, if it differs from `old`; refused by the server when the object changed
    /// in between.
    pub fn status<K, S>(&mut self, object: &K, old: Option<&S>, new: &S)
    where
        K: Resource<DynamicType = ()>,
        S: Serialize,
    {
        self.status_and_annotations(object, old, new, None);
    }

    /// Like [`Plan::status`], with annotations in the same write: through the status they change no generation.
    pub fn status_and_annotations<K, S>(
        &mut self,
        object: &K,
        old: Option<&S>,
        new: &S,
        annotations: Option<Value>,
    ) where
        K: Resource<DynamicType = ()>,
        S: Serialize,
    {
        let old = old.map_or_else(|| json!({}), as_json);
        let difference = merge_difference(&old, &as_json(new));
        if difference.is_none() && annotations.is_none() {
            return;
        }
        let mut meta = Map::new();
        if let Some(version) = &object.meta().resource_version {
            meta.insert("resourceVersion".to_owned(), Value::String(version.clone()));
        }
        if let Some(uid) = &object.meta().uid {
            meta.insert("uid".to_owned(), Value::String(uid.clone()));
        }
        if let Some(annotations) = annotations {
            meta.insert("annotations".to_owned(), annotations);
        }
        self.push(Action::Patch {
            kind: Kind::of::<K>(),
            key: Key::of(object),
            sub: Some("status"),
            encoding: Encoding::Merge,
            patch: json!({ "metadata": meta, "status": difference.unwrap_or_else(|| json!({})) }),
        });
    }

    /// Merges `patch` into `object` if it is still the same object (by uid).
    pub fn patch<K: Resource<DynamicType = ()>>(
        &mut self,
        object: &K,
        encoding: Encoding,
        mut patch: Value,
    ) {
        if let (Some(uid), Some(map)) = (&object.meta().uid, patch.as_object_mut()) {
            let meta = map.entry("metadata").or_insert_with(|| json!({}));
            meta["uid"] = Value::String(uid.clone());
        }
        self.push(Action::Patch {
            kind: Kind::of::<K>(),
            key: Key::of(object),
            sub: None,
            encoding,
            patch,
        });
    }

    pub fn delete<K: Resource<DynamicType = ()>>(
        &mut self,
        object: &K,
        options: Removal,
        outcome: Option<Outcome>,
    ) {
        self.push(Action::Delete {
            kind: Kind::of::<K>(),
            key: Key::of(object),
            uid: object.meta().uid.clone().unwrap_or_default(),
            version: None,
            options,
            outcome,
        });
    }

    pub fn create<K>(&mut self, object: &K, outcome: Option<Outcome>)
    where
        K: Resource<DynamicType = ()> + Serialize,
    {
        let namespace = object.meta().namespace.clone();
        self.push(Action::Create {
            kind: Kind::of::<K>(),
            namespace,
            object: as_json(object),
            or_found: false,
            outcome,
        });
    }
}

/// A reference to `object` for events.
pub fn about<K: Resource<DynamicType = ()>>(object: &K) -> ObjectReference {
    about_kind(&Kind::of::<K>(), object.meta())
}

/// The same for an object whose kind is known only when the program runs.
pub fn about_kind(kind: &Kind, meta: &ObjectMeta) -> ObjectReference {
    ObjectReference {
        api_version: Some(kind.api_version.clone()),
        kind: Some(kind.kind.clone()),
        namespace: meta.namespace.clone(),
        name: meta.name.clone(),
        uid: meta.uid.clone(),
        resource_version: meta.resource_version.clone(),
        ..ObjectReference::default()
    }
}

/// The JSON of a value of the Kubernetes API.
pub fn as_json<S: Serialize>(value: &S) -> Value {
    serde_json::to_value(value)
        .expect("kubernetes API types have string keys and no failing serialisers")
}

/// The JSON merge patch that turns `old` into `new`; none when they are equal.
pub fn merge_difference(old: &Value, new: &Value) -> Option<Value> {
    if old == new {
        return None;
    }
    let (Value::Object(before), Value::Object(after)) = (old, new) else {
        return Some(new.clone());
    };
    let mut patch = Map::new();
    for name in before.keys().filter(|name| !after.contains_key(*name)) {
        patch.insert(name.clone(), Value::Null);
    }
    for (name, value) in after {
        match before.get(name) {
            Some(known) => {
                if let Some(change) = merge_difference(known, value) {
                    patch.insert(name.clone(), change);
                }
            }
            None => {
                patch.insert(name.clone(), value.clone());
            }
        }
    }
    Some(Value::Object(patch))
}
