//! Kinds of GPU, numbered once so that decisions compare numbers instead of names.

use std::sync::Arc;

use super::node::GpuPool;
use super::request::GpuRequest;
use super::unit::Unit;

/// What makes two pools interchangeable to a request.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Kind {
    pub resource: Arc<str>,
    pub vendor: Arc<str>,
    pub model: Arc<str>,
    pub memory_bytes: u64,
    pub unit: Unit,
}

impl Kind {
    fn of(pool: &GpuPool) -> Self {
        Self {
            resource: Arc::clone(&pool.resource),
            vendor: Arc::clone(&pool.vendor),
            model: Arc::clone(&pool.model),
            memory_bytes: pool.memory_bytes,
            unit: pool.unit.clone(),
        }
    }

    pub fn accepted_by(&self, gpu: &GpuRequest) -> bool {
        gpu.resource
            .as_ref()
            .is_none_or(|resource| *resource == self.resource)
            && gpu
                .vendor
                .as_ref()
                .is_none_or(|vendor| *vendor == self.vendor)
            && (gpu.models.is_empty() || gpu.models.contains(&self.model))
            && self.unit.serves(gpu)
            && gpu.min_memory_bytes <= self.unit.memory_of(self.memory_bytes, gpu)
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct KindId(u32);

impl KindId {
    pub const fn index(self) -> usize {
        self.0 as usize
    }
}

#[derive(Clone, Debug, Default)]
pub(crate) struct Kinds {
    known: Vec<Kind>,
}

impl Kinds {
    /// A fleet has a handful of kinds, so a walk beats a map.
    pub(super) fn number(&mut self, pool: &GpuPool) -> KindId {
        let kind = Kind::of(pool);
        let at = self
            .known
            .iter()
            .position(|known| *known == kind)
            .unwrap_or_else(|| {
                self.known.push(kind);
                self.known.len() - 1
            });
        KindId(u32::try_from(at).unwrap_or(u32::MAX))
    }

    pub(super) fn get(&self, id: KindId) -> &Kind {
        &self.known[id.index()]
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (KindId, &Kind)> {
        (0..).map(KindId).zip(&self.known)
    }
}

/// A set of kinds.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct KindSet {
    words: Vec<u64>,
}

impl KindSet {
    pub fn contains(&self, id: KindId) -> bool {
        self.words
            .get(id.index() / 64)
            .is_some_and(|word| word >> (id.index() % 64) & 1 == 1)
    }

    pub fn is_empty(&self) -> bool {
        self.words.iter().all(|&word| word == 0)
    }

    pub fn words(&self) -> &[u64] {
        &self.words
    }

    pub fn from_words(words: &[u64]) -> Self {
        Self {
            words: words.to_vec(),
        }
    }
}

impl FromIterator<KindId> for KindSet {
    fn from_iter<I: IntoIterator<Item = KindId>>(ids: I) -> Self {
        let mut words = Vec::new();
        for id in ids {
            if words.len() <= id.index() / 64 {
                words.resize(id.index() / 64 + 1, 0);
            }
            words[id.index() / 64] |= 1 << (id.index() % 64);
        }
        Self { words }
    }
}
