//! How much any policy could place: an upper bound by linear programming.
//!
//! Cards are filled with patterns (column generation, a knapsack per kind of machine); CPU and memory
//! are summed over machines of a kind and work without GPUs is left out, so the bound is above what
//! is reachable. Some of the arrivals may be declared as placed whatever comes, as a policy that
//! never refuses what fits would have done.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::{Pod, Trace};
use crate::fleet::WHOLE;
use crate::simulate::linear::{Column, maximise};

/// Card patterns are computed in steps of this many thousandths, requests rounded down.
const STEP: u32 = 10;
const STEPS: usize = (WHOLE / STEP) as usize;
/// What placing a declared request earns beyond its size: more than any pattern could earn instead.
const DECLARED: f64 = 1e5;

#[derive(Clone, Copy, Debug)]
pub struct Load {
    /// Arrived requests, as a multiple of the fleet's GPUs.
    pub arrived: f64,
    /// Of these, how many (in the same unit) are declared as placed.
    pub declared: f64,
}

/// Machines of one kind.
struct Kind {
    model: Arc<str>,
    cards: f64,
    cpu_milli: f64,
    memory_mib: f64,
    cards_each: u32,
}

/// Requests of one shape; a declared part and the rest are two shapes.
struct Shape {
    cpu_milli: f64,
    memory_mib: f64,
    gpus: u32,
    milli: u32,
    models: Vec<Arc<str>>,
    count: f64,
    value: f64,
}

impl Shape {
    fn accepts(&self, kind: &Kind) -> bool {
        (self.models.is_empty() || self.models.contains(&kind.model))
            && self.gpus <= kind.cards_each
    }
}

/// An upper bound on allocation, in percent of all GPUs.
pub fn bound(trace: &Trace, load: Load) -> f64 {
    let kinds = kinds(trace);
    let capacity: f64 = kinds.iter().map(|kind| kind.cards).sum::<f64>() * f64::from(WHOLE);
    let shapes = shapes(trace, load, capacity);
    let mut limits: Vec<f64> = shapes.iter().map(|shape| shape.count).collect();
    for kind in &kinds {
        limits.extend([
            kind.cards,
            kind.cpu_milli / 1000.0,
            kind.memory_mib / 1024.0,
        ]);
    }
    let rows = |kind: usize| shapes.len() + kind * 3;
    let oracle = |prices: &[f64]| -> Vec<Column> {
        let best = |(at, kind): (usize, &Kind)| best_columns(&shapes, kind, rows(at), prices);
        kinds.iter().enumerate().flat_map(best).collect()
    };
    let solution = maximise(&limits, oracle);
    // By duality any non-negative prices give a bound, once every column is paid for: what the best
    // column of a kind still gains is charged to each of its cards.
    let paid: f64 = solution
        .prices
        .iter()
        .zip(&limits)
        .map(|(price, limit)| price * limit)
        .sum();
    let unpaid: f64 = kinds
        .iter()
        .enumerate()
        .map(|(at, kind)| {
            let gain = |column: &Column| {
                let cost = column
                    .uses
                    .iter()
                    .map(|&(row, used)| solution.prices[row] * used);
                column.value - cost.sum::<f64>()
            };
            let columns = best_columns(&shapes, kind, rows(at), &solution.prices);
            kind.cards * columns.iter().map(gain).fold(0.0, f64::max)
        })
        .sum();
    let declared: f64 = shapes
        .iter()
        .filter(|shape| shape.value > f64::from(shape.milli * shape.gpus))
        .map(|s| s.count)
        .sum();
    100.0 * (paid + unpaid - DECLARED * declared) / capacity.max(1.0)
}

fn kinds(trace: &Trace) -> Vec<Kind> {
    let mut kinds = BTreeMap::<_, Kind>::new();
    for machine in trace.machines.iter().filter(|machine| machine.gpus > 0) {
        let key = (
            &machine.model,
            machine.gpus,
            machine.cpu_milli,
            machine.memory_mib,
        );
        let kind = kinds.entry(key).or_insert_with(|| Kind {
            model: Arc::clone(&machine.model),
            cards: 0.0,
            cpu_milli: 0.0,
            memory_mib: 0.0,
            cards_each: machine.gpus,
        });
        kind.cards += f64::from(machine.gpus);
        kind.cpu_milli += machine.cpu_milli as f64;
        kind.memory_mib += machine.memory_mib as f64;
    }
    kinds.into_values().collect()
}

fn shapes(trace: &Trace, load: Load, capacity: f64) -> Vec<Shape> {
    let mut counts = BTreeMap::<_, (f64, &Pod)>::new();
    for pod in trace.pods.iter().filter(|pod| pod.gpus > 0) {
        let key = (
            pod.cpu_milli,
            pod.memory_mib,
            pod.gpus,
            pod.gpu_milli,
            &pod.models,
        );
        counts.entry(key).or_insert((0.0, pod)).0 += 1.0;
    }
    let asked: f64 = trace.pods.iter().map(|pod| pod.total_milli() as f64).sum();
    let scale = capacity / asked.max(1.0);
    let mut shapes = Vec::new();
    for (count, pod) in counts.into_values() {
        let milli = pod.gpu_milli.min(WHOLE);
        let mut add = |count: f64, extra: f64| {
            if count > 0.0 {
                shapes.push(Shape {
                    cpu_milli: pod.cpu_milli as f64,
                    memory_mib: pod.memory_mib as f64,
                    gpus: pod.gpus,
                    milli,
                    models: pod.models.clone(),
                    count,
                    value: f64::from(milli * pod.gpus) + extra,
                });
            }
        };
        add(count * scale * load.declared, DECLARED);
        add(count * scale * (load.arrived - load.declared), 0.0);
    }
    shapes
}

/// The columns of one kind of machine that gain most at these prices: a card pattern, and every
/// request of several cards that gains.
fn best_columns(shapes: &[Shape], kind: &Kind, rows: usize, prices: &[f64]) -> Vec<Column> {
    let gain = |(at, shape): (usize, &Shape)| {
        let used = prices[rows + 1] * shape.cpu_milli / 1000.0
            + prices[rows + 2] * shape.memory_mib / 1024.0;
        shape.value - prices[at] - used
    };
    let column = |items: &[(usize, f64)], cards: f64| {
        let mut uses: Vec<_> = items.to_vec();
        let total = |of: fn(&Shape) -> f64| {
            items
                .iter()
                .map(|&(at, n)| n * of(&shapes[at]))
                .sum::<f64>()
        };
        uses.push((rows, cards));
        uses.push((rows + 1, total(|shape| shape.cpu_milli) / 1000.0));
        uses.push((rows + 2, total(|shape| shape.memory_mib) / 1024.0));
        Column {
            value: total(|shape| shape.value),
            uses,
        }
    };
    let mut columns = Vec::new();
    // The best request of every size, and the knapsack of sizes on one card.
    let mut of_size = vec![(0.0, usize::MAX); STEPS + 1];
    for (at, shape) in shapes
        .iter()
        .enumerate()
        .filter(|(_, shape)| shape.accepts(kind))
    {
        let gain = gain((at, shape));
        if gain <= 0.0 {
            continue;
        }
        if shape.gpus > 1 {
            if gain > prices[rows] * f64::from(shape.gpus) {
                columns.push(column(&[(at, 1.0)], f64::from(shape.gpus)));
            }
            continue;
        }
        let size = (shape.milli / STEP).max(1) as usize;
        if gain > of_size[size].0 {
            of_size[size] = (gain, at);
        }
    }
    let mut best = vec![(0.0, 0_usize); STEPS + 1];
    for room in 1..=STEPS {
        best[room] = (best[room - 1].0, 0);
        for size in 1..=room {
            let total = of_size[size].0 + best[room - size].0;
            if of_size[size].1 != usize::MAX && total > best[room].0 {
                best[room] = (total, size);
            }
        }
    }
    let mut items = BTreeMap::<usize, f64>::new();
    let mut room = STEPS;
    while room > 0 {
        let size = best[room].1;
        if size == 0 {
            room -= 1;
            continue;
        }
        *items.entry(of_size[size].1).or_default() += 1.0;
        room -= size;
    }
    if !items.is_empty() {
        columns.push(column(&items.into_iter().collect::<Vec<_>>(), 1.0));
    }
    columns
}
