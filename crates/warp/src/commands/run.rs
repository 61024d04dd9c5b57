//! `warp run`: one command from a program to its output. The plan comes first; what is agreed to is made,
//! then followed until it ends. Ctrl-C lets go of it, it goes on.

mod ask;
mod follow;

use std::io::{BufRead, IsTerminal};
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context, bail};
use kube::ResourceExt;
use kube::api::PostParams;
use serde_json::Value;
use warp_api::GPUWorkload;

use super::plan;
use crate::cluster::live::Live;
use crate::cluster::{self, Connection, Target};
use crate::{output, workload};

#[derive(clap::Args, Debug)]
pub(crate) struct Args {
    #[command(flatten)]
    ask: ask::Ask,
    /// Run the one workload of this manifest instead; - is standard input
    #[arg(short, long, value_name = "FILE", conflicts_with_all = ["image", "command"])]
    file: Option<PathBuf>,
    #[command(flatten)]
    target: Target,
    /// Do not ask
    #[arg(short, long)]
    yes: bool,
    /// Print what would be made, make nothing
    #[arg(long)]
    dry_run: bool,
    /// How --dry-run prints
    #[arg(short, long, value_enum, default_value = "yaml", requires = "dry_run")]
    output: Format,
    /// Do not follow it
    #[arg(short, long)]
    detach: bool,
}

#[derive(clap::ValueEnum, Clone, Copy, Debug, PartialEq, Eq)]
enum Format {
    Yaml,
    Json,
}

pub(crate) fn run(args: Args) -> anyhow::Result<ExitCode> {
    let object = match &args.file {
        Some(file) => {
            let mut found = plan::read(file)?;
            if found.len() > 1 {
                bail!(
                    "{} holds {} workloads; run one at a time, or `warp apply -f` them",
                    file.display(),
                    found.len()
                );
            }
            found.remove(0)
        }
        None => args.ask.object()?,
    };
    if args.dry_run {
        let text = match args.output {
            Format::Json => serde_json::to_string_pretty(&object)?,
            Format::Yaml => serde_saphyr::to_string(&object).context("failed to write YAML")?,
        };
        output::result(&text);
        return Ok(ExitCode::SUCCESS);
    }
    cluster::block_on(start(args, object))
}

async fn start(args: Args, object: Value) -> anyhow::Result<ExitCode> {
    let mut connection = args.target.connect().await?;
    let own = object
        .pointer("/metadata/namespace")
        .and_then(Value::as_str);
    if let Some(own) = own {
        own.clone_into(&mut connection.namespace);
    }
    let planned = plan::as_made(&connection, &object).await?;
    show(&connection, &planned, &args.target).await?;
    if !args.yes && !agreed()? {
        output::note("nothing was made");
        return Ok(ExitCode::FAILURE);
    }
    let made = make(&connection, object).await?;
    let (name, flags) = (made.name_any(), args.target.flags());
    output::note(&format!("workload {name} made"));
    if args.detach {
        output::note(&format!("`warp logs -f {name}{flags}` follows it"));
        return Ok(ExitCode::SUCCESS);
    }
    tokio::select! {
        biased;
        _ = tokio::signal::ctrl_c() => {
            output::note(&format!(
                "\n{name} goes on without you; come back with `warp logs -f {name}{flags}`, end it with `warp cancel {name}{flags}`"
            ));
            Ok(ExitCode::SUCCESS)
        }
        ended = follow::to_the_end(&connection, &args.target, &made) => ended,
    }
}

/// Shows the plan; who may not read the cluster is told so and goes without.
async fn show(
    connection: &Connection,
    planned: &GPUWorkload,
    target: &Target,
) -> anyhow::Result<()> {
    match Live::read(&connection.client).await {
        Ok(live) => {
            let seen = plan::foresee(&live, planned)?;
            let text = plan::text(planned, &seen, target);
            output::note(text.trim_end());
            if let Some(caveat) = live.caveat() {
                output::note(&format!("note: {caveat}"));
            }
        }
        Err(error) => output::note(&format!("no plan: {}", output::words(&error))),
    }
    Ok(())
}

fn agreed() -> anyhow::Result<bool> {
    let input = std::io::stdin();
    if !input.is_terminal() {
        bail!("nobody can be asked here: say --yes");
    }
    output::prompt("Run it? [y/N] ");
    let mut answer = String::new();
    input
        .lock()
        .read_line(&mut answer)
        .context("failed to read the answer")?;
    Ok(matches!(answer.trim().to_lowercase().as_str(), "y" | "yes"))
}

async fn make(connection: &Connection, object: Value) -> anyhow::Result<GPUWorkload> {
    let mut wanted: GPUWorkload =
        serde_json::from_value(object).context("failed to read the workload")?;
    cluster::sign(&connection.client, &mut wanted).await;
    let parameters = PostParams {
        field_manager: Some("warp".to_owned()),
        ..PostParams::default()
    };
    let made = workload::api(connection).create(&parameters, &wanted).await;
    made.map_err(cluster::told)
        .with_context(|| format!("failed to make workload {}", wanted.name_any()))
}
