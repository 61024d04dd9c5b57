//! Kinds beside each other: one that cannot be read stops alone and heals, a panic is one object's, and one kind wakes
//! another.

use std::sync::atomic::{AtomicUsize, Ordering};

use jiff::Timestamp;
use k8s_openapi::api::core::v1::ConfigMap;
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::api::{Api, PostParams};
use kube::core::ObjectMeta;
use kube::{CustomResource, CustomResourceExt, ResourceExt};
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::json;
use warp_apiserver::{ApiServer, Options};

use super::*;
use crate::kind::Kind;
use crate::pass::Unobserved;
use crate::plan::{Action, Plan, Wake};
use crate::reconcile::Refusal;

#[derive(CustomResource, Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[kube(
    group = "test.warp.dev",
    version = "v1",
    kind = "Widget",
    status = "WidgetStatus"
)]
struct WidgetSpec {
    size: i32,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
struct WidgetStatus {
    seen: i32,
}

/// Cluster-scoped; writes its size into its status.
struct Widgets;

impl Reconcile for Widgets {
    type Object = Widget;
    type Seen = ();
    const NAME: &'static str = "widget";
    const MANAGER: &'static str = "test-widget";

    async fn observe(&self, _: &Arc<Widget>) {}

    fn plan(&self, widget: &Widget, (): &(), _: Timestamp) -> Plan {
        let mut plan = Plan::default();
        let own = |status: &WidgetStatus| json!({ "seen": status.seen });
        let before = widget.status.as_ref().map(own).unwrap_or_default();
        plan.own_status(
            widget,
            Self::MANAGER,
            before,
            json!({ "seen": widget.spec.size }),
        );
        plan
    }
}

/// Makes a map besides; one of a negative size gets a label that no server takes.
struct Makers;

impl Makers {
    fn says(widget: &Widget, seen: i32) -> Plan {
        let mut plan = Plan::default();
        let before = widget.status.as_ref();
        let before = before.map(|status| json!({ "seen": status.seen }));
        plan.own_status(
            widget,
            Self::MANAGER,
            before.unwrap_or_default(),
            json!({ "seen": seen }),
        );
        plan
    }
}

impl Reconcile for Makers {
    type Object = Widget;
    type Seen = ();
    const NAME: &'static str = "maker";
    const MANAGER: &'static str = "test-maker";

    async fn observe(&self, _: &Arc<Widget>) {}

    fn plan(&self, widget: &Widget, (): &(), _: Timestamp) -> Plan {
        let mut plan = Self::says(widget, widget.spec.size);
        let status = std::mem::take(&mut plan.actions);
        let label = if widget.spec.size < 0 {
            "no label!"
        } else {
            "label"
        };
        let metadata = json!({"name": "map", "namespace": "default", "labels": {"of": label}});
        plan.push(Action::Apply {
            kind: Kind::of::<ConfigMap>(),
            key: Key::new("default", "map"),
            manager: Self::MANAGER,
            object: json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata}),
        });
        plan.actions.extend(status);
        plan
    }

    fn refused(&self, widget: &Widget, (): &(), refusal: &Refusal, _: Timestamp) -> Option<Plan> {
        let about = (refusal.kind.as_str(), refusal.name.as_str());
        assert_eq!(about, ("ConfigMap", "map"));
        assert!(refusal.words.contains("no label!"), "{}", refusal.words);
        Some(Self::says(widget, -1))
    }
}

#[tokio::test(start_paused = true)]
async fn a_child_that_the_server_does_not_take_is_told_of_until_it_does() {
    let (server, stop) = (server().await, CancellationToken::new());
    let definitions: Api<CustomResourceDefinition> = Api::all(server.client("default"));
    definitions
        .create(&PostParams::default(), &Widget::crd())
        .await
        .unwrap();
    let clock = server.clock().clone();
    let clock = Clock::reading(move || clock.now());
    let client = server.client("default");
    let mut runtime = Runtime::new(client, clock, "test", Arc::new(Unobserved), stop.clone());
    let widgets = runtime.cache(Source::all::<Widget>(), everything());
    runtime.register(Registration::of(Makers, &widgets));
    for feed in runtime.feeds() {
        background::spawn(feed);
    }
    background::spawn(runtime.act(stop.clone()));

    let widgets: Api<Widget> = Api::all(server.client("default"));
    let made = Widget::new("w", WidgetSpec { size: -5 });
    widgets.create(&PostParams::default(), &made).await.unwrap();
    let says = async |seen: i32| {
        poll("the status says so", async || {
            widgets.get("w").await.unwrap().status == Some(WidgetStatus { seen })
        })
        .await;
    };
    says(-1).await;
    // It is tried again and again, and told once.
    let version = widgets.get("w").await.unwrap().resource_version();
    tokio::time::sleep(Duration::from_hours(1)).await;
    assert_eq!(widgets.get("w").await.unwrap().resource_version(), version);
    let patch = kube::api::Patch::Merge(json!({"spec": {"size": 3}}));
    let params = kube::api::PatchParams::default();
    widgets.patch("w", &params, &patch).await.unwrap();
    says(3).await;
    stop.cancel();
}

/// Counts how often each object is looked at; one of them panics, and one wakes another.
struct Maps(Arc<AtomicUsize>);

impl Reconcile for Maps {
    type Object = ConfigMap;
    type Seen = ();
    const NAME: &'static str = "map";
    const MANAGER: &'static str = "test-map";

    async fn observe(&self, _: &Arc<ConfigMap>) {}

    fn plan(&self, map: &ConfigMap, (): &(), _: Timestamp) -> Plan {
        let mut plan = Plan::default();
        match map.name_any().as_str() {
            "panics" => panic!("for the test"),
            "woken" => {
                self.0.fetch_add(1, Ordering::SeqCst);
            }
            "wakes" => plan.wake.push(Wake {
                controller: "map",
                key: Key::new("default", "woken"),
            }),
            _ => {}
        }
        plan
    }
}

fn everything<K>() -> Shape<K> {
    Shape {
        keep: |_| true,
        trim: |_| {},
        indexes: &[],
    }
}

async fn poll(what: &str, holds: impl AsyncFn() -> bool) {
    for _ in 0..10_000 {
        if holds().await {
            return;
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    panic!("{what} did not come to hold");
}

async fn server() -> ApiServer {
    let clock = warp_apiserver::clock::Clock::tokio("2026-11-16T12:00:00Z".parse().unwrap());
    let options = Options {
        clock,
        ..Options::ephemeral().unwrap()
    };
    ApiServer::start(options).await.unwrap()
}

async fn make_map(server: &ApiServer, name: &str) {
    let api: Api<ConfigMap> = Api::namespaced(server.client("default"), "default");
    let metadata = ObjectMeta {
        name: Some(name.to_owned()),
        ..ObjectMeta::default()
    };
    let map = ConfigMap {
        metadata,
        ..ConfigMap::default()
    };
    api.create(&PostParams::default(), &map).await.unwrap();
}

/// Both kinds, running; how they are, and how often `woken` was looked at.
fn start(server: &ApiServer, stop: &CancellationToken) -> (Readiness, Arc<AtomicUsize>) {
    let clock = server.clock().clone();
    let clock = Clock::reading(move || clock.now());
    let client = server.client("default");
    let mut runtime = Runtime::new(client, clock, "test", Arc::new(Unobserved), stop.clone());
    let maps = runtime.cache(Source::within::<ConfigMap>(Some("default")), everything());
    let widgets = runtime.cache(Source::all::<Widget>(), everything());
    let looks = Arc::<AtomicUsize>::default();
    runtime.register(Registration::of(Maps(looks.clone()), &maps));
    runtime.register(
        Registration::of(Widgets, &widgets)
            .workers(2)
            .request_deadline(Duration::from_secs(5)),
    );
    let readiness = runtime.readiness();
    for feed in runtime.feeds() {
        background::spawn(feed);
    }
    background::spawn(runtime.act(stop.clone()));
    (readiness, looks)
}

#[tokio::test(start_paused = true)]
async fn a_kind_whose_crd_is_missing_stops_alone_says_so_and_heals() {
    let (server, stop) = (server().await, CancellationToken::new());
    let (readiness, looks) = start(&server, &stop);
    make_map(&server, "woken").await;
    poll("the other kind works", async || {
        looks.load(Ordering::SeqCst) > 0
    })
    .await;
    let said = readiness
        .kinds()
        .iter()
        .map(ToString::to_string)
        .collect::<Vec<_>>();
    assert_eq!(said[0], "map: ok");
    assert!(
        said[1].starts_with("widget: widgets: the API server does not serve this kind"),
        "{said:?}"
    );

    let definitions: Api<CustomResourceDefinition> = Api::all(server.client("default"));
    definitions
        .create(&PostParams::default(), &Widget::crd())
        .await
        .unwrap();
    poll("it heals", async || {
        readiness.kinds().iter().all(KindHealth::is_ready)
    })
    .await;
    let widgets: Api<Widget> = Api::all(server.client("default"));
    let widget = Widget::new("w", WidgetSpec { size: 7 });
    widgets
        .create(&PostParams::default(), &widget)
        .await
        .unwrap();
    poll("a cluster-scoped status is written", async || {
        let widget = widgets.get("w").await.unwrap();
        widget.status == Some(WidgetStatus { seen: 7 })
    })
    .await;
    // Whatever the kind could still write it has written by now; its status is not written again.
    let version = widgets.get("w").await.unwrap().resource_version();
    tokio::time::sleep(Duration::from_hours(1)).await;
    assert_eq!(widgets.get("w").await.unwrap().resource_version(), version);
    stop.cancel();
}

#[tokio::test(start_paused = true)]
async fn a_panic_is_one_objects_and_one_kind_wakes_another() {
    let (server, stop) = (server().await, CancellationToken::new());
    let (_, looks) = start(&server, &stop);
    make_map(&server, "panics").await;
    make_map(&server, "woken").await;
    poll("the other object is looked at", async || {
        looks.load(Ordering::SeqCst) > 0
    })
    .await;
    let before = looks.load(Ordering::SeqCst);
    make_map(&server, "wakes").await;
    poll("it is woken", async || {
        looks.load(Ordering::SeqCst) > before
    })
    .await;
    stop.cancel();
}

#[test]
fn a_child_leads_to_its_owner_by_reference_or_label_in_its_own_namespace() {
    let child: ConfigMap = serde_json::from_value(json!({"metadata": {
        "name": "child", "namespace": "team", "labels": {"test.warp.dev/of": "labelled"},
        "ownerReferences": [
            {"apiVersion": "test.warp.dev/v1", "kind": "Widget", "name": "owner", "uid": "1", "controller": true},
            {"apiVersion": "test.warp.dev/v1", "kind": "Widget", "name": "friend", "uid": "2"},
            {"apiVersion": "v1", "kind": "ConfigMap", "name": "other", "uid": "3", "controller": true},
        ],
    }}))
    .unwrap();
    assert_eq!(
        owners::<Widget, _>(&child),
        [Key::new("", "owner")],
        "cluster-scoped"
    );
    assert_eq!(owners::<ConfigMap, _>(&child), [Key::new("team", "other")]);
    assert_eq!(
        labelled(&child, "test.warp.dev/of"),
        [Key::new("team", "labelled")]
    );
    assert_eq!(labelled(&child, "test.warp.dev/other"), []);
}
