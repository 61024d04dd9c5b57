//! `warp fetch` as a person runs it, killed at any moment, and as the Job of a ModelCache on a real node.
#![allow(
    clippy::duration_suboptimal_units,
    reason = "a limit is read best in one unit"
)]

#[allow(dead_code, unreachable_pub, reason = "what another suite needs of it")]
#[path = "../../../warp-fetch/tests/it/hub.rs"]
mod hub;
mod room;

use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use serde_json::Value;
use warp_testkit::until;

use crate::process::Leftovers;
use crate::up::{PATIENCE, Up};
use hub::Hub;

const MIB: usize = 1 << 20;

/// A folder with a hub's repositories and a cache.
struct World {
    folder: tempfile::TempDir,
    hub: Hub,
}

fn noise(seed: u64, length: usize) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let block: Vec<u8> = (0..4099)
        .flat_map(|_| {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            state.to_le_bytes()
        })
        .collect();
    block.iter().copied().cycle().take(length).collect()
}

impl World {
    fn new(token: Option<&str>, weights: &[usize]) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let model = folder.path().join("hub/org/tiny");
        std::fs::create_dir_all(&model).unwrap();
        std::fs::write(model.join("config.json"), b"{\"model_type\": \"llama\"}").unwrap();
        for (number, size) in weights.iter().enumerate() {
            let file = model.join(format!("model-{number}.safetensors"));
            std::fs::write(file, noise(number as u64 + 1, *size)).unwrap();
        }
        let hub = Hub::start(&folder.path().join("hub"), token);
        Self { folder, hub }
    }

    fn cache(&self) -> PathBuf {
        self.folder.path().join("cache")
    }

    fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_warp"));
        command
            .arg("fetch")
            .args(arguments)
            .arg("--to")
            .arg(self.cache())
            .env("HF_ENDPOINT", self.hub.endpoint())
            .env_remove("HF_TOKEN")
            .stdin(Stdio::null());
        command
    }

    fn fetch(&self, arguments: &[&str]) -> Output {
        self.command(arguments).output().unwrap()
    }

    fn assert_whole(&self, snapshot: &Path) {
        let model = self.folder.path().join("hub/org/tiny");
        for entry in std::fs::read_dir(&model).unwrap() {
            let name = entry.unwrap().file_name();
            let right = std::fs::read(model.join(&name)).unwrap();
            assert!(
                std::fs::read(snapshot.join(&name)).unwrap() == right,
                "{}",
                name.display()
            );
        }
    }
}

fn said(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

#[test]
fn the_result_is_a_folder_for_people_and_json_for_scripts() {
    let world = World::new(None, &[3 * MIB]);
    let output = world.fetch(&["org/tiny"]);
    assert!(output.status.success(), "{}", said(&output));
    assert!(
        said(&output).contains("2 files, 3.0 MiB, verified"),
        "{}",
        said(&output)
    );
    let printed = String::from_utf8(output.stdout).unwrap();
    world.assert_whole(Path::new(printed.trim()));
    let output = world.fetch(&["hf://org/tiny@main", "-o", "json"]);
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(report["path"], printed.trim());
    assert_eq!(report["bytesFetched"], 0);
    assert_eq!(report["commit"], world.hub.commit("org/tiny").as_str());
}

#[test]
fn a_model_of_more_bytes_than_allowed_is_not_begun() {
    let world = World::new(None, &[3 * MIB]);
    let refused = world.fetch(&["org/tiny", "--max-size", "2M"]);
    assert_eq!(refused.status.code(), Some(3), "{}", said(&refused));
    assert!(said(&refused).contains("at most 2097152 were allowed"));
    assert!(!world.cache().join("models--org--tiny").exists());
    let allowed = world.fetch(&["org/tiny", "--max-size", "4M"]);
    assert!(allowed.status.success(), "{}", said(&allowed));
}

/// A process that does not outlive its test.
struct Sharing(std::process::Child);

impl Drop for Sharing {
    fn drop(&mut self) {
        self.0.kill().ok();
        self.0.wait().ok();
    }
}

/// `warp model share` of a cache, and its address.
fn share(cache: &Path) -> (Sharing, String) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_warp"));
    command
        .args(["model", "share", "--listen", "127.0.0.1:0", "--from"])
        .arg(cache)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::null());
    let mut child = command.spawn().unwrap();
    let out = child.stdout.take().unwrap();
    let sharing = Sharing(child);
    let mut line = String::new();
    std::io::BufRead::read_line(&mut std::io::BufReader::new(out), &mut line).unwrap();
    (sharing, line.trim().to_owned())
}

#[test]
fn the_bytes_come_from_a_peer_that_has_them_and_else_from_the_hub() {
    let world = World::new(None, &[3 * MIB, 70 * MIB]);
    let output = world.fetch(&["org/tiny"]);
    assert!(output.status.success(), "{}", said(&output));
    let first = world.cache();
    let (_sharing, peer) = share(&first);
    let elsewhere = world.folder.path().join("elsewhere");
    let fetch = |peers: &[&str], to: &Path, endpoint: &str| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_warp"));
        command.args(["fetch", "org/tiny", "--to"]).arg(to);
        for peer in peers {
            command.args(["--peer", peer]);
        }
        let command = command.env("HF_ENDPOINT", endpoint).env_remove("HF_TOKEN");
        command.stdin(Stdio::null()).output().unwrap()
    };
    let before = world.hub.sent();
    // One that nobody listens at is passed over.
    let output = fetch(
        &["http://127.0.0.1:9", &peer],
        &elsewhere,
        &world.hub.endpoint(),
    );
    assert!(output.status.success(), "{}", said(&output));
    let printed = String::from_utf8(output.stdout).unwrap();
    world.assert_whole(Path::new(printed.trim()));
    assert_eq!(world.hub.sent(), before, "the hub was asked for files");
    // A peer is a hub, too.
    let third = world.folder.path().join("third");
    let output = fetch(&[], &third, &peer);
    assert!(output.status.success(), "{}", said(&output));
    let printed = String::from_utf8(output.stdout).unwrap();
    world.assert_whole(Path::new(printed.trim()));
    // What a peer has of other content is not taken.
    let blobs = first.join("models--org--tiny/blobs");
    for entry in std::fs::read_dir(&blobs).unwrap() {
        let path = entry.unwrap().path();
        let length = std::fs::metadata(&path).unwrap().len();
        std::fs::write(&path, noise(99, usize::try_from(length).unwrap())).unwrap();
    }
    let fourth = world.folder.path().join("fourth");
    let output = fetch(&[&peer], &fourth, &world.hub.endpoint());
    assert!(output.status.success(), "{}", said(&output));
    let printed = String::from_utf8(output.stdout).unwrap();
    world.assert_whole(Path::new(printed.trim()));
}

#[test]
fn what_only_a_person_can_mend_has_an_exit_code_of_its_own_and_no_secret_in_its_words() {
    let world = World::new(Some("hf_right"), &[]);
    let words = world.folder.path().join("report");
    let report = format!("--report={}", words.display());
    let output = world
        .command(&["org/tiny", &report])
        .env("HF_TOKEN", "hf_planted")
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(3), "{}", said(&output));
    assert!(!said(&output).contains("hf_planted"));
    let left: Value = serde_json::from_slice(&std::fs::read(&words).unwrap()).unwrap();
    assert_eq!(left["failed"]["reason"], "Unauthorized");
    assert_eq!(left["failed"]["permanent"], true);
    let good = world
        .command(&["org/tiny", &report])
        .env("HF_TOKEN", "hf_right")
        .output()
        .unwrap();
    assert!(good.status.success(), "{}", said(&good));
    let left: Value = serde_json::from_slice(&std::fs::read(&words).unwrap()).unwrap();
    let commit = world.hub.commit("org/tiny");
    assert_eq!(
        left["fetched"]["path"],
        format!("models--org--tiny/snapshots/{commit}")
    );
    assert_eq!(world.fetch(&["nobody"]).status.code(), Some(3));
    let absent = world.fetch(&["./nosuch"]);
    assert_eq!(absent.status.code(), Some(3), "{}", said(&absent));
    assert!(said(&absent).contains("./nosuch cannot be fetched from: there is no such"));
}

#[test]
fn killed_at_any_moment_it_goes_on_and_publishes_nothing_half() {
    let world = World::new(None, &[48 * MIB, 3 * MIB, 70 * MIB]);
    let total = 121 * MIB as u64;
    let snapshots = world.cache().join("models--org--tiny/snapshots");
    let mut kills = 0;
    let printed = loop {
        // A piece of the whole, then the next kill; no two at the same distance.
        let mut child = world
            .command(&["org/tiny"])
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let goal = world.hub.sent() + 9_000_000 + 113_777 * kills;
        let ended = loop {
            if let Some(status) = child.try_wait().unwrap() {
                break Some(status);
            }
            if world.hub.sent() >= goal {
                break None;
            }
            std::thread::yield_now();
        };
        if let Some(status) = ended {
            assert!(status.success());
            let mut text = String::new();
            std::io::Read::read_to_string(&mut child.stdout.take().unwrap(), &mut text).unwrap();
            break text;
        }
        child.kill().unwrap();
        child.wait().unwrap();
        kills += 1;
        assert!(!snapshots.exists() || std::fs::read_dir(&snapshots).unwrap().next().is_none());
    };
    world.assert_whole(Path::new(printed.trim()));
    assert!(kills >= 4, "{kills}");
    // What eight connections hold when their reader is killed is lost, a range each at most; nothing that was read is.
    let twice = world.hub.sent() - total;
    assert!(
        twice / kills <= 16 * MIB as u64,
        "{twice} bytes twice after {kills} kills"
    );
}

/// The status of the cache as JSON.
fn status(up: &Up) -> Value {
    let text = up.ok(&["get", "modelcache", "tiny", "-o", "json"]);
    serde_json::from_str::<Value>(&text).unwrap()["status"].clone()
}

fn service(up: &Up) -> Value {
    let text = up.ok(&["get", "isvc", "chat", "-o", "json"]);
    serde_json::from_str::<Value>(&text).unwrap()["status"].clone()
}

/// The first word in an engine's log: what it found where the cache was mounted.
const READ_AND_SERVE: &str = r#"cat "$MODEL_PATH/config.json" && echo " offline=$HF_HUB_OFFLINE" && exec "$0" engine --model tiny --host "$POD_IP" --port "$1""#;

#[tokio::test(flavor = "multi_thread")]
async fn a_service_waits_for_its_cache_reads_it_offline_and_holds_it() {
    let world = World::new(None, &[3 * MIB]);
    let data = world.folder.path().join("up");
    let _leftovers = Leftovers(&data);
    let up = Up::start(
        &data,
        &["--runtime", "process", "--allow-root", "--ephemeral"],
    )
    .await;
    let file = |name: &str, text: &str| {
        let path = world.folder.path().join(name);
        std::fs::write(&path, text).unwrap();
        up.ok(&["apply", "-f", path.to_str().unwrap()]);
    };
    let port = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let port = port.local_addr().unwrap().port();
    let command = serde_json::json!([
        "sh",
        "-c",
        READ_AND_SERVE,
        env!("CARGO_BIN_EXE_warp"),
        port.to_string()
    ]);
    file(
        "service.yaml",
        &format!(
            "apiVersion: gpu.warp.dev/v1alpha1\nkind: InferenceService\nmetadata: {{name: chat}}\nspec:\n  model: {{cache: tiny}}\n  \
         gpuCount: 0\n  drain: 1s\n  port: {port}\n  engine: {{type: custom, image: 'local://', command: {command}}}\n"
        ),
    );
    until("the missing cache to be named", PATIENCE, async || {
        Ok((service(&up)["conditions"][0]["reason"] == "NoSuchModelCache").then_some(()))
    })
    .await
    .unwrap();
    file(
        "cache.yaml",
        &format!(
            "apiVersion: gpu.warp.dev/v1alpha1\nkind: ModelCache\nmetadata: {{name: tiny}}\nspec:\n  size: 1Gi\n  source:\n    \
         huggingface: {{repository: org/tiny, endpoint: '{}'}}\n",
            world.hub.endpoint()
        ),
    );
    until("the service to answer", PATIENCE, async || {
        Ok((service(&up)["phase"] == "Ready").then_some(()))
    })
    .await
    .unwrap();
    let said = String::from_utf8_lossy(&up.warp(&["logs", "chat"]).stdout).into_owned();
    assert!(said.contains("llama\"} offline=1"), "{said}");
    let asked = String::from_utf8_lossy(&up.warp(&["chat", "chat", "Hello"]).stdout).into_owned();
    assert!(asked.contains("You wrote: Hello"), "{asked}");
    let told = status(&up);
    assert_eq!(told["services"], serde_json::json!(["chat"]));
    assert_eq!(told["userCount"], 1);
    up.ok(&["delete", "modelcache", "tiny", "--no-wait"]);
    until("the users to be named", PATIENCE, async || {
        let told = status(&up);
        let message = told["message"].as_str().unwrap_or_default();
        Ok(message
            .contains("InferenceServices chat no longer name it and pods chat-")
            .then_some(()))
    })
    .await
    .unwrap();
    // Its model is still there: it goes on answering.
    assert_eq!(service(&up)["phase"], "Ready");
    up.ok(&["delete", "isvc", "chat"]);
    until("the cache to be gone", PATIENCE, async || {
        Ok((!up.warp(&["get", "modelcache", "tiny"]).status.success()).then_some(()))
    })
    .await
    .unwrap();
    up.stop();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_model_cache_is_fetched_mounted_and_deleted_on_this_machine() {
    let world = World::new(Some("hf_right"), &[30 * MIB]);
    let data = world.folder.path().join("up");
    let _leftovers = Leftovers(&data);
    let up = Up::start(
        &data,
        &["--runtime", "process", "--allow-root", "--ephemeral"],
    )
    .await;
    let manifest = world.folder.path().join("cache.yaml");
    let text = format!(
        "apiVersion: v1\nkind: Secret\nmetadata: {{name: hub}}\nstringData: {{token: hf_wrong}}\n---\n\
         apiVersion: gpu.warp.dev/v1alpha1\nkind: ModelCache\nmetadata: {{name: tiny}}\nspec:\n  size: 1Gi\n  source:\n    \
         huggingface: {{repository: org/tiny, tokenSecret: hub, endpoint: '{}'}}\n",
        world.hub.endpoint()
    );
    std::fs::write(&manifest, &text).unwrap();
    let apply = ["apply", "-f", manifest.to_str().unwrap()];
    up.ok(&apply);
    until("the wrong token to be refused", PATIENCE, async || {
        Ok((status(&up)["conditions"][0]["reason"] == "Unauthorized").then_some(()))
    })
    .await
    .unwrap();
    let failed = status(&up);
    assert_eq!(failed["phase"], "Failed");
    assert!(!failed.to_string().contains("hf_wrong"), "{failed}");
    // The Secret is mended, and the Job deleted as the message asks.
    std::fs::write(&manifest, text.replace("hf_wrong", "hf_right")).unwrap();
    up.ok(&apply);
    let job = failed["jobName"].as_str().unwrap();
    up.ok(&["delete", "job", job]);
    until("the model to be ready", PATIENCE, async || {
        Ok((status(&up)["phase"] == "Ready").then_some(()))
    })
    .await
    .unwrap();
    let ready = status(&up);
    let commit = world.hub.commit("org/tiny");
    assert_eq!(ready["commit"], commit.as_str());
    assert_eq!(
        ready["path"],
        format!("/models/models--org--tiny/snapshots/{commit}")
    );
    assert_eq!(
        (&ready["volume"], &ready["files"]),
        (&Value::from("tiny-model"), &Value::from(2))
    );
    // What a pod sees that mounts the claim as the status says.
    let user = world.folder.path().join("user.yaml");
    let path = ready["path"].as_str().unwrap();
    std::fs::write(&user, format!(
        "apiVersion: v1\nkind: Pod\nmetadata: {{name: engine}}\nspec:\n  restartPolicy: Never\n  containers:\n  - name: e\n    \
         image: local://\n    command: [sh, -c, 'cat \"$1\"/config.json && echo && sleep 600', sh, {path}]\n    \
         volumeMounts: [{{name: m, mountPath: /models, readOnly: true}}]\n  \
         volumes: [{{name: m, persistentVolumeClaim: {{claimName: tiny-model, readOnly: true}}}}]\n"
    )).unwrap();
    up.ok(&["apply", "-f", user.to_str().unwrap()]);
    until("the model to be read", PATIENCE, async || {
        let printed = up.warp(&["logs", "engine"]).stdout;
        Ok(String::from_utf8_lossy(&printed)
            .contains("llama")
            .then_some(()))
    })
    .await
    .unwrap();
    up.ok(&["delete", "modelcache", "tiny", "--no-wait"]);
    until("the user to be named", PATIENCE, async || {
        let told = status(&up);
        Ok(told["message"]
            .as_str()
            .is_some_and(|text| text.contains("engine"))
            .then_some(()))
    })
    .await
    .unwrap();
    up.ok(&["delete", "pod", "engine"]);
    until("the cache to be gone", PATIENCE, async || {
        Ok((!up.warp(&["get", "modelcache", "tiny"]).status.success()).then_some(()))
    })
    .await
    .unwrap();
    up.stop();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_keeps_a_copy_is_labelled_with_it_and_loses_both() {
    let world = World::new(None, &[MIB]);
    let data = world.folder.path().join("up");
    let _leftovers = Leftovers(&data);
    let up = Up::start(
        &data,
        &["--runtime", "process", "--allow-root", "--ephemeral"],
    )
    .await;
    let manifest = world.folder.path().join("cache.yaml");
    let kept = world.folder.path().join("kept");
    let text = format!(
        "apiVersion: gpu.warp.dev/v1alpha1\nkind: ModelCache\nmetadata: {{name: tiny}}\nspec:\n  nodes: {{path: '{}'}}\n  \
         source:\n    huggingface: {{repository: org/tiny, endpoint: '{}'}}\n",
        kept.display(),
        world.hub.endpoint()
    );
    std::fs::write(&manifest, &text).unwrap();
    up.ok(&["apply", "-f", manifest.to_str().unwrap()]);
    until("the copy to be ready", PATIENCE, async || {
        Ok((status(&up)["copies"] == "1/1").then_some(()))
    })
    .await
    .unwrap();
    let ready = status(&up);
    let folder = PathBuf::from(ready["folder"].as_str().unwrap());
    assert!(folder.starts_with(&kept), "{ready}");
    let commit = world.hub.commit("org/tiny");
    world.assert_whole(&folder.join(format!("models--org--tiny/snapshots/{commit}")));
    let label = ready["nodeLabel"].as_str().unwrap().to_owned();
    until("the node to be labelled", PATIENCE, async || {
        Ok(up
            .ok(&["get", "nodes", "-o", "json"])
            .contains(&label)
            .then_some(()))
    })
    .await
    .unwrap();
    let user = world.folder.path().join("user.yaml");
    let path = ready["path"].as_str().unwrap();
    std::fs::write(&user, format!(
        "apiVersion: v1\nkind: Pod\nmetadata: {{name: engine}}\nspec:\n  restartPolicy: Never\n  nodeSelector: {{{label}: ready}}\n  \
         containers:\n  - name: e\n    image: local://\n    \
         command: [sh, -c, 'cat \"$1\"/config.json && echo && sleep 600', sh, {path}]\n    \
         volumeMounts: [{{name: m, mountPath: /models, readOnly: true}}]\n  \
         volumes: [{{name: m, hostPath: {{path: '{}', type: Directory}}}}]\n",
        folder.display()
    )).unwrap();
    up.ok(&["apply", "-f", user.to_str().unwrap()]);
    until("the model to be read", PATIENCE, async || {
        let printed = up.warp(&["logs", "engine"]).stdout;
        Ok(String::from_utf8_lossy(&printed)
            .contains("llama")
            .then_some(()))
    })
    .await
    .unwrap();
    up.ok(&["delete", "modelcache", "tiny", "--no-wait"]);
    until("the user to be named", PATIENCE, async || {
        let told = status(&up);
        Ok(told["message"]
            .as_str()
            .is_some_and(|text| text.contains("engine"))
            .then_some(()))
    })
    .await
    .unwrap();
    assert!(folder.join("models--org--tiny").exists());
    up.ok(&["delete", "pod", "engine"]);
    until("the cache to be gone", PATIENCE, async || {
        Ok((!up.warp(&["get", "modelcache", "tiny"]).status.success()).then_some(()))
    })
    .await
    .unwrap();
    assert_eq!(std::fs::read_dir(&folder).unwrap().count(), 0);
    assert!(!up.ok(&["get", "nodes", "-o", "json"]).contains(&label));
    up.stop();
}

/// The file whose path below the volumes of `data` ends so.
fn find(data: &Path, end: &str) -> Option<PathBuf> {
    let mut folders = vec![data.to_owned()];
    while let Some(folder) = folders.pop() {
        if folder.join(end).is_file() {
            return Some(folder.join(end));
        }
        let entries = std::fs::read_dir(&folder).into_iter().flatten();
        let entries = entries.filter_map(Result::ok);
        let inner = entries.filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir()));
        folders.extend(inner.map(|entry| entry.path()));
    }
    None
}

/// Reads the fetched model and writes another one.
const CHANGE: &str =
    r#"sed s/llama/alpaca/ "$MODEL_PATH/config.json" > "$OUTPUT_PATH/config.json""#;

#[tokio::test(flavor = "multi_thread")]
async fn a_model_is_made_of_the_fetched_one_and_kept_when_a_change_fails() {
    let world = World::new(None, &[MIB]);
    let data = world.folder.path().join("up");
    let _leftovers = Leftovers(&data);
    let up = Up::start(
        &data,
        &["--runtime", "process", "--allow-root", "--ephemeral"],
    )
    .await;
    let manifest = world.folder.path().join("cache.yaml");
    let apply = |script: &str| {
        let command = serde_json::json!(["sh", "-c", script]);
        let text = format!(
            "apiVersion: gpu.warp.dev/v1alpha1\nkind: ModelCache\nmetadata: {{name: tiny}}\nspec:\n  size: 1Gi\n  backoffLimit: 0\n  \
             source:\n    huggingface: {{repository: org/tiny, endpoint: '{}'}}\n  \
             optimize: {{image: 'local://', command: {command}}}\n",
            world.hub.endpoint()
        );
        std::fs::write(&manifest, text).unwrap();
        up.ok(&["apply", "-f", manifest.to_str().unwrap()]);
    };
    let reason = |status: &Value| status["conditions"][0]["reason"].clone();
    apply(CHANGE);
    until("the model to be made", PATIENCE, async || {
        Ok((reason(&status(&up)) == "Optimized").then_some(()))
    })
    .await
    .unwrap();
    let made = status(&up);
    let model = &made["optimized"];
    assert_eq!(model["fromCommit"], made["commit"]);
    assert_ne!(model["digest"], made["digest"]);
    assert_eq!(model["files"], 1);
    let user = world.folder.path().join("user.yaml");
    let path = model["path"].as_str().unwrap();
    std::fs::write(&user, format!(
        "apiVersion: v1\nkind: Pod\nmetadata: {{name: engine}}\nspec:\n  restartPolicy: Never\n  containers:\n  - name: e\n    \
         image: local://\n    command: [sh, -c, 'cat \"$1\"/config.json && echo', sh, {path}]\n    \
         volumeMounts: [{{name: m, mountPath: /models, readOnly: true}}]\n  \
         volumes: [{{name: m, persistentVolumeClaim: {{claimName: tiny-model, readOnly: true}}}}]\n"
    )).unwrap();
    up.ok(&["apply", "-f", user.to_str().unwrap()]);
    until("the new model to be read", PATIENCE, async || {
        let printed = up.warp(&["logs", "engine"]).stdout;
        Ok(String::from_utf8_lossy(&printed)
            .contains("alpaca")
            .then_some(()))
    })
    .await
    .unwrap();
    up.ok(&["delete", "pod", "engine"]);

    // A change that fails says why, and what was made before stays.
    apply("echo no such layer >&2; exit 7");
    until("the failure to be told", PATIENCE, async || {
        Ok((reason(&status(&up)) == "OptimizeFailed").then_some(()))
    })
    .await
    .unwrap();
    let failed = status(&up);
    assert_eq!(failed["optimized"]["path"], model["path"]);
    let message = failed["message"].as_str().unwrap();
    assert!(message.contains("exit code 7: no such layer"), "{message}");

    // Nor is one made by writing into the fetched model, which stays as it was fetched: where the node cannot keep it from
    // being written, nothing is published and it is fetched again.
    let fetched = std::fs::read(world.folder.path().join("hub/org/tiny/config.json")).unwrap();
    apply(r#"cp "$MODEL_PATH/config.json" "$OUTPUT_PATH"; echo oops >> "$MODEL_PATH/config.json""#);
    until("the change to be refused", PATIENCE, async || {
        let told = status(&up);
        let text = told["message"].as_str().unwrap_or_default();
        let refused = reason(&told) == "OptimizeFailed" || reason(&told) == "ModelChanged";
        Ok((refused && !text.contains("no such layer")).then_some(()))
    })
    .await
    .unwrap();
    let after = status(&up);
    assert_eq!(after["optimized"]["path"], model["path"]);
    let inside = after["path"]
        .as_str()
        .unwrap()
        .trim_start_matches("/models/");
    let found = find(&data, &format!("{inside}/config.json")).expect("the fetched model");
    assert!(std::fs::read(found).unwrap() == fetched);

    // One that leaves nothing is no model either.
    apply("true");
    until("nothing to be refused", PATIENCE, async || {
        let told = status(&up);
        let text = told["message"].as_str().unwrap_or_default().to_owned();
        Ok((told["phase"] == "Failed" && text.contains("no files")).then_some(()))
    })
    .await
    .unwrap();
    assert_eq!(status(&up)["optimized"]["path"], model["path"]);
    up.ok(&["delete", "modelcache", "tiny"]);
    up.stop();
}
