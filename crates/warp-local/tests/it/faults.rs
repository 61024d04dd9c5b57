//! Every write of the engine's own controllers is a crash point: Job, Deployment, ReplicaSet, garbage
//! collection, namespaces, budgets, quotas, endpoint slices, volumes, node lifecycle and the scheduler
//! die together before and after each of their writes, or are lied to about it, in virtual time.
//!
//! `WARP_FAULTS='name | plan'` runs one (the line a failure prints; without a plan every write of that
//! scenario), `WARP_FAULTS=all` everything, as `make faults` does. By default a sample that is the same
//! in every run.

mod scenarios;

use warp_testkit::fault::campaign;

/// What every test run takes a sample of; the rest is for `make faults`.
const DAILY: [&str; 7] = [
    "engine a_job_of_three_in_parallel",
    "engine a_job_whose_pods_fail",
    "engine a_deployment_rolls",
    "engine dependents_go_first",
    "engine a_namespace_is_deleted",
    "engine a_claim_gets_its_volume",
    "engine a_pod_makes_way_for_a_more_important_one",
];

#[test]
fn every_write_of_the_controllers_is_a_crash_point() {
    let mut scenarios = scenarios::all();
    if std::env::var_os("WARP_FAULTS").is_none() {
        scenarios.retain(|scenario| DAILY.contains(&scenario.name));
    }
    campaign::test(&scenarios, 31);
}
