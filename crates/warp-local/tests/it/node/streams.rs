//! `exec`, `cp`, `attach` and `port-forward` by stock kubectl, over WebSocket and over SPDY, on a process node and on a
//! Docker node (whose engine is a fake that has no terminals); and what a simulated node says to them.

use std::path::{Path, PathBuf};
use std::process::{Output, Stdio};
use std::sync::Arc;

use k8s_openapi::api::core::v1::Pod;
use kube::Api;
use kube::api::PostParams;
use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::{TcpListener, TcpStream};
use tokio::process::{Child, Command};
use tokio_util::sync::CancellationToken;
use warp_apiserver::{ApiServer, Options};
use warp_local::controllers;
use warp_local::node::access::{Access, Hooks};
use warp_local::node::docker::{self, Docker, Search};
use warp_local::node::process::{Cgroups, Process, machine};
use warp_local::node::runtime::{Report, Runtime};
use warp_local::node::{Host, Simulated, host};
use warp_testkit::{PATIENCE, wait_for};

use super::Leftovers;

/// kubectl, and how it is to speak.
#[derive(Clone)]
struct Kubectl {
    program: PathBuf,
    kubeconfig: PathBuf,
    websocket: bool,
}

impl Kubectl {
    fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(&self.program);
        let way = if self.websocket { "true" } else { "false" };
        command
            .arg("--kubeconfig")
            .arg(&self.kubeconfig)
            .args(arguments)
            .env("KUBECTL_REMOTE_COMMAND_WEBSOCKETS", way)
            .env("KUBECTL_PORT_FORWARD_WEBSOCKETS", way)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .kill_on_drop(true);
        command
    }

    async fn run(&self, arguments: &[&str], input: &[u8]) -> Output {
        let mut child = self.command(arguments).spawn().unwrap();
        let mut stdin = child.stdin.take().unwrap();
        let input = input.to_vec();
        let feeding = tokio::spawn(async move { stdin.write_all(&input).await });
        let output = tokio::time::timeout(PATIENCE, child.wait_with_output()).await;
        feeding.abort();
        output.expect("kubectl ends").unwrap()
    }

    /// What a command that must succeed printed.
    async fn ok(&self, arguments: &[&str], input: &[u8]) -> Vec<u8> {
        let output = self.run(arguments, input).await;
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{arguments:?}: {said}");
        output.stdout
    }

    fn way(&self) -> String {
        let way = if self.websocket { "websocket" } else { "spdy" };
        format!("{} by {way}", self.program.display())
    }
}

/// A server whose pods run on one node, and its kubeconfig.
struct Engine {
    client: kube::Client,
    kubeconfig: PathBuf,
}

async fn engine(folder: &Path, name: &str) -> (Engine, Hooks) {
    let hooks = Hooks::default();
    let options = Options {
        hooks: Arc::new(hooks.clone()),
        ..Options::ephemeral().unwrap()
    };
    let server = ApiServer::start(options).await.unwrap();
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let kubeconfig = folder.join(format!("{name}.kubeconfig"));
    let address = listener.local_addr().unwrap();
    server.write_kubeconfig(&kubeconfig, address).unwrap();
    let client = server.client("default");
    tokio::spawn(controllers::run(
        client.clone(),
        server.clock().clone(),
        controllers::Options::default(),
        CancellationToken::new(),
    ));
    tokio::spawn(async move { server.serve(listener).await });
    let accounts: Api<k8s_openapi::api::core::v1::ServiceAccount> =
        Api::namespaced(client.clone(), "default");
    wait_for(&accounts, "default", "made", PATIENCE, |account| {
        account.is_some()
    })
    .await
    .unwrap();
    (Engine { client, kubeconfig }, hooks)
}

fn node<R: Runtime + Access>(
    engine: &Engine,
    hooks: &Hooks,
    runtime: R,
    reports: Option<tokio::sync::mpsc::UnboundedReceiver<Report>>,
) {
    let runtime = Arc::new(runtime);
    hooks.connect_to(runtime.clone());
    let host = Host {
        client: engine.client.clone(),
        clock: controllers::Clock::system(),
        options: host::Options::for_fleet(1),
        shapes: vec![machine::shape("here", "here", "127.0.0.1", &[])],
        runtime,
        reports,
    };
    tokio::spawn(host.run(CancellationToken::new()));
}

async fn start(engine: &Engine, name: &str, image: &str, script: &str, more: &Value) {
    let mut container = json!({"name": "c", "image": image, "command": ["sh", "-c", script]});
    for (key, value) in more.as_object().into_iter().flatten() {
        container[key] = value.clone();
    }
    let pod = json!({"metadata": {"name": name}, "spec": {"nodeName": "here", "restartPolicy": "Never",
        "terminationGracePeriodSeconds": 0, "containers": [container]}});
    let pods: Api<Pod> = Api::namespaced(engine.client.clone(), "default");
    let pod = serde_json::from_value(pod).unwrap();
    pods.create(&PostParams::default(), &pod).await.unwrap();
    wait_for(&pods, name, "running", PATIENCE, |pod| {
        pod.and_then(|pod| pod.status.as_ref()?.phase.as_deref()) == Some("Running")
    })
    .await
    .unwrap();
}

/// The control plane's kubectl, and this machine's if it has one.
fn programs() -> Vec<PathBuf> {
    let mut programs = vec![warp_testkit::control_plane().unwrap().join("kubectl")];
    let own = PathBuf::from("/usr/bin/kubectl");
    programs.extend(own.exists().then_some(own));
    programs
}

fn every_way(kubeconfig: &Path) -> Vec<Kubectl> {
    programs()
        .into_iter()
        .flat_map(|program| {
            [true, false].map(|websocket| Kubectl {
                program: program.clone(),
                kubeconfig: kubeconfig.to_owned(),
                websocket,
            })
        })
        .collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn kubectl_reaches_into_the_pods_of_a_process_node() {
    let folder = tempfile::tempdir().unwrap();
    let (engine, hooks) = engine(folder.path(), "process").await;
    let root = folder.path().join("data");
    let _leftovers = Leftovers(root.clone());
    let program = env!("CARGO_BIN_EXE_pod-supervisor").into();
    let (process, reports) = Process::new(
        engine.client.clone(),
        &root,
        program,
        "127.0.0.1",
        Cgroups::find(),
    )
    .unwrap();
    node(&engine, &hooks, process, Some(reports));
    start(&engine, "p", "local://", "sleep 600", &json!({})).await;
    for (number, kubectl) in every_way(&engine.kubeconfig).iter().enumerate() {
        commands_run_in_it(kubectl).await;
        let absent = no_such_program(kubectl).await;
        let err = String::from_utf8_lossy(&absent.stderr);
        assert!(err.contains("no-such-program"), "{}: {err}", kubectl.way());
        several_commands_run_at_once(kubectl).await;
        a_terminal_has_the_size_of_the_clients(kubectl).await;
        files_are_copied_both_ways(kubectl, folder.path(), number).await;
        output_and_input_are_attached_to(&engine, "local://", kubectl, number).await;
        ports_are_forwarded(kubectl).await;
        a_running_pod_gets_no_more_containers(kubectl).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn kubectl_reaches_into_the_containers_of_a_docker_node() {
    let folder = tempfile::tempdir().unwrap();
    let (engine, hooks) = engine(folder.path(), "docker").await;
    let socket = folder.path().join("docker.sock");
    let _listening = super::docker::fake::Engine::new().listen(&socket);
    let search = Search {
        given: Some(socket),
        ..Search::default()
    };
    let api = docker::find(&search).await.unwrap();
    let (runtime, reports) = Docker::new(engine.client.clone(), api, &folder.path().join("data"));
    node(&engine, &hooks, runtime, Some(reports));
    start(&engine, "p", "app:1", "sleep 600", &json!({})).await;
    for (number, kubectl) in every_way(&engine.kubeconfig).iter().enumerate() {
        commands_run_in_it(kubectl).await;
        // The engine says it where the command would have printed.
        let absent = no_such_program(kubectl).await;
        let out = String::from_utf8_lossy(&absent.stdout);
        assert!(out.contains("no-such-program"), "{}: {out}", kubectl.way());
        several_commands_run_at_once(kubectl).await;
        files_are_copied_both_ways(kubectl, folder.path(), number).await;
        output_and_input_are_attached_to(&engine, "app:1", kubectl, number).await;
        ports_are_forwarded(kubectl).await;
        a_running_pod_gets_no_more_containers(kubectl).await;
    }
}

async fn no_such_program(kubectl: &Kubectl) -> Output {
    let absent = kubectl
        .run(&["exec", "p", "--", "no-such-program"], b"")
        .await;
    assert!(!absent.status.success(), "{}", kubectl.way());
    absent
}

/// `kubectl debug` adds a container to a pod that runs, which is not served: it says what can be done instead.
async fn a_running_pod_gets_no_more_containers(kubectl: &Kubectl) {
    let debug = kubectl.run(&["debug", "p", "--image=x"], b"").await;
    assert!(!debug.status.success(), "{}", kubectl.way());
    let err = String::from_utf8_lossy(&debug.stderr);
    for told in [
        "ephemeral containers are not served by the embedded control plane",
        "kubectl exec",
        "kubectl debug POD --copy-to=NAME",
    ] {
        assert!(err.contains(told), "{}: {err}", kubectl.way());
    }
}

async fn commands_run_in_it(kubectl: &Kubectl) {
    let way = kubectl.way();
    let said = kubectl
        .run(
            &[
                "exec",
                "p",
                "--",
                "sh",
                "-c",
                "echo out; echo err >&2; exit 7",
            ],
            b"",
        )
        .await;
    assert_eq!(said.status.code(), Some(7), "{way}");
    assert_eq!(String::from_utf8_lossy(&said.stdout), "out\n", "{way}");
    let err = String::from_utf8_lossy(&said.stderr);
    assert!(err.starts_with("err\n"), "{way}: {err}");
    assert!(err.contains("exit code 7"), "{way}: {err}");
    // The end of the input is passed on, after all of it.
    let much: Vec<u8> = (0..1_500_000_u32).map(|n| n.to_le_bytes()[0]).collect();
    let back = kubectl.ok(&["exec", "-i", "p", "--", "cat"], &much).await;
    assert!(
        back == much,
        "{way}: {} of {} bytes",
        back.len(),
        much.len()
    );
    let script = "head -c 6000000 /dev/zero";
    let many = kubectl
        .ok(&["exec", "p", "--", "sh", "-c", script], b"")
        .await;
    assert_eq!(many.len(), 6_000_000, "{way}");
    // Input nobody reads stops nothing.
    let quiet = kubectl.ok(&["exec", "-i", "p", "--", "echo", "done"], &much);
    assert_eq!(quiet.await, b"done\n", "{way}");
}

async fn several_commands_run_at_once(kubectl: &Kubectl) {
    let one = |number: usize| async move {
        let text = format!("number {number}");
        let said = kubectl
            .ok(&["exec", "-i", "p", "--", "cat"], text.as_bytes())
            .await;
        assert_eq!(said, text.as_bytes(), "{}", kubectl.way());
    };
    tokio::join!(one(1), one(2), one(3), one(4));
}

async fn a_terminal_has_the_size_of_the_clients(kubectl: &Kubectl) {
    let inside = "until stty size | grep '33 77'; do sleep 0.1; done; tty; exit 5";
    let line = format!(
        "stty rows 33 cols 77; '{}' --kubeconfig '{}' exec -it p -- sh -c \"{inside}\"",
        kubectl.program.display(),
        kubectl.kubeconfig.display()
    );
    let way = if kubectl.websocket { "true" } else { "false" };
    let run = Command::new("script")
        .args(["-qec", &line, "/dev/null"])
        .env("KUBECTL_REMOTE_COMMAND_WEBSOCKETS", way)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .kill_on_drop(true)
        .spawn()
        .unwrap();
    let output = tokio::time::timeout(PATIENCE, run.wait_with_output()).await;
    let output = output.expect("it ends").unwrap();
    let shown = String::from_utf8_lossy(&output.stdout);
    assert!(shown.contains("33 77"), "{}: {shown}", kubectl.way());
    assert!(shown.contains("/dev/pts/"), "{}: {shown}", kubectl.way());
    assert_eq!(output.status.code(), Some(5), "{}: {shown}", kubectl.way());
}

async fn files_are_copied_both_ways(kubectl: &Kubectl, folder: &Path, number: usize) {
    let (from, back) = (folder.join("sent"), folder.join(format!("back{number}")));
    let there = folder.join(format!("there{number}"));
    let content: Vec<u8> = (0..300_000_u32).flat_map(u32::to_le_bytes).collect();
    std::fs::write(&from, &content).unwrap();
    let far = format!("p:{}", there.display());
    let path = |path: &Path| path.display().to_string();
    kubectl.ok(&["cp", &path(&from), &far], b"").await;
    assert!(
        std::fs::read(&there).unwrap() == content,
        "{}",
        kubectl.way()
    );
    kubectl.ok(&["cp", &far, &path(&back)], b"").await;
    assert!(
        std::fs::read(&back).unwrap() == content,
        "{}",
        kubectl.way()
    );
}

async fn output_and_input_are_attached_to(
    engine: &Engine,
    image: &str,
    kubectl: &Kubectl,
    number: usize,
) {
    let (talks, hears) = (format!("talks{number}"), format!("hears{number}"));
    let script = "while true; do echo tick; sleep 0.1; done";
    start(engine, &talks, image, script, &json!({})).await;
    let mut child = kubectl.command(&["attach", &talks]).spawn().unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let line = tokio::time::timeout(PATIENCE, lines.next_line()).await;
    let line = line.expect("a line").unwrap();
    assert_eq!(line.as_deref(), Some("tick"), "{}", kubectl.way());
    child.kill().await.unwrap();
    let input = json!({"stdin": true, "stdinOnce": true});
    let script = "while read line; do echo heard $line; done; echo over";
    start(engine, &hears, image, script, &input).await;
    let said = kubectl.ok(&["attach", "-i", &hears], b"one\ntwo\n").await;
    let said = String::from_utf8_lossy(&said);
    assert_eq!(said, "heard one\nheard two\nover\n", "{}", kubectl.way());
}

/// `kubectl port-forward`, and the local port it said.
async fn forwarding(kubectl: &Kubectl, port: u16) -> (Child, u16) {
    let mut child = kubectl
        .command(&["port-forward", "p", &format!(":{port}")])
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let line = tokio::time::timeout(PATIENCE, lines.next_line()).await;
    let line = line.expect("a line").unwrap().expect("kubectl forwards");
    let local = line
        .split("127.0.0.1:")
        .nth(1)
        .and_then(|rest| rest.split(' ').next());
    let local = local.unwrap_or_else(|| panic!("no port in {line}"));
    // Kept open: kubectl says more as it goes.
    tokio::spawn(async move { while let Ok(Some(_)) = lines.next_line().await {} });
    (child, local.parse().unwrap())
}

async fn ports_are_forwarded(kubectl: &Kubectl) {
    // The pod shares this machine's network: what listens here listens in it.
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    let echo = tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            tokio::spawn(async move {
                let (mut read, mut write) = stream.split();
                tokio::io::copy(&mut read, &mut write).await.ok();
                write.shutdown().await.ok();
            });
        }
    });
    let (mut child, local) = forwarding(kubectl, port).await;
    let one = |number: u8| async move {
        let sent = vec![number; 700_000];
        let stream = TcpStream::connect(("127.0.0.1", local)).await.unwrap();
        let (mut read, mut write) = stream.into_split();
        let writing = async {
            write.write_all(&sent).await.unwrap();
            write.shutdown().await.unwrap();
        };
        let mut back = Vec::new();
        let ((), read) = tokio::join!(writing, read.read_to_end(&mut back));
        read.unwrap();
        assert!(back == sent, "{} bytes came back", back.len());
    };
    let all = async { tokio::join!(one(1), one(2), one(3)) };
    tokio::time::timeout(PATIENCE, all).await.expect("echoes");
    child.kill().await.unwrap();
    echo.abort();
    let closed = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = closed.local_addr().unwrap().port();
    drop(closed);
    let (mut child, local) = forwarding(kubectl, port).await;
    let mut stream = TcpStream::connect(("127.0.0.1", local)).await.unwrap();
    let mut lines = BufReader::new(child.stderr.take().unwrap()).lines();
    stream.write_all(b"hello").await.ok();
    let line = tokio::time::timeout(PATIENCE, lines.next_line()).await;
    let line = line.expect("a line").unwrap().unwrap_or_default();
    let told = format!("error forwarding port {port} to pod p, uid ");
    assert!(line.contains(&told), "{}: {line}", kubectl.way());
    assert!(line.contains("refused"), "{}: {line}", kubectl.way());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_simulated_node_says_that_nothing_runs_there() {
    let folder = tempfile::tempdir().unwrap();
    let (engine, hooks) = engine(folder.path(), "simulated").await;
    node(&engine, &hooks, Simulated::default(), None);
    start(&engine, "p", "example/app:1", "sleep 600", &json!({})).await;
    for kubectl in every_way(&engine.kubeconfig) {
        a_running_pod_gets_no_more_containers(&kubectl).await;
        let refused: [&[&str]; 6] = [
            &["exec", "p", "--", "nvidia-smi"],
            // What a simulated container would understand as its command is no exception.
            &["exec", "p", "--", "true"],
            &["cp", "p:/etc/hostname", "hostname"],
            &["attach", "p"],
            &["attach", "-i", "p"],
            &["port-forward", "p", ":80"],
        ];
        for arguments in refused {
            let output = kubectl.run(arguments, b"").await;
            let err = String::from_utf8_lossy(&output.stderr);
            assert!(!output.status.success(), "{arguments:?}");
            assert!(
                err.contains(
                    "pod \"p\" runs on simulated node \"here\": nothing really runs there"
                ),
                "{} {arguments:?}: {err}",
                kubectl.way()
            );
        }
    }
}
