//! `--timings`: how long decisions take as the fleet grows.

use std::collections::BTreeMap;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::{Duration, Instant};

use serde::Serialize;
use warp_core::explain::{Explanation, smallest_changes};
use warp_core::fleet::{GpuRequest, Request, WorkState};
use warp_core::random::Random;
use warp_core::resources::Resources;
use warp_core::schedule::{Gang, Member, Planner, Policy};
use warp_core::simulate::openb::{Trace, mix, scale};

use super::super::Format;
use super::Args;
use crate::output::{self, Table};

const DECISIONS: usize = 5_000;
const LOAD: f64 = 0.85;
const GANG: u32 = 512;

#[derive(Serialize)]
struct Report {
    policy: &'static str,
    nodes: usize,
    /// Milliseconds per decision, known request shapes.
    median: f64,
    p99: f64,
    max: f64,
    /// Milliseconds for a gang of 512 members of one GPU.
    gang: f64,
    /// Milliseconds for "does not fit, because…" with the smallest changes.
    explain: f64,
}

pub(super) fn run(trace: &Trace, args: &Args) -> anyhow::Result<ExitCode> {
    let mut reports = Vec::new();
    for &policy in &args.policies {
        for &nodes in &args.timings {
            anyhow::ensure!(
                (1..=1_000_000).contains(&nodes),
                "--timings {nodes} is no number of nodes"
            );
            reports.push(measure(trace, policy, nodes, args.seeds.0[0]));
        }
    }
    if args.output == Format::Json {
        output::result(&serde_json::to_string(&reports)?);
        return Ok(ExitCode::SUCCESS);
    }
    let mut table = Table::new([
        "POLICY",
        "NODES",
        "MEDIAN",
        "P99",
        "MAX",
        "GANG OF 512",
        "EXPLANATION",
    ]);
    for report in &reports {
        let ms = |value: f64| format!("{value:.3} ms");
        table.row(vec![
            report.policy.to_owned(),
            report.nodes.to_string(),
            ms(report.median),
            ms(report.p99),
            ms(report.max),
            ms(report.gang),
            ms(report.explain),
        ]);
    }
    output::result(&table.to_string());
    Ok(ExitCode::SUCCESS)
}

fn measure(trace: &Trace, policy: Policy, nodes: usize, seed: u64) -> Report {
    let (mut fleet, requests) = scale::filled(trace, nodes, LOAD, seed);
    let known = mix(&fleet, &trace.pods);
    let mut planner = Planner::with_strategy(policy.informed(seed, &fleet, &known), seed);
    let mut shapes = BTreeMap::new();
    for request in &requests {
        shapes.entry(request.fingerprint()).or_insert(request);
    }
    // A shape's first decision rates every node; from then on it is known.
    for request in shapes.values() {
        planner.choose(&fleet, request);
    }
    let mut random = Random::new(seed);
    let mut taken: Vec<Duration> = Vec::with_capacity(DECISIONS);
    let mut bound: Vec<Arc<str>> = Vec::new();
    for at in 0..DECISIONS {
        let request = &requests[random.below(requests.len())];
        let started = Instant::now();
        let placement = planner.choose(&fleet, request);
        let Some(placement) = placement else {
            taken.push(started.elapsed());
            continue;
        };
        let id: Arc<str> = Arc::from(format!("new/{at}"));
        let work = placement.work(Arc::clone(&id), Arc::clone(request), 0, WorkState::Running);
        let done = fleet.bind(work);
        taken.push(started.elapsed());
        debug_assert_eq!(done, Ok(()));
        bound.push(id);
        // Keep the load steady: something leaves for what came.
        let leaving = bound.swap_remove(random.below(bound.len()));
        fleet.release(&leaving);
    }
    taken.sort_unstable();
    let gang = Gang {
        name: Arc::from("gang"),
        members: vec![Member {
            request: Arc::new(asking(1)),
            count: GANG,
        }],
        ..Gang::default()
    };
    let started = Instant::now();
    let placed = planner.place_gang(&fleet, &gang);
    let gang = started.elapsed();
    if let Err(refusal) = placed {
        output::note(&format!(
            "note: the gang does not fit {nodes} nodes: {refusal}"
        ));
    }
    let started = Instant::now();
    let impossible = asking(64);
    let why = Explanation::new(&fleet, &impossible);
    let changes = smallest_changes(&fleet, &impossible);
    let explain = started.elapsed();
    output::note(&format!(
        "note: {nodes} nodes, 64 GPUs: {why}; {} ways out",
        changes.len()
    ));
    Report {
        policy: policy.name(),
        nodes,
        median: ms(taken[taken.len() / 2]),
        p99: ms(taken[taken.len() * 99 / 100]),
        max: ms(taken[taken.len() - 1]),
        gang: ms(gang),
        explain: ms(explain),
    }
}

/// A request of whole cards of any kind.
fn asking(gpus: u32) -> Request {
    Request {
        name: Arc::from("asking"),
        gpu: Some(GpuRequest::whole(gpus)),
        resources: Resources::new(2000, 4 << 30),
        ..Request::default()
    }
}

fn ms(taken: Duration) -> f64 {
    taken.as_secs_f64() * 1000.0
}
