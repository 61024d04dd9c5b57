//! Reading of a spec's text: which GPUs it asks for, how long it may run.

use std::collections::BTreeSet;

use warp_core::gpu::{self, Catalogue, Device, Form, Model, Sharing, Vendor};
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
    /// Names that will do; empty: every model.
    pub names: Vec<Name>,
    pub min_memory_mib: u64,
    pub count: u32,
}

/// One name out of `spec.gpu.models`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Name {
    /// As the spec has it.
    pub text: String,
    /// The models the catalogue knows by it; none: it stands for the product label of that name.
    pub models: Vec<&'static Model>,
}

impl Name {
    fn read(text: &str, known: &Catalogue) -> Result<Self, BadSpec> {
        if let Some(part) = gpu::partition(text) {
            return Err(BadSpec(format!(
                "spec.gpu.models: '{text}' asks for a part of a GPU ({part}); Warp places whole GPUs only: name the GPU, or ask for the part in a plain Job"
            )));
        }
        Ok(Self {
            text: text.to_owned(),
            models: known.named(text),
        })
    }

    fn vendors(&self) -> impl Iterator<Item = Vendor> {
        let guess = gpu::vendor_of(&self.text).filter(|_| self.models.is_empty());
        self.models.iter().map(|model| model.vendor).chain(guess)
    }

    /// Whether a group of devices may be called so, as far as this one model of it goes. The form a
    /// name states has to agree with the product's.
    fn covers(&self, model: &Model, device: &Device) -> bool {
        let form = |product: &str| gpu::form(product).unwrap_or(Form::Sxm);
        self.models.contains(&model)
            && gpu::form(&self.text).is_none_or(|wanted| {
                let product = device.product.as_deref();
                product.is_none_or(|product| form(product) == wanted)
            })
    }

    /// Whether a product the catalogue does not know is called so.
    fn is_product(&self, device: &Device) -> bool {
        let product = device.product.as_deref();
        self.models.is_empty()
            && product.is_some_and(|product| gpu::same_product(product, &self.text))
    }
}

impl GpuAsk {
    pub fn of(spec: &GPUWorkloadSpec) -> Result<Self, BadSpec> {
        Self::among(spec, &Catalogue::default())
    }

    /// The same, with the models that are known on a cluster.
    pub fn among(spec: &GPUWorkloadSpec, known: &Catalogue) -> Result<Self, BadSpec> {
        let gpu = spec.gpu.as_ref();
        let names = gpu.map_or(&[][..], |gpu| &gpu.models);
        let names: Result<Vec<Name>, BadSpec> =
            names.iter().map(|name| Name::read(name, known)).collect();
        let names = names?;
        let vendors: BTreeSet<Vendor> = names.iter().flat_map(Name::vendors).collect();
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
            names,
            min_memory_mib,
            count,
        })
    }

    /// Whether a name states how its board is built, which the catalogue's models do not.
    pub fn states_form(&self) -> bool {
        let known = self.names.iter().filter(|name| !name.models.is_empty());
        known
            .into_iter()
            .any(|name| gpu::form(&name.text).is_some())
    }

    /// The names for messages: the catalogue's where it knows them and nothing more is said.
    pub fn model_names(&self) -> Vec<&str> {
        let names = self.names.iter().flat_map(|name| {
            let as_asked = name.models.is_empty() || gpu::form(&name.text).is_some();
            let text = as_asked.then_some(name.text.as_str());
            let known = name.models.iter().filter(move |_| !as_asked);
            known.map(|model| model.name).chain(text)
        });
        let mut once = BTreeSet::new();
        names.filter(|name| once.insert(*name)).collect()
    }

    fn accepts(&self, device: &Device) -> bool {
        if self.names.is_empty() {
            return true;
        }
        let covered = |model: &&Model| self.names.iter().any(|name| name.covers(model, device));
        if device.models.is_empty() {
            self.names.iter().any(|name| name.is_product(device))
        } else {
            device.models.iter().all(|model| covered(&&**model))
        }
    }

    /// Whether every device this group may hand out meets the ask. On a mixed node the device
    /// plugin chooses, so all models present have to do.
    pub fn met_by(&self, device: &Device) -> bool {
        device.vendor == self.vendor
            && device.sharing == Sharing::Exclusive
            && self.accepts(device)
            && (self.min_memory_mib == 0
                || device
                    .memory_mib
                    .is_some_and(|memory| memory >= self.min_memory_mib))
    }

    /// `2 nvidia H100-80GB or H200 GPUs with at least 80Gi each`, for messages.
    pub fn describe(&self) -> String {
        let mut text = format!("{} {}", self.count, self.vendor);
        if !self.names.is_empty() {
            text = format!("{text} {}", self.model_names().join(" or "));
        }
        text.push_str(if self.count == 1 { " GPU" } else { " GPUs" });
        if self.min_memory_mib > 0 {
            text = format!("{text} with at least {} each", size(self.min_memory_mib));
        }
        text
    }
}

/// A size the way people write it.
fn size(mebibytes: u64) -> String {
    match mebibytes {
        tebi if tebi % (1 << 20) == 0 => format!("{}Ti", tebi >> 20),
        gibi if gibi % (1 << 10) == 0 => format!("{}Gi", gibi >> 10),
        mebi => format!("{mebi}Mi"),
    }
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
