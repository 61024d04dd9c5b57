//! The figures of a run, in hours, in the form `warp simulate queue -o json` prints.

use serde::Serialize;

use super::probe::EtaFigures;
use super::{Fate, Outcome};

/// From this many GPUs a job counts as wide.
pub const WIDE: u32 = 8;
/// Durations below this do not make a slowdown larger, seconds.
const SLOWDOWN_FLOOR: f64 = 60.0;

/// Mean and percentiles of a set of spans, in hours.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Spread {
    pub mean: f64,
    pub p50: f64,
    pub p99: f64,
}

impl Spread {
    /// Of spans in seconds; zeros for none.
    pub fn of(mut spans: Vec<f64>) -> Self {
        if spans.is_empty() {
            return Self::default();
        }
        spans.sort_by(f64::total_cmp);
        let hours = |seconds: f64| seconds / 3600.0;
        Self {
            mean: hours(spans.iter().sum::<f64>() / spans.len() as f64),
            p50: hours(percentile(&spans, 0.5)),
            p99: hours(percentile(&spans, 0.99)),
        }
    }
}

/// Nearest-rank percentile of sorted values; 0 for none.
pub fn percentile(sorted: &[f64], q: f64) -> f64 {
    let rank = whole((q * sorted.len() as f64).ceil()).max(1) - 1;
    sorted
        .get(rank.min(sorted.len().saturating_sub(1)))
        .copied()
        .unwrap_or(0.0)
}

/// The whole part of a non-negative number.
#[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)]
pub(super) fn whole(x: f64) -> usize {
    x.max(0.0) as usize
}

/// First starts, of all jobs and of the wide ones.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct FirstStart {
    #[serde(flatten)]
    pub all: Spread,
    pub wide: Spread,
}

/// The figures of one policy.
#[derive(Clone, Debug, Serialize)]
pub struct Report {
    pub policy: String,
    pub jobs: usize,
    /// The unit of every span below.
    pub unit: &'static str,
    pub jct: Spread,
    pub wait: Spread,
    pub wait_wide: Spread,
    pub first_start: FirstStart,
    pub worst_slowdown: f64,
    pub lost_fraction: f64,
    pub utilisation: f64,
    pub evictions: usize,
    pub refused: usize,
    pub eta: EtaFigures,
    /// Wall-clock time of the run; the caller's clock.
    pub seconds: f64,
}

impl Report {
    pub fn of(policy: &str, outcome: &Outcome, seconds: f64) -> Self {
        let fates = &outcome.fates;
        let wide = || fates.iter().filter(|fate| fate.gpus >= WIDE);
        let useful: f64 = fates.iter().map(|f| f.duration * f64::from(f.gpus)).sum();
        let slowdown = |f: &Fate| (f.end - f.submit) / f.duration.max(SLOWDOWN_FLOOR);
        Self {
            policy: policy.to_owned(),
            jobs: fates.len(),
            unit: "hours",
            jct: Spread::of(fates.iter().map(|f| f.end - f.submit).collect()),
            wait: Spread::of(fates.iter().map(wait).collect()),
            wait_wide: Spread::of(wide().map(wait).collect()),
            first_start: FirstStart {
                all: Spread::of(fates.iter().map(first).collect()),
                wide: Spread::of(wide().map(first).collect()),
            },
            worst_slowdown: fates.iter().map(slowdown).fold(0.0, f64::max),
            lost_fraction: if useful > 0.0 {
                outcome.lost / (useful + outcome.lost)
            } else {
                0.0
            },
            utilisation: utilisation(outcome),
            evictions: outcome.evictions.len(),
            refused: outcome.refused.len(),
            eta: EtaFigures::of(&outcome.probes),
            seconds,
        }
    }
}

/// Everything between submission and end that was not work.
pub fn wait(fate: &Fate) -> f64 {
    (fate.end - fate.submit - fate.duration).max(0.0)
}

fn first(fate: &Fate) -> f64 {
    fate.first_start - fate.submit
}

/// Share of the GPUs held, from the first submission to the last.
fn utilisation(outcome: &Outcome) -> f64 {
    let first = outcome
        .fates
        .iter()
        .map(|f| f.submit)
        .fold(f64::INFINITY, f64::min);
    let last = outcome.fates.iter().map(|f| f.submit).fold(0.0, f64::max);
    let hour = |at: f64| whole((at - outcome.begin) / 3600.0);
    let stop = (hour(last) + 1).min(outcome.busy.len());
    let start = if first.is_finite() {
        hour(first).min(stop)
    } else {
        stop
    };
    // A sum of nothing is -0.0.
    let held = outcome.busy[start..stop]
        .iter()
        .fold(0.0, |sum, busy| sum + busy);
    let hours = (stop - start).max(1);
    if outcome.gpus == 0 {
        return 0.0;
    }
    held / (hours as f64 * 3600.0 * outcome.gpus as f64)
}
