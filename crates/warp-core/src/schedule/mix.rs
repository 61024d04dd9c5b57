//! The mix of requests: which classes arrive and how often. Given beforehand, or learnt as requests
//! arrive.

use std::collections::BTreeMap;

use super::strategy::Ask;
use crate::fleet::KindSet;

/// Requests of equal CPU, cards and accepted kinds. Memory is averaged over them.
#[derive(Clone, Debug, PartialEq)]
pub struct Class {
    pub cpu_milli: i64,
    /// Cards; 0 for work without GPUs.
    pub count: u32,
    pub milli: u32,
    /// `None` accepts every kind.
    pub kinds: Option<KindSet>,
    pub memory_bytes: i64,
    /// How many arrived; old arrivals may count for less than one.
    pub weight: f64,
}

impl Class {
    pub fn gpu_milli(&self) -> f64 {
        f64::from(self.count) * f64::from(self.milli)
    }

    pub fn accepts(&self, kind: crate::fleet::KindId) -> bool {
        self.kinds.as_ref().is_none_or(|kinds| kinds.contains(kind))
    }
}

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Key {
    cpu_milli: i64,
    count: u32,
    milli: u32,
    kinds: Option<Vec<u64>>,
}

impl Key {
    fn of(ask: &Ask) -> Self {
        Self {
            cpu_milli: ask.cpu_milli,
            count: ask.count,
            milli: ask.milli,
            kinds: ask.typed.then(|| ask.kinds.words().to_vec()),
        }
    }
}

#[derive(Clone, Debug, Default, PartialEq)]
struct Seen {
    weight: f64,
    memory_bytes: f64,
}

#[derive(Clone, Debug, Default, PartialEq)]
pub struct Mix {
    classes: BTreeMap<Key, Seen>,
}

impl Mix {
    pub fn see(&mut self, ask: &Ask) {
        self.see_many(ask, 1.0);
    }

    /// The same for so many alike.
    pub fn see_many(&mut self, ask: &Ask, times: f64) {
        let seen = self.classes.entry(Key::of(ask)).or_default();
        seen.weight += times;
        seen.memory_bytes += ask.memory_bytes as f64 * times;
    }

    /// Takes back one that was seen. What was seen in whole numbers is afterwards as if it never had been.
    pub fn unsee(&mut self, ask: &Ask) {
        let key = Key::of(ask);
        let Some(seen) = self.classes.get_mut(&key) else {
            return;
        };
        seen.weight -= 1.0;
        seen.memory_bytes -= ask.memory_bytes as f64;
        if seen.weight < 0.5 {
            self.classes.remove(&key);
        }
    }

    /// Lets everything seen so far count for less, and forgets what counts for almost nothing.
    pub fn fade(&mut self, factor: f64) {
        self.classes.retain(|_, seen| {
            seen.weight *= factor;
            seen.memory_bytes *= factor;
            seen.weight > 0.05
        });
    }

    pub fn weight(&self) -> f64 {
        self.classes.values().map(|seen| seen.weight).sum()
    }

    /// Every class, most frequent first.
    pub fn classes(&self) -> Vec<Class> {
        let class = |(key, seen): (&Key, &Seen)| Class {
            cpu_milli: key.cpu_milli,
            count: key.count,
            milli: key.milli,
            kinds: key.kinds.as_ref().map(|words| KindSet::from_words(words)),
            #[expect(clippy::cast_possible_truncation, reason = "a mean of byte counts")]
            memory_bytes: (seen.memory_bytes / seen.weight) as i64,
            weight: seen.weight,
        };
        let mut classes: Vec<_> = self.classes.iter().map(class).collect();
        // Stable, so that equally frequent classes keep the order of their keys.
        classes.sort_by(|a, b| b.weight.total_cmp(&a.weight));
        classes
    }

    /// The most frequent classes that together make up 95 % of all requests, with weights that sum
    /// to one.
    pub fn typical(&self) -> Vec<Class> {
        Self::most(self.classes())
    }

    /// The same for the published baseline. Which of several equally frequent classes make up the
    /// 95 % is not said in the study and decides a fifth of a point where requests name models; the
    /// order of keys reversed is the one that agrees with its figures on every trace.
    pub(super) fn typical_of_the_study(&self) -> Vec<Class> {
        let mut classes = self.classes();
        classes.reverse();
        classes.sort_by(|a, b| b.weight.total_cmp(&a.weight));
        Self::most(classes)
    }

    fn most(mut classes: Vec<Class>) -> Vec<Class> {
        let total: f64 = classes.iter().map(|class| class.weight).sum();
        let mut covered = 0.0;
        let enough = classes.iter().position(|class| {
            covered += class.weight;
            covered >= 0.95 * total
        });
        classes.truncate(enough.map_or(classes.len(), |at| at + 1));
        for class in &mut classes {
            class.weight /= covered;
        }
        classes
    }
}

/// Learns the mix from arrivals. What was learnt is taken up at every doubling at first, and then
/// once per `WINDOW`; from there on old arrivals fade, so that a mix that changes is followed.
#[derive(Clone, Debug, Default)]
pub(super) struct Learning {
    mix: Mix,
    arrivals: u64,
    epoch: u64,
}

const WINDOW: u64 = 2048;
/// What a window still counts once the next one is over.
const FADE: f64 = 0.7;

impl Learning {
    /// Takes note of an arrival; true when what was learnt should be taken up.
    pub(super) fn see(&mut self, ask: &Ask) -> bool {
        self.mix.see(ask);
        self.arrivals += 1;
        let window_over = self.arrivals.is_multiple_of(WINDOW);
        let due = window_over || (self.arrivals < WINDOW && self.arrivals.is_power_of_two());
        if due {
            self.epoch += 1;
        }
        if window_over {
            self.mix.fade(FADE);
        }
        due
    }

    pub(super) const fn mix(&self) -> &Mix {
        &self.mix
    }

    pub(super) const fn epoch(&self) -> u64 {
        self.epoch
    }
}
