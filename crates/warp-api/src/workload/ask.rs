//! Reading of a spec's text: which GPUs it asks for, how long it may run.

use std::collections::BTreeSet;

use warp_core::gpu::{self, Device, Model, Sharing, Vendor};
use warp_core::resources::Quantity;

use super::{GPUWorkloadSpec, GpuVendor};

/// A spec that passed the schema and still cannot be carried out. Its text is the message of a
/// condition, so it says what to do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BadSpec(pub String);

impl From<GpuVendor> for Vendor {
    fn from(vendor: GpuVendor) -> Self {
        match vendor {
            GpuVendor::Nvidia => Self::Nvidia,
            GpuVendor::Amd => Self::Amd,
            GpuVendor::Intel => Self::Intel,
            GpuVendor::Habana => Self::Habana,
        }
    }
}

/// The GPUs a spec asks for, resolved against the catalogue.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GpuAsk {
    pub vendor: Vendor,
    /// Models that will do; empty: every model.
    pub models: Vec<&'static Model>,
    pub min_memory_mib: u64,
    pub count: u32,
}

impl GpuAsk {
    pub fn of(spec: &GPUWorkloadSpec) -> Result<Self, BadSpec> {
        let gpu = spec.gpu.as_ref();
        let models = resolve(gpu.map_or(&[][..], |gpu| &gpu.models))?;
        let vendors: BTreeSet<Vendor> = models.iter().map(|model| model.vendor).collect();
        let asked = gpu.and_then(|gpu| gpu.vendor).map(Vendor::from);
        let vendor = match (asked, vendors.len()) {
            (_, 2..) => {
                let names: Vec<&str> = vendors.iter().map(|vendor| vendor.as_str()).collect();
                return Err(BadSpec(format!(
                    "spec.gpu.models names GPUs of several vendors ({}); one image runs on one: split the workload",
                    names.join(", ")
                )));
            }
            (Some(asked), 1) if !vendors.contains(&asked) => {
                return Err(BadSpec(format!(
                    "spec.gpu.vendor is {asked}, but spec.gpu.models names {} GPUs; drop one of the two",
                    vendors.iter().next().map_or("", |vendor| vendor.as_str())
                )));
            }
            (Some(asked), _) => asked,
            (None, _) => vendors.into_iter().next().unwrap_or(Vendor::Nvidia),
        };
        let min_memory_mib = match gpu.and_then(|gpu| gpu.min_memory.as_ref()) {
            Some(text) => mebibytes(text)?,
            None => 0,
        };
        let count = u32::try_from(spec.gpu_count)
            .ok()
            .filter(|count| *count > 0)
            .ok_or_else(|| BadSpec("spec.gpuCount must be at least 1".to_owned()))?;
        Ok(Self {
            vendor,
            models,
            min_memory_mib,
            count,
        })
    }

    /// Whether every device this group may hand out meets the ask. On a mixed node the device
    /// plugin chooses, so all models present have to do.
    pub fn met_by(&self, device: &Device) -> bool {
        device.vendor == self.vendor
            && device.sharing == Sharing::Exclusive
            && (self.models.is_empty()
                || (!device.models.is_empty()
                    && device
                        .models
                        .iter()
                        .all(|model| self.models.contains(model))))
            && (self.min_memory_mib == 0
                || device
                    .memory_mib
                    .is_some_and(|memory| memory >= self.min_memory_mib))
    }

    /// `2 × nvidia H100-80GB or H200 with at least 80 GiB`, for messages.
    pub fn describe(&self) -> String {
        let mut text = format!("{} {}", self.count, self.vendor);
        if !self.models.is_empty() {
            let names: Vec<&str> = self.models.iter().map(|model| model.name).collect();
            text = format!("{text} {}", names.join(" or "));
        }
        text.push_str(if self.count == 1 { " GPU" } else { " GPUs" });
        if self.min_memory_mib > 0 {
            text = format!("{text} with at least {} MiB each", self.min_memory_mib);
        }
        text
    }
}

fn resolve(names: &[String]) -> Result<Vec<&'static Model>, BadSpec> {
    let mut models: Vec<&'static Model> = Vec::new();
    for name in names {
        let found = gpu::named(name);
        if found.is_empty() {
            let known: Vec<&str> = gpu::MODELS.iter().map(|model| model.name).collect();
            return Err(BadSpec(format!(
                "spec.gpu.models: '{name}' is no GPU model Warp knows; known are {}",
                known.join(", ")
            )));
        }
        for model in found {
            if !models.contains(&model) {
                models.push(model);
            }
        }
    }
    Ok(models)
}

/// Node labels round memory down to what the driver reports (an "80 GB" card reads 81559 MiB, a
/// "192 GB" one 183359), so a quantity is taken literally and never rounded up.
fn mebibytes(text: &str) -> Result<u64, BadSpec> {
    let bytes = text.parse::<Quantity>().and_then(Quantity::value);
    match bytes.map(u64::try_from) {
        Ok(Ok(bytes)) => Ok(bytes >> 20),
        _ => Err(BadSpec(format!(
            "spec.gpu.minMemory '{text}' is not a size such as 40Gi"
        ))),
    }
}

/// Seconds of a `maxRuntime` such as `1h30m`; `None` for text the schema would refuse.
pub fn run_seconds(text: &str) -> Option<i64> {
    let mut total: i64 = 0;
    let mut digits = String::new();
    for character in text.chars() {
        if character.is_ascii_digit() {
            digits.push(character);
            continue;
        }
        let unit = match character {
            'h' => 3600,
            'm' => 60,
            's' => 1,
            _ => return None,
        };
        let count: i64 = digits.parse().ok()?;
        total = total.checked_add(count.checked_mul(unit)?)?;
        digits.clear();
    }
    (digits.is_empty() && total > 0).then_some(total)
}
