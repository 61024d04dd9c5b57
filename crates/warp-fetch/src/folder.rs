//! A folder of this machine (a mounted volume, say) as a source. Its files have no digests until they are copied.

use std::path::Path;

use crate::error::FetchError;
use crate::listing::{Listing, Place, RemoteFile};
use crate::plain::tame;

/// Folders below folders that are followed.
const DEPTH: usize = 16;

/// Every file below `folder`.
pub(crate) fn list(folder: &Path) -> Result<Listing, FetchError> {
    let folder = folder
        .canonicalize()
        .map_err(FetchError::folder("read the folder", folder))?;
    let mut files = Vec::new();
    walk(&folder, "", DEPTH, &mut files)?;
    let name = folder.file_name().unwrap_or_default().to_string_lossy();
    Ok(Listing {
        name: format!("local/{}", tame(&name)),
        revision: "main".to_owned(),
        commit: None,
        files,
    })
}

fn walk(
    folder: &Path,
    prefix: &str,
    depth: usize,
    files: &mut Vec<RemoteFile>,
) -> Result<(), FetchError> {
    let read = std::fs::read_dir(folder).map_err(FetchError::folder("list the folder", folder))?;
    for entry in read {
        let entry = entry.map_err(FetchError::folder("list the folder", folder))?;
        let file = entry.path();
        // Caches of the hub are folders of links: what they lead to counts.
        let facts = std::fs::metadata(&file).map_err(FetchError::folder("read", &file))?;
        let name = entry.file_name();
        let name = name.to_str().ok_or_else(|| FetchError::Path {
            path: file.display().to_string(),
        })?;
        let path = format!("{prefix}{name}");
        if facts.is_dir() {
            // What version control and caches keep is no part of a model.
            if depth > 0 && !name.starts_with('.') {
                walk(&file, &format!("{path}/"), depth - 1, files)?;
            }
        } else if facts.is_file() {
            files.push(RemoteFile {
                path,
                size: facts.len(),
                digest: None,
                checksum: None,
                validator: None,
                place: Place::File(file),
            });
        }
    }
    Ok(())
}
