//! The strategy under a Deployment controller and a scheduler in miniature: every rollout ends, and copies that answer
//! never become fewer than the strategy promises.

use proptest::prelude::{prop, prop_assert, proptest};

use super::{Retiring, Room, Strategy, retire, strategy};

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
    /// Copies that have had a place at once.
    had: u32,
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
        self.had = self.had.max(placed).min(self.wanted);
        strategy(Room {
            replicas: self.wanted,
            had: self.had,
            hopeless: false,
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
            had: wanted,
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
            had: wanted,
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
    fn a_rollout_ends_where_fewer_copies_fit_than_are_wanted(
        wanted in 2_u32..12,
        places in 1_u32..11,
        start in 0_u32..5,
        drain in 1_u32..5,
    ) {
        let places = places.min(wanted - 1);
        let old = |state| Copy { new: false, state };
        let mut copies = vec![old(State::Ready); places as usize];
        copies.resize(wanted as usize, old(State::Unplaced(true)));
        let mut world = World { wanted, places, kept: 0, stuck: 0, had: places, copies, start, drain };
        let mut steps = 0;
        while world.count(|copy| !copy.new) > 0 || world.ready() < places {
            steps += 1;
            prop_assert!(steps < 5000, "it does not end: {:?}", world.copies);
            let strategy = world.strategy();
            world.deploy(strategy);
            world.tick();
            prop_assert!(world.ready() + 1 >= places, "{} of {places} answer", world.ready());
        }
    }

    #[test]
    fn a_strategy_always_lets_something_happen(replicas in 0_u32..1000, spare in 0_u32..1000, placed in 0_u32..2000, ending in 0_u32..9, refused in 0_u32..9) {
        for (had, hopeless) in [(replicas, false), (placed, false), (replicas, true)] {
            let chosen = strategy(Room { replicas, spare, placed, ending, refused, had, hopeless });
            prop_assert!(chosen.max_surge + chosen.max_unavailable > 0);
            prop_assert!(!hopeless || chosen.max_unavailable == 0);
            prop_assert!(chosen.floor(replicas) + 1 >= replicas.min(had));
        }
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
            had: 4,
            hopeless: false,
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
        had: 4,
        hopeless: false,
    };
    assert_eq!(strategy(room), in_place, "what looks free is not for it");
    let hopeless = Room {
        hopeless: true,
        ..room
    };
    assert_eq!(strategy(hopeless), surge, "what serves stays");
}

#[test]
fn copies_that_go_are_kept_until_others_answer() {
    let retiring = |new_ready: u32, room: bool, old: u32, old_ready: u32| {
        retire(Retiring {
            wanted: 3,
            new_ready,
            room,
            old,
            old_ready,
        })
    };
    assert_eq!(retiring(0, true, 3, 3), 3, "there is room beside them");
    assert_eq!(retiring(2, true, 3, 3), 1);
    assert_eq!(retiring(3, true, 1, 1), 0);
    assert_eq!(retiring(0, false, 3, 3), 2, "one makes room");
    assert_eq!(retiring(0, false, 2, 2), 2, "until another answers");
    assert_eq!(retiring(1, false, 2, 2), 1);
    assert_eq!(
        retiring(0, false, 3, 0),
        0,
        "what does not answer is of no use"
    );
    assert_eq!(retiring(0, true, 1, 3), 1, "never more than before");
}

#[test]
fn replacing_all_copies_without_a_spare_gpu_ends_and_never_loses_more_than_one() {
    for wanted in 1..8_u32 {
        let (mut old, mut new) = (wanted, 0);
        for _ in 0..=2 * wanted {
            old = retire(Retiring {
                wanted,
                new_ready: new,
                room: false,
                old,
                old_ready: old,
            });
            assert!(
                old + new + 1 >= wanted,
                "{old} old and {new} new of {wanted}"
            );
            new = wanted - old;
        }
        assert_eq!((old, new), (0, wanted));
    }
}
