//! Everything a policy may look at, and the only way to change it: start, evict, finish. Cloning
//! it is cheap enough for replays. It keeps the books (GPUs, attained and lost work) and decides
//! nothing.

use std::collections::BTreeMap;

use crate::estimate::{Durations, distribution};

use super::Policy;
use super::job::{Job, Need, Run, Seconds};
use super::node_set::NodeSet;
use super::pool::{NodeId, Placement, Pool};

/// A job's place in the state; reused after it finished.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Slot(u32);

impl Slot {
    pub fn index(self) -> usize {
        self.0 as usize
    }
}

/// What a pass did, in order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    Start(Slot),
    Evict { victim: Slot, by: Slot },
}

/// A waiting job in line.
#[derive(Clone, Copy, Debug)]
pub struct Waiting {
    pub priority: i32,
    pub key: f64,
    pub submit: Seconds,
    pub slot: Slot,
    pub need: u32,
    /// Median of the work that was left when it got in line.
    pub rest: Seconds,
}

impl Waiting {
    /// The order of the line: class, key, submission; slots decide between equals.
    fn order(&self, other: &Self) -> std::cmp::Ordering {
        let class = other.priority.cmp(&self.priority);
        class
            .then(self.key.total_cmp(&other.key))
            .then(self.submit.total_cmp(&other.submit))
            .then(self.slot.cmp(&other.slot))
    }
}

/// When the work on one node is expected to end.
#[derive(Clone, Debug, Default)]
struct Outlook {
    until: Seconds,
    ends: Vec<(Seconds, u32)>,
}

#[derive(Clone, Debug)]
pub struct State {
    pub now: Seconds,
    pool: Pool,
    needs: Vec<Need>,
    jobs: Vec<Job>,
    vacant: Vec<Slot>,
    /// The line, and by slot where each stands in it: moving slots costs less than moving entries.
    pending: Vec<Slot>,
    waiting: Vec<Waiting>,
    pending_by_need: Vec<u32>,
    running: Vec<Slot>,
    /// Where in `running` a slot is, while it is.
    run_at: Vec<usize>,
    on_node: Vec<Vec<Slot>>,
    outlook: Vec<Outlook>,
    actions: Vec<Action>,
    /// GPU-seconds of work thrown away and of restarts, so far.
    lost: f64,
    /// Running jobs by priority.
    classes: BTreeMap<i32, u32>,
    /// GPUs of live jobs that can be evicted, and of all live jobs.
    evictable: u64,
    live: u64,
}

impl State {
    pub fn new(pool: Pool) -> Self {
        let nodes = pool.node_count();
        Self {
            now: 0.0,
            pool,
            needs: Vec::new(),
            jobs: Vec::new(),
            vacant: Vec::new(),
            pending: Vec::new(),
            waiting: Vec::new(),
            pending_by_need: Vec::new(),
            running: Vec::new(),
            run_at: Vec::new(),
            on_node: vec![Vec::new(); nodes],
            outlook: vec![
                Outlook {
                    until: f64::NEG_INFINITY,
                    ends: Vec::new()
                };
                nodes
            ],
            actions: Vec::new(),
            lost: 0.0,
            classes: BTreeMap::new(),
            evictable: 0,
            live: 0,
        }
    }

    pub fn pool(&self) -> &Pool {
        &self.pool
    }

    pub fn job(&self, slot: Slot) -> &Job {
        &self.jobs[slot.index()]
    }

    pub fn job_mut(&mut self, slot: Slot) -> &mut Job {
        &mut self.jobs[slot.index()]
    }

    /// Everybody in line, in order.
    pub fn pending(&self) -> impl ExactSizeIterator<Item = &Waiting> {
        self.pending.iter().map(|slot| &self.waiting[slot.index()])
    }

    /// Where in the line a job stands, if it waits.
    pub fn position(&self, slot: Slot) -> Option<usize> {
        self.pending.iter().position(|other| *other == slot)
    }

    /// Who stands at `index` of the line.
    pub fn waiting(&self, index: usize) -> Waiting {
        self.waiting[self.pending[index].index()]
    }

    pub fn running(&self) -> &[Slot] {
        &self.running
    }

    pub fn on_node(&self, node: NodeId) -> &[Slot] {
        &self.on_node[node as usize]
    }

    pub fn lost(&self) -> f64 {
        self.lost
    }

    /// Share of the GPUs asked for by all live work whose work can be evicted.
    pub fn evictable_share(&self) -> f64 {
        if self.live == 0 {
            0.0
        } else {
            self.evictable as f64 / self.live as f64
        }
    }

    /// Whether work of a class below `priority` runs.
    pub fn runs_below(&self, priority: i32) -> bool {
        self.classes
            .first_key_value()
            .is_some_and(|(lowest, _)| *lowest < priority)
    }

    pub fn need(&self, need: u32) -> &Need {
        &self.needs[need as usize]
    }

    pub fn needs(&self) -> usize {
        self.needs.len()
    }

    /// How many wait for that need.
    pub fn pending_of(&self, need: u32) -> u32 {
        self.pending_by_need[need as usize]
    }

    /// The number of a need; equal needs share it.
    pub fn intern(&mut self, need: Need) -> u32 {
        let known = self.needs.iter().position(|n| *n == need);
        let index = known.unwrap_or_else(|| {
            self.needs.push(need);
            self.pending_by_need.push(0);
            self.needs.len() - 1
        });
        u32::try_from(index).unwrap_or(u32::MAX)
    }

    /// Puts a job in line.
    pub fn submit(&mut self, job: Job, policy: &dyn Policy, durations: &mut Durations) -> Slot {
        self.count(&job, true);
        let mut job = job;
        job.end = policy.end(&job, durations);
        let slot = if let Some(slot) = self.vacant.pop() {
            self.jobs[slot.index()] = job;
            slot
        } else {
            self.jobs.push(job);
            Slot(u32::try_from(self.jobs.len() - 1).unwrap_or(u32::MAX))
        };
        let key = policy.key(&self.jobs[slot.index()], self.now, durations);
        self.line_up(slot, key, durations);
        slot
    }

    fn count(&mut self, job: &Job, arrives: bool) {
        let gpus = u64::from(job.gpus);
        let evictable = if job.checkpoint.is_some() { gpus } else { 0 };
        if arrives {
            self.live += gpus;
            self.evictable += evictable;
        } else {
            self.live -= gpus;
            self.evictable -= evictable;
        }
    }

    fn line_up(&mut self, slot: Slot, key: f64, durations: &mut Durations) {
        let job = &self.jobs[slot.index()];
        let entry = Waiting {
            priority: job.priority,
            key,
            submit: job.submit,
            slot,
            need: job.need,
            rest: job.within_limit(
                job.saved,
                durations.of(job.group).median_residual(job.saved),
            ),
        };
        let places = &self.waiting;
        let at = self
            .pending
            .partition_point(|slot| places[slot.index()].order(&entry).is_lt());
        self.pending_by_need[entry.need as usize] += 1;
        self.pending.insert(at, slot);
        if self.waiting.len() <= slot.index() {
            self.waiting.resize(slot.index() + 1, entry);
        }
        self.waiting[slot.index()] = entry;
    }

    /// Computes every waiting job's key anew.
    pub fn rerank(&mut self, policy: &dyn Policy, durations: &mut Durations) {
        for slot in &self.pending {
            let entry = &mut self.waiting[slot.index()];
            entry.key = policy.key(&self.jobs[slot.index()], self.now, durations);
        }
        let places = &self.waiting;
        self.pending
            .sort_by(|a, b| places[a.index()].order(&places[b.index()]));
    }

    /// Starts the job at `index` of the line on `placement`.
    pub fn start(&mut self, index: usize, placement: Placement) {
        let slot = self.pending.remove(index);
        let entry = self.waiting[slot.index()];
        self.pending_by_need[entry.need as usize] -= 1;
        for (node, gpus) in placement.parts() {
            self.pool.take(*node, *gpus);
            self.on_node[*node as usize].push(entry.slot);
            self.outlook[*node as usize].until = f64::NEG_INFINITY;
        }
        self.note_running(entry.slot);
        *self.classes.entry(entry.priority).or_default() += 1;
        self.actions.push(Action::Start(entry.slot));
        let now = self.now;
        let job = &mut self.jobs[entry.slot.index()];
        let restart = if job.evictions > 0 {
            job.checkpoint.map_or(0.0, |c| c.restart)
        } else {
            0.0
        };
        job.first_start.get_or_insert(now);
        job.run = Some(Run {
            since: now,
            warm: now + restart,
            placement,
            expected_end: now,
            expected_until: f64::NEG_INFINITY,
            rank: f64::NAN,
        });
    }

    /// Places work that is running already (a live snapshot, a replay's beginning).
    pub fn adopt(&mut self, mut job: Job, run: Run) -> Slot {
        self.count(&job, true);
        let slot = Slot(u32::try_from(self.jobs.len()).unwrap_or(u32::MAX));
        for (node, gpus) in run.placement.parts() {
            self.pool.take(*node, *gpus);
            self.on_node[*node as usize].push(slot);
            self.outlook[*node as usize].until = f64::NEG_INFINITY;
        }
        *self.classes.entry(job.priority).or_default() += 1;
        job.first_start.get_or_insert(run.since);
        job.run = Some(run);
        self.jobs.push(job);
        self.note_running(slot);
        slot
    }

    /// Takes a running job off its nodes and puts it back in line with `key`.
    pub fn evict(&mut self, victim: Slot, by: Slot, key: f64, durations: &mut Durations) {
        let now = self.now;
        let by_id = self.jobs[by.index()].id;
        let job = &mut self.jobs[victim.index()];
        let kept = job.kept(now);
        let Some(run) = job.run.take() else { return };
        job.saved += kept;
        job.evictions += 1;
        job.waiting_since = now;
        job.evicted_by.push(by_id);
        // Everything since the run began that was not kept: restart and unsaved work.
        self.lost += (now - run.since - kept).max(0.0) * f64::from(job.gpus);
        self.vacate(victim, &run);
        self.actions.push(Action::Evict { victim, by });
        self.line_up(victim, key, durations);
    }

    /// The job ended; its slot may be reused from now on.
    pub fn finish(&mut self, slot: Slot) -> Job {
        let run = self.jobs[slot.index()].run.take();
        let job = self.jobs[slot.index()].clone();
        self.count(&job, false);
        if let Some(run) = run {
            self.lost += (run.warm - run.since).min(self.now - run.since) * f64::from(job.gpus);
            self.vacate(slot, &run);
        }
        self.vacant.push(slot);
        job
    }

    fn note_running(&mut self, slot: Slot) {
        if self.run_at.len() <= slot.index() {
            self.run_at.resize(slot.index() + 1, 0);
        }
        self.run_at[slot.index()] = self.running.len();
        self.running.push(slot);
    }

    fn vacate(&mut self, slot: Slot, run: &Run) {
        for (node, gpus) in run.placement.parts() {
            self.pool.give(*node, *gpus);
            self.on_node[*node as usize].retain(|other| *other != slot);
            self.outlook[*node as usize].until = f64::NEG_INFINITY;
        }
        let place = self.run_at[slot.index()];
        self.running.swap_remove(place);
        if let Some(moved) = self.running.get(place) {
            self.run_at[moved.index()] = place;
        }
        let priority = self.jobs[slot.index()].priority;
        if let Some(count) = self.classes.get_mut(&priority) {
            *count -= 1;
            if *count == 0 {
                self.classes.remove(&priority);
            }
        }
    }

    /// What the passes since the last call did.
    pub fn take_actions(&mut self) -> Vec<Action> {
        std::mem::take(&mut self.actions)
    }

    /// When a running job is expected to end: the median given how long it has run, or what its
    /// progress reports say. Refreshed as its age crosses a bin, not on every question.
    pub fn expected_end(&mut self, slot: Slot, durations: &mut Durations) -> (Seconds, Seconds) {
        let now = self.now;
        let job = &mut self.jobs[slot.index()];
        let age = job.attained(now);
        let until = match &job.run {
            None => return (now, now),
            Some(run) => run.expected_until,
        };
        let left = (now >= until).then(|| {
            let left = job.progress.map_or_else(
                || durations.of(job.group).median_residual(age).max(1.0),
                |progress| progress.left(age),
            );
            job.within_limit(age, left)
        });
        let Some(run) = &mut job.run else {
            return (now, now);
        };
        if let Some(left) = left {
            let ready = now.max(run.warm);
            run.expected_end = ready + left;
            run.expected_until = (ready + distribution::bin_end(age) - age)
                .min(run.expected_end)
                .max(now + super::MINUTE);
        }
        (run.expected_end, run.expected_until)
    }

    /// Expected ends of the work on a node, soonest first.
    pub fn outlook(&mut self, node: NodeId, durations: &mut Durations) -> &[(Seconds, u32)] {
        let index = node as usize;
        if self.now >= self.outlook[index].until {
            let mut fresh = std::mem::take(&mut self.outlook[index].ends);
            fresh.clear();
            let mut until = f64::INFINITY;
            for position in 0..self.on_node[index].len() {
                let slot = self.on_node[index][position];
                let (end, good_until) = self.expected_end(slot, durations);
                until = until.min(good_until);
                let run = self.jobs[slot.index()].run.as_ref();
                let parts = run.map_or(&[][..], |run| run.placement.parts());
                let gpus = parts
                    .iter()
                    .filter(|(n, _)| *n == node)
                    .map(|(_, g)| g)
                    .sum();
                fresh.push((end, gpus));
            }
            fresh.sort_by(|a, b| a.0.total_cmp(&b.0));
            self.outlook[index] = Outlook { until, ends: fresh };
        }
        &self.outlook[index].ends
    }

    /// Tries the job at `index` of the line off `avoid`, and starts it where it fits.
    pub fn try_start(&mut self, index: usize, avoid: Option<&NodeSet>) -> bool {
        let waiting = self.waiting(index);
        let need = &self.needs[waiting.need as usize];
        let end = self.jobs[waiting.slot.index()].end;
        let Some(placement) = self.pool.fit(need, avoid, end) else {
            return false;
        };
        self.start(index, placement);
        true
    }
}
