//! What the logs hold that the database does not: read once, when it is opened.
//!
//! Revisions are handed out without gaps, so a missing record shows: whatever was acknowledged is either
//! here or the store refuses to open.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use super::OpenError;
use super::disk::{Row, decode};
use super::log::{self, Damage};

/// The two logs of a database: one is written while the other goes into the database.
pub(super) fn paths(database: &Path) -> [PathBuf; 2] {
    ["log-a", "log-b"].map(|extension| database.with_extension(extension))
}

/// Rows newer than the database, each once, and the revision they bring it to.
#[derive(Debug)]
pub(super) struct Replayed {
    pub(super) revision: u64,
    pub(super) rows: Vec<Row>,
}

/// Reads the logs of the database at `path`, which stands at `revision`.
pub(super) fn replay(path: &Path, id: u64, revision: u64) -> Result<Replayed, OpenError> {
    let mut files = Vec::new();
    for path in paths(path) {
        match std::fs::read(&path) {
            Ok(bytes) => files.push((path, bytes)),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {}
            Err(source) => return Err(OpenError::Log { path, source }),
        }
    }
    let mut records = Vec::new();
    for (path, bytes) in &files {
        let read = log::read(bytes, id).map_err(|damage| refusal(path, damage))?;
        records.extend(read.into_iter().map(|record| (path, record)));
    }
    records.sort_by_key(|(_, record)| record.first);
    let mut rows = BTreeMap::new();
    let mut reached = revision;
    for (path, record) in records {
        // Taken over already; the process ended before the log was used again.
        if record.last() <= reached {
            continue;
        }
        if record.first != reached + 1 {
            return Err(OpenError::Gap {
                path: path.clone(),
                from: record.first,
                reached,
            });
        }
        reached = record.last();
        let unreadable = || OpenError::LogDamaged {
            path: path.clone(),
            what: format!("the record of revision {} is no record", record.first),
        };
        for (revision, change) in record.changes().ok_or_else(unreadable)? {
            let object = match change.row {
                Some(row) => Some(
                    decode(change.key, row)
                        .filter(|object| object.revision == revision)
                        .ok_or_else(unreadable)?,
                ),
                None => None,
            };
            rows.insert(change.key.to_owned(), object);
        }
    }
    let rows = rows.into_iter().map(|(key, object)| Row { key, object });
    Ok(Replayed {
        revision: reached,
        rows: rows.collect(),
    })
}

fn refusal(path: &Path, damage: Damage) -> OpenError {
    let path = path.to_owned();
    let what = match damage {
        Damage::Format(found) => return OpenError::LogFormat { path, found },
        Damage::Stranger => return OpenError::Stranger { path },
        Damage::Header => "its beginning is damaged".to_owned(),
        Damage::Record { at } => {
            format!("the record at byte {at} is damaged, and later ones are not")
        }
    };
    OpenError::LogDamaged { path, what }
}
