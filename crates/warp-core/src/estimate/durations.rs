//! Learns duration distributions from finished work, online. Groups form a chain from everything
//! to the very same kind of work; each link is shrunk towards the one above it by hazard, so that
//! a new tenant starts from what is known in general and a busy one speaks for itself. Features
//! that are absent leave their link out. Running work is not counted (as censored data it made
//! the estimates worse on every trace tried).

use std::collections::BTreeMap;

use super::bursts::{BurstId, Bursts};
use super::distribution::{BINS, Distribution, bin_of};

/// What is known about work before it runs. Any of it may be absent.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Features {
    pub tenant: Option<String>,
    pub model: Option<String>,
    pub image: Option<String>,
    /// Whole GPUs, all members together; 0 for work without one.
    pub gpus: u32,
}

/// A leaf of the hierarchy: all work with the same features.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct GroupId(u32);

impl GroupId {
    pub fn number(self) -> u32 {
        self.0
    }
}

/// Constants of the learner.
#[derive(Clone, Copy, Debug)]
pub struct Shrinkage {
    /// Observations of the parent's opinion that one link starts with.
    pub pull: f64,
    /// The same for the link of recent work.
    pub recent_pull: f64,
    /// Jobs the recent link remembers.
    pub recent: f64,
    /// Jobs every other link remembers.
    pub memory: f64,
    /// New observations anywhere, as a share of all, after which a group is computed anew.
    pub stale: f64,
}

impl Default for Shrinkage {
    fn default() -> Self {
        Self {
            pull: 8.0,
            recent_pull: 4.0,
            recent: 12.0,
            memory: 4000.0,
            stale: 0.01,
        }
    }
}

/// Chance per bin to end there, before anything was seen: a heavy tail over all bins.
const PRIOR_HAZARD: f64 = 0.08;
const PRIOR_WEIGHT: f64 = 2.0;

#[derive(Clone, Debug)]
struct Link {
    ended: [f64; BINS],
    keep: f64,
    pull: f64,
}

impl Link {
    fn new(memory: f64, pull: f64) -> Self {
        Self {
            ended: [0.0; BINS],
            keep: 1.0 - 1.0 / memory.max(1.0),
            pull,
        }
    }

    fn observe(&mut self, bin: usize) {
        for weight in &mut self.ended {
            *weight *= self.keep;
        }
        self.ended[bin] += 1.0;
    }

    /// Moves `hazard` from the parent's opinion to this link's.
    fn refine(&self, hazard: &mut [f64; BINS]) {
        let mut at_risk = 0.0;
        for (ended, hazard) in self.ended.iter().zip(hazard.iter_mut()).rev() {
            at_risk += ended;
            *hazard = (ended + self.pull * *hazard) / (at_risk + self.pull);
        }
    }
}

#[derive(Clone, Debug)]
struct Group {
    chain: Vec<u32>,
    distribution: Distribution,
    computed_at: u64,
    touched: bool,
}

/// The learner.
#[derive(Clone, Debug)]
pub struct Durations {
    shrinkage: Shrinkage,
    links: Vec<Link>,
    link_of: BTreeMap<Vec<String>, u32>,
    groups: Vec<Group>,
    group_of: BTreeMap<Vec<String>, GroupId>,
    seen: u64,
    /// What was submitted together and has not ended.
    pub bursts: Bursts,
}

impl Default for Durations {
    fn default() -> Self {
        Self::new(Shrinkage::default())
    }
}

impl Durations {
    pub fn new(shrinkage: Shrinkage) -> Self {
        Self {
            shrinkage,
            links: Vec::new(),
            link_of: BTreeMap::new(),
            groups: Vec::new(),
            group_of: BTreeMap::new(),
            seen: 0,
            bursts: Bursts::default(),
        }
    }

    /// Finished work seen so far.
    pub fn seen(&self) -> u64 {
        self.seen
    }

    /// The group of work with these features, created on first sight.
    pub fn group(&mut self, features: &Features) -> GroupId {
        let levels = levels(features);
        let leaf = levels.last().cloned().unwrap_or_default();
        if let Some(group) = self.group_of.get(&leaf) {
            return *group;
        }
        let Shrinkage {
            pull,
            recent_pull,
            recent,
            memory,
            ..
        } = self.shrinkage;
        let mut chain: Vec<u32> = levels
            .into_iter()
            .map(|level| self.link(level, memory, pull))
            .collect();
        let mut newest = leaf.clone();
        newest.push("recent".to_owned());
        chain.push(self.link(newest, recent, recent_pull));
        let distribution = self.compute(&chain);
        let id = GroupId(u32::try_from(self.groups.len()).unwrap_or(u32::MAX));
        self.groups.push(Group {
            chain,
            distribution,
            computed_at: self.seen,
            touched: false,
        });
        self.group_of.insert(leaf, id);
        id
    }

    fn link(&mut self, key: Vec<String>, memory: f64, pull: f64) -> u32 {
        let next = u32::try_from(self.links.len()).unwrap_or(u32::MAX);
        let links = &mut self.links;
        *self.link_of.entry(key).or_insert_with(|| {
            links.push(Link::new(memory, pull));
            next
        })
    }

    /// Work of this group ran for `duration` seconds in total and ended by itself.
    pub fn observe(&mut self, group: GroupId, duration: f64) {
        let bin = bin_of(duration.max(0.0));
        let Some(entry) = self.groups.get_mut(group.0 as usize) else {
            return;
        };
        for link in &entry.chain {
            self.links[*link as usize].observe(bin);
        }
        entry.touched = true;
        self.seen += 1;
    }

    /// The current distribution of a group.
    pub fn of(&mut self, group: GroupId) -> &Distribution {
        let index = (group.0 as usize).min(self.groups.len().saturating_sub(1));
        let entry = &self.groups[index];
        let news = (self.seen - entry.computed_at) as f64;
        if news > 0.0
            && (entry.touched || news >= (self.shrinkage.stale * self.seen as f64).max(1.0))
        {
            let distribution = self.compute(&entry.chain);
            let entry = &mut self.groups[index];
            entry.distribution = distribution;
            entry.computed_at = self.seen;
            entry.touched = false;
        }
        &self.groups[index].distribution
    }

    /// How long work of a burst runs, given how far what still runs of it has got.
    pub fn of_burst(
        &self,
        group: GroupId,
        burst: BurstId,
        reached: &[f64; BINS],
    ) -> Option<Distribution> {
        let mut hazard = self.hazard(&self.groups.get(group.0 as usize)?.chain);
        self.bursts.refine(burst, reached, &mut hazard);
        Some(Distribution::from_hazard(&hazard))
    }

    fn compute(&self, chain: &[u32]) -> Distribution {
        Distribution::from_hazard(&self.hazard(chain))
    }

    fn hazard(&self, chain: &[u32]) -> [f64; BINS] {
        let mut hazard = [PRIOR_HAZARD; BINS];
        for (depth, link) in chain.iter().enumerate() {
            let link = &self.links[*link as usize];
            if depth == 0 {
                let root = Link {
                    pull: PRIOR_WEIGHT,
                    ..link.clone()
                };
                root.refine(&mut hazard);
            } else {
                link.refine(&mut hazard);
            }
        }
        hazard
    }
}

/// From everything to the same tenant, model and image with the same number of GPUs.
fn levels(features: &Features) -> Vec<Vec<String>> {
    let mut levels = vec![Vec::new()];
    let mut key = vec![format!("gpus={}", features.gpus)];
    levels.push(key.clone());
    let named = [
        ("tenant", &features.tenant),
        ("model", &features.model),
        ("image", &features.image),
    ];
    for (name, value) in named {
        if let Some(value) = value {
            key.push(format!("{name}={value}"));
            levels.push(key.clone());
        }
    }
    levels
}

#[cfg(test)]
mod tests;
