//! A map from 128-bit fingerprints to small values: the standard maps are either ordered (slow here)
//! or randomly seeded (forbidden here). Keys are hashes already, so the low bits address directly.

use crate::random::mix;

/// The identity of a node's state as far as a value depends on it: the order of cards does not
/// matter, so it is left out.
pub(super) fn state_key(head: [u64; 3], cards: &[i32]) -> u128 {
    let mut sorted = [0_i32; 16];
    let mut many;
    let sorted = if let Some(few) = sorted.get_mut(..cards.len()) {
        few.copy_from_slice(cards);
        few
    } else {
        many = cards.to_vec();
        many.as_mut_slice()
    };
    sorted.sort_unstable();
    let (mut low, mut high) = (0x243f_6a88_85a3_08d3_u64, 0x1319_8a2e_0370_7344_u64);
    let mut add = |word: u64| {
        low = mix(low ^ word);
        high = (high ^ word)
            .wrapping_mul(0x9e37_79b9_7f4a_7c15)
            .rotate_left(29);
    };
    head.into_iter().for_each(&mut add);
    for pair in sorted.chunks(2) {
        let second = pair.get(1).map_or(u32::MAX, |card| card.cast_unsigned());
        add(u64::from(pair[0].cast_unsigned()) << 32 | u64::from(second));
    }
    u128::from(mix(high ^ low.rotate_left(17))) << 64 | u128::from(low)
}

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

    fn home(&self, key: u128) -> usize {
        key as usize & (self.slots.len() - 1)
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
