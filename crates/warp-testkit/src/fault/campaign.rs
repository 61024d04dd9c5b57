//! The exhaustive loop: a scenario without faults, then once for every write and every fault.
//!
//! Every run has a runtime of its own with a paused clock, in a thread that is given up when virtual
//! time does not get on. What a run must not do is differ from the fault-free ones at its end, break an
//! invariant on its way, or ask much more of the API server than they did.

#![allow(
    clippy::print_stdout,
    reason = "the figures of a campaign are what it is run for"
)]

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::future::Future;
use std::pin::Pin;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, mpsc};
use std::time::Duration;

use anyhow::{Context, Result, anyhow, bail};
use parking_lot::Mutex;

use super::history::{self, Difference, Ending, Learnt};
use super::judge::{self, Invariants};
use super::layer::{Faults, Record, Tally};
use super::plan::{Fault, Plan};
use super::world::{Setup, World, virtual_time};

/// Real time: a run that takes longer is stuck at one moment of virtual time.
const STUCK: Duration = Duration::from_mins(5);
/// Virtual: longer than any time after which a controller looks again although nothing is due.
const QUIET: Duration = Duration::from_mins(11);
/// Fault-free runs whose requests are slowed down differently: what they disagree on is no finding.
const DELAYED: [&str; 2] = ["write#1+all:delay=37ms", "request#1+all:delay=311ms"];

/// What a scenario does in a world.
pub type Script = Arc<
    dyn for<'a> Fn(&'a World) -> Pin<Box<dyn Future<Output = Result<()>> + Send + 'a>>
        + Send
        + Sync,
>;

/// One scenario.
#[derive(Clone)]
pub struct Scenario {
    pub name: &'static str,
    pub setup: Setup,
    pub script: Script,
    /// Ends of paths whose values depend on who was first; each with a reason where it is given.
    pub loose: &'static [&'static str],
}

impl std::fmt::Debug for Scenario {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.write_str(self.name)
    }
}

/// What came of one run.
#[derive(Debug)]
pub struct Run {
    pub ending: Ending,
    pub violations: Vec<String>,
    pub records: Vec<Record>,
    pub tally: Tally,
    /// How many requests each rule of the plan met.
    pub met: Vec<u64>,
    pub exits: u64,
}

/// Runs a scenario once, to its end and until nothing moves.
pub fn run(scenario: &Scenario, plan: &Plan, kinds: Invariants) -> Result<Run> {
    let (send, receive) = mpsc::channel();
    let (scenario, plan) = (scenario.clone(), plan.clone());
    let name = scenario.name;
    std::thread::Builder::new()
        .name(name.to_owned())
        .stack_size(8 << 20)
        .spawn(move || {
            // Nobody listens any more when the run was given up.
            let _ = send.send(run_here(&scenario, plan, &kinds));
        })
        .context("failed to start a thread")?;
    receive
        .recv_timeout(STUCK)
        .map_err(|_| anyhow!("the run of {name} panicked, or is stuck at one moment"))?
}

/// Requests one per line, with what was sent.
fn told(records: &[Record]) -> String {
    let line = |record: &Record| {
        let body = String::from_utf8_lossy(&record.body);
        let status = record.status.unwrap_or_default();
        let (life, call) = (record.life, &record.call);
        format!("\n{} {life} {call} {status} {body}", record.number)
    };
    records.iter().map(line).collect()
}

fn run_here(scenario: &Scenario, plan: Plan, kinds: &Invariants) -> Result<Run> {
    virtual_time(async {
        let world = World::start(&scenario.setup, Faults::new(plan)).await?;
        let ended = async {
            (scenario.script)(&world).await?;
            world.settled(QUIET).await
        }
        .await;
        if std::env::var_os("WARP_FAULTS_WRITES").is_some() {
            let mut writes = world.faults.records();
            writes.retain(|record| record.write > 0);
            println!("under '{}':{}", world.faults.plan(), told(&writes));
        }
        if let Some(last) = world.faults.flood() {
            bail!("a flood of requests; the last: {}", told(&last));
        }
        ended?;
        let store = world.server().store();
        let rival = scenario.setup.rival.is_some();
        let changes = history::changes(store, 0);
        let mut violations = judge::violations(&changes, world.dawn(), rival, kinds);
        let records = world.faults.records();
        violations.extend(judge::careless(&records));
        violations.extend(history::incomplete(store));
        Ok(Run {
            ending: Ending::of(store, world.dawn()),
            violations,
            records,
            tally: world.faults.tally(),
            met: world.faults.met(),
            exits: world.exits(),
        })
    })
}

/// A scenario without faults.
#[derive(Clone, Debug)]
pub struct Reference {
    pub learnt: Learnt,
    pub records: Vec<Record>,
    pub writes: u64,
}

impl Reference {
    pub fn of(scenario: &Scenario, kinds: Invariants) -> Result<Self> {
        let healthy = |plan: &str| -> Result<Run> {
            let run = run(scenario, &plan.parse()?, kinds)
                .with_context(|| format!("{} without faults ({plan})", scenario.name))?;
            if !run.violations.is_empty() || run.exits > 0 {
                return Err(anyhow!(
                    "{} without faults ({plan}): {}",
                    scenario.name,
                    run.violations.join("; ")
                ));
            }
            Ok(run)
        };
        let first = healthy("")?;
        let others = DELAYED
            .iter()
            .map(|plan| Ok(healthy(plan)?.ending))
            .collect::<Result<Vec<_>>>()?;
        let (learnt, numbers) = Learnt::from(first.ending, &others, scenario.loose);
        if let Some(difference) = numbers.first() {
            bail!(
                "{} is not the same when requests take longer: {difference}",
                scenario.name
            );
        }
        let writes = first
            .records
            .iter()
            .filter(|record| record.write > 0)
            .count() as u64;
        Ok(Self {
            learnt,
            records: first.records,
            writes,
        })
    }

    /// What is wrong with a run; empty when nothing is. How it ended differently may be `allowed`.
    pub fn judge(&self, run: &Run, allowed: Option<&Allowed<'_>>) -> Vec<String> {
        let mut differences = self.learnt.differences(&run.ending);
        if let Some(allowed) = allowed.filter(|allowed| (allowed.is_all)(&differences)) {
            println!(
                "{} | {}: {}",
                allowed.scenario, allowed.plan, allowed.reason
            );
            differences.clear();
        }
        let mut wrong: Vec<String> = differences
            .iter()
            .map(|difference| format!("differs: {difference}"))
            .collect();
        wrong.extend(
            run.violations
                .iter()
                .map(|what| format!("invariant: {what}")),
        );
        if run.exits > 0 {
            wrong.push(format!("the process ended by itself {} times", run.exits));
        }
        let count = |records: &[Record], writes: bool| {
            records
                .iter()
                .filter(|record| !writes || record.write > 0)
                .count()
        };
        for (what, writes, slack) in [("writes", true, 12), ("requests", false, 120)] {
            let (have, normal) = (count(&run.records, writes), count(&self.records, writes));
            if have > 2 * normal + slack {
                wrong.push(format!(
                    "storm: {have} {what} where {normal} do without faults"
                ));
            }
        }
        wrong
    }
}

/// A different end that a plan may lead to, because nothing could prevent it.
#[derive(Clone, Copy, Debug)]
pub struct Allowed<'a> {
    pub scenario: &'a str,
    pub plan: &'a str,
    pub reason: &'a str,
    /// Whether these differences are what is allowed, all of it and nothing besides.
    pub is_all: fn(&[Difference]) -> bool,
}

/// The faults every write meets.
pub const EVERY_WRITE: [Fault; 4] = [
    Fault::CrashBefore,
    Fault::CrashAfter,
    Fault::Applied(504),
    Fault::Status(409),
];

/// Worse weather than one lost write: what meets every scenario once besides [`EVERY_WRITE`].
pub const WEATHER: [&str; 22] = [
    "watch#1+all:duplicate",
    "watch#1+all:merge; write#2:crash-after",
    "write#2:crash-before; watch#1+9:cut=2",
    "write#2:crash-after; watch#1+9:expire=1",
    "write#1:crash-after; watch#1+3:silence=1",
    "write#2+3:429=2",
    "write#1+3:429",
    "write#2+2:500",
    "write#3+2:500-applied",
    "request#2+6:503",
    "write#2:crash-before; watch#1+5:410",
    // The process starts without its rights and is given them.
    "write#3:crash-after; read#1~45s:403",
    "write#2~45s:403",
    "write#2:reset-applied; write#4:reset",
    "write#1:timeout-applied; write#3:timeout",
    "write#2:pause=120s",
    "request#1+all:delay=2s",
    // Carried out when whoever asked has given up and asked again.
    "write#2+2:delay=40s",
    "write#3:crash-after; read#1~5s:stale=2",
    // After a restart one kind is known long after the others.
    "write#3:crash-after; list/jobs#1+all:delay=20s",
    "write#4:crash-after; list/pods#1+all:delay=20s",
    "write#5:crash-after; list/nodes#1+all:delay=20s",
];

/// What a campaign found.
#[derive(Debug, Default)]
pub struct Report {
    pub scenarios: usize,
    pub points: u64,
    pub runs: u64,
    /// Plans whose fault no request met, such as one at the fifth write of three.
    pub idle: u64,
    pub tally: Tally,
    pub by_scenario: BTreeMap<&'static str, Cost>,
    pub failures: Vec<Failure>,
}

/// What one scenario took.
#[derive(Debug)]
pub struct Cost {
    pub writes: u64,
    pub requests: usize,
    /// Most requests any run of it made under faults.
    pub most: usize,
    /// Places that differed without faults already and were not compared.
    pub masked: usize,
}

/// A run that went wrong, and the line that repeats it.
#[derive(Debug)]
pub struct Failure {
    pub scenario: &'static str,
    pub plan: String,
    pub wrong: Vec<String>,
}

impl Report {
    /// The figures, one per line.
    pub fn figures(&self) -> String {
        let mut text = String::new();
        let divergences = self.count("differs");
        let violations = self.count("invariant");
        let _ = writeln!(
            text,
            "scenarios {}, crash points (writes) {}, runs under faults {} (and {} whose fault met no request), divergences {divergences}, invariant violations {violations}, other failures {}",
            self.scenarios,
            self.points,
            self.runs,
            self.idle,
            self.failures
                .len()
                .saturating_sub(divergences.max(violations)),
        );
        let tally: Vec<String> = self
            .tally
            .iter()
            .map(|(kind, count)| format!("{kind} {count}"))
            .collect();
        let _ = writeln!(text, "faults injected: {}", tally.join(", "));
        for (name, cost) in &self.by_scenario {
            let _ = writeln!(
                text,
                "  {name}: {} writes, {} requests to converge, at most {} under faults, {} places masked",
                cost.writes, cost.requests, cost.most, cost.masked
            );
        }
        text
    }

    fn count(&self, kind: &str) -> usize {
        self.failures
            .iter()
            .filter(|failure| failure.wrong.iter().any(|what| what.starts_with(kind)))
            .count()
    }

    /// What went wrong, each with how to repeat it.
    pub fn complaints(&self) -> String {
        let mut text = String::new();
        for failure in &self.failures {
            let _ = writeln!(
                text,
                "WARP_FAULTS='{} | {}'",
                failure.scenario, failure.plan
            );
            for what in failure.wrong.iter().take(8) {
                let _ = writeln!(text, "    {what}");
            }
        }
        text
    }
}

/// A plan to run, and whether it says nothing when one of its rules meets no request.
#[derive(Clone, Debug)]
pub struct Asked {
    pub plan: Plan,
    pub must_meet: bool,
}

impl Asked {
    /// The rules that met nothing although they had to: such a run proves nothing. `met` counts by rule.
    fn unmet(&self, met: &[u64]) -> Option<String> {
        let rules = self.plan.rules.iter().zip(met);
        let idle: Vec<String> = rules
            .filter(|(_, met)| self.must_meet && **met == 0)
            .map(|(rule, _)| rule.to_string())
            .collect();
        (!idle.is_empty()).then(|| format!("met no request: {}", idle.join("; ")))
    }
}

/// Runs every scenario under every plan that `plans` makes of its reference, on `threads` at once;
/// with `hasty` only until something is wrong.
pub fn all(
    scenarios: &[Scenario],
    threads: usize,
    hasty: bool,
    sample: &Sample<'_>,
    plans: impl Fn(&Scenario, &Reference) -> Vec<Asked> + Sync,
) -> Report {
    let kinds = sample.invariants;
    let report = Mutex::new(Report {
        scenarios: scenarios.len(),
        ..Report::default()
    });
    let mut references: Vec<Option<Reference>> = Vec::new();
    references.resize_with(scenarios.len(), || None);
    let references = Mutex::new(references);
    let enough = || hasty && !report.lock().failures.is_empty();
    parallel(threads, scenarios.len(), |place| {
        if enough() {
            return;
        }
        let scenario = &scenarios[place];
        match Reference::of(scenario, kinds) {
            Ok(reference) => {
                let requests = reference.records.len();
                let mut report = report.lock();
                report.points += reference.writes;
                let cost = Cost {
                    writes: reference.writes,
                    requests,
                    most: requests,
                    masked: reference.learnt.loose().len(),
                };
                report.by_scenario.insert(scenario.name, cost);
                references.lock()[place] = Some(reference);
            }
            Err(error) => {
                println!("{error:#}");
                report.lock().failures.push(Failure {
                    scenario: scenario.name,
                    plan: String::new(),
                    wrong: vec![format!("{error:#}")],
                });
            }
        }
    });
    let references = references.into_inner();
    let work: Vec<(&Scenario, &Reference, Asked)> = scenarios
        .iter()
        .zip(&references)
        .filter_map(|(scenario, reference)| Some((scenario, reference.as_ref()?)))
        .flat_map(|(scenario, reference)| {
            let plans = plans(scenario, reference);
            plans
                .into_iter()
                .map(move |plan| (scenario, reference, plan))
        })
        .collect();
    parallel(threads, work.len(), |place| {
        if enough() {
            return;
        }
        let (scenario, reference, asked) = &work[place];
        let plan = &asked.plan;
        let (wrong, tally, requests) = match run(scenario, plan, kinds) {
            Ok(run) => {
                let mut wrong = reference.judge(&run, sample.allowed(scenario, plan));
                wrong.extend(asked.unmet(&run.met));
                (wrong, run.tally, run.records.len())
            }
            Err(error) => (vec![format!("did not end: {error:#}")], Tally::new(), 0),
        };
        for what in &wrong {
            println!("{} | {plan}: {what}", scenario.name);
        }
        let mut report = report.lock();
        if tally.is_empty() && wrong.is_empty() {
            report.idle += 1;
        } else {
            report.runs += 1;
        }
        for (kind, count) in tally {
            *report.tally.entry(kind).or_default() += count;
        }
        if let Some(cost) = report.by_scenario.get_mut(scenario.name) {
            cost.most = requests.max(cost.most);
        }
        if !wrong.is_empty() {
            report.failures.push(Failure {
                scenario: scenario.name,
                plan: plan.to_string(),
                wrong,
            });
        }
    });
    let mut report = report.into_inner();
    report
        .failures
        .sort_by(|one, other| (one.scenario, &one.plan).cmp(&(other.scenario, &other.plan)));
    report
}

fn parallel(threads: usize, count: usize, work: impl Fn(usize) + Sync) {
    let next = AtomicUsize::new(0);
    std::thread::scope(|scope| {
        for _ in 0..threads.max(1) {
            scope.spawn(|| {
                loop {
                    let place = next.fetch_add(1, Ordering::Relaxed);
                    if place >= count {
                        return;
                    }
                    work(place);
                }
            });
        }
    });
}

/// Every write of a reference under every fault.
pub fn every_write(reference: &Reference) -> Vec<Plan> {
    (1..=reference.writes)
        .flat_map(|nth| EVERY_WRITE.map(|fault| Plan::at_write(nth, fault)))
        .collect()
}

/// What a campaign runs when nothing is asked for by name, and what it adds to the plans every campaign has.
#[derive(Clone, Copy, Debug)]
pub struct Sample<'a> {
    /// Scenarios of every test run; the others are run when they are asked for.
    pub daily: &'a [&'a str],
    /// One plan in so many is run.
    pub one_in: u64,
    /// Plans that once found something, by scenario: they are always run, and each of their rules must meet a request.
    pub found: &'a [(&'a str, &'a str)],
    /// Weather that names what only these scenarios have.
    pub weather: &'a [&'a str],
    /// What the kinds of these scenarios must keep.
    pub invariants: Invariants,
    /// Ends that some plans may lead to.
    pub allowed: &'a [Allowed<'a>],
}

impl Sample<'_> {
    fn is_daily(&self, scenario: &Scenario) -> bool {
        let found = self.found.iter().map(|(name, _)| name);
        self.daily
            .iter()
            .chain(found)
            .any(|name| *name == scenario.name)
    }

    fn allowed(&self, scenario: &Scenario, plan: &Plan) -> Option<&Allowed<'_>> {
        let plan = plan.to_string();
        let mut allowed = self.allowed.iter();
        allowed.find(|one| one.scenario == scenario.name && one.plan == plan)
    }

    /// Names that are no scenario's: what they were to run would silently not be run.
    fn unknown(&self, scenarios: &[Scenario]) -> Vec<String> {
        let found = self.found.iter().map(|(name, _)| *name);
        let allowed = self.allowed.iter().map(|allowed| allowed.scenario);
        let names = self.daily.iter().copied().chain(found).chain(allowed);
        let known = |name: &&str| scenarios.iter().any(|scenario| scenario.name == *name);
        names
            .filter(|name| !known(name))
            .map(str::to_owned)
            .collect()
    }

    /// Whether a plan is among those of every test run: the same in every run, whatever is renamed or added besides.
    fn holds(&self, scenario: &Scenario, plan: &Plan) -> bool {
        stable_hash(&format!("{} | {plan}", scenario.name)).is_multiple_of(self.one_in)
    }
}

/// FNV-1a: the same number in every build and on every machine.
fn stable_hash(text: &str) -> u64 {
    text.bytes().fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    })
}

/// All the weather: what every scenario meets and what `more` names.
pub fn weather(more: &[&str]) -> Vec<Plan> {
    let plans = WEATHER.iter().chain(more).map(|plan| plan.parse::<Plan>());
    plans
        .collect::<Result<_, _>>()
        .expect("the plans above are well-formed")
}

/// The plans a text asks for: `writes`, `weather`, both when it is empty, or the one it spells.
fn plans_of(text: &str, reference: &Reference, sample: &Sample<'_>) -> Vec<Plan> {
    match text {
        "" => [every_write(reference), weather(sample.weather)].concat(),
        "writes" => every_write(reference),
        "weather" => weather(sample.weather),
        plan => vec![
            plan.parse()
                .expect("WARP_FAULTS names a plan that can be read"),
        ],
    }
}

/// The campaign as a test, told what to run by `WARP_FAULTS`: `name | plan` for one run, a name for
/// every write and all the weather of that scenario, `name | writes` or `name | weather` for half of
/// that, `all` as the name for every scenario. Without it the `sample`. With `WARP_FAULTS_STOP` nothing
/// more is run once something is wrong, with `WARP_FAULTS_WRITES` every run prints its writes.
pub fn test(scenarios: &[Scenario], sample: &Sample<'_>) {
    let unknown = sample.unknown(scenarios);
    assert!(unknown.is_empty(), "no scenario is called {unknown:?}");
    let wanted = std::env::var("WARP_FAULTS").unwrap_or_default();
    let (name, plan) = wanted.split_once('|').unwrap_or((&wanted, ""));
    let (name, plan) = (name.trim(), plan.trim());
    let whole_name = scenarios.iter().any(|scenario| scenario.name == name);
    let asked = |scenario: &&Scenario| match name {
        "" => sample.is_daily(scenario),
        "all" => true,
        name if whole_name => scenario.name == name,
        name => scenario.name.contains(name),
    };
    let chosen: Vec<Scenario> = scenarios.iter().filter(asked).cloned().collect();
    assert!(!chosen.is_empty(), "no scenario is called {name}");
    let threads = std::thread::available_parallelism().map_or(2, usize::from);
    let hasty = std::env::var_os("WARP_FAULTS_STOP").is_some();
    let one = !matches!(plan, "" | "writes" | "weather");
    let report = all(&chosen, threads, hasty, sample, |scenario, reference| {
        let mut plans: Vec<Asked> = plans_of(plan, reference, sample)
            .into_iter()
            .filter(|plan| !name.is_empty() || sample.holds(scenario, plan))
            .map(|plan| Asked {
                plan,
                must_meet: one,
            })
            .collect();
        if name.is_empty() {
            let again = sample.found.iter();
            let again = again.filter(|(name, _)| *name == scenario.name);
            plans.extend(again.map(|(_, plan)| Asked {
                plan: plan.parse().expect("a plan that once ran can be read"),
                must_meet: true,
            }));
        }
        plans
    });
    println!("{}", report.figures());
    assert!(report.failures.is_empty(), "{}", report.complaints());
}
