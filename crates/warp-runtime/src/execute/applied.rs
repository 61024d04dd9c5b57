//! Whether an apply would change anything. One that would not is not sent, so repeating a pass writes nothing.
//!
//! Three things have to agree. The child carries the fingerprint of what was applied last, in an annotation of the
//! field manager's own: fields that a newer version of the controller no longer applies show there. The child must
//! show every field we apply with our value: a change by another writer shows there. And where the server keeps a
//! value in other words (`1000m` becomes `1`), the version that our own apply left is remembered and is as it should
//! be.

use std::collections::BTreeMap;

use parking_lot::Mutex;
use serde_json::{Value, json};

use crate::cache::Key;
use crate::fingerprint;
use crate::kind::Kind;

/// Versions remembered; beyond it all are forgotten, which costs one apply each that changes nothing.
const REMEMBERED: usize = 65_536;

type Object = (Kind, Key, &'static str);

/// What own applies left behind.
#[derive(Debug, Default)]
pub(super) struct Applied(Mutex<BTreeMap<Object, (u64, String)>>);

/// The annotation that carries the fingerprint of what `manager` applied.
fn annotation(manager: &str) -> String {
    format!("{manager}/applied")
}

/// `object` with the fingerprint of itself among its annotations.
pub(super) fn marked(manager: &str, mut object: Value) -> Value {
    let print = fingerprint::of(&[&object.to_string()]);
    if !object["metadata"]["annotations"].is_object() {
        object["metadata"]["annotations"] = json!({});
    }
    object["metadata"]["annotations"][annotation(manager)] = json!(format!("{print:016x}"));
    object
}

impl Applied {
    /// Whether `shown`, the child as the cache has it, is as `wanted` (a marked object) says.
    pub(super) fn holds(&self, object: &Object, wanted: &Value, shown: &Value) -> bool {
        let mark = |value: &Value| {
            let annotations = &value["metadata"]["annotations"];
            annotations[annotation(object.2)]
                .as_str()
                .map(str::to_owned)
        };
        if mark(wanted) != mark(shown) {
            return false;
        }
        let version = shown["metadata"]["resourceVersion"]
            .as_str()
            .unwrap_or_default();
        let print = fingerprint::of(&[&wanted.to_string()]);
        let left = self.0.lock().get(object).cloned();
        left == Some((print, version.to_owned())) || shows(shown, wanted)
    }

    /// Remembers the version an apply left.
    pub(super) fn left(&self, object: Object, wanted: &Value, version: &str) {
        let print = fingerprint::of(&[&wanted.to_string()]);
        let mut left = self.0.lock();
        if left.len() >= REMEMBERED {
            left.clear();
        }
        left.insert(object, (print, version.to_owned()));
    }
}

/// Whether every field of `wanted` is in `shown` with the same value. Lists must have as many items, each showing its
/// counterpart: where another writer adds items to a list, an apply settles the matter.
fn shows(shown: &Value, wanted: &Value) -> bool {
    match (shown, wanted) {
        (Value::Object(shown), Value::Object(wanted)) => wanted.iter().all(|(name, wanted)| {
            let nothing = wanted.is_null()
                || wanted.as_object().is_some_and(serde_json::Map::is_empty)
                || wanted.as_array().is_some_and(Vec::is_empty);
            match shown.get(name) {
                Some(shown) => shows(shown, wanted) || (nothing && shown.is_null()),
                None => nothing,
            }
        }),
        (Value::Array(shown), Value::Array(wanted)) => {
            shown.len() == wanted.len()
                && shown
                    .iter()
                    .zip(wanted)
                    .all(|(shown, wanted)| shows(shown, wanted))
        }
        (shown, wanted) => shown == wanted,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn object() -> Object {
        let kind = Kind::of::<k8s_openapi::api::core::v1::ConfigMap>();
        (kind, Key::new("ns", "c"), "manager")
    }

    fn shown(mut wanted: Value, version: &str, with: &[(&str, Value)]) -> Value {
        wanted["metadata"]["resourceVersion"] = json!(version);
        wanted["metadata"]["uid"] = json!("u");
        for (name, value) in with {
            wanted[*name] = value.clone();
        }
        wanted
    }

    #[test]
    fn what_is_there_is_not_applied_again_and_what_others_add_is_theirs() {
        let applied = Applied::default();
        let wanted = marked(
            "manager",
            json!({"metadata": {"name": "c"}, "data": {"a": "1"}}),
        );
        assert!(applied.holds(&object(), &wanted, &shown(wanted.clone(), "3", &[])));
        let theirs = json!({"a": "1", "theirs": "x"});
        assert!(applied.holds(
            &object(),
            &wanted,
            &shown(wanted.clone(), "4", &[("data", theirs)])
        ));
    }

    #[test]
    fn a_field_of_ours_that_another_writer_changed_or_removed_is_applied_again() {
        let applied = Applied::default();
        let wanted = marked(
            "manager",
            json!({"metadata": {"name": "c"}, "data": {"a": "1"}}),
        );
        for data in [json!({"a": "2"}), json!({}), Value::Null] {
            assert!(!applied.holds(
                &object(),
                &wanted,
                &shown(wanted.clone(), "4", &[("data", data)])
            ));
        }
    }

    #[test]
    fn a_field_we_no_longer_apply_is_given_up_once() {
        let applied = Applied::default();
        let before = marked(
            "manager",
            json!({"metadata": {"name": "c"}, "data": {"a": "1", "b": "2"}}),
        );
        let wanted = marked(
            "manager",
            json!({"metadata": {"name": "c"}, "data": {"a": "1"}}),
        );
        assert!(!applied.holds(&object(), &wanted, &shown(before, "3", &[])));
    }

    #[test]
    fn a_value_the_server_keeps_in_other_words_is_applied_once() {
        let applied = Applied::default();
        let wanted = marked(
            "manager",
            json!({"metadata": {"name": "c"}, "data": {"cpu": "1000m"}}),
        );
        let kept = shown(wanted.clone(), "3", &[("data", json!({"cpu": "1"}))]);
        assert!(!applied.holds(&object(), &wanted, &kept));
        applied.left(object(), &wanted, "3");
        assert!(applied.holds(&object(), &wanted, &kept));
        let later = shown(wanted.clone(), "4", &[("data", json!({"cpu": "1"}))]);
        assert!(
            !applied.holds(&object(), &wanted, &later),
            "it may have been changed since"
        );
    }
}
