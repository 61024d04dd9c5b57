//! What was published, with the digests that were checked: tells complete models from half ones, and saves hashing
//! again what has not been touched since.

use std::os::unix::fs::MetadataExt;
use std::path::Path;

use serde::{Deserialize, Serialize};

use crate::digest::Digest;
use crate::layout::Layout;

/// One published model.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Manifest {
    pub(crate) name: String,
    pub(crate) revision: String,
    pub(crate) commit: String,
    pub(crate) digest: String,
    pub(crate) files: Vec<Verified>,
}

/// A file whose content was checked.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Verified {
    pub(crate) path: String,
    pub(crate) size: u64,
    /// Its name among the blobs: the digest in hexadecimal.
    pub(crate) blob: String,
    pub(crate) digest: String,
    /// When the blob was written last; one that was written since is hashed again.
    pub(crate) written: (i64, i64),
}

/// What tells whether a blob was written since.
pub(crate) fn stamp(blob: &Path) -> Option<(u64, (i64, i64))> {
    let facts = std::fs::metadata(blob).ok()?;
    Some((facts.len(), (facts.mtime(), facts.mtime_nsec())))
}

/// Every manifest of a repository that can be read.
pub(crate) fn manifests(layout: &Layout) -> Vec<Manifest> {
    let entries = std::fs::read_dir(layout.manifests());
    let read = |entry: std::io::Result<std::fs::DirEntry>| {
        serde_json::from_slice(&std::fs::read(entry.ok()?.path()).ok()?).ok()
    };
    entries.into_iter().flatten().filter_map(read).collect()
}

/// Whether a blob is there, was checked once, and has not been touched since.
pub(crate) fn is_trusted(
    layout: &Layout,
    manifests: &[Manifest],
    digest: &Digest,
    size: u64,
) -> bool {
    let hex = digest.hex();
    let Some(found) = stamp(&layout.blob(&hex)) else {
        return false;
    };
    let mut files = manifests.iter().flat_map(|manifest| &manifest.files);
    files.any(|file| file.blob == hex && found == (file.size, file.written) && file.size == size)
}
