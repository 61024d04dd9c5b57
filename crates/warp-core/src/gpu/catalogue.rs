//! The table of models and the reading of a model's name as people and device labels write it.

use super::Vendor;

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
    /// Words that name the model, each a sequence that has to occur in that order, side by side.
    words: &'static [&'static [&'static str]],
    /// Among models sharing words, the memory size in a product name that tells them apart.
    variant: bool,
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
    sized("V100-16GB", Nvidia, 16, &[&["V100"], &["V100S"]]),
    sized("V100-32GB", Nvidia, 32, &[&["V100"], &["V100S"]]),
    model("T4", Nvidia, 16, &[&["T4"]]),
    model("A10", Nvidia, 24, &[&["A10"], &["A10G"]]),
    sized("A100-40GB", Nvidia, 40, &[&["A100"]]),
    sized("A100-80GB", Nvidia, 80, &[&["A100"]]),
    model("L4", Nvidia, 24, &[&["L4"]]),
    model("L40S", Nvidia, 48, &[&["L40S"]]),
    sized("H100-80GB", Nvidia, 80, &[&["H100"]]),
    sized("H100-94GB", Nvidia, 94, &[&["H100"]]),
    model("H200", Nvidia, 141, &[&["H200"]]),
    model("B200", Nvidia, 192, &[&["B200"]]),
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
        "RTX-5090",
        Nvidia,
        32,
        &[&["RTX", "5090"], &["RTX5090"], &["5090"]],
    ),
    model("A6000", Nvidia, 48, &[&["RTX", "A6000"], &["A6000"]]),
    model("MI100", Amd, 32, &[&["MI100"]]),
    model("MI210", Amd, 64, &[&["MI210"]]),
    paired("MI250X", Amd, 64, &[&["MI250X"], &["MI250"]]),
    model("MI300X", Amd, 192, &[&["MI300X"]]),
    model("MI308X", Amd, 192, &[&["MI308X"]]),
    model("MI325X", Amd, 256, &[&["MI325X"]]),
    model("MI350X", Amd, 288, &[&["MI350X"]]),
    model("MI355X", Amd, 288, &[&["MI355X"]]),
    model("Max-1100", Intel, 48, &[&["MAX", "1100"], &["MAX1100"]]),
    model("Max-1550", Intel, 128, &[&["MAX", "1550"], &["MAX1550"]]),
    model("Flex-170", Intel, 16, &[&["FLEX", "170"], &["FLEX170"]]),
    model("Arc-B580", Intel, 12, &[&["ARC", "B580"], &["B580"]]),
    model(
        "Arc-Pro-B60",
        Intel,
        24,
        &[&["ARC", "PRO", "B60"], &["B60"]],
    ),
    model(
        "Gaudi2",
        Habana,
        96,
        &[&["GAUDI2"], &["GAUDI", "2"], &["HL", "225"]],
    ),
    model(
        "Gaudi3",
        Habana,
        128,
        &[&["GAUDI3"], &["GAUDI", "3"], &["HL", "325"]],
    ),
];

/// Words that turn a model's name into another product; a name carrying one is not that model.
const OTHER_PRODUCT: &[&str] = &["TI", "SUPER", "D", "LAPTOP", "MOBILE", "ADA", "MAXQ"];

/// The models a name stands for: none when it is unknown, several when it leaves the memory size
/// open (`A100` is both A100s). Vendor words, case and separators do not matter, so
/// `nvidia-tesla-a100`, `NVIDIA-A100-SXM4-80GB` and `a100` are all read.
pub fn named(text: &str) -> Vec<&'static Model> {
    let words = words(text);
    let by_word: Vec<&'static Model> = MODELS
        .iter()
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

/// Whether `sequence` occurs among `words` and nothing right after it makes it another product.
fn names(words: &[String], sequence: &[&str]) -> bool {
    words
        .windows(sequence.len())
        .enumerate()
        .any(|(at, window)| {
            let next = words.get(at + sequence.len());
            window.iter().zip(sequence).all(|(have, want)| have == want)
                && next.is_none_or(|next| !OTHER_PRODUCT.contains(&next.as_str()))
        })
}

fn words(text: &str) -> Vec<String> {
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
