//! How far a fetch is, for whoever shows it: counters that may be read at any moment.

use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use tokio::time::Instant;

/// What is being done.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase")]
pub enum Phase {
    /// Another fetch writes to the same place.
    #[default]
    Waiting,
    /// The list of files is read.
    Listing,
    Fetching,
    Publishing,
    Done,
}

/// A moment of a fetch.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct State {
    pub phase: Phase,
    pub files: u64,
    pub files_total: u64,
    /// Bytes on the disk, those of an earlier try included.
    pub bytes: u64,
    pub bytes_total: u64,
    /// Bytes that came over the network in this run.
    pub bytes_fetched: u64,
    /// Bytes a second, over this run.
    pub bytes_per_second: u64,
    /// Seconds until the end at that rate; none while nothing moves.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub seconds_left: Option<u64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub commit: Option<String>,
    /// The last trouble, while it is being worked around.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub trouble: Option<String>,
}

/// Shared between a fetch and those who watch it.
#[derive(Debug, Default)]
pub struct Progress {
    files: AtomicU64,
    files_total: AtomicU64,
    bytes: AtomicU64,
    bytes_total: AtomicU64,
    fetched: AtomicU64,
    words: Mutex<Words>,
}

#[derive(Debug, Default)]
struct Words {
    phase: Phase,
    commit: Option<String>,
    trouble: Option<String>,
    started: Option<Instant>,
}

impl Progress {
    pub fn state(&self) -> State {
        let words = self.words.lock();
        let (bytes, total) = (get(&self.bytes), get(&self.bytes_total));
        let fetched = get(&self.fetched);
        let seconds = words
            .started
            .map_or(0.0, |start| start.elapsed().as_secs_f64());
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "a positive rate of whole bytes"
        )]
        let rate = if seconds > 0.0 {
            (fetched as f64 / seconds) as u64
        } else {
            0
        };
        let moving = words.phase == Phase::Fetching;
        State {
            phase: words.phase,
            files: get(&self.files),
            files_total: get(&self.files_total),
            bytes,
            bytes_total: total,
            bytes_fetched: fetched,
            bytes_per_second: rate,
            seconds_left: total
                .saturating_sub(bytes)
                .checked_div(rate)
                .filter(|_| moving),
            commit: words.commit.clone(),
            trouble: words.trouble.clone(),
        }
    }

    pub(crate) fn enter(&self, phase: Phase) {
        let mut words = self.words.lock();
        words.phase = phase;
        if phase == Phase::Fetching {
            words.started = Some(Instant::now());
        }
    }

    pub(crate) fn expect(&self, files: u64, bytes: u64, commit: Option<&str>) {
        self.files_total.store(files, Ordering::Relaxed);
        self.bytes_total.store(bytes, Ordering::Relaxed);
        self.words.lock().commit = commit.map(str::to_owned);
    }

    /// Bytes that were there already.
    pub(crate) fn found(&self, bytes: u64) {
        self.bytes.fetch_add(bytes, Ordering::Relaxed);
    }

    /// Bytes that came now.
    pub(crate) fn came(&self, bytes: u64) {
        self.bytes.fetch_add(bytes, Ordering::Relaxed);
        self.fetched.fetch_add(bytes, Ordering::Relaxed);
    }

    /// Bytes that have to come again.
    pub(crate) fn lost(&self, bytes: u64) {
        self.bytes.fetch_sub(bytes, Ordering::Relaxed);
    }

    pub(crate) fn file_done(&self) {
        self.files.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn trouble(&self, trouble: Option<String>) {
        self.words.lock().trouble = trouble;
    }
}

fn get(counter: &AtomicU64) -> u64 {
    counter.load(Ordering::Relaxed)
}
