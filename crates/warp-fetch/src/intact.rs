//! Whether a published model is still what was published: for those who let others work beside it.

use std::path::Path;

use crate::digest::{Digest, Hasher};
use crate::error::FetchError;
use crate::verified::{Manifest, Verified, stamp};

/// What is read at once to be hashed.
const READ_BYTES: usize = 1 << 20;
/// Files an error names before it counts the rest.
const NAMED: usize = 3;

/// Refuses a snapshot of which a file is missing or has other content, or that has a file nobody published. What has not
/// been written since it was published is believed; the rest is hashed.
pub fn check(snapshot: &Path) -> Result<(), FetchError> {
    let manifest = manifest(snapshot)?;
    let mut changed: Vec<String> = Vec::new();
    for file in &manifest.files {
        if !is_intact(snapshot, file)? {
            changed.push(file.path.clone());
        }
    }
    foreign(snapshot, "", &mut changed)?;
    changed.sort();
    changed.dedup();
    if changed.is_empty() {
        return Ok(());
    }
    let more = changed.len().saturating_sub(NAMED);
    let mut files = changed[..changed.len() - more].join(", ");
    if more > 0 {
        files = format!("{files} and {more} more");
    }
    Err(FetchError::Altered {
        name: manifest.name,
        files,
    })
}

fn manifest(snapshot: &Path) -> Result<Manifest, FetchError> {
    let absent = || FetchError::NotComplete {
        name: "a model".to_owned(),
        folder: snapshot.to_owned(),
    };
    let commit = snapshot.file_name().ok_or_else(absent)?;
    let repository = snapshot.parent().and_then(Path::parent);
    let record = repository.ok_or_else(absent)?.join(".warp/manifests");
    let commit = commit.to_str().ok_or_else(absent)?;
    let record = record.join(format!("{commit}.json"));
    let text = std::fs::read(&record).map_err(|_| absent())?;
    serde_json::from_slice(&text).map_err(|_| absent())
}

fn is_intact(snapshot: &Path, file: &Verified) -> Result<bool, FetchError> {
    let path = snapshot.join(&file.path);
    // Anything else in the place of the link is not what was published.
    let blob = std::fs::read_link(&path).ok();
    let blob = blob.and_then(|blob| Some(blob.file_name()?.to_str()?.to_owned()));
    if blob.as_ref() != Some(&file.blob) {
        return Ok(false);
    }
    match stamp(&path) {
        Some((size, _)) if size != file.size => Ok(false),
        Some((_, written)) if written == file.written => Ok(true),
        Some(_) => Ok(hashed(&path, file)?.to_string() == file.digest),
        None => Ok(false),
    }
}

fn hashed(path: &Path, file: &Verified) -> Result<Digest, FetchError> {
    let expected = Digest::parse(&file.digest);
    let mut hasher = Hasher::new(expected.as_ref(), file.size);
    let mut reader = std::fs::File::open(path).map_err(FetchError::io("read", path))?;
    let mut buffer = vec![0; READ_BYTES];
    loop {
        let count =
            std::io::Read::read(&mut reader, &mut buffer).map_err(FetchError::io("read", path))?;
        if count == 0 {
            return Ok(hasher.finish());
        }
        hasher.update(&buffer[..count]);
    }
}

/// Files that are no links: what is published is links to blobs.
fn foreign(snapshot: &Path, prefix: &str, found: &mut Vec<String>) -> Result<(), FetchError> {
    let folder = snapshot.join(prefix);
    let entries = std::fs::read_dir(&folder).map_err(FetchError::io("list the folder", &folder))?;
    for entry in entries.filter_map(Result::ok) {
        let path = format!("{prefix}{}", entry.file_name().to_string_lossy());
        let kind = entry
            .file_type()
            .map_err(FetchError::io("read", &entry.path()))?;
        if kind.is_dir() {
            foreign(snapshot, &format!("{path}/"), found)?;
        } else if !kind.is_symlink() {
            found.push(path);
        }
    }
    Ok(())
}
