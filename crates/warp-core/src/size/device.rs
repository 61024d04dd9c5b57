//! What sizing knows of a device beyond the catalogue: memory as drivers report it, how devices of one machine are
//! connected, and which kinds of weights its generation runs.

use serde::Serialize;
use thiserror::Error;

use crate::gpu::{self, Architecture};

const MIB: u64 = 1 << 20;

/// How devices of one machine talk to each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Link {
    /// NVLink, XGMI and the like: splitting every layer over devices pays off.
    Fast,
    /// PCIe only: a chain of devices, each with some of the layers, moves less.
    Pcie,
}

/// Why a device cannot serve a model whatever its memory.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum Unsupported {
    #[error("vLLM does not support {gpu} ({target})")]
    Device { gpu: String, target: &'static str },
    #[error("weights quantised with {method} do not run on {gpu}: {why}")]
    Weights {
        gpu: String,
        method: String,
        why: &'static str,
    },
}

/// One kind of device a model may be served on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Device {
    pub name: String,
    pub memory_bytes: u64,
    pub link: Link,
    generation: Option<Architecture>,
}

/// Memory in MiB as drivers report it, where that differs from the data sheet.
const READINGS: &[(&str, u64)] = &[
    ("T4", 15_360),
    ("A10", 23_028),
    ("L4", 23_034),
    ("L40", 46_068),
    ("L40S", 46_068),
    ("H100-80GB", 81_559),
    ("H200", 143_771),
    ("B200", 183_359),
    ("MI300X", 196_300),
];

/// Words a model's name begins with, its generation, and how its devices are connected.
const GENERATIONS: &[(&str, Architecture, Link)] = &[
    ("P4", Architecture::Pascal, Link::Pcie),
    ("P40", Architecture::Pascal, Link::Pcie),
    ("P100", Architecture::Pascal, Link::Pcie),
    ("V100", Architecture::Volta, Link::Fast),
    ("T4", Architecture::Turing, Link::Pcie),
    ("A100", Architecture::Ampere, Link::Fast),
    ("A10", Architecture::Ampere, Link::Pcie),
    ("A16", Architecture::Ampere, Link::Pcie),
    ("A2", Architecture::Ampere, Link::Pcie),
    ("A30", Architecture::Ampere, Link::Pcie),
    ("A40", Architecture::Ampere, Link::Pcie),
    ("A800", Architecture::Ampere, Link::Fast),
    ("A4000", Architecture::Ampere, Link::Pcie),
    ("A4500", Architecture::Ampere, Link::Pcie),
    ("A5000", Architecture::Ampere, Link::Pcie),
    ("A6000", Architecture::Ampere, Link::Pcie),
    ("RTX-3090", Architecture::Ampere, Link::Pcie),
    ("L2", Architecture::Ada, Link::Pcie),
    ("L20", Architecture::Ada, Link::Pcie),
    ("L40", Architecture::Ada, Link::Pcie),
    ("L4", Architecture::Ada, Link::Pcie),
    ("RTX-4080", Architecture::Ada, Link::Pcie),
    ("RTX-4090", Architecture::Ada, Link::Pcie),
    ("RTX-2000-Ada", Architecture::Ada, Link::Pcie),
    ("RTX-4000-Ada", Architecture::Ada, Link::Pcie),
    ("RTX-4500-Ada", Architecture::Ada, Link::Pcie),
    ("RTX-5000-Ada", Architecture::Ada, Link::Pcie),
    ("RTX-6000-Ada", Architecture::Ada, Link::Pcie),
    ("RTX-PRO", Architecture::Blackwell, Link::Pcie),
    ("RTX-5080", Architecture::Blackwell, Link::Pcie),
    ("RTX-5090", Architecture::Blackwell, Link::Pcie),
    ("GB10", Architecture::Blackwell, Link::Pcie),
    ("H100", Architecture::Hopper, Link::Fast),
    ("H200", Architecture::Hopper, Link::Fast),
    ("H20", Architecture::Hopper, Link::Fast),
    ("H800", Architecture::Hopper, Link::Fast),
    ("GH200", Architecture::Hopper, Link::Fast),
    ("B", Architecture::Blackwell, Link::Fast),
    ("GB", Architecture::Blackwell, Link::Fast),
    ("MI50", Architecture::Vega, Link::Pcie),
    ("MI100", Architecture::Cdna1, Link::Fast),
    ("MI21", Architecture::Cdna2, Link::Fast),
    ("MI25", Architecture::Cdna2, Link::Fast),
    ("MI30", Architecture::Cdna3, Link::Fast),
    ("MI32", Architecture::Cdna3, Link::Fast),
    ("MI35", Architecture::Cdna4, Link::Fast),
    ("Radeon-PRO-V620", Architecture::Rdna2, Link::Pcie),
    ("Radeon-PRO-W6", Architecture::Rdna2, Link::Pcie),
    ("Radeon", Architecture::Rdna3, Link::Pcie),
    ("Radeon-AI-PRO-R9", Architecture::Rdna4, Link::Pcie),
    ("Max", Architecture::Xe, Link::Fast),
    ("Flex", Architecture::Xe, Link::Pcie),
    ("Arc", Architecture::Xe, Link::Pcie),
    ("Gaudi", Architecture::Gaudi, Link::Fast),
];

impl Device {
    /// A device of the catalogue.
    pub fn of(model: &gpu::Model) -> Self {
        let reading = READINGS.iter().find(|(name, _)| *name == model.name);
        let memory_mib = reading.map_or(u64::from(model.memory_gib) * 1024, |(_, mib)| *mib);
        let known = Self::known(model.name, memory_mib * MIB);
        Self {
            generation: model.architecture.or(known.generation),
            ..known
        }
    }

    /// A device by name and the memory its node reports.
    pub fn known(name: &str, memory_bytes: u64) -> Self {
        let longest = GENERATIONS
            .iter()
            .filter(|(prefix, ..)| name.starts_with(prefix))
            .max_by_key(|(prefix, ..)| prefix.len());
        Self {
            name: name.to_owned(),
            memory_bytes,
            link: longest.map_or(Link::Pcie, |(_, _, link)| *link),
            generation: longest.map(|(_, generation, _)| *generation),
        }
    }

    /// Whether vLLM runs weights of this kind here. What is not known is not refused.
    pub fn supports(&self, quantization: Option<&str>) -> Result<(), Unsupported> {
        use Architecture::{
            Blackwell, Cdna1, Cdna2, Cdna3, Cdna4, Gaudi, Pascal, Rdna2, Rdna3, Rdna4, Vega, Volta,
            Xe,
        };
        let Some(generation) = self.generation else {
            return Ok(());
        };
        let target = match generation {
            Pascal => Some("compute capability 6"),
            Vega => Some("gfx906"),
            Cdna1 => Some("gfx908"),
            Rdna2 => Some("gfx1030"),
            _ => None,
        };
        if let Some(target) = target {
            return Err(Unsupported::Device {
                gpu: self.name.clone(),
                target,
            });
        }
        let Some(method) = quantization else {
            return Ok(());
        };
        let amd = matches!(generation, Cdna2 | Cdna3 | Cdna4 | Rdna3 | Rdna4);
        let why = match method {
            "bitsandbytes" if amd || matches!(generation, Xe | Gaudi) => {
                "bitsandbytes is for NVIDIA only"
            }
            "fp8" | "fbgemm_fp8" | "modelopt" if generation == Cdna2 => {
                "gfx90a cannot compute with FP8"
            }
            "fp8" | "fbgemm_fp8" | "awq" | "mxfp4" if generation == Volta => {
                "it needs compute capability 7.5 or newer"
            }
            "mxfp4" if matches!(generation, Cdna2 | Gaudi) => "it cannot compute with MXFP4",
            "nvfp4" | "modelopt_fp4" if generation != Blackwell => "NVFP4 needs Blackwell",
            "quark" if !amd => "Quark's formats are AMD's",
            _ => return Ok(()),
        };
        Err(Unsupported::Weights {
            gpu: self.name.clone(),
            method: method.to_owned(),
            why,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_model_of_the_catalogue_has_a_generation() {
        let unknown = |model: &&gpu::Model| Device::of(model).generation.is_none();
        let missing: Vec<_> = gpu::MODELS
            .iter()
            .filter(unknown)
            .map(|model| model.name)
            .collect();
        assert!(missing.is_empty(), "add a row for {missing:?}");
    }

    #[test]
    fn what_vllm_does_not_run_on_is_refused_whatever_its_memory() {
        for name in ["P40", "P100-16GB", "MI50", "MI100", "Radeon-PRO-W6800"] {
            assert!(
                Device::known(name, 1 << 40).supports(None).is_err(),
                "{name}"
            );
        }
        for name in ["L20", "H800", "A800-80GB", "RTX-6000-Ada"] {
            assert!(
                Device::known(name, 1 << 40)
                    .supports(Some("nvfp4"))
                    .is_err(),
                "{name}"
            );
        }
        assert!(
            Device::known("RTX-PRO-6000", 1 << 40)
                .supports(Some("nvfp4"))
                .is_ok()
        );
    }
}
