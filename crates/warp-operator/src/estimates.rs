//! When those that wait are expected to start: a loop of its own beside placement, which it neither slows down nor
//! changes. It asks `warp-core`'s estimator over the live fleet and the scheduler's own line, and remembers how long
//! finished work has run. Statuses are written by the workloads' own passes, and only when something has moved.
//!
//! `forecast.rs` asks, `told.rs` says what is worth telling, `runs.rs` is what has been learnt. This file reads, keeps
//! the learnt in a ConfigMap, and wakes.

mod forecast;
mod runs;
#[cfg(test)]
mod tests;
mod told;

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::core::v1::ConfigMap;
use kube::{Api, Client, Resource, ResourceExt};
use parking_lot::Mutex;
use serde_json::json;
use tokio::time::Instant;
use warp_api::{GPUWorkload, Phase, label, reason};
use warp_core::estimate::Durations;
use warp_runtime::cache::Key;
use warp_runtime::driver::later;
use warp_runtime::execute::status_of;
use warp_runtime::pass::Pass;
use warp_runtime::plan::{Action, Encoding, Kind, Plan};
use warp_runtime::runtime::Runtime;
use warp_runtime::sweep::{Hands, Sweep, SweepRegistration};

use self::forecast::Question;
use self::runs::{Ended, Runs};
use crate::context::Context;
use crate::ledger::{self, Reading};
use crate::placement::{Asks, Claim, Claimant, Claimants, in_order};
use crate::queuedjob::{self, Queued};
pub(crate) use runs::known_by;
pub(crate) use told::{Forecast, tell};

/// Names the loop in logs, readiness and wake-ups.
const NAME: &str = "estimates";
/// Field manager of what it keeps.
const MANAGER: &str = "warp-estimates";
/// The ConfigMap of what has been learnt, and the entry in it.
pub const KEPT: &str = "warp-durations";
const ENTRY: &str = "runs.json";
/// What happens within this time is looked at together.
const GATHER: Duration = Duration::from_secs(2);
/// Who has waited for less is told nothing: most never wait for longer.
const TOLD_AFTER: SignedDuration = SignedDuration::from_secs(5);
/// Those in line who are told when they start; who stands further back is told as the line moves.
const LINE: usize = 256;
/// A look is followed by a pause of so many times what it took, so that it costs two hundredths of a core at most.
const REST: u32 = 50;
/// Time alone moves an estimate; how often that is looked at.
const SOONEST: SignedDuration = SignedDuration::from_mins(1);
const LATEST: SignedDuration = SignedDuration::from_mins(10);
/// What was learnt is written at most this often, and tried again after this long when it could not be.
const WRITE_EVERY: SignedDuration = SignedDuration::from_mins(1);
const WRITE_AGAIN: SignedDuration = SignedDuration::from_mins(10);
/// What was kept is asked for again after this long when it could not be read.
const READ_AGAIN: SignedDuration = SignedDuration::from_mins(1);
/// Finished work that is remembered until the next look: a replica that does not act hears of it without end.
const MOST_ENDED: usize = 4096;

/// What has been learnt, by the ConfigMap it is kept in.
pub(crate) fn learnt_in(kept: &ConfigMap) -> Durations {
    let text = kept.data.as_ref().and_then(|data| data.get(ENTRY));
    text.map_or_else(Durations::default, |text| Runs::read(text).durations())
}

/// What is to be told to those that wait, by uid.
#[derive(Debug, Default)]
pub(crate) struct Forecasts(Mutex<BTreeMap<String, Forecast>>);

impl Forecasts {
    /// What was found out about this very spec.
    pub(crate) fn get(&self, uid: &str, generation: i64) -> Option<Forecast> {
        let all = self.0.lock();
        let found = all.get(uid)?;
        (found.generation == generation).then(|| found.clone())
    }

    fn replace(&self, all: BTreeMap<String, Forecast>) {
        *self.0.lock() = all;
    }
}

/// The loop as the runtime runs it.
#[derive(Debug)]
struct Estimates {
    cx: Arc<Context>,
    claimants: Arc<Vec<Box<dyn Claimants>>>,
    home: Option<Home>,
    ended: Arc<Mutex<VecDeque<Ended>>>,
    memory: Mutex<Memory>,
}

/// Where what was learnt is kept.
struct Home {
    client: Client,
    namespace: String,
}

impl std::fmt::Debug for Home {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Home")
            .field("namespace", &self.namespace)
            .finish_non_exhaustive()
    }
}

#[derive(Debug, Default)]
struct Memory {
    runs: Runs,
    /// The same as the estimator reads it; made when it is asked for.
    durations: Option<Arc<Durations>>,
    /// What an earlier process kept has been read; not tried before then.
    read: bool,
    read_from: Timestamp,
    /// The last of what has been learnt and not been kept yet.
    unkept: Option<String>,
    /// Not written before then.
    write_from: Timestamp,
    /// Not looked before then.
    rest_until: Timestamp,
}

/// Registers the loop. What was learnt is kept in `home`, where there is one.
pub(crate) fn register(
    runtime: &mut Runtime,
    cx: &Arc<Context>,
    claimants: Vec<Box<dyn Claimants>>,
    home: Option<(Client, &str)>,
) {
    let ended = Arc::<Mutex<VecDeque<Ended>>>::default();
    let heard = Arc::clone(&ended);
    cx.workloads.listen(move |old, new| {
        if let Some(run) = Ended::of(old, new) {
            let mut heard = heard.lock();
            heard.push_back(run);
            if heard.len() > MOST_ENDED {
                heard.pop_front();
            }
        }
    });
    let wakes = runtime.wakes();
    cx.queued.listen(move |old, new| {
        let reason = |job: &Queued| job.annotations().get(label::QUEUE_REASON).cloned();
        // Who has just been told to wait for room wants to know for how long.
        if queuedjob::line_matters(old, new) || old.map(reason) != new.map(reason) {
            wakes.wake_sweep(NAME);
        }
    });
    let sweep = Estimates {
        cx: Arc::clone(cx),
        claimants: Arc::new(claimants),
        home: home.map(|(client, namespace)| Home {
            client,
            namespace: namespace.to_owned(),
        }),
        ended,
        memory: Mutex::default(),
    };
    runtime.sweep(
        SweepRegistration::of(sweep, GATHER)
            .watches(&cx.workloads, line_moved)
            .reads(&cx.jobs)
            .reads(&cx.pods)
            .reads(&cx.nodes)
            .reads(&cx.namespaces)
            .reads(&cx.claims)
            .reads(&cx.volumes)
            .reads(&cx.classes),
    );
}

/// Whether a change of a workload may change when others start.
fn line_moved(old: Option<&GPUWorkload>, new: Option<&GPUWorkload>) -> bool {
    let form = |workload: &GPUWorkload| {
        let phase = workload.status.as_ref().and_then(|status| status.phase);
        let meta = workload.meta();
        (phase, meta.generation, meta.deletion_timestamp.is_some())
    };
    old.map(form) != new.map(form)
}

impl Sweep for Estimates {
    const NAME: &'static str = NAME;

    async fn sweep(&self, hands: &Hands) -> Option<Timestamp> {
        let now = self.cx.clock.now();
        self.read(now).await;
        let write = self.learn();
        let write = match write {
            Some(at) if at <= now => self.keep(hands, now).await,
            at => at,
        };
        let look = self.look(now).await;
        match (write, look) {
            (Some(write), Some(look)) => Some(write.min(look)),
            (write, look) => write.or(look),
        }
    }
}

impl Estimates {
    /// Reads what an earlier process has kept. Until then nothing is learnt: what is written would be all there is.
    async fn read(&self, now: Timestamp) {
        let due = {
            let memory = self.memory.lock();
            !memory.read && memory.read_from <= now
        };
        let Some(home) = self.home.as_ref().filter(|_| due) else {
            return;
        };
        let kept = Api::<ConfigMap>::namespaced(home.client.clone(), &home.namespace);
        let runs = match kept.get_opt(KEPT).await {
            Ok(found) => found
                .and_then(|found| found.data)
                .and_then(|mut data| data.remove(ENTRY))
                .map_or_else(Runs::default, |text| Runs::read(&text)),
            Err(error) => {
                tracing::warn!(%error, name = KEPT, "what was learnt about run times cannot be read");
                let forbidden = status_of(&error).is_some_and(|status| status.code == 403);
                if !forbidden {
                    self.memory.lock().read_from = later(now, READ_AGAIN);
                    return;
                }
                Runs::default()
            }
        };
        let mut memory = self.memory.lock();
        memory.runs = runs;
        memory.durations = None;
        memory.read = true;
    }

    /// Learns from what has ended; when that is to be written.
    fn learn(&self) -> Option<Timestamp> {
        let mut memory = self.memory.lock();
        if self.home.is_some() && !memory.read {
            return Some(memory.read_from);
        }
        let ended: Vec<Ended> = self.ended.lock().drain(..).collect();
        for run in ended {
            if memory.runs.learn(&run) {
                memory.durations = None;
                memory.unkept = Some(run.object);
            }
        }
        let kept = self.home.is_none() || memory.unkept.is_none();
        (!kept).then_some(memory.write_from)
    }

    /// Writes what was learnt; when to try again if that could not be.
    async fn keep(&self, hands: &Hands, now: Timestamp) -> Option<Timestamp> {
        let home = self.home.as_ref()?;
        let (text, object) = {
            let mut memory = self.memory.lock();
            (memory.runs.text(), memory.unkept.take()?)
        };
        let mut plan = Plan::default();
        plan.create_or_find(&ConfigMap {
            metadata: kube::api::ObjectMeta {
                name: Some(KEPT.to_owned()),
                namespace: Some(home.namespace.clone()),
                ..Default::default()
            },
            ..ConfigMap::default()
        });
        plan.push(Action::Patch {
            kind: Kind::of::<ConfigMap>(),
            key: Key::new(&home.namespace, KEPT),
            sub: None,
            encoding: Encoding::Merge,
            patch: json!({"data": {ENTRY: text}}),
        });
        "work has ended and its run time was learnt".clone_into(&mut plan.why);
        let pass = Pass {
            component: NAME,
            manager: Some(MANAGER),
            object: object.clone(),
            cause: "unknown".to_owned(),
            correlation: hands.correlation.next(),
            ..Pass::default()
        };
        let written = hands.executor.execute(&pass, plan).await;
        let mut memory = self.memory.lock();
        match written {
            Ok(_) => {
                memory.write_from = later(now, WRITE_EVERY);
                None
            }
            Err(error) => {
                tracing::warn!(%error, "what was learnt about run times is not kept for now");
                memory.unkept.get_or_insert(object);
                memory.write_from = later(now, WRITE_AGAIN);
                Some(memory.write_from)
            }
        }
    }

    fn durations(&self) -> Arc<Durations> {
        let mut memory = self.memory.lock();
        let memory = &mut *memory;
        let known = memory.durations.get_or_insert_with(|| {
            let durations = memory.runs.durations();
            Arc::new(durations)
        });
        Arc::clone(known)
    }

    /// Asks when everybody starts and wakes those to whom that is news; when to ask again.
    async fn look(&self, now: Timestamp) -> Option<Timestamp> {
        let rest_until = self.memory.lock().rest_until;
        if now < rest_until {
            return Some(rest_until);
        }
        let (cx, claimants) = (Arc::clone(&self.cx), Arc::clone(&self.claimants));
        let durations = self.durations();
        cx.order.learn(Arc::clone(&durations));
        let started = Instant::now();
        // It may take as long as a placement pass of thousands, and must hold up nobody.
        let asked = tokio::task::spawn_blocking(move || ask(&cx, &claimants, &durations, now));
        let answer = match asked.await {
            Ok(answer) => answer,
            Err(error) => {
                tracing::error!(%error, "start times were not estimated");
                return Some(later(now, LATEST));
            }
        };
        let pause = started.elapsed().saturating_mul(REST);
        let pause = SignedDuration::try_from(pause)
            .unwrap_or(LATEST)
            .min(LATEST);
        self.memory.lock().rest_until = later(now, pause);
        let cx = &self.cx;
        let mut all = BTreeMap::new();
        let mut news = Vec::new();
        for (claimant, forecast) in answer.forecasts {
            let claim = claimant.claim();
            if is_news(cx, claim, &forecast, now) {
                news.push((claim.controller, claim.key.clone()));
            }
            all.insert(claim.uid.clone(), forecast);
        }
        cx.forecasts.replace(all);
        for (controller, key) in news {
            cx.wakes.wake(controller, key);
        }
        answer.again
    }
}

/// Whether a forecast says something that a workload's status, or a queued Job's annotation, does not.
fn is_news(cx: &Context, claim: &Claim, forecast: &Forecast, now: Timestamp) -> bool {
    let key = &claim.key;
    let kind = queuedjob::KINDS.into_iter();
    if let Some(kind) = kind
        .into_iter()
        .find(|kind| kind.controller == claim.controller)
    {
        let told = cx.queued.get(kind, key).map(|job| job.estimated_start());
        return told.is_none_or(|told| forecast.start_after(told.as_ref(), now) != told);
    }
    let Some(workload) = cx.workloads.get(key) else {
        return true;
    };
    let before = workload.status.clone().unwrap_or_default();
    let mut after = before.clone();
    tell(Some(forecast), &before, &mut after, &key.namespace, now);
    before != after
}

/// What is told, and when to ask again.
#[derive(Debug, Default)]
struct Answer {
    forecasts: Vec<(Arc<dyn Claimant>, Forecast)>,
    again: Option<Timestamp>,
}

/// Reads the line and the fleet and asks the estimator.
fn ask(
    cx: &Context,
    claimants: &[Box<dyn Claimants>],
    durations: &Durations,
    now: Timestamp,
) -> Answer {
    let (mut line, mut promises): (Vec<Arc<dyn Claimant>>, Vec<_>) = (Vec::new(), Vec::new());
    for all in claimants {
        let keys = all.keys().into_iter();
        for account in keys.filter_map(|key| all.account(&key, now)) {
            promises.extend(account.promises);
            if let Asks::Now(claimant) = account.asks {
                line.push(claimant);
            }
        }
    }
    // Who waits for anything but room is not helped by the end of other work.
    line.retain(|claimant| {
        let claim = claimant.claim();
        let verdict = cx.verdicts.get(&claim.uid, claim.generation);
        verdict.is_some_and(|verdict| verdict.reason == reason::WAITING_FOR_CAPACITY)
    });
    let mut answer = Answer::default();
    let mut look_again = |at: Timestamp| {
        answer.again = Some(answer.again.map_or(at, |known| known.min(at)));
    };
    line.retain(|claimant| {
        let claim = claimant.claim();
        let came = cx.arrivals.of(&claim.uid).or(claim.created);
        let due = came.map_or(now, |came| later(came, TOLD_AFTER));
        if due > now {
            look_again(due);
        }
        due <= now
    });
    if line.is_empty() {
        return answer;
    }
    in_order(&mut line, &cx.order, &cx.arrivals, now);
    // One that is elastic waits for the fewest places it starts with.
    for claimant in line.iter_mut().filter(|one| one.claim().is_elastic()) {
        if let Some(least) = claimant.narrowed(claimant.claim().least) {
            *claimant = least;
        }
    }
    let behind = line.split_off(line.len().min(LINE));
    let storage = ledger::Storage {
        claims: cx.claims.all(),
        volumes: cx.volumes.all(),
        classes: cx.classes.all(),
    };
    let reading = Reading {
        catalogue: cx.gpus.catalogue(),
        levels: Arc::clone(&cx.settings.topology_levels),
    };
    let ledger = ledger::build_among(&reading, &cx.nodes.all(), &cx.pods.all(), &promises)
        .with_surroundings(&cx.namespaces.all(), storage);
    let holders: Vec<_> = claimants.iter().flat_map(|all| all.holders()).collect();
    let question = Question {
        ledger: &ledger,
        line: &line,
        holders: &holders,
        durations,
        policy: cx.settings.queue_policy,
        now,
    };
    let forecasts = forecast::forecast(&question);
    let waits = forecasts.iter().filter_map(|forecast| {
        let start = forecast.start.as_ref()?;
        Some(start.at.0.duration_since(now) / 10)
    });
    let soon = waits.min().unwrap_or(LATEST);
    look_again(later(now, soon.clamp(SOONEST, LATEST)));
    let silent = behind.into_iter().map(|claimant| {
        let nothing = Forecast::nothing(claimant.claim().generation);
        (claimant, nothing)
    });
    answer.forecasts = line.into_iter().zip(forecasts).chain(silent).collect();
    answer
}

/// Whether a workload has ended for good.
fn is_over(workload: &GPUWorkload) -> bool {
    let phase = workload.status.as_ref().and_then(|status| status.phase);
    phase.is_some_and(Phase::is_final)
}
