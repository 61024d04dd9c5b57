//! Group commit: one thread makes durable, in one record, whatever has arrived since its last commit.

use std::sync::mpsc;
use std::sync::{Arc, Weak};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use tokio::sync::oneshot;

use super::journal::Journal;
use super::watch::Event;
use super::{Durability, Shared, Table, WriteError};

/// Writes in one record; more only make the next writer wait longer.
const BATCH: usize = 1024;
/// Bytes of objects after which a record takes no more.
const BATCH_BYTES: usize = 4 << 20;
/// How long relaxed writes gather before they are put on disk.
const GATHER: Duration = Duration::from_millis(50);

/// Watchers of a table from which on they are a crowd: waking them costs more than the writes they are told of.
const CROWD: usize = 32;
/// How long a crowd is left asleep while more writes are waiting to be committed.
const PACE: Duration = Duration::from_millis(2);

/// One sequenced write.
#[derive(Clone, Debug)]
pub(super) struct Write {
    pub(super) table: Arc<Table>,
    pub(super) event: Arc<Event>,
}

impl Write {
    pub(super) fn publish(&self) {
        self.table.apply(&self.event);
        self.table.announce(self.event.revision());
    }
}

enum Message {
    Write(Write, Option<oneshot::Sender<Result<(), WriteError>>>),
    Finish,
}

/// The way to the disk.
pub(super) struct Committer {
    sender: mpsc::Sender<Message>,
    durability: Durability,
    thread: JoinHandle<()>,
}

impl Committer {
    pub(super) fn start(
        journal: Journal,
        durability: Durability,
        shared: Weak<Shared>,
    ) -> std::io::Result<Self> {
        let (sender, receiver) = mpsc::channel();
        let thread = std::thread::Builder::new()
            .name("warp-commit".to_owned())
            .spawn(move || {
                run(journal, durability, &shared, &receiver);
            })?;
        Ok(Self {
            sender,
            durability,
            thread,
        })
    }

    pub(super) fn durability(&self) -> Durability {
        self.durability
    }

    pub(super) fn send_waiting(&self, write: Write) -> oneshot::Receiver<Result<(), WriteError>> {
        let (done, waiting) = oneshot::channel();
        // A stopped committer drops `done`, which the waiter sees.
        let _ = self.sender.send(Message::Write(write, Some(done)));
        waiting
    }

    pub(super) fn send(&self, write: Write) {
        let _ = self.sender.send(Message::Write(write, None));
    }

    pub(super) fn finish(self) {
        let _ = self.sender.send(Message::Finish);
        let _ = self.thread.join();
    }
}

/// Writes that become durable together, and who waits for them.
#[derive(Default)]
struct Group {
    writes: Vec<Write>,
    waiting: Vec<oneshot::Sender<Result<(), WriteError>>>,
    bytes: usize,
    /// The end was asked for after them.
    last: bool,
}

impl Group {
    fn add(&mut self, message: Message) {
        match message {
            Message::Write(write, done) => {
                self.bytes += write.event.object.bytes.len();
                self.writes.push(write);
                self.waiting.extend(done);
            }
            Message::Finish => self.last = true,
        }
    }

    fn takes_more(&self) -> bool {
        !self.last && self.writes.len() < BATCH && self.bytes < BATCH_BYTES
    }

    /// Waits for a write, if there is none yet, and takes what else is there; `None` when nobody can write any
    /// more.
    fn gather(
        first: Option<Message>,
        receiver: &mpsc::Receiver<Message>,
        durability: Durability,
    ) -> Option<Self> {
        let mut group = Self::default();
        group.add(first.or_else(|| receiver.recv().ok())?);
        if durability == Durability::Relaxed && !group.last {
            std::thread::sleep(GATHER);
        }
        while group.takes_more() {
            let Ok(message) = receiver.try_recv() else {
                break;
            };
            group.add(message);
        }
        Some(group)
    }
}

/// Tables with many watchers that have something to be told. Writers are answered first, and while they
/// keep the disk busy a watcher is told of several commits at once.
#[derive(Default)]
struct Crowds {
    tables: Vec<(Arc<Table>, u64)>,
    since: Option<Instant>,
}

impl Crowds {
    fn add(&mut self, table: &Arc<Table>, revision: u64) {
        self.since.get_or_insert_with(Instant::now);
        match self
            .tables
            .iter_mut()
            .find(|(known, _)| Arc::ptr_eq(known, table))
        {
            Some((_, newest)) => *newest = revision,
            None => self.tables.push((Arc::clone(table), revision)),
        }
    }

    fn waited_enough(&self) -> bool {
        self.since.is_some_and(|since| since.elapsed() >= PACE)
    }

    fn wake(&mut self) {
        self.since = None;
        for (table, revision) in self.tables.drain(..) {
            table.announce(revision);
        }
    }
}

fn run(
    mut journal: Journal,
    durability: Durability,
    shared: &Weak<Shared>,
    receiver: &mpsc::Receiver<Message>,
) {
    let mut failed: Option<WriteError> = None;
    let mut finishing = false;
    let mut first = None;
    let mut crowds = Crowds::default();
    while !finishing && let Some(group) = Group::gather(first.take(), receiver, durability) {
        let Group {
            writes, waiting, ..
        } = group;
        finishing = group.last;
        if writes.is_empty() {
            continue;
        }
        if let Some(error) = &failed {
            // What is queued was built on writes that never reached the disk.
            for done in waiting {
                let _ = done.send(Err(error.clone()));
            }
            continue;
        }
        let result = journal.append(&writes).map_err(|error| {
            // What is in memory can no longer be trusted to reach the disk: refuse writes.
            let reason = error.to_string();
            tracing::error!(%reason, "failed to commit");
            WriteError::Disk(reason.into())
        });
        let shared = shared.upgrade();
        match (&result, &shared) {
            (Ok(()), shared) => {
                if let Some(shared) = shared
                    && durability == Durability::Durable
                {
                    shared.publish(&writes, |table, revision| {
                        if table.watchers() < CROWD {
                            table.announce(revision);
                        } else {
                            crowds.add(table, revision);
                        }
                    });
                }
            }
            (Err(error), shared) => {
                failed = Some(error.clone());
                if let (Some(shared), WriteError::Disk(reason)) = (shared, error) {
                    shared.fail(reason);
                }
            }
        }
        for done in waiting {
            let _ = done.send(result.clone());
        }
        first = receiver.try_recv().ok();
        if first.is_none() || failed.is_some() || crowds.waited_enough() {
            crowds.wake();
        }
    }
    crowds.wake();
    if failed.is_some() {
        // Not closed cleanly: revisions were handed out that the file does not know.
        return;
    }
    if let Err(error) = journal.close() {
        tracing::warn!(%error, "failed to close the database; its logs are read when it is opened again");
    }
}
