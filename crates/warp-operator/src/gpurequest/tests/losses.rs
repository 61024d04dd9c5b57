//! Machines that are lost, taken back, too dear, or left to others: what counts against a request and what does not.

use super::*;

fn spot() -> Value {
    json!({"spotInstance": true, "maxSpotPrice": 3, "maxPrice": 4, "spotWait": "10m"})
}

/// Its machine is gone, without a word, after this many seconds.
fn vanishes(it: &mut GPURequest, seconds: i64) {
    let is_open = |it: &GPURequest| {
        let last = it.status.as_ref().and_then(|status| status.attempts.last());
        last.is_some_and(|last| last.outcome.is_none())
    };
    for now in seconds..seconds + 9 {
        if !is_open(it) {
            return;
        }
        let mut gone = with(sight(now, Some(&machine(State::Gone))), None, false);
        let number = it.status.as_ref().map_or(0, |status| status.attempt_count);
        gone.open[0].number = number;
        let pass = plan(it, &gone, at(now));
        if pass
            .actions
            .iter()
            .any(|action| matches!(action, Action::Status(_)))
        {
            it.status = Some(written(&pass));
        }
    }
}

/// The next machine is bought and its node is ready.
fn follows(it: &mut GPURequest, seconds: i64) {
    it.status = Some(written(&plan(it, &seen(market()), at(seconds))));
    let number = it.status.as_ref().map_or(0, |status| status.attempt_count);
    let running = machine(State::Running);
    let mut now = with(sight(seconds + 1, Some(&running)), Some(ready_node()), true);
    now.open[0].number = number;
    it.status = Some(written(&plan(it, &now, at(seconds + 1))));
}

#[test]
fn a_machine_whose_node_does_not_come_back_is_given_back() {
    let running = machine(State::Running);
    let without = |it: &GPURequest, seconds: i64| {
        let seen = with(sight(seconds, Some(&running)), None, false);
        written(&plan(it, &seen, at(seconds)))
    };
    let ending = |status: &GPURequestStatus| {
        let last = status.attempts.last().expect("an attempt");
        last.ending.clone()
    };
    let (start, limit) = (4000, 15 * 60);
    let mut it = ready(&json!({"maxPrice": 4}));
    let status = without(&it, start);
    assert_eq!(status.phase, RequestPhase::Ready);
    let said = status.message.clone().unwrap_or_default();
    assert!(said.contains("unless its node comes back"), "{said}");
    assert_eq!(ending(&status), None);
    it.status = Some(status);
    // One that comes back is as it was, and its time begins anew.
    let mut back = it.clone();
    let seen = with(sight(start + 60, Some(&running)), Some(ready_node()), true);
    back.status = Some(written(&plan(&back, &seen, at(start + 60))));
    let again = without(&back, start + limit);
    assert_eq!(ending(&again), None);
    let given_back = without(&it, start + limit);
    assert_eq!(ending(&given_back).as_deref(), Some("MachineLost"));
    // An idle time that is shorter counts from when nobody could use it.
    let mut idle = ready(&json!({"maxPrice": 4, "idleTimeout": "1h15m"}));
    idle.status = Some(without(&idle, start));
    let given_back = without(&idle, start + 600);
    assert_eq!(ending(&given_back).as_deref(), Some("IdleTimeout"));
}

#[test]
fn a_spot_request_outlives_any_number_of_interruptions() {
    let mut it = ready(&spot());
    for round in 1..=7 {
        let start = round * 4000;
        vanishes(&mut it, start);
        let status = it.status.clone().expect("a status");
        let last = status.attempts.last().expect("an attempt");
        assert_eq!(last.outcome.as_deref(), Some("SpotInterrupted"), "{last:?}");
        follows(&mut it, start + 1800);
        let status = it.status.clone().expect("a status");
        assert_eq!(
            status.phase,
            RequestPhase::Ready,
            "round {round}: {status:?}"
        );
    }
}

#[test]
fn machines_that_come_to_nothing_end_a_request_only_in_a_row() {
    let mut it = ready(&json!({}));
    // Each lasts an hour: that is bad luck and no reason to give up.
    for round in 1..=6 {
        vanishes(&mut it, round * 4000);
        follows(&mut it, round * 4000 + 1800);
    }
    assert_eq!(
        it.status.as_ref().map(|status| status.phase),
        Some(RequestPhase::Ready)
    );
    // None of these is there for a minute.
    for round in 10..16 {
        vanishes(&mut it, round * 4000);
        if round < 15 {
            it.status = Some(written(&plan(
                &it,
                &seen(market()),
                at(round * 4000 + 1800),
            )));
        }
    }
    let status = written(&plan(&it, &seen(market()), at(70_000)));
    assert_eq!(reason(&status).0, "AttemptsExhausted", "{status:?}");
}

#[test]
fn the_wait_for_spot_begins_anew_when_a_machine_is_taken_back() {
    let mut it = ready(&spot());
    let wanted = |it: &GPURequest| {
        let status = it.status.as_ref();
        status.and_then(|status| status.spot_wanted_since.clone())
    };
    assert_eq!(wanted(&it), None, "one is there");
    vanishes(&mut it, 90_000);
    // No spot machine is sold any more: on demand follows ten minutes after this one was lost.
    let offers = [offer("H100-80GB", 1, "us-east-1", "3.00", None)];
    let dry = seen(vec![provider("cloud", &json!({}), &offers)]);
    let waits = plan(&it, &dry, at(90_010));
    let status = written(&waits);
    assert_eq!(reason(&status).0, "WaitingForSpot", "{status:?}");
    assert_eq!(waits.again, Some(at(90_610)));
    it.status = Some(status);
    let status = written(&plan(&it, &dry, at(90_610)));
    assert!(!status.attempts[1].spot, "on demand");
}

#[test]
fn a_machine_that_is_billed_above_what_was_agreed_is_given_back() {
    let it = ready(&json!({"maxPrice": 3}));
    let Answer::Machine(mut dear) = machine(State::Running) else {
        unreachable!();
    };
    dear.price = Some(Decimal::new(301, 2));
    let seen = with(
        sight(20, Some(&Answer::Machine(dear))),
        Some(ready_node()),
        true,
    );
    let status = written(&plan(&it, &seen, at(20)));
    let attempt = &status.attempts[0];
    assert_eq!(attempt.ending.as_deref(), Some("PriceAboveLimit"));
    let words = attempt.reason.as_deref().unwrap_or_default();
    assert!(
        words.contains("bills 3.01") && words.contains("3.00"),
        "{words}"
    );
}

#[test]
fn a_machine_that_others_use_outlives_the_workload_it_was_rented_for() {
    let mut it = ready(&json!({"maxLifetime": "1h"}));
    it.metadata.deletion_timestamp = Some(k8s_openapi::apimachinery::pkg::apis::meta::v1::Time(
        at(100),
    ));
    let running = machine(State::Running);
    let ending = |ownerless: bool, used: bool, now: i64| {
        let mut seen = with(sight(now, Some(&running)), Some(ready_node()), used);
        seen.open[0].ownerless = ownerless;
        let status = written(&plan(&it, &seen, at(now)));
        let said = reason(&status).1.to_owned();
        (status.attempts[0].ending.clone(), said)
    };
    let (kept, said) = ending(true, true, 101);
    assert_eq!(kept, None, "others use it");
    assert!(said.contains("those that use it"), "{said}");
    assert_eq!(ending(true, false, 101).0.as_deref(), Some("Deleted"));
    // Deleted by somebody while its workload is there: that was meant.
    assert_eq!(ending(false, true, 101).0.as_deref(), Some("Deleted"));
    // Its limits hold.
    assert_eq!(ending(true, true, 3601).0.as_deref(), Some("MaxLifetime"));
}
