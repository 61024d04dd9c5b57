//! What tenants' budgets let requests buy, whom they stop, and what survives in the ledger.

use serde_json::{Value, json};
use warp_api::Tenant;

use super::*;
use crate::budget::{Accounts, Purse};

fn tenant(name: &str, spec: &Value) -> Arc<Tenant> {
    let mut object = json!({
        "apiVersion": "gpu.warp.dev/v1alpha1", "kind": "Tenant", "metadata": {"name": name},
        "spec": {"namespaces": {"names": ["nothing"]}},
    });
    for (key, value) in spec.as_object().into_iter().flatten() {
        object["spec"][key] = value.clone();
    }
    Arc::new(serde_json::from_value(object).expect("a tenant"))
}

fn team(budget: &Value) -> Arc<Tenant> {
    tenant(
        "team",
        &json!({"namespaces": {"names": ["default"]}, "budget": budget}),
    )
}

fn purse(
    tenants: Vec<Arc<Tenant>>,
    requests: &[Arc<GPURequest>],
    entries: &[Value],
    now: Timestamp,
) -> Purse {
    let space = json!({"metadata": {"name": "default"}});
    let space = Arc::new(serde_json::from_value(space).expect("a namespace"));
    let data: Value = entries
        .iter()
        .map(|entry| {
            (
                entry["machine"].as_str().expect("a name").to_owned(),
                json!(entry.to_string()),
            )
        })
        .collect::<serde_json::Map<_, _>>()
        .into();
    let ledger = json!({"metadata": {"name": "costs"}, "data": data});
    let ledger = Arc::new(serde_json::from_value(ledger).expect("a ledger"));
    let accounts = Accounts::new(tenants, &[space], requests, &[ledger], now);
    Purse::Of(Arc::new(accounts))
}

fn paid(purse: Purse) -> Seen {
    Seen {
        purse,
        ..seen(market())
    }
}

/// Three hundred and sixty dollars, all of it today.
fn spent_before() -> Value {
    json!({"machine": "old", "tenant": "team", "pricePerHour": "60", "from": at(-6 * 3600), "until": at(0)})
}

#[test]
fn a_purchase_names_who_pays_and_one_that_could_pass_the_budget_is_not_made() {
    let it = request(&json!({"maxLifetime": "4h"}));
    let rich = paid(purse(vec![team(&json!({"perDay": 20}))], &[], &[], at(0)));
    let status = written(&plan(&it, &rich, at(0)));
    assert_eq!(status.attempts[0].tenant.as_deref(), Some("team"));
    // 2.80 an hour, and it may rise by a tenth until it is bought.
    let poor = paid(purse(vec![team(&json!({"perDay": 12}))], &[], &[], at(0)));
    let planned = plan(&it, &poor, at(0));
    let status = written(&planned);
    let (reason, message) = reason(&status);
    assert_eq!(reason, "BudgetReached");
    assert!(
        message.contains("may spend 12.00 a day")
            && message.contains("may cost 12.32 (3.08 an hour for 4 h)"),
        "{message}"
    );
    assert!(status.attempts.is_empty() && planned.calls.is_empty());
}

#[test]
fn what_is_intended_by_one_request_is_reserved_against_the_next() {
    let budget = team(&json!({"perDay": 20}));
    let mut first = request(&json!({"maxLifetime": "4h"}));
    let seen = paid(purse(vec![budget.clone()], &[], &[], at(0)));
    first.status = Some(written(&plan(&first, &seen, at(0))));
    let first = Arc::new(first);
    let next = request(&json!({"maxLifetime": "4h"}));
    let seen = paid(purse(vec![budget], &[first], &[], at(1)));
    let status = written(&plan(&next, &seen, at(1)));
    assert_eq!(reason(&status).0, "BudgetReached");
    assert!(
        reason(&status).1.contains("12.32 is reserved"),
        "{}",
        reason(&status).1
    );
    assert!(status.next_attempt_time.is_some());
}

#[test]
fn what_the_ledger_says_counts_after_its_request_is_gone() {
    let budget = team(&json!({"perDay": 370}));
    let seen = paid(purse(vec![budget], &[], &[spent_before()], at(0)));
    let status = written(&plan(&request(&json!({"maxLifetime": "4h"})), &seen, at(0)));
    assert_eq!(reason(&status).0, "BudgetReached");
    assert!(
        reason(&status).1.contains("360.00 is spent"),
        "{}",
        reason(&status).1
    );
}

#[test]
fn a_parents_budget_covers_what_is_below_it() {
    let parent = tenant("company", &json!({"budget": {"perMonth": 5}}));
    let below = tenant(
        "team",
        &json!({"namespaces": {"names": ["default"]}, "parent": "company"}),
    );
    let seen = paid(purse(vec![parent, below], &[], &[], at(0)));
    let status = written(&plan(&request(&json!({"maxLifetime": "4h"})), &seen, at(0)));
    assert!(
        reason(&status)
            .1
            .starts_with("tenant company may spend 5.00 a month"),
        "{}",
        reason(&status).1
    );
}

#[test]
fn nothing_is_bought_before_budgets_are_known_and_can_be_read() {
    let it = request(&json!({}));
    let unknown = paid(Purse::Unknown("no list yet".to_owned()));
    let planned = plan(&it, &unknown, at(0));
    assert!(written(&planned).attempts.is_empty() && planned.again.is_some());
    let wrong = paid(purse(
        vec![team(&json!({"perDay": "much"}))],
        &[],
        &[],
        at(0),
    ));
    let status = written(&plan(&it, &wrong, at(0)));
    assert_eq!(reason(&status).0, "InvalidBudget");
    let both = [
        team(&json!({"perDay": 50})),
        tenant("other", &json!({"namespaces": {"names": ["default"]}})),
    ];
    let status = written(&plan(
        &it,
        &paid(purse(both.to_vec(), &[], &[], at(0))),
        at(0),
    ));
    assert_eq!(reason(&status).0, "InvalidBudget");
    assert!(
        reason(&status).1.contains("team and other"),
        "{}",
        reason(&status).1
    );
}

#[test]
fn a_machine_goes_when_its_budget_stops_it_and_is_not_bought_again() {
    let budget = team(&json!({"perDay": "361", "atLimit": "stop"}));
    let mut it = request(&json!({"maxLifetime": "12h"}));
    let alone = paid(purse(vec![team(&json!({"perDay": 100}))], &[], &[], at(0)));
    it.status = Some(written(&plan(&it, &alone, at(0))));
    let runs = |it: &GPURequest, seconds: i64| {
        let there = machine(State::Running);
        let mut seen = with(sight(seconds, Some(&there)), None, false);
        let all = [Arc::new(it.clone())];
        seen.purse = purse(vec![budget.clone()], &all, &[spent_before()], at(seconds));
        plan(it, &seen, at(seconds))
    };
    it.status = Some(written(&runs(&it, 2)));
    let later = runs(&it, 10);
    assert!(
        later.again.is_some_and(|again| again <= at(1200)),
        "it looks again before the last dollar is spent"
    );
    let stopped = written(&runs(&it, 1300));
    assert_eq!(stopped.attempts[0].ending.as_deref(), Some("BudgetReached"));
}
