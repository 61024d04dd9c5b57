//! The inverse of deflate for one stream that is flushed after each piece: what RFC 1950 and 1951 say, no
//! more. Every piece ends on a byte, so no half-read code is carried along; the last 32 KiB are.

use std::sync::LazyLock;

const WINDOW: usize = 32 << 10;
const LONGEST_CODE: usize = 15;

/// What is wrong with the data.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Corrupt(pub(super) &'static str);

/// See the module.
#[derive(Debug)]
pub(super) struct Inflate {
    /// What was unpacked last, or the dictionary, with room for what comes.
    history: Vec<u8>,
    dictionary: u32,
    begun: bool,
}

const CUT: Corrupt = Corrupt("compressed headers end too soon");
const BAD: Corrupt = Corrupt("compressed headers cannot be read");

impl Inflate {
    pub(super) fn new(dictionary: &[u8]) -> Self {
        Self {
            history: dictionary.to_vec(),
            dictionary: adler32(dictionary),
            begun: false,
        }
    }

    /// Unpacks the next piece; it is refused when it gets longer than `limit`.
    pub(super) fn block(&mut self, packed: &[u8], limit: usize) -> Result<Vec<u8>, Corrupt> {
        let mut bits = Bits::new(packed);
        if !self.begun {
            self.begin(&mut bits)?;
            self.begun = true;
        }
        let start = self.history.len();
        let most = start + limit;
        let mut flushed = bits.is_at_end();
        while !bits.is_at_end() {
            let last = bits.take(1)? == 1;
            let kind = bits.take(2)?;
            match kind {
                0 => self.stored(&mut bits, most)?,
                1 => self.coded(&mut bits, &FIXED, most)?,
                2 => {
                    let codes = dynamic(&mut bits)?;
                    self.coded(&mut bits, &codes, most)?;
                }
                _ => return Err(BAD),
            }
            flushed = kind == 0;
            if last {
                return Err(Corrupt("compressed headers say that no more will come"));
            }
        }
        if !flushed {
            return Err(CUT);
        }
        let plain = self.history.split_off(start);
        self.history.extend_from_slice(&plain);
        let old = self.history.len().saturating_sub(WINDOW);
        self.history.drain(..old);
        Ok(plain)
    }

    fn begin(&mut self, bits: &mut Bits<'_>) -> Result<(), Corrupt> {
        let (method, flags) = (bits.take(8)?, bits.take(8)?);
        if method & 0xf != 8 || !(method << 8 | flags).is_multiple_of(31) {
            return Err(BAD);
        }
        if flags & 0x20 == 0 {
            self.history.clear();
            return Ok(());
        }
        let mut id = 0;
        for _ in 0..4 {
            id = id << 8 | bits.take(8)?;
        }
        if id == self.dictionary {
            Ok(())
        } else {
            Err(Corrupt("headers are compressed with another dictionary"))
        }
    }

    fn push(&mut self, byte: u8, most: usize) -> Result<(), Corrupt> {
        if self.history.len() >= most {
            return Err(Corrupt("headers are too long"));
        }
        self.history.push(byte);
        Ok(())
    }

    fn stored(&mut self, bits: &mut Bits<'_>, most: usize) -> Result<(), Corrupt> {
        bits.align();
        let (length, check) = (bits.take(16)?, bits.take(16)?);
        if length != !check & 0xffff {
            return Err(BAD);
        }
        for _ in 0..length {
            let byte = bits.byte()?;
            self.push(byte, most)?;
        }
        Ok(())
    }

    fn coded(
        &mut self,
        bits: &mut Bits<'_>,
        (literals, distances): &(Code, Code),
        most: usize,
    ) -> Result<(), Corrupt> {
        loop {
            let symbol = literals.next(bits)?;
            if let Ok(byte) = u8::try_from(symbol) {
                self.push(byte, most)?;
                continue;
            }
            if symbol == 256 {
                return Ok(());
            }
            let length = extended(bits, &LENGTHS, symbol - 257)?;
            let symbol = distances.next(bits)?;
            let distance = extended(bits, &DISTANCES, symbol)?;
            for _ in 0..length {
                let at = self.history.len().checked_sub(distance).ok_or(BAD)?;
                let byte = *self.history.get(at).ok_or(BAD)?;
                self.push(byte, most)?;
            }
        }
    }
}

/// First value and extra bits of each symbol.
const LENGTHS: [(u16, u8); 29] = [
    (3, 0),
    (4, 0),
    (5, 0),
    (6, 0),
    (7, 0),
    (8, 0),
    (9, 0),
    (10, 0),
    (11, 1),
    (13, 1),
    (15, 1),
    (17, 1),
    (19, 2),
    (23, 2),
    (27, 2),
    (31, 2),
    (35, 3),
    (43, 3),
    (51, 3),
    (59, 3),
    (67, 4),
    (83, 4),
    (99, 4),
    (115, 4),
    (131, 5),
    (163, 5),
    (195, 5),
    (227, 5),
    (258, 0),
];
const DISTANCES: [(u16, u8); 30] = [
    (1, 0),
    (2, 0),
    (3, 0),
    (4, 0),
    (5, 1),
    (7, 1),
    (9, 2),
    (13, 2),
    (17, 3),
    (25, 3),
    (33, 4),
    (49, 4),
    (65, 5),
    (97, 5),
    (129, 6),
    (193, 6),
    (257, 7),
    (385, 7),
    (513, 8),
    (769, 8),
    (1025, 9),
    (1537, 9),
    (2049, 10),
    (3073, 10),
    (4097, 11),
    (6145, 11),
    (8193, 12),
    (12289, 12),
    (16385, 13),
    (24577, 13),
];

fn extended(bits: &mut Bits<'_>, table: &[(u16, u8)], symbol: u16) -> Result<usize, Corrupt> {
    let (first, extra) = *table.get(usize::from(symbol)).ok_or(BAD)?;
    let more = bits.take(u32::from(extra))?;
    Ok(usize::from(first) + usize::try_from(more).unwrap_or_default())
}

/// A Huffman code: how many symbols each length has, and the symbols in the order of their codes.
struct Code {
    counts: [u16; LONGEST_CODE + 1],
    symbols: Vec<u16>,
}

impl Code {
    fn new(lengths: &[u8]) -> Result<Self, Corrupt> {
        let mut counts = [0_u16; LONGEST_CODE + 1];
        for length in lengths {
            counts[usize::from(*length)] += 1;
        }
        counts[0] = 0;
        let mut left = 1_i32;
        for count in &counts[1..] {
            left = left * 2 - i32::from(*count);
            if left < 0 {
                return Err(BAD);
            }
        }
        let mut symbols: Vec<(u8, u16)> = (0..)
            .zip(lengths)
            .filter(|(_, length)| **length > 0)
            .map(|(symbol, length)| (*length, symbol))
            .collect();
        symbols.sort_unstable();
        Ok(Self {
            counts,
            symbols: symbols.into_iter().map(|(_, symbol)| symbol).collect(),
        })
    }

    fn next(&self, bits: &mut Bits<'_>) -> Result<u16, Corrupt> {
        let (mut code, mut first, mut index) = (0_u32, 0_u32, 0_u32);
        for count in &self.counts[1..] {
            code |= bits.take(1)?;
            let count = u32::from(*count);
            if code < first + count {
                let at = usize::try_from(index + code - first).map_err(|_| BAD)?;
                return self.symbols.get(at).copied().ok_or(BAD);
            }
            index += count;
            first = (first + count) << 1;
            code <<= 1;
        }
        Err(BAD)
    }
}

/// Made once: a client may send a block of this kind in every other byte.
static FIXED: LazyLock<(Code, Code)> = LazyLock::new(fixed);

fn fixed() -> (Code, Code) {
    let mut lengths = [8; 288];
    lengths[144..256].fill(9);
    lengths[256..280].fill(7);
    let code = |lengths: &[u8]| {
        Code::new(lengths).unwrap_or(Code {
            counts: [0; LONGEST_CODE + 1],
            symbols: Vec::new(),
        })
    };
    (code(&lengths), code(&[5; 30]))
}

fn dynamic(bits: &mut Bits<'_>) -> Result<(Code, Code), Corrupt> {
    const ORDER: [usize; 19] = [
        16, 17, 18, 0, 8, 7, 9, 6, 10, 5, 11, 4, 12, 3, 13, 2, 14, 1, 15,
    ];
    let size = |number: u32| usize::try_from(number).unwrap_or_default();
    let literals = size(bits.take(5)?) + 257;
    let distances = size(bits.take(5)?) + 1;
    let used = size(bits.take(4)?) + 4;
    if literals > 286 || distances > 30 {
        return Err(BAD);
    }
    let mut lengths = [0; 19];
    for place in &ORDER[..used] {
        lengths[*place] = u8::try_from(bits.take(3)?).unwrap_or_default();
    }
    let code = Code::new(&lengths)?;
    let mut lengths: Vec<u8> = Vec::with_capacity(literals + distances);
    while lengths.len() < literals + distances {
        let (value, times) = match code.next(bits)? {
            16 => (*lengths.last().ok_or(BAD)?, 3 + bits.take(2)?),
            17 => (0, 3 + bits.take(3)?),
            18 => (0, 11 + bits.take(7)?),
            length => (u8::try_from(length).unwrap_or_default(), 1),
        };
        lengths.extend(std::iter::repeat_n(value, size(times)));
    }
    if lengths.len() > literals + distances {
        return Err(BAD);
    }
    let (first, second) = lengths.split_at(literals);
    Ok((Code::new(first)?, Code::new(second)?))
}

/// Bits from the lowest of each byte up.
struct Bits<'a> {
    rest: &'a [u8],
    held: u32,
    count: u32,
}

impl<'a> Bits<'a> {
    fn new(rest: &'a [u8]) -> Self {
        Self {
            rest,
            held: 0,
            count: 0,
        }
    }

    /// Up to 16 bits.
    fn take(&mut self, wanted: u32) -> Result<u32, Corrupt> {
        while self.count < wanted {
            let (byte, rest) = self.rest.split_first().ok_or(CUT)?;
            self.held |= u32::from(*byte) << self.count;
            self.count += 8;
            self.rest = rest;
        }
        let bits = self.held & ((1 << wanted) - 1);
        self.held >>= wanted;
        self.count -= wanted;
        Ok(bits)
    }

    fn byte(&mut self) -> Result<u8, Corrupt> {
        self.take(8).map(|bits| bits.to_le_bytes()[0])
    }

    fn align(&mut self) {
        let odd = self.count % 8;
        self.held >>= odd;
        self.count -= odd;
    }

    fn is_at_end(&self) -> bool {
        self.rest.is_empty() && self.count == 0
    }
}

fn adler32(bytes: &[u8]) -> u32 {
    let (mut a, mut b) = (1_u32, 0_u32);
    for byte in bytes {
        a = (a + u32::from(*byte)) % 65521;
        b = (b + a) % 65521;
    }
    b << 16 | a
}
