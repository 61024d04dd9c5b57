//! `warp up` and the verbs around it, as a person uses them.
#![allow(
    clippy::unwrap_used,
    clippy::duration_suboptimal_units,
    clippy::format_collect,
    reason = "a test that cannot go on has failed"
)]

use std::ffi::OsStr;
use std::io::BufRead;
use std::net::TcpListener;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};

use warp_testkit::until;

use crate::architecture::root;

pub(crate) use warp_testkit::PATIENCE;

/// A `warp up` of its own data directory, ended with the test.
pub(crate) struct Up {
    child: Child,
    pub(crate) data: PathBuf,
}

impl Up {
    pub(crate) async fn start(data: &Path, arguments: &[&str]) -> Self {
        Self::start_with(data, arguments, &[]).await
    }

    /// With more in its environment.
    pub(crate) async fn start_with(
        data: &Path,
        arguments: &[&str],
        environment: &[(&str, &OsStr)],
    ) -> Self {
        let mut command = Command::new(env!("CARGO_BIN_EXE_warp"));
        command
            .args(["up", "--port", "0", "--data"])
            .arg(data)
            .args(arguments)
            .envs(environment.iter().copied());
        Self::of(command, data).await
    }

    /// The same of a command that is given.
    async fn of(mut command: Command, data: &Path) -> Self {
        let child = command.stdin(Stdio::null()).spawn().unwrap();
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

    pub(crate) fn warp(&self, arguments: &[&str]) -> Output {
        Command::new(env!("CARGO_BIN_EXE_warp"))
            .args(arguments)
            .env("KUBECONFIG", self.data.join("kubeconfig"))
            .current_dir(root())
            .stdin(Stdio::null())
            .output()
            .unwrap()
    }

    /// A verb that must succeed; what it printed.
    pub(crate) fn ok(&self, arguments: &[&str]) -> String {
        let output = self.warp(arguments);
        assert!(
            output.status.success(),
            "{arguments:?}: {}",
            String::from_utf8_lossy(&output.stderr)
        );
        String::from_utf8(output.stdout).unwrap()
    }

    pub(crate) async fn shows(&self, arguments: &[&str], word: &str) {
        until(
            &format!("{arguments:?} to show {word}"),
            PATIENCE,
            async || Ok(self.ok(arguments).contains(word).then_some(())),
        )
        .await
        .unwrap();
    }

    /// Asks it to end, as Ctrl-C does.
    pub(crate) fn stop(mut self) {
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

/// The line to paste that `warp up` prints far away from any clone makes a workload that runs.
#[tokio::test(flavor = "multi_thread")]
async fn what_is_printed_to_type_next_works() {
    let folder = tempfile::tempdir().unwrap();
    let (data, said) = (folder.path().join("data"), folder.path().join("said"));
    let mut command = Command::new(env!("CARGO_BIN_EXE_warp"));
    command
        .args(["up", "--demo", "--ephemeral", "--port", "0", "--data"])
        .arg(&data)
        .current_dir(folder.path())
        .stderr(std::fs::File::create(&said).unwrap());
    let up = Up::of(command, &data).await;
    let line = until("what to type next", PATIENCE, async || {
        let text = std::fs::read_to_string(&said)?;
        let mut lines = text.lines();
        let found = lines.find(|line| line.contains(" apply -f ") && line.contains(" && "));
        Ok(found.map(str::to_owned))
    })
    .await
    .unwrap();
    let make = line.split(" && ").next().unwrap();
    let binaries = Path::new(env!("CARGO_BIN_EXE_warp")).parent().unwrap();
    let path = std::env::var_os("PATH").unwrap_or_default();
    let path = [binaries.to_owned()]
        .into_iter()
        .chain(std::env::split_paths(&path));
    let made = Command::new("sh")
        .args(["-euc", make])
        .env("PATH", std::env::join_paths(path).unwrap())
        .env("KUBECONFIG", data.join("kubeconfig"))
        .output()
        .unwrap();
    assert!(made.status.success(), "{make}: {made:?}");
    up.shows(&["get", "gpuw", "train"], "Running").await;
    up.stop();
}

/// A verb that goes on, ended with the test.
struct Following(Child);

impl Following {
    /// Waits for a line with this word; the lines up to it.
    fn reads(&mut self, word: &str) -> Vec<String> {
        let out = self.0.stdout.take().unwrap();
        let mut seen = Vec::new();
        for line in std::io::BufReader::new(out).lines() {
            seen.push(line.unwrap());
            if seen.last().is_some_and(|line| line.contains(word)) {
                return seen;
            }
        }
        panic!("{word} is not in {seen:?}");
    }
}

impl Drop for Following {
    fn drop(&mut self) {
        self.0.kill().ok();
        self.0.wait().ok();
    }
}

fn refused(arguments: &[&str], words: &[&str]) {
    let output = Command::new(env!("CARGO_BIN_EXE_warp"))
        .args(arguments)
        .env("DOCKER_HOST", "unix:///nowhere/docker.sock")
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
    let watcher = Command::new(env!("CARGO_BIN_EXE_warp"))
        .args(["get", "gpuw", "-w"])
        .env("KUBECONFIG", data.join("kubeconfig"))
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut watcher = Following(watcher);
    assert!(
        up.ok(&["apply", "-f", "deploy/examples/train.yaml"])
            .contains("created")
    );
    assert!(
        up.ok(&["apply", "-f", "deploy/examples/train.yaml"])
            .contains("unchanged")
    );
    up.shows(&["get", "gpuw", "train"], "Running").await;
    let changes = watcher.reads("Running");
    assert!(
        changes.iter().all(|line| !line.trim().is_empty()),
        "{changes:?}"
    );
    up.shows(&["status"], "1 Running").await;
    assert!(
        up.ok(&["get", "gpuw", "train", "-o", "json"])
            .contains("\"phase\": \"Running\"")
    );
    let again = up.warp(&["up", "--data", &data.display().to_string()]);
    assert!(
        again.status.success() && String::from_utf8_lossy(&again.stderr).contains("up already")
    );
    let refused = up.warp(&["exec", "train", "--", "echo", "hello"]);
    assert!(!refused.status.success());
    let told = String::from_utf8_lossy(&refused.stderr);
    assert!(told.contains("nothing really runs there"), "{told}");
    assert!(
        up.ok(&["logs", "train"])
            .contains("simulated: would run python")
    );
    // Who follows is let go when the container ends, not before.
    let follower = Command::new(env!("CARGO_BIN_EXE_warp"))
        .args(["logs", "-f", "train"])
        .env("KUBECONFIG", data.join("kubeconfig"))
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut follower = Following(follower);
    follower.reads("simulated: would run python");
    assert!(follower.0.try_wait().unwrap().is_none());
    assert!(up.ok(&["delete", "gpuw", "train"]).contains("deleted"));
    up.shows(&["status"], "pods       none").await;
    assert!(follower.0.wait().unwrap().success());
    let told = |arguments: &[&str]| {
        let output = up.warp(arguments);
        assert!(!output.status.success(), "{arguments:?} succeeded");
        String::from_utf8_lossy(&output.stderr).into_owned()
    };
    assert!(told(&["get", "gpuwrkload"]).contains("did you mean \"gpuworkloads\"?"));
    let manifest = folder.path().join("typo.yaml");
    let apply = ["apply", "-f", manifest.to_str().unwrap()];
    std::fs::write(
        &manifest,
        "apiVersion: gpu.warp.dev/v1alpha1\nkind: GPUWorklod\nmetadata: {name: x}\n",
    )
    .unwrap();
    assert!(told(&apply).contains("did you mean GPUWorkload in gpu.warp.dev/v1alpha1?"));
    std::fs::write(
        &manifest,
        "apiVersion: v1\nkind: ConfigMap\nmetadata:\n  name: a\n data: x\n",
    )
    .unwrap();
    let said = told(&apply);
    assert!(
        said.contains("typo.yaml, line 5") && said.trim_end().lines().count() == 1,
        "{said}"
    );
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

/// A process that is killed goes after the kill has returned: whoever starts the next one at once must not be told that
/// one is up.
#[test]
fn an_engine_that_was_killed_is_started_again_at_once() {
    let folder = tempfile::tempdir().unwrap();
    let data = folder.path().join("data");
    let run = |arguments: &[&str]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_warp"));
        let place = ["--data", data.to_str().unwrap()];
        command.args(arguments).args(place).output().unwrap()
    };
    let start = ["up", "--detach", "--demo", "--port", "0"];
    let _down = Ended(&data);
    assert!(run(&start).status.success());
    for round in 0..5 {
        let note = std::fs::read_to_string(data.join("up.json")).unwrap();
        let note: serde_json::Value = serde_json::from_str(&note).unwrap();
        let pid = i32::try_from(note["pid"].as_i64().unwrap()).unwrap();
        let pid = rustix::process::Pid::from_raw(pid).unwrap();
        rustix::process::kill_process(pid, rustix::process::Signal::KILL).unwrap();
        let again = run(&start);
        let told = String::from_utf8_lossy(&again.stderr).into_owned();
        assert!(again.status.success(), "round {round}: {told}");
        assert!(!told.contains("up already"), "round {round}: {told}");
        let nodes = run(&["get", "nodes"]);
        assert!(nodes.status.success(), "round {round}: {nodes:?}");
    }
}

/// Ends what runs in the background with these data, also when the test fails.
struct Ended<'a>(&'a Path);

impl Drop for Ended<'_> {
    fn drop(&mut self) {
        let mut command = Command::new(env!("CARGO_BIN_EXE_warp"));
        command.args(["down", "--purge", "--data"]).arg(self.0);
        command.status().ok();
    }
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
    refused(
        &[
            "up",
            "--data",
            &place("a"),
            "--port",
            "0",
            "--metrics-port",
            &port,
            "--demo",
        ],
        &[&port, "--metrics-port"],
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

/// `warp up` under a limit on the size of files: what a full disk looks like to a program.
fn with_small_files(blocks: u32, data: &Path) -> Command {
    let mut command = Command::new("sh");
    command
        .args([
            "-c",
            &format!("trap '' XFSZ; ulimit -f {blocks}; exec \"$0\" \"$@\""),
            env!("CARGO_BIN_EXE_warp"),
            "up",
            "--port",
            "0",
            "--demo",
            "--data",
        ])
        .arg(data)
        .stdin(Stdio::null())
        .stderr(Stdio::piped());
    command
}

#[tokio::test]
async fn a_full_disk_ends_the_engine_with_a_sentence_and_loses_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let data = folder.path().join("data");
    // No room at all: told before anything starts.
    let output = with_small_files(0, &data).output().unwrap();
    let told = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success());
    assert!(
        told.contains("make room there") && told.contains("--data"),
        "{told}"
    );
    // Room for the beginning: full in the middle.
    let child = with_small_files(16 * 1024, &data).spawn().unwrap();
    let mut running = Following(child);
    let note = data.join("up.json");
    until("warp to be up", PATIENCE, async || {
        Ok(note.exists().then_some(()))
    })
    .await
    .unwrap();
    let put = |number: usize| {
        let file = folder.path().join("map.yaml");
        let text = "x".repeat(700_000);
        let map = format!(
            "apiVersion: v1\nkind: ConfigMap\nmetadata: {{name: map-{number}}}\ndata: {{text: {text}}}\n"
        );
        std::fs::write(&file, map).unwrap();
        Command::new(env!("CARGO_BIN_EXE_warp"))
            .args(["apply", "-f"])
            .arg(&file)
            .env("KUBECONFIG", data.join("kubeconfig"))
            .output()
            .unwrap()
            .status
            .success()
    };
    let stored: Vec<usize> = (0..60).take_while(|number| put(*number)).collect();
    assert!(!stored.is_empty() && stored.len() < 60, "{}", stored.len());
    let mut told = String::new();
    let stderr = running.0.stderr.take().unwrap();
    std::io::Read::read_to_string(&mut std::io::BufReader::new(stderr), &mut told).unwrap();
    assert!(!running.0.wait().unwrap().success());
    assert!(
        told.contains("takes no more writes")
            && told.contains("everything that was accepted is kept"),
        "{told}"
    );
    // With room again, everything that was accepted is there.
    let up = Up::start(&data, &["--demo"]).await;
    let maps = up.ok(&["get", "configmaps", "-o", "name"]);
    for number in stored {
        assert!(
            maps.lines()
                .any(|line| line.ends_with(&format!("/map-{number}"))),
            "map-{number} of {maps}"
        );
    }
    up.stop();
}

#[test]
fn a_place_that_cannot_be_used_is_told_with_what_to_do() {
    let folder = tempfile::tempdir().unwrap();
    // Nobody can make a directory there, root neither.
    refused(
        &["up", "--demo", "--data", "/sys/warp-data"],
        &["failed to make the data directory /sys/warp-data", "--data"],
    );
    // Written by a Warp that does not exist yet.
    let data = folder.path().join("newer");
    std::fs::create_dir(&data).unwrap();
    let database = redb::Database::create(data.join("state.redb")).unwrap();
    let transaction = database.begin_write().unwrap();
    let table: redb::TableDefinition<'_, &str, u64> = redb::TableDefinition::new("meta");
    transaction
        .open_table(table)
        .unwrap()
        .insert("format", 99)
        .unwrap();
    transaction.commit().unwrap();
    drop(database);
    let place = data.display().to_string();
    refused(
        &["up", "--demo", "--port", "0", "--data", &place],
        &["format 99", "export"],
    );
    // In the background the same sentence, not a pointer to a log.
    refused(
        &["up", "--demo", "--detach", "--port", "0", "--data", &place],
        &["format 99", "export"],
    );
    let long = folder.path().join("x".repeat(90)).display().to_string();
    let runtime = ["--runtime", "process", "--allow-root"];
    let arguments = ["up", "--port", "0", "--data", &long];
    refused(
        &[&arguments[..], &runtime[..]].concat(),
        &["too long for the sockets", "--data"],
    );
}

/// A data directory may be started with another fleet: nodes nobody plays any more go.
#[tokio::test]
async fn another_fleet_replaces_the_nodes_of_the_one_before() {
    let folder = tempfile::tempdir().unwrap();
    let data = folder.path().join("data");
    let up = Up::start(&data, &["--demo"]).await;
    up.shows(&["get", "nodes"], "mi300x-1").await;
    up.stop();
    let fleet = folder.path().join("fleet.yaml");
    std::fs::write(&fleet, "pools:\n- {name: small, gpu: L4, gpus: 2}\n").unwrap();
    let up = Up::start(&data, &["--nodes", fleet.to_str().unwrap()]).await;
    up.shows(&["get", "nodes"], "small-0").await;
    assert!(!up.ok(&["get", "nodes"]).contains("mi300x"));
    up.stop();
    // As root without a word for it there is no node, and the reason is said.
    let up = Up::start(&data, &["--runtime", "none"]).await;
    assert!(up.ok(&["get", "nodes"]).is_empty());
    up.stop();
}

/// Only what `warp up` made is ever removed, and a directory it did not make is not taken over.
#[test]
fn directories_of_others_are_left_alone() {
    let folder = tempfile::tempdir().unwrap();
    let project = folder.path().join("project");
    std::fs::create_dir_all(project.join("volumes")).unwrap();
    std::fs::write(project.join("volumes/mine"), "precious").unwrap();
    let place = project.display().to_string();
    refused(
        &["up", "--demo", "--port", "0", "--data", &place],
        &["\"volumes\" that is not Warp's", "--data"],
    );
    refused(
        &["down", "--purge", "--data", &place],
        &["no data directory of Warp", "nothing was removed"],
    );
    assert!(project.join("volumes/mine").exists());
    let work = folder.path().join("work");
    std::fs::create_dir(&work).unwrap();
    std::fs::write(work.join("boat.yaml"), "a: b").unwrap();
    refused(
        &[
            "up",
            "--demo",
            "--port",
            "0",
            "--data",
            &work.display().to_string(),
        ],
        &["holds other things (boat.yaml)", "--data"],
    );
    assert_eq!(std::fs::read_dir(&work).unwrap().count(), 1);
    let open = folder.path().join("open");
    std::fs::create_dir(&open).unwrap();
    std::fs::set_permissions(&open, std::fs::Permissions::from_mode(0o777)).unwrap();
    refused(
        &[
            "up",
            "--demo",
            "--port",
            "0",
            "--data",
            &open.display().to_string(),
        ],
        &["anybody may write"],
    );
    // What earlier runs stored is not thrown away by one that keeps nothing.
    let kept = folder.path().join("kept");
    std::fs::create_dir(&kept).unwrap();
    std::fs::write(kept.join("state.redb"), "").unwrap();
    refused(
        &[
            "up",
            "--ephemeral",
            "--demo",
            "--port",
            "0",
            "--data",
            &kept.display().to_string(),
        ],
        &["earlier runs", "--ephemeral"],
    );
    assert!(kept.join("state.redb").exists());
}
