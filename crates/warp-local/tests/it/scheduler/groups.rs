//! What makes pods a group: Services and controllers, the same on both sides. kube-scheduler spreads a group whose pods
//! say nothing of it.

use anyhow::{Context, Result};
use k8s_openapi::api::apps::v1::{ReplicaSet, StatefulSet};
use k8s_openapi::api::core::v1::{ReplicationController, Service};
use kube::api::{Api, DeleteParams, PostParams};
use kube::{Client, ResourceExt};
use serde_json::{Value, json};
use warp_core::random::Random;
use warp_testkit::oracle::NAMESPACE;

use super::read;

/// Controllers by kind, with their uid on our side and the app they own.
pub(super) struct Groups {
    owners: Vec<(&'static str, &'static str, String, &'static str)>,
}

fn template(app: &str) -> Value {
    json!({
        "metadata": {"labels": {"app": app}},
        "spec": {"containers": [{"name": "main", "image": "image:1"}]},
    })
}

/// Makes everything on one side; gives the uids of the controllers.
async fn make(client: &Client) -> Result<[String; 3]> {
    let new = PostParams::default();
    let services: Api<Service> = Api::namespaced(client.clone(), NAMESPACE);
    for (name, selector) in [
        ("web", json!({"app": "web"})),
        ("web-v1", json!({"app": "web", "version": "v1"})),
        ("db", json!({"app": "db"})),
    ] {
        let service = json!({
            "metadata": {"name": name}, "spec": {"selector": selector, "ports": [{"port": 80}]},
        });
        services.create(&new, &read(service)?).await?;
    }
    let sets: Api<ReplicaSet> = Api::namespaced(client.clone(), NAMESPACE);
    // Its controller leaves the pods of one that is being deleted alone.
    let set = json!({
        "metadata": {"name": "web", "finalizers": ["test.warp.dev/stays"]},
        "spec": {
            "replicas": 0, "selector": {"matchLabels": {"app": "web"}}, "template": template("web"),
        },
    });
    let set = sets.create(&new, &read(set)?).await?;
    sets.delete("web", &DeleteParams::background()).await?;
    let stateful: Api<StatefulSet> = Api::namespaced(client.clone(), NAMESPACE);
    let selector =
        json!({"matchExpressions": [{"key": "app", "operator": "In", "values": ["db", "cache"]}]});
    let state = json!({
        "metadata": {"name": "db"},
        "spec": {"replicas": 0, "serviceName": "db", "selector": selector, "template": template("db")},
    });
    let state = stateful.create(&new, &read(state)?).await?;
    let old: Api<ReplicationController> = Api::namespaced(client.clone(), NAMESPACE);
    let controller = json!({
        "metadata": {"name": "train"},
        "spec": {"replicas": 0, "selector": {"app": "train"}, "template": template("train")},
    });
    let controller = old.create(&new, &read(controller)?).await?;
    let uid = |uid: Option<String>| uid.context("a controller without uid");
    Ok([uid(set.uid())?, uid(state.uid())?, uid(controller.uid())?])
}

impl Groups {
    pub(super) async fn make(theirs: &Client, ours: &Client) -> Result<Self> {
        make(theirs).await?;
        let [set, state, controller] = make(ours).await?;
        Ok(Self {
            owners: vec![
                ("apps/v1", "ReplicaSet", set, "web"),
                ("apps/v1", "StatefulSet", state, "db"),
                ("v1", "ReplicationController", controller, "train"),
            ],
        })
    }

    /// Lets some pods belong to a controller. Only ours looks at the uid: no garbage is collected on the other side.
    pub(super) fn join(&self, asked: &mut Value, random: &mut Random) {
        if random.below(3) > 0 {
            return;
        }
        let (version, kind, uid, app) = &self.owners[random.below(self.owners.len())];
        asked["metadata"]["labels"]["app"] = json!(app);
        asked["metadata"]["ownerReferences"] = json!([{
            "apiVersion": version, "kind": kind, "name": app, "uid": uid, "controller": true,
        }]);
    }
}
