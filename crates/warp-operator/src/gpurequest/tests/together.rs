//! Requests that belong together: all are bought, or none.

use serde_json::{Value, json};
use warp_api::Tenant;

use super::*;
use crate::budget::{Accounts, Purse};

/// One of two that belong together.
fn one(name: &str, spec: &Value) -> GPURequest {
    let mut all = json!({"maxPrice": 4, "maxLifetime": "4h",
        "together": {"name": "gang", "machines": 2, "within": "20m"}});
    for (key, value) in spec.as_object().into_iter().flatten() {
        all[key] = value.clone();
    }
    let mut it = request(&all);
    it.metadata.name = Some(name.to_owned());
    it.metadata.uid = Some(name.to_owned());
    it
}

fn knows(requests: &[&GPURequest]) -> Seen {
    Seen {
        requests: requests
            .iter()
            .map(|one| Arc::new((*one).clone()))
            .collect(),
        ..seen(market())
    }
}

/// Both, as they are once the money of both is reserved.
fn reserved() -> (GPURequest, GPURequest) {
    let (mut a, mut b) = (one("a", &json!({})), one("b", &json!({})));
    a.status = Some(written(&plan(&a, &knows(&[&a, &b]), at(0))));
    b.status = Some(written(&plan(&b, &knows(&[&a, &b]), at(1))));
    (a, b)
}

fn open(mut seen: Seen, sight: Sight, node: Option<Node>, used: bool) -> Seen {
    seen.open = with(sight, node, used).open;
    seen
}

fn set(request: &mut GPURequest, change: &Value) {
    let mut status = as_json(request.status.as_ref().expect("a status"));
    for (key, value) in change.as_object().into_iter().flatten() {
        status[key] = value.clone();
    }
    request.status = Some(serde_json::from_value(status).expect("a status"));
}

#[test]
fn nothing_is_intended_before_all_requests_are_made() {
    let a = one("a", &json!({}));
    let status = written(&plan(&a, &knows(&[&a]), at(0)));
    assert_eq!(
        reason(&status),
        (
            "WaitingForOthers",
            "1 of 2 requests that belong together are made; nothing is bought before all are"
        )
    );
    assert!(status.attempts.is_empty());
    assert_eq!(status.together_until.expect("a deadline").0, at(20 * 60));
}

#[test]
fn nothing_is_bought_before_the_money_of_all_is_reserved() {
    let (mut a, b) = (one("a", &json!({})), one("b", &json!({})));
    a.status = Some(written(&plan(&a, &knows(&[&a, &b]), at(0))));
    assert_eq!(a.status.as_ref().unwrap().attempts.len(), 1);
    let planned = plan(
        &a,
        &open(knows(&[&a, &b]), sight(1, None), None, false),
        at(1),
    );
    assert!(planned.calls.is_empty(), "{:?}", planned.calls);
    let status = written(&planned);
    assert_eq!(reason(&status).0, "WaitingForOthers");
    let (a, b) = reserved();
    let planned = plan(
        &a,
        &open(knows(&[&a, &b]), sight(2, None), None, false),
        at(2),
    );
    assert!(
        matches!(planned.calls.as_slice(), [call] if matches!(call.what, What::Make(_))),
        "{:?}",
        planned.calls
    );
}

#[test]
fn the_worst_case_of_all_must_be_within_the_budget_before_the_first_is_intended() {
    let (a, b) = (one("a", &json!({})), one("b", &json!({})));
    let purse = |most: i64| {
        let tenant = json!({
            "apiVersion": "gpu.warp.dev/v1alpha1", "kind": "Tenant", "metadata": {"name": "team"},
            "spec": {"namespaces": {"names": ["default"]}, "budget": {"perDay": most}},
        });
        let tenant: Tenant = serde_json::from_value(tenant).expect("a tenant");
        let space = serde_json::from_value(json!({"metadata": {"name": "default"}}));
        let space = Arc::new(space.expect("a namespace"));
        let accounts = Accounts::new(vec![Arc::new(tenant)], &[space], &[], &[], at(0));
        Purse::Of(Arc::new(accounts))
    };
    let mut poor = knows(&[&a, &b]);
    // One of them would be within it: 16 of 31.
    poor.purse = purse(31);
    let status = written(&plan(&a, &poor, at(0)));
    assert!(status.attempts.is_empty());
    assert_eq!(reason(&status).0, "BudgetReached");
    assert!(
        reason(&status)
            .1
            .contains("these 2 machines may cost 32.00 (8.00 an hour for 4 h)"),
        "{}",
        reason(&status).1
    );
    // Nothing is lost by waiting for money: that has no end.
    let mut held = a.clone();
    held.status = Some(status);
    let status = written(&plan(
        &held,
        &{
            let mut seen = knows(&[&held, &b]);
            seen.purse = purse(31);
            seen
        },
        at(60),
    ));
    assert_eq!(status.together_until, None);
    let mut rich = knows(&[&a, &b]);
    rich.purse = purse(32);
    assert_eq!(written(&plan(&a, &rich, at(0))).attempts.len(), 1);
}

#[test]
fn the_limits_of_an_account_count_all_of_them() {
    let (a, b) = (one("a", &json!({})), one("b", &json!({})));
    let offers = [offer("H100-80GB", 1, "us-east-1", "3.00", None)];
    let mut few = knows(&[&a, &b]);
    few.providers = vec![provider(
        "cloud",
        &json!({"limits": {"machines": 1}}),
        &offers,
    )];
    let status = written(&plan(&a, &few, at(0)));
    assert_eq!(reason(&status).0, "ProviderLimit");
    assert!(
        reason(&status).1.contains("and 2 are wanted together"),
        "{}",
        reason(&status).1
    );
}

#[test]
fn what_was_bought_goes_back_when_another_does_not_come_in_time() {
    let (mut a, mut b) = reserved();
    let bought = sight(3, Some(&machine(State::Running)));
    a.status = Some(written(&plan(
        &a,
        &open(knows(&[&a, &b]), bought, None, false),
        at(3),
    )));
    // The other one is refused and finds nothing.
    set(
        &mut b,
        &json!({"attempts": [], "phase": "Pending", "message": "sold out everywhere"}),
    );
    let late = |now: i64, a: &GPURequest, b: &GPURequest, used: bool| {
        let sight = sight(now, Some(&machine(State::Running)));
        written(&plan(
            a,
            &open(knows(&[a, b]), sight, Some(ready_node()), used),
            at(now),
        ))
    };
    let status = late(1100, &a, &b, false);
    assert_eq!(status.attempts[0].ending, None, "its time is not over");
    assert_eq!(status.idle_since, None, "it waits for the other one");
    let status = late(1201, &a, &b, true);
    assert_eq!(status.attempts[0].ending, None, "somebody uses it");
    let status = late(1201, &a, &b, false);
    assert_eq!(status.attempts[0].ending.as_deref(), Some("NotAllRented"));
    // The other one sees it going and gives up too, at once.
    a.status = Some(status);
    let failed = written(&plan(&b, &knows(&[&a, &b]), at(1150)));
    assert_eq!(failed.phase, RequestPhase::Failed);
    assert_eq!(reason(&failed).0, "NotAllRented");
    // And once the machine is gone, the first.
    let mut attempts = as_json(&a.status.as_ref().unwrap().attempts);
    attempts[0]["outcome"] = json!("NotAllRented");
    set(&mut a, &json!({ "attempts": attempts }));
    let failed = written(&plan(&a, &knows(&[&a, &b]), at(1300)));
    assert_eq!(failed.phase, RequestPhase::Failed);
    assert!(
        reason(&failed)
            .1
            .contains("GPURequest b: sold out everywhere"),
        "{}",
        reason(&failed).1
    );
}

#[test]
fn when_all_are_ready_idle_counts_and_the_wait_is_over() {
    let (mut a, mut b) = reserved();
    set(&mut b, &json!({"phase": "Ready"}));
    let sight = sight(600, Some(&machine(State::Running)));
    let status = written(&plan(
        &a,
        &open(knows(&[&a, &b]), sight.clone(), Some(ready_node()), false),
        at(600),
    ));
    assert_eq!(status.phase, RequestPhase::Ready);
    a.status = Some(status);
    let status = written(&plan(
        &a,
        &open(knows(&[&a, &b]), sight, Some(ready_node()), false),
        at(601),
    ));
    assert_eq!(status.together_until, None);
    assert!(status.idle_since.is_some());
    assert_eq!(status.attempts[0].ending, None);
}

#[test]
fn one_that_goes_takes_those_along_that_wait_for_it() {
    let (a, mut b) = reserved();
    b.metadata.deletion_timestamp =
        Some(k8s_openapi::apimachinery::pkg::apis::meta::v1::Time(at(5)));
    let sight = sight(6, Some(&machine(State::Running)));
    let status = written(&plan(
        &a,
        &open(knows(&[&a, &b]), sight, None, false),
        at(6),
    ));
    assert_eq!(status.attempts[0].ending.as_deref(), Some("NotAllRented"));
}

#[test]
fn a_number_that_is_not_the_same_everywhere_is_said() {
    let a = one("a", &json!({}));
    let b = one("b", &json!({"together": {"name": "gang", "machines": 3}}));
    let status = written(&plan(&a, &knows(&[&a, &b]), at(0)));
    assert_eq!(reason(&status).0, "InvalidSpec");
    assert!(
        reason(&status).1.contains("another number in GPURequest b"),
        "{}",
        reason(&status).1
    );
    let (b, c) = (one("b", &json!({})), one("c", &json!({})));
    let status = written(&plan(&a, &knows(&[&a, &b, &c]), at(0)));
    assert!(
        reason(&status).1.contains("3 requests belong to 'gang'"),
        "{}",
        reason(&status).1
    );
}
