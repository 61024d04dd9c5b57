//! One duration distribution as a survival curve over logarithmic bins, with the conditional
//! questions that scheduling asks of it. It does not learn (that is `durations`).

use std::sync::LazyLock;

/// Bins per doubling of the duration.
const PER_OCTAVE: usize = 4;
/// Upper end of the first bin, seconds: shorter durations are not told apart.
const FIRST: f64 = 10.0;
/// Bins; the last edge is `FIRST · 2^22`, about 485 days.
pub const BINS: usize = 1 + 22 * PER_OCTAVE;

/// Bin `k` covers `[EDGES[k], EDGES[k + 1])`.
static EDGES: LazyLock<[f64; BINS + 1]> = LazyLock::new(|| {
    let mut edges = [0.0; BINS + 1];
    for (k, edge) in edges.iter_mut().enumerate().skip(1) {
        *edge = FIRST * ((k - 1) as f64 / PER_OCTAVE as f64).exp2();
    }
    edges
});

/// The bin a duration falls into; everything past the last edge counts as the last bin.
pub fn bin_of(duration: f64) -> usize {
    EDGES[1..BINS].partition_point(|edge| *edge <= duration)
}

/// The end of the bin a duration falls into.
pub fn bin_end(duration: f64) -> f64 {
    EDGES[bin_of(duration) + 1].max(duration * 1.2)
}

/// Survival curve, linear inside a bin, with its running integral.
#[derive(Clone, Debug)]
pub struct Distribution {
    survival: [f64; BINS + 1],
    area: [f64; BINS + 1],
    /// Of work that has not run yet: the question asked most.
    median: f64,
}

/// Probability below which a horizon is too unlikely to base a Gittins index on.
const LEAST_CHANCE: f64 = 0.02;

impl Distribution {
    /// From the chance, per bin, that work which reached the bin ends in it.
    pub fn from_hazard(hazard: &[f64; BINS]) -> Self {
        let mut survival = [0.0; BINS + 1];
        let mut area = [0.0; BINS + 1];
        survival[0] = 1.0;
        for k in 0..BINS {
            survival[k + 1] = survival[k] * (1.0 - hazard[k].clamp(0.0, 1.0));
        }
        survival[BINS] = 0.0;
        for k in 0..BINS {
            let width = EDGES[k + 1] - EDGES[k];
            area[k + 1] = area[k] + width * f64::midpoint(survival[k], survival[k + 1]);
        }
        let mut distribution = Self {
            survival,
            area,
            median: 0.0,
        };
        distribution.median = distribution.quantile_after(0.0, 0.5);
        distribution
    }

    /// The duration that half of the work stays below.
    pub const fn median(&self) -> f64 {
        self.median
    }

    /// Half of the work of `age` ends within this much more.
    pub fn median_residual(&self, age: f64) -> f64 {
        if age <= 0.0 {
            return self.median;
        }
        self.quantile_after(age, 0.5) - age
    }

    /// Chance of running longer than `t`.
    pub fn survival(&self, t: f64) -> f64 {
        self.at(t).0
    }

    /// (survival, integral of survival from 0) at `t`.
    fn at(&self, t: f64) -> (f64, f64) {
        if t <= 0.0 {
            return (1.0, 0.0);
        }
        let last = EDGES[BINS];
        if t >= last {
            return (0.0, self.area[BINS]);
        }
        let k = bin_of(t);
        let (from, to) = (EDGES[k], EDGES[k + 1]);
        let part = (t - from) / (to - from);
        let here = self.survival[k] + part * (self.survival[k + 1] - self.survival[k]);
        (
            here,
            self.area[k] + (t - from) * f64::midpoint(self.survival[k], here),
        )
    }

    pub fn mean(&self) -> f64 {
        self.area[BINS]
    }

    /// Expected remaining run time of work that has run for `age`.
    pub fn mean_residual(&self, age: f64) -> f64 {
        let (survival, area) = self.at(age);
        if survival <= f64::MIN_POSITIVE {
            return age.max(FIRST);
        }
        (self.area[BINS] - area) / survival
    }

    /// The total duration that work of `age` stays below with chance `q`.
    pub fn quantile_after(&self, age: f64, q: f64) -> f64 {
        let (survival, _) = self.at(age);
        let target = survival * (1.0 - q.clamp(0.0, 1.0));
        if survival <= f64::MIN_POSITIVE {
            // Older than anything representable: as long again is the scale-free guess.
            return age * (1.0 + q);
        }
        let k = self
            .survival
            .partition_point(|s| *s > target)
            .clamp(1, BINS);
        let (high, low) = (self.survival[k - 1], self.survival[k]);
        let part = if high > low {
            (high - target) / (high - low)
        } else {
            1.0
        };
        (EDGES[k - 1] + part.clamp(0.0, 1.0) * (EDGES[k] - EDGES[k - 1])).max(age)
    }

    /// Gittins index of work of `age`: the least expected cost per completion over all horizons
    /// that complete it with a chance worth counting. Small = soon done for what it costs.
    pub fn gittins(&self, age: f64) -> f64 {
        let (survival, area) = self.at(age);
        if survival <= f64::MIN_POSITIVE {
            return age.max(FIRST);
        }
        let mut best = f64::INFINITY;
        for k in bin_of(age) + 1..=BINS {
            let chance = survival - self.survival[k];
            if chance > LEAST_CHANCE * survival {
                best = best.min((self.area[k] - area) / chance);
            }
        }
        best.max(1.0)
    }
}

#[cfg(test)]
mod tests;
