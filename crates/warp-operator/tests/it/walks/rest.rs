//! What is tried again and again without hope must not keep anybody else awake.

use serde_json::{Value, json};
use warp_testkit::Faults;
use warp_testkit::fault::world::{Setup, World};

use super::{QUIET, operator, virtual_time};

fn workload(name: &str, spec: &Value) -> Value {
    json!({"apiVersion": "gpu.warp.dev/v1alpha1", "kind": "GPUWorkload",
        "metadata": {"name": name, "namespace": "default"}, "spec": spec})
}

/// A Job the API server refuses held a place in the decision that made it, and those that wait were
/// told of it: two writes for each of them whenever it was tried again, for ever.
#[test]
fn a_job_that_cannot_be_made_disturbs_nobody_who_waits() {
    let setup = Setup {
        fleet: "pools:\n- {name: box, count: 2, gpu: H100-80GB, gpus: 8}\n".to_owned(),
        part: Some(operator()),
        ..Setup::default()
    };
    let said = virtual_time(async {
        let world = World::start(&setup, Faults::new("".parse()?)).await?;
        let waits = workload(
            "waits",
            &json!({"modelName": "m", "gpuCount": 1, "podTemplate": {"spec": {
                "containers": [{"name": "c", "image": "i"}],
                "affinity": {"podAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [
                    {"topologyKey": "kubernetes.io/hostname", "labelSelector": {"matchLabels": {"nobody": "has-this"}}}]}}}}}),
        );
        let refused = workload(
            "refused",
            &json!({"modelName": "m", "gpuCount": 8, "priority": "high", "podTemplate": {"spec": {
                "containers": [{"name": "Not A Name", "image": "i"}]}}}),
        );
        for manifest in [&waits, &refused] {
            world.create(manifest.clone()).await?;
        }
        for (manifest, reason) in [(&waits, "WaitingForCapacity"), (&refused, "JobRejected")] {
            world
                .until(manifest, reason, |object| {
                    object.is_some_and(|object| {
                        object["status"]["conditions"][0]["reason"] == reason
                    })
                })
                .await?;
        }
        world.settled(QUIET).await?;
        let object = world.api_of(&waits)?.get("waits").await?;
        Ok(object.data["status"]["message"].to_string())
    })
    .unwrap();
    assert!(said.contains("2 without a wanted pod"), "{said}");
}
