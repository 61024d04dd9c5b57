use std::collections::BTreeMap;

use proptest::prelude::*;

use crate::queue::{self, Pool, Shape};

use super::super::{Refused, Submission};
use super::{fleet_for, generated, preemptible, simulate};

/// GPU-seconds of all jobs that ran.
fn work(outcome: &super::Outcome) -> f64 {
    outcome
        .fates
        .iter()
        .map(|f| f.duration * f64::from(f.gpus))
        .sum()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(12))]

    #[test]
    fn every_job_ends_and_all_gpu_time_is_accounted_for(
        seed in 0..1000_u64, share in prop_oneof![Just(0.0), Just(1.0), 0.0..1.0_f64],
        load in 0.7..1.1_f64,
    ) {
        let jobs = generated(seed, 3, 120);
        let pool = fleet_for(&jobs, load);
        for policy in queue::NAMES {
            let outcome = simulate(&jobs, &pool, policy, &preemptible(share));
            prop_assert_eq!(outcome.fates.len() + outcome.refused.len(), jobs.len());
            // Held GPU-time = work done + work lost, whatever was evicted.
            let held: f64 = outcome.busy.iter().sum();
            let accounted = work(&outcome) + outcome.lost;
            prop_assert!((held - accounted).abs() <= 1e-6 * held, "{policy}: {held} {accounted}");
            let most = pool.total() as f64 * 3600.0 * (1.0 + 1e-9);
            prop_assert!(outcome.busy.iter().all(|held| *held <= most));
            for fate in &outcome.fates {
                prop_assert!(fate.first_start >= fate.submit);
                prop_assert!(fate.end + 1e-6 >= fate.first_start + fate.duration);
            }
        }
    }

    #[test]
    fn nobody_evicts_who_evicted_it(seed in 0..1000_u64, share in 0.1..1.0_f64) {
        let jobs = generated(seed, 4, 120);
        let pool = fleet_for(&jobs, 1.2);
        for policy in ["las", "warp"] {
            let outcome = simulate(&jobs, &pool, policy, &preemptible(share));
            let mut pairs = BTreeMap::new();
            for (at, victim, by) in &outcome.evictions {
                prop_assert!(!pairs.contains_key(&(*by, *victim)), "{victim} evicted by {by} at {at}");
                pairs.insert((*victim, *by), *at);
            }
        }
    }
}

#[test]
fn the_same_input_and_seed_give_the_same_result() {
    let jobs = generated(5, 4, 150);
    let pool = fleet_for(&jobs, 0.95);
    let mut settings = preemptible(0.5);
    settings.probes = 5;
    settings.forecaster.samples = 8;
    for policy in queue::NAMES {
        let once = simulate(&jobs, &pool, policy, &settings);
        let again = simulate(&jobs, &pool, policy, &settings);
        assert_eq!(format!("{once:?}"), format!("{again:?}"), "{policy}");
    }
}

#[test]
fn asking_for_estimates_changes_nothing() {
    let jobs = generated(6, 4, 150);
    let pool = fleet_for(&jobs, 0.95);
    let mut asked = preemptible(0.0);
    asked.probes = 10;
    asked.forecaster.samples = 8;
    let with = simulate(&jobs, &pool, "warp", &asked);
    let without = simulate(&jobs, &pool, "warp", &preemptible(0.0));
    assert!(!with.probes.is_empty());
    assert_eq!(with.starts, without.starts);
}

#[test]
fn without_anything_to_evict_nothing_is_evicted_and_nothing_lost() {
    let jobs = generated(7, 3, 150);
    let pool = fleet_for(&jobs, 1.1);
    for policy in queue::NAMES {
        let outcome = simulate(&jobs, &pool, policy, &preemptible(0.0));
        assert!(
            outcome.evictions.is_empty() && outcome.lost == 0.0,
            "{policy}"
        );
    }
}

fn single(submit: f64, duration: f64, gpus: u32) -> Submission {
    Submission {
        line: 2,
        submit,
        duration,
        shape: Shape::Gpus(gpus),
        types: Vec::new(),
        priority: 0,
        preemptible: None,
        tenant: None,
        model: None,
        image: None,
    }
}

#[test]
fn a_job_that_can_never_run_is_refused_and_holds_nobody_up() {
    let mut jobs = vec![single(0.0, 10.0, 99), single(1.0, 10.0, 8)];
    jobs[0].line = 7;
    for policy in queue::NAMES {
        let outcome = simulate(&jobs, &Pool::uniform(2, 8), policy, &preemptible(0.0));
        assert_eq!(outcome.fates.len(), 1, "{policy}");
        let [Refused { line: 7, reason }] = outcome.refused.as_slice() else {
            panic!("{policy}: {:?}", outcome.refused);
        };
        assert!(reason.to_string().contains("99 GPUs"));
    }
}

#[test]
fn a_higher_class_goes_first_and_may_evict_a_lower_one() {
    let mut jobs: Vec<Submission> = (0..4).map(|k| single(f64::from(k), 50_000.0, 8)).collect();
    for job in &mut jobs {
        job.preemptible = Some(true);
    }
    let mut urgent = single(1000.0, 100.0, 8);
    urgent.priority = 10;
    jobs.push(urgent);
    let outcome = simulate(&jobs, &Pool::uniform(2, 8), "warp", &preemptible(0.0));
    let urgent = outcome.starts[&4] - 1000.0;
    assert!(urgent <= 660.0, "waited {urgent} s");
    assert_eq!(outcome.evictions.first().map(|(_, _, by)| *by), Some(4));
    assert!(outcome.evictions.iter().all(|(_, victim, _)| *victim != 4));
}
