//! `warp up` and the verbs around it, as a person uses them.
#![allow(
    clippy::unwrap_used,
    clippy::duration_suboptimal_units,
    clippy::format_collect,
    reason = "a test that cannot go on has failed"
)]

use std::net::TcpListener;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::Duration;

use warp_testkit::until;

use crate::architecture::root;

const PATIENCE: Duration = Duration::from_secs(60);

/// A `warp up` of its own data directory, ended with the test.
struct Up {
    child: Child,
    data: PathBuf,
}

impl Up {
    async fn start(data: &Path, arguments: &[&str]) -> Self {
        let child = Command::new(env!("CARGO_BIN_EXE_warp"))
            .args(["up", "--port", "0", "--data"])
            .arg(data)
            .args(arguments)
            .stdin(Stdio::null())
            .spawn()
            .unwrap();
        let note = data.join("up.json");
        // The note of a killed predecessor may still be there.
        let own = format!("\"pid\": {}", child.id());
        until("warp to be up", PATIENCE, async || {
            let text = std::fs::read_to_string(&note).unwrap_or_default();
            Ok(text.contains(&own).then_some(()))
        })
        .await
        .unwrap();
        Self {
            child,
            data: data.to_owned(),
        }
    }

    fn warp(&self, arguments: &[&str]) -> Output {
        Command::new(env!("CARGO_BIN_EXE_warp"))
            .args(arguments)
            .env("KUBECONFIG", self.data.join("kubeconfig"))
            .current_dir(root())
            .stdin(Stdio::null())
            .output()
            .unwrap()
    }

    /// A verb that must succeed; what it printed.
    fn ok(&self, arguments: &[&str]) -> String {
        let output = self.warp(arguments);
        assert!(
            output.status.success(),
            "{arguments:?}: {}",
            String::from_utf8_lossy(&output.stderr)
        );
        String::from_utf8(output.stdout).unwrap()
    }

    async fn shows(&self, arguments: &[&str], word: &str) {
        until(
            &format!("{arguments:?} to show {word}"),
            PATIENCE,
            async || Ok(self.ok(arguments).contains(word).then_some(())),
        )
        .await
        .unwrap();
    }

    /// Asks it to end, as Ctrl-C does.
    fn stop(mut self) {
        let data = self.data.display().to_string();
        let down = Command::new(env!("CARGO_BIN_EXE_warp"))
            .args(["down", "--data", &data])
            .output()
            .unwrap();
        assert!(
            down.status.success(),
            "{}",
            String::from_utf8_lossy(&down.stderr)
        );
        assert!(self.child.wait().unwrap().success());
    }
}

impl Drop for Up {
    fn drop(&mut self) {
        self.child.kill().ok();
        self.child.wait().ok();
    }
}

fn refused(arguments: &[&str], words: &[&str]) {
    let output = Command::new(env!("CARGO_BIN_EXE_warp"))
        .args(arguments)
        .stdin(Stdio::null())
        .output()
        .unwrap();
    let told = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success(), "{arguments:?} succeeded");
    for word in words {
        assert!(
            told.contains(word),
            "{arguments:?} said {told:?}, not {word:?}"
        );
    }
}

#[tokio::test]
async fn a_workload_runs_on_the_demo_fleet_and_nothing_is_left_of_an_ephemeral_engine() {
    let folder = tempfile::tempdir().unwrap();
    let data = folder.path().join("data");
    let up = Up::start(&data, &["--ephemeral", "--demo"]).await;
    let mode = std::fs::metadata(data.join("kubeconfig"))
        .unwrap()
        .permissions()
        .mode();
    assert_eq!(mode & 0o777, 0o600);
    assert!(up.ok(&["get", "nodes"]).contains("mi300x-1"));
    assert!(
        up.ok(&["apply", "-f", "deploy/examples/train.yaml"])
            .contains("created")
    );
    assert!(
        up.ok(&["apply", "-f", "deploy/examples/train.yaml"])
            .contains("unchanged")
    );
    up.shows(&["get", "gpuw", "train"], "Running").await;
    up.shows(&["status"], "1 Running").await;
    assert!(
        up.ok(&["get", "gpuw", "train", "-o", "json"])
            .contains("\"phase\": \"Running\"")
    );
    let again = up.warp(&["up", "--data", &data.display().to_string()]);
    assert!(
        again.status.success() && String::from_utf8_lossy(&again.stderr).contains("up already")
    );
    assert_eq!(
        up.warp(&["exec", "train", "--", "sh", "-c", "exit 7"])
            .status
            .code(),
        Some(7)
    );
    assert_eq!(up.ok(&["exec", "train", "--", "echo", "hello"]), "hello\n");
    assert!(up.ok(&["delete", "gpuw", "train"]).contains("deleted"));
    up.shows(&["status"], "pods       none").await;
    let typo = up.warp(&["get", "gpuwrkload"]);
    assert!(!typo.status.success());
    up.stop();
    assert!(!data.exists(), "an ephemeral engine leaves nothing");
}

#[tokio::test]
async fn state_survives_a_restart_and_purge_removes_it() {
    let folder = tempfile::tempdir().unwrap();
    let data = folder.path().join("data");
    let manifest = folder.path().join("map.yaml");
    std::fs::write(
        &manifest,
        "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: kept}\ndata: {a: b}\n",
    )
    .unwrap();
    let up = Up::start(&data, &["--runtime", "none"]).await;
    up.ok(&["apply", "-f", manifest.to_str().unwrap()]);
    up.stop();
    let up = Up::start(&data, &["--runtime", "none"]).await;
    assert!(up.ok(&["get", "cm", "kept", "-o", "yaml"]).contains("a: b"));
    // A killed engine loses nothing either, and does not block the next one.
    drop(up);
    let up = Up::start(&data, &["--runtime", "none"]).await;
    assert!(
        up.ok(&["get", "cm/kept", "-o", "name"])
            .contains("configmap/kept")
    );
    up.stop();
    let place = data.display().to_string();
    let purged = Command::new(env!("CARGO_BIN_EXE_warp"))
        .args(["down", "--purge", "--data", &place])
        .status()
        .unwrap();
    assert!(purged.success() && !data.exists());
}

#[test]
fn bad_input_is_answered_with_cause_and_fix() {
    let folder = tempfile::tempdir().unwrap();
    let place = |name: &str| folder.path().join(name).display().to_string();
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = taken.local_addr().unwrap().port().to_string();
    refused(
        &["up", "--data", &place("a"), "--port", &port, "--demo"],
        &[&port, "--port"],
    );
    std::fs::write(folder.path().join("file"), "x").unwrap();
    refused(
        &["up", "--data", &place("file"), "--demo"],
        &["data directory", "--data"],
    );
    let fleet = place("fleet.yaml");
    std::fs::write(&fleet, "pools:\n- name: a\n  gpuss: 4\n").unwrap();
    refused(
        &["up", "--data", &place("b"), "--nodes", &fleet],
        &["line 3", "did you mean \"gpus\"?"],
    );
    refused(
        &["up", "--data", &place("b"), "--nodes", &place("none")],
        &["fleet file", "No such file"],
    );
    // Somebody else holds the directory.
    std::fs::create_dir_all(folder.path().join("held")).unwrap();
    let lock = std::fs::File::create(folder.path().join("held/lock")).unwrap();
    lock.lock().unwrap();
    refused(
        &["up", "--data", &place("held"), "--demo"],
        &["in use", "--data"],
    );
    refused(
        &["get", "pods", "--kubeconfig", &place("none")],
        &["kubeconfig"],
    );
    refused(
        &[
            "node",
            "simulate",
            "--nodes",
            &fleet,
            "--kubeconfig",
            &place("none"),
        ],
        &["gpus"],
    );
}
