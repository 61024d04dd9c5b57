//! `warp up`: this machine as a cluster.

mod creators;
mod engine;
mod fleet;
pub(crate) mod instance;
mod log;
mod next;

use std::io::IsTerminal;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::process::{Command, ExitCode, Stdio};
use std::time::Duration;

use anyhow::{Context, bail};
use tokio::net::TcpListener;
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;
use tracing_subscriber::{EnvFilter, Layer, fmt};
use warp_local::node::fleet::Fleet;
use warp_local::node::{docker, process};

use self::engine::{Engine, Nodes, Plan};
use self::instance::{Instance, Kind, Note};
use super::{down, node};
use crate::{cluster, output};

const PORT: u16 = 6443;
/// A detached start is given up after this.
const START_LIMIT: Duration = Duration::from_mins(1);

#[derive(clap::Args, Debug)]
#[expect(
    clippy::struct_excessive_bools,
    reason = "each is a flag of the command line"
)]
pub(crate) struct Args {
    /// Where state, logs and the kubeconfig are kept [default: the user's data directory]
    #[arg(long, value_name = "DIR")]
    data: Option<PathBuf>,
    /// Keep nothing: all state is forgotten when the process ends
    #[arg(long)]
    ephemeral: bool,
    /// Begin with nothing; what earlier runs stored is put aside
    #[arg(long, conflicts_with = "ephemeral")]
    discard_data: bool,
    /// Return when it runs, and leave it running
    #[arg(long, conflicts_with = "ephemeral")]
    detach: bool,
    /// Simulate the nodes of this fleet file instead of using this machine
    #[arg(long, value_name = "FILE", conflicts_with = "demo")]
    nodes: Option<PathBuf>,
    /// Simulate a fleet of mixed GPUs, and a cloud to rent more from for fake money
    #[arg(long)]
    demo: bool,
    /// Port of the Kubernetes API on this machine; 0 takes a free one
    #[arg(long, default_value_t = PORT)]
    port: u16,
    /// Port of /metrics, /healthz and /readyz on this machine; 0 takes a free one
    #[arg(long, default_value_t = 0, value_name = "PORT")]
    metrics_port: u16,
    /// How long an Event is kept after its last write
    #[arg(long, value_name = "TIME", default_value = "1h", value_parser = super::duration)]
    event_ttl: Duration,
    #[command(flatten)]
    machine: Machine,
}

/// How this machine itself serves as a node.
#[derive(clap::Args, Clone, Debug)]
pub(crate) struct Machine {
    /// What runs the pods of this machine
    #[arg(long, value_enum, default_value = "auto")]
    pub(crate) runtime: RuntimeChoice,
    /// Let pods run as root when Warp does
    #[arg(long)]
    pub(crate) allow_root: bool,
}

#[derive(clap::ValueEnum, Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RuntimeChoice {
    /// Docker or Podman where one answers, processes otherwise
    Auto,
    Process,
    Docker,
    /// No node at all
    None,
}

pub(crate) fn run(args: Args) -> anyhow::Result<ExitCode> {
    let instance = instance_of(&args)?;
    // Read before anything starts: a typo must not leave half an engine behind.
    let fleet = match (&args.nodes, args.demo) {
        (Some(file), _) => Some(node::fleet(file)?),
        (None, true) => Some(Fleet::demo()),
        (None, false) => None,
    };
    instance.create()?;
    if let Some(note) = instance.answering()? {
        if args.discard_data {
            bail!(
                "Warp is up already (process {}) and its data is in use; stop it first with `warp down --data {}`",
                note.pid,
                instance.folder.display()
            );
        }
        output::note(&format!(
            "Warp is up already (process {}, since {:.0}): {} with {}; nothing was changed",
            note.pid, note.started, note.server, note.nodes
        ));
        next::say(&instance, &note);
        return Ok(ExitCode::SUCCESS);
    }
    if args.detach {
        return detach(&args, &instance);
    }
    start_log(&instance)?;
    cluster::block_on(up(args, instance, fleet))
}

fn instance_of(args: &Args) -> anyhow::Result<Instance> {
    if args.ephemeral && args.data.is_none() {
        return Instance::temporary();
    }
    let instance = Instance::at(args.data.clone())?;
    if args.ephemeral && instance.has_state() {
        bail!(
            "{} keeps the state of earlier runs, and --ephemeral would remove it; leave --data out, or choose an empty directory",
            instance.folder.display()
        );
    }
    Ok(instance)
}

async fn up(args: Args, instance: Instance, fleet: Option<Fleet>) -> anyhow::Result<ExitCode> {
    let Some(lock) = instance.lock()? else {
        bail!(
            "the data directory {} is in use by another Warp; `warp status` shows it",
            instance.folder.display()
        );
    };
    // A predecessor that was killed left its note; whoever reads it now would take its process id,
    // perhaps somebody else's by now, for ours.
    instance.remove_note();
    if args.discard_data {
        discard(&instance)?;
    }
    let started = std::time::Instant::now();
    let listener = listen(args.port).await?;
    let pages = pages(args.metrics_port)?;
    let metrics = pages
        .local_addr()
        .context("failed to read the address of /metrics")?;
    let (nodes, told) = nodes(&args, fleet).await?;
    let kind = nodes.kind();
    let plan = Plan {
        instance: instance.clone(),
        ephemeral: args.ephemeral,
        demo: args.demo,
        event_ttl: args.event_ttl,
        listener,
        pages,
        nodes,
    };
    let mut engine = Engine::start(plan).await?;
    let note = Note {
        pid: rustix::process::getpid().as_raw_nonzero().get(),
        server: format!("https://{}", engine.address),
        metrics: Some(format!("http://{metrics}/metrics")),
        version: env!("CARGO_PKG_VERSION").to_owned(),
        started: jiff::Timestamp::now(),
        nodes: told,
        kind,
    };
    instance.write_note(&note)?;
    tracing::info!(server = %note.server, "up");
    output::note(&format!(
        "Warp is up after {:.1} s: {} with {}",
        started.elapsed().as_secs_f64(),
        note.server,
        note.nodes
    ));
    next::say(&instance, &note);
    let ended = tokio::select! {
        _ = tokio::signal::ctrl_c() => Ok(()),
        () = node::terminated() => Ok(()),
        error = engine.broken() => Err(error),
    };
    output::note("stopping …");
    instance.remove_note();
    engine.stop().await;
    farewell(&args, &instance, note.kind).await;
    drop(lock);
    ended.map(|()| ExitCode::SUCCESS)
}

/// Puts what earlier runs stored aside, and says where it is.
pub(crate) fn discard(instance: &Instance) -> anyhow::Result<()> {
    match warp_apiserver::store::discard(&instance.database())? {
        Some(place) => output::note(&format!(
            "what was stored is now in {}; remove it when nobody needs it any more",
            place.display()
        )),
        None => output::note("there was no data to discard"),
    }
    Ok(())
}

/// What is left when the engine has stopped.
async fn farewell(args: &Args, instance: &Instance, kind: Kind) {
    if args.ephemeral {
        if let Err(error) = down::purge(instance).await {
            output::error(&error);
        }
        return;
    }
    if kind == Kind::Simulated {
        // A simulated node without Warp is nothing; the next start runs its engines again.
        process::end_all(&instance.engines()).await;
    }
    let processes = fleet::still_running(instance);
    let containers = if kind == Kind::Docker {
        docker::running(&instance.folder).await.unwrap_or_default()
    } else {
        0
    };
    for (count, what) in [
        (processes, "pods keep running as processes"),
        (containers, "containers keep running"),
    ] {
        if count > 0 {
            output::note(&format!(
                "{count} {what} on this machine; `warp up` finds them again, `warp down --purge` ends them"
            ));
        }
    }
    output::note(&format!(
        "stopped; everything is kept in {}",
        instance.folder.display()
    ));
}

async fn listen(port: u16) -> anyhow::Result<TcpListener> {
    let address = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
    TcpListener::bind(address).await.with_context(|| {
        format!("failed to listen on {address}; choose another port with --port, or --port 0 for any free one")
    })
}

/// Where the operator's pages answer: bound before anything starts, so that a port that is taken stops
/// the start and one that was found is known.
fn pages(port: u16) -> anyhow::Result<std::net::TcpListener> {
    let address = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
    std::net::TcpListener::bind(address).with_context(|| {
        format!("failed to listen on {address} for /metrics; choose another port with --metrics-port, or 0 for any free one")
    })
}

/// The nodes to run and how to call them.
async fn nodes(args: &Args, fleet: Option<Fleet>) -> anyhow::Result<(Nodes, String)> {
    if let Some(fleet) = fleet {
        let gpus: u32 = fleet
            .nodes
            .iter()
            .flat_map(|node| node.devices.values())
            .sum();
        let told = format!(
            "{} simulated nodes and {gpus} simulated GPUs",
            fleet.nodes.len()
        );
        return Ok((Nodes::Simulated(fleet), told));
    }
    match node::choose(&args.machine).await {
        Ok((chosen, told)) => Ok((Nodes::Machine(chosen), told)),
        Err(why) => match args.machine.runtime {
            RuntimeChoice::Auto | RuntimeChoice::None => {
                Ok((Nodes::None, format!("no nodes ({why})")))
            }
            RuntimeChoice::Process | RuntimeChoice::Docker => bail!("{why}"),
        },
    }
}

/// Everything to the log file, only trouble to the terminal.
fn start_log(instance: &Instance) -> anyhow::Result<()> {
    let file = log::Rotating::open(instance.log())?;
    let wanted = crate::log::filter(crate::log::DEFAULT)?;
    let color = std::io::stderr().is_terminal() && std::env::var_os("NO_COLOR").is_none();
    tracing_subscriber::registry()
        .with(
            fmt::layer()
                .with_ansi(false)
                .with_writer(std::sync::Mutex::new(file))
                .with_filter(wanted),
        )
        .with(
            fmt::layer()
                .with_ansi(color)
                .with_target(false)
                .without_time()
                .with_writer(std::io::stderr)
                .with_filter(EnvFilter::new("error")),
        )
        .init();
    Ok(())
}

/// Starts this program again in the background and waits until it is up.
fn detach(args: &Args, instance: &Instance) -> anyhow::Result<ExitCode> {
    let log = std::fs::File::options()
        .create(true)
        .append(true)
        .open(instance.log())
        .with_context(|| format!("failed to open the log {}", instance.log().display()))?;
    let mut command = Command::new(std::env::current_exe().context("failed to find this program")?);
    command
        .arg("up")
        .arg("--data")
        .arg(&instance.folder)
        .arg("--port")
        .arg(args.port.to_string())
        .arg("--metrics-port")
        .arg(args.metrics_port.to_string())
        .arg("--event-ttl")
        .arg(format!("{}s", args.event_ttl.as_secs()));
    if let Some(file) = &args.nodes {
        command.arg("--nodes").arg(file);
    }
    if args.demo {
        command.arg("--demo");
    }
    if args.discard_data {
        command.arg("--discard-data");
    }
    if args.machine.allow_root {
        command.arg("--allow-root");
    }
    match args.machine.runtime {
        RuntimeChoice::Auto => {}
        RuntimeChoice::Process => drop(command.args(["--runtime", "process"])),
        RuntimeChoice::Docker => drop(command.args(["--runtime", "docker"])),
        RuntimeChoice::None => drop(command.args(["--runtime", "none"])),
    }
    std::os::unix::process::CommandExt::process_group(&mut command, 0);
    let mut child = command
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(log)
        .spawn()
        .context("failed to start Warp in the background")?;
    let deadline = std::time::Instant::now() + START_LIMIT;
    loop {
        if let Some(status) = child.try_wait().context("failed to watch Warp start")? {
            let why = instance.last_error().unwrap_or_else(|| status.to_string());
            bail!("{why} (the log is {})", instance.log().display());
        }
        if let Ok(Some(note)) = instance.running()
            && i64::from(note.pid) == i64::from(child.id())
        {
            output::note(&format!(
                "Warp is up in the background (process {}): {} with {}",
                note.pid, note.server, note.nodes
            ));
            next::say(instance, &note);
            return Ok(ExitCode::SUCCESS);
        }
        if std::time::Instant::now() > deadline {
            bail!(
                "Warp is still not up after {START_LIMIT:?}; its log is {}",
                instance.log().display()
            );
        }
        std::thread::sleep(Duration::from_millis(50));
    }
}
