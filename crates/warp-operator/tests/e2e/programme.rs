//! Which tests there are, which of them are played, and where their outcomes go.
//!
//! The harness shows the tests and waits for each; clusters are started here, because many tests share
//! one. A test whose outcome never comes has failed.

use std::collections::{BTreeMap, BTreeSet};
use std::panic::AssertUnwindSafe;
use std::process::ExitCode;
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use anyhow::{Context, Result, anyhow};
use futures::future::{BoxFuture, FutureExt};
use libtest_mimic::{Arguments, Completion, Failed, Trial};
use tokio::sync::Semaphore;
use tokio::task::JoinSet;
use warp_testkit::{Cluster, Engine};

use super::world::World;
use super::{SHARED, Scenario, Used, operator, others, parts, role, run, serve, shared_cluster};

/// How many clusters there are at once. They mostly wait: all scenarios on both engines take less than five
/// minutes of processor time.
const CLUSTERS: usize = 3;
/// How many scenarios of a shared cluster run at once.
const AT_ONCE: usize = 8;

/// Scenarios that wait for clocks longest: they begin first, so that the others are done meanwhile.
const LONGEST: [&str; 4] = [
    "estimate::who_waits_is_told_when_it_starts_and_that_comes_true",
    "rent::a_spot_machine_is_replaced_before_it_is_taken_back",
    "place::small_work_does_not_hold_wide_work_up",
    "clouds::a_cloud_with_a_key_is_asked_with_it_and_without_it_nothing_is_bought",
];

const ENGINES: [Engine; 2] = [Engine::Real, Engine::Embedded];

/// What is judged on a shared cluster after its scenarios: that nothing was refused to the operator,
/// always, and the others when all scenarios were played there.
const NOTHING_REFUSED: &str = "role::nothing_is_refused";
const METRICS: &str = "run::metrics";
const AUDIT_TRAIL: &str = "run::audit_trail";
/// What is judged when everything was played on an engine.
const ROLE: &str = "role::equals_what_was_used";

/// A test by the name it is shown with.
fn named(engine: Engine, scenario: &str) -> String {
    let engine = match engine {
        Engine::Real => "real",
        Engine::Embedded => "embedded",
    };
    format!("{engine}::{scenario}")
}

/// What was asked for on the command line and in `WARP_SCENARIOS`.
struct Wanted<'a> {
    arguments: &'a Arguments,
    parts_of_names: Vec<String>,
}

impl<'a> Wanted<'a> {
    fn of(arguments: &'a Arguments) -> Self {
        let text = std::env::var("WARP_SCENARIOS").unwrap_or_default();
        let parts = text.split(',').filter(|part| !part.is_empty());
        Self {
            arguments,
            parts_of_names: parts.map(str::to_owned).collect(),
        }
    }

    fn includes(&self, name: &str) -> bool {
        let parts = &self.parts_of_names;
        let named = parts.is_empty() || parts.iter().any(|part| name.contains(part.as_str()));
        let shown = Trial::test(name, || Ok(()));
        named && !self.arguments.is_filtered_out(&shown)
    }
}

/// How a test ended.
type Outcome = Result<Completion, Failed>;
/// Tests that are shown and wait, by name.
type Waiting = BTreeMap<String, Sender<Outcome>>;

/// Where outcomes go: every test that is shown waits for its own.
#[derive(Clone, Default)]
struct Outcomes(Arc<Mutex<Waiting>>);

impl Outcomes {
    fn test(&self, name: &str) -> Trial {
        let (sender, receiver) = channel();
        self.waiting().insert(name.to_owned(), sender);
        Trial::ignorable_test(name, move || {
            let never = || Err(Failed::from("it was not played to its end"));
            receiver.recv().unwrap_or_else(|_| never())
        })
    }

    /// Ends the wait of a test. Only its first outcome counts.
    fn tell(&self, name: &str, outcome: Result<Completion, String>) {
        if let Some(sender) = self.waiting().remove(name) {
            // The harness may have gone.
            let _ = sender.send(outcome.map_err(Failed::from));
        }
    }

    /// Ends the wait of every test that still has none, for one cause.
    fn tell_the_rest(&self, names: &BTreeSet<String>, cause: &str) {
        for name in names {
            self.tell(name, Err(cause.to_owned()));
        }
    }

    fn waiting(&self) -> MutexGuard<'_, Waiting> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The tests that are shown, and which of them are played.
pub(super) struct Programme {
    played: BTreeSet<String>,
    shown: Vec<Trial>,
    outcomes: Outcomes,
}

impl Programme {
    pub(super) fn of(arguments: &Arguments) -> Self {
        let is_known = |long: &&str| SHARED.iter().any(|(name, _)| name == long);
        assert!(LONGEST.iter().all(is_known), "LONGEST names no scenario");
        let wanted = Wanted::of(arguments);
        let mut names = Vec::new();
        for engine in ENGINES {
            let shared = SHARED.iter().map(|(name, _)| named(engine, name));
            let shared: Vec<String> = shared.collect();
            let own = parts(engine).into_iter();
            let own: Vec<String> = own.map(|(name, _)| named(engine, name)).collect();
            let includes = |name: &String| wanted.includes(name);
            let all_shared = shared.iter().all(includes);
            let any_shared = shared.iter().any(includes);
            let everything = all_shared && own.iter().all(includes);
            let judged = [
                (NOTHING_REFUSED, any_shared),
                (METRICS, all_shared),
                (AUDIT_TRAIL, all_shared),
                (ROLE, everything),
            ];
            let judged = judged.map(|(name, played)| (named(engine, name), played));
            let judged = judged.into_iter().filter(|(name, played)| {
                if arguments.list {
                    wanted.includes(name)
                } else {
                    *played
                }
            });
            names.extend(shared.into_iter().chain(own).filter(includes));
            names.extend(judged.map(|(name, _)| name));
        }
        let outcomes = Outcomes::default();
        Self {
            shown: names.iter().map(|name| outcomes.test(name)).collect(),
            played: names.into_iter().collect(),
            outcomes,
        }
    }

    /// Plays what was chosen and shows it as a test harness does.
    pub(super) fn play(self, arguments: Arguments) -> ExitCode {
        let Self {
            played,
            shown,
            outcomes,
        } = self;
        let player = (!arguments.list && !played.is_empty())
            .then(|| std::thread::spawn(move || play(&Arc::new(played), &outcomes)));
        let shown_with = Arguments {
            // What is shown was chosen already.
            filter: None,
            skip: Vec::new(),
            // They only wait.
            test_threads: arguments.test_threads.or(Some(shown.len().max(2))),
            ..arguments
        };
        let conclusion = libtest_mimic::run(&shown_with, shown);
        // Clusters end before the process does.
        match player.map(std::thread::JoinHandle::join) {
            None | Some(Ok(())) => conclusion.exit_code(),
            Some(Err(_)) => ExitCode::FAILURE,
        }
    }
}

fn play(played: &Arc<BTreeSet<String>>, outcomes: &Outcomes) {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()
        .unwrap();
    if let Err(error) = runtime.block_on(everything(played, outcomes)) {
        outcomes.tell_the_rest(played, &format!("{error:#}"));
    }
}

/// Everything that needs a cluster, in turn; then what can only be judged afterwards.
async fn everything(played: &Arc<BTreeSet<String>>, outcomes: &Outcomes) -> Result<()> {
    // Before anything is timed or run beside it.
    tokio::task::spawn_blocking(operator::binary).await??;
    let slots = Arc::new(Semaphore::new(CLUSTERS));
    let mut running = JoinSet::new();
    for engine in ENGINES {
        let mut queue: Vec<BoxFuture<'static, Result<Used>>> = Vec::new();
        let scenarios = SHARED.iter().copied();
        let scenarios = scenarios.filter(|(name, _)| played.contains(&named(engine, name)));
        let mut scenarios: Vec<Scenario> = scenarios.collect();
        scenarios.sort_by_key(|(name, _)| !LONGEST.contains(name));
        if !scenarios.is_empty() {
            let (played, outcomes) = (played.clone(), outcomes.clone());
            queue.push(Box::pin(async move {
                let shared = shared(engine, scenarios, &played, &outcomes).await;
                if let Err(error) = &shared {
                    let of = SHARED.iter().map(|(name, _)| *name);
                    let of = of.chain([NOTHING_REFUSED, METRICS, AUDIT_TRAIL]);
                    let of = of.map(|name| named(engine, name)).collect();
                    outcomes.tell_the_rest(&of, &format!("its cluster: {error:#}"));
                }
                shared
            }));
        }
        for (name, part) in parts(engine) {
            let name = named(engine, name);
            if played.contains(&name) {
                let outcomes = outcomes.clone();
                queue.push(Box::pin(async move {
                    let used = attempt(&name, part).await;
                    let told = used.as_ref().map(|_| Completion::Completed);
                    outcomes.tell(&name, told.map_err(|error| format!("{error:#}")));
                    used
                }));
            }
        }
        for part in queue {
            let slot = slots.clone().acquire_owned().await?;
            running.spawn(async move {
                let used = part.await;
                drop(slot);
                (named(engine, ROLE), used)
            });
        }
    }
    let mut used: BTreeMap<String, Option<Used>> = BTreeMap::new();
    while let Some(ended) = running.join_next().await {
        let (judgement, part) = ended?;
        let all = used.entry(judgement).or_insert_with(|| Some(Used::new()));
        match (all, part) {
            (Some(all), Ok(part)) => all.extend(part),
            (all, _) => *all = None,
        }
    }
    for (judgement, used) in used {
        let Some(used) = used else {
            // One cause is told once.
            let why = "a scenario failed: what it would have used is not known";
            outcomes.tell(&judgement, Ok(Completion::ignored_with(why)));
            continue;
        };
        if played.contains(&judgement) {
            let compared = attempt(&judgement, role::equals_what_was_used(&used)).await;
            told(outcomes, &judgement, &compared);
        }
    }
    Ok(())
}

fn told(outcomes: &Outcomes, name: &str, outcome: &Result<()>) {
    let outcome = outcome.as_ref().map(|()| Completion::Completed);
    outcomes.tell(name, outcome.map_err(|error| format!("{error:#}")));
}

/// Runs one scenario; a panic is a failure like any other.
async fn attempt<T>(name: &str, scenario: impl Future<Output = Result<T>>) -> Result<T> {
    let started = Instant::now();
    let outcome = match AssertUnwindSafe(scenario).catch_unwind().await {
        Ok(outcome) => outcome,
        Err(panic) => {
            let text = panic.downcast_ref::<String>().cloned();
            let text = text.or_else(|| panic.downcast_ref::<&str>().map(|s| (*s).to_owned()));
            Err(anyhow!("panicked: {}", text.unwrap_or_default()))
        }
    };
    eprintln!("{:6.1} s {name}", started.elapsed().as_secs_f32());
    outcome
}

/// Scenarios of [`SHARED`] beside each other, then what can only be judged afterwards. Fails when one of
/// them did, after each was told.
async fn shared(
    engine: Engine,
    scenarios: Vec<Scenario>,
    played: &BTreeSet<String>,
    outcomes: &Outcomes,
) -> Result<Used> {
    let cluster = shared_cluster(Cluster::on(engine)).start().await?;
    let world = Arc::new(
        World::install(
            cluster,
            &[
                role::ISOLATE,
                role::NODE_COPIES,
                role::SHOW_PENDING,
                role::AUTOSCALERS,
            ],
        )
        .await?,
    );
    others::install(&world).await?;
    serve::install_keda(&world).await?;
    let operator = world.operator(&[
        "--leader-elect",
        "--log-format=json",
        "--min-run-time=2s",
        role::ISOLATE,
        role::NODE_COPIES,
        role::SHOW_PENDING,
        role::AUTOSCALERS,
    ])?;
    let slots = Arc::new(Semaphore::new(AT_ONCE));
    let mut running = JoinSet::new();
    for (name, scenario) in scenarios {
        let name = named(engine, name);
        let (world, slots, outcomes) = (world.clone(), slots.clone(), outcomes.clone());
        running.spawn(async move {
            let _slot = slots.acquire().await?;
            let outcome = attempt(&name, scenario(world)).await;
            told(&outcomes, &name, &outcome);
            outcome.context(name)
        });
    }
    let mut outcome = Ok(());
    while let Some(ended) = running.join_next().await {
        outcome = outcome.and(ended?);
    }
    let metrics = named(engine, METRICS);
    if played.contains(&metrics) {
        let judged = attempt(&metrics, run::metrics(&operator)).await;
        told(outcomes, &metrics, &judged);
        outcome = outcome.and(judged);
    }
    let trail = named(engine, AUDIT_TRAIL);
    if played.contains(&trail) {
        let judged = attempt(&trail, run::audit_trail(&world, &operator)).await;
        told(outcomes, &trail, &judged);
        outcome = outcome.and(judged);
    }
    let used = role::used(&world).await;
    let refused = used.as_ref().map(|_| Completion::Completed);
    outcomes.tell(
        &named(engine, NOTHING_REFUSED),
        refused.map_err(|error| format!("{error:#}")),
    );
    if outcome.is_err() {
        eprintln!("the operator said last:\n{}", operator.log_tail());
    }
    outcome.and(used)
}
