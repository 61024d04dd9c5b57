//! The verbs around the queue, on `warp up`: what they say is true, and what they offer works.

use std::path::Path;
use std::process::{Command, Output, Stdio};

use serde_json::Value;
use warp_testkit::until;

use crate::architecture::root;
use crate::up::{PATIENCE, Up};

/// Two nodes of four GPUs; nothing takes longer than it must.
const FLEET: &str = "defaults: {pullTime: 0s, runTime: 1h}\npools:\n- {name: gpu, count: 2, gpu: H100-80GB, gpus: 4, labels: {gpu.warp.dev/gpu-hour-price: \"2.50\"}}\n";

async fn engine(folder: &Path) -> Up {
    let fleet = folder.join("fleet.yaml");
    std::fs::write(&fleet, FLEET).unwrap();
    let fleet = fleet.display().to_string();
    Up::start(&folder.join("data"), &["--nodes", &fleet, "--ephemeral"]).await
}

fn json(up: &Up, arguments: &[&str]) -> Value {
    serde_json::from_str(&up.ok(arguments)).unwrap()
}

/// Runs a command as it would be pasted.
fn paste(up: &Up, command: &str) -> Output {
    let binaries = Path::new(env!("CARGO_BIN_EXE_warp")).parent().unwrap();
    let path = std::env::var_os("PATH").unwrap_or_default();
    let path = [binaries.to_owned()]
        .into_iter()
        .chain(std::env::split_paths(&path));
    Command::new("sh")
        .args(["-euc", command])
        .env("PATH", std::env::join_paths(path).unwrap())
        .env("KUBECONFIG", up.data.join("kubeconfig"))
        .current_dir(root())
        .stdin(Stdio::null())
        .output()
        .unwrap()
}

fn start(up: &Up, name: &str, gpus: &str) {
    up.ok(&[
        "run", "--yes", "--detach", "--name", name, "--gpus", gpus, "--image", "work", "--",
        "sleep", "3600",
    ]);
}

async fn reaches(up: &Up, name: &str, phase: &str) {
    let format = format!("\"phase\": \"{phase}\"");
    up.shows(&["get", "gpuw", name, "-o", "json"], &format)
        .await;
}

/// The step of an answer that says this.
fn step<'a>(why: &'a Value, word: &str) -> &'a str {
    let steps = why["next"].as_array().unwrap();
    let found = steps
        .iter()
        .find(|step| step["what"].as_str().unwrap().contains(word));
    found.unwrap_or_else(|| panic!("no step about {word} in {why:#}"))["command"]
        .as_str()
        .unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn what_waits_is_explained_and_the_commands_offered_make_it_start() {
    let folder = tempfile::tempdir().unwrap();
    let up = engine(folder.path()).await;
    start(&up, "one", "3");
    start(&up, "two", "2");
    reaches(&up, "one", "Running").await;
    reaches(&up, "two", "Running").await;
    start(&up, "wide", "4");
    up.shows(&["queue"], "WaitingForCapacity").await;
    let line = json(&up, &["queue", "-o", "json"]);
    assert_eq!(line[0]["name"], "wide");
    assert_eq!(
        (&line[0]["position"], &line[0]["gpus"]),
        (&1.into(), &4.into())
    );

    let why = json(&up, &["why", "wide", "-o", "json"]);
    assert_eq!(why["reason"], "WaitingForCapacity");
    let sentence = why["sentence"].as_str().unwrap();
    assert!(
        sentence.starts_with("wide waits for 4 nvidia GPUs: 0 of 2 nodes fit"),
        "{sentence}"
    );
    let evidence = why["evidence"][0]["what"].as_str().unwrap();
    assert_eq!(evidence, "2 nodes with fewer than 4 idle GPUs");
    assert!(up.ok(&["why", "wide"]).contains("Next:"));

    // A plan for the same thing agrees, and its exit code says that it would wait.
    let plan = up.warp(&["plan", "wide"]);
    assert_eq!(plan.status.code(), Some(1));
    let told = String::from_utf8(plan.stdout).unwrap();
    assert!(told.contains("wide would wait for 4 nvidia GPUs"), "{told}");
    assert!(told.contains("$2.50"), "{told}");

    let done = paste(&up, step(&why, "ask for 2 GPUs"));
    assert!(done.status.success(), "{done:?}");
    reaches(&up, "wide", "Running").await;

    // Room made as it is offered.
    start(&up, "big", "4");
    up.shows(&["queue"], "big").await;
    let why = json(&up, &["why", "big", "-o", "json"]);
    let done = paste(&up, step(&why, "make room"));
    assert!(done.status.success(), "{done:?}");
    reaches(&up, "big", "Running").await;
    let line = json(&up, &["queue", "-o", "json"]);
    assert_eq!(line[0]["reason"], "Suspended");
    assert_eq!(line[0]["position"], Value::Null);
    up.stop();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_program_is_run_to_its_end_and_its_exit_code_is_told() {
    let folder = tempfile::tempdir().unwrap();
    let up = engine(folder.path()).await;
    let done = up.warp(&[
        "run", "--yes", "--name", "hello", "--image", "work", "--", "echo", "well", "met",
    ]);
    let errors = String::from_utf8_lossy(&done.stderr).into_owned();
    assert!(done.status.success(), "{errors}");
    assert!(errors.contains("hello would start now on gpu-"), "{errors}");
    assert_eq!(String::from_utf8_lossy(&done.stdout), "well met\n");

    let done = up.warp(&[
        "run",
        "--yes",
        "--name",
        "bad",
        "--retries",
        "0",
        "--image",
        "work",
        "--",
        "exit",
        "3",
    ]);
    let errors = String::from_utf8_lossy(&done.stderr).into_owned();
    assert_eq!(done.status.code(), Some(1), "{errors}");
    assert!(errors.contains("`warp retry bad` tries again"), "{errors}");
    let why = json(&up, &["why", "bad", "-o", "json"]);
    assert_eq!(why["reason"], "NonZeroExit");
    assert!(
        why["sentence"].as_str().unwrap().starts_with("bad failed"),
        "{why:#}"
    );
    let before = json(&up, &["get", "gpuw", "bad", "-o", "json"]);

    up.ok(&["retry", "bad"]);
    reaches(&up, "bad", "Failed").await;
    let after = json(&up, &["get", "gpuw", "bad", "-o", "json"]);
    assert_ne!(before["metadata"]["uid"], after["metadata"]["uid"]);
    assert_eq!(before["spec"], after["spec"]);

    let told = json(&up, &["timeline", "bad", "-o", "json"]);
    let told: Vec<&str> = told
        .as_array()
        .unwrap()
        .iter()
        .map(|entry| entry["what"].as_str().unwrap())
        .collect();
    assert_eq!(told[0], "created");
    assert!(
        told.iter().any(|what| what.contains("ended with 3")),
        "{told:?}"
    );

    // Without a terminal nobody can be asked.
    let asked = up.warp(&["run", "--image", "work", "--", "true"]);
    let errors = String::from_utf8_lossy(&asked.stderr).into_owned();
    assert!(
        !asked.status.success() && errors.contains("say --yes"),
        "{errors}"
    );
    let dry = up.ok(&[
        "run",
        "--dry-run",
        "--name",
        "x",
        "--image",
        "work",
        "--",
        "true",
    ]);
    assert!(dry.contains("kind: GPUWorkload"), "{dry}");
    up.stop();
}

#[tokio::test(flavor = "multi_thread")]
async fn workloads_are_stopped_resumed_and_ended_by_name() {
    let folder = tempfile::tempdir().unwrap();
    let up = engine(folder.path()).await;
    start(&up, "train", "4");
    reaches(&up, "train", "Running").await;
    let told = up.ok(&["suspend", "train"]);
    assert!(told.contains("its 4 GPUs on gpu-"), "{told}");
    up.shows(&["queue"], "Suspended").await;
    assert!(up.ok(&["suspend", "train"]).contains("suspended already"));
    up.ok(&["resume", "gpuw/train"]);
    reaches(&up, "train", "Running").await;

    let refused = |arguments: &[&str], word: &str| {
        let output = up.warp(arguments);
        let told = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(
            !output.status.success() && told.contains(word),
            "{arguments:?}: {told}"
        );
    };
    refused(&["retry", "train"], "it is Running");
    refused(
        &["why", "nobody"],
        "no workload \"nobody\" in namespace default",
    );
    refused(&["cancel", "pod/train"], "not about pod");

    // A Job suspended by hand is not in line: nothing "can start now".
    let live = json(&up, &["get", "gpuw", "train", "-o", "json"]);
    let job = format!("job/{}", live["status"]["jobName"].as_str().unwrap());
    up.ok(&["patch", &job, "-p", "{\"spec\":{\"suspend\":true}}"]);
    up.shows(&["queue"], "JobSuspended").await;
    let why = json(&up, &["why", "train", "-o", "json"]);
    assert_eq!(why["reason"], "JobSuspended");
    let sentence = why["sentence"].as_str().unwrap();
    assert!(sentence.contains("was suspended by hand"), "{sentence}");
    up.ok(&["patch", &job, "-p", "{\"spec\":{\"suspend\":false}}"]);
    reaches(&up, "train", "Running").await;

    let told = up.ok(&["cancel", "train"]);
    assert!(told.contains("GPUs on gpu-"), "{told}");
    refused(&["why", "train"], "no workload \"train\"");
    until("its pods to be gone", PATIENCE, async || {
        Ok((!up.ok(&["get", "pods"]).contains("train")).then_some(()))
    })
    .await
    .unwrap();
    up.stop();
}

#[tokio::test(flavor = "multi_thread")]
async fn equals_of_one_second_are_shown_in_the_order_they_came() {
    let folder = tempfile::tempdir().unwrap();
    let up = engine(folder.path()).await;
    // One after the other and as fast as they can be made, against the order of their names.
    let names: Vec<String> = (0..9).rev().map(|number| format!("w{number}")).collect();
    for name in &names {
        let made = format!(
            "apiVersion: gpu.warp.dev/v1alpha1\nkind: GPUWorkload\nmetadata: {{name: {name}}}\nspec: {{modelName: m, gpuCount: 5, image: work}}\n"
        );
        let file = folder.path().join("one.yaml");
        std::fs::write(&file, made).unwrap();
        up.ok(&["apply", "-f", &file.display().to_string()]);
    }
    let told = until("all of them in line", PATIENCE, async || {
        let line = json(&up, &["queue", "-o", "json"]);
        let looked_at = |one: &Value| one["reason"] != "Queued";
        let all = line.as_array().unwrap();
        let ready = all.len() == names.len() && all.iter().all(looked_at);
        Ok(ready.then(|| line.clone()))
    })
    .await
    .unwrap();
    let order: Vec<&str> = told
        .as_array()
        .unwrap()
        .iter()
        .map(|one| one["name"].as_str().unwrap())
        .collect();
    assert_eq!(order, names);
    up.stop();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_snapshot_of_the_live_cluster_is_what_the_simulator_reads() {
    let folder = tempfile::tempdir().unwrap();
    let up = engine(folder.path()).await;
    start(&up, "runs", "3");
    reaches(&up, "runs", "Running").await;
    start(&up, "waits", "5");
    up.shows(&["queue"], "waits").await;
    let (file, jobs) = (
        folder.path().join("snap.yaml"),
        folder.path().join("jobs.csv"),
    );
    let (file, jobs) = (file.display().to_string(), jobs.display().to_string());
    let taken = up.warp(&["snapshot", "-o", &file, "--jobs", &jobs]);
    let told = String::from_utf8_lossy(&taken.stderr).into_owned();
    assert!(taken.status.success(), "{told}");
    assert!(told.contains("2 nodes, 1 running and 1 waiting"), "{told}");

    let played = up.warp(&["simulate", "fleet", "-f", &file, "-o", "json"]);
    let outcome: Value = serde_json::from_slice(&played.stdout).unwrap();
    assert_eq!(outcome["refused"][0]["request"], "default/waits");
    let live = json(&up, &["get", "gpuw", "runs", "-o", "json"]);
    assert_eq!(outcome["placed"][0]["node"], live["status"]["assignedNode"]);

    // The command it offers for the queue works too: five GPUs fit no node of four.
    let offered = told
        .lines()
        .find(|line| line.starts_with("`warp simulate queue"));
    let offered = offered.unwrap().split('`').nth(1).unwrap();
    let played = paste(&up, &format!("{offered} --estimates 0 -o json"));
    let report: Value = serde_json::from_slice(&played.stdout).unwrap();
    assert_eq!(
        report["jobs"].as_u64().unwrap() + report["refused"].as_u64().unwrap(),
        2,
        "{report:#}"
    );
    up.stop();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_workload_is_suspended_and_resumed_while_the_operator_writes_to_it() {
    let folder = tempfile::tempdir().unwrap();
    let up = engine(folder.path()).await;
    start(&up, "back-and-forth", "1");
    for _ in 0..8 {
        up.ok(&["suspend", "back-and-forth"]);
        up.ok(&["resume", "back-and-forth"]);
    }
    reaches(&up, "back-and-forth", "Running").await;
    up.stop();
}
