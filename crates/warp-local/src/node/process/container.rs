//! The last moment before a container's command: this binary, run again, puts itself in its control
//! groups, ties its life to the supervisor's, closes the folders it may only read, and becomes the command.

use std::ffi::{OsStr, OsString};
use std::io::Write;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use rustix::mount::{MountFlags, MountPropagationFlags, mount_bind, mount_change, mount_remount};
use rustix::process::{Signal, ioctl_tiocsctty, set_parent_process_death_signal, setsid};
use rustix::thread::UnshareFlags;

/// The exit code when there was no command to become; the reason is in the file given.
const NOT_STARTED: u8 = 127;

/// Before the groups: its standard input is a terminal, to be the one it is controlled by.
pub(super) const ON_TERMINAL: &str = "--terminal";

/// Before the groups: a folder that may be read only.
const READ_ONLY: &str = "--read-only=";

/// The words that close folders.
pub(super) fn closed(folders: &[PathBuf]) -> Vec<OsString> {
    let word = |folder: &PathBuf| {
        let mut word = OsString::from(READ_ONLY);
        word.push(folder);
        word
    };
    folders.iter().map(word).collect()
}

/// `__container FAILURE-FILE [--terminal] [--read-only=FOLDER…] GROUP… -- COMMAND…`. Returns only when the command could not be started.
pub fn run(arguments: Vec<OsString>) -> ExitCode {
    let mut arguments = arguments.into_iter();
    let failure = PathBuf::from(arguments.next().unwrap_or_default());
    let (mut groups, mut folders) = (Vec::new(), Vec::new());
    let mut on_terminal = false;
    for word in arguments.by_ref().take_while(|word| word != "--") {
        let text = word.as_encoded_bytes();
        if word == ON_TERMINAL {
            on_terminal = true;
        } else if let Some(folder) = text.strip_prefix(READ_ONLY.as_bytes()) {
            folders.push(PathBuf::from(OsStr::from_bytes(folder)));
        } else {
            groups.push(PathBuf::from(word));
        }
    }
    close(&folders);
    let command: Vec<OsString> = arguments.collect();
    let why = match become_command(on_terminal, &groups, &command) {
        Ok(never) => match never {},
        Err(error) => error,
    };
    // Best effort: without the file the exit code alone tells that something failed.
    std::fs::write(&failure, why).ok();
    ExitCode::from(NOT_STARTED)
}

/// Lets this process, and what comes of it, only read some folders: it gets a view of the machine's mounts of its own, in
/// which they are mounted over themselves. Root is let do this; others, and root without that right, write what the
/// files' own permissions let them.
fn close(folders: &[PathBuf]) {
    if folders.is_empty() || own_mounts().is_err() {
        return;
    }
    for folder in folders {
        let flags = MountFlags::BIND | MountFlags::RDONLY;
        mount_bind(folder, folder)
            .and_then(|()| mount_remount(folder, flags, c""))
            .ok();
    }
}

/// A view of its own: what is mounted on the machine later is seen here, and not the other way around.
fn own_mounts() -> rustix::io::Result<()> {
    #[expect(
        deprecated,
        reason = "what is unsafe of it are shared files; mounts are not"
    )]
    rustix::thread::unshare(UnshareFlags::NEWNS)?;
    let flags = MountPropagationFlags::DOWNSTREAM | MountPropagationFlags::REC;
    mount_change("/", flags)
}

fn become_command(
    on_terminal: bool,
    groups: &[PathBuf],
    command: &[OsString],
) -> Result<std::convert::Infallible, String> {
    set_parent_process_death_signal(Some(Signal::KILL))
        .map_err(|error| format!("failed to follow the supervisor: {error}"))?;
    if on_terminal {
        setsid()
            .and_then(|_| ioctl_tiocsctty(std::io::stdin()))
            .map_err(|error| format!("failed to take the terminal: {error}"))?;
    }
    for group in groups {
        join(group).map_err(|error| {
            format!(
                "failed to join the control group {}: {error}",
                group.display()
            )
        })?;
    }
    let (program, words) = command
        .split_first()
        .ok_or("the container has no command")?;
    let error = Command::new(program).args(words).exec();
    Err(format!(
        "failed to run \"{}\": {error}",
        Path::new(program).display()
    ))
}

fn join(group: &Path) -> std::io::Result<()> {
    let mut file = std::fs::OpenOptions::new()
        .write(true)
        .open(group.join("cgroup.procs"))?;
    // Zero is the process that writes.
    file.write_all(b"0\n")
}
