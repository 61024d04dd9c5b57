//! Makes verified files a model that readers see: all at once, beside what is there already.

use std::collections::BTreeSet;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use rustix::fs::{CWD, RenameFlags, renameat_with};

use crate::error::FetchError;
use crate::layout::{Layout, replace, sync_folder};
use crate::verified::Manifest;

/// Publishes `manifest`, whose blobs are all in place, and points its revision to it. Returns the snapshot's folder.
pub(crate) fn publish(layout: &Layout, manifest: &Manifest) -> Result<PathBuf, FetchError> {
    let commit = &manifest.commit;
    let snapshot = layout.snapshots().join(commit);
    let beside = layout.work().join(format!("snapshot.{commit}"));
    clear(&beside)?;
    std::fs::create_dir_all(&beside).map_err(FetchError::io("make the folder", &beside))?;
    for file in &manifest.files {
        link(&beside, &file.path, &file.blob)?;
    }
    sync_folder(&layout.blobs())?;
    sync_folder(&beside)?;
    if snapshot.exists() {
        keep_others(&snapshot, &beside, manifest)?;
        exchange(&beside, &snapshot, manifest)?;
        clear(&beside)?;
    } else {
        std::fs::rename(&beside, &snapshot).map_err(FetchError::io("publish", &snapshot))?;
    }
    sync_folder(&layout.snapshots())?;
    if manifest.revision != *commit {
        let reference = layout.refs().join(&manifest.revision);
        if let Some(folder) = reference.parent() {
            std::fs::create_dir_all(folder).map_err(FetchError::io("make the folder", folder))?;
        }
        replace(&reference, commit.as_bytes())?;
    }
    let record = layout.manifests().join(format!("{commit}.json"));
    let text = serde_json::to_vec_pretty(manifest).map_err(|_| FetchError::Ended)?;
    replace(&record, &text)?;
    Ok(snapshot)
}

/// A link from a snapshot's file to its blob, good in every folder two levels below the repository.
fn link(folder: &Path, path: &str, blob: &str) -> Result<(), FetchError> {
    let place = folder.join(path);
    if let Some(parent) = place.parent() {
        std::fs::create_dir_all(parent).map_err(FetchError::io("make the folder", parent))?;
    }
    let up = "../".repeat(2 + path.matches('/').count());
    symlink(format!("{up}blobs/{blob}"), &place).map_err(FetchError::io("link", &place))
}

/// Carries over what the snapshot has besides: another selection of the same commit may have put it there.
fn keep_others(snapshot: &Path, beside: &Path, manifest: &Manifest) -> Result<(), FetchError> {
    let ours: BTreeSet<&str> = manifest.files.iter().map(|file| &*file.path).collect();
    let mut folders = vec![String::new()];
    while let Some(prefix) = folders.pop() {
        let folder = snapshot.join(&prefix);
        let entries =
            std::fs::read_dir(&folder).map_err(FetchError::io("list the folder", &folder))?;
        for entry in entries.filter_map(Result::ok) {
            let Ok(name) = entry.file_name().into_string() else {
                continue;
            };
            let path = format!("{prefix}{name}");
            let Ok(kind) = entry.file_type() else {
                continue;
            };
            if kind.is_dir() {
                folders.push(format!("{path}/"));
            } else if !ours.contains(&*path) && kind.is_symlink() {
                let target = std::fs::read_link(entry.path());
                let blob = target
                    .ok()
                    .and_then(|target| Some(target.file_name()?.to_str()?.to_owned()));
                if let Some(blob) = blob {
                    link(beside, &path, &blob)?;
                }
            }
        }
    }
    Ok(())
}

/// Puts `beside` in the place of `snapshot` in one step; where the file system cannot, file by file: everything a link
/// leads to is complete already.
fn exchange(beside: &Path, snapshot: &Path, manifest: &Manifest) -> Result<(), FetchError> {
    if renameat_with(CWD, beside, CWD, snapshot, RenameFlags::EXCHANGE).is_ok() {
        return Ok(());
    }
    for file in &manifest.files {
        let (from, to) = (beside.join(&file.path), snapshot.join(&file.path));
        if let Some(parent) = to.parent() {
            std::fs::create_dir_all(parent).map_err(FetchError::io("make the folder", parent))?;
        }
        std::fs::rename(&from, &to).map_err(FetchError::io("publish", &to))?;
    }
    Ok(())
}

fn clear(folder: &Path) -> Result<(), FetchError> {
    match std::fs::remove_dir_all(folder) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            Err(FetchError::io("remove", folder)(error))
        }
        _ => Ok(()),
    }
}
