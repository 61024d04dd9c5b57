use crate::estimate::dice::Dice;

use super::{Durations, Features};

fn features(tenant: Option<&str>, model: Option<&str>, gpus: u32) -> Features {
    Features {
        tenant: tenant.map(str::to_owned),
        model: model.map(str::to_owned),
        image: None,
        gpus,
    }
}

/// Log-normal around `median` with spread 1.
fn draw(dice: &mut Dice, median: f64) -> f64 {
    median * dice.normal().exp()
}

fn median(durations: &mut Durations, features: &Features) -> f64 {
    let group = durations.group(features);
    durations.of(group).quantile_after(0.0, 0.5)
}

#[test]
fn a_busy_tenant_speaks_for_itself_and_a_new_one_starts_from_what_is_known() {
    let mut durations = Durations::default();
    let mut dice = Dice::new(1);
    let quick = features(Some("quick"), None, 1);
    let slow = features(Some("slow"), None, 1);
    for _ in 0..300 {
        let (a, b) = (durations.group(&quick), durations.group(&slow));
        durations.observe(a, draw(&mut dice, 100.0));
        durations.observe(b, draw(&mut dice, 20_000.0));
    }
    let (q, s) = (
        median(&mut durations, &quick),
        median(&mut durations, &slow),
    );
    assert!((50.0..200.0).contains(&q), "{q}");
    assert!((10_000.0..40_000.0).contains(&s), "{s}");
    let new = median(&mut durations, &features(Some("new"), None, 1));
    assert!(q < new && new < s, "{q} {new} {s}");
}

#[test]
fn any_feature_may_be_absent() {
    let mut durations = Durations::default();
    let known = durations.group(&features(Some("t"), Some("m"), 2));
    for _ in 0..50 {
        durations.observe(known, 5_000.0);
    }
    for (tenant, model) in [(None, None), (Some("t"), None), (None, Some("m"))] {
        let guess = median(&mut durations, &features(tenant, model, 2));
        assert!(
            (2_000.0..12_000.0).contains(&guess),
            "{tenant:?} {model:?}: {guess}"
        );
    }
}

#[test]
fn nothing_seen_still_gives_a_distribution() {
    let mut durations = Durations::default();
    let guess = median(&mut durations, &features(None, None, 1));
    assert!(guess.is_finite() && guess > 0.0);
}

#[test]
fn a_change_of_habit_is_noticed_within_a_few_jobs() {
    let mut durations = Durations::default();
    let group = durations.group(&features(Some("t"), None, 1));
    for _ in 0..500 {
        durations.observe(group, 60.0);
    }
    for _ in 0..24 {
        durations.observe(group, 36_000.0);
    }
    let now = durations.of(group).quantile_after(0.0, 0.5);
    assert!(now > 10_000.0, "{now}");
}

#[test]
fn the_80_percent_band_holds_about_80_percent() {
    let mut durations = Durations::default();
    let mut dice = Dice::new(7);
    let (mut inside, mut asked) = (0, 0);
    for round in 0..4000 {
        let tenant = dice.below(12);
        let features = features(Some(&format!("t{tenant}")), None, 1 << (tenant % 3));
        let group = durations.group(&features);
        let duration = draw(
            &mut dice,
            200.0 * 2_f64.powi(i32::try_from(tenant).unwrap()),
        );
        if round >= 500 {
            let d = durations.of(group);
            asked += 1;
            let band = d.quantile_after(0.0, 0.1)..=d.quantile_after(0.0, 0.9);
            inside += u32::from(band.contains(&duration));
        }
        durations.observe(group, duration);
    }
    let share = f64::from(inside) / f64::from(asked);
    assert!((0.74..=0.88).contains(&share), "{share}");
}
