//! `warp simulate fleet`.

use std::process::ExitCode;

#[derive(clap::Args, Debug)]
pub(crate) struct Args {}

pub(crate) fn run(_args: &Args) -> anyhow::Result<ExitCode> {
    anyhow::bail!("not landed yet")
}
