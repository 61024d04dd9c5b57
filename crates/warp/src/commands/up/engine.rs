//! The parts of `warp up` put together: API server, controllers, nodes and operator in one process.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use k8s_openapi::api::storage::v1::StorageClass;
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::Api;
use kube::api::{
    ApiResource, DynamicObject, GroupVersionKind, ListParams, Patch, PatchParams, PostParams,
};
use kube::runtime::wait::{await_condition, conditions::is_crd_established};
use tokio::net::TcpListener;
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;
use warp_apiserver::{AdmissionPlugin, ApiServer, Options};
use warp_local::controllers;
use warp_local::node::access::Hooks;
use warp_local::node::faults::Fault;
use warp_local::node::fleet::Fleet;
use warp_local::node::process::{self, ProcessError};
use warp_local::node::runtime::Report;
use warp_local::node::{Host, Runtime, Simulated, WithEngines, host};

use super::creators::Creators;
use super::fleet;
use super::instance::{Instance, Kind};
use crate::cluster::told;
use crate::commands::install;
use crate::commands::node::{Chosen, Local, local_host};
use crate::output;

/// New kinds are served within this.
const KINDS_LIMIT: Duration = Duration::from_secs(20);
/// Where the addresses of pods on rented machines begin, so that they are not those of the fleet's pods.
const RENTED_PODS: u32 = 1 << 22;
/// The image that fetches models on Docker nodes, as `make image` names it.
const FETCH_IMAGE: &str = "warp:latest";
/// What is under way gets this long to finish when the engine stops.
const STOP_LIMIT: Duration = Duration::from_secs(10);

/// What to run.
pub(super) struct Plan {
    pub(super) instance: Instance,
    pub(super) ephemeral: bool,
    /// Bring a fake cloud to rent from.
    pub(super) demo: bool,
    pub(super) event_ttl: Duration,
    pub(super) listener: TcpListener,
    /// Where the operator answers for its health and metrics.
    pub(super) pages: std::net::TcpListener,
    pub(super) nodes: Nodes,
}

pub(super) enum Nodes {
    Simulated(Fleet),
    Machine(Chosen),
    None,
}

impl Nodes {
    pub(super) fn kind(&self) -> Kind {
        match self {
            Self::Simulated(_) => Kind::Simulated,
            Self::Machine(Chosen::Process) => Kind::Process,
            Self::Machine(Chosen::Docker(_)) => Kind::Docker,
            Self::None => Kind::None,
        }
    }
}

type Parts = JoinSet<(&'static str, anyhow::Result<()>)>;

pub(super) struct Engine {
    server: ApiServer,
    stop: CancellationToken,
    tasks: Parts,
    /// The API server and the watch over its database: the last to go.
    base: Parts,
    pub(super) address: SocketAddr,
}

impl Engine {
    pub(super) async fn start(plan: Plan) -> anyhow::Result<Self> {
        let hooks = Hooks::default();
        let mut options = Options::in_directory(&plan.instance.folder, &[])?;
        options.hooks = Arc::new(hooks.clone());
        options.keep_events = plan.event_ttl;
        options.admission.push(AdmissionPlugin(Arc::new(Creators)));
        if plan.ephemeral {
            options.store.path = None;
        }
        let root_ca = options.identity.ca().to_owned();
        let server = ApiServer::start(options).await?;
        let address = plan
            .listener
            .local_addr()
            .context("failed to read the address listened on")?;
        let mut engine = Self {
            server: server.clone(),
            stop: CancellationToken::new(),
            tasks: JoinSet::new(),
            base: JoinSet::new(),
            address,
        };
        engine.watch_store(&plan.instance);
        let accepting = server.clone();
        engine.base.spawn(async move {
            accepting.serve(plan.listener).await;
            ("the API server", Ok(()))
        });
        server.write_kubeconfig(&plan.instance.kubeconfig(), address)?;
        let client = server.client("default");
        engine.controllers(&client, root_ca, plan.instance.folder.join("volumes"));
        fleet::remove_others(&client, &plan.nodes, &plan.instance).await?;
        engine.nodes(&client, plan.nodes, &plan.instance, &hooks)?;
        install_kinds(&client).await?;
        install_rights(&client).await?;
        if plan.demo {
            install_cloud(&client).await?;
        }
        install_storage(&client).await?;
        // As on a cluster: what its role lacks is refused here too.
        engine.operator(
            server.client_as(install::NAMESPACE, install::OPERATOR),
            plan.pages,
        );
        Ok(engine)
    }

    /// A database that takes no more writes ends the engine: a cluster that cannot remember is none.
    fn watch_store(&mut self, instance: &Instance) {
        let (store, folder) = (self.server.store().clone(), instance.folder.clone());
        self.base.spawn(async move {
            let reason = store.broken().await;
            let why = anyhow::anyhow!(
                "{} takes no more writes ({reason}); {}, then run `warp up` again: everything that was accepted is kept",
                folder.display(),
                if reason.contains("No space left") {
                    "its disk is full, make room there"
                } else {
                    "make it writable"
                }
            );
            ("the database", Err(why))
        });
    }

    fn controllers(&mut self, client: &kube::Client, root_ca: String, volumes: PathBuf) {
        let options = controllers::Options {
            root_ca: Some(root_ca),
            volumes: Some(volumes),
            ..controllers::Options::default()
        };
        let (client, clock, stop) = (
            client.clone(),
            self.server.clock().clone(),
            self.stop.clone(),
        );
        self.tasks.spawn(async move {
            controllers::run(client, clock, options, stop).await;
            ("the controllers", Ok(()))
        });
    }

    fn nodes(
        &mut self,
        client: &kube::Client,
        nodes: Nodes,
        instance: &Instance,
        hooks: &Hooks,
    ) -> anyhow::Result<()> {
        let host = match nodes {
            Nodes::None => return Ok(()),
            Nodes::Simulated(mut fleet) => {
                for shape in &mut fleet.nodes {
                    fleet::mark(shape);
                }
                self.faults(client, std::mem::take(&mut fleet.faults));
                let rented = Simulated::new(fleet.defaults.clone())
                    .with_addresses_from(RENTED_PODS)
                    .followed_through(client.clone());
                self.rented(client, Arc::new(rented));
                let simulated = Simulated::new(fleet.defaults).followed_through(client.clone());
                let (runtime, reports) = simulated_runtime(client, instance, simulated, hooks)?;
                Host {
                    client: client.clone(),
                    clock: self.server.clock().clone(),
                    options: host::Options::for_fleet(fleet.nodes.len()),
                    shapes: fleet.nodes,
                    runtime,
                    reports,
                }
            }
            Nodes::Machine(chosen) => {
                let Local { mut host, access } =
                    local_host(client.clone(), &instance.folder, chosen)?;
                for shape in &mut host.shapes {
                    fleet::mark(shape);
                }
                hooks.connect_to(access);
                host
            }
        };
        let stop = self.stop.clone();
        self.tasks.spawn(async move {
            (
                "the nodes",
                host.run(stop).await.map_err(anyhow::Error::from),
            )
        });
        Ok(())
    }

    /// Machines of fake clouds join as simulated nodes too.
    fn rented(&mut self, client: &kube::Client, runtime: Arc<Simulated>) {
        let (client, clock) = (client.clone(), self.server.clock().clone());
        let (options, stop) = (host::Options::for_fleet(1), self.stop.clone());
        self.tasks.spawn(async move {
            warp_local::node::rented::run(client, clock, runtime, options, stop).await;
            ("the rented machines", Ok(()))
        });
    }

    /// What the fleet file says happens to its nodes.
    fn faults(&mut self, client: &kube::Client, faults: Vec<Fault>) {
        let (client, stop) = (client.clone(), self.stop.clone());
        self.tasks.spawn(async move {
            let played = async {
                warp_local::node::faults::play(client, faults).await;
                std::future::pending::<()>().await;
            };
            tokio::select! {
                () = stop.cancelled() => {}
                () = played => {}
            }
            ("the faults", Ok(()))
        });
    }

    fn operator(&mut self, client: kube::Client, pages: std::net::TcpListener) {
        let pages = warp_operator::Endpoint::Bound(Arc::new(pages));
        let config = warp_operator::Config {
            namespace: None,
            identity: format!("warp-up-{}", std::process::id()),
            home: Some(crate::commands::install::NAMESPACE.to_owned()),
            // The data directory's lock already makes this the only one.
            leader: None,
            health_addr: Some(pages.clone()),
            metrics_addr: Some(pages),
            settings: warp_operator::Settings {
                fetcher: fetcher(),
                isolate_tenants: true,
                node_copies: true,
                show_pending: true,
                autoscalers: true,
                ..warp_operator::Settings::default()
            },
        };
        let stop = self.stop.clone();
        self.tasks.spawn(async move {
            let ended =
                warp_operator::run(client, config, warp_operator::Clock::system(), stop).await;
            ("the operator", ended.map_err(anyhow::Error::from))
        });
    }

    /// Resolves when a part ends that should not.
    pub(super) async fn broken(&mut self) -> anyhow::Error {
        let ended = tokio::select! {
            Some(ended) = self.base.join_next() => Some(ended),
            Some(ended) = self.tasks.join_next() => Some(ended),
            else => None,
        };
        match ended {
            Some(Ok((part, Ok(())))) => anyhow::anyhow!("{part} ended unexpectedly"),
            Some(Ok((part, Err(error)))) => error.context(format!("{part} stopped")),
            Some(Err(error)) => anyhow::Error::from(error).context("a part of the engine crashed"),
            None => std::future::pending().await,
        }
    }

    /// Stops every part in order: nobody new is let in, what is under way ends, the state is written.
    pub(super) async fn stop(mut self) {
        self.stop.cancel();
        let ended = async { while self.tasks.join_next().await.is_some() {} };
        if tokio::time::timeout(STOP_LIMIT, ended).await.is_err() {
            tracing::warn!("some parts did not end in time and are cut off");
        }
        self.server.shutdown().await;
        self.tasks.shutdown().await;
        self.base.shutdown().await;
    }
}

type Reports = Option<mpsc::UnboundedReceiver<Report>>;

/// What runs the pods of simulated nodes: nothing does, except engines, which are processes of this machine.
fn simulated_runtime(
    client: &kube::Client,
    instance: &Instance,
    simulated: Simulated,
    hooks: &Hooks,
) -> anyhow::Result<(Arc<dyn Runtime>, Reports)> {
    let program = std::env::current_exe().context("failed to find this program")?;
    let made = process::Process::new(
        client.clone(),
        &instance.engines(),
        program,
        "127.0.0.1",
        process::Cgroups::find(),
    );
    match made {
        Ok((engines, reports)) => {
            let runtime = Arc::new(WithEngines::new(simulated, engines));
            hooks.connect_to(runtime.clone());
            Ok((runtime, Some(reports)))
        }
        Err(error @ ProcessError::LongPath { .. }) => {
            output::note(&format!("engines are simulated only: {error}"));
            let runtime = Arc::new(simulated);
            hooks.connect_to(runtime.clone());
            Ok((runtime, None))
        }
        Err(error) => Err(error.into()),
    }
}

/// What fetches models here: this program itself on nodes that run commands of this machine.
fn fetcher() -> warp_operator::Fetcher {
    let program = std::env::current_exe().ok();
    warp_operator::Fetcher {
        image: Some(FETCH_IMAGE.to_owned()),
        program: program.map(|path| path.display().to_string()),
        asks_progress: true,
    }
}

/// The operator's service account and role, and what users' roles mean for our kinds.
async fn install_rights(client: &kube::Client) -> anyhow::Result<()> {
    for object in install::rights()? {
        let object: DynamicObject = serde_json::from_value(object)?;
        let types = object.types.clone().unwrap_or_default();
        let kind = GroupVersionKind::try_from(&types)?;
        let resource = ApiResource::from_gvk(&kind);
        let name = object.metadata.name.clone().unwrap_or_default();
        let api: Api<DynamicObject> = match object.metadata.namespace.as_deref() {
            Some(namespace) => Api::namespaced_with(client.clone(), namespace, &resource),
            None => Api::all_with(client.clone(), &resource),
        };
        let apply = PatchParams::apply("warp-up").force();
        api.patch(&name, &apply, &Patch::Apply(&object))
            .await
            .map_err(told)
            .with_context(|| format!("failed to install {} {name}", types.kind))?;
    }
    Ok(())
}

/// A fake cloud, as the example has it. One that is there, or was taken away on purpose later, is the user's.
async fn install_cloud(client: &kube::Client) -> anyhow::Result<()> {
    let example = include_str!("../../../../../deploy/examples/cloud.yaml");
    let cloud: warp_api::CloudProvider =
        serde_saphyr::from_str(example).context("failed to read an embedded manifest")?;
    let api: Api<warp_api::CloudProvider> = Api::all(client.clone());
    match api.create(&PostParams::default(), &cloud).await {
        Err(kube::Error::Api(status)) if status.is_already_exists() => Ok(()),
        other => other
            .map(drop)
            .context("failed to create the fake cloud of the demo"),
    }
}

/// A class that claims get by default, folders of this machine, unless somebody has made classes.
async fn install_storage(client: &kube::Client) -> anyhow::Result<()> {
    let api: Api<StorageClass> = Api::all(client.clone());
    let there = api.list(&ListParams::default().limit(1)).await;
    let there = there.context("failed to look for storage classes")?;
    if !there.items.is_empty() {
        return Ok(());
    }
    let class = serde_json::from_value(serde_json::json!({
        "metadata": {
            "name": "local",
            "annotations": {"storageclass.kubernetes.io/is-default-class": "true"},
        },
        "provisioner": controllers::PROVISIONER,
        "reclaimPolicy": "Delete",
        "volumeBindingMode": "Immediate",
    }))?;
    api.create(&PostParams::default(), &class)
        .await
        .map_err(told)
        .context("failed to make the storage class local")?;
    Ok(())
}

/// Our kinds, before anybody asks for them.
async fn install_kinds(client: &kube::Client) -> anyhow::Result<()> {
    let api: Api<CustomResourceDefinition> = Api::all(client.clone());
    for definition in warp_api::crd::all() {
        let name = definition["metadata"]["name"]
            .as_str()
            .unwrap_or_default()
            .to_owned();
        let apply = PatchParams::apply("warp-up").force();
        api.patch(&name, &apply, &Patch::Apply(&definition))
            .await
            .with_context(|| format!("failed to install the kind {name}"))?;
        tokio::time::timeout(
            KINDS_LIMIT,
            await_condition(api.clone(), &name, is_crd_established()),
        )
        .await
        .with_context(|| format!("the kind {name} is not served after {KINDS_LIMIT:?}"))?
        .with_context(|| format!("failed to watch the kind {name}"))?;
    }
    Ok(())
}
