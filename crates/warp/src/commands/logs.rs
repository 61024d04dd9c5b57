//! `warp logs`: what a pod, or every pod of a workload, job or deployment, has printed.

use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, anyhow, bail};
use futures::{AsyncBufReadExt, StreamExt, TryStreamExt, stream};
use k8s_openapi::api::core::v1::Pod;
use kube::Api;
use kube::api::{ListParams, LogParams};
use warp_api::{GPUWorkload, Phase, condition};

use crate::cluster::{self, Connection, Target};
use crate::output;

/// How often what has not started is looked at again.
const PAUSE: Duration = Duration::from_millis(300);
/// Labels that lead from the name of something to its pods.
const OWNER_LABELS: [&str; 5] = [
    "gpu.warp.dev/workload",
    "gpu.warp.dev/inference-service",
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
    /// Keep printing as lines come; what has not started is waited for
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

/// Prints what a pod prints until it ends.
pub(crate) async fn follow(target: &Target, namespace: &str, pod: &str) -> anyhow::Result<()> {
    let target = Target {
        namespace: Some(namespace.to_owned()),
        ..target.clone()
    };
    let args = Args {
        name: format!("pod/{pod}"),
        target,
        follow: true,
        container: None,
        previous: false,
        tail: None,
        since: None,
        timestamps: false,
    };
    logs(args).await.map(drop)
}

async fn logs(args: Args) -> anyhow::Result<ExitCode> {
    let connection = args.target.connect().await?;
    let found = tokio::select! {
        found = found(&connection, &args) => found?,
        _ = tokio::signal::ctrl_c() => return Ok(ExitCode::SUCCESS),
    };
    let mut sources = Vec::new();
    for pod in &found {
        let name = pod.metadata.name.clone().unwrap_or_default();
        for container in containers(pod) {
            let wanted = args.container.as_deref().unwrap_or(container);
            if wanted == container {
                sources.push((name.clone(), container.to_owned()));
            }
        }
    }
    if sources.is_empty() {
        let there: Vec<&str> = found.iter().flat_map(containers).collect();
        bail!(
            "no container \"{}\" in {}; there are {}",
            args.container.unwrap_or_default(),
            args.name,
            there.join(", ")
        );
    }
    let several_pods = found.len() > 1;
    let (several, count) = (sources.len() > 1, sources.len());
    let pods: Api<Pod> = Api::namespaced(connection.client.clone(), &connection.namespace);
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

/// The names of a pod's containers in the order they run: init containers first.
fn containers(pod: &Pod) -> impl Iterator<Item = &str> {
    let spec = pod.spec.iter();
    spec.flat_map(|spec| {
        let init = spec.init_containers.iter().flatten();
        init.chain(&spec.containers)
            .map(|container| container.name.as_str())
    })
}

/// The pods to read. A workload that has none yet says why; who follows waits for them.
async fn found(connection: &Connection, args: &Args) -> anyhow::Result<Vec<Pod>> {
    let mut said = String::new();
    loop {
        let found = find_pods(connection, &args.name).await?;
        if !found.is_empty() {
            return Ok(found);
        }
        let Some(state) = state_of(connection, &args.name).await? else {
            return Err(no_pods(connection, &args.name));
        };
        if !args.follow || state.over {
            bail!("{}", state.told);
        }
        if said != state.told {
            output::note(&format!("{}; waiting until it starts", state.told));
            said = state.told;
        }
        tokio::time::sleep(PAUSE).await;
    }
}

/// Why a workload has no pods.
struct State {
    told: String,
    /// Nothing will come any more.
    over: bool,
}

async fn state_of(connection: &Connection, name: &str) -> anyhow::Result<Option<State>> {
    let bare = match name.split_once('/') {
        None => name,
        Some(("gpuw" | "gpuworkload" | "gpuworkloads" | "gpuworkloads.gpu.warp.dev", bare)) => bare,
        Some(_) => return Ok(None),
    };
    let api: Api<GPUWorkload> = Api::namespaced(connection.client.clone(), &connection.namespace);
    let workload = match api.get_opt(bare).await {
        Ok(Some(workload)) => workload,
        // A cluster without our kinds has no workloads either.
        Ok(None) => return Ok(None),
        Err(error) => {
            return Err(cluster::told(error))
                .with_context(|| format!("failed to look for the workload {bare}"));
        }
    };
    let status = workload.status.unwrap_or_default();
    let phase = status.phase.unwrap_or(Phase::Pending);
    let ready = condition::find(&status.conditions, condition::READY);
    let why = ready.map(|ready| ready.message.trim_end_matches('.'));
    let why = why
        .filter(|why| !why.is_empty())
        .unwrap_or("nobody has looked at it yet");
    let over = phase.is_final();
    let told = if over {
        format!("workload {bare} is {phase:?} and its pods are gone, with what they printed: {why}")
    } else {
        format!("workload {bare} has printed nothing yet, it is {phase:?}: {why}")
    };
    Ok(Some(State { told, over }))
}

/// Prints what a container has printed; who follows waits until it has started.
async fn print(
    pods: &Api<Pod>,
    name: &str,
    parameters: &LogParams,
    prefix: &str,
) -> anyhow::Result<()> {
    let container = parameters.container.as_deref().unwrap_or_default();
    if !parameters.previous {
        let mut said = String::new();
        while let Some(pod) = pods
            .get_opt(name)
            .await
            .map_err(cluster::told)
            .with_context(|| format!("failed to look at pod {name}"))?
        {
            let Some(why) = waits(&pod, container) else {
                break;
            };
            let told = format!("container {container} of pod {name} has not started: {why}");
            if !parameters.follow {
                bail!("{told}; `warp logs -f` waits for it");
            }
            if said != told {
                output::note(&format!("{told}; waiting"));
                said = told;
            }
            tokio::time::sleep(PAUSE).await;
        }
    }
    let stream = pods
        .log_stream(name, parameters)
        .await
        .map_err(cluster::told)
        .with_context(|| format!("failed to read the log of pod {name}"))?;
    let mut lines = stream.lines();
    while let Some(line) = lines
        .try_next()
        .await
        .with_context(|| {
            format!(
                "the log of pod {name} broke off; `warp status` says whether the server still runs, then run the command again"
            )
        })?
    {
        output::line(&format!("{prefix}{line}"));
    }
    Ok(())
}

/// Why a container has not run yet; `None` when it has, or when only its log can tell.
fn waits(pod: &Pod, container: &str) -> Option<String> {
    let status = pod.status.as_ref();
    let phase = status.and_then(|status| status.phase.as_deref());
    if matches!(phase, Some("Succeeded" | "Failed")) {
        return None;
    }
    let statuses = status.into_iter().flat_map(|status| {
        let init = status.init_container_statuses.iter().flatten();
        init.chain(status.container_statuses.iter().flatten())
    });
    let own = statuses.into_iter().find(|own| own.name == container);
    let Some(own) = own else {
        let conditions = status.and_then(|status| status.conditions.as_ref());
        let unplaced = conditions
            .into_iter()
            .flatten()
            .find(|found| found.type_ == "PodScheduled" && found.status == "False");
        let why = unplaced.and_then(|found| found.message.clone());
        return Some(why.unwrap_or_else(|| "its pod is not on a node yet".to_owned()));
    };
    // One that waits between two runs has a log.
    if own.restart_count > 0
        || own
            .last_state
            .as_ref()
            .is_some_and(|last| last.terminated.is_some())
    {
        return None;
    }
    let waiting = own.state.as_ref().and_then(|state| state.waiting.as_ref());
    let started = own
        .state
        .as_ref()
        .is_some_and(|state| state.running.is_some() || state.terminated.is_some());
    if started {
        return None;
    }
    let reason = waiting.and_then(|waiting| waiting.reason.clone());
    let reason = reason.unwrap_or_else(|| "ContainerCreating".to_owned());
    Some(match waiting.and_then(|waiting| waiting.message.clone()) {
        Some(message) if !message.is_empty() => format!("{reason}: {message}"),
        _ => reason,
    })
}

/// The pod of that name, or the pods that carry the name in one of the labels we know; none is an error.
pub(crate) async fn pods_of(connection: &Connection, name: &str) -> anyhow::Result<Vec<Pod>> {
    let found = find_pods(connection, name).await?;
    if found.is_empty() {
        return Err(no_pods(connection, name));
    }
    Ok(found)
}

fn no_pods(connection: &Connection, name: &str) -> anyhow::Error {
    let bare = name.rsplit('/').next().unwrap_or(name);
    anyhow!(
        "no pod \"{bare}\" in namespace {}, and no pods of a workload, job or deployment of that name; `warp get pods -A` lists all",
        connection.namespace
    )
}

async fn find_pods(connection: &Connection, name: &str) -> anyhow::Result<Vec<Pod>> {
    let pods: Api<Pod> = Api::namespaced(connection.client.clone(), &connection.namespace);
    let bare = name.rsplit('/').next().unwrap_or(name);
    let only_pod =
        matches!(name.split('/').next(), Some("pod" | "pods" | "po")) && name.contains('/');
    if (only_pod || !name.contains('/'))
        && let Some(pod) = pods
            .get_opt(bare)
            .await
            .map_err(cluster::told)
            .with_context(|| format!("failed to look for the pod {bare}"))?
    {
        return Ok(vec![pod]);
    }
    if !only_pod {
        for label in OWNER_LABELS {
            let selected = ListParams::default().labels(&format!("{label}={bare}"));
            let found = pods
                .list(&selected)
                .await
                .map_err(cluster::told)
                .with_context(|| format!("failed to look for the pods of {bare}"))?
                .items;
            if !found.is_empty() {
                return Ok(found);
            }
        }
    }
    Ok(Vec::new())
}
