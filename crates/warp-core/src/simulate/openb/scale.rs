//! Large fleets for measuring how fast decisions are: the trace's machines, filled to a load and
//! repeated.

use std::sync::Arc;

use super::{Machine, Trace, arrivals, fleet};
use crate::fleet::{Fleet, Request, Work, WorkState};
use crate::random::Random;
use crate::schedule::{Planner, Policy};

/// A fleet of `nodes` machines at `load`, and the trace's requests.
pub fn filled(trace: &Trace, nodes: usize, load: f64, seed: u64) -> (Fleet, Vec<Arc<Request>>) {
    let mut base = fleet(&trace.machines);
    let requests: Vec<_> = trace
        .pods
        .iter()
        .map(|pod| Arc::new(pod.request()))
        .collect();
    let mut planner = Planner::new(Policy::BestFit, seed);
    let capacity = base.totals().gpu_milli();
    let order = arrivals(trace, capacity, load, &mut Random::new(seed));
    for (at, &pod) in order.iter().enumerate() {
        if let Some(placement) = planner.choose(&base, &requests[pod]) {
            let id = Arc::from(format!("{at}"));
            let work = placement.work(id, Arc::clone(&requests[pod]), 0, WorkState::Running);
            let bound = base.bind(work);
            debug_assert_eq!(bound, Ok(()));
        }
    }
    let mut large = Fleet::new();
    for copy in 0..nodes {
        let Some(machine) = trace.machines.get(copy % trace.machines.len().max(1)) else {
            break;
        };
        copy_machine(&base, machine, copy, &mut large);
    }
    (large, requests)
}

fn copy_machine(base: &Fleet, machine: &Machine, copy: usize, large: &mut Fleet) {
    let Some(id) = base.find(&machine.name) else {
        return;
    };
    let Some(node) = base.node(id) else { return };
    let name: Arc<str> = Arc::from(format!("{}-{copy}", machine.name));
    large.set_node(crate::fleet::Node {
        name: Arc::clone(&name),
        ..(**node).clone()
    });
    for work in base.works_on(id) {
        let id = Arc::from(format!("{copy}/{}", work.id));
        let bound = large.bind(Work {
            id,
            node: Arc::clone(&name),
            ..work.clone()
        });
        debug_assert_eq!(bound, Ok(()));
    }
}
