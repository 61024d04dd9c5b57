//! `warp model`: questions about models before and beside serving them.

mod bundle;
mod description;
mod drop;
mod hub;
mod live;
mod plan;
mod share;

use std::process::ExitCode;

pub(crate) use plan::tokens;

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
    Fetch(Box<super::fetch::Args>),
    /// Write a fetched model to one file, for machines without a network
    Export(bundle::ExportArgs),
    /// Take a model from such a file, verified
    Import(bundle::ImportArgs),
    /// Let other machines take models from this one: a hub for what a cache has
    Share(share::Args),
    /// Remove everything below a folder: how a copy goes from a node
    #[command(hide = true)]
    Drop(drop::Args),
}

/// What sizing needs of a model: a folder, or a repository of the hub. Waits for the hub.
pub(crate) fn describe(name: &str) -> anyhow::Result<warp_core::size::Model> {
    tokio::task::block_in_place(|| description::read(name)).map(|found| found.model)
}

pub(crate) fn run(args: Args) -> anyhow::Result<ExitCode> {
    match args.command {
        Command::Plan(args) => plan::run(&args),
        Command::Fetch(args) => super::fetch::run(*args),
        Command::Export(args) => bundle::export(&args),
        Command::Import(args) => bundle::import(&args),
        Command::Share(args) => share::run(&args),
        Command::Drop(args) => drop::run(&args),
    }
}
