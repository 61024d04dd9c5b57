//! The state of the API: memory is the truth; a log makes writes durable, redb is the disk image.
//!
//! One global revision orders all writes. A write is checked and given its revision under the
//! sequencer's lock, goes to the log in a group commit, and only then becomes visible to readers and
//! watchers, in revision order. Objects are kept as encoded bytes with a small index. The store
//! knows nothing about kinds; it must not parse objects on the read path.

mod backup;
mod commit;
mod disk;
mod joined;
mod journal;
mod log;
mod mark;
mod object;
mod replay;
mod restore;
mod sum;
mod table;
mod watch;

use std::collections::HashMap;
use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::{Mutex, RwLock};
use tokio::sync::watch as signal;

pub use backup::{BackupError, Head, Snapshot, begins_as_backup, verify};
use commit::Committer;
pub use disk::examining;
pub use joined::{Lines, Whole};
use journal::{Journal, LOG_BYTES};
pub use object::{Draft, Index, Stored, key};
pub use restore::{ASIDE, RestoreError, Restored, discard, restore};
pub use table::{Page, PageQuery, Table};
pub use watch::{Batch, Cursor, Event, EventKind, line};

/// How writes reach the disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Durability {
    /// A write is answered after it is on disk.
    #[default]
    Durable,
    /// A write is answered from memory and is on disk a moment later.
    Relaxed,
}

/// Where and how to keep state.
#[derive(Clone, Debug, Default)]
pub struct StoreOptions {
    /// The database file; `None` keeps everything in memory only.
    pub path: Option<PathBuf>,
    pub durability: Durability,
    /// Events each resource remembers for watchers; 0 takes the default.
    pub ring_events: usize,
}

const RING_EVENTS: usize = 16_384;

/// What is left when the data of a directory cannot be trusted.
const WAYS_OUT: &str = "bring a backup back with `warp restore FILE --replace`, or begin anew with --discard-data; \
     both put what is there aside";

/// Why the store could not be opened.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    #[error("failed to open database {path}: {source}")]
    Database {
        path: PathBuf,
        source: Box<redb::Error>,
    },
    #[error("failed to open database {0}: another process has it open; end that one first")]
    InUse(PathBuf),
    #[error(
        "failed to open database {path}: it has format {found} and this Warp reads format {known}; \
         export it with the Warp that wrote it (`warp apiserver --data DIR --export FILE`), then import the file here"
    )]
    Format {
        path: PathBuf,
        found: u64,
        known: u64,
    },
    #[error("failed to open database {path}: it {what}; {}", WAYS_OUT)]
    Lost { path: PathBuf, what: &'static str },
    #[error("failed to open database {path}: {what}; {}", WAYS_OUT)]
    Damaged { path: PathBuf, what: String },
    #[error(
        "failed to open database {path}: it is not the one that was here before; {}",
        WAYS_OUT
    )]
    Foreign { path: PathBuf },
    #[error(
        "failed to open database {path}: it and its logs end at revision {reached}, and writes up to {marked} were \
         acknowledged; {}",
        WAYS_OUT
    )]
    Behind {
        path: PathBuf,
        reached: u64,
        marked: u64,
    },
    #[error("failed to read or write mark {path}: {source}")]
    Mark {
        path: PathBuf,
        source: std::io::Error,
    },
    #[error("failed to read mark {path}: it is not what was written; {}", WAYS_OUT)]
    MarkDamaged { path: PathBuf },
    #[error(
        "failed to read mark {path}: it is gone, so nobody knows whether the database beside it is whole; {}",
        WAYS_OUT
    )]
    Unmarked { path: PathBuf },
    #[error("failed to read log {path}: {source}")]
    Log {
        path: PathBuf,
        source: std::io::Error,
    },
    #[error("failed to read log {path}: {what}; {}", WAYS_OUT)]
    LogDamaged { path: PathBuf, what: String },
    #[error(
        "failed to read log {path}: it has format {found}, of a newer Warp; start that one, which can also \
         export it (`warp apiserver --data DIR --export FILE`)"
    )]
    LogFormat { path: PathBuf, found: u32 },
    #[error(
        "failed to read log {path}: it belongs to another database; {}",
        WAYS_OUT
    )]
    Stranger { path: PathBuf },
    #[error(
        "failed to read log {path}: it goes on at revision {from} and the database ends at {reached}; {}",
        WAYS_OUT
    )]
    Gap {
        path: PathBuf,
        from: u64,
        reached: u64,
    },
    #[error("failed to begin the logs of database {path}: {reason}")]
    Journal { path: PathBuf, reason: String },
    #[error("failed to start the committer: {0}")]
    Thread(#[from] std::io::Error),
}

impl OpenError {
    /// What redb said of the database at `path`: damage, or something else that is in the way.
    fn database(path: &Path, error: redb::Error) -> Self {
        use std::io::ErrorKind::{InvalidData, InvalidInput, UnexpectedEof};
        let path = path.to_owned();
        match error {
            redb::Error::DatabaseAlreadyOpen => Self::InUse(path),
            redb::Error::Corrupted(what) => Self::damaged_pages(path, &what),
            redb::Error::Io(error)
                if matches!(error.kind(), InvalidData | InvalidInput | UnexpectedEof) =>
            {
                Self::damaged_pages(path, &error.to_string())
            }
            redb::Error::UpgradeRequired(_)
            | redb::Error::TableTypeMismatch { .. }
            | redb::Error::TypeDefinitionChanged { .. }
            | redb::Error::TableIsMultimap(_)
            | redb::Error::TableIsNotMultimap(_) => Self::damaged_pages(path, &error.to_string()),
            other => Self::Database {
                path,
                source: Box::new(other),
            },
        }
    }

    /// What the database's library says of damage follows what it means.
    fn damaged_pages(path: PathBuf, said: &str) -> Self {
        let what = format!("{} ({said})", disk::DAMAGED_PAGES);
        Self::Damaged { path, what }
    }

    fn mark(database: &Path, source: std::io::Error) -> Self {
        let path = mark::path(database);
        Self::Mark { path, source }
    }

    /// Whether there is a database that is not what was written, rather than something in the way of it.
    fn is_damage(&self) -> bool {
        matches!(self, Self::Lost { .. } | Self::Damaged { .. })
    }
}

/// Why a write was refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum WriteError {
    #[error("failed to write object: it exists already")]
    Exists,
    #[error("failed to write object: it changed meanwhile")]
    Changed,
    #[error("failed to write object: it is gone")]
    Gone,
    #[error("failed to write to the database, restart the server once it is repaired: {0}")]
    Disk(Arc<str>),
}

/// A revision that watchers and consistent lists can no longer start from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("failed to read at revision {asked}: the oldest known is {oldest}")]
pub struct TooOld {
    pub asked: u64,
    pub oldest: u64,
}

/// A handle to the state; cheap to clone.
#[derive(Clone)]
pub struct Store(Arc<Shared>);

struct Shared {
    tables: RwLock<HashMap<String, Arc<Table>>>,
    sequencer: Mutex<Sequencer>,
    progress: Arc<Progress>,
    ring_events: usize,
}

/// What has been published.
struct Progress {
    published: AtomicU64,
    /// Nothing older can be replayed: the revision when the process started, or of the last compaction.
    oldest: AtomicU64,
    signal: signal::Sender<u64>,
    failed: RwLock<Option<Arc<str>>>,
}

/// Orders writes. `pending` holds the newest version of every key whose write is not on disk yet,
/// so that writers build on each other without waiting for the disk.
struct Sequencer {
    revision: u64,
    pending: HashMap<(u32, Arc<str>), Pending>,
    next_table: u32,
    committer: Option<Committer>,
}

/// The newest version of a key on its way to disk; no object while it is being deleted.
struct Pending {
    revision: u64,
    object: Option<Arc<Stored>>,
}

impl fmt::Debug for Store {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Store")
            .field("revision", &self.revision())
            .finish_non_exhaustive()
    }
}

impl Store {
    /// A store that forgets everything when it is dropped.
    pub fn memory() -> Self {
        Self::assemble(1, HashMap::new(), None, RING_EVENTS)
    }

    pub fn open(options: &StoreOptions) -> Result<Self, OpenError> {
        let ring = if options.ring_events == 0 {
            RING_EVENTS
        } else {
            options.ring_events
        };
        let Some(path) = &options.path else {
            return Ok(Self::assemble(1, HashMap::new(), None, ring));
        };
        Self::open_file(path, options.durability, ring, LOG_BYTES)
    }

    fn open_file(
        path: &Path,
        durability: Durability,
        ring: usize,
        log_bytes: usize,
    ) -> Result<Self, OpenError> {
        let (image, disk, mark) = disk::open(path)?;
        let journal =
            Journal::open(path, disk, mark, image.revision, log_bytes).map_err(|error| {
                OpenError::Journal {
                    path: path.to_owned(),
                    reason: error.to_string(),
                }
            })?;
        let mut tables = HashMap::new();
        for (id, (name, objects)) in (0_u32..).zip(image.tables) {
            tables.insert(
                name.clone(),
                Arc::new(Table::new(id, name, objects, image.revision, ring)),
            );
        }
        let store = Self::assemble(image.revision, tables, None, ring);
        let committer = Committer::start(journal, durability, Arc::downgrade(&store.0))?;
        store.0.sequencer.lock().committer = Some(committer);
        Ok(store)
    }

    fn assemble(
        revision: u64,
        tables: HashMap<String, Arc<Table>>,
        committer: Option<Committer>,
        ring_events: usize,
    ) -> Self {
        let next_table = u32::try_from(tables.len()).unwrap_or(u32::MAX);
        let progress = Arc::new(Progress {
            published: AtomicU64::new(revision),
            oldest: AtomicU64::new(revision),
            signal: signal::channel(revision).0,
            failed: RwLock::new(None),
        });
        let mut known: Vec<&Arc<Table>> = tables.values().collect();
        known.sort_by_key(|table| table.id());
        for table in known {
            table.follow(Arc::clone(&progress));
        }
        Self(Arc::new(Shared {
            tables: RwLock::new(tables),
            sequencer: Mutex::new(Sequencer {
                revision,
                pending: HashMap::new(),
                next_table,
                committer,
            }),
            progress,
            ring_events,
        }))
    }

    /// The table of that name; made when it is not there.
    pub fn table(&self, name: &str) -> Arc<Table> {
        if let Some(table) = self.0.tables.read().get(name) {
            return Arc::clone(table);
        }
        let mut tables = self.0.tables.write();
        if let Some(table) = tables.get(name) {
            return Arc::clone(table);
        }
        let id = {
            let mut sequencer = self.0.sequencer.lock();
            sequencer.next_table += 1;
            sequencer.next_table
        };
        let oldest = self.0.progress.oldest.load(Ordering::Acquire);
        let table = Arc::new(Table::new(
            id,
            name.to_owned(),
            Vec::new(),
            oldest,
            self.0.ring_events,
        ));
        table.follow(Arc::clone(&self.0.progress));
        tables.insert(name.to_owned(), Arc::clone(&table));
        table
    }

    /// Tables that exist, by name.
    pub fn tables(&self) -> Vec<Arc<Table>> {
        let mut tables: Vec<_> = self.0.tables.read().values().cloned().collect();
        tables.sort_by(|a, b| a.name().cmp(b.name()));
        tables
    }

    /// The newest revision readers can see.
    pub fn revision(&self) -> u64 {
        self.0.progress.published.load(Ordering::Acquire)
    }

    /// Forgets how the state came to be what it was at `revision`: nothing can be watched or listed from before
    /// it any more.
    pub fn compact(&self, revision: u64) {
        // A table that is made meanwhile starts from here.
        let tables = self.0.tables.write();
        let oldest = &self.0.progress.oldest;
        oldest.fetch_max(revision, Ordering::AcqRel);
        tables.values().for_each(|table| table.forget(revision));
    }

    /// The newest version of an object, including one whose write is still on its way to disk:
    /// what a read-modify-write must start from.
    pub fn latest(&self, table: &Table, key: &str) -> Option<Arc<Stored>> {
        let sequencer = self.0.sequencer.lock();
        sequencer.current(table, key)
    }

    /// Why the store takes no more writes, if it does not.
    pub fn failure(&self) -> Option<Arc<str>> {
        self.0.progress.failed.read().clone()
    }

    /// Waits until everything up to `revision` is visible (and, when durable, on disk).
    pub async fn settled(&self, revision: u64) -> Result<(), WriteError> {
        let mut receiver = self.0.progress.signal.subscribe();
        loop {
            if self.revision() >= revision {
                return Ok(());
            }
            if let Some(reason) = self.0.progress.failed.read().clone() {
                return Err(WriteError::Disk(reason));
            }
            if receiver.changed().await.is_err() {
                return Ok(());
            }
        }
    }

    /// Resolves with the reason when a commit has failed: from then on every write is refused.
    pub async fn broken(&self) -> Arc<str> {
        let mut receiver = self.0.progress.signal.subscribe();
        loop {
            if let Some(reason) = self.0.progress.failed.read().clone() {
                return reason;
            }
            if receiver.changed().await.is_err() {
                return std::future::pending().await;
            }
        }
    }

    pub async fn create(
        &self,
        table: &Arc<Table>,
        draft: Draft,
    ) -> Result<Arc<Stored>, WriteError> {
        self.write(table, draft, |current| match current {
            Some(_) => Err(WriteError::Exists),
            None => Ok(EventKind::Added),
        })
        .await
    }

    /// Replaces the version with revision `expected`.
    pub async fn update(
        &self,
        table: &Arc<Table>,
        draft: Draft,
        expected: u64,
    ) -> Result<Arc<Stored>, WriteError> {
        self.write(table, draft, |current| {
            expect(current, expected).map(|()| EventKind::Modified)
        })
        .await
    }

    /// Removes the version with revision `expected`; `last` is the state the event carries.
    pub async fn delete(
        &self,
        table: &Arc<Table>,
        last: Draft,
        expected: u64,
    ) -> Result<Arc<Stored>, WriteError> {
        self.write(table, last, |current| {
            expect(current, expected).map(|()| EventKind::Deleted)
        })
        .await
    }

    async fn write(
        &self,
        table: &Arc<Table>,
        draft: Draft,
        decide: impl FnOnce(Option<&Arc<Stored>>) -> Result<EventKind, WriteError>,
    ) -> Result<Arc<Stored>, WriteError> {
        let (stored, done) = {
            let mut sequencer = self.0.sequencer.lock();
            if let Some(reason) = self.0.progress.failed.read().clone() {
                return Err(WriteError::Disk(reason));
            }
            let previous = sequencer.current(table, draft.key());
            let kind = decide(previous.as_ref())?;
            sequencer.revision += 1;
            let stored = Arc::new(draft.stamp(sequencer.revision));
            let event = Arc::new(Event::new(kind, Arc::clone(&stored), previous));
            let write = commit::Write {
                table: Arc::clone(table),
                event,
            };
            (stored, sequencer.submit(write, &self.0.progress))
        };
        if let Some(done) = done {
            match done.await {
                Ok(result) => result?,
                Err(_) => return Err(WriteError::Disk("the committer stopped".into())),
            }
        }
        Ok(stored)
    }

    /// Writes what is still on its way and ends the committer.
    pub async fn close(&self) {
        let committer = self.0.sequencer.lock().committer.take();
        if let Some(committer) = committer {
            let _ = tokio::task::spawn_blocking(move || committer.finish()).await;
        }
    }
}

/// The database of a data directory.
pub fn database_in(directory: &Path) -> PathBuf {
    directory.join("state.redb")
}

fn expect(current: Option<&Arc<Stored>>, expected: u64) -> Result<(), WriteError> {
    match current {
        None => Err(WriteError::Gone),
        Some(stored) if stored.revision != expected => Err(WriteError::Changed),
        Some(_) => Ok(()),
    }
}

impl Sequencer {
    fn current(&self, table: &Table, key: &str) -> Option<Arc<Stored>> {
        if !self.pending.is_empty() {
            // The map is keyed by shared strings: look the key up by value.
            let probe = (table.id(), Arc::from(key));
            if let Some(pending) = self.pending.get(&probe) {
                return pending.object.clone();
            }
        }
        table.get(key)
    }

    /// Hands a write on. Returns what to wait for, or `None` when it is visible already.
    fn submit(
        &mut self,
        write: commit::Write,
        progress: &Progress,
    ) -> Option<tokio::sync::oneshot::Receiver<Result<(), WriteError>>> {
        match &self.committer {
            Some(committer) if committer.durability() == Durability::Durable => {
                let key = (write.table.id(), Arc::clone(&write.event.object.key));
                let object = match write.event.kind {
                    EventKind::Deleted => None,
                    _ => Some(Arc::clone(&write.event.object)),
                };
                self.pending.insert(
                    key,
                    Pending {
                        revision: write.event.revision(),
                        object,
                    },
                );
                Some(committer.send_waiting(write))
            }
            Some(committer) => {
                write.publish();
                progress.tell(write.event.revision());
                committer.send(write);
                None
            }
            None => {
                write.publish();
                progress.tell(write.event.revision());
                None
            }
        }
    }
}

impl Progress {
    /// Wakes whoever waits for `revision`, which the table has published.
    fn tell(&self, revision: u64) {
        self.signal.send_replace(revision);
    }
}

impl Shared {
    /// Makes a batch that is on disk visible; `announce` sees to it that watchers look.
    fn publish(&self, batch: &[commit::Write], mut announce: impl FnMut(&Arc<Table>, u64)) {
        // A watcher is woken once for the whole batch, and finds all of it.
        let mut touched: Vec<&Arc<Table>> = Vec::new();
        for write in batch {
            write.table.apply(&write.event);
            if !touched.iter().any(|table| Arc::ptr_eq(table, &write.table)) {
                touched.push(&write.table);
            }
        }
        if let Some(last) = batch.last() {
            let revision = last.event.revision();
            self.progress.tell(revision);
            for table in touched {
                announce(table, revision);
            }
        }
        let mut sequencer = self.sequencer.lock();
        for write in batch {
            let key = (write.table.id(), Arc::clone(&write.event.object.key));
            let revision = write.event.revision();
            if sequencer
                .pending
                .get(&key)
                .is_some_and(|newest| newest.revision == revision)
            {
                sequencer.pending.remove(&key);
            }
        }
    }

    fn fail(&self, reason: &str) {
        *self.progress.failed.write() = Some(reason.into());
        self.progress.signal.send_modify(|_| {});
    }
}

#[cfg(test)]
mod tests;
