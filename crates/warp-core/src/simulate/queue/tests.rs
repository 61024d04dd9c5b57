//! The algorithms on a generated list of the published trace's shape: mostly single GPUs, durations
//! over five orders of magnitude that depend on the tenant, bursts and a daily rhythm.

mod estimates;
mod invariants;
mod quality;

use crate::estimate::dice::Dice;
use crate::queue::{self, Pool, Shape};

use super::report::whole;
use super::{Outcome, Settings, Submission, run, trace};

/// Twelve tenants with habits of their own over `days`, in order of submission.
fn generated(seed: u64, days: u32, per_day: u32) -> Vec<Submission> {
    let mut dice = Dice::new(seed);
    let mut jobs = Vec::new();
    let total = days * per_day;
    while jobs.len() < total as usize {
        let tenant = whole(dice.unit().powi(2) * 12.0).min(11);
        // More by day than by night, and often several of a kind at once.
        let hour = 14.0 + 4.0 * dice.normal();
        let day = f64::from(days) * dice.unit();
        let begin = day.floor() * 86_400.0 + hour.clamp(0.0, 23.9) * 3600.0;
        let gpus = [1, 1, 1, 1, 1, 1, 1, 1, 2, 2, 4, 8][dice.below(12)];
        let gpus = if dice.unit() < 0.01 { 16 } else { gpus };
        for copy in 0..=dice.below(6) {
            let median = 300.0 * 1.8_f64.powi(i32::try_from(tenant).unwrap());
            jobs.push(Submission {
                line: jobs.len() + 2,
                submit: begin + copy as f64 * 20.0,
                duration: (median * (1.3 * dice.normal()).exp()).clamp(5.0, 400_000.0),
                shape: Shape::Gpus(gpus),
                types: Vec::new(),
                priority: 0,
                preemptible: None,
                tenant: Some(format!("t{tenant}")),
                model: None,
                image: None,
            });
        }
    }
    trace::in_order(&jobs)
}

/// A fleet on which the list makes the given load.
fn fleet_for(jobs: &[Submission], load: f64) -> Pool {
    let asked: f64 = jobs
        .iter()
        .map(|j| j.duration * f64::from(j.shape.gpus()))
        .sum();
    let span = jobs.last().map_or(1.0, |j| j.submit) - jobs.first().map_or(0.0, |j| j.submit);
    let nodes = whole((asked / span / load / 8.0).ceil());
    Pool::uniform(u32::try_from(nodes).unwrap().max(2), 8)
}

fn simulate(jobs: &[Submission], pool: &Pool, policy: &str, settings: &Settings) -> Outcome {
    let policy = queue::named(policy).unwrap();
    run(jobs, pool, policy.as_ref(), settings, &mut |_| {})
}

fn preemptible(share: f64) -> Settings {
    Settings {
        preemptible: share,
        ..Settings::default()
    }
}
