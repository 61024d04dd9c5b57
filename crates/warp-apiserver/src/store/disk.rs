//! The disk image: one row per current object, and the revision.

use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::sync::Arc;

use bytes::Bytes;
use redb::{Database, ReadableDatabase, ReadableTable, TableDefinition};

use super::OpenError;
use super::commit::{Write, survives};
use super::object::{Index, Stored};

const OBJECTS: TableDefinition<'static, &str, &[u8]> = TableDefinition::new("objects");
const META: TableDefinition<'static, &str, u64> = TableDefinition::new("meta");
const FORMAT: u64 = 1;
/// Bytes of pages kept in memory. Objects are there already, and rows are only read when opening.
const CACHE: usize = 16 << 20;
/// Revisions skipped after a crash: more than relaxed writes can have handed out and lost.
const CRASH_GAP: u64 = 1_000_000;

/// What was on disk.
pub(super) struct Image {
    pub(super) revision: u64,
    pub(super) tables: Vec<(String, Vec<Arc<Stored>>)>,
}

pub(super) struct Disk {
    database: Database,
}

pub(super) fn open(path: &Path) -> Result<(Image, Disk), OpenError> {
    let failed = |error: redb::Error| OpenError::Database {
        path: path.to_owned(),
        source: Box::new(error),
    };
    private(path).map_err(|error| failed(redb::Error::Io(error)))?;
    let database = Database::builder()
        .set_cache_size(CACHE)
        .create(path)
        .map_err(|error| failed(error.into()))?;
    let disk = Disk { database };
    let (format, clean, stored) = disk.prepare().map_err(failed)?;
    if format != FORMAT {
        return Err(OpenError::Format {
            path: path.to_owned(),
            found: format,
            known: FORMAT,
        });
    }
    let revision = if clean { stored } else { stored + CRASH_GAP };
    let tables = disk
        .load()
        .map_err(failed)?
        .map_err(|row| OpenError::Damaged {
            path: path.to_owned(),
            row,
        })?;
    Ok((Image { revision, tables }, disk))
}

/// Makes the file, readable by its owner only, when it is not there: it will hold every Secret.
fn private(path: &Path) -> std::io::Result<()> {
    let mode = std::os::unix::fs::PermissionsExt::from_mode(0o600);
    match std::fs::OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(path)
    {
        Ok(_) => Ok(()),
        Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => {
            std::fs::set_permissions(path, mode)
        }
        Err(error) => Err(error),
    }
}

impl Disk {
    /// Makes the tables of a new file, and marks the file as in use.
    fn prepare(&self) -> Result<(u64, bool, u64), redb::Error> {
        let transaction = self.database.begin_write()?;
        let answer;
        {
            transaction.open_table(OBJECTS)?;
            let mut meta = transaction.open_table(META)?;
            let read = |meta: &redb::Table<'_, &'static str, u64>, key: &str, absent: u64| {
                Ok::<u64, redb::Error>(meta.get(key)?.map_or(absent, |value| value.value()))
            };
            let format = read(&meta, "format", FORMAT)?;
            let clean = read(&meta, "clean", 1)? == 1;
            let revision = read(&meta, "revision", 1)?;
            answer = (format, clean, revision);
            if format == FORMAT {
                meta.insert("format", FORMAT)?;
                meta.insert("clean", 0)?;
            }
        }
        transaction.commit()?;
        Ok(answer)
    }

    /// Every table with its objects; the error names a row that cannot be read.
    #[allow(clippy::type_complexity)]
    fn load(&self) -> Result<Result<Vec<(String, Vec<Arc<Stored>>)>, String>, redb::Error> {
        let transaction = self.database.begin_read()?;
        let objects = transaction.open_table(OBJECTS)?;
        let mut tables: Vec<(String, Vec<Arc<Stored>>)> = Vec::new();
        for row in objects.iter()? {
            let (key, value) = row?;
            let Some(stored) = decode(key.value(), value.value()) else {
                return Ok(Err(key.value().replace('\0', " ")));
            };
            let (table, _) = key.value().split_once('\0').unwrap_or_default();
            // Rows are sorted, so a table's rows follow each other.
            match tables.last_mut() {
                Some((name, objects)) if name == table => objects.push(stored),
                _ => tables.push((table.to_owned(), vec![stored])),
            }
        }
        Ok(Ok(tables))
    }

    pub(super) fn commit(&self, writes: &[Write]) -> Result<(), redb::Error> {
        let transaction = self.database.begin_write()?;
        {
            let mut objects = transaction.open_table(OBJECTS)?;
            let mut key = String::new();
            for write in writes {
                key.clear();
                key.push_str(write.table.name());
                key.push('\0');
                key.push_str(&write.event.object.key);
                if survives(write) {
                    objects.insert(key.as_str(), encode(&write.event.object).as_slice())?;
                } else {
                    objects.remove(key.as_str())?;
                }
            }
            if let Some(last) = writes.last() {
                transaction
                    .open_table(META)?
                    .insert("revision", last.event.revision())?;
            }
        }
        transaction.commit()?;
        Ok(())
    }

    /// Notes that nothing was lost.
    pub(super) fn close(&self) -> Result<(), redb::Error> {
        let transaction = self.database.begin_write()?;
        transaction.open_table(META)?.insert("clean", 1)?;
        transaction.commit()?;
        Ok(())
    }
}

/// The index of a row, so that opening does not parse objects: revision, epoch, place and length
/// of the version, uid, labels, fields.
type Header = (
    u64,
    u64,
    u32,
    u32,
    Box<str>,
    Vec<(Box<str>, Box<str>)>,
    Vec<Box<str>>,
);

fn encode(stored: &Stored) -> Vec<u8> {
    let header = (
        stored.revision,
        stored.epoch,
        stored.version_at,
        stored.version_len,
        &stored.index.uid,
        &stored.index.labels,
        &stored.index.fields,
    );
    let mut row = vec![0; 4];
    // Writing plain values into memory has no way to fail.
    let _ = serde_json::to_writer(&mut row, &header);
    let length = u32::try_from(row.len() - 4).unwrap_or(u32::MAX);
    row[..4].copy_from_slice(&length.to_le_bytes());
    row.extend_from_slice(&stored.bytes);
    row
}

fn decode(key: &str, row: &[u8]) -> Option<Arc<Stored>> {
    let (_, key) = key.split_once('\0')?;
    let (length, rest) = row.split_first_chunk::<4>()?;
    let length = usize::try_from(u32::from_le_bytes(*length)).ok()?;
    let (header, bytes) = rest.split_at_checked(length)?;
    let (revision, epoch, version_at, version_len, uid, labels, fields): Header =
        serde_json::from_slice(header).ok()?;
    bytes
        .get(version_at as usize..)?
        .get(..version_len as usize)?;
    Some(Arc::new(Stored {
        key: key.into(),
        revision,
        epoch,
        index: Index {
            uid,
            labels: labels.into(),
            fields: fields.into(),
        },
        bytes: Bytes::copy_from_slice(bytes),
        version_at,
        version_len,
    }))
}
