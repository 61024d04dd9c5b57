//! A made-up trace of openb's shape, for machines without the published one: the same kinds of
//! machines and requests in similar proportions, none of the published rows.

use std::sync::Arc;

use super::{Machine, Pod, Trace};
use crate::random::Random;

/// Model, GPUs, cores, GiB, share of machines in percent.
const MACHINES: [(&str, u32, i64, i64, usize); 6] = [
    ("G2", 8, 96, 384, 45),
    ("T4", 2, 104, 512, 32),
    ("P100", 2, 16, 112, 10),
    ("G3", 8, 128, 768, 4),
    ("V100M16", 4, 32, 120, 4),
    ("V100M32", 8, 96, 736, 5),
];

/// GPUs, thousandths, cores, GiB, weight.
const PODS: [(u32, u32, i64, i64, usize); 14] = [
    (0, 0, 8, 16, 80),
    (0, 0, 4, 24, 50),
    (1, 810, 3, 12, 120),
    (1, 460, 6, 12, 90),
    (1, 470, 8, 16, 60),
    (1, 320, 4, 14, 50),
    (1, 540, 4, 15, 40),
    (1, 650, 12, 48, 30),
    (1, 1000, 3, 18, 90),
    (1, 1000, 11, 46, 250),
    (1, 1000, 8, 30, 100),
    (2, 1000, 16, 60, 3),
    (4, 1000, 32, 120, 2),
    (8, 1000, 64, 240, 5),
];

/// `typed` is the share of requests with one GPU that insist on a model.
pub fn generate(machines: usize, typed: f64, seed: u64) -> Trace {
    let mut random = Random::new(seed);
    let machines: Vec<Machine> = (0..machines)
        .map(|at| {
            let (model, gpus, cores, gib, _) = MACHINES[pick(&MACHINES.map(|m| m.4), &mut random)];
            Machine {
                name: Arc::from(format!("machine-{at:05}")),
                cpu_milli: cores * 1000,
                memory_mib: gib * 1024,
                gpus,
                model: Arc::from(model),
                price_per_gpu_hour_micros: None,
            }
        })
        .collect();
    let capacity: u32 = machines.iter().map(|machine| machine.gpus).sum();
    let mut pods = Vec::new();
    let mut asked = 0.0;
    while asked < 0.98 * f64::from(capacity) {
        let (gpus, gpu_milli, cores, gib, _) = PODS[pick(&PODS.map(|pod| pod.4), &mut random)];
        let model = MACHINES[pick(&MACHINES.map(|m| m.4 * m.1 as usize), &mut random)].0;
        let insists = gpus == 1 && random.unit() < typed;
        asked += f64::from(gpus * gpu_milli) / 1000.0;
        pods.push(Pod {
            name: Arc::from(format!("pod-{:05}", pods.len())),
            cpu_milli: cores * 1000,
            memory_mib: gib * 1024,
            gpus,
            gpu_milli,
            models: if insists {
                vec![Arc::from(model)]
            } else {
                Vec::new()
            },
        });
    }
    Trace { machines, pods }
}

fn pick(weights: &[usize], random: &mut Random) -> usize {
    let mut left = random.below(weights.iter().sum());
    let chosen = weights.iter().position(|&weight| {
        let here = left < weight;
        left = left.saturating_sub(weight);
        here
    });
    chosen.unwrap_or(0)
}
