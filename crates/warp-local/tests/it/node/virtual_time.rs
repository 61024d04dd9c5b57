//! Nodes in virtual time: hours pass in the time it takes to compute them.

use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::Pod;
use kube::Api;
use kube::api::PostParams;
use serde_json::json;
use tokio_util::sync::CancellationToken;
use warp_apiserver::{ApiServer, Options};
use warp_local::controllers::{self, Clock};
use warp_local::node::fleet::Fleet;
use warp_local::node::{Host, Simulated, host};
use warp_testkit::wait_for;

const HOURS: Duration = Duration::from_secs(12 * 3600);

#[tokio::test(start_paused = true)]
async fn a_day_of_crashes_is_told_with_the_times_it_would_have_taken() {
    let start: Timestamp = "2026-11-15T00:00:00Z".parse().unwrap();
    let mut options = Options::ephemeral().unwrap();
    options.clock = Clock::tokio(start);
    let server = ApiServer::start(options).await.unwrap();
    let client = server.client("default");
    let stop = CancellationToken::new();
    tokio::spawn(controllers::run(
        client.clone(),
        server.clock().clone(),
        controllers::Options::default(),
        stop.clone(),
    ));
    let fleet = Fleet::uniform(1, "L4", 4).unwrap();
    let node = fleet.nodes[0].name.clone();
    let host = Host {
        client: client.clone(),
        clock: server.clock().clone(),
        options: host::Options::for_fleet(1),
        runtime: Arc::new(Simulated::new(fleet.defaults)),
        shapes: fleet.nodes,
        reports: None,
    };
    tokio::spawn(host.run(stop.clone()));
    let accounts: Api<k8s_openapi::api::core::v1::ServiceAccount> =
        Api::namespaced(client.clone(), "default");
    wait_for(&accounts, "default", "made", HOURS, |account| {
        account.is_some()
    })
    .await
    .unwrap();
    let pods: Api<Pod> = Api::namespaced(client, "default");
    let pod = json!({
        "metadata": {"name": "p", "annotations": {
            "sim.gpu.warp.dev/run-time": "1h", "sim.gpu.warp.dev/exit-code": "3", "sim.gpu.warp.dev/fail-first": "3"}},
        "spec": {"nodeName": node, "restartPolicy": "OnFailure", "containers": [{"name": "c", "image": "i"}]}});
    pods.create(
        &PostParams::default(),
        &serde_json::from_value(pod).unwrap(),
    )
    .await
    .unwrap();
    let ended = wait_for(&pods, "p", "succeeded", HOURS, |pod| {
        pod.and_then(|pod| pod.status.as_ref()?.phase.as_deref()) == Some("Succeeded")
    })
    .await
    .unwrap()
    .unwrap();
    let status = ended.status.unwrap().container_statuses.unwrap().remove(0);
    assert_eq!(status.restart_count, 3);
    let run = status.state.unwrap().terminated.unwrap();
    let lasted = run
        .finished_at
        .unwrap()
        .0
        .duration_since(run.started_at.unwrap().0);
    assert_eq!(lasted.as_secs(), 3600);
    // Four hours of running; each hour is long enough for the back-off to be forgotten.
    let whole = server.clock().now().duration_since(start).as_secs();
    assert!((4 * 3600..5 * 3600).contains(&whole), "{whole}");
    stop.cancel();
}
