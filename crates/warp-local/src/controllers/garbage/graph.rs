//! Who owns whom, over every kind, and what follows from it for one object. No I/O: owners that are not in the graph are
//! asked for by the caller and handed in.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference};
use serde_json::json;

use warp_runtime::cache::Key;
use warp_runtime::plan::{Action, Encoding, Kind, Plan, Propagation, Removal};

const FOREGROUND: &str = "foregroundDeletion";
const ORPHAN: &str = "orphan";

#[derive(Clone, Debug)]
pub(super) struct Node {
    pub(super) kind: Arc<Kind>,
    pub(super) key: Key,
    version: String,
    pub(super) owners: Vec<OwnerReference>,
    finalizers: Vec<String>,
    deleting: bool,
}

impl Node {
    pub(super) fn new(kind: Arc<Kind>, meta: &ObjectMeta) -> Self {
        Self {
            kind,
            key: Key::new(
                meta.namespace.as_deref().unwrap_or_default(),
                meta.name.as_deref().unwrap_or_default(),
            ),
            version: meta.resource_version.clone().unwrap_or_default(),
            owners: meta.owner_references.clone().unwrap_or_default(),
            finalizers: meta.finalizers.clone().unwrap_or_default(),
            deleting: meta.deletion_timestamp.is_some(),
        }
    }

    fn has(&self, finalizer: &str) -> bool {
        self.finalizers.iter().any(|known| known == finalizer)
    }

    /// Being deleted, but only after its dependents.
    fn waits_for_dependents(&self) -> bool {
        self.deleting && self.has(FOREGROUND)
    }
}

/// What is known of an owner named by a reference.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Owner {
    Solid,
    /// Being deleted in the foreground: waits for its dependents.
    Waiting,
    Absent,
    /// Cannot be said: its kind is not served, or the reference cannot be followed. Never a reason to delete.
    Unknown,
}

#[derive(Debug, Default)]
pub(super) struct Graph {
    nodes: BTreeMap<String, Node>,
    dependents: BTreeMap<String, BTreeSet<String>>,
    absent: BTreeSet<Named>,
}

/// An owner as a dependent names it. The uid alone is not enough: a reference with the right uid and a wrong name
/// means nobody, and says nothing about the owner others name rightly.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Named {
    namespace: Arc<str>,
    group: String,
    kind: String,
    name: String,
    uid: String,
}

impl Named {
    fn new(namespace: &Arc<str>, reference: &OwnerReference) -> Self {
        Self {
            namespace: namespace.clone(),
            group: group_of(&reference.api_version).to_owned(),
            kind: reference.kind.clone(),
            name: reference.name.clone(),
            uid: reference.uid.clone(),
        }
    }
}

const ABSENT_REMEMBERED: usize = 10_000;

impl Graph {
    /// Takes an object's newest state; the uids to look at because of it.
    pub(super) fn put(&mut self, uid: &str, node: Node) -> Vec<String> {
        let old = self.nodes.get(uid);
        let owners_changed = old.is_none_or(|old| old.owners != node.owners);
        let relevant = owners_changed
            || old.is_none_or(|old| {
                old.deleting != node.deleting || old.finalizers != node.finalizers
            });
        let mut look = Vec::new();
        if owners_changed {
            for owner in old.map(|old| old.owners.clone()).unwrap_or_default() {
                self.disown(&owner.uid, uid);
                // An owner that waits in the foreground may have waited for this one only.
                if self
                    .nodes
                    .get(&owner.uid)
                    .is_some_and(Node::waits_for_dependents)
                {
                    look.push(owner.uid);
                }
            }
            for owner in &node.owners {
                self.dependents
                    .entry(owner.uid.clone())
                    .or_default()
                    .insert(uid.to_owned());
            }
        }
        if relevant && (!node.owners.is_empty() || node.deleting) {
            look.push(uid.to_owned());
        }
        self.nodes.insert(uid.to_owned(), node);
        look
    }

    /// Takes an object that is known to be gone. Its dependents must not have to ask for it: its kind may be the next
    /// to go, and then nobody could tell.
    pub(super) fn remove(&mut self, uid: &str) -> Vec<String> {
        let dependents = self.dependents.get(uid).into_iter().flatten();
        let absent: Vec<(Arc<str>, OwnerReference)> = dependents
            .filter_map(|dependent| self.nodes.get(dependent))
            .flat_map(|dependent| dependent.owners.iter().map(move |owner| (dependent, owner)))
            .filter(|(dependent, owner)| owner.uid == uid && self.owner(dependent, owner).is_some())
            .map(|(dependent, owner)| (dependent.key.namespace.clone(), owner.clone()))
            .collect();
        for (namespace, owner) in &absent {
            self.remember_absent(namespace, owner);
        }
        self.forget(uid)
    }

    /// Takes an object that is no longer heard of and may still exist; the uids to look at because of it.
    pub(super) fn forget(&mut self, uid: &str) -> Vec<String> {
        let Some(node) = self.nodes.remove(uid) else {
            return Vec::new();
        };
        let mut look: Vec<String> = self
            .dependents
            .get(uid)
            .into_iter()
            .flatten()
            .cloned()
            .collect();
        for owner in node.owners {
            self.disown(&owner.uid, uid);
            if self
                .nodes
                .get(&owner.uid)
                .is_some_and(Node::waits_for_dependents)
            {
                look.push(owner.uid);
            }
        }
        look
    }

    fn disown(&mut self, owner: &str, dependent: &str) {
        if let Some(dependents) = self.dependents.get_mut(owner) {
            dependents.remove(dependent);
            if dependents.is_empty() {
                self.dependents.remove(owner);
            }
        }
    }

    /// Remembers that nobody is what `reference` of an object in `namespace` names: a uid never comes back.
    pub(super) fn remember_absent(&mut self, namespace: &Arc<str>, reference: &OwnerReference) {
        if self.absent.len() >= ABSENT_REMEMBERED {
            self.absent.clear();
        }
        self.absent.insert(Named::new(namespace, reference));
    }

    pub(super) fn node(&self, uid: &str) -> Option<&Node> {
        self.nodes.get(uid)
    }

    /// What the graph itself knows of an owner of `node`; none when it must be asked for.
    pub(super) fn owner(&self, node: &Node, reference: &OwnerReference) -> Option<Owner> {
        let known = self.nodes.get(&reference.uid).filter(|owner| {
            let same_place =
                owner.key.namespace.is_empty() || owner.key.namespace == node.key.namespace;
            same_place
                && *owner.key.name == *reference.name
                && owner.kind.kind == reference.kind
                && group_of(&owner.kind.api_version) == group_of(&reference.api_version)
        });
        match known {
            Some(owner) if owner.waits_for_dependents() => Some(Owner::Waiting),
            Some(_) => Some(Owner::Solid),
            None => self
                .absent
                .contains(&Named::new(&node.key.namespace, reference))
                .then_some(Owner::Absent),
        }
    }

    /// What to do about `uid`, given what is known of each of its owners, and whom to look at next.
    pub(super) fn plan(&self, uid: &str, owners: &[Owner]) -> (Plan, Vec<String>) {
        let Some(node) = self.nodes.get(uid) else {
            return (Plan::default(), Vec::new());
        };
        if node.deleting {
            return self.plan_deleting(uid, node);
        }
        (self.plan_owned(uid, node, owners), Vec::new())
    }

    fn plan_deleting(&self, uid: &str, node: &Node) -> (Plan, Vec<String>) {
        let mut plan = Plan::default();
        let mut look = Vec::new();
        let dependents = self
            .dependents
            .get(uid)
            .into_iter()
            .flatten()
            .filter_map(|uid| Some((uid, self.nodes.get(uid)?)));
        if node.has(ORPHAN) {
            for (_, dependent) in dependents {
                plan.push(dependent.with_owners(|owner| (owner.uid != uid).then(|| owner.clone())));
            }
            plan.push(node.without_finalizer(ORPHAN));
        } else if node.has(FOREGROUND) {
            let mut blocked = false;
            for (dependent_uid, dependent) in dependents {
                blocked |= blocks(dependent, uid);
                // All of them go now; the owner waits for those that block.
                if !dependent.deleting {
                    look.push(dependent_uid.clone());
                }
            }
            if !blocked {
                plan.push(node.without_finalizer(FOREGROUND));
            }
        }
        (plan, look)
    }

    fn plan_owned(&self, uid: &str, node: &Node, owners: &[Owner]) -> Plan {
        let mut plan = Plan::default();
        let any = |wanted: Owner| owners.contains(&wanted);
        if owners.is_empty() || any(Owner::Unknown) {
            return plan;
        }
        if any(Owner::Solid) {
            if any(Owner::Absent) || any(Owner::Waiting) {
                let solid: BTreeSet<&str> = node
                    .owners
                    .iter()
                    .zip(owners)
                    .filter(|(_, state)| **state == Owner::Solid)
                    .map(|(owner, _)| owner.uid.as_str())
                    .collect();
                plan.push(node.with_owners(|owner| {
                    solid.contains(owner.uid.as_str()).then(|| owner.clone())
                }));
            }
            return plan;
        }
        let mut dependents = self
            .dependents
            .get(uid)
            .into_iter()
            .flatten()
            .filter_map(|uid| self.nodes.get(uid))
            .peekable();
        let mut version = Some(node.version.clone());
        let propagation = if any(Owner::Waiting) && dependents.peek().is_some() {
            // A dependent that itself waits for its dependents closes a circle: somebody must stop blocking.
            let blocking = node
                .owners
                .iter()
                .any(|owner| owner.block_owner_deletion == Some(true));
            if blocking && dependents.any(Node::waits_for_dependents) {
                let free = |owner: &OwnerReference| {
                    Some(OwnerReference {
                        block_owner_deletion: Some(false),
                        ..owner.clone()
                    })
                };
                plan.push(node.with_owners(free));
                version = None;
            }
            Propagation::Foreground
        } else if node.has(ORPHAN) {
            Propagation::Orphan
        } else if node.has(FOREGROUND) {
            Propagation::Foreground
        } else {
            Propagation::Background
        };
        plan.push(Action::Delete {
            kind: (*node.kind).clone(),
            key: node.key.clone(),
            uid: uid.to_owned(),
            // An owner may have been added that the graph has not seen yet.
            version,
            options: Removal {
                grace_seconds: None,
                propagation: Some(propagation),
            },
            outcome: None,
        });
        plan
    }
}

impl Node {
    fn patch(&self, metadata: serde_json::Value) -> Action {
        let mut metadata = metadata;
        metadata["resourceVersion"] = self.version.clone().into();
        Action::Patch {
            kind: (*self.kind).clone(),
            key: self.key.clone(),
            sub: None,
            encoding: Encoding::Merge,
            patch: json!({ "metadata": metadata }),
        }
    }

    fn with_owners(&self, keep: impl Fn(&OwnerReference) -> Option<OwnerReference>) -> Action {
        let owners: Vec<_> = self.owners.iter().filter_map(keep).collect();
        self.patch(json!({ "ownerReferences": if owners.is_empty() { serde_json::Value::Null } else { json!(owners) } }))
    }

    fn without_finalizer(&self, finalizer: &str) -> Action {
        let left: Vec<_> = self
            .finalizers
            .iter()
            .filter(|known| *known != finalizer)
            .collect();
        self.patch(json!({ "finalizers": left }))
    }
}

fn blocks(dependent: &Node, owner: &str) -> bool {
    dependent
        .owners
        .iter()
        .any(|reference| reference.uid == owner && reference.block_owner_deletion == Some(true))
}

pub(super) fn group_of(api_version: &str) -> &str {
    api_version.split_once('/').map_or("", |(group, _)| group)
}
