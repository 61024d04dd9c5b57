//! Export and import: every object as YAML, for moving between versions of the database.

use serde_json::Value;

use crate::ApiServer;
use crate::registry::definitions;
use crate::store::WriteError;

/// Why an import stopped.
#[derive(Debug, thiserror::Error)]
pub enum TransferError {
    #[error("failed to read document {number} of the import: {reason}")]
    Document { number: usize, reason: String },
    #[error("failed to import {kind} {name}: {reason}")]
    Object {
        kind: String,
        name: String,
        reason: String,
    },
    #[error("failed to write the export: {0}")]
    Write(String),
}

impl ApiServer {
    /// Every object, definitions first, as YAML documents.
    pub fn export(&self) -> Result<String, TransferError> {
        let mut tables = self.api.store.tables();
        tables.sort_by_key(|table| {
            let first = [definitions::TABLE, "namespaces"];
            (
                first
                    .iter()
                    .position(|name| *name == table.name())
                    .unwrap_or(first.len()),
                table.name().to_owned(),
            )
        });
        let mut out = String::new();
        for table in tables {
            for stored in table.all(None) {
                let mut object = stored.value();
                if let Some(meta) = object["metadata"].as_object_mut() {
                    meta.shift_remove("resourceVersion");
                }
                let text = serde_saphyr::to_string(&object)
                    .map_err(|error| TransferError::Write(error.to_string()))?;
                out.push_str("---\n");
                out.push_str(&text);
            }
        }
        Ok(out)
    }

    /// Stores exported objects as they were, identity and times included. Objects that exist with
    /// the same uid are left alone; ones the server made itself at its first start are replaced.
    pub async fn import(&self, yaml: &str) -> Result<usize, TransferError> {
        let documents: Vec<Value> =
            serde_saphyr::from_multiple(yaml).map_err(|error| TransferError::Document {
                number: 0,
                reason: error.to_string(),
            })?;
        let mut count = 0;
        for (position, object) in documents.into_iter().enumerate() {
            if object.is_null() {
                continue;
            }
            if !object.is_object() {
                return Err(TransferError::Document {
                    number: position + 1,
                    reason: "it is not an object".to_owned(),
                });
            }
            self.import_object(&object).await?;
            count += 1;
        }
        Ok(count)
    }

    async fn import_object(&self, object: &Value) -> Result<(), TransferError> {
        let text = |pointer: &str| {
            object
                .pointer(pointer)
                .and_then(Value::as_str)
                .unwrap_or_default()
                .to_owned()
        };
        let (kind, name) = (text("/kind"), text("/metadata/name"));
        let refused = |reason: &str| TransferError::Object {
            kind: kind.clone(),
            name: name.clone(),
            reason: reason.to_owned(),
        };
        let version = text("/apiVersion");
        let (group, _) = version.split_once('/').unwrap_or(("", &version));
        let entry = self.served_soon(group, &kind).await.ok_or_else(|| {
            refused("its kind is not served; import its CustomResourceDefinition first")
        })?;
        if name.is_empty() {
            return Err(refused("it has no name"));
        }
        let namespace = text("/metadata/namespace");
        let namespace = (!namespace.is_empty()).then_some(namespace.as_str());
        if entry.resource.namespaced != namespace.is_some() {
            return Err(refused(if namespace.is_some() {
                "its kind has no namespaces"
            } else {
                "it has no namespace"
            }));
        }
        let wrong = crate::registry::validate_metadata(object, &entry.resource);
        if let Some(error) = wrong.first() {
            return Err(refused(&error.to_string()));
        }
        let key = crate::store::key(namespace, &name);
        let store = &self.api.store;
        loop {
            let draft = entry.draft(&key, object);
            let written = match store.latest(&entry.table, &key) {
                None => store.create(&entry.table, draft).await,
                Some(known) if *known.index.uid == *text("/metadata/uid") => return Ok(()),
                Some(known) => store.update(&entry.table, draft, known.revision).await,
            };
            match written {
                Ok(_) => return Ok(()),
                Err(WriteError::Disk(reason)) => return Err(refused(&reason)),
                Err(_) => {}
            }
        }
    }

    /// The entry of a kind; waits for a definition that was just imported to be served.
    async fn served_soon(
        &self,
        group: &str,
        kind: &str,
    ) -> Option<std::sync::Arc<crate::registry::Entry>> {
        for _ in 0..1000 {
            if let Some(entry) = self.api.registry.served().kind(group, kind) {
                return Some(std::sync::Arc::clone(entry));
            }
            let waiting = self
                .api
                .store
                .table(definitions::TABLE)
                .all(None)
                .iter()
                .any(|stored| {
                    let definition = stored.value();
                    definition["spec"]["group"] == *group
                        && definition["spec"]["names"]["kind"] == *kind
                });
            if !waiting {
                return None;
            }
            tokio::task::yield_now().await;
        }
        None
    }
}
