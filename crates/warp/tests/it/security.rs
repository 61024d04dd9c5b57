//! Hostile files and planted secrets, as the binary meets them.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod panics;

use std::fmt::Write as _;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, Output, Stdio};

use warp_testkit::canary::found;

use crate::up::Up;

/// Address space of a command that reads a hostile file, in KiB: unfolding it would take terabytes.
const MEMORY: &str = "3000000";

/// Runs the binary with little memory.
fn bounded(arguments: &[&str]) -> Output {
    Command::new("sh")
        .args(["-c", "ulimit -v \"$0\"; exec \"$@\"", MEMORY])
        .arg(env!("CARGO_BIN_EXE_warp"))
        .args(arguments)
        .env("KUBECONFIG", "/nonexistent")
        .stdin(Stdio::null())
        .output()
        .unwrap()
}

/// Ten to the power of twelve items in a few hundred bytes.
fn laughs() -> String {
    let mut text = "a0: &a0 [lol]\n".to_owned();
    for level in 1..13 {
        let items = format!("*a{},", level - 1).repeat(10);
        let _ = writeln!(text, "a{level}: &a{level} [{items}]");
    }
    text + "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: laughs}\npools: *a12\n"
}

#[test]
fn hostile_files_are_refused_within_bounds_and_by_name() {
    let folder = tempfile::tempdir().unwrap();
    let deep = 100_000;
    let files: Vec<(&str, Vec<u8>)> = vec![
        ("laughs.yaml", laughs().into()),
        ("sequences.yaml", "- ".repeat(deep).into()),
        ("brackets.yaml", "[".repeat(deep).into()),
        ("braces.yaml", "{a: ".repeat(deep).into()),
        (
            "deep.json",
            format!("{}1{}", "{\"a\":".repeat(deep), "}".repeat(deep)).into(),
        ),
        ("self.yaml", b"pools: &a [*a]\n".to_vec()),
        ("merge.yaml", b"pools: &a\n  <<: *a\n".to_vec()),
        ("bytes.yaml", vec![0xff, 0xfe, 0x00, 0x80, b'\n']),
        ("nul.yaml", b"a: \0\n".to_vec()),
        ("tabs.yaml", b"\t- a\n\t\tb: c".to_vec()),
    ];
    for (name, bytes) in &files {
        let path = folder.path().join(name);
        std::fs::write(&path, bytes).unwrap();
        let path = path.to_str().unwrap();
        let data = folder.path().join("data").display().to_string();
        for arguments in [
            &["apply", "-f", path][..],
            &["delete", "-f", path],
            &["up", "--data", &data, "--port", "0", "--nodes", path],
            &["simulate", "fleet", "-f", path],
        ] {
            let output = bounded(arguments);
            let told = String::from_utf8_lossy(&output.stderr);
            // A signal has no code; a panic has 101.
            let code = output.status.code();
            assert!(
                matches!(code, Some(1 | 2)),
                "{arguments:?} ended with {code:?}: {told:.400}"
            );
            assert!(
                told.contains(name),
                "{arguments:?} does not name the file: {told:.400}"
            );
            assert!(!told.contains("panicked"), "{arguments:?}: {told:.400}");
        }
    }
}

/// Every file below a folder with its content.
fn files(folder: &Path) -> Vec<(String, Vec<u8>, u32)> {
    let mut found = Vec::new();
    let mut open = vec![folder.to_owned()];
    while let Some(folder) = open.pop() {
        for entry in std::fs::read_dir(&folder).into_iter().flatten().flatten() {
            let path = entry.path();
            let Ok(meta) = std::fs::symlink_metadata(&path) else {
                continue;
            };
            if meta.is_dir() {
                open.push(path);
            } else if meta.is_file() {
                let bytes = std::fs::read(&path).unwrap_or_default();
                found.push((
                    path.display().to_string(),
                    bytes,
                    meta.permissions().mode() & 0o777,
                ));
            }
        }
    }
    found
}

const MANIFEST: &str = r#"
apiVersion: v1
kind: Secret
metadata: {name: key}
stringData: {token: canary-secret-value}
---
apiVersion: v1
kind: Secret
metadata: {name: pull}
type: kubernetes.io/dockerconfigjson
stringData:
  .dockerconfigjson: '{"auths":{"registry.example":{"username":"u","password":"canary-registry-password"}}}'
---
apiVersion: batch/v1
kind: Job
metadata: {name: fails}
spec:
  backoffLimit: 0
  template:
    spec:
      restartPolicy: Never
      imagePullSecrets: [{name: pull}]
      volumes: [{name: key, secret: {secretName: key}}]
      containers:
      - name: c
        image: local://
        command: [sh, -c, 'test -n "$TOKEN$PASSWORD" && exit 3']
        volumeMounts: [{name: key, mountPath: /key}]
        env:
        - {name: PASSWORD, value: canary-environment-value}
        - {name: TOKEN, valueFrom: {secretKeyRef: {name: key, key: token}}}
---
apiVersion: v1
kind: Pod
metadata: {name: cannot-start}
spec:
  restartPolicy: Never
  containers:
  - name: c
    image: local://
    command: [/no/such/program, canary-argument-value]
    env:
    - {name: PASSWORD, value: canary-environment-value}
    - {name: TOKEN, valueFrom: {secretKeyRef: {name: key, key: token}}}
---
apiVersion: v1
kind: Pod
metadata: {name: lacks-its-secret}
spec:
  restartPolicy: Never
  containers:
  - name: c
    image: local://
    command: [sleep, "1"]
    env:
    - {name: PASSWORD, value: canary-environment-value}
    - {name: TOKEN, valueFrom: {secretKeyRef: {name: key, key: absent}}}
"#;

#[tokio::test]
async fn secrets_are_in_no_output_of_an_engine_that_runs_processes() {
    let folder = tempfile::tempdir().unwrap();
    let data = folder.path().join("data");
    let manifest = folder.path().join("canaries.yaml");
    std::fs::write(&manifest, MANIFEST).unwrap();
    let up = Up::start(&data, &["--runtime", "process", "--allow-root"]).await;
    let kubeconfig = std::fs::read_to_string(data.join("kubeconfig")).unwrap();
    let token = kubeconfig
        .lines()
        .find_map(|line| line.trim().strip_prefix("token: "));
    let token = token.unwrap().to_owned();
    up.ok(&["apply", "-f", manifest.to_str().unwrap()]);
    up.shows(&["get", "job", "fails", "-o", "json"], "\"Failed\"")
        .await;
    up.shows(
        &["get", "pod", "lacks-its-secret"],
        "CreateContainerConfigError",
    )
    .await;
    up.shows(
        &["get", "pod", "cannot-start", "-o", "json"],
        "/no/such/program",
    )
    .await;
    up.shows(&["get", "pod", "cannot-start"], "Error").await;
    let mut said: Vec<(String, Vec<u8>)> = Vec::new();
    for arguments in [
        &["get", "pods"][..],
        &["get", "pods", "-o", "wide"],
        &["get", "jobs", "-o", "wide"],
        &["get", "secrets"],
        &["get", "secrets", "-o", "wide"],
        &["get", "events"],
        &["get", "events", "-o", "yaml"],
        &["get", "nodes", "-o", "yaml"],
        &["get", "configmaps", "-A", "-o", "yaml"],
        &["status"],
        &["doctor"],
        &["logs", "cannot-start"],
        &["get", "secret", "absent"],
        &["get", "secrte"],
    ] {
        let output = up.warp(arguments);
        said.push((format!("{arguments:?}"), output.stdout));
        said.push((format!("{arguments:?}"), output.stderr));
    }
    // The statuses alone: a spec repeats the environment its author wrote into it.
    let pods: serde_json::Value =
        serde_json::from_str(&up.ok(&["get", "pods", "-o", "json"])).unwrap();
    for pod in pods["items"].as_array().unwrap() {
        said.push((
            "status of a pod".to_owned(),
            pod["status"].to_string().into_bytes(),
        ));
    }
    let log = std::fs::read(data.join("warp.log")).unwrap();
    assert!(!log.is_empty(), "the engine has no log");
    said.push(("the log".to_owned(), log));
    let canaries = [
        "canary-secret-value",
        "canary-registry-password",
        "canary-environment-value",
        token.as_str(),
    ];
    for (place, text) in &said {
        let found = found(text, canaries);
        assert!(
            found.is_none(),
            "{found:?} is in {place}: {}",
            String::from_utf8_lossy(text)
        );
    }
    // Whatever holds a secret at rest is its owner's alone, also if the folder is opened to others.
    let others = |mode: u32| mode & 0o077 != 0;
    let mode = std::fs::metadata(&data).unwrap().permissions().mode();
    assert!(!others(mode), "the data folder has mode {mode:o}");
    let mut secret = 0;
    for (path, bytes, mode) in files(&data) {
        if found(&bytes, canaries).is_some() {
            secret += 1;
            assert!(!others(mode), "{path} has mode {mode:o}");
        }
    }
    assert!(secret >= 3, "kubeconfig, token and store hold secrets");
    // It would wait for its Secret beyond the engine's end.
    up.ok(&["delete", "pod", "lacks-its-secret", "--grace-period", "0"]);
    up.stop();
}
