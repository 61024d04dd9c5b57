//! A real control plane as child processes on loopback.
//!
//! Owns: the programs' flags, their order, their ports and their end. Must not create API objects.

use std::collections::BTreeMap;
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use serde_json::json;
use tempfile::TempDir;

use super::credentials::{self, Access};
use super::{Builder, Components, NodeLoss};
use crate::node::GROUP_LABEL;
use crate::process::Process;
use crate::wait::{PATIENCE, until};
use crate::{audit, binaries, stages};

/// The file in a cluster's folder that kube-scheduler writes its log to.
pub(crate) const SCHEDULER_LOG: &str = "scheduler.log";

/// Ports are chosen before the programs bind them, so another program may be quicker.
const ATTEMPTS: usize = 4;

#[derive(Debug)]
pub(super) struct ControlPlane {
    // Dropped in this order: clients of the API server first, the folder last.
    groups: Mutex<BTreeMap<String, Process>>,
    _processes: Vec<Process>,
    access: Access,
    binaries: PathBuf,
    node_loss: NodeLoss,
    folder: TempDir,
}

impl ControlPlane {
    pub(super) async fn start(builder: &Builder) -> Result<Self> {
        let binaries = binaries::control_plane()?;
        let mut last = None;
        for _ in 0..ATTEMPTS {
            match Self::try_start(builder, &binaries).await {
                Ok(started) => return Ok(started),
                Err(error) => last = Some(error),
            }
        }
        Err(last.context("no attempt was made")?)
            .context("failed to start a control plane; the last attempt says why")
    }

    async fn try_start(builder: &Builder, binaries: &Path) -> Result<Self> {
        let temporary = TempDir::with_prefix("warp-testbed-")?;
        let folder = temporary.path();
        credentials::write_server_files(folder)?;
        std::fs::write(folder.join("stages.yaml"), stages::config())?;
        std::fs::write(
            folder.join("audit-policy.json"),
            audit::policy().to_string(),
        )?;
        let [client, peer, api] = free_ports()?;
        let access = Access::new(folder, api)?;
        let etcd = start_etcd(binaries, folder, client, peer).await?;
        let server = start_api_server(builder, binaries, folder, client, api, &access).await?;
        let mut processes = vec![server, etcd];
        match builder.components {
            Components::All => {
                processes.insert(0, controllers(builder, binaries, folder)?);
                processes.insert(0, scheduler(binaries, folder, None)?);
            }
            Components::Scheduler { extender } => {
                processes.insert(0, scheduler(binaries, folder, Some(extender))?);
            }
            Components::ApiServerOnly => {}
        }
        Ok(Self {
            groups: Mutex::default(),
            _processes: processes,
            access,
            binaries: binaries.to_owned(),
            node_loss: builder.node_loss,
            folder: temporary,
        })
    }

    pub(super) fn access(&self) -> &Access {
        &self.access
    }

    pub(super) fn folder(&self) -> &Path {
        self.folder.path()
    }

    pub(super) fn binaries(&self) -> &Path {
        &self.binaries
    }

    /// Starts the KWOK process that plays the kubelets of a group, unless it runs already.
    pub(super) fn play_group(&self, group: &str) -> Result<()> {
        let mut groups = self.groups.lock().unwrap_or_else(PoisonError::into_inner);
        if groups.contains_key(group) {
            return Ok(());
        }
        let lease = match self.node_loss {
            NodeLoss::Patient => 40,
            NodeLoss::Quick => 4,
        };
        let mut command = Command::new(self.binaries.join("kwok"));
        command.args([
            &kubeconfig(self.folder(), "kwok"),
            &format!("--config={}", self.folder().join("stages.yaml").display()),
            &format!("--manage-nodes-with-label-selector={GROUP_LABEL}={group}"),
            &format!("--node-lease-duration-seconds={lease}"),
        ]);
        // No kubelet API: several groups and clusters would share its port.
        command.args(["--node-port=0", "--manage-all-nodes=false"]);
        let log = self.folder().join(format!("kwok-{group}.log"));
        groups.insert(group.to_owned(), Process::start("kwok", &command, &log)?);
        Ok(())
    }

    pub(super) fn lose_group(&self, group: &str) {
        let mut groups = self.groups.lock().unwrap_or_else(PoisonError::into_inner);
        drop(groups.remove(group));
    }
}

fn kubeconfig(folder: &Path, user: &str) -> String {
    let path = folder.join(format!("{user}.kubeconfig"));
    format!("--kubeconfig={}", path.display())
}

/// Free ports, held together while they are chosen so that they differ.
fn free_ports<const N: usize>() -> Result<[u16; N]> {
    let mut ports = [0; N];
    let mut held = Vec::with_capacity(N);
    for port in &mut ports {
        let listener = TcpListener::bind("127.0.0.1:0").context("failed to find a free port")?;
        *port = listener.local_addr()?.port();
        held.push(listener);
    }
    Ok(ports)
}

async fn start_etcd(binaries: &Path, folder: &Path, client: u16, peer: u16) -> Result<Process> {
    let client = format!("http://127.0.0.1:{client}");
    let peer = format!("http://127.0.0.1:{peer}");
    let mut command = Command::new(binaries.join("etcd"));
    command
        .arg(format!("--data-dir={}", folder.join("etcd").display()))
        .arg(format!("--listen-client-urls={client}"))
        .arg(format!("--advertise-client-urls={client}"))
        .arg(format!("--listen-peer-urls={peer}"))
        .arg(format!("--initial-advertise-peer-urls={peer}"))
        .arg(format!("--initial-cluster=default={peer}"))
        // The data lives as long as the test.
        .arg("--unsafe-no-fsync");
    let mut etcd = Process::start("etcd", &command, &folder.join("etcd.log"))?;
    // Its own log and not its port: the port may be answered by another cluster's etcd.
    ready(&mut etcd, |log| {
        log.contains("ready to serve client requests")
    })
    .await?;
    Ok(etcd)
}

async fn start_api_server(
    builder: &Builder,
    binaries: &Path,
    folder: &Path,
    etcd: u16,
    port: u16,
    access: &Access,
) -> Result<Process> {
    let file = |name: &str| folder.join(name).display().to_string();
    let mut command = Command::new(binaries.join("kube-apiserver"));
    command
        .arg(format!("--etcd-servers=http://127.0.0.1:{etcd}"))
        .arg("--bind-address=127.0.0.1")
        .arg("--advertise-address=127.0.0.1")
        .arg(format!("--secure-port={port}"))
        .arg(format!("--tls-cert-file={}", file("server.crt")))
        .arg(format!("--tls-private-key-file={}", file("server.key")))
        .arg("--service-account-issuer=https://kubernetes.default.svc")
        .arg(format!("--service-account-key-file={}", file("sa.pub")))
        .arg(format!(
            "--service-account-signing-key-file={}",
            file("sa.key")
        ))
        .arg("--service-cluster-ip-range=10.0.0.0/24")
        // Nodes that ask for their own certificate with a token are let in and kept to themselves.
        .arg("--authorization-mode=Node,RBAC")
        .arg("--enable-admission-plugins=NodeRestriction")
        .arg("--enable-bootstrap-token-auth=true")
        .arg(format!("--client-ca-file={}", file("ca.crt")))
        .arg(format!("--token-auth-file={}", file("tokens.csv")))
        .arg("--allow-privileged=true")
        // A machine with two cores runs several test binaries at once; fairness between them is not
        // what is under test.
        .arg("--enable-priority-and-fairness=false")
        .arg("--max-requests-inflight=2000")
        .arg("--max-mutating-requests-inflight=1000");
    if builder.node_loss == NodeLoss::Quick {
        command.args([
            "--default-not-ready-toleration-seconds=2",
            "--default-unreachable-toleration-seconds=2",
        ]);
    }
    if let Some(time) = builder.events_kept {
        command.arg(format!("--event-ttl={}s", time.as_secs()));
    }
    if builder.audit {
        command
            .arg(format!("--audit-policy-file={}", file("audit-policy.json")))
            .arg(format!("--audit-log-path={}", file("audit.log")));
    }
    let mut server = Process::start("kube-apiserver", &command, &folder.join("apiserver.log"))?;
    let client = access.client(credentials::ADMIN_TOKEN).await?;
    let answers = until("kube-apiserver is ready", PATIENCE, || {
        let running = server.is_running();
        let client = client.clone();
        async move {
            if !running {
                bail!("kube-apiserver has ended");
            }
            // The certificate authority is this cluster's own, so only its server can answer.
            let request = http::Request::get("/readyz").body(Vec::new())?;
            let asked = tokio::time::timeout(Duration::from_secs(5), client.request_text(request));
            Ok(matches!(asked.await, Ok(Ok(_))).then_some(()))
        }
    });
    answers.await.with_context(|| server.log_tail(20))?;
    Ok(server)
}

fn controllers(builder: &Builder, binaries: &Path, folder: &Path) -> Result<Process> {
    let file = |name: &str| folder.join(name).display().to_string();
    let mut command = Command::new(binaries.join("kube-controller-manager"));
    command
        .arg(kubeconfig(folder, "kube-controller-manager"))
        .arg(format!(
            "--service-account-private-key-file={}",
            file("sa.key")
        ))
        .arg(format!("--root-ca-file={}", file("ca.crt")))
        .arg(format!("--cluster-signing-cert-file={}", file("ca.crt")))
        .arg(format!("--cluster-signing-key-file={}", file("ca.key")))
        .arg("--leader-elect=false")
        // No port to choose: nothing asks it.
        .arg("--secure-port=0")
        // A claim made before its volume would wait for the next round, 15 s by default.
        .arg("--pvclaimbinder-sync-period=1s")
        .args(["--kube-api-qps=500", "--kube-api-burst=1000"]);
    if builder.node_loss == NodeLoss::Quick {
        command.args([
            "--node-monitor-period=1s",
            "--node-monitor-grace-period=20s",
            "--node-startup-grace-period=40s",
            // A test loses most of its few nodes; by default that stops all evictions.
            "--unhealthy-zone-threshold=1",
            "--node-eviction-rate=100",
        ]);
    }
    Process::start(
        "kube-controller-manager",
        &command,
        &folder.join("controller-manager.log"),
    )
}

fn scheduler(binaries: &Path, folder: &Path, extender: Option<u16>) -> Result<Process> {
    let extenders = extender.map(|port| {
        json!([{
            "urlPrefix": format!("http://127.0.0.1:{port}"),
            "filterVerb": "filter",
            "bindVerb": "bind",
            "nodeCacheCapable": true,
        }])
    });
    let configuration = json!({
        "apiVersion": "kubescheduler.config.k8s.io/v1",
        "kind": "KubeSchedulerConfiguration",
        "clientConnection": {
            "kubeconfig": folder.join("kube-scheduler.kubeconfig"), "qps": 500, "burst": 1000,
        },
        "leaderElection": {"leaderElect": false},
        // Every node is looked at, as in small clusters; the default stops when enough fit.
        "percentageOfNodesToScore": 100,
        "extenders": extenders,
    });
    let path = folder.join("scheduler.json");
    std::fs::write(&path, configuration.to_string())?;
    let mut command = Command::new(binaries.join("kube-scheduler"));
    command.arg(format!("--config={}", path.display()));
    command.arg("--secure-port=0");
    if extender.is_some() {
        // The only place where it says how it scored a node.
        command.arg("--vmodule=schedule_one=10");
    }
    Process::start("kube-scheduler", &command, &folder.join(SCHEDULER_LOG))
}

/// Waits for a line in a program's own log.
async fn ready(process: &mut Process, is_ready: impl Fn(&str) -> bool) -> Result<()> {
    let name = process.name().to_owned();
    let what = format!("{name} is ready");
    let waited = until(&what, PATIENCE, || {
        let log = process.log();
        let running = process.is_running();
        let ready = is_ready(&log);
        let name = name.clone();
        async move {
            if !ready && !running {
                bail!("'{name}' has ended:\n{log}");
            }
            Ok(ready.then_some(()))
        }
    });
    waited.await
}
