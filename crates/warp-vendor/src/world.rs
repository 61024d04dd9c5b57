//! What a cloud knows: machines with times, what it is scripted to do, and what it was asked.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use tokio::time::Instant;

use crate::wire::{Asked, Recorded};

/// The credentials every cloud here accepts: a key, or the secret of a key's id.
pub const KEY: &str = "key-of-the-tests-0001";

/// What a cloud does. Unless told otherwise it sells everything at once and does what it is asked.
#[derive(Clone, Debug)]
pub struct Script {
    /// What it accepts as credentials.
    pub key: String,
    pub sold_out: bool,
    /// Machines the account may have.
    pub quota: Option<usize>,
    pub no_balance: bool,
    /// Percent of the list prices.
    pub price_percent: u32,
    /// How long a machine is missing from lists after it was bought.
    pub lag: Duration,
    pub boot: Duration,
    /// How long a machine takes to be gone after it was told to go.
    pub stop: Duration,
    /// A machine that is told to go stays.
    pub stays: bool,
    pub(crate) once: VecDeque<(&'static str, Trouble)>,
}

impl Default for Script {
    fn default() -> Self {
        Self {
            key: KEY.to_owned(),
            sold_out: false,
            quota: None,
            no_balance: false,
            price_percent: 100,
            lag: Duration::ZERO,
            boot: Duration::ZERO,
            stop: Duration::ZERO,
            stays: false,
            once: VecDeque::new(),
        }
    }
}

impl Script {
    /// The trouble this request meets, which is then over.
    pub(crate) fn trouble(&mut self, asked: &Asked) -> Option<Trouble> {
        let (on, _) = self.once.front()?;
        let what = format!("{} {}?{}", asked.method, asked.path, asked.raw_query);
        let body = String::from_utf8_lossy(&asked.body);
        if !what.contains(on) && !body.contains(on) {
            return None;
        }
        self.once.pop_front().map(|(_, trouble)| trouble)
    }
}

/// What a request may meet.
#[derive(Clone, Debug)]
pub enum Trouble {
    /// This answer, and nothing is done.
    Answer {
        status: u16,
        headers: Vec<(&'static str, String)>,
        body: String,
    },
    /// No answer, and nothing is done.
    HangUp,
    /// No answer, and it is done all the same.
    DoneThenHangUp,
    /// An answer nobody can read, and it is done all the same.
    DoneThenGarbage,
    /// The right answer, late.
    Slow(Duration),
}

impl Trouble {
    pub fn status(status: u16, body: &str) -> Self {
        Self::Answer {
            status,
            headers: vec![("content-type", "application/json".to_owned())],
            body: body.to_owned(),
        }
    }
}

/// One machine in the books.
#[derive(Clone, Debug)]
pub struct Rented {
    pub id: String,
    pub name: String,
    pub kind: String,
    pub region: String,
    pub gpus: u32,
    pub spot: bool,
    /// What makes a launch the same launch, where the vendor knows such a thing.
    pub token: String,
    /// What the launch said: user data and the like.
    pub said: serde_json::Value,
    /// When it was bought, by the clock on the wall.
    pub created: jiff::Timestamp,
    pub(crate) launched: Instant,
    pub(crate) ended: Option<Instant>,
    pub(crate) preempted: bool,
    pub(crate) ours: bool,
}

/// How a machine is at a moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Phase {
    Booting,
    Running,
    Preempted,
    Ending,
    Gone,
}

impl Rented {
    /// Whether it was told to go.
    pub fn was_ended(&self) -> bool {
        self.ended.is_some()
    }

    pub(crate) fn phase(&self, script: &Script, now: Instant) -> Phase {
        match self.ended {
            Some(at) if now >= at + script.stop && !script.stays => Phase::Gone,
            Some(_) => Phase::Ending,
            None if self.preempted => Phase::Preempted,
            None if now < self.launched + script.boot => Phase::Booting,
            None => Phase::Running,
        }
    }
}

#[derive(Default)]
pub(crate) struct World {
    pub(crate) script: Script,
    pub(crate) machines: Vec<Rented>,
    pub(crate) recorded: Vec<Recorded>,
    pub(crate) complaints: Vec<String>,
    pub(crate) too_fast: usize,
    /// Startup scripts that were stored.
    pub(crate) scripts: Vec<String>,
    last: BTreeMap<&'static str, Instant>,
}

impl World {
    pub(crate) fn now() -> Instant {
        Instant::now()
    }

    /// Something the description does not allow.
    pub(crate) fn complain(&mut self, asked: &Asked, why: &str) {
        let what = format!("{} {}: {why}", asked.method, asked.path);
        self.complaints.push(what);
    }

    /// Whether a request comes sooner than `gap` after the last one of the same lane.
    pub(crate) fn is_too_fast(&mut self, lane: &'static str, gap: Duration) -> bool {
        let now = Self::now();
        let last = self.last.insert(lane, now);
        let fast = last.is_some_and(|last| now < last + gap);
        self.too_fast += usize::from(fast);
        fast
    }

    pub(crate) fn foreign(&mut self, name: &str) {
        let mut rented = self.blank(name);
        rented.ours = false;
        self.machines.push(rented);
    }

    /// A machine to fill in.
    pub(crate) fn blank(&self, name: &str) -> Rented {
        Rented {
            id: format!("{:06}", 700_001 + self.machines.len()),
            name: name.to_owned(),
            kind: String::new(),
            region: String::new(),
            gpus: 1,
            spot: false,
            token: String::new(),
            said: serde_json::Value::Null,
            created: jiff::Timestamp::now(),
            launched: Self::now(),
            ended: None,
            preempted: false,
            ours: true,
        }
    }

    /// How many machines there are that are not gone.
    pub(crate) fn running(&self) -> usize {
        let now = Self::now();
        let there = |rented: &&Rented| rented.phase(&self.script, now) != Phase::Gone;
        self.machines.iter().filter(there).count()
    }

    /// Whether another machine is above the account's quota.
    pub(crate) fn is_full(&self) -> bool {
        self.script.quota.is_some_and(|most| self.running() >= most)
    }

    /// Machines the cloud shows at the moment, with how they are.
    pub(crate) fn shown(&self) -> Vec<(Rented, Phase)> {
        let now = Self::now();
        let seen = self
            .machines
            .iter()
            .filter(|rented| now >= rented.launched + self.script.lag);
        let seen = seen.map(|rented| (rented.clone(), rented.phase(&self.script, now)));
        seen.collect()
    }

    /// The same, without those that are gone.
    pub(crate) fn listed(&self) -> Vec<(Rented, Phase)> {
        let mut all = self.shown();
        all.retain(|(_, phase)| *phase != Phase::Gone);
        all
    }

    /// Tells a machine to go; whether there is one.
    pub(crate) fn end(&mut self, id: &str) -> bool {
        let now = Self::now();
        let found = self.machines.iter_mut().find(|rented| rented.id == id);
        let Some(rented) = found else {
            return false;
        };
        rented.ended.get_or_insert(now);
        true
    }

    /// A list price in hundredths of a cent at the moment.
    pub(crate) fn price(&self, list: u64) -> u64 {
        list * u64::from(self.script.price_percent) / 100
    }
}
