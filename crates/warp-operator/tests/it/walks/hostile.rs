//! Specs written to climb out of where they belong: refused by name, or waiting without harm.

mod specs;

use serde_json::{Value, json};
use warp_testkit::Faults;
use warp_testkit::fault::world::{Setup, World};

use specs::{STANDS_STILL, specs};

use super::{QUIET, operator, virtual_time};

#[test]
fn hostile_specs_are_refused_or_stand_still_and_hold_nothing() {
    let setup = Setup {
        fleet: "pools:\n- {name: box, count: 1, gpu: H100-80GB, gpus: 2}\n".to_owned(),
        part: Some(operator()),
        ..Setup::default()
    };
    let problems = virtual_time(async {
        let world = World::start(&setup, Faults::new("".parse()?)).await?;
        let manifest = |name: &str, spec: Value| {
            json!({"apiVersion": "gpu.warp.dev/v1alpha1", "kind": "GPUWorkload",
                "metadata": {"name": name, "namespace": "default"}, "spec": spec})
        };
        let mut problems = Vec::new();
        let mut made = Vec::new();
        for (name, spec) in specs() {
            let manifest = manifest(name, spec);
            match world.create(manifest.clone()).await {
                Ok(_) => made.push(manifest),
                Err(error) => {
                    let refused = error.downcast_ref::<kube::Error>().is_some_and(|error| {
                        matches!(error, kube::Error::Api(status) if matches!(status.code, 400 | 422))
                    });
                    if !refused {
                        problems.push(format!("{name}: {error:#}"));
                    }
                }
            }
        }
        world.settled(QUIET).await?;
        for manifest in &made {
            let name = manifest["metadata"]["name"].as_str().unwrap_or_default();
            let object = world.api_of(manifest)?.get(name).await?;
            let reason = object.data["status"]["conditions"][0]["reason"].as_str();
            if !reason.is_some_and(|reason| STANDS_STILL.contains(&reason)) {
                problems.push(format!("{name}: {}", object.data["status"]));
            }
        }
        // Both GPUs are there for somebody who asks properly.
        let honest = manifest("honest", json!({"modelName": "m", "gpuCount": 2, "image": "i"}));
        world.create(honest.clone()).await?;
        let running = |object: Option<&Value>| {
            object.is_some_and(|object| object["status"]["phase"] == "Running")
        };
        world.until(&honest, "running", running).await?;
        Ok(problems)
    })
    .unwrap();
    assert!(problems.is_empty(), "{}", problems.join("\n"));
}
