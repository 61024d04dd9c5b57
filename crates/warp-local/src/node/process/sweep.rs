//! Ending what a pod's processes left behind, found in /proc: children of a supervisor, and, when a
//! supervisor was killed, whatever still carries the pod's mark in its environment.

use std::collections::BTreeSet;
use std::path::Path;
use std::time::Duration;

use rustix::process::{Pid, Signal, WaitOptions, getpid, kill_process, wait, waitpid};

/// Every process of a pod has this variable with the pod's uid.
pub(super) const MARK: &str = "WARP_POD_UID";
const ROUNDS: usize = 100;
const PAUSE: Duration = Duration::from_millis(10);

pub(super) fn pids() -> impl Iterator<Item = i32> {
    std::fs::read_dir("/proc")
        .into_iter()
        .flatten()
        .filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok())
}

fn parent(pid: i32) -> Option<i32> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The name in brackets may hold anything, brackets included; what counts comes after the last one.
    let after = stat.rsplit_once(')')?.1;
    let mut words = after.split_whitespace();
    let state = words.next()?;
    let parent = words.next()?.parse().ok()?;
    (state != "Z").then_some(parent)
}

/// Ends and reaps every child of this process, and the children that become ours by that.
pub(super) async fn end_children() {
    let own = getpid().as_raw_nonzero().get();
    for _ in 0..ROUNDS {
        let children: Vec<i32> = pids().filter(|pid| parent(*pid) == Some(own)).collect();
        for pid in &children {
            end(*pid);
        }
        while matches!(wait(WaitOptions::NOHANG), Ok(Some(_))) {}
        if children.is_empty() {
            return;
        }
        tokio::time::sleep(PAUSE).await;
    }
}

/// Reaps every child of this process that has ended and is not among `own`: those have their waiters.
pub(super) fn reap_others(own: &BTreeSet<u32>) {
    let this = getpid().as_raw_nonzero().get();
    for pid in pids() {
        let known = u32::try_from(pid).is_ok_and(|pid| own.contains(&pid));
        if !known
            && is_dead_child(pid, this)
            && let Some(pid) = Pid::from_raw(pid)
        {
            waitpid(Some(pid), WaitOptions::NOHANG).ok();
        }
    }
}

fn is_dead_child(pid: i32, of: i32) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    let mut words = stat
        .rsplit_once(')')
        .map_or("", |(_, after)| after)
        .split_whitespace();
    words.next() == Some("Z") && words.next().and_then(|word| word.parse().ok()) == Some(of)
}

pub(super) fn end(pid: i32) {
    if let Some(pid) = Pid::from_raw(pid) {
        kill_process(pid, Signal::KILL).ok();
    }
}

/// Processes of the pod that are alive, this one never among them.
pub(super) fn marked(uid: &str) -> Vec<i32> {
    let own = getpid().as_raw_nonzero().get();
    let mark = format!("{MARK}={uid}");
    pids()
        .filter(|pid| {
            *pid != own && parent(*pid).is_some() && carries(&format!("/proc/{pid}/environ"), &mark)
        })
        .collect()
}

fn carries(file: &str, mark: &str) -> bool {
    std::fs::read(Path::new(file)).is_ok_and(|bytes| {
        bytes
            .split(|byte| *byte == 0)
            .any(|entry| entry == mark.as_bytes())
    })
}

/// Ends every process that carries the pod's mark.
pub(super) async fn end_marked(uid: &str) {
    for _ in 0..ROUNDS {
        let left = marked(uid);
        if left.is_empty() {
            return;
        }
        for pid in left {
            end(pid);
        }
        tokio::time::sleep(PAUSE).await;
    }
}
