//! Sums that stores keep of an object where they keep no SHA-256: CRC-32C and MD5. They tell damage on the way, not
//! intent; the file is named by its SHA-256 all the same.

use std::fmt::{self, Display};

use crate::digest::hex;

/// What a store says of an object's content.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Checksum {
    Crc32c(u32),
    Md5([u8; 16]),
}

impl Display for Checksum {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Crc32c(sum) => write!(f, "crc32c:{sum:08x}"),
            Self::Md5(sum) => write!(f, "md5:{}", hex(sum)),
        }
    }
}

/// A sum being computed.
#[derive(Clone, Debug)]
pub(crate) enum Sum {
    Crc32c(u32),
    Md5(Md5),
}

impl Sum {
    /// Of the same kind as `expected`.
    pub(crate) fn like(expected: Checksum) -> Self {
        match expected {
            Checksum::Crc32c(_) => Self::Crc32c(!0),
            Checksum::Md5(_) => Self::Md5(Md5::new()),
        }
    }

    pub(crate) fn update(&mut self, data: &[u8]) {
        match self {
            Self::Crc32c(state) => *state = crc32c(*state, data),
            Self::Md5(state) => state.update(data),
        }
    }

    pub(crate) fn finish(self) -> Checksum {
        match self {
            Self::Crc32c(state) => Checksum::Crc32c(!state),
            Self::Md5(state) => Checksum::Md5(state.finish()),
        }
    }
}

/// Castagnoli's polynomial, its bits turned around.
const POLYNOMIAL: u32 = 0x82f6_3b78;
/// For each of eight bytes at once, what each of its values does to the state.
static TABLES: [[u32; 256]; 8] = tables();

const fn tables() -> [[u32; 256]; 8] {
    let mut tables = [[0_u32; 256]; 8];
    let mut value = 0;
    while value < 256 {
        // Below 256: nothing is lost.
        #[expect(clippy::cast_possible_truncation, reason = "below 256")]
        let mut state = value as u32;
        let mut bit = 0;
        while bit < 8 {
            state = if state & 1 == 1 {
                (state >> 1) ^ POLYNOMIAL
            } else {
                state >> 1
            };
            bit += 1;
        }
        tables[0][value] = state;
        value += 1;
    }
    let mut table = 1;
    while table < 8 {
        let mut value = 0;
        while value < 256 {
            let before = tables[table - 1][value];
            tables[table][value] = (before >> 8) ^ tables[0][(before & 0xff) as usize];
            value += 1;
        }
        table += 1;
    }
    tables
}

fn crc32c(mut state: u32, data: &[u8]) -> u32 {
    let (eights, rest) = data.as_chunks::<8>();
    for eight in eights {
        let mut mixed = *eight;
        for (byte, old) in mixed.iter_mut().zip(state.to_le_bytes()) {
            *byte ^= old;
        }
        let tables = TABLES.iter().rev();
        state = mixed
            .iter()
            .zip(tables)
            .fold(0, |sum, (byte, table)| sum ^ table[usize::from(*byte)]);
    }
    for byte in rest {
        state = (state >> 8) ^ TABLES[0][((state ^ u32::from(*byte)) & 0xff) as usize];
    }
    state
}

/// MD5 as RFC 1321 describes it.
#[derive(Clone, Debug)]
pub(crate) struct Md5 {
    state: [u32; 4],
    length: u64,
    held: Vec<u8>,
}

const TURNS: [[u32; 4]; 4] = [
    [7, 12, 17, 22],
    [5, 9, 14, 20],
    [4, 11, 16, 23],
    [6, 10, 15, 21],
];

/// Whole parts of `2^32 × |sin(n)|`.
const SINES: [u32; 64] = [
    0xd76a_a478,
    0xe8c7_b756,
    0x2420_70db,
    0xc1bd_ceee,
    0xf57c_0faf,
    0x4787_c62a,
    0xa830_4613,
    0xfd46_9501,
    0x6980_98d8,
    0x8b44_f7af,
    0xffff_5bb1,
    0x895c_d7be,
    0x6b90_1122,
    0xfd98_7193,
    0xa679_438e,
    0x49b4_0821,
    0xf61e_2562,
    0xc040_b340,
    0x265e_5a51,
    0xe9b6_c7aa,
    0xd62f_105d,
    0x0244_1453,
    0xd8a1_e681,
    0xe7d3_fbc8,
    0x21e1_cde6,
    0xc337_07d6,
    0xf4d5_0d87,
    0x455a_14ed,
    0xa9e3_e905,
    0xfcef_a3f8,
    0x676f_02d9,
    0x8d2a_4c8a,
    0xfffa_3942,
    0x8771_f681,
    0x6d9d_6122,
    0xfde5_380c,
    0xa4be_ea44,
    0x4bde_cfa9,
    0xf6bb_4b60,
    0xbebf_bc70,
    0x289b_7ec6,
    0xeaa1_27fa,
    0xd4ef_3085,
    0x0488_1d05,
    0xd9d4_d039,
    0xe6db_99e5,
    0x1fa2_7cf8,
    0xc4ac_5665,
    0xf429_2244,
    0x432a_ff97,
    0xab94_23a7,
    0xfc93_a039,
    0x655b_59c3,
    0x8f0c_cc92,
    0xffef_f47d,
    0x8584_5dd1,
    0x6fa8_7e4f,
    0xfe2c_e6e0,
    0xa301_4314,
    0x4e08_11a1,
    0xf753_7e82,
    0xbd3a_f235,
    0x2ad7_d2bb,
    0xeb86_d391,
];

impl Md5 {
    fn new() -> Self {
        Self {
            state: [0x6745_2301, 0xefcd_ab89, 0x98ba_dcfe, 0x1032_5476],
            length: 0,
            held: Vec::with_capacity(64),
        }
    }

    fn update(&mut self, mut data: &[u8]) {
        self.length = self.length.wrapping_add(data.len() as u64);
        if !self.held.is_empty() {
            let want = (64 - self.held.len()).min(data.len());
            self.held.extend_from_slice(&data[..want]);
            data = &data[want..];
            if let Ok(block) = <[u8; 64]>::try_from(self.held.as_slice()) {
                self.block(&block);
                self.held.clear();
            }
        }
        let (blocks, rest) = data.as_chunks::<64>();
        for block in blocks {
            self.block(block);
        }
        self.held.extend_from_slice(rest);
    }

    fn block(&mut self, block: &[u8; 64]) {
        let mut words = [0_u32; 16];
        for (word, four) in words.iter_mut().zip(block.as_chunks::<4>().0) {
            *word = u32::from_le_bytes(*four);
        }
        let [mut one, mut two, mut three, mut four] = self.state;
        for (step, sine) in SINES.iter().enumerate() {
            let (mixed, place) = match step / 16 {
                0 => ((two & three) | (!two & four), step),
                1 => ((four & two) | (!four & three), 5 * step + 1),
                2 => (two ^ three ^ four, 3 * step + 5),
                _ => (three ^ (two | !four), 7 * step),
            };
            let sum = one
                .wrapping_add(mixed)
                .wrapping_add(*sine)
                .wrapping_add(words[place % 16]);
            let turned = sum.rotate_left(TURNS[step / 16][step % 4]);
            (one, four, three, two) = (four, three, two, two.wrapping_add(turned));
        }
        for (state, value) in self.state.iter_mut().zip([one, two, three, four]) {
            *state = state.wrapping_add(value);
        }
    }

    fn finish(mut self) -> [u8; 16] {
        let bits = self.length.wrapping_mul(8);
        self.update(&[0x80]);
        while self.held.len() != 56 {
            self.update(&[0]);
        }
        self.update(&bits.to_le_bytes());
        let mut bytes = [0; 16];
        for (four, word) in bytes.as_chunks_mut::<4>().0.iter_mut().zip(self.state) {
            *four = word.to_le_bytes();
        }
        bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(expected: Checksum, parts: &[&[u8]]) -> String {
        let mut sum = Sum::like(expected);
        for part in parts {
            sum.update(part);
        }
        sum.finish().to_string()
    }

    #[test]
    fn sums_are_those_of_the_standards_however_the_data_comes() {
        let crc = |parts: &[&[u8]]| of(Checksum::Crc32c(0), parts);
        // RFC 3720, B.4, and the catalogue's check value.
        assert_eq!(crc(&[b"123456789"]), "crc32c:e3069283");
        assert_eq!(crc(&[&[0; 32]]), "crc32c:8a9136aa");
        assert_eq!(crc(&[&[0xff; 20], &[0xff; 12]]), "crc32c:62a8ab43");
        assert_eq!(crc(&[]), "crc32c:00000000");
        let md5 = |parts: &[&[u8]]| of(Checksum::Md5([0; 16]), parts);
        // RFC 1321, A.5.
        assert_eq!(md5(&[]), "md5:d41d8cd98f00b204e9800998ecf8427e");
        assert_eq!(
            md5(&[b"mess", b"age digest"]),
            "md5:f96b697d7cb7938d525a2f31aaf161d0"
        );
        let digits = "1234567890".repeat(8);
        assert_eq!(
            md5(&[digits.as_bytes()]),
            "md5:57edf4a22be3c955ac49da2e2107b67a"
        );
        for cut in [1, 55, 56, 63, 64, 65, 79] {
            let (one, other) = digits.as_bytes().split_at(cut);
            assert_eq!(md5(&[one, other]), md5(&[digits.as_bytes()]), "{cut}");
            assert_eq!(crc(&[one, other]), crc(&[digits.as_bytes()]), "{cut}");
        }
    }
}
