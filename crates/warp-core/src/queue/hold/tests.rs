use proptest::prelude::*;

use super::Hold;
use crate::estimate::{Durations, Features};
use crate::queue::engine::{Engine, Event};
use crate::queue::job::{Job, Need, Shape};
use crate::queue::pool::Pool;
use crate::queue::skip_ahead::SkipAhead;
use crate::queue::state::State;
use crate::queue::warp::{Tuning, Warp};
use crate::queue::{HOUR, Policy};

/// Submission, duration and GPUs of each job.
type Row = (f64, f64, u32);

/// Runs the rows on four nodes of eight; the first start of each job.
fn starts(rows: &[Row], policy: Box<dyn Policy>) -> Vec<f64> {
    let mut durations = Durations::default();
    let mut engine = Engine::new(Pool::uniform(4, 8), policy);
    let group = durations.group(&Features::default());
    let mut starts = vec![f64::NAN; rows.len()];
    let mut note = |engine: &mut Engine| {
        for event in engine.drain() {
            if let Event::Started { at, id, .. } = event {
                starts[usize::try_from(id).unwrap()] = at;
            }
        }
    };
    for (id, (submit, duration, gpus)) in (0..).zip(rows) {
        while let Some(at) = engine.next_event().filter(|at| at < submit) {
            engine.step(at, &mut durations);
            note(&mut engine);
        }
        engine.wait_until(*submit);
        let accepts = engine.state.pool().classes_named(&[]);
        let need = engine.state.intern(Need {
            shape: Shape::Gpus(*gpus),
            accepts,
        });
        let job = Job::new(id, *submit, need, *gpus, group);
        engine.submit(job, *duration, &mut durations);
        engine.pass(&mut durations);
        note(&mut engine);
    }
    while let Some(at) = engine.next_event() {
        engine.step(at, &mut durations);
        note(&mut engine);
    }
    starts
}

fn patient(patience: f64) -> Box<dyn Policy> {
    Box::new(Warp::new(Tuning {
        patience,
        ..Tuning::default()
    }))
}

const LONGEST: f64 = 2.0 * HOUR;

fn rows() -> impl Strategy<Value = Vec<Row>> {
    let gpus = prop_oneof![6 => 1..=4_u32, 1 => Just(8_u32), 1 => Just(16_u32), 1 => Just(32_u32)];
    let row = (0.0..1200.0_f64, 60.0..LONGEST, gpus);
    prop::collection::vec(row, 5..120).prop_map(|rows| {
        let mut clock = 0.0;
        let place = |(gap, duration, gpus): (f64, f64, u32)| {
            clock += gap;
            (clock, duration, gpus)
        };
        rows.into_iter().map(place).collect()
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// The rule: at most `patience` plus one drain for each job in line before it.
    #[test]
    fn nobody_waits_longer_than_the_rule_allows(rows in rows(), patience in HOUR..20.0 * HOUR) {
        let starts = starts(&rows, patient(patience));
        for (at, (submit, ..)) in rows.iter().enumerate() {
            let overdue = submit + patience;
            let before = (0..at).filter(|other| starts[*other] > overdue).count();
            let bound = overdue + (before + 1) as f64 * LONGEST;
            prop_assert!(starts[at] <= bound + 1.0, "job {at} started {} > {bound}", starts[at]);
        }
    }
}

/// Narrow work arrives for ever and always leaves some GPU busy on every node.
fn stream() -> Vec<Row> {
    let narrow = (0..2000).map(|k| (f64::from(k) * 100.0, 3000.0, 1));
    let mut rows: Vec<Row> = narrow.collect();
    rows.insert(200, (200.0 * 100.0 - 1.0, 600.0, 32));
    rows
}

#[test]
fn skip_ahead_starves_a_wide_job_and_the_rule_does_not() {
    let rows = stream();
    let wait = |policy| starts(&rows, policy)[200] - rows[200].0;
    assert!(wait(Box::new(SkipAhead)) > 150_000.0);
    let patience = 4.0 * HOUR;
    assert!(wait(patient(patience)) <= patience + 3000.0 + 1.0);
}

#[test]
fn a_hold_binds_its_own_priority_and_below_but_not_above() {
    let mut state = State::new(Pool::uniform(1, 8));
    let mut durations = Durations::default();
    let group = durations.group(&Features::default());
    let accepts = state.pool().classes_named(&[]);
    let wide = state.intern(Need {
        shape: Shape::Gpus(8),
        accepts: accepts.clone(),
    });
    let one = state.intern(Need {
        shape: Shape::Gpus(1),
        accepts,
    });
    state.submit(Job::new(0, 0.0, one, 1, group), &SkipAhead, &mut durations);
    SkipAhead.pass(&mut state, &mut durations);
    let slot = state.submit(Job::new(1, 0.0, wide, 8, group), &SkipAhead, &mut durations);
    state.now = 10.0;
    let mut hold = Hold::new(20.0);
    hold.update(&mut state, &mut durations);
    assert!(hold.holder().is_none());
    state.now = 21.0;
    hold.update(&mut state, &mut durations);
    assert_eq!(hold.holder(), Some(slot));
    assert!(hold.against(0).is_some_and(|nodes| nodes.contains(0)));
    assert!(hold.against(-1).is_some() && hold.against(1).is_none());
}
