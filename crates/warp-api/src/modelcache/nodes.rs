//! Copies of a model on the disks of nodes: where they are to be, and where they are.

use std::collections::BTreeMap;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Which nodes keep a copy, and where on them.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct NodeCopies {
    /// Labels of the nodes that keep a copy, those that come later too; every node where there are none.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub selector: BTreeMap<String, String>,
    /// Folder of the node below which copies are kept. Cannot be changed.
    #[serde(default = "default_path")]
    #[schemars(length(min = 2, max = 256), regex(pattern = r"^/[^:]+$"))]
    pub path: String,
}

fn default_path() -> String {
    "/var/lib/warp/models".to_owned()
}

/// The copy of one node.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct NodeCopy {
    /// The node.
    pub name: String,
    /// The node's uid: another of the same name has another disk.
    pub uid: String,
    /// Names what it is a copy of: source, revision and patterns.
    pub content_key: String,
    /// How far it is.
    pub phase: CopyPhase,
    /// What it waits for, or why it failed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
    /// When it was verified.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fetched_at: Option<Time>,
}

/// How far a copy is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum CopyPhase {
    /// It has not begun.
    #[default]
    Pending,
    /// Files come to the node.
    Fetching,
    /// It is complete and verified, and the node is labelled with it.
    Ready,
    /// It failed and is not tried again by itself.
    Failed,
    /// It is being removed from the node.
    Removing,
}
