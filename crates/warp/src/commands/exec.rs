//! `warp exec`: a command inside a running container.

use std::process::ExitCode;

use anyhow::{Context, bail};
use k8s_openapi::api::core::v1::Pod;
use kube::Api;
use kube::api::AttachParams;
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt};

use super::logs::pods_of;
use crate::cluster::{self, Target};

#[derive(clap::Args, Debug)]
pub(crate) struct Args {
    /// A pod, or a workload or job whose first pod is meant
    name: String,
    #[command(flatten)]
    target: Target,
    /// Which container; the first by default
    #[arg(short, long, value_name = "NAME")]
    container: Option<String>,
    /// Pass standard input on
    #[arg(short = 'i', long)]
    stdin: bool,
    /// The command and its arguments, after --
    #[arg(last = true, required = true, value_name = "CMD")]
    command: Vec<String>,
}

pub(crate) fn run(args: Args) -> anyhow::Result<ExitCode> {
    cluster::block_on(exec(args))
}

async fn exec(args: Args) -> anyhow::Result<ExitCode> {
    let connection = args.target.connect().await?;
    let found = pods_of(&connection, &args.name).await?;
    let running = found.iter().find(|pod| {
        pod.status
            .as_ref()
            .and_then(|status| status.phase.as_deref())
            == Some("Running")
    });
    let Some(pod) = running else {
        bail!(
            "{} has no running pod; `warp get pods` shows what state they are in",
            args.name
        );
    };
    let name = pod.metadata.name.clone().unwrap_or_default();
    let first = pod.spec.iter().flat_map(|spec| &spec.containers).next();
    let container = args
        .container
        .clone()
        .or_else(|| first.map(|container| container.name.clone()));
    let pods: Api<Pod> = Api::namespaced(connection.client.clone(), &connection.namespace);
    let parameters = AttachParams {
        container,
        stdin: args.stdin,
        stdout: true,
        stderr: true,
        tty: false,
        max_stdin_buf_size: Some(64 * 1024),
        max_stdout_buf_size: Some(64 * 1024),
        max_stderr_buf_size: Some(64 * 1024),
    };
    let mut session = pods
        .exec(&name, &args.command, &parameters)
        .await
        .map_err(cluster::told)
        .with_context(|| format!("failed to run the command in pod {name}"))?;
    let outcome = session.take_status();
    if let Some(stdin) = session.stdin() {
        tokio::spawn(pump(tokio::io::stdin(), stdin));
    }
    let stdout = session
        .stdout()
        .map(|from| tokio::spawn(pump(from, tokio::io::stdout())));
    let stderr = session
        .stderr()
        .map(|from| tokio::spawn(pump(from, tokio::io::stderr())));
    let status = match outcome {
        Some(outcome) => outcome.await,
        None => None,
    };
    for copy in [stdout, stderr].into_iter().flatten() {
        copy.await.context("failed to copy the output")?;
    }
    Ok(exit_code(
        status.context("the connection ended before the command did")?,
    ))
}

/// Copies until either side has had enough; a closed pipe is no error here.
async fn pump(mut from: impl AsyncRead + Unpin, mut to: impl AsyncWrite + Unpin) {
    if let Err(error) = tokio::io::copy(&mut from, &mut to).await {
        tracing::debug!(%error, "stream ended");
    }
    if let Err(error) = to.shutdown().await {
        tracing::debug!(%error, "stream not closed");
    }
}

/// The command's own exit code, as Kubernetes reports it.
fn exit_code(status: k8s_openapi::apimachinery::pkg::apis::meta::v1::Status) -> ExitCode {
    if status.status.as_deref() == Some("Success") {
        return ExitCode::SUCCESS;
    }
    let code = status
        .details
        .into_iter()
        .flat_map(|details| details.causes.unwrap_or_default())
        .find(|cause| cause.reason.as_deref() == Some("ExitCode"))
        .and_then(|cause| cause.message?.parse::<u8>().ok());
    if let Some(code) = code {
        return ExitCode::from(code);
    }
    crate::output::note(&format!("error: {}", status.message.unwrap_or_default()));
    ExitCode::FAILURE
}
