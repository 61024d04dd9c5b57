//! The engine against what a paged, batching engine must do, and properties over random traffic.

use std::collections::BTreeMap;
use std::time::Duration;

use proptest::prelude::*;

use super::*;

fn ask(id: u64, prompt: std::ops::Range<u32>, answer: usize) -> Ask {
    Ask {
        id,
        prompt: prompt.collect(),
        answer: (1_000_000..).take(answer).collect(),
    }
}

fn small(blocks: u32) -> Settings {
    Settings {
        blocks,
        max_batched_tokens: 64,
        max_model_len: 4096,
        ..Settings::default()
    }
}

/// Runs until nothing is left to do.
fn drain(engine: &mut Engine) -> Vec<Token> {
    let mut all = Vec::new();
    while let Some(due) = engine.due() {
        all.extend(engine.advance(due));
    }
    all
}

#[test]
fn every_token_of_an_answer_comes_once_and_in_order() {
    let mut engine = Engine::new(small(100));
    engine.submit(ask(1, 0..40, 5), Duration::ZERO).unwrap();
    engine.submit(ask(2, 100..140, 3), Duration::ZERO).unwrap();
    let tokens = drain(&mut engine);
    for (id, count) in [(1, 5), (2, 3)] {
        let own: Vec<&Token> = tokens.iter().filter(|token| token.id == id).collect();
        let indexes: Vec<usize> = own.iter().map(|token| token.index).collect();
        assert_eq!(indexes, (0..count).collect::<Vec<_>>());
        assert!(own[0].begun.is_some() && own[count - 1].last);
    }
    assert_eq!((engine.running(), engine.waiting()), (0, 0));
    assert_eq!(engine.counts().generation_tokens, 8);
}

#[test]
fn a_longer_prompt_takes_longer_to_its_first_token() {
    let first = |prompt: u32| {
        let mut engine = Engine::new(Settings::default());
        engine.submit(ask(1, 0..prompt, 1), Duration::ZERO).unwrap();
        drain(&mut engine)[0].at
    };
    assert!(first(1000) > first(10));
}

#[test]
fn load_makes_tokens_come_slower() {
    let between = |requests: u64| {
        let mut engine = Engine::new(Settings::default());
        for id in 0..requests {
            let start = u32::try_from(id).unwrap() * 100;
            let request = ask(id, start..start + 20, 20);
            engine.submit(request, Duration::ZERO).unwrap();
        }
        let own = drain(&mut engine);
        let times: Vec<Duration> = own.iter().filter(|t| t.id == 0).map(|t| t.at).collect();
        times[19].saturating_sub(times[18])
    };
    assert!(between(50) > between(1));
}

#[test]
fn the_beginning_of_an_earlier_prompt_is_found_and_the_last_token_is_always_computed() {
    let mut engine = Engine::new(small(100));
    engine.submit(ask(1, 0..48, 1), Duration::ZERO).unwrap();
    drain(&mut engine);
    assert_eq!(engine.counts().prefix_hits, 0);
    // The same 48 tokens are three full blocks; the third ends with the token that has to be computed.
    engine.submit(ask(2, 0..48, 1), Duration::ZERO).unwrap();
    let tokens = drain(&mut engine);
    assert_eq!(tokens[0].begun.map(|begun| begun.cached), Some(32));
    assert_eq!(engine.counts().prefix_hits, 32);
    assert_eq!(engine.counts().prefix_queries, 96);
}

#[test]
fn the_longest_unused_blocks_are_given_up_first() {
    // Room for two prompts of three blocks.
    let mut engine = Engine::new(small(7));
    for (id, start) in [(1, 0), (2, 1000), (3, 2000)] {
        let request = ask(id, start..start + 40, 1);
        engine.submit(request, Duration::ZERO).unwrap();
        drain(&mut engine);
    }
    engine
        .submit(ask(4, 2000..2040, 1), Duration::ZERO)
        .unwrap();
    let kept = drain(&mut engine)[0].begun.map(|begun| begun.cached);
    engine.submit(ask(5, 0..40, 1), Duration::ZERO).unwrap();
    let lost = drain(&mut engine)[0].begun.map(|begun| begun.cached);
    assert_eq!((kept, lost), (Some(32), Some(0)));
}

#[test]
fn without_room_the_youngest_starts_again_and_both_end() {
    let mut engine = Engine::new(small(6));
    engine.submit(ask(1, 0..32, 40), Duration::ZERO).unwrap();
    engine.submit(ask(2, 100..132, 40), Duration::ZERO).unwrap();
    let tokens = drain(&mut engine);
    assert_eq!(tokens.len(), 80);
    assert!(engine.counts().preemptions > 0);
    assert!(engine.cache_usage().abs() < f64::EPSILON);
}

#[test]
fn what_can_never_be_held_is_refused_with_its_numbers() {
    let mut engine = Engine::new(Settings {
        max_model_len: 100,
        blocks: 4,
        ..Settings::default()
    });
    let refused = engine
        .submit(ask(1, 0..90, 20), Duration::ZERO)
        .unwrap_err();
    assert!(refused.to_string().contains("100 tokens"), "{refused}");
    let refused = engine
        .submit(ask(1, 0..80, 10), Duration::ZERO)
        .unwrap_err();
    assert!(refused.to_string().contains("holds 64"), "{refused}");
    let empty = Ask {
        id: 1,
        prompt: Vec::new(),
        answer: vec![1],
    };
    assert_eq!(engine.submit(empty, Duration::ZERO), Err(Refusal::Empty));
}

#[test]
fn a_cancelled_request_gives_its_blocks_back() {
    let mut engine = Engine::new(small(100));
    engine.submit(ask(1, 0..40, 50), Duration::ZERO).unwrap();
    let due = engine.due().unwrap();
    engine.advance(due);
    assert!(engine.cache_usage() > 0.0);
    engine.cancel(1);
    assert_eq!(engine.running(), 0);
    assert!(engine.cache_usage().abs() < f64::EPSILON);
}

proptest! {
    #[test]
    fn any_traffic_ends_with_every_answer_whole_and_no_block_held(
        blocks in 8_u32..40,
        caching in any::<bool>(),
        batch in 1_u32..100,
        seats in 1_u32..8,
        asks in prop::collection::vec((0_u32..4, 1_u32..60, 1_usize..60, 0_u64..50), 1..30),
        cancelled in prop::collection::btree_set(0_u64..30, 0..5),
    ) {
        let mut engine = Engine::new(Settings {
            blocks,
            max_sequences: seats,
            max_batched_tokens: batch,
            prefix_caching: caching,
            max_model_len: 1000,
            ..Settings::default()
        });
        let mut wanted = BTreeMap::new();
        let mut tokens: BTreeMap<u64, Vec<usize>> = BTreeMap::new();
        let mut now = Duration::ZERO;
        for (id, (family, prompt, answer, pause)) in asks.into_iter().enumerate() {
            let id = id as u64;
            now += Duration::from_millis(pause);
            for token in engine.advance(now) {
                tokens.entry(token.id).or_default().push(token.index);
            }
            let start = family * 10_000;
            if engine.submit(ask(id, start..start + prompt, answer), now).is_ok() {
                wanted.insert(id, answer);
            }
            if cancelled.contains(&id) {
                engine.cancel(id);
                wanted.remove(&id);
                tokens.remove(&id);
            }
        }
        let mut steps = 0;
        while let Some(due) = engine.due() {
            steps += 1;
            prop_assert!(steps < 100_000, "it does not end");
            for token in engine.advance(due) {
                tokens.entry(token.id).or_default().push(token.index);
            }
            prop_assert!(engine.running() <= seats as usize);
            prop_assert!(engine.cache_usage() <= 1.0);
        }
        for (id, answer) in wanted {
            prop_assert_eq!(tokens.get(&id).cloned().unwrap_or_default(), (0..answer).collect::<Vec<_>>());
        }
        prop_assert!(engine.cache_usage().abs() < f64::EPSILON);
        prop_assert_eq!(engine.waiting(), 0);
        prop_assert!(engine.counts().prefix_hits <= engine.counts().prefix_queries);
    }
}
