use super::super::{Report, trace};
use super::{fleet_for, generated, preemptible, simulate};

fn report(policy: &str, share: f64) -> Report {
    let jobs = generated(11, 14, 200);
    let pool = fleet_for(&jobs, 0.9);
    Report::of(
        policy,
        &simulate(&jobs, &pool, policy, &preemptible(share)),
        0.0,
    )
}

#[test]
fn without_eviction_warp_waits_less_than_skip_ahead_and_the_wide_do_not_starve() {
    let (warp, skip) = (report("warp", 0.0), report("skipAhead", 0.0));
    assert!(
        skip.wait.mean > 0.1,
        "the fleet is too large to tell: {}",
        skip.wait.mean
    );
    assert!(
        warp.wait.mean < 0.8 * skip.wait.mean,
        "{} {}",
        warp.wait.mean,
        skip.wait.mean
    );
    assert!(warp.wait_wide.p99 < skip.wait_wide.p99);
}

#[test]
fn with_eviction_warp_waits_a_fraction_loses_little_and_starts_everybody_soon() {
    let (warp, skip) = (report("warp", 1.0), report("skipAhead", 1.0));
    assert!(warp.evictions > 0);
    assert!(
        warp.wait.mean < 0.4 * skip.wait.mean,
        "{} {}",
        warp.wait.mean,
        skip.wait.mean
    );
    assert!(warp.lost_fraction < 0.02, "{}", warp.lost_fraction);
    assert!(warp.first_start.all.p99 < 0.5 * skip.first_start.all.p99);
    assert!(
        warp.worst_slowdown < 0.2 * skip.worst_slowdown,
        "{}",
        warp.worst_slowdown
    );
}

#[test]
fn the_more_can_be_evicted_the_shorter_the_wait() {
    let waits = [0.0, 0.5, 1.0].map(|share| report("warp", share).wait.mean);
    assert!(
        waits[0] > waits[1] && waits[1] > 0.8 * waits[2],
        "{waits:?}"
    );
}

#[test]
fn backfill_beats_strict_order() {
    let (fifo, easy) = (report("fifo", 0.0), report("easy", 0.0));
    assert!(easy.wait.mean < fifo.wait.mean);
    assert!(easy.utilisation >= fifo.utilisation - 0.01);
}

#[test]
fn the_busiest_days_are_found_and_their_order_changes_nothing_else() {
    let jobs = generated(3, 10, 50);
    let window = trace::busiest(&jobs, 4);
    let asked = |from: f64| -> f64 {
        let inside = jobs
            .iter()
            .filter(|j| from <= j.submit && j.submit < from + 4.0 * 86_400.0);
        inside.map(|j| j.duration * f64::from(j.shape.gpus())).sum()
    };
    let first = jobs[0].submit;
    let last = jobs[jobs.len() - 1].submit - 4.0 * 86_400.0;
    let begins = (0..10).map(|day| first + f64::from(day) * 86_400.0);
    let best = begins
        .filter(|begin| *begin <= last)
        .map(asked)
        .fold(0.0, f64::max);
    assert!((asked(window.from) - best).abs() < 1e-6 * best);

    let moved = trace::shuffle_days(&jobs, window, 1);
    assert_ne!(moved, jobs);
    let outside = |list: &[super::Submission]| -> Vec<super::Submission> {
        list.iter()
            .filter(|j| !window.contains(j.submit))
            .cloned()
            .collect()
    };
    assert_eq!(outside(&moved), outside(&jobs));
    let facts = |list: &[super::Submission]| {
        let mut facts: Vec<(usize, i64)> = list
            .iter()
            .map(|j| {
                (
                    j.line,
                    super::whole((j.submit - window.from).rem_euclid(86_400.0) + 0.5),
                )
            })
            .map(|(line, time)| (line, i64::try_from(time).unwrap()))
            .collect();
        facts.sort_unstable();
        facts
    };
    assert_eq!(facts(&moved), facts(&jobs));
}
