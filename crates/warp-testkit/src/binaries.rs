//! Where the control plane's binaries are.
//!
//! Owns: asking `testbed/control-plane` for its folder, once per process. Must not build anything
//! itself: what is built, from which versions, is that script's business.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

use anyhow::{Context, Result, anyhow};

/// The root of the repository this crate was built from.
pub fn repository() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// The folder with etcd, kube-apiserver, kube-controller-manager, kube-scheduler, kubectl and kwok.
/// Builds them when they are missing, which takes minutes the first time.
pub fn control_plane() -> Result<PathBuf> {
    static FOLDER: OnceLock<Result<PathBuf, String>> = OnceLock::new();
    FOLDER
        .get_or_init(|| locate().map_err(|error| format!("{error:#}")))
        .clone()
        .map_err(|error| anyhow!(error))
}

fn locate() -> Result<PathBuf> {
    let script = repository().join("testbed/control-plane");
    let output = Command::new(&script)
        .output()
        .with_context(|| format!("failed to run '{}'", script.display()))?;
    if !output.status.success() {
        return Err(anyhow!(
            "failed to provide the control plane\n{}",
            String::from_utf8_lossy(&output.stderr)
        ));
    }
    let folder = String::from_utf8(output.stdout).context("failed to read the folder's name")?;
    Ok(PathBuf::from(folder.trim()))
}
