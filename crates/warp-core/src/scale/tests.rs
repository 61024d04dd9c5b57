use proptest::prelude::*;

use super::*;

fn rules(metric: Metric, target: u32) -> Rules {
    Rules {
        min: 1,
        max: 10,
        metric,
        target,
        window_seconds: 300,
    }
}

fn load(copies: u32, running: u64, waiting: u64) -> Load {
    Load {
        copies,
        running,
        waiting,
        ..Load::default()
    }
}

fn copies(wanted: u32) -> Copies {
    Copies {
        wanted,
        too_many_since: None,
    }
}

#[test]
fn load_beyond_the_target_starts_copies_at_once() {
    let decision = decide(
        &rules(Metric::InFlight, 10),
        copies(2),
        Some(load(2, 30, 20)),
        0,
    );
    assert_eq!(decision.copies.wanted, 5);
    assert_eq!(decision.why, "5 instead of 2 copies: 50 requests under way");
}

#[test]
fn no_answer_is_not_no_load() {
    let rules = rules(Metric::InFlight, 10);
    for nothing in [None, Some(load(0, 0, 0))] {
        let mut state = Copies {
            wanted: 7,
            too_many_since: Some(0),
        };
        for now in [0, 1000, 100_000] {
            state = decide(&rules, state, nothing, now).copies;
        }
        assert_eq!(state.wanted, 7);
    }
}

#[test]
fn copies_go_only_after_they_were_too_many_for_the_whole_window() {
    let rules = rules(Metric::InFlight, 10);
    let mut state = copies(4);
    for (now, requests, expected) in [
        (0, 5, 4),
        (200, 5, 4),
        // One look with enough to do, and the window begins again.
        (250, 39, 4),
        (301, 5, 4),
        (600, 5, 4),
        (601, 5, 3),
        (602, 5, 3),
    ] {
        let decision = decide(&rules, state, Some(load(4, requests, 0)), now);
        assert_eq!(
            decision.copies.wanted, expected,
            "at {now}: {}",
            decision.why
        );
        state = decision.copies;
    }
}

#[test]
fn a_tenth_too_much_starts_nothing() {
    let rules = rules(Metric::InFlight, 10);
    assert_eq!(
        decide(&rules, copies(2), Some(load(2, 22, 0)), 0)
            .copies
            .wanted,
        2
    );
    assert_eq!(
        decide(&rules, copies(2), Some(load(2, 23, 0)), 0)
            .copies
            .wanted,
        3
    );
}

#[test]
fn an_empty_queue_gives_up_no_copy_that_is_busy() {
    let rules = rules(Metric::Queue, 5);
    let state = Copies {
        wanted: 4,
        too_many_since: Some(0),
    };
    assert_eq!(
        decide(&rules, state, Some(load(4, 40, 0)), 1000)
            .copies
            .wanted,
        4
    );
    assert_eq!(
        decide(&rules, state, Some(load(4, 2, 0)), 1000)
            .copies
            .wanted,
        3
    );
}

#[test]
fn a_full_cache_starts_copies() {
    let rules = rules(Metric::Cache, 60);
    let full = Some(Load {
        copies: 2,
        running: 50,
        waiting: 0,
        cache_percent: 180,
        ..Load::default()
    });
    assert_eq!(decide(&rules, copies(2), full, 0).copies.wanted, 3);
}

#[test]
fn slow_answers_start_copies_and_quick_ones_end_them_only_when_few_are_asked_for() {
    let rules = rules(Metric::FirstToken, 500);
    let slow = |ms: Option<u64>, running: u64| {
        Some(Load {
            first_token_ms: ms,
            ..load(4, running, 0)
        })
    };
    let up = decide(&rules, copies(4), slow(Some(800), 40), 0);
    assert_eq!(up.copies.wanted, 7);
    assert_eq!(
        up.why,
        "7 instead of 4 copies: the first token takes up to 800 ms, 500 are wanted"
    );
    // Within a tenth of what is wanted, and while nothing was measured, they stay.
    for ms in [Some(540), None] {
        assert_eq!(decide(&rules, copies(4), slow(ms, 40), 0).copies, copies(4));
    }
    let mut state = copies(4);
    state.too_many_since = Some(0);
    let busy = decide(&rules, state, slow(Some(50), 40), 1000);
    assert_eq!(busy.copies.wanted, 4, "ten requests each keep it quick");
    let idle = decide(&rules, state, slow(Some(50), 2), 1000);
    assert_eq!(idle.copies.wanted, 3);
    let asleep = decide(&rules, state, slow(None, 0), 1000);
    assert_eq!(asleep.copies.wanted, 3);
}

#[test]
fn the_least_number_follows_the_time_of_day() {
    let hour = |hour: i64| hour * 3600;
    let steps = [
        Step {
            minute: 20 * 60,
            min: 1,
        },
        Step {
            minute: 8 * 60,
            min: 4,
        },
    ];
    let days = 20_000 * 86_400;
    for (at, min) in [(7, 1), (8, 4), (19, 4), (20, 1), (23, 1), (0, 1)] {
        assert_eq!(least(2, &steps, days + hour(at)), min, "{at} h");
    }
    assert_eq!(least(2, &[], days), 2);
}

proptest! {
    #[test]
    fn the_number_stays_within_its_bounds_and_moves_only_with_a_reason(
        min in 1_u32..5, more in 0_u32..20, target in 1_u32..50,
        wanted in 0_u32..40, answered in 0_u32..40, running in 0_u64..2000, waiting in 0_u64..2000,
        cache in 0_u64..4000, since in prop::option::of(-1000_i64..1000), now in 0_i64..2000,
        slow in prop::option::of(0_u64..5000),
        metric in prop::sample::select(vec![
            Metric::InFlight, Metric::Queue, Metric::Cache, Metric::FirstToken, Metric::BetweenTokens,
        ]),
    ) {
        let rules = Rules { min, max: min + more, metric, target, window_seconds: 300 };
        let state = Copies { wanted, too_many_since: since };
        let seen = Some(Load {
            copies: answered, running, waiting, cache_percent: cache,
            first_token_ms: slow, between_tokens_ms: slow,
        });
        let decision = decide(&rules, state, seen, now);
        let next = decision.copies.wanted;
        prop_assert!(next >= min && next <= min + more);
        let current = wanted.clamp(min, min + more);
        if next < current {
            prop_assert!(since.is_some_and(|since| now - since >= 300));
            prop_assert!(next >= current - current.div_ceil(4));
        }
        if next > current {
            prop_assert!(next <= (current * 2).max(current + 4));
        }
        prop_assert!(!decision.why.is_empty());
    }
}

fn pool(min: u32, max: u32, placed: u32, spare: u32) -> Pool {
    Pool {
        min,
        max,
        placed,
        spare,
    }
}

#[test]
fn copies_go_to_the_first_pool_that_has_room_and_stay_where_they_are() {
    for (wanted, pools, expected, why) in [
        (
            3,
            vec![pool(0, 9, 0, 5), pool(0, 9, 0, 5)],
            vec![3, 0],
            "the first",
        ),
        (
            3,
            vec![pool(0, 9, 0, 2), pool(0, 9, 0, 5)],
            vec![2, 1],
            "the rest falls over",
        ),
        (
            3,
            vec![pool(0, 2, 0, 5), pool(0, 9, 0, 5)],
            vec![2, 1],
            "no more than its most",
        ),
        (
            3,
            vec![pool(0, 9, 0, 5), pool(1, 9, 0, 5)],
            vec![2, 1],
            "what the second has by right",
        ),
        (
            3,
            vec![pool(0, 9, 0, 5), pool(0, 9, 2, 0)],
            vec![1, 2],
            "who runs stays",
        ),
        (
            4,
            vec![pool(0, 9, 0, 0), pool(0, 9, 0, 1)],
            vec![3, 1],
            "who finds no room waits in the first",
        ),
        (
            2,
            vec![pool(2, 9, 0, 0), pool(0, 9, 2, 0)],
            vec![0, 2],
            "nobody who serves goes for who waits",
        ),
        (
            1,
            vec![pool(0, 9, 2, 0), pool(0, 9, 2, 0)],
            vec![1, 0],
            "the last gives up first",
        ),
        (
            2,
            vec![pool(0, 9, 2, 0), pool(1, 9, 2, 0)],
            vec![1, 1],
            "but not what it has by right",
        ),
        (
            0,
            vec![pool(1, 9, 2, 0), pool(1, 9, 2, 0)],
            vec![0, 0],
            "none are wanted",
        ),
        (
            9,
            vec![pool(0, 2, 0, 9), pool(0, 3, 0, 9)],
            vec![2, 3],
            "all are at their most",
        ),
        (5, vec![], vec![], "no pools"),
    ] {
        assert_eq!(spread(wanted, &pools), expected, "{why}");
    }
}

proptest::proptest! {
    #[test]
    fn a_spread_is_all_that_is_wanted_or_all_there_may_be_and_comes_to_rest(
        wanted in 0_u32..40,
        given in proptest::collection::vec((0_u32..6, 0_u32..12, 0_u32..12, 0_u32..12), 1..5),
    ) {
        let pools: Vec<Pool> = given
            .into_iter()
            .map(|(min, max, placed, spare)| pool(min.min(max), max, placed.min(max), spare))
            .collect();
        let copies = spread(wanted, &pools);
        let most: u32 = pools.iter().map(|pool| pool.max).sum();
        proptest::prop_assert_eq!(copies.iter().sum::<u32>(), wanted.min(most));
        // Everybody for whom there is room gets it: then nothing changes any more.
        let settled: Vec<Pool> = pools
            .iter()
            .zip(&copies)
            .map(|(pool, copies)| {
                let placed = (*copies).min(pool.placed + pool.spare);
                let spare = (pool.placed + pool.spare).saturating_sub(placed);
                Pool { placed, spare, ..*pool }
            })
            .collect();
        proptest::prop_assert_eq!(spread(wanted, &settled), copies);
    }
}
