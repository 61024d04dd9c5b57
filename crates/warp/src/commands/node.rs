//! `warp node`: nodes without the rest of the engine.

use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;

use anyhow::Context;
use tokio_util::sync::CancellationToken;
use warp_local::controllers::Clock;
use warp_local::node::access::Access;
use warp_local::node::docker;
use warp_local::node::faults;
use warp_local::node::fleet::Fleet;
use warp_local::node::host::Options;
use warp_local::node::process::{self, machine};
use warp_local::node::{Host, Simulated};

use super::up::{Machine, RuntimeChoice};
use crate::cluster::{self, Target};
use crate::output;

#[derive(clap::Args, Debug)]
pub(crate) struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(clap::Subcommand, Debug)]
enum Command {
    /// Add simulated nodes to a cluster; they run pods in appearance only
    Simulate(Simulate),
    /// Add this machine to a cluster; its pods run as processes (not a sandbox)
    Process(Process),
    /// Add this machine to a cluster; its pods run as containers of Docker or Podman
    Docker(OnDocker),
}

#[derive(clap::Args, Debug)]
struct Simulate {
    /// Fleet file: pools of nodes and their GPUs
    #[arg(long, value_name = "FILE")]
    nodes: PathBuf,
    #[command(flatten)]
    target: Target,
}

#[derive(clap::Args, Debug)]
struct Process {
    /// Where logs, volumes and state of pods are kept [default: the user's data directory]
    #[arg(long, value_name = "DIR")]
    pods: Option<PathBuf>,
    /// Name of the node [default: this machine's]
    #[arg(long, value_name = "NAME")]
    name: Option<String>,
    /// Run pods as root
    #[arg(long)]
    allow_root: bool,
    #[command(flatten)]
    target: Target,
}

#[derive(clap::Args, Debug)]
struct OnDocker {
    /// Where volumes and state of pods are kept [default: the user's data directory]
    #[arg(long, value_name = "DIR")]
    pods: Option<PathBuf>,
    /// Name of the node [default: this machine's]
    #[arg(long, value_name = "NAME")]
    name: Option<String>,
    /// Socket of the engine [default: DOCKER_HOST, or where Docker and Podman put it]
    #[arg(long, value_name = "FILE")]
    socket: Option<PathBuf>,
    #[command(flatten)]
    target: Target,
}

pub(crate) fn run(args: Args) -> anyhow::Result<ExitCode> {
    match args.command {
        Command::Simulate(args) => cluster::block_on(simulate(args)),
        Command::Process(args) => cluster::block_on(run_process(args)),
        Command::Docker(args) => cluster::block_on(run_docker(args)),
    }
}

/// This machine's name as a node may have it.
pub(crate) fn machine_name() -> String {
    let name = rustix::system::uname()
        .nodename()
        .to_string_lossy()
        .to_ascii_lowercase();
    let clean: String = name
        .chars()
        .map(|c| {
            if c.is_ascii_alphanumeric() || c == '-' || c == '.' {
                c
            } else {
                '-'
            }
        })
        .collect();
    let clean = clean.trim_matches(['-', '.']).to_owned();
    if clean.is_empty() {
        "local".to_owned()
    } else {
        clean
    }
}

/// Running other people's commands as root needs a word from the person in charge.
pub(crate) fn refuse_root(allow_root: bool) -> Option<&'static str> {
    (rustix::process::geteuid().is_root() && !allow_root)
        .then_some("pods would run as root on this machine; say --allow-root if that is what you want, or start Warp as another user")
}

async fn run_process(args: Process) -> anyhow::Result<ExitCode> {
    if let Some(why) = refuse_root(args.allow_root) {
        anyhow::bail!("{why}");
    }
    let data = args
        .pods
        .or_else(cluster::data_directory)
        .context("no home directory: say where with --pods")?;
    let connection = args.target.connect().await?;
    let name = args.name.unwrap_or_else(machine_name);
    let Local { host, .. } = process_host(connection.client, &data, &name)?;
    let note = format!(
        "node {name} joined; its pods are processes of this machine and outlive this command"
    );
    serve(host, &note).await
}

async fn run_docker(args: OnDocker) -> anyhow::Result<ExitCode> {
    let data = args
        .pods
        .or_else(cluster::data_directory)
        .context("no home directory: say where with --pods")?;
    let api = docker::find(&docker::Search::from_environment(args.socket)).await?;
    let socket = api.socket().display().to_string();
    let connection = args.target.connect().await?;
    let name = args.name.unwrap_or_else(machine_name);
    let Local { host, .. } = docker_host(connection.client, &data, &name, api);
    let note =
        format!("node {name} joined; its pods are containers of {socket} and outlive this command");
    serve(host, &note).await
}

/// A host for this machine, and the way to its pods' logs.
pub(crate) struct Local {
    pub(crate) host: Host,
    pub(crate) access: Arc<dyn Access>,
}

/// What runs the pods of this machine.
pub(crate) enum Chosen {
    Process,
    Docker(docker::Api),
}

/// What this machine can run pods with, and how to call it; or why it cannot.
pub(crate) async fn choose(machine: &Machine) -> Result<(Chosen, String), String> {
    let gpus = machine::gpus();
    let devices: Vec<String> = gpus
        .iter()
        .map(|found| format!("{} × {}", found.count, found.product))
        .collect();
    let with = if devices.is_empty() {
        "no GPU".to_owned()
    } else {
        devices.join(", ")
    };
    let docker = match machine.runtime {
        RuntimeChoice::None => return Err("--runtime none".to_owned()),
        RuntimeChoice::Process => None,
        RuntimeChoice::Auto | RuntimeChoice::Docker => {
            let found = docker::find(&docker::Search::from_environment(None)).await;
            match (found, machine.runtime) {
                (Ok(api), _) => Some(api),
                (Err(error), RuntimeChoice::Docker) => return Err(error.to_string()),
                (Err(_), _) => None,
            }
        }
    };
    if let Some(api) = docker {
        let told = format!(
            "this machine as a node ({with}); pods are containers of {}",
            api.socket().display()
        );
        return Ok((Chosen::Docker(api), told));
    }
    if let Some(why) = refuse_root(machine.allow_root) {
        return Err(why.to_owned());
    }
    let limits = match process::Cgroups::find() {
        process::Cgroups::None { why } => format!(
            "; limits are kept for memory only and roughly ({why}; `warp doctor` says what to do)"
        ),
        _ => String::new(),
    };
    Ok((
        Chosen::Process,
        format!("this machine as a node ({with}); pods are processes, not containers{limits}"),
    ))
}

/// This machine as a node, with its files below `data`.
pub(crate) fn local_host(
    client: kube::Client,
    data: &std::path::Path,
    chosen: Chosen,
) -> anyhow::Result<Local> {
    match chosen {
        Chosen::Process => process_host(client, data, &machine_name()),
        Chosen::Docker(api) => Ok(docker_host(client, data, &machine_name(), api)),
    }
}

/// A host that runs pods as containers of an engine, with its files below `data`.
fn docker_host(
    client: kube::Client,
    data: &std::path::Path,
    name: &str,
    api: docker::Api,
) -> Local {
    let (runtime, reports) = docker::Docker::new(client.clone(), api, data);
    let runtime = Arc::new(runtime);
    let host = Host {
        client,
        clock: Clock::system(),
        options: Options::for_fleet(1),
        shapes: vec![machine::shape(
            name,
            "docker",
            "127.0.0.1",
            &machine::gpus(),
        )],
        runtime: runtime.clone(),
        reports: Some(reports),
    };
    Local {
        host,
        access: runtime,
    }
}

/// A host that runs pods as processes, with its files below `data`.
fn process_host(client: kube::Client, data: &std::path::Path, name: &str) -> anyhow::Result<Local> {
    const ADDRESS: &str = "127.0.0.1";
    let program = std::env::current_exe().context("failed to find this program")?;
    let (runtime, reports) = process::Process::new(
        client.clone(),
        data,
        program,
        ADDRESS,
        process::Cgroups::find(),
    )?;
    let runtime = Arc::new(runtime);
    let host = Host {
        client,
        clock: Clock::system(),
        options: Options::for_fleet(1),
        shapes: vec![machine::shape(name, "process", ADDRESS, &machine::gpus())],
        runtime: runtime.clone(),
        reports: Some(reports),
    };
    Ok(Local {
        host,
        access: runtime,
    })
}

/// Reads a fleet file.
pub(crate) fn fleet(file: &std::path::Path) -> anyhow::Result<Fleet> {
    let text = std::fs::read_to_string(file)
        .with_context(|| format!("failed to read the fleet file {}", file.display()))?;
    Ok(Fleet::parse(&text, &file.display().to_string())?)
}

async fn simulate(args: Simulate) -> anyhow::Result<ExitCode> {
    let fleet = fleet(&args.nodes)?;
    let connection = args.target.connect().await?;
    let count = fleet.nodes.len();
    tokio::spawn(faults::play(connection.client.clone(), fleet.faults));
    let host = Host {
        client: connection.client,
        clock: Clock::system(),
        options: Options::for_fleet(count),
        runtime: Arc::new(Simulated::new(fleet.defaults)),
        shapes: fleet.nodes,
        reports: None,
    };
    serve(host, &format!("{count} simulated nodes joined; Ctrl-C takes them away from their pods (the node objects stay)")).await
}

/// Runs a host until the process is asked to end.
async fn serve(host: Host, note: &str) -> anyhow::Result<ExitCode> {
    let stop = CancellationToken::new();
    let mut running = tokio::spawn(host.run(stop.clone()));
    output::note(note);
    tokio::select! {
        _ = tokio::signal::ctrl_c() => {}
        () = terminated() => {}
        ended = &mut running => {
            ended.context("the nodes stopped unexpectedly")??;
            return Ok(ExitCode::FAILURE);
        }
    }
    stop.cancel();
    running.await.context("the nodes stopped unexpectedly")??;
    Ok(ExitCode::SUCCESS)
}

/// Resolves when the process is asked to end.
pub(crate) async fn terminated() {
    match tokio::signal::unix::signal(tokio::signal::unix::SignalKind::terminate()) {
        Ok(mut signal) => {
            signal.recv().await;
        }
        Err(_) => std::future::pending().await,
    }
}
