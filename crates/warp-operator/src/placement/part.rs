//! Shares and parts of GPUs in the words of people and of pods: what a place means for whoever shares it, what goes into
//! its pod, and what nodes offer where nothing fits. Pure.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::Container;
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use warp_api::workload::GpuAsk;
use warp_core::fleet::{GpuRequest, Part, Unit};
use warp_core::gpu::{Device, Isolation, Profile, SharedBy, Sharing};

use crate::ledger::{Ledger, model_name};

/// Gives a container what goes with its GPUs.
pub(crate) fn add(container: Option<&mut Container>, extra: &BTreeMap<String, i64>) {
    let Some(container) = container.filter(|_| !extra.is_empty()) else {
        return;
    };
    let resources = container.resources.get_or_insert_default();
    for list in [&mut resources.limits, &mut resources.requests] {
        let list = list.get_or_insert_default();
        for (name, amount) in extra {
            list.insert(name.clone(), Quantity(amount.to_string()));
        }
    }
}

/// What it means to have this part of a device; none where the device is one's own.
pub(super) fn told(device: &Device, asked: &GpuRequest) -> Option<String> {
    let isolation = device.sharing.isolation();
    Some(match &device.sharing {
        Sharing::Exclusive | Sharing::Unknown(_) => return None,
        Sharing::Slice(profile) => {
            let kept = match (isolation, profile) {
                (Isolation::None, Profile::Amd { .. }) => {
                    "its compute is its own, its memory is shared with the other partitions of the GPU"
                }
                _ => "its memory and compute are its own",
            };
            let several = if asked.count == 1 { "" } else { "s" };
            format!(
                "{} {profile} partition{several}, isolation {isolation}: {kept}",
                asked.count
            )
        }
        Sharing::Shared(seats) => {
            let unit = Unit::of(device)?;
            let of = match &seats.partition {
                Some(profile) => format!("a {profile} partition"),
                None => "a GPU".to_owned(),
            };
            let share = match device.milli {
                1000 => "a share".to_owned(),
                milli => format!("1/{}", 1000 / milli.max(1)),
            };
            match &seats.by {
                SharedBy::TimeSlicing | SharedBy::Plugin => {
                    let how = match seats.by {
                        SharedBy::TimeSlicing => "time slicing",
                        _ => "its device plugin",
                    };
                    format!(
                        "{share} of {of} shared by {how}, isolation {isolation}: nothing keeps others off its memory"
                    )
                }
                SharedBy::Mps => format!(
                    "{share} of {of} shared by MPS, isolation {isolation}: each is held to its part of memory and threads"
                ),
                SharedBy::Limits(limits) => {
                    let memory = unit.extras(asked).get(limits.memory.as_str()).copied();
                    format!(
                        "{} of a GPU by amount, isolation {isolation}: a library holds it to {} MiB",
                        warp_core::tenancy::gpus(i64::from(asked.milli)),
                        memory.unwrap_or_default()
                    )
                }
            }
        }
    })
}

/// Why no node has what an ask for a share or a part is for; none for whole GPUs.
pub(super) fn unoffered(ledger: &Ledger, ask: &GpuAsk) -> Option<String> {
    let wanted = match &ask.part {
        Part::Whole => return None,
        Part::Partition { name, isolation } => {
            let noun = Profile::read(name).map_or("partition", |profile| profile.noun());
            let mut wanted = format!("{noun} {name}");
            if !ask.names.is_empty() {
                wanted = format!("{wanted} of {}", ask.model_names().join(" or "));
            }
            if *isolation > Isolation::None {
                wanted = format!("{wanted} with {isolation} isolation");
            }
            wanted
        }
        Part::Shared { .. } => ask.describe(),
    };
    let mut text = format!("no node offers {wanted}; {}", offers(ledger, ask));
    if let Some(more) = with_less(ledger, ask) {
        text = format!("{text}; {more}");
    }
    Some(text)
}

/// `3 nodes offer 1g.10gb, 1 node offers whole GPUs`, of the vendor and the models asked for where there are such.
fn offers(ledger: &Ledger, ask: &GpuAsk) -> String {
    let of_vendor = |device: &&Device| device.vendor == ask.vendor && device.count > 0;
    let named = |device: &&Device| {
        let plain = GpuAsk {
            names: ask.names.clone(),
            ..GpuAsk::whole(ask.vendor, 1)
        };
        of_vendor(device) && plain.names_meet(device)
    };
    let count = |wanted: &dyn Fn(&&Device) -> bool| {
        let mut nodes: BTreeMap<String, usize> = BTreeMap::new();
        for gpus in ledger.gpus.values() {
            let mut here: Vec<String> = gpus
                .devices
                .iter()
                .filter(wanted)
                .filter_map(|device| Some(offered(device, &Unit::of(device)?)))
                .collect();
            here.sort();
            here.dedup();
            for unit in here {
                *nodes.entry(unit).or_default() += 1;
            }
        }
        nodes
    };
    let mut found = count(&named);
    if found.is_empty() {
        found = count(&of_vendor);
    }
    if found.is_empty() {
        return format!("the cluster has no {} GPU", ask.vendor);
    }
    let list: Vec<String> = found
        .iter()
        .map(|(unit, nodes)| match nodes {
            1 => format!("1 node offers {unit}"),
            nodes => format!("{nodes} nodes offer {unit}"),
        })
        .collect();
    list.join(", ")
}

/// A unit with the model it is of, where that is known.
fn offered(device: &Device, unit: &Unit) -> String {
    let model = model_name(device);
    let unit = if unit.is_whole() {
        "whole GPUs".to_owned()
    } else {
        unit.to_string()
    };
    if model.is_empty() {
        unit
    } else {
        format!("{unit} of {model}")
    }
}

/// What the ask would find if it asked for less protection, or for a smaller share.
fn with_less(ledger: &Ledger, ask: &GpuAsk) -> Option<String> {
    let nodes = |ask: &GpuAsk| {
        let meets = |gpus: &&warp_core::gpu::NodeGpus| {
            let mut devices = gpus.devices.iter();
            devices.any(|device| device.count > 0 && ask.met_by(device))
        };
        ledger.gpus.values().filter(meets).count()
    };
    let mut lax = ask.clone();
    match &mut lax.part {
        Part::Whole => return None,
        Part::Shared { isolation, .. } | Part::Partition { isolation, .. } => {
            *isolation = Isolation::None;
        }
    }
    let found = nodes(&lax);
    (found > 0 && lax != *ask).then(|| {
        format!(
            "with spec.gpu.isolation: none it could run on {found} node{}",
            if found == 1 { "" } else { "s" }
        )
    })
}
