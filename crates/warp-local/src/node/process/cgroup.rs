//! Limits by control groups, version 2 or version 1, where this process may make any. Without them
//! containers run unlimited, and `warp doctor` says so.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use k8s_openapi::api::core::v1::Container;
use warp_core::resources::Quantity;

const V1_CONTROLLERS: [&str; 2] = ["memory", "cpu"];
const PERIOD: i64 = 100_000;
const NAME: &str = "warp";
const ROUNDS: usize = 100;
const PAUSE: Duration = Duration::from_millis(10);

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
    /// Each run has its own: what the kernel counts about one must not be told of the next.
    pub(super) fn make(
        &self,
        uid: &str,
        container: &Container,
        attempt: u32,
    ) -> io::Result<Vec<PathBuf>> {
        let limits = Limits::of(container);
        let name = format!("{uid}-{}-{attempt}", container.name);
        if let Some(before) = attempt.checked_sub(1) {
            let old = format!("{uid}-{}-{before}", container.name);
            for base in self.bases() {
                fs::remove_dir(base.join(&old)).ok();
            }
        }
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

    /// Whether limits are the kernel's to keep.
    pub fn are_there(&self) -> bool {
        !matches!(self, Self::None { .. })
    }

    fn bases(&self) -> &[PathBuf] {
        match self {
            Self::None { .. } => &[],
            Self::V2(base) => std::slice::from_ref(base),
            Self::V1(hierarchies) => hierarchies,
        }
    }

    /// Removes every group of a pod, and ends whatever hid in one.
    pub(super) async fn remove(&self, uid: &str) {
        for base in self.bases() {
            for entry in fs::read_dir(base).into_iter().flatten().flatten() {
                if entry.file_name().to_string_lossy().starts_with(uid) {
                    remove(&entry.path()).await;
                }
            }
        }
    }
}

async fn remove(group: &Path) {
    for _ in 0..ROUNDS {
        if fs::remove_dir(group).is_ok() || !group.exists() {
            return;
        }
        let text = fs::read_to_string(group.join("cgroup.procs")).unwrap_or_default();
        for pid in text.lines().filter_map(|line| line.parse().ok()) {
            super::sweep::end(pid);
        }
        tokio::time::sleep(PAUSE).await;
    }
    tracing::warn!(group = %group.display(), "control group not removed");
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

/// The most memory a container may use.
pub(super) fn memory_limit(container: &Container) -> Option<u64> {
    u64::try_from(Limits::of(container).memory?).ok()
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

#[cfg(test)]
mod tests {
    use std::fs;

    use super::Cgroups;

    #[test]
    fn no_right_to_make_groups_is_told_with_the_place() {
        let folder = tempfile::tempdir().unwrap();
        let root = folder.path();
        let none = |cgroups: Cgroups| match cgroups {
            Cgroups::None { why } => why,
            other => format!("{other:?}"),
        };
        assert!(none(Cgroups::find_in(root, "/")).contains("no control groups are mounted"));
        fs::create_dir_all(root.join("memory")).unwrap();
        fs::write(root.join("memory/cgroup.procs"), "").unwrap();
        // A file in the place of the folder refuses even root.
        fs::write(root.join("memory/warp"), "").unwrap();
        assert!(none(Cgroups::find_in(root, "/")).contains("no right to make control groups"));
        fs::write(root.join("cgroup.controllers"), "memory cpu").unwrap();
        fs::write(root.join("warp"), "").unwrap();
        fs::create_dir_all(root.join("own")).unwrap();
        fs::write(root.join("own/warp"), "").unwrap();
        let why = none(Cgroups::find_in(root, "/own"));
        assert!(why.contains("no right") && why.contains("own"), "{why}");
    }
}
