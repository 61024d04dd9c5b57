//! Which resources are served: descriptors, names, discovery, and the lifecycle of definitions.

pub(crate) mod definitions;
pub(crate) mod discovery;
mod metadata;
pub mod name;
pub mod resource;

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use bytes::Bytes;
use parking_lot::{Mutex, RwLock};
use serde_json::Value;
use tokio_util::sync::CancellationToken;

use crate::store::{Draft, Store, Stored, Table};
pub(crate) use metadata::{validate_metadata, validate_metadata_update};
pub use resource::{
    Cell, Column, Resource, Review, ScalePaths, SelectableField, Strategy, Subresource,
};

/// A resource as it is served now, with the table its objects are in.
#[derive(Debug)]
pub struct Entry {
    pub resource: Arc<Resource>,
    pub table: Arc<Table>,
    /// Cancelled when the resource is withdrawn or served differently: ends its watches.
    pub closed: CancellationToken,
    /// Its definition is going: nothing new may be created.
    pub(crate) terminating: Arc<AtomicBool>,
    api_version: String,
    /// How every stored object of a built-in kind begins.
    prefix: Vec<u8>,
    /// What the table is indexed by.
    fields: Vec<SelectableField>,
}

impl Entry {
    fn new(resource: Resource, store: &Store) -> Self {
        let table = store.table(&resource.table());
        let api_version = resource.api_version();
        let prefix = format!(
            "{{\"apiVersion\":\"{api_version}\",\"kind\":\"{}\",",
            resource.kind
        );
        let fields = resource.selectable_fields.clone();
        Self {
            fields,
            resource: Arc::new(resource),
            table,
            closed: CancellationToken::new(),
            terminating: Arc::default(),
            api_version,
            prefix: prefix.into_bytes(),
        }
    }

    pub fn api_version(&self) -> &str {
        &self.api_version
    }

    /// Whether the stored bytes are what this version serves.
    pub fn serves_as_stored(&self, stored: &Stored) -> bool {
        self.resource.conversion.is_none()
            && self
                .resource
                .custom
                .as_ref()
                .is_none_or(|custom| custom.epoch == stored.epoch)
    }

    /// The object in this version.
    pub fn read(&self, stored: &Stored) -> Value {
        let mut object = stored.value();
        if let Some(conversion) = &self.resource.conversion {
            return (conversion.from_stored)(&object);
        }
        if !self.serves_as_stored(stored) {
            // Written under another schema or version: shown as that version would have it.
            object["apiVersion"] = self.api_version.clone().into();
            self.resource.schema.prune(&mut object);
            self.resource.schema.apply_defaults(&mut object);
        }
        object
    }

    /// The object's bytes in this version.
    pub fn bytes(&self, stored: &Stored) -> bytes::Bytes {
        if self.serves_as_stored(stored) {
            return stored.bytes.clone();
        }
        bytes::Bytes::from(self.read(stored).to_string())
    }

    /// How the object appears among the items of a list: built-in kinds leave out what the list
    /// says already.
    pub fn write_item(&self, stored: &Stored, out: &mut Vec<u8>) {
        if self.resource.custom.is_none()
            && let Some(rest) = stored.bytes.strip_prefix(self.prefix.as_slice())
        {
            out.push(b'{');
            out.extend_from_slice(rest);
            return;
        }
        out.extend_from_slice(&self.bytes(stored));
    }

    /// The object ready to be written.
    pub fn draft(&self, key: &str, object: &Value) -> Draft {
        let fields = &self.fields;
        if let Some(conversion) = &self.resource.conversion {
            return Draft::new(key, &(conversion.to_stored)(object), fields, 0);
        }
        match &self.resource.custom {
            None => Draft::new(key, object, fields, 0),
            Some(custom) if custom.storage_version == self.api_version => {
                Draft::new(key, object, fields, custom.epoch)
            }
            Some(custom) => {
                let mut object = object.clone();
                object["apiVersion"] = custom.storage_version.clone().into();
                // No version has epoch 0: every reader converts.
                Draft::new(key, &object, fields, 0)
            }
        }
    }
}

/// Everything served at one moment.
#[derive(Debug, Default)]
pub struct Served {
    entries: Vec<Arc<Entry>>,
    by_path: HashMap<(String, String, String), Arc<Entry>>,
    /// Grows with every change.
    pub generation: u64,
    /// Discovery documents asked for so far: whoever follows new kinds asks again and again.
    documents: Mutex<BTreeMap<(bool, &'static str), Bytes>>,
}

impl Served {
    pub fn find(&self, group: &str, version: &str, plural: &str) -> Option<&Arc<Entry>> {
        self.by_path
            .get(&(group.to_owned(), version.to_owned(), plural.to_owned()))
    }

    pub fn entries(&self) -> &[Arc<Entry>] {
        &self.entries
    }

    /// The entry of a kind, in whatever version is served first.
    pub fn kind(&self, group: &str, kind: &str) -> Option<&Arc<Entry>> {
        self.entries
            .iter()
            .find(|entry| entry.resource.group == group && entry.resource.kind == kind)
    }

    /// Groups with their versions, in the order they are advertised.
    pub fn groups(&self) -> Vec<(String, Vec<String>)> {
        let mut groups: Vec<(String, Vec<String>)> = Vec::new();
        for entry in &self.entries {
            let resource = &entry.resource;
            let position = groups.iter().position(|(name, _)| *name == resource.group);
            let position = position.unwrap_or_else(|| {
                groups.push((resource.group.clone(), Vec::new()));
                groups.len() - 1
            });
            if !groups[position].1.contains(&resource.version) {
                groups[position].1.push(resource.version.clone());
            }
        }
        for (_, versions) in &mut groups {
            versions.sort_by(|a, b| name::compare_versions(b, a));
        }
        groups
    }

    pub fn of(&self, group: &str, version: &str) -> impl Iterator<Item = &Arc<Entry>> {
        self.entries
            .iter()
            .filter(move |entry| entry.resource.group == group && entry.resource.version == version)
    }
}

/// The served resources; replaced as a whole when a definition changes.
#[derive(Debug)]
pub struct Registry {
    store: Store,
    served: RwLock<Arc<Served>>,
}

impl Registry {
    pub fn new(store: Store, builtin: Vec<Resource>) -> Self {
        let registry = Self {
            store,
            served: RwLock::new(Arc::new(Served::default())),
        };
        let mut entries: Vec<_> = builtin
            .into_iter()
            .map(|resource| Entry::new(resource, &registry.store))
            .collect();
        let indexed: HashMap<String, Vec<SelectableField>> = entries
            .iter()
            .filter(|entry| entry.resource.conversion.is_none())
            .map(|entry| (entry.table.name().to_owned(), entry.fields.clone()))
            .collect();
        for entry in entries
            .iter_mut()
            .filter(|entry| entry.resource.conversion.is_some())
        {
            if let Some(fields) = indexed.get(entry.table.name()) {
                entry.fields.clone_from(fields);
            }
        }
        let entries = entries.into_iter().map(Arc::new).collect();
        Self::publish(&mut registry.served.write(), entries);
        registry
    }

    pub fn served(&self) -> Arc<Served> {
        Arc::clone(&self.served.read())
    }

    pub fn find(&self, group: &str, version: &str, plural: &str) -> Option<Arc<Entry>> {
        self.served.read().find(group, version, plural).cloned()
    }

    fn publish(served: &mut Arc<Served>, entries: Vec<Arc<Entry>>) {
        let by_path = entries
            .iter()
            .map(|entry| {
                let resource = &entry.resource;
                let path = (
                    resource.group.clone(),
                    resource.version.clone(),
                    resource.plural.clone(),
                );
                (path, Arc::clone(entry))
            })
            .collect();
        *served = Arc::new(Served {
            entries,
            by_path,
            generation: served.generation + 1,
            documents: Mutex::default(),
        });
    }

    /// Serves exactly these versions of a custom resource (none withdraws it). A version whose
    /// schema is the same keeps its watches.
    pub fn replace_custom(&self, group: &str, plural: &str, versions: Vec<Resource>) {
        // Held throughout: two definitions that change at once must not lose each other's change.
        let mut served = self.served.write();
        let before = Arc::clone(&served);
        let mut entries = Vec::with_capacity(before.entries.len() + versions.len());
        let mut old: Vec<Arc<Entry>> = Vec::new();
        for entry in &before.entries {
            let resource = &entry.resource;
            if resource.custom.is_some() && resource.group == group && resource.plural == plural {
                old.push(Arc::clone(entry));
            } else {
                entries.push(Arc::clone(entry));
            }
        }
        for resource in versions {
            let same = old
                .iter()
                .position(|entry| same_serving(&entry.resource, &resource));
            match same {
                Some(position) => {
                    let kept = old.swap_remove(position);
                    let refreshed = Entry {
                        closed: kept.closed.clone(),
                        terminating: Arc::clone(&kept.terminating),
                        ..Entry::new(resource, &self.store)
                    };
                    entries.push(Arc::new(refreshed));
                }
                None => entries.push(Arc::new(Entry::new(resource, &self.store))),
            }
        }
        Self::publish(&mut served, entries);
        drop(served);
        for entry in old {
            entry.closed.cancel();
        }
    }

    /// From now on no object of this custom resource can be created: its definition is going.
    pub fn refuse_creates(&self, group: &str, plural: &str) {
        for entry in self.served().entries() {
            let resource = &entry.resource;
            if resource.custom.is_some() && resource.group == group && resource.plural == plural {
                entry.terminating.store(true, Ordering::Release);
            }
        }
    }
}

fn same_serving(a: &Resource, b: &Resource) -> bool {
    let epoch = |resource: &Resource| resource.custom.as_ref().map(|custom| custom.epoch);
    a.version == b.version
        && epoch(a) == epoch(b)
        && a.selectable_fields == b.selectable_fields
        && a.subresources == b.subresources
}
