//! Results of `warp simulate queue` for people: a table, warnings about jobs that can never run,
//! and two charts.

use std::collections::BTreeMap;
use std::path::Path;

use warp_core::simulate::queue::report::wait;
use warp_core::simulate::queue::{Outcome, Report};

use super::super::csv::Problems;
use crate::output::{Table, plot};

pub(super) fn table(reports: &[&Report]) -> String {
    let header = [
        "POLICY",
        "JOBS",
        "JCT",
        "WAIT",
        "P99",
        "WIDE",
        "P99",
        "FIRST",
        "P99",
        "SLOWDOWN",
        "LOST",
        "USED",
        "ETA-ERROR",
        "IN-BAND",
        "SECONDS",
    ];
    let mut table = Table::new(header);
    for report in reports {
        let hours = |hours: f64| format!("{hours:.2}h");
        let percent = |share: f64| format!("{:.1}%", share * 100.0);
        let eta = report.eta.at_submission;
        let judged = |text: String| if eta.asked == 0 { "-".to_owned() } else { text };
        table.row(vec![
            report.policy.clone(),
            report.jobs.to_string(),
            hours(report.jct.mean),
            hours(report.wait.mean),
            hours(report.wait.p99),
            hours(report.wait_wide.mean),
            hours(report.wait_wide.p99),
            hours(report.first_start.all.mean),
            hours(report.first_start.all.p99),
            format!("{:.0}", report.worst_slowdown),
            percent(report.lost_fraction),
            percent(report.utilisation),
            judged(percent(eta.median_rel_error)),
            judged(percent(eta.covered_by_80)),
            format!("{:.1}", report.seconds),
        ]);
    }
    table.to_string()
}

/// Says which jobs can never run on this fleet, and why; an error when strict.
pub(super) fn refused(file: &Path, outcome: &Outcome, strict: bool) -> anyhow::Result<()> {
    let mut problems = Problems::default();
    for refused in &outcome.refused {
        problems.add(refused.line, format_args!("the job {}", refused.reason));
    }
    problems.settle(file, strict)
}

/// How long jobs waited, and how many GPUs were held.
pub(super) fn charts(results: &[(Report, Outcome)]) -> String {
    let series = |points: fn(&Outcome) -> Vec<(f64, f64)>| {
        let one = |(report, outcome): &(Report, Outcome)| plot::Series {
            name: report.policy.clone(),
            points: points(outcome),
        };
        results.iter().map(one).collect()
    };
    plot::svg(&[
        plot::Chart {
            title: "Jobs that waited at most so long".into(),
            x: "wait, as a power of ten of minutes".into(),
            y: "% of the jobs".into(),
            series: series(wait_curve),
        },
        plot::Chart {
            title: "GPUs held".into(),
            x: "days since the first submission".into(),
            y: "% of all GPUs, mean of six hours".into(),
            series: series(usage),
        },
    ])
}

fn wait_curve(outcome: &Outcome) -> Vec<(f64, f64)> {
    let mut waits: Vec<f64> = outcome.fates.iter().map(wait).collect();
    waits.sort_by(f64::total_cmp);
    let count = waits.len();
    let step = count.div_ceil(400).max(1);
    // From a tenth of a minute: a logarithm has no zero, and nobody minds six seconds.
    let point = |at: usize| {
        let minutes = (waits[at] / 60.0).max(0.1);
        (minutes.log10(), 100.0 * (at + 1) as f64 / count as f64)
    };
    let mut points: Vec<_> = (0..count).step_by(step).map(point).collect();
    points.extend(count.checked_sub(1).map(point));
    points
}

fn usage(outcome: &Outcome) -> Vec<(f64, f64)> {
    const HOURS: usize = 6;
    let all = outcome.gpus as f64 * 3600.0;
    let mut blocks = BTreeMap::<usize, (f64, f64)>::new();
    for (hour, held) in outcome.busy.iter().enumerate() {
        let block = blocks.entry(hour / HOURS).or_default();
        *block = (block.0 + held, block.1 + all);
    }
    let point = |(block, (held, all)): (usize, (f64, f64))| {
        ((block * HOURS) as f64 / 24.0, 100.0 * held / all)
    };
    blocks.into_iter().map(point).collect()
}
