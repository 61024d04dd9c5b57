//! `warp operator`: run the controllers against a cluster, from inside it or from a laptop.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use kube::config::{KubeConfigOptions, Kubeconfig};
use tokio::signal::unix::{SignalKind, signal};
use tokio_util::sync::CancellationToken;
use warp_api::workload::{SchedulingStrategy, TopologyLevels};
use warp_core::schedule::PriceWeight;
use warp_operator::{Clock, Config, Endpoint, Fetcher, LeaderConfig, QueuePolicy, Settings};

use crate::{log, output};

/// Lease of the first design, kept so that an old and a new operator exclude each other.
pub(super) const LEASE: &str = "gpu-orchestrator.gpu.warp.dev";

#[derive(clap::Args, Debug)]
#[expect(
    clippy::struct_excessive_bools,
    reason = "each is a flag of the command line"
)]
pub(crate) struct Args {
    /// Kubeconfig file; default: the cluster it runs in, else $KUBECONFIG, else ~/.kube/config
    #[arg(long, value_name = "FILE")]
    kubeconfig: Option<PathBuf>,
    /// Context of the kubeconfig
    #[arg(long)]
    context: Option<String>,
    /// Serve the workloads of this namespace only (nodes and pods are always read cluster-wide)
    #[arg(long)]
    namespace: Option<String>,
    /// Act only while holding a Lease, so that several replicas may run
    #[arg(long)]
    leader_elect: bool,
    /// Namespace of the Lease, and of what the operator keeps for itself
    #[arg(
        long,
        env = "POD_NAMESPACE",
        default_value = "warp-system",
        value_name = "NAMESPACE"
    )]
    leader_elect_namespace: String,
    /// Name of the Lease
    #[arg(long, default_value = LEASE, value_name = "NAME")]
    leader_elect_lease: String,
    /// Name of this instance, unique among replicas; default: made from the process
    #[arg(long, env = "POD_NAME")]
    identity: Option<String>,
    /// Where /healthz and /readyz answer, `0` for nowhere; default :8081 in a cluster, else nowhere
    #[arg(long, alias = "health-probe-bind-address", value_name = "ADDRESS", value_parser = address)]
    health_addr: Option<Listen>,
    /// Where /metrics answers, `0` for nowhere; default :8080 in a cluster, else nowhere
    #[arg(long, alias = "metrics-bind-address", value_name = "ADDRESS", value_parser = address)]
    metrics_addr: Option<Listen>,
    /// Strategy of workloads that name none; see docs/concepts/placement.md for all of them
    #[arg(long, default_value = "warp")]
    default_strategy: SchedulingStrategy,
    /// Who is served first, within a priority, and who may start before work that waits for room: easy (in order of age;
    /// whoever does not take the room kept for the first in line), fifo (nobody who could use the same nodes), skipAhead
    /// (anybody), sjf (anybody, shortest expected first), las (anybody, least GPU-time first), warp (short and narrow first,
    /// nobody overdue); see docs/concepts/queueing.md
    #[arg(long, default_value = "easy", value_name = "POLICY")]
    queue_policy: QueuePolicy,
    /// How many GPUs of room for later work one dollar per GPU-hour is worth to the strategy `warp`; 0 ignores prices
    #[arg(long, default_value = "0", value_name = "WEIGHT")]
    price_weight: PriceWeight,
    /// A placed attempt that does not run after this time has failed
    #[arg(long, default_value = "30m", value_parser = super::duration)]
    start_timeout: Duration,
    /// A node silent for this long is taken for dead and its attempt for failed
    #[arg(long, default_value = "5m", value_parser = super::duration)]
    node_loss_timeout: Duration,
    /// A node the cluster's scheduler refused is left out for this long
    #[arg(long, default_value = "5m", value_parser = super::duration)]
    refusal_timeout: Duration,
    /// Work that has run for less is not evicted for work of higher priority
    #[arg(long, default_value = "1m", value_parser = super::duration)]
    min_run_time: Duration,
    /// Move running work that saves what it does (`spec.checkpoint`) to other nodes where a gang that waits starts by that
    #[arg(long)]
    defragment: bool,
    /// Levels for `topology.level` of gangs, the widest first, each with the node label that tells it:
    /// zone=topology.kubernetes.io/zone,rack=example.com/rack. `host` is always one. Default: region, zone, rack and host
    /// by their labels topology.kubernetes.io/region, …
    #[arg(long, value_name = "LEVELS")]
    topology_levels: Option<TopologyLevels>,
    /// Bind the owners of tenants and shut their namespaces off, for which `warp install --print --isolate-tenants` prints the
    /// role
    #[arg(long)]
    isolate_tenants: bool,
    /// Keep copies of models on nodes and label those, for which `warp install --print --node-copies` prints the role
    #[arg(long)]
    node_copies: bool,
    /// Show workloads that ask for it (`whenPending: ungate`) to Cluster Autoscaler and Karpenter while they wait, for which
    /// `warp install --print --show-pending` prints the role
    #[arg(long)]
    show_pending: bool,
    /// Tell HorizontalPodAutoscalers and KEDA how to scale the services that ask for it (`scaling.by`), for which
    /// `warp install --print --autoscalers` prints the role
    #[arg(long)]
    autoscalers: bool,
    /// Image that the pods name which stand in for those; they never run
    #[arg(long, default_value = warp_operator::STAND_IN_IMAGE, value_name = "IMAGE")]
    stand_in_image: String,
    /// Image whose `warp fetch` brings the models of ModelCaches; default: the image this operator runs from
    #[arg(long, value_name = "IMAGE")]
    fetch_image: Option<String>,
    /// Logs as JSON lines or for people
    #[arg(long, value_enum, default_value_t = LogFormat::Auto)]
    log_format: LogFormat,
}

#[derive(clap::ValueEnum, Clone, Copy, Debug, PartialEq, Eq)]
enum LogFormat {
    /// JSON in a cluster, for people elsewhere
    Auto,
    Json,
    Text,
}

/// An address to listen on, or none.
#[derive(Clone, Copy, Debug)]
struct Listen(Option<SocketAddr>);

impl Listen {
    fn endpoint(self) -> Option<Endpoint> {
        self.0.map(Endpoint::At)
    }
}

pub(crate) fn run(args: Args) -> anyhow::Result<ExitCode> {
    let in_cluster = std::env::var_os("KUBERNETES_SERVICE_HOST").is_some();
    let json = match args.log_format {
        LogFormat::Auto => in_cluster,
        LogFormat::Json => true,
        LogFormat::Text => false,
    };
    start_logs(json)?;
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()
        .context("failed to start the runtime")?;
    match runtime.block_on(operate(args, in_cluster)) {
        // The last words of a log of JSON lines are JSON too.
        Err(error) if json => {
            tracing::error!(error = output::words(&error), "the operator ends");
            Ok(ExitCode::FAILURE)
        }
        ended => ended.map(|()| ExitCode::SUCCESS),
    }
}

async fn operate(args: Args, in_cluster: bool) -> anyhow::Result<()> {
    let connection = connection(&args).await?;
    let client = warp_operator::client(connection).context("failed to make a client")?;
    let stop = stop_on_signal()?;
    let config = config(args, in_cluster);
    warp_operator::run(client, config, Clock::system(), stop).await?;
    Ok(())
}

async fn connection(args: &Args) -> anyhow::Result<kube::Config> {
    let options = KubeConfigOptions {
        context: args.context.clone(),
        ..KubeConfigOptions::default()
    };
    match (&args.kubeconfig, &args.context) {
        (Some(path), _) => {
            let file = Kubeconfig::read_from(path)
                .with_context(|| format!("failed to read kubeconfig {}", path.display()))?;
            kube::Config::from_custom_kubeconfig(file, &options)
                .await
                .with_context(|| format!("failed to use kubeconfig {}", path.display()))
        }
        (None, Some(context)) => kube::Config::from_kubeconfig(&options)
            .await
            .with_context(|| format!("failed to use context {context}")),
        (None, None) => kube::Config::infer()
            .await
            .context("failed to find a cluster: pass --kubeconfig or set KUBECONFIG"),
    }
}

fn config(args: Args, in_cluster: bool) -> Config {
    let by_default = |port| {
        Listen(in_cluster.then_some(SocketAddr::new(IpAddr::V4(Ipv4Addr::UNSPECIFIED), port)))
    };
    let home = args.leader_elect_namespace.clone();
    let leader = args.leader_elect.then_some(LeaderConfig {
        namespace: args.leader_elect_namespace,
        lease: args.leader_elect_lease,
    });
    Config {
        namespace: args.namespace,
        identity: args.identity.unwrap_or_else(identity),
        home: Some(home),
        leader,
        health_addr: args.health_addr.unwrap_or(by_default(8081)).endpoint(),
        metrics_addr: args.metrics_addr.unwrap_or(by_default(8080)).endpoint(),
        settings: Settings {
            default_strategy: args.default_strategy,
            queue_policy: args.queue_policy,
            price_weight: args.price_weight,
            start_timeout: args.start_timeout,
            node_loss_timeout: args.node_loss_timeout,
            refusal_timeout: args.refusal_timeout,
            min_run_time: args.min_run_time,
            defragment: args.defragment,
            topology_levels: Arc::new(args.topology_levels.unwrap_or_default()),
            fetcher: Fetcher {
                image: args.fetch_image,
                program: None,
                asks_progress: true,
            },
            isolate_tenants: args.isolate_tenants,
            node_copies: args.node_copies,
            show_pending: args.show_pending,
            autoscalers: args.autoscalers,
            stand_in_image: args.stand_in_image,
        },
    }
}

/// Two processes on one machine differ by id, two of the same id by their start.
fn identity() -> String {
    let started = jiff::Timestamp::now().as_millisecond();
    format!("warp-{}-{started:x}", std::process::id())
}

/// Ends gracefully on SIGTERM and SIGINT; a second signal ends at once.
fn stop_on_signal() -> anyhow::Result<CancellationToken> {
    let stop = CancellationToken::new();
    let mut terminate = signal(SignalKind::terminate()).context("failed to listen for SIGTERM")?;
    let mut interrupt = signal(SignalKind::interrupt()).context("failed to listen for SIGINT")?;
    let token = stop.clone();
    tokio::spawn(async move {
        for _ in 0..2 {
            tokio::select! {
                _ = terminate.recv() => {}
                _ = interrupt.recv() => {}
            }
            if token.is_cancelled() {
                std::process::abort();
            }
            tracing::info!("ending: running passes are completed first");
            token.cancel();
        }
    });
    Ok(stop)
}

fn start_logs(json: bool) -> anyhow::Result<()> {
    let logs = tracing_subscriber::fmt()
        .with_env_filter(log::filter(log::DEFAULT)?)
        .with_writer(std::io::stderr);
    if json {
        logs.json().event_format(log::Lines).init();
        log::log_panics();
    } else {
        let plain = std::env::var_os("NO_COLOR").is_some();
        logs.with_ansi(!plain && std::io::IsTerminal::is_terminal(&std::io::stderr()))
            .init();
    }
    Ok(())
}

/// `host:port`, `:port` for every interface, `0` for none.
fn address(text: &str) -> Result<Listen, String> {
    if text == "0" {
        return Ok(Listen(None));
    }
    let full = if text.starts_with(':') {
        format!("0.0.0.0{text}")
    } else {
        text.to_owned()
    };
    full.parse()
        .map(|address| Listen(Some(address)))
        .map_err(|_| format!("'{text}' is not an address such as :8080 or 127.0.0.1:8080"))
}
