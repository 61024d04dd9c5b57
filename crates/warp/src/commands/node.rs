//! `warp node`: nodes without the rest of the engine.

use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;

use anyhow::Context;
use tokio_util::sync::CancellationToken;
use warp_local::controllers::Clock;
use warp_local::node::fleet::Fleet;
use warp_local::node::host::Options;
use warp_local::node::{Host, Simulated};

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
}

#[derive(clap::Args, Debug)]
struct Simulate {
    /// Fleet file: pools of nodes and their GPUs
    #[arg(long, value_name = "FILE")]
    nodes: PathBuf,
    #[command(flatten)]
    target: Target,
}

pub(crate) fn run(args: Args) -> anyhow::Result<ExitCode> {
    match args.command {
        Command::Simulate(args) => cluster::block_on(simulate(args)),
    }
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
    let host = Host {
        client: connection.client,
        clock: Clock::system(),
        options: Options::for_fleet(count),
        runtime: Arc::new(Simulated::new(fleet.defaults)),
        shapes: fleet.nodes,
        reports: None,
    };
    let stop = CancellationToken::new();
    let mut running = tokio::spawn(host.run(stop.clone()));
    output::note(&format!(
        "{count} simulated nodes joined; Ctrl-C takes them away from their pods (the node objects stay)"
    ));
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
