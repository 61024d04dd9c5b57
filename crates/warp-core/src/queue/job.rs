//! One job as the queue sees it: what it needs, how far it has got, what an eviction costs it.

use crate::estimate::{BurstId, GroupId};

use super::node_set::End;
use super::pool::{ClassId, Placement};

/// Points in time and spans, in seconds.
pub type Seconds = f64;

/// How many GPUs, and how they may be spread over nodes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Shape {
    /// So many GPUs: inside one node where one is large enough, else on whole nodes of one class.
    Gpus(u32),
    /// A gang: so many members of so many GPUs, each inside one node, all in one class.
    Members { count: u32, gpus: u32 },
}

impl Shape {
    pub fn gpus(self) -> u32 {
        match self {
            Self::Gpus(gpus) => gpus,
            Self::Members { count, gpus } => count.saturating_mul(gpus),
        }
    }
}

/// A shape and the node classes that will do, most welcome first.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Need {
    pub shape: Shape,
    pub accepts: Vec<ClassId>,
}

/// Work that can be interrupted: it saves itself every `period` and needs `restart` to go on.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Checkpoint {
    pub period: Seconds,
    pub restart: Seconds,
}

impl Default for Checkpoint {
    fn default() -> Self {
        Self {
            period: 1800.0,
            restart: 300.0,
        }
    }
}

/// What a job's own progress reports say about the work that is left.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Progress {
    /// Work it expects in all.
    pub total: Seconds,
    /// By how much a second of work shortens what is left (1 when the reports are exact).
    pub pace: f64,
}

impl Progress {
    pub fn left(&self, attained: Seconds) -> Seconds {
        (self.total - self.pace * attained).max(1.0)
    }
}

/// One stretch of running.
#[derive(Clone, Debug)]
pub struct Run {
    pub since: Seconds,
    /// When work went on: `since` plus the restart of work that was evicted before.
    pub warm: Seconds,
    pub placement: Placement,
    /// Conditional-median end, and until when that answer is good enough.
    pub expected_end: Seconds,
    pub expected_until: Seconds,
    /// Rank at the last re-ranking (preemptive policies).
    pub rank: f64,
}

#[derive(Clone, Debug)]
pub struct Job {
    pub id: u64,
    pub submit: Seconds,
    /// Index of its [`Need`] in the state.
    pub need: u32,
    pub gpus: u32,
    /// Larger goes first and may evict smaller.
    pub priority: i32,
    pub checkpoint: Option<Checkpoint>,
    pub group: GroupId,
    /// What it was submitted together with, where submissions are watched.
    pub burst: Option<BurstId>,
    /// The end of the nodes it is placed from.
    pub end: End,
    /// Since when it waits without a break: its submission or its last eviction.
    pub waiting_since: Seconds,
    /// Work done and saved before the current run.
    pub saved: Seconds,
    pub first_start: Option<Seconds>,
    pub run: Option<Run>,
    pub evictions: u32,
    /// Who evicted it: it may never evict them in return.
    pub evicted_by: Vec<u64>,
    pub progress: Option<Progress>,
    /// The longest it may run in all: it is ended then.
    pub limit: Option<Seconds>,
}

impl Job {
    pub fn new(id: u64, submit: Seconds, need: u32, gpus: u32, group: GroupId) -> Self {
        Self {
            id,
            submit,
            need,
            gpus,
            priority: 0,
            checkpoint: None,
            group,
            burst: None,
            end: End::Low,
            waiting_since: submit,
            saved: 0.0,
            first_start: None,
            run: None,
            evictions: 0,
            evicted_by: Vec::new(),
            progress: None,
            limit: None,
        }
    }

    /// What it may still run of `left`, having run for `attained`.
    pub fn within_limit(&self, attained: Seconds, left: Seconds) -> Seconds {
        self.limit
            .map_or(left, |limit| left.min((limit - attained).max(0.0)))
    }

    /// Work done so far, saved or not.
    pub fn attained(&self, now: Seconds) -> Seconds {
        self.saved
            + self
                .run
                .as_ref()
                .map_or(0.0, |run| (now - run.warm).max(0.0))
    }

    /// Time since submission that was not spent on work.
    pub fn waited(&self, now: Seconds) -> Seconds {
        (now - self.submit - self.attained(now)).max(0.0)
    }

    /// What an eviction now would keep of the current run.
    pub fn kept(&self, now: Seconds) -> Seconds {
        let (Some(run), Some(checkpoint)) = (&self.run, self.checkpoint) else {
            return 0.0;
        };
        let done = (now - run.warm).max(0.0);
        if checkpoint.period <= 0.0 {
            return done;
        }
        (done / checkpoint.period).floor() * checkpoint.period
    }

    /// GPU-seconds an eviction now would throw away, its next restart included; `None` when the
    /// job cannot be evicted.
    pub fn eviction_cost(&self, now: Seconds) -> Option<f64> {
        let run = self.run.as_ref()?;
        let checkpoint = self.checkpoint?;
        let lost = (now - run.warm).max(0.0) - self.kept(now) + checkpoint.restart;
        Some(lost * f64::from(self.gpus))
    }
}
