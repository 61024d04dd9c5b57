//! Who runs next. A queue is a [`State`] (capacity, waiting and running work, now) and a
//! [`Policy`] that looks at it and starts or evicts work; the simulator, the start-time estimate
//! and the live loop all run the same policies over the same state. Nothing here knows how long a
//! job will really run: policies see only what `estimate` has learnt.

pub mod easy;
pub mod engine;
pub mod fifo;
pub mod hold;
pub mod job;
pub mod las;
pub mod live;
pub mod node_set;
pub mod order;
pub mod pool;
pub mod reserve;
pub mod sjf;
pub mod skip_ahead;
pub mod state;
pub mod warp;

use crate::estimate::Durations;
use crate::preempt::Terms;

pub use job::{Checkpoint, Job, Need, Seconds, Shape};
pub use node_set::End;
pub use pool::{NodeId, Placement, Pool};
pub use state::{Action, Slot, State};

pub const MINUTE: Seconds = 60.0;
pub const HOUR: Seconds = 3600.0;

/// A queue policy. Adding one touches its own file and [`named`].
pub trait Policy: std::fmt::Debug + Send + Sync {
    fn name(&self) -> &'static str;

    /// Where waiting work stands inside its priority class: the smallest goes first.
    fn key(&self, job: &Job, now: Seconds, durations: &mut Durations) -> f64;

    /// From which end of the nodes to place it.
    fn end(&self, _job: &Job, _durations: &mut Durations) -> End {
        End::Low
    }

    /// Waiting without a break after which a job is overdue: the overdue go before all others of their priority, in
    /// order of submission, and are kept nodes.
    fn patience(&self) -> Option<Seconds> {
        None
    }

    /// How long keys hold that change with the time alone.
    fn rerank_every(&self) -> Option<Seconds> {
        None
    }

    /// On which terms a waiting job may evict running work of its own priority, if it may.
    fn evicts_equals(&self, _job: &Job, _now: Seconds) -> Option<Terms> {
        None
    }

    /// How often to look again although nothing was submitted and nothing ended.
    fn tick(&self) -> Option<Seconds> {
        None
    }

    /// Starts (and evicts) what should be, by calling the state's own methods.
    fn pass(&mut self, state: &mut State, durations: &mut Durations);

    /// The same policy with the same memory, for a replay.
    fn fork(&self) -> Box<dyn Policy>;
}

/// Every policy, by the name users give it.
pub const NAMES: [&str; 6] = ["fifo", "skipAhead", "sjf", "easy", "las", "warp"];

/// The policy of that name.
pub fn named(name: &str) -> Option<Box<dyn Policy>> {
    Some(match name {
        "fifo" => Box::new(fifo::Fifo),
        "skipAhead" => Box::new(skip_ahead::SkipAhead),
        "sjf" => Box::new(sjf::Sjf),
        "easy" => Box::new(easy::Easy),
        "las" => Box::new(las::Las::default()),
        "warp" => Box::new(warp::Warp::default()),
        _ => return None,
    })
}
