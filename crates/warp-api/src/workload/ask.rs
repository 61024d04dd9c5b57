//! Reading of a spec's text: which GPUs it asks for, how long it may run.

use std::collections::BTreeSet;
use std::sync::Arc;

use warp_core::fleet::{GpuRequest, Part, Unit, WHOLE};
use warp_core::gpu::{self, Catalogue, Device, Form, Isolation, Model, Profile, Vendor};
use warp_core::resources::Quantity;

use super::{GPUWorkloadSpec, GpuSharing, GpuVendor, WorkloadGpu};

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
    /// Models of the catalogue that will not do, whatever is named.
    pub except: Vec<&'static str>,
    pub min_memory_mib: u64,
    pub count: u32,
    /// Whether they are its own, shared, or parts.
    pub part: Part,
    /// Thousandths of one GPU, where it asks for a fraction.
    pub milli: u32,
}

/// One name out of `spec.gpu.models`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Name {
    /// As the spec has it.
    pub text: String,
    /// The models the catalogue knows by it; none: it stands for the product label of that name.
    pub models: Vec<&'static Model>,
}

/// How GPU feature discovery ends the product of a node whose GPUs are shared.
const SHARED_PRODUCT: &str = "-SHARED";

impl Name {
    fn read(text: &str, known: &Catalogue) -> Result<Self, BadSpec> {
        if let Some(part) = gpu::partition(text) {
            return Err(BadSpec(format!(
                "spec.gpu.models: '{text}' names a part of a GPU ({part}): ask for it in spec.gpu.partition, and leave the part out of the model's name"
            )));
        }
        let upper = text.to_ascii_uppercase();
        if let Some(whole) = upper.strip_suffix(SHARED_PRODUCT) {
            let whole = &text[..whole.len()];
            return Err(BadSpec(format!(
                "spec.gpu.models: '{text}' is the label of GPUs that are shared: ask for {whole} with spec.gpu.sharing: shared"
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
        let (part, milli) = part(gpu)?;
        let profile = profile(gpu)?;
        let mut vendors: BTreeSet<Vendor> = names.iter().flat_map(Name::vendors).collect();
        if let (Some(profile), Some(text)) = (&profile, gpu.and_then(|gpu| gpu.partition.as_ref()))
        {
            let whose = profile.vendor();
            if let Some(other) = vendors.iter().find(|other| **other != whose) {
                return Err(BadSpec(format!(
                    "spec.gpu.partition '{text}' is a part of {whose} GPUs, but spec.gpu.models names {other} GPUs; drop one of the two"
                )));
            }
            vendors.insert(whose);
        }
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
                let named = if names.is_empty() {
                    "partition"
                } else {
                    "models"
                };
                return Err(BadSpec(format!(
                    "spec.gpu.vendor is {asked}, but spec.gpu.{named} names {} GPUs; drop one of the two",
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
            except: Vec::new(),
            min_memory_mib,
            count,
            part,
            milli,
        })
    }

    /// So many whole GPUs of a vendor.
    pub fn whole(vendor: Vendor, count: u32) -> Self {
        Self {
            vendor,
            names: Vec::new(),
            except: Vec::new(),
            min_memory_mib: 0,
            count,
            part: Part::Whole,
            milli: WHOLE,
        }
    }

    /// What it asks for in the core's words, without its models.
    pub fn request(&self) -> GpuRequest {
        GpuRequest {
            milli: self.milli,
            vendor: Some(Arc::from(self.vendor.as_str())),
            min_memory_bytes: self.min_memory_mib << 20,
            part: self.part.clone(),
            ..GpuRequest::whole(self.count)
        }
    }

    /// Names of resources its GPUs may have on a node, the usual one first.
    pub fn resources(&self) -> Vec<String> {
        let usual = self
            .vendor
            .resources()
            .iter()
            .map(|name| (*name).to_owned());
        let named = match &self.part {
            Part::Whole => None,
            Part::Partition { name, .. } => Some(name),
            Part::Shared { partition, .. } => partition.as_ref(),
        };
        let profile = named.and_then(|name| Profile::read(name));
        let own: Vec<String> = match (&self.part, profile) {
            (Part::Whole, _) => Vec::new(),
            (Part::Shared { .. }, None) if self.vendor == Vendor::Nvidia => {
                vec!["nvidia.com/gpu.shared".to_owned()]
            }
            (Part::Shared { .. }, Some(profile @ Profile::Mig { .. })) => {
                vec![format!("nvidia.com/mig-{profile}.shared")]
            }
            (_, Some(profile @ Profile::Mig { .. })) => vec![format!("nvidia.com/mig-{profile}")],
            (_, Some(Profile::Tile)) => return vec!["gpu.intel.com/tiles".to_owned()],
            (_, Some(Profile::Amd { mode, nps })) => {
                let modes = nps.map_or(vec![1, 2, 4, 8], |nps| vec![nps]);
                let name = |nps| Profile::Amd {
                    mode,
                    nps: Some(nps),
                };
                modes
                    .into_iter()
                    .map(|nps| format!("amd.com/{}", name(nps)))
                    .collect()
            }
            (_, None) => Vec::new(),
        };
        usual.chain(own).collect()
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

    /// Whether a device is of a model that will do, however it is handed out.
    pub fn names_meet(&self, device: &Device) -> bool {
        self.accepts(device)
    }

    /// Whether a group of devices may hand out one that will not do, whatever is named.
    pub fn excludes(&self, device: &Device) -> bool {
        let mut models = device.models.iter();
        models.any(|model| self.except.contains(&model.name))
    }

    fn accepts(&self, device: &Device) -> bool {
        if self.excludes(device) {
            return false;
        }
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
        let gpu = self.request();
        let Some(unit) = Unit::of(device).filter(|unit| unit.serves(&gpu)) else {
            return false;
        };
        let enough = |memory: u64| unit.memory_of(memory << 20, &gpu) >= gpu.min_memory_bytes;
        device.vendor == self.vendor
            && self.accepts(device)
            && (self.min_memory_mib == 0 || device.memory_mib.is_some_and(enough))
    }

    /// `2 nvidia H100-80GB or H200 GPUs with at least 80Gi each`, for messages.
    pub fn describe(&self) -> String {
        let several = self.count != 1;
        let mut whose = self.vendor.to_string();
        if !self.names.is_empty() {
            whose = format!("{whose} {}", self.model_names().join(" or "));
        }
        let mut text = match &self.part {
            Part::Whole => format!("{} {whose} GPU", self.count),
            Part::Partition { name, .. } => format!("{} {whose} {name} partition", self.count),
            Part::Shared { partition, .. } => {
                let of = partition
                    .as_deref()
                    .map_or(String::new(), |name| format!("{name} of "));
                let much = if self.milli < WHOLE {
                    format!("{} of ", thousandths(self.milli))
                } else {
                    String::new()
                };
                format!("{much}a shared {of}{whose} GPU")
            }
        };
        if several {
            text.push('s');
        }
        if let Some(isolation) = self.demanded_isolation() {
            text = format!("{text} with {isolation} isolation");
        }
        if self.min_memory_mib > 0 {
            text = format!("{text} with at least {} each", size(self.min_memory_mib));
        }
        text
    }

    /// What has to keep others off its memory, where that rules anything out.
    fn demanded_isolation(&self) -> Option<Isolation> {
        let isolation = match &self.part {
            Part::Whole => return None,
            Part::Shared { isolation, .. } | Part::Partition { isolation, .. } => *isolation,
        };
        (isolation > Isolation::None).then_some(isolation)
    }
}

/// `250` → `0.25`.
fn thousandths(milli: u32) -> String {
    let digits = format!("{milli:03}");
    format!("0.{}", digits.trim_end_matches('0'))
}

/// Which part of GPUs a spec is for, and how much of one in thousandths.
fn part(gpu: Option<&WorkloadGpu>) -> Result<(Part, u32), BadSpec> {
    let Some(gpu) = gpu else {
        return Ok((Part::Whole, WHOLE));
    };
    let milli = match &gpu.fraction {
        None => WHOLE,
        Some(text) => milli(text)?,
    };
    let profile = profile(Some(gpu))?;
    let partition = profile.map(|profile| Arc::from(profile.to_string()));
    let fraction = gpu.fraction.is_some();
    let shared = gpu.sharing == Some(GpuSharing::Shared) || fraction;
    let unsaid = if fraction {
        Isolation::Software
    } else {
        Isolation::None
    };
    let isolation = gpu.isolation.map_or(unsaid, Isolation::from);
    Ok(match (shared, partition) {
        (true, partition) => (
            Part::Shared {
                isolation,
                partition,
            },
            milli,
        ),
        (false, Some(name)) => (Part::Partition { name, isolation }, WHOLE),
        (false, None) => (Part::Whole, WHOLE),
    })
}

fn profile(gpu: Option<&WorkloadGpu>) -> Result<Option<Profile>, BadSpec> {
    let Some(text) = gpu.and_then(|gpu| gpu.partition.as_ref()) else {
        return Ok(None);
    };
    match Profile::read(text) {
        Some(profile) if profile.is_whole() => Err(BadSpec(format!(
            "spec.gpu.partition '{text}' is the whole GPU: leave it out"
        ))),
        Some(profile) => Ok(Some(profile)),
        None => Err(BadSpec(format!(
            "spec.gpu.partition '{text}' is no part of a GPU: write a MIG profile such as 1g.10gb, an AMD mode such as CPX or cpx_nps4, or tile"
        ))),
    }
}

/// `0.25` → 250.
fn milli(text: &str) -> Result<u32, BadSpec> {
    let digits = text.strip_prefix("0.").filter(|digits| digits.len() <= 3);
    let digits = digits.filter(|digits| digits.bytes().all(|byte| byte.is_ascii_digit()));
    let milli = digits.and_then(|digits| format!("{digits:0<3}").parse().ok());
    milli.filter(|milli| *milli > 0).ok_or_else(|| {
        BadSpec(format!(
            "spec.gpu.fraction '{text}' is not a part of one GPU such as 0.25"
        ))
    })
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
