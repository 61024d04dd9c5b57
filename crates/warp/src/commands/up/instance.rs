//! One `warp up` on this machine: its data directory, the lock that makes it the only one there, and
//! the note it leaves for `warp status` and `warp down`.

use std::fs::{File, TryLockError};
use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, anyhow, bail};
use serde::{Deserialize, Serialize};
use warp_apiserver::store;

use crate::cluster;

const NOTE: &str = "up.json";
const LOCK: &str = "lock";
const STATE: &str = "state.redb";
/// What the store leaves beside its database: data was here.
const MARK: &str = "state.mark";
/// A backup on its way to standard output.
const BACKUP: &str = "backup.part";
/// Says that a directory is ours to empty.
const MARKER: &str = ".warp";
/// Everything an instance makes; the marker goes last.
const FOLDERS: [&str; 5] = ["pods", ENGINES, "volumes", "users", store::ASIDE];
/// Files of engines that run for simulated nodes.
const ENGINES: &str = "engines";
const FILES: [&str; 18] = [
    STATE,
    "state.log-a",
    "state.log-b",
    "state.restored",
    "state.mark.part",
    MARK,
    BACKUP,
    "kubeconfig",
    NOTE,
    "warp.log",
    "warp.log.1",
    "ca.crt",
    "ca.key",
    "token",
    "service-account.key",
    "identity.sums",
    LOCK,
    MARKER,
];
const LOCK_LIMIT: Duration = Duration::from_secs(3);
/// How long a server of this machine takes to say its first word, at most.
const ANSWER_LIMIT: Duration = Duration::from_secs(1);
const LOCK_PAUSE: Duration = Duration::from_millis(20);
/// How much of a log is looked at for its last words.
const LOG_TAIL: usize = 16 * 1024;

/// What a running instance says about itself.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Note {
    pub(crate) pid: i32,
    pub(crate) server: String,
    /// Where the operator's metrics are read; its health answers beside them.
    #[serde(default)]
    pub(crate) metrics: Option<String>,
    pub(crate) version: String,
    pub(crate) started: jiff::Timestamp,
    pub(crate) nodes: String,
    #[serde(default)]
    pub(crate) kind: Kind,
}

impl Note {
    /// Whether it says a word. The kernel still takes connections for a process that was killed; nobody speaks there.
    fn answers(&self) -> bool {
        let Some(metrics) = &self.metrics else {
            return true;
        };
        let place = metrics.trim_start_matches("http://");
        let place = place.split('/').next().unwrap_or_default();
        place.parse().is_ok_and(|address| speaks(&address).is_ok())
    }
}

/// Asks whoever listens there for one byte.
fn speaks(address: &SocketAddr) -> std::io::Result<()> {
    let mut stream = TcpStream::connect_timeout(address, ANSWER_LIMIT)?;
    stream.set_read_timeout(Some(ANSWER_LIMIT))?;
    stream.write_all(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")?;
    stream.read_exact(&mut [0])
}

/// What kind of nodes an instance has.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Kind {
    #[default]
    Simulated,
    Process,
    Docker,
    None,
}

/// A data directory.
#[derive(Clone, Debug)]
pub(crate) struct Instance {
    pub(crate) folder: PathBuf,
}

/// Held while an instance runs; the system lets go of it however the process ends.
#[derive(Debug)]
pub(crate) struct Lock {
    _file: File,
}

impl Instance {
    pub(crate) fn at(folder: Option<PathBuf>) -> anyhow::Result<Self> {
        let folder = folder
            .or_else(cluster::data_directory)
            .context("there is no home directory to keep data in; say where with --data")?;
        let folder = std::path::absolute(&folder)
            .with_context(|| format!("failed to find the place of {}", folder.display()))?;
        Ok(Self { folder })
    }

    /// The data directory a kubeconfig lies in, where it is one that `warp up` made.
    pub(crate) fn of_kubeconfig(file: &Path) -> Option<PathBuf> {
        let folder = std::path::absolute(file).ok()?.parent()?.to_owned();
        let instance = Self { folder };
        let own = file.file_name() == instance.kubeconfig().file_name() && instance.is_ours();
        own.then_some(instance.folder)
    }

    pub(crate) fn kubeconfig(&self) -> PathBuf {
        self.folder.join("kubeconfig")
    }

    /// Where the embedded API keeps its objects.
    pub(crate) fn database(&self) -> PathBuf {
        store::database_in(&self.folder)
    }

    /// A place for a backup that is not wanted as a file.
    pub(crate) fn backup(&self) -> PathBuf {
        self.folder.join(BACKUP)
    }

    /// Where engines that run for simulated nodes have their files.
    pub(crate) fn engines(&self) -> PathBuf {
        self.folder.join(ENGINES)
    }

    pub(crate) fn log(&self) -> PathBuf {
        self.folder.join("warp.log")
    }

    /// A directory of its own among the temporary ones, that nobody made before us.
    pub(crate) fn temporary() -> anyhow::Result<Self> {
        let base = std::env::temp_dir();
        for number in 0..1000 {
            let folder = base.join(format!("warp-{}-{number}", std::process::id()));
            match std::fs::DirBuilder::new().mode(0o700).create(&folder) {
                Ok(()) => return Ok(Self { folder }),
                Err(error) if error.kind() == ErrorKind::AlreadyExists => {}
                Err(error) => {
                    return Err(error).with_context(|| {
                        format!("failed to make a directory in {}", base.display())
                    });
                }
            }
        }
        bail!(
            "every name in {} is taken; say where with --data",
            base.display()
        )
    }

    /// Whether the directory keeps what an earlier run stored.
    pub(crate) fn has_state(&self) -> bool {
        [STATE, MARK]
            .iter()
            .any(|name| self.folder.join(name).exists())
    }

    fn is_ours(&self) -> bool {
        self.folder.join(MARKER).exists() || self.has_state()
    }

    /// Makes the directory, for its owner only, and marks it as one of ours.
    pub(crate) fn create(&self) -> anyhow::Result<()> {
        let place = self.folder.display();
        if self.folder.is_dir() && !self.is_ours() {
            self.fits_us()?;
        }
        std::fs::DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(&self.folder)
            .map_err(|error| {
                anyhow!(
                    "failed to make the data directory {place}: {error}; {}",
                    fix(&error)
                )
            })?;
        // A directory that cannot be written is told now, not in the middle of the first write.
        let marker = self.folder.join(MARKER);
        let probe = self.folder.join(".writable");
        let written = std::fs::write(&probe, [0; 4096]);
        std::fs::remove_file(&probe).ok();
        let marked = written.and_then(|()| {
            if marker.exists() {
                return Ok(());
            }
            std::fs::write(
                &marker,
                "made by `warp up`; `warp down --purge` removes it\n",
            )
        });
        marked.map_err(|error| {
            anyhow!(
                "failed to write to the data directory {place}: {error}; {}",
                fix(&error)
            )
        })
    }

    /// A directory that was there before us must be the user's own and hold nothing that goes by a name
    /// of ours: we would write to it, and remove it one day.
    fn fits_us(&self) -> anyhow::Result<()> {
        let place = self.folder.display();
        let found = std::fs::metadata(&self.folder)
            .with_context(|| format!("failed to look at the data directory {place}"))?;
        if found.uid() != rustix::process::geteuid().as_raw() {
            bail!(
                "the data directory {place} belongs to another user; choose one of your own with --data"
            );
        }
        if found.mode() & 0o002 != 0 {
            bail!(
                "anybody may write to the data directory {place}; `chmod o-w` it, or choose another with --data"
            );
        }
        let taken = FOLDERS
            .iter()
            .chain(FILES.iter().filter(|name| **name != LOCK))
            .find(|name| self.folder.join(name).exists());
        if let Some(name) = taken {
            bail!(
                "the data directory {place} has a \"{name}\" that is not Warp's; choose an empty directory with --data"
            );
        }
        let others = std::fs::read_dir(&self.folder)
            .with_context(|| format!("failed to look at the data directory {place}"))?;
        let other = others
            .filter_map(|entry| Some(entry.ok()?.file_name()))
            // What a new disk has, and what somebody who looks for an instance leaves.
            .find(|name| name != "lost+found" && name != LOCK);
        if let Some(name) = other {
            bail!(
                "the data directory {place} holds other things ({}); choose an empty directory with --data",
                name.display()
            );
        }
        Ok(())
    }

    /// The last thing an instance that ended here complained about.
    pub(crate) fn last_error(&self) -> Option<String> {
        let log = std::fs::read(self.log()).ok()?;
        let tail = &log[log.len().saturating_sub(LOG_TAIL)..];
        let text = String::from_utf8_lossy(tail);
        let last = text.lines().rev().find(|line| !line.trim().is_empty())?;
        last.strip_prefix("error: ").map(str::to_owned)
    }

    /// Takes the lock; `None` when another process holds it. Whoever only looks holds it for a moment, so
    /// it is tried for a while.
    pub(crate) fn lock(&self) -> anyhow::Result<Option<Lock>> {
        let deadline = Instant::now() + LOCK_LIMIT;
        loop {
            match self.try_lock()? {
                None if Instant::now() < deadline => std::thread::sleep(LOCK_PAUSE),
                taken => return Ok(taken),
            }
        }
    }

    fn try_lock(&self) -> anyhow::Result<Option<Lock>> {
        let path = self.folder.join(LOCK);
        let file = File::options()
            .create(true)
            .truncate(false)
            .write(true)
            .mode(0o600)
            .open(&path)
            .with_context(|| format!("failed to open {}", path.display()))?;
        match file.try_lock() {
            Ok(()) => Ok(Some(Lock { _file: file })),
            Err(TryLockError::WouldBlock) => Ok(None),
            Err(TryLockError::Error(error)) => {
                Err(error).with_context(|| format!("failed to lock {}", path.display()))
            }
        }
    }

    /// Whether a process holds the lock. Looks only: an instance that is removing its directory must
    /// not find a new lock file in it.
    pub(crate) fn held(&self) -> anyhow::Result<bool> {
        let path = self.folder.join(LOCK);
        let file = match File::open(&path) {
            Ok(file) => file,
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(false),
            Err(error) => {
                return Err(error).with_context(|| format!("failed to open {}", path.display()));
            }
        };
        match file.try_lock() {
            Ok(()) => Ok(false),
            Err(TryLockError::WouldBlock) => Ok(true),
            Err(TryLockError::Error(error)) => {
                Err(error).with_context(|| format!("failed to lock {}", path.display()))
            }
        }
    }

    /// The note of the instance that runs here, if one does.
    pub(crate) fn running(&self) -> anyhow::Result<Option<Note>> {
        if !self.held()? {
            return Ok(None);
        }
        self.note().map(Some)
    }

    /// The same for somebody who is about to start one: a process that was killed holds the lock until the last of it is
    /// gone, so one that answers nobody is given that time.
    pub(crate) fn answering(&self) -> anyhow::Result<Option<Note>> {
        let deadline = Instant::now() + LOCK_LIMIT;
        loop {
            match self.running()? {
                Some(note) if !note.answers() && Instant::now() < deadline => {
                    std::thread::sleep(LOCK_PAUSE);
                }
                found => return Ok(found),
            }
        }
    }

    fn note(&self) -> anyhow::Result<Note> {
        let path = self.folder.join(NOTE);
        let text = std::fs::read(&path).with_context(|| {
            format!(
                "{} is in use by another process that is still starting or is no Warp; wait a moment, or choose another directory with --data",
                self.folder.display()
            )
        })?;
        serde_json::from_slice(&text).with_context(|| format!("failed to read {}", path.display()))
    }

    pub(crate) fn write_note(&self, note: &Note) -> anyhow::Result<()> {
        let path = self.folder.join(NOTE);
        let temporary = self.folder.join(".up.json");
        let mut file = File::options()
            .create(true)
            .truncate(true)
            .write(true)
            .mode(0o600)
            .open(&temporary)
            .with_context(|| format!("failed to write {}", temporary.display()))?;
        file.write_all(&serde_json::to_vec_pretty(note)?)
            .with_context(|| format!("failed to write {}", temporary.display()))?;
        std::fs::rename(&temporary, &path)
            .with_context(|| format!("failed to write {}", path.display()))
    }

    pub(crate) fn remove_note(&self) {
        std::fs::remove_file(self.folder.join(NOTE)).ok();
    }

    /// Removes everything an instance makes, and nothing else: the directory may be somebody's home.
    pub(crate) fn purge(&self) -> anyhow::Result<()> {
        if !self.folder.exists() {
            return Ok(());
        }
        if !self.is_ours() {
            bail!(
                "{} is no data directory of Warp (it has no {MARKER}); nothing was removed",
                self.folder.display()
            );
        }
        for name in FOLDERS {
            remove(&self.folder.join(name), |path| {
                std::fs::remove_dir_all(path)
            })?;
        }
        for name in FILES {
            remove(&self.folder.join(name), |path| std::fs::remove_file(path))?;
        }
        // Left alone when anything else lies in it.
        std::fs::remove_dir(&self.folder).ok();
        Ok(())
    }
}

/// What helps against a directory that cannot be used.
fn fix(error: &std::io::Error) -> &'static str {
    match error.kind() {
        ErrorKind::StorageFull | ErrorKind::FileTooLarge | ErrorKind::QuotaExceeded => {
            "make room there, or choose another place with --data"
        }
        ErrorKind::PermissionDenied => {
            "make it yours (`chown`), or choose another place with --data"
        }
        _ => "choose another place with --data",
    }
}

fn remove(path: &Path, how: impl Fn(&Path) -> std::io::Result<()>) -> anyhow::Result<()> {
    match how(path) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            bail!("failed to remove {}: {error}", path.display())
        }
        _ => Ok(()),
    }
}
