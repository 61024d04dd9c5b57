//! `--churn`: the same requests with departures, policies side by side.

use std::process::ExitCode;

use serde::Serialize;
use warp_core::simulate::openb::Trace;
use warp_core::simulate::openb::churn::{Knowledge, Outcome, Settings, run as replay};

use super::super::Format;
use super::{Args, pods};
use crate::output::{self, Table};

#[derive(Serialize)]
struct Report {
    policy: &'static str,
    load: f64,
    seeds: Vec<u64>,
    /// Means over the seeds, in percent.
    allocated: f64,
    refused: f64,
    refused_multi: f64,
    refused_gangs: f64,
    decisions: u64,
}

const fn knowledge(args: &Args) -> Knowledge {
    match (args.live, args.no_prior) {
        (true, _) => Knowledge::Snapshot,
        (false, true) => Knowledge::Arrivals,
        (false, false) => Knowledge::Everything,
    }
}

pub(super) fn run(trace: &Trace, load: f64, args: &Args) -> anyhow::Result<ExitCode> {
    anyhow::ensure!(
        load > 0.0 && load <= 10.0,
        "--churn {load} is no load between 0 and 10"
    );
    anyhow::ensure!(
        (0.0..=1.0).contains(&args.gangs),
        "--gangs {} is no share between 0 and 1",
        args.gangs
    );
    let then = match &args.shift {
        Some(file) => Some(Trace {
            machines: trace.machines.clone(),
            pods: pods(file, args.strict)?,
        }),
        None => None,
    };
    let bar = output::progress((args.policies.len() * args.seeds.0.len()) as u64);
    let mut reports = Vec::new();
    for &policy in &args.policies {
        let mut outcomes: Vec<Outcome> = Vec::new();
        for &seed in &args.seeds.0 {
            bar.set_message(format!("{policy} seed {seed}"));
            let settings = Settings {
                policy: policy.weighing(args.price_weight),
                seed,
                load,
                knows: knowledge(args),
                gangs: args.gangs,
            };
            outcomes.push(replay(trace, then.as_ref(), &settings));
            bar.inc(1);
        }
        let mean = |of: fn(&Outcome) -> f64| {
            outcomes.iter().map(of).sum::<f64>() / outcomes.len().max(1) as f64
        };
        reports.push(Report {
            policy: policy.name(),
            load,
            seeds: args.seeds.0.clone(),
            allocated: mean(|outcome| outcome.allocated),
            refused: mean(|outcome| outcome.refused),
            refused_multi: mean(|outcome| outcome.refused_multi),
            refused_gangs: mean(|outcome| outcome.refused_gangs),
            decisions: outcomes.iter().map(|outcome| outcome.decisions).sum(),
        });
    }
    bar.finish_and_clear();
    if args.output == Format::Json {
        output::result(&serde_json::to_string(&reports)?);
        return Ok(ExitCode::SUCCESS);
    }
    let mut table = Table::new([
        "POLICY",
        "LOAD",
        "ALLOCATED",
        "REFUSED",
        "REFUSED MULTI-GPU",
        "REFUSED GANGS",
        "DECISIONS",
    ]);
    for report in &reports {
        table.row(vec![
            report.policy.to_owned(),
            format!("{:.2}", report.load),
            format!("{:.2}%", report.allocated),
            format!("{:.2}%", report.refused),
            format!("{:.2}%", report.refused_multi),
            format!("{:.2}%", report.refused_gangs),
            report.decisions.to_string(),
        ]);
    }
    output::result(&table.to_string());
    Ok(ExitCode::SUCCESS)
}
