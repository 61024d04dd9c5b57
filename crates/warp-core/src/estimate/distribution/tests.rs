use proptest::prelude::*;

use super::{BINS, Distribution, bin_of};

fn distribution() -> impl Strategy<Value = Distribution> {
    prop::collection::vec(0.0..0.6_f64, BINS).prop_map(|hazard| {
        let mut fixed = [0.0; BINS];
        fixed.copy_from_slice(&hazard);
        Distribution::from_hazard(&fixed)
    })
}

proptest! {
    #[test]
    fn quantiles_grow_with_chance_and_never_lie_in_the_past(
        d in distribution(), age in 0.0..1e6_f64, a in 0.0..1.0_f64, b in 0.0..1.0_f64,
    ) {
        let (low, high) = (a.min(b), a.max(b));
        let (near, far) = (d.quantile_after(age, low), d.quantile_after(age, high));
        prop_assert!(age <= near && near <= far, "{age} {near} {far}");
    }

    #[test]
    fn a_quantile_is_survived_with_the_chance_left(
        d in distribution(), age in 0.0..1e5_f64, q in 0.01..0.99_f64,
    ) {
        let here = d.survival(age);
        prop_assume!(here > 1e-9);
        let after = d.survival(d.quantile_after(age, q));
        prop_assert!((after / here - (1.0 - q)).abs() < 1e-6, "{after} of {here} at {q}");
    }

    #[test]
    fn the_index_is_never_above_the_cost_of_running_to_the_end(
        d in distribution(), age in 0.0..1e5_f64,
    ) {
        prop_assume!(d.survival(age) > 1e-9);
        let to_the_end = d.mean_residual(age).max(1.0);
        prop_assert!(d.gittins(age) <= to_the_end * (1.0 + 1e-9));
    }

    #[test]
    fn bins_follow_the_order_of_durations(a in 0.0..1e9_f64, b in 0.0..1e9_f64) {
        prop_assert!(a > b || bin_of(a) <= bin_of(b));
        prop_assert!(bin_of(a) < BINS);
    }
}

#[test]
fn work_that_usually_ends_early_gets_a_worse_index_once_it_has_not() {
    // Nine of ten end inside two minutes, the others after a day.
    let mut hazard = [0.0; BINS];
    hazard[bin_of(100.0)] = 0.9;
    hazard[bin_of(90_000.0)] = 1.0;
    let d = Distribution::from_hazard(&hazard);
    assert!(d.gittins(0.0) < 200.0, "{}", d.gittins(0.0));
    assert!(d.gittins(300.0) > 50_000.0, "{}", d.gittins(300.0));
}

#[test]
fn work_older_than_any_bin_still_has_an_answer() {
    let d = Distribution::from_hazard(&[0.1; BINS]);
    let age = 1e9;
    assert!(d.quantile_after(age, 0.5) >= age);
    assert!(d.gittins(age).is_finite() && d.mean_residual(age).is_finite());
}
