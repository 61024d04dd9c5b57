//! A whole Kubernetes API and a client of it in one process: defines a kind, follows it, and
//! answers each object with a status.
//!
//! `cargo run -p warp-apiserver --example controller`

#![allow(
    clippy::print_stderr,
    clippy::print_stdout,
    reason = "an example shows what it does"
)]

use futures::TryStreamExt;
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::ResourceExt;
use kube::api::{Api, ApiResource, DynamicObject, Patch, PatchParams, PostParams};
use kube::core::GroupVersionKind;
use kube::runtime::wait::{await_condition, conditions};
use kube::runtime::{WatchStreamExt, watcher};
use serde_json::json;
use warp_apiserver::{ApiServer, Options};

fn definition() -> serde_json::Value {
    json!({
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": "greetings.example.com"},
        "spec": {
            "group": "example.com",
            "names": {"plural": "greetings", "singular": "greeting", "kind": "Greeting"},
            "scope": "Namespaced",
            "versions": [{
                "name": "v1", "served": true, "storage": true,
                "subresources": {"status": {}},
                "schema": {"openAPIV3Schema": {
                    "type": "object",
                    "properties": {
                        "spec": {"type": "object", "properties": {"name": {"type": "string"}}},
                        "status": {"type": "object", "properties": {"text": {"type": "string"}}},
                    },
                }},
            }],
        },
    })
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let server = ApiServer::start(Options::ephemeral()?).await?;
    let client = server.client("default");
    let definitions: Api<CustomResourceDefinition> = Api::all(client.clone());
    definitions
        .create(
            &PostParams::default(),
            &serde_json::from_value(definition())?,
        )
        .await?;
    await_condition(
        definitions,
        "greetings.example.com",
        conditions::is_crd_established(),
    )
    .await?;

    let kind = ApiResource::from_gvk(&GroupVersionKind::gvk("example.com", "v1", "Greeting"));
    let greetings: Api<DynamicObject> = Api::default_namespaced_with(client, &kind);
    let hello: DynamicObject = serde_json::from_value(json!({
        "apiVersion": "example.com/v1", "kind": "Greeting",
        "metadata": {"name": "first"}, "spec": {"name": "world"},
    }))?;
    greetings.create(&PostParams::default(), &hello).await?;

    let mut seen =
        std::pin::pin!(watcher(greetings.clone(), watcher::Config::default()).applied_objects());
    while let Some(greeting) = seen.try_next().await? {
        let text = format!(
            "hello, {}",
            greeting.data["spec"]["name"].as_str().unwrap_or("you")
        );
        if greeting.data["status"]["text"] == text {
            break;
        }
        let status = json!({
            "apiVersion": "example.com/v1", "kind": "Greeting", "status": {"text": text},
        });
        let apply = PatchParams::apply("greeter").force();
        greetings
            .patch_status(&greeting.name_any(), &apply, &Patch::Apply(&status))
            .await?;
    }
    let answered = greetings.get("first").await?;
    eprintln!("{}", answered.data["status"]["text"]);
    server.shutdown().await;
    Ok(())
}
