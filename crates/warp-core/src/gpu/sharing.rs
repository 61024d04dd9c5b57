//! Whether one unit of a resource is a device of one's own, a seat on a shared one, or a part of one. Read from the
//! resource's name, the node's labels and what is allocatable beside it.

use std::collections::BTreeMap;

use super::part::{Isolation, Profile};
use super::{Model, Vendor};

/// HAMi's device memory in MiB and percent of compute, as its plugin lists them for the whole node.
const LIMITED_MEMORY: &str = "nvidia.com/gpumem";
const LIMITED_CORES: &str = "nvidia.com/gpucores";
/// Tiles of Intel GPUs, each handed out beside a seat on its card.
const TILES: &str = "gpu.intel.com/tiles";

type Labels = BTreeMap<String, String>;
type Counts = BTreeMap<String, u64>;

/// Whether one unit of a resource is a device of one's own.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Sharing {
    Exclusive,
    /// Several pods hold the same device.
    Shared(Seats),
    /// One unit is a part of a device.
    Slice(Profile),
    /// Some part of a device that no name we know stands for: nobody is given it.
    Unknown(String),
}

/// A device, or a part of one, that several pods hold at once.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Seats {
    pub by: SharedBy,
    pub partition: Option<Profile>,
}

/// Who lets several pods hold one device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SharedBy {
    TimeSlicing,
    /// NVIDIA's MPS as its device plugin sets it up: an even part of memory and threads for each.
    Mps,
    /// A device plugin that hands the same device to several (Intel's `-shared-dev-num`).
    Plugin,
    /// A library that keeps each to the amounts its pod asks for.
    Limits(Limits),
}

/// Resources a pod asks for its part of a device under.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Limits {
    /// MiB.
    pub memory: String,
    /// Percent of one device.
    pub cores: Option<String>,
    pub devices: u32,
    /// MiB of one device that can be asked for.
    pub device_mib: u64,
}

impl SharedBy {
    pub fn isolation(&self) -> Isolation {
        match self {
            Self::TimeSlicing | Self::Plugin => Isolation::None,
            Self::Mps | Self::Limits(_) => Isolation::Software,
        }
    }
}

impl Sharing {
    pub fn isolation(&self) -> Isolation {
        match self {
            Self::Exclusive => Isolation::Hardware,
            Self::Shared(seats) => seats.by.isolation(),
            Self::Slice(profile) => profile.isolation(),
            Self::Unknown(_) => Isolation::None,
        }
    }
}

/// What a resource's name says of its units.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Offer {
    pub(super) vendor: Vendor,
    pub(super) profile: Option<Profile>,
    /// Renamed because it is shared.
    pub(super) shared: bool,
}

impl Offer {
    pub(super) fn of(resource: &str) -> Option<Self> {
        let offer = |vendor, profile, shared| {
            Some(Self {
                vendor,
                profile,
                shared,
            })
        };
        if let Some(vendor) = Vendor::of_resource(resource) {
            return offer(vendor, None, false);
        }
        if resource == TILES {
            return offer(Vendor::Intel, Some(Profile::Tile), false);
        }
        if resource == "nvidia.com/gpu.shared" {
            return offer(Vendor::Nvidia, None, true);
        }
        if let Some(name) = resource.strip_prefix("nvidia.com/mig-") {
            let (name, shared) = match name.strip_suffix(".shared") {
                Some(name) => (name, true),
                None => (name, false),
            };
            return offer(Vendor::Nvidia, Some(Profile::read(name)?), shared);
        }
        let profile = Profile::read(resource.strip_prefix("amd.com/")?)?;
        let amd = profile.vendor() == Vendor::Amd;
        let profile = Some(profile).filter(|profile| !profile.is_whole());
        amd.then(|| offer(Vendor::Amd, profile, false)).flatten()
    }
}

impl Vendor {
    /// The vendor whose devices, or parts or shares of them, a resource name counts.
    pub fn of_units(resource: &str) -> Option<Self> {
        Offer::of(resource).map(|offer| offer.vendor)
    }
}

/// What is known before sharing is: the resource, what its labels say, and its surroundings.
pub(super) struct Facts<'a> {
    pub(super) offer: Offer,
    pub(super) resource: &'a str,
    pub(super) count: u64,
    pub(super) labels: &'a Labels,
    pub(super) allocatable: &'a Counts,
    pub(super) model: Option<&'static Model>,
    /// A profile that a label names, and whether one says that units are shared.
    pub(super) labelled: Option<&'a str>,
    pub(super) shared: bool,
    pub(super) memory_mib: Option<u64>,
}

/// How the units of a resource relate to devices.
pub(super) struct Units {
    pub(super) sharing: Sharing,
    /// Thousandths of a device one unit counts as.
    pub(super) milli: u32,
    pub(super) memory_mib: Option<u64>,
    /// Another resource of which one goes with each request.
    pub(super) beside: Option<String>,
}

impl Facts<'_> {
    pub(super) fn units(&self) -> Units {
        let profile = match (&self.offer.profile, self.labelled) {
            (Some(profile), _) => Some(profile.clone()),
            (None, None) => None,
            (None, Some(name)) => match Profile::read(name) {
                Some(profile) if profile.is_whole() => None,
                Some(profile) => Some(profile),
                None => return self.unknown(name),
            },
        };
        let tiles = self.tiles();
        let (part, part_memory) = match &profile {
            None => (1000, self.memory_mib),
            Some(profile) => (
                profile.milli(self.model, tiles),
                self.part_memory(profile, tiles),
            ),
        };
        match self.seats() {
            Some((by, per_device)) => {
                let memory = match &by {
                    SharedBy::Mps => part_memory.map(|memory| self.even(memory, per_device)),
                    _ => part_memory,
                };
                Units {
                    // Nobody says how many sit on one device: each may have it whole.
                    milli: if per_device > 1 {
                        part / per_device
                    } else {
                        part
                    },
                    memory_mib: memory,
                    beside: None,
                    sharing: Sharing::Shared(Seats {
                        by,
                        partition: profile,
                    }),
                }
            }
            None => Units {
                milli: part,
                memory_mib: part_memory,
                beside: self.beside(),
                sharing: profile.map_or(Sharing::Exclusive, Sharing::Slice),
            },
        }
    }

    fn unknown(&self, name: &str) -> Units {
        Units {
            sharing: Sharing::Unknown(name.to_owned()),
            milli: 1000,
            memory_mib: self.memory_mib,
            beside: None,
        }
    }

    /// Tiles of one card.
    fn tiles(&self) -> u32 {
        let of_model = self.model.map_or(1, |model| model.devices_per_card);
        let cards = self
            .number("gpu.intel.com/device.count")
            .filter(|cards| *cards > 0);
        let told = cards.map(|cards| self.count.div_ceil(cards));
        let told = told.and_then(|tiles| u32::try_from(tiles).ok());
        told.unwrap_or(of_model).max(1)
    }

    fn part_memory(&self, profile: &Profile, tiles: u32) -> Option<u64> {
        // On a node of one profile the usual label is the part's own; on a mixed one each has its label.
        let own = match profile {
            Profile::Mig { .. } => self
                .number(&format!("nvidia.com/mig-{profile}.memory"))
                .or(self.memory_mib.filter(|_| self.labelled.is_some())),
            _ => None,
        };
        let computed = if matches!(profile, Profile::Tile) {
            // The catalogue describes cards of several tiles by one tile.
            let paired = self.model.is_some_and(|model| model.devices_per_card > 1);
            profile.memory_mib(self.model, if paired { 1 } else { tiles })
        } else {
            profile.memory_mib(self.model, tiles)
        };
        own.or(computed)
    }

    /// Who shares the device, and how many sit on it; 0 where nobody says.
    fn seats(&self) -> Option<(SharedBy, u32)> {
        match self.offer.vendor {
            Vendor::Nvidia => self.nvidia_seats(),
            Vendor::Intel if self.offer.profile.is_none() => {
                let cards = self.number("gpu.intel.com/device.count")?;
                let each = self
                    .count
                    .checked_div(cards)
                    .map(|_| self.count.div_ceil(cards))?;
                let each = u32::try_from(each).ok()?;
                (each > 1).then_some((SharedBy::Plugin, each))
            }
            _ => None,
        }
    }

    fn nvidia_seats(&self) -> Option<(SharedBy, u32)> {
        if self.resource == "nvidia.com/gpu"
            && let Some(limits) = self.limits()
        {
            return Some((SharedBy::Limits(limits), 0));
        }
        let stem = match &self.offer.profile {
            Some(profile) => format!("nvidia.com/mig-{profile}"),
            None => "nvidia.com/gpu".to_owned(),
        };
        let replicas = self.number(&format!("{stem}.replicas")).unwrap_or(0);
        if !self.shared && !self.offer.shared && replicas < 2 {
            return None;
        }
        let per_device = if replicas > 1 {
            replicas
        } else {
            let devices = self.number(&format!("{stem}.count")).unwrap_or(0);
            self.count.checked_div(devices).unwrap_or(0)
        };
        let strategy = self.labels.get(&format!("{stem}.sharing-strategy"));
        let by = match strategy.map(String::as_str) {
            Some("mps") => SharedBy::Mps,
            _ => SharedBy::TimeSlicing,
        };
        Some((by, u32::try_from(per_device).unwrap_or(0)))
    }

    /// A library keeps pods to their amounts: the node counts memory beside devices.
    fn limits(&self) -> Option<Limits> {
        let listed = |name: &str| {
            self.allocatable
                .get(name)
                .copied()
                .filter(|total| *total > 0)
        };
        let memory = listed(LIMITED_MEMORY)?;
        let cores = listed(LIMITED_CORES);
        let devices = cores
            .map(|cores| cores / 100)
            .filter(|devices| *devices > 0)
            .or_else(|| self.number("nvidia.com/gpu.count"))?;
        Some(Limits {
            memory: LIMITED_MEMORY.to_owned(),
            cores: cores.map(|_| LIMITED_CORES.to_owned()),
            devices: u32::try_from(devices).ok()?,
            device_mib: memory.checked_div(devices)?,
        })
    }

    /// What each seat of an MPS device may use: some labellers write it, others the whole device's.
    fn even(&self, memory: u64, per_device: u32) -> u64 {
        let whole = self.model.map(|model| u64::from(model.memory_gib) * 1024);
        let divided = whole.is_some_and(|whole| memory * 2 <= whole);
        if divided {
            memory
        } else {
            memory / u64::from(per_device.max(1))
        }
    }

    /// A tile is handed out beside a seat on its card.
    fn beside(&self) -> Option<String> {
        if self.resource != TILES {
            return None;
        }
        let mut cards = Vendor::Intel.resources().iter();
        let there = cards.find(|name| self.allocatable.get(**name).is_some_and(|count| *count > 0));
        there.map(|name| (*name).to_owned())
    }

    fn number(&self, label: &str) -> Option<u64> {
        self.labels.get(label)?.parse().ok()
    }
}
