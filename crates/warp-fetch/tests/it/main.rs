//! Fetching from a hub that serves folders of this machine, well and badly.

#![allow(
    clippy::expect_used,
    clippy::panic,
    clippy::unwrap_used,
    unreachable_pub,
    reason = "a test says what went wrong by failing"
)]

mod azure;
mod bundle;
mod google;
mod hub;
mod layout;
mod oci;
mod s3;
mod serve;
mod sources;
mod trouble;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use hub::Hub;
use tempfile::TempDir;
use warp_fetch::{
    Azure, FetchError, Google, Limits, Options, Progress, Registry, Report, Selection, Source,
    Store,
};

pub(crate) const MODEL: &str = "org/tiny";
pub(crate) const MIB: usize = 1 << 20;

/// Bytes that look like nothing and are the same every time.
pub(crate) fn noise(seed: u64, length: usize) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut bytes = Vec::with_capacity(length + 8);
    while bytes.len() < length {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        bytes.extend(state.to_le_bytes());
    }
    bytes.truncate(length);
    bytes
}

/// A hub with one model, and a cache beside it.
pub(crate) struct World {
    pub(crate) folder: TempDir,
    pub(crate) hub: Hub,
}

impl World {
    pub(crate) fn new() -> Self {
        Self::with_token(None)
    }

    pub(crate) fn with_token(token: Option<&str>) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let model = folder.path().join("hub").join(MODEL);
        std::fs::create_dir_all(model.join("sub")).unwrap();
        std::fs::write(model.join("config.json"), b"{\"model_type\": \"llama\"}\n").unwrap();
        std::fs::write(model.join("sub/a b.txt"), b"text").unwrap();
        std::fs::write(model.join("empty"), b"").unwrap();
        std::fs::write(model.join("pytorch_model.bin"), noise(9, 2 * MIB)).unwrap();
        for (number, size) in [(1, 5 * MIB + 17), (2, 20 * MIB)] {
            let name = format!("model-0000{number}-of-00002.safetensors");
            std::fs::write(model.join(name), noise(number, size)).unwrap();
        }
        let hub = Hub::start(&folder.path().join("hub"), token);
        Self { folder, hub }
    }

    pub(crate) fn model(&self) -> PathBuf {
        self.folder.path().join("hub").join(MODEL)
    }

    pub(crate) fn cache(&self) -> PathBuf {
        self.folder.path().join("cache")
    }

    pub(crate) fn repository(&self) -> PathBuf {
        self.cache().join("models--org--tiny")
    }

    pub(crate) fn options(&self, source: &str) -> Options {
        Options {
            source: Source::parse(source).unwrap(),
            name: None,
            to: self.cache(),
            endpoint: self.hub.endpoint(),
            token: None,
            address_token: None,
            store: Store::default(),
            registry: Registry::default(),
            google: Google::default(),
            azure: Azure::default(),
            selection: Selection::default(),
            peers: Vec::new(),
            limits: Limits {
                connections: 4,
                stall: Duration::from_secs(20),
                patience: Duration::from_mins(1),
                bytes_per_second: None,
                most_bytes: None,
            },
        }
    }

    pub(crate) async fn fetch(&self) -> Result<Report, FetchError> {
        run(self.options(&format!("hf://{MODEL}"))).await
    }

    /// Every file of the snapshot is the hub's.
    pub(crate) fn assert_whole(&self, report: &Report) {
        let snapshot = self.cache().join(&report.path);
        for path in [
            "config.json",
            "sub/a b.txt",
            "empty",
            "model-00001-of-00002.safetensors",
            "model-00002-of-00002.safetensors",
        ] {
            let right = std::fs::read(self.model().join(path)).unwrap();
            let found = std::fs::read(snapshot.join(path)).unwrap();
            assert!(right == found, "{path} differs");
        }
    }
}

pub(crate) async fn run(options: Options) -> Result<Report, FetchError> {
    warp_fetch::fetch(options, Arc::new(Progress::default())).await
}

/// Names in a folder, sorted.
pub(crate) fn names(folder: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(folder).into_iter().flatten();
    let mut names: Vec<String> = entries
        .map(|entry| entry.unwrap().file_name().to_string_lossy().into_owned())
        .collect();
    names.sort();
    names
}
