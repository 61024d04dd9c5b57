//! Capacity as the queue counts it: whole GPUs on nodes, nodes in classes (one GPU type, one
//! size). It answers where work fits now, tightest first. CPU, memory, taints and cards are the
//! fleet's business: the classes a job accepts are the nodes that pass those checks.

use super::job::{Need, Shape};
use super::node_set::{End, NodeSet};

pub type NodeId = u32;
pub type ClassId = u16;

/// Nodes that can stand in for each other.
#[derive(Clone, Debug)]
struct Class {
    name: String,
    size: u32,
    nodes: Vec<NodeId>,
    /// Nodes by free GPUs.
    by_free: Vec<NodeSet>,
    counts: Vec<u32>,
}

#[derive(Clone, Copy, Debug)]
struct Node {
    class: ClassId,
    free: u32,
}

/// GPUs taken, per node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Placement {
    One([(NodeId, u32); 1]),
    Many(Vec<(NodeId, u32)>),
}

impl Placement {
    pub fn one(node: NodeId, gpus: u32) -> Self {
        Self::One([(node, gpus)])
    }

    pub fn parts(&self) -> &[(NodeId, u32)] {
        match self {
            Self::One(part) => part,
            Self::Many(parts) => parts,
        }
    }

    pub fn gpus(&self) -> u32 {
        self.parts().iter().map(|(_, gpus)| gpus).sum()
    }
}

/// Why a need can never be met by this pool, however long it waits.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Impossible {
    #[error("asks for no GPU")]
    Nothing,
    #[error("accepts none of the node classes here")]
    NoClass,
    #[error("asks for {asked} GPUs, the nodes it accepts have {have} in all")]
    TooMany { asked: u64, have: u64 },
    #[error("asks for members of {asked} GPUs, the largest node it accepts has {have}")]
    MemberTooLarge { asked: u32, have: u32 },
    #[error(
        "asks for {asked} GPUs in a shape the nodes it accepts ({have} GPUs) cannot hold together"
    )]
    Shape { asked: u64, have: u64 },
}

/// The nodes of a fleet with their free GPUs.
#[derive(Clone, Debug, Default)]
pub struct Pool {
    classes: Vec<Class>,
    nodes: Vec<Node>,
    total: u64,
    free: u64,
}

impl Pool {
    /// `count` equal nodes of `size` GPUs.
    pub fn uniform(count: u32, size: u32) -> Self {
        let mut pool = Self::default();
        let class = pool.class("gpu", size);
        for _ in 0..count {
            pool.add_node(class);
        }
        pool
    }

    /// The class of that name and node size, created on first sight.
    pub fn class(&mut self, name: &str, size: u32) -> ClassId {
        let known = self
            .classes
            .iter()
            .position(|c| c.name == name && c.size == size);
        let index = known.unwrap_or_else(|| {
            self.classes.push(Class {
                name: name.to_owned(),
                size,
                nodes: Vec::new(),
                by_free: vec![NodeSet::default(); size as usize + 1],
                counts: vec![0; size as usize + 1],
            });
            self.classes.len() - 1
        });
        ClassId::try_from(index).unwrap_or(ClassId::MAX)
    }

    /// An idle node.
    pub fn add_node(&mut self, class: ClassId) -> NodeId {
        let node = u32::try_from(self.nodes.len()).unwrap_or(u32::MAX);
        let entry = &mut self.classes[class as usize];
        entry.nodes.push(node);
        entry.by_free[entry.size as usize].insert(node);
        entry.counts[entry.size as usize] += 1;
        self.total += u64::from(entry.size);
        self.free += u64::from(entry.size);
        self.nodes.push(Node {
            class,
            free: entry.size,
        });
        node
    }

    pub fn total(&self) -> u64 {
        self.total
    }

    pub fn free(&self) -> u64 {
        self.free
    }

    pub fn node_count(&self) -> usize {
        self.nodes.len()
    }

    pub fn free_on(&self, node: NodeId) -> u32 {
        self.nodes[node as usize].free
    }

    pub fn size_of(&self, node: NodeId) -> u32 {
        self.classes[self.nodes[node as usize].class as usize].size
    }

    pub fn class_size(&self, class: ClassId) -> u32 {
        self.classes[class as usize].size
    }

    pub fn class_nodes(&self, class: ClassId) -> &[NodeId] {
        &self.classes[class as usize].nodes
    }

    /// Every class whose name is in `names`, in that order; all classes when `names` is empty.
    pub fn classes_named(&self, names: &[String]) -> Vec<ClassId> {
        let all = 0..ClassId::try_from(self.classes.len()).unwrap_or(ClassId::MAX);
        if names.is_empty() {
            return all.collect();
        }
        let named = |name: &String| {
            let name = name.clone();
            all.clone()
                .filter(move |c| self.classes[*c as usize].name == name)
        };
        names.iter().flat_map(named).collect()
    }

    /// Takes GPUs on one node; a caller that takes more than is free gets what is free.
    pub fn take(&mut self, node: NodeId, gpus: u32) {
        let free = self.free_on(node);
        debug_assert!(
            gpus <= free,
            "node {node} has {free} free GPUs, {gpus} taken"
        );
        self.set_free(node, free.saturating_sub(gpus));
    }

    /// Gives GPUs back.
    pub fn give(&mut self, node: NodeId, gpus: u32) {
        let (free, size) = (self.free_on(node), self.size_of(node));
        debug_assert!(
            free + gpus <= size,
            "node {node} of {size} given {gpus} beyond {free}"
        );
        self.set_free(node, (free + gpus).min(size));
    }

    fn set_free(&mut self, node: NodeId, free: u32) {
        let entry = &mut self.nodes[node as usize];
        let class = &mut self.classes[entry.class as usize];
        class.by_free[entry.free as usize].remove(node);
        class.counts[entry.free as usize] -= 1;
        class.by_free[free as usize].insert(node);
        class.counts[free as usize] += 1;
        self.free = self.free - u64::from(entry.free) + u64::from(free);
        entry.free = free;
    }

    /// Where it fits now off the nodes of `avoid`, leaving the least behind; `None` if nowhere.
    pub fn fit(&self, need: &Need, avoid: Option<&NodeSet>, from: End) -> Option<Placement> {
        if let Shape::Gpus(gpus) = need.shape {
            let single = self.single_node_classes(need);
            let mut best: Option<(u32, NodeId)> = None;
            for class in &single {
                let found = self.classes[*class as usize].tightest(gpus, avoid, from);
                if let Some((left, node)) = found
                    && best.is_none_or(|(least, _)| left < least)
                {
                    best = Some((left, node));
                }
            }
            if !single.is_empty() {
                return best.map(|(_, node)| Placement::one(node, gpus));
            }
        }
        need.accepts
            .iter()
            .find_map(|class| self.gang(*class, need.shape, avoid))
    }

    /// Accepted classes whose nodes hold the whole shape; a job is not split if one exists.
    pub fn single_node_classes(&self, need: &Need) -> Vec<ClassId> {
        let Shape::Gpus(gpus) = need.shape else {
            return Vec::new();
        };
        let large = |class: &&ClassId| self.classes[**class as usize].size >= gpus;
        need.accepts.iter().filter(large).copied().collect()
    }

    fn gang(&self, class: ClassId, shape: Shape, avoid: Option<&NodeSet>) -> Option<Placement> {
        let class = &self.classes[class as usize];
        let mut parts: Vec<(NodeId, u32)> = Vec::new();
        for (count, gpus) in chunks(shape, class.size) {
            class.spread(count, gpus, avoid, &mut parts)?;
        }
        parts.sort_unstable();
        Some(Placement::Many(parts))
    }

    /// Whether the need could be met with everything idle.
    pub fn possible(&self, need: &Need) -> Result<(), Impossible> {
        let asked = u64::from(need.shape.gpus());
        if asked == 0 {
            return Err(Impossible::Nothing);
        }
        let accepted = || need.accepts.iter().map(|c| &self.classes[*c as usize]);
        let have = accepted()
            .map(|c| u64::from(c.size) * c.nodes.len() as u64)
            .sum();
        if have == 0 {
            return Err(Impossible::NoClass);
        }
        if asked > have {
            return Err(Impossible::TooMany { asked, have });
        }
        let largest = accepted().map(|c| c.size).max().unwrap_or(0);
        if let Shape::Members { gpus, .. } = need.shape
            && gpus > largest
        {
            return Err(Impossible::MemberTooLarge {
                asked: gpus,
                have: largest,
            });
        }
        let mut idle = self.clone();
        for node in 0..u32::try_from(idle.nodes.len()).unwrap_or(u32::MAX) {
            let size = idle.size_of(node);
            idle.set_free(node, size);
        }
        idle.fit(need, None, End::Low)
            .map(|_| ())
            .ok_or(Impossible::Shape { asked, have })
    }
}

/// A shape as (members, GPUs each) on nodes of `size`, largest members first.
pub fn chunks(shape: Shape, size: u32) -> Vec<(u32, u32)> {
    match shape {
        Shape::Members { count, gpus } => vec![(count, gpus)],
        Shape::Gpus(gpus) if size == 0 || gpus <= size => vec![(1, gpus)],
        Shape::Gpus(gpus) if gpus.is_multiple_of(size) => vec![(gpus / size, size)],
        Shape::Gpus(gpus) => vec![(gpus / size, size), (1, gpus % size)],
    }
}

impl Class {
    fn tightest(&self, gpus: u32, avoid: Option<&NodeSet>, from: End) -> Option<(u32, NodeId)> {
        (gpus..=self.size).find_map(|free| {
            if self.counts[free as usize] == 0 {
                return None;
            }
            let node = self.by_free[free as usize].end(avoid, from)?;
            Some((free - gpus, node))
        })
    }

    /// Places `count` members of `gpus`, fullest nodes first, beside what `parts` already takes.
    fn spread(
        &self,
        count: u32,
        gpus: u32,
        avoid: Option<&NodeSet>,
        parts: &mut Vec<(NodeId, u32)>,
    ) -> Option<()> {
        let mut left = count;
        let already = parts.clone();
        for free in gpus.max(1)..=self.size {
            for node in self.by_free[free as usize].without(avoid) {
                if left == 0 {
                    return Some(());
                }
                let taken: u32 = already
                    .iter()
                    .filter(|(n, _)| *n == node)
                    .map(|(_, g)| g)
                    .sum();
                let here = ((free - taken.min(free)) / gpus.max(1)).min(left);
                if here > 0 {
                    left -= here;
                    match parts.iter_mut().find(|(n, _)| *n == node && taken > 0) {
                        Some(part) => part.1 += here * gpus,
                        None => parts.push((node, here * gpus)),
                    }
                }
            }
        }
        (left == 0).then_some(())
    }
}

#[cfg(test)]
mod tests;
