//! Who goes for whom.

use super::*;
use warp_core::schedule::keep::Ending;
use warp_runtime::cache::Key;

use crate::placement::{Cause, Evictable, Runner, Runs};
use crate::workload::{Class, Given};

/// Running work that only says what it is.
#[derive(Debug)]
pub(super) struct Stands(pub(super) Runs);

impl Runner for Stands {
    fn runs(&self) -> &Runs {
        &self.0
    }
    fn evict(&self, _: &mut warp_runtime::plan::Plan, _: &Claim, _: Cause) {}
    fn pass(&self, _: String) -> warp_runtime::pass::Pass {
        unreachable!("nothing is carried out here")
    }
}

fn runs(name: &str, gpus: u64, priority: Priority, minutes: i64) -> Runs {
    let started = Some(crate::clock::after(now(), -60 * minutes));
    Runs {
        key: Key::new("team", name),
        works: vec![Arc::from(format!("{name}-uid-0000"))],
        priority,
        preemptible: None,
        gpus,
        started,
        unsaved_since: started,
        evicted_for: None,
        saves: false,
        features: warp_core::estimate::Features::default(),
        created: None,
    }
}

/// A node of four GPUs with these on it, and what is decided for a claim of that priority.
fn asked(priority: &str, gpus: u32, running: Vec<Runs>, tenancy: Tenancy) -> (Decision, Vec<Held>) {
    let mut ledger = ledger::build(&[node("a", 4, json!({}))], &[], &[]);
    let there: Vec<_> = running
        .iter()
        .map(|runs| workload(&runs.key.name, json!({"gpuCount": runs.gpus})))
        .collect();
    assert!(
        decide(&mut ledger, &there)
            .iter()
            .all(|one| chosen(one).is_some())
    );
    let runners = running
        .into_iter()
        .map(|runs| Arc::new(Stands(runs)) as Arc<dyn Runner>);
    let settings = Settings::default();
    let evictable = Evictable::new(runners.collect::<Vec<_>>(), now(), settings.min_run_time);
    let wanted = [claimant(&workload(
        "w",
        json!({"gpuCount": gpus, "priority": priority}),
    ))];
    let mut desk =
        Desk::new(&wanted, Quotas::default(), tenancy, skipping(), &settings).evicting(evictable);
    let decision = desk.decide(&mut ledger, &*wanted[0]);
    let held = desk.line().held().to_vec();
    (decision, held)
}

/// Who is to be asked to end.
fn going(decision: &Decision) -> Vec<String> {
    match decision {
        Decision::Evict(going, ..) => going
            .iter()
            .map(|one| one.runs().key.name.to_string())
            .collect(),
        _ => Vec::new(),
    }
}

#[test]
fn low_work_that_has_run_for_a_while_goes_for_higher_priority() {
    let running = || {
        vec![
            runs("old", 2, Priority::Low, 90),
            runs("young", 2, Priority::Low, 5),
        ]
    };
    for priority in ["normal", "high"] {
        let (decision, held) = asked(priority, 2, running(), Tenancy::default());
        assert_eq!(going(&decision), ["young"], "the one that loses least");
        assert!(!held.is_empty(), "its node is kept for whom it goes");
        let Decision::Evict(_, Cause::Priority, verdict) = &decision else {
            panic!("{decision:?}")
        };
        assert_eq!(verdict.reason, reason::PREEMPTING);
        let message = &verdict.message;
        assert!(
            message.contains("takes the place of team/young on a"),
            "{message}"
        );
    }
    let (decision, _) = asked("high", 4, running(), Tenancy::default());
    assert_eq!(going(&decision), ["old", "young"]);
}

#[test]
fn whoever_has_saved_its_work_goes_before_whoever_loses_it() {
    let young = || runs("young", 2, Priority::Low, 5);
    let saved = |unsaved_since| Runs {
        unsaved_since,
        ..runs("saved", 2, Priority::Low, 900)
    };
    let minute = Some(crate::clock::after(now(), -60));
    for one in [saved(minute), saved(None)] {
        let (decision, _) = asked("high", 2, vec![young(), one], Tenancy::default());
        assert_eq!(going(&decision), ["saved"]);
    }
}

#[test]
fn nobody_goes_for_equals_or_before_the_least_time_or_against_its_word() {
    let waits = |priority: &str, running: Runs| {
        let (decision, _) = asked(priority, 4, vec![running], Tenancy::default());
        assert_eq!(verdict(&decision).0, reason::WAITING_FOR_CAPACITY);
    };
    waits("low", runs("r", 4, Priority::Low, 90));
    waits("high", runs("r", 4, Priority::Normal, 90));
    waits("high", runs("r", 4, Priority::Low, 0));
    let mut stays = runs("r", 4, Priority::Low, 90);
    stays.preemptible = Some(false);
    waits("high", stays);
    // One that lets itself be evicted goes whatever its priority, as long as that is lower.
    let mut lets = runs("r", 4, Priority::Normal, 90);
    lets.preemptible = Some(true);
    waits("normal", lets.clone());
    let (decision, _) = asked("high", 4, vec![lets], Tenancy::default());
    assert_eq!(going(&decision), ["r"]);
}

#[test]
fn nobody_goes_for_work_whose_class_evicts_nobody() {
    let running = vec![Arc::new(Stands(runs("r", 4, Priority::Low, 90))) as Arc<dyn Runner>];
    let ledger = ledger::build(&[node("a", 4, json!({}))], &[], &[]);
    let mut evictable = Evictable::new(running, now(), Settings::default().min_run_time);
    let mut claim = asking(&workload("w", json!({"priority": "high"})))
        .claim()
        .clone();
    claim.patient = true;
    let room = evictable.make_room(&ledger.fleet, &claim, &[], &[], &|_| None, None);
    assert!(room.is_none());
}

#[test]
fn who_was_asked_before_is_waited_for_and_nobody_else_is_asked() {
    let mut first = runs("first", 2, Priority::Low, 90);
    first.evicted_for = Some("team/w".to_owned());
    let running = vec![first, runs("second", 2, Priority::Low, 5)];
    let (decision, held) = asked("high", 2, running, Tenancy::default());
    let Decision::Evict(going, ..) = &decision else {
        panic!("{decision:?}")
    };
    assert!(going.is_empty(), "{going:?}");
    assert!(!held.is_empty());
}

#[test]
fn a_tenant_decides_for_work_that_does_not_say() {
    let tenant = |preemptible: bool| {
        let tenant = json!({
            "apiVersion": "gpu.warp.dev/v1alpha1", "kind": "Tenant", "metadata": {"name": "t"},
            "spec": {"namespaces": {"names": ["team"]}, "defaults": {"preemptible": preemptible}}});
        let tenant = Arc::new(serde_json::from_value(tenant).unwrap());
        let namespace = json!({"metadata": {"name": "team"}});
        let namespace = Arc::new(serde_json::from_value(namespace).unwrap());
        let ledger = ledger::build(&[], &[], &[]);
        Tenancy::new(&[tenant], &[namespace], &ledger.fleet)
    };
    let (decision, _) = asked(
        "high",
        4,
        vec![runs("r", 4, Priority::Low, 9)],
        tenant(false),
    );
    assert_eq!(verdict(&decision).0, reason::WAITING_FOR_CAPACITY);
    let (decision, _) = asked(
        "high",
        4,
        vec![runs("r", 4, Priority::Normal, 9)],
        tenant(true),
    );
    assert_eq!(going(&decision), ["r"]);
}

/// A claim of a class that evicts nobody.
fn patient(name: &str, gpus: u32) -> Arc<dyn Claimant> {
    let class = k8s_openapi::api::scheduling::v1::PriorityClass {
        value: 1000,
        preemption_policy: Some("Never".to_owned()),
        ..Default::default()
    };
    let given = Given {
        class: Some(Class::from(&class)),
        ..Given::default()
    };
    let seen = Seen {
        given,
        ..Seen::default()
    };
    let asks = workload(
        name,
        json!({"gpuCount": gpus, "priorityClassName": "patient"}),
    );
    Arc::new(Asking::new(&Cache::new(&[]), asks, seen, now()).expect("its spec is right"))
}

#[test]
fn who_evicts_nobody_and_is_first_keeps_nobody_of_its_rank_from_evicting() {
    let mut ledger = ledger::build(&[node("a", 4, json!({}))], &[], &[]);
    let running = runs("r", 4, Priority::Low, 90);
    let there = [workload("r", json!({"gpuCount": 4}))];
    assert!(chosen(&decide(&mut ledger, &there)[0]).is_some());
    let first = patient("first", 4);
    let second = claimant(&workload(
        "second",
        json!({"gpuCount": 4, "priority": "high"}),
    ));
    let settings = Settings::default();
    let endings = || {
        let unknown = |name: &str| (format!("{name}-uid-0000"), Ending::Unknown);
        ["r", "second"].map(unknown).into()
    };
    let pass = |ledger: &mut Ledger, before: Vec<Held>, who: &[&Arc<dyn Claimant>]| {
        let line = Line::new(QueuePolicy::Easy, now(), endings, before);
        let runners = vec![Arc::new(Stands(running.clone())) as Arc<dyn Runner>];
        let evictable = Evictable::new(runners, now(), settings.min_run_time);
        let mut desk = Desk::new(&[], Quotas::default(), Tenancy::default(), line, &settings)
            .evicting(evictable);
        let each = who.iter().map(|one| desk.decide(ledger, &***one));
        let decisions: Vec<Decision> = each.collect();
        (decisions, desk.line().held().to_vec())
    };
    let (decisions, held) = pass(&mut ledger, Vec::new(), &[&first, &second]);
    let (reason, message) = verdict(&decisions[0]);
    assert_eq!(reason, reason::WAITING_FOR_CAPACITY);
    assert!(message.contains("node a is kept for it"), "{message}");
    assert_eq!(going(&decisions[1]), ["r"]);
    // What has gone for the second is not the first's, which asked nobody.
    ledger.fleet.release("r-uid-0000").expect("it ran");
    let (decisions, held) = pass(&mut ledger, held, &[&first, &second]);
    assert_eq!(chosen(&decisions[0]), None);
    assert_eq!(chosen(&decisions[1]).as_deref(), Some("a"));
    // Work that has another rank keeps off as before.
    ledger.fleet.release("second-uid-0000").expect("it ran");
    let normal = claimant(&workload("normal", json!({"gpuCount": 4})));
    let (decisions, _) = pass(&mut ledger, held, &[&first, &normal]);
    assert_eq!(chosen(&decisions[0]).as_deref(), Some("a"));
    assert_eq!(chosen(&decisions[1]), None);
}
