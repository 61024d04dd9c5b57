//! A small linear-programming solver with column generation: maximise c·x with A·x ≤ b, x ≥ 0 and
//! b ≥ 0, where columns come from an oracle. Revised simplex with a dense inverse of the basis; meant
//! for hundreds of rows.

/// A column: what it earns and what it uses of each row.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Column {
    pub(super) value: f64,
    pub(super) uses: Vec<(usize, f64)>,
}

#[derive(Clone, Debug)]
pub(super) struct Solution {
    /// The prices of the rows, none negative.
    pub(super) prices: Vec<f64>,
    /// What the basis earns; a lower bound of the optimum.
    #[cfg(test)]
    value: f64,
}

const TOLERANCE: f64 = 1e-7;
const ITERATIONS: usize = 60_000;
/// Iterations between fresh inversions, which keep rounding errors from piling up.
const REFRESH: usize = 2_000;

struct Basis {
    rows: usize,
    limits: Vec<f64>,
    /// `None` is the row's own slack.
    columns: Vec<Option<Column>>,
    /// Which row's slack sits at a position, where it is a slack.
    slack: Vec<usize>,
    inverse: Vec<f64>,
    amounts: Vec<f64>,
}

/// Solves until no column the oracle offers improves the value. The oracle is given row prices and
/// returns its best columns.
pub(super) fn maximise(limits: &[f64], mut oracle: impl FnMut(&[f64]) -> Vec<Column>) -> Solution {
    let mut basis = Basis::slacks(limits);
    let mut prices = vec![0.0; limits.len()];
    for iteration in 0..ITERATIONS {
        if iteration % REFRESH == REFRESH - 1 {
            basis.refresh();
        }
        prices = basis.prices();
        let worst = (0..limits.len()).min_by(|&a, &b| prices[a].total_cmp(&prices[b]));
        if let Some(row) = worst
            && prices[row] < -TOLERANCE
        {
            basis.enter(None, row);
            continue;
        }
        let gain = |column: &Column| {
            column.value
                - column
                    .uses
                    .iter()
                    .map(|&(row, used)| prices[row] * used)
                    .sum::<f64>()
        };
        let offered = oracle(&prices)
            .into_iter()
            .map(|column| (gain(&column), column));
        let best = offered.max_by(|a, b| a.0.total_cmp(&b.0));
        match best {
            Some((gain, column)) if gain > TOLERANCE => {
                if !basis.enter(Some(column), usize::MAX) {
                    break;
                }
            }
            _ => break,
        }
    }
    for price in &mut prices {
        *price = price.max(0.0);
    }
    Solution {
        #[cfg(test)]
        value: basis.value(),
        prices,
    }
}

impl Basis {
    fn slacks(limits: &[f64]) -> Self {
        let rows = limits.len();
        let mut inverse = vec![0.0; rows * rows];
        for row in 0..rows {
            inverse[row * rows + row] = 1.0;
        }
        // A tiny, different nudge per row keeps steps from having length zero.
        let nudge = |(row, &limit): (usize, &f64)| limit + 1e-6 * (1.0 + (row % 97) as f64 / 97.0);
        let amounts: Vec<_> = limits.iter().enumerate().map(nudge).collect();
        Self {
            rows,
            limits: amounts.clone(),
            columns: vec![None; rows],
            slack: (0..rows).collect(),
            inverse,
            amounts,
        }
    }

    #[cfg(test)]
    fn value(&self) -> f64 {
        let used = self.columns.iter().zip(&self.amounts);
        used.map(|(column, amount)| column.as_ref().map_or(0.0, |c| c.value) * amount)
            .sum()
    }

    fn prices(&self) -> Vec<f64> {
        let mut prices = vec![0.0; self.rows];
        for (at, column) in self.columns.iter().enumerate() {
            if let Some(column) = column {
                let row = &self.inverse[at * self.rows..(at + 1) * self.rows];
                for (price, inverse) in prices.iter_mut().zip(row) {
                    *price += column.value * inverse;
                }
            }
        }
        prices
    }

    /// Brings a column (or a row's slack) into the basis; false when nothing limits it.
    fn enter(&mut self, column: Option<Column>, slack: usize) -> bool {
        let uses = column
            .as_ref()
            .map_or_else(|| vec![(slack, 1.0)], |column| column.uses.clone());
        let direction: Vec<f64> = (0..self.rows)
            .map(|at| {
                let row = &self.inverse[at * self.rows..(at + 1) * self.rows];
                uses.iter().map(|&(used, amount)| row[used] * amount).sum()
            })
            .collect();
        let limited = (0..self.rows).filter(|&at| direction[at] > 1e-9);
        let ratio = |at: usize| self.amounts[at].max(0.0) / direction[at];
        let Some(leaving) = limited.min_by(|&a, &b| ratio(a).total_cmp(&ratio(b))) else {
            return false;
        };
        let step = ratio(leaving);
        for (amount, direction) in self.amounts.iter_mut().zip(&direction) {
            *amount -= step * direction;
        }
        self.amounts[leaving] = step;
        self.pivot(leaving, &direction);
        self.columns[leaving] = column;
        self.slack[leaving] = slack;
        true
    }

    fn pivot(&mut self, leaving: usize, direction: &[f64]) {
        let rows = self.rows;
        let pivot = direction[leaving];
        let row: Vec<f64> = self.inverse[leaving * rows..(leaving + 1) * rows]
            .iter()
            .map(|x| x / pivot)
            .collect();
        for (at, &factor) in direction.iter().enumerate() {
            if at != leaving && factor != 0.0 {
                let target = &mut self.inverse[at * rows..(at + 1) * rows];
                for (value, pivot) in target.iter_mut().zip(&row) {
                    *value -= factor * pivot;
                }
            }
        }
        self.inverse[leaving * rows..(leaving + 1) * rows].copy_from_slice(&row);
    }

    /// Inverts the basis again from its columns.
    fn refresh(&mut self) {
        let rows = self.rows;
        let mut matrix = vec![0.0; rows * rows];
        for at in 0..rows {
            match &self.columns[at] {
                None => matrix[self.slack[at] * rows + at] = 1.0,
                Some(column) => column
                    .uses
                    .iter()
                    .for_each(|&(row, used)| matrix[row * rows + at] += used),
            }
        }
        if let Some(inverse) = invert(matrix, rows) {
            self.inverse = inverse;
            for at in 0..rows {
                let row = &self.inverse[at * rows..(at + 1) * rows];
                self.amounts[at] = row.iter().zip(&self.limits).map(|(a, b)| a * b).sum();
            }
        }
    }
}

/// Gauss–Jordan with row pivoting; `None` for a singular matrix.
fn invert(mut matrix: Vec<f64>, rows: usize) -> Option<Vec<f64>> {
    let mut inverse = vec![0.0; rows * rows];
    (0..rows).for_each(|row| inverse[row * rows + row] = 1.0);
    for at in 0..rows {
        let pivot = (at..rows).max_by(|&a, &b| {
            matrix[a * rows + at]
                .abs()
                .total_cmp(&matrix[b * rows + at].abs())
        })?;
        if matrix[pivot * rows + at].abs() < 1e-12 {
            return None;
        }
        if pivot != at {
            for column in 0..rows {
                matrix.swap(at * rows + column, pivot * rows + column);
                inverse.swap(at * rows + column, pivot * rows + column);
            }
        }
        let scale = matrix[at * rows + at];
        for column in 0..rows {
            matrix[at * rows + column] /= scale;
            inverse[at * rows + column] /= scale;
        }
        for row in (0..rows).filter(|&row| row != at) {
            let factor = matrix[row * rows + at];
            if factor != 0.0 {
                for column in 0..rows {
                    matrix[row * rows + column] -= factor * matrix[at * rows + column];
                    inverse[row * rows + column] -= factor * inverse[at * rows + column];
                }
            }
        }
    }
    Some(inverse)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::{Column, maximise};

    #[test]
    fn a_textbook_programme_is_solved() {
        // Maximise 3x + 5y with x ≤ 4, 2y ≤ 12, 3x + 2y ≤ 18.
        let columns = vec![
            Column {
                value: 3.0,
                uses: vec![(0, 1.0), (2, 3.0)],
            },
            Column {
                value: 5.0,
                uses: vec![(1, 2.0), (2, 2.0)],
            },
        ];
        let solution = maximise(&[4.0, 12.0, 18.0], |_| columns.clone());
        assert!((solution.value - 36.0).abs() < 1e-3, "{}", solution.value);
    }

    proptest! {
        /// Weak duality both ways: the prices pay for every column, and cost what the basis earns.
        #[test]
        fn prices_prove_the_optimum(
            limits in proptest::collection::vec(1.0..50.0_f64, 3..8),
            table in proptest::collection::vec((1.0..9.0_f64, proptest::collection::vec(0.0..5.0_f64, 8)), 1..25),
        ) {
            let rows = limits.len();
            let columns: Vec<_> = table
                .iter()
                .map(|(value, uses)| Column {
                    value: *value,
                    // Every column uses something, so nothing is unlimited.
                    uses: uses.iter().take(rows).map(|u| u + 0.1).enumerate().collect(),
                })
                .collect();
            let solution = maximise(&limits, |_| columns.clone());
            for column in &columns {
                let cost: f64 = column.uses.iter().map(|&(row, used)| solution.prices[row] * used).sum();
                prop_assert!(cost >= column.value - 1e-5);
            }
            let dual: f64 = solution.prices.iter().zip(&limits).map(|(price, limit)| price * limit).sum();
            prop_assert!((dual - solution.value).abs() < 1e-2, "{dual} {}", solution.value);
        }
    }
}
