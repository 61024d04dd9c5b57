//! `warp simulate queue`: a job list on a fleet, policies side by side.

mod jobs;
mod show;

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Instant;

use anyhow::Context as _;
use serde::Serialize;
use warp_core::gpu;
use warp_core::queue::{self, Checkpoint, Policy, Pool};
use warp_core::simulate::queue as simulate;
use warp_core::simulate::queue::{Outcome, Report, Settings, Submission, trace};

use warp_local::node::spelling::nearest;

use super::Format;
use crate::output;

#[derive(clap::Args, Debug)]
pub(crate) struct Args {
    /// Job list (the exit code is 1 when a job of it can never run on the fleet): CSV or JSON with submit (or timestamp), duration in seconds and gpus (or num_gpus);
    /// optionally members, tenant (or cluster), model, image, gpu_type, priority, preemptible
    #[arg(long, value_name = "FILE")]
    jobs: PathBuf,
    /// Nodes of the fleet, all alike
    #[arg(
        long,
        value_name = "N",
        required_unless_present = "fleet",
        conflicts_with = "fleet"
    )]
    nodes: Option<u32>,
    /// GPUs of each node
    #[arg(long, default_value_t = 8, value_name = "N")]
    gpus_per_node: u32,
    /// A mixed fleet instead: nodes x GPUs and a GPU type, for example 40x8:A100,20x4:V100
    #[arg(long, value_name = "FLEET")]
    fleet: Option<String>,
    /// Policies, compared side by side: fifo, skipAhead, sjf, easy, las, warp
    #[arg(
        long = "policy",
        value_delimiter = ',',
        default_value = "warp",
        value_name = "P"
    )]
    policies: Vec<String>,
    /// Share of the jobs that may be evicted (they checkpoint), where the list does not say
    #[arg(long, default_value_t = 0.0, value_name = "0..1")]
    preemptible: f64,
    /// How often such a job saves its work, in minutes
    #[arg(long, default_value_t = 30.0, value_name = "MINUTES")]
    checkpoint_every: f64,
    /// What resuming such a job costs, in minutes
    #[arg(long, default_value_t = 5.0, value_name = "MINUTES")]
    restart_cost: f64,
    /// Measure only the jobs of the busiest DAYS consecutive days; the others still take part
    #[arg(long, value_name = "DAYS")]
    busiest_days: Option<u32>,
    /// Put the days that are measured in a random order first
    #[arg(long, value_name = "SEED")]
    shuffle_days: Option<u64>,
    /// Start-time estimates to ask for and judge (of jobs that wait over a minute); 0 for none
    #[arg(long, default_value_t = 100, value_name = "N")]
    estimates: usize,
    /// Judge the estimates half-way and at nine tenths of the wait too
    #[arg(long)]
    along: bool,
    /// Let running jobs report their progress, with this error (0.15 for ± 15 %)
    #[arg(long, value_name = "ERROR")]
    progress_error: Option<f64>,
    /// Only time the start-time estimates of all jobs in line, when so many first wait at once
    #[arg(long, value_name = "JOBS")]
    time_estimate: Option<usize>,
    /// Seed of everything random
    #[arg(long, default_value_t = 42)]
    seed: u64,
    /// Stop at the first bad row, or the first job that can never run
    #[arg(long)]
    strict: bool,
    /// How to print the result
    #[arg(short, long, value_enum, default_value = "table")]
    output: Format,
    /// Also draw how long jobs waited and how busy the GPUs were
    #[arg(long, value_name = "FILE")]
    svg: Option<PathBuf>,
}

pub(crate) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let policies = policies(&args.policies)?;
    let pool = pool(args)?;
    let mut settings = settings(args)?;
    let mut jobs = trace::in_order(&jobs::read(&args.jobs, args.strict)?);
    for doubt in doubts(args.fleet.as_deref().unwrap_or_default(), &jobs) {
        output::note(&format!("warning: {doubt}"));
    }
    if let Some(days) = args.busiest_days {
        settings.window = Some(trace::busiest(&jobs, days));
    }
    if let Some(seed) = args.shuffle_days {
        let all = trace::busiest(&jobs, trace::days(&jobs));
        jobs = trace::shuffle_days(&jobs, settings.window.unwrap_or(all), seed);
    }
    if let Some(depth) = args.time_estimate {
        return time_estimates(&jobs, &pool, &policies, &settings, depth, args.output);
    }
    let mut results = Vec::new();
    for policy in &policies {
        let (report, outcome) = simulate_one(&jobs, &pool, policy.as_ref(), &settings);
        if results.is_empty() {
            show::refused(&args.jobs, &outcome, args.strict)?;
        }
        results.push((report, outcome));
    }
    if let Some(file) = &args.svg {
        let svg = show::charts(&results);
        std::fs::write(file, svg).with_context(|| format!("failed to write {}", file.display()))?;
    }
    let reports: Vec<&Report> = results.iter().map(|(report, _)| report).collect();
    print(&reports, args.output, show::table)?;
    let refused = reports.iter().map(|report| report.refused).max();
    Ok(match refused.unwrap_or(0) {
        0 => ExitCode::SUCCESS,
        // Which and why is said above; the figures are about the others.
        _ => ExitCode::FAILURE,
    })
}

/// GPU types of the fleet that nobody knows, and types of jobs that no node of it has: nothing is wrong with them here, but
/// they are usually misspelt. Each is told once.
fn doubts(fleet: &str, jobs: &[Submission]) -> Vec<String> {
    let groups = fleet.split(',').filter_map(|group| group.split_once(':'));
    let offered: BTreeSet<&str> = groups.map(|(_, kind)| kind.trim()).collect();
    let hint = |near: Option<&str>| {
        near.map_or_else(String::new, |near| format!("; did you mean \"{near}\"?"))
    };
    let unknown = offered.iter().filter(|kind| gpu::named(kind).is_empty());
    let mut doubts: Vec<String> = unknown
        .map(|kind| {
            let near = nearest(kind, gpu::MODELS.iter().map(|model| model.name));
            let near = hint(near);
            format!("--fleet: the GPU catalogue knows no model \"{kind}\"{near}")
        })
        .collect();
    let mut told = BTreeSet::new();
    // A fleet without types has nodes that no typed job accepts, which is said of each of them.
    for job in jobs.iter().filter(|_| !offered.is_empty()) {
        for kind in job.types.iter().map(String::as_str) {
            if !offered.contains(kind) && told.insert(kind) {
                let near = hint(nearest(kind, offered.iter().copied()));
                let line = job.line;
                doubts.push(format!(
                    "line {line}: no node of the fleet has the GPU type \"{kind}\"{near}"
                ));
            }
        }
    }
    doubts
}

fn simulate_one(
    jobs: &[Submission],
    pool: &Pool,
    policy: &dyn Policy,
    settings: &Settings,
) -> (Report, Outcome) {
    let passes = if settings.probes > 0 { 2 } else { 1 };
    let bar = output::progress(passes * jobs.len() as u64);
    bar.set_message(policy.name());
    let started = Instant::now();
    let (mut base, mut last) = (0, 0);
    let outcome = simulate::run(jobs, pool, policy, settings, &mut |done| {
        // The list is run a second time when estimates are judged.
        if done < last {
            base = jobs.len();
        }
        last = done;
        if done.is_multiple_of(64) || base > 0 {
            bar.set_position((base + done) as u64);
        }
    });
    bar.finish_and_clear();
    let report = Report::of(policy.name(), &outcome, started.elapsed().as_secs_f64());
    (report, outcome)
}

#[derive(Serialize)]
struct Timing {
    policy: String,
    pending: usize,
    samples: u32,
    seconds: f64,
}

/// How long it takes to say when each of `depth` waiting jobs will start.
fn time_estimates(
    jobs: &[Submission],
    pool: &Pool,
    policies: &[Box<dyn Policy>],
    settings: &Settings,
    depth: usize,
    format: Format,
) -> anyhow::Result<ExitCode> {
    let mut timings = Vec::new();
    for policy in policies {
        let pause = simulate::pause_at(jobs, pool, policy.as_ref(), settings, depth);
        let pause = pause.with_context(|| {
            let name = policy.name();
            format!("failed to time estimates: under {name} {depth} jobs never wait at once (use a smaller fleet)")
        })?;
        let started = Instant::now();
        let estimates = settings.forecaster.estimate(
            &pause.engine.state,
            pause.engine.policy(),
            &pause.durations,
            &pause.history,
            &|_| true,
        );
        timings.push(Timing {
            policy: policy.name().to_owned(),
            pending: estimates.len(),
            samples: settings.forecaster.samples,
            seconds: started.elapsed().as_secs_f64(),
        });
    }
    let timings: Vec<&Timing> = timings.iter().collect();
    print(&timings, format, |timings| {
        let mut table = output::Table::new(["POLICY", "PENDING", "SAMPLES", "SECONDS"]);
        for timing in timings {
            table.row(vec![
                timing.policy.clone(),
                timing.pending.to_string(),
                timing.samples.to_string(),
                format!("{:.3}", timing.seconds),
            ]);
        }
        table.to_string()
    })?;
    Ok(ExitCode::SUCCESS)
}

/// One object for one policy, a list for several.
fn print<T: Serialize>(
    results: &[&T],
    format: Format,
    table: impl Fn(&[&T]) -> String,
) -> anyhow::Result<()> {
    let text = match (format, results) {
        (Format::Table, _) => table(results),
        (Format::Json, [one]) => serde_json::to_string(one)?,
        (Format::Json, many) => serde_json::to_string(many)?,
    };
    output::result(&text);
    Ok(())
}

fn policies(names: &[String]) -> anyhow::Result<Vec<Box<dyn Policy>>> {
    let known = queue::NAMES.join(", ");
    let named = |name: &String| {
        queue::named(name.trim())
            .with_context(|| format!("no queue policy {name:?}; there are {known}"))
    };
    names.iter().map(named).collect()
}

fn pool(args: &Args) -> anyhow::Result<Pool> {
    let uniform = || format!("{}x{}", args.nodes.unwrap_or(0), args.gpus_per_node);
    Ok(simulate::fleet::parse(
        &args.fleet.clone().unwrap_or_else(uniform),
    )?)
}

fn settings(args: &Args) -> anyhow::Result<Settings> {
    anyhow::ensure!(
        (0.0..=1.0).contains(&args.preemptible),
        "--preemptible {} is no share between 0 and 1",
        args.preemptible
    );
    let minutes = |name: &str, value: f64| {
        anyhow::ensure!(
            (0.0..=1e6).contains(&value),
            "--{name} {value} is no number of minutes"
        );
        Ok(value * 60.0)
    };
    if let Some(error) = args.progress_error {
        anyhow::ensure!(
            (0.0..1.0).contains(&error),
            "--progress-error {error} is no share below 1"
        );
    }
    let defaults = Settings::default();
    Ok(Settings {
        preemptible: args.preemptible,
        checkpoint: Checkpoint {
            period: minutes("checkpoint-every", args.checkpoint_every)?,
            restart: minutes("restart-cost", args.restart_cost)?,
        },
        seed: args.seed,
        progress: args.progress_error,
        probes: args.estimates,
        along: args.along,
        ..defaults
    })
}
