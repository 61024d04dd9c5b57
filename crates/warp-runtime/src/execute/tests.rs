//! What is sent and what is not, against a real API server.

use std::collections::BTreeSet;

use k8s_openapi::api::core::v1::ConfigMap;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use kube::api::{Api, Patch, PatchParams};
use kube::core::ObjectMeta;
use parking_lot::Mutex;
use serde_json::json;
use tokio_util::sync::CancellationToken;
use warp_apiserver::{ApiServer, Options};

use super::*;
use crate::cache::{Shape, Source, fill};
use crate::plan::Premise;

#[derive(Debug, Default)]
struct Sent(Mutex<Vec<String>>);

impl Observer for Sent {
    fn sends(&self, verb: &'static str, resource: &str) {
        self.0.lock().push(format!("{verb} {resource}"));
    }
}

struct Bench {
    server: ApiServer,
    executor: Executor,
    cache: Cache<ConfigMap>,
    sent: Arc<Sent>,
    stop: CancellationToken,
}

impl Drop for Bench {
    fn drop(&mut self) {
        self.stop.cancel();
    }
}

impl Bench {
    async fn start() -> Self {
        let server = ApiServer::start(Options::ephemeral().unwrap())
            .await
            .unwrap();
        let client = server.client("default");
        let stop = CancellationToken::new();
        let cache = Cache::shaped(Shape {
            keep: |_| true,
            trim: |_| {},
            indexes: &[],
        });
        let source = Source::within::<ConfigMap>(Some("default"));
        tokio::spawn(fill(client.clone(), source, &cache, stop.clone()));
        cache.store().synced().await;
        let mut followed = Followed::default();
        followed.add(&cache);
        let (clock, sent) = (Clock::system(), Arc::<Sent>::default());
        let (events, writer) = Recorder::stable(
            client.clone(),
            clock.clone(),
            "test",
            sent.clone(),
            stop.clone(),
        );
        tokio::spawn(writer);
        let executor = Executor::new(client, clock, events, followed)
            .own_writes(OwnWrites::TakenIn)
            .observed_by(sent.clone());
        Self {
            server,
            executor,
            cache,
            sent,
            stop,
        }
    }

    fn api(&self) -> Api<ConfigMap> {
        Api::namespaced(self.server.client("default"), "default")
    }

    /// Carries a plan out and gives what was sent for it.
    async fn run(&self, fill: impl FnOnce(&mut Plan)) -> Result<Vec<String>, ExecuteError> {
        let mut plan = Plan::default();
        fill(&mut plan);
        let outcome = self
            .executor
            .execute(&Pass::of_component("test"), plan)
            .await;
        let sent = std::mem::take(&mut *self.sent.0.lock());
        outcome.map(|_| sent)
    }

    /// What another writer does, until the cache shows it.
    async fn another_writer(&self, name: &str, patch: serde_json::Value) {
        let params = PatchParams::default();
        let after = self
            .api()
            .patch(name, &params, &Patch::Merge(patch))
            .await
            .unwrap();
        let version = after.metadata.resource_version.unwrap().parse().unwrap();
        self.cache.store().seen(version).await;
    }
}

fn map(name: &str, data: &[(&str, &str)]) -> ConfigMap {
    let data = data
        .iter()
        .map(|(key, value)| ((*key).to_owned(), (*value).to_owned()));
    ConfigMap {
        metadata: ObjectMeta {
            name: Some(name.to_owned()),
            namespace: Some("default".to_owned()),
            ..ObjectMeta::default()
        },
        data: Some(data.collect()),
        ..ConfigMap::default()
    }
}

const NOTHING: [&str; 0] = [];
const ONE_APPLY: [&str; 1] = ["patch configmaps"];

#[tokio::test]
async fn a_child_is_applied_once_its_drift_is_corrected_and_what_others_add_stays() {
    let bench = Bench::start().await;
    let wanted = map("c", &[("a", "1"), ("b", "2")]);
    let apply = |plan: &mut Plan| plan.apply("test-manager", &wanted);
    assert_eq!(bench.run(apply).await.unwrap(), ONE_APPLY);
    // At once: the watch need not have brought it.
    assert_eq!(bench.run(apply).await.unwrap(), NOTHING);
    bench
        .another_writer("c", json!({"data": {"theirs": "x"}}))
        .await;
    assert_eq!(bench.run(apply).await.unwrap(), NOTHING);
    bench
        .another_writer("c", json!({"data": {"a": "changed"}}))
        .await;
    assert_eq!(bench.run(apply).await.unwrap(), ONE_APPLY);
    assert_eq!(bench.run(apply).await.unwrap(), NOTHING);
    // A version of the controller that applies less gives up what it applied before.
    let less = map("c", &[("a", "1")]);
    let apply_less = |plan: &mut Plan| plan.apply("test-manager", &less);
    assert_eq!(bench.run(apply_less).await.unwrap(), ONE_APPLY);
    assert_eq!(bench.run(apply_less).await.unwrap(), NOTHING);
    let data = bench.api().get("c").await.unwrap().data.unwrap();
    let keys: Vec<_> = data
        .iter()
        .map(|(key, value)| format!("{key}={value}"))
        .collect();
    assert_eq!(keys, ["a=1", "theirs=x"]);
}

#[tokio::test]
async fn a_restarted_controller_sends_no_apply_for_what_is_there() {
    let bench = Bench::start().await;
    let wanted = map("c", &[("a", "1")]);
    let apply = |plan: &mut Plan| plan.apply("test-manager", &wanted);
    assert_eq!(bench.run(apply).await.unwrap(), ONE_APPLY);
    let restarted = Executor {
        memory: Arc::default(),
        ..bench.executor.clone()
    };
    let mut plan = Plan::default();
    apply(&mut plan);
    restarted
        .execute(&Pass::of_component("test"), plan)
        .await
        .unwrap();
    assert_eq!(*bench.sent.0.lock(), NOTHING);
}

#[tokio::test]
async fn a_premise_that_does_not_hold_ends_the_pass_before_its_first_write() {
    let bench = Bench::start().await;
    let (first, next) = (map("first", &[]), map("next", &[]));
    bench.run(|plan| plan.create_or_find(&first)).await.unwrap();
    let seen = bench.api().get("first").await.unwrap();
    let key = Key::new("default", "first");
    let absent = bench.run(|plan| {
        plan.only_if_absent::<ConfigMap>(key);
        plan.create_or_find(&next);
    });
    assert!(absent.await.unwrap_err().is_conflict());
    bench
        .run(|plan| {
            plan.only_if_unchanged(&seen);
            plan.create_or_find(&next);
        })
        .await
        .unwrap();
    bench
        .another_writer("first", json!({"data": {"x": "y"}}))
        .await;
    let changed = bench.run(|plan| {
        plan.only_if_unchanged(&seen);
        plan.delete_version(&seen);
    });
    assert!(changed.await.unwrap_err().is_conflict());
    let idle = bench.run(|plan| {
        plan.premises.push(Premise::Absent(
            Kind::of::<ConfigMap>(),
            Key::new("default", "first"),
        ));
    });
    assert_eq!(
        idle.await.unwrap(),
        NOTHING,
        "a plan without writes asks nothing"
    );
}

#[tokio::test]
async fn an_own_write_is_seen_at_once_in_every_cache_it_belongs_to_and_in_no_other() {
    let bench = Bench::start().await;
    let labelled = |selector: &str| {
        let cache = Cache::<ConfigMap>::shaped(Shape {
            keep: |_| true,
            trim: |_| {},
            indexes: &[],
        });
        // Nobody fills it any more: only own writes are seen.
        let stopped = CancellationToken::new();
        stopped.cancel();
        let source = Source::within::<ConfigMap>(Some("default")).labels(selector);
        drop(fill(
            bench.server.client("default"),
            source,
            &cache,
            stopped,
        ));
        cache
    };
    let (ours, theirs) = (labelled("team=red"), labelled("team=blue"));
    let mut followed = Followed::default();
    followed.add(&ours);
    followed.add(&theirs);
    let executor = Executor {
        caches: Arc::new(followed.0),
        ..bench.executor.clone()
    };
    let mut made = map("made", &[]);
    made.metadata.labels = Some([("team".to_owned(), "red".to_owned())].into());
    let mut plan = Plan::default();
    plan.create_or_find(&made);
    executor
        .execute(&Pass::of_component("test"), plan)
        .await
        .unwrap();
    assert_eq!((ours.len(), theirs.len()), (1, 0));
}

#[tokio::test]
async fn a_premise_about_some_fields_minds_no_others() {
    let bench = Bench::start().await;
    let (first, next) = (map("first", &[("decides", "1")]), map("next", &[]));
    bench.run(|plan| plan.create_or_find(&first)).await.unwrap();
    let seen = bench.api().get("first").await.unwrap();
    let pointers = ["/data/decides", "/data/absent"];
    let make = |plan: &mut Plan| {
        plan.only_if_shows(&seen, &pointers);
        plan.create_or_find(&next);
    };
    bench
        .another_writer("first", json!({"data": {"other": "y"}}))
        .await;
    bench.run(make).await.unwrap();
    for change in [
        json!({"absent": "now"}),
        json!({"absent": null, "decides": "2"}),
    ] {
        bench
            .another_writer("first", json!({ "data": change }))
            .await;
        assert!(bench.run(make).await.unwrap_err().is_conflict());
    }
}

#[tokio::test]
async fn what_is_found_or_gone_already_is_no_error_and_deletions_are_seen_at_once() {
    let bench = Bench::start().await;
    let it = map("it", &[]);
    for _ in 0..2 {
        bench.run(|plan| plan.create_or_find(&it)).await.unwrap();
    }
    let key = Key::new("default", "it");
    let seen = bench.cache.get(&key).expect("an own write is seen at once");
    for _ in 0..2 {
        bench.run(|plan| plan.delete_version(&*seen)).await.unwrap();
        assert_eq!(bench.cache.get(&key), None);
    }
}

#[tokio::test]
async fn children_that_are_no_longer_wanted_go() {
    let bench = Bench::start().await;
    let owner = OwnerReference {
        api_version: "v1".to_owned(),
        kind: "ConfigMap".to_owned(),
        name: "owner".to_owned(),
        uid: "4f8c0d7e-0000-4000-8000-000000000001".to_owned(),
        controller: Some(true),
        ..OwnerReference::default()
    };
    for name in ["kept", "left"] {
        let mut child = map(name, &[]);
        child.metadata.owner_references = Some(vec![owner.clone()]);
        bench
            .run(|plan| plan.apply("test-manager", &child))
            .await
            .unwrap();
    }
    let children = bench.cache.all();
    let wanted = BTreeSet::from([Key::new("default", "kept")]);
    bench
        .run(|plan| plan.prune(&owner, children.iter().map(|child| &**child), &wanted))
        .await
        .unwrap();
    let left: Vec<_> = bench
        .cache
        .all()
        .iter()
        .filter_map(|child| child.metadata.name.clone())
        .collect();
    assert!(
        left.contains(&"kept".to_owned()) && !left.contains(&"left".to_owned()),
        "{left:?}"
    );
}
