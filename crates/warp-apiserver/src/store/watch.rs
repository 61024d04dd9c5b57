//! Events and the position of one watcher in them.
//!
//! A watcher has no queue of its own: it reads the table's ring at its own pace. One that falls
//! behind the ring is told so and its stream is closed.

use std::sync::{Arc, OnceLock};

use bytes::Bytes;
use tokio::sync::watch as signal;

use super::{Lines, Stored, Table, Whole};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EventKind {
    Added,
    Modified,
    Deleted,
}

impl EventKind {
    pub fn name(self) -> &'static str {
        match self {
            Self::Added => "ADDED",
            Self::Modified => "MODIFIED",
            Self::Deleted => "DELETED",
        }
    }
}

/// One change of one object.
#[derive(Debug)]
pub struct Event {
    pub kind: EventKind,
    /// The new state; for a deletion the last one, under the deletion's revision.
    pub object: Arc<Stored>,
    pub previous: Option<Arc<Stored>>,
    line: OnceLock<Bytes>,
}

impl Event {
    pub(super) fn new(kind: EventKind, object: Arc<Stored>, previous: Option<Arc<Stored>>) -> Self {
        Self {
            kind,
            object,
            previous,
            line: OnceLock::new(),
        }
    }

    pub fn revision(&self) -> u64 {
        self.object.revision
    }

    /// Bytes the event may keep alive: the object, its line, and the version before.
    pub(super) fn weight(&self) -> usize {
        let before = self
            .previous
            .as_ref()
            .map_or(0, |object| object.bytes.len());
        2 * self.object.bytes.len() + before
    }

    /// The event as plain watchers receive it; encoded once for all of them.
    pub fn line(&self) -> Bytes {
        self.line
            .get_or_init(|| line(self.kind, &self.object.bytes))
            .clone()
    }
}

/// One line of a watch stream.
pub fn line(kind: EventKind, object: &[u8]) -> Bytes {
    let mut line = Vec::with_capacity(object.len() + 32);
    write_line(kind, object, &mut line);
    Bytes::from(line)
}

pub(super) fn write_line(kind: EventKind, object: &[u8], out: &mut Vec<u8>) {
    out.extend_from_slice(b"{\"type\":\"");
    out.extend_from_slice(kind.name().as_bytes());
    out.extend_from_slice(b"\",\"object\":");
    out.extend_from_slice(object);
    out.extend_from_slice(b"}\n");
}

/// What a watcher finds when it looks.
#[derive(Debug)]
pub enum Batch {
    Events(Vec<Arc<Event>>),
    /// Nothing new: everything up to this revision has been seen.
    Idle(u64),
    /// The ring has moved past the watcher.
    Lost,
}

/// A watcher's position.
#[derive(Debug)]
pub struct Cursor {
    table: Arc<Table>,
    next: u64,
    signal: signal::Receiver<u64>,
}

impl Cursor {
    pub(super) fn new(table: Arc<Table>, next: u64, mut signal: signal::Receiver<u64>) -> Self {
        signal.mark_unchanged();
        Self {
            table,
            next,
            signal,
        }
    }

    /// The next events, without waiting.
    pub fn read(&mut self, most: usize) -> Batch {
        self.signal.mark_unchanged();
        let batch = self.table.read(self.next, most);
        if let Batch::Events(events) = &batch {
            self.next += events.len() as u64;
        }
        batch
    }

    /// The next events as lines, up to `most` of them, for a watcher that wants them as they are stored;
    /// `None` when there are none that can be shown so: then `read` says what there is.
    pub fn read_lines(&mut self, whole: &Whole, most: usize) -> Option<Lines> {
        self.signal.mark_unchanged();
        let (lines, next) = self.table.lines(whole, self.next, most)?;
        self.next = next;
        Some(lines)
    }

    /// What a read would find, without moving.
    pub fn peek(&self) -> Batch {
        self.table.read(self.next, 1)
    }

    /// Whether a read would find something new.
    pub fn is_behind(&self) -> bool {
        self.table.has_after(self.next)
    }

    /// Waits until there may be something to read.
    pub async fn changed(&mut self) {
        // The table lives as long as this cursor, so the sender does too.
        let _ = self.signal.changed().await;
    }
}
