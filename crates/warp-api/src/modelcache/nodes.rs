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
    /// Bytes that copies may take below `path` on each node, such as `200Gi`: of all caches that name that path, in every
    /// namespace. The oldest cache that gives one decides; another that gives a different one gets no new copies. No limit
    /// where none gives one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(regex(pattern = r"^[1-9][0-9]{0,8}(Ki|Mi|Gi|Ti|Pi|k|M|G|T|P)?$"))]
    pub quota: Option<String>,
    /// Where room lacks, idle copies of a lower priority go first, and none goes for one of a lower priority.
    #[serde(default)]
    #[schemars(range(min = -1_000_000, max = 1_000_000))]
    pub priority: i32,
    /// Its copies never make room for others.
    #[serde(default)]
    pub pinned: bool,
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
    /// What it waits for, why it failed, or for whom it made room.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
    /// Its bytes, as soon as they are known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bytes: Option<i64>,
    /// Bytes that are kept for it while it comes, where the node has a quota.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub room: Option<i64>,
    /// When it was verified.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fetched_at: Option<Time>,
    /// Pods of that node that mount it.
    #[serde(default, skip_serializing_if = "is_none")]
    pub user_count: i64,
    /// When a pod last mounted it: at most an hour ago while one does, then the time the last one ended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_used: Option<Time>,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "as serde asks for it")]
fn is_none(count: &i64) -> bool {
    *count == 0
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
    /// It made room for another; it comes back when there is room, or when something waits for it.
    Evicted,
}
