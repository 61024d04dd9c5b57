//! In which order the policies serve, and how long anybody waits at most. In virtual time.

use jiff::SignedDuration;
use warp_core::estimate::{Durations, Features};
use warp_core::schedule::keep::Ending;

use super::*;
use crate::estimates::known_by;
use crate::placement::{Arrivals, Cause, Order, Runs, in_order};

const HOUR: i64 = 3600;

/// Twenty runs of each model took so many seconds.
fn learnt(runs: &[(&str, u32, i64)]) -> Durations {
    let mut durations = Durations::default();
    for (model, gpus, seconds) in runs {
        let group = durations.group(&known_by(&Features {
            tenant: Some("default".to_owned()),
            model: Some((*model).to_owned()),
            image: Some("a".to_owned()),
            gpus: *gpus,
        }));
        for _ in 0..20 {
            durations.observe(group, *seconds as f64);
        }
    }
    durations
}

fn made(name: &str, model: &str, gpus: u32, at: Timestamp) -> Arc<GPUWorkload> {
    let spec = json!({"modelName": model, "gpuCount": gpus, "creationTimestamp": at.to_string()});
    workload(name, spec)
}

fn hours(later: i64) -> Timestamp {
    now() + SignedDuration::from_hours(later)
}

fn names(order: &Order, line: &[Arc<GPUWorkload>], now: Timestamp) -> Vec<String> {
    let mut wanted: Vec<_> = line.iter().map(claimant).collect();
    in_order(&mut wanted, order, &Arrivals::default(), now);
    let names = wanted.iter().map(|one| one.claim().key.name.to_string());
    names.collect()
}

#[test]
fn each_policy_serves_in_its_own_order() {
    let durations = || learnt(&[("long", 1, 50 * HOUR), ("short", 1, 60), ("wide", 4, 60)]);
    let line = [
        made("first", "long", 1, now()),
        made("second", "wide", 4, hours(1)),
        made("third", "short", 1, hours(2)),
    ];
    let under = |policy| {
        let order = Order::at(policy, durations(), 0.0, hours(3));
        names(&order, &line, hours(3))
    };
    let by_age = ["first", "second", "third"];
    for policy in [QueuePolicy::Easy, QueuePolicy::Fifo, QueuePolicy::SkipAhead] {
        assert_eq!(under(policy), by_age, "{policy:?}");
    }
    assert_eq!(under(QueuePolicy::Sjf).last().unwrap(), "first");
    assert_eq!(under(QueuePolicy::Las), ["first", "third", "second"]);
    assert_eq!(under(QueuePolicy::Warp), ["second", "third", "first"]);
}

#[test]
fn two_claims_of_one_name_stand_in_two_places() {
    let one = made("same", "m", 1, now());
    let mut other = (*one).clone();
    other.metadata.uid = Some("another".to_owned());
    let order = Order::new(QueuePolicy::Easy);
    let turn = |it: &Arc<GPUWorkload>| order.turn(&*claimant(it), None, now());
    assert_ne!(turn(&one), turn(&Arc::new(other)));
}

#[test]
fn what_is_learnt_moves_those_that_wait_and_priority_comes_first() {
    let order = Order::new(QueuePolicy::Sjf);
    let before = order.refresh(0.0, now());
    assert_eq!(order.refresh(0.0, now()), before, "nothing has changed");
    order.learn(Arc::new(learnt(&[("a", 1, 9 * HOUR), ("b", 1, 60)])));
    assert_ne!(order.refresh(0.0, hours(1)), before);
    let mut line = vec![made("slow", "a", 1, now()), made("fast", "b", 1, hours(1))];
    assert_eq!(names(&order, &line, hours(1)), ["fast", "slow"]);
    let urgent =
        json!({"modelName": "a", "priority": "high", "creationTimestamp": hours(1).to_string()});
    line.push(workload("urgent", urgent));
    assert_eq!(names(&order, &line, hours(1)), ["urgent", "fast", "slow"]);
}

/// Small work of four hours comes every hour, to a node of four GPUs that it fills; when the wide work starts, in hours.
fn wide_starts_after(policy: QueuePolicy, evictable_share: f64, most: i64) -> Option<i64> {
    let durations = learnt(&[("small", 1, 4 * HOUR), ("wide", 4, 80 * HOUR)]);
    let order = Order::at(policy, durations, evictable_share, now());
    let mut ledger = ledger::build(&[node("a", 4, json!({}))], &[], &[]);
    let settings = Settings::default();
    let wide = made("wide", "wide", 4, now());
    let mut line: Vec<Arc<GPUWorkload>> = Vec::new();
    let (mut ends, mut held) = (BTreeMap::<String, i64>::new(), Vec::new());
    for hour in -8..most {
        let at = hours(hour);
        let over: Vec<String> = ends
            .iter()
            .filter(|(_, end)| **end <= hour)
            .map(|(uid, _)| uid.clone())
            .collect();
        for uid in over {
            ends.remove(&uid);
            ledger.fleet.release(&uid).expect("it runs");
        }
        line.push(made(&format!("small{hour}"), "small", 1, at));
        if hour == 0 {
            line.push(Arc::clone(&wide));
        }
        order.refresh(evictable_share, at);
        let mut claimants: Vec<_> = line.iter().map(claimant).collect();
        in_order(&mut claimants, &order, &Arrivals::default(), at);
        let endings = || {
            ends.keys()
                .map(|uid| (uid.clone(), Ending::Unknown))
                .collect()
        };
        let kept = Line::new(policy, at, endings, std::mem::take(&mut held)).ordered_by(&order);
        let (quotas, tenancy) = (Quotas::default(), Tenancy::default());
        let mut desk = Desk::new(&claimants, quotas, tenancy, kept, &settings).ordered_by(&order);
        let mut started = Vec::new();
        for one in &claimants {
            if let Decision::Place(_) = desk.decide(&mut ledger, &**one) {
                started.push(one.claim().uid.clone());
            }
        }
        held.clone_from(desk.held());
        drop(desk);
        let has_started = |uid: Option<String>| uid.is_some_and(|uid| started.contains(&uid));
        if has_started(kube::ResourceExt::uid(&*wide)) {
            return Some(hour);
        }
        line.retain(|one| !has_started(kube::ResourceExt::uid(&**one)));
        ends.extend(started.iter().map(|uid| (uid.clone(), hour + 4)));
    }
    None
}

#[test]
fn a_stream_of_small_work_never_holds_wide_work_longer_than_the_rule_says() {
    // A week, and what ran at its end.
    let rule = 7 * 24 + 4;
    let waits = |share| wide_starts_after(QueuePolicy::Warp, share, 2 * rule).expect("it starts");
    let where_nothing_is_evicted = waits(0.0);
    assert!(
        (90..=rule).contains(&where_nothing_is_evicted),
        "{where_nothing_is_evicted} h"
    );
    let where_work_is_evicted = waits(1.0);
    assert!(
        (7 * 24..=rule).contains(&where_work_is_evicted),
        "{where_work_is_evicted} h"
    );
    assert_eq!(wide_starts_after(QueuePolicy::Easy, 0.0, rule), Some(4));
    for policy in [QueuePolicy::SkipAhead, QueuePolicy::Sjf] {
        assert_eq!(wide_starts_after(policy, 0.0, 2 * rule), None, "{policy:?}");
    }
}

#[derive(Debug)]
struct Stands(Runs);

impl Runner for Stands {
    fn runs(&self) -> &Runs {
        &self.0
    }

    fn evict(&self, _: &mut warp_runtime::plan::Plan, _: &Claim, _: Cause) {}

    fn pass(&self, correlation: String) -> warp_runtime::pass::Pass {
        warp_runtime::pass::Pass {
            correlation,
            ..Default::default()
        }
    }
}

#[test]
fn checkpointed_work_that_has_had_far_more_goes_for_its_equals() {
    let decided = |policy, ran: i64, saves: bool| {
        let order = Order::at(policy, Durations::default(), 1.0, now());
        let mut ledger = ledger::build(&[node("a", 4, json!({}))], &[], &[]);
        let old = workload("old", json!({"gpuCount": 4}));
        assert!(chosen(&decide(&mut ledger, std::slice::from_ref(&old))[0]).is_some());
        let runs = Runs {
            key: warp_runtime::cache::Key::new("default", "old"),
            works: vec![Arc::from("old-uid-0000")],
            priority: Priority::Normal,
            preemptible: None,
            gpus: 4,
            started: Some(hours(-ran)),
            unsaved_since: Some(now()),
            evicted_for: None,
            saves,
            features: Features::default(),
            created: Some(hours(-ran)),
        };
        let settings = Settings::default();
        let running = vec![Arc::new(Stands(runs)) as Arc<dyn Runner>];
        let evictable = Evictable::new(running, now(), settings.min_run_time);
        let line = Line::new(policy, now(), Endings::new, Vec::new()).ordered_by(&order);
        let (quotas, tenancy) = (Quotas::default(), Tenancy::default());
        let mut desk = Desk::new(&[], quotas, tenancy, line, &settings)
            .ordered_by(&order)
            .evicting(evictable);
        let new = claimant(&made("new", "m", 4, hours(-1)));
        desk.decide(&mut ledger, &*new)
    };
    let goes = |decision: &Decision| matches!(decision, Decision::Evict(_, Cause::Rank, _));
    assert!(goes(&decided(QueuePolicy::Las, 30, true)));
    assert!(
        !goes(&decided(QueuePolicy::Las, 1, true)),
        "it has run for too little"
    );
    assert!(
        !goes(&decided(QueuePolicy::Las, 30, false)),
        "it saves nothing"
    );
    assert!(
        !goes(&decided(QueuePolicy::Easy, 30, true)),
        "equals are left alone"
    );
}
