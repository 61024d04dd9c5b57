//! Stock kubectl, the same commands against a real kube-apiserver and against ours: its output
//! must be the same after masking names, ages and identity, and it must not complain more.

use std::path::{Path, PathBuf};
use std::process::Stdio;

use serde_json::Value;
use tokio::io::AsyncWriteExt;
use tokio::net::TcpListener;
use tokio::process::Command;
use warp_apiserver::{ApiServer, Options};
use warp_testkit::Cluster;

/// Command lines of a script. `< name` at the end of one feeds a manifest, `a | b` the output of `a`.
fn commands(script: &str) -> Vec<String> {
    script
        .lines()
        .map(str::trim)
        .filter(|line| !line.is_empty() && !line.starts_with('#'))
        .map(str::to_owned)
        .collect()
}

/// One of the manifests beside the scripts, or a file of the repository.
fn manifest(name: &str) -> String {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    let path = if name.contains('/') {
        here.join("../..").join(name)
    } else {
        here.join(format!("tests/it/requests/kubectl/{name}.yaml"))
    };
    std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

struct Output {
    code: i32,
    out: String,
    err: String,
}

/// One server and how kubectl reaches it.
struct Side {
    kubectl: PathBuf,
    kubeconfig: PathBuf,
    cache: PathBuf,
}

impl Side {
    async fn run(&self, line: &str) -> Output {
        if let Some((first, second)) = line.split_once(" | ") {
            let first = self.one(first, "").await;
            return self.one(second, &first.out).await;
        }
        match line.split_once(" < ") {
            Some((line, name)) => self.one(line.trim(), &manifest(name)).await,
            None => self.one(line, "").await,
        }
    }

    async fn one(&self, line: &str, input: &str) -> Output {
        kubectl(&self.kubectl, &self.kubeconfig, &self.cache, line, input).await
    }

    /// Asks until the answer has the text in it: a real server publishes documents in its own time.
    async fn until(&self, line: &str, text: &str) {
        for _ in 0..600 {
            if self.one(line, "").await.out.contains(text) {
                return;
            }
            tokio::time::sleep(std::time::Duration::from_millis(100)).await;
        }
        panic!("kubectl {line} never said {text}");
    }
}

async fn kubectl(
    kubectl: &Path,
    kubeconfig: &Path,
    cache: &Path,
    line: &str,
    input: &str,
) -> Output {
    let mut child = Command::new(kubectl)
        .arg("--kubeconfig")
        .arg(kubeconfig)
        .arg("--cache-dir")
        .arg(cache)
        .args(words(line))
        .env("KUBE_EDITOR", "sed -i s/blue/green/")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .kill_on_drop(true)
        .spawn()
        .expect("kubectl");
    let mut stdin = child.stdin.take().expect("a pipe");
    stdin.write_all(input.as_bytes()).await.expect("written");
    drop(stdin);
    let done = child.wait_with_output().await.expect("it ends");
    Output {
        code: done.status.code().unwrap_or(-1),
        out: String::from_utf8_lossy(&done.stdout).into_owned(),
        err: String::from_utf8_lossy(&done.stderr).into_owned(),
    }
}

/// Words of a command line; single quotes keep spaces.
fn words(line: &str) -> Vec<String> {
    let mut words = vec![String::new()];
    let mut quoted = false;
    for c in line.chars() {
        match c {
            '\'' => quoted = !quoted,
            ' ' if !quoted => words.push(String::new()),
            c => words.last_mut().expect("never empty").push(c),
        }
    }
    words.retain(|word| !word.is_empty());
    words
}

/// The writers of an object are listed by the second they wrote in, which is a matter of luck.
fn order_writers(text: &str) -> Option<String> {
    let mut object: Value = serde_json::from_str(text).ok()?;
    let writers = object["metadata"]["managedFields"].as_array_mut()?;
    for writer in writers.iter_mut() {
        writer["time"] = Value::Null;
    }
    writers.sort_by_cached_key(Value::to_string);
    Some(object.to_string())
}

/// Removes what differs between any two runs.
fn mask(text: &str) -> String {
    let ordered = order_writers(text);
    let text = ordered.as_deref().unwrap_or(text);
    let patterns = [
        (
            "[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}",
            "<uid>",
        ),
        (r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?Z", "<time>"),
        (r#"resourceVersion: "?\d*"?"#, "resourceVersion: <revision>"),
        (
            r#""resourceVersion": ?"\d*""#,
            "resourceVersion: <revision>",
        ),
        (r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d+ [+-]\d{4}", "<time>"),
        (r"Resource Version: +\d+", "Resource Version: <revision>"),
        (r"https://127\.0\.0\.1:\d+", "<server>"),
        (
            r"(Mon|Tue|Wed|Thu|Fri|Sat|Sun), \d\d \w{3} \d{4} \d\d:\d\d:\d\d \+0000",
            "<date>",
        ),
        (r"\b\d+(\.\d+)?ms\b", "<age>"),
        (r"\b(\d+(\.\d+)?[ydhms])+\b", "<age>"),
        (r"v1\.35\.\d+\S*", "<version>"),
        (r"/tmp/\S+", "<file>"),
        (r"[ \t]+", " "),
    ];
    let mut text = text.to_owned();
    for (pattern, to) in patterns {
        let pattern = regex::Regex::new(pattern).expect("a pattern");
        text = pattern.replace_all(&text, to).into_owned();
    }
    text
}

async fn ours(folder: &Path) -> (ApiServer, PathBuf) {
    let options = Options::ephemeral().expect("an identity");
    let server = ApiServer::start(options).await.expect("a server");
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let address = listener.local_addr().expect("an address");
    let path = folder.join("kubeconfig");
    server
        .write_kubeconfig(&path, address)
        .expect("a kubeconfig");
    let serving = server.clone();
    tokio::spawn(async move { serving.serve(listener).await });
    (server, path)
}

/// Both servers, and what they answered differently.
struct Servers {
    real: Side,
    ours: Side,
    server: ApiServer,
    _cluster: Cluster,
    _folder: tempfile::TempDir,
    asked: usize,
    different: Vec<String>,
    noisy: Vec<String>,
}

impl Servers {
    async fn start() -> Self {
        let cluster = Cluster::real()
            .api_server_only()
            .start()
            .await
            .expect("a real API server");
        let kubectl = warp_testkit::control_plane()
            .expect("binaries")
            .join("kubectl");
        let folder = tempfile::tempdir().expect("a folder");
        let (server, own) = ours(folder.path()).await;
        let side = |kubeconfig: PathBuf, cache: &str| Side {
            kubectl: kubectl.clone(),
            kubeconfig,
            cache: folder.path().join(cache),
        };
        Self {
            real: side(cluster.kubeconfig(), "cache-a"),
            ours: side(own, "cache-b"),
            server,
            _cluster: cluster,
            _folder: folder,
            asked: 0,
            different: Vec::new(),
            noisy: Vec::new(),
        }
    }

    async fn compare(&mut self, line: &str) {
        let (a, b) = tokio::join!(self.real.run(line), self.ours.run(line));
        self.asked += 1;
        if a.code != b.code || mask(&a.out) != mask(&b.out) {
            self.different.push(format!(
                "$ kubectl {line}\n--- real ({})\n{}{}--- ours ({})\n{}{}",
                a.code, a.out, a.err, b.code, b.out, b.err
            ));
        } else if mask(&a.err) != mask(&b.err) {
            self.noisy.push(format!(
                "$ kubectl {line}\n--- real\n{}--- ours\n{}",
                a.err, b.err
            ));
        }
    }

    /// Ends our server and judges: at most `allowed` commands may have been answered differently.
    async fn judge(self, allowed: usize) {
        self.server.shutdown().await;
        if std::env::var_os("WARP_SHOW").is_some() {
            for text in self.different.iter().chain(&self.noisy) {
                println!("{text}");
            }
        }
        assert!(
            self.different.len() <= allowed,
            "{} of {} commands differ (at most {allowed} may):\n{}",
            self.different.len(),
            self.asked,
            self.different.join("\n")
        );
        assert!(
            self.noisy.is_empty(),
            "extra complaints:\n{}",
            self.noisy.join("\n")
        );
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn kubectl_cannot_tell_the_servers_apart() {
    let mut servers = Servers::start().await;
    let commands = commands(include_str!("requests/kubectl.txt"));
    for line in &commands {
        servers.compare(line).await;
    }
    servers.judge(commands.len() / 20).await;
}

/// Resource, API and manifests of what the script for custom resources runs on, in this order: each kind twice, as what
/// was deleted and comes back is treated like what is new, and the kind with two versions in both. Tenants belong to no
/// namespace.
const CUSTOM: [[&str; 3]; 8] = [
    ["gadgets", "example.com/v1/Gadget", "gadget"],
    WORKLOADS,
    SERVICES,
    TENANTS,
    ["gadgets.v1.example.com", "example.com/v1/Gadget", "gadget"],
    WORKLOADS,
    SERVICES,
    TENANTS,
];

const WORKLOADS: [&str; 3] = [
    "gpuworkloads",
    "gpu.warp.dev/v1alpha1/GPUWorkload",
    "workload",
];
const SERVICES: [&str; 3] = [
    "inferenceservices",
    "gpu.warp.dev/v1alpha1/InferenceService",
    "service",
];
const TENANTS: [&str; 3] = ["tenants", "gpu.warp.dev/v1alpha1/Tenant", "tenant"];

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn kubectl_cannot_tell_the_servers_apart_by_custom_resources() {
    let mut servers = Servers::start().await;
    for line in [
        "create namespace shop",
        "apply -f - < gadget-definition",
        "wait crd/gadgets.example.com --for=condition=Established",
    ] {
        servers.compare(line).await;
    }
    for path in crate::published::own_definitions() {
        let file = path.file_name().expect("a name").to_string_lossy();
        let crd = file.strip_suffix(".yaml").expect("a definition");
        servers
            .compare(&format!("apply -f - < deploy/crds/{file}"))
            .await;
        servers
            .compare(&format!("wait crd/{crd} --for=condition=Established"))
            .await;
    }
    for side in [&servers.real, &servers.ours] {
        side.until("get --raw /openapi/v3/apis/example.com/v1", "GadgetList")
            .await;
        side.until("get --raw /openapi/v3/apis/example.com/v2", "GadgetList")
            .await;
        let v2 = "get --raw /openapi/v2";
        side.until(v2, "com.example.v2.GadgetList").await;
        for [_, api, _] in [WORKLOADS, SERVICES, TENANTS] {
            let (_, kind) = api.rsplit_once('/').expect("a kind");
            let path = "get --raw /openapi/v3/apis/gpu.warp.dev/v1alpha1";
            side.until(path, &format!("{kind}List")).await;
            side.until(v2, &format!("dev.warp.gpu.v1alpha1.{kind}List"))
                .await;
        }
    }
    let commands = commands(include_str!("requests/kubectl-custom.txt"));
    for [kind, api, file] in CUSTOM {
        for line in &commands {
            let line = line.replace("{kind}", kind).replace("{api}", api);
            servers.compare(&line.replace("{file}", file)).await;
        }
    }
    servers.judge(0).await;
}
