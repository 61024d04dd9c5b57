//! Where kinds register: each says in one place what it reads, how an event becomes a key, how many of its objects are
//! worked on at once and how long a request may take. The runtime then fills the caches, tells how that goes, and runs
//! every kind that can be read. A kind that cannot be read stops alone, and goes on by itself when it can.

mod health;
#[cfg(test)]
mod tests;

use std::any::TypeId;
use std::collections::BTreeMap;
use std::fmt::{self, Debug};
use std::sync::Arc;
use std::time::Duration;

use futures::FutureExt;
use futures::future::BoxFuture;
use kube::Resource;
use kube::core::ClusterResourceScope;
use parking_lot::RwLock;
use serde::Serialize;
use serde::de::DeserializeOwned;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

pub(crate) use self::health::Needs;
pub use self::health::{KindHealth, Readiness};
use crate::Clock;
use crate::background;
use crate::cache::{Cache, Key, Shape, Source, fill_observed};
use crate::driver::drive_until;
use crate::events::Recorder;
use crate::execute::{Executor, Followed, Outsides, OwnWrites};
use crate::outside::{External, Outside};
use crate::pass::{Correlation, Observer};
use crate::queue::{Backoff, Queue};
use crate::reconcile::{KindController, REQUEST_DEADLINE, Reconcile, WORKERS};
use crate::sweep::{Hands, Sweep, SweepController, SweepRegistration, everything};

/// How long the last Events may take when the runtime ends.
const LAST_EVENTS: Duration = Duration::from_secs(5);

/// The queues of all controllers, so that one may wake another.
#[derive(Clone, Debug, Default)]
pub struct Wakes(Arc<RwLock<Queues>>);

/// Each with how long it lets wake-ups gather.
type Queues = BTreeMap<&'static str, (Arc<Queue<Key>>, Duration)>;

impl Wakes {
    /// Has `controller` look at `key`; one that is not registered needs no wake-up.
    pub fn wake(&self, controller: &str, key: Key) {
        self.wake_after(controller, key, Duration::ZERO);
    }

    /// The same after a delay: wake-ups that come in crowds lead to one look.
    pub fn wake_after(&self, controller: &str, key: Key, delay: Duration) {
        if let Some((queue, gather)) = self.0.read().get(controller) {
            queue.add_after(key, delay.max(*gather));
        }
    }

    /// Has a sweep look at everything.
    pub fn wake_sweep(&self, sweep: &str) {
        self.wake(sweep, everything());
    }

    fn add(&self, controller: &'static str, queue: Arc<Queue<Key>>, gather: Duration) {
        self.0.write().insert(controller, (queue, gather));
    }
}

/// A kind's registration: who it is, what it watches, and its limits.
pub struct Registration<R: Reconcile> {
    kind: R,
    objects: Cache<R::Object>,
    queue: Arc<Queue<Key>>,
    needs: Needs,
    workers: usize,
    deadline: Duration,
}

impl<R: Reconcile> Debug for Registration<R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Registration")
            .field("name", &R::NAME)
            .finish_non_exhaustive()
    }
}

impl<R: Reconcile> Registration<R> {
    /// The kind of the objects in `objects`, each looked at when it changes.
    pub fn of(kind: R, objects: &Cache<R::Object>) -> Self {
        let queue = Arc::new(Queue::with(Backoff::CALM));
        objects.on_key(&queue, |object| Some(Key::of(object)));
        Self {
            kind,
            objects: objects.clone(),
            queue,
            needs: Needs::of(objects),
            workers: WORKERS,
            deadline: REQUEST_DEADLINE,
        }
    }

    /// Reads `cache`, whose changes mean nothing to it.
    #[must_use]
    pub fn reads<K>(mut self, cache: &Cache<K>) -> Self
    where
        K: Resource<DynamicType = ()> + Send + Sync + 'static,
    {
        self.needs.add(cache);
        self
    }

    /// Looks at the objects that `keys` names for the state before and after every change in `cache`.
    #[must_use]
    pub fn watches<K>(
        self,
        cache: &Cache<K>,
        keys: impl Fn(&K) -> Vec<Key> + Send + Sync + 'static,
    ) -> Self
    where
        K: Resource<DynamicType = ()> + Send + Sync + 'static,
    {
        self.watches_changes(cache, move |old, new| {
            let mut all = old.map(&keys).unwrap_or_default();
            all.extend(new.map(&keys).unwrap_or_default());
            all
        })
    }

    /// Looks at the objects that `keys` names for a change, of which most may mean nothing.
    #[must_use]
    pub fn watches_changes<K>(
        self,
        cache: &Cache<K>,
        keys: impl Fn(Option<&K>, Option<&K>) -> Vec<Key> + Send + Sync + 'static,
    ) -> Self
    where
        K: Resource<DynamicType = ()> + Send + Sync + 'static,
    {
        let queue = self.queue.clone();
        cache.listen(move |old, new| {
            for key in keys(old, new) {
                queue.add(key);
            }
        });
        self.reads(cache)
    }

    /// Looks at the owner of every object that changes in `cache`.
    #[must_use]
    pub fn owns<K>(self, cache: &Cache<K>) -> Self
    where
        K: Resource<DynamicType = ()> + Send + Sync + 'static,
        <R::Object as Resource>::Scope: 'static,
    {
        self.watches(cache, owners::<R::Object, K>)
    }

    /// Looks at the object whose name every object that changes in `cache` carries under `label`, in its own
    /// namespace: a label elsewhere is anybody's to write.
    #[must_use]
    pub fn labels<K>(self, cache: &Cache<K>, label: &'static str) -> Self
    where
        K: Resource<DynamicType = ()> + Send + Sync + 'static,
    {
        self.watches(cache, move |object| labelled(object, label))
    }

    /// Objects looked at at once.
    #[must_use]
    pub fn workers(mut self, workers: usize) -> Self {
        self.workers = workers;
        self
    }

    /// The longest one request may take.
    #[must_use]
    pub fn request_deadline(mut self, deadline: Duration) -> Self {
        self.deadline = deadline;
        self
    }
}

/// The keys of the objects of kind `O` that control `child`.
fn owners<O, K>(child: &K) -> Vec<Key>
where
    O: Resource<DynamicType = (), Scope: 'static>,
    K: Resource,
{
    let meta = child.meta();
    let cluster_wide = TypeId::of::<O::Scope>() == TypeId::of::<ClusterResourceScope>();
    let namespace = meta.namespace.as_deref().filter(|_| !cluster_wide);
    let namespace = namespace.unwrap_or_default();
    let owners = meta.owner_references.iter().flatten();
    let ours = owners.filter(|owner| {
        owner.controller == Some(true)
            && owner.kind == O::kind(&())
            && owner.api_version == O::api_version(&())
    });
    ours.map(|owner| Key::new(namespace, &owner.name)).collect()
}

/// The key of the object whose name `object` carries under `label`.
fn labelled<K: Resource>(object: &K, label: &str) -> Vec<Key> {
    let meta = object.meta();
    let namespace = meta.namespace.as_deref().unwrap_or_default();
    let name = meta.labels.as_ref().and_then(|labels| labels.get(label));
    name.map(|name| Key::new(namespace, name))
        .into_iter()
        .collect()
}

type Start = Box<dyn FnOnce(&Acting) -> BoxFuture<'static, ()> + Send>;

/// What controllers act with.
struct Acting {
    executor: Executor,
    clock: Clock,
    correlation: Arc<Correlation>,
    observer: Arc<dyn Observer>,
    wakes: Wakes,
    /// Nothing new is begun.
    stop: CancellationToken,
    /// What has been begun is dropped.
    cut: CancellationToken,
}

/// The caches, feeds and controllers of one process.
pub struct Runtime {
    client: kube::Client,
    clock: Clock,
    identity: String,
    process: String,
    observer: Arc<dyn Observer>,
    followed: Followed,
    feeds: Vec<BoxFuture<'static, ()>>,
    starts: Vec<Start>,
    readiness: Readiness,
    wakes: Wakes,
    outsides: Outsides,
    shutdown: CancellationToken,
}

impl Debug for Runtime {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Runtime")
            .field("kinds", &self.readiness.kinds())
            .finish_non_exhaustive()
    }
}

impl Runtime {
    pub fn new(
        client: kube::Client,
        clock: Clock,
        identity: &str,
        observer: Arc<dyn Observer>,
        shutdown: CancellationToken,
    ) -> Self {
        Self {
            client,
            process: format!("{identity}@{}", clock.now().as_millisecond()),
            clock,
            identity: identity.to_owned(),
            observer,
            followed: Followed::default(),
            feeds: Vec::new(),
            starts: Vec::new(),
            readiness: Readiness::default(),
            wakes: Wakes::default(),
            outsides: Outsides::default(),
            shutdown,
        }
    }

    /// A cache of what `source` brings, which own writes are taken into.
    pub fn cache<K>(&mut self, source: Source, shape: Shape<K>) -> Cache<K>
    where
        K: Resource<DynamicType = ()> + Serialize + DeserializeOwned + Send + Sync + 'static,
    {
        self.filled(source.must_be_served(), shape)
    }

    /// The same of a kind that may be installed or not: without its CRD, or without the right to read it, it has no objects,
    /// and nobody but its own controller stops for it.
    pub fn cache_if_served<K>(&mut self, source: Source, shape: Shape<K>) -> Cache<K>
    where
        K: Resource<DynamicType = ()> + Serialize + DeserializeOwned + Send + Sync + 'static,
    {
        let cache = self.filled(source.if_served(), shape);
        cache.store().set_optional();
        cache
    }

    fn filled<K>(&mut self, source: Source, shape: Shape<K>) -> Cache<K>
    where
        K: Resource<DynamicType = ()> + Serialize + DeserializeOwned + Send + Sync + 'static,
    {
        let cache = Cache::shaped(shape);
        self.followed.add(&cache);
        let (client, shutdown) = (self.client.clone(), self.shutdown.clone());
        let observer = Some(self.observer.clone());
        let feed = fill_observed(client, source, &cache, observer, shutdown);
        self.feeds.push(feed);
        cache
    }

    /// This process, told from every other that runs or ran under the same identity.
    pub fn process(&self) -> &str {
        &self.process
    }

    /// Something outside the cluster, under a name that plans call it by; `controller` looks again at an object when
    /// an answer for it is here.
    pub fn outside(
        &mut self,
        name: &'static str,
        controller: &'static str,
        external: impl External,
    ) -> Outside {
        let wakes = self.wakes.clone();
        let wake = move |key| wakes.wake(controller, key);
        let outside = Outside::new(external, self.clock.clone(), wake);
        self.outsides.write().insert(name, outside.clone());
        outside
    }

    pub fn readiness(&self) -> Readiness {
        self.readiness.clone()
    }

    pub fn wakes(&self) -> Wakes {
        self.wakes.clone()
    }

    pub fn register<R: Reconcile>(&mut self, registration: Registration<R>) {
        let Registration {
            kind,
            objects,
            queue,
            needs,
            workers,
            deadline,
        } = registration;
        self.readiness.add(R::NAME, needs.clone());
        self.wakes.add(R::NAME, queue.clone(), Duration::ZERO);
        self.starts.push(Box::new(move |acting: &Acting| {
            let clock = acting.clock.clone();
            let (stop, cut) = (acting.stop.clone(), acting.cut.clone());
            let controller = KindController {
                kind,
                objects,
                needs,
                workers,
                executor: acting.executor.clone().with_deadline(deadline),
                clock: acting.clock.clone(),
                correlation: acting.correlation.clone(),
                observer: acting.observer.clone(),
                wakes: acting.wakes.clone(),
            };
            async move {
                tokio::select! {
                    () = stop.cancelled() => return,
                    () = cut.cancelled() => return,
                    () = controller.needs.synced() => {}
                }
                for object in controller.objects.all() {
                    queue.add(Key::of(&*object));
                }
                drive_until(Arc::new(controller), queue, clock, stop, cut).await;
            }
            .boxed()
        }));
    }

    /// Registers a loop over everything.
    pub fn sweep<S: Sweep>(&mut self, registration: SweepRegistration<S>) {
        let SweepRegistration {
            sweep,
            queue,
            needs,
            gather,
        } = registration;
        self.readiness.add(S::NAME, needs.clone());
        self.wakes.add(S::NAME, queue.clone(), gather);
        self.starts.push(Box::new(move |acting: &Acting| {
            let clock = acting.clock.clone();
            let (stop, cut) = (acting.stop.clone(), acting.cut.clone());
            let hands = Hands {
                executor: acting.executor.clone(),
                correlation: acting.correlation.clone(),
                wakes: acting.wakes.clone(),
            };
            let controller = SweepController {
                sweep,
                needs,
                hands,
                clock: clock.clone(),
            };
            async move {
                tokio::select! {
                    () = stop.cancelled() => return,
                    () = cut.cancelled() => return,
                    () = controller.needs.synced() => {}
                }
                queue.add(everything());
                drive_until(Arc::new(controller), queue, clock, stop, cut).await;
            }
            .boxed()
        }));
    }

    /// Fills the caches until the runtime's end: on every replica, so that a new leader starts warm.
    pub fn feeds(&mut self) -> Vec<BoxFuture<'static, ()>> {
        std::mem::take(&mut self.feeds)
    }

    /// Runs every registered kind until `stop`, then lets running passes end.
    pub async fn act(self, stop: CancellationToken) {
        let (events, writer) = Recorder::stable(
            self.client.clone(),
            self.clock.clone(),
            &self.identity,
            self.observer.clone(),
            self.shutdown.clone(),
        );
        // Controllers end with this future, also when it is dropped.
        let cut = CancellationToken::new();
        let _ends = cut.clone().drop_guard();
        let tasks = TaskTracker::new();
        let writing = background::spawn(writer);
        let executor = Executor::new(self.client, self.clock.clone(), events, self.followed);
        let acting = Acting {
            executor: executor
                .own_writes(OwnWrites::TakenIn)
                .calling(self.outsides)
                .observed_by(self.observer.clone()),
            clock: self.clock,
            correlation: Arc::new(Correlation::new(&self.identity)),
            observer: self.observer,
            wakes: self.wakes,
            stop,
            cut,
        };
        for start in self.starts {
            background::tracked(&tasks, start(&acting));
        }
        // Every handle of the recorder goes with the last controller; the writer then says what is left and ends.
        drop(acting);
        tasks.close();
        tasks.wait().await;
        let _ = tokio::time::timeout(LAST_EVENTS, writing).await;
    }
}
