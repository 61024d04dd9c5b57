//! The last moment before a container's command: this binary, run again, puts itself in its control
//! groups, ties its life to the supervisor's, and becomes the command.

use std::ffi::OsString;
use std::io::Write;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use rustix::process::{Signal, ioctl_tiocsctty, set_parent_process_death_signal, setsid};

/// The exit code when there was no command to become; the reason is in the file given.
const NOT_STARTED: u8 = 127;

/// Before the groups: its standard input is a terminal, to be the one it is controlled by.
pub(super) const ON_TERMINAL: &str = "--terminal";

/// `__container FAILURE-FILE [--terminal] GROUP… -- COMMAND…`. Returns only when the command could not be started.
pub fn run(arguments: Vec<OsString>) -> ExitCode {
    let mut arguments = arguments.into_iter();
    let failure = PathBuf::from(arguments.next().unwrap_or_default());
    let mut groups: Vec<PathBuf> = arguments
        .by_ref()
        .take_while(|word| word != "--")
        .map(PathBuf::from)
        .collect();
    let before = groups.len();
    groups.retain(|word| word != Path::new(ON_TERMINAL));
    let command: Vec<OsString> = arguments.collect();
    let why = match become_command(groups.len() < before, &groups, &command) {
        Ok(never) => match never {},
        Err(error) => error,
    };
    // Best effort: without the file the exit code alone tells that something failed.
    std::fs::write(&failure, why).ok();
    ExitCode::from(NOT_STARTED)
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
