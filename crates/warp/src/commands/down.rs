//! `warp down`: stops the Warp of a data directory, and on request removes all it kept.

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use rustix::process::{Pid, Signal, kill_process};
use warp_local::node::docker::{self, DockerError};
use warp_local::node::process;

use super::machines;
use super::up::instance::Instance;
use crate::{cluster, output};

const STOP_LIMIT: Duration = Duration::from_secs(30);
/// How long an instance that is to stop may take to say what is rented.
const LOOK_LIMIT: Duration = Duration::from_secs(3);

#[derive(clap::Args, Debug)]
pub(crate) struct Args {
    /// The data directory `warp up` was given
    #[arg(long, value_name = "DIR")]
    data: Option<PathBuf>,
    /// Also end pods that still run and remove all state, logs and volumes
    #[arg(long)]
    purge: bool,
}

pub(crate) fn run(args: Args) -> anyhow::Result<ExitCode> {
    let instance = Instance::at(args.data)?;
    match instance.running()? {
        Some(note) => {
            let pid = Pid::from_raw(note.pid).context("the instance's note names no process")?;
            tell_of_machines(&instance, args.purge);
            kill_process(pid, Signal::TERM)
                .with_context(|| format!("failed to stop process {}", note.pid))?;
            wait_until_free(&instance, note.pid)?;
            output::note("Warp is down");
        }
        None => output::note(&format!(
            "no Warp runs with the data of {}",
            instance.folder.display()
        )),
    }
    if args.purge {
        cluster::block_on(purge(&instance))?;
        output::note(&format!(
            "removed everything Warp kept in {}",
            instance.folder.display()
        ));
    }
    Ok(ExitCode::SUCCESS)
}

/// Says which machines of clouds nobody looks after once this Warp is down. What cannot be read is not waited for.
fn tell_of_machines(instance: &Instance, purge: bool) {
    let read = cluster::block_on(async {
        let look = async {
            let config = cluster::from_file(&instance.kubeconfig(), None).await?;
            let client = kube::Client::try_from(config)?;
            machines::left(&client).await
        };
        tokio::time::timeout(LOOK_LIMIT, look).await?
    });
    if let Ok(Some(left)) = read {
        let then = if purge {
            "with --purge this Warp forgets them: end them at their cloud"
        } else {
            "nobody ends them while Warp is down, the next `warp up` with the same data goes on"
        };
        output::note(&format!("warning: {left}; {then}"));
    }
}

/// Ends whatever still runs for a data directory, then empties it.
pub(crate) async fn purge(instance: &Instance) -> anyhow::Result<()> {
    process::end_all(&instance.folder).await;
    process::end_all(&instance.engines()).await;
    match docker::end_all(&instance.folder).await {
        Ok(0) | Err(DockerError::Connect { .. } | DockerError::NoPlace) => {}
        Ok(count) => output::note(&format!("removed {count} containers")),
        Err(error) => output::note(&format!(
            "containers of this data directory may still run: {error}; `docker ps --filter label={}` lists them",
            docker::OWNER
        )),
    }
    instance.purge()
}

fn wait_until_free(instance: &Instance, pid: i32) -> anyhow::Result<()> {
    let deadline = Instant::now() + STOP_LIMIT;
    while instance.held()? {
        if Instant::now() > deadline {
            bail!(
                "process {pid} does not stop; see {} for why, or end it with `kill -9 {pid}`",
                instance.log().display()
            );
        }
        std::thread::sleep(Duration::from_millis(50));
    }
    Ok(())
}
