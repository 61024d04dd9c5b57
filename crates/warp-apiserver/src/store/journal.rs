//! Where writes become durable: appended to a log, and taken over by the database later.
//!
//! There are two logs. Writes go to one; when it is full the other is taken, and a thread of its own
//! brings the database up to date from the changes the full one holds, kept in memory. Only when they
//! are safe there is that log used again. So a commit waits for one sequential write, whatever the
//! database does. A log that cannot be written, or a database that cannot, ends the store for writes.

use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::{self, TryRecvError};
use std::thread::JoinHandle;

use super::commit::Write;
use super::disk::{self, Disk, Row};
use super::log::{Change, Log, Medium};
use super::mark::{self, Mark};
use super::replay;
use super::watch::EventKind;

/// Bytes of records after which a log is taken over by the database. More makes opening after a crash
/// slower, less makes the database write the same pages more often.
pub(super) const LOG_BYTES: usize = 8 << 20;

/// Why a write could not be made durable.
#[derive(Debug, thiserror::Error)]
pub(super) enum JournalError {
    #[error("failed to write the log: {0}")]
    Log(#[from] io::Error),
    #[error("failed to write the mark: {0}")]
    Mark(io::Error),
    #[error("failed to bring the database up to date: {0}")]
    Checkpoint(Box<redb::Error>),
    #[error("failed to bring the database up to date: its thread ended")]
    Ended,
}

/// A full log and what it holds.
struct Full {
    log: Log,
    rows: Vec<Row>,
    revision: u64,
}

pub(super) struct Journal {
    mark: Mark,
    active: Log,
    /// The changes `active` holds, oldest first.
    rows: Vec<Row>,
    revision: u64,
    limit: usize,
    spare: Option<Log>,
    full: mpsc::Sender<Full>,
    emptied: mpsc::Receiver<Result<Log, JournalError>>,
    thread: JoinHandle<Disk>,
    files: Vec<PathBuf>,
    encoded: Vec<u8>,
}

impl Journal {
    /// Begins both logs of the database at `path`.
    pub(super) fn open(
        path: &Path,
        disk: Disk,
        mark: Mark,
        revision: u64,
        limit: usize,
    ) -> Result<Self, JournalError> {
        let files = replay::paths(path);
        let mut media: Vec<Box<dyn Medium>> = Vec::new();
        for file in &files {
            disk::private(file)?;
            let file = File::options().write(true).open(file)?;
            file.set_len(0)?;
            media.push(Box::new(file));
        }
        mark::sync_folder(path)?;
        let mut journal = Self::on(media, disk, mark, revision, limit)?;
        journal.files = files.into();
        Ok(journal)
    }

    /// On two media of the caller's.
    pub(super) fn on(
        media: Vec<Box<dyn Medium>>,
        disk: Disk,
        mark: Mark,
        revision: u64,
        limit: usize,
    ) -> Result<Self, JournalError> {
        let mut logs = media
            .into_iter()
            .map(|medium| Log::begin(medium, disk.id()))
            .collect::<io::Result<Vec<Log>>>()?
            .into_iter();
        let active = logs
            .next()
            .ok_or(io::ErrorKind::NotFound)
            .map_err(io::Error::from)?;
        let (full, taken) = mpsc::channel();
        let (empty, emptied) = mpsc::channel();
        let thread = std::thread::Builder::new()
            .name("warp-checkpoint".to_owned())
            .spawn(move || take_over(disk, &taken, &empty))?;
        Ok(Self {
            mark,
            active,
            rows: Vec::new(),
            revision,
            limit,
            spare: logs.next(),
            full,
            emptied,
            thread,
            files: Vec::new(),
            encoded: Vec::new(),
        })
    }

    /// Makes the writes durable: all of them or none.
    pub(super) fn append(&mut self, writes: &[Write]) -> Result<(), JournalError> {
        let (Some(first), Some(last)) = (writes.first(), writes.last()) else {
            return Ok(());
        };
        self.look_after()?;
        if self.active.size() >= self.limit {
            self.turn_over()?;
        }
        let rows: Vec<Row> = writes.iter().map(row_of).collect();
        let mut ends = Vec::with_capacity(rows.len());
        self.encoded.clear();
        for row in &rows {
            if let Some(object) = &row.object {
                disk::encode(object, &mut self.encoded);
            }
            ends.push(self.encoded.len());
        }
        let encoded = &self.encoded;
        let mut begin = 0;
        let changes = rows.iter().zip(ends).map(|(row, end)| {
            let bytes = &encoded[begin..end];
            begin = end;
            Change {
                key: &row.key,
                row: row.object.as_ref().map(|_| bytes),
            }
        });
        self.active.append(first.event.revision(), changes)?;
        self.revision = last.event.revision();
        self.mark.note(self.revision).map_err(JournalError::Mark)?;
        self.rows.extend(rows);
        Ok(())
    }

    /// Takes back a log whose changes are in the database, if one is.
    fn look_after(&mut self) -> Result<(), JournalError> {
        match self.emptied.try_recv() {
            Ok(log) => self.spare = Some(log?),
            Err(TryRecvError::Empty) => {}
            Err(TryRecvError::Disconnected) => return Err(JournalError::Ended),
        }
        Ok(())
    }

    /// Goes on with the other log; waits for it when the database is slower than the writers.
    fn turn_over(&mut self) -> Result<(), JournalError> {
        let next = match self.spare.take() {
            Some(log) => log,
            None => self.emptied.recv().map_err(|_| JournalError::Ended)??,
        };
        let full = Full {
            log: std::mem::replace(&mut self.active, next),
            rows: std::mem::take(&mut self.rows),
            revision: self.revision,
        };
        self.full.send(full).map_err(|_| JournalError::Ended)
    }

    /// Brings the database up to date and removes the logs.
    pub(super) fn close(mut self) -> Result<(), JournalError> {
        drop(self.full);
        let mut disk = self.thread.join().map_err(|_| JournalError::Ended)?;
        while let Ok(emptied) = self.emptied.try_recv() {
            emptied?;
        }
        disk.close(&newest(self.rows), self.revision)
            .map_err(|error| JournalError::Checkpoint(Box::new(error)))?;
        self.mark
            .settle(self.revision)
            .map_err(JournalError::Mark)?;
        for file in self.files {
            // Left behind they hold nothing the database does not.
            let _ = std::fs::remove_file(file);
        }
        Ok(())
    }
}

fn row_of(write: &Write) -> Row {
    let object = &write.event.object;
    Row {
        key: disk::row_key(write.table.name(), &object.key),
        object: (write.event.kind != EventKind::Deleted).then(|| Arc::clone(object)),
    }
}

/// Only the last change of each row, in the order of rows.
fn newest(mut rows: Vec<Row>) -> Vec<Row> {
    rows.reverse();
    rows.sort_by(|a, b| a.key.cmp(&b.key));
    rows.dedup_by(|later, kept| later.key == kept.key);
    rows
}

/// Takes full logs over into the database, until there are no more; gives the database back.
fn take_over(
    mut disk: Disk,
    taken: &mpsc::Receiver<Full>,
    emptied: &mpsc::Sender<Result<Log, JournalError>>,
) -> Disk {
    while let Ok(full) = taken.recv() {
        let done = disk
            .checkpoint(&newest(full.rows), full.revision)
            .map_err(|error| JournalError::Checkpoint(Box::new(error)))
            .and_then(|()| Ok(full.log.again(disk.id())?));
        let failed = done.is_err();
        if emptied.send(done).is_err() || failed {
            break;
        }
    }
    disk
}
