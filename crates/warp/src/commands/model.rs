//! `warp model`: questions about models before and beside serving them.

mod description;
mod hub;
mod plan;

use std::process::ExitCode;

#[derive(clap::Args, Debug)]
pub(crate) struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(clap::Subcommand, Debug)]
enum Command {
    /// Which GPUs a model needs, how it is split over them, and why others do not do
    Plan(plan::Args),
}

pub(crate) fn run(args: Args) -> anyhow::Result<ExitCode> {
    match args.command {
        Command::Plan(args) => plan::run(&args),
    }
}
