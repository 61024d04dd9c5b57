//! The built-in kinds: one descriptor each.
//!
//! A kind is defaulting, validation, immutable fields and columns; serving it is the same for all.
//! Custom resources are not here (see `schema`), and nothing here reads the store.

mod access;
mod checks;
mod claim;
mod cluster;
mod columns;
mod config;
mod defaults;
mod definition;
pub(crate) mod event;
pub(crate) mod fields;
mod image;
pub mod metadata;
mod network;
pub(crate) mod pod;
mod quantity;
mod quota;
pub mod resources;
mod storage;
mod typed;
mod workload;

#[cfg(test)]
mod tests;

pub(crate) use network::wants_address;
pub use quantity::{Quantity, QuantityError};

use serde_json::{Value, json};

use crate::registry::resource::{
    CREATE_ONLY, Column, Resource, Review, SelectableField, Strategy, Subresource,
};
use crate::schema::Schema;

/// The text of the `Warning` header for kinds that are kept but do nothing here.
const STORED_ONLY: &str = "this kind is stored but not acted on by the embedded control plane; \
                           see docs/reference/embedded.md";

/// Every built-in resource served.
pub fn builtin() -> Vec<Resource> {
    let mut all = vec![pod::descriptor()];
    all.extend(cluster::descriptors());
    all.extend(config::descriptors());
    all.extend(event::descriptors());
    all.extend(network::descriptors());
    all.extend(quota::descriptors());
    all.extend(storage::descriptors());
    all.push(claim::descriptor());
    all.extend(workload::descriptors());
    all.extend(access::descriptors());
    all.push(definition::descriptor());
    let mut all: Vec<Resource> = all.into_iter().map(|described| described.0).collect();
    for resource in &mut all {
        let name = resource.table();
        resource.strategy.return_deleted = RETURN_DELETED.contains(&name.as_str());
        resource.strategy.keep_status |= name == "nodes";
    }
    all
}

/// Kinds whose deletion is answered with their last state.
const RETURN_DELETED: [&str; 7] = [
    "pods",
    "podtemplates",
    "services",
    "serviceaccounts",
    "persistentvolumes",
    "persistentvolumeclaims",
    "resourcequotas",
];

/// Objects a fresh server holds.
pub fn initial_objects() -> Vec<Value> {
    let namespace = |name: &str| {
        let mut object = json!({
            "apiVersion": "v1", "kind": "Namespace",
            "metadata": {"name": name}, "spec": {"finalizers": ["kubernetes"]},
        });
        typed::round_trip("core.Namespace", &mut object);
        object
    };
    let priority = |name: &str, value: i64, description: &str| {
        json!({
            "apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass",
            "metadata": {"name": name}, "value": value, "description": description,
            "preemptionPolicy": "PreemptLowerPriority",
        })
    };
    let service = json!({
        "apiVersion": "v1", "kind": "Service",
        "metadata": {
            "name": "kubernetes", "namespace": "default",
            "labels": {"component": "apiserver", "provider": "kubernetes"},
        },
        "spec": {
            "clusterIP": "10.96.0.1",
            "ports": [{"name": "https", "port": 443, "protocol": "TCP", "targetPort": 6443}],
        },
    });
    vec![
        service,
        namespace("default"),
        namespace("kube-system"),
        namespace("kube-public"),
        namespace("kube-node-lease"),
        priority(
            "system-node-critical",
            2_000_001_000,
            "Used for system critical pods that must not be moved from their current node.",
        ),
        priority(
            "system-cluster-critical",
            2_000_000_000,
            "Used for system critical pods that must run in the cluster, but can be moved to \
             another node if necessary.",
        ),
    ]
}

/// A descriptor being put together.
pub(crate) struct Described(Resource);

fn describe(group: &str, version: &str, kind: &str, plural: &str) -> Described {
    let schema = Schema::builtin(group, version, kind).unwrap_or_else(Schema::anything);
    Described(Resource::new(group, version, kind, plural, schema))
}

impl Described {
    fn short(mut self, name: &str) -> Self {
        self.0.short_names.push(name.to_owned());
        self
    }

    fn category(mut self, name: &str) -> Self {
        self.0.categories.push(name.to_owned());
        self
    }

    fn cluster(mut self) -> Self {
        self.0.namespaced = false;
        self
    }

    fn subresources(mut self, all: impl IntoIterator<Item = Subresource>) -> Self {
        self.0.subresources.extend(all);
        self
    }

    fn columns(mut self, columns: Vec<Column>) -> Self {
        self.0.columns = columns;
        self
    }

    fn selectable(mut self, fields: impl IntoIterator<Item = SelectableField>) -> Self {
        self.0.selectable_fields.extend(fields);
        self
    }

    fn strategy(mut self, strategy: Strategy) -> Self {
        self.0.strategy = strategy;
        self
    }

    fn stored_only(mut self) -> Self {
        self.0.stored_only = Some(STORED_ONLY);
        self
    }

    fn review(mut self, review: Review) -> Self {
        self.0.review = Some(review);
        self.0.verbs = CREATE_ONLY;
        self
    }
}

/// A write to the main resource leaves the status alone.
fn keep_status(object: &mut Value, old: &Value) {
    match old.get("status") {
        Some(status) => object["status"] = status.clone(),
        None => {
            if let Some(map) = object.as_object_mut() {
                map.remove("status");
            }
        }
    }
}

/// A new object has no status of its own making.
fn empty_status(object: &mut Value) {
    object["status"] = json!({});
}
