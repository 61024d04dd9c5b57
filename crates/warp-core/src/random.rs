//! Reproducible randomness: a seed in, the same numbers out on every machine, and a stable hash.
//! It is not for secrets.

/// A small generator (SplitMix64): one `u64` of state, every seed is a good seed.
#[derive(Clone, Debug)]
pub struct Random {
    state: u64,
}

const GOLDEN: u64 = 0x9e37_79b9_7f4a_7c15;

/// Mixes one word so that every input bit reaches every output bit.
pub const fn mix(word: u64) -> u64 {
    let mut z = word.wrapping_add(GOLDEN);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

impl Random {
    pub const fn new(seed: u64) -> Self {
        Self { state: mix(seed) }
    }

    pub const fn next_u64(&mut self) -> u64 {
        let word = mix(self.state);
        self.state = self.state.wrapping_add(GOLDEN);
        word
    }

    /// A number in `0..bound`, without modulo bias worth speaking of; 0 when `bound` is 0.
    pub fn below(&mut self, bound: usize) -> usize {
        let wide = u128::from(self.next_u64()) * bound as u128;
        usize::try_from(wide >> 64).unwrap_or(0)
    }

    /// A number in `[0, 1)` with 53 random bits.
    pub fn unit(&mut self) -> f64 {
        (self.next_u64() >> 11) as f64 / (1_u64 << 53) as f64
    }

    /// A uniformly random order (Fisher–Yates).
    pub fn shuffle<T>(&mut self, items: &mut [T]) {
        for end in (1..items.len()).rev() {
            items.swap(end, self.below(end + 1));
        }
    }
}

/// A running hash of plain values, equal on every machine and in every run (unlike `std`'s).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fingerprint(u64);

impl Default for Fingerprint {
    fn default() -> Self {
        Self(0x6a09_e667_f3bc_c908)
    }
}

impl Fingerprint {
    #[must_use]
    pub const fn word(self, word: u64) -> Self {
        Self(mix(self.0.rotate_left(5) ^ word))
    }

    /// Text, with its length so that ("ab", "c") and ("a", "bc") differ.
    #[must_use]
    pub fn text(self, text: &str) -> Self {
        let mut print = self.word(text.len() as u64);
        for chunk in text.as_bytes().chunks(8) {
            let mut word = [0; 8];
            word[..chunk.len()].copy_from_slice(chunk);
            print = print.word(u64::from_le_bytes(word));
        }
        print
    }

    #[must_use]
    pub const fn signed(self, value: i64) -> Self {
        self.word(value.cast_unsigned())
    }

    pub const fn get(self) -> u64 {
        self.0
    }
}

#[cfg(test)]
mod tests {
    use super::{Fingerprint, Random};

    #[test]
    fn a_seed_repeats_and_another_differs() {
        let draw = |seed| {
            let mut random = Random::new(seed);
            (0..4).map(|_| random.below(1000)).collect::<Vec<_>>()
        };
        assert_eq!(draw(1), draw(1));
        assert_ne!(draw(1), draw(2));
    }

    #[test]
    fn a_shuffle_keeps_the_items() {
        let mut items: Vec<u32> = (0..100).collect();
        Random::new(7).shuffle(&mut items);
        assert_ne!(items, (0..100).collect::<Vec<_>>());
        items.sort_unstable();
        assert_eq!(items, (0..100).collect::<Vec<_>>());
    }

    #[test]
    fn a_fingerprint_sees_where_texts_end() {
        let print = |a: &str, b: &str| Fingerprint::default().text(a).text(b);
        assert_ne!(print("ab", "c"), print("a", "bc"));
        assert_eq!(print("ab", "c"), print("ab", "c"));
    }
}
