//! The disk image: one row per current object, and the revision it stands at. What is newer is in the
//! logs beside it (`journal`), and comes here from time to time.

use std::collections::BTreeMap;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::sync::Arc;

use bytes::Bytes;
use redb::{Database, ReadableDatabase, ReadableTable, TableDefinition};

use super::OpenError;
use super::object::{Index, Stored};
use super::replay;

const OBJECTS: TableDefinition<'static, &str, &[u8]> = TableDefinition::new("objects");
const META: TableDefinition<'static, &str, u64> = TableDefinition::new("meta");
/// 1 had no logs beside it: a Warp that knows only that must not open what may have some.
const FORMAT: u64 = 2;
const KNOWN: [u64; 2] = [1, FORMAT];
/// Bytes of pages kept in memory. Objects are there already, and rows are only read when opening.
const CACHE: usize = 16 << 20;
/// Revisions skipped after a crash: more than relaxed writes can have handed out and lost.
const CRASH_GAP: u64 = 1_000_000;

/// What was on disk.
pub(super) struct Image {
    /// Where to go on from.
    pub(super) revision: u64,
    pub(super) tables: Vec<(String, Vec<Arc<Stored>>)>,
}

/// The database. It is behind the truth by what the logs hold.
pub(super) struct Disk {
    database: Database,
    /// Which database this is: logs of another one must not be applied to it.
    pub(super) id: u64,
}

/// What the database says about itself when it is opened.
struct Meta {
    format: u64,
    clean: bool,
    revision: u64,
    id: Option<u64>,
}

/// A row that is to be as an object is now, or gone.
#[derive(Clone, Debug)]
pub(super) struct Row {
    /// Table and key, as rows are named.
    pub(super) key: String,
    pub(super) object: Option<Arc<Stored>>,
}

/// Opens the database and brings it up to what its logs say.
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
    let mut disk = Disk { database, id: 0 };
    let meta = disk.meta().map_err(failed)?;
    if !KNOWN.contains(&meta.format) {
        return Err(OpenError::Format {
            path: path.to_owned(),
            found: meta.format,
            known: FORMAT,
        });
    }
    let mut rows = disk
        .load()
        .map_err(failed)?
        .map_err(|row| OpenError::Damaged {
            path: path.to_owned(),
            row,
        })?;
    let newest = rows.values().map(|object| object.revision).max();
    let stored = meta.revision.max(newest.unwrap_or(0));
    disk.id = meta
        .id
        .unwrap_or_else(|| u64::from_le_bytes(crate::codec::random()));
    let replayed = replay::replay(path, disk.id, stored)?;
    let gap = if meta.clean { 0 } else { CRASH_GAP };
    let revision = replayed.revision + gap;
    disk.begin(&replayed.rows, revision).map_err(failed)?;
    for row in replayed.rows {
        match row.object {
            Some(object) => rows.insert(row.key, object),
            None => rows.remove(&row.key),
        };
    }
    let tables = by_table(rows);
    Ok((Image { revision, tables }, disk))
}

/// Rows are sorted, so a table's rows follow each other.
fn by_table(rows: BTreeMap<String, Arc<Stored>>) -> Vec<(String, Vec<Arc<Stored>>)> {
    let mut tables: Vec<(String, Vec<Arc<Stored>>)> = Vec::new();
    for (key, stored) in rows {
        let (table, _) = key.split_once('\0').unwrap_or_default();
        match tables.last_mut() {
            Some((name, objects)) if name == table => objects.push(stored),
            _ => tables.push((table.to_owned(), vec![stored])),
        }
    }
    tables
}

/// Makes the file, readable by its owner only, when it is not there: it will hold every Secret.
pub(super) fn private(path: &Path) -> std::io::Result<()> {
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
    fn meta(&self) -> Result<Meta, redb::Error> {
        let transaction = self.database.begin_read()?;
        let absent = Meta {
            format: FORMAT,
            clean: true,
            revision: 1,
            id: None,
        };
        let meta = match transaction.open_table(META) {
            Ok(meta) => meta,
            Err(redb::TableError::TableDoesNotExist(_)) => return Ok(absent),
            Err(error) => return Err(error.into()),
        };
        let read = |key: &str| {
            let value = meta.get(key)?;
            Ok::<Option<u64>, redb::Error>(value.map(|value| value.value()))
        };
        Ok(Meta {
            format: read("format")?.unwrap_or(absent.format),
            clean: read("clean")?.is_none_or(|clean| clean == 1),
            revision: read("revision")?.unwrap_or(absent.revision),
            id: read("id")?,
        })
    }

    /// Takes over what the logs held and marks the file as in use from `revision` on.
    fn begin(&self, rows: &[Row], revision: u64) -> Result<(), redb::Error> {
        self.write(rows, |meta| {
            meta.insert("format", FORMAT)?;
            meta.insert("id", self.id)?;
            meta.insert("clean", 0)?;
            meta.insert("revision", revision)?;
            Ok(())
        })
    }

    /// On a medium of the caller's, empty.
    #[cfg(test)]
    pub(super) fn on(medium: impl redb::StorageBackend) -> Result<Self, redb::Error> {
        let database = Database::builder().create_with_backend(medium)?;
        let disk = Self { database, id: 1 };
        disk.begin(&[], 1)?;
        Ok(disk)
    }

    /// Every row with its object; the error names a row that cannot be read.
    #[allow(clippy::type_complexity)]
    fn load(&self) -> Result<Result<BTreeMap<String, Arc<Stored>>, String>, redb::Error> {
        let transaction = self.database.begin_read()?;
        let objects = match transaction.open_table(OBJECTS) {
            Ok(objects) => objects,
            Err(redb::TableError::TableDoesNotExist(_)) => return Ok(Ok(BTreeMap::new())),
            Err(error) => return Err(error.into()),
        };
        let mut rows = Vec::new();
        for row in objects.iter()? {
            let (key, value) = row?;
            let Some(stored) = decode(key.value(), value.value()) else {
                return Ok(Err(key.value().replace('\0', " ")));
            };
            rows.push((key.value().to_owned(), stored));
        }
        Ok(Ok(rows.into_iter().collect()))
    }

    /// Brings the rows to what they are at `revision`.
    pub(super) fn checkpoint(&self, rows: &[Row], revision: u64) -> Result<(), redb::Error> {
        self.write(rows, |meta| {
            meta.insert("revision", revision)?;
            Ok(())
        })
    }

    /// The last checkpoint: nothing is anywhere else now.
    pub(super) fn close(&self, rows: &[Row], revision: u64) -> Result<(), redb::Error> {
        self.write(rows, |meta| {
            meta.insert("clean", 1)?;
            meta.insert("revision", revision)?;
            Ok(())
        })
    }

    fn write(
        &self,
        rows: &[Row],
        note: impl FnOnce(&mut redb::Table<'_, &'static str, u64>) -> Result<(), redb::Error>,
    ) -> Result<(), redb::Error> {
        let transaction = self.database.begin_write()?;
        {
            let mut objects = transaction.open_table(OBJECTS)?;
            let mut encoded = Vec::new();
            for Row { key, object } in rows {
                if let Some(object) = object {
                    encoded.clear();
                    encode(object, &mut encoded);
                    objects.insert(key.as_str(), encoded.as_slice())?;
                } else {
                    objects.remove(key.as_str())?;
                }
            }
            note(&mut transaction.open_table(META)?)?;
        }
        transaction.commit()?;
        Ok(())
    }
}

/// What a row is called.
pub(super) fn row_key(table: &str, key: &str) -> String {
    format!("{table}\0{key}")
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

/// Adds the object's row to `out`.
pub(super) fn encode(stored: &Stored, out: &mut Vec<u8>) {
    let header = (
        stored.revision,
        stored.epoch,
        stored.version_at,
        stored.version_len,
        &stored.index.uid,
        &stored.index.labels,
        &stored.index.fields,
    );
    let begin = out.len();
    out.extend_from_slice(&[0; 4]);
    // Writing plain values into memory has no way to fail.
    let _ = serde_json::to_writer(&mut *out, &header);
    let length = u32::try_from(out.len() - begin - 4).unwrap_or(u32::MAX);
    out[begin..begin + 4].copy_from_slice(&length.to_le_bytes());
    out.extend_from_slice(&stored.bytes);
}

pub(super) fn decode(key: &str, row: &[u8]) -> Option<Arc<Stored>> {
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
