//! A real control plane in a test: nodes are ready, pods behave, rights are checked, requests are
//! recorded, lost nodes are noticed.

use std::time::Duration;

use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::core::v1::{Node, Pod};
use kube::api::{ListParams, Patch, PatchParams, PostParams};
use kube::{Api, Client};
use serde_json::json;
use warp_testkit::behaviour::Kind;
use warp_testkit::{Behaviour, Cluster, NodeShape, audit, cluster, wait_for, wait_gone};

const DEADLINE: Duration = Duration::from_mins(1);

fn job(name: &str, behaviour: &Behaviour) -> Job {
    serde_json::from_value(json!({
        "metadata": {"name": name},
        "spec": {
            "backoffLimit": 0,
            "template": {"spec": {
                "restartPolicy": "Never",
                "containers": [{
                    "name": "main", "image": "image:1", "env": behaviour.env(),
                    "resources": {"limits": {"nvidia.com/gpu": "1"}},
                }],
            }},
        },
    }))
    .unwrap()
}

async fn pod_of(client: &Client, namespace: &str, job: &str) -> Pod {
    let pods = Api::<Pod>::namespaced(client.clone(), namespace);
    let list = ListParams::default().labels(&format!("batch.kubernetes.io/job-name={job}"));
    pods.list(&list).await.unwrap().items.remove(0)
}

fn says(job: &Job, condition: &str) -> bool {
    job.status
        .as_ref()
        .and_then(|status| status.conditions.as_ref())
        .into_iter()
        .flatten()
        .any(|c| c.type_ == condition && c.status == "True")
}

/// The first container's terminated or waiting reason, and its exit code.
fn container(pod: &Pod) -> (String, Option<i32>) {
    let status = pod.status.as_ref().unwrap();
    let state = status.container_statuses.as_ref().unwrap()[0]
        .state
        .clone()
        .unwrap();
    match (state.terminated, state.waiting) {
        (Some(ended), _) => (ended.reason.unwrap(), Some(ended.exit_code)),
        (_, Some(waiting)) => (waiting.reason.unwrap(), None),
        _ => ("Running".to_owned(), None),
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn simulated_pods_end_as_they_are_told() {
    let cluster = Cluster::real()
        .nodes(NodeShape::h100(8), 2)
        .start()
        .await
        .unwrap();
    let client = cluster.client().await.unwrap();
    let namespace = cluster.namespace("pods").await.unwrap();
    let jobs = Api::<Job>::namespaced(client.clone(), &namespace);
    let pods = Api::<Pod>::namespaced(client.clone(), &namespace);

    let ends = [
        ("succeed", Behaviour::succeed(), "Complete", "Completed", 0),
        ("exit", Behaviour::exit(42), "Failed", "Error", 42),
        (
            "oom",
            Behaviour::new(Kind::OutOfMemory),
            "Failed",
            "OOMKilled",
            137,
        ),
        (
            "evicted",
            Behaviour::new(Kind::Evicted),
            "Failed",
            "Error",
            137,
        ),
    ];
    let waits = [
        ("pull", Behaviour::new(Kind::PullError), "ImagePullBackOff"),
        (
            "name",
            Behaviour::new(Kind::InvalidImage),
            "InvalidImageName",
        ),
        (
            "config",
            Behaviour::new(Kind::ConfigError),
            "CreateContainerConfigError",
        ),
        ("stuck", Behaviour::new(Kind::Stuck), "ContainerCreating"),
        ("hang", Behaviour::hang(), "Running"),
    ];
    for (name, behaviour, ..) in &ends {
        jobs.create(&PostParams::default(), &job(name, behaviour))
            .await
            .unwrap();
    }
    for (name, behaviour, _) in &waits {
        jobs.create(&PostParams::default(), &job(name, behaviour))
            .await
            .unwrap();
    }
    for (name, _, condition, reason, code) in &ends {
        wait_for(&jobs, name, condition, DEADLINE, |job| {
            job.is_some_and(|job| says(job, condition))
        })
        .await
        .unwrap();
        let pod = pod_of(&client, &namespace, name).await;
        assert_eq!(
            container(&pod),
            ((*reason).to_owned(), Some(*code)),
            "{name}"
        );
    }
    for (name, _, reason) in &waits {
        let pod = pod_of(&client, &namespace, name).await;
        let name = pod.metadata.name.as_deref().unwrap();
        wait_for(&pods, name, reason, DEADLINE, |pod| {
            pod.is_some_and(|pod| {
                let status = pod.status.as_ref();
                status.is_some_and(|s| s.container_statuses.is_some())
                    && container(pod).0 == *reason
            })
        })
        .await
        .unwrap();
    }

    // A held pod goes on when its annotations say so, and a deleted one leaves nothing.
    let held = pod_of(&client, &namespace, "stuck")
        .await
        .metadata
        .name
        .unwrap();
    let release = json!({"metadata": {"annotations": Behaviour::succeed().annotations()}});
    pods.patch(&held, &PatchParams::default(), &Patch::Merge(release))
        .await
        .unwrap();
    wait_for(&jobs, "stuck", "complete", DEADLINE, |job| {
        job.is_some_and(|job| says(job, "Complete"))
    })
    .await
    .unwrap();
    let hanging = pod_of(&client, &namespace, "hang")
        .await
        .metadata
        .name
        .unwrap();
    jobs.delete("hang", &kube::api::DeleteParams::background())
        .await
        .unwrap();
    wait_gone(&pods, &hanging, DEADLINE).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn service_accounts_have_their_rights_only_and_are_recorded() {
    let cluster = Cluster::real().audited().start().await.unwrap();
    let namespace = cluster.namespace("rights").await.unwrap();
    let kubectl = cluster.kubectl();
    kubectl
        .run(&[
            "-n",
            &namespace,
            "create",
            "role",
            "reader",
            "--verb=list",
            "--resource=pods",
        ])
        .await
        .unwrap();
    let account = format!("{namespace}:default");
    kubectl
        .run(&[
            "-n",
            &namespace,
            "create",
            "rolebinding",
            "reader",
            "--role=reader",
            "--serviceaccount",
            &account,
        ])
        .await
        .unwrap();
    let client = cluster.client_as(&namespace, "default").await.unwrap();
    let pods = Api::<Pod>::namespaced(client.clone(), &namespace);
    assert!(
        pods.list(&ListParams::default())
            .await
            .unwrap()
            .items
            .is_empty()
    );
    let nodes = Api::<Node>::all(client).list(&ListParams::default()).await;
    assert!(matches!(nodes, Err(kube::Error::Api(status)) if status.code == 403));

    let user = audit::service_account(&namespace, "default");
    let seen: Vec<_> = cluster
        .audit()
        .await
        .unwrap()
        .into_iter()
        .filter(|request| request.user == user)
        .map(|request| (request.action.resource, request.action.verb, request.code))
        .collect();
    let request = |resource: &str, code| (resource.to_owned(), "list".to_owned(), code);
    assert_eq!(seen, [request("pods", 200), request("nodes", 403)]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lost_group_of_nodes_is_noticed_and_comes_back() {
    let cluster = Cluster::real()
        .nodes(NodeShape::h100(1), 1)
        .nodes(NodeShape::h100(1).named("doomed").in_group("doomed"), 1)
        .quick_node_loss()
        .start()
        .await
        .unwrap();
    let nodes = Api::<Node>::all(cluster.client().await.unwrap());
    cluster.lose("doomed");
    wait_for(&nodes, "doomed-0", "not ready", DEADLINE, |node| {
        node.is_some_and(|node| !cluster::is_ready(node))
    })
    .await
    .unwrap();
    assert!(cluster::is_ready(&nodes.get("h100-0").await.unwrap()));
    cluster.recover("doomed").unwrap();
    wait_for(&nodes, "doomed-0", "ready", DEADLINE, |node| {
        node.is_some_and(cluster::is_ready)
    })
    .await
    .unwrap();
}
