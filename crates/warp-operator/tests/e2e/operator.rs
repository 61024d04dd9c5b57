//! The operator under test: the `warp` binary as a child process with its own service account.
//!
//! Owns: building, starting, killing and asking it. Must not look at the cluster.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;
use std::time::Duration;

use anyhow::{Context, Result, anyhow, ensure};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use warp_testkit::{PATIENCE, Process, Signal, repository, until};

/// The `warp` binary of the profile this test was built with, brought up to date first.
pub(super) fn binary() -> Result<PathBuf> {
    static BINARY: OnceLock<Result<PathBuf, String>> = OnceLock::new();
    BINARY
        .get_or_init(|| build().map_err(|error| format!("{error:#}")))
        .clone()
        .map_err(|error| anyhow!(error))
}

fn build() -> Result<PathBuf> {
    if let Some(ready) = std::env::var_os("WARP_BINARY") {
        return Ok(PathBuf::from(ready));
    }
    // This test is <target>/<profile>/deps/e2e-…; the binary lies two folders up.
    let own = std::env::current_exe()?;
    let profile = own
        .parent()
        .and_then(Path::parent)
        .context("failed to find the target folder of this test")?;
    let mut cargo = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    cargo
        .args(["build", "--quiet", "--package=warp", "--bin=warp"])
        .current_dir(repository());
    // What cargo tells this test about its own package would make build scripts that look at it run again, and
    // everything above them be compiled twice.
    for (name, _) in std::env::vars_os() {
        let of_this_package = name.to_str().is_some_and(|name| {
            [
                "CARGO_PKG_",
                "CARGO_MANIFEST_",
                "CARGO_CRATE_",
                "CARGO_BIN_",
            ]
            .iter()
            .any(|begin| name.starts_with(begin))
        });
        if of_this_package {
            cargo.env_remove(name);
        }
    }
    // The folder is named after the profile, but for the one every build has unless told.
    if let Some(name) = profile.file_name().and_then(|name| name.to_str())
        && name != "debug"
    {
        cargo.arg(format!("--profile={name}"));
    }
    let built = cargo.output().context("failed to run cargo")?;
    ensure!(
        built.status.success(),
        "failed to build warp\n{}",
        String::from_utf8_lossy(&built.stderr)
    );
    Ok(profile.join("warp"))
}

/// A running operator.
#[derive(Debug)]
pub(super) struct Operator {
    process: Process,
    health: u16,
    metrics: u16,
}

impl Operator {
    pub(super) fn start(kubeconfig: &Path, log: &Path, arguments: &[&str]) -> Result<Self> {
        let [health, metrics] = free_ports()?;
        let mut command = Command::new(binary()?);
        command
            .arg("operator")
            .arg(format!("--health-addr=127.0.0.1:{health}"))
            .arg(format!("--metrics-addr=127.0.0.1:{metrics}"))
            .args(arguments)
            .env("KUBECONFIG", kubeconfig)
            .env("POD_NAMESPACE", super::world::SYSTEM)
            // Everything, the audit trail too: scenarios compare it with what the API server saw.
            .env("WARP_LOG", "info");
        let process = Process::start("warp operator", &command, log)?;
        Ok(Self {
            process,
            health,
            metrics,
        })
    }

    /// No chance to say goodbye: what it was doing stays half done.
    pub(super) fn kill(mut self) -> Result<()> {
        self.process.signal(Signal::Kill)
    }

    /// Asks it to end, once it has come far enough to be asked, and gives its exit code.
    pub(super) async fn terminate(mut self) -> Result<i32> {
        let there = || async {
            let answers = tokio::net::TcpStream::connect(("127.0.0.1", self.health)).await;
            Ok(answers.ok().map(drop))
        };
        until("the operator listens", PATIENCE, there).await?;
        self.process.signal(Signal::Terminate)?;
        self.process.wait(Duration::from_secs(30)).await
    }

    pub(super) fn signal(&mut self, signal: Signal) -> Result<()> {
        self.process.signal(signal)
    }

    pub(super) fn is_running(&mut self) -> bool {
        self.process.is_running()
    }

    pub(super) fn log(&self) -> String {
        self.process.log()
    }

    pub(super) fn log_tail(&self) -> String {
        self.process.log_tail(40)
    }

    /// The text of its metrics page.
    pub(super) async fn metrics(&self) -> Result<String> {
        let mut stream = tokio::net::TcpStream::connect(("127.0.0.1", self.metrics)).await?;
        let request = "GET /metrics HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n";
        stream.write_all(request.as_bytes()).await?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await?;
        ensure!(answer.starts_with("HTTP/1.1 200"), "metrics say: {answer}");
        Ok(answer)
    }
}

fn free_ports() -> Result<[u16; 2]> {
    let first = std::net::TcpListener::bind("127.0.0.1:0")?;
    let second = std::net::TcpListener::bind("127.0.0.1:0")?;
    Ok([first.local_addr()?.port(), second.local_addr()?.port()])
}
