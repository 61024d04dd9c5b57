//! Group commit: one thread writes whatever has arrived since its last commit in one transaction.

use std::sync::mpsc::{self, RecvTimeoutError};
use std::sync::{Arc, Weak};
use std::thread::JoinHandle;
use std::time::Duration;

use tokio::sync::oneshot;

use super::disk::Disk;
use super::watch::{Event, EventKind};
use super::{Durability, Shared, Table, WriteError};

/// Writes in one transaction; more only make the next writer wait longer.
const BATCH: usize = 1024;
/// How long relaxed writes gather before they are put on disk.
const GATHER: Duration = Duration::from_millis(50);

/// One sequenced write.
#[derive(Clone, Debug)]
pub(super) struct Write {
    pub(super) table: Arc<Table>,
    pub(super) event: Arc<Event>,
}

impl Write {
    pub(super) fn publish(&self) {
        self.table.apply(&self.event);
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
        disk: Disk,
        durability: Durability,
        shared: Weak<Shared>,
    ) -> std::io::Result<Self> {
        let (sender, receiver) = mpsc::channel();
        let thread = std::thread::Builder::new()
            .name("warp-commit".to_owned())
            .spawn(move || {
                run(&disk, durability, &shared, &receiver);
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

type Waiting = Option<oneshot::Sender<Result<(), WriteError>>>;

fn run(
    disk: &Disk,
    durability: Durability,
    shared: &Weak<Shared>,
    receiver: &mpsc::Receiver<Message>,
) {
    let mut finishing = false;
    let mut failed: Option<WriteError> = None;
    while !finishing {
        let Ok(first) = receiver.recv() else { break };
        let mut writes: Vec<Write> = Vec::new();
        let mut waiting: Vec<Waiting> = Vec::new();
        let mut take = |message, writes: &mut Vec<Write>| match message {
            Message::Write(write, done) => {
                writes.push(write);
                waiting.push(done);
                true
            }
            Message::Finish => false,
        };
        finishing = !take(first, &mut writes);
        if durability == Durability::Relaxed && !finishing {
            std::thread::sleep(GATHER);
        }
        while !finishing && writes.len() < BATCH {
            match receiver.recv_timeout(Duration::ZERO) {
                Ok(message) => finishing = !take(message, &mut writes),
                Err(RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected) => break,
            }
        }
        if writes.is_empty() {
            continue;
        }
        if let Some(error) = &failed {
            // What is queued was built on writes that never reached the disk.
            for done in waiting.into_iter().flatten() {
                let _ = done.send(Err(error.clone()));
            }
            continue;
        }
        let result = disk.commit(&writes);
        let Some(shared) = shared.upgrade() else {
            continue;
        };
        let answer = match result {
            Ok(()) => {
                if durability == Durability::Durable {
                    shared.publish(&writes);
                }
                Ok(())
            }
            Err(error) => {
                // What is in memory can no longer be trusted to reach the disk: refuse writes.
                let reason = error.to_string();
                tracing::error!(%reason, "failed to commit");
                shared.fail(&reason);
                let error = WriteError::Disk(reason.into());
                failed = Some(error.clone());
                Err(error)
            }
        };
        for done in waiting.into_iter().flatten() {
            let _ = done.send(answer.clone());
        }
    }
    if failed.is_some() {
        // Not closed cleanly: revisions were handed out that the file does not know.
        return;
    }
    if let Err(error) = disk.close() {
        tracing::warn!(%error, "failed to mark the database as closed");
    }
}

/// What a write leaves on disk: the object, or nothing.
pub(super) fn survives(write: &Write) -> bool {
    write.event.kind != EventKind::Deleted
}
