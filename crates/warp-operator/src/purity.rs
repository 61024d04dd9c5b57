//! The files that decide must not be able to do: they contain no await, client or API handle.

/// Placement and the ledger know claimants, not kinds.
#[test]
fn placement_knows_no_claimant_by_name() {
    let root = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let mut folders = vec![root.join("placement"), root.join("ledger")];
    let mut files = vec![root.join("placement.rs"), root.join("ledger.rs")];
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(folder).expect("a folder") {
            let path = entry.expect("an entry").path();
            match path.file_name().and_then(|name| name.to_str()) {
                Some("tests" | "tests.rs") | None => {}
                _ if path.is_dir() => folders.push(path),
                _ => files.push(path),
            }
        }
    }
    assert!(files.len() > 20, "{files:?}");
    for file in files {
        let text = std::fs::read_to_string(&file).expect("a file");
        for word in ["crate::workload", "crate::queuedjob", "GPUWorkload"] {
            assert!(!text.contains(word), "{} names {word}", file.display());
        }
    }
}

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
        ("placement/memo.rs", include_str!("placement/memo.rs")),
        ("placement/order.rs", include_str!("placement/order.rs")),
        ("placement/roll.rs", include_str!("placement/roll.rs")),
        ("placement/shape.rs", include_str!("placement/shape.rs")),
        ("placement/walk.rs", include_str!("placement/walk.rs")),
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
