//! A memory limit where there is no right to make control groups: the memory of a run's process group is
//! added up a few times a second, and a group that uses more than it may is ended. Coarser than the
//! kernel's own limit, and a process that leaves its group is not counted.

use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process_group};

use super::sweep;

const EVERY: Duration = Duration::from_millis(200);

/// Watches the group `leader` leads until it is gone; leaves `mark` behind when it had to be ended.
pub(super) async fn watch(leader: u32, limit: u64, mark: PathBuf) {
    let Some(group) = i32::try_from(leader).ok().and_then(Pid::from_raw) else {
        return;
    };
    let mut timer = tokio::time::interval(EVERY);
    loop {
        timer.tick().await;
        let Some(used) = used_by(Path::new("/proc"), leader) else {
            return;
        };
        if used > limit {
            std::fs::write(&mark, used.to_string()).ok();
            kill_process_group(group, Signal::KILL).ok();
            return;
        }
    }
}

/// Bytes in use by the members of a process group; nothing when it has none left.
fn used_by(proc: &Path, group: u32) -> Option<u64> {
    let mut used = None;
    for pid in sweep::pids() {
        let folder = proc.join(pid.to_string());
        if group_of(&folder) != Some(group) {
            continue;
        }
        let text = std::fs::read_to_string(folder.join("status")).unwrap_or_default();
        // Memory of its own; pages of files can be dropped and are nobody's fault.
        let kib: u64 = text
            .lines()
            .filter_map(|line| {
                let amount = line
                    .strip_prefix("RssAnon:")
                    .or_else(|| line.strip_prefix("RssShmem:"))?;
                amount.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()
            })
            .sum();
        *used.get_or_insert(0) += kib * 1024;
    }
    used
}

fn group_of(process: &Path) -> Option<u32> {
    let stat = std::fs::read_to_string(process.join("stat")).ok()?;
    let mut words = stat.rsplit_once(')')?.1.split_whitespace();
    let state = words.next()?;
    let group = words.nth(1)?.parse().ok()?;
    (state != "Z").then_some(group)
}
