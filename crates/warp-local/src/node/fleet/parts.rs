//! Pools whose GPUs are shared or cut into parts: the labels and resources their vendors' plugins would show.

use std::collections::BTreeMap;

use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use serde::Deserialize;
use warp_core::gpu::{Model, Profile, Vendor};

use super::super::spelling::hint;

/// Pods that one device takes by amount, as HAMi's plugin has it unless told otherwise.
const SEATS_BY_AMOUNT: u32 = 10;
const WAYS: [&str; 3] = ["time-slicing", "mps", "amount"];

/// `share: {by: mps, each: 4}`
#[derive(Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Share {
    /// `time-slicing`, `mps`, or `amount` for a library that keeps pods to what they ask for.
    by: String,
    /// Pods that share one device.
    each: Option<u32>,
}

/// What a node of such a pool shows.
#[derive(Default)]
pub(super) struct Shown {
    pub(super) labels: BTreeMap<String, String>,
    pub(super) devices: BTreeMap<String, u32>,
    pub(super) amounts: BTreeMap<String, Quantity>,
}

/// An error names the text to look for in the file.
type Complaint = (String, String);

/// What `gpus` devices of a model show when they are shared, or cut into these parts.
pub(super) fn shown(
    model: &Model,
    gpus: u32,
    share: Option<&Share>,
    partitions: &BTreeMap<String, u32>,
) -> Result<Shown, Complaint> {
    let usual = model.vendor.resources()[0].to_owned();
    let mut shown = Shown::default();
    match (share, partitions.is_empty()) {
        (None, true) => drop(shown.devices.insert(usual, gpus)),
        (Some(share), true) => shared(model, gpus, share, &mut shown)?,
        (None, false) => cut(model, gpus, partitions, &mut shown)?,
        (Some(share), false) => {
            let what = "share and partitions exclude each other here; make two pools";
            return Err((share.by.clone(), what.to_owned()));
        }
    }
    Ok(shown)
}

fn shared(model: &Model, gpus: u32, share: &Share, shown: &mut Shown) -> Result<(), Complaint> {
    let each = share.each.unwrap_or(SEATS_BY_AMOUNT);
    if !(2..=100).contains(&each) {
        let what = format!("share: each is {each}, and 2 to 100 pods share one device");
        return Err((each.to_string(), what));
    }
    if !WAYS.contains(&share.by.as_str()) {
        let what = format!(
            "share: by \"{}\" is not known{}",
            share.by,
            hint(&share.by, WAYS)
        );
        return Err((share.by.clone(), what));
    }
    let usual = model.vendor.resources()[0].to_owned();
    match (model.vendor, share.by.as_str()) {
        (Vendor::Nvidia, "amount") => {
            let memory = u64::from(model.memory_gib) * 1024 * u64::from(gpus);
            let amount = |text: String| Quantity(text);
            shown
                .amounts
                .insert("nvidia.com/gpumem".to_owned(), amount(memory.to_string()));
            let cores = u64::from(gpus) * 100;
            shown
                .amounts
                .insert("nvidia.com/gpucores".to_owned(), amount(cores.to_string()));
        }
        (Vendor::Nvidia, by) => {
            let product = format!("{}-SHARED", super::product(model));
            for (key, value) in [
                ("nvidia.com/gpu.product", product),
                ("nvidia.com/gpu.replicas", each.to_string()),
                ("nvidia.com/gpu.sharing-strategy", by.to_owned()),
            ] {
                shown.labels.insert(key.to_owned(), value);
            }
        }
        // Its plugin hands out more than the label counts.
        (Vendor::Intel, "time-slicing") => {}
        (vendor, by) => {
            let what = format!("share: no plugin shares {vendor} GPUs by {by}");
            return Err((share.by.clone(), what));
        }
    }
    shown.devices.insert(usual, gpus * each);
    Ok(())
}

fn cut(
    model: &Model,
    gpus: u32,
    partitions: &BTreeMap<String, u32>,
    shown: &mut Shown,
) -> Result<(), Complaint> {
    let usual = model.vendor.resources()[0].to_owned();
    for (name, &count) in partitions {
        let complain = |what: String| Err((name.clone(), what));
        let profile = match Profile::read(name) {
            Some(profile) if profile.vendor() == model.vendor && !profile.is_whole() => profile,
            _ => {
                return complain(format!(
                    "partitions: \"{name}\" is no part of a {}",
                    model.name
                ));
            }
        };
        match profile {
            Profile::Mig { .. } => {
                shown
                    .devices
                    .insert(format!("nvidia.com/mig-{profile}"), count);
                shown
                    .labels
                    .insert("nvidia.com/mig.strategy".to_owned(), "mixed".to_owned());
            }
            Profile::Amd { nps: None, .. } => {
                return complain(format!(
                    "partitions: say the memory mode too, such as {name}_nps1"
                ));
            }
            Profile::Amd { .. } if gpus == 0 && partitions.len() == 1 => {
                // One profile for the whole node: parts come under the usual name.
                let label = "amd.com/gpu.compute-memory-partition";
                shown.labels.insert(label.to_owned(), profile.to_string());
                shown.devices.insert(usual.clone(), count);
            }
            Profile::Amd { .. } => {
                shown.devices.insert(format!("amd.com/{profile}"), count);
                if gpus > 0 {
                    shown.devices.insert("amd.com/spx_nps1".to_owned(), gpus);
                }
            }
            Profile::Tile => {
                let cards = count.div_ceil(2);
                let label = "gpu.intel.com/device.count";
                shown.labels.insert(label.to_owned(), cards.to_string());
                shown
                    .devices
                    .insert("gpu.intel.com/tiles".to_owned(), count);
                shown.devices.insert(usual.clone(), cards * SEATS_BY_AMOUNT);
            }
        }
    }
    if model.vendor == Vendor::Nvidia && gpus > 0 {
        shown.devices.insert(usual, gpus);
    }
    Ok(())
}
