//! Limits by control groups, version 2 or version 1, where this process may make any. Without them
//! containers run unlimited, and `warp doctor` says so.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use k8s_openapi::api::core::v1::Container;
use warp_core::resources::Quantity;

const V1_CONTROLLERS: [&str; 2] = ["memory", "cpu"];
const PERIOD: i64 = 100_000;
const NAME: &str = "warp";

/// Where this machine lets us make groups.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Cgroups {
    /// The folder our groups go in.
    V2(PathBuf),
    /// One hierarchy per controller.
    V1(Vec<PathBuf>),
    None {
        why: String,
    },
}

impl Cgroups {
    /// Looks at the machine, and tries.
    pub fn find() -> Self {
        Self::find_in(Path::new("/sys/fs/cgroup"), &own_group())
    }

    fn find_in(root: &Path, own: &str) -> Self {
        if root.join("cgroup.controllers").exists() {
            return v2(root, own);
        }
        let hierarchies: Vec<PathBuf> = V1_CONTROLLERS
            .iter()
            .map(|name| root.join(name))
            .filter(|path| path.join("cgroup.procs").exists())
            .map(|path| path.join(NAME))
            .collect();
        if hierarchies.is_empty() {
            return Self::None {
                why: format!("no control groups are mounted at {}", root.display()),
            };
        }
        match hierarchies.iter().try_for_each(fs::create_dir_all) {
            Ok(()) => Self::V1(hierarchies),
            Err(error) => Self::None {
                why: format!(
                    "no right to make control groups below {}: {error}",
                    root.display()
                ),
            },
        }
    }

    /// Makes the groups of one container; the folders to join. Empty when there are no limits to set.
    pub(super) fn make(&self, uid: &str, container: &Container) -> io::Result<Vec<PathBuf>> {
        let limits = Limits::of(container);
        let name = format!("{uid}-{}", container.name);
        match self {
            Self::None { .. } => Ok(Vec::new()),
            Self::V2(base) => {
                let group = base.join(name);
                fs::create_dir_all(&group)?;
                if let Some(bytes) = limits.memory {
                    fs::write(group.join("memory.max"), bytes.to_string())?;
                    // Kill the container as a whole, as Kubernetes asks of version 2.
                    fs::write(group.join("memory.oom.group"), "1").ok();
                    fs::write(group.join("memory.swap.max"), "0").ok();
                }
                if let Some(quota) = limits.cpu_quota() {
                    fs::write(group.join("cpu.max"), format!("{quota} {PERIOD}"))?;
                }
                Ok(vec![group])
            }
            Self::V1(hierarchies) => {
                let mut groups = Vec::new();
                for hierarchy in hierarchies {
                    let group = hierarchy.join(&name);
                    fs::create_dir_all(&group)?;
                    let is_memory = hierarchy
                        .parent()
                        .is_some_and(|parent| parent.ends_with("memory"));
                    if is_memory && let Some(bytes) = limits.memory {
                        fs::write(group.join("memory.limit_in_bytes"), bytes.to_string())?;
                        fs::write(group.join("memory.memsw.limit_in_bytes"), bytes.to_string())
                            .ok();
                    }
                    if !is_memory && let Some(quota) = limits.cpu_quota() {
                        fs::write(group.join("cpu.cfs_period_us"), PERIOD.to_string())?;
                        fs::write(group.join("cpu.cfs_quota_us"), quota.to_string())?;
                    }
                    groups.push(group);
                }
                Ok(groups)
            }
        }
    }

    /// Removes every group of a pod; its processes are gone by now.
    pub(super) fn remove(&self, uid: &str) {
        let bases: Vec<&PathBuf> = match self {
            Self::None { .. } => return,
            Self::V2(base) => vec![base],
            Self::V1(hierarchies) => hierarchies.iter().collect(),
        };
        for base in bases {
            for entry in fs::read_dir(base).into_iter().flatten().flatten() {
                if entry.file_name().to_string_lossy().starts_with(uid) {
                    fs::remove_dir(entry.path()).ok();
                }
            }
        }
    }
}

fn own_group() -> String {
    let text = fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
    text.lines()
        .find_map(|line| line.strip_prefix("0::"))
        .unwrap_or("/")
        .to_owned()
}

/// The top when we may write there, else below our own group, which a service manager may have
/// delegated to us.
fn v2(root: &Path, own: &str) -> Cgroups {
    let mut why = String::new();
    for parent in [root.to_owned(), root.join(own.trim_start_matches('/'))] {
        let base = parent.join(NAME);
        let made = fs::create_dir_all(&base)
            .and_then(|()| fs::write(parent.join("cgroup.subtree_control"), "+memory +cpu"))
            .and_then(|()| fs::write(base.join("cgroup.subtree_control"), "+memory +cpu"));
        match made {
            Ok(()) => return Cgroups::V2(base),
            Err(error) => {
                why = format!(
                    "no right to make control groups in {}: {error}",
                    parent.display()
                );
            }
        }
    }
    Cgroups::None { why }
}

#[derive(Debug, Default, PartialEq, Eq)]
struct Limits {
    memory: Option<i64>,
    cpu_milli: Option<i64>,
}

impl Limits {
    fn of(container: &Container) -> Self {
        let limits = container
            .resources
            .as_ref()
            .and_then(|resources| resources.limits.as_ref());
        let get = |name: &str| limits?.get(name)?.0.parse::<Quantity>().ok();
        Self {
            memory: get("memory").and_then(|quantity| quantity.value().ok()),
            cpu_milli: get("cpu").and_then(|quantity| quantity.milli().ok()),
        }
    }

    fn cpu_quota(&self) -> Option<i64> {
        // The kernel takes no quota below a millisecond.
        self.cpu_milli
            .map(|milli| (milli * PERIOD / 1000).max(1000))
    }
}

/// Whether the kernel ended something in this group for want of memory.
pub(super) fn was_out_of_memory(group: &Path) -> bool {
    ["memory.events", "memory.oom_control"].iter().any(|file| {
        let text = fs::read_to_string(group.join(file)).unwrap_or_default();
        text.lines()
            .filter_map(|line| line.split_once(' '))
            .any(|(name, count)| name == "oom_kill" && count.trim() != "0")
    })
}
