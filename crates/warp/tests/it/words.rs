//! What is said when something is wrong: the subject, the reason and the next step, once.

use std::path::Path;
use std::process::{Command, Output, Stdio};

use serde_json::{Value, json};
use warp_testkit::until;

use crate::up::{PATIENCE, Up};

fn warp(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_warp"))
        .args(arguments)
        .env_remove("KUBECONFIG")
        .stdin(Stdio::null())
        .output()
        .unwrap()
}

fn said(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

#[test]
fn levels_that_make_no_sense_end_the_operator_with_what_would() {
    let ended = warp(&["operator", "--topology-levels", "rack"]);
    let said = said(&ended);
    assert!(!ended.status.success());
    assert!(said.contains("'rack' says no label"), "{said}");
    assert!(said.contains("zone=topology.kubernetes.io/zone"), "{said}");
}

/// Every verb that takes a file names it when it is not there, whoever opens it.
#[test]
fn a_number_that_is_none_is_called_that() {
    let ended = warp(&["offers", "--count", "two"]);
    assert_eq!(ended.status.code(), Some(2));
    let said = said(&ended);
    assert!(
        said.contains("'two'") && said.contains("it is not a whole number"),
        "{said}"
    );
}

#[test]
fn whoever_does_not_listen_gets_the_exit_code_all_the_same() {
    let run = |command: &str| {
        let ended = Command::new("bash")
            .args(["-c", command])
            .env("WARP", env!("CARGO_BIN_EXE_warp"))
            .output()
            .unwrap();
        String::from_utf8_lossy(&ended.stdout).trim().to_owned()
    };
    let closed = "\"$WARP\" apply -f /nonexistent 2> >(exec 0<&-); echo $?";
    assert_eq!(run(closed), "1");
    let full = "\"$WARP\" install --print --image x >/dev/full 2>/dev/null; echo $?";
    assert_eq!(run(full), "1");
}

#[test]
fn a_file_that_is_missing_is_named() {
    let folder = tempfile::tempdir().unwrap();
    let none = folder.path().join("none").display().to_string();
    let data = folder.path().join("data").display().to_string();
    let broken = folder.path().join("broken").display().to_string();
    std::fs::write(
        &broken,
        "apiVersion: v1\nkind: Config\nclusters: [{name: c, cluster: {server: 'https://127.0.0.1:1', certificate-authority: /no/ca.crt}}]\nusers: [{name: u, user: {client-certificate: /no/u.crt, client-key: /no/u.key}}]\ncontexts: [{name: x, context: {cluster: c, user: u}}]\ncurrent-context: x\n",
    )
    .unwrap();
    let cases: [(&[&str], &str); 20] = [
        (&["apply", "-f", &none], &none),
        (&["delete", "-f", &none], &none),
        (&["get", "pods", "--kubeconfig", &none], &none),
        (&["get", "pods", "--kubeconfig", &broken], "/no/"),
        (&["status", "--kubeconfig", &none], &none),
        (&["logs", "x", "--kubeconfig", &none], &none),
        (&["exec", "x", "--kubeconfig", &none, "--", "true"], &none),
        (&["operator", "--kubeconfig", &none], &none),
        (&["operator", "--kubeconfig", &broken], "/no/"),
        (&["up", "--data", &data, "--nodes", &none], &none),
        (
            &["node", "simulate", "--nodes", &none, "--kubeconfig", &none],
            &none,
        ),
        (&["simulate", "fleet", "-f", &none], &none),
        (
            &["simulate", "queue", "--jobs", &none, "--nodes", "1"],
            &none,
        ),
        (
            &["simulate", "openb", "--nodes", &none, "--pods", &none],
            &none,
        ),
        (
            &[
                "apiserver",
                "--data",
                &data,
                "--port",
                "0",
                "--import",
                &none,
            ],
            &none,
        ),
        (
            &["apiserver", "--data", &data, "--export", "/no/such/file"],
            "/no/such/file",
        ),
        (
            &["apply", "-f", folder.path().to_str().unwrap(), "-f", &none],
            &none,
        ),
        (&["restore", &none, "--data", &data], &none),
        (&["snapshot", "--kubeconfig", &none], &none),
        (&["model", "import", &none, "--to", &data], &none),
    ];
    for (arguments, subject) in cases {
        names_it_once(arguments, subject);
    }
    // A folder, or a name of the hub: what looks like a path is one.
    let output = warp(&["model", "plan", &none]);
    assert!(!output.status.success());
    let told = said(&output);
    assert!(
        told.contains(&none) && told.contains("no such folder"),
        "{told}"
    );
}

/// One line, with the file and one reason of the system.
fn names_it_once(arguments: &[&str], subject: &str) {
    let output = warp(arguments);
    let told = said(&output);
    assert!(!output.status.success(), "{arguments:?} succeeded");
    assert!(told.contains(subject), "{arguments:?} said {told:?}");
    assert_eq!(
        told.trim_end().lines().count(),
        1,
        "{arguments:?} said {told:?}"
    );
    assert_eq!(
        told.matches("os error").count(),
        1,
        "{arguments:?} said {told:?}"
    );
}

/// Every verb that writes a file of a Warp that runs names it when there is no place for it.
#[tokio::test(flavor = "multi_thread")]
async fn a_file_that_cannot_be_written_is_named() {
    let folder = tempfile::tempdir().unwrap();
    let up = Up::start(&folder.path().join("data"), &["--runtime", "none"]).await;
    let data = up.data.display().to_string();
    let file = "/no/such/file";
    let verbs: [&[&str]; 4] = [
        &["backup", file],
        &["snapshot", "-o", file],
        &["snapshot", "--jobs", file],
        &["user", "create", "ada", "-o", file],
    ];
    for verb in verbs {
        names_it_once(&[verb, &["--data", &data]].concat(), file);
    }
    // Whoever has no kubeconfig has no access.
    let users = warp(&["user", "list", "--data", &data]);
    assert!(said(&users).contains("no users but the administrator"));
    up.stop();
}

#[test]
fn what_is_wrong_in_a_file_is_told_once_with_line_field_and_what_was_expected() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("f.yaml");
    let data = folder.path().join("data").display().to_string();
    let name = file.display().to_string();
    let fleet: &[&str] = &["up", "--data", &data, "--nodes", &name];
    let scenario: &[&str] = &["simulate", "fleet", "-f", &name];
    let apply: &[&str] = &["apply", "-f", &name];
    let cases: [(&[&str], &str, &[&str]); 8] = [
        (
            fleet,
            "pools:\n- name: a\n  gpus: many\n",
            &["line 3", "gpus", "\"many\" is no whole number"],
        ),
        (
            fleet,
            "pools:\n- name: a\n  gpus: -4\n",
            &["line 3", "gpus", "\"-4\" is no whole number"],
        ),
        (
            fleet,
            "pools:\n- name: a\n  gpuss: 4\n",
            &["line 3", "did you mean \"gpus\"?"],
        ),
        (
            scenario,
            "nodes:\n- name: a\n  count: some\n",
            &["line 3", "count", "\"some\" is no whole number"],
        ),
        (
            scenario,
            "nodes:\n- name: a\n  colour: red\n",
            &["line 3", "\"colour\" is not known"],
        ),
        (scenario, "nodes:\n- name: a\n gpus: x\n", &["line 3"]),
        (
            apply,
            "apiVersion: v1\nkind: ConfigMap\nmetadata:\n  name: a\n data: x\n",
            &["line 5"],
        ),
        (
            apply,
            "kind: ConfigMap\nmetadata: {name: a}\n",
            &["no apiVersion"],
        ),
    ];
    for (arguments, text, words) in cases {
        std::fs::write(&file, text).unwrap();
        let output = warp(arguments);
        let told = said(&output);
        assert!(!output.status.success(), "{text} was taken");
        for word in words.iter().chain([&&*name]) {
            assert!(told.contains(word), "{text} gave {told:?}, not {word:?}");
        }
        assert_eq!(told.trim_end().lines().count(), 1, "{told:?}");
        assert!(told.matches("line ").count() <= 1, "{told:?}");
        for jargon in ["u32", "u64", "expected one of", "column"] {
            assert!(!told.contains(jargon), "{told:?}");
        }
    }
}

#[test]
fn what_does_not_fit_is_the_exit_code_of_a_simulation_too() {
    let folder = tempfile::tempdir().unwrap();
    let write = |name: &str, text: &str| {
        let file = folder.path().join(name);
        std::fs::write(&file, text).unwrap();
        file.display().to_string()
    };
    let nodes = "nodes:\n- {name: a, allocatable: {cpu: \"8\", memory: 32Gi}, gpus: [{count: 2, model: T4, memory: 16Gi}]}\n";
    let fits = write(
        "fits",
        &format!("{nodes}requests:\n- {{name: r, gpu: {{count: 2}}}}\n"),
    );
    let refused = write(
        "refused",
        &format!("{nodes}requests:\n- {{name: r, gpu: {{count: 4}}}}\n"),
    );
    let unknown = write(
        "unknown",
        "nodes:\n- {name: a, allocatable: {cpu: \"8\"}, gpus: [{count: 2, model: A1O0}]}\nrequests:\n- {name: r, gpu: {models: [H10O]}}\n",
    );
    let empty = write("empty", "# nothing\n");
    let nobody = write("nobody", nodes);
    let jobs = write("jobs.csv", "submit,duration,gpus\n0,60,1\n1,60,64\n");
    let no_jobs = write("none.csv", "");
    let misspelt = write(
        "misspelt.csv",
        "submit,duration,gpus,gpu_type\n0,60,1,T4\n1,60,1,T4|A1O0\n2,60,1,A1O0\n",
    );
    let code = |arguments: &[&str]| {
        let output = warp(arguments);
        (output.status.code(), said(&output))
    };
    assert_eq!(
        code(&["simulate", "fleet", "-f", &fits]),
        (Some(0), String::new())
    );
    let (refusal, told) = code(&["simulate", "fleet", "-f", &refused]);
    assert!(
        refusal == Some(1) && told.contains("1 of 1 requests"),
        "{told}"
    );
    let (_, told) = code(&["simulate", "fleet", "-f", &unknown]);
    assert!(
        told.contains("node a: the GPU catalogue knows no model \"A1O0\""),
        "{told}"
    );
    assert!(
        told.contains("request r: no node of the file has the GPU model \"H10O\""),
        "{told}"
    );
    let (refusal, told) = code(&["simulate", "fleet", "-f", &empty]);
    assert!(refusal == Some(1) && told.contains("is empty"), "{told}");
    let (refusal, told) = code(&["simulate", "fleet", "-f", &nobody]);
    assert!(refusal == Some(1) && told.contains("no requests"), "{told}");
    let (refusal, told) = code(&["simulate", "queue", "--jobs", &jobs, "--nodes", "1"]);
    assert!(refusal == Some(1) && told.contains("line 3"), "{told}");
    let queue = ["simulate", "queue", "--jobs", &misspelt, "--fleet"];
    let (refusal, told) = code(&[&queue[..], &["1x4:T4,1x4:A100,2x8:RTX-409O"]].concat());
    assert_eq!(refusal, Some(1), "{told}");
    let doubts: Vec<&str> = told.lines().filter(|line| line.contains("GPU")).collect();
    assert_eq!(
        doubts[..2],
        [
            "warning: --fleet: the GPU catalogue knows no model \"RTX-409O\"; did you mean \"RTX-4090\"?",
            "warning: line 3: no node of the fleet has the GPU type \"A1O0\"; did you mean \"A100\"?",
        ],
        "{told}"
    );
    // Said once, not for every job.
    assert_eq!(told.matches("has the GPU type").count(), 1, "{told}");
    let known = write("known.csv", "submit,duration,gpus,gpu_type\n0,60,1,T4\n");
    let queue = ["simulate", "queue", "--jobs", &known, "--fleet", "1x4:T4"];
    assert_eq!(code(&queue), (Some(0), String::new()));
    let (refusal, told) = code(&["simulate", "queue", "--jobs", &no_jobs, "--nodes", "1"]);
    assert!(refusal == Some(1) && told.contains("is empty"), "{told}");
}

fn apply(up: &Up, folder: &Path, object: &Value) -> Output {
    let file = folder.join("object.json");
    std::fs::write(&file, object.to_string()).unwrap();
    up.warp(&["apply", "-f", file.to_str().unwrap()])
}

fn workload(name: &str, spec: &Value) -> Value {
    json!({"apiVersion": "gpu.warp.dev/v1alpha1", "kind": "GPUWorkload", "metadata": {"name": name}, "spec": spec})
}

#[tokio::test]
async fn logs_of_what_has_not_started_say_why_and_follow_it_when_it_does() {
    let folder = tempfile::tempdir().unwrap();
    let fleet = folder.path().join("fleet.yaml");
    std::fs::write(&fleet, "pools:\n- {name: small, gpu: L4, gpus: 1}\n").unwrap();
    let data = folder.path().join("data");
    let up = Up::start(&data, &["--ephemeral", "--nodes", fleet.to_str().unwrap()]).await;
    let spec = |command: &str| json!({"modelName": "m", "gpuCount": 1, "image": "x", "command": ["sh", "-c", command]});
    assert!(
        apply(&up, folder.path(), &workload("first", &spec("sleep 3600")))
            .status
            .success()
    );
    up.shows(&["get", "gpuw", "first"], "Running").await;
    assert!(
        apply(&up, folder.path(), &workload("second", &spec("echo done")))
            .status
            .success()
    );
    up.shows(
        &["get", "gpuw", "second", "-o", "wide"],
        "WaitingForCapacity",
    )
    .await;
    let output = up.warp(&["logs", "second"]);
    let told = said(&output);
    assert!(!output.status.success());
    assert!(
        told.contains("second") && told.contains("Pending") && told.contains("idle GPU"),
        "{told}"
    );
    let follower = Command::new(env!("CARGO_BIN_EXE_warp"))
        .args(["logs", "-f", "second"])
        .env("KUBECONFIG", data.join("kubeconfig"))
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    up.ok(&["delete", "gpuw", "first"]);
    let followed = tokio::task::spawn_blocking(|| follower.wait_with_output().unwrap());
    let followed = tokio::time::timeout(PATIENCE, followed)
        .await
        .unwrap()
        .unwrap();
    let told = said(&followed);
    assert!(followed.status.success(), "{told}");
    assert!(told.contains("waiting until it starts"), "{told}");
    assert_eq!(String::from_utf8_lossy(&followed.stdout), "done\n");
    // What everybody reads: that it ended, not every step on the way.
    let file = data.join("warp.log");
    let log = until("the log says that it ended", PATIENCE, async || {
        let log = std::fs::read_to_string(&file)?;
        let ended = |line: &str| line.contains("default/second") && line.contains("ended");
        Ok(log.lines().any(ended).then_some(log))
    });
    let log = log.await.unwrap();
    let own = log.lines().filter(|line| line.contains("default/second"));
    assert!(own.count() == 1 && !log.contains("warp::audit"), "{log}");
    // All containers, init containers first, as the help says.
    let pod = json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "three"}, "spec": {
        "restartPolicy": "Never",
        "initContainers": [{"name": "before", "image": "x", "command": ["echo", "one"]}],
        "containers": [
            {"name": "a", "image": "x", "command": ["echo", "two"]},
            {"name": "b", "image": "x", "command": ["echo", "three"]}]}});
    assert!(apply(&up, folder.path(), &pod).status.success());
    up.shows(&["get", "pod", "three"], "Completed").await;
    assert_eq!(
        up.ok(&["logs", "three"]),
        "[before] one\n[a] two\n[b] three\n"
    );
    assert_eq!(up.ok(&["logs", "three", "-c", "b"]), "three\n");
    let told = said(&up.warp(&["logs", "three", "-c", "c"]));
    assert!(
        told.contains("no container \"c\"") && told.contains("before, a, b"),
        "{told}"
    );
    up.stop();
}

#[tokio::test]
async fn objects_are_applied_in_any_number_and_refused_in_a_persons_words() {
    let folder = tempfile::tempdir().unwrap();
    let up = Up::start(
        &folder.path().join("data"),
        &["--ephemeral", "--runtime", "none"],
    )
    .await;
    let file = folder.path().join("many.yaml");
    let mut text = String::new();
    for number in 0..1100 {
        text.extend([format!(
            "---\napiVersion: v1\nkind: ConfigMap\nmetadata: {{name: m-{number}}}\n"
        )]);
    }
    std::fs::write(&file, text).unwrap();
    let path = file.to_str().unwrap();
    let told = up.ok(&["apply", "-f", path]);
    assert_eq!(told.matches(" created").count(), 1100);
    // A name of the server's making: new every time.
    let made =
        json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"generateName": "run-"}});
    for _ in 0..2 {
        let output = apply(&up, folder.path(), &made);
        let told = String::from_utf8_lossy(&output.stdout).into_owned();
        assert!(
            told.starts_with("configmap/run-") && told.ends_with(" created\n"),
            "{told}"
        );
    }
    let names = up.ok(&["get", "configmaps", "-o", "name"]);
    assert_eq!(names.matches("configmap/run-").count(), 2, "{names}");
    let forever = workload(
        "w",
        &json!({"modelName": "m", "gpuCount": 1, "image": "x", "maxRuntime": "forever"}),
    );
    let told = said(&apply(&up, folder.path(), &forever));
    assert!(
        told.contains("such as 90m or 1h30m; leave it out for no limit"),
        "{told}"
    );
    let huge = workload(
        "w",
        &json!({"modelName": "m", "gpuCount": 1, "image": "x", "gpu": {"minMemory": "4Ti"}}),
    );
    assert!(apply(&up, folder.path(), &huge).status.success());
    until("the workload says what it asks for", PATIENCE, async || {
        let told = up.ok(&["get", "gpuw", "w", "-o", "yaml"]);
        Ok(told.contains("at least 4Ti each").then_some(()))
    })
    .await
    .unwrap();
    let large = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "large"},
        "data": {"all": "x".repeat(5 << 20)}});
    let told = said(&apply(&up, folder.path(), &large));
    assert!(
        told.contains("is 5.0 MiB and a server takes 3 MiB at most"),
        "{told}"
    );
    for (arguments, words) in [
        (&["get", "pod", "nope"][..], &["\"nope\" not found"][..]),
        (&["delete", "cm", "nope"][..], &["\"nope\" not found"][..]),
        (&["logs", "nope"][..], &["no pod \"nope\""][..]),
        (
            &["exec", "nope", "--", "true"][..],
            &["no pod \"nope\""][..],
        ),
        (
            &["get", "gpuwrkload"][..],
            &["did you mean \"gpuworkloads\"?"][..],
        ),
        (&["get", "foo"][..], &["`warp get --kinds` lists"][..]),
    ] {
        let output = up.warp(arguments);
        let told = said(&output);
        assert!(!output.status.success(), "{arguments:?} succeeded");
        for word in words {
            assert!(told.contains(word), "{arguments:?} said {told:?}");
        }
        assert!(told.matches("not found").count() <= 1, "{told}");
        assert_eq!(told.trim_end().lines().count(), 1, "{told}");
    }
    // Addresses and credentials that lead nowhere.
    let own = std::fs::read_to_string(up.data.join("kubeconfig")).unwrap();
    let server = own.lines().find(|line| line.contains("server: ")).unwrap();
    let token = own.lines().find(|line| line.contains("token: ")).unwrap();
    let note = std::fs::read_to_string(up.data.join("up.json")).unwrap();
    let note: Value = serde_json::from_str(&note).unwrap();
    let plain = note["metrics"].as_str().unwrap().replace("http:", "https:");
    let plain = plain.trim_end_matches("/metrics");
    for (text, words) in [
        (
            own.replace(server, "    server: https://127.0.0.1:1"),
            ["https://127.0.0.1:1", "Connection refused"],
        ),
        (
            own.replace(server, &format!("    server: {plain}")),
            [plain, "does not speak TLS"],
        ),
        (
            own.replace(token, "    token: wrong"),
            ["does not accept the credentials", "--kubeconfig"],
        ),
        ("a: b: c\n".to_owned(), ["broken", "line 1"]),
    ] {
        let broken = folder.path().join("broken");
        std::fs::write(&broken, text).unwrap();
        let told = said(&warp(&[
            "get",
            "pods",
            "--kubeconfig",
            broken.to_str().unwrap(),
        ]));
        for word in words {
            assert!(told.contains(word), "{told}");
        }
        assert_eq!(told.trim_end().lines().count(), 1, "{told}");
        for jargon in ["ServiceError", "InvalidContentType", "docs.rs"] {
            assert!(!told.contains(jargon), "{told}");
        }
    }
    let foreign = json!({"apiVersion": "example.com/v1", "kind": "Foo", "metadata": {"name": "x"}});
    let told = said(&apply(&up, folder.path(), &foreign));
    assert!(
        told.contains("no Foo in example.com/v1") && !told.contains("did you mean"),
        "{told}"
    );
    // Who watches when the server is killed hears what to do.
    let mut watch = Command::new(env!("CARGO_BIN_EXE_warp"))
        .args(["get", "configmaps", "-w", "--kubeconfig"])
        .arg(up.data.join("kubeconfig"))
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut printed = std::io::BufReader::new(watch.stdout.take().unwrap());
    std::io::BufRead::read_line(&mut printed, &mut String::new()).unwrap();
    let rest = std::thread::spawn(move || std::io::copy(&mut printed, &mut std::io::sink()));
    drop(up);
    let told = said(&watch.wait_with_output().unwrap());
    rest.join().unwrap().unwrap();
    assert!(
        told.contains("`warp status` says whether the server still runs"),
        "{told}"
    );
}
