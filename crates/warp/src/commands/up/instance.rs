//! One `warp up` on this machine: its data directory, the lock that makes it the only one there, and
//! the note it leaves for `warp status` and `warp down`.

use std::fs::{File, TryLockError};
use std::io::{ErrorKind, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use anyhow::{Context, bail};
use serde::{Deserialize, Serialize};

use crate::cluster;

const NOTE: &str = "up.json";
const LOCK: &str = "lock";

/// What a running instance says about itself.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Note {
    pub(crate) pid: i32,
    pub(crate) server: String,
    pub(crate) version: String,
    pub(crate) started: jiff::Timestamp,
    pub(crate) nodes: String,
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
        Ok(Self { folder })
    }

    pub(crate) fn kubeconfig(&self) -> PathBuf {
        self.folder.join("kubeconfig")
    }

    pub(crate) fn log(&self) -> PathBuf {
        self.folder.join("warp.log")
    }

    /// Makes the directory, for its owner only.
    pub(crate) fn create(&self) -> anyhow::Result<()> {
        let fix = "choose another place with --data";
        std::fs::DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(&self.folder)
            .with_context(|| {
                format!(
                    "failed to make the data directory {}; {fix}",
                    self.folder.display()
                )
            })?;
        // A directory that cannot be written is told now, not in the middle of the first write.
        let probe = self.folder.join(".writable");
        std::fs::write(&probe, b"x")
            .and_then(|()| std::fs::remove_file(&probe))
            .with_context(|| {
                format!(
                    "failed to write to the data directory {}; {fix}",
                    self.folder.display()
                )
            })
    }

    /// Takes the lock; `None` when another process holds it.
    pub(crate) fn lock(&self) -> anyhow::Result<Option<Lock>> {
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
        let file = match File::options().write(true).open(&path) {
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
            .open(&temporary)?;
        file.write_all(&serde_json::to_vec_pretty(note)?)?;
        std::fs::rename(&temporary, &path)
            .with_context(|| format!("failed to write {}", path.display()))
    }

    pub(crate) fn remove_note(&self) {
        std::fs::remove_file(self.folder.join(NOTE)).ok();
    }

    /// Removes everything an instance makes, and nothing else: the directory may be somebody's home.
    pub(crate) fn purge(&self) -> anyhow::Result<()> {
        const FILES: [&str; 9] = [
            "state.redb",
            "kubeconfig",
            NOTE,
            "warp.log",
            "ca.crt",
            "ca.key",
            "token",
            "service-account.key",
            LOCK,
        ];
        for name in ["pods", "volumes"] {
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

fn remove(path: &Path, how: impl Fn(&Path) -> std::io::Result<()>) -> anyhow::Result<()> {
    match how(path) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            bail!("failed to remove {}: {error}", path.display())
        }
        _ => Ok(()),
    }
}
