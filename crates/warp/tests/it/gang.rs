//! A gang of real processes on `warp up`: its members find each other by what their environment says.

use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use crate::process::Leftovers;
use crate::up::Up;

/// What the driver's tool says of a machine with four GPUs, so that this one is taken for it.
const FOUR_GPUS: &str = "#!/bin/sh\nfor gpu in 1 2 3 4; do echo NVIDIA L4; done\n";

/// Rank 0 waits for all the others, adds up what they say and tells them the sum; nobody ends well without it.
const MEET: &str = r#"
import os, socket, sys, time
rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
first = (os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]))
assert os.environ["NODE_RANK"] == os.environ["PET_NODE_RANK"] == str(rank)
if rank == 0:
    door = socket.create_server(first)
    others = [door.accept()[0] for _ in range(size - 1)]
    total = sum(int(other.recv(16)) for other in others)
    for other in others:
        other.sendall(str(total).encode())
else:
    while True:
        try:
            line = socket.create_connection(first)
            break
        except OSError:
            time.sleep(0.05)
    line.sendall(str(rank).encode())
    total = int(line.recv(16))
print(f"rank {rank} of {size}: {total}", flush=True)
sys.exit(0 if total == size * (size - 1) // 2 else 1)
"#;

fn manifest(folder: &Path) -> String {
    let program = folder.join("meet.py");
    std::fs::write(&program, MEET).unwrap();
    let object = serde_json::json!({
        "apiVersion": "gpu.warp.dev/v1alpha1", "kind": "GPUWorkload",
        "metadata": {"name": "meet"},
        "spec": {
            "modelName": "meet", "gpuCount": 1, "replicas": 3, "image": "local://",
            "command": ["python3", program], "retryPolicy": {"maxRetries": 0},
        },
    });
    let file = folder.join("meet.json");
    std::fs::write(&file, object.to_string()).unwrap();
    file.display().to_string()
}

#[tokio::test(flavor = "multi_thread")]
async fn members_of_a_gang_meet_on_a_process_node() {
    let folder = tempfile::tempdir().unwrap();
    let tools = folder.path().join("tools");
    std::fs::create_dir(&tools).unwrap();
    let tool = tools.join("nvidia-smi");
    std::fs::write(&tool, FOUR_GPUS).unwrap();
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
    let ended = warp_testkit::until("the gang has ended", crate::up::PATIENCE, async || {
        let object = up.ok(&["get", "gpuw", "meet", "-o", "json"]);
        let ended = ["Succeeded", "Failed"].map(|phase| format!("\"phase\": \"{phase}\""));
        let over = ended.iter().any(|phase| object.contains(phase));
        Ok(over.then_some(object))
    })
    .await
    .unwrap();
    assert!(ended.contains("\"phase\": \"Succeeded\""), "{ended}");
    let pods = up.ok(&["get", "pods", "-o", "json"]);
    let pods: serde_json::Value = serde_json::from_str(&pods).unwrap();
    let mut said: Vec<String> = Vec::new();
    for pod in pods["items"].as_array().unwrap() {
        let name = pod["metadata"]["name"].as_str().unwrap();
        said.push(up.ok(&["logs", &format!("pod/{name}")]).trim().to_owned());
    }
    said.sort();
    let want = [0, 1, 2].map(|rank| format!("rank {rank} of 3: 3"));
    assert_eq!(said, want);
    up.stop();
}
