//! Events of the operator: one for what is said again and again, made anew when the API server has
//! let it go.

use std::time::Duration;

use anyhow::Result;
use k8s_openapi::api::events::v1::Event;
use kube::Api;
use kube::api::ListParams;
use serde_json::json;
use warp_testkit::Faults;
use warp_testkit::fault::world::{Setup, World, virtual_time};

use crate::faults::operator;

/// Longer than Events are kept.
const LATER: Duration = Duration::from_hours(3);

/// How often each Event was told that says the workload was suspended.
async fn told(world: &World) -> Result<Vec<i32>> {
    let events: Api<Event> = Api::namespaced(world.client.clone(), "default");
    let all = events.list(&ListParams::default()).await?;
    let counts = all
        .into_iter()
        .filter(|event| event.reason.as_deref() == Some("Suspended"))
        .map(|event| event.series.map_or(1, |series| series.count));
    Ok(counts.collect())
}

async fn suspended_time_and_again() -> Result<()> {
    let setup = Setup {
        fleet: String::new(),
        part: Some(operator()),
        ..Setup::default()
    };
    let world = World::start(&setup, Faults::none()).await?;
    let it = json!({
        "apiVersion": "gpu.warp.dev/v1alpha1", "kind": "GPUWorkload",
        "metadata": {"name": "w", "namespace": "default"},
        "spec": {"modelName": "m", "gpuCount": 1, "image": "i:1"},
    });
    world.create(it.clone()).await?;
    for (pause, expected) in [
        (Duration::ZERO, vec![1]),
        (Duration::ZERO, vec![2]),
        (LATER, vec![1]),
    ] {
        world.pass(pause).await;
        for (suspend, reason) in [(false, "NoSuchGpu"), (true, "Suspended")] {
            let change = json!({"spec": {"suspend": suspend}});
            world.patch(&it, change).await?;
            world
                .until(&it, reason, |object| {
                    object.is_some_and(|it| it["status"]["conditions"][0]["reason"] == reason)
                })
                .await?;
            world.pass(Duration::from_secs(5)).await;
        }
        assert_eq!(told(&world).await?, expected);
    }
    Ok(())
}

#[test]
fn what_is_said_again_is_counted_until_the_event_is_gone() {
    virtual_time(suspended_time_and_again()).expect("the run ends");
}
