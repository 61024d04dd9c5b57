//! The files that decide must not be able to do: they contain no await, client or API handle.

#[test]
fn files_that_decide_do_no_io() {
    let files = [
        ("workload/assess.rs", include_str!("workload/assess.rs")),
        ("workload/failure.rs", include_str!("workload/failure.rs")),
        ("workload/objects.rs", include_str!("workload/objects.rs")),
        ("workload/pod.rs", include_str!("workload/pod.rs")),
        ("workload/say.rs", include_str!("workload/say.rs")),
        ("workload/plan.rs", include_str!("workload/plan.rs")),
        ("tenant/plan.rs", include_str!("tenant/plan.rs")),
        ("scheduler/decide.rs", include_str!("scheduler/decide.rs")),
        ("ledger.rs", include_str!("ledger.rs")),
        ("plan.rs", include_str!("plan.rs")),
    ];
    for (name, text) in files {
        for word in [".await", "Client", "Api<", "Timestamp::now"] {
            assert!(!text.contains(word), "{name} contains {word}");
        }
    }
}
