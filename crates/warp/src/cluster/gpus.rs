//! The GPU models an administrator has added, read with the rights of whoever asks.

use anyhow::Context;
use k8s_openapi::api::core::v1::ConfigMap;
use kube::{Api, Client};
use warp_api::gpus::{self, BadEntry, CONFIG_MAP, NAMESPACE};
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

/// Whoever may not read them is told so, and knows the catalogue's models.
pub(crate) async fn added(client: &Client, left_out: &mut Vec<String>) -> anyhow::Result<Added> {
    let maps: Api<ConfigMap> = Api::namespaced(client.clone(), NAMESPACE);
    let map = match maps.get_opt(CONFIG_MAP).await {
        Ok(map) => map,
        Err(kube::Error::Api(status)) if status.code == 403 => {
            left_out.push(format!("GPU models of ConfigMap {NAMESPACE}/{CONFIG_MAP}"));
            None
        }
        Err(error) => {
            return Err(told(error)).context("failed to read which GPU models were added");
        }
    };
    let (catalogue, bad) = gpus::catalogue(map.as_ref());
    let entries = map.and_then(|map| map.data).map_or(0, |data| data.len());
    Ok(Added {
        catalogue,
        bad,
        entries,
    })
}
