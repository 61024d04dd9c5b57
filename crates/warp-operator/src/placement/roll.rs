//! The roll: everybody who wants places, holds some or has been promised some, kept from pass to pass. What changes is
//! read anew, the rest stays, so that a pass costs what has changed and not what there is. Tests and debug builds compare
//! it with one read from nothing.

mod runners;
mod waiting;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use warp_core::schedule::Mix;
use warp_runtime::cache::Key;

use super::shape::Shapes;
use super::{
    Account, Arrivals, Asks, Claimant, Claimants, Endings, Held, Order, Runner, Turn, Verdicts,
};
use crate::ledger::{Ledger, Promise};
use runners::Runners;

pub(super) use waiting::{News, Waiting};

/// An object, by its kind's place among the claimants.
type Whose = (usize, Key);
/// What an owner has been promised now; none when that is nothing.
pub(super) type PromiseChange = (String, Option<Promise>);

/// Everybody, as of the last look.
#[derive(Debug, Default)]
pub(super) struct Roll {
    entries: BTreeMap<Whose, Entry>,
    line: BTreeMap<Turn, Waiting>,
    shapes: Shapes,
    endings: Endings,
    /// Grows with every change of the endings: room is kept by them, also while nothing starts or ends.
    ends: u64,
    runners: Runners,
    /// When accounts change by time alone.
    due: BTreeSet<(Timestamp, Whose)>,
    held_back: BTreeSet<String>,
    namespaces: Namespaces,
    /// Grows with every change of the line.
    changes: u64,
    /// What is asked for.
    demand: Demand,
    /// The state of the order they stand in.
    order: u64,
}

/// GPUs that are asked for, and those of them whose work could be interrupted.
#[derive(Debug, Default, PartialEq, Eq)]
struct Demand {
    all: u64,
    evictable: u64,
}

impl Demand {
    fn of(waiting: &Waiting) -> (u64, u64) {
        let claim = waiting.claimant.claim();
        let gpus = claim.pods.iter().map(|pod| u64::from(pod.gpus.count)).sum();
        (gpus, if claim.saves { gpus } else { 0 })
    }

    fn join(&mut self, waiting: &Waiting) {
        let (all, evictable) = Self::of(waiting);
        self.all += all;
        self.evictable += evictable;
    }

    fn leave(&mut self, waiting: &Waiting) {
        let (all, evictable) = Self::of(waiting);
        self.all -= all;
        self.evictable -= evictable;
    }
}

/// What is known of one object.
#[derive(Debug, Default, PartialEq)]
struct Entry {
    uid: String,
    open: bool,
    turn: Option<Turn>,
    held_back: bool,
    promises: Vec<Promise>,
    endings: Endings,
    again: Option<Timestamp>,
}

/// Namespaces by number.
#[derive(Debug, Default)]
struct Namespaces {
    numbers: BTreeMap<Arc<str>, usize>,
    names: Vec<Arc<str>>,
}

impl Namespaces {
    fn number(&mut self, name: &Arc<str>) -> usize {
        if let Some(number) = self.numbers.get(name) {
            return *number;
        }
        self.names.push(Arc::clone(name));
        self.numbers.insert(Arc::clone(name), self.names.len() - 1);
        self.names.len() - 1
    }
}

/// What accounts are read with.
#[derive(Clone, Copy, Debug)]
pub(super) struct Reader<'a> {
    pub(super) claimants: &'a [Box<dyn Claimants>],
    pub(super) arrivals: &'a Arrivals,
    pub(super) verdicts: &'a Verdicts,
    pub(super) min_run: Duration,
    pub(super) order: &'a Order,
}

impl Roll {
    /// Reads what has changed since the last look; what that changes in what is promised.
    pub(super) fn catch_up(&mut self, reader: Reader<'_>, now: Timestamp) -> Vec<PromiseChange> {
        let mut changed: BTreeSet<Whose> = BTreeSet::new();
        let last = reader.arrivals.last();
        let mut whole = false;
        for (kind, claimants) in reader.claimants.iter().enumerate() {
            if let Some(keys) = claimants.changed() {
                changed.extend(keys.into_iter().map(|key| (kind, key)));
                continue;
            }
            whole = true;
            let known = self.entries.keys().filter(|(of, _)| *of == kind);
            changed.extend(known.cloned());
            changed.extend(claimants.keys().into_iter().map(|key| (kind, key)));
        }
        while let Some((at, _)) = self.due.first()
            && *at <= now
            && let Some((_, who)) = self.due.pop_first()
        {
            changed.insert(who);
        }
        let mut promises = Vec::new();
        for who in changed {
            let account = reader.claimants[who.0].account(&who.1, now);
            self.set(who, account, reader, now, &mut promises);
        }
        self.runners.ripen(now);
        if whole {
            let open: BTreeSet<String> = self.open().cloned().collect();
            reader.verdicts.keep_only(&open);
            reader.arrivals.keep_only(&open, last);
        }
        promises
    }

    /// Adds what is promised because of pods that have gone since accounts were read. Nothing is taken back: whoever makes
    /// that so is not in line yet.
    pub(super) fn catch_up_late(
        &mut self,
        reader: Reader<'_>,
        now: Timestamp,
    ) -> Vec<PromiseChange> {
        let mut changes = Vec::new();
        for (kind, claimants) in reader.claimants.iter().enumerate() {
            for key in claimants.left_behind() {
                let Some(account) = claimants.account(&key, now) else {
                    continue;
                };
                let entry = self.entries.entry((kind, key)).or_default();
                entry.uid = account.uid;
                for promise in account.promises {
                    if !entry.promises.contains(&promise) {
                        changes.push((promise.owner.clone(), Some(promise.clone())));
                        entry.promises.push(promise);
                    }
                }
            }
        }
        changes
    }

    /// When an account changes by time alone.
    pub(super) fn next_due(&self, now: Timestamp) -> Option<Timestamp> {
        let mut due = self.due.iter().map(|(at, _)| *at);
        due.find(|at| *at > now)
    }

    /// Reads everything there is.
    pub(super) fn read_all(&mut self, reader: Reader<'_>, now: Timestamp) {
        for (kind, claimants) in reader.claimants.iter().enumerate() {
            for key in claimants.keys() {
                let account = claimants.account(&key, now);
                self.set((kind, key), account, reader, now, &mut Vec::new());
            }
        }
        self.runners.ripen(now);
    }

    /// Notes whom room was kept for in the last pass.
    pub(super) fn is_kept_for(&mut self, held: &[Held]) {
        let uids: BTreeSet<&str> = held.iter().map(Held::uid).collect();
        for waiting in self.line.values_mut() {
            waiting.is_kept_for = uids.contains(waiting.claimant.claim().uid.as_str());
        }
    }

    /// One in line is to be read again in the next pass.
    pub(super) fn outdated(&mut self, turn: &Turn) {
        if let Some(waiting) = self.line.get(turn) {
            self.due.insert((Timestamp::MIN, waiting.who.clone()));
        }
    }

    /// Uids of those that are not finished.
    fn open(&self) -> impl Iterator<Item = &String> {
        let open = self.entries.values().filter(|entry| entry.open);
        open.map(|entry| &entry.uid)
    }

    fn set(
        &mut self,
        who: Whose,
        account: Option<Account>,
        reader: Reader<'_>,
        now: Timestamp,
        promises: &mut Vec<PromiseChange>,
    ) {
        let min_run = SignedDuration::try_from(reader.min_run).unwrap_or(SignedDuration::MAX);
        let before = self.entries.remove(&who).unwrap_or_default();
        if let Some(again) = before.again {
            self.due.remove(&(again, who.clone()));
        }
        self.runners.remove(&who, min_run);
        for id in before.endings.keys() {
            self.endings.remove(id);
        }
        if before.held_back {
            self.held_back.remove(&before.uid);
        }
        let account = account.unwrap_or_default();
        if before.uid != account.uid || !account.open {
            reader.verdicts.clear(&before.uid);
            reader.arrivals.forget(&before.uid);
        }
        let mut entry = Entry {
            uid: account.uid,
            open: account.open,
            held_back: matches!(account.asks, Asks::HeldBack),
            promises: account.promises,
            endings: account.endings,
            again: account.again,
            turn: None,
        };
        if !entry.open && !entry.uid.is_empty() {
            reader.arrivals.forget(&entry.uid);
        }
        let now_asks = match account.asks {
            Asks::Now(claimant) => Some(claimant),
            _ => None,
        };
        let overdue = now_asks
            .as_ref()
            .and_then(|one| reader.order.overdue_at(one.claim()));
        let overdue = overdue.filter(|at| *at > now);
        entry.again = entry.again.into_iter().chain(overdue).min();
        entry.turn = self.stand(who.clone(), before.turn, now_asks, reader, now);
        let gone = before.promises.iter().filter(|had| {
            let mut there = entry.promises.iter();
            !there.any(|one| one.owner == had.owner)
        });
        promises.extend(gone.map(|had| (had.owner.clone(), None)));
        let new = entry
            .promises
            .iter()
            .filter(|one| !before.promises.contains(one));
        promises.extend(new.map(|one| (one.owner.clone(), Some(one.clone()))));
        self.endings.extend(entry.endings.clone());
        self.ends += u64::from(before.endings != entry.endings);
        if let Some(runner) = account.runner {
            self.runners.add(&who, runner, min_run, now);
        }
        if entry.held_back {
            self.held_back.insert(entry.uid.clone());
        }
        self.due.extend(entry.again.map(|at| (at, who.clone())));
        let nothing = Entry {
            uid: entry.uid.clone(),
            ..Entry::default()
        };
        if entry != nothing {
            self.entries.insert(who, entry);
        }
    }

    /// Puts one in line, or takes it out, or leaves it where it stood.
    fn stand(
        &mut self,
        who: Whose,
        before: Option<Turn>,
        claimant: Option<Arc<dyn Claimant>>,
        reader: Reader<'_>,
        now: Timestamp,
    ) -> Option<Turn> {
        let turn = claimant.as_ref().map(|claimant| {
            let arrived = reader.arrivals.of(&claimant.claim().uid);
            reader.order.turn(&**claimant, arrived, now)
        });
        let moved = before != turn;
        let left = before.and_then(|turn| self.line.remove(&turn));
        if let Some(left) = &left {
            self.demand.leave(left);
        }
        let Some((claimant, turn)) = claimant.zip(turn) else {
            if let Some(left) = left {
                self.changes += 1;
                self.shapes.leave(left.shape);
            }
            return None;
        };
        if self.line.is_empty() {
            // Nobody stands there by a number: namespaces that are gone are forgotten.
            self.namespaces = Namespaces::default();
        }
        // Before it leaves its old shape: that may be the same.
        let shape = self.shapes.join(&claimant);
        let namespace = self.namespaces.number(&claimant.claim().key.namespace);
        let mut waiting = Waiting {
            who,
            shape,
            is_like_others: self.shapes.is_shared(shape),
            namespace,
            claimant,
            own: None,
            is_kept_for: false,
            repelled: None,
            told: None,
        };
        let mut stays = false;
        if let Some(left) = left {
            self.shapes.leave(left.shape);
            let (old, new) = (left.claimant.claim(), waiting.claimant.claim());
            if old.uid == new.uid && old.generation == new.generation {
                stays = left.shape == shape;
                waiting.told = left.told;
                waiting.is_kept_for = left.is_kept_for;
                waiting.own = left.own.filter(|_| stays);
            }
        }
        self.changes += u64::from(!stays || moved);
        self.demand.join(&waiting);
        self.line.insert(turn.clone(), waiting);
        Some(turn)
    }

    /// The share of the GPUs held or asked for whose work could be interrupted for its equals.
    pub(super) fn evictable_share(&self) -> f64 {
        let all = self.demand.all + self.runners.gpus;
        let evictable = self.demand.evictable + self.runners.evictable;
        if all == 0 {
            0.0
        } else {
            evictable as f64 / all as f64
        }
    }

    /// Puts everybody where the order says now, if that is another than before.
    pub(super) fn reorder(&mut self, order: u64, reader: Reader<'_>, now: Timestamp) {
        if std::mem::replace(&mut self.order, order) == order {
            return;
        }
        self.changes += 1;
        for (_, waiting) in std::mem::take(&mut self.line) {
            let arrived = reader.arrivals.of(&waiting.claimant.claim().uid);
            let turn = reader.order.turn(&*waiting.claimant, arrived, now);
            if let Some(entry) = self.entries.get_mut(&waiting.who) {
                entry.turn = Some(turn.clone());
            }
            self.line.insert(turn, waiting);
        }
    }

    /// Grows with every change of the line.
    pub(super) fn changes(&self) -> u64 {
        self.changes
    }

    /// Grows with every change of when running work ends.
    pub(super) fn ends(&self) -> u64 {
        self.ends
    }

    /// The state of the order they stand in.
    pub(super) fn order(&self) -> u64 {
        self.order
    }

    pub(super) fn held_back(&self) -> &BTreeSet<String> {
        &self.held_back
    }

    pub(super) fn is_empty(&self) -> bool {
        self.line.is_empty()
    }

    /// Changes when somebody may be evicted who could not before, or the other way round.
    pub(super) fn eviction_print(&self) -> u64 {
        self.runners.print
    }

    /// What runs and could make room.
    pub(super) fn runners(&mut self) -> Arc<Vec<Arc<dyn Runner>>> {
        let all = self.runners.all.values();
        let list = self.runners.list.get_or_insert_with(|| {
            let runners = all.map(|(runner, _)| Arc::clone(runner));
            Arc::new(runners.collect())
        });
        Arc::clone(list)
    }

    /// Adds what waits to what is expected.
    pub(super) fn count(&mut self, mix: &mut Mix, ledger: &Ledger, structure: u64) {
        self.shapes.count(mix, ledger, structure);
    }

    /// Whether the first in line, or anybody behind it, is of more than the lowest priority.
    pub(super) fn is_urgent(&self) -> bool {
        let first = self.line.first_key_value();
        first.is_some_and(|(turn, _)| turn.is_urgent())
    }

    /// The namespaces of those that have been in line, by number.
    pub(super) fn namespaces(&self) -> &[Arc<str>] {
        &self.namespaces.names
    }

    /// Everybody in line, in the order they are served, with what decisions read of running work beside it.
    pub(super) fn line(&mut self) -> (Vec<(&Turn, &mut Waiting)>, &Endings) {
        let line = self.line.iter_mut().collect();
        (line, &self.endings)
    }

    /// Those in line that are shown to the cluster's autoscaler.
    pub(super) fn shown(&self) -> Vec<Arc<dyn super::Claimant>> {
        let all = self.line.values().map(|waiting| &waiting.claimant);
        let shown = all.filter(|claimant| claimant.claim().shown_since.is_some());
        shown.map(Arc::clone).collect()
    }

    /// One in line.
    pub(super) fn at(&mut self, turn: &Turn) -> Option<&mut Waiting> {
        self.line.get_mut(turn)
    }

    /// Everything that is promised.
    pub(super) fn promises(&self) -> impl Iterator<Item = &Promise> {
        self.entries.values().flat_map(|entry| &entry.promises)
    }

    /// What is different when all is read from nothing. What is heard while this looks is read first, and returned as what
    /// it changes in what is promised; what stays different is a defect.
    pub(super) fn difference(
        &mut self,
        reader: Reader<'_>,
        now: Timestamp,
    ) -> (Option<&'static str>, Vec<PromiseChange>) {
        let mut promises = Vec::new();
        let mut found = None;
        for _ in 0..100 {
            let mut read = Self::default();
            read.read_all(reader, now);
            found = self.differs_from(&read);
            if found.is_none() {
                break;
            }
            std::thread::yield_now();
            promises.extend(self.catch_up(reader, now));
        }
        (found, promises)
    }

    fn differs_from(&self, other: &Self) -> Option<&'static str> {
        let claims = |roll: &Self| -> Vec<super::Claim> {
            let line = roll.line.values();
            line.map(|waiting| waiting.claimant.claim().clone())
                .collect()
        };
        let running = |roll: &Self| -> Vec<super::Runs> {
            let all = roll.runners.all.values();
            all.map(|(runner, _)| runner.runs().clone()).collect()
        };
        let share = self.evictable_share().total_cmp(&other.evictable_share());
        let same = [
            ("accounts", self.entries == other.entries),
            ("endings", self.endings == other.endings),
            ("who is held back", self.held_back == other.held_back),
            ("the demand", self.demand == other.demand && share.is_eq()),
            (
                "who may be evicted",
                self.runners.print == other.runners.print,
            ),
            ("what runs", running(self) == running(other)),
            ("claims", claims(self) == claims(other)),
        ];
        let different = same.into_iter().find(|(_, same)| !same);
        different.map(|(what, _)| what)
    }
}
