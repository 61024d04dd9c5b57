//! The attention cache in blocks: those in use are counted, those that are not stay findable until their place is
//! needed, the longest unused first.

use std::collections::BTreeMap;

/// Blocks one request holds, in the order of its tokens.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Held(Vec<u32>);

impl Held {
    pub fn len(&self) -> usize {
        self.0.len()
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

#[derive(Clone, Debug, Default)]
struct Block {
    users: u32,
    /// What it holds, if it can be found.
    name: Option<u64>,
    /// Its place among the unused.
    unused_since: u64,
}

/// All blocks of a device.
#[derive(Clone, Debug)]
pub struct Blocks {
    all: Vec<Block>,
    by_name: BTreeMap<u64, u32>,
    /// Unused blocks by when they were given back.
    unused: BTreeMap<u64, u32>,
    ticks: u64,
    findable: bool,
}

impl Blocks {
    pub fn new(count: u32, findable: bool) -> Self {
        let block = |number: u32| Block {
            unused_since: u64::from(number),
            ..Block::default()
        };
        Self {
            all: (0..count).map(block).collect(),
            by_name: BTreeMap::new(),
            unused: (0..count)
                .map(|number| (u64::from(number), number))
                .collect(),
            ticks: u64::from(count),
            findable,
        }
    }

    /// Share of the blocks in use, in 0..=1.
    pub fn usage(&self) -> f64 {
        if self.all.is_empty() {
            return 0.0;
        }
        1.0 - self.unused.len() as f64 / self.all.len() as f64
    }

    /// The blocks that hold the longest known beginning of `chain`.
    pub fn find(&self, chain: &[u64]) -> Vec<u32> {
        if !self.findable {
            return Vec::new();
        }
        chain
            .iter()
            .map_while(|name| self.by_name.get(name).copied())
            .collect()
    }

    /// Takes `found` blocks and as many others as make `count`; none are taken when there are not enough.
    pub fn take(&mut self, found: &[u32], count: usize) -> Option<Held> {
        let reused = found
            .iter()
            .filter(|number| self.block(**number).users == 0);
        let fresh = count.saturating_sub(found.len());
        if reused.count() + fresh > self.unused.len() {
            return None;
        }
        for number in found {
            self.use_block(*number);
        }
        let mut held = Held(found.to_vec());
        self.grow(&mut held, count);
        Some(held)
    }

    /// Adds blocks until there are `count`; false, and nothing changes, when there are not enough.
    pub fn grow(&mut self, held: &mut Held, count: usize) -> bool {
        let more = count.saturating_sub(held.len());
        if more > self.unused.len() {
            return false;
        }
        for _ in 0..more {
            let Some((_, number)) = self.unused.pop_first() else {
                return false;
            };
            let block = &mut self.all[number as usize];
            block.users = 1;
            if let Some(name) = block.name.take() {
                self.by_name.remove(&name);
            }
            held.0.push(number);
        }
        true
    }

    /// The blocks from `from` on hold what `chain` names. One of that name stays the one that is found.
    pub fn remember(&mut self, held: &Held, chain: &[u64], from: usize) {
        if !self.findable {
            return;
        }
        for (number, name) in held.0.iter().zip(chain).skip(from) {
            let block = &mut self.all[*number as usize];
            if block.name.is_none() && !self.by_name.contains_key(name) {
                block.name = Some(*name);
                self.by_name.insert(*name, *number);
            }
        }
    }

    /// Gives blocks back. The end of a prompt is given up before its beginning, which more prompts share.
    pub fn release(&mut self, held: Held) {
        for number in held.0.into_iter().rev() {
            let block = &mut self.all[number as usize];
            block.users = block.users.saturating_sub(1);
            if block.users == 0 {
                self.ticks += 1;
                block.unused_since = self.ticks;
                self.unused.insert(self.ticks, number);
            }
        }
    }

    /// Nothing is found any more.
    pub fn clear(&mut self) {
        self.by_name.clear();
        for block in &mut self.all {
            block.name = None;
        }
    }

    fn block(&self, number: u32) -> &Block {
        &self.all[number as usize]
    }

    fn use_block(&mut self, number: u32) {
        let block = &mut self.all[number as usize];
        if block.users == 0 {
            self.unused.remove(&block.unused_since);
        }
        block.users += 1;
    }
}
