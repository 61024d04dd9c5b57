//! `warp apiserver`: the embedded Kubernetes API alone, without controllers or nodes.

use std::io::Write;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use anyhow::Context;
use tokio::net::TcpListener;
use warp_apiserver::store::Durability;
use warp_apiserver::{ApiServer, Options};

use super::up::instance::Instance;
use crate::output;

#[derive(clap::Args, Debug)]
pub(crate) struct Args {
    /// Directory of the database, the certificates and the kubeconfig
    #[arg(long, value_name = "DIR", required_unless_present = "ephemeral")]
    data: Option<PathBuf>,

    /// Keep everything in memory and forget it at the end (the kubeconfig still needs --data)
    #[arg(long)]
    ephemeral: bool,

    /// Begin with nothing; what is stored in the directory is put aside
    #[arg(long, requires = "data", conflicts_with = "ephemeral")]
    discard_data: bool,

    /// Port to serve on; 0 takes a free one
    #[arg(long, default_value_t = 6443)]
    port: u16,

    /// Address to serve on
    #[arg(long, default_value_t = IpAddr::V4(Ipv4Addr::LOCALHOST))]
    bind: IpAddr,

    /// Further host names or addresses clients may use
    #[arg(long, value_name = "HOST")]
    name: Vec<String>,

    /// Answer writes from memory and put them on disk a moment later
    #[arg(long)]
    relaxed: bool,

    /// How long an Event is kept after its last write
    #[arg(long, value_name = "TIME", default_value = "1h", value_parser = super::duration)]
    event_ttl: Duration,

    /// Write every object as YAML to FILE (- is standard output) and end
    #[arg(long, value_name = "FILE", conflicts_with = "ephemeral")]
    export: Option<PathBuf>,

    /// Read an export into the database before serving
    #[arg(long, value_name = "FILE")]
    import: Option<PathBuf>,
}

pub(crate) fn run(args: Args) -> anyhow::Result<ExitCode> {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()
        .context("failed to start the runtime")?;
    start_logs()?;
    runtime.block_on(serve(args))?;
    Ok(ExitCode::SUCCESS)
}

/// What goes wrong is said on standard error; `WARP_LOG` asks for more.
fn start_logs() -> anyhow::Result<()> {
    let filter = crate::log::filter("warn")?;
    tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(std::io::stderr)
        .with_ansi(false)
        .init();
    Ok(())
}

fn options(args: &Args) -> anyhow::Result<Options> {
    let mut names = args.name.clone();
    if !args.bind.is_loopback() && !args.bind.is_unspecified() {
        names.push(args.bind.to_string());
    }
    let mut options = match &args.data {
        Some(directory) => Options::in_directory(directory, &names)?,
        None => Options::ephemeral()?,
    };
    if args.ephemeral {
        options.store.path = None;
    }
    options.keep_events = args.event_ttl;
    if args.relaxed {
        options.store.durability = Durability::Relaxed;
    }
    Ok(options)
}

async fn serve(args: Args) -> anyhow::Result<()> {
    if args.discard_data {
        super::up::discard(&Instance::at(args.data.clone())?)?;
    }
    let server = ApiServer::start(options(&args)?).await?;
    if let Some(file) = &args.import {
        let text = std::fs::read_to_string(file)
            .with_context(|| format!("failed to read {}", file.display()))?;
        let count = server
            .import(&text)
            .await
            .with_context(|| format!("failed to import {}", file.display()))?;
        output::note(&format!("imported {count} objects from {}", file.display()));
    }
    if let Some(file) = &args.export {
        let text = server.export()?;
        if file.as_os_str() == "-" {
            output::text(&text);
        } else {
            write_private(file, &text)
                .with_context(|| format!("failed to write {}", file.display()))?;
        }
        server.shutdown().await;
        return Ok(());
    }
    let address = SocketAddr::new(args.bind, args.port);
    let listener = TcpListener::bind(address)
        .await
        .with_context(|| format!("failed to listen on {address}: choose another --port"))?;
    let address = listener
        .local_addr()
        .context("failed to read the address listened on")?;
    if let Some(directory) = &args.data {
        let path = directory.join("kubeconfig");
        server.write_kubeconfig(&path, reachable(address))?;
        output::note(&format!(
            "serving the Kubernetes API on https://{}",
            reachable(address)
        ));
        output::note(&format!("kubeconfig: {}", path.display()));
    } else {
        output::text(&server.kubeconfig(reachable(address)));
    }
    let accepting = {
        let server = server.clone();
        tokio::spawn(async move { server.serve(listener).await })
    };
    stopped().await;
    server.shutdown().await;
    let _ = accepting.await;
    Ok(())
}

/// An export holds every Secret: only its owner may read it.
fn write_private(path: &Path, text: &str) -> std::io::Result<()> {
    let mut file = std::fs::OpenOptions::new()
        .write(true)
        .create(true)
        .truncate(true)
        .mode(0o600)
        .open(path)?;
    file.set_permissions(std::fs::Permissions::from_mode(0o600))?;
    file.write_all(text.as_bytes())
}

/// An address a client on this machine can use.
fn reachable(address: SocketAddr) -> SocketAddr {
    if address.ip().is_unspecified() {
        SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), address.port())
    } else {
        address
    }
}

/// Waits for Ctrl-C or a polite kill.
async fn stopped() {
    use tokio::signal::unix::{SignalKind, signal};
    let Ok(mut terminate) = signal(SignalKind::terminate()) else {
        let _ = tokio::signal::ctrl_c().await;
        return;
    };
    tokio::select! {
        _ = tokio::signal::ctrl_c() => {}
        _ = terminate.recv() => {}
    }
}
