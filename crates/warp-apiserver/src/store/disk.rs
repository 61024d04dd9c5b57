//! The disk image: one row per current object, and the revision it stands at. What is newer is in the
//! logs beside it (`journal`), and comes here from time to time.
//!
//! Every row carries the checksum of its key and its bytes, and the database says how many rows there are and
//! what their checksums add up to: a row that was changed, lost or added by anybody else shows when it is
//! opened. Nothing is read from here after that but what a checkpoint replaces.

use std::collections::BTreeMap;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::sync::Arc;

use bytes::Bytes;
use redb::{Database, ReadableDatabase, ReadableTable, TableDefinition};

use super::OpenError;
use super::mark::{self, Mark, Stamp, Unreadable};
use super::object::{Index, Stored};
use super::{replay, restore, sum};

const OBJECTS: TableDefinition<'static, &str, &[u8]> = TableDefinition::new("objects");
const META: TableDefinition<'static, &str, u64> = TableDefinition::new("meta");
/// 1 had no logs beside it, 2 no checksums and no mark: a Warp that knows only those must not open what has.
pub(super) const FORMAT: u64 = 3;
const KNOWN: [u64; 3] = [1, 2, FORMAT];
/// Bytes of pages kept in memory. Objects are there already, and rows are only read when opening.
const CACHE: usize = 16 << 20;
/// Revisions skipped after a crash: more than relaxed writes can have handed out and lost.
pub(super) const CRASH_GAP: u64 = 1_000_000;

/// What was on disk.
pub(super) struct Image {
    /// Where to go on from.
    pub(super) revision: u64,
    pub(super) tables: Vec<(String, Vec<Arc<Stored>>)>,
}

/// The database. It is behind the truth by what the logs hold.
pub(super) struct Disk {
    database: Database,
    meta: Meta,
}

/// What the database says about itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Meta {
    format: u64,
    /// Which database this is: logs of another one must not be applied to it.
    id: u64,
    clean: bool,
    revision: u64,
    tally: Tally,
}

/// How many rows there are, and what their checksums add up to, in whatever order.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Tally {
    count: u64,
    sum: u128,
}

impl Tally {
    fn add(&mut self, sum: u128) {
        self.count = self.count.wrapping_add(1);
        self.sum = self.sum.wrapping_add(sum);
    }

    fn remove(&mut self, sum: u128) {
        self.count = self.count.wrapping_sub(1);
        self.sum = self.sum.wrapping_sub(sum);
    }
}

/// A row that is to be as an object is now, or gone.
#[derive(Clone, Debug)]
pub(super) struct Row {
    /// Table and key, as rows are named.
    pub(super) key: String,
    pub(super) object: Option<Arc<Stored>>,
}

type Rows = BTreeMap<String, Arc<Stored>>;

/// Opens the database, makes sure that it is the one that was written, and brings it up to what its logs say.
pub(super) fn open(path: &Path) -> Result<(Image, Disk, Mark), OpenError> {
    let stamp = stamp(path)?;
    let fresh = is_new(path, stamp)?;
    let stamp = match stamp {
        None if fresh => {
            // The mark is there before the database: from now on its absence is a loss.
            let stamp = Stamp::new(random_id(), 0);
            Mark::put(&mark::path(path), stamp).map_err(|error| OpenError::mark(path, error))?;
            Some(stamp)
        }
        known => known,
    };
    let opened = if fresh {
        Opened::begin(path, stamp.map_or(0, |stamp| stamp.id))?
    } else {
        examine(path, stamp)?
    };
    let Opened { mut disk, mut rows } = opened;
    let stored = disk.meta;
    let replayed = replay::replay(path, stored.id, stored.revision)?;
    if let Some(stamp) = stamp.filter(|stamp| replayed.revision < stamp.revision) {
        return Err(OpenError::Behind {
            path: path.to_owned(),
            reached: replayed.revision,
            marked: stamp.revision,
        });
    }
    let at = mark::path(path);
    let mark = match stamp {
        Some(stamp) => Mark::open(&at, stamp),
        None => Mark::put(&at, Stamp::new(stored.id, replayed.revision)),
    };
    let mut mark = mark.map_err(|error| OpenError::mark(path, error))?;
    let gap = if stored.clean { 0 } else { CRASH_GAP };
    disk.meta.revision = replayed.revision + gap;
    disk.meta.clean = false;
    let whole = stored.format != FORMAT;
    for row in &replayed.rows {
        match &row.object {
            Some(object) => rows.insert(row.key.clone(), Arc::clone(object)),
            None => rows.remove(&row.key),
        };
    }
    let begun = if whole {
        disk.meta.format = FORMAT;
        disk.rewrite(&rows)
    } else {
        disk.write(&replayed.rows)
    };
    begun.map_err(|error| OpenError::database(path, error))?;
    let revision = disk.meta.revision;
    mark.settle(revision)
        .map_err(|error| OpenError::mark(path, error))?;
    let tables = by_table(rows);
    Ok((Image { revision, tables }, disk, mark))
}

pub(super) fn random_id() -> u64 {
    u64::from_le_bytes(crate::codec::random())
}

/// What the mark says, once a restore that was broken off is finished.
fn stamp(path: &Path) -> Result<Option<Stamp>, OpenError> {
    let at = mark::path(path);
    let read = || {
        mark::read(&at).map_err(|unreadable| match unreadable {
            Unreadable::Io(error) => OpenError::mark(path, error),
            Unreadable::Damaged => OpenError::MarkDamaged { path: at.clone() },
            Unreadable::Format(found) => OpenError::Format {
                path: at.clone(),
                found: found.into(),
                known: FORMAT,
            },
        })
    };
    match read()? {
        Some(stamp) if stamp.restoring => {
            restore::finish(path, stamp).map_err(|error| OpenError::mark(path, error))?;
            read()
        }
        stamp => Ok(stamp),
    }
}

/// Whether there was never anything here. What was and is no more is refused: nothing starts anew over it.
fn is_new(path: &Path, stamp: Option<Stamp>) -> Result<bool, OpenError> {
    let length = match std::fs::metadata(path) {
        Ok(found) => Some(found.len()),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => None,
        Err(error) => return Err(OpenError::database(path, error.into())),
    };
    let traces = replay::paths(path).iter().any(|log| log.exists());
    let lost = |what: &'static str| OpenError::Lost {
        path: path.to_owned(),
        what,
    };
    match (length, stamp) {
        // Broken off while it was made: nobody was told that anything is stored.
        (_, Some(stamp)) if stamp.revision == 0 => Ok(length.is_none_or(|length| length == 0)
            || examine(path, Some(stamp)).is_err_and(|error| error.is_damage())),
        (None, None) if !traces => Ok(true),
        (None, _) => Err(lost("is gone")),
        (Some(0), _) => Err(lost("is empty")),
        _ => Ok(false),
    }
}

/// A database that was opened, and what it holds.
struct Opened {
    disk: Disk,
    rows: Rows,
}

impl Opened {
    /// A database with nothing in it, in place of what a start that was broken off left.
    fn begin(path: &Path, id: u64) -> Result<Self, OpenError> {
        let make = || {
            remove(path)?;
            private(path)?;
            Disk::create(path, id)
        };
        let disk = make().map_err(|error| OpenError::database(path, error))?;
        Ok(Self {
            disk,
            rows: Rows::new(),
        })
    }
}

/// Removes a file that may not be there.
pub(super) fn remove(file: &Path) -> std::io::Result<()> {
    match std::fs::remove_file(file) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

/// Opens a database that exists and checks all of it, against itself and against the mark beside it.
fn examine(path: &Path, stamp: Option<Stamp>) -> Result<Opened, OpenError> {
    let damaged = || OpenError::Damaged {
        path: path.to_owned(),
        what: DAMAGED_PAGES.to_owned(),
    };
    // redb ends a thread over some kinds of damage: it gets one of its own, whose last words nobody needs.
    std::thread::scope(|scope| {
        let thread = std::thread::Builder::new().name(EXAMINER.to_owned());
        let examined = thread.spawn_scoped(scope, || look(path, stamp));
        let examined = examined.map_err(|error| OpenError::database(path, error.into()))?;
        examined.join().unwrap_or_else(|_| Err(damaged()))
    })
}

/// The thread that looks whether a database is whole.
const EXAMINER: &str = "database-examiner";
/// What is said of a file that redb cannot read.
pub(super) const DAMAGED_PAGES: &str = "its pages are damaged";

/// Whether this thread looks whether a database is whole. It ends by a panic over some kinds of damage, which is then said
/// in an error: a panic hook need not tell of it too.
pub fn examining() -> bool {
    std::thread::current().name() == Some(EXAMINER)
}

fn look(path: &Path, stamp: Option<Stamp>) -> Result<Opened, OpenError> {
    let failed = |error: redb::Error| OpenError::database(path, error);
    let damaged = |what: String| OpenError::Damaged {
        path: path.to_owned(),
        what,
    };
    let foreign = || OpenError::Foreign {
        path: path.to_owned(),
    };
    private(path).map_err(|error| failed(redb::Error::Io(error)))?;
    let mut database = Database::builder()
        .set_cache_size(CACHE)
        .open(path)
        .map_err(|error| failed(error.into()))?;
    database
        .check_integrity()
        .map_err(|error| failed(error.into()))?;
    let id = stamp.map_or_else(random_id, |stamp| stamp.id);
    let meta = match read_meta(&database, id).map_err(failed)? {
        Noted::Nothing => {
            return Err(OpenError::Lost {
                path: path.to_owned(),
                what: "holds nothing that Warp wrote",
            });
        }
        Noted::Format(found) => {
            return Err(OpenError::Format {
                path: path.to_owned(),
                found,
                known: FORMAT,
            });
        }
        Noted::Damaged => {
            return Err(damaged(
                "what it says about itself is not what was written".to_owned(),
            ));
        }
        Noted::Whole(meta) => meta,
    };
    match stamp {
        Some(stamp) if stamp.id != meta.id => return Err(foreign()),
        None if meta.format == FORMAT => {
            return Err(OpenError::Unmarked {
                path: mark::path(path),
            });
        }
        _ => {}
    }
    let (rows, tally) = load(&database, meta.format)
        .map_err(failed)?
        .map_err(|row| damaged(format!("{row} is not what was written")))?;
    if meta.format == FORMAT && tally != meta.tally {
        return Err(damaged(format!(
            "it holds {} objects and should hold {}, or not these",
            tally.count, meta.tally.count
        )));
    }
    let newest = rows.values().map(|object| object.revision).max();
    if meta.format == FORMAT && newest > Some(meta.revision) {
        return Err(damaged("objects are newer than it is".to_owned()));
    }
    let revision = meta.revision.max(newest.unwrap_or(0));
    let disk = Disk {
        database,
        meta: Meta { revision, ..meta },
    };
    Ok(Opened { disk, rows })
}

/// What was found where a database says what it is.
enum Noted {
    Nothing,
    Format(u64),
    Damaged,
    Whole(Meta),
}

/// What the database says about itself; `id` is for one from before databases had any.
fn read_meta(database: &Database, id: u64) -> Result<Noted, redb::Error> {
    let transaction = database.begin_read()?;
    let meta = match transaction.open_table(META) {
        Ok(meta) => meta,
        Err(
            redb::TableError::TableDoesNotExist(_) | redb::TableError::TableTypeMismatch { .. },
        ) => {
            return Ok(Noted::Nothing);
        }
        Err(error) => return Err(error.into()),
    };
    let read = |key: &str| {
        let value = meta.get(key)?;
        Ok::<Option<u64>, redb::Error>(value.map(|value| value.value()))
    };
    let Some(format) = read("format")? else {
        return Ok(Noted::Nothing);
    };
    if !KNOWN.contains(&format) {
        return Ok(Noted::Format(format));
    }
    let numbers = [
        read("id")?,
        read("clean")?,
        read("revision")?,
        read("count")?,
        read("sum-low")?,
        read("sum-high")?,
    ];
    let own = numbers[0].unwrap_or(id);
    let [_, clean, revision, count, low, high] = numbers.map(Option::unwrap_or_default);
    let noted = Meta {
        format,
        id: own,
        clean: clean == 1,
        revision: revision.max(1),
        tally: Tally {
            count,
            sum: u128::from(low) | (u128::from(high) << 64),
        },
    };
    let whole = format != FORMAT || read("check")? == Some(noted.check());
    Ok(if whole {
        Noted::Whole(noted)
    } else {
        Noted::Damaged
    })
}

impl Meta {
    fn numbers(&self) -> [(&'static str, u64); 7] {
        let [low, high] = halves(self.tally.sum);
        [
            ("format", self.format),
            ("id", self.id),
            ("clean", u64::from(self.clean)),
            ("revision", self.revision),
            ("count", self.tally.count),
            ("sum-low", low),
            ("sum-high", high),
        ]
    }

    fn check(&self) -> u64 {
        let numbers = self.numbers().map(|(_, number)| number.to_le_bytes());
        sum::short(&[numbers.as_flattened()])
    }
}

fn halves(sum: u128) -> [u64; 2] {
    let bytes = sum.to_le_bytes();
    let (low, high) = bytes.split_at(8);
    [low, high].map(|half| u64::from_le_bytes(*half.first_chunk().unwrap_or(&[0; 8])))
}

/// Rows are sorted, so a table's rows follow each other.
fn by_table(rows: Rows) -> Vec<(String, Vec<Arc<Stored>>)> {
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

/// Every row with its object, and what they add up to; the error names a row that is not as it was written.
#[allow(clippy::type_complexity)]
fn load(database: &Database, format: u64) -> Result<Result<(Rows, Tally), String>, redb::Error> {
    let transaction = database.begin_read()?;
    let mut tally = Tally::default();
    let objects = match transaction.open_table(OBJECTS) {
        Ok(objects) => objects,
        Err(redb::TableError::TableDoesNotExist(_)) => return Ok(Ok((Rows::new(), tally))),
        Err(error) => return Err(error.into()),
    };
    let mut rows = Vec::new();
    for row in objects.iter()? {
        let (key, value) = row?;
        let key = key.value();
        let stored = if format == FORMAT {
            unseal(key, value.value()).and_then(|(sum, body)| {
                tally.add(sum);
                decode(key, body)
            })
        } else {
            decode(key, value.value())
        };
        let Some(stored) = stored else {
            return Ok(Err(key.replace('\0', " ")));
        };
        rows.push((key.to_owned(), stored));
    }
    Ok(Ok((rows.into_iter().collect(), tally)))
}

impl Disk {
    pub(super) fn id(&self) -> u64 {
        self.meta.id
    }

    /// An empty database, where there is none.
    pub(super) fn create(path: &Path, id: u64) -> Result<Self, redb::Error> {
        let database = Database::builder().set_cache_size(CACHE).create(path)?;
        Ok(Self::of(database, id))
    }

    fn of(database: Database, id: u64) -> Self {
        let meta = Meta {
            format: FORMAT,
            id,
            clean: true,
            revision: 1,
            tally: Tally::default(),
        };
        Self { database, meta }
    }

    /// On a medium of the caller's, empty.
    #[cfg(test)]
    pub(super) fn on(medium: impl redb::StorageBackend) -> Result<Self, redb::Error> {
        let mut disk = Self::of(Database::builder().create_with_backend(medium)?, 1);
        disk.write(&[])?;
        Ok(disk)
    }

    /// Brings the rows to what they are at `revision`.
    pub(super) fn checkpoint(&mut self, rows: &[Row], revision: u64) -> Result<(), redb::Error> {
        self.meta.revision = revision;
        self.write(rows)
    }

    /// The last checkpoint: nothing is anywhere else now.
    pub(super) fn close(&mut self, rows: &[Row], revision: u64) -> Result<(), redb::Error> {
        self.meta.clean = true;
        self.checkpoint(rows, revision)
    }

    /// Writes every row anew, as an earlier Warp did not write them.
    fn rewrite(&mut self, rows: &Rows) -> Result<(), redb::Error> {
        let transaction = self.database.begin_write()?;
        transaction.delete_table(OBJECTS)?;
        self.meta.tally = Tally::default();
        let rows: Vec<Row> = rows
            .iter()
            .map(|(key, object)| Row {
                key: key.clone(),
                object: Some(Arc::clone(object)),
            })
            .collect();
        self.commit(transaction, &rows)
    }

    /// Writes the rows, and what the database says about itself.
    fn write(&mut self, rows: &[Row]) -> Result<(), redb::Error> {
        let transaction = self.database.begin_write()?;
        self.commit(transaction, rows)
    }

    fn commit(
        &mut self,
        transaction: redb::WriteTransaction,
        rows: &[Row],
    ) -> Result<(), redb::Error> {
        let mut tally = self.meta.tally;
        {
            let mut objects = transaction.open_table(OBJECTS)?;
            let mut encoded = Vec::new();
            for Row { key, object } in rows {
                let before = if let Some(object) = object {
                    encoded.clear();
                    tally.add(seal(key, object, &mut encoded));
                    objects.insert(key.as_str(), encoded.as_slice())?
                } else {
                    objects.remove(key.as_str())?
                };
                if let Some(before) = before {
                    let known = unseal(key, before.value());
                    let (sum, _) = known.ok_or_else(|| damaged_row(key))?;
                    tally.remove(sum);
                }
            }
            let mut meta = transaction.open_table(META)?;
            self.meta.tally = tally;
            for (name, number) in self.meta.numbers() {
                meta.insert(name, number)?;
            }
            meta.insert("check", self.meta.check())?;
        }
        transaction.commit()?;
        Ok(())
    }
}

fn damaged_row(key: &str) -> redb::Error {
    let row = key.replace('\0', " ");
    redb::Error::Corrupted(format!("{row} is not on disk as it was written"))
}

/// Adds the object's row with its checksum to `out`, and says which that is.
pub(super) fn seal(key: &str, stored: &Stored, out: &mut Vec<u8>) -> u128 {
    let begin = out.len();
    out.extend_from_slice(&[0; SEAL]);
    encode(stored, out);
    let (seal, body) = out[begin..].split_at_mut(SEAL);
    let sum = row_sum(key, body);
    seal.copy_from_slice(&sum.to_le_bytes());
    sum
}

/// The row under its checksum; `None` when it is not what was written under that key.
pub(super) fn unseal<'a>(key: &str, row: &'a [u8]) -> Option<(u128, &'a [u8])> {
    let (seal, body) = row.split_first_chunk::<SEAL>()?;
    let sum = u128::from_le_bytes(*seal);
    (sum == row_sum(key, body)).then_some((sum, body))
}

const SEAL: usize = 16;

fn row_sum(key: &str, body: &[u8]) -> u128 {
    let length = (key.len() as u64).to_le_bytes();
    sum::wide(&[&length, key.as_bytes(), body])
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
