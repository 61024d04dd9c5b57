//! What the operator of a cluster was told, as far as whoever asks may see it.

use std::str::FromStr;
use std::sync::Arc;

use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::core::v1::ConfigMap;
use kube::api::ListParams;
use kube::{Api, Client};
use warp_operator::{DURATIONS, Settings};

use crate::commands::install;

/// The operator's Deployment carries these.
pub(crate) const LABELS: &str = "app.kubernetes.io/name=warp,app.kubernetes.io/component=operator";

/// The Deployments of it, everywhere or where it usually is.
pub(crate) async fn deployments(client: &Client) -> Result<Vec<Deployment>, kube::Error> {
    let labelled = ListParams::default().labels(LABELS);
    let everywhere: Api<Deployment> = Api::all(client.clone());
    let usual: Api<Deployment> = Api::namespaced(client.clone(), install::NAMESPACE);
    let forbidden =
        |error: &kube::Error| matches!(error, kube::Error::Api(status) if status.code == 403);
    let mut listed = everywhere.list(&labelled).await;
    if listed.as_ref().is_err_and(forbidden) {
        listed = usual.list(&labelled).await;
    }
    listed.map(|listed| listed.items)
}

/// The flags of the operator's container.
pub(crate) fn flags(deployment: &Deployment) -> Vec<String> {
    let pod = deployment
        .spec
        .as_ref()
        .and_then(|spec| spec.template.spec.as_ref());
    let containers = pod.into_iter().flat_map(|pod| &pod.containers);
    containers
        .flat_map(|container| container.args.iter().flatten())
        .cloned()
        .collect()
}

pub(crate) fn flag(deployment: &Deployment, name: &str) -> Option<String> {
    let start = format!("--{name}=");
    flags(deployment)
        .iter()
        .find_map(|flag| flag.strip_prefix(&start).map(str::to_owned))
}

/// What placement depends on, by the flags of the operator; what it is when nobody says otherwise, where they cannot be
/// seen.
pub(crate) async fn settings(client: &Client) -> Settings {
    let found = deployments(client).await.unwrap_or_default();
    found.first().map_or_else(Settings::default, said)
}

/// What the operator has learnt about run times, where its policy goes by that and it may be read.
pub(crate) async fn learnt(client: &Client, settings: &Settings) -> Option<Arc<ConfigMap>> {
    if !settings.queue_policy.learns() {
        return None;
    }
    let found = deployments(client).await.unwrap_or_default();
    let namespace = found.first().and_then(kube::ResourceExt::namespace);
    let namespace = namespace.unwrap_or_else(|| install::NAMESPACE.to_owned());
    let kept: Api<ConfigMap> = Api::namespaced(client.clone(), &namespace);
    kept.get_opt(DURATIONS).await.ok().flatten().map(Arc::new)
}

fn said(deployment: &Deployment) -> Settings {
    fn read<T: FromStr>(deployment: &Deployment, name: &str) -> Option<T> {
        flag(deployment, name)?.parse().ok()
    }
    let usual = Settings::default();
    let levels = read(deployment, "topology-levels").map(Arc::new);
    Settings {
        default_strategy: read(deployment, "default-strategy").unwrap_or(usual.default_strategy),
        queue_policy: read(deployment, "queue-policy").unwrap_or(usual.queue_policy),
        price_weight: read(deployment, "price-weight").unwrap_or(usual.price_weight),
        topology_levels: levels.unwrap_or(usual.topology_levels),
        defragment: flags(deployment).iter().any(|flag| flag == "--defragment"),
        ..usual
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;
    use warp_operator::QueuePolicy;

    use super::*;

    #[test]
    fn what_the_operator_was_told_is_taken_over() {
        let deployment = serde_json::from_value(json!({"spec": {
            "selector": {}, "template": {"spec": {"containers": [{"name": "manager", "args": [
                "operator", "--leader-elect", "--queue-policy=fifo", "--topology-levels=rack=example.com/rack",
                "--price-weight=nonsense", "--defragment",
            ]}]}},
        }}))
        .unwrap();
        let told = said(&deployment);
        assert_eq!(told.queue_policy, QueuePolicy::Fifo);
        assert_eq!(
            told.topology_levels.to_string(),
            "rack (example.com/rack), host (kubernetes.io/hostname)"
        );
        assert!(told.defragment);
        assert_eq!(told.default_strategy, Settings::default().default_strategy);
    }
}
