//! The files that decide must not be able to do: they contain no await, client or API handle.

#[test]
fn files_that_decide_do_no_io() {
    let files = [
        ("workload/assess.rs", include_str!("workload/assess.rs")),
        ("workload/failure.rs", include_str!("workload/failure.rs")),
        ("workload/objects.rs", include_str!("workload/objects.rs")),
        ("workload/gang.rs", include_str!("workload/gang.rs")),
        ("workload/members.rs", include_str!("workload/members.rs")),
        (
            "workload/plan/gangs.rs",
            include_str!("workload/plan/gangs.rs"),
        ),
        (
            "workload/plan/edits.rs",
            include_str!("workload/plan/edits.rs"),
        ),
        (
            "workload/spec_hash.rs",
            include_str!("workload/spec_hash.rs"),
        ),
        ("workload/timeline.rs", include_str!("workload/timeline.rs")),
        ("placement/gang.rs", include_str!("placement/gang.rs")),
        ("workload/pod.rs", include_str!("workload/pod.rs")),
        ("workload/say.rs", include_str!("workload/say.rs")),
        ("workload/plan.rs", include_str!("workload/plan.rs")),
        ("modelcache/plan.rs", include_str!("modelcache/plan.rs")),
        (
            "modelcache/plan/job.rs",
            include_str!("modelcache/plan/job.rs"),
        ),
        (
            "modelcache/objects.rs",
            include_str!("modelcache/objects.rs"),
        ),
        ("tenant/plan.rs", include_str!("tenant/plan.rs")),
        (
            "inferenceservice/plan.rs",
            include_str!("inferenceservice/plan.rs"),
        ),
        (
            "inferenceservice/adapters.rs",
            include_str!("inferenceservice/adapters.rs"),
        ),
        (
            "inferenceservice/unplaced.rs",
            include_str!("inferenceservice/unplaced.rs"),
        ),
        (
            "inferenceservice/copies.rs",
            include_str!("inferenceservice/copies.rs"),
        ),
        (
            "inferenceservice/claim.rs",
            include_str!("inferenceservice/claim.rs"),
        ),
        (
            "inferenceservice/evict.rs",
            include_str!("inferenceservice/evict.rs"),
        ),
        (
            "inferenceservice/assess.rs",
            include_str!("inferenceservice/assess.rs"),
        ),
        (
            "inferenceservice/objects.rs",
            include_str!("inferenceservice/objects.rs"),
        ),
        ("workload/claim.rs", include_str!("workload/claim.rs")),
        ("placement/claim.rs", include_str!("placement/claim.rs")),
        ("placement/decide.rs", include_str!("placement/decide.rs")),
        ("placement/explain.rs", include_str!("placement/explain.rs")),
        ("placement/quota.rs", include_str!("placement/quota.rs")),
        ("placement/tenancy.rs", include_str!("placement/tenancy.rs")),
        (
            "estimates/forecast.rs",
            include_str!("estimates/forecast.rs"),
        ),
        ("estimates/runs.rs", include_str!("estimates/runs.rs")),
        ("estimates/told.rs", include_str!("estimates/told.rs")),
        ("foresight.rs", include_str!("foresight.rs")),
        ("foresight/jobs.rs", include_str!("foresight/jobs.rs")),
        ("queuedjob/ask.rs", include_str!("queuedjob/ask.rs")),
        ("queuedjob/claim.rs", include_str!("queuedjob/claim.rs")),
        ("queuedjob/evict.rs", include_str!("queuedjob/evict.rs")),
        ("queuedjob/objects.rs", include_str!("queuedjob/objects.rs")),
        ("queuedjob/plan.rs", include_str!("queuedjob/plan.rs")),
        ("queuedjob/say.rs", include_str!("queuedjob/say.rs")),
        (
            "queuedjob/standing.rs",
            include_str!("queuedjob/standing.rs"),
        ),
        ("foresight/meeting.rs", include_str!("foresight/meeting.rs")),
        ("ledger.rs", include_str!("ledger.rs")),
        ("budget.rs", include_str!("budget.rs")),
        ("budget/period.rs", include_str!("budget/period.rs")),
        ("gpurequest/money.rs", include_str!("gpurequest/money.rs")),
        ("placement/rented.rs", include_str!("placement/rented.rs")),
        ("tenant/plan/money.rs", include_str!("tenant/plan/money.rs")),
        (
            "workload/rent/beside.rs",
            include_str!("workload/rent/beside.rs"),
        ),
        ("workload/rent.rs", include_str!("workload/rent.rs")),
        ("workload/course.rs", include_str!("workload/course.rs")),
    ];
    for (name, text) in files {
        for word in [".await", "Client", "Api<", "Timestamp::now"] {
            assert!(!text.contains(word), "{name} contains {word}");
        }
    }
}
