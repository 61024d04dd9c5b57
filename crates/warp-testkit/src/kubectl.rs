//! kubectl, as a user runs it.
//!
//! Owns: running the control plane's own kubectl against a kubeconfig. Must not parse its output.

use std::path::{Path, PathBuf};
use std::process::Stdio;

use anyhow::{Context, Result, bail};
use tokio::io::AsyncWriteExt;
use tokio::process::Command;

/// kubectl with a kubeconfig.
#[derive(Clone, Debug)]
pub struct Kubectl {
    pub(crate) program: PathBuf,
    pub(crate) kubeconfig: PathBuf,
}

impl Kubectl {
    /// Runs kubectl and gives its standard output; an exit code other than 0 is an error with what
    /// it wrote.
    pub async fn run(&self, arguments: &[&str]) -> Result<String> {
        self.run_with(arguments, "").await
    }

    /// As [`Self::run`] with `input` on standard input.
    pub async fn run_with(&self, arguments: &[&str], input: &str) -> Result<String> {
        let mut child = Command::new(&self.program)
            .arg("--kubeconfig")
            .arg(&self.kubeconfig)
            .args(arguments)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .context("failed to start kubectl")?;
        if let Some(mut stdin) = child.stdin.take() {
            stdin.write_all(input.as_bytes()).await?;
        }
        let output = child.wait_with_output().await?;
        if !output.status.success() {
            bail!(
                "failed to run kubectl {}: {}{}",
                arguments.join(" "),
                String::from_utf8_lossy(&output.stderr),
                String::from_utf8_lossy(&output.stdout)
            );
        }
        String::from_utf8(output.stdout).context("failed to read what kubectl wrote")
    }

    pub async fn apply_file(&self, path: &Path) -> Result<String> {
        self.run(&["apply", "-f", &path.display().to_string()])
            .await
    }
}
