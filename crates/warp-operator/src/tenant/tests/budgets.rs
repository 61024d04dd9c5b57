//! What a tenant says of its money.

use super::*;
use crate::budget::{Accounts, Purse};

fn rich(budget: &Value) -> Tenant {
    let mut it = tenant("red", &json!({"names": ["a"]}));
    it.spec.budget = Some(serde_json::from_value(budget.clone()).expect("a budget"));
    it
}

/// One machine at 3 dollars since ten, for at most eight hours; one that cost 5 yesterday and 10 today.
fn paid(it: &Tenant) -> Seen {
    let request = json!({
        "apiVersion": "gpu.warp.dev/v1alpha1", "kind": "GPURequest",
        "metadata": {"name": "r", "namespace": "a"}, "spec": {"gpuType": "H100", "maxLifetime": "8h"},
        "status": {"attempts": [{
            "number": 1, "machine": "m-1", "provider": "fake", "gpu": "H100-80GB", "gpus": 1, "region": "r",
            "instanceType": "t", "price": "3", "priceLimit": "3.30", "billedPrice": "3", "tenant": "red",
            "intendedAt": "2026-11-16T09:59:00Z", "billedFrom": "2026-11-16T10:00:00Z", "instanceId": "i",
        }]},
    });
    let request = Arc::new(serde_json::from_value(request).expect("a request"));
    let entry = json!({"machine": "m-0", "tenant": "red", "pricePerHour": "5",
        "from": "2026-11-15T23:00:00Z", "until": "2026-11-16T02:00:00Z"});
    let ledger = json!({"metadata": {"name": "costs"}, "data": {"m-0": entry.to_string()}});
    let ledger = Arc::new(serde_json::from_value(ledger).expect("a ledger"));
    let mut seen = seen(&[it], BTreeMap::new());
    let accounts = Accounts::new(
        seen.tenants.clone(),
        &seen.namespaces,
        &[request],
        &[ledger],
        now(),
    );
    seen.purse = Purse::Of(Arc::new(accounts));
    seen
}

fn within(status: &TenantStatus) -> (&str, &str, &str) {
    let found = &status.conditions[1];
    assert_eq!(found.type_, "WithinBudget");
    (&found.status, &found.reason, &found.message)
}

#[test]
fn its_figures_are_what_was_spent_and_what_may_follow() {
    let it = rich(&json!({"perDay": 50, "perMonth": "500"}));
    let status = written(&plan(&it, &paid(&it), now()));
    let figures = status.budget.as_ref().expect("figures");
    assert_eq!(figures.machines, 1);
    assert_eq!(figures.price_per_hour, "3.00");
    assert_eq!(
        (&*figures.spent_today, &*figures.reserved_today),
        ("16.00", "18.00")
    );
    assert_eq!(
        (&*figures.spent_this_month, &*figures.reserved_this_month),
        ("21.00", "18.00")
    );
    assert_eq!(
        within(&status),
        (
            "True",
            "BudgetKept",
            "today 16.00 spent and 18.00 reserved of 50.00; this month 21.00 spent and 18.00 reserved of 500.00"
        )
    );
}

#[test]
fn it_warns_before_a_limit_and_says_when_it_is_reached() {
    for (budget, expected) in [
        (
            json!({"perDay": 40, "warnAt": 40}),
            ("True", "BudgetWarning"),
        ),
        (json!({"perDay": 34}), ("False", "BudgetReached")),
        (json!({"perHour": 3}), ("False", "BudgetReached")),
        (json!({"perDay": -1}), ("False", "InvalidBudget")),
    ] {
        let it = rich(&budget);
        let planned = plan(&it, &paid(&it), now());
        let status = written(&planned);
        let (is, reason, _) = within(&status);
        assert_eq!((is, reason), expected, "{budget}");
        let told = planned
            .actions
            .iter()
            .any(|action| matches!(action, Action::Note(note) if note.reason == reason));
        assert!(told, "{budget}");
    }
}

#[test]
fn figures_are_renewed_every_five_minutes_and_not_in_between() {
    let mut it = rich(&json!({"perDay": 50}));
    let at = |text: &str| text.parse::<Timestamp>().expect("a time");
    let planned = plan(&it, &paid(&it), at("2026-11-16T12:01:00Z"));
    assert_eq!(planned.again, Some(at("2026-11-16T12:05:00Z")));
    it.status = Some(written(&planned));
    let same = plan(&it, &paid(&it), at("2026-11-16T12:04:59Z"));
    assert!(same.actions.is_empty(), "{:?}", same.actions);
    let later = plan(&it, &paid(&it), at("2026-11-16T12:05:00Z"));
    assert_eq!(
        written(&later).budget.expect("figures").spent_today,
        "16.25"
    );
}

#[test]
fn without_a_budget_nothing_is_said_of_money() {
    let mut it = rich(&json!({"perDay": 50}));
    it.status = Some(written(&plan(&it, &paid(&it), now())));
    it.spec.budget = None;
    let status = written(&plan(&it, &paid(&it), now()));
    assert_eq!((status.budget, status.conditions.len()), (None, 1));
}
