//! The strategy under a Deployment controller and a scheduler in miniature: every rollout ends, and copies that answer
//! never become fewer than the strategy promises.

use proptest::prelude::{prop, prop_assert, proptest};

use super::{Room, Strategy, strategy};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// And whether it was told so.
    Unplaced(bool),
    Starting(u32),
    Ready,
    Ending(u32),
}

#[derive(Clone, Copy, Debug)]
struct Copy {
    new: bool,
    state: State,
}

struct World {
    wanted: u32,
    places: u32,
    /// Places among them that look free and are not for these copies.
    kept: u32,
    /// For how long places have looked free that no copy got.
    stuck: u32,
    copies: Vec<Copy>,
    start: u32,
    drain: u32,
}

impl World {
    fn count(&self, holds: impl Fn(&Copy) -> bool) -> u32 {
        u32::try_from(self.copies.iter().filter(|copy| holds(copy)).count()).unwrap()
    }

    fn held(&self) -> u32 {
        self.count(|copy| !matches!(copy.state, State::Unplaced(_)))
    }

    fn ready(&self) -> u32 {
        self.count(|copy| copy.state == State::Ready)
    }

    fn strategy(&mut self) -> Strategy {
        let refused = self.count(|copy| copy.state == State::Unplaced(true));
        let ending = self.count(|copy| matches!(copy.state, State::Ending(_)));
        let no_room = refused > 0 && ending == 0 && self.places > self.held();
        self.stuck = if no_room { self.stuck + 1 } else { 0 };
        let placed = self.count(|copy| matches!(copy.state, State::Starting(_) | State::Ready));
        strategy(Room {
            replicas: self.wanted,
            spare: self.places.saturating_sub(self.held()),
            placed,
            ending,
            // Believed when it stays so: a place that has just come free is given in a moment.
            refused: if self.stuck > 1 { refused } else { 0 },
        })
    }

    /// What Kubernetes' Deployment controller does in one pass.
    fn deploy(&mut self, strategy: Strategy) {
        let alive = |copy: &Copy| !matches!(copy.state, State::Ending(_));
        let total = self.count(alive);
        let new = self.count(|copy| copy.new && alive(copy));
        let limit = self.wanted + strategy.max_surge;
        let more = limit.saturating_sub(total).min(self.wanted - new);
        for _ in 0..more {
            self.copies.push(Copy {
                new: true,
                state: State::Unplaced(false),
            });
        }
        let total = self.count(alive);
        let least = strategy.floor(self.wanted);
        let new_unready = self.count(|copy| copy.new && alive(copy) && copy.state != State::Ready);
        let mut surplus = total.saturating_sub(least + new_unready);
        // Those that do not answer go first.
        for unready_only in [true, false] {
            for copy in &mut self.copies {
                let answers = copy.state == State::Ready;
                if surplus == 0
                    || copy.new
                    || matches!(copy.state, State::Ending(_))
                    || answers == unready_only
                {
                    continue;
                }
                copy.state = if matches!(copy.state, State::Unplaced(_)) {
                    State::Ending(0)
                } else {
                    State::Ending(self.drain)
                };
                surplus -= 1;
            }
        }
    }

    /// Time goes on: places are given, starts and ends get on.
    fn tick(&mut self) {
        let given = self.places.saturating_sub(self.kept);
        let mut free = given.saturating_sub(self.held());
        for copy in &mut self.copies {
            copy.state = match copy.state {
                State::Unplaced(_) if free > 0 => {
                    free -= 1;
                    State::Starting(self.start)
                }
                State::Unplaced(_) => State::Unplaced(true),
                State::Starting(0) => State::Ready,
                State::Starting(left) => State::Starting(left - 1),
                State::Ending(left) if left > 0 => State::Ending(left - 1),
                other => other,
            };
        }
        self.copies.retain(|copy| copy.state != State::Ending(0));
    }

    fn is_done(&self) -> bool {
        self.copies
            .iter()
            .all(|copy| copy.new && copy.state == State::Ready)
            && self.copies.len() == self.wanted as usize
    }
}

proptest! {
    #[test]
    fn every_rollout_ends_and_keeps_to_its_floor(
        wanted in 1_u32..12,
        spare in 0_u32..4,
        start in 0_u32..5,
        drain in 1_u32..5,
        taken in prop::collection::vec(0_u32..3, 0..20),
    ) {
        let mut world = World {
            wanted,
            places: wanted + spare,
            kept: 0,
            stuck: 0,
            copies: vec![Copy { new: false, state: State::Ready }; wanted as usize],
            start,
            drain,
        };
        // Somebody else takes and gives back places meanwhile, but never those in use.
        let mut taken = taken.into_iter();
        let lowest = if spare == 0 || taken.len() > 0 { wanted - 1 } else { wanted };
        let mut steps = 0;
        while !world.is_done() {
            steps += 1;
            prop_assert!(steps < 5000, "it does not end: {:?}", world.copies);
            let others = taken.next().unwrap_or(0).min(spare);
            world.places = (wanted + spare - others).max(world.held());
            let strategy = world.strategy();
            world.deploy(strategy);
            world.tick();
            prop_assert!(world.ready() >= lowest, "{} of {wanted} answer", world.ready());
        }
    }

    /// The free GPUs may be held in line for wide work, be rented for somebody, or be over the tenant's quota.
    #[test]
    fn a_place_that_looks_free_and_is_kept_for_others_stops_no_rollout(
        wanted in 1_u32..12,
        spare in 0_u32..5,
        kept in 0_u32..5,
        start in 0_u32..5,
        drain in 1_u32..5,
    ) {
        let kept = kept.min(spare);
        let mut world = World {
            wanted,
            places: wanted + spare,
            kept,
            stuck: 0,
            copies: vec![Copy { new: false, state: State::Ready }; wanted as usize],
            start,
            drain,
        };
        let mut steps = 0;
        while !world.is_done() {
            steps += 1;
            prop_assert!(steps < 5000, "it does not end: {:?}", world.copies);
            let strategy = world.strategy();
            world.deploy(strategy);
            world.tick();
            prop_assert!(world.ready() + 1 >= wanted, "{} of {wanted} answer", world.ready());
            prop_assert!(world.held() <= wanted + spare - kept);
        }
    }

    #[test]
    fn a_strategy_always_lets_something_happen(replicas in 0_u32..1000, spare in 0_u32..1000, placed in 0_u32..2000, ending in 0_u32..9, refused in 0_u32..9) {
        let chosen = strategy(Room { replicas, spare, placed, ending, refused });
        prop_assert!(chosen.max_surge + chosen.max_unavailable > 0);
        prop_assert!(chosen.max_unavailable <= 1);
        prop_assert!(chosen.floor(replicas) + 1 >= replicas);
    }
}

#[test]
fn a_copy_more_where_there_is_room_and_in_place_where_there_is_none() {
    let of = |spare, placed, ending| {
        strategy(Room {
            replicas: 4,
            spare,
            placed,
            ending,
            refused: 0,
        })
    };
    let surge = Strategy {
        max_surge: 1,
        max_unavailable: 0,
    };
    assert_eq!(of(1, 4, 0), surge);
    assert_eq!(of(0, 5, 0), surge, "the copy more has its place already");
    assert_eq!(of(0, 4, 1), surge, "the copy that goes leaves a place");
    let in_place = Strategy {
        max_surge: 0,
        max_unavailable: 1,
    };
    assert_eq!(of(0, 4, 0), in_place);
    let room = Room {
        replicas: 4,
        spare: 3,
        placed: 4,
        ending: 0,
        refused: 1,
    };
    assert_eq!(strategy(room), in_place, "what looks free is not for it");
}
