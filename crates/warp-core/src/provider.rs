//! Groups of nodes of one provider, compared: what they cost, how soon work starts there, how much is idle, and how often
//! it came to something. Thousandths throughout, so that a comparison is exact and the same everywhere.
//!
//! What a provider is and what came of the attempts there is the caller's to know.

use std::fmt;
use std::sync::Arc;

/// The best a provider can be in anything.
pub const BEST: u32 = 1000;
/// The heaviest a criterion may weigh.
pub const MOST_WEIGHT: u32 = 1000;

/// How much each criterion counts. Only their ratios matter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Weights {
    pub cost: u32,
    pub start: u32,
    pub capacity: u32,
    pub health: u32,
}

impl Default for Weights {
    /// All count the same.
    fn default() -> Self {
        Self {
            cost: 25,
            start: 25,
            capacity: 25,
            health: 25,
        }
    }
}

/// What is known of a provider for one request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Candidate {
    pub name: Arc<str>,
    /// Of one GPU-hour, in millionths of a US dollar.
    pub price_micros: Option<u64>,
    /// From being placed to running.
    pub start_seconds: Option<u64>,
    /// GPUs the request could use: idle ones, and all.
    pub idle: u64,
    pub all: u64,
    /// The share of attempts that came to something, in thousandths.
    pub health: u32,
}

/// How good a provider is in each criterion, and by their weights.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Scored {
    pub name: Arc<str>,
    pub score: u32,
    pub cost: u32,
    pub start: u32,
    pub capacity: u32,
    pub health: u32,
}

impl fmt::Display for Scored {
    /// In hundredths, as people compare.
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [score, cost, start, capacity, health] = [
            self.score,
            self.cost,
            self.start,
            self.capacity,
            self.health,
        ]
        .map(|part| (part + 5) / 10);
        write!(
            out,
            "{} with {score} (cost {cost}, start {start}, capacity {capacity}, health {health})",
            self.name
        )
    }
}

/// Providers by their score, the best first; of equals the first by name.
pub fn rank(candidates: &[Candidate], weights: Weights) -> Vec<Scored> {
    let prices = || candidates.iter().filter_map(|one| one.price_micros);
    let (cheapest, dearest) = (prices().min(), prices().max());
    let starts = candidates.iter().filter_map(|one| one.start_seconds);
    let fastest = starts.min();
    let mut all: Vec<Scored> = candidates
        .iter()
        .map(|one| {
            // One that says no price counts like the dearest that does; where none says any, none is cheaper.
            let price = one.price_micros.or(dearest);
            let mut it = Scored {
                name: Arc::clone(&one.name),
                score: 0,
                cost: ratio(cheapest.unwrap_or(0), price.unwrap_or(0)),
                // One that was never tried counts like the fastest: it would never be tried otherwise.
                start: ratio(
                    fastest.unwrap_or(0).max(1),
                    one.start_seconds.or(fastest).unwrap_or(0).max(1),
                ),
                capacity: if one.all == 0 {
                    0
                } else {
                    ratio(one.idle, one.all)
                },
                health: one.health.min(BEST),
            };
            it.score = weighed(&it, weights);
            it
        })
        .collect();
    all.sort_by(|one, other| (other.score.cmp(&one.score)).then_with(|| one.name.cmp(&other.name)));
    all
}

fn weighed(it: &Scored, weights: Weights) -> u32 {
    let parts = [
        (it.cost, weights.cost),
        (it.start, weights.start),
        (it.capacity, weights.capacity),
        (it.health, weights.health),
    ];
    let sum: u64 = parts.iter().map(|(_, weight)| u64::from(*weight)).sum();
    let score: u64 = parts
        .iter()
        .map(|(part, weight)| u64::from(*part) * u64::from(*weight))
        .sum();
    u32::try_from(score.checked_div(sum).unwrap_or(0)).unwrap_or(BEST)
}

/// How much of `of` the smaller `part` is, in thousandths; all of it where both are nothing.
fn ratio(part: u64, of: u64) -> u32 {
    let share = (u128::from(part) * u128::from(BEST)).checked_div(u128::from(of));
    u32::try_from(share.unwrap_or(u128::from(BEST))).map_or(BEST, |share| share.min(BEST))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn candidate(name: &str) -> Candidate {
        Candidate {
            name: Arc::from(name),
            price_micros: None,
            start_seconds: None,
            idle: 8,
            all: 8,
            health: BEST,
        }
    }

    fn order(candidates: &[Candidate], weights: Weights) -> Vec<String> {
        let ranked = rank(candidates, weights);
        ranked.iter().map(|one| one.name.to_string()).collect()
    }

    #[test]
    fn each_criterion_alone_decides_when_only_it_counts() {
        let none = Weights {
            cost: 0,
            start: 0,
            capacity: 0,
            health: 0,
        };
        let all = [
            Candidate {
                price_micros: Some(1_000_000),
                start_seconds: Some(90),
                idle: 1,
                health: 500,
                ..candidate("cheap")
            },
            Candidate {
                price_micros: Some(4_000_000),
                start_seconds: Some(5),
                idle: 2,
                health: 600,
                ..candidate("fast")
            },
            Candidate {
                price_micros: Some(3_000_000),
                start_seconds: Some(60),
                idle: 8,
                health: 700,
                ..candidate("idle")
            },
            Candidate {
                price_micros: Some(2_000_000),
                start_seconds: Some(30),
                idle: 4,
                health: 1000,
                ..candidate("well")
            },
        ];
        let cost = Weights { cost: 1, ..none };
        assert_eq!(order(&all, cost), ["cheap", "well", "idle", "fast"]);
        let start = Weights { start: 7, ..none };
        assert_eq!(order(&all, start), ["fast", "well", "idle", "cheap"]);
        let capacity = Weights {
            capacity: 1000,
            ..none
        };
        assert_eq!(order(&all, capacity), ["idle", "well", "fast", "cheap"]);
        let health = Weights { health: 2, ..none };
        assert_eq!(order(&all, health), ["well", "idle", "fast", "cheap"]);
        assert_eq!(
            order(&all, none),
            ["cheap", "fast", "idle", "well"],
            "by name"
        );
    }

    #[test]
    fn what_is_not_known_of_one_counts_as_the_doc_says() {
        let known = Candidate {
            price_micros: Some(2_000_000),
            start_seconds: Some(40),
            ..candidate("known")
        };
        let dear = Candidate {
            price_micros: Some(4_000_000),
            start_seconds: Some(80),
            ..candidate("dear")
        };
        let ranked = rank(&[candidate("new"), known, dear], Weights::default());
        let new = ranked.iter().find(|one| &*one.name == "new").expect("it");
        assert_eq!((new.cost, new.start), (500, BEST));
        let said = ranked[0].to_string();
        assert_eq!(
            said,
            "known with 100 (cost 100, start 100, capacity 100, health 100)"
        );
        // Nobody says anything: nobody is worse.
        let [one, two] = &rank(&[candidate("a"), candidate("b")], Weights::default())[..] else {
            panic!("two");
        };
        assert_eq!((one.score, two.score), (BEST, BEST));
    }

    #[test]
    fn free_of_charge_is_cheapest() {
        let free = Candidate {
            price_micros: Some(0),
            ..candidate("free")
        };
        let paid = Candidate {
            price_micros: Some(1),
            ..candidate("paid")
        };
        let ranked = rank(&[paid, free], Weights::default());
        assert_eq!((ranked[0].cost, ranked[1].cost), (BEST, 0));
        assert_eq!(&*ranked[0].name, "free");
    }

    proptest! {
        #[test]
        fn everybody_is_ranked_within_bounds_and_the_same_in_any_order(
            all in proptest::collection::vec(
                (proptest::option::of(0_u64..9_000_000), proptest::option::of(0_u64..4000), 0_u64..64, 0_u64..64, 0_u32..=1000),
                0..8,
            ),
            weights in (0_u32..=MOST_WEIGHT, 0_u32..=MOST_WEIGHT, 0_u32..=MOST_WEIGHT, 0_u32..=MOST_WEIGHT),
        ) {
            let (cost, start, capacity, health) = weights;
            let weights = Weights { cost, start, capacity, health };
            let mut candidates: Vec<Candidate> = (0..)
                .zip(all)
                .map(|(number, (price_micros, start_seconds, idle, more, health))| Candidate {
                    name: Arc::from(format!("p{number}")),
                    price_micros,
                    start_seconds,
                    idle,
                    all: idle + more,
                    health,
                })
                .collect();
            let ranked = rank(&candidates, weights);
            prop_assert_eq!(ranked.len(), candidates.len());
            for one in &ranked {
                for part in [one.score, one.cost, one.start, one.capacity, one.health] {
                    prop_assert!(part <= BEST);
                }
            }
            prop_assert!(ranked.is_sorted_by(|one, other| one.score >= other.score));
            candidates.reverse();
            prop_assert_eq!(ranked, rank(&candidates, weights));
        }
    }
}
