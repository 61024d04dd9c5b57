//! What tenants let their workloads have.

use super::*;

fn tenancy(nodes: &Ledger, tenants: &[Value]) -> Tenancy {
    let tenants: Vec<Arc<warp_api::Tenant>> = tenants
        .iter()
        .map(|spec| {
            let tenant = json!({
                "apiVersion": "gpu.warp.dev/v1alpha1", "kind": "Tenant",
                "metadata": {"name": spec["name"], "uid": spec["name"]},
                "spec": spec["spec"],
            });
            Arc::new(serde_json::from_value(tenant).unwrap())
        })
        .collect();
    let namespace = json!({"metadata": {"name": "default"}});
    let namespace = Arc::new(serde_json::from_value(namespace).unwrap());
    Tenancy::new(&tenants, &[namespace], &nodes.fleet)
}

pub(super) fn red(spec: Value) -> Value {
    let mut whole = json!({"name": "red", "spec": {"namespaces": {"names": ["default"]}}});
    for (key, value) in spec.as_object().into_iter().flatten() {
        whole["spec"][key] = value.clone();
    }
    whole
}

pub(super) fn under(
    tenants: &[Value],
    nodes: &[Arc<k8s_openapi::api::core::v1::Node>],
    wanted: &[Arc<GPUWorkload>],
) -> Vec<Decision> {
    let mut ledger = ledger::build(nodes, &[], &[]);
    let tenancy = tenancy(&ledger, tenants);
    let claimants: Vec<_> = wanted.iter().map(claimant).collect();
    let settings = Settings::default();
    let mut desk = Desk::new(
        &claimants,
        Quotas::default(),
        tenancy,
        skipping(),
        &settings,
    );
    let decide = |claimant: &Arc<dyn Claimant>| desk.decide(&mut ledger, &**claimant);
    claimants.iter().map(decide).collect()
}

#[test]
fn a_quota_is_never_exceeded_within_a_pass_and_says_what_is_left() {
    let nodes = [node("a", 8, json!({}))];
    let quota = red(json!({"quota": [{"gpu": "H100-80GB", "nominal": 3}]}));
    let wanted = [
        workload("one", json!({"gpuCount": 2})),
        workload("two", json!({"gpuCount": 2})),
        workload("three", json!({"gpuCount": 1})),
        workload("never", json!({"gpuCount": 4})),
    ];
    let decisions = under(&[quota], &nodes, &wanted);
    assert_eq!(chosen(&decisions[0]).as_deref(), Some("a"));
    let (reason, message) = verdict(&decisions[1]);
    assert_eq!(reason, "TenantQuotaExceeded");
    assert_eq!(
        message,
        "tenant red uses 2 of its 3 H100-80GB GPUs and 1 more are left to it, 2 asked for"
    );
    assert_eq!(chosen(&decisions[2]).as_deref(), Some("a"));
    let (reason, message) = verdict(&decisions[3]);
    assert_eq!(reason, "TenantForbids");
    assert!(message.contains("can never have 4"), "{message}");
}

#[test]
fn a_stream_of_small_work_does_not_hold_up_wide_work_of_its_tenant() {
    let quota = red(json!({"quota": [{"gpu": "H100-80GB", "nominal": 8}]}));
    let nodes = [node("a", 8, json!({})), node("b", 8, json!({}))];
    let wanted = [
        workload("wide", json!({"gpuCount": 8})),
        workload("small", json!({"gpuCount": 1})),
        workload("smaller", json!({"gpuCount": 1})),
    ];
    let decided = |policy| {
        let mut ledger = ledger::build(&nodes, &[], &[]);
        let running = decide(&mut ledger, &[workload("running", json!({"gpuCount": 6}))]);
        assert!(chosen(&running[0]).is_some());
        let tenancy = tenancy(&ledger, std::slice::from_ref(&quota));
        let claimants: Vec<_> = wanted.iter().map(claimant).collect();
        let line = Line::new(policy, now(), Endings::new, Vec::new());
        let settings = Settings::default();
        let mut desk = Desk::new(&claimants, Quotas::default(), tenancy, line, &settings);
        let decide = |claimant: &Arc<dyn Claimant>| desk.decide(&mut ledger, &**claimant);
        claimants.iter().map(decide).collect::<Vec<_>>()
    };
    let decisions = decided(QueuePolicy::Easy);
    for decision in &decisions[1..] {
        let (reason, message) = verdict(decision);
        assert_eq!(reason, "TenantQuotaExceeded");
        assert_eq!(
            message,
            "it is behind default/wide, which waits for 8 H100-80GB of tenant red's quota"
        );
    }
    // Who asked for no line gets none.
    let decisions = decided(QueuePolicy::SkipAhead);
    assert!(chosen(&decisions[1]).is_some(), "{decisions:?}");
}

#[test]
fn a_model_whose_quota_is_used_up_leaves_the_others() {
    let a100 = json!({"nvidia.com/gpu.product": "NVIDIA-A100-SXM4-80GB", "nvidia.com/gpu.memory": "81920"});
    let nodes = [node("h", 8, json!({})), node("a", 8, a100)];
    let quota = red(json!({"quota": [{"gpu": "H100-80GB", "nominal": 1}]}));
    let wanted = [workload("two", json!({"gpuCount": 2}))];
    let decisions = under(&[quota], &nodes, &wanted);
    assert_eq!(chosen(&decisions[0]).as_deref(), Some("a"));
    let only = red(json!({"allowedModels": ["A100-80GB"]}));
    let decisions = under(std::slice::from_ref(&only), &nodes, &wanted);
    assert_eq!(chosen(&decisions[0]).as_deref(), Some("a"));
    let asks = [workload("h", json!({"gpu": {"models": ["H100"]}}))];
    let (reason, message) = verdict(&under(&[only], &nodes, &asks)[0]);
    assert_eq!(reason, "TenantForbids");
    assert!(message.contains("may use A100-80GB"), "{message}");
}

#[test]
fn what_a_tenant_forbids_waits_and_says_what_to_change() {
    let nodes = [node("a", 8, json!({}))];
    let cases = [
        (
            json!({"suspend": true}),
            json!({}),
            "TenantSuspended",
            "warp tenant resume red",
        ),
        (
            json!({"priorities": ["low", "normal"]}),
            json!({"priority": "high"}),
            "TenantForbids",
            "may ask for priority low or normal, not high",
        ),
        (
            json!({"maxRuntime": "2h"}),
            json!({}),
            "TenantForbids",
            "runs at most 2h",
        ),
        (
            json!({"maxRuntime": "2h"}),
            json!({"maxRuntime": "3h"}),
            "TenantForbids",
            "runs at most 2h",
        ),
    ];
    for (limits, spec, wanted, words) in cases {
        let (reason, message) = verdict(&under(&[red(limits)], &nodes, &[workload("w", spec)])[0]);
        assert_eq!(reason, wanted);
        assert!(message.contains(words), "{message}");
    }
    let fine = red(json!({"maxRuntime": "2h", "priorities": ["normal"]}));
    let decisions = under(
        &[fine],
        &nodes,
        &[workload("w", json!({"maxRuntime": "90m"}))],
    );
    assert_eq!(chosen(&decisions[0]).as_deref(), Some("a"));
}

#[test]
fn a_namespace_two_tenants_claim_waits_when_one_of_them_limits_something() {
    let nodes = [node("a", 8, json!({}))];
    let mut blue = red(json!({}));
    blue["name"] = json!("blue");
    let wanted = [workload("w", json!({}))];
    let decisions = under(&[red(json!({})), blue.clone()], &nodes, &wanted);
    assert_eq!(
        chosen(&decisions[0]).as_deref(),
        Some("a"),
        "neither limits"
    );
    let limited = red(json!({"quota": [{"gpu": "nvidia", "nominal": 8}]}));
    let (reason, message) = verdict(&under(&[limited, blue], &nodes, &wanted)[0]);
    assert_eq!(reason, "TenantForbids");
    assert!(message.contains("red and blue"), "{message}");
}
