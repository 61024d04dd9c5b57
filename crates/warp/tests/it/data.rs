//! `--data DIR` is that instance and no other, for every verb that takes it; backups of it and back.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};

use crate::up::Up;

/// A process that does not outlive its test.
struct Ended(Child);

impl Drop for Ended {
    fn drop(&mut self) {
        self.0.kill().ok();
        self.0.wait().ok();
    }
}

fn command(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_warp"));
    command.args(arguments).stdin(Stdio::null());
    command
}

fn told(output: &Output) -> String {
    let [out, err] = [&output.stdout, &output.stderr].map(|text| String::from_utf8_lossy(text));
    format!("{out}{err}")
}

/// Verbs below this one that take `--data`, as the program itself tells.
fn verbs(above: &[&str]) -> Vec<String> {
    let output = command(above).arg("--help").output().unwrap();
    assert!(
        output.status.success(),
        "{above:?} --help: {}",
        told(&output)
    );
    let help = String::from_utf8(output.stdout).unwrap();
    let mut found = Vec::new();
    if help.contains("--data <DIR>") {
        found.push(above.join(" "));
    }
    let list = help
        .lines()
        .skip_while(|line| *line != "Commands:")
        .skip(1)
        .take_while(|line| !line.is_empty());
    for line in list {
        // Descriptions that go on are further in than names.
        let name = line
            .strip_prefix("  ")
            .filter(|line| !line.starts_with(' '));
        let Some(name) = name.and_then(|line| line.split(' ').next()) else {
            continue;
        };
        if name != "help" {
            found.extend(verbs(&[above, &[name]].concat()));
        }
    }
    found
}

/// Two instances: the one that is named, and the one $KUBECONFIG points to.
struct Two {
    named: Up,
    other: Up,
    folder: tempfile::TempDir,
}

impl Two {
    /// What the verb says with `--data` of the one and $KUBECONFIG of the other.
    fn run(&self, arguments: &[&str]) -> String {
        let output = self.start(arguments).output().unwrap();
        told(&output)
    }

    fn start(&self, arguments: &[&str]) -> Command {
        // After --, words are the container's.
        let at = arguments.iter().position(|word| *word == "--");
        let (own, rest) = arguments.split_at(at.unwrap_or(arguments.len()));
        let mut command = command(own);
        command
            .arg("--data")
            .arg(&self.named.data)
            .args(rest)
            .env("KUBECONFIG", self.other.data.join("kubeconfig"));
        command
    }

    fn file(&self, name: &str, text: &str) -> String {
        let file = self.folder.path().join(name);
        std::fs::write(&file, text).unwrap();
        file.display().to_string()
    }

    /// The named one has the object, the other has not.
    async fn only_there(&self, kind: &str, name: &str) {
        self.named.shows(&["get", kind, "-o", "name"], name).await;
        let elsewhere = self.other.ok(&["get", kind, "-o", "name"]);
        assert!(!elsewhere.contains(name), "{elsewhere}");
    }
}

const POD: &str = "apiVersion: v1\nkind: Pod\nmetadata: {name: only-here}\nspec:\n  containers: [{name: c, image: train, command: [sleep, '600']}]\n";
const FLEET: &str = "pools:\n- {name: joined, gpu: L4, gpus: 2}\n";

/// Verbs that are seen to ask nobody else once the instance named is down.
const AFTERWARDS: &[&[&str]] = &[
    &["run", "--image", "train", "--yes"],
    &["plan", "only-here"],
    &["why", "only-here"],
    &["queue"],
    &["timeline", "only-here"],
    &["cancel", "only-here"],
    &["suspend", "only-here"],
    &["resume", "only-here"],
    &["retry", "only-here"],
    &["snapshot"],
    &["patch", "pod/only-here", "--patch", "{}"],
    &["tenant", "create", "team", "--of", "default"],
    &["tenant", "list"],
    &["tenant", "suspend", "team"],
    &["tenant", "resume", "team"],
    &["tenant", "remove", "team"],
    &["offers"],
    &["rent", "H100", "--max-price", "3.50", "--yes"],
    &["machines"],
    &["costs"],
    &["budget"],
    &["serve", "org/name", "--engine", "simulated", "--yes"],
    &["chat", "only-here"],
    &["bench", "only-here"],
    &["model", "plan", "org/name"],
];

/// Whether `words` are of the verb, or of one below it.
fn asks(words: &[&str], verb: &str) -> bool {
    let mut words = words.iter();
    verb.split(' ').all(|part| words.next() == Some(&part))
}

#[tokio::test]
async fn a_data_directory_is_that_instance_whatever_kubeconfig_says() {
    let folder = tempfile::tempdir().unwrap();
    let [one, another] = ["named", "other"].map(|name| folder.path().join(name));
    let (named, other) = tokio::join!(
        Up::start(&one, &["--demo"]),
        Up::start(&another, &["--runtime", "none"]),
    );
    let two = Two {
        named,
        other,
        folder,
    };
    let pod = two.file("pod.yaml", POD);
    let found = verbs(&[]);
    assert!(found.iter().any(|verb| verb == "status"), "{found:?}");
    // First what makes the pod, last what ends the instance.
    let rank = |verb: &str| match verb {
        "apply" | "user create" => 0,
        "delete" | "user delete" => 2,
        "down" => 3,
        _ => 1,
    };
    let mut found: Vec<&str> = found.iter().map(String::as_str).collect();
    found.sort_by_key(|verb| rank(verb));
    for verb in found {
        match verb {
            "apply" => {
                let said = two.run(&["apply", "-f", &pod]);
                assert!(said.contains("only-here"), "{said}");
                two.only_there("pods", "only-here").await;
                let running = "Running";
                two.named.shows(&["get", "pods"], running).await;
            }
            "get" => {
                let said = two.run(&["get", "pods"]);
                assert!(said.contains("only-here"), "{said}");
            }
            "logs" | "exec" => {
                // What the instance says when it is the only one in question; elsewhere there is no such pod.
                let words: &[&str] = if verb == "logs" {
                    &["logs", "only-here"]
                } else {
                    &["exec", "only-here", "--", "true"]
                };
                let [here, there] = [&two.named, &two.other].map(|up| told(&up.warp(words)));
                assert_ne!(here, there, "{verb} tells the two apart");
                assert_eq!(two.run(words), here, "{verb}");
            }
            "status" => {
                let said = two.run(&["status"]);
                let pid = pid(&two.named.data);
                assert!(said.contains(&format!("process {pid}")), "{said}");
                assert!(!said.contains("nodes      0 ready"), "{said}");
            }
            "doctor" => {
                let said = two.run(&["doctor", "--port", "0"]);
                let pid = pid(&two.named.data);
                assert!(said.contains(&format!("process {pid}")), "{said}");
            }
            "up" => {
                let said = two.run(&["up"]);
                let pid = pid(&two.named.data);
                assert!(said.contains(&format!("process {pid}")), "{said}");
            }
            "apiserver" => {
                let said = two.run(&["apiserver", "--port", "0"]);
                let database = two.named.data.join("state.redb").display().to_string();
                assert!(
                    said.contains(&database) && said.contains("another process"),
                    "{said}"
                );
            }
            "backup" => {
                let file = two.folder.path().join("backup");
                let said = two.run(&["backup", &file.display().to_string()]);
                let bytes = std::fs::read(&file).unwrap_or_else(|_| panic!("{said}"));
                let name = b"only-here";
                assert!(bytes.windows(name.len()).any(|word| word == name));
            }
            "restore" => {
                let file = two.file("none", "");
                let said = two.run(&["restore", &file]);
                let pid = pid(&two.named.data);
                assert!(said.contains(&format!("process {pid}")), "{said}");
            }
            // Verbs of their own say it.
            "node" | "user" => {}
            // Asked once the instance is down.
            asked if AFTERWARDS.iter().any(|words| asks(words, asked)) => {}
            "user create" => {
                let said = two.run(&["user", "create", "guest"]);
                let users =
                    |up: &Up| std::fs::read_dir(up.data.join("users")).map_or(0, Iterator::count);
                assert!(users(&two.named) > users(&two.other), "{said}");
            }
            "user list" => {
                let said = two.run(&["user", "list"]);
                assert!(said.contains("guest"), "{said}");
            }
            "user delete" => {
                let said = two.run(&["user", "delete", "guest"]);
                assert!(!said.contains("error"), "{said}");
            }
            "node simulate" => {
                let fleet = two.file("fleet.yaml", FLEET);
                let mut node = two.start(&["node", "simulate", "--nodes", &fleet]);
                let _node = Ended(node.spawn().unwrap());
                two.only_there("nodes", "joined-0").await;
            }
            "node process" => {
                let pods = two.folder.path().join("p").display().to_string();
                let words = ["node", "process", "--allow-root", "--name", "mine"];
                let mut node = two.start(&[&words[..], &["--pods", &pods]].concat());
                let _node = Ended(node.spawn().unwrap());
                two.only_there("nodes", "mine").await;
            }
            "node docker" => {
                // No engine answers there: what counts is that the verb can be called, and that it looks here.
                let socket = two.folder.path().join("no.sock").display().to_string();
                let said = two.run(&["node", "docker", "--socket", &socket]);
                assert!(said.contains(&socket), "{said}");
            }
            "delete" => {
                let said = two.run(&["delete", "pod", "only-here"]);
                assert!(
                    said.contains("only-here") && !said.contains("not found"),
                    "{said}"
                );
            }
            "down" => {
                let said = two.run(&["down"]);
                assert!(said.contains("Warp is down"), "{said}");
            }
            new => panic!("say here what `warp {new} --data DIR` means, and see that it does"),
        }
    }
    // It is down, and still nobody asks the other one.
    let more = [&["status"][..], &["get", "pods"], &["apply", "-f", &pod]];
    for words in more.iter().chain(AFTERWARDS) {
        let output = two.start(words).output().unwrap();
        assert!(!output.status.success(), "{words:?}: {}", told(&output));
        let place = two.named.data.display().to_string();
        assert!(
            told(&output).contains(&place),
            "{words:?}: {}",
            told(&output)
        );
    }
    assert_eq!(two.other.ok(&["get", "pods"]), "");
    // An address and a directory are two answers to one question.
    let both = two.start(&["get", "pods", "--kubeconfig", "x"]).output();
    let both = told(&both.unwrap());
    assert!(both.contains("cannot be used with"), "{both}");
    two.other.stop();
}

fn pid(data: &Path) -> i64 {
    let note = std::fs::read(data.join("up.json")).unwrap();
    let note: serde_json::Value = serde_json::from_slice(&note).unwrap();
    note["pid"].as_i64().unwrap()
}

fn names(up: &Up) -> Vec<String> {
    let list = up.ok(&["get", "configmaps", "-o", "json"]);
    let list: serde_json::Value = serde_json::from_str(&list).unwrap();
    let text = |value: &serde_json::Value| value.as_str().unwrap_or_default().to_owned();
    list["items"]
        .as_array()
        .unwrap()
        .iter()
        .map(|item| &item["metadata"])
        .filter(|meta| meta["name"] != "kube-root-ca.crt")
        .map(|meta| {
            ["name", "uid", "resourceVersion"]
                .map(|name| text(&meta[name]))
                .join(" ")
        })
        .collect()
}

#[tokio::test]
async fn a_backup_of_a_running_warp_is_brought_back_after_its_data_was_lost() {
    let folder = tempfile::tempdir().unwrap();
    let data = folder.path().join("data");
    let place = data.display().to_string();
    let up = Up::start(&data, &["--runtime", "none"]).await;
    let map = |name: &str| {
        let file = folder.path().join("map.yaml");
        let text = format!("apiVersion: v1\nkind: ConfigMap\nmetadata: {{name: {name}}}\n");
        std::fs::write(&file, text).unwrap();
        up.ok(&["apply", "-f", &file.display().to_string()]);
    };
    map("before");
    let file = folder.path().join("backup");
    let backup = file.display().to_string();
    up.ok(&["backup", &backup, "--data", &place]);
    // A later one replaces it and says so; a file that is something else is left alone.
    let again = told(&up.warp(&["backup", &backup, "--data", &place]));
    assert!(again.contains("instead of the earlier backup"), "{again}");
    let letter = folder.path().join("letter");
    std::fs::write(&letter, "dear reader").unwrap();
    let letter = letter.display().to_string();
    let refused = up.warp(&["backup", &letter, "--data", &place]);
    assert!(!refused.status.success());
    assert!(told(&refused).contains("is no backup"), "{refused:?}");
    assert_eq!(std::fs::read_to_string(&letter).unwrap(), "dear reader");
    let mode = std::fs::metadata(&file).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600, "it holds every Secret");
    let kept = names(&up);
    map("after");
    // Only while nobody uses the data.
    let busy = told(&up.warp(&["restore", &backup, "--data", &place]));
    assert!(
        busy.contains("warp down") && busy.contains(&place),
        "{busy}"
    );
    let busy = told(&up.warp(&["up", "--discard-data", "--data", &place]));
    assert!(busy.contains("in use"), "{busy}");
    let all = names(&up);
    assert_eq!(all.len(), kept.len() + 1);
    up.stop();
    // The database is emptied: refused, with what to do about it.
    std::fs::write(data.join("state.redb"), "").unwrap();
    for verb in [
        &["up", "--runtime", "none", "--port", "0"][..],
        &["apiserver", "--port", "0"],
        &["backup", "-"],
    ] {
        let output = command(verb)
            .args(["--data", &place])
            .stdout(Stdio::piped())
            .output()
            .unwrap();
        let said = told(&output);
        assert!(!output.status.success(), "{said}");
        assert!(
            said.contains("is empty")
                && said.contains("warp restore FILE")
                && said.contains("--discard-data"),
            "{said}"
        );
    }
    let occupied = command(&["restore", &backup, "--data", &place]).output();
    let occupied = told(&occupied.unwrap());
    assert!(occupied.contains("--replace"), "{occupied}");
    let restored = command(&["restore", &backup, "--replace", "--data", &place]).output();
    let restored = restored.unwrap();
    assert!(restored.status.success(), "{}", told(&restored));
    let up = Up::start(&data, &["--runtime", "none"]).await;
    assert_eq!(names(&up), kept, "names, uids and resource versions");
    up.stop();
    // Without a server, and through a pipe into an empty directory.
    let printed = command(&["backup", "-", "--data", &place])
        .output()
        .unwrap();
    assert!(printed.status.success(), "{}", told(&printed));
    assert!(!data.join("backup.part").exists());
    std::fs::write(&file, &printed.stdout).unwrap();
    let second = folder.path().join("second");
    let output = command(&["restore", "-", "--data"])
        .arg(&second)
        .stdin(std::fs::File::open(&file).unwrap())
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", told(&output));
    let up = Up::start(&second, &["--runtime", "none"]).await;
    assert_eq!(names(&up), kept);
    up.stop();
    // Half a backup is none, and begins nothing.
    std::fs::write(&file, &printed.stdout[..printed.stdout.len() / 2]).unwrap();
    let third = folder.path().join("third");
    let output = command(&["restore", &backup, "--data"])
        .arg(&third)
        .output();
    let output = output.unwrap();
    assert!(!output.status.success() && told(&output).contains("ends too early"));
    assert!(!third.exists());
    // Anew, and the old data is where it says.
    let up = Up::start(&second, &["--runtime", "none", "--discard-data"]).await;
    assert_eq!(names(&up), Vec::<String>::new());
    assert!(second.join("aside/1/state.redb").exists());
    up.stop();
    let purged = command(&["down", "--purge", "--data"])
        .arg(&second)
        .output();
    assert!(purged.unwrap().status.success() && !second.exists());
}

/// Whenever a restore is killed: what was there, or what was restored, and the next try succeeds.
#[tokio::test]
async fn a_killed_restore_loses_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let data = folder.path().join("data");
    let place = data.display().to_string();
    let file = folder.path().join("backup");
    let backup = file.display().to_string();
    let up = Up::start(&data, &["--runtime", "none"]).await;
    let map = |number: u32| {
        format!("---\napiVersion: v1\nkind: ConfigMap\nmetadata: {{name: map-{number}}}\n")
    };
    let maps = (0..200).map(map).collect::<Vec<_>>().concat();
    let manifest = folder.path().join("maps.yaml");
    std::fs::write(&manifest, maps).unwrap();
    up.ok(&["apply", "-f", &manifest.display().to_string()]);
    up.ok(&["backup", &backup, "--data", &place]);
    let backed = names(&up);
    up.ok(&["delete", "-f", &manifest.display().to_string()]);
    let old = names(&up);
    up.stop();
    for round in 0..6_u64 {
        let child = command(&["restore", &backup, "--replace", "--data", &place])
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let mut restore = Ended(child);
        let part = data.join("state.restored");
        // It ends by itself, if nothing else does it.
        let size = || std::fs::metadata(&part).map_or(0, |found| found.len());
        while restore.0.try_wait().unwrap().is_none() && size() <= round * 40_000 {
            std::thread::yield_now();
        }
        drop(restore);
        let up = Up::start(&data, &["--runtime", "none"]).await;
        let found = names(&up);
        assert!(found == old || found == backed, "{found:?}");
        up.stop();
    }
    let last = command(&["restore", &backup, "--replace", "--data", &place]).output();
    assert!(last.unwrap().status.success());
    let up = Up::start(&data, &["--runtime", "none"]).await;
    assert_eq!(names(&up), backed);
    up.stop();
}
