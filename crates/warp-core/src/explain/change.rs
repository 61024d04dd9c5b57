//! The smallest change of a request that makes it fit now.
//!
//! Every dimension is first relaxed altogether. If that makes the request fit, the dimension is
//! drawn tight again to the best value some node still allows; so a change is true (applying it
//! makes the request fit) and minimal (nothing closer to the request does, in that dimension).
//! Changes of several dimensions are offered only when no single one suffices.

use std::collections::BTreeSet;
use std::fmt;
use std::sync::Arc;

use crate::fleet::{Effect, Fleet, GpuRequest, Part, Request, Taint, Toleration, Unit, WHOLE};
use crate::gpu::Isolation;
use crate::schedule::fit::Filter;
use crate::schedule::{amount, bytes, states_condition};

/// One thing to change about a request.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Change {
    /// Ask for this many GPUs instead.
    FewerGpus(u32),
    /// Ask for this much of a card instead, in thousandths.
    SmallerFraction(u32),
    /// Ask for GPUs in the way they are handed out.
    Unit(OtherUnit),
    /// Accept this model too.
    AlsoModel(Arc<str>),
    /// Accept this vendor's GPUs instead.
    Vendor(Arc<str>),
    /// Accept GPUs exposed under this resource name instead.
    GpuResource(Arc<str>),
    /// Ask for this much memory per GPU, in bytes.
    LessGpuMemory(u64),
    /// Thousandths of a core.
    LessCpu(i64),
    LessMemory(i64),
    Less(Arc<str>, i64),
    Tolerate(Taint),
    DropNodeName,
    DropSelector(Arc<str>),
    DropNodeAffinity,
    /// By position in the request.
    DropPodAffinity(usize),
    DropPodAntiAffinity(usize),
    DropSpread(usize),
    DropHostPort(usize),
}

/// Another way GPUs are handed out.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum OtherUnit {
    Whole,
    /// A seat on a shared GPU, kept apart like this.
    Shared(Isolation),
    /// A part of this profile.
    Partition(Arc<str>),
}

impl OtherUnit {
    fn of(unit: &Unit) -> Option<Self> {
        match (&unit.partition, unit.shared) {
            (None, false) => Some(Self::Whole),
            (Some(name), false) => Some(Self::Partition(Arc::clone(name))),
            // By amount: how much would be enough only the owner knows.
            (None, true) if unit.limits.is_none() => Some(Self::Shared(unit.isolation)),
            _ => None,
        }
    }

    fn apply(&self, gpu: &mut GpuRequest) {
        gpu.milli = WHOLE;
        match self {
            Self::Whole => gpu.part = Part::Whole,
            Self::Shared(isolation) => {
                gpu.count = 1;
                gpu.part = Part::Shared {
                    isolation: *isolation,
                    partition: None,
                };
            }
            Self::Partition(name) => {
                gpu.part = Part::Partition {
                    name: Arc::clone(name),
                    isolation: Isolation::None,
                };
            }
        }
    }
}

impl Change {
    /// The request with this change made.
    pub fn apply(&self, request: &Request) -> Request {
        let mut changed = request.clone();
        let constraints = &mut changed.constraints;
        match self {
            Self::Tolerate(taint) => constraints.tolerations.push(Toleration::exact(taint)),
            Self::DropNodeName => constraints.node_name = None,
            Self::DropSelector(key) => drop(constraints.node_selector.remove(key)),
            Self::DropNodeAffinity => constraints.node_affinity = None,
            Self::DropPodAffinity(at) => drop_at(&mut constraints.pod_affinity, *at),
            Self::DropPodAntiAffinity(at) => drop_at(&mut constraints.pod_anti_affinity, *at),
            Self::DropSpread(at) => drop_at(&mut constraints.spread, *at),
            Self::DropHostPort(at) => drop_at(&mut constraints.host_ports, *at),
            Self::LessCpu(to) => changed.resources.cpu_milli = *to,
            Self::LessMemory(to) => changed.resources.memory_bytes = *to,
            Self::Less(name, to) => {
                changed.resources.extended.insert(Arc::clone(name), *to);
            }
            gpu => {
                if let Some(asked) = &mut changed.gpu {
                    match gpu {
                        Self::FewerGpus(to) => asked.count = *to,
                        Self::SmallerFraction(to) => asked.milli = *to,
                        Self::Unit(other) => other.apply(asked),
                        Self::AlsoModel(model) => {
                            asked.models.insert(Arc::clone(model));
                        }
                        Self::Vendor(vendor) => asked.vendor = Some(Arc::clone(vendor)),
                        Self::GpuResource(name) => asked.resource = Some(Arc::clone(name)),
                        Self::LessGpuMemory(to) => asked.min_memory_bytes = *to,
                        _ => {}
                    }
                }
            }
        }
        changed
    }
}

fn drop_at<T>(list: &mut Vec<T>, at: usize) {
    if at < list.len() {
        list.remove(at);
    }
}

impl fmt::Display for Change {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::FewerGpus(to) => write!(f, "ask for {to} GPU{}", if *to == 1 { "" } else { "s" }),
            Self::SmallerFraction(to) => write!(f, "ask for {to}/1000 of a GPU"),
            Self::Unit(OtherUnit::Whole) => f.write_str("ask for whole GPUs"),
            Self::Unit(OtherUnit::Shared(isolation)) => {
                write!(f, "share a GPU (isolation {isolation})")
            }
            Self::Unit(OtherUnit::Partition(name)) => write!(f, "ask for partition {name}"),
            Self::AlsoModel(model) => write!(f, "accept model {model}"),
            Self::Vendor(vendor) => write!(f, "accept vendor {vendor}"),
            Self::GpuResource(name) => write!(f, "ask for {name}"),
            Self::LessGpuMemory(to) => {
                write!(
                    f,
                    "accept {} of GPU memory",
                    bytes(i64::try_from(*to).unwrap_or(i64::MAX))
                )
            }
            Self::LessCpu(to) => write!(f, "ask for {} CPU", amount("cpu", *to)),
            Self::LessMemory(to) => write!(f, "ask for {} of memory", bytes(*to)),
            Self::Less(name, to) => write!(f, "ask for {} {name}", amount(name, *to)),
            Self::Tolerate(taint) => write!(f, "tolerate {taint}"),
            Self::DropNodeName => f.write_str("do not name a node"),
            Self::DropSelector(key) => write!(f, "drop the node selector on {key}"),
            Self::DropNodeAffinity => f.write_str("drop the node affinity"),
            Self::DropPodAffinity(at) => write!(f, "drop pod affinity {}", at + 1),
            Self::DropPodAntiAffinity(at) => write!(f, "drop pod anti-affinity {}", at + 1),
            Self::DropSpread(at) => write!(f, "drop topology spread {}", at + 1),
            Self::DropHostPort(at) => write!(f, "drop host port {}", at + 1),
        }
    }
}

/// The sets of changes that make a request fit now, each minimal: single changes if any suffices,
/// else pairs, else one irreducible set. Empty when the request fits already, contradicts itself, or
/// nothing the request says is in the way.
pub fn smallest_changes(fleet: &Fleet, request: &Request) -> Vec<Vec<Change>> {
    if !request.contradictions().is_empty() || fits(fleet, request) {
        return Vec::new();
    }
    let dimensions = Dimension::of(fleet, request);
    let single = dimensions
        .iter()
        .filter_map(|dimension| solve(fleet, request, std::slice::from_ref(dimension)));
    let single: Vec<_> = single.collect();
    if !single.is_empty() {
        return single;
    }
    let mut pairs = Vec::new();
    for (at, first) in dimensions.iter().enumerate() {
        for second in &dimensions[at + 1..] {
            pairs.extend(solve(fleet, request, &[first.clone(), second.clone()]));
        }
    }
    if !pairs.is_empty() {
        return pairs;
    }
    irreducible(fleet, request, dimensions)
        .into_iter()
        .collect()
}

/// Relaxes everything, then takes back every relaxation that is not needed. Spread constraints are
/// not monotone (tolerating a taint may add a domain and so forbid another), so what was needed at
/// first may be needless once others are taken back: it goes round until nothing more can go.
fn irreducible(fleet: &Fleet, request: &Request, mut kept: Vec<Dimension>) -> Option<Vec<Change>> {
    let relaxed_fits = |kept: &[Dimension], without: usize| {
        let others = kept.iter().enumerate().filter(|(at, _)| *at != without);
        let relaxed = others.fold(request.clone(), |request, (_, d)| d.relax(&request));
        fits(fleet, &relaxed)
    };
    while let Some(needless) = (0..kept.len()).rev().find(|&at| relaxed_fits(&kept, at)) {
        kept.remove(needless);
    }
    let mut changes = solve(fleet, request, &kept)?;
    while let Some(needless) = needless(fleet, request, &changes) {
        kept.remove(needless);
        changes.remove(needless);
        changes = solve(fleet, request, &kept).unwrap_or(changes);
    }
    Some(changes)
}

/// A change that the others can do without.
fn needless(fleet: &Fleet, request: &Request, changes: &[Change]) -> Option<usize> {
    (0..changes.len()).find(|&without| {
        let others = changes.iter().enumerate().filter(|(at, _)| *at != without);
        fits(
            fleet,
            &others.fold(request.clone(), |request, (_, c)| c.apply(&request)),
        )
    })
}

fn fits(fleet: &Fleet, request: &Request) -> bool {
    let filter = Filter::new(fleet, request);
    fleet.nodes().any(|(id, _)| filter.fits(id))
}

/// The tightest values of these dimensions that make the request fit, if relaxing them does. The
/// first dimension is drawn tight first, so no set with a better first value exists.
fn solve(fleet: &Fleet, request: &Request, dimensions: &[Dimension]) -> Option<Vec<Change>> {
    let mut current = request.clone();
    let mut changes = Vec::new();
    for (at, dimension) in dimensions.iter().enumerate() {
        let others = &dimensions[at + 1..];
        let relaxed = others
            .iter()
            .fold(current.clone(), |request, d| d.relax(&request));
        let change = dimension.tighten(fleet, &relaxed)?;
        current = change.apply(&current);
        changes.push(change);
    }
    // Positions shift when several constraints of one list go, so the set is checked as a whole.
    fits(fleet, &current).then_some(changes)
}

/// Something a request asks for that could be less.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Dimension {
    Count,
    Fraction,
    Model,
    Vendor,
    GpuResource,
    GpuMemory,
    Cpu,
    Memory,
    Extended(Arc<str>),
    /// A change that is all or nothing.
    Whole(Change),
}

impl Dimension {
    fn of(fleet: &Fleet, request: &Request) -> Vec<Self> {
        let mut found = Vec::new();
        if let Some(gpu) = &request.gpu {
            let mut gpu_dimension = |wanted: bool, dimension| {
                if wanted {
                    found.push(dimension);
                }
            };
            gpu_dimension(gpu.count > 1, Self::Count);
            gpu_dimension(gpu.is_fraction() && gpu.milli > 1, Self::Fraction);
            gpu_dimension(!gpu.models.is_empty(), Self::Model);
            gpu_dimension(gpu.min_memory_bytes > 0, Self::GpuMemory);
            gpu_dimension(gpu.vendor.is_some(), Self::Vendor);
            gpu_dimension(gpu.resource.is_some(), Self::GpuResource);
            found.extend(other_units(fleet, gpu).map(|other| Self::Whole(Change::Unit(other))));
        }
        let asked = &request.resources;
        if asked.cpu_milli > 0 {
            found.push(Self::Cpu);
        }
        if asked.memory_bytes > 0 {
            found.push(Self::Memory);
        }
        let named = asked.extended.iter().filter(|(_, amount)| **amount > 0);
        found.extend(named.map(|(name, _)| Self::Extended(Arc::clone(name))));
        found.extend(constraints(fleet, request).into_iter().map(Self::Whole));
        found
    }

    /// The request with this dimension asking for nothing.
    fn relax(&self, request: &Request) -> Request {
        let mut relaxed = request.clone();
        match self {
            Self::Cpu => relaxed.resources.cpu_milli = 0,
            Self::Memory => relaxed.resources.memory_bytes = 0,
            Self::Extended(name) => {
                relaxed.resources.extended.remove(name);
            }
            Self::Whole(change) => return change.apply(request),
            gpu => {
                if let Some(asked) = &mut relaxed.gpu {
                    match gpu {
                        Self::Count => asked.count = 1,
                        Self::Fraction => asked.milli = 1,
                        Self::Model => asked.models.clear(),
                        Self::Vendor => asked.vendor = None,
                        Self::GpuResource => asked.resource = None,
                        _ => asked.min_memory_bytes = 0,
                    }
                }
            }
        }
        relaxed
    }

    /// The change closest to the request that makes it fit.
    fn tighten(&self, fleet: &Fleet, request: &Request) -> Option<Change> {
        if let Self::Whole(change) = self {
            return fits(fleet, &change.apply(request)).then(|| change.clone());
        }
        let relaxed = self.relax(request);
        let filter = Filter::new(fleet, &relaxed);
        let fitting = || fleet.nodes().filter(|&(id, _)| filter.fits(id));
        let most = |free: &dyn Fn(&crate::fleet::Free) -> i64| {
            fitting()
                .filter_map(|(id, _)| fleet.free(id))
                .map(free)
                .max()
        };
        match self {
            Self::Cpu => most(&|free| free.resources.cpu_milli.max(0)).map(Change::LessCpu),
            Self::Memory => {
                most(&|free| free.resources.memory_bytes.max(0)).map(Change::LessMemory)
            }
            Self::Extended(name) => most(&|free| free.resources.extended(name).max(0))
                .map(|to| Change::Less(Arc::clone(name), to)),
            Self::Count | Self::Fraction => self.tighten_amount(fleet, request),
            _ => self.tighten_kind(fleet, request, &relaxed),
        }
    }

    /// Fewer cards or less of one: what fits only grows as the amount falls, so halving finds the
    /// largest amount that fits.
    fn tighten_amount(&self, fleet: &Fleet, request: &Request) -> Option<Change> {
        let gpu = request.gpu.as_ref()?;
        let asked = if *self == Self::Count {
            gpu.count
        } else {
            gpu.milli
        };
        let change = |to| {
            if *self == Self::Count {
                Change::FewerGpus(to)
            } else {
                Change::SmallerFraction(to)
            }
        };
        let fits = |to: u32| fits(fleet, &change(to).apply(request));
        let (mut low, mut high) = (1, asked);
        if !fits(low) {
            return None;
        }
        while high - low > 1 {
            let middle = low.midpoint(high);
            if fits(middle) {
                low = middle;
            } else {
                high = middle;
            }
        }
        Some(change(low))
    }

    /// Another kind: the one with most free among those that make the request fit.
    fn tighten_kind(&self, fleet: &Fleet, request: &Request, relaxed: &Request) -> Option<Change> {
        let accepted = fleet.accepted(relaxed.gpu.as_ref()?);
        let change = |kind: &crate::fleet::Kind| match self {
            Self::Model => Change::AlsoModel(Arc::clone(&kind.model)),
            Self::Vendor => Change::Vendor(Arc::clone(&kind.vendor)),
            Self::GpuResource => Change::GpuResource(Arc::clone(&kind.resource)),
            _ => Change::LessGpuMemory(kind.memory_bytes),
        };
        let mut kinds: Vec<_> = fleet
            .kinds()
            .filter(|(id, _)| accepted.contains(*id))
            .collect();
        kinds.sort_by_key(|(id, kind)| {
            let free = fleet.totals().free_gpu_milli_of(*id);
            let memory = if *self == Self::GpuMemory {
                kind.memory_bytes
            } else {
                0
            };
            std::cmp::Reverse((memory, free))
        });
        kinds
            .into_iter()
            .map(|(_, kind)| change(kind))
            .find(|change| fits(fleet, &change.apply(request)))
    }
}

/// The ways GPUs are handed out here that the request is not for.
fn other_units(fleet: &Fleet, gpu: &GpuRequest) -> impl Iterator<Item = OtherUnit> {
    let others = fleet.kinds().filter(|(_, kind)| !kind.unit.serves(gpu));
    let others: BTreeSet<OtherUnit> = others
        .filter_map(|(_, kind)| OtherUnit::of(&kind.unit))
        .filter(|_| gpu.resource.is_none())
        .collect();
    others.into_iter()
}

/// The constraints of a request, each as the change that drops it, and the taints that keep it off.
fn constraints(fleet: &Fleet, request: &Request) -> Vec<Change> {
    let constraints = &request.constraints;
    let mut found = Vec::new();
    found.extend(constraints.node_name.as_ref().map(|_| Change::DropNodeName));
    found.extend(
        constraints
            .node_selector
            .keys()
            .map(|key| Change::DropSelector(Arc::clone(key))),
    );
    found.extend(
        constraints
            .node_affinity
            .as_ref()
            .map(|_| Change::DropNodeAffinity),
    );
    found.extend((0..constraints.pod_affinity.len()).map(Change::DropPodAffinity));
    found.extend((0..constraints.pod_anti_affinity.len()).map(Change::DropPodAntiAffinity));
    found.extend((0..constraints.spread.len()).map(Change::DropSpread));
    found.extend((0..constraints.host_ports.len()).map(Change::DropHostPort));
    let tolerated = |taint: &Taint| constraints.tolerations.iter().any(|t| t.tolerates(taint));
    let taints: BTreeSet<&Taint> = fleet
        .nodes()
        .flat_map(|(_, node)| &node.taints)
        .filter(|taint| taint.effect != Effect::PreferNoSchedule && !tolerated(taint))
        .filter(|taint| !states_condition(taint))
        .collect();
    found.extend(
        taints
            .into_iter()
            .map(|taint| Change::Tolerate(taint.clone())),
    );
    found
}
