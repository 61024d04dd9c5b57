//! A backup put in the place of what is there, and what is there put aside.
//!
//! The database of the backup is made beside the old one and checked to its end. Then one rename, that of
//! the mark, decides: before it everything is as it was, after it whoever opens the directory finishes what
//! was begun. The objects keep their resource versions, and the revision goes on beyond any a client can
//! have seen, so that every watch of before has to list again.

use std::fs::{DirBuilder, File, TryLockError};
use std::io::{self, Read};
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

use super::backup::{BackupError, Head, Reader};
use super::disk::{self, CRASH_GAP, Disk, Row};
use super::mark::{self, Mark, Stamp, sync_folder};
use super::replay;

/// Where data goes that was replaced or discarded, beside the database.
pub const ASIDE: &str = "aside";
/// Rows written in one transaction.
const BATCH: usize = 1024;

/// Why nothing was restored or discarded. What was there before is still there.
#[derive(Debug, thiserror::Error)]
pub enum RestoreError {
    #[error(transparent)]
    Backup(#[from] BackupError),
    #[error("failed to restore: {0} holds data; say --replace to put that aside first")]
    Occupied(PathBuf),
    #[error("failed to restore: another process uses {0}; end that one first")]
    InUse(PathBuf),
    #[error("failed to write {path}: {source}")]
    Io { path: PathBuf, source: io::Error },
    #[error("failed to write database {path}: {source}")]
    Database {
        path: PathBuf,
        source: Box<redb::Error>,
    },
}

/// What was restored.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Restored {
    pub head: Head,
    /// Where the data of before is now, if there was any.
    pub aside: Option<PathBuf>,
}

/// Everything the store keeps for a database; the mark last.
fn files(database: &Path) -> Vec<PathBuf> {
    let mut files = vec![database.to_owned()];
    files.extend(replay::paths(database));
    files.push(mark::path(database));
    files
}

/// The database of a backup until it takes its place.
fn beside(database: &Path) -> PathBuf {
    database.with_extension("restored")
}

fn at<T>(path: &Path, result: io::Result<T>) -> Result<T, RestoreError> {
    result.map_err(|source| RestoreError::Io {
        path: path.to_owned(),
        source,
    })
}

/// Keeps every other process from opening the database, if there is one.
fn hold(database: &Path) -> Result<Option<File>, RestoreError> {
    let file = match File::options().read(true).write(true).open(database) {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return at(database, Err(error)),
    };
    match file.try_lock() {
        Ok(()) => Ok(Some(file)),
        Err(TryLockError::WouldBlock) => Err(RestoreError::InUse(database.to_owned())),
        Err(TryLockError::Error(error)) => at(database, Err(error)),
    }
}

/// Puts the backup in the place of `database`; over data that is there only when `replace` says so.
pub fn restore(
    database: &Path,
    backup: impl Read,
    replace: bool,
) -> Result<Restored, RestoreError> {
    let held = hold(database)?;
    let known = mark::read(&mark::path(database)).ok().flatten();
    if let Some(stamp) = known.filter(|stamp| stamp.restoring) {
        at(database, finish(database, stamp))?;
    }
    let occupied = files(database).iter().any(|file| file.exists());
    if occupied && !replace {
        return Err(RestoreError::Occupied(database.to_owned()));
    }
    let seen = known.map_or(0, |stamp| stamp.revision);
    let part = beside(database);
    let built = build(&part, backup, seen);
    if built.is_err() {
        at(&part, disk::remove(&part))?;
    }
    let (head, stamp) = built?;
    let aside = if occupied {
        Some(keep(database)?)
    } else {
        None
    };
    let decided = Mark::put(&mark::path(database), stamp.restoring(true));
    at(database, decided.map(drop))?;
    at(database, finish(database, stamp))?;
    drop(held);
    Ok(Restored { head, aside })
}

/// Makes the database of a backup. It goes on beyond `seen` and what the backup has seen.
fn build(part: &Path, backup: impl Read, seen: u64) -> Result<(Head, Stamp), RestoreError> {
    let failed = |source: redb::Error| RestoreError::Database {
        path: part.to_owned(),
        source: Box::new(source),
    };
    let mut reader = Reader::open(backup)?;
    let head = reader.head;
    at(part, disk::remove(part))?;
    at(part, disk::private(part))?;
    let mut disk = Disk::create(part, disk::random_id()).map_err(failed)?;
    let revision = head.revision.max(seen) + CRASH_GAP;
    let mut rows = Vec::new();
    while let Some((key, object)) = reader.next()? {
        rows.push(Row {
            key,
            object: Some(object),
        });
        if rows.len() == BATCH {
            disk.checkpoint(&rows, revision).map_err(failed)?;
            rows.clear();
        }
    }
    disk.close(&rows, revision).map_err(failed)?;
    let stamp = Stamp::new(disk.id(), revision);
    drop(disk);
    at(part, File::open(part).and_then(|file| file.sync_all()))?;
    Ok((head, stamp))
}

/// Keeps the files under names of their own, without taking them away.
fn keep(database: &Path) -> Result<PathBuf, RestoreError> {
    let folder = make_aside(database)?;
    for file in files(database) {
        let Some(name) = file.file_name().filter(|_| file.exists()) else {
            continue;
        };
        let kept = folder.join(name);
        // The mark is written in place, and some file systems have no second names.
        let linked = if file == mark::path(database) {
            Err(io::ErrorKind::Unsupported.into())
        } else {
            std::fs::hard_link(&file, &kept)
        };
        let copied = linked.or_else(|_| {
            std::fs::copy(&file, &kept)?;
            File::open(&kept)?.sync_all()
        });
        at(&kept, copied)?;
    }
    at(
        &folder,
        File::open(&folder).and_then(|folder| folder.sync_all()),
    )?;
    Ok(folder)
}

/// A new folder for data that is put aside.
fn make_aside(database: &Path) -> Result<PathBuf, RestoreError> {
    let all = database.with_file_name(ASIDE);
    let made = DirBuilder::new().recursive(true).mode(0o700).create(&all);
    at(&all, made)?;
    for number in 1_u32.. {
        let folder = all.join(number.to_string());
        match DirBuilder::new().mode(0o700).create(&folder) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
            made => return at(&folder, made).map(|()| folder),
        }
    }
    at(&all, Err(io::ErrorKind::AlreadyExists.into()))
}

/// Does what is left to do once the mark says that a restore is decided; again and again if need be.
pub(super) fn finish(database: &Path, stamp: Stamp) -> io::Result<()> {
    let part = beside(database);
    if part.exists() {
        std::fs::rename(&part, database)?;
    }
    for log in replay::paths(database) {
        disk::remove(&log)?;
    }
    sync_folder(database)?;
    Mark::put(&mark::path(database), stamp.restoring(false))?;
    Ok(())
}

/// Puts everything the store keeps for `database` aside and says where it is; `None` when there is nothing.
pub fn discard(database: &Path) -> Result<Option<PathBuf>, RestoreError> {
    let held = hold(database)?;
    let files: Vec<PathBuf> = files(database)
        .into_iter()
        .filter(|file| file.exists())
        .collect();
    if files.is_empty() {
        return Ok(None);
    }
    let folder = make_aside(database)?;
    for file in files {
        let Some(name) = file.file_name() else {
            continue;
        };
        // The mark is the last: as long as it is there, nothing starts anew.
        at(&file, std::fs::rename(&file, folder.join(name)))?;
    }
    at(database, sync_folder(database))?;
    drop(held);
    Ok(Some(folder))
}
