//! A spot machine that its cloud takes back: emptied, replaced while it still runs, and let go.

use k8s_openapi::api::core::v1::Pod;

use super::*;

/// A spot machine that is used, at `at(12)`.
fn spot() -> GPURequest {
    ready(&json!({"spotInstance": true, "maxSpotPrice": 3, "maxPrice": 4}))
}

fn pod() -> Pod {
    serde_json::from_value(json!({
        "metadata": {"name": "p", "namespace": "default", "uid": "p1"},
        "spec": {"nodeName": "warp-cluster1-u1-1", "containers": []},
    }))
    .expect("a pod")
}

fn noticed(now: i64, pods: Vec<Arc<Pod>>) -> Seen {
    let Answer::Machine(mut told) = machine(State::Running) else {
        unreachable!();
    };
    told.spot = true;
    told.taken_back = Some(at(220));
    let mut seen = with(
        sight(now, Some(&Answer::Machine(told))),
        Some(ready_node()),
        true,
    );
    seen.open[0].used = !pods.is_empty();
    seen.open[0].pods = pods;
    seen
}

fn evictions(plan: &Plan) -> usize {
    let evicted = plan
        .actions
        .iter()
        .filter(|action| matches!(action, Action::Sub { sub, .. } if *sub == "eviction"));
    evicted.count()
}

#[test]
fn a_notice_is_written_then_the_node_is_emptied_and_another_machine_intended() {
    let mut it = spot();
    let pods = vec![Arc::new(pod())];
    let first = plan(&it, &noticed(100, pods.clone()), at(100));
    let status = written(&first);
    assert_eq!(reason(&status).0, "SpotNotice");
    assert_eq!(
        status.attempts.len(),
        1,
        "nothing is begun before it is written"
    );
    assert_eq!(evictions(&first), 0);
    it.status = Some(status);
    let second = plan(&it, &noticed(101, pods.clone()), at(101));
    assert_eq!(evictions(&second), 1);
    let status = written(&second);
    assert_eq!(
        status.attempts.len(),
        2,
        "a replacement is intended while it runs"
    );
    assert!(status.attempts[0].outcome.is_none() && status.attempts[0].ending.is_none());
    assert_eq!(status.attempts[1].machine, "warp-cluster1-u1-2");
    it.status = Some(status);
    // A third is not begun.
    let third = plan(&it, &noticed(102, pods), at(102));
    let begun = third.actions.iter().any(|action| match action {
        Action::Status(status) => status.after["attempts"].as_array().map(Vec::len) != Some(2),
        _ => false,
    });
    assert!(!begun, "{third:?}");
}

#[test]
fn an_emptied_machine_is_given_back_and_one_that_is_not_when_its_time_is_over() {
    let mut it = spot();
    it.status = Some(written(&plan(
        &it,
        &noticed(100, vec![Arc::new(pod())]),
        at(100),
    )));
    let ending = |seen: &Seen, now| {
        written(&plan(&it, seen, at(now))).attempts[0]
            .ending
            .clone()
    };
    assert_eq!(
        ending(&noticed(101, Vec::new()), 101).as_deref(),
        Some("SpotInterrupted")
    );
    let full = noticed(401, vec![Arc::new(pod())]);
    assert_eq!(ending(&full, 401).as_deref(), Some("SpotInterrupted"));
}

#[test]
fn a_machine_hears_of_it_itself_and_says_so_on_its_node() {
    let it = spot();
    let mut node = ready_node();
    let said = (
        "gpu.warp.dev/taken-back-since".to_owned(),
        "2026-11-16T12:01:40Z".to_owned(),
    );
    node.metadata.annotations = Some([said].into());
    let seen = with(sight(100, Some(&machine(State::Running))), Some(node), true);
    assert!(
        written(&plan(&it, &seen, at(100))).attempts[0]
            .noticed_at
            .is_some()
    );
}

#[test]
fn without_a_notice_there_is_never_a_second_machine() {
    let it = spot();
    let seen = with(
        sight(100, Some(&machine(State::Running))),
        Some(ready_node()),
        true,
    );
    let pass = plan(&it, &seen, at(100));
    let begun = pass.actions.iter().any(|action| match action {
        Action::Status(status) => status.after["attempts"].as_array().map(Vec::len) == Some(2),
        _ => false,
    });
    assert!(!begun, "{pass:?}");
}
