//! Every write of the operator is a crash point: each scenario runs once without faults and then once
//! for every write and every fault, in virtual time on the embedded engine.
//!
//! `WARP_FAULTS='name | plan'` runs one (the line a failure prints; without a plan every write of that
//! scenario), `WARP_FAULTS=all` everything, as `make faults` does. By default a sample that is the same
//! in every run.

mod allowed;
mod scenarios;

use std::sync::Arc;

use tokio_util::sync::CancellationToken;
use warp_operator::{Clock, Config, Fetcher, Settings};
use warp_testkit::fault::campaign;
use warp_testkit::fault::world::Part;

use crate::invariants::INVARIANTS;

/// The operator as a part of a world.
pub(crate) fn operator() -> Part {
    Arc::new(|client: kube::Client, stop: CancellationToken| {
        Box::pin(one(client, stop, "one", None))
    })
}

/// Where an operator keeps what it has learnt.
pub(crate) const HOME: &str = "warp-system";

/// One that keeps what it has learnt.
pub(crate) fn keeper() -> Part {
    Arc::new(|client: kube::Client, stop: CancellationToken| {
        Box::pin(one(client, stop, "one", Some(HOME)))
    })
}

/// One more, which believes to lead as well.
pub(crate) fn rival() -> Part {
    Arc::new(|client: kube::Client, stop: CancellationToken| {
        Box::pin(one(client, stop, "other", None))
    })
}

/// Two operators that both believe to lead, as after a lease was lost without noticing.
pub(crate) fn two_leaders() -> Part {
    Arc::new(|client: kube::Client, stop: CancellationToken| {
        Box::pin(async move {
            tokio::select! {
                () = one(client.clone(), stop.clone(), "one", None) => {}
                () = one(client, stop, "other", None) => {}
            }
        })
    })
}

async fn one(client: kube::Client, stop: CancellationToken, identity: &str, home: Option<&str>) {
    let config = Config {
        namespace: None,
        identity: identity.to_owned(),
        home: home.map(str::to_owned),
        leader: None,
        health_addr: None,
        metrics_addr: None,
        settings: Settings {
            fetcher: Fetcher {
                image: Some("warp".to_owned()),
                ..Fetcher::default()
            },
            isolate_tenants: true,
            node_copies: true,
            show_pending: true,
            ..Settings::default()
        },
    };
    let clock = Clock::tokio(warp_testkit::fault::world::now());
    // An end before `stop` is counted by the world.
    let _ = warp_operator::run(client, config, clock, stop).await;
}

/// What every test run takes a sample of; the rest is for `make faults`.
const DAILY: [&str; 25] = [
    "gpuworkload runs_to_success",
    "gpuworkload exhausts_its_retries",
    "gpuworkload is_suspended_while_running_and_resumed",
    "gpuworkload is_deleted_while_running",
    "gpuworkload is_made_again_under_its_name",
    "gpuworkload loses_its_node",
    "gpuworkload takes_the_place_of_low_work",
    "gpuworkload rents_runs_and_gives_back",
    "gang starts_together_and_ends",
    "queuedjob makes_room_and_runs_again",
    "queuedjob starts_its_pods_together",
    "estimates are_learnt_from_what_ends",
    "modelcache is_fetched_and_goes_when_nobody_mounts_it",
    "tenant counts_what_its_namespaces_use",
    "tenant is_contested_and_then_alone",
    "gpurequest is_rented_joins_and_is_deleted",
    "gpurequest is_deleted_before_the_cloud_shows_it",
    "gpurequest is_held_by_a_budget_until_that_is_raised",
    "gpurequest becomes_the_container_of_a_pod",
    "tenant is_shut_off_and_opened",
    "cloudprovider is_held_while_machines_exist",
    "inferenceservice is_changed_without_a_spare_gpu",
    "inferenceservice waits_for_its_cache_and_holds_it",
    "two leaders exhausts_its_retries",
    "two leaders is_suspended_while_running_and_resumed",
];

/// Plans that once found something, in the operator or in a seeded defect that nothing else of the sample meets.
const FOUND: [(&str, &str); 19] = [
    // It ended while nobody watched, and its status had no beginning.
    ("gpuworkload runs_to_success", "write#2:pause=120s"),
    // A silent watch hid that the workload was gone: its Job was made again.
    (
        "gpuworkload is_deleted_while_running",
        "write#1:crash-after; watch#1+3:silence=1",
    ),
    // And that another one has its name: every few seconds a write that could not succeed.
    (
        "gpuworkload is_made_again_under_its_name",
        "write#1:crash-after; watch#1+3:silence=1",
    ),
    // And that one that waited was gone or suspended when room came: a Job was made for it.
    (
        "gpuworkload is_deleted_while_it_waits_and_room_comes",
        "write#1:crash-after; watch/gpuworkloads#1+2:silence=0",
    ),
    (
        "gpuworkload is_suspended_while_it_waits_and_room_comes",
        "write#1:crash-after; watch/gpuworkloads#1+2:silence=0",
    ),
    // A node not heard of yet was taken for one that is gone, and a sound attempt for lost.
    (
        "gpuworkload waits_for_a_node_to_join",
        "patch/gpuworkloads/status#3:crash-after; list/nodes#1:stale=9; watch/nodes#1:silence=0",
    ),
    // A Job that went before anybody had heard of it was waited for, for ever.
    (
        "gpuworkload has_its_job_deleted_as_it_is_made",
        "write#1:crash-before; watch/jobs#1+3:expire=0",
    ),
    // Two corrected each other's status as fast as they could.
    (
        "two leaders exhausts_its_retries",
        "write#2:crash-after; watch#1+9:expire=1",
    ),
    (
        "two leaders is_suspended_while_running_and_resumed",
        "write#2:crash-after; watch#1+9:expire=1",
    ),
    // Whoever acts before every list is here takes an unknown node for one that is gone.
    (
        "gpuworkload runs_to_success",
        "write#4:crash-after; list/nodes#1+all:delay=20s",
    ),
    // Alarms that are not set, Jobs and objects that are left behind, generations not told of.
    ("gpuworkload cannot_pull_its_image", "write#7:crash-before"),
    ("gpuworkload goes_after_its_ttl", "write#3:crash-after"),
    (
        "gpuworkload is_suspended_while_it_waits",
        "write#2:crash-after",
    ),
    // Whoever does not wait for the last pod runs twice.
    (
        "gpuworkload is_resumed_while_its_pod_still_stops",
        "write#8:crash-after",
    ),
    // Bought long after it was intended, it was taken for gone while the cloud did not show it yet.
    (
        "gpurequest is_deleted_before_the_cloud_shows_it",
        "write#8:crash-after",
    ),
    // Bought by a process that did not live to hear of it, and shown a minute later: whoever forgets what was intended,
    // or believes the first list, buys another.
    (
        "gpurequest is_shown_a_minute_after_it_was_bought",
        "update/configmaps@fake-cloud-fake#1:crash-after",
    ),
    // One lost answer of a cloud was told at once, and two processes, of which one had heard it, corrected each other.
    (
        "two leaders gpurequest is_rented_joins_and_is_deleted",
        "*/configmaps@fake-cloud-fake#54:500",
    ),
    // Whoever forgets what it has given away gives it twice.
    (
        "gpuworkload ten_at_once_with_little_room",
        "watch#1+all:merge; write#2:crash-after",
    ),
    // A Job was made when its room was given away: see `allowed.rs`.
    (
        "gpuworkload ten_at_once_with_little_room",
        "write#2:pause=120s",
    ),
];

/// What users do meanwhile is heard of minutes later.
const WEATHER: [&str; 1] = ["write#1:crash-after; watch/gpuworkloads#1+2:silence=0"];

#[test]
fn every_write_of_the_operator_is_a_crash_point() {
    let sample = campaign::Sample {
        daily: &DAILY,
        one_in: 29,
        found: &FOUND,
        weather: &WEATHER,
        invariants: INVARIANTS,
        allowed: &allowed::ALLOWED,
        outside: Some("*/configmaps@fake-cloud-fake"),
    };
    campaign::test(&scenarios::all(), &sample);
}
