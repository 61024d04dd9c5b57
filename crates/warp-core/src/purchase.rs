//! Which machines to buy for work that waits, together: the cheapest set that holds all of it, fewer machines where it
//! costs the same.
//!
//! Exact. Work of the same size is alike, so what is left to hold is a few counts; the largest piece left is put into
//! some machine, with as much beside it as fits, and every way of that is tried once.

use std::collections::BTreeMap;

/// A kind of machine that is sold, as many as one likes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Kind {
    pub gpus: u32,
    /// In any unit.
    pub price: u64,
}

/// One machine, with what it is for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Bought {
    /// Which of the kinds.
    pub kind: usize,
    /// Which of the wants.
    pub holds: Vec<usize>,
}

/// Pieces of each size that are left, the largest size first.
type Left = Vec<u32>;
/// Price and machines of the best way, the kind of its first machine, and what that one holds.
type Best = (u64, usize, usize, Vec<u32>);

/// Ways to hold a set that are looked at before the search is given up.
const MOST_STATES: usize = 20_000;

/// The cheapest machines that hold every one of `wants`, which are GPUs of one machine each; none when one of them fits
/// no machine, or when there are too many different ones to be sure.
pub fn cheapest(wants: &[u32], kinds: &[Kind]) -> Option<Vec<Bought>> {
    let mut by_size: BTreeMap<u32, Vec<usize>> = BTreeMap::new();
    for (at, want) in wants.iter().enumerate() {
        by_size.entry((*want).max(1)).or_default().push(at);
    }
    let sizes: Vec<u32> = by_size.keys().rev().copied().collect();
    let mut waiting: Vec<Vec<usize>> = by_size.into_values().rev().collect();
    let useful = useful(kinds, sizes.last().copied().unwrap_or(1));
    let mut search = Search {
        sizes: &sizes,
        kinds,
        useful: &useful,
        known: BTreeMap::new(),
    };
    let mut left: Left = waiting
        .iter()
        .map(|same| u32::try_from(same.len()).unwrap_or(u32::MAX))
        .collect();
    search.best(&left)?;
    let mut bought = Vec::new();
    while left.iter().any(|count| *count > 0) {
        let (_, _, kind, held) = search.known.get(&left)?.clone()?;
        let mut holds = Vec::new();
        for (at, count) in held.iter().enumerate() {
            left[at] -= count;
            // Whoever came first is served first.
            holds.extend(waiting[at].drain(..*count as usize));
        }
        bought.push(Bought { kind, holds });
    }
    Some(bought)
}

/// What a set of machines costs.
pub fn price(bought: &[Bought], kinds: &[Kind]) -> u64 {
    bought.iter().map(|one| kinds[one.kind].price).sum()
}

/// The kinds that no other beats: at least as many GPUs for at most the same price.
fn useful(kinds: &[Kind], least: u32) -> Vec<usize> {
    let beats = |(one, a): (usize, &Kind), (other, b): (usize, &Kind)| {
        let better = (a.price, std::cmp::Reverse(a.gpus), one);
        a.gpus >= b.gpus
            && a.price <= b.price
            && better < (b.price, std::cmp::Reverse(b.gpus), other)
    };
    let all = || {
        kinds
            .iter()
            .enumerate()
            .filter(|(_, kind)| kind.gpus >= least)
    };
    let kept = all().filter(|one| !all().any(|other| beats(other, *one)));
    let mut kept: Vec<usize> = kept.map(|(at, _)| at).collect();
    // The largest first: those that came first share it.
    kept.sort_by_key(|at| std::cmp::Reverse(kinds[*at].gpus));
    kept
}

struct Search<'a> {
    sizes: &'a [u32],
    kinds: &'a [Kind],
    useful: &'a [usize],
    known: BTreeMap<Left, Option<Best>>,
}

impl Search<'_> {
    /// Price and machines of the best way to hold what is left.
    fn best(&mut self, left: &Left) -> Option<(u64, usize)> {
        let Some(largest) = left.iter().position(|count| *count > 0) else {
            return Some((0, 0));
        };
        if let Some(known) = self.known.get(left) {
            return known
                .as_ref()
                .map(|(price, machines, ..)| (*price, *machines));
        }
        if self.known.len() >= MOST_STATES {
            return None;
        }
        let mut best: Option<Best> = None;
        for kind in self.useful {
            let Kind { gpus, price } = self.kinds[*kind];
            let Some(room) = gpus.checked_sub(self.sizes[largest]) else {
                continue;
            };
            let mut held = vec![0; left.len()];
            held[largest] = 1;
            let mut ways = Vec::new();
            fill(self.sizes, left, largest, room, &mut held, &mut ways);
            for held in ways {
                let rest: Left = left
                    .iter()
                    .zip(&held)
                    .map(|(all, held)| all - held)
                    .collect();
                let Some((more, machines)) = self.best(&rest) else {
                    continue;
                };
                let (cost, machines) = (price.saturating_add(more), machines + 1);
                let better = best
                    .as_ref()
                    .is_none_or(|(known, count, ..)| (cost, machines) < (*known, *count));
                if better {
                    best = Some((cost, machines, *kind, held));
                }
            }
        }
        let said = best
            .as_ref()
            .map(|(price, machines, ..)| (*price, *machines));
        self.known.insert(left.clone(), best);
        said
    }
}

/// Every way to fill `room` with pieces from size `at` on so that nothing that is left would fit besides.
fn fill(
    sizes: &[u32],
    left: &[u32],
    at: usize,
    room: u32,
    held: &mut Vec<u32>,
    ways: &mut Vec<Vec<u32>>,
) {
    let Some(size) = sizes.get(at) else {
        let fits = |(place, size): (usize, &u32)| *size <= room && left[place] > held[place];
        if !sizes.iter().enumerate().any(fits) {
            ways.push(held.clone());
        }
        return;
    };
    let before = held[at];
    let most = (room / size).min(left[at] - before);
    for more in (0..=most).rev() {
        held[at] = before + more;
        fill(sizes, left, at + 1, room - more * size, held, ways);
    }
    held[at] = before;
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const LINEAR: [Kind; 4] = [
        Kind {
            gpus: 1,
            price: 100,
        },
        Kind {
            gpus: 2,
            price: 200,
        },
        Kind {
            gpus: 4,
            price: 400,
        },
        Kind {
            gpus: 8,
            price: 800,
        },
    ];

    fn sizes(wants: &[u32], kinds: &[Kind]) -> Vec<u32> {
        let bought = cheapest(wants, kinds).expect("it can be held");
        let mut sizes: Vec<u32> = bought.iter().map(|one| kinds[one.kind].gpus).collect();
        sizes.sort_unstable();
        sizes
    }

    #[test]
    fn ten_that_want_one_buy_two_machines_where_that_costs_the_same() {
        assert_eq!(sizes(&[1; 10], &LINEAR), [2, 8]);
        assert_eq!(sizes(&[1], &LINEAR), [1]);
        assert_eq!(sizes(&[4, 4, 2], &LINEAR), [2, 8]);
    }

    #[test]
    fn a_larger_one_is_bought_only_where_it_is_not_dearer() {
        let dear = [
            Kind {
                gpus: 1,
                price: 100,
            },
            Kind {
                gpus: 8,
                price: 850,
            },
        ];
        assert_eq!(sizes(&[1; 8], &dear), [1; 8]);
        assert_eq!(
            sizes(
                &[1; 9],
                &[
                    dear[0],
                    Kind {
                        gpus: 8,
                        price: 500
                    }
                ]
            ),
            [1, 8]
        );
        // Only machines with eight are sold.
        assert_eq!(sizes(&[1; 9], &[dear[1]]), [8, 8]);
    }

    #[test]
    fn what_fits_no_machine_buys_nothing() {
        assert_eq!(cheapest(&[9], &LINEAR), None);
        assert_eq!(cheapest(&[1], &[]), None);
        assert_eq!(cheapest(&[], &LINEAR), Some(Vec::new()));
    }

    /// Every way to part the wants into machines, by brute force.
    fn exact(wants: &[u32], kinds: &[Kind]) -> Option<u64> {
        let all = 1_usize << wants.len();
        let alone = |set: usize| {
            let gpus: u32 = (0..wants.len())
                .filter(|at| set >> at & 1 == 1)
                .map(|at| wants[at])
                .sum();
            kinds
                .iter()
                .filter(|kind| kind.gpus >= gpus)
                .map(|kind| kind.price)
                .min()
        };
        let mut best: Vec<Option<u64>> = vec![None; all];
        best[0] = Some(0);
        for set in 1..all {
            let mut part = set;
            while part > 0 {
                let whole = alone(part)
                    .zip(best[set & !part])
                    .map(|(one, rest)| one + rest);
                best[set] = [best[set], whole].into_iter().flatten().min();
                part = (part - 1) & set;
            }
        }
        best[all - 1]
    }

    proptest! {
        #[test]
        fn it_is_the_cheapest_and_holds_everything(
            wants in proptest::collection::vec(1_u32..=8, 0..8),
            kinds in proptest::collection::vec((1_u32..=16, 1_u64..2000), 1..6),
        ) {
            let kinds: Vec<Kind> = kinds.into_iter().map(|(gpus, price)| Kind { gpus, price }).collect();
            let found = cheapest(&wants, &kinds);
            prop_assert_eq!(found.as_ref().map(|found| price(found, &kinds)), exact(&wants, &kinds));
            for one in found.iter().flatten() {
                let used: u32 = one.holds.iter().map(|at| wants[*at]).sum();
                prop_assert!(used <= kinds[one.kind].gpus);
            }
            let mut held: Vec<usize> = found.iter().flatten().flat_map(|one| one.holds.clone()).collect();
            held.sort_unstable();
            let every: Vec<usize> = (0..wants.len()).collect();
            prop_assert!(found.is_none() || held == every);
        }
    }
}
