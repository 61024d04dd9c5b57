//! Child processes that end with the test, however the test ends.
//!
//! Owns: starting a process under a small shell supervisor that holds one end of a pipe. When the
//! test drops the handle, panics, exits or is killed, the pipe closes and the supervisor kills the
//! process by its id. Must not know what the process is.

use std::fs::OpenOptions;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, bail};

/// `read` ends when the last write end of the lifeline closes. The program itself gets no copy of
/// the lifeline, and Rust opens pipes close-on-exec, so the only holder is the test process.
const SUPERVISOR: &str = r#"
log=$1
shift
exec 3<&0
"$@" </dev/null 3<&- >>"$log" 2>&1 &
child=$!
echo "$child"
exec >/dev/null
{ read -r _ <&3; kill -KILL "$child"; } 2>/dev/null &
watcher=$!
exec 3<&-
wait "$child"
code=$?
kill "$watcher" 2>/dev/null
exit "$code"
"#;

/// What [`Process::signal`] can send.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Signal {
    Terminate,
    Kill,
    /// Freezes the process: its leases run out while it still believes to hold them.
    Stop,
    Continue,
}

impl Signal {
    fn flag(self) -> &'static str {
        match self {
            Self::Terminate => "-TERM",
            Self::Kill => "-KILL",
            Self::Stop => "-STOP",
            Self::Continue => "-CONT",
        }
    }
}

/// A running program; dropping it kills the program and waits until it is gone.
#[derive(Debug)]
pub struct Process {
    name: String,
    supervisor: Child,
    lifeline: Option<ChildStdin>,
    pid: u32,
    log: PathBuf,
}

impl Process {
    /// Starts `command` (program, arguments, environment and folder are taken from it); its output
    /// goes to `log`, which is appended to.
    pub fn start(name: &str, command: &Command, log: &Path) -> Result<Self> {
        let errors = OpenOptions::new()
            .create(true)
            .append(true)
            .open(log)
            .with_context(|| format!("failed to open log '{}'", log.display()))?;
        let mut shell = Command::new("sh");
        shell
            .args(["-c", SUPERVISOR, "sh"])
            .arg(log)
            .arg(command.get_program())
            .args(command.get_args())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(errors);
        for (key, value) in command.get_envs() {
            match value {
                Some(value) => shell.env(key, value),
                None => shell.env_remove(key),
            };
        }
        if let Some(folder) = command.get_current_dir() {
            shell.current_dir(folder);
        }
        let mut supervisor = shell
            .spawn()
            .with_context(|| format!("failed to start supervisor of '{name}'"))?;
        let lifeline = supervisor.stdin.take();
        let mut line = String::new();
        if let Some(stdout) = supervisor.stdout.take() {
            BufReader::new(stdout)
                .read_line(&mut line)
                .with_context(|| format!("failed to read process id of '{name}'"))?;
        }
        let pid = line
            .trim()
            .parse()
            .with_context(|| format!("failed to start '{name}'"))?;
        Ok(Self {
            name: name.to_owned(),
            supervisor,
            lifeline,
            pid,
            log: log.to_owned(),
        })
    }

    pub fn name(&self) -> &str {
        &self.name
    }

    /// The id of the program itself, not of its supervisor.
    pub fn pid(&self) -> u32 {
        self.pid
    }

    pub fn log_path(&self) -> &Path {
        &self.log
    }

    /// Everything the program has written so far; empty if it wrote nothing.
    pub fn log(&self) -> String {
        std::fs::read(&self.log)
            .map(|bytes| String::from_utf8_lossy(&bytes).into_owned())
            .unwrap_or_default()
    }

    /// The last `lines` lines of the log, for error messages.
    pub fn log_tail(&self, lines: usize) -> String {
        let log = self.log();
        let all: Vec<&str> = log.lines().collect();
        all[all.len().saturating_sub(lines)..].join("\n")
    }

    /// The exit code when the program has ended (128 + n for a signal n, as the shell says it).
    pub fn exit_code(&mut self) -> Result<Option<i32>> {
        Ok(self.supervisor.try_wait()?.map(|s| s.code().unwrap_or(-1)))
    }

    pub fn is_running(&mut self) -> bool {
        matches!(self.exit_code(), Ok(None))
    }

    pub fn signal(&mut self, signal: Signal) -> Result<()> {
        if !self.is_running() {
            bail!("failed to signal '{}': it has ended", self.name);
        }
        let status = Command::new("kill")
            .arg(signal.flag())
            .arg(self.pid.to_string())
            .stderr(Stdio::null())
            .status()?;
        if !status.success() {
            bail!("failed to signal '{}' (process {})", self.name, self.pid);
        }
        Ok(())
    }

    /// Waits until the program has ended by itself or by a signal.
    pub async fn wait(&mut self, deadline: Duration) -> Result<i32> {
        let ended = tokio::time::timeout(deadline, async {
            loop {
                if let Some(code) = self.exit_code()? {
                    return anyhow::Ok(code);
                }
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        })
        .await;
        match ended {
            Ok(code) => code,
            Err(_) => bail!("'{}' still runs after {deadline:?}", self.name),
        }
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // A frozen process cannot be ended by the supervisor's SIGKILL only on paper: SIGKILL works
        // on stopped processes too, so closing the lifeline is enough in every state.
        drop(self.lifeline.take());
        let _ = self.supervisor.wait();
    }
}
