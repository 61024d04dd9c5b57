//! The table of models and the reading of a model's name as people and device labels write it.

use super::{Architecture, Catalogue, Vendor};

/// One model as one schedulable device. A card that shows up as two devices (MI250X, Max 1550 in
/// flat mode) is described by what *one* device holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Model {
    /// The name we print and store.
    pub name: &'static str,
    pub vendor: Vendor,
    /// Memory of one device in GiB as its data sheet rounds it; the fallback where a node says
    /// nothing better.
    pub memory_gib: u32,
    /// Devices one card shows up as.
    pub devices_per_card: u32,
    /// Of a model that was added; the table's are told by their names, where sizes are counted.
    pub architecture: Option<Architecture>,
    /// Words that name the model, each a sequence that has to occur in that order, side by side.
    pub(super) words: &'static [&'static [&'static str]],
    /// Among models sharing words, the memory size in a product name that tells them apart.
    pub(super) variant: bool,
}

const fn model(
    name: &'static str,
    vendor: Vendor,
    memory_gib: u32,
    words: &'static [&'static [&'static str]],
) -> Model {
    Model {
        name,
        vendor,
        memory_gib,
        devices_per_card: 1,
        architecture: None,
        words,
        variant: false,
    }
}

const fn sized(
    name: &'static str,
    vendor: Vendor,
    memory_gib: u32,
    words: &'static [&'static [&'static str]],
) -> Model {
    Model {
        variant: true,
        ..model(name, vendor, memory_gib, words)
    }
}

const fn paired(
    name: &'static str,
    vendor: Vendor,
    memory_gib: u32,
    words: &'static [&'static [&'static str]],
) -> Model {
    Model {
        devices_per_card: 2,
        ..model(name, vendor, memory_gib, words)
    }
}

use Vendor::{Amd, Habana, Intel, Nvidia};

/// Every model we know, grouped by vendor. Sizes are per device.
pub const MODELS: &[Model] = &[
    model("P4", Nvidia, 8, &[&["P4"]]),
    model("P40", Nvidia, 24, &[&["P40"]]),
    sized("P100-12GB", Nvidia, 12, &[&["P100"]]),
    sized("P100-16GB", Nvidia, 16, &[&["P100"]]),
    sized("V100-16GB", Nvidia, 16, &[&["V100"], &["V100S"]]),
    sized("V100-32GB", Nvidia, 32, &[&["V100"], &["V100S"]]),
    model("T4", Nvidia, 16, &[&["T4"], &["T4G"]]),
    model("A2", Nvidia, 16, &[&["A2"]]),
    model("A10", Nvidia, 24, &[&["A10"], &["A10G"]]),
    model("A16", Nvidia, 16, &[&["A16"]]),
    model("A30", Nvidia, 24, &[&["A30"]]),
    model("A40", Nvidia, 48, &[&["A40"]]),
    sized("A100-40GB", Nvidia, 40, &[&["A100"]]),
    sized("A100-80GB", Nvidia, 80, &[&["A100"]]),
    sized("A800-40GB", Nvidia, 40, &[&["A800"]]),
    sized("A800-80GB", Nvidia, 80, &[&["A800"]]),
    model("L2", Nvidia, 24, &[&["L2"]]),
    model("L4", Nvidia, 24, &[&["L4"]]),
    model("L20", Nvidia, 48, &[&["L20"]]),
    model("L40", Nvidia, 48, &[&["L40"], &["L40G"]]),
    model("L40S", Nvidia, 48, &[&["L40S"]]),
    model("H20", Nvidia, 96, &[&["H20"]]),
    sized("H100-80GB", Nvidia, 80, &[&["H100"]]),
    sized("H100-94GB", Nvidia, 94, &[&["H100"]]),
    model("H200", Nvidia, 141, &[&["H200"]]),
    model("H800", Nvidia, 80, &[&["H800"]]),
    model("GH200", Nvidia, 96, &[&["GH200"]]),
    model("B100", Nvidia, 192, &[&["B100"]]),
    model("B200", Nvidia, 192, &[&["B200"]]),
    model("B300", Nvidia, 288, &[&["B300"]]),
    model("GB200", Nvidia, 192, &[&["GB200"]]),
    model("GB300", Nvidia, 288, &[&["GB300"]]),
    model("GB10", Nvidia, 128, &[&["GB10"]]),
    model(
        "RTX-3090",
        Nvidia,
        24,
        &[&["RTX", "3090"], &["RTX3090"], &["3090"]],
    ),
    model(
        "RTX-4090",
        Nvidia,
        24,
        &[&["RTX", "4090"], &["RTX4090"], &["4090"]],
    ),
    model(
        "RTX-4080",
        Nvidia,
        16,
        &[&["RTX", "4080"], &["RTX4080"], &["4080"]],
    ),
    model(
        "RTX-5080",
        Nvidia,
        16,
        &[&["RTX", "5080"], &["RTX5080"], &["5080"]],
    ),
    model(
        "RTX-5090",
        Nvidia,
        32,
        &[&["RTX", "5090"], &["RTX5090"], &["5090"]],
    ),
    model("A4000", Nvidia, 16, &[&["A4000"], &["RTXA4000"]]),
    model("A4500", Nvidia, 20, &[&["A4500"], &["RTXA4500"]]),
    model("A5000", Nvidia, 24, &[&["A5000"], &["RTXA5000"]]),
    model("A6000", Nvidia, 48, &[&["A6000"], &["RTXA6000"]]),
    model("RTX-2000-Ada", Nvidia, 16, &[&["RTX", "2000", "ADA"]]),
    model(
        "RTX-4000-Ada",
        Nvidia,
        20,
        &[&["RTX", "4000", "ADA"], &["RTX", "4000", "SFF", "ADA"]],
    ),
    model("RTX-4500-Ada", Nvidia, 24, &[&["RTX", "4500", "ADA"]]),
    model("RTX-5000-Ada", Nvidia, 32, &[&["RTX", "5000", "ADA"]]),
    model("RTX-6000-Ada", Nvidia, 48, &[&["RTX", "6000", "ADA"]]),
    model("RTX-PRO-4000", Nvidia, 24, &[&["RTX", "PRO", "4000"]]),
    model("RTX-PRO-4500", Nvidia, 32, &[&["RTX", "PRO", "4500"]]),
    model("RTX-PRO-5000", Nvidia, 48, &[&["RTX", "PRO", "5000"]]),
    model("RTX-PRO-6000", Nvidia, 96, &[&["RTX", "PRO", "6000"]]),
    model("MI50", Amd, 16, &[&["MI50"]]),
    model("MI100", Amd, 32, &[&["MI100"]]),
    model("MI210", Amd, 64, &[&["MI210"]]),
    paired("MI250X", Amd, 64, &[&["MI250X"], &["MI250"]]),
    model("MI300A", Amd, 128, &[&["MI300A"]]),
    model("MI300X", Amd, 192, &[&["MI300X"]]),
    model("MI308X", Amd, 192, &[&["MI308X"]]),
    model("MI325X", Amd, 256, &[&["MI325X"]]),
    model("MI350X", Amd, 288, &[&["MI350X"]]),
    model("MI355X", Amd, 288, &[&["MI355X"]]),
    model("Radeon-PRO-V620", Amd, 32, &[&["V620"]]),
    model("Radeon-PRO-V710", Amd, 28, &[&["V710"]]),
    model("Radeon-PRO-W6800", Amd, 32, &[&["W6800"]]),
    model("Radeon-PRO-W7800", Amd, 32, &[&["W7800"]]),
    model("Radeon-PRO-W7900", Amd, 48, &[&["W7900"]]),
    model("Radeon-AI-PRO-R9700", Amd, 32, &[&["R9700"]]),
    model("Radeon-RX-7900-XT", Amd, 20, &[&["7900", "XT"]]),
    model("Radeon-RX-7900-XTX", Amd, 24, &[&["7900", "XTX"]]),
    model("Max-1100", Intel, 48, &[&["MAX", "1100"], &["MAX1100"]]),
    model("Max-1450", Intel, 128, &[&["MAX", "1450"], &["MAX1450"]]),
    model("Max-1550", Intel, 128, &[&["MAX", "1550"], &["MAX1550"]]),
    paired("Flex-140", Intel, 6, &[&["FLEX", "140"], &["FLEX140"]]),
    model("Flex-170", Intel, 16, &[&["FLEX", "170"], &["FLEX170"]]),
    model("Arc-A750", Intel, 8, &[&["ARC", "A750"], &["A750"]]),
    model("Arc-A770", Intel, 16, &[&["ARC", "A770"], &["A770"]]),
    model("Arc-B570", Intel, 10, &[&["ARC", "B570"], &["B570"]]),
    model("Arc-B580", Intel, 12, &[&["ARC", "B580"], &["B580"]]),
    model(
        "Arc-Pro-B50",
        Intel,
        16,
        &[&["ARC", "PRO", "B50"], &["B50"]],
    ),
    model(
        "Arc-Pro-B60",
        Intel,
        24,
        &[&["ARC", "PRO", "B60"], &["B60"]],
    ),
    model(
        "Gaudi1",
        Habana,
        32,
        &[&["GAUDI1"], &["GAUDI", "1"], &["HL", "205"]],
    ),
    model(
        "Gaudi2",
        Habana,
        96,
        &[
            &["GAUDI2"],
            &["GAUDI", "2"],
            &["HL", "225"],
            &["HL", "225D"],
            &["HL", "225H"],
        ],
    ),
    model(
        "Gaudi3",
        Habana,
        128,
        &[
            &["GAUDI3"],
            &["GAUDI", "3"],
            &["HL", "325"],
            &["HL", "325L"],
            &["HL", "338"],
        ],
    ),
];

/// Names that stand for several models, when nothing but the vendor is said beside them.
const FAMILIES: &[(&str, &[&str])] = &[
    ("MI200", &["MI210", "MI250X"]),
    (
        "XE",
        &[
            "Max-1100",
            "Max-1450",
            "Max-1550",
            "Flex-140",
            "Flex-170",
            "Arc-A750",
            "Arc-A770",
            "Arc-B570",
            "Arc-B580",
            "Arc-Pro-B50",
            "Arc-Pro-B60",
        ],
    ),
    ("GAUDI", &["Gaudi1", "Gaudi2", "Gaudi3"]),
];

/// Words that say whose GPU it is and nothing about which.
const VENDOR_WORDS: &[&str] = &[
    "NVIDIA", "TESLA", "GEFORCE", "AMD", "INSTINCT", "INTEL", "HABANA", "GPU",
];

/// Words that turn a model's name into another product; a name carrying one is not that model.
const OTHER_PRODUCT: &[&str] = &["TI", "SUPER", "D", "LAPTOP", "MOBILE", "ADA", "MAXQ"];

/// The models a name stands for: none when it is unknown, several when it leaves the memory size
/// open (`A100` is both A100s) or names a family. Vendor words, case and separators do not matter, so
/// `nvidia-tesla-a100`, `NVIDIA-A100-SXM4-80GB` and `a100` are all read.
pub fn named(text: &str) -> Vec<&'static Model> {
    Catalogue::default().named(text)
}

/// The same among these models.
pub(super) fn named_among(
    models: impl Iterator<Item = &'static Model> + Clone,
    text: &str,
) -> Vec<&'static Model> {
    let words = words(text);
    if let [only] = telling(&words).as_slice()
        && let Some((_, members)) = FAMILIES.iter().find(|(family, _)| family == only)
    {
        let member = |model: &&Model| members.contains(&model.name);
        return models.filter(member).collect();
    }
    let by_word: Vec<&'static Model> = models
        .filter(|model| model.words.iter().any(|sequence| names(&words, sequence)))
        .collect();
    let size = words.iter().find_map(|word| gigabytes(word)).or_else(|| {
        // The NVL board is the one H100 whose product name says its form instead of its size.
        words.iter().any(|word| word == "NVL").then_some(94)
    });
    let Some(size) = size else {
        return by_word;
    };
    let of_size: Vec<&'static Model> = by_word
        .iter()
        .copied()
        .filter(|model| !model.variant || model.memory_gib == size)
        .collect();
    of_size
}

/// The words of a name that tell more than the vendor.
pub(super) fn telling(words: &[String]) -> Vec<&str> {
    let words = words.iter().map(String::as_str);
    words.filter(|word| !VENDOR_WORDS.contains(word)).collect()
}

/// The part of a device a name asks for (`1g.10gb`, `MIG`, `CPX`), where it asks for one.
pub fn partition(text: &str) -> Option<String> {
    const MODES: [&str; 4] = ["DPX", "TPX", "QPX", "CPX"];
    let words = words(text);
    let slices = |word: &str| {
        let count = word.strip_suffix('G').or_else(|| word.strip_suffix('C'));
        count.is_some_and(|count| count.parse::<u32>().is_ok())
    };
    let profile = words.windows(2).find(|pair| {
        let memory = pair[1].strip_suffix("GB");
        slices(&pair[0]) && memory.is_some_and(|memory| memory.parse::<u32>().is_ok())
    });
    if let Some(profile) = profile {
        return Some(profile.join(".").to_ascii_lowercase());
    }
    let mode = |word: &&String| word.as_str() == "MIG" || MODES.contains(&word.as_str());
    words.iter().find(mode).cloned()
}

/// Whether two names of a product are the same but for vendor words, case and separators.
pub fn same_product(one: &str, other: &str) -> bool {
    let (one, other) = (words(one), words(other));
    telling(&one) == telling(&other)
}

/// Whose product an unknown name is, as far as it says.
pub fn vendor_of(text: &str) -> Option<Vendor> {
    words(text).iter().find_map(|word| match word.as_str() {
        "NVIDIA" | "TESLA" | "GEFORCE" | "QUADRO" | "RTX" => Some(Nvidia),
        "AMD" | "INSTINCT" | "RADEON" => Some(Amd),
        "GAUDI" | "HABANA" | "HL" => Some(Habana),
        "INTEL" | "ARC" => Some(Intel),
        _ => None,
    })
}

/// How a board is built, where a name says it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Form {
    /// Mounted on the machine's own board; product names often leave it out.
    Sxm,
    Pcie,
    Nvl,
}

/// The form a name states.
pub fn form(text: &str) -> Option<Form> {
    words(text).iter().find_map(|word| match word.as_str() {
        "PCIE" => Some(Form::Pcie),
        "NVL" => Some(Form::Nvl),
        word if word.starts_with("SXM") || word.starts_with("HBM") => Some(Form::Sxm),
        _ => None,
    })
}

/// Whether `sequence` occurs among `words` and nothing right after it makes it another product.
pub(super) fn names(words: &[String], sequence: &[&str]) -> bool {
    words
        .windows(sequence.len())
        .enumerate()
        .any(|(at, window)| {
            let next = words.get(at + sequence.len());
            window.iter().zip(sequence).all(|(have, want)| have == want)
                && next.is_none_or(|next| !OTHER_PRODUCT.contains(&next.as_str()))
        })
}

pub(super) fn words(text: &str) -> Vec<String> {
    text.split(|character: char| !character.is_ascii_alphanumeric())
        .filter(|word| !word.is_empty())
        .map(str::to_ascii_uppercase)
        .collect()
}

/// `80GB`, `80G`, `80` after a family that has sizes: the GiB a word states. A bare number counts
/// only when it is one of the sizes cards are sold with, so `3090` is never a size.
fn gigabytes(word: &str) -> Option<u32> {
    let digits = word.strip_suffix("GB").or_else(|| word.strip_suffix('G'));
    match digits {
        Some(digits) => digits.parse().ok(),
        None => word
            .parse()
            .ok()
            .filter(|size| [16, 32, 40, 80, 94].contains(size)),
    }
}
