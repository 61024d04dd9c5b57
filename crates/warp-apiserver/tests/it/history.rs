//! History goes by time: what is older than the last compaction is said to be gone, and what goes on is not disturbed.

use std::time::Duration;

use futures::{StreamExt, TryStreamExt};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::ConfigMap;
use kube::api::{Api, ListParams, PostParams, WatchEvent, WatchParams};
use kube::{Client, ResourceExt};
use serde_json::{Value, json};
use warp_apiserver::clock::Clock;
use warp_apiserver::{ApiServer, Options};

use crate::exchange;

const EVERY: Duration = Duration::from_mins(5);

async fn server() -> ApiServer {
    let options = Options {
        clock: Clock::tokio(Timestamp::UNIX_EPOCH),
        ..Options::ephemeral().expect("an identity")
    };
    ApiServer::start(options).await.expect("a server")
}

async fn create(client: &Client, name: &str) -> ConfigMap {
    let mut map = ConfigMap::default();
    map.metadata.name = Some(name.to_owned());
    let api: Api<ConfigMap> = Api::namespaced(client.clone(), "default");
    api.create(&PostParams::default(), &map)
        .await
        .expect("created")
}

/// Lets the time of one compaction pass.
async fn one_interval() {
    tokio::time::sleep(EVERY + Duration::from_secs(1)).await;
}

async fn page(client: &Client, token: &str) -> (u16, Value) {
    let path = format!("/api/v1/namespaces/default/configmaps?limit=2&continue={token}");
    exchange::json(client, "GET", &path, &Value::Null).await
}

fn names(page: &Value) -> Vec<&str> {
    let items = page["items"].as_array().expect("items").iter();
    items
        .map(|item| item["metadata"]["name"].as_str().expect("a name"))
        .collect()
}

#[tokio::test(start_paused = true)]
async fn a_list_goes_on_until_its_revision_is_compacted_and_then_in_the_present() {
    let server = server().await;
    let client = server.client("default");
    for name in ["a", "b", "c", "d", "e"] {
        create(&client, name).await;
    }
    let (_, first) = page(&client, "").await;
    let token = first["metadata"]["continue"].as_str().expect("a token");
    create(&client, "bb").await;
    one_interval().await;
    let (code, second) = page(&client, token).await;
    assert_eq!((code, names(&second)), (200, vec!["c", "d"]), "{second}");
    create(&client, "dd").await;
    one_interval().await;
    let (code, gone) = page(&client, token).await;
    assert_eq!((code, &gone["reason"]), (410, &json!("Expired")), "{gone}");
    let token = gone["metadata"]["continue"].as_str().expect("a token");
    let (code, rest) = page(&client, token).await;
    assert_eq!((code, names(&rest)), (200, vec!["bb", "c"]), "{rest}");
    let anchor = &rest["metadata"]["resourceVersion"];
    assert_ne!(anchor, &first["metadata"]["resourceVersion"]);
    assert_eq!(rest["metadata"]["remainingItemCount"], 3);
    create(&client, "f").await;
    let token = rest["metadata"]["continue"].as_str().expect("a token");
    let (_, last) = page(&client, token).await;
    assert_eq!(names(&last), ["d", "dd"]);
    assert_eq!(&last["metadata"]["resourceVersion"], anchor);
}

#[tokio::test(start_paused = true)]
async fn a_watch_goes_on_over_compactions_and_none_starts_from_before_them() {
    let server = server().await;
    let client = server.client("default");
    let api: Api<ConfigMap> = Api::namespaced(client.clone(), "default");
    let old = create(&client, "a").await.resource_version().expect("one");
    let list = api.list(&ListParams::default()).await.expect("a list");
    let now = list.metadata.resource_version.expect("a revision");
    let params = WatchParams::default().timeout(290);
    let mut seen = Vec::new();
    let mut from = now;
    // A client that comes back within the time misses nothing.
    for name in ["b", "c", "d"] {
        let mut events = api.watch(&params, &from).await.expect("a watch").boxed();
        let made = create(&client, name).await;
        while let Some(event) = events.try_next().await.expect("an event") {
            match event {
                WatchEvent::Added(map) => seen.push(map.name_any()),
                WatchEvent::Bookmark(_) => {}
                other => panic!("{other:?}"),
            }
        }
        from = made.resource_version().expect("a revision");
    }
    assert_eq!(seen, ["b", "c", "d"]);
    create(&client, "e").await;
    one_interval().await;
    let mut late = api.watch(&params, &old).await.expect("a watch").boxed();
    let Some(WatchEvent::Error(gone)) = late.try_next().await.expect("an answer") else {
        panic!("a revision that is gone was watched from");
    };
    assert_eq!((gone.code, gone.reason.as_str()), (410, "Expired"));
    assert!(gone.message.starts_with("too old resource version"));
}

#[tokio::test(start_paused = true)]
async fn an_open_watch_outlives_what_it_was_opened_from() {
    let server = server().await;
    let client = server.client("default");
    let api: Api<ConfigMap> = Api::namespaced(client.clone(), "default");
    let from = create(&client, "a").await.resource_version().expect("one");
    let params = WatchParams::default().timeout(294);
    let uri = format!("/api/v1/namespaces/default/configmaps?watch=1&resourceVersion={from}");
    let request = http::Request::get(uri).body(Vec::new()).expect("a request");
    let events = client.request_events::<ConfigMap>(request).await;
    let mut events = events.expect("a watch").boxed();
    for round in 0..6 {
        one_interval().await;
        let made = create(&client, &format!("b{round}")).await;
        match events.try_next().await.expect("an event") {
            Some(WatchEvent::Added(map)) => assert_eq!(map.uid(), made.uid()),
            other => panic!("{other:?}"),
        }
    }
    let late = api.watch(&params, &from).await.expect("a watch");
    let first = late.boxed().try_next().await.expect("an answer");
    assert!(matches!(first, Some(WatchEvent::Error(_))), "{first:?}");
}

#[tokio::test(start_paused = true)]
async fn nothing_is_forgotten_when_no_interval_is_set() {
    let options = Options {
        compact_every: None,
        ..Options::ephemeral().expect("an identity")
    };
    let server = ApiServer::start(options).await.expect("a server");
    let client = server.client("default");
    for name in ["a", "b", "c"] {
        create(&client, name).await;
    }
    let (_, first) = page(&client, "").await;
    let token = first["metadata"]["continue"].as_str().expect("a token");
    for name in ["d", "e", "f", "g"] {
        one_interval().await;
        create(&client, name).await;
    }
    let (code, second) = page(&client, token).await;
    assert_eq!((code, names(&second)), (200, vec!["c"]), "{second}");
}
