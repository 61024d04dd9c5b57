//! The entries of a tar archive: short names, files of any length, nothing else. `tar tf` lists what is written here.

use std::io::Read;
use std::path::Path;

use crate::error::FetchError;

const BLOCK: usize = 512;
/// Where the fields of a header are.
const SIZE: std::ops::Range<usize> = 124..136;
const SUM: std::ops::Range<usize> = 148..156;
/// What eleven octal digits can say.
const OCTAL_LIMIT: u64 = 1 << 33;

/// An entry's name and length.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Header {
    pub(super) name: String,
    pub(super) size: u64,
}

/// Bytes after `size` bytes of content until the next entry.
pub(super) fn padding(size: u64) -> u64 {
    size.next_multiple_of(BLOCK as u64) - size
}

/// The block before the content of a file. Names have at most 100 letters.
pub(super) fn header(name: &str, size: u64) -> [u8; BLOCK] {
    let mut block = [0; BLOCK];
    let mut put = |at: usize, bytes: &[u8]| block[at..at + bytes.len()].copy_from_slice(bytes);
    put(0, &name.as_bytes()[..name.len().min(100)]);
    put(100, b"0000644\0");
    put(108, b"0000000\0");
    put(116, b"0000000\0");
    if size < OCTAL_LIMIT {
        put(SIZE.start, format!("{size:011o}\0").as_bytes());
    } else {
        // As GNU tar writes what octal digits cannot say.
        put(SIZE.start, &[0x80, 0, 0, 0]);
        put(SIZE.start + 4, &size.to_be_bytes());
    }
    put(136, b"00000000000\0");
    put(156, b"0");
    put(257, b"ustar\x0000");
    put(SUM.start, &[b' '; 8]);
    let sum = checksum(&block);
    block[SUM].copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
    block
}

fn checksum(block: &[u8; BLOCK]) -> u32 {
    let bytes = block.iter().enumerate();
    bytes
        .map(|(at, byte)| {
            if SUM.contains(&at) {
                u32::from(b' ')
            } else {
                u32::from(*byte)
            }
        })
        .sum()
}

/// The next entry; none at the end of the archive.
pub(super) fn read_header(input: &mut dyn Read) -> Result<Option<Header>, FetchError> {
    let mut block = [0; BLOCK];
    input
        .read_exact(&mut block)
        .map_err(|error| match error.kind() {
            std::io::ErrorKind::UnexpectedEof => bad("it ends too early"),
            _ => FetchError::io("read", Path::new("the bundle"))(error),
        })?;
    if block == [0; BLOCK] {
        return Ok(None);
    }
    if octal(&block[SUM]) != Some(u64::from(checksum(&block))) || block[156] != b'0' {
        return Err(bad("it is no archive that `warp model export` wrote"));
    }
    let name = block[..100]
        .split(|byte| *byte == 0)
        .next()
        .unwrap_or_default();
    let name = String::from_utf8(name.to_vec()).map_err(|_| bad("a name in it is no text"))?;
    let size = &block[SIZE];
    let size = match size[0] {
        0x80 => size[4..].try_into().ok().map(u64::from_be_bytes),
        _ => octal(size),
    };
    let size = size.ok_or_else(|| bad("a length in it cannot be read"))?;
    Ok(Some(Header { name, size }))
}

fn octal(field: &[u8]) -> Option<u64> {
    let text = std::str::from_utf8(field).ok()?;
    u64::from_str_radix(text.trim_matches(['\0', ' ']), 8).ok()
}

fn bad(why: &str) -> FetchError {
    FetchError::Bundle(why.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lengths_of_any_size_are_read_as_they_were_written() {
        for size in [0, 1, 511, 512, OCTAL_LIMIT - 1, OCTAL_LIMIT, 700 << 30] {
            let block = header("blobs/x", size);
            let read = read_header(&mut &block[..]).unwrap().unwrap();
            assert_eq!((read.name.as_str(), read.size), ("blobs/x", size));
            assert_eq!((size + padding(size)) % 512, 0);
        }
        assert_eq!(read_header(&mut &[0; 512][..]).unwrap(), None);
        let mut damaged = header("blobs/x", 5);
        damaged[3] ^= 1;
        assert!(read_header(&mut &damaged[..]).is_err());
    }
}
