//! One stored object: its JSON as bytes and the few values selectors need.

use std::sync::Arc;

use bytes::Bytes;
use serde_json::{Map, Value};

use crate::registry::resource::SelectableField;

/// What can be asked of an object without parsing it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Index {
    pub uid: Box<str>,
    pub labels: Box<[(Box<str>, Box<str>)]>,
    /// Values of the resource's selectable fields, in its order.
    pub fields: Box<[Box<str>]>,
}

impl Index {
    pub fn of(object: &Value, fields: &[SelectableField]) -> Self {
        let meta = &object["metadata"];
        let labels = meta["labels"]
            .as_object()
            .map_or_else(Box::default, |labels| {
                labels
                    .iter()
                    .map(|(key, value)| {
                        (
                            key.as_str().into(),
                            value.as_str().unwrap_or_default().into(),
                        )
                    })
                    .collect()
            });
        Self {
            uid: meta["uid"].as_str().unwrap_or_default().into(),
            labels,
            fields: fields
                .iter()
                .map(|field| field.extract(object).into_boxed_str())
                .collect(),
        }
    }

    pub fn label(&self, key: &str) -> Option<&str> {
        self.labels
            .iter()
            .find(|(known, _)| &**known == key)
            .map(|(_, value)| &**value)
    }
}

/// One version of one object.
#[derive(Debug)]
pub struct Stored {
    /// `namespace/name`, or `name` for cluster-scoped kinds: etcd's order of keys.
    pub key: Arc<str>,
    pub revision: u64,
    /// Which schema it was written under; see `registry::resource::Custom`.
    pub epoch: u64,
    pub index: Index,
    pub bytes: Bytes,
    /// Where the digits of `metadata.resourceVersion` are.
    pub(super) version_at: u32,
    pub(super) version_len: u32,
}

impl Stored {
    pub fn namespace(&self) -> Option<&str> {
        self.key.split_once('/').map(|(namespace, _)| namespace)
    }

    pub fn name(&self) -> &str {
        self.key
            .split_once('/')
            .map_or(&*self.key, |(_, name)| name)
    }

    /// The object as a tree.
    pub fn value(&self) -> Value {
        // The bytes were produced by `Draft`: they are JSON.
        serde_json::from_slice(&self.bytes).unwrap_or(Value::Null)
    }

    /// The same content, ready to be written under a new revision.
    pub fn redraft(&self) -> Draft {
        let at = self.version_at as usize;
        let after = at + self.version_len as usize;
        let mut bytes = Vec::with_capacity(self.bytes.len());
        bytes.extend_from_slice(&self.bytes[..at]);
        bytes.extend_from_slice(&self.bytes[after..]);
        Draft {
            key: Arc::clone(&self.key),
            epoch: self.epoch,
            index: self.index.clone(),
            bytes,
            version_at: at,
        }
    }
}

/// An encoded object that lacks only its resource version.
#[derive(Debug)]
pub struct Draft {
    key: Arc<str>,
    epoch: u64,
    index: Index,
    bytes: Vec<u8>,
    version_at: usize,
}

/// The key an object is stored under.
pub fn key(namespace: Option<&str>, name: &str) -> String {
    match namespace {
        Some(namespace) => format!("{namespace}/{name}"),
        None => name.to_owned(),
    }
}

impl Draft {
    pub fn new(key: &str, object: &Value, fields: &[SelectableField], epoch: u64) -> Self {
        let mut bytes = Vec::with_capacity(1024);
        let version_at = encode(object, &mut bytes);
        Self {
            key: key.into(),
            epoch,
            index: Index::of(object, fields),
            bytes,
            version_at,
        }
    }

    pub fn key(&self) -> &str {
        &self.key
    }

    pub(super) fn stamp(self, revision: u64) -> Stored {
        let digits = revision.to_string();
        let mut bytes = Vec::with_capacity(self.bytes.len() + digits.len());
        bytes.extend_from_slice(&self.bytes[..self.version_at]);
        bytes.extend_from_slice(digits.as_bytes());
        bytes.extend_from_slice(&self.bytes[self.version_at..]);
        Stored {
            key: self.key,
            revision,
            epoch: self.epoch,
            index: self.index,
            bytes: Bytes::from(bytes),
            version_at: u32::try_from(self.version_at).unwrap_or(u32::MAX),
            version_len: u32::try_from(digits.len()).unwrap_or(u32::MAX),
        }
    }
}

/// Writes the object with an empty `metadata.resourceVersion` and says where its digits belong.
/// Version, kind and metadata come first, so that lists can leave the former two out.
fn encode(object: &Value, out: &mut Vec<u8>) -> usize {
    const FIRST: [&str; 3] = ["apiVersion", "kind", "metadata"];
    let empty = Map::new();
    let map = object.as_object().unwrap_or(&empty);
    out.push(b'{');
    for name in &FIRST[..2] {
        if let Some(value) = map.get(*name) {
            member(out, name, value);
        }
    }
    separate(out);
    out.extend_from_slice(b"\"metadata\":{");
    let meta = map
        .get("metadata")
        .and_then(Value::as_object)
        .unwrap_or(&empty);
    let mut version_at = None;
    for (name, value) in meta {
        if name != "resourceVersion" {
            member(out, name, value);
        }
        if name == "uid" {
            version_at = Some(write_version(out));
        }
    }
    let version_at = version_at.unwrap_or_else(|| write_version(out));
    out.push(b'}');
    for (name, value) in map
        .iter()
        .filter(|(name, _)| !FIRST.contains(&name.as_str()))
    {
        member(out, name, value);
    }
    out.push(b'}');
    version_at
}

fn member(out: &mut Vec<u8>, name: &str, value: &Value) {
    separate(out);
    // Writing a tree of strings into memory has no way to fail.
    let _ = serde_json::to_writer(&mut *out, name);
    out.push(b':');
    let _ = serde_json::to_writer(out, value);
}

fn separate(out: &mut Vec<u8>) {
    if out.last() != Some(&b'{') {
        out.push(b',');
    }
}

fn write_version(out: &mut Vec<u8>) -> usize {
    separate(out);
    out.extend_from_slice(b"\"resourceVersion\":\"");
    let at = out.len();
    out.push(b'"');
    at
}
