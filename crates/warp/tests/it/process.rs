//! A process node: this machine under a real control plane, its pods real processes.
#![allow(
    clippy::unwrap_used,
    clippy::duration_suboptimal_units,
    clippy::format_collect,
    reason = "a test that cannot go on has failed"
)]

use std::path::Path;
use std::process::{Child, Command, Stdio};

use k8s_openapi::api::core::v1::{
    ConfigMap, Node, PersistentVolume, PersistentVolumeClaim, Pod, Secret,
};
use kube::Api;
use kube::api::{DeleteParams, ListParams, PostParams};
use serde_json::{Value, json};
use warp_testkit::{Cluster, PATIENCE, until, wait_for, wait_gone};

/// The `warp` process, ended with the test.
struct Warp(Child);

impl Warp {
    fn node(kubeconfig: &Path, data: &Path) -> Self {
        let child = Command::new(env!("CARGO_BIN_EXE_warp"))
            .args(["node", "process", "--allow-root", "--name", "here"])
            .arg("--kubeconfig")
            .arg(kubeconfig)
            .arg("--pods")
            .arg(data)
            .stdin(Stdio::null())
            .spawn()
            .unwrap();
        Self(child)
    }

    /// As `kill -9` does.
    fn kill(mut self) {
        self.0.kill().unwrap();
        self.0.wait().unwrap();
    }
}

impl Drop for Warp {
    fn drop(&mut self) {
        self.0.kill().ok();
        self.0.wait().ok();
    }
}

/// What a test that fails leaves running is ended with it.
pub(crate) struct Leftovers<'a>(pub(crate) &'a Path);

impl Drop for Leftovers<'_> {
    fn drop(&mut self) {
        for uid in warp_local::node::process::left_behind(self.0) {
            for process in processes_of(&uid) {
                let pid = process.rsplit('/').next().unwrap_or_default().to_owned();
                Command::new("kill").args(["-9", &pid]).status().ok();
            }
        }
    }
}

/// Processes of a pod, as /proc tells.
fn processes_of(uid: &str) -> Vec<String> {
    let mark = format!("WARP_POD_UID={uid}");
    std::fs::read_dir("/proc")
        .unwrap()
        .filter_map(|entry| {
            let path = entry.ok()?.path();
            let environment = std::fs::read(path.join("environ")).ok()?;
            let marked = environment
                .split(|byte| *byte == 0)
                .any(|entry| entry == mark.as_bytes());
            marked.then(|| path.display().to_string())
        })
        .collect()
}

fn pod(name: &str, spec: &Value) -> Pod {
    serde_json::from_value(json!({"metadata": {"name": name}, "spec": spec})).unwrap()
}

fn container(pod: Option<&Pod>) -> Option<Value> {
    let status = serde_json::to_value(pod?.status.as_ref()?).ok()?;
    status.pointer("/containerStatuses/0").cloned()
}

fn phase(pod: Option<&Pod>) -> Option<&str> {
    pod?.status.as_ref()?.phase.as_deref()
}

fn log(data: &Path, uid: &str, name: &str) -> String {
    let text = std::fs::read_to_string(data.join("pods").join(uid).join("logs").join(name))
        .unwrap_or_default();
    text.lines()
        .filter_map(|line| line.splitn(4, ' ').nth(3))
        .map(|line| format!("{line}\n"))
        .collect()
}

/// Checkpoints on a claim, reads a Secret and a ConfigMap, fails once, runs out of memory once, then
/// counts to the end.
const TRAIN: &str = r#"
root=${WARP_ROOT}
echo "token $TOKEN level $(cat $root/config/level) pod $POD"
done=$(cat $root/work/checkpoint 2>/dev/null || echo 0)
echo "resume at $done"
if [ ! -e $root/work/failed ]; then touch $root/work/failed; echo "first try fails" >&2; exit 3; fi
if [ ! -e $root/work/hungry ]; then touch $root/work/hungry; echo 7 > $root/work/checkpoint; head -c 300m /dev/zero | tail; exit $?; fi
while [ $done -lt 40 ]; do done=$((done + 1)); echo $done > $root/work/checkpoint; echo "step $done"; sleep 0.1; done
sleep 300 &
echo finished
"#;

#[tokio::test]
async fn a_training_run_survives_its_failures_and_a_killed_warp() {
    let cluster = Cluster::real().start().await.unwrap();
    let client = cluster.client().await.unwrap();
    let namespace = cluster.namespace("process").await.unwrap();
    let folder = tempfile::tempdir().unwrap();
    let data = folder.path();
    let _leftovers = Leftovers(data);
    let pods: Api<Pod> = Api::namespaced(client.clone(), &namespace);
    let warp = Warp::node(&cluster.kubeconfig(), data);
    let nodes: Api<Node> = Api::all(client.clone());
    wait_for(&nodes, "here", "registered", PATIENCE, |node| {
        node.is_some()
    })
    .await
    .unwrap();
    provide(&client, &namespace, data).await;
    let spec = json!({
        "restartPolicy": "OnFailure",
        "volumes": [
            {"name": "work", "persistentVolumeClaim": {"claimName": "work"}},
            {"name": "config", "configMap": {"name": "settings"}}],
        "containers": [{
            "name": "train", "image": "local://", "command": ["sh", "-c", TRAIN],
            "resources": {"limits": {"memory": "64Mi"}},
            "env": [
                {"name": "TOKEN", "valueFrom": {"secretKeyRef": {"name": "token", "key": "value"}}},
                {"name": "POD", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}}],
            "volumeMounts": [{"name": "work", "mountPath": "/work"}, {"name": "config", "mountPath": "/config"}]}]});
    pods.create(&PostParams::default(), &pod("train", &spec))
        .await
        .unwrap();
    let third = |pod: Option<&Pod>| {
        container(pod).is_some_and(|status| {
            status["restartCount"] == 2 && status["state"]["running"].is_object()
        })
    };
    let running = wait_for(&pods, "train", "in its third run", PATIENCE, third)
        .await
        .unwrap()
        .unwrap();
    let uid = running.metadata.uid.unwrap();
    let first = container(pods.get_opt("train").await.unwrap().as_ref()).unwrap();
    let before = &first["lastState"]["terminated"];
    assert_eq!(
        (&before["exitCode"], &before["reason"]),
        (&json!(137), &json!("OOMKilled"))
    );
    // The run goes on while nobody watches, and its end is told by the next Warp.
    warp.kill();
    let work = data.join("claim/checkpoint");
    until("the run to end unwatched", PATIENCE, async || {
        Ok((std::fs::read_to_string(&work).unwrap_or_default().trim() == "40").then_some(()))
    })
    .await
    .unwrap();
    let warp = Warp::node(&cluster.kubeconfig(), data);
    wait_for(&pods, "train", "succeeded", PATIENCE, |pod| {
        phase(pod) == Some("Succeeded")
    })
    .await
    .unwrap();
    let expected: String = (8..=40).map(|step| format!("step {step}\n")).collect();
    assert_eq!(
        log(data, &uid, "train.0.log"),
        "token s3cret level 7 pod train\nresume at 0\nfirst try fails\n"
    );
    // The shell may live long enough to say what the kernel did to its child.
    let killed = log(data, &uid, "train.1.log");
    assert_eq!(
        killed.trim_end_matches("Killed\n"),
        "token s3cret level 7 pod train\nresume at 0\n"
    );
    assert_eq!(
        log(data, &uid, "train.2.log"),
        format!("token s3cret level 7 pod train\nresume at 7\n{expected}finished\n")
    );
    assert_eq!(processes_of(&uid), Vec::<String>::new());
    tokio::join!(
        a_killed_supervisor_is_replaced(&pods),
        a_pod_is_stopped_with_its_grace(&pods, data),
        only_the_main_process_is_asked_to_end(&pods, data),
        what_cannot_run_says_why(&pods),
        probes_decide_readiness(&pods),
    );
    // Processes outlive Warp, so they are ended through it.
    let all = pods.list(&ListParams::default()).await.unwrap();
    pods.delete_collection(
        &DeleteParams::default().grace_period(1),
        &ListParams::default(),
    )
    .await
    .unwrap();
    for pod in all {
        let uid = pod.metadata.uid.unwrap();
        until("no process to be left", PATIENCE, async || {
            Ok(processes_of(&uid).is_empty().then_some(()))
        })
        .await
        .unwrap();
    }
    drop(warp);
    simulated_nodes_join(&cluster.kubeconfig(), &nodes, &pods).await;
}

/// `warp node simulate` adds nodes to any cluster, and their pods appear to run.
async fn simulated_nodes_join(kubeconfig: &Path, nodes: &Api<Node>, pods: &Api<Pod>) {
    let folder = tempfile::tempdir().unwrap();
    let fleet = folder.path().join("fleet.yaml");
    std::fs::write(
        &fleet,
        "pools:\n- {name: sim, count: 2, gpu: L4, gpus: 4}\n",
    )
    .unwrap();
    let child = Command::new(env!("CARGO_BIN_EXE_warp"))
        .args(["node", "simulate", "--nodes"])
        .arg(&fleet)
        .arg("--kubeconfig")
        .arg(kubeconfig)
        .stdin(Stdio::null())
        .spawn()
        .unwrap();
    let _simulated = Warp(child);
    wait_for(nodes, "sim-1", "registered", PATIENCE, |node| {
        node.is_some()
    })
    .await
    .unwrap();
    let spec = json!({"nodeSelector": {"gpu.warp.dev/provider": "simulated"}, "restartPolicy": "Never",
        "containers": [{"name": "c", "image": "train", "command": ["sh", "-c", "exit 4"],
            "resources": {"limits": {"nvidia.com/gpu": "4"}}}]});
    pods.create(&PostParams::default(), &pod("pretended", &spec))
        .await
        .unwrap();
    let ended = wait_for(pods, "pretended", "failed", PATIENCE, |pod| {
        phase(pod) == Some("Failed")
    })
    .await
    .unwrap();
    let status = container(ended.as_ref()).unwrap();
    assert_eq!(status["state"]["terminated"]["exitCode"], 4);
}

async fn provide(client: &kube::Client, namespace: &str, data: &Path) {
    let secrets: Api<Secret> = Api::namespaced(client.clone(), namespace);
    let secret = json!({"metadata": {"name": "token"}, "stringData": {"value": "s3cret"}});
    secrets
        .create(
            &PostParams::default(),
            &serde_json::from_value(secret).unwrap(),
        )
        .await
        .unwrap();
    let maps: Api<ConfigMap> = Api::namespaced(client.clone(), namespace);
    let map = json!({"metadata": {"name": "settings"}, "data": {"level": "7"}});
    maps.create(
        &PostParams::default(),
        &serde_json::from_value(map).unwrap(),
    )
    .await
    .unwrap();
    let volumes: Api<PersistentVolume> = Api::all(client.clone());
    let volume = json!({"metadata": {"name": "work"}, "spec": {
        "capacity": {"storage": "1Gi"}, "accessModes": ["ReadWriteOnce"], "storageClassName": "",
        "hostPath": {"path": data.join("claim")}, "claimRef": {"namespace": namespace, "name": "work"}}});
    volumes
        .create(
            &PostParams::default(),
            &serde_json::from_value(volume).unwrap(),
        )
        .await
        .unwrap();
    let claims: Api<PersistentVolumeClaim> = Api::namespaced(client.clone(), namespace);
    let claim = json!({"metadata": {"name": "work"}, "spec": {
        "accessModes": ["ReadWriteOnce"], "storageClassName": "", "volumeName": "work",
        "resources": {"requests": {"storage": "1Gi"}}}});
    claims
        .create(
            &PostParams::default(),
            &serde_json::from_value(claim).unwrap(),
        )
        .await
        .unwrap();
    wait_for(&claims, "work", "bound", PATIENCE, |claim| {
        claim.and_then(|claim| claim.status.as_ref()?.phase.as_deref()) == Some("Bound")
    })
    .await
    .unwrap();
}

/// A supervisor that was killed, as by a reboot, costs a restart and not the pod.
async fn a_killed_supervisor_is_replaced(pods: &Api<Pod>) {
    let spec = json!({"restartPolicy": "Always", "containers": [{
        "name": "c", "image": "local://", "command": ["sh", "-c", "sleep 600"]}]});
    pods.create(&PostParams::default(), &pod("bereft", &spec))
        .await
        .unwrap();
    let runs = |count: i64| {
        move |pod: Option<&Pod>| {
            container(pod).is_some_and(|status| {
                status["restartCount"] == count && status["state"]["running"].is_object()
            })
        }
    };
    let running = wait_for(pods, "bereft", "running", PATIENCE, runs(0))
        .await
        .unwrap();
    let uid = running.unwrap().metadata.uid.unwrap();
    let supervisor = processes_of(&uid)
        .into_iter()
        .find(|process| {
            let words = std::fs::read(Path::new(process).join("cmdline")).unwrap_or_default();
            String::from_utf8_lossy(&words).contains("__supervise")
        })
        .unwrap();
    let pid = supervisor.rsplit('/').next().unwrap();
    assert!(
        Command::new("kill")
            .args(["-9", pid])
            .status()
            .unwrap()
            .success()
    );
    wait_for(pods, "bereft", "running again", PATIENCE, runs(1))
        .await
        .unwrap();
}

/// A stubborn process gets its grace, then is ended; a daemon that left its group goes too.
async fn a_pod_is_stopped_with_its_grace(pods: &Api<Pod>, data: &Path) {
    let script =
        "trap 'echo asked' TERM; (setsid sleep 600 &) ; echo up; while true; do sleep 0.1; done";
    let saved = data.join("saved");
    let hook = format!("echo saving; touch {}", saved.display());
    let spec = json!({"terminationGracePeriodSeconds": 2, "containers": [{
        "name": "c", "image": "local://", "command": ["sh", "-c", script],
        "lifecycle": {"preStop": {"exec": {"command": ["sh", "-c", hook]}}}}]});
    pods.create(&PostParams::default(), &pod("stubborn", &spec))
        .await
        .unwrap();
    let running = wait_for(pods, "stubborn", "running", PATIENCE, |pod| {
        phase(pod) == Some("Running")
    })
    .await
    .unwrap();
    let uid = running.unwrap().metadata.uid.unwrap();
    until("its first line", PATIENCE, async || {
        Ok(log(data, &uid, "c.0.log").contains("up").then_some(()))
    })
    .await
    .unwrap();
    assert!(!processes_of(&uid).is_empty());
    pods.delete("stubborn", &DeleteParams::default())
        .await
        .unwrap();
    wait_gone(pods, "stubborn", PATIENCE).await.unwrap();
    assert!(saved.exists(), "the hook that prints was not cut off");
    until("no process to be left", PATIENCE, async || {
        Ok(processes_of(&uid).is_empty().then_some(()))
    })
    .await
    .unwrap();
}

/// A server that drains tells its workers to end itself: a signal to them would cut what they do.
async fn only_the_main_process_is_asked_to_end(pods: &Api<Pod>, data: &Path) {
    let words = data.join("said");
    let worker = "trap 'echo cut >> $0' TERM; read line < $0.fifo; echo finished >> $0";
    let main = r#"mkfifo "$0.fifo"; sh -c "$1" "$0" & trap 'echo asked >> "$0"; echo go > "$0.fifo"; wait; exit 0' TERM; echo up; wait"#;
    let spec = json!({"terminationGracePeriodSeconds": 60, "containers": [{
        "name": "c", "image": "local://", "command": ["sh", "-c", main, words.to_str(), worker]}]});
    pods.create(&PostParams::default(), &pod("draining", &spec))
        .await
        .unwrap();
    let running = wait_for(pods, "draining", "running", PATIENCE, |pod| {
        phase(pod) == Some("Running")
    })
    .await
    .unwrap();
    let uid = running.unwrap().metadata.uid.unwrap();
    until("its first line", PATIENCE, async || {
        Ok(log(data, &uid, "c.0.log").contains("up").then_some(()))
    })
    .await
    .unwrap();
    pods.delete("draining", &DeleteParams::default())
        .await
        .unwrap();
    wait_gone(pods, "draining", PATIENCE).await.unwrap();
    let said = std::fs::read_to_string(&words).unwrap();
    assert_eq!(said, "asked\nfinished\n");
}

async fn what_cannot_run_says_why(pods: &Api<Pod>) {
    let one = |image: &str, command: &[&str], env: Value| json!({"restartPolicy": "Never", "containers": [{"name": "c", "image": image, "command": command, "env": env}]});
    let missing =
        json!([{"name": "X", "valueFrom": {"secretKeyRef": {"name": "nowhere", "key": "k"}}}]);
    pods.create(
        &PostParams::default(),
        &pod("image", &one("vllm/vllm-openai", &["x"], json!([]))),
    )
    .await
    .unwrap();
    pods.create(
        &PostParams::default(),
        &pod("absent", &one("local://", &["no-such-program"], json!([]))),
    )
    .await
    .unwrap();
    pods.create(
        &PostParams::default(),
        &pod("secret", &one("local://", &["true"], missing)),
    )
    .await
    .unwrap();
    let waits = |reason: &'static str, word: &'static str| {
        move |pod: Option<&Pod>| {
            container(pod).is_some_and(|status| {
                let waiting = &status["state"]["waiting"];
                waiting["reason"] == reason
                    && waiting["message"]
                        .as_str()
                        .unwrap_or_default()
                        .contains(word)
            })
        }
    };
    wait_for(
        pods,
        "image",
        "refused",
        PATIENCE,
        waits("ErrImageNeverPull", "local://"),
    )
    .await
    .unwrap();
    wait_for(
        pods,
        "secret",
        "misconfigured",
        PATIENCE,
        waits("CreateContainerConfigError", "nowhere"),
    )
    .await
    .unwrap();
    let ended = wait_for(pods, "absent", "failed", PATIENCE, |pod| {
        phase(pod) == Some("Failed")
    })
    .await
    .unwrap();
    let status = container(ended.as_ref()).unwrap();
    assert_eq!(status["state"]["terminated"]["reason"], "StartError");
    assert!(
        status["state"]["terminated"]["message"]
            .as_str()
            .unwrap()
            .contains("no-such-program")
    );
}

async fn probes_decide_readiness(pods: &Api<Pod>) {
    let spec = json!({"restartPolicy": "Never", "containers": [{
        "name": "c", "image": "local://", "command": ["sh", "-c", "touch ready; sleep 600"],
        "readinessProbe": {"exec": {"command": ["test", "-e", "ready"]}, "periodSeconds": 1}}]});
    pods.create(&PostParams::default(), &pod("probed", &spec))
        .await
        .unwrap();
    wait_for(pods, "probed", "ready", PATIENCE, |pod| {
        container(pod).is_some_and(|status| status["ready"] == true)
    })
    .await
    .unwrap();
}
