//! What should be so of children, finalizers and the status, said in one line each. Pure: the executor finds out what
//! has to be sent.

use std::collections::BTreeSet;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use kube::Resource;
use serde::Serialize;
use serde_json::{Value, json};

use super::{Action, Encoding, Kind, Plan, Premise, Propagation, Removal, Seen, Status, as_json};
use crate::cache::Key;

impl Plan {
    /// Goes on only if `object` is still as it was seen.
    pub fn only_if_unchanged<K: Resource<DynamicType = ()>>(&mut self, object: &K) {
        self.premises.push(Premise::Unchanged(Seen::of(object)));
    }

    /// Goes on only if there is no object of kind `K` under `key`.
    pub fn only_if_absent<K: Resource<DynamicType = ()>>(&mut self, key: Key) {
        self.premises.push(Premise::Absent(Kind::of::<K>(), key));
    }

    /// Goes on only if `object`, as JSON, still shows under each of `pointers` what it shows now. Other writers may
    /// change the rest of it.
    pub fn only_if_shows<K>(&mut self, object: &K, pointers: &[&'static str])
    where
        K: Resource<DynamicType = ()> + Serialize,
    {
        let shown = as_json(object);
        let values = pointers.iter().map(|pointer| {
            let value = shown.pointer(pointer).cloned();
            (*pointer, value.unwrap_or_default())
        });
        let premise = Premise::Shows(Seen::of(object), values.collect());
        self.premises.push(premise);
    }

    /// `object` is there, with exactly these fields of ours. Fields that others have of it stay theirs.
    pub fn apply<K>(&mut self, manager: &'static str, object: &K)
    where
        K: Resource<DynamicType = ()> + Serialize,
    {
        let mut body = as_json(object);
        if let Some(fields) = body.as_object_mut() {
            // An empty status is what a typed object without one says; it is not ours to apply.
            if fields.get("status").is_some_and(is_empty) {
                fields.remove("status");
            }
        }
        self.push(Action::Apply {
            kind: Kind::of::<K>(),
            key: Key::of(object),
            manager,
            object: body,
        });
    }

    /// `object` is there; one of its name that is there already will do.
    pub fn create_or_find<K>(&mut self, object: &K)
    where
        K: Resource<DynamicType = ()> + Serialize,
    {
        self.push(Action::Create {
            kind: Kind::of::<K>(),
            namespace: object.meta().namespace.clone(),
            object: as_json(object),
            or_found: true,
            outcome: None,
        });
    }

    /// Changes fields of exactly this version of `object`.
    pub fn merge<K: Resource<DynamicType = ()>>(&mut self, object: &K, patch: Value) {
        self.merge_seen(Seen::of(object), None, patch);
    }

    /// The same for an object whose kind is known only when the program runs, or for a subresource of it.
    pub fn merge_seen(&mut self, seen: Seen, sub: Option<&'static str>, mut patch: Value) {
        patch["metadata"]["uid"] = json!(seen.uid);
        patch["metadata"]["resourceVersion"] = json!(seen.version);
        self.push(Action::Patch {
            kind: seen.kind,
            key: seen.key,
            sub,
            encoding: Encoding::Merge,
            patch,
        });
    }

    /// Deletes exactly this version of `object`, its dependents after it.
    pub fn delete_version<K: Resource<DynamicType = ()>>(&mut self, object: &K) {
        let seen = Seen::of(object);
        self.push(Action::Delete {
            kind: seen.kind,
            key: seen.key,
            uid: seen.uid,
            version: Some(seen.version),
            options: Removal {
                grace_seconds: None,
                propagation: Some(Propagation::Background),
            },
            outcome: None,
        });
    }

    /// Deletes those of `children` that belong to `owner` and are not `wanted`. Only what the owner controls is its to
    /// delete: anybody may write any label.
    pub fn prune<'a, K: Resource<DynamicType = ()> + 'a>(
        &mut self,
        owner: &OwnerReference,
        children: impl IntoIterator<Item = &'a K>,
        wanted: &BTreeSet<Key>,
    ) {
        for child in children {
            let ours = is_controlled_by(child, &owner.uid);
            let going = child.meta().deletion_timestamp.is_some();
            if ours && !going && !wanted.contains(&Key::of(child)) {
                self.delete_version(child);
            }
        }
    }

    /// Keeps `object` from going before what it has outside the cluster is gone.
    pub fn add_finalizer<K: Resource<DynamicType = ()>>(&mut self, object: &K, finalizer: &str) {
        let mut all = object.meta().finalizers.clone().unwrap_or_default();
        if all.iter().all(|known| known != finalizer) {
            all.push(finalizer.to_owned());
            self.merge(object, json!({ "metadata": { "finalizers": all } }));
        }
    }

    /// Lets `object` go.
    pub fn remove_finalizer<K: Resource<DynamicType = ()>>(&mut self, object: &K, finalizer: &str) {
        let mut all = object.meta().finalizers.clone().unwrap_or_default();
        let before = all.len();
        all.retain(|known| known != finalizer);
        if all.len() < before {
            self.merge(object, json!({ "metadata": { "finalizers": all } }));
        }
    }

    /// `after` is what `manager` says in the status of `object`, and `before` what it says now. Written only when they
    /// differ, and only to the version that was seen: a second leader stays harmless.
    pub fn own_status<K: Resource<DynamicType = ()>>(
        &mut self,
        object: &K,
        manager: &'static str,
        before: Value,
        after: Value,
    ) {
        if before != after {
            self.push(Action::Status(Box::new(Status {
                seen: Seen::of(object),
                manager,
                before,
                after,
            })));
        }
    }
}

/// Whether the object `uid` is the controller of `child`.
pub fn is_controlled_by<K: Resource>(child: &K, uid: &str) -> bool {
    let owners = child.meta().owner_references.iter().flatten();
    let mut controllers = owners.filter(|owner| owner.controller == Some(true));
    controllers.any(|owner| owner.uid == uid)
}

fn is_empty(value: &Value) -> bool {
    value.is_null() || value.as_object().is_some_and(serde_json::Map::is_empty)
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::core::v1::ConfigMap;
    use kube::core::ObjectMeta;

    use super::*;

    fn map(name: &str, owner: Option<&str>) -> ConfigMap {
        let owner = owner.map(|uid| OwnerReference {
            uid: uid.to_owned(),
            controller: Some(true),
            ..OwnerReference::default()
        });
        ConfigMap {
            metadata: ObjectMeta {
                name: Some(name.to_owned()),
                namespace: Some("ns".to_owned()),
                uid: Some(format!("uid-{name}")),
                resource_version: Some("7".to_owned()),
                owner_references: owner.map(|owner| vec![owner]),
                ..ObjectMeta::default()
            },
            ..ConfigMap::default()
        }
    }

    #[test]
    fn pruning_deletes_own_children_that_are_not_wanted_and_nothing_else() {
        let owner = OwnerReference {
            uid: "us".to_owned(),
            ..OwnerReference::default()
        };
        let children = [
            map("wanted", Some("us")),
            map("left", Some("us")),
            map("foreign", Some("them")),
            map("labelled", None),
        ];
        let wanted = BTreeSet::from([Key::new("ns", "wanted")]);
        let mut plan = Plan::default();
        plan.prune(&owner, &children, &wanted);
        let [
            Action::Delete {
                key, uid, version, ..
            },
        ] = &plan.actions[..]
        else {
            panic!("{plan:?}");
        };
        assert_eq!((&*key.name, uid.as_str()), ("left", "uid-left"));
        assert_eq!(version.as_deref(), Some("7"));
    }

    #[test]
    fn a_finalizer_is_added_once_and_removed_once() {
        let mut object = map("a", None);
        let mut plan = Plan::default();
        plan.remove_finalizer(&object, "warp/rental");
        assert!(plan.is_idle(), "there is none to remove");
        plan.add_finalizer(&object, "warp/rental");
        assert_eq!(plan.actions.len(), 1);
        object.metadata.finalizers = Some(vec!["theirs".to_owned(), "warp/rental".to_owned()]);
        let mut plan = Plan::default();
        plan.add_finalizer(&object, "warp/rental");
        assert!(plan.is_idle(), "it is there");
        plan.remove_finalizer(&object, "warp/rental");
        let [Action::Patch { patch, .. }] = &plan.actions[..] else {
            panic!("{plan:?}");
        };
        assert_eq!(patch["metadata"]["finalizers"], json!(["theirs"]));
        assert_eq!(patch["metadata"]["resourceVersion"], json!("7"));
    }

    #[test]
    fn an_equal_status_is_not_written() {
        let object = map("a", None);
        let mut plan = Plan::default();
        plan.own_status(&object, "m", json!({"n": 1}), json!({"n": 1}));
        assert!(plan.is_idle());
        plan.own_status(&object, "m", json!({"n": 1}), json!({"n": 2}));
        assert_eq!(plan.actions.len(), 1);
    }
}
