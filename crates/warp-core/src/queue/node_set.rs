//! A set of nodes as bits: what is free, what is reserved, what to avoid.

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
        self.words.get((node / 64) as usize).is_some_and(|word| word & (1 << (node % 64)) != 0)
    }

    pub fn is_empty(&self) -> bool {
        self.words.iter().all(|word| *word == 0)
    }

    /// Members that are not in `avoid`, ascending.
    pub fn without<'a>(&'a self, avoid: Option<&'a Self>) -> impl Iterator<Item = u32> + 'a {
        (0_u32..).zip(&self.words).flat_map(move |(index, word)| {
            let banned = avoid.and_then(|a| a.words.get(index as usize)).copied().unwrap_or(0);
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
