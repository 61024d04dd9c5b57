//! A cluster in this process in virtual time: the embedded API server, its controllers, simulated
//! nodes, and the part under test behind the fault layer.
//!
//! Everything runs on one paused tokio runtime, so hours pass in the time it takes to compute them and
//! a run repeats. The part under test is whatever the caller starts with a client: it dies and is
//! started afresh as the plan says; the rest of the world stays healthy.

use std::future::Future;
use std::pin::Pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, LazyLock};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::ServiceAccount;
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::api::{Api, ApiResource, DynamicObject, GroupVersionKind, Patch, PatchParams};
use kube::runtime::wait::{await_condition, conditions::is_crd_established};
use kube::{Client, Resource};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;
use tokio_util::sync::CancellationToken;
use warp_apiserver::clock::Clock;
use warp_apiserver::store::StoreOptions;
use warp_apiserver::{ApiServer, Options};
use warp_local::controllers;
use warp_local::node::fleet::Fleet;
use warp_local::node::{Host, Simulated, host};

use super::layer::Faults;
use crate::wait::wait_for;

/// Changes of one kind that are kept for the judges: those of the longest walk, several times over.
const HISTORY_EVENTS: usize = 1 << 16;
/// The first moment of every world.
const DAWN: &str = "2027-01-15T08:00:00Z";
/// Virtual: nothing a scenario waits for takes this long.
pub const VIRTUAL_LIMIT: Duration = Duration::from_hours(2);
/// How long a dead process stays dead.
const RESTART: Duration = Duration::from_secs(1);
/// Nodes give signs of life this often, which keeps an hour cheap.
const LEASE_EVERY: Duration = Duration::from_mins(1);
const NODE_GRACE: Duration = Duration::from_secs(150);

tokio::task_local! {
    /// The clock of the world a part is started in.
    static CLOCK: Clock;
}

/// The time in the world this part was started in, for parts that keep a clock of their own.
pub fn now() -> Timestamp {
    CLOCK.with(Clock::now)
}

/// Starts the part under test; the future ends when the token is cancelled.
pub type Part = Arc<
    dyn Fn(Client, CancellationToken) -> Pin<Box<dyn Future<Output = ()> + Send>> + Send + Sync,
>;

/// What a world has besides its API server.
#[derive(Clone, Default)]
pub struct Setup {
    /// A fleet file; empty for no nodes.
    pub fleet: String,
    /// The part under test; none puts the engine's own controllers behind the faults.
    pub part: Option<Part>,
    /// A second part beside the one under test that no fault meets.
    pub rival: Option<Part>,
}

impl std::fmt::Debug for Setup {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.debug_struct("Setup")
            .field("fleet", &self.fleet)
            .field("part", &self.part.is_some())
            .field("rival", &self.rival.is_some())
            .finish()
    }
}

/// A running world. It ends with its runtime.
pub struct World {
    /// A healthy client: the user.
    pub client: Client,
    pub clock: Clock,
    pub faults: Faults,
    server: ApiServer,
    stop: CancellationToken,
    exits: Arc<AtomicU64>,
    dawn: u64,
    _volumes: tempfile::TempDir,
}

impl std::fmt::Debug for World {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.debug_struct("World")
            .field("faults", &self.faults)
            .field("dawn", &self.dawn)
            .finish_non_exhaustive()
    }
}

impl World {
    /// Starts everything and waits until it is ready; from then on requests are numbered.
    pub async fn start(setup: &Setup, faults: Faults) -> Result<Self> {
        let clock = Clock::tokio(DAWN.parse::<Timestamp>()?);
        let server = ApiServer::start(Options {
            clock: clock.clone(),
            // The judges read a scenario's whole history, which may be hours long.
            compact_every: None,
            store: StoreOptions {
                ring_events: HISTORY_EVENTS,
                ..StoreOptions::default()
            },
            ..Options::ephemeral()?
        })
        .await?;
        let client = server.client("default");
        let volumes = tempfile::tempdir()?;
        let stop = CancellationToken::new();
        let exits = Arc::new(AtomicU64::new(0));
        install_kinds(&client).await?;
        faults.disarm();
        let engine = engine(clock.clone(), volumes.path().to_owned());
        // Either the caller's part or the engine itself is under test; the other one is healthy.
        let part = if let Some(part) = &setup.part {
            tokio::spawn(engine(client.clone(), stop.clone()));
            Arc::clone(part)
        } else {
            engine
        };
        if let Some(rival) = &setup.rival {
            let life = rival(server.client("default"), stop.clone());
            tokio::spawn(CLOCK.scope(clock.clone(), life));
        }
        tokio::spawn(supervise(
            server.clone(),
            faults.clone(),
            part,
            stop.clone(),
            Arc::clone(&exits),
        ));
        let mut world = Self {
            client,
            clock,
            faults,
            server,
            stop,
            exits,
            dawn: 0,
            _volumes: volumes,
        };
        world.nodes(&setup.fleet)?;
        world.ready("default").await?;
        // Whatever starting takes is over by then.
        tokio::time::sleep(Duration::from_secs(30)).await;
        world.dawn = world.server.store().revision();
        world.faults.arm();
        Ok(world)
    }

    fn nodes(&self, fleet: &str) -> Result<()> {
        if fleet.is_empty() {
            return Ok(());
        }
        let fleet = Fleet::parse(fleet, "the fleet of the scenario")?;
        let host = Host {
            client: self.client.clone(),
            clock: self.clock.clone(),
            options: host::Options {
                lease_every: LEASE_EVERY,
                writes: 64,
                chatty: false,
            },
            runtime: Arc::new(Simulated::new(fleet.defaults)),
            shapes: fleet.nodes,
            reports: None,
        };
        tokio::spawn(host.run(self.stop.clone()));
        Ok(())
    }

    /// Adds nodes, as machines that join later do.
    pub fn join(&self, fleet: &str) -> Result<()> {
        self.nodes(fleet)
    }

    /// Waits until pods can be made in a namespace.
    pub async fn ready(&self, namespace: &str) -> Result<()> {
        let accounts: Api<ServiceAccount> = Api::namespaced(self.client.clone(), namespace);
        wait_for(&accounts, "default", "made", VIRTUAL_LIMIT, |account| {
            account.is_some()
        })
        .await?;
        Ok(())
    }

    pub fn server(&self) -> &ApiServer {
        &self.server
    }

    /// The revision at which the world was ready.
    pub fn dawn(&self) -> u64 {
        self.dawn
    }

    /// How often the part under test ended by itself or panicked.
    pub fn exits(&self) -> u64 {
        self.exits.load(Ordering::Relaxed)
    }

    /// Lets virtual time pass.
    pub async fn pass(&self, time: Duration) {
        tokio::time::sleep(time).await;
    }

    /// The API of a kind named by its manifest.
    pub fn api_of(&self, manifest: &Value) -> Result<Api<DynamicObject>> {
        let text = |pointer: &str| manifest.pointer(pointer).and_then(Value::as_str);
        let version = text("/apiVersion").context("a manifest without apiVersion")?;
        let kind = text("/kind").context("a manifest without kind")?;
        let (group, version) = version.split_once('/').unwrap_or(("", version));
        let resource = ApiResource::from_gvk(&GroupVersionKind::gvk(group, version, kind));
        let cluster = matches!(
            kind,
            "Namespace" | "Node" | "PersistentVolume" | "StorageClass" | "CustomResourceDefinition"
        ) || warp_api::kinds::KINDS
            .iter()
            .any(|entry| entry.kind == kind && !entry.namespaced);
        Ok(if cluster {
            Api::all_with(self.client.clone(), &resource)
        } else {
            let namespace = text("/metadata/namespace").unwrap_or("default");
            Api::namespaced_with(self.client.clone(), namespace, &resource)
        })
    }

    /// Creates what a manifest says.
    pub async fn create(&self, manifest: Value) -> Result<DynamicObject> {
        let api = self.api_of(&manifest)?;
        let object: DynamicObject = serde_json::from_value(manifest)?;
        let name = object.metadata.name.clone().unwrap_or_default();
        api.create(&kube::api::PostParams::default(), &object)
            .await
            .with_context(|| format!("failed to create {name}"))
    }

    /// Merges `patch` into the object a manifest names.
    pub async fn patch(&self, manifest: &Value, patch: Value) -> Result<DynamicObject> {
        let name = manifest["metadata"]["name"].as_str().unwrap_or_default();
        self.api_of(manifest)?
            .patch(name, &PatchParams::default(), &Patch::Merge(patch))
            .await
            .with_context(|| format!("failed to change {name}"))
    }

    /// Waits until the object a manifest names is as told.
    pub async fn until(
        &self,
        manifest: &Value,
        what: &str,
        holds: impl Fn(Option<&Value>) -> bool + Send,
    ) -> Result<()> {
        let name = manifest["metadata"]["name"].as_str().unwrap_or_default();
        let api = self.api_of(manifest)?;
        self.wait(&api, name, what, move |object: Option<&DynamicObject>| {
            let value = object.and_then(|object| serde_json::to_value(object).ok());
            holds(value.as_ref())
        })
        .await
    }

    /// Waits until `condition` holds for an object.
    pub async fn wait<K>(
        &self,
        api: &Api<K>,
        name: &str,
        what: &str,
        condition: impl Fn(Option<&K>) -> bool + Send,
    ) -> Result<()>
    where
        K: Resource
            + Clone
            + std::fmt::Debug
            + Send
            + Sync
            + Serialize
            + DeserializeOwned
            + 'static,
    {
        wait_for(api, name, what, VIRTUAL_LIMIT, condition).await?;
        Ok(())
    }

    /// Waits until nobody has written anything (signs of life aside) for `window`.
    pub async fn settled(&self, window: Duration) -> Result<()> {
        let limit = tokio::time::Instant::now() + VIRTUAL_LIMIT;
        loop {
            let seen = self.server.store().revision();
            tokio::time::sleep(window).await;
            if super::history::changes(self.server.store(), seen).is_empty() {
                return Ok(());
            }
            if tokio::time::Instant::now() > limit {
                bail!(
                    "something is still being written after {VIRTUAL_LIMIT:?}:\n{}",
                    self.lately()
                );
            }
        }
    }

    /// The newest changes, one per line, for whoever must find out who does not come to rest.
    fn lately(&self) -> String {
        let changes = super::history::changes(self.server.store(), self.dawn);
        let newest = changes.iter().rev().take(24).rev();
        let lines = newest.map(|change| {
            let text = |pointer: &str| super::history::text(&change.object, pointer);
            format!(
                "{:?} {} {}/{} {}",
                change.kind,
                change.of(),
                text("/metadata/namespace"),
                text("/metadata/name"),
                text("/status/message"),
            )
        });
        lines.collect::<Vec<_>>().join("\n")
    }
}

impl Drop for World {
    fn drop(&mut self) {
        self.stop.cancel();
    }
}

/// Runs `work` in one thread in which time passes only while everybody waits for it.
pub fn virtual_time<T>(work: impl Future<Output = Result<T>>) -> Result<T> {
    tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .start_paused(true)
        .build()?
        .block_on(work)
}

/// The embedded engine's controllers as a part.
fn engine(clock: Clock, volumes: std::path::PathBuf) -> Part {
    let options = controllers::Options {
        root_ca: Some("PEM".to_owned()),
        volumes: Some(volumes),
        node_grace: NODE_GRACE,
        ..controllers::Options::default()
    };
    Arc::new(move |client, stop| {
        Box::pin(controllers::run(
            client,
            clock.clone(),
            options.clone(),
            stop,
        ))
    })
}

/// Keeps a part running as a cluster does: when it dies or ends, it is started again.
async fn supervise(
    server: ApiServer,
    faults: Faults,
    part: Part,
    stop: CancellationToken,
    exits: Arc<AtomicU64>,
) {
    loop {
        let own = stop.child_token();
        let client = Client::new(faults.service(server.service()), "default");
        let (part, token) = (Arc::clone(&part), own.clone());
        let life = async move { part(client, token).await };
        let mut task = tokio::spawn(CLOCK.scope(server.clock().clone(), life));
        tokio::select! {
            () = stop.cancelled() => return,
            () = faults.crashed() => {}
            _ = &mut task => {
                exits.fetch_add(1, Ordering::Relaxed);
                faults.kill();
            }
        }
        task.abort();
        own.cancel();
        tokio::time::sleep(RESTART).await;
        faults.revive();
    }
}

async fn install_kinds(client: &Client) -> Result<()> {
    // The same in every world, and dear to make.
    static KINDS: LazyLock<Vec<Value>> = LazyLock::new(warp_api::crd::all);
    let api: Api<CustomResourceDefinition> = Api::all(client.clone());
    for definition in KINDS.iter() {
        let name = definition["metadata"]["name"]
            .as_str()
            .unwrap_or_default()
            .to_owned();
        let apply = PatchParams::apply("testkit").force();
        api.patch(&name, &apply, &Patch::Apply(definition)).await?;
        tokio::time::timeout(
            VIRTUAL_LIMIT,
            await_condition(api.clone(), &name, is_crd_established()),
        )
        .await
        .with_context(|| format!("the kind {name} is not served"))??;
    }
    Ok(())
}
