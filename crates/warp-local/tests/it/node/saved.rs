//! A process node tells when a pod last saved its work, by the time of its file.

use k8s_openapi::api::core::v1::Pod;
use kube::Api;
use kube::api::PostParams;
use serde_json::json;
use warp_api::label;
use warp_testkit::{PATIENCE, wait_for};

use super::Leftovers;
use super::addresses::{node, server};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_time_of_a_file_in_a_volume_is_told_before_the_pod_has_ended() {
    let client = server().await;
    let root = tempfile::tempdir().unwrap();
    let _ends = Leftovers(root.path().to_owned());
    let (stop, running) = node(&client, root.path());
    let pods: Api<Pod> = Api::namespaced(client.clone(), "default");
    let pod = json!({
        "metadata": {"name": "saves", "annotations": {label::CHECKPOINT_PATH: "/saved/steps"}},
        "spec": {"nodeName": "here", "restartPolicy": "Never", "terminationGracePeriodSeconds": 0,
            "volumes": [{"name": "saved", "emptyDir": {}}],
            "containers": [{"name": "c", "image": "local://",
                "command": ["sh", "-c", "mkdir $0 && touch -d 2026-01-31T12:00:00Z $0/1", "/saved/steps"],
                "volumeMounts": [{"name": "saved", "mountPath": "/saved"}]}]}});
    let pod = serde_json::from_value(pod).unwrap();
    pods.create(&PostParams::default(), &pod).await.unwrap();
    let ended = wait_for(&pods, "saves", "ended", PATIENCE, |pod| {
        pod.and_then(|pod| pod.status.as_ref()?.phase.as_deref()) == Some("Succeeded")
    });
    let ended = ended.await.unwrap().expect("it is there");
    let annotations = ended.metadata.annotations.unwrap_or_default();
    let told = annotations.get(label::CHECKPOINT_FILE_TIME);
    assert_eq!(told.map(String::as_str), Some("2026-01-31T12:00:00Z"));
    stop.cancel();
    running.await.unwrap();
}
