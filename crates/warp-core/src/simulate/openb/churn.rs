//! Departures: requests arrive, run for a random time and leave, at a steady offered load. What does
//! not fit on arrival is refused. Half-way the mix of requests may change.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::{Trace, fleet, mix};
use crate::fleet::WorkState;
use crate::random::Random;
use crate::schedule::{Planner, Policy};

#[derive(Clone, Copy, Debug)]
pub struct Settings {
    pub policy: Policy,
    pub seed: u64,
    /// Offered work, as a multiple of the fleet's GPUs.
    pub load: f64,
    /// Whether the strategy is told the mix of requests beforehand.
    pub prior: bool,
}

/// Measured after the fleet has filled up (and, with a second list, after the change).
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Outcome {
    /// Mean allocation, in percent of all GPUs.
    pub allocated: f64,
    /// Refused work, in percent of the GPU milli asked for.
    pub refused: f64,
    /// The same for requests of two or more GPUs.
    pub refused_multi: f64,
    pub decisions: u64,
}

/// Replays `trace`; from the middle on, requests come from `then` if there is one.
pub fn run(trace: &Trace, then: Option<&Trace>, settings: &Settings) -> Outcome {
    let mut fleet = fleet(&trace.machines);
    let capacity = fleet.totals().gpu_milli() as f64;
    let known = mix(&fleet, &trace.pods);
    let strategy = if settings.prior {
        settings.policy.informed(settings.seed, &fleet, &known)
    } else {
        settings.policy.strategy(settings.seed)
    };
    let mut random = Random::new(settings.seed);
    let mut planner = Planner::with_strategy(strategy, random.next_u64());
    let lists = [trace, then.unwrap_or(trace)].map(|trace| {
        let requests: Vec<_> = trace
            .pods
            .iter()
            .map(|pod| Arc::new(pod.request()))
            .collect();
        let mean = trace
            .pods
            .iter()
            .map(|pod| pod.total_milli() as f64)
            .sum::<f64>()
            / (trace.pods.len() as f64).max(1.0);
        // One arrival per unit of time: by Little's law this life time offers the load.
        (requests, settings.load * capacity / mean.max(1.0))
    });
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "a number of arrivals"
    )]
    let half = (2.0 * lists[0].1).min(1e7) as u64;
    let mut leaving = BTreeMap::<(u64, u64), Arc<str>>::new();
    let (mut outcome, mut held) = (Outcome::default(), 0.0);
    let (mut asked, mut refused, mut asked_multi, mut refused_multi) = (0.0, 0.0, 0.0, 0.0);
    for now in 0..2 * half {
        while let Some(entry) = leaving.first_entry()
            && entry.key().0 <= now
        {
            let work = fleet.release(&entry.remove());
            held -= work
                .and_then(|work| work.request.gpu.as_ref().map(|g| g.total_milli() as f64))
                .unwrap_or(0.0);
        }
        let (requests, life) = &lists[usize::from(now >= half)];
        let request = &requests[random.below(requests.len())];
        let milli = request
            .gpu
            .as_ref()
            .map_or(0.0, |gpu| gpu.total_milli() as f64);
        let several = request.gpu.as_ref().is_some_and(|gpu| gpu.count > 1);
        let stays = -life * (1.0 - random.unit()).ln();
        let placement = planner.choose(&fleet, request);
        outcome.decisions += 1;
        let measured = now >= half + half / 4;
        if measured {
            asked += milli;
            asked_multi += if several { milli } else { 0.0 };
            outcome.allocated += held;
        }
        if let Some(placement) = placement {
            let id: Arc<str> = Arc::from(format!("{now}"));
            let work = placement.work(Arc::clone(&id), Arc::clone(request), 0, WorkState::Running);
            if fleet.bind(work).is_ok() {
                held += milli;
                #[expect(
                    clippy::cast_possible_truncation,
                    clippy::cast_sign_loss,
                    reason = "a time"
                )]
                leaving.insert((now + 1 + stays as u64, now), id);
            }
        } else if measured {
            refused += milli;
            refused_multi += if several { milli } else { 0.0 };
        }
    }
    let measured = (2 * half - half - half / 4).max(1) as f64;
    Outcome {
        allocated: 100.0 * outcome.allocated / measured / capacity.max(1.0),
        refused: 100.0 * refused / f64::max(asked, 1.0),
        refused_multi: 100.0 * refused_multi / f64::max(asked_multi, 1.0),
        ..outcome
    }
}
