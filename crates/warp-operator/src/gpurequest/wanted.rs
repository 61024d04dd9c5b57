//! What a request asks for, read from its spec: models, places, prices and times, or why they cannot be read. Pure.

use jiff::SignedDuration;
use warp_api::GPURequestSpec;
use warp_api::cloudprovider::BootstrapType;
use warp_api::gpurequest::RequestAttempt;
use warp_api::price::Price;
use warp_api::workload::run_seconds;
use warp_cloud::Decimal;
use warp_core::gpu::{self, Vendor};

use super::costs;

/// A spec that makes sense.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Wanted {
    /// Models any of which will do; empty for any.
    pub(super) models: Vec<&'static str>,
    pub(super) vendor: Option<Vendor>,
    pub(super) min_memory_gib: u32,
    pub(super) gpus: u32,
    /// The best first; empty for any.
    pub(super) regions: Vec<String>,
    /// By name or type; empty for any.
    pub(super) providers: Vec<String>,
    pub(super) max_price: Option<Decimal>,
    pub(super) max_total: Option<Decimal>,
    pub(super) spot: Option<Spot>,
    pub(super) lifetime: Option<SignedDuration>,
    pub(super) idle: Option<SignedDuration>,
    /// How its machine becomes a node; none for as the provider says.
    pub(super) bootstrap: Option<BootstrapType>,
    pub(super) sets_image: bool,
    pub(super) sets_user_data: bool,
    /// Why what it is for cannot be one container at a cloud.
    pub(super) unfit: Option<String>,
}

/// A machine that the cloud may take back.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Spot {
    pub(super) max_price: Option<Decimal>,
    pub(super) wait: SignedDuration,
}

impl Wanted {
    /// Reads a spec; what is wrong with it names the field and what would be right.
    pub(super) fn of(spec: &GPURequestSpec) -> Result<Self, String> {
        let mut models = Vec::new();
        for name in spec.gpu_type.iter().chain(&spec.gpu_models) {
            if let Some(part) = gpu::partition(name) {
                return Err(format!(
                    "'{name}' is a part of a GPU ({part}) and clouds rent whole ones: name the GPU"
                ));
            }
            let found = gpu::named(name);
            if found.is_empty() {
                return Err(format!(
                    "'{name}' is no GPU of the catalogue: write it as its vendor does, such as H100 or RTX 4090"
                ));
            }
            models.extend(found.iter().map(|model| model.name));
        }
        let max_price = money("maxPrice", spec.max_price.as_ref())?;
        let spot_price = money("maxSpotPrice", spec.max_spot_price.as_ref())?;
        if spot_price.is_some() && !spec.spot_instance {
            return Err(
                "spec.maxSpotPrice belongs to spotInstance: true; set that, or take it out"
                    .to_owned(),
            );
        }
        let wait = time("spotWait", spec.spot_wait.as_deref())?;
        Ok(Self {
            models,
            vendor: spec.gpu_vendor.map(Vendor::from),
            min_memory_gib: gibibytes(spec.min_memory.as_deref())?,
            gpus: u32::try_from(spec.gpu_count).unwrap_or(1).max(1),
            regions: spec
                .region
                .iter()
                .chain(&spec.region_preference)
                .cloned()
                .collect(),
            providers: spec
                .provider
                .iter()
                .chain(&spec.providers)
                .cloned()
                .collect(),
            max_price,
            max_total: money("maxTotalPrice", spec.max_total_price.as_ref())?,
            spot: spec.spot_instance.then(|| Spot {
                max_price: spot_price.or(max_price),
                wait: wait.unwrap_or(SignedDuration::ZERO),
            }),
            lifetime: time("maxLifetime", spec.max_lifetime.as_deref())?,
            idle: time("idleTimeout", spec.idle_timeout.as_deref())?,
            bootstrap: spec.bootstrap.as_ref().map(|said| said.kind),
            sets_image: spec.image.is_some(),
            sets_user_data: spec.user_data.is_some(),
            unfit: None,
        })
    }

    /// What binds a machine that is there, also when the spec makes no sense any more: every limit that can be read.
    pub(super) fn limits_of(spec: &GPURequestSpec) -> Self {
        Self::of(spec).unwrap_or_else(|_| Self {
            models: Vec::new(),
            vendor: None,
            min_memory_gib: 0,
            gpus: 1,
            regions: Vec::new(),
            providers: Vec::new(),
            max_price: None,
            max_total: money("maxTotalPrice", spec.max_total_price.as_ref()).unwrap_or_default(),
            spot: None,
            lifetime: time("maxLifetime", spec.max_lifetime.as_deref()).unwrap_or_default(),
            idle: time("idleTimeout", spec.idle_timeout.as_deref()).unwrap_or_default(),
            bootstrap: None,
            sets_image: false,
            sets_user_data: false,
            unfit: None,
        })
    }

    /// How a machine that is there differs from what the spec asks for by now, if it does.
    pub(super) fn differs(spec: &GPURequestSpec, attempt: &RequestAttempt) -> Option<String> {
        let wanted = match Self::of(spec) {
            Ok(wanted) => wanted,
            Err(problem) => {
                return Some(format!(
                    "{problem}; the machine is kept, within those of its limits that can be read"
                ));
            }
        };
        let model = wanted.models.is_empty() || wanted.models.contains(&attempt.gpu.as_str());
        let dear = wanted
            .max_price
            .is_some_and(|most| costs::price(attempt) > most);
        let differs = !model || attempt.gpus < wanted.gpus || dear;
        differs.then(|| {
            let price = wanted.max_price.map(|most| format!(" for at most {most} an hour"));
            format!(
                "the spec asks for {}{} by now, and a machine that is there is not exchanged: delete the request and make another",
                wanted.gpu(),
                price.unwrap_or_default()
            )
        })
    }

    /// The GPUs in words.
    pub(super) fn gpu(&self) -> String {
        let models = if self.models.is_empty() {
            let vendor = self.vendor.map(|vendor| format!("{vendor} "));
            let memory = self.min_memory_gib;
            format!("{}GPU with {memory} GiB", vendor.unwrap_or_default())
        } else {
            self.models.join(" or ")
        };
        format!("{} x {models}", self.gpus)
    }
}

fn money(field: &str, price: Option<&Price>) -> Result<Option<Decimal>, String> {
    let read = price.map(Price::decimal).transpose();
    read.map_err(|problem| format!("spec.{field}: {problem}; correct it"))
}

fn time(field: &str, text: Option<&str>) -> Result<Option<SignedDuration>, String> {
    let Some(text) = text else {
        return Ok(None);
    };
    let seconds = run_seconds(text)
        .ok_or_else(|| format!("spec.{field}: '{text}' is not a time such as 30m or 8h"))?;
    Ok(Some(SignedDuration::from_secs(seconds)))
}

fn gibibytes(text: Option<&str>) -> Result<u32, String> {
    let Some(text) = text else {
        return Ok(0);
    };
    let number = text
        .strip_suffix("Gi")
        .and_then(|number| number.parse().ok());
    number.ok_or_else(|| format!("spec.minMemory: '{text}' is not a size such as 40Gi"))
}
