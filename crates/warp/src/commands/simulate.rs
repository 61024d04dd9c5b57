//! `warp simulate`: traces and request lists against a fleet, policies side by side.
//!
//! The verb reads files, shows progress and prints; every decision is `warp-core`'s.

mod csv;
mod fleet;
mod openb;
mod queue;

use std::process::ExitCode;

#[derive(clap::Args, Debug)]
pub(crate) struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(clap::Subcommand, Debug)]
enum Command {
    /// The placement protocol of the FGD study over the openb trace
    Openb(openb::Args),
    /// A job list on a fleet: who waits how long, under which policy
    Queue(queue::Args),
    /// Your own fleet and requests: where they would go, and why the rest would not
    Fleet(fleet::Args),
}

pub(crate) fn run(args: Args) -> anyhow::Result<ExitCode> {
    match args.command {
        Command::Openb(args) => openb::run(&args),
        Command::Queue(args) => queue::run(&args),
        Command::Fleet(args) => fleet::run(&args),
    }
}

/// How results are printed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Format {
    Table,
    Json,
}
