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

/// A gang of processes of this machine.
fn manifest(folder: &Path, name: &str, spec: &serde_json::Value) -> String {
    let mut object = serde_json::json!({
        "apiVersion": "gpu.warp.dev/v1alpha1", "kind": "GPUWorkload",
        "metadata": {"name": name},
        "spec": {"modelName": name, "image": "local://", "retryPolicy": {"maxRetries": 0}},
    });
    for (field, value) in spec.as_object().into_iter().flatten() {
        object["spec"][field] = value.clone();
    }
    let file = folder.join(format!("{name}.json"));
    std::fs::write(&file, object.to_string()).unwrap();
    file.display().to_string()
}

/// An engine that takes this machine for one with four GPUs.
async fn with_four_gpus(folder: &Path, data: &Path) -> Up {
    let tools = folder.join("tools");
    std::fs::create_dir(&tools).unwrap();
    let tool = tools.join("nvidia-smi");
    std::fs::write(&tool, FOUR_GPUS).unwrap();
    std::fs::set_permissions(&tool, std::fs::Permissions::from_mode(0o755)).unwrap();
    let path = std::env::var_os("PATH").unwrap_or_default();
    let path = std::env::join_paths([tools].into_iter().chain(std::env::split_paths(&path)));
    Up::start_with(
        data,
        &["--runtime", "process", "--allow-root"],
        &[("PATH", path.unwrap().as_os_str())],
    )
    .await
}

/// Waits for the end of a gang, which has to be good; what its members printed, in order.
async fn printed(up: &Up, name: &str) -> Vec<String> {
    let ended = warp_testkit::until("the gang has ended", crate::up::PATIENCE, async || {
        let object = up.ok(&["get", "gpuw", name, "-o", "json"]);
        let ended = ["Succeeded", "Failed"].map(|phase| format!("\"phase\": \"{phase}\""));
        let over = ended.iter().any(|phase| object.contains(phase));
        Ok(over.then_some(object))
    })
    .await
    .unwrap();
    let pods = up.ok(&["get", "pods", "-o", "json"]);
    let pods: serde_json::Value = serde_json::from_str(&pods).unwrap();
    let mut said: Vec<String> = Vec::new();
    for pod in pods["items"].as_array().unwrap() {
        let name = pod["metadata"]["name"].as_str().unwrap();
        let log = up.ok(&["logs", &format!("pod/{name}")]);
        said.extend(log.trim().lines().map(str::to_owned));
    }
    said.sort();
    assert!(
        ended.contains("\"phase\": \"Succeeded\""),
        "{ended}\n{said:?}"
    );
    said
}

#[tokio::test(flavor = "multi_thread")]
async fn members_of_a_gang_meet_on_a_process_node() {
    let folder = tempfile::tempdir().unwrap();
    let data = folder.path().join("data");
    let _leftovers = Leftovers(&data);
    let up = with_four_gpus(folder.path(), &data).await;
    let program = folder.path().join("meet.py");
    std::fs::write(&program, MEET).unwrap();
    let spec = serde_json::json!({"gpuCount": 1, "replicas": 3, "command": ["python3", program]});
    up.ok(&["apply", "-f", &manifest(folder.path(), "meet", &spec)]);
    let want = [0, 1, 2].map(|rank| format!("rank {rank} of 3: 3"));
    assert_eq!(printed(&up, "meet").await, want);
    up.stop();
}

/// Whether this machine has what an MPI gang needs; `make test-mpi` installs it first and sets `WARP_MPI`.
fn has_mpi() -> bool {
    let has = |program: &str| {
        ["/usr/bin", "/usr/sbin", "/usr/local/bin"]
            .iter()
            .any(|folder| Path::new(folder).join(program).exists())
    };
    let missing: Vec<&str> = ["mpirun", "ssh", "sshd"]
        .into_iter()
        .filter(|program| !has(program))
        .collect();
    assert!(
        missing.is_empty() || std::env::var_os("WARP_MPI").is_none(),
        "{missing:?} are missing"
    );
    if !missing.is_empty() {
        eprintln!("not tried: this machine has no {missing:?}; `make test-mpi` installs them");
    }
    missing.is_empty()
}

/// Two members with two slots each: `mpirun` starts two processes beside itself and two over SSH, which add up their
/// ranks by MPI.
#[tokio::test(flavor = "multi_thread")]
async fn an_mpi_gang_starts_by_mpirun_over_keys_of_its_own() {
    if !has_mpi() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let data = folder.path().join("data");
    let _leftovers = Leftovers(&data);
    let up = with_four_gpus(folder.path(), &data).await;
    let program = warp_testkit::repository().join("testbed/mpi/sum.py");
    let spec = serde_json::json!({
        "gpuCount": 2, "replicas": 2, "mpi": {"port": 22_022},
        "command": ["mpirun", "python3", program],
    });
    up.ok(&["apply", "-f", &manifest(folder.path(), "sum", &spec)]);
    let mut said = printed(&up, "sum").await;
    said.retain(|line| line.starts_with("rank "));
    let want = [
        "rank 0 of 4: 6",
        "rank 1 of 4: 6",
        "rank 2 of 4: 6 over ssh",
        "rank 3 of 4: 6 over ssh",
    ];
    assert_eq!(said, want);
    let keys = up.ok(&["get", "secrets", "-o", "name"]);
    assert_eq!(keys.lines().count(), 1, "{keys}");
    up.ok(&["delete", "gpuw", "sum"]);
    warp_testkit::until("its keys are gone", crate::up::PATIENCE, async || {
        let left = up.ok(&["get", "secrets", "-o", "name"]);
        Ok(left.trim().is_empty().then_some(()))
    })
    .await
    .unwrap();
    up.stop();
}
