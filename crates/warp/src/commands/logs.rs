//! `warp logs`: what a pod, or every pod of a workload, job or deployment, has printed.

use std::process::ExitCode;

use anyhow::{Context, bail};
use futures::{AsyncBufReadExt, StreamExt, TryStreamExt, stream};
use k8s_openapi::api::core::v1::Pod;
use kube::Api;
use kube::api::{ListParams, LogParams};

use crate::cluster::{self, Connection, Target};
use crate::output;

/// Labels that lead from the name of something to its pods.
const OWNER_LABELS: [&str; 4] = [
    "gpu.warp.dev/workload",
    "batch.kubernetes.io/job-name",
    "app.kubernetes.io/instance",
    "app",
];

#[derive(clap::Args, Debug)]
pub(crate) struct Args {
    /// A pod, or a workload, job or deployment whose pods are meant (KIND/NAME works too)
    name: String,
    #[command(flatten)]
    target: Target,
    /// Keep printing as lines come
    #[arg(short, long)]
    follow: bool,
    /// Which container; all of them by default
    #[arg(short, long, value_name = "NAME")]
    container: Option<String>,
    /// Of the run before the last restart
    #[arg(short, long)]
    previous: bool,
    /// Only the last lines
    #[arg(long, value_name = "LINES")]
    tail: Option<i64>,
    /// Only the last seconds
    #[arg(long, value_name = "SECONDS")]
    since: Option<i64>,
    /// Begin each line with its time
    #[arg(long)]
    timestamps: bool,
}

pub(crate) fn run(args: Args) -> anyhow::Result<ExitCode> {
    cluster::block_on(logs(args))
}

async fn logs(args: Args) -> anyhow::Result<ExitCode> {
    let connection = args.target.connect().await?;
    let pods: Api<Pod> = Api::namespaced(connection.client.clone(), &connection.namespace);
    let found = pods_of(&connection, &args.name).await?;
    let mut sources = Vec::new();
    for pod in &found {
        let name = pod.metadata.name.clone().unwrap_or_default();
        // Init containers are shown when they are asked for.
        let init = pod
            .spec
            .iter()
            .filter(|_| args.container.is_some())
            .flat_map(|spec| spec.init_containers.iter().flatten());
        let containers = pod.spec.iter().flat_map(|spec| &spec.containers);
        let containers = init.chain(containers);
        for container in containers.filter(|container| {
            args.container
                .as_ref()
                .is_none_or(|want| *want == container.name)
        }) {
            sources.push((name.clone(), container.name.clone()));
        }
    }
    if sources.is_empty() {
        bail!(
            "no container \"{}\" in {}",
            args.container.unwrap_or_default(),
            args.name
        );
    }
    let several_pods = found.len() > 1;
    let (several, count) = (sources.len() > 1, sources.len());
    let streams = sources.into_iter().map(|(pod, container)| {
        let prefix = match (several, several_pods) {
            (false, _) => String::new(),
            (true, true) => format!("[{pod} {container}] "),
            (true, false) => format!("[{container}] "),
        };
        let parameters = LogParams {
            container: Some(container),
            follow: args.follow,
            previous: args.previous,
            tail_lines: args.tail,
            since_seconds: args.since,
            timestamps: args.timestamps,
            ..LogParams::default()
        };
        let pods = pods.clone();
        async move { print(&pods, &pod, &parameters, &prefix).await }
    });
    // Following, all at once; otherwise one after the other, so that lines of one pod stay together.
    let at_once = if args.follow { count } else { 1 };
    let mut work = stream::iter(streams).buffered(at_once);
    let mut code = ExitCode::SUCCESS;
    loop {
        tokio::select! {
            done = work.next() => match done {
                Some(Ok(())) => {}
                Some(Err(error)) if several => {
                    // One that has not started yet says nothing about the others.
                    output::error(&error);
                    code = ExitCode::FAILURE;
                }
                Some(Err(error)) => return Err(error),
                None => return Ok(code),
            },
            _ = tokio::signal::ctrl_c() => return Ok(ExitCode::SUCCESS),
        }
    }
}

async fn print(
    pods: &Api<Pod>,
    name: &str,
    parameters: &LogParams,
    prefix: &str,
) -> anyhow::Result<()> {
    let stream = pods
        .log_stream(name, parameters)
        .await
        .map_err(cluster::told)
        .with_context(|| format!("failed to read the log of pod {name}"))?;
    let mut lines = stream.lines();
    while let Some(line) = lines
        .try_next()
        .await
        .with_context(|| format!("the log of pod {name} broke off"))?
    {
        output::line(&format!("{prefix}{line}"));
    }
    Ok(())
}

/// The pod of that name, or the pods that carry the name in one of the labels we know.
pub(crate) async fn pods_of(connection: &Connection, name: &str) -> anyhow::Result<Vec<Pod>> {
    let pods: Api<Pod> = Api::namespaced(connection.client.clone(), &connection.namespace);
    let bare = name.rsplit('/').next().unwrap_or(name);
    let only_pod =
        matches!(name.split('/').next(), Some("pod" | "pods" | "po")) && name.contains('/');
    if (only_pod || !name.contains('/'))
        && let Some(pod) = pods
            .get_opt(bare)
            .await
            .context("failed to look for the pod")?
    {
        return Ok(vec![pod]);
    }
    if !only_pod {
        for label in OWNER_LABELS {
            let selected = ListParams::default().labels(&format!("{label}={bare}"));
            let found = pods
                .list(&selected)
                .await
                .context("failed to look for pods")?
                .items;
            if !found.is_empty() {
                return Ok(found);
            }
        }
    }
    bail!(
        "no pod \"{bare}\" in namespace {}, and no pods of a workload, job or deployment of that name; `warp get pods -A` lists all",
        connection.namespace
    )
}
