//! The `warp` binary: arguments in, exit code out. It wires crates together and owns everything a
//! person sees; it decides nothing about GPUs (that is `warp-core`).

mod cluster;
mod commands;
mod log;
mod output;
mod workload;

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
    /// Run a program on GPUs: the plan first, then its output
    Run(Box<commands::run::Args>),
    /// Say what would become of a workload on the live cluster, changing nothing
    Plan(commands::plan::Args),
    /// Say why a workload waits, runs or failed, and what to do next
    Why(commands::why::Args),
    /// Show who waits for GPUs, in the order they are served
    Queue(commands::queue::Args),
    /// Show what happened to a workload, when, and who did it
    Timeline(commands::timeline::Args),
    /// Stop workloads and give their GPUs back; they can be resumed
    Suspend(commands::suspend::Args),
    /// Let suspended workloads be placed again
    Resume(commands::suspend::Args),
    /// End workloads for good and remove them
    Cancel(commands::cancel::Args),
    /// Run a workload that has ended again
    Retry(commands::cancel::Retry),
    /// Write the live fleet and queue as files `warp simulate` reads
    Snapshot(commands::snapshot::Args),
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
    /// Serve a model, and say when and where it answers
    Serve(commands::serve::Args),
    /// Talk to a served model
    Chat(commands::chat::Args),
    /// Measure how fast a served model answers
    Bench(commands::bench::Args),
    /// Pretend to serve a model: OpenAI's API and vLLM's metrics, without weights
    Engine(commands::engine::Args),
    /// Fetch a model once, verified, into a cache that engines read offline
    Fetch(commands::fetch::Args),
    /// Serve the embedded Kubernetes API alone
    Apiserver(commands::apiserver::Args),
    /// Show objects
    Get(commands::get::Args),
    /// Create or change objects from files
    Apply(commands::apply::Args),
    /// Change fields of one object
    Patch(commands::patch::Args),
    /// Delete objects
    Delete(commands::delete::Args),
    /// Print what a pod or workload has printed
    Logs(commands::logs::Args),
    /// Run a command in a running pod
    Exec(commands::exec::Args),
    /// Show what clouds rent out, at which price
    Offers(commands::offers::Args),
    /// Rent a machine with GPUs from a cloud, within a price
    Rent(commands::rent::Args),
    /// Show rented machines: what the clouds say, beside what we believe
    Machines(commands::machines::Args),
    /// Show what rented machines have cost
    Costs(commands::costs::Args),
    /// Show what tenants may spend on rented machines, and what they have spent
    Budget(commands::budget::Args),
    /// Run nodes
    Node(commands::node::Args),
    /// Make, show and remove tenants: a team's namespaces, its owners, how they are shut off
    Tenant(commands::tenant::Args),
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

/// Says what is wrong with the command line. What only a programmer would say of a number is put in words.
#[expect(clippy::exit, reason = "as clap ends a verb that it cannot read")]
fn misread(error: &clap::Error) -> ! {
    let text = error.render().to_string();
    let plain = text.replace("invalid digit found in string", "it is not a whole number");
    if plain == text {
        error.exit();
    }
    output::note(plain.trim_end());
    std::process::exit(error.exit_code());
}

fn main() -> ExitCode {
    if let Some(code) = hidden() {
        return code;
    }
    let cli = Cli::try_parse().unwrap_or_else(|error| misread(&error));
    log::hush_examiners();
    let done = match cli.command {
        Command::Up(args) => commands::up::run(args),
        Command::Down(args) => commands::down::run(args),
        Command::Run(args) => commands::run::run(*args),
        Command::Plan(args) => commands::plan::run(args),
        Command::Why(args) => commands::why::run(args),
        Command::Queue(args) => commands::queue::run(args),
        Command::Timeline(args) => commands::timeline::run(args),
        Command::Suspend(args) => commands::suspend::suspend(args),
        Command::Resume(args) => commands::suspend::resume(args),
        Command::Cancel(args) => commands::cancel::cancel(args),
        Command::Retry(args) => commands::cancel::retry(args),
        Command::Snapshot(args) => commands::snapshot::run(args),
        Command::Status(args) => commands::status::run(&args),
        Command::Backup(args) => commands::backup::run(args),
        Command::Restore(args) => commands::restore::run(args),
        Command::Doctor(args) => commands::doctor::run(&args),
        Command::Operator(args) => commands::operator::run(args),
        Command::Install(args) => commands::install::run(&args),
        Command::Simulate(args) => commands::simulate::run(args),
        Command::Model(args) => commands::model::run(args),
        Command::Serve(args) => commands::serve::run(args),
        Command::Chat(args) => commands::chat::run(args),
        Command::Bench(args) => commands::bench::run(args),
        Command::Engine(args) => commands::engine::run(args),
        Command::Fetch(args) => commands::fetch::run(args),
        Command::Apiserver(args) => commands::apiserver::run(args),
        Command::Get(args) => commands::get::run(args),
        Command::Apply(args) => commands::apply::run(args),
        Command::Patch(args) => commands::patch::run(args),
        Command::Delete(args) => commands::delete::run(args),
        Command::Logs(args) => commands::logs::run(args),
        Command::Exec(args) => commands::exec::run(args),
        Command::Offers(args) => commands::offers::run(args),
        Command::Rent(args) => commands::rent::run(args),
        Command::Machines(args) => commands::machines::run(args),
        Command::Costs(args) => commands::costs::run(args),
        Command::Budget(args) => commands::budget::run(args),
        Command::Node(args) => commands::node::run(args),
        Command::Tenant(args) => commands::tenant::run(args),
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
