use super::*;
use crate::estimate::{Distribution, Durations, Features};

fn groups() -> (GroupId, GroupId) {
    let mut durations = Durations::default();
    let group = |gpus| Features {
        gpus,
        ..Features::default()
    };
    (durations.group(&group(1)), durations.group(&group(2)))
}

#[test]
fn submissions_close_together_form_a_burst_and_others_do_not() {
    let (one, two) = groups();
    let mut bursts = Bursts::default();
    let first = bursts.join(one, 0.0);
    assert_eq!(bursts.join(one, GAP), first);
    assert_eq!(
        bursts.join(one, 2.0 * GAP),
        first,
        "the gap is from the last one"
    );
    assert_ne!(bursts.join(two, 2.0 * GAP), first, "another kind of work");
    assert_ne!(bursts.join(one, 3.0 * GAP + 1.0), first, "too late");
}

#[test]
fn a_burst_is_forgotten_with_its_last_job() {
    let (one, _) = groups();
    let mut bursts = Bursts::default();
    let first = bursts.join(one, 0.0);
    bursts.join(one, 1.0);
    bursts.leave(first, 30.0);
    assert_eq!(bursts.open.len(), 1);
    bursts.leave(first, 40.0);
    assert!(bursts.open.is_empty());
    assert_ne!(bursts.join(one, 2.0), first, "numbers are not used twice");
}

#[test]
fn work_that_outlives_its_group_makes_its_burst_longer_and_early_ends_make_it_shorter() {
    let (one, _) = groups();
    let mut bursts = Bursts::default();
    let group = [0.05; BINS];
    let id = bursts.join(one, 0.0);
    for at in 1..20 {
        bursts.join(one, f64::from(at));
    }
    let median = |bursts: &Bursts, reached: &[f64; BINS]| {
        let mut hazard = group;
        bursts.refine(id, reached, &mut hazard);
        Distribution::from_hazard(&hazard).median()
    };
    let unknown = Distribution::from_hazard(&group).median();
    assert!((median(&bursts, &[0.0; BINS]) - unknown).abs() < 1e-9);
    let mut reached = [0.0; BINS];
    reached[bin_of(20.0 * unknown)] = 20.0;
    assert!(median(&bursts, &reached) > 2.0 * unknown);
    for _ in 0..10 {
        bursts.leave(id, 0.1 * unknown);
    }
    assert!(median(&bursts, &[0.0; BINS]) < 0.5 * unknown);
}

#[test]
fn somebody_who_never_stops_submitting_begins_anew_now_and_then() {
    let (one, _) = groups();
    let mut bursts = Bursts::default();
    let joined = (0..=LARGEST).map(|at| bursts.join(one, f64::from(at)));
    let joined: std::collections::BTreeSet<BurstId> = joined.collect();
    assert_eq!(joined.len(), 2);
}
