//! What a node's free part is worth under an expected mix of requests.

use std::collections::BTreeMap;

use super::Tuning;
use super::slots::{SlotClass, Slots, Standing, slots};
use crate::fleet::{Fleet, KindId, WHOLE};
use crate::random::Random;
use crate::schedule::memo::{Memo, state_key};
use crate::schedule::mix::{Class, Mix};
use crate::schedule::strategy::Ask;

/// Memory is looked at in steps, so that nodes a few bytes apart share a value.
const MEMORY_STEP: i64 = 4 << 30;

#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Value {
    /// Thousandths of GPU that will be used, slots included.
    pub(super) gpu: f64,
    /// What requests of several GPUs could do with it.
    pub(super) standing: Standing,
    /// Cores that CPU-only requests will use.
    pub(super) cores: f64,
}

#[derive(Debug)]
pub(super) struct Worth {
    memo: Memo<Value>,
    /// By kind: the sequences of requests that could come to it. The last is for unknown kinds.
    gpu_lists: Vec<Vec<GpuList>>,
    cpu_lists: Vec<Vec<i64>>,
    pub(super) slots: Slots,
    insisted: Vec<Insisted>,
    memory: BTreeMap<(i64, u32, u32), i64>,
    /// CPU asked for per thousandth of GPU, over all requests.
    pub(super) cpu_per_gpu: f64,
    bag: Vec<i32>,
    /// What a slot counts in `Value::gpu`.
    slots_factor: f64,
}

#[derive(Debug)]
struct GpuList {
    items: Vec<Item>,
    /// The least any item asks for: a node with less is as full as it gets.
    least_milli: i32,
    least_cpu: i64,
}

#[derive(Clone, Copy, Debug)]
struct Item {
    cpu_milli: i64,
    memory_bytes: i64,
    milli: i32,
}

impl Worth {
    /// `doubt` is 0 for a mix known to be right and 1 for one not known at all.
    pub(super) fn new(tuning: &Tuning, seed: u64, fleet: &Fleet, mix: &Mix, doubt: f64) -> Self {
        let classes = mix.classes();
        let typical = mix.typical();
        let asked: f64 = classes
            .iter()
            .map(|class| class.weight * class.gpu_milli())
            .sum();
        let cpu: f64 = classes
            .iter()
            .map(|class| class.weight * class.cpu_milli as f64)
            .sum();
        let mut random = Random::new(seed ^ 0xf111_0a1e);
        let single: Vec<_> = typical.iter().filter(|class| class.count == 1).collect();
        let without: Vec<_> = typical.iter().filter(|class| class.count == 0).collect();
        let share = |class: &Class| class.weight * class.gpu_milli() / asked.max(1.0);
        Self {
            memo: Memo::default(),
            gpu_lists: gpu_lists(fleet, &single, tuning, &mut random),
            cpu_lists: (0..tuning.lists)
                .map(|_| cpu_list(&without, tuning.cpu_length, &mut random))
                .collect(),
            slots: Slots::new(slot_classes(fleet, &classes, share, doubt)),
            insisted: insisted(fleet, &classes, share),
            memory: mean_memory(&classes),
            cpu_per_gpu: cpu / asked.max(1.0),
            bag: Vec::new(),
            slots_factor: tuning.slots + (tuning.doubtful_slots - tuning.slots) * doubt,
        }
    }

    /// The mean memory of requests shaped like this one: ratings are shared between requests that
    /// differ in memory only.
    pub(super) fn typical_memory(&self, ask: &Ask) -> i64 {
        let known = self.memory.get(&(ask.cpu_milli, ask.count, ask.milli));
        known.copied().unwrap_or(ask.memory_bytes)
    }

    pub(super) fn insisted(&self, kind: KindId) -> Insisted {
        self.insisted.get(kind.index()).copied().unwrap_or_default()
    }

    pub(super) fn of(
        &mut self,
        kind: Option<KindId>,
        cpu_milli: i64,
        memory_bytes: i64,
        cards: &[i32],
    ) -> Value {
        let steps = memory_bytes.max(0) / MEMORY_STEP;
        let number = kind.map_or(u64::MAX, |kind| kind.index() as u64);
        let key = state_key(
            [number, cpu_milli.cast_unsigned(), steps.cast_unsigned()],
            cards,
        );
        if let Some(known) = self.memo.get(key) {
            return known;
        }
        let mut value = self.fill(kind, cpu_milli, steps * MEMORY_STEP, cards);
        value.standing = self.slots.standing(kind, cpu_milli, cards);
        value.gpu += self.slots_factor * self.slots.expected(value.standing);
        self.memo.insert(key, value);
        value
    }

    /// The mean over all sequences of what they would put on the node.
    fn fill(
        &mut self,
        kind: Option<KindId>,
        cpu_milli: i64,
        memory_bytes: i64,
        cards: &[i32],
    ) -> Value {
        let (mut gpu, mut cores) = (0_i64, 0_i64);
        let mut sorted: Vec<i32> = cards.iter().copied().filter(|&card| card > 0).collect();
        sorted.sort_unstable();
        let at = kind
            .map_or(usize::MAX, KindId::index)
            .min(self.gpu_lists.len() - 1);
        for (gpu_list, cpu_list) in self.gpu_lists[at].iter().zip(&self.cpu_lists) {
            let mut cpu = cpu_milli;
            self.bag.clear();
            self.bag.extend_from_slice(&sorted);
            gpu += fill_cards(gpu_list, &mut cpu, memory_bytes, &mut self.bag);
            for &item in cpu_list {
                if item <= cpu {
                    cpu -= item;
                    cores += item;
                }
            }
        }
        let lists = self.cpu_lists.len().max(1) as f64;
        Value {
            gpu: gpu as f64 / lists,
            standing: Standing::default(),
            cores: cores as f64 / 1000.0 / lists,
        }
    }
}

/// Walks one sequence: what fits takes the tightest card, what does not is skipped. `cards` ascend.
fn fill_cards(list: &GpuList, cpu: &mut i64, mut memory: i64, cards: &mut [i32]) -> i64 {
    let mut filled = 0;
    let mut from = 0;
    for item in &list.items {
        // Cards too small for anything in the list are at the front, the roomiest is the last.
        while cards
            .get(from)
            .is_some_and(|&first| first < list.least_milli)
        {
            from += 1;
        }
        let cards = &mut cards[from..];
        let Some(&roomiest) = cards.last() else { break };
        if roomiest < item.milli || item.cpu_milli > *cpu || item.memory_bytes > memory {
            if *cpu < list.least_cpu {
                break;
            }
            continue;
        }
        let mut at = cards
            .iter()
            .position(|&left| left >= item.milli)
            .unwrap_or(0);
        let left = cards[at] - item.milli;
        while at > 0 && cards[at - 1] > left {
            cards[at] = cards[at - 1];
            at -= 1;
        }
        cards[at] = left;
        *cpu -= item.cpu_milli;
        memory -= item.memory_bytes;
        filled += i64::from(item.milli);
    }
    filled
}

/// The sequences a node of each kind should expect. A request that insists on some kinds comes to
/// those only, and the more often the fewer of them there are.
fn gpu_lists(
    fleet: &Fleet,
    classes: &[&Class],
    tuning: &Tuning,
    random: &mut Random,
) -> Vec<Vec<GpuList>> {
    let capacity = |kind| fleet.totals().gpu_milli_of(kind) as f64;
    let all: f64 = fleet.kinds().map(|(kind, _)| capacity(kind)).sum();
    let start = random.clone();
    let mut draw = |classes: &[Class]| {
        // The same random numbers for every kind: kinds differ by their requests, not by luck.
        *random = start.clone();
        let one = |_| gpu_list(classes, tuning.length, random);
        (0..tuning.lists).map(one).collect::<Vec<_>>()
    };
    let expected = |class: &Class, kind: KindId| {
        let accepted = fleet.kinds().filter(|(kind, _)| class.accepts(*kind));
        let accepted: f64 = accepted.map(|(kind, _)| capacity(kind)).sum();
        let more = (all / accepted.max(1.0)).powf(tuning.insistence);
        class.accepts(kind).then(|| Class {
            weight: class.weight * more,
            ..class.clone()
        })
    };
    let mut lists: Vec<_> = fleet
        .kinds()
        .map(|(kind, _)| {
            let coming = classes.iter().filter_map(|class| expected(class, kind));
            draw(&coming.collect::<Vec<_>>())
        })
        .collect();
    let every: Vec<Class> = classes.iter().map(|&class| class.clone()).collect();
    lists.push(draw(&every));
    lists
}

/// Draws evenly spaced quantiles of the single-GPU classes, then shuffles: each list has the mix's
/// proportions, only the order is random.
fn gpu_list(classes: &[Class], length: usize, random: &mut Random) -> GpuList {
    let total: f64 = classes.iter().map(|class| class.weight).sum();
    let offset = random.unit();
    let mut list = Vec::with_capacity(length);
    let mut classes = classes.iter();
    let mut current = classes.next();
    let mut covered = current.map_or(0.0, |class| class.weight);
    for at in 0..length {
        let quantile = (at as f64 + offset) / length as f64 * total;
        while covered < quantile
            && let Some(next) = classes.next()
        {
            covered += next.weight;
            current = Some(next);
        }
        if let Some(class) = current {
            list.push(Item {
                cpu_milli: class.cpu_milli,
                memory_bytes: class.memory_bytes,
                milli: i32::try_from(class.milli).unwrap_or(i32::MAX),
            });
        }
    }
    random.shuffle(&mut list);
    GpuList {
        least_milli: list.iter().map(|item| item.milli).min().unwrap_or(0),
        least_cpu: list.iter().map(|item| item.cpu_milli).min().unwrap_or(0),
        items: list,
    }
}

fn cpu_list(classes: &[&Class], length: usize, random: &mut Random) -> Vec<i64> {
    let total: f64 = classes.iter().map(|class| class.weight).sum();
    let mut draw = || {
        let mut left = random.unit() * total;
        let chosen = classes.iter().find(|class| {
            left -= class.weight;
            left < 0.0
        });
        chosen.or(classes.last()).map(|class| class.cpu_milli)
    };
    (0..length).filter_map(|_| draw()).collect()
}

fn slot_classes(
    fleet: &Fleet,
    classes: &[Class],
    share: impl Fn(&Class) -> f64,
    doubt: f64,
) -> Vec<SlotClass> {
    let total = fleet.totals().gpu_milli() as f64;
    let offered = |class: &Class| -> f64 {
        let pools = fleet.nodes().flat_map(|(id, node)| {
            let pools = fleet
                .free(id)
                .map(|free| free.pools.as_slice())
                .unwrap_or_default();
            pools
                .iter()
                .map(move |pool| (node.allocatable.cpu_milli, pool))
        });
        pools
            .map(|(cpu, pool)| slots(class, pool.kind, cpu, pool.cards.len()) as f64)
            .sum()
    };
    let several = classes.iter().filter(|class| class.count >= 2);
    several
        .map(|class| (class.clone(), share(class)))
        .chain(unseen(fleet, doubt))
        .filter_map(|(class, share)| {
            let offered = offered(&class);
            let weight = share * total / offered;
            (offered > 0.0).then_some(SlotClass {
                class,
                share,
                weight,
            })
        })
        .collect()
}

/// Requests for whole machines that may come though none has yet, and the share they may have.
fn unseen(fleet: &Fleet, doubt: f64) -> impl Iterator<Item = (Class, f64)> {
    /// The share of whole-machine requests to expect before anything is known.
    const SHARE: f64 = 0.05;
    let pools = fleet.nodes().flat_map(|(id, _)| {
        fleet
            .free(id)
            .map(|free| free.pools.as_slice())
            .unwrap_or_default()
    });
    let largest = pools.map(|pool| pool.cards.len()).max().unwrap_or(0);
    let class = Class {
        cpu_milli: 0,
        count: u32::try_from(largest).unwrap_or(u32::MAX),
        milli: WHOLE,
        kinds: None,
        memory_bytes: 0,
        weight: 0.0,
    };
    // Doubt falls slowly; the chance of never having seen a frequent request falls fast.
    (largest >= 2 && doubt > 0.0)
        .then_some((class, SHARE * doubt.powi(8)))
        .into_iter()
}

/// By kind, the demand that insists on it: by name, or because few other machines are large enough.
fn insisted(fleet: &Fleet, classes: &[Class], share: impl Fn(&Class) -> f64) -> Vec<Insisted> {
    let total = fleet.totals().gpu_milli() as f64;
    let sizes = sizes(fleet);
    let mut insisted = vec![Insisted::default(); fleet.kinds().count()];
    for class in classes.iter().filter(|class| class.count > 0) {
        let large = |size: &&(Size, f64)| class.accepts(size.0.kind) && size.0.holds(class);
        let accepted = || sizes.iter().filter(large);
        let all: f64 = accepted().map(|(_, milli)| milli).sum();
        if class.kinds.is_none() && all > total / 2.0 {
            continue;
        }
        for (size, milli) in accepted() {
            let here = &mut insisted[size.kind.index()];
            let share = share(class) * milli / all.max(1.0);
            here.share += share;
            here.size += share * class.gpu_milli();
        }
    }
    for here in &mut insisted {
        here.size /= here.share.max(f64::MIN_POSITIVE);
    }
    insisted
}

/// Demand that insists on one kind.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Insisted {
    /// Of all GPUs asked for.
    pub(super) share: f64,
    /// Thousandths of GPU of one request, in the mean.
    pub(super) size: f64,
}

/// What a machine has when nothing runs on it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Size {
    kind: KindId,
    cards: usize,
    cpu_milli: i64,
    memory_bytes: i64,
}

impl Size {
    fn holds(&self, class: &Class) -> bool {
        self.cards >= class.count as usize
            && self.cpu_milli >= class.cpu_milli
            && self.memory_bytes >= class.memory_bytes
    }
}

/// The different sizes of machines, with the thousandths of GPU of all machines of each.
fn sizes(fleet: &Fleet) -> Vec<(Size, f64)> {
    let mut sizes = BTreeMap::<Size, f64>::new();
    for (id, node) in fleet.nodes() {
        let pools = fleet.free(id).map(|free| free.pools.as_slice());
        for pool in pools.unwrap_or_default() {
            let size = Size {
                kind: pool.kind,
                cards: pool.cards.len(),
                cpu_milli: node.allocatable.cpu_milli,
                memory_bytes: node.allocatable.memory_bytes,
            };
            *sizes.entry(size).or_default() += f64::from(WHOLE) * pool.cards.len() as f64;
        }
    }
    sizes.into_iter().collect()
}

fn mean_memory(classes: &[Class]) -> BTreeMap<(i64, u32, u32), i64> {
    let mut sums = BTreeMap::<_, (f64, f64)>::new();
    for class in classes {
        let sum = sums
            .entry((class.cpu_milli, class.count, class.milli))
            .or_default();
        sum.0 += class.weight * class.memory_bytes as f64;
        sum.1 += class.weight;
    }
    #[expect(clippy::cast_possible_truncation, reason = "a mean of byte counts")]
    let mean = |(key, (bytes, weight)): (_, (f64, f64))| (key, (bytes / weight.max(1e-9)) as i64);
    sums.into_iter().map(mean).collect()
}
