//! `warp operator` and `warp doctor` on a cluster that lacks this and that: a real API server with
//! nothing behind it, on which rights, kinds and nodes are what the test says.

use std::collections::BTreeSet;
use std::fmt;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::process::{Command, Stdio};

use serde::de::{Deserializer, MapAccess, Visitor};
use warp_testkit::kubectl::Kubectl;
use warp_testkit::{Cluster, Process, Signal, until};

use crate::up::PATIENCE;

fn printed(arguments: &[&str]) -> String {
    let output = Command::new(env!("CARGO_BIN_EXE_warp"))
        .args(["install", "--print", "--image", "registry.example/warp:1"])
        .args(arguments)
        .output()
        .unwrap();
    String::from_utf8(output.stdout).unwrap()
}

/// What `warp doctor` says, and whether it calls anything wrong.
fn doctor(kubeconfig: &Path) -> (bool, String) {
    let folder = tempfile::tempdir().unwrap();
    let output = Command::new(env!("CARGO_BIN_EXE_warp"))
        .args(["doctor", "--port", "0", "--kubeconfig"])
        .arg(kubeconfig)
        .env("XDG_DATA_HOME", folder.path())
        .stdin(Stdio::null())
        .output()
        .unwrap();
    let told = String::from_utf8(output.stdout).unwrap();
    (output.status.success(), told)
}

fn says(told: &str, check: &str, words: &[&str]) {
    let found = told
        .lines()
        .any(|line| line.starts_with(check) && words.iter().all(|word| line.contains(word)));
    assert!(found, "no {check} with {words:?} in\n{told}");
}

/// The answer of a page: its code and its text.
fn page(port: u16, path: &str) -> Option<(u16, String)> {
    let mut stream = TcpStream::connect(("127.0.0.1", port)).ok()?;
    let request = format!("GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).ok()?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).ok()?;
    let code = answer.split(' ').nth(1)?.parse().ok()?;
    Some((code, answer.split("\r\n\r\n").nth(1)?.to_owned()))
}

async fn ready_says(port: u16, code: u16, words: &[&str]) {
    let what = format!("/readyz answers {code} with {words:?}");
    until(&what, PATIENCE, async || {
        let answer = page(port, "/readyz");
        let found = answer.is_some_and(|(have, text)| {
            have == code && words.iter().all(|word| text.contains(word))
        });
        Ok(found.then_some(()))
    })
    .await
    .unwrap();
}

/// A JSON object whose keys are all different.
struct Unique;

impl<'de> Visitor<'de> for Unique {
    type Value = usize;

    fn expecting(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str("an object with unique keys")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<usize, A::Error> {
        let mut seen = BTreeSet::new();
        while let Some((key, _)) = map.next_entry::<String, serde_json::Value>()? {
            if !seen.insert(key.clone()) {
                return Err(serde::de::Error::custom(format!("{key} twice")));
            }
        }
        Ok(seen.len())
    }
}

/// Every line of a log is a JSON object with unique keys.
fn all_json(log: &str) {
    assert!(!log.is_empty());
    for line in log.lines() {
        let mut reader = serde_json::Deserializer::from_str(line);
        let keys = reader
            .deserialize_map(Unique)
            .unwrap_or_else(|error| panic!("{error}: {line}"));
        assert!(keys >= 4, "{line}");
    }
}

async fn apply(kubectl: &Kubectl, text: &str) {
    kubectl.run_with(&["apply", "-f", "-"], text).await.unwrap();
}

async fn node(kubectl: &Kubectl, name: &str, labels: &str, resource: &str) {
    let object =
        format!("apiVersion: v1\nkind: Node\nmetadata: {{name: {name}, labels: {labels}}}\n");
    apply(kubectl, &object).await;
    let status =
        format!("{{\"status\": {{\"allocatable\": {resource}, \"capacity\": {resource}}}}}");
    let patch = [
        "patch",
        "node",
        name,
        "--subresource=status",
        "--type=merge",
        "-p",
        &status,
    ];
    kubectl.run(&patch).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn an_operator_without_kinds_or_rights_is_not_ready_and_the_doctor_says_which() {
    let cluster = Cluster::real().api_server_only().start().await.unwrap();
    let kubectl = cluster.kubectl();
    let admin = cluster.kubeconfig();
    let (fine, told) = doctor(&admin);
    assert!(!fine);
    says(&told, "cluster", &["ok", "v1.35"]);
    says(
        &told,
        "kind",
        &[
            "wrong",
            "gpuworkloads.gpu.warp.dev is not installed",
            "warp install",
        ],
    );
    says(&told, "operator", &["wrong", "no Deployment"]);
    says(&told, "node GPUs", &["none of 0 nodes"]);

    // Everything but the kinds.
    let everything = printed(&[]);
    let kinds = printed(&["--crds-only"]);
    let rest = everything.strip_prefix(&kinds).unwrap();
    apply(&kubectl, rest).await;
    let account = cluster
        .kubeconfig_as("warp-system", "warp-operator")
        .await
        .unwrap();
    let port = TcpListener::bind("127.0.0.1:0")
        .unwrap()
        .local_addr()
        .unwrap()
        .port();
    let mut command = Command::new(env!("CARGO_BIN_EXE_warp"));
    command
        .args(["operator", "--leader-elect", "--log-format=json"])
        .arg(format!("--health-addr=127.0.0.1:{port}"))
        .arg(format!("--metrics-addr=127.0.0.1:{port}"))
        .env("KUBECONFIG", &account)
        .env("POD_NAMESPACE", "warp-system");
    let log = cluster.folder().join("operator.log");
    let mut operator = Process::start("warp operator", &command, &log).unwrap();
    ready_says(port, 503, &["gpuworkloads", "is the CRD installed"]).await;
    assert_eq!(page(port, "/healthz").unwrap().0, 200);
    apply(&kubectl, &kinds).await;
    ready_says(port, 200, &["ok"]).await;
    assert!(
        page(port, "/metrics")
            .unwrap()
            .1
            .contains("warp_gpuworkload")
    );

    // A right that goes is said, and comes back without a restart.
    let role = ["get", "clusterrole", "warp-operator", "-o", "json"];
    let role: serde_json::Value = serde_json::from_str(&kubectl.run(&role).await.unwrap()).unwrap();
    let mut rules = role["rules"].as_array().unwrap().iter();
    let jobs = rules
        .position(|rule| rule["resources"][0] == "jobs")
        .unwrap();
    let without = format!("[{{\"op\": \"remove\", \"path\": \"/rules/{jobs}\"}}]");
    let patch = [
        "patch",
        "clusterrole",
        "warp-operator",
        "--type=json",
        "-p",
        &without,
    ];
    kubectl.run(&patch).await.unwrap();
    ready_says(port, 503, &["may not create jobs", "may not watch jobs"]).await;
    let (fine, told) = doctor(&admin);
    assert!(!fine);
    says(
        &told,
        "rights",
        &["wrong", "warp-operator may not list jobs", "more"],
    );
    says(&told, "kind", &["ok", "v1alpha1"]);
    says(&told, "lease", &["ok", "held by"]);
    says(&told, "operator", &["wrong", "0 of 2 replicas ready"]);
    apply(&kubectl, rest).await;
    ready_says(port, 200, &["ok"]).await;
    let (_, told) = doctor(&admin);
    says(&told, "rights", &["ok", "may do all"]);

    // Another version's kinds, nodes with and without what they should have.
    let other = "{\"spec\": {\"versions\": [{\"name\": \"v1alpha1\", \"served\": true, \"storage\": true, \"schema\": {\"openAPIV3Schema\": {\"type\": \"object\", \"x-kubernetes-preserve-unknown-fields\": true}}, \"subresources\": {\"status\": {}}}]}}";
    let kind = "crd/gpuworkloads.gpu.warp.dev";
    kubectl
        .run(&["patch", kind, "--type=merge", "-p", other])
        .await
        .unwrap();
    let product = "{nvidia.com/gpu.product: NVIDIA-A100-SXM4-80GB}";
    node(&kubectl, "whole", product, "{\"nvidia.com/gpu\": \"8\"}").await;
    node(&kubectl, "nameless", "{}", "{\"nvidia.com/gpu\": \"4\"}").await;
    node(&kubectl, "silent", product, "{\"cpu\": \"4\"}").await;
    node(&kubectl, "red", "{}", "{\"amd.com/gpu\": \"2\"}").await;
    let (_, told) = doctor(&admin);
    says(
        &told,
        "kind",
        &["wrong", "is not this Warp's", "differs at"],
    );
    says(
        &told,
        "nvidia GPUs",
        &["ok", "12 on 2 nodes", "8 × NVIDIA-A100-SXM4-80GB"],
    );
    says(
        &told,
        "nvidia GPUs",
        &["note", "nameless", "GPU feature discovery"],
    );
    says(&told, "nvidia GPUs", &["note", "silent", "device plugin"]);
    says(&told, "amd GPUs", &["note", "red", "AMD's node labeller"]);

    // Who may see little is told what was not checked, and nothing is called wrong for it.
    let create = ["create", "serviceaccount", "nobody"];
    kubectl.run(&create).await.unwrap();
    let nobody = cluster.kubeconfig_as("default", "nobody").await.unwrap();
    let (fine, told) = doctor(&nobody);
    assert!(fine, "{told}");
    for check in ["kind", "operator", "node GPUs"] {
        says(&told, check, &["note", "not checked"]);
    }
    says(&told, "you", &["note", "may not create gpuworkloads"]);

    operator.signal(Signal::Terminate).unwrap();
    assert_eq!(operator.wait(PATIENCE).await.unwrap(), 0);
    all_json(&operator.log());
}

/// The last words too.
#[test]
fn an_operator_that_cannot_start_says_so_in_json() {
    let output = Command::new(env!("CARGO_BIN_EXE_warp"))
        .args([
            "operator",
            "--log-format=json",
            "--kubeconfig",
            "/no/such/file",
        ])
        .output()
        .unwrap();
    assert!(!output.status.success());
    let log = String::from_utf8(output.stderr).unwrap();
    all_json(&log);
    assert!(log.contains("/no/such/file"), "{log}");
}
