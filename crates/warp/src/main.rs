//! The `warp` binary: arguments in, exit code out. It wires crates together and owns everything a
//! person sees; it decides nothing about GPUs (that is `warp-core`).

mod cluster;
mod commands;
mod log;
mod output;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

#[derive(Parser, Debug)]
#[command(
    name = "warp",
    version,
    about = "Place and run GPU work, on this machine or on any Kubernetes cluster"
)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand, Debug)]
enum Command {
    /// Start Warp on this machine: Kubernetes API, controllers, operator and nodes
    Up(commands::up::Args),
    /// Stop the Warp of this machine
    Down(commands::down::Args),
    /// Show what runs: nodes, GPUs, workloads, pods
    Status(commands::status::Args),
    /// Write everything Warp keeps to one file, while it runs or not
    Backup(commands::backup::Args),
    /// Put a backup in the place of what a data directory holds
    Restore(commands::restore::Args),
    /// Check what a new user trips over, on this machine and on the cluster
    Doctor(commands::doctor::Args),
    /// Run the controllers against a cluster
    Operator(commands::operator::Args),
    /// Print the manifests that install Warp on a cluster
    Install(commands::install::Args),
    /// Replay traces and request lists against a fleet, policies side by side
    Simulate(commands::simulate::Args),
    /// Ask about models: which GPUs one needs, and why
    Model(commands::model::Args),
    /// Serve the embedded Kubernetes API alone
    Apiserver(commands::apiserver::Args),
    /// Show objects
    Get(commands::get::Args),
    /// Create or change objects from files
    Apply(commands::apply::Args),
    /// Delete objects
    Delete(commands::delete::Args),
    /// Print what a pod or workload has printed
    Logs(commands::logs::Args),
    /// Run a command in a running pod
    Exec(commands::exec::Args),
    /// Run nodes
    Node(commands::node::Args),
    /// Give others access to the Warp of this machine, and take it away
    User(commands::user::Args),
}

/// The verbs a process node runs itself with: not for people, and before anything else, as they must
/// work with any environment and arguments.
fn hidden() -> Option<ExitCode> {
    use warp_local::node::process;
    let mut words = std::env::args_os().skip(1);
    let verb = words.next()?;
    if verb == process::SUPERVISE {
        return Some(process::run_supervisor(
            words.next().unwrap_or_default().as_ref(),
        ));
    }
    (verb == process::CONTAINER).then(|| process::run_container(words.collect()))
}

fn main() -> ExitCode {
    if let Some(code) = hidden() {
        return code;
    }
    let cli = Cli::parse();
    let done = match cli.command {
        Command::Up(args) => commands::up::run(args),
        Command::Down(args) => commands::down::run(args),
        Command::Status(args) => commands::status::run(&args),
        Command::Backup(args) => commands::backup::run(args),
        Command::Restore(args) => commands::restore::run(args),
        Command::Doctor(args) => commands::doctor::run(&args),
        Command::Operator(args) => commands::operator::run(args),
        Command::Install(args) => commands::install::run(&args),
        Command::Simulate(args) => commands::simulate::run(args),
        Command::Model(args) => commands::model::run(args),
        Command::Apiserver(args) => commands::apiserver::run(args),
        Command::Get(args) => commands::get::run(args),
        Command::Apply(args) => commands::apply::run(args),
        Command::Delete(args) => commands::delete::run(args),
        Command::Logs(args) => commands::logs::run(args),
        Command::Exec(args) => commands::exec::run(args),
        Command::Node(args) => commands::node::run(args),
        Command::User(args) => commands::user::run(args),
    };
    match done {
        Ok(code) => code,
        Err(error) => {
            output::error(&error);
            ExitCode::FAILURE
        }
    }
}
