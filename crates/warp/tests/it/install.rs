//! What `warp install --print` and the kustomize bases give, taken by a real API server in every way
//! people install things. A way that may be repeated changes nothing the second time.

use std::process::Command;

use warp_api::GROUP;
use warp_api::kinds::KINDS;
use warp_testkit::kubectl::Kubectl;
use warp_testkit::{Cluster, PATIENCE, until};

use crate::architecture::root;

fn printed(arguments: &[&str]) -> String {
    let output = Command::new(env!("CARGO_BIN_EXE_warp"))
        .args(["install", "--print", "--image", "registry.example/warp:1"])
        .args(arguments)
        .output()
        .unwrap();
    assert!(output.status.success());
    String::from_utf8(output.stdout).unwrap()
}

/// What does not live in a namespace is there once; the next way begins without it.
async fn forget(kubectl: &Kubectl) {
    let labelled = "app.kubernetes.io/name=warp";
    let everywhere = ["clusterroles", "clusterrolebindings"];
    for kind in everywhere {
        let delete = ["delete", kind, "-l", labelled];
        kubectl.run(&delete).await.unwrap();
    }
    // A server that is still setting up what stores a new kind does not get its definition deleted for minutes: it lists
    // each of them first.
    let plurals = KINDS
        .iter()
        .map(|entry| format!("{}.{GROUP}", entry.plural));
    let plurals: Vec<String> = plurals.collect();
    let list = ["get", &plurals.join(","), "--all-namespaces"];
    until("every kind to be served", PATIENCE, async || {
        Ok(kubectl.run(&list).await.ok())
    })
    .await
    .unwrap();
    let mut delete = vec!["delete", "customresourcedefinitions", "--timeout=120s"];
    delete.extend(plurals.iter().map(String::as_str));
    kubectl.run(&delete).await.unwrap();
    let left = kubectl.run(&["get", "crds", "-o", "name"]).await.unwrap();
    assert!(!left.contains(GROUP), "{left}");
}

/// Objects in what kubectl said, each with what became of it.
fn fates(said: &str) -> Vec<(&str, &str)> {
    said.lines()
        .filter_map(|line| line.rsplit_once(' '))
        .collect()
}

#[tokio::test]
async fn what_is_printed_installs_in_every_way_and_a_second_time_changes_nothing() {
    let cluster = Cluster::real().api_server_only().start().await.unwrap();
    let kubectl = cluster.kubectl();
    let strict = "--validate=strict";
    let namespaced = ["--namespace", "way-namespaced", "--namespaced", "default"];
    let ways: [(&[&str], &[&str]); 4] = [
        (&["--namespace", "way-create"], &["create"]),
        (&["--namespace", "way-apply"], &["apply"]),
        (&["--namespace", "way-server"], &["apply", "--server-side"]),
        (&namespaced, &["apply"]),
    ];
    for (arguments, verb) in ways {
        let text = printed(arguments);
        let install = [verb, &[strict, "-f", "-"]].concat();
        let first = kubectl.run_with(&install, &text).await.unwrap();
        assert_eq!(
            fates(&first).len(),
            text.matches("\nkind: ").count(),
            "{first}"
        );
        if verb != ["create"] {
            let second = kubectl.run_with(&install, &text).await.unwrap();
            // The server's own apply has one word for both; what was stored tells.
            let calm = |fate: &str| matches!(fate, "unchanged" | "serverside-applied");
            let moved: Vec<_> = fates(&second)
                .into_iter()
                .filter(|(_, fate)| !calm(fate))
                .collect();
            assert!(moved.is_empty(), "{verb:?} again: {moved:?}");
            let differs = kubectl.run_with(&["diff", "-f", "-"], &text).await;
            assert_eq!(differs.unwrap(), "", "{verb:?}");
        }
        forget(&kubectl).await;
    }
    for base in [
        "default",
        "isolation",
        "node-copies",
        "show-pending",
        "autoscalers",
        "namespaced",
    ] {
        let folder = root().join("deploy").join(base).display().to_string();
        let install = ["apply", strict, "-k", &folder];
        kubectl.run(&install).await.unwrap();
        let second = kubectl.run(&install).await.unwrap();
        let moved: Vec<_> = fates(&second)
            .into_iter()
            .filter(|(_, fate)| *fate != "unchanged")
            .collect();
        assert!(moved.is_empty(), "{base} again: {moved:?}");
        forget(&kubectl).await;
    }
    // Its kinds are the Prometheus operator's, which is not here: that it is put together must do.
    let monitoring = root().join("deploy/monitoring").display().to_string();
    let built = kubectl.run(&["kustomize", &monitoring]).await.unwrap();
    for kind in ["ServiceMonitor", "PodMonitor", "PrometheusRule"] {
        assert!(built.contains(&format!("kind: {kind}")), "{built}");
    }
}
