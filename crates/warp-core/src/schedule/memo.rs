//! A map from 128-bit fingerprints to small values: the standard maps are either ordered (slow here)
//! or randomly seeded (forbidden here). Keys are hashes already, so the low bits address directly.

#[derive(Clone, Debug)]
pub(super) struct Memo<V> {
    slots: Vec<Option<(u128, V)>>,
    len: usize,
}

impl<V: Copy> Default for Memo<V> {
    fn default() -> Self {
        Self {
            slots: vec![None; 1024],
            len: 0,
        }
    }
}

impl<V: Copy> Memo<V> {
    pub(super) fn get(&self, key: u128) -> Option<V> {
        let mut at = self.home(key);
        while let Some((known, value)) = self.slots[at] {
            if known == key {
                return Some(value);
            }
            at = (at + 1) & (self.slots.len() - 1);
        }
        None
    }

    /// Remembers a value. The table forgets everything when it grows past `LIMIT`: it only saves
    /// work, and a process that runs for months must not grow for ever.
    pub(super) fn insert(&mut self, key: u128, value: V) {
        const LIMIT: usize = 1 << 20;
        if self.len >= LIMIT {
            *self = Self::default();
        }
        if (self.len + 1) * 2 > self.slots.len() {
            self.grow();
        }
        self.put(key, value);
    }

    fn put(&mut self, key: u128, value: V) {
        let mut at = self.home(key);
        while let Some((known, _)) = self.slots[at] {
            if known == key {
                self.len -= 1;
                break;
            }
            at = (at + 1) & (self.slots.len() - 1);
        }
        self.slots[at] = Some((key, value));
        self.len += 1;
    }

    fn grow(&mut self) {
        let doubled = vec![None; self.slots.len() * 2];
        let old = std::mem::replace(&mut self.slots, doubled);
        self.len = 0;
        for (key, value) in old.into_iter().flatten() {
            self.put(key, value);
        }
    }

    #[expect(
        clippy::cast_possible_truncation,
        reason = "only the low bits address a slot"
    )]
    fn home(&self, key: u128) -> usize {
        key as usize & (self.slots.len() - 1)
    }

    pub(super) fn clear(&mut self) {
        *self = Self::default();
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::Memo;

    proptest! {
        #[test]
        fn it_remembers_like_an_ordered_map(pairs in proptest::collection::vec((0..4000_u128, 0..9_u8), 0..3000)) {
            let mut memo = Memo::default();
            let mut map = BTreeMap::new();
            for (key, value) in pairs {
                // Equal low bits for many keys, so that probing is exercised.
                let key = key << 64 | (key % 7);
                memo.insert(key, value);
                map.insert(key, value);
            }
            for (&key, &value) in &map {
                prop_assert_eq!(memo.get(key), Some(value));
            }
            prop_assert_eq!(memo.get(u128::MAX), None);
        }
    }
}
