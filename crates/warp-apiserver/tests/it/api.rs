//! The in-process client: what controllers rely on.

use std::collections::BTreeMap;
use std::time::Duration;

use futures::{StreamExt, TryStreamExt};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::{ConfigMap, Namespace, Pod};
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::api::{
    Api, ApiResource, DeleteParams, DynamicObject, ListParams, Patch, PatchParams, PostParams,
    WatchEvent, WatchParams,
};
use kube::core::GroupVersionKind;
use kube::runtime::wait::{await_condition, conditions};
use kube::runtime::watcher;
use kube::{Client, Resource, ResourceExt};
use serde_json::json;
use warp_apiserver::clock::Clock;
use warp_apiserver::{ApiServer, Options};

pub(crate) async fn server() -> ApiServer {
    ApiServer::start(Options::ephemeral().expect("an identity"))
        .await
        .expect("a server")
}

fn config(name: &str, data: &[(&str, &str)]) -> ConfigMap {
    let mut map = ConfigMap::default();
    map.metadata.name = Some(name.to_owned());
    map.data = Some(
        data.iter()
            .map(|(k, v)| ((*k).to_owned(), (*v).to_owned()))
            .collect::<BTreeMap<_, _>>(),
    );
    map
}

fn widget_definition(schema: &serde_json::Value) -> CustomResourceDefinition {
    serde_json::from_value(json!({
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": "widgets.example.com"},
        "spec": {
            "group": "example.com",
            "names": {"plural": "widgets", "kind": "Widget", "singular": "widget", "listKind": "WidgetList"},
            "scope": "Namespaced",
            "versions": [{
                "name": "v1",
                "served": true,
                "storage": true,
                "schema": {"openAPIV3Schema": schema},
                "subresources": {"status": {}, "scale": {
                    "specReplicasPath": ".spec.replicas", "statusReplicasPath": ".status.replicas",
                }},
            }],
        },
    }))
    .expect("a definition")
}

fn widget_schema() -> serde_json::Value {
    json!({
        "type": "object",
        "properties": {
            "spec": {
                "type": "object",
                "properties": {
                    "replicas": {"type": "integer", "default": 1, "minimum": 0},
                    "parts": {
                        "type": "array",
                        "x-kubernetes-list-type": "map",
                        "x-kubernetes-list-map-keys": ["name"],
                        "items": {
                            "type": "object",
                            "required": ["name"],
                            "properties": {"name": {"type": "string"}, "size": {"type": "integer"}},
                        },
                    },
                },
            },
            "status": {"type": "object", "properties": {"replicas": {"type": "integer"}}},
        },
    })
}

async fn widgets(client: &Client) -> Api<DynamicObject> {
    let definitions: Api<CustomResourceDefinition> = Api::all(client.clone());
    let definition = widget_definition(&widget_schema());
    definitions
        .create(&PostParams::default(), &definition)
        .await
        .expect("a definition");
    await_condition(
        definitions,
        "widgets.example.com",
        conditions::is_crd_established(),
    )
    .await
    .expect("an established definition");
    let kind = ApiResource::from_gvk(&GroupVersionKind::gvk("example.com", "v1", "Widget"));
    Api::default_namespaced_with(client.clone(), &kind)
}

fn widget(name: &str, spec: &serde_json::Value) -> DynamicObject {
    serde_json::from_value(json!({
        "apiVersion": "example.com/v1", "kind": "Widget", "metadata": {"name": name}, "spec": spec,
    }))
    .expect("a widget")
}

#[tokio::test]
async fn a_write_that_changes_nothing_keeps_the_revision() {
    let server = server().await;
    let maps: Api<ConfigMap> = Api::default_namespaced(server.client("default"));
    let created = maps
        .create(&PostParams::default(), &config("a", &[("k", "v")]))
        .await
        .expect("created");
    let apply = PatchParams::apply("me").force();
    let patch = config("a", &[("k", "v")]);
    let first = maps
        .patch("a", &apply, &Patch::Apply(&patch))
        .await
        .expect("applied");
    let second = maps
        .patch("a", &apply, &Patch::Apply(&patch))
        .await
        .expect("applied");
    assert_ne!(
        created.resource_version(),
        first.resource_version(),
        "a new owner is a change"
    );
    assert_eq!(first.resource_version(), second.resource_version());
    let replaced = maps
        .replace("a", &PostParams::default(), &second)
        .await
        .expect("replaced");
    assert_eq!(second.resource_version(), replaced.resource_version());
}

#[tokio::test]
async fn a_stale_replace_is_a_conflict() {
    let server = server().await;
    let maps: Api<ConfigMap> = Api::default_namespaced(server.client("default"));
    let old = maps
        .create(&PostParams::default(), &config("a", &[]))
        .await
        .expect("created");
    let merge = json!({"data": {"k": "v"}});
    maps.patch("a", &PatchParams::default(), &Patch::Merge(&merge))
        .await
        .expect("patched");
    let refused = maps
        .replace("a", &PostParams::default(), &old)
        .await
        .expect_err("stale");
    assert!(
        matches!(&refused, kube::Error::Api(status) if status.is_conflict()),
        "{refused}"
    );
}

#[tokio::test]
async fn custom_resources_are_defaulted_validated_and_watched() {
    let server = server().await;
    let client = server.client("default");
    let widgets = widgets(&client).await;
    let made = widgets
        .create(
            &PostParams::default(),
            &widget("w", &json!({"parts": [{"name": "a"}]})),
        )
        .await
        .expect("created");
    assert_eq!(made.data["spec"]["replicas"], 1);
    assert_eq!(made.metadata.generation, Some(1));
    let refused = widgets
        .create(
            &PostParams::default(),
            &widget("x", &json!({"replicas": -1})),
        )
        .await
        .expect_err("refused");
    assert!(
        matches!(&refused, kube::Error::Api(status) if status.code == 422),
        "{refused}"
    );
    let status =
        json!({"apiVersion": "example.com/v1", "kind": "Widget", "status": {"replicas": 1}});
    let after = widgets
        .patch_status(
            "w",
            &PatchParams::apply("controller").force(),
            &Patch::Apply(&status),
        )
        .await
        .expect("status applied");
    assert_eq!(
        after.metadata.generation,
        Some(1),
        "a status is no new generation"
    );
    let parts = json!({
        "apiVersion": "example.com/v1", "kind": "Widget",
        "spec": {"parts": [{"name": "b", "size": 2}]},
    });
    let after = widgets
        .patch("w", &PatchParams::apply("other"), &Patch::Apply(&parts))
        .await
        .expect("parts of two owners live side by side");
    assert_eq!(
        after.data["spec"]["parts"],
        json!([{"name": "a"}, {"name": "b", "size": 2}])
    );
    assert_eq!(after.metadata.generation, Some(2));
    let seen: Vec<_> = widgets
        .watch(&WatchParams::default().timeout(1), "0")
        .await
        .expect("a watch")
        .try_collect()
        .await
        .expect("events");
    assert!(
        matches!(seen.as_slice(), [WatchEvent::Added(w)] if w.name_any() == "w"),
        "{seen:?}"
    );
}

#[tokio::test]
async fn deleting_a_definition_removes_its_objects() {
    let server = server().await;
    let client = server.client("default");
    let widgets = widgets(&client).await;
    widgets
        .create(&PostParams::default(), &widget("w", &json!({})))
        .await
        .expect("created");
    let definitions: Api<CustomResourceDefinition> = Api::all(client.clone());
    let uid = definitions
        .get("widgets.example.com")
        .await
        .expect("it")
        .uid()
        .expect("a uid");
    definitions
        .delete("widgets.example.com", &DeleteParams::default())
        .await
        .expect("deleted");
    await_condition(
        definitions,
        "widgets.example.com",
        conditions::is_deleted(&uid),
    )
    .await
    .expect("gone");
    let refused = widgets
        .list(&ListParams::default())
        .await
        .expect_err("not served");
    assert!(
        matches!(&refused, kube::Error::Api(status) if status.code == 404),
        "{refused}"
    );
}

#[tokio::test]
async fn streaming_lists_and_list_watch_see_the_same() {
    let server = server().await;
    let maps: Api<ConfigMap> = Api::default_namespaced(server.client("default"));
    for name in ["a", "b", "c"] {
        maps.create(&PostParams::default(), &config(name, &[]))
            .await
            .expect("created");
    }
    for settings in [
        watcher::Config::default(),
        watcher::Config::default().streaming_lists(),
    ] {
        let stream = watcher(maps.clone(), settings);
        let mut names = Vec::new();
        let mut stream = std::pin::pin!(stream);
        while let Some(event) = stream.next().await {
            match event.expect("an event") {
                watcher::Event::InitApply(map) => names.push(map.name_any()),
                watcher::Event::InitDone => break,
                _ => {}
            }
        }
        names.sort();
        assert_eq!(names, ["a", "b", "c"]);
    }
}

#[tokio::test]
async fn chunks_show_the_state_of_the_first_chunk() {
    let server = server().await;
    let maps: Api<ConfigMap> = Api::default_namespaced(server.client("default"));
    for name in ["a", "b", "c", "d"] {
        maps.create(&PostParams::default(), &config(name, &[]))
            .await
            .expect("created");
    }
    let first = maps
        .list(&ListParams::default().limit(2))
        .await
        .expect("a page");
    assert_eq!(first.metadata.remaining_item_count, Some(2));
    maps.delete("c", &DeleteParams::default())
        .await
        .expect("deleted");
    maps.create(&PostParams::default(), &config("bb", &[]))
        .await
        .expect("created");
    let token = first.metadata.continue_.expect("more");
    let rest = maps
        .list(&ListParams::default().limit(5).continue_token(&token))
        .await
        .expect("rest");
    let names: Vec<_> = rest.items.iter().map(ResourceExt::name_any).collect();
    assert_eq!(
        names,
        ["c", "d"],
        "neither the new object nor the deletion shows"
    );
}

#[tokio::test(start_paused = true)]
async fn the_server_runs_in_virtual_time() {
    let start: Timestamp = "2030-01-01T00:00:00Z".parse().expect("a time");
    let mut options = Options::ephemeral().expect("an identity");
    options.clock = Clock::tokio(start);
    let server = ApiServer::start(options).await.expect("a server");
    let maps: Api<ConfigMap> = Api::default_namespaced(server.client("default"));
    tokio::time::sleep(Duration::from_hours(1)).await;
    let made = maps
        .create(&PostParams::default(), &config("a", &[]))
        .await
        .expect("created");
    let at = made.creation_timestamp().expect("a time").0;
    assert_eq!(at.to_string(), "2030-01-01T01:00:00Z");
    let bookmarks: Vec<_> = maps
        .watch(
            &WatchParams::default().timeout(280),
            &made.resource_version().expect("a version"),
        )
        .await
        .expect("a watch")
        .try_collect()
        .await
        .expect("events");
    assert!(!bookmarks.is_empty());
    assert!(
        bookmarks
            .iter()
            .all(|event| matches!(event, WatchEvent::Bookmark(_))),
        "{bookmarks:?}"
    );
}

#[tokio::test(start_paused = true)]
async fn a_shorter_grace_counts_from_the_first_deletion() {
    let start: Timestamp = "2030-01-01T00:00:00Z".parse().expect("a time");
    let mut options = Options::ephemeral().expect("an identity");
    options.clock = Clock::tokio(start);
    let server = ApiServer::start(options).await.expect("a server");
    let pods: Api<Pod> = Api::default_namespaced(server.client("default"));
    let pod: Pod = serde_json::from_value(json!({
        "metadata": {"name": "p", "finalizers": ["example.com/hold"]},
        "spec": {"nodeName": "n", "containers": [{"name": "c", "image": "busybox:1"}]},
    }))
    .expect("a pod");
    pods.create(&PostParams::default(), &pod)
        .await
        .expect("created");
    for (grace, goes) in [(30, "2030-01-01T00:00:30Z"), (0, "2030-01-01T00:00:00Z")] {
        let params = DeleteParams::default().grace_period(grace);
        pods.delete("p", &params).await.expect("deleting");
        let meta = pods.get("p").await.expect("held").metadata;
        let at = meta.deletion_timestamp.expect("a time").0;
        assert_eq!(at.to_string(), goes);
        assert_eq!(meta.deletion_grace_period_seconds, Some(i64::from(grace)));
        // As long as a node may take to end it.
        tokio::time::sleep(Duration::from_secs(5)).await;
    }
}

#[tokio::test]
async fn objects_wait_for_their_finalizers() {
    let server = server().await;
    let maps: Api<ConfigMap> = Api::default_namespaced(server.client("default"));
    let mut held = config("a", &[]);
    held.meta_mut().finalizers = Some(vec!["example.com/hold".to_owned()]);
    maps.create(&PostParams::default(), &held)
        .await
        .expect("created");
    let waiting = maps
        .delete("a", &DeleteParams::default())
        .await
        .expect("deleting");
    assert!(waiting.is_left(), "the object is still there");
    let release = json!({"metadata": {"finalizers": null}});
    maps.patch("a", &PatchParams::default(), &Patch::Merge(&release))
        .await
        .expect("released");
    assert!(maps.get_opt("a").await.expect("an answer").is_none());
}

#[tokio::test]
async fn a_pod_without_a_node_goes_at_once_and_logs_need_a_node() {
    let server = server().await;
    let client = server.client("default");
    let spaces: Api<Namespace> = Api::all(client.clone());
    assert!(spaces.get("default").await.is_ok());
    let pods: Api<Pod> = Api::default_namespaced(client);
    let pod: Pod = serde_json::from_value(json!({
        "metadata": {"name": "p"},
        "spec": {"containers": [{"name": "c", "image": "busybox:1"}]},
    }))
    .expect("a pod");
    pods.create(&PostParams::default(), &pod)
        .await
        .expect("created");
    let refused = pods
        .logs("p", &kube::api::LogParams::default())
        .await
        .expect_err("no node");
    assert!(
        matches!(&refused, kube::Error::Api(status) if status.code == 501),
        "{refused}"
    );
    pods.delete("p", &DeleteParams::default())
        .await
        .expect("deleted");
    assert!(pods.get_opt("p").await.expect("an answer").is_none());
}
