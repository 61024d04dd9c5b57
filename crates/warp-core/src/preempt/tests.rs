use proptest::prelude::*;

use super::{Plan, Terms, may_evict, plan};
use crate::estimate::{Durations, Features};
use crate::queue::fifo::Fifo;
use crate::queue::job::{Checkpoint, Job, Need, Run, Shape};
use crate::queue::node_set::End;
use crate::queue::pool::Pool;
use crate::queue::state::{Slot, State};

const NOW: f64 = 100_000.0;
const TERMS: Terms = Terms {
    factor: 5.0,
    min_run: 7200.0,
};

/// Running work as the strategies draw it.
#[derive(Clone, Debug)]
struct Running {
    shape: Shape,
    checkpointed: bool,
    ran: f64,
    rank: f64,
    priority: i32,
}

fn running() -> impl Strategy<Value = Running> {
    let shape = prop_oneof![
        6 => (1..=8_u32).prop_map(Shape::Gpus),
        1 => prop_oneof![Just(Shape::Gpus(16)), Just(Shape::Gpus(12))],
        1 => (2..5_u32, 1..5_u32).prop_map(|(count, gpus)| Shape::Members { count, gpus }),
    ];
    (
        shape,
        any::<bool>(),
        0.0..50_000.0_f64,
        0.0..100.0_f64,
        0..2_i32,
    )
        .prop_map(|(shape, checkpointed, ran, rank, priority)| Running {
            shape,
            checkpointed,
            ran,
            rank,
            priority,
        })
}

/// A state with as much of `work` running as fits, and `preemptor` in line.
fn state(work: &[Running], preemptor: Shape, priority: i32) -> (State, Slot) {
    let mut durations = Durations::default();
    let mut state = State::new(Pool::uniform(6, 8));
    state.now = NOW;
    let all = state.pool().classes_named(&[]);
    let group = durations.group(&Features::default());
    for (id, item) in (0..).zip(work) {
        let need = Need {
            shape: item.shape,
            accepts: all.clone(),
        };
        let Some(placement) = state.pool().fit(&need, None, End::Low) else {
            continue;
        };
        let number = state.intern(need);
        let mut job = Job::new(id, 0.0, number, item.shape.gpus(), group);
        job.priority = item.priority;
        job.checkpoint = item.checkpointed.then(Checkpoint::default);
        let since = NOW - item.ran;
        let (expected_end, expected_until) = (NOW, NOW);
        let rank = item.rank;
        let run = Run {
            since,
            warm: since,
            placement,
            expected_end,
            expected_until,
            rank,
        };
        state.adopt(job, run);
    }
    let number = state.intern(Need {
        shape: preemptor,
        accepts: all,
    });
    let mut job = Job::new(9_999, 0.0, number, preemptor.gpus(), group);
    job.priority = priority;
    let slot = state.submit(job, &Fifo, &mut durations);
    (state, slot)
}

/// The pool once some work is gone.
fn without(state: &State, victims: &[Slot]) -> Pool {
    let mut pool = state.pool().clone();
    for victim in victims {
        for (node, gpus) in state.job(*victim).run.as_ref().unwrap().placement.parts() {
            pool.give(*node, *gpus);
        }
    }
    pool
}

fn preemptor() -> impl Strategy<Value = Shape> {
    prop_oneof![
        (1..=32_u32).prop_map(Shape::Gpus),
        (2..6_u32, 1..9_u32).prop_map(|(count, gpus)| Shape::Members { count, gpus }),
    ]
}

proptest! {
    #[test]
    fn a_plan_places_its_preemptor_and_has_no_victim_too_many(
        work in prop::collection::vec(running(), 0..30),
        shape in preemptor(), rank in 0.0..20.0_f64, priority in 0..2_i32,
    ) {
        let (state, slot) = state(&work, shape, priority);
        let job = state.job(slot);
        let Some(Plan { victims, placement }) = plan(&state, job, rank, &TERMS, None) else {
            return Ok(());
        };
        let need = state.need(job.need);
        prop_assert_eq!(placement.gpus(), shape.gpus());
        let pool = without(&state, &victims);
        for (node, gpus) in placement.parts() {
            prop_assert!(*gpus <= pool.free_on(*node), "node {} is not free for it", node);
        }
        for victim in &victims {
            prop_assert!(may_evict(&state, job, rank, state.job(*victim), &TERMS));
            let others: Vec<Slot> = victims.iter().copied().filter(|v| v != victim).collect();
            prop_assert!(without(&state, &others).fit(need, None, End::Low).is_none());
        }
    }

    #[test]
    fn a_plan_is_found_whenever_evicting_everything_allowed_would_do(
        work in prop::collection::vec(running(), 0..30),
        gpus in 1..=32_u32, rank in 0.0..20.0_f64,
    ) {
        let (state, slot) = state(&work, Shape::Gpus(gpus), 0);
        let job = state.job(slot);
        let all: Vec<Slot> = state
            .running()
            .iter()
            .copied()
            .filter(|v| may_evict(&state, job, rank, state.job(*v), &TERMS))
            .collect();
        let possible = without(&state, &all).fit(state.need(job.need), None, End::Low).is_some();
        let fits_already = state.pool().fit(state.need(job.need), None, End::Low).is_some();
        prop_assume!(!fits_already && !all.is_empty());
        prop_assert_eq!(plan(&state, job, rank, &TERMS, None).is_some(), possible);
    }
}

fn item(shape: Shape, ran: f64, priority: i32) -> Running {
    Running {
        shape,
        checkpointed: true,
        ran,
        rank: 50.0,
        priority,
    }
}

#[test]
fn the_victim_is_the_one_that_loses_least() {
    // Six full nodes; the fourth saved itself a minute ago, the others up to half an hour ago.
    let ran = [9_000.0, 10_000.0, 8_900.0, 9_060.0, 10_700.0, 8_500.0];
    let work = ran.map(|ran| item(Shape::Gpus(8), ran, 0));
    let (state, slot) = state(&work, Shape::Gpus(8), 0);
    let found = plan(&state, state.job(slot), 1.0, &TERMS, None).unwrap();
    let ids: Vec<u64> = found.victims.iter().map(|v| state.job(*v).id).collect();
    // 9000 s is exactly five checkpoints: nothing unsaved.
    assert_eq!(ids, [0]);
}

#[test]
fn equals_are_protected_for_a_while_and_lower_classes_are_not() {
    let young = [(); 6].map(|()| item(Shape::Gpus(8), 60.0, 0));
    let (equal, slot) = state(&young, Shape::Gpus(8), 0);
    assert!(plan(&equal, equal.job(slot), 1.0, &TERMS, None).is_none());
    let (higher, slot) = state(&young, Shape::Gpus(8), 1);
    assert!(plan(&higher, higher.job(slot), 1.0, &TERMS, None).is_some());
    let important = [(); 6].map(|()| item(Shape::Gpus(8), 50_000.0, 1));
    let (lower, slot) = state(&important, Shape::Gpus(8), 0);
    assert!(plan(&lower, lower.job(slot), 1.0, &TERMS, None).is_none());
}

#[test]
fn nobody_evicts_who_evicted_it() {
    let work = [(); 6].map(|()| item(Shape::Gpus(8), 50_000.0, 0));
    let (mut state, slot) = state(&work, Shape::Gpus(8), 0);
    state.job_mut(slot).evicted_by = (0..6).collect();
    assert!(plan(&state, state.job(slot), 1.0, &TERMS, None).is_none());
    state.job_mut(slot).evicted_by = (1..6).collect();
    let found = plan(&state, state.job(slot), 1.0, &TERMS, None).unwrap();
    assert_eq!(
        found
            .victims
            .iter()
            .map(|v| state.job(*v).id)
            .collect::<Vec<_>>(),
        [0]
    );
}

#[test]
fn work_that_has_saved_nothing_since_it_started_stays() {
    let work = Running {
        shape: Shape::Gpus(8),
        checkpointed: true,
        ran: 8000.0,
        rank: 100.0,
        priority: 0,
    };
    let (mut state, preemptor) = state(&vec![work; 6], Shape::Gpus(8), 0);
    let evicts = |state: &State| plan(state, state.job(preemptor), 1.0, &TERMS, None).is_some();
    assert!(evicts(&state));
    for slot in state.running().to_vec() {
        state.job_mut(slot).checkpoint = Some(Checkpoint {
            period: 9000.0,
            restart: 300.0,
        });
    }
    assert!(!evicts(&state));
}
