//! What workloads go through. A scenario acts as a user and as the machines do, and waits for what a
//! user would wait for; judging is not its business.

#![allow(
    clippy::needless_pass_by_value,
    reason = "`json!` at the call reads best by value"
)]

mod caches;
mod clouds;
mod containers;
mod estimates;
mod gangs;
mod queued;
mod rentals;
mod services;
mod tenants;

use std::sync::Arc;
use std::time::Duration;

use anyhow::Result;
use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::core::v1::{Node, Pod};
use kube::ResourceExt;
use kube::api::{Api, DeleteParams, ListParams, PropagationPolicy};
use serde_json::{Value, json};
use warp_testkit::fault::campaign::{Scenario, Script};
use warp_testkit::fault::world::{Setup, World};

use super::{keeper, operator, rival, two_leaders};
use caches::{
    changes_its_revision_while_it_is_fetched, fails_is_mended_and_fetched_again,
    follows_its_cache_to_another_model, gets_other_limits_while_it_is_fetched,
    is_copied_to_nodes_and_removed_again, is_fetched_and_goes_when_nobody_mounts_it,
    is_fetched_once_for_two, is_optimized_and_then_optimized_otherwise,
    makes_room_on_a_node_and_comes_back, waits_for_its_cache_and_holds_it,
};
use clouds::{
    MONEY, ends_a_machine_of_nobody, ends_within_its_money, falls_back_to_another_region,
    is_billed_more_than_was_agreed, is_deleted_before_the_cloud_shows_it, is_given_back_when_idle,
    is_held_while_machines_exist, is_rented_joins_and_is_deleted,
    is_replaced_before_it_is_taken_back, is_shown_a_minute_after_it_was_bought,
    is_told_that_its_credentials_are_refused, is_told_until_the_machine_is_gone,
    loses_its_machine_and_rents_another, replaces_a_machine_that_is_taken_back,
    waits_for_its_price, waits_for_room_in_the_account,
};
use containers::{
    becomes_the_container_of_a_pod, ends_the_container_of_a_pod_that_goes,
    is_deleted_with_a_pod_on_its_container, loses_its_container_and_rents_another,
    refuses_a_pod_that_cannot_be_a_container, rents_a_container_runs_and_gives_back,
};
use estimates::{KEPT, are_learnt_from_what_ends};
use gangs::{
    goes_on_with_fewer_when_a_node_is_lost, is_deleted_as_it_starts,
    is_suspended_as_it_starts_and_resumed, is_tried_again_when_a_member_fails,
    loses_a_node_of_one_member, starts_together_and_ends, starts_with_fewer_instead_of_waiting,
    waits_whole_until_there_is_room,
};
use queued::{
    goes_while_it_waits, makes_room_and_runs_again, of_another_kind_makes_room_and_runs_again,
    starts_its_pods_together, waits_its_turn_among_workloads,
};
use rentals::{
    gives_back_what_came_when_not_all_do, is_held_by_a_budget_until_that_is_raised,
    leaves_its_machine_to_those_that_use_it, rents_all_machines_of_a_gang,
    rents_runs_and_gives_back,
};
use services::{
    gives_up_a_copy_beyond_its_floor, is_changed_without_a_spare_gpu,
    is_corrected_while_it_is_wrong, is_served_and_deleted, is_served_over_two_nodes_and_deleted,
    keeps_its_gpus_from_workloads, takes_the_place_of_low_work_by_copies,
};
use tenants::{
    counts_what_its_namespaces_use, gains_and_loses_a_namespace_by_its_label,
    holds_work_over_its_quota_until_there_is_room, is_contested_and_then_alone,
    is_shut_off_and_opened, takes_back_what_it_lent,
};

/// Two machines with four GPUs and one with two.
const FLEET: &str = "
defaults: {pullTime: 1s, runTime: 60s}
pools:
- {name: big, count: 2, gpu: A100-80GB, gpus: 4}
- {name: small, count: 1, gpu: L4, gpus: 2}
";
const ONE: &str = "
defaults: {pullTime: 1s, runTime: 60s}
pools:
- {name: only, count: 1, gpu: L4, gpus: 4}
";
/// Two GPUs, and containers that do not end by themselves.
const SERVING: &str = "
defaults: {pullTime: 1s}
pools:
- {name: only, count: 1, gpu: L4, gpus: 2}
";
/// Two nodes of one GPU: a copy of two spans both.
const SPANNED: &str = "
defaults: {pullTime: 1s}
pools:
- {name: pair, count: 2, gpu: L4, gpus: 1}
";
/// No machine but those that are rented.
const NONE: &str = "";
const CLOUDS: &str = "
defaults: {pullTime: 1s, runTime: 60s}
pools:
- {name: near, count: 1, gpu: L4, gpus: 1, provider: lambda}
- {name: far, count: 1, gpu: L4, gpus: 4, provider: runpod}
";

macro_rules! scenarios {
    ($part:ident $prefix:literal; $($fleet:ident $name:ident $(loose $loose:expr)?),* $(,)?) => {
        vec![$(Scenario {
            name: concat!($prefix, stringify!($name)),
            setup: Setup { fleet: $fleet.to_owned(), part: Some($part()), ..Setup::default() },
            script: script(|world| Box::pin($name(world))),
            loose: { #[allow(unused_mut, unused_assignments)] let mut loose: &'static [&'static str] = &[]; $(loose = $loose;)? loose },
        }),*]
    };
}

fn script<F>(script: F) -> Script
where
    F: for<'a> Fn(&'a World) -> futures::future::BoxFuture<'a, Result<()>> + Send + Sync + 'static,
{
    Arc::new(script)
}

/// Of ten made in one second the one with the smallest uid is first, and uids are chance: who gets
/// which node differs from run to run. That all are placed, once, and fit is still compared.
const WHERE: &[&str] = &[
    "/spec/nodeName",
    "/spec/affinity",
    "/metadata/annotations/gpu.warp.dev/placement",
    "/status/hostIPs",
    "/status/assignedNode",
    "/metadata/annotations/gpu.warp.dev/node",
    "/message",
    "/status/hostIP",
];

/// Two that both lead each place what the other has not told of yet; the cluster's scheduler refuses what
/// is too much, and that is undone and tried again.
const RIVALS: &[&str] = &[
    "/status/refusedNodes",
    "/status/refusals",
    "/#created",
    "/#deleted",
];

/// The cluster gives up what is on a silent node after five minutes, as Warp does. Who is first decides
/// whether the Job of that attempt has ended by itself and stays, or is deleted.
const FIRST_ATTEMPT: &[&str] = &["Job default/w-uid-0", "Pod default/w-uid-0-*"];

/// The same of a gang.
const GIVEN_UP: &[&str] = &["Job default/g-uid-0", "Pod default/g-uid-0-*"];

/// What a workload remembers of what happened depends on what was seen on the way.
const TRAIL: &[&str] = &["/status/timeline", "/status/recentAttempts"];

/// Of two machines that are bought at the same moment either may be the first.
const WHICH: &[&str] = &["/instanceId"];

/// And when the account may have one only, either of them may be the one that comes; how often the other is tried until
/// its time is over depends on when that began.
const TRIES: &[&str] = &[
    "/status/attempts",
    "/status/attemptCount",
    "/status/nextAttemptTime",
    "/status/gpu",
    "/status/provider",
    "/status/pricePerHour",
    "/status/rent",
];

/// Whether pods that stand in for a workload were made again, or at all, before a node came is a matter of when.
const STOOD_IN: &[&str] = &["/#created", "/#deleted"];

/// How long a step took is a time like any other: a fault may cost some.
const TOOK: &[&str] = &["/seconds"];

/// What is known of a checkpoint depends on whether somebody saw the pod end: who was away until its time was over takes
/// what `period` promises.
const SAVED: &[&str] = &["/status/lastCheckpoint", "/status/lostGpuSeconds"];

pub(super) fn all() -> Vec<Scenario> {
    let mut all = scenarios![operator "gpuworkload ";
        FLEET runs_to_success,
        FLEET fails_and_is_retried,
        FLEET exhausts_its_retries,
        FLEET is_not_retried_at_all,
        FLEET is_suspended_while_running_and_resumed,
        FLEET is_resumed_while_its_pod_still_stops,
        FLEET is_suspended_while_it_waits,
        ONE is_suspended_while_it_waits_and_room_comes,
        FLEET is_born_suspended,
        ONE takes_the_place_of_low_work,
        ONE saves_its_work_when_it_is_evicted_and_resumes loose SAVED,
        FLEET saves_its_work_when_it_is_suspended_and_resumes loose SAVED,
        FLEET is_deleted_while_pending,
        ONE is_deleted_while_it_waits_and_room_comes,
        FLEET is_deleted_while_running,
        FLEET is_deleted_in_backoff,
        FLEET is_deleted_when_done,
        FLEET is_made_again_under_its_name,
        FLEET loses_its_node loose FIRST_ATTEMPT,
        FLEET loses_its_gpus,
        FLEET is_refused_by_a_quota_and_then_let_in,
        ONE waits_for_capacity,
        ONE waits_for_a_node_to_join,
        ONE is_shown_until_a_node_joins loose STOOD_IN,
        FLEET goes_after_its_ttl,
        FLEET runs_too_long,
        FLEET gets_more_time_while_running,
        CLOUDS falls_back_to_another_provider,
        FLEET ten_at_once loose WHERE,
        ONE ten_at_once_with_little_room loose WHERE,
        ONE higher_priority_goes_first,
        FLEET is_edited_before_it_is_placed,
        FLEET is_wrong_and_then_corrected,
        FLEET cannot_pull_its_image,
        FLEET cannot_pull_its_image_until_it_is_changed,
        FLEET is_changed_while_it_waits_for_its_retry,
        FLEET is_changed_as_it_is_placed,
        FLEET has_a_job_deleted_by_somebody,
        FLEET has_its_job_deleted_as_it_is_made,
        FLEET has_a_pod_deleted_by_somebody,
        FLEET has_a_pod_orphaned_by_somebody,
        FLEET is_in_a_namespace_that_is_deleted,
        FLEET asks_for_a_model,
    ];
    all.extend(scenarios![operator "gang ";
        FLEET starts_together_and_ends,
        FLEET is_tried_again_when_a_member_fails,
        FLEET is_suspended_as_it_starts_and_resumed,
        FLEET loses_a_node_of_one_member loose GIVEN_UP,
        FLEET waits_whole_until_there_is_room,
        FLEET starts_with_fewer_instead_of_waiting,
        FLEET goes_on_with_fewer_when_a_node_is_lost loose GIVEN_UP,
        FLEET is_deleted_as_it_starts,
    ]);
    all.extend(scenarios![two_leaders "two leaders gang ";
        FLEET starts_together_and_ends,
    ]);
    all.extend(scenarios![operator "queuedjob ";
        ONE waits_its_turn_among_workloads,
        FLEET starts_its_pods_together,
        ONE makes_room_and_runs_again,
        ONE goes_while_it_waits,
        ONE of_another_kind_makes_room_and_runs_again,
    ]);
    all.extend(scenarios![keeper "estimates ";
        FLEET are_learnt_from_what_ends loose KEPT,
    ]);
    all.extend(scenarios![operator "tenant ";
        FLEET counts_what_its_namespaces_use,
        FLEET gains_and_loses_a_namespace_by_its_label,
        FLEET is_contested_and_then_alone,
        FLEET is_shut_off_and_opened,
        FLEET holds_work_over_its_quota_until_there_is_room,
        ONE takes_back_what_it_lent,
    ]);
    all.extend(scenarios![operator "inferenceservice ";
        SERVING is_served_and_deleted loose TOOK,
        SPANNED is_served_over_two_nodes_and_deleted loose TOOK,
        SERVING is_changed_without_a_spare_gpu loose TOOK,
        SERVING is_corrected_while_it_is_wrong loose TOOK,
        SERVING keeps_its_gpus_from_workloads loose TOOK,
        SERVING takes_the_place_of_low_work_by_copies loose TOOK,
        SERVING gives_up_a_copy_beyond_its_floor loose TOOK,
        FLEET waits_for_its_cache_and_holds_it loose TOOK,
        FLEET follows_its_cache_to_another_model loose TOOK,
    ]);
    all.extend(scenarios![operator "gpurequest ";
        NONE is_rented_joins_and_is_deleted loose MONEY,
        NONE is_deleted_before_the_cloud_shows_it loose MONEY,
        NONE is_given_back_when_idle loose MONEY,
        NONE ends_within_its_money loose MONEY,
        NONE falls_back_to_another_region loose MONEY,
        NONE replaces_a_machine_that_is_taken_back loose MONEY,
        NONE is_replaced_before_it_is_taken_back loose MONEY,
        NONE waits_for_its_price loose MONEY,
        NONE is_shown_a_minute_after_it_was_bought loose MONEY,
        NONE is_billed_more_than_was_agreed loose MONEY,
        NONE waits_for_room_in_the_account loose MONEY,
        NONE is_told_until_the_machine_is_gone loose MONEY,
        NONE loses_its_machine_and_rents_another loose MONEY,
        NONE is_held_by_a_budget_until_that_is_raised loose MONEY,
        NONE becomes_the_container_of_a_pod loose MONEY,
        NONE ends_the_container_of_a_pod_that_goes loose MONEY,
        NONE refuses_a_pod_that_cannot_be_a_container loose MONEY,
        NONE is_deleted_with_a_pod_on_its_container loose MONEY,
    ]);
    all.extend(scenarios![operator "gpuworkload ";
        NONE rents_runs_and_gives_back loose MONEY,
        NONE rents_a_container_runs_and_gives_back loose MONEY,
        NONE loses_its_container_and_rents_another loose MONEY,
        NONE leaves_its_machine_to_those_that_use_it loose MONEY,
        NONE rents_all_machines_of_a_gang loose Vec::leak([MONEY, WHICH].concat()),
        NONE gives_back_what_came_when_not_all_do loose Vec::leak([MONEY, WHICH, TRIES].concat()),
    ]);
    all.extend(scenarios![operator "cloudprovider ";
        NONE is_held_while_machines_exist loose MONEY,
        NONE ends_a_machine_of_nobody loose MONEY,
        NONE is_told_that_its_credentials_are_refused loose MONEY,
    ]);
    all.extend(scenarios![operator "modelcache ";
        FLEET is_fetched_and_goes_when_nobody_mounts_it,
        FLEET fails_is_mended_and_fetched_again,
        FLEET is_optimized_and_then_optimized_otherwise,
        FLEET changes_its_revision_while_it_is_fetched,
        FLEET is_fetched_once_for_two,
        FLEET gets_other_limits_while_it_is_fetched,
        FLEET is_copied_to_nodes_and_removed_again,
        FLEET makes_room_on_a_node_and_comes_back,
    ]);
    all.extend(scenarios![two_leaders "two leaders gpurequest ";
        NONE is_rented_joins_and_is_deleted loose MONEY,
        NONE is_deleted_before_the_cloud_shows_it loose MONEY,
        NONE is_replaced_before_it_is_taken_back loose MONEY,
        NONE falls_back_to_another_region loose MONEY,
        NONE becomes_the_container_of_a_pod loose MONEY,
    ]);
    all.extend(scenarios![two_leaders "two leaders ";
        FLEET runs_to_success,
        FLEET exhausts_its_retries,
        FLEET is_suspended_while_running_and_resumed,
        ONE ten_at_once_with_little_room loose Vec::leak([WHERE, RIVALS].concat()),
    ]);
    // One that is frozen, cut off or killed while another works on beside it.
    let beside = scenarios![operator "beside another ";
        FLEET runs_to_success,
        FLEET exhausts_its_retries,
        FLEET is_suspended_while_running_and_resumed,
        FLEET loses_its_node loose FIRST_ATTEMPT,
    ];
    all.extend(beside.into_iter().map(|mut scenario| {
        scenario.setup.rival = Some(rival());
        scenario
    }));
    for scenario in &mut all {
        scenario.loose = Vec::leak([scenario.loose, TRAIL].concat());
    }
    all
}

fn workload(name: &str, spec: Value) -> Value {
    let mut manifest = json!({
        "apiVersion": "gpu.warp.dev/v1alpha1", "kind": "GPUWorkload",
        "metadata": {"name": name, "namespace": "default"},
        "spec": {
            "modelName": "m", "gpuCount": 1, "retryPolicy": {"maxRetries": 2, "backoffSeconds": 10},
            "podTemplate": {"spec": {"restartPolicy": "Never", "containers": [{"name": "gpu-workload", "image": "i:1"}]}},
        },
    });
    for (field, value) in spec.as_object().into_iter().flatten() {
        manifest["spec"][field] = value.clone();
    }
    manifest
}

/// A pod template whose container does as the annotations say.
fn behaves(annotations: Value) -> Value {
    let mut named = serde_json::Map::new();
    for (name, value) in annotations.as_object().into_iter().flatten() {
        named.insert(format!("sim.gpu.warp.dev/{name}"), value.clone());
    }
    json!({
        "metadata": {"annotations": named},
        "spec": {"restartPolicy": "Never", "containers": [{"name": "gpu-workload", "image": "i:1"}]},
    })
}

/// Runs for longer than any fault keeps the operator from seeing it.
fn for_long() -> Value {
    behaves(json!({"run-time": "15m"}))
}

async fn until_phase(world: &World, manifest: &Value, phase: &str) -> Result<()> {
    world
        .until(manifest, phase, |object| {
            object.is_some_and(|object| object["status"]["phase"] == phase)
        })
        .await
}

async fn until_reason(world: &World, manifest: &Value, reason: &str) -> Result<()> {
    world
        .until(manifest, reason, |object| {
            object.is_some_and(|object| object["status"]["conditions"][0]["reason"] == reason)
        })
        .await
}

async fn delete(world: &World, manifest: &Value) -> Result<()> {
    let name = manifest["metadata"]["name"].as_str().unwrap_or_default();
    world
        .api_of(manifest)?
        .delete(name, &DeleteParams::default())
        .await?;
    world
        .until(manifest, "gone", |object| object.is_none())
        .await
}

async fn submit(world: &World, manifest: &Value) -> Result<()> {
    world.create(manifest.clone()).await.map(|_| ())
}

/// The workload of a scenario that has one.
async fn submitted(world: &World, spec: Value) -> Result<Value> {
    let it = workload("w", spec);
    submit(world, &it).await?;
    Ok(it)
}

async fn runs_to_success(world: &World) -> Result<()> {
    let it = submitted(world, json!({})).await?;
    until_phase(world, &it, "Succeeded").await
}

async fn fails_and_is_retried(world: &World) -> Result<()> {
    let fails = behaves(json!({"run-time": "15m", "exit-code": "3"}));
    let it = submitted(world, json!({"podTemplate": fails})).await?;
    world
        .until(&it, "running once more", |object| {
            object.is_some_and(|object| {
                object["status"]["retryCount"] == 1 && object["status"]["phase"] == "Running"
            })
        })
        .await?;
    // Every attempt is a new pod: this one is told to succeed.
    let pods: Api<Pod> = Api::namespaced(world.client.clone(), "default");
    for pod in pods.list(&ListParams::default()).await? {
        let pod = json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": pod.name_any()}});
        let succeed = json!({"metadata": {"annotations": {"sim.gpu.warp.dev/exit-code": "0"}}});
        world.patch(&pod, succeed).await?;
    }
    until_phase(world, &it, "Succeeded").await
}

async fn exhausts_its_retries(world: &World) -> Result<()> {
    let it = submitted(
        world,
        json!({
            "retryPolicy": {"maxRetries": 1, "backoffSeconds": 1},
            "podTemplate": behaves(json!({"run-time": "5s", "exit-code": "1"})),
        }),
    )
    .await?;
    until_phase(world, &it, "Failed").await
}

async fn is_not_retried_at_all(world: &World) -> Result<()> {
    let it = submitted(
        world,
        json!({
            "retryPolicy": {"maxRetries": 0, "backoffSeconds": 1},
            "podTemplate": behaves(json!({"oom-after": "5s"})),
        }),
    )
    .await?;
    until_phase(world, &it, "Failed").await
}

async fn is_suspended_while_running_and_resumed(world: &World) -> Result<()> {
    let it = submitted(world, json!({"podTemplate": for_long()})).await?;
    until_phase(world, &it, "Running").await?;
    world.patch(&it, json!({"spec": {"suspend": true}})).await?;
    until_reason(world, &it, "Suspended").await?;
    let pods: Api<Pod> = Api::namespaced(world.client.clone(), "default");
    for pod in pods.list(&ListParams::default()).await? {
        world
            .wait(&pods, &pod.name_any(), "gone", |pod| pod.is_none())
            .await?;
    }
    world
        .patch(&it, json!({"spec": {"suspend": false}}))
        .await?;
    until_phase(world, &it, "Succeeded").await
}

/// The next attempt has to wait for the pod of the last.
async fn is_resumed_while_its_pod_still_stops(world: &World) -> Result<()> {
    let slow = behaves(json!({"run-time": "15m", "stop-time": "25s"}));
    let it = submitted(world, json!({"podTemplate": slow})).await?;
    until_phase(world, &it, "Running").await?;
    world.patch(&it, json!({"spec": {"suspend": true}})).await?;
    until_reason(world, &it, "Suspended").await?;
    world
        .patch(&it, json!({"spec": {"suspend": false}}))
        .await?;
    until_phase(world, &it, "Succeeded").await
}

async fn is_suspended_while_it_waits(world: &World) -> Result<()> {
    let it = submitted(world, json!({"gpuCount": 16})).await?;
    until_phase(world, &it, "Pending").await?;
    world.patch(&it, json!({"spec": {"suspend": true}})).await?;
    until_reason(world, &it, "Suspended").await
}

/// Room for eight more GPUs, and the time to use it.
async fn room_comes(world: &World) -> Result<()> {
    world.join("defaults: {pullTime: 1s, runTime: 60s}\npools:\n- {name: late, count: 1, gpu: L4, gpus: 8}\n")?;
    world.pass(Duration::from_mins(1)).await;
    Ok(())
}

async fn is_suspended_while_it_waits_and_room_comes(world: &World) -> Result<()> {
    let it = submitted(world, json!({"gpuCount": 8})).await?;
    until_phase(world, &it, "Pending").await?;
    world.pass(Duration::from_secs(10)).await;
    world.patch(&it, json!({"spec": {"suspend": true}})).await?;
    room_comes(world).await?;
    until_reason(world, &it, "Suspended").await
}

async fn is_deleted_while_it_waits_and_room_comes(world: &World) -> Result<()> {
    let it = submitted(world, json!({"gpuCount": 8})).await?;
    until_phase(world, &it, "Pending").await?;
    world.pass(Duration::from_secs(10)).await;
    delete(world, &it).await?;
    room_comes(world).await
}

async fn takes_the_place_of_low_work(world: &World) -> Result<()> {
    let low = json!({"gpuCount": 4, "priority": "low", "podTemplate": for_long()});
    let low = workload("low", low);
    submit(world, &low).await?;
    until_phase(world, &low, "Running").await?;
    // Longer than the least time it may run.
    world.pass(Duration::from_mins(2)).await;
    let it = submitted(world, json!({"gpuCount": 2, "priority": "high"})).await?;
    until_phase(world, &it, "Succeeded").await?;
    until_phase(world, &low, "Succeeded").await
}

async fn saves_its_work_when_it_is_evicted_and_resumes(world: &World) -> Result<()> {
    let low = json!({
        "gpuCount": 4, "priority": "low", "podTemplate": for_long(),
        "checkpoint": {"signal": "SIGUSR1", "gracePeriod": "20s", "period": "1m"},
    });
    let low = workload("low", low);
    submit(world, &low).await?;
    until_phase(world, &low, "Running").await?;
    // Longer than the least time it may run.
    world.pass(Duration::from_mins(2)).await;
    let it = submitted(world, json!({"gpuCount": 2, "priority": "high"})).await?;
    until_phase(world, &it, "Succeeded").await?;
    until_phase(world, &low, "Succeeded").await?;
    until_saved(world, &low).await
}

async fn saves_its_work_when_it_is_suspended_and_resumes(world: &World) -> Result<()> {
    let slow = behaves(json!({"run-time": "15m", "stop-time": "10s"}));
    let saves = json!({"signal": "SIGTERM", "period": "30s"});
    let it = submitted(world, json!({"podTemplate": slow, "checkpoint": saves})).await?;
    until_phase(world, &it, "Running").await?;
    world.pass(Duration::from_mins(1)).await;
    let suspend = |on: bool| json!({"spec": {"suspend": on}});
    world.patch(&it, suspend(true)).await?;
    until_saved(world, &it).await?;
    world.patch(&it, suspend(false)).await?;
    until_phase(world, &it, "Succeeded").await
}

/// Whoever was stopped is known to have saved its work.
async fn until_saved(world: &World, it: &Value) -> Result<()> {
    world
        .until(it, "saved", |object| {
            object.is_some_and(|object| object["status"]["lastCheckpoint"]["time"].is_string())
        })
        .await
}

async fn is_born_suspended(world: &World) -> Result<()> {
    let it = submitted(world, json!({"suspend": true})).await?;
    until_reason(world, &it, "Suspended").await?;
    world
        .patch(&it, json!({"spec": {"suspend": false}}))
        .await?;
    until_phase(world, &it, "Succeeded").await
}

async fn is_deleted_while_pending(world: &World) -> Result<()> {
    let it = submitted(world, json!({"gpuCount": 16})).await?;
    until_phase(world, &it, "Pending").await?;
    delete(world, &it).await
}

async fn is_deleted_while_running(world: &World) -> Result<()> {
    let it = submitted(
        world,
        json!({"podTemplate": behaves(json!({"run-time": "forever"}))}),
    )
    .await?;
    until_phase(world, &it, "Running").await?;
    delete(world, &it).await
}

async fn is_deleted_in_backoff(world: &World) -> Result<()> {
    let it = submitted(
        world,
        json!({
            "retryPolicy": {"maxRetries": 3, "backoffSeconds": 300},
            "podTemplate": behaves(json!({"run-time": "5s", "exit-code": "1"})),
        }),
    )
    .await?;
    world
        .until(&it, "waiting to try again", |object| {
            object.is_some_and(|object| object["status"]["retryCount"] == 1)
        })
        .await?;
    delete(world, &it).await
}

async fn is_deleted_when_done(world: &World) -> Result<()> {
    let it = submitted(world, json!({})).await?;
    until_phase(world, &it, "Succeeded").await?;
    delete(world, &it).await
}

async fn is_made_again_under_its_name(world: &World) -> Result<()> {
    let it = submitted(
        world,
        json!({"podTemplate": behaves(json!({"run-time": "forever"}))}),
    )
    .await?;
    until_phase(world, &it, "Running").await?;
    delete(world, &it).await?;
    let again = submitted(world, json!({})).await?;
    until_phase(world, &again, "Succeeded").await
}

async fn annotate_node(world: &World, name: &str, annotation: &str, value: &str) -> Result<()> {
    let node = json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": name}});
    let key = format!("sim.gpu.warp.dev/{annotation}");
    world
        .patch(&node, json!({"metadata": {"annotations": {key: value}}}))
        .await
        .map(|_| ())
}

async fn node_of(world: &World, manifest: &Value) -> Result<String> {
    let name = manifest["metadata"]["name"].as_str().unwrap_or_default();
    let object = world.api_of(manifest)?.get(name).await?;
    let node = object.data["status"]["assignedNode"].as_str();
    Ok(node.unwrap_or_default().to_owned())
}

async fn loses_its_node(world: &World) -> Result<()> {
    let it = submitted(
        world,
        json!({"podTemplate": behaves(json!({"run-time": "20m"}))}),
    )
    .await?;
    until_phase(world, &it, "Running").await?;
    let node = node_of(world, &it).await?;
    annotate_node(world, &node, "node-lost", "true").await?;
    world
        .until(&it, "running elsewhere", |object| {
            object.is_some_and(|object| {
                object["status"]["disruptions"] == 1 && object["status"]["phase"] == "Running"
            })
        })
        .await?;
    annotate_node(world, &node, "node-lost", "false").await?;
    until_phase(world, &it, "Succeeded").await
}

async fn loses_its_gpus(world: &World) -> Result<()> {
    let it = submitted(
        world,
        json!({"podTemplate": behaves(json!({"run-time": "20m"}))}),
    )
    .await?;
    until_phase(world, &it, "Running").await?;
    let node = node_of(world, &it).await?;
    annotate_node(world, &node, "lost-gpus", "all").await?;
    world
        .until(&it, "running elsewhere", |object| {
            object.is_some_and(|object| {
                object["status"]["retryCount"] == 1 && object["status"]["phase"] == "Running"
            })
        })
        .await?;
    until_phase(world, &it, "Succeeded").await
}

async fn is_refused_by_a_quota_and_then_let_in(world: &World) -> Result<()> {
    let quota = json!({
        "apiVersion": "v1", "kind": "ResourceQuota",
        "metadata": {"name": "none", "namespace": "default"}, "spec": {"hard": {"pods": "0"}},
    });
    world.create(quota.clone()).await?;
    world
        .until(&quota, "counted", |quota| {
            quota.is_some_and(|quota| quota["status"]["hard"]["pods"] == "0")
        })
        .await?;
    let it = submitted(world, json!({})).await?;
    until_reason(world, &it, "QuotaExceeded").await?;
    delete(world, &quota).await?;
    until_phase(world, &it, "Succeeded").await
}

async fn waits_for_capacity(world: &World) -> Result<()> {
    let first = workload("first", json!({"gpuCount": 3, "podTemplate": for_long()}));
    let second = workload("second", json!({"gpuCount": 2}));
    submit(world, &first).await?;
    until_phase(world, &first, "Running").await?;
    submit(world, &second).await?;
    until_phase(world, &first, "Succeeded").await?;
    until_phase(world, &second, "Succeeded").await
}

async fn waits_for_a_node_to_join(world: &World) -> Result<()> {
    let it = submitted(world, json!({"gpuCount": 8, "podTemplate": for_long()})).await?;
    until_phase(world, &it, "Pending").await?;
    room_comes(world).await?;
    until_phase(world, &it, "Succeeded").await
}

async fn is_shown_until_a_node_joins(world: &World) -> Result<()> {
    let spec = json!({"gpuCount": 8, "whenPending": "ungate", "podTemplate": for_long()});
    let it = submitted(world, spec).await?;
    let shown = |object: Option<&Value>| {
        object.is_some_and(|object| object["status"]["shown"]["jobName"].is_string())
    };
    world.until(&it, "shown", shown).await?;
    room_comes(world).await?;
    until_phase(world, &it, "Succeeded").await
}

async fn goes_after_its_ttl(world: &World) -> Result<()> {
    let it = submitted(
        world,
        json!({"ttlSecondsAfterFinished": 60, "podTemplate": for_long()}),
    )
    .await?;
    until_phase(world, &it, "Running").await?;
    world.until(&it, "gone", |object| object.is_none()).await
}

async fn runs_too_long(world: &World) -> Result<()> {
    let it = submitted(
        world,
        json!({
            "maxRuntime": "2m", "podTemplate": behaves(json!({"run-time": "forever"})),
        }),
    )
    .await?;
    until_phase(world, &it, "Failed").await
}

async fn gets_more_time_while_running(world: &World) -> Result<()> {
    let it = submitted(
        world,
        json!({
            "maxRuntime": "1h", "podTemplate": behaves(json!({"run-time": "90m"})),
        }),
    )
    .await?;
    until_phase(world, &it, "Running").await?;
    world
        .patch(&it, json!({"spec": {"maxRuntime": "2h"}}))
        .await?;
    until_phase(world, &it, "Succeeded").await
}

async fn falls_back_to_another_provider(world: &World) -> Result<()> {
    let mut it = workload("w", json!({"gpuCount": 2}));
    it["metadata"]["annotations"] = json!({"gpu.warp.dev/provider": "lambda,runpod"});
    submit(world, &it).await?;
    until_phase(world, &it, "Succeeded").await
}

async fn crowd(world: &World, count: usize) -> Result<()> {
    let all: Vec<Value> = (0..count)
        .map(|number| workload(&format!("w{number}"), json!({"gpuCount": 1 + number % 2})))
        .collect();
    for it in &all {
        submit(world, it).await?;
    }
    for it in &all {
        until_phase(world, it, "Succeeded").await?;
    }
    Ok(())
}

async fn ten_at_once(world: &World) -> Result<()> {
    crowd(world, 10).await
}

async fn ten_at_once_with_little_room(world: &World) -> Result<()> {
    crowd(world, 10).await
}

async fn higher_priority_goes_first(world: &World) -> Result<()> {
    let first = workload("first", json!({"gpuCount": 4, "podTemplate": for_long()}));
    submit(world, &first).await?;
    until_phase(world, &first, "Running").await?;
    let low = workload("low", json!({"gpuCount": 4, "priority": "low"}));
    let high = workload("high", json!({"gpuCount": 4, "priority": "high"}));
    submit(world, &low).await?;
    submit(world, &high).await?;
    until_phase(world, &high, "Succeeded").await?;
    until_phase(world, &low, "Succeeded").await?;
    let workloads = world.api_of(&low)?;
    let (high, low) = (workloads.get("high").await?, workloads.get("low").await?);
    let ended = high.data["status"]["completionTime"].as_str();
    let began = low.data["status"]["startTime"].as_str();
    anyhow::ensure!(
        ended.is_some() && ended <= began,
        "low began at {began:?}, before high had ended at {ended:?}"
    );
    Ok(())
}

async fn is_edited_before_it_is_placed(world: &World) -> Result<()> {
    let it = submitted(world, json!({"gpuCount": 16})).await?;
    until_phase(world, &it, "Pending").await?;
    world.patch(&it, json!({"spec": {"gpuCount": 2}})).await?;
    until_phase(world, &it, "Succeeded").await
}

async fn is_wrong_and_then_corrected(world: &World) -> Result<()> {
    let it = submitted(world, json!({"gpu": {"models": ["NoSuchThing"]}})).await?;
    until_phase(world, &it, "Pending").await?;
    world.pass(Duration::from_secs(30)).await;
    world
        .patch(&it, json!({"spec": {"gpu": {"models": ["L4"]}}}))
        .await?;
    until_phase(world, &it, "Succeeded").await
}

async fn cannot_pull_its_image(world: &World) -> Result<()> {
    let it = submitted(
        world,
        json!({
            "retryPolicy": {"maxRetries": 0, "backoffSeconds": 1},
            "podTemplate": behaves(json!({"pull-error": "no such image"})),
        }),
    )
    .await?;
    until_phase(world, &it, "Failed").await
}

/// Its Job is replaced by one of the new spec, and no retry is used.
async fn cannot_pull_its_image_until_it_is_changed(world: &World) -> Result<()> {
    let it = submitted(
        world,
        json!({"podTemplate": behaves(json!({"pull-error": "no such image"}))}),
    )
    .await?;
    until_reason(world, &it, "ImagePullFailed").await?;
    let corrected = behaves(json!({"pull-error": null}));
    world
        .patch(
            &it,
            json!({"spec": {"podTemplate": corrected, "gpuCount": 2}}),
        )
        .await?;
    until_phase(world, &it, "Succeeded").await
}

async fn is_changed_while_it_waits_for_its_retry(world: &World) -> Result<()> {
    let it = submitted(
        world,
        json!({
            "retryPolicy": {"maxRetries": 2, "backoffSeconds": 300},
            "podTemplate": behaves(json!({"exit-code": "3"})),
        }),
    )
    .await?;
    until_reason(world, &it, "RetryBackoff").await?;
    let corrected = behaves(json!({"exit-code": "0"}));
    world
        .patch(
            &it,
            json!({"spec": {"podTemplate": corrected, "gpuCount": 3}}),
        )
        .await?;
    until_phase(world, &it, "Succeeded").await
}

/// The image takes so long that whenever the change comes, nothing runs yet.
async fn is_changed_as_it_is_placed(world: &World) -> Result<()> {
    let it = submitted(
        world,
        json!({"podTemplate": behaves(json!({"pull-time": "20m"}))}),
    )
    .await?;
    let jobs: Api<Job> = Api::namespaced(world.client.clone(), "default");
    while jobs.list(&ListParams::default()).await?.items.is_empty() {
        world.pass(Duration::from_millis(5)).await;
    }
    let quick = behaves(json!({"pull-time": "1s"}));
    world
        .patch(&it, json!({"spec": {"podTemplate": quick, "gpuCount": 2}}))
        .await?;
    until_phase(world, &it, "Succeeded").await
}

/// Somebody deletes the Job of a workload that runs, and its pod with it or not.
async fn loses_its_job(world: &World, params: DeleteParams) -> Result<()> {
    let it = submitted(world, json!({"podTemplate": for_long()})).await?;
    until_phase(world, &it, "Running").await?;
    let jobs: Api<Job> = Api::namespaced(world.client.clone(), "default");
    for job in jobs.list(&ListParams::default()).await? {
        jobs.delete(&job.name_any(), &params).await?;
        let uid = job.uid();
        world
            .wait(&jobs, &job.name_any(), "gone", move |job| {
                job.is_none_or(|job| job.uid() != uid)
            })
            .await?;
    }
    until_phase(world, &it, "Succeeded").await
}

async fn has_a_job_deleted_by_somebody(world: &World) -> Result<()> {
    Box::pin(loses_its_job(world, DeleteParams::background())).await
}

/// The pod runs on, and nothing may run beside it.
async fn has_a_pod_orphaned_by_somebody(world: &World) -> Result<()> {
    let orphan = DeleteParams {
        propagation_policy: Some(PropagationPolicy::Orphan),
        ..DeleteParams::default()
    };
    Box::pin(loses_its_job(world, orphan)).await
}

async fn has_its_job_deleted_as_it_is_made(world: &World) -> Result<()> {
    let it = submitted(world, json!({})).await?;
    let jobs: Api<Job> = Api::namespaced(world.client.clone(), "default");
    loop {
        world.pass(Duration::from_millis(5)).await;
        let Some(job) = jobs.list(&ListParams::default()).await?.items.pop() else {
            continue;
        };
        jobs.delete(&job.name_any(), &DeleteParams::background())
            .await?;
        break;
    }
    until_phase(world, &it, "Succeeded").await
}

async fn has_a_pod_deleted_by_somebody(world: &World) -> Result<()> {
    let it = submitted(
        world,
        json!({"podTemplate": behaves(json!({"run-time": "15m"}))}),
    )
    .await?;
    until_phase(world, &it, "Running").await?;
    let pods: Api<Pod> = Api::namespaced(world.client.clone(), "default");
    for pod in pods.list(&ListParams::default()).await? {
        pods.delete(&pod.name_any(), &DeleteParams::default())
            .await?;
    }
    until_phase(world, &it, "Succeeded").await
}

async fn is_in_a_namespace_that_is_deleted(world: &World) -> Result<()> {
    let namespace = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "team"}});
    world.create(namespace.clone()).await?;
    world.ready("team").await?;
    let mut it = workload(
        "w",
        json!({"podTemplate": behaves(json!({"run-time": "forever"}))}),
    );
    it["metadata"]["namespace"] = json!("team");
    submit(world, &it).await?;
    until_phase(world, &it, "Running").await?;
    delete(world, &namespace).await
}

async fn asks_for_a_model(world: &World) -> Result<()> {
    let it = submitted(
        world,
        json!({"gpu": {"models": ["L4"]}, "gpuCount": 2, "podTemplate": for_long()}),
    )
    .await?;
    until_phase(world, &it, "Running").await?;
    let nodes: Api<Node> = Api::all(world.client.clone());
    let node = node_of(world, &it).await?;
    anyhow::ensure!(
        nodes.get(&node).await?.name_any().starts_with("small"),
        "placed on {node}"
    );
    until_phase(world, &it, "Succeeded").await
}
