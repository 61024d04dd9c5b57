//! Where things lie: `models--ORG--NAME/{blobs,refs,snapshots}` as the hub's own client keeps them, and `.warp` beside
//! them for what is not published yet.

use std::fs::File;
use std::path::{Path, PathBuf};

use rustix::fs::{FlockOperation, flock};

use crate::error::FetchError;

#[derive(Clone, Debug)]
pub(crate) struct Layout {
    repository: PathBuf,
    /// The repository's folder below the cache.
    pub(crate) folder: String,
}

impl Layout {
    /// The places of `name` (`org/name`) below the cache `root`, made.
    pub(crate) fn make(root: &Path, name: &str) -> Result<Self, FetchError> {
        let folder = format!("models--{}", name.replace('/', "--"));
        let layout = Self {
            repository: root.join(&folder),
            folder,
        };
        for folder in [
            layout.blobs(),
            layout.refs(),
            layout.snapshots(),
            layout.parts(),
            layout.manifests(),
        ] {
            std::fs::create_dir_all(&folder).map_err(FetchError::io("make the folder", &folder))?;
        }
        Ok(layout)
    }

    pub(crate) fn repository(&self) -> &Path {
        &self.repository
    }

    pub(crate) fn blobs(&self) -> PathBuf {
        self.repository.join("blobs")
    }

    pub(crate) fn blob(&self, hex: &str) -> PathBuf {
        self.blobs().join(hex)
    }

    pub(crate) fn refs(&self) -> PathBuf {
        self.repository.join("refs")
    }

    pub(crate) fn snapshots(&self) -> PathBuf {
        self.repository.join("snapshots")
    }

    pub(crate) fn work(&self) -> PathBuf {
        self.repository.join(".warp")
    }

    pub(crate) fn parts(&self) -> PathBuf {
        self.work().join("parts")
    }

    pub(crate) fn manifests(&self) -> PathBuf {
        self.work().join("manifests")
    }

    /// Waits until no other fetch writes to this repository. `contended` is called if there is one.
    pub(crate) async fn lock(&self, contended: impl FnOnce()) -> Result<File, FetchError> {
        let path = self.work().join("lock");
        let file = File::create(&path).map_err(FetchError::io("open", &path))?;
        if flock(&file, FlockOperation::NonBlockingLockExclusive).is_ok() {
            return Ok(file);
        }
        contended();
        tokio::task::spawn_blocking(move || {
            flock(&file, FlockOperation::LockExclusive)
                .map_err(|error| FetchError::io("lock", &path)(error.into()))?;
            Ok(file)
        })
        .await
        .map_err(|_| FetchError::Ended)?
    }

    /// Takes the repository for itself, if no fetch writes to it.
    pub(crate) fn lock_now(&self) -> Result<File, FetchError> {
        let path = self.work().join("lock");
        let file = File::create(&path).map_err(FetchError::io("open", &path))?;
        flock(&file, FlockOperation::NonBlockingLockExclusive)
            .map_err(|_| FetchError::Busy(self.repository.clone()))?;
        Ok(file)
    }

    /// Bytes that may still be written here.
    pub(crate) fn free(&self) -> Result<u64, FetchError> {
        let facts = rustix::fs::statvfs(&self.repository)
            .map_err(|error| FetchError::io("measure", &self.repository)(error.into()))?;
        Ok(facts.f_bavail.saturating_mul(facts.f_frsize))
    }
}

/// Writes a small file so that it is there whole or not at all.
pub(crate) fn replace(path: &Path, content: &[u8]) -> Result<(), FetchError> {
    let mut beside = path.as_os_str().to_owned();
    beside.push(".new");
    let beside = PathBuf::from(beside);
    let write = || {
        let mut file = File::create(&beside)?;
        std::io::Write::write_all(&mut file, content)?;
        file.sync_all()?;
        std::fs::rename(&beside, path)
    };
    write().map_err(FetchError::io("write", path))
}

/// Puts the entries of a folder on the disk.
pub(crate) fn sync_folder(path: &Path) -> Result<(), FetchError> {
    File::open(path)
        .and_then(|folder| folder.sync_all())
        .map_err(FetchError::io("write", path))
}
