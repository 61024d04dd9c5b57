//! A node that came while work was shown is not anybody's before that.

use super::*;

fn came(name: &str, at: &str) -> Arc<k8s_openapi::api::core::v1::Node> {
    let mut node = (*node(name, 8, json!({}))).clone();
    node.metadata.creation_timestamp = serde_json::from_value(json!(at)).unwrap();
    Arc::new(node)
}

fn decided(
    nodes: &[Arc<k8s_openapi::api::core::v1::Node>],
    wanted: &[Arc<GPUWorkload>],
    at: Timestamp,
) -> Vec<Option<String>> {
    let claimants: Vec<_> = wanted.iter().map(claimant).collect();
    let mut ledger = ledger::build(nodes, &[], &[]);
    let bought = Bought::new(nodes, &ledger, &claimants, at);
    let (quotas, tenancy, settings) = (Quotas::default(), Tenancy::default(), Settings::default());
    let mut desk =
        Desk::new(&claimants, quotas, tenancy, skipping(), &settings).keeping_bought(bought);
    let all = claimants.iter();
    all.map(|one| chosen(&desk.decide(&mut ledger, &**one)))
        .collect()
}

fn shown(name: &str, since: &str, spec: Value) -> Arc<GPUWorkload> {
    let mut all = json!({"status": {"shown": {"since": since, "jobName": "j"}}});
    for (key, value) in spec.as_object().into_iter().flatten() {
        all[key] = value.clone();
    }
    workload(name, all)
}

#[test]
fn who_was_shown_before_a_node_came_has_it_first() {
    let other = workload("other", json!({}));
    let shown = shown("shown", "2026-11-15T11:50:00Z", json!({"gpuCount": 8}));
    let nodes = [came("new", "2026-11-15T11:55:00Z")];
    let wanted = [Arc::clone(&other), Arc::clone(&shown)];
    assert_eq!(
        decided(&nodes, &wanted, now()),
        [None, Some("new".to_owned())]
    );
    // A node that came in the second in which it was shown.
    let at_once = [came("new", "2026-11-15T11:50:00Z")];
    let soon = now() - SignedDuration::from_mins(8);
    assert_eq!(decided(&at_once, &wanted, soon)[0], None);
    // Not for ever, and not once nobody waits who was shown.
    let later = now() + SignedDuration::from_mins(5);
    assert_eq!(decided(&nodes, &wanted, later)[0].as_deref(), Some("new"));
    assert_eq!(decided(&nodes, &[other], now())[0].as_deref(), Some("new"));
}

#[test]
fn nodes_that_were_there_and_gpus_of_another_kind_are_everybodys() {
    let other = workload("other", json!({}));
    let since = "2026-11-15T11:50:00Z";
    let old = [came("old", "2026-11-15T11:49:00Z")];
    let late = shown("shown", since, json!({"gpuCount": 8}));
    let wanted = [Arc::clone(&other), late];
    assert_eq!(
        decided(&old, &wanted, now()),
        [Some("old".to_owned()), None]
    );
    let amd = shown("amd", since, json!({"gpu": {"vendor": "amd"}}));
    let new = [came("new", "2026-11-15T11:55:00Z")];
    assert_eq!(
        decided(&new, &[other, amd], now()),
        [Some("new".to_owned()), None]
    );
}
