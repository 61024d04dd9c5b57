//! `warp model`: questions about models before and beside serving them.

mod bundle;
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
    /// The same as `warp fetch`
    Fetch(super::fetch::Args),
    /// Write a fetched model to one file, for machines without a network
    Export(bundle::ExportArgs),
    /// Take a model from such a file, verified
    Import(bundle::ImportArgs),
}

pub(crate) fn run(args: Args) -> anyhow::Result<ExitCode> {
    match args.command {
        Command::Plan(args) => plan::run(&args),
        Command::Fetch(args) => super::fetch::run(args),
        Command::Export(args) => bundle::export(&args),
        Command::Import(args) => bundle::import(&args),
    }
}
