//! A kind that rents something, in a world where calls get lost, take effect late, and the process dies before and
//! after every write and every call: it never has two of a thing and never leaves one behind.

use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};

use k8s_openapi::api::core::v1::ConfigMap;
use kube::api::{Api, DeleteParams, PostParams};
use kube::core::ObjectMeta;
use kube::{Resource, ResourceExt};
use serde_json::json;
use tokio_util::sync::CancellationToken;
use warp_apiserver::{ApiServer, Options};

use super::*;
use crate::cache::{Shape, Source};
use crate::pass::Unobserved;
use crate::plan::Plan;
use crate::reconcile::Reconcile;
use crate::runtime::{Registration, Runtime};

const FINALIZER: &str = "test.warp.dev/rental";
const MANAGER: &str = "test-rental";
const NAME: &str = "rental";

/// A provider that knows what it rented out. It is not idempotent: asked twice it gives two.
#[derive(Clone, Debug, Default)]
struct Provider {
    rented: Arc<Mutex<BTreeMap<String, u32>>>,
    most: Arc<AtomicU32>,
    /// How often it was asked for one.
    asked: Arc<AtomicU32>,
}

impl Provider {
    fn rent(&self, name: &str) -> u32 {
        let mut rented = self.rented.lock();
        let count = rented.entry(name.to_owned()).or_default();
        *count += 1;
        self.most.fetch_max(*count, Ordering::SeqCst);
        *count
    }
}

/// One life of the process: everything it asks goes through here, and ends here when its time has come.
#[derive(Clone, Debug)]
struct Life {
    /// Writes and calls of all lives; the process dies at one of them.
    points: Arc<AtomicUsize>,
    dies_at: usize,
    dead: CancellationToken,
}

impl Life {
    /// A point where the process may die. What is dead waits for ever.
    async fn point(&self) {
        let point = self.points.fetch_add(1, Ordering::SeqCst);
        if point == self.dies_at {
            self.dead.cancel();
        }
        if self.dead.is_cancelled() {
            std::future::pending::<()>().await;
        }
    }

    fn client(&self, server: &ApiServer) -> kube::Client {
        let (life, client) = (self.clone(), server.client("default"));
        let service = tower::service_fn(move |request: http::Request<kube::client::Body>| {
            let (life, client) = (life.clone(), client.clone());
            async move {
                let write = request.method() != http::Method::GET;
                if write {
                    life.point().await;
                } else if life.dead.is_cancelled() {
                    std::future::pending::<()>().await;
                }
                let answer = client.send(request).await;
                if write {
                    life.point().await;
                }
                answer.map_err(|error| tower::BoxError::from(error.to_string()))
            }
        });
        kube::Client::new(service, "default")
    }
}

/// The provider as one life of the process reaches it.
struct Reached {
    provider: Provider,
    life: Life,
}

const LIMITS: Limits = Limits {
    call_deadline: Duration::from_secs(10),
    settle: Duration::from_secs(30),
    max_age: Duration::from_mins(5),
    retry: Duration::from_secs(5),
};

impl External for Reached {
    fn limits(&self) -> Limits {
        LIMITS
    }

    fn look_up<'a>(&'a self, name: &'a str) -> BoxFuture<'a, Result<Option<Value>, OutsideError>> {
        Box::pin(async move {
            tokio::time::sleep(Duration::from_millis(100)).await;
            self.life.point().await;
            let rented = self.provider.rented.lock();
            Ok(rented
                .get(name)
                .filter(|count| **count > 0)
                .map(|count| json!(count)))
        })
    }

    fn make<'a>(
        &'a self,
        name: &'a str,
        _: &'a Value,
    ) -> BoxFuture<'a, Result<Value, OutsideError>> {
        Box::pin(async move {
            self.life.point().await;
            self.provider.asked.fetch_add(1, Ordering::SeqCst);
            // The provider goes on whether or not the process lives to hear of it.
            let (provider, name) = (self.provider.clone(), name.to_owned());
            let renting = tokio::spawn(async move {
                tokio::time::sleep(Duration::from_secs(3)).await;
                provider.rent(&name)
            });
            self.life.point().await;
            let count = renting.await.unwrap_or_default();
            self.life.point().await;
            Ok(json!(count))
        })
    }

    fn remove<'a>(&'a self, name: &'a str) -> BoxFuture<'a, Result<(), OutsideError>> {
        Box::pin(async move {
            self.life.point().await;
            self.provider.rented.lock().remove(name);
            self.life.point().await;
            Ok(())
        })
    }
}

/// A kind that rents one thing per object and writes its record into annotations.
struct Rentals(Outside);

impl Reconcile for Rentals {
    type Object = ConfigMap;
    type Seen = Sight;
    const NAME: &'static str = NAME;
    const MANAGER: &'static str = MANAGER;

    async fn observe(&self, object: &Arc<ConfigMap>) -> Sight {
        self.0.sight(&object.name_any())
    }

    fn plan(&self, object: &ConfigMap, sight: &Sight, now: Timestamp) -> Plan {
        let mut plan = Plan::default();
        let said = |name: &str| object.annotations().get(name);
        let since = said("intended").and_then(|text| text.parse().ok());
        let recorded = match (since, said("made")) {
            (Some(since), Some(_)) => Recorded::Made(since),
            (Some(since), None) => Recorded::Intended(since),
            (None, _) => Recorded::Nothing,
        };
        let going = object.meta().deletion_timestamp.is_some();
        if !going && !object.finalizers().iter().any(|name| name == FINALIZER) {
            plan.add_finalizer(object, FINALIZER);
            return plan;
        }
        let mut call = |what| {
            plan.calls.push(Call {
                outside: "provider",
                for_key: Key::of(object),
                name: object.name_any(),
                what,
            });
        };
        let record =
            |name: &str, value: String| json!({"metadata": {"annotations": {name: value}}});
        match if going {
            absent(recorded, sight, now)
        } else {
            present(recorded, sight, now)
        } {
            Step::RecordIntent => plan.merge(object, record("intended", now.to_string())),
            Step::RecordResult(there) => plan.merge(object, record("made", there.to_string())),
            Step::LookUp => call(What::LookUp),
            Step::Make => call(What::Make(Value::Null)),
            Step::Remove => call(What::Remove),
            Step::ConfirmedGone => plan.remove_finalizer(object, FINALIZER),
            Step::Wait(until) => plan.again = until,
            Step::Settled | Step::Lost => {}
        }
        plan
    }
}

/// Runs one life of the process until it dies or `until` holds; whether it died.
async fn live(
    server: &ApiServer,
    provider: &Provider,
    life: &Life,
    until: impl Future<Output = ()>,
) -> bool {
    let (end, clock) = (life.dead.child_token(), server.clock().clone());
    let clock = Clock::reading(move || clock.now());
    let client = life.client(server);
    let mut runtime = Runtime::new(client, clock, "test", Arc::new(Unobserved), end.clone());
    let shape = Shape {
        keep: |_| true,
        trim: |_| {},
        indexes: &[],
    };
    let source = Source::within::<ConfigMap>(Some("default"));
    let objects = runtime.cache(source, shape);
    let reached = Reached {
        provider: provider.clone(),
        life: life.clone(),
    };
    let outside = runtime.outside("provider", NAME, reached);
    runtime.register(Registration::of(Rentals(outside), &objects));
    for feed in runtime.feeds() {
        background::spawn(feed);
    }
    background::spawn(runtime.act(end.clone()));
    tokio::select! {
        () = life.dead.cancelled() => true,
        () = until => {
            end.cancel();
            false
        }
    }
}

async fn poll(holds: impl AsyncFn() -> bool) {
    while !holds().await {
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

/// Makes an object, waits for what it rents, deletes it and waits for its end. The process dies at one point, comes
/// back, and dies no more. How many points there were.
async fn play(dies_at: usize, deleted_at_once: bool) -> usize {
    let clock = warp_apiserver::clock::Clock::tokio("2026-11-16T12:00:00Z".parse().unwrap());
    let options = Options {
        clock,
        ..Options::ephemeral().unwrap()
    };
    let server = ApiServer::start(options).await.unwrap();
    let objects: Api<ConfigMap> = Api::namespaced(server.client("default"), "default");
    let (provider, points) = (Provider::default(), Arc::<AtomicUsize>::default());
    let it = ConfigMap {
        metadata: ObjectMeta {
            name: Some("machine".to_owned()),
            ..ObjectMeta::default()
        },
        ..ConfigMap::default()
    };
    objects.create(&PostParams::default(), &it).await.unwrap();
    let user = async {
        let made = async || {
            if deleted_at_once {
                return provider.asked.load(Ordering::SeqCst) > 0;
            }
            let it = objects.get("machine").await.unwrap();
            it.annotations().contains_key("made")
        };
        poll(made).await;
        objects
            .delete("machine", &DeleteParams::default())
            .await
            .unwrap();
        poll(async || objects.get_opt("machine").await.unwrap().is_none()).await;
    };
    let mut user = Box::pin(user);
    let mut dies_at = Some(dies_at);
    loop {
        let life = Life {
            points: points.clone(),
            dies_at: dies_at.take().unwrap_or(usize::MAX),
            dead: CancellationToken::new(),
        };
        if !live(&server, &provider, &life, &mut user).await {
            break;
        }
        tokio::time::sleep(Duration::from_secs(1)).await;
    }
    // Whatever was still on its way has arrived by now.
    tokio::time::sleep(Duration::from_mins(1)).await;
    let left = provider.rented.lock().clone();
    assert!(
        left.is_empty(),
        "left behind: {left:?}, dying at {dies_at:?}"
    );
    assert!(
        provider.most.load(Ordering::SeqCst) <= 1,
        "had two of one thing"
    );
    points.load(Ordering::SeqCst)
}

async fn at_every_point(deleted_at_once: bool) {
    let points = play(usize::MAX, deleted_at_once).await;
    assert!(
        points > 8,
        "only {points} writes and calls: nothing was rented"
    );
    for point in 0..points {
        play(point, deleted_at_once).await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_process_that_dies_at_any_write_or_call_rents_once_and_leaves_nothing() {
    at_every_point(false).await;
}

#[tokio::test(start_paused = true)]
async fn one_deleted_while_its_call_is_on_its_way_leaves_nothing() {
    at_every_point(true).await;
}

#[test]
fn nothing_is_called_before_its_intent_is_recorded_and_looked_up() {
    let at = |second| Timestamp::from_second(second).unwrap();
    let mut sight = Sight {
        process_began: Some(at(0)),
        settle: Duration::from_secs(30),
        max_age: Duration::from_mins(5),
        ..Sight::default()
    };
    assert_eq!(
        present(Recorded::Nothing, &sight, at(10)),
        Step::RecordIntent
    );
    let intended = Recorded::Intended(at(10));
    assert_eq!(present(intended, &sight, at(11)), Step::LookUp);
    sight.asked = Some(at(9));
    assert_eq!(
        present(intended, &sight, at(11)),
        Step::LookUp,
        "seen before the intent"
    );
    sight.asked = Some(at(11));
    assert_eq!(present(intended, &sight, at(12)), Step::Make);
    sight.busy = true;
    assert_eq!(present(intended, &sight, at(12)), Step::Wait(None));
    sight.busy = false;
    sight.last_make = Some(at(12));
    assert_eq!(
        present(intended, &sight, at(20)),
        Step::Wait(Some(at(42))),
        "it may still appear"
    );
    assert_eq!(present(intended, &sight, at(42)), Step::LookUp);
    sight.there = Some(json!("m-1"));
    sight.asked = Some(at(42));
    assert_eq!(
        present(intended, &sight, at(42)),
        Step::RecordResult(json!("m-1"))
    );
    let made = Recorded::Made(at(10));
    assert_eq!(present(made, &sight, at(43)), Step::Settled);
    assert_eq!(
        present(made, &sight, at(1000)),
        Step::LookUp,
        "what was seen is old"
    );
    sight.there = None;
    assert_eq!(present(made, &sight, at(43)), Step::Lost);
}

#[test]
fn an_intent_of_an_earlier_process_is_waited_for_before_it_is_repeated_or_given_up() {
    let at = |second| Timestamp::from_second(second).unwrap();
    let sight = |asked| Sight {
        process_began: Some(at(100)),
        asked: Some(at(asked)),
        settle: Duration::from_secs(30),
        max_age: Duration::from_mins(5),
        ..Sight::default()
    };
    let intended = Recorded::Intended(at(50));
    for decide in [present, absent] {
        assert_eq!(
            decide(intended, &sight(101), at(101)),
            Step::Wait(Some(at(130)))
        );
        assert_eq!(decide(intended, &sight(101), at(130)), Step::LookUp);
    }
    assert_eq!(present(intended, &sight(130), at(131)), Step::Make);
    assert_eq!(absent(intended, &sight(130), at(131)), Step::ConfirmedGone);
}

#[tokio::test(start_paused = true)]
async fn what_nobody_asks_for_any_more_is_not_remembered() {
    let life = Life {
        points: Arc::default(),
        dies_at: usize::MAX,
        dead: CancellationToken::new(),
    };
    let provider = Provider::default();
    let reached = Reached { provider, life };
    let clock = Clock::tokio("2026-11-17T12:00:00Z".parse().unwrap());
    let (told, mut heard) = tokio::sync::mpsc::unbounded_channel();
    let outside = Outside::new(reached, clock, move |key| told.send(key).unwrap());
    let mut ask = async |name: String| {
        outside.begin(Call {
            outside: NAME,
            for_key: Key::new("", "it"),
            name: name.clone(),
            what: What::LookUp,
        });
        heard.recv().await.unwrap();
        assert!(outside.sight(&name).asked.is_some());
    };
    for number in 0..50 {
        ask(format!("machine-{number}")).await;
    }
    assert_eq!(outside.seen.lock().len(), 50);
    tokio::time::advance(KEPT).await;
    ask("machine-50".to_owned()).await;
    assert_eq!(outside.seen.lock().len(), 1);
}
