//! A real process on `warp up` that saves its work when it is asked to end, and goes on from there.

use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use crate::process::Leftovers;
use crate::up::Up;

/// What the driver's tool says of a machine with one GPU, so that this one is taken for it.
const ONE_GPU: &str = "#!/bin/sh\necho NVIDIA L4\n";

/// Counts up to two and ends well; each time it is asked to end it saves the next number and says that it is not done.
const SAVES: &str = r#"
import os, signal, sys, time
state = sys.argv[1]
attempt, resume = os.environ["ATTEMPT"], os.environ.get("RESUME", "0")
have = int(open(state).read()) if resume == "1" else 0
print(f"attempt {attempt} resume {resume} at {have}", flush=True)
if have == 2:
    sys.exit(0)
def save(*_):
    with open(state, "w") as file:
        file.write(str(have + 1))
    sys.exit(75)
signal.signal(signal.SIGUSR2, save)
open(f"{state}.{have}", "w").close()
while True:
    time.sleep(0.05)
"#;

fn manifest(folder: &Path) -> String {
    let program = folder.join("saves.py");
    std::fs::write(&program, SAVES).unwrap();
    let object = serde_json::json!({
        "apiVersion": "gpu.warp.dev/v1alpha1", "kind": "GPUWorkload",
        "metadata": {"name": "saves"},
        "spec": {
            "modelName": "saves", "gpuCount": 1, "image": "local://",
            "command": ["python3", program, folder.join("state")], "retryPolicy": {"maxRetries": 0},
            "checkpoint": {"signal": "SIGUSR2", "gracePeriod": "1m"},
        },
    });
    let file = folder.join("saves.json");
    std::fs::write(&file, object.to_string()).unwrap();
    file.display().to_string()
}

/// What the workload is, once it is so.
async fn until(up: &Up, what: &str, so: impl Fn(&serde_json::Value) -> bool) -> serde_json::Value {
    warp_testkit::until(what, crate::up::PATIENCE, async || {
        let object = up.ok(&["get", "gpuw", "saves", "-o", "json"]);
        let object: serde_json::Value = serde_json::from_str(&object).unwrap();
        Ok(so(&object).then_some(object))
    })
    .await
    .unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_process_saves_its_work_at_the_signal_and_resumes() {
    let folder = tempfile::tempdir().unwrap();
    let tools = folder.path().join("tools");
    std::fs::create_dir(&tools).unwrap();
    let tool = tools.join("nvidia-smi");
    std::fs::write(&tool, ONE_GPU).unwrap();
    std::fs::set_permissions(&tool, std::fs::Permissions::from_mode(0o755)).unwrap();
    let path = std::env::var_os("PATH").unwrap_or_default();
    let path = std::env::join_paths([tools].into_iter().chain(std::env::split_paths(&path)));
    let data = folder.path().join("data");
    let _leftovers = Leftovers(&data);
    let up = Up::start_with(
        &data,
        &["--runtime", "process", "--allow-root"],
        &[("PATH", path.unwrap().as_os_str())],
    )
    .await;
    up.ok(&["apply", "-f", &manifest(folder.path())]);
    let begun = |number: u32| folder.path().join(format!("state.{number}")).exists();
    // Its owner stops it, and lets it go on: the same attempt.
    until(&up, "it counts", |_| begun(0)).await;
    up.ok(&["suspend", "saves"]);
    let stopped = until(&up, "it is known to have saved", |object| {
        object["status"]["lastCheckpoint"]["by"] == "signal"
    })
    .await;
    assert_eq!(stopped["status"]["retryCount"], 0, "{stopped}");
    up.ok(&["resume", "saves"]);
    // The cluster takes its pod away: another attempt, and no retry is used.
    until(&up, "it counts on", |_| begun(1)).await;
    let pods = up.ok(&["get", "pods", "-o", "json"]);
    let pods: serde_json::Value = serde_json::from_str(&pods).unwrap();
    let pods = pods["items"].as_array().unwrap().iter();
    let mut live = pods.filter(|pod| pod["status"]["phase"] == "Running");
    let name = live.next_back().unwrap()["metadata"]["name"]
        .as_str()
        .unwrap()
        .to_owned();
    evict(&up, &name).await;
    let ended = until(&up, "it has ended", |object| {
        let phase = object["status"]["phase"].as_str().unwrap_or_default();
        ["Succeeded", "Failed"].contains(&phase)
    })
    .await;
    let status = &ended["status"];
    assert_eq!(status["phase"], "Succeeded", "{status}");
    assert_eq!(
        (&status["retryCount"], &status["disruptions"]),
        (&0.into(), &1.into())
    );
    let said = up.ok(&["logs", "saves"]);
    assert!(said.contains("attempt 1 resume 1 at 2"), "{said}");
    up.stop();
}

/// As a drain does.
async fn evict(up: &Up, pod: &str) {
    let pods: kube::Api<k8s_openapi::api::core::v1::Pod> =
        kube::Api::namespaced(crate::apiserver::client(&up.data).await, "default");
    pods.evict(pod, &kube::api::EvictParams::default())
        .await
        .unwrap();
}
