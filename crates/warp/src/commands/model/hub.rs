//! Asks the Hugging Face hub, or a mirror of it, about a repository: its commit, the sizes of its files, and
//! `config.json`. How the hub is asked is `warp_fetch`'s.

use std::time::Duration;

use anyhow::Context as _;
use warp_fetch::{Client, Hub, Limits};

use super::description::{self, CONFIG_LIMIT_BYTES, Description};
use crate::commands::fetch::{endpoint, token};

/// The whole question may take this long: somebody waits for the answer.
const DEADLINE: Duration = Duration::from_mins(1);
/// A hub that says nothing for this long is given up.
const STALL: Duration = Duration::from_secs(20);

pub(super) fn describe(text: &str) -> anyhow::Result<Description> {
    let name = text.strip_prefix("hf://").unwrap_or(text);
    let hub = Hub::parse(name).with_context(|| {
        format!("'{text}' is neither a folder here nor a model of the hub such as Qwen/Qwen3-8B or Qwen/Qwen3-8B@COMMIT")
    })?;
    let endpoint = endpoint();
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    runtime
        .block_on(ask(&hub, &endpoint))
        .with_context(|| format!("failed to read {} from {endpoint}", hub.name))
}

async fn ask(hub: &Hub, endpoint: &str) -> anyhow::Result<Description> {
    let limits = Limits {
        stall: STALL,
        ..Limits::default()
    };
    let client = Client::new(endpoint, token(), limits)?;
    let looked = warp_fetch::look(&client, endpoint, hub, "config.json", CONFIG_LIMIT_BYTES);
    let late = || format!("it did not answer within {} s", DEADLINE.as_secs());
    let (listing, config) = tokio::time::timeout(DEADLINE, looked)
        .await
        .with_context(late)??;
    let config = String::from_utf8(config.to_vec()).context("its config.json is not text")?;
    // Copies of the weights in other formats lie in folders; an engine loads what is at the top.
    let files: Vec<(String, u64)> = listing
        .files
        .into_iter()
        .filter(|file| !file.path.contains('/'))
        .map(|file| (file.path, file.size))
        .collect();
    let commit = listing.commit.unwrap_or(listing.revision);
    description::describe(&format!("{}@{commit}", hub.name), &config, &files)
}
