use std::collections::BTreeMap;

use super::super::probe::EtaFigures;
use super::super::{Settings, Submission, pause_at};
use super::{Pool, fleet_for, generated, simulate};
use crate::estimate::Forecaster;
use crate::queue::{self, Shape};

/// As in published traces: what is submitted in one go runs for about equally long.
fn alike_in_one_go(mut jobs: Vec<Submission>) -> Vec<Submission> {
    let mut begun: BTreeMap<(Option<String>, Shape), (f64, f64)> = BTreeMap::new();
    for job in &mut jobs {
        let kind = (job.tenant.clone(), job.shape);
        let own = (job.submit, job.duration);
        let (last, first) = begun.get(&kind).copied().unwrap_or(own);
        let first = if job.submit - last > 60.0 {
            own.1
        } else {
            first
        };
        job.duration = first.powf(0.7) * own.1.powf(0.3);
        begun.insert(kind, (job.submit, first));
    }
    jobs
}

fn figures(jobs: &[Submission], policy: &str, probes: usize, progress: Option<f64>) -> EtaFigures {
    let pool = fleet_for(jobs, 0.95);
    let settings = Settings {
        probes,
        along: true,
        progress,
        forecaster: Forecaster {
            samples: 24,
            ..Forecaster::default()
        },
        ..Settings::default()
    };
    EtaFigures::of(&simulate(jobs, &pool, policy, &settings).probes)
}

#[test]
fn estimates_beat_the_naive_predictors_and_their_bands_hold() {
    let independent = generated(21, 14, 150);
    let alike = alike_in_one_go(independent.clone());
    for (jobs, siblings) in [(independent, "independent"), (alike, "alike")] {
        for policy in ["skipAhead", "warp"] {
            // Sixty questions are too few: their median moves by a tenth from list to list.
            let eta = figures(&jobs, policy, 240, None).at_submission;
            assert!(eta.asked >= 200, "{siblings} {policy}: {eta:?}");
            let naive = eta.naive_last_hour.min(eta.naive_queue_service);
            assert!(
                eta.median_rel_error < 0.8 * naive,
                "{siblings} {policy}: {eta:?}"
            );
            assert!(
                (0.55..=0.97).contains(&eta.covered_by_80),
                "{siblings} {policy}: {eta:?}"
            );
        }
    }
}

#[test]
fn progress_reports_make_them_better_half_way() {
    let jobs = alike_in_one_go(generated(21, 14, 150));
    let [blind, told] = [None, Some(0.15)].map(|progress| {
        let figures = figures(&jobs, "warp", 60, progress);
        figures.half_way.median_rel_error
    });
    assert!(told < blind, "{told} {blind}");
}

#[test]
fn every_waiting_job_gets_an_ordered_band_that_is_not_in_the_past() {
    let jobs = generated(22, 6, 150);
    let pool = fleet_for(&jobs, 1.2);
    for name in queue::NAMES {
        let policy = queue::named(name).unwrap();
        let pause = pause_at(&jobs, &pool, policy.as_ref(), &Settings::default(), 40).unwrap();
        let state = &pause.engine.state;
        let forecaster = Forecaster {
            samples: 10,
            ..Forecaster::default()
        };
        let all = forecaster.estimate(
            state,
            pause.engine.policy(),
            &pause.durations,
            &pause.history,
            &|_| true,
        );
        assert_eq!(all.len(), state.pending().len(), "{name}");
        for estimate in all.values() {
            assert!(state.now <= estimate.low, "{name}: {estimate:?}");
            assert!(estimate.low <= estimate.middle && estimate.middle <= estimate.high);
        }
    }
}

#[test]
fn known_ends_give_exact_starts() {
    // One node, one job that reports its progress exactly, one that waits for it.
    let mut jobs = generated(1, 1, 1);
    jobs.truncate(2);
    for (job, gpus) in jobs.iter_mut().zip([8, 8]) {
        job.shape = Shape::Gpus(gpus);
        job.duration = 5000.0;
    }
    jobs[0].submit = 0.0;
    jobs[1].submit = 1000.0;
    let settings = Settings {
        probes: 1,
        progress: Some(0.0),
        forecaster: Forecaster {
            report_sigma: 0.0,
            ..Forecaster::default()
        },
        ..Settings::default()
    };
    let outcome = simulate(&jobs, &Pool::uniform(1, 8), "warp", &settings);
    let [probe] = outcome.probes.as_slice() else {
        panic!("{:?}", outcome.probes)
    };
    assert!(
        (probe.actual - 4000.0).abs() < 1e-6 && (probe.middle - 4000.0).abs() < 1.0,
        "{probe:?}"
    );
}
