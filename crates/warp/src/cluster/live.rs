//! The cluster as decisions see it, read with the rights of whoever asks.

use std::fmt::Debug;
use std::sync::Arc;

use anyhow::Context;
use k8s_openapi::NamespaceResourceScope;
use k8s_openapi::api::core::v1::ConfigMap;
use kube::api::ListParams;
use kube::{Api, Client, Resource};
use serde::de::DeserializeOwned;
use warp_api::Tenant;
use warp_operator::Settings;
use warp_operator::foresight::Cluster;

use super::{gpus, operator, queued, told};
use crate::commands::costs;

/// Objects asked for at once.
const PAGE: u32 = 500;

/// A snapshot, and what could not be taken into account.
pub(crate) struct Live {
    pub(crate) cluster: Cluster,
    /// What the operator was told.
    pub(crate) settings: Settings,
    pub(crate) left_out: Vec<String>,
}

impl Live {
    /// Reads everything placement depends on. Nodes, pods, Jobs and workloads of all namespaces must be
    /// readable: without them any answer would be a guess.
    pub(crate) async fn read(client: &Client) -> anyhow::Result<Self> {
        let mut left_out = Vec::new();
        let jobs = needed(client, "jobs").await?;
        let (queued, refused) = queued::all(client, &jobs, None).await?;
        left_out.extend(refused.into_iter().map(str::to_owned));
        let settings = operator::settings(client).await;
        let tenants = wanted(client, "tenants", &mut left_out).await?;
        let limited = |tenant: &Arc<Tenant>| tenant.spec.budget.is_some();
        let ledgers = if tenants.iter().any(limited) {
            let asked = ListParams::default().labels(costs::LEDGER);
            readable(
                list(&Api::<ConfigMap>::all(client.clone()), &asked).await,
                "costs",
            )?
        } else {
            Some(Vec::new())
        };
        if ledgers.is_none() {
            left_out.push("what tenants have spent".to_owned());
        }
        let cluster = Cluster {
            nodes: needed(client, "nodes").await?,
            pods: needed(client, "pods").await?,
            jobs,
            queued,
            workloads: needed(client, "gpuworkloads").await?,
            namespaces: wanted(client, "namespaces", &mut left_out).await?,
            claims: wanted(client, "persistentvolumeclaims", &mut left_out).await?,
            volumes: wanted(client, "persistentvolumes", &mut left_out).await?,
            classes: wanted(client, "storageclasses", &mut left_out).await?,
            quotas: wanted(client, "resourcequotas", &mut left_out).await?,
            tenants,
            priorities: wanted(client, "priorityclasses", &mut left_out).await?,
            requests: wanted(client, "gpurequests", &mut left_out).await?,
            // Asked for by work that rents alone, which says so itself.
            clouds: readable(everywhere(client).await, "cloudproviders")?,
            ledgers: ledgers.unwrap_or_default(),
            catalogue: Arc::new(gpus::added(client, &mut left_out).await?.catalogue),
            provider_rules: Arc::new(gpus::of_providers(client, &mut left_out).await?.rules),
            learnt: operator::learnt(client, &settings).await,
            ..Cluster::default()
        };
        Ok(Self {
            cluster,
            settings,
            left_out,
        })
    }

    /// What the answer does not take into account, in words.
    pub(crate) fn caveat(&self) -> Option<String> {
        (!self.left_out.is_empty()).then(|| {
            format!(
                "not taken into account, since you may not read them in all namespaces: {}",
                self.left_out.join(", ")
            )
        })
    }
}

async fn needed<K>(client: &Client, what: &str) -> anyhow::Result<Vec<Arc<K>>>
where
    K: Resource<DynamicType = ()> + Clone + DeserializeOwned + Debug,
{
    everywhere(client).await.map_err(told).with_context(|| {
        format!(
            "failed to look ahead: that needs the right to list {what} in all namespaces, which the ClusterRole view has where it is bound everywhere (kubectl create clusterrolebinding NAME --clusterrole view --user USER)"
        )
    })
}

async fn wanted<K>(
    client: &Client,
    what: &str,
    left_out: &mut Vec<String>,
) -> anyhow::Result<Vec<Arc<K>>>
where
    K: Resource<DynamicType = ()> + Clone + DeserializeOwned + Debug,
{
    let found = readable(everywhere(client).await, what)?;
    if found.is_none() {
        left_out.push(what.to_owned());
    }
    Ok(found.unwrap_or_default())
}

/// None for what may not be read.
fn readable<T>(listed: Result<T, kube::Error>, what: &str) -> anyhow::Result<Option<T>> {
    match listed {
        Ok(found) => Ok(Some(found)),
        Err(kube::Error::Api(status)) if matches!(status.code, 403 | 404) => Ok(None),
        Err(error) => Err(told(error)).with_context(|| format!("failed to list {what}")),
    }
}

/// Every object of a kind, in pages.
pub(crate) async fn everywhere<K>(client: &Client) -> Result<Vec<Arc<K>>, kube::Error>
where
    K: Resource<DynamicType = ()> + Clone + DeserializeOwned + Debug,
{
    list(&Api::all(client.clone()), &ListParams::default()).await
}

/// Every object of a kind in one namespace.
pub(crate) async fn in_namespace<K>(
    client: &Client,
    namespace: &str,
    asked: &ListParams,
) -> Result<Vec<Arc<K>>, kube::Error>
where
    K: Resource<DynamicType = (), Scope = NamespaceResourceScope>
        + Clone
        + DeserializeOwned
        + Debug,
{
    list(&Api::namespaced(client.clone(), namespace), asked).await
}

async fn list<K>(api: &Api<K>, asked: &ListParams) -> Result<Vec<Arc<K>>, kube::Error>
where
    K: Clone + DeserializeOwned + Debug,
{
    let mut asked = asked.clone().limit(PAGE);
    let mut found = Vec::new();
    loop {
        let page = api.list(&asked).await?;
        found.extend(page.items.into_iter().map(Arc::new));
        match page.metadata.continue_.filter(|token| !token.is_empty()) {
            Some(token) => asked.continue_token = Some(token),
            None => return Ok(found),
        }
    }
}
