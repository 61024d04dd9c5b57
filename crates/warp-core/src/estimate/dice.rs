//! The draws a replay needs, on top of the crate's one generator.

use crate::random::{Random, mix};

/// Seeded draws; cloning it forks the stream at the same point.
#[derive(Clone, Debug)]
pub struct Dice {
    random: Random,
}

impl Dice {
    pub fn new(seed: u64) -> Self {
        Self {
            random: Random::new(seed),
        }
    }

    /// An independent stream for one thing (a job, a sample) under one seed.
    pub fn of(seed: u64, thing: u64) -> Self {
        Self::new(seed ^ mix(thing))
    }

    /// Uniform in the open interval (0, 1).
    pub fn unit(&mut self) -> f64 {
        self.random.unit().max(f64::EPSILON)
    }

    /// A whole number below `n` (0 when `n` is 0).
    pub fn below(&mut self, n: usize) -> usize {
        self.random.below(n)
    }

    /// Standard normal (Box and Muller, one of the pair).
    pub fn normal(&mut self) -> f64 {
        let radius = (-2.0 * self.unit().ln()).sqrt();
        radius * (std::f64::consts::TAU * self.unit()).cos()
    }

    /// A random order of `items`.
    pub fn shuffle<T>(&mut self, items: &mut [T]) {
        self.random.shuffle(items);
    }
}
