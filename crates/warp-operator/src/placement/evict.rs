//! Making room: running work of lower priority, or that borrows, goes for a claim that fits nowhere. Who goes is
//! `warp-core`'s, proved on a copy of the fleet; here running work becomes its victims. Pure.

use std::collections::BTreeSet;
use std::fmt::Debug;
use std::sync::Arc;

use jiff::{SignedDuration, Timestamp};
use warp_api::reason;
use warp_api::workload::Priority;
use warp_core::estimate::Features;
use warp_core::fleet::{Fleet, Request};
use warp_core::random::Fingerprint;
use warp_core::schedule::evict::{Victim, evict};
use warp_core::schedule::reclaim::Lent;
use warp_runtime::cache::Key;
use warp_runtime::pass::Pass;
use warp_runtime::plan::Plan;

use super::{Claim, Decision, Tenancy, Verdict};

/// Running work, in words that know no kind.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Runs {
    pub(crate) key: Key,
    /// Its pods, by their ids in the ledger.
    pub(crate) works: Vec<Arc<str>>,
    pub(crate) priority: Priority,
    /// Whether it may be evicted; none where its tenant or its priority decides.
    pub(crate) preemptible: Option<bool>,
    /// GPUs of all its pods.
    pub(crate) gpus: u64,
    pub(crate) started: Option<Timestamp>,
    /// Since when nothing of what it does is saved; none where all of it is.
    pub(crate) unsaved_since: Option<Timestamp>,
    /// For whom it was asked to end already.
    pub(crate) evicted_for: Option<String>,
    /// It saves what it does, and may be interrupted for its equals.
    pub(crate) saves: bool,
    /// What is known about how long it runs.
    pub(crate) features: Features,
    pub(crate) created: Option<Timestamp>,
}

impl Runs {
    /// From when on it may be evicted; none where it may be already, whatever the time.
    pub(crate) fn due(&self, min_run: SignedDuration) -> Option<Timestamp> {
        if self.evicted_for.is_some() || min_run <= SignedDuration::ZERO {
            return None;
        }
        // What has not begun has run for nothing.
        let begun = self.started.unwrap_or(Timestamp::MAX);
        Some(begun.checked_add(min_run).unwrap_or(Timestamp::MAX))
    }

    /// GPUs of it that could be had by interrupting it for its equals.
    pub(super) fn evictable_gpus(&self) -> u64 {
        if self.saves { self.gpus } else { 0 }
    }

    /// A number of what decides whom it may be evicted for; `due` says whether it has run for long enough.
    pub(super) fn print(&self, due: bool) -> u64 {
        let flags = [
            i64::from(self.priority >= Priority::Normal),
            i64::from(self.priority >= Priority::High),
            self.preemptible.map_or(2, i64::from),
            i64::from(due),
        ];
        let print = Fingerprint::default().text(&self.key.namespace);
        let print = print.text(&self.key.name);
        flags.into_iter().fold(print, Fingerprint::signed).get()
    }

    /// GPU-seconds that are thrown away when it is evicted now.
    pub(crate) fn lost_gpu_seconds(&self, now: Timestamp) -> u64 {
        let since = self.unsaved_since.unwrap_or(now);
        let seconds = now.duration_since(since).as_secs();
        self.gpus
            .saturating_mul(u64::try_from(seconds).unwrap_or(0))
    }
}

/// Why running work has to go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Cause {
    /// Work of higher priority.
    Priority,
    /// Work of its own priority that the queue policy ranks far better.
    Rank,
    /// Work within the share of its tenant, of which others borrow.
    Share,
    /// A gang that starts where it is moved from.
    Move,
}

impl Cause {
    /// What is said of the work that takes its place.
    pub(crate) fn of_the_other(self) -> &'static str {
        match self {
            Self::Priority => "of higher priority",
            Self::Rank => "which the queue policy ranks far better",
            Self::Share => "whose tenant takes back GPUs it had lent",
            Self::Move => "a gang that starts once this is moved elsewhere",
        }
    }
}

/// Running work and how it is asked to end.
pub(crate) trait Runner: Debug + Send + Sync {
    fn runs(&self) -> &Runs;
    /// Adds the writes that ask it to end for a claim.
    fn evict(&self, plan: &mut Plan, by: &Claim, cause: Cause);
    /// On whose behalf the plan is carried out, as the scheduler.
    fn pass(&self, correlation: String) -> Pass;
    /// What it asks for when it is placed again; none where it is not moved.
    fn asks_again(&self, _now: Timestamp) -> Option<Claim> {
        None
    }
}

/// Those that may make room in one pass.
#[derive(Debug, Default)]
pub(crate) struct Evictable {
    runners: Arc<Vec<Arc<dyn Runner>>>,
    /// Who goes for a claim of this pass already.
    taken: BTreeSet<usize>,
    /// Priorities for which nobody may go in this pass.
    hopeless: BTreeSet<Priority>,
    now: Timestamp,
    min_run: SignedDuration,
}

/// Room that is made for a claim.
#[derive(Debug)]
pub(crate) struct Room {
    pub(crate) nodes: Vec<Arc<str>>,
    /// Who goes for it.
    pub(crate) going: Vec<Arc<dyn Runner>>,
}

impl Room {
    /// Who goes, in words.
    pub(super) fn names(&self) -> String {
        let names = self.going.iter().map(|one| one.runs().key.to_string());
        names.collect::<Vec<_>>().join(", ")
    }

    /// The claim waits for those that go. Who was asked before is not asked again.
    pub(super) fn asked_for(self, cause: Cause, message: String) -> Decision {
        let mut going = self.going;
        going.retain(|one| one.runs().evicted_for.is_none());
        let reason = reason::PREEMPTING;
        Decision::Evict(going, cause, Verdict { reason, message })
    }
}

impl Evictable {
    pub(crate) fn new(
        runners: impl Into<Arc<Vec<Arc<dyn Runner>>>>,
        now: Timestamp,
        min_run: std::time::Duration,
    ) -> Self {
        Self {
            runners: runners.into(),
            taken: BTreeSet::new(),
            hopeless: BTreeSet::new(),
            now,
            min_run: SignedDuration::try_from(min_run).unwrap_or(SignedDuration::MAX),
        }
    }

    pub(super) fn now(&self) -> Timestamp {
        self.now
    }

    /// Whether it was asked to end already, or has run for long enough.
    fn is_due(&self, runs: &Runs) -> bool {
        runs.due(self.min_run).is_none_or(|due| due <= self.now)
    }

    /// The cheapest room for a claim, whose requests at each of its providers are `asked`, off the nodes `left_out`.
    /// `preemptible` is what a namespace's tenant says, `gives_way` whether work goes for its equals. Whoever goes is not counted on again in this pass.
    pub(crate) fn make_room(
        &mut self,
        fleet: &Fleet,
        claim: &Claim,
        asked: &[Vec<Request>],
        left_out: &[Arc<str>],
        preemptible: &dyn Fn(&str) -> Option<bool>,
        gives_way: Option<&dyn Fn(&Runs) -> bool>,
    ) -> Option<Room> {
        if claim.patient || (gives_way.is_none() && self.hopeless.contains(&claim.priority)) {
            return None;
        }
        let may_go = |at: &usize| {
            let runs = self.runners[*at].runs();
            let said = || preemptible(&runs.key.namespace);
            let lets = runs.preemptible.or_else(said);
            let goes = if runs.priority == claim.priority {
                lets.unwrap_or(true) && gives_way.is_some_and(|gives_way| gives_way(runs))
            } else {
                runs.priority < claim.priority && lets.unwrap_or(runs.priority == Priority::Low)
            };
            goes && self.is_due(runs) && !self.taken.contains(at)
        };
        let candidates: Vec<usize> = (0..self.runners.len()).filter(may_go).collect();
        if candidates.is_empty() && gives_way.is_none() {
            self.hopeless.insert(claim.priority);
        }
        let victims: Vec<Victim> = candidates.iter().map(|at| self.victim(*at)).collect();
        let eligible = |name: &str| !left_out.iter().any(|node| **node == *name);
        let mut providers = asked.iter();
        let found = providers.find_map(|requests| evict(fleet, requests, &victims, &eligible))?;
        let going: Vec<usize> = found.victims.iter().map(|at| candidates[*at]).collect();
        Some(Room {
            nodes: found.nodes,
            going: self.takes(going),
        })
    }

    /// Work that borrows what is lent to it, with its place here. It may be asked back whatever its priority, unless it or
    /// its tenant says that it is not to be evicted.
    pub(super) fn lent(&self, tenancy: &Tenancy) -> Vec<(usize, Lent)> {
        let runners = self.runners.iter().enumerate();
        let lent = runners.filter_map(|(at, runner)| {
            let runs = runner.runs();
            let namespace: &str = &runs.key.namespace;
            let tenant = tenancy.tenant(namespace)?;
            let lets = runs.preemptible.or_else(|| tenancy.preemptible(namespace));
            let may = lets.unwrap_or(true) && self.is_due(runs) && !self.taken.contains(&at);
            may.then(|| {
                let victim = self.victim(at);
                (at, Lent { tenant, victim })
            })
        });
        lent.collect()
    }

    /// Work that may be moved for a claim, with its place here and what it asks for again, the cheapest first.
    pub(super) fn movable(
        &self,
        claim: &Claim,
        preemptible: &dyn Fn(&str) -> Option<bool>,
        most: usize,
    ) -> Vec<(usize, Victim, Claim)> {
        let runners = self.runners.iter().enumerate();
        let may = runners.filter(|(at, runner)| {
            let runs = runner.runs();
            let lets = runs
                .preemptible
                .or_else(|| preemptible(&runs.key.namespace));
            runs.saves
                && runs.works.len() == 1
                && runs.priority <= claim.priority
                && lets.unwrap_or(true)
                && self.is_due(runs)
                && !self.taken.contains(at)
        });
        let mut found: Vec<(usize, Victim)> = may.map(|(at, _)| (at, self.victim(at))).collect();
        found.sort_by_key(|(at, victim)| (victim.priority, victim.lost_gpu_seconds, *at));
        let again = |(at, victim): (usize, Victim)| {
            let again = self.runners[at].asks_again(self.now)?;
            Some((at, victim, again))
        };
        found.into_iter().filter_map(again).take(most).collect()
    }

    /// Those go, and are not counted on again in this pass.
    pub(super) fn takes(&mut self, going: Vec<usize>) -> Vec<Arc<dyn Runner>> {
        self.taken.extend(&going);
        let going = going.into_iter();
        going.map(|at| Arc::clone(&self.runners[at])).collect()
    }

    /// Who was asked to end already costs nothing more.
    fn victim(&self, at: usize) -> Victim {
        let runs = self.runners[at].runs();
        let asked = runs.evicted_for.is_some();
        let (priority, lost) = if asked {
            (i64::MIN, 0)
        } else {
            (rank(runs.priority), runs.lost_gpu_seconds(self.now))
        };
        Victim {
            works: runs.works.clone(),
            priority,
            lost_gpu_seconds: lost,
        }
    }
}

fn rank(priority: Priority) -> i64 {
    match priority {
        Priority::Low => 0,
        Priority::Normal => 1,
        Priority::High => 2,
    }
}
