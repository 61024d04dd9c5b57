//! Garbage collection: deletes objects whose owners are gone, and finishes foreground and orphaning deletions, over
//! every kind the API serves, custom ones included.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference};
use kube::Resource;
use kube::api::{Api, GetParams, PartialObjectMeta};
use kube::core::Request;
use parking_lot::Mutex;
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;

use self::graph::{Graph, Node, Owner, group_of};
use super::Shared;
use super::served_kinds::{Served, served};
use warp_runtime::background;
use warp_runtime::cache::store::{Entry, Store};
use warp_runtime::cache::{Cache, Source, fill};
use warp_runtime::driver::{Controller, SyncError};
use warp_runtime::plan::{Kind, Note};
use warp_runtime::queue::Queue;

mod graph;
#[cfg(test)]
mod tests;

/// How often discovery is asked for new kinds when no custom kind was seen to change.
const REDISCOVER: Duration = Duration::from_secs(30);
/// Discovery follows a change of a CRD by a moment.
const AFTER_CRD_CHANGE: Duration = Duration::from_millis(300);

#[derive(Debug)]
pub(crate) struct Garbage {
    shared: Shared,
    graph: Arc<Mutex<Graph>>,
    queue: Arc<Queue<String>>,
    kinds: Arc<Mutex<BTreeMap<(String, String), Served>>>,
}

impl Garbage {
    pub(crate) fn start(shared: &Shared) {
        let queue = Arc::new(Queue::new());
        let graph = Arc::new(Mutex::new(Graph::default()));
        let kinds = Arc::default();
        let garbage = Self {
            shared: shared.clone(),
            graph,
            queue: queue.clone(),
            kinds,
        };
        let mut monitor = Monitor {
            shared: shared.clone(),
            graph: garbage.graph.clone(),
            queue,
            kinds: garbage.kinds.clone(),
            changed: Arc::new(Notify::new()),
            followed: BTreeSet::new(),
        };
        monitor.follow_caches();
        let shared = shared.clone();
        background::tracked(&shared.clone().tasks, async move {
            let mut watched = BTreeMap::new();
            monitor.refresh(&mut watched).await;
            let queue = garbage.queue.clone();
            super::launch(&shared, garbage, queue);
            monitor.run(watched).await;
        });
    }

    /// Asks the API for an owner the graph does not know.
    async fn ask(&self, node: &Node, reference: &OwnerReference) -> Result<Owner, SyncError> {
        let named = (
            group_of(&reference.api_version).to_owned(),
            reference.kind.clone(),
        );
        let Some(served) = self.kinds.lock().get(&named).cloned() else {
            return Ok(Owner::Unknown);
        };
        if served.namespaced && node.key.namespace.is_empty() {
            return Ok(Owner::Unknown);
        }
        let namespace = served.namespaced.then_some(&*node.key.namespace);
        let request = Request::new(served.kind.path(namespace))
            .get_metadata(&reference.name, &GetParams::default())
            .map_err(kube::Error::BuildRequest);
        let found = match request {
            Ok(request) => {
                self.shared
                    .client()
                    .request::<PartialObjectMeta>(request)
                    .await
            }
            Err(error) => Err(error),
        };
        match found {
            Ok(owner) if owner.metadata.uid.as_deref() == Some(&reference.uid) => {
                let finalizers = owner.metadata.finalizers.as_deref().unwrap_or_default();
                let foreground = finalizers.iter().any(|name| name == "foregroundDeletion");
                let waiting = owner.metadata.deletion_timestamp.is_some() && foreground;
                Ok(if waiting {
                    Owner::Waiting
                } else {
                    Owner::Solid
                })
            }
            Ok(_) => Ok(Owner::Absent),
            Err(kube::Error::Api(status)) if status.is_not_found() => Ok(Owner::Absent),
            Err(source) => Err(SyncError::Read {
                what: format!("{} {}", reference.kind, reference.name),
                source: Box::new(source),
            }),
        }
    }

    /// An owner that exists, but not where its dependent is, is nobody's owner: say so before the dependent goes.
    fn warn_of_wrong_namespace(&self, uid: &str, node: &Node, reference: &OwnerReference) {
        let elsewhere = self
            .graph
            .lock()
            .node(&reference.uid)
            .is_some_and(|owner| owner.key.namespace != node.key.namespace);
        if !elsewhere {
            return;
        }
        let about = k8s_openapi::api::core::v1::ObjectReference {
            api_version: Some(node.kind.api_version.clone()),
            kind: Some(node.kind.kind.clone()),
            namespace: node.key.scope().map(str::to_owned),
            name: Some(node.key.name.to_string()),
            uid: Some(uid.to_owned()),
            ..Default::default()
        };
        let message = format!(
            "ownerRef [{}/{}, namespace: {}, name: {}, uid: {}] does not exist in namespace \"{}\"",
            reference.api_version,
            reference.kind,
            node.key.namespace,
            reference.name,
            reference.uid,
            node.key.namespace
        );
        let note = Note {
            about,
            warning: true,
            reason: "OwnerRefInvalidNamespace".to_owned(),
            action: None,
            message,
        };
        self.shared.record(Self::NAME, note);
    }
}

impl Controller for Garbage {
    type Key = String;
    const NAME: &'static str = "garbage-collector-controller";
    const WORKERS: usize = 20;

    async fn sync(&self, uid: &String) -> Result<Option<Timestamp>, SyncError> {
        let Some(node) = self.graph.lock().node(uid).cloned() else {
            return Ok(None);
        };
        let mut owners = Vec::with_capacity(node.owners.len());
        for reference in &node.owners {
            let known = self.graph.lock().owner(&node, reference);
            let owner = match known {
                Some(owner) => owner,
                None => self.ask(&node, reference).await?,
            };
            if owner == Owner::Absent && known.is_none() {
                self.warn_of_wrong_namespace(uid, &node, reference);
                self.graph
                    .lock()
                    .remember_absent(&node.key.namespace, reference);
            }
            owners.push(owner);
        }
        let unknown = owners.contains(&Owner::Unknown);
        let (plan, look) = {
            let graph = self.graph.lock();
            // Its owners changed while they were asked for: the newer state is in the queue already.
            if graph.node(uid).is_none_or(|now| now.owners != node.owners) {
                return Ok(None);
            }
            graph.plan(uid, &owners)
        };
        self.shared.execute(Self::NAME, plan).await?;
        for uid in look {
            self.queue.add(uid);
        }
        Ok(unknown.then(|| self.shared.now() + REDISCOVER))
    }
}

/// Watches the metadata of every kind into the graph, and follows what discovery says.
struct Monitor {
    shared: Shared,
    graph: Arc<Mutex<Graph>>,
    queue: Arc<Queue<String>>,
    kinds: Arc<Mutex<BTreeMap<(String, String), Served>>>,
    changed: Arc<Notify>,
    /// Kinds that are in a shared cache, with all of every namespace: one watch of them is enough.
    followed: BTreeSet<Kind>,
}

type Watched = BTreeMap<Kind, (CancellationToken, Arc<Store>)>;

impl Monitor {
    /// Hears of every kind the controllers keep anyway. Before the caches are filled, so that nothing is missed.
    fn follow_caches(&mut self) {
        let caches = self.shared.caches.clone();
        self.follow(&caches.namespaces);
        self.follow(&caches.pods);
        self.follow(&caches.nodes);
        self.follow(&caches.leases);
        self.follow(&caches.jobs);
        self.follow(&caches.replica_sets);
        self.follow(&caches.deployments);
        self.follow(&caches.budgets);
        self.follow(&caches.quotas);
        self.follow(&caches.services);
        self.follow(&caches.endpoint_slices);
        self.follow(&caches.claims);
        self.follow(&caches.volumes);
        self.follow(&caches.storage_classes);
    }

    fn follow<K: Resource<DynamicType = ()> + Send + Sync + 'static>(&mut self, cache: &Cache<K>) {
        let kind = Kind::of::<K>();
        self.listen(&kind, cache.store());
        self.followed.insert(kind);
    }

    async fn run(self, mut watched: Watched) {
        let shutdown = self.shared.shutdown.clone();
        loop {
            tokio::select! {
                () = shutdown.cancelled() => return,
                () = self.changed.notified() => tokio::time::sleep(AFTER_CRD_CHANGE).await,
                () = tokio::time::sleep(REDISCOVER) => {}
            }
            self.refresh(&mut watched).await;
        }
    }

    /// Starts watching kinds that are new and stops watching those no longer served; returns when the new ones are known.
    async fn refresh(&self, watched: &mut Watched) {
        let found = match served(self.shared.client()).await {
            Ok(found) => found,
            Err(error) => {
                tracing::debug!(%error, "discovery failed, garbage collection keeps what it knows");
                self.changed.notify_one();
                return;
            }
        };
        let wanted: BTreeMap<Kind, Served> = found
            .iter()
            .filter(|kind| kind.is_collectable() && !self.followed.contains(&kind.kind))
            .map(|kind| (kind.kind.clone(), kind.clone()))
            .collect();
        let ended: Vec<Kind> = watched
            .keys()
            .filter(|kind| !wanted.contains_key(*kind))
            .cloned()
            .collect();
        for kind in ended {
            if let Some((stop, store)) = watched.remove(&kind) {
                stop.cancel();
                self.unwatch(&kind, &store).await;
            }
        }
        let mut fresh = Vec::new();
        for kind in wanted.keys() {
            if !watched.contains_key(kind) {
                let stop = self.shared.shutdown.child_token();
                let store = self.watch(kind, stop.clone());
                fresh.push(store.clone());
                watched.insert(kind.clone(), (stop, store));
            }
        }
        *self.kinds.lock() = found
            .into_iter()
            .map(|kind| ((kind.group.clone(), kind.kind.kind.clone()), kind))
            .collect();
        let synced = futures::future::join_all(fresh.iter().map(|store| store.synced()));
        tokio::select! {
            () = self.shared.shutdown.cancelled() => {}
            _ = tokio::time::timeout(REDISCOVER, synced) => {}
        }
    }

    /// Lets go of a kind that is no longer served in this version. Its objects are gone only if its definition is: a
    /// definition may also serve another version now, or none.
    async fn unwatch(&self, kind: &Kind, store: &Store) {
        let definition = format!("{}.{}", kind.plural, group_of(&kind.api_version));
        let definitions = Api::<CustomResourceDefinition>::all(self.shared.client().clone());
        if let Ok(None) = definitions.get_metadata_opt(&definition).await {
            store.replace(Vec::new(), None);
        } else {
            for object in store.all() {
                let uid = object.meta().uid.as_deref().unwrap_or_default();
                for uid in self.graph.lock().forget(uid) {
                    self.queue.add(uid);
                }
            }
        }
        self.shared
            .object_counts
            .forget(group_of(&kind.api_version), &kind.plural);
    }

    fn watch(&self, kind: &Kind, stop: CancellationToken) -> Arc<Store> {
        let cache = Cache::<PartialObjectMeta>::new(&[]);
        self.listen(kind, cache.store());
        let source = Source::metadata(kind.path(None));
        self.shared
            .tasks
            .spawn(fill(self.shared.client().clone(), source, &cache, stop));
        cache.store().clone()
    }

    /// Brings what a cache of `kind` hears into the graph and the counts.
    fn listen(&self, kind: &Kind, store: &Arc<Store>) {
        let counts = self.shared.object_counts.clone();
        counts.watch(group_of(&kind.api_version), &kind.plural, store.clone());
        let (graph, queue, changed) =
            (self.graph.clone(), self.queue.clone(), self.changed.clone());
        let is_crd = kind.kind == "CustomResourceDefinition";
        let kind = Arc::new(kind.clone());
        store.listen(Box::new(move |old, new| {
            let (old, new) = (old.map(Entry::meta), new.map(Entry::meta));
            if old.is_some() != new.is_some()
                && let Some(namespace) = new.or(old).and_then(|meta| meta.namespace.as_deref())
            {
                counts.changed(namespace);
            }
            let uid_of = |meta: &ObjectMeta| meta.uid.clone().unwrap_or_default();
            let mut look = Vec::new();
            let mut graph = graph.lock();
            // A name may have passed to another object between a list and the next.
            if let Some(old) = old
                && new.is_none_or(|new| new.uid != old.uid)
            {
                look.extend(graph.remove(&uid_of(old)));
            }
            if let Some(new) = new {
                look.extend(graph.put(&uid_of(new), Node::new(kind.clone(), new)));
            }
            drop(graph);
            if is_crd {
                changed.notify_one();
            }
            for uid in look {
                queue.add(uid);
            }
        }));
    }
}
