//! What a process node cannot do for a pod: refused by name when the pod comes, not half done later.

use std::path::{Component, Path};

use k8s_openapi::api::core::v1::{Container, Pod};

use crate::node::facts::containers;
use crate::node::process::probe;

/// The first thing of `pod` that is not available here; `as_root` says whom its processes would run as.
pub(super) fn unsupported(pod: &Pod, as_root: bool) -> Option<String> {
    containers(pod.spec.as_ref()?).find_map(|container| {
        let what = probe::unavailable(container, "a process node")
            .or_else(|| mounts(container))
            .or_else(|| (as_root && wants_no_root(pod, container)).then(|| "it says runAsNonRoot, and processes of this node run as root; start Warp as another user".to_owned()))?;
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

fn wants_no_root(pod: &Pod, container: &Container) -> bool {
    let shared = pod
        .spec
        .as_ref()
        .and_then(|spec| spec.security_context.as_ref()?.run_as_non_root);
    let own = container
        .security_context
        .as_ref()
        .and_then(|context| context.run_as_non_root);
    own.or(shared) == Some(true)
}
