//! This machine as a node: its processors, memory and GPUs, read from /proc and /sys. NVIDIA devices
//! are read from the driver's own files and, for their memory, its command-line tool; nothing is linked.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;

use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use warp_core::gpu::{self, Model, Vendor};

use crate::node::contents::fields::Machine;
use crate::node::fleet::{PROVIDER_LABEL, Shape, device_labels};

const DEFAULT_PODS: u32 = 110;
/// The first render device of the DRM subsystem.
const FIRST_RENDER_NODE: u32 = 128;

/// GPUs of one vendor and model.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Gpus {
    pub vendor: Vendor,
    /// As the driver spells it.
    pub product: String,
    pub model: Option<&'static Model>,
    pub count: u32,
}

/// The share of the machine a container without limits has.
pub(crate) fn share() -> Machine {
    Machine {
        cpu_milli: i64::try_from(processors()).unwrap_or(1) * 1000,
        memory: memory(Path::new("/proc")).unwrap_or_default(),
    }
}

fn processors() -> usize {
    std::thread::available_parallelism().map_or(1, std::num::NonZero::get)
}

fn memory(proc: &Path) -> Option<i64> {
    let text = std::fs::read_to_string(proc.join("meminfo")).ok()?;
    let line = text
        .lines()
        .find_map(|line| line.strip_prefix("MemTotal:"))?;
    let kib: i64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    Some(kib * 1024)
}

/// The GPUs of this machine. Mixed models of one vendor are counted under the first: one resource name
/// cannot tell them apart.
pub fn gpus() -> Vec<Gpus> {
    let mut found = Vec::new();
    found.extend(nvidia(Path::new("/proc")).or_else(nvidia_tool));
    found.extend(amd(Path::new("/sys")));
    found
}

/// `Model:  NVIDIA A100-SXM4-80GB` in one folder per device.
fn nvidia(proc: &Path) -> Option<Gpus> {
    let folder = std::fs::read_dir(proc.join("driver/nvidia/gpus")).ok()?;
    let products: Vec<String> = folder
        .filter_map(|entry| {
            let text = std::fs::read_to_string(entry.ok()?.path().join("information")).ok()?;
            let line = text.lines().find_map(|line| line.strip_prefix("Model:"))?;
            Some(line.trim().to_owned())
        })
        .collect();
    counted(Vendor::Nvidia, &products)
}

/// Where the driver's files are hidden (a container, WSL), its tool may still answer.
fn nvidia_tool() -> Option<Gpus> {
    let output = Command::new("nvidia-smi")
        .args(["--query-gpu=name", "--format=csv,noheader"])
        .output()
        .ok()?;
    let text = String::from_utf8(output.stdout)
        .ok()
        .filter(|_| output.status.success())?;
    let products: Vec<String> = text
        .lines()
        .map(|line| line.trim().to_owned())
        .filter(|line| !line.is_empty())
        .collect();
    counted(Vendor::Nvidia, &products)
}

fn of_card(card: &Path, file: &str) -> Option<String> {
    std::fs::read_to_string(card.join("device").join(file))
        .ok()
        .map(|text| text.trim().to_owned())
}

/// Cards of vendor 0x1002 that have memory of their own and take compute work, in the order of their numbers.
pub(crate) fn amd_cards(sys: &Path) -> Vec<PathBuf> {
    let mut cards: Vec<(u32, PathBuf)> = std::fs::read_dir(sys.join("class/drm"))
        .into_iter()
        .flatten()
        .filter_map(|entry| {
            let path = entry.ok()?.path();
            let number = path.file_name()?.to_str()?.strip_prefix("card")?;
            Some((number.parse().ok()?, path))
        })
        .filter(|(_, card)| {
            of_card(card, "vendor").as_deref() == Some("0x1002")
                && of_card(card, "mem_info_vram_total").is_some()
        })
        .collect();
    cards.sort();
    cards.into_iter().map(|(_, card)| card).collect()
}

/// The render device of each AMD card: their numbers follow no rule once another card is beside them.
pub(crate) fn amd_render_devices(sys: &Path) -> Vec<String> {
    let render = |card: &PathBuf| {
        std::fs::read_dir(card.join("device/drm"))
            .ok()?
            .filter_map(|entry| entry.ok()?.file_name().into_string().ok())
            .find(|name| name.starts_with("renderD"))
    };
    (FIRST_RENDER_NODE..)
        .zip(&amd_cards(sys))
        .map(|(number, card)| render(card).unwrap_or_else(|| format!("renderD{number}")))
        .collect()
}

fn amd(sys: &Path) -> Option<Gpus> {
    let products: Vec<String> = amd_cards(sys)
        .iter()
        .map(|card| {
            of_card(card, "product_name")
                .filter(|name| !name.is_empty())
                .or_else(|| instinct(&of_card(card, "device")?))
                .unwrap_or_else(|| "AMD GPU".to_owned())
        })
        .collect();
    counted(Vendor::Amd, &products)
}

/// Device ids of the data-centre cards, whose boards often leave the product name empty.
fn instinct(device: &str) -> Option<String> {
    let name = match device
        .trim_start_matches("0x")
        .to_ascii_lowercase()
        .as_str()
    {
        "738c" => "MI100",
        "7408" | "740c" => "MI250X",
        "740f" => "MI210",
        "74a1" | "74a9" | "74b5" | "74bd" => "MI300X",
        "74a2" | "74a8" | "74b6" => "MI308X",
        "74a5" | "74b9" => "MI325X",
        "75a0" | "75b0" => "MI350X",
        "75a3" | "75b3" => "MI355X",
        _ => return None,
    };
    Some(format!("AMD Instinct {name}"))
}

fn counted(vendor: Vendor, products: &[String]) -> Option<Gpus> {
    let product = products.first()?.clone();
    let model = match gpu::named(&product).as_slice() {
        [one] => Some(*one),
        _ => None,
    };
    Some(Gpus {
        vendor,
        product,
        model,
        count: u32::try_from(products.len()).unwrap_or(u32::MAX),
    })
}

/// This machine as a node of the given name and provider.
pub fn shape(name: &str, provider: &str, address: &str, gpus: &[Gpus]) -> Shape {
    let mut labels = BTreeMap::from([
        ("kubernetes.io/hostname".to_owned(), name.to_owned()),
        (
            "kubernetes.io/os".to_owned(),
            std::env::consts::OS.replace("macos", "darwin"),
        ),
        ("kubernetes.io/arch".to_owned(), architecture().to_owned()),
        (PROVIDER_LABEL.to_owned(), provider.to_owned()),
    ]);
    let mut devices = BTreeMap::new();
    for found in gpus {
        devices.insert(found.vendor.resources()[0].to_owned(), found.count);
        match found.model {
            Some(model) => labels.extend(device_labels(model, found.count)),
            None if found.vendor == Vendor::Nvidia => {
                labels.insert(
                    "nvidia.com/gpu.product".to_owned(),
                    found.product.replace(' ', "-"),
                );
            }
            None => {
                labels.insert(
                    "amd.com/gpu.product-name".to_owned(),
                    found.product.replace(' ', "_"),
                );
            }
        }
    }
    let memory = memory(Path::new("/proc")).unwrap_or(4 << 30);
    let capacity = BTreeMap::from([
        ("cpu".to_owned(), Quantity(processors().to_string())),
        (
            "memory".to_owned(),
            Quantity(format!("{}Ki", memory / 1024)),
        ),
        ("ephemeral-storage".to_owned(), Quantity("100Gi".to_owned())),
        ("pods".to_owned(), Quantity(DEFAULT_PODS.to_string())),
    ]);
    Shape {
        name: name.to_owned(),
        provider: provider.to_owned(),
        labels,
        annotations: BTreeMap::new(),
        taints: Vec::new(),
        capacity,
        devices,
        address: address.to_owned(),
        runtime: format!("{provider}://1"),
    }
}

fn architecture() -> &'static str {
    match std::env::consts::ARCH {
        "x86_64" => "amd64",
        "aarch64" => "arm64",
        other => other,
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::{Vendor, amd, amd_render_devices, nvidia};

    #[test]
    fn devices_are_read_from_the_drivers_files() {
        let folder = tempfile::tempdir().unwrap();
        for bus in ["0000:07:00.0", "0000:0a:00.0"] {
            let device = folder.path().join("driver/nvidia/gpus").join(bus);
            fs::create_dir_all(&device).unwrap();
            fs::write(
                device.join("information"),
                "Model: \t\t NVIDIA A100-SXM4-80GB\nIRQ: 45\n",
            )
            .unwrap();
        }
        let found = nvidia(folder.path()).unwrap();
        assert_eq!(
            (found.vendor, found.count, found.model.unwrap().name),
            (Vendor::Nvidia, 2, "A100-80GB")
        );
        for (card, vendor) in [
            ("card0", "0x1002"),
            ("card1", "0x1002"),
            ("card2", "0x8086"),
            ("card0-DP-1", "0x1002"),
        ] {
            let device = folder.path().join("class/drm").join(card).join("device");
            fs::create_dir_all(&device).unwrap();
            fs::write(device.join("vendor"), vendor).unwrap();
            fs::write(device.join("device"), "0x74a1\n").unwrap();
            fs::write(device.join("mem_info_vram_total"), "206141652992\n").unwrap();
        }
        // The first card is a small one of the board; its render device comes first.
        for (card, render) in [("card0", "renderD129"), ("card1", "renderD130")] {
            let place = folder.path().join("class/drm").join(card);
            fs::create_dir_all(place.join("device/drm").join(render)).unwrap();
        }
        assert_eq!(
            amd_render_devices(folder.path()),
            ["renderD129", "renderD130"]
        );
        let found = amd(folder.path()).unwrap();
        assert_eq!(
            (found.vendor, found.count, found.model.unwrap().name),
            (Vendor::Amd, 2, "MI300X")
        );
        assert!(
            nvidia(&folder.path().join("none")).is_none()
                && amd(&folder.path().join("none")).is_none()
        );
    }
}
