//! Stock kubectl, the same commands against a real kube-apiserver and against ours: its output
//! must be the same after masking names, ages and identity, and it must not complain more.

use std::path::{Path, PathBuf};
use std::process::Stdio;

use tokio::io::AsyncWriteExt;
use tokio::net::TcpListener;
use tokio::process::Command;
use warp_apiserver::{ApiServer, Options};
use warp_testkit::Cluster;

/// One command line; `< name` at its end feeds one of the manifests.
fn commands() -> Vec<String> {
    include_str!("requests/kubectl.txt")
        .lines()
        .map(str::trim)
        .filter(|line| !line.is_empty() && !line.starts_with('#'))
        .map(str::to_owned)
        .collect()
}

fn manifest(name: &str) -> &'static str {
    match name {
        "manifest" => include_str!("requests/kubectl-manifest.yaml"),
        "list" => include_str!("requests/kubectl-list.yaml"),
        "typed-list" => include_str!("requests/kubectl-typed-list.yaml"),
        "wrong-list" => include_str!("requests/kubectl-wrong-list.yaml"),
        other => panic!("there is no manifest {other}"),
    }
}

struct Output {
    code: i32,
    out: String,
    err: String,
}

async fn run(kubectl: &Path, kubeconfig: &Path, cache: &Path, line: &str) -> Output {
    let (line, input) = match line.split_once(" < ") {
        Some((line, name)) => (line.trim(), manifest(name)),
        None => (line, ""),
    };
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

/// Removes what differs between any two runs.
fn mask(text: &str) -> String {
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

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn kubectl_cannot_tell_the_servers_apart() {
    let real = Cluster::real()
        .api_server_only()
        .start()
        .await
        .expect("a real API server");
    let kubectl = warp_testkit::control_plane()
        .expect("binaries")
        .join("kubectl");
    let folder = tempfile::tempdir().expect("a folder");
    let (server, own) = ours(folder.path()).await;
    let theirs = real.kubeconfig();
    let mut different = Vec::new();
    let mut noisy = Vec::new();
    let commands = commands();
    for line in &commands {
        let caches = [folder.path().join("cache-a"), folder.path().join("cache-b")];
        let (a, b) = tokio::join!(
            run(&kubectl, &theirs, &caches[0], line),
            run(&kubectl, &own, &caches[1], line)
        );
        if a.code != b.code || mask(&a.out) != mask(&b.out) {
            different.push(format!(
                "$ kubectl {line}\n--- real ({})\n{}{}--- ours ({})\n{}{}",
                a.code, a.out, a.err, b.code, b.out, b.err
            ));
        } else if mask(&a.err) != mask(&b.err) {
            noisy.push(format!(
                "$ kubectl {line}\n--- real\n{}--- ours\n{}",
                a.err, b.err
            ));
        }
    }
    server.shutdown().await;
    if std::env::var_os("WARP_SHOW").is_some() {
        for text in different.iter().chain(&noisy) {
            println!("{text}");
        }
    }
    let allowed = commands.len() / 20;
    assert!(
        different.len() <= allowed,
        "{} of {} commands differ (at most {allowed} may):\n{}",
        different.len(),
        commands.len(),
        different.join("\n")
    );
    assert!(noisy.is_empty(), "extra complaints:\n{}", noisy.join("\n"));
}
