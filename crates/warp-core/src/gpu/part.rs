//! Parts of a GPU: what names such as `1g.10gb`, `CPX` or `tile` stand for, and what keeps those who share a device apart.

use super::{Model, Vendor};

/// What keeps pods that share a device from each other's memory and time. Each level is worth more than the one before.
#[derive(
    Clone,
    Copy,
    Debug,
    Default,
    PartialEq,
    Eq,
    PartialOrd,
    Ord,
    serde::Serialize,
    serde::Deserialize,
)]
#[serde(rename_all = "lowercase")]
pub enum Isolation {
    /// Nothing: each sees the whole memory and takes what time it gets.
    None,
    /// A limit that a library or a daemon keeps (MPS, HAMi).
    Software,
    /// The device itself, or a device of one's own.
    #[default]
    Hardware,
}

impl Isolation {
    pub fn as_str(self) -> &'static str {
        match self {
            Self::None => "none",
            Self::Software => "software",
            Self::Hardware => "hardware",
        }
    }
}

impl std::fmt::Display for Isolation {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.write_str(self.as_str())
    }
}

/// A way of cutting a device into parts, by the one name everybody means.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Profile {
    /// `1g.10gb`, `1g.10gb.me`: compute slices and GB of memory.
    Mig {
        slices: u32,
        gigabytes: u32,
        extra: String,
    },
    /// `cpx`, `cpx_nps4`: compute mode and, where said, memory mode.
    Amd { mode: AmdMode, nps: Option<u32> },
    /// One tile of an Intel GPU.
    Tile,
}

/// Compute modes of AMD Instinct. SPX is the whole device and no part of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum AmdMode {
    Spx,
    Dpx,
    Tpx,
    Qpx,
    Cpx,
}

impl AmdMode {
    const ALL: [(&'static str, Self); 5] = [
        ("spx", Self::Spx),
        ("dpx", Self::Dpx),
        ("tpx", Self::Tpx),
        ("qpx", Self::Qpx),
        ("cpx", Self::Cpx),
    ];

    fn as_str(self) -> &'static str {
        let mut all = Self::ALL.into_iter();
        all.find(|(_, mode)| *mode == self)
            .map_or("", |found| found.0)
    }

    /// Parts of one device of a model: CPX makes one of every compute die.
    fn parts(self, model: Option<&Model>) -> u32 {
        match self {
            Self::Spx => 1,
            Self::Dpx => 2,
            Self::Tpx => 3,
            Self::Qpx => 4,
            Self::Cpx => match model.map_or("", |model| model.name) {
                "MI300A" => 6,
                "MI308X" => 4,
                _ => 8,
            },
        }
    }
}

impl Profile {
    /// Reads a profile's name in any vendor's spelling.
    pub fn read(text: &str) -> Option<Self> {
        let text = text.trim().to_ascii_lowercase().replace('+', ".");
        let text = text.strip_prefix("mig-").unwrap_or(&text);
        if matches!(text, "tile" | "tiles") {
            return Some(Self::Tile);
        }
        Self::mig(text).or_else(|| Self::amd(text))
    }

    fn mig(text: &str) -> Option<Self> {
        let mut words = text.split('.');
        let slices = number(words.next()?.strip_suffix('g')?)?;
        let gigabytes = number(words.next()?.strip_suffix("gb")?)?;
        let extra: Vec<&str> = words.collect();
        let letters =
            |word: &&str| !word.is_empty() && word.bytes().all(|byte| byte.is_ascii_lowercase());
        (slices > 0 && slices <= 7 && gigabytes > 0 && extra.iter().all(letters)).then(|| {
            Self::Mig {
                slices,
                gigabytes,
                extra: extra.join("."),
            }
        })
    }

    fn amd(text: &str) -> Option<Self> {
        let (mode, memory) = match text.split_once(['_', '-', '/']) {
            Some((mode, memory)) => (mode, Some(memory)),
            None => (text, None),
        };
        let mut all = AmdMode::ALL.into_iter();
        let (_, mode) = all.find(|(name, _)| *name == mode)?;
        let nps = match memory {
            None => None,
            Some(memory) => Some(number(memory.strip_prefix("nps")?)?),
        };
        Some(Self::Amd { mode, nps })
    }

    pub fn vendor(&self) -> Vendor {
        match self {
            Self::Mig { .. } => Vendor::Nvidia,
            Self::Amd { .. } => Vendor::Amd,
            Self::Tile => Vendor::Intel,
        }
    }

    /// Whether it is a whole device by another name.
    pub fn is_whole(&self) -> bool {
        matches!(
            self,
            Self::Amd {
                mode: AmdMode::Spx,
                ..
            }
        )
    }

    /// Whether a part that is offered is one that was asked for: who names no memory mode takes any.
    pub fn covers(&self, offered: &Self) -> bool {
        match (self, offered) {
            (Self::Amd { mode, nps: None }, Self::Amd { mode: other, .. }) => mode == other,
            _ => self == offered,
        }
    }

    /// Thousandths of a device that one part counts as. A part that takes much memory for its compute, or the other way
    /// round, counts by what it takes more of: no more of them fit on the device.
    pub fn milli(&self, model: Option<&Model>, tiles: u32) -> u32 {
        match self {
            Self::Mig {
                slices, gigabytes, ..
            } => {
                let most = if model.is_some_and(|model| model.name == "A30") {
                    4
                } else {
                    7
                };
                let memory = model.map_or(0, |model| 1000 * gigabytes / model.memory_gib.max(1));
                (1000 * slices / most).max(memory).clamp(1, 1000)
            }
            Self::Amd { mode, .. } => 1000 / mode.parts(model),
            Self::Tile => 1000 / tiles.max(1),
        }
    }

    /// Memory of one part, as far as the name and the catalogue tell.
    pub fn memory_mib(&self, model: Option<&Model>, tiles: u32) -> Option<u64> {
        let of_model = |parts: u32| {
            let whole = u64::from(model?.memory_gib) * 1024;
            Some(whole / u64::from(parts.max(1)))
        };
        match self {
            Self::Mig { gigabytes, .. } => Some(u64::from(*gigabytes) * 1024),
            Self::Amd { mode, .. } => of_model(mode.parts(model)),
            Self::Tile => of_model(tiles),
        }
    }

    /// What keeps a part's memory from its neighbours. AMD's NPS1 leaves one pool of memory to all parts.
    pub fn isolation(&self) -> Isolation {
        match self {
            Self::Mig { .. } | Self::Tile => Isolation::Hardware,
            Self::Amd { nps, .. } => match nps {
                Some(2..) => Isolation::Hardware,
                _ => Isolation::None,
            },
        }
    }
}

impl std::fmt::Display for Profile {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Mig {
                slices,
                gigabytes,
                extra,
            } => {
                write!(out, "{slices}g.{gigabytes}gb")?;
                if extra.is_empty() {
                    Ok(())
                } else {
                    write!(out, ".{extra}")
                }
            }
            Self::Amd { mode, nps } => {
                out.write_str(mode.as_str())?;
                nps.map_or(Ok(()), |nps| write!(out, "_nps{nps}"))
            }
            Self::Tile => out.write_str("tile"),
        }
    }
}

/// What people call the way a device is cut: `MIG profile`, `partition`.
impl Profile {
    pub fn noun(&self) -> &'static str {
        match self {
            Self::Mig { .. } => "MIG profile",
            Self::Amd { .. } | Self::Tile => "partition",
        }
    }
}

/// Digits alone, few of them.
fn number(text: &str) -> Option<u32> {
    let digits = (1..=4).contains(&text.len()) && text.bytes().all(|byte| byte.is_ascii_digit());
    digits.then(|| text.parse().ok()).flatten()
}
