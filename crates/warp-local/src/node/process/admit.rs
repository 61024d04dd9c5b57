//! What a process node cannot do for a pod: refused by name when the pod comes, not half done later.

use std::path::{Component, Path};

use k8s_openapi::api::core::v1::{Container, Pod};

use crate::node::facts::containers;
use crate::node::process::probe;

/// The first thing of `pod` that is not available here.
pub(super) fn unsupported(pod: &Pod) -> Option<String> {
    containers(pod.spec.as_ref()?).find_map(|container| {
        let what = probe::unavailable(container, "a process node").or_else(|| mounts(container))?;
        Some(format!("container {}: {what}", container.name))
    })
}

/// Mounts are links below one folder, so none may lie inside another or lead out.
fn mounts(container: &Container) -> Option<String> {
    let paths: Vec<&str> = container
        .volume_mounts
        .iter()
        .flatten()
        .map(|mount| mount.mount_path.trim_end_matches('/'))
        .collect();
    let leaves = |path: &&&str| {
        let parts = Path::new(path).components();
        parts.into_iter().any(|part| part == Component::ParentDir)
    };
    if let Some(path) = paths.iter().find(leaves) {
        return Some(format!(
            "mountPath \"{path}\" has \"..\" in it, which a process node does not take"
        ));
    }
    paths.iter().enumerate().find_map(|(index, inner)| {
        let outer = paths.iter().enumerate().find(|(other, outer)| {
            *other != index
                && inner
                    .strip_prefix(**outer)
                    .is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
        })?;
        Some(format!(
            "the mount at {inner} lies inside the one at {}; a process node cannot nest mounts, give them places of their own",
            outer.1
        ))
    })
}
