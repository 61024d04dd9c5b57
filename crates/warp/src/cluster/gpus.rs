//! What an administrator says for all in ConfigMaps of the operator's namespace, read with the rights of whoever asks: GPU
//! models that were added, and how providers are compared.

use anyhow::Context;
use k8s_openapi::api::core::v1::ConfigMap;
use kube::{Api, Client};
use warp_api::gpus::{self, BadEntry, CONFIG_MAP, NAMESPACE};
use warp_api::providers::{self, ProviderRules};
use warp_core::gpu::Catalogue;

use super::told;

/// What is known with them, and what of them could not be used.
#[derive(Debug, Default)]
pub(crate) struct Added {
    pub(crate) catalogue: Catalogue,
    pub(crate) bad: Vec<BadEntry>,
    /// How many were written.
    pub(crate) entries: usize,
}

/// What is said of providers, and what of it could not be used.
#[derive(Debug, Default)]
pub(crate) struct Said {
    pub(crate) rules: ProviderRules,
    pub(crate) bad: Vec<BadEntry>,
    /// How many entries were written.
    pub(crate) entries: usize,
}

/// Whoever may not read them is told so, and knows the catalogue's models.
pub(crate) async fn added(client: &Client, left_out: &mut Vec<String>) -> anyhow::Result<Added> {
    let map = map(client, CONFIG_MAP, "GPU models", left_out).await?;
    let (catalogue, bad) = gpus::catalogue(map.as_ref());
    Ok(Added {
        catalogue,
        bad,
        entries: entries(map),
    })
}

/// Whoever may not read it is told so, and providers are not compared.
pub(crate) async fn of_providers(
    client: &Client,
    left_out: &mut Vec<String>,
) -> anyhow::Result<Said> {
    let map = map(
        client,
        providers::CONFIG_MAP,
        "rules of providers",
        left_out,
    )
    .await?;
    let (rules, bad) = providers::rules(map.as_ref());
    Ok(Said {
        rules,
        bad,
        entries: entries(map),
    })
}

fn entries(map: Option<ConfigMap>) -> usize {
    map.and_then(|map| map.data).map_or(0, |data| data.len())
}

async fn map(
    client: &Client,
    name: &str,
    what: &str,
    left_out: &mut Vec<String>,
) -> anyhow::Result<Option<ConfigMap>> {
    let maps: Api<ConfigMap> = Api::namespaced(client.clone(), NAMESPACE);
    match maps.get_opt(name).await {
        Ok(map) => Ok(map),
        Err(kube::Error::Api(status)) if status.code == 403 => {
            left_out.push(format!("{what} of ConfigMap {NAMESPACE}/{name}"));
            Ok(None)
        }
        Err(error) => Err(told(error)).with_context(|| format!("failed to read the {what}")),
    }
}
