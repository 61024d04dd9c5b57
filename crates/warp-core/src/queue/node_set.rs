//! A set of nodes as bits: what is free, what is reserved, what to avoid.

/// From which end of the nodes to choose among equals: keeping unlike work at opposite ends leaves
/// whole nodes that can be emptied.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum End {
    #[default]
    Low,
    High,
}

/// Grows as needed; a node that was never added is absent.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NodeSet {
    words: Vec<u64>,
}

impl NodeSet {
    pub fn insert(&mut self, node: u32) {
        let word = (node / 64) as usize;
        if word >= self.words.len() {
            self.words.resize(word + 1, 0);
        }
        self.words[word] |= 1 << (node % 64);
    }

    pub fn remove(&mut self, node: u32) {
        if let Some(word) = self.words.get_mut((node / 64) as usize) {
            *word &= !(1 << (node % 64));
        }
    }

    pub fn contains(&self, node: u32) -> bool {
        self.words
            .get((node / 64) as usize)
            .is_some_and(|word| word & (1 << (node % 64)) != 0)
    }

    pub fn is_empty(&self) -> bool {
        self.words.iter().all(|word| *word == 0)
    }

    /// Members that are not in `avoid`, ascending.
    pub fn without<'a>(&'a self, avoid: Option<&'a Self>) -> impl Iterator<Item = u32> + 'a {
        (0_u32..).zip(&self.words).flat_map(move |(index, word)| {
            let banned = avoid
                .and_then(|a| a.words.get(index as usize))
                .copied()
                .unwrap_or(0);
            let mut left = word & !banned;
            std::iter::from_fn(move || {
                if left == 0 {
                    return None;
                }
                let bit = left.trailing_zeros();
                left &= left - 1;
                Some(index * 64 + bit)
            })
        })
    }

    /// The first member that is not in `avoid`, from either end.
    pub fn end(&self, avoid: Option<&Self>, from: End) -> Option<u32> {
        let open = |(index, word): (usize, &u64)| {
            let left = word & !avoid.and_then(|a| a.words.get(index)).copied().unwrap_or(0);
            if left == 0 {
                return None;
            }
            let bit = match from {
                End::Low => left.trailing_zeros(),
                End::High => left.ilog2(),
            };
            Some(u32::try_from(index).unwrap_or(u32::MAX) * 64 + bit)
        };
        let mut words = self.words.iter().enumerate();
        match from {
            End::Low => words.find_map(open),
            End::High => words.rev().find_map(open),
        }
    }

    pub fn extend(&mut self, other: &Self) {
        if self.words.len() < other.words.len() {
            self.words.resize(other.words.len(), 0);
        }
        for (mine, theirs) in self.words.iter_mut().zip(&other.words) {
            *mine |= theirs;
        }
    }
}

impl FromIterator<u32> for NodeSet {
    fn from_iter<I: IntoIterator<Item = u32>>(nodes: I) -> Self {
        let mut set = Self::default();
        for node in nodes {
            set.insert(node);
        }
        set
    }
}
