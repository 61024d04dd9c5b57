//! Health of this machine's GPUs: what the NVIDIA driver's tool reports, and what the AMD driver counts in
//! its files. Read again and again; a device with an error nothing but a reset or a repair mends is broken.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use parking_lot::RwLock;
use tokio::process::Command;

use super::machine;
use crate::background;

const EVERY: Duration = Duration::from_secs(30);
/// A tool that takes longer is stuck in a driver that is.
const LIMIT: Duration = Duration::from_secs(20);
const FIELDS: &str = "index,pci.bus_id,name,ecc.errors.uncorrected.volatile.total,remapped_rows.pending,remapped_rows.failure";

/// Device numbers that broke, by resource.
pub type Broken = BTreeMap<String, BTreeSet<u32>>;

/// What is known of the devices, kept up to date while this lives.
#[derive(Clone, Debug, Default)]
pub struct Watch(Arc<RwLock<Broken>>);

impl Watch {
    /// Watches the devices of this machine; a machine without any costs nothing.
    pub(crate) fn start() -> Self {
        let watch = Self::default();
        let found = machine::gpus();
        if found.is_empty() {
            return watch;
        }
        let kept = Arc::downgrade(&watch.0);
        background::spawn(async move {
            let mut timer = tokio::time::interval(EVERY);
            loop {
                timer.tick().await;
                let seen = look(&found).await;
                let Some(kept) = kept.upgrade() else { return };
                if *kept.read() != seen {
                    tracing::warn!(broken = ?seen, "device health changed");
                    *kept.write() = seen;
                }
            }
        });
        watch
    }

    pub(crate) fn broken(&self) -> Broken {
        self.0.read().clone()
    }
}

async fn look(found: &[machine::Gpus]) -> Broken {
    let mut broken = Broken::new();
    for gpus in found {
        let resource = gpus.resource.to_owned();
        let numbers = match gpus.vendor {
            warp_core::gpu::Vendor::Nvidia => match nvidia_report().await {
                Some(text) => nvidia(&text, gpus.count),
                // No tool, no verdict: nothing is called broken on a guess.
                None => BTreeSet::new(),
            },
            warp_core::gpu::Vendor::Amd => amd(&machine::amd_cards(Path::new("/sys"))),
            _ => BTreeSet::new(),
        };
        if !numbers.is_empty() {
            broken.insert(resource, numbers);
        }
    }
    broken
}

async fn nvidia_report() -> Option<String> {
    let run = Command::new("nvidia-smi")
        .args([&format!("--query-gpu={FIELDS}"), "--format=csv,noheader"])
        .kill_on_drop(true)
        .output();
    let output = tokio::time::timeout(LIMIT, run).await.ok()?.ok()?;
    // The tool exits with an error when a device is lost, and still lists the others.
    String::from_utf8(output.stdout).ok()
}

/// Devices that are not listed any more, say that they are lost, or have errors that stay until a reset.
pub fn nvidia(report: &str, count: u32) -> BTreeSet<u32> {
    let mut listed = BTreeSet::new();
    let mut broken = BTreeSet::new();
    for line in report.lines() {
        let words: Vec<&str> = line.split(',').map(str::trim).collect();
        let Some(index) = words.first().and_then(|word| word.parse::<u32>().ok()) else {
            continue;
        };
        listed.insert(index);
        let lost = words
            .iter()
            .any(|word| word.contains("GPU is lost") || word.contains("requires reset"));
        let counted = |at: usize| {
            words
                .get(at)
                .and_then(|word| word.parse::<u64>().ok())
                .is_some_and(|count| count > 0)
        };
        let said = |at: usize| words.get(at).is_some_and(|word| *word == "Yes");
        if lost || counted(3) || said(4) || counted(4) || said(5) || counted(5) {
            broken.insert(index);
        }
    }
    // A report about nothing at all is a tool that failed, not a machine that lost everything.
    if !listed.is_empty() {
        broken.extend((0..count).filter(|index| !listed.contains(index)));
    }
    broken
}

/// Cards with uncorrectable errors, by the driver's `ue:` counters.
fn amd(cards: &[PathBuf]) -> BTreeSet<u32> {
    let bad = |card: &PathBuf| {
        let folder = card.join("device/ras");
        let files = std::fs::read_dir(folder).ok()?;
        let any = files.flatten().any(|entry| {
            let counts = entry.file_name().to_string_lossy().ends_with("_err_count");
            let text = std::fs::read_to_string(entry.path()).unwrap_or_default();
            let errors = text
                .lines()
                .find_map(|line| line.strip_prefix("ue:")?.trim().parse::<u64>().ok());
            counts && errors.is_some_and(|errors| errors > 0)
        });
        Some(any)
    };
    (0u32..)
        .zip(cards)
        .filter(|(_, card)| bad(card).unwrap_or(false))
        .map(|(index, _)| index)
        .collect()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::fs;

    use super::{amd, nvidia};

    fn set(numbers: &[u32]) -> BTreeSet<u32> {
        numbers.iter().copied().collect()
    }

    /// Reports in the forms the tool has: cards with and without memory error counters, a card that needs
    /// its rows remapped, one that fell off the bus, and a tool without a driver.
    #[test]
    fn a_device_is_broken_by_what_only_a_reset_mends() {
        let healthy = "0, 00000000:07:00.0, NVIDIA A100-SXM4-80GB, 0, No, No\n1, 00000000:0A:00.0, NVIDIA A100-SXM4-80GB, 0, No, No\n";
        let consumer = "0, 00000000:01:00.0, NVIDIA GeForce RTX 4090, [N/A], [N/A], [N/A]\n";
        let numbers = "0, 00000000:07:00.0, NVIDIA H100 80GB HBM3, 0, 0, 0\n1, 00000000:0A:00.0, NVIDIA H100 80GB HBM3, 0, 1, 0\n";
        let ecc = "0, 00000000:07:00.0, NVIDIA A100-SXM4-80GB, 3, No, No\n1, 00000000:0A:00.0, NVIDIA A100-SXM4-80GB, 0, No, Yes\n";
        let lost = "0, 00000000:07:00.0, NVIDIA A100-SXM4-80GB, 0, No, No\n1, 00000000:0A:00.0, [GPU is lost], [GPU is lost], [GPU is lost], [GPU is lost]\n";
        let missing = "1, 00000000:0A:00.0, NVIDIA A100-SXM4-80GB, 0, No, No\n";
        let failed =
            "NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver.\n";
        for (report, count, broken) in [
            (healthy, 2, set(&[])),
            (consumer, 1, set(&[])),
            (numbers, 2, set(&[1])),
            (ecc, 2, set(&[0, 1])),
            (lost, 2, set(&[1])),
            (missing, 2, set(&[0])),
            (failed, 2, set(&[])),
            ("", 2, set(&[])),
        ] {
            assert_eq!(nvidia(report, count), broken, "{report}");
        }
        let folder = tempfile::tempdir().unwrap();
        let cards: Vec<_> = (0..2)
            .map(|card| folder.path().join(format!("card{card}")))
            .collect();
        for (card, errors) in cards.iter().zip(["ue: 0\nce: 4\n", "ue: 2\nce: 0\n"]) {
            fs::create_dir_all(card.join("device/ras")).unwrap();
            fs::write(card.join("device/ras/umc_err_count"), errors).unwrap();
            fs::write(card.join("device/ras/features"), "ue: 9\n").unwrap();
        }
        assert_eq!(amd(&cards), set(&[1]));
    }
}
