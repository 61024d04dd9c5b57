//! `warp doctor`: what a new user trips over, on this machine and on the cluster commands talk to, and
//! what to do about it.

mod cluster;

use std::net::{Ipv4Addr, TcpListener};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use warp_local::node::docker;
use warp_local::node::process::{self, machine};

use super::node::refuse_root;
use super::up::instance::Instance;
use crate::cluster::{Target, block_on, home};
use crate::output::{self, Table};

/// The oldest kubectl that the embedded API serves.
const OLDEST_KUBECTL: u64 = 30;
/// The version of Kubernetes the embedded API answers as; kubectl may be one ahead of it.
const SERVED: u64 = 35;
/// What the version of an embedded API contains, and no cluster's does.
const EMBEDDED: &str = "+warp.";
/// Below this the first large object fills the disk.
const LITTLE: u64 = 64 << 20;
/// Below this a few models do.
const SOME: u64 = 2 << 30;

#[derive(clap::Args, Debug)]
pub(crate) struct Args {
    /// The port to check
    #[arg(long, default_value_t = 6443)]
    port: u16,
    #[command(flatten)]
    target: Target,
}

/// How much one finding matters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Verdict {
    Fine,
    /// Works, with less than there could be.
    Less,
    /// `warp up`, or work on the cluster, will not work.
    Wrong,
}

struct Finding {
    what: String,
    verdict: Verdict,
    told: String,
}

fn finding(what: impl Into<String>, verdict: Verdict, told: impl Into<String>) -> Finding {
    Finding {
        what: what.into(),
        verdict,
        told: told.into(),
    }
}

pub(crate) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    // Whoever uses the kubeconfig of a `warp up` somewhere means that one.
    let config = args.target.kubeconfig.clone().or_else(set_kubeconfig);
    let meant = args.target.data.clone();
    let instance = Instance::at(meant.or_else(|| Instance::of_kubeconfig(config.as_deref()?)))?;
    let running = instance.running().ok().flatten();
    let mut findings = vec![data(&instance), disk(&instance)];
    findings.push(match &running {
        Some(note) => finding(
            "engine",
            Verdict::Fine,
            format!("up at {} (process {})", note.server, note.pid),
        ),
        None => port(args.port),
    });
    findings.push(user());
    findings.push(cgroups());
    findings.push(block_on(async { Ok(docker().await) })?);
    findings.push(gpus());
    findings.extend(device_files());
    findings.push(kubectl());
    findings.push(kubeconfig(&instance));
    findings.push(files());
    findings.extend(of_cluster(args, &instance, running.is_some())?);
    let mut table = Table::new(["CHECK", "RESULT", "WHAT TO KNOW"]);
    for found in &findings {
        let verdict = match found.verdict {
            Verdict::Fine => "ok",
            Verdict::Less => "note",
            Verdict::Wrong => "wrong",
        };
        table.row([found.what.clone(), verdict.to_owned(), found.told.clone()]);
    }
    output::text(&table.to_string());
    let wrong = findings.iter().any(|found| found.verdict == Verdict::Wrong);
    Ok(if wrong {
        ExitCode::FAILURE
    } else {
        ExitCode::SUCCESS
    })
}

fn set_kubeconfig() -> Option<PathBuf> {
    let set = std::env::var_os("KUBECONFIG").filter(|value| !value.is_empty());
    set.map(PathBuf::from)
}

/// Whether a kubeconfig is the one of an instance.
fn is_of(file: &Path, instance: &Instance) -> bool {
    std::path::absolute(file).is_ok_and(|file| file == instance.kubeconfig())
}

/// The cluster commands would talk to: one that was named, this machine's own, or the user's usual one,
/// whose troubles are only notes here.
fn of_cluster(args: &Args, instance: &Instance, running: bool) -> anyhow::Result<Vec<Finding>> {
    let mut target = args.target.clone();
    // A directory means that instance: one that does not run has no cluster to check.
    let meant = target.data.take().is_some();
    if meant && !running {
        return Ok(Vec::new());
    }
    let named = target.kubeconfig.is_some() || target.context.is_some();
    let set = set_kubeconfig();
    let ours = set.as_ref().is_none_or(|set| is_of(set, instance));
    let told = set.is_some();
    let own = running && !named && (meant || ours);
    if own {
        target.kubeconfig = Some(instance.kubeconfig());
    }
    let usual = home().is_some_and(|home| home.join(".kube/config").exists());
    if !(named || told || own || usual) {
        return Ok(Vec::new());
    }
    let mut findings = block_on(async {
        Ok(match target.connect().await {
            Ok(connection) => {
                let version = connection.client.apiserver_version().await;
                let version = version.map_or_else(|_| String::new(), |info| info.git_version);
                let reached = format!("answers as {version}");
                let mut findings = vec![finding("cluster", Verdict::Fine, reached)];
                // Whoever was given access to a `warp up` has no data directory to tell it by.
                let embedded = version.contains(EMBEDDED);
                findings.extend(cluster::check(&connection, own || embedded).await);
                findings
            }
            Err(error) => vec![finding("cluster", Verdict::Wrong, output::words(&error))],
        })
    })?;
    if !(named || told || own) {
        for found in findings
            .iter_mut()
            .filter(|found| found.verdict == Verdict::Wrong)
        {
            found.verdict = Verdict::Less;
        }
    }
    Ok(findings)
}

fn data(instance: &Instance) -> Finding {
    let place = instance.folder.display().to_string();
    // Nothing is made here: the nearest parent that exists decides.
    let nearest = instance.folder.ancestors().find(|path| path.exists());
    if instance.held().unwrap_or(false) && instance.running().is_err() {
        let told = format!(
            "{place} is in use by a process that is no Warp, or by one that is starting; choose another with --data"
        );
        return finding("data directory", Verdict::Wrong, told);
    }
    if let Some(over) = process::too_long(&instance.folder) {
        let told = format!(
            "{place} is {over} characters too long for the sockets of process nodes; choose a shorter one with --data"
        );
        return finding("data directory", Verdict::Less, told);
    }
    match nearest.map(rustix_writable) {
        Some(true) => finding("data directory", Verdict::Fine, place),
        _ => finding(
            "data directory",
            Verdict::Wrong,
            format!("{place} cannot be written; choose another with --data"),
        ),
    }
}

fn rustix_writable(path: &std::path::Path) -> bool {
    path.is_dir() && rustix::fs::access(path, rustix::fs::Access::WRITE_OK).is_ok()
}

fn disk(instance: &Instance) -> Finding {
    let nearest = instance.folder.ancestors().find(|path| path.exists());
    let free = nearest
        .and_then(|path| rustix::fs::statvfs(path).ok())
        .map(|found| found.f_bavail.saturating_mul(found.f_frsize));
    match free {
        None => finding("disk", Verdict::Less, "how much is free is not known"),
        Some(free) if free < LITTLE => finding(
            "disk",
            Verdict::Wrong,
            format!(
                "{} MB free; make room, or choose another disk with --data",
                free / 1_000_000
            ),
        ),
        Some(free) => finding(
            "disk",
            if free < SOME {
                Verdict::Less
            } else {
                Verdict::Fine
            },
            format!("{:.1} GB free", free as f64 / 1e9),
        ),
    }
}

/// Drivers that are loaded but whose devices this user may not open.
fn device_files() -> Option<Finding> {
    let closed = ["/dev/nvidiactl", "/dev/kfd"].into_iter().find(|file| {
        let path = std::path::Path::new(file);
        path.exists()
            && rustix::fs::access(
                path,
                rustix::fs::Access::READ_OK | rustix::fs::Access::WRITE_OK,
            )
            .is_err()
    })?;
    let told = format!(
        "{closed} may not be opened by this user; add yourself to its group (usually `sudo usermod -aG render,video $USER`) and log in again"
    );
    Some(finding("GPU access", Verdict::Less, told))
}

fn port(port: u16) -> Finding {
    match TcpListener::bind((Ipv4Addr::LOCALHOST, port)) {
        Ok(_) => finding("port", Verdict::Fine, format!("{port} is free")),
        Err(error) => finding(
            "port",
            Verdict::Wrong,
            format!("{port} cannot be used ({error}); choose another with `warp up --port`"),
        ),
    }
}

fn user() -> Finding {
    match refuse_root(false) {
        Some(why) => finding("user", Verdict::Less, why),
        None => finding("user", Verdict::Fine, "not root; pods run as you do"),
    }
}

fn cgroups() -> Finding {
    match process::Cgroups::find() {
        process::Cgroups::V2(_) => finding("limits", Verdict::Fine, "control groups, version 2"),
        process::Cgroups::V1(_) => finding(
            "limits",
            Verdict::Fine,
            "control groups, version 1 (memory, cpu)",
        ),
        process::Cgroups::None { why } => finding(
            "limits",
            Verdict::Less,
            format!(
                "no cpu limits, and memory limits only by looking now and then: {why}; run Warp in a delegated group (systemd-run --user --scope -p Delegate=yes) or as root"
            ),
        ),
    }
}

async fn docker() -> Finding {
    match docker::find(&docker::Search::from_environment(None)).await {
        Ok(api) => finding(
            "Docker",
            Verdict::Fine,
            format!("answers at {}", api.socket().display()),
        ),
        Err(error) => finding(
            "Docker",
            Verdict::Less,
            format!("images cannot be run, only local commands: {error}"),
        ),
    }
}

fn gpus() -> Finding {
    let found = machine::gpus();
    if found.is_empty() {
        return finding(
            "GPUs",
            Verdict::Less,
            "none found; `warp up --demo` simulates some. With an NVIDIA card: is the driver loaded (nvidia-smi)? With AMD: is amdgpu (ls /sys/class/drm)?",
        );
    }
    let list: Vec<String> = found
        .iter()
        .map(|gpus| format!("{} × {}", gpus.count, gpus.product))
        .collect();
    finding("GPUs", Verdict::Fine, list.join(", "))
}

fn kubectl() -> Finding {
    let output = Command::new("kubectl")
        .args(["version", "--client", "-o", "json"])
        .output();
    let Ok(output) = output else {
        return finding(
            "kubectl",
            Verdict::Less,
            "not installed; `warp get`, `apply`, `delete`, `logs` and `exec` do without it",
        );
    };
    let told: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap_or_default();
    let version = told
        .pointer("/clientVersion/gitVersion")
        .and_then(|version| version.as_str())
        .unwrap_or("unknown");
    let minor = version
        .split('.')
        .nth(1)
        .and_then(|minor| minor.parse::<u64>().ok());
    match minor {
        Some(minor) if minor > SERVED + 1 => finding(
            "kubectl",
            Verdict::Less,
            format!(
                "{version} is more than one version ahead of the API (1.{SERVED}); most commands work, use 1.{SERVED} when one does not"
            ),
        ),
        Some(minor) if minor >= OLDEST_KUBECTL => finding("kubectl", Verdict::Fine, version),
        _ => finding(
            "kubectl",
            Verdict::Less,
            format!("{version}; 1.{OLDEST_KUBECTL} or newer is tested with Warp"),
        ),
    }
}

fn kubeconfig(instance: &Instance) -> Finding {
    let own = instance.kubeconfig();
    match set_kubeconfig() {
        Some(set) if !is_of(&set, instance) => finding(
            "KUBECONFIG",
            Verdict::Less,
            format!(
                "points to {}, so commands talk to that cluster and not to `warp up`",
                set.display()
            ),
        ),
        _ => finding("KUBECONFIG", Verdict::Fine, own.display().to_string()),
    }
}

/// Every watch and every pod holds files open.
fn files() -> Finding {
    const ENOUGH: u64 = 1024;
    let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile).current;
    match limit {
        Some(limit) if limit < ENOUGH => finding(
            "open files",
            Verdict::Less,
            format!("at most {limit}; raise it with `ulimit -n 65536` for larger fleets"),
        ),
        Some(limit) => finding("open files", Verdict::Fine, format!("at most {limit}")),
        None => finding("open files", Verdict::Fine, "no limit"),
    }
}
