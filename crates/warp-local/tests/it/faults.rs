//! Every write of the engine's own controllers is a crash point: Job, Deployment, ReplicaSet, StatefulSet, garbage
//! collection, namespaces, budgets, quotas, endpoint slices, volumes, node lifecycle and the scheduler
//! die together before and after each of their writes, or are lied to about it, in virtual time.
//!
//! `WARP_FAULTS='name | plan'` runs one (the line a failure prints; without a plan every write of that
//! scenario), `WARP_FAULTS=all` everything, as `make faults` does. By default a sample that is the same
//! in every run.

mod scenarios;

use warp_testkit::fault::campaign;
use warp_testkit::fault::judge::Invariants;

/// What every test run takes a sample of; the rest is for `make faults`.
const DAILY: [&str; 8] = [
    "engine a_job_of_three_in_parallel",
    "engine a_job_whose_pods_fail",
    "engine a_deployment_rolls",
    "engine a_stateful_set_is_made_rolled_and_scaled",
    "engine dependents_go_first",
    "engine a_namespace_is_deleted",
    "engine a_claim_gets_its_volume",
    "engine a_pod_makes_way_for_a_more_important_one",
];

/// Plans that once found something, in the controllers or in a seeded defect that nothing else of the sample meets.
const FOUND: [(&str, &str); 8] = [
    // A set was made without being told of: that the one before was done stood there for ever.
    ("engine a_deployment_recreates", "write#33:504-applied"),
    // What was refused was tried ever again, and each time said so.
    ("engine a_job_with_indexes", "write#2~45s:403"),
    ("engine a_claim_gets_its_volume", "write#2~45s:403"),
    // Whoever plans again before its own writes are seen makes too many pods.
    (
        "engine a_job_with_indexes",
        "watch#1+all:merge; write#2:crash-after",
    ),
    // A namespace whose end nobody heard of was emptied over and over.
    (
        "engine a_namespace_is_deleted",
        "write#1:crash-after; watch#1+3:silence=1",
    ),
    // And one that an old answer called healthy was not emptied at all.
    (
        "engine a_namespace_is_deleted",
        "write#3:crash-after; read#1~5s:stale=2",
    ),
    // A node not heard of yet was taken for one that is gone, and its pod was ended.
    (
        "engine a_node_joins_and_takes_the_pod_that_waited",
        "write#4:crash-after; list/nodes#1:stale=9; watch/nodes#1:silence=0",
    ),
    // It was over before its beginning was seen.
    (
        "engine a_job_that_goes_after_its_ttl",
        "write#1:timeout-applied; write#3:timeout",
    ),
];

#[test]
fn every_write_of_the_controllers_is_a_crash_point() {
    let sample = campaign::Sample {
        daily: &DAILY,
        one_in: 47,
        found: &FOUND,
        weather: &[],
        invariants: Invariants::NONE,
        allowed: &[],
        outside: None,
    };
    campaign::test(&scenarios::all(), &sample);
}
