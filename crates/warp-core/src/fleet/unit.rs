//! What one unit of a pool is: a card of one's own, a part of one, or a seat on one that others hold too; and which of
//! these a request is for.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::request::{GpuRequest, Request, WHOLE};
use crate::gpu::{Device, Isolation, Profile, SharedBy, Sharing};
use crate::resources::Resources;

/// One unit of a pool. The default is a whole card of one's own.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default, deny_unknown_fields)]
pub struct Unit {
    /// Thousandths of a card it counts as. A whole card's worth on a shared one: nobody says how many share it.
    pub milli: u32,
    /// The part of a card it is, by its profile's name.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub partition: Option<Arc<str>>,
    /// Others hold the same card, or the same part.
    pub shared: bool,
    /// What keeps others out of it.
    pub isolation: Isolation,
    /// Parts are asked for by amount, of cards that are known one by one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub limits: Option<Limits>,
    /// Another resource of which one goes with each request.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub beside: Option<Arc<str>>,
}

/// The resources that say how much of a card a pod gets.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Limits {
    /// MiB.
    pub memory: Arc<str>,
    /// Percent of a card.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cores: Option<Arc<str>>,
    /// MiB one card has to give.
    pub card_mib: u64,
}

/// Which part of a card a request is for.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Part {
    /// Cards of its own.
    #[default]
    Whole,
    /// A card that others hold too, kept apart at least like this; of a partition, where one is named.
    Shared {
        isolation: Isolation,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        partition: Option<Arc<str>>,
    },
    /// Parts of this profile, of its own.
    Partition {
        name: Arc<str>,
        isolation: Isolation,
    },
}

impl Default for Unit {
    fn default() -> Self {
        Self {
            milli: WHOLE,
            partition: None,
            shared: false,
            isolation: Isolation::Hardware,
            limits: None,
            beside: None,
        }
    }
}

impl Unit {
    /// The units a node offers under one resource name; none for parts that nobody can name.
    pub fn of(device: &Device) -> Option<Self> {
        let plain = Self {
            milli: device.milli,
            isolation: device.sharing.isolation(),
            beside: device.beside.as_deref().map(Arc::from),
            ..Self::default()
        };
        let named = |profile: &Profile| Arc::from(profile.to_string());
        Some(match &device.sharing {
            Sharing::Exclusive => plain,
            Sharing::Slice(profile) => Self {
                partition: Some(named(profile)),
                ..plain
            },
            Sharing::Shared(seats) => Self {
                shared: true,
                partition: seats.partition.as_ref().map(named),
                limits: match &seats.by {
                    SharedBy::Limits(limits) => Some(Limits {
                        memory: Arc::from(limits.memory.as_str()),
                        cores: limits.cores.as_deref().map(Arc::from),
                        card_mib: limits.device_mib,
                    }),
                    _ => None,
                },
                ..plain
            },
            Sharing::Unknown(_) => return None,
        })
    }

    pub fn is_whole(&self) -> bool {
        !self.shared && self.partition.is_none()
    }

    /// Whether units like this are what a request is for.
    pub fn serves(&self, gpu: &GpuRequest) -> bool {
        let same = |name: &str, offered: &str| {
            let (name, offered) = (Profile::read(name), Profile::read(offered));
            name.zip(offered)
                .is_some_and(|(name, offered)| name.covers(&offered))
        };
        match &gpu.part {
            Part::Whole => self.is_whole(),
            Part::Partition { name, isolation } => {
                let offered = self.partition.as_deref();
                !self.shared
                    && offered.is_some_and(|offered| same(name, offered))
                    && self.isolation >= *isolation
            }
            Part::Shared {
                isolation,
                partition,
            } => {
                let fits = match (&self.limits, gpu.is_fraction()) {
                    // Without an amount the library gives the whole card.
                    (Some(_), fraction) => fraction,
                    (None, true) => self.milli < WHOLE && self.milli >= gpu.milli,
                    (None, false) => true,
                };
                let part = match (partition, &self.partition) {
                    (None, None) => true,
                    (Some(name), Some(offered)) => same(name, offered),
                    _ => false,
                };
                self.shared && self.isolation >= *isolation && fits && part
            }
        }
    }

    /// The memory a request gets of a unit of this memory.
    pub fn memory_of(&self, bytes: u64, gpu: &GpuRequest) -> u64 {
        match self.limits {
            Some(_) => bytes / u64::from(WHOLE) * u64::from(gpu.milli),
            None => bytes,
        }
    }

    /// Thousandths of a card that a request counts as here.
    pub fn counts(&self, gpu: &GpuRequest) -> i64 {
        let each = if self.limits.is_some() {
            gpu.milli
        } else {
            self.milli
        };
        i64::from(gpu.count) * i64::from(each)
    }

    /// What a pod asks for besides the units themselves, by resource name.
    pub fn extras(&self, gpu: &GpuRequest) -> BTreeMap<Arc<str>, i64> {
        let mut all = BTreeMap::new();
        if let Some(beside) = &self.beside {
            all.insert(Arc::clone(beside), 1);
        }
        if let Some(limits) = &self.limits {
            let mebibytes = limits.card_mib * u64::from(gpu.milli) / u64::from(WHOLE);
            let mebibytes = i64::try_from(mebibytes).unwrap_or(i64::MAX);
            all.insert(Arc::clone(&limits.memory), mebibytes);
            if let Some(cores) = &limits.cores {
                all.insert(Arc::clone(cores), i64::from((gpu.milli / 10).max(1)));
            }
        }
        all
    }

    /// What a request takes under every name, for as long as its pod does not say so itself.
    pub(super) fn takes(&self, resource: &str, gpu: &GpuRequest) -> Resources {
        let mut taken = Resources::default().with(resource, i64::from(gpu.count));
        for (name, amount) in self.extras(gpu) {
            taken.extended.insert(name, amount);
        }
        taken
    }

    /// How much of a card each unit that a pod holds by name takes, in thousandths. One that names no amount gets the
    /// whole card.
    pub fn share_of(&self, request: &Request) -> u32 {
        let Some(limits) = &self.limits else {
            return self.milli;
        };
        let named = |name: &str| u64::try_from(request.resources.extended(name)).unwrap_or(0);
        let memory = named(&limits.memory) * u64::from(WHOLE);
        let mut milli = memory.div_ceil(limits.card_mib.max(1));
        let percent = named(&format!("{}-percentage", limits.memory));
        milli = milli.max(percent * 10);
        if milli == 0 {
            return WHOLE;
        }
        let cores = limits.cores.as_ref().map_or(0, |cores| named(cores));
        u32::try_from(milli.max(cores * 10))
            .unwrap_or(WHOLE)
            .min(WHOLE)
    }
}

impl std::fmt::Display for Unit {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match (&self.partition, self.shared) {
            (None, false) => out.write_str("whole GPUs"),
            (Some(name), false) => write!(out, "{name}"),
            (None, true) => out.write_str("shared GPUs"),
            (Some(name), true) => write!(out, "shared {name}"),
        }?;
        if self.limits.is_some() {
            out.write_str(" by amount")
        } else if self.shared && self.milli < WHOLE {
            write!(out, " (1/{} each)", WHOLE / self.milli.max(1))
        } else {
            Ok(())
        }
    }
}

/// Puts shares that name no card on cards: the largest first, each where it leaves least. What fits nowhere overdraws the
/// emptiest card. Depends on the shares alone, not on the order they came in.
pub(crate) fn pack(left: &mut [i32], shares: &BTreeMap<u32, u32>) {
    for (&milli, &count) in shares.iter().rev() {
        let milli = milli.cast_signed();
        for _ in 0..count {
            let roomy = left.iter_mut().filter(|left| **left >= milli);
            let tightest = roomy.min_by_key(|left| **left);
            match tightest {
                Some(left) => *left -= milli,
                None => {
                    if let Some(left) = left.iter_mut().max_by_key(|left| **left) {
                        *left -= milli;
                    }
                }
            }
        }
    }
}
