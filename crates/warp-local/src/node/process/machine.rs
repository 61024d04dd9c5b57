//! This machine as a node: its processors, memory and GPUs, read from /proc and /sys. NVIDIA devices
//! are read from the driver's own files and, for their memory, its command-line tool; AMD and Intel cards
//! from the kernel's graphics devices, Gaudi cards from its accelerators; nothing is linked.

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
    /// The resource they are asked for by.
    pub resource: &'static str,
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
    let (proc, sys) = (Path::new("/proc"), Path::new("/sys"));
    let mut found = Vec::new();
    found.extend(nvidia(proc).or_else(nvidia_tool));
    found.extend(amd(sys));
    found.extend(intel(sys));
    found.extend(gaudi(sys));
    found
}

/// The device files of each GPU by its number, for the resources whose devices are plain files.
pub(crate) fn device_files(sys: &Path) -> BTreeMap<&'static str, Vec<Vec<String>>> {
    let cards = |cards: &[PathBuf]| {
        let renders = render_devices(cards);
        let files = renders
            .into_iter()
            .map(|name| vec![format!("/dev/dri/{name}")]);
        files.collect::<Vec<_>>()
    };
    let mut files = BTreeMap::from([(Vendor::Amd.resources()[0], cards(&amd_cards(sys)))]);
    for (driver, found) in intel_cards(sys) {
        files.insert(driver, cards(&found));
    }
    let accelerators = gaudi_numbers(sys).into_iter().map(|number| {
        vec![
            format!("/dev/accel/accel{number}"),
            format!("/dev/accel/accel_controlD{number}"),
        ]
    });
    files.insert(Vendor::Habana.resources()[0], accelerators.collect());
    files
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

/// Entries `<prefix><number>` of a class of devices made by `vendor`, by their numbers.
fn of_class(sys: &Path, class: &str, prefix: &str, vendor: &str) -> Vec<(u32, PathBuf)> {
    let mut cards: Vec<(u32, PathBuf)> = std::fs::read_dir(sys.join("class").join(class))
        .into_iter()
        .flatten()
        .filter_map(|entry| {
            let path = entry.ok()?.path();
            let number = path.file_name()?.to_str()?.strip_prefix(prefix)?;
            Some((number.parse().ok()?, path))
        })
        .filter(|(_, card)| of_card(card, "vendor").as_deref() == Some(vendor))
        .collect();
    cards.sort();
    cards
}

/// Cards of AMD that have memory of their own and take compute work.
pub(crate) fn amd_cards(sys: &Path) -> Vec<PathBuf> {
    of_class(sys, "drm", "card", "0x1002")
        .into_iter()
        .map(|(_, card)| card)
        .filter(|card| of_card(card, "mem_info_vram_total").is_some())
        .collect()
}

/// Cards of Intel that are no part of a processor, by the resource of the driver they have.
fn intel_cards(sys: &Path) -> BTreeMap<&'static str, Vec<PathBuf>> {
    let mut by_driver: BTreeMap<&'static str, Vec<PathBuf>> = BTreeMap::new();
    for (_, card) in of_class(sys, "drm", "card", "0x8086") {
        let driver = std::fs::read_link(card.join("device/driver")).ok();
        let driver = driver
            .as_deref()
            .and_then(|path| path.file_name()?.to_str());
        let [i915, xe] = Vendor::Intel.resources() else {
            continue;
        };
        let resource = match driver {
            Some("i915") => i915,
            Some("xe") => xe,
            _ => continue,
        };
        // Only discrete cards have memory of their own, or are known by name.
        let discrete = card.join("lmem_total_bytes").exists()
            || card.join("device/tile0/physical_vram_size_bytes").exists()
            || intel_product(&card).is_some();
        if discrete {
            by_driver.entry(*resource).or_default().push(card);
        }
    }
    by_driver
}

fn intel_product(card: &Path) -> Option<String> {
    let device = of_card(card, "device")?.to_ascii_lowercase();
    let name = match device.trim_start_matches("0x") {
        "0bd5" | "0bd6" => "Max 1550",
        "0bd9" | "0bda" | "0bdb" => "Max 1100",
        "56c0" | "56c2" => "Flex 170",
        "e20b" => "Arc B580",
        "e211" => "Arc Pro B60",
        _ => return None,
    };
    Some(format!("Intel {name}"))
}

fn intel(sys: &Path) -> Vec<Gpus> {
    let found = intel_cards(sys).into_iter();
    found
        .filter_map(|(resource, cards)| {
            let products: Vec<String> = cards
                .iter()
                .map(|card| intel_product(card).unwrap_or_else(|| "Intel GPU".to_owned()))
                .collect();
            let counted = counted(Vendor::Intel, &products)?;
            Some(Gpus {
                resource,
                ..counted
            })
        })
        .collect()
}

const HABANA: &str = "0x1da3";

/// Gaudi cards: accelerators, or a class of their own with older drivers.
fn gaudi_cards(sys: &Path) -> Vec<(u32, PathBuf)> {
    let found = of_class(sys, "accel", "accel", HABANA);
    if found.is_empty() {
        return of_class(sys, "habanalabs", "hl", HABANA);
    }
    found
}

fn gaudi_numbers(sys: &Path) -> Vec<u32> {
    gaudi_cards(sys)
        .into_iter()
        .map(|(number, _)| number)
        .collect()
}

fn gaudi(sys: &Path) -> Option<Gpus> {
    let products: Vec<String> = gaudi_cards(sys)
        .iter()
        .map(|(_, card)| {
            let kind = of_card(card, "device_type")
                .unwrap_or_default()
                .to_ascii_uppercase();
            let id = of_card(card, "device")
                .unwrap_or_default()
                .to_ascii_lowercase();
            if kind.starts_with("GAUDI3") || id.starts_with("0x106") {
                "Gaudi3"
            } else if kind.starts_with("GAUDI2") || id.starts_with("0x102") {
                "Gaudi2"
            } else {
                "Gaudi"
            }
            .to_owned()
        })
        .collect();
    counted(Vendor::Habana, &products)
}

/// The render device of each card: their numbers follow no rule once another card is beside them.
fn render_devices(cards: &[PathBuf]) -> Vec<String> {
    let render = |card: &PathBuf| {
        std::fs::read_dir(card.join("device/drm"))
            .ok()?
            .filter_map(|entry| entry.ok()?.file_name().into_string().ok())
            .find(|name| name.starts_with("renderD"))
    };
    (FIRST_RENDER_NODE..)
        .zip(cards)
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
        resource: vendor.resources()[0],
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
        devices.insert(found.resource.to_owned(), found.count);
        if let Some(model) = found.model {
            labels.extend(device_labels(model, found.count));
            continue;
        }
        let (label, joint) = match found.vendor {
            Vendor::Nvidia => ("nvidia.com/gpu.product", "-"),
            Vendor::Amd => ("amd.com/gpu.product-name", "_"),
            Vendor::Intel => ("gpu.intel.com/product", "_"),
            Vendor::Habana => ("habana.ai/gaudi.product", "_"),
        };
        labels.insert(label.to_owned(), found.product.replace(' ', joint));
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

    use super::{Vendor, amd, device_files, gaudi, intel, nvidia};

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
            device_files(folder.path())["amd.com/gpu"],
            [["/dev/dri/renderD129"], ["/dev/dri/renderD130"]]
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

    #[test]
    fn intel_cards_are_told_from_processors_and_by_their_driver() {
        let folder = tempfile::tempdir().unwrap();
        for (card, device, driver, render) in [
            ("card0", "0x46a6", "i915", "renderD128"),
            ("card1", "0x0bd5", "i915", "renderD129"),
            ("card2", "0x0bd5", "i915", "renderD130"),
            ("card3", "0xe20b", "xe", "renderD131"),
        ] {
            let place = folder.path().join("class/drm").join(card).join("device");
            fs::create_dir_all(place.join("drm").join(render)).unwrap();
            fs::write(place.join("vendor"), "0x8086\n").unwrap();
            fs::write(place.join("device"), format!("{device}\n")).unwrap();
            let drivers = format!("../../../bus/pci/drivers/{driver}");
            std::os::unix::fs::symlink(drivers, place.join("driver")).unwrap();
        }
        let found: Vec<_> = intel(folder.path())
            .iter()
            .map(|gpus| (gpus.resource, gpus.count, gpus.model.unwrap().name))
            .collect();
        assert_eq!(
            found,
            [
                ("gpu.intel.com/i915", 2, "Max-1550"),
                ("gpu.intel.com/xe", 1, "Arc-B580")
            ]
        );
        let files = device_files(folder.path());
        assert_eq!(files["gpu.intel.com/i915"][1], ["/dev/dri/renderD130"]);
        assert_eq!(files["gpu.intel.com/xe"], [["/dev/dri/renderD131"]]);
        assert!(intel(&folder.path().join("none")).is_empty());
    }

    #[test]
    fn gaudi_cards_are_found_under_both_of_their_classes() {
        for (class, name) in [("accel", "accel"), ("habanalabs", "hl")] {
            let folder = tempfile::tempdir().unwrap();
            for number in 0..2 {
                let card = folder
                    .path()
                    .join("class")
                    .join(class)
                    .join(format!("{name}{number}"));
                fs::create_dir_all(card.join("device")).unwrap();
                fs::write(card.join("device/vendor"), "0x1da3\n").unwrap();
                fs::write(card.join("device/device"), "0x1060\n").unwrap();
            }
            let found = gaudi(folder.path()).unwrap();
            assert_eq!(
                (found.resource, found.count, found.model.unwrap().name),
                ("habana.ai/gaudi", 2, "Gaudi3")
            );
            assert_eq!(
                device_files(folder.path())["habana.ai/gaudi"][1],
                ["/dev/accel/accel1", "/dev/accel/accel_controlD1"]
            );
        }
    }
}
