//! A file that is not complete yet: its bytes where they belong, and beside it how much of every chunk is there.
//!
//! A chunk's count is written after its bytes, so a process that is killed has them both or neither. After a loss of
//! power the count may be ahead of the bytes; the digest over the whole file, read from the disk, finds that.

use std::fs::{File, OpenOptions};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use crate::digest::sha256_hex;
use crate::error::FetchError;

const MAGIC: &[u8; 8] = b"warp-p1\n";
/// Magic, length of a chunk, length of the file, what the content is known by.
const HEADER_BYTES: usize = 8 + 4 + 8 + 16;
const SMALLEST_CHUNK_BYTES: u64 = 1 << 20;
const LARGEST_CHUNK_BYTES: u64 = 16 << 20;
/// Chunks a file is cut into, where neither bound is reached.
const CHUNKS: u64 = 64;

#[derive(Debug)]
pub(crate) struct Part {
    pub(crate) path: PathBuf,
    file: File,
    map: File,
    size: u64,
    chunk: u64,
    received: Vec<AtomicU32>,
    total: AtomicU64,
}

impl Part {
    /// Opens what an earlier try left of this content, or begins.
    pub(crate) fn open(path: &Path, size: u64, known_by: &str) -> Result<Self, FetchError> {
        let chunk = chunk_bytes(size);
        let header = header(size, chunk, known_by);
        let map_path = map_path(path);
        let open = |path: &Path| {
            OpenOptions::new()
                .read(true)
                .write(true)
                .create(true)
                .truncate(false)
                .open(path)
                .map_err(FetchError::io("open", path))
        };
        let (file, map) = (open(path)?, open(&map_path)?);
        let count = size.div_ceil(chunk);
        let count = usize::try_from(count).map_err(|_| FetchError::Ended)?;
        let mut part = Self {
            path: path.to_owned(),
            file,
            map,
            size,
            chunk,
            received: (0..count).map(|_| AtomicU32::new(0)).collect(),
            total: AtomicU64::new(0),
        };
        if !part.resume(&header) {
            part.begin(&header)
                .map_err(FetchError::io("write", &map_path))?;
        }
        Ok(part)
    }

    /// Takes over what is there, if it is of this content.
    fn resume(&mut self, header: &[u8]) -> bool {
        let mut bytes = vec![0; HEADER_BYTES + self.received.len() * 4];
        if self.map.read_exact_at(&mut bytes, 0).is_err() || &bytes[..HEADER_BYTES] != header {
            return false;
        }
        if self.file.metadata().map_or(0, |facts| facts.len()) != self.size {
            return false;
        }
        let mut total = 0;
        for (index, four) in bytes[HEADER_BYTES..].as_chunks::<4>().0.iter().enumerate() {
            let count = u32::from_le_bytes(*four);
            if u64::from(count) > self.chunk_size(index) {
                return false;
            }
            self.received[index] = AtomicU32::new(count);
            total += u64::from(count);
        }
        self.total = AtomicU64::new(total);
        true
    }

    fn begin(&self, header: &[u8]) -> std::io::Result<()> {
        self.map.set_len(0)?;
        self.file.set_len(0)?;
        self.file.set_len(self.size)?;
        let mut bytes = header.to_vec();
        bytes.resize(HEADER_BYTES + self.received.len() * 4, 0);
        self.map.write_all_at(&bytes, 0)
    }

    /// Forgets everything that came.
    pub(crate) fn start_over(&self) -> Result<(), FetchError> {
        for (index, count) in self.received.iter().enumerate() {
            count.store(0, Ordering::SeqCst);
            self.note(index, 0)?;
        }
        self.total.store(0, Ordering::SeqCst);
        Ok(())
    }

    fn note(&self, index: usize, count: u32) -> Result<(), FetchError> {
        let place = (HEADER_BYTES + index * 4) as u64;
        self.map
            .write_all_at(&count.to_le_bytes(), place)
            .map_err(FetchError::io("write", &self.path))
    }

    pub(crate) fn chunks(&self) -> usize {
        self.received.len()
    }

    pub(crate) fn chunk_size(&self, index: usize) -> u64 {
        let start = index as u64 * self.chunk;
        self.chunk.min(self.size - start)
    }

    /// The first byte of a chunk that is missing, and the last one.
    pub(crate) fn missing(&self, index: usize) -> Option<(u64, u64)> {
        let start = index as u64 * self.chunk;
        let have = u64::from(self.received[index].load(Ordering::SeqCst));
        let size = self.chunk_size(index);
        (have < size).then(|| (start + have, start + size - 1))
    }

    /// Writes what came at the end of what a chunk has.
    pub(crate) fn append(&self, index: usize, data: &[u8]) -> Result<(), FetchError> {
        let have = self.received[index].load(Ordering::SeqCst);
        let place = index as u64 * self.chunk + u64::from(have);
        let length = u32::try_from(data.len()).map_err(|_| FetchError::Ended)?;
        self.file
            .write_all_at(data, place)
            .map_err(FetchError::io("write", &self.path))?;
        self.note(index, have + length)?;
        self.received[index].store(have + length, Ordering::SeqCst);
        self.total.fetch_add(u64::from(length), Ordering::SeqCst);
        Ok(())
    }

    /// How far the file is complete from its beginning on, looked for from a chunk on.
    pub(crate) fn complete_until(&self, from: u64) -> u64 {
        let mut index = usize::try_from(from / self.chunk).unwrap_or(usize::MAX);
        while index < self.received.len() {
            if let Some((first_missing, _)) = self.missing(index) {
                return first_missing;
            }
            index += 1;
        }
        self.size
    }

    pub(crate) fn chunk_of(&self, place: u64) -> usize {
        usize::try_from(place / self.chunk).unwrap_or(usize::MAX)
    }

    /// Bytes that are there.
    pub(crate) fn received(&self) -> u64 {
        self.total.load(Ordering::SeqCst)
    }

    pub(crate) fn size(&self) -> u64 {
        self.size
    }

    pub(crate) fn read_at(&self, buffer: &mut [u8], place: u64) -> Result<(), FetchError> {
        self.file
            .read_exact_at(buffer, place)
            .map_err(FetchError::io("read", &self.path))
    }

    /// Puts what was written on the disk and lets the system forget it: a download must not fill the memory.
    pub(crate) fn settle(&self, from: u64, length: u64) -> Result<(), FetchError> {
        self.file
            .sync_data()
            .map_err(FetchError::io("write", &self.path))?;
        let length = std::num::NonZeroU64::new(length);
        // Only a hint.
        let _ = rustix::fs::fadvise(&self.file, from, length, rustix::fs::Advice::DontNeed);
        Ok(())
    }

    /// Moves the complete file to its place.
    pub(crate) fn finish(&self, to: &Path) -> Result<(), FetchError> {
        self.file
            .sync_all()
            .map_err(FetchError::io("write", &self.path))?;
        std::fs::rename(&self.path, to).map_err(FetchError::io("move a file to", to))?;
        let map = map_path(&self.path);
        std::fs::remove_file(&map).map_err(FetchError::io("remove", &map))
    }
}

/// What an earlier try left of a content: bytes.
pub(crate) fn left(path: &Path, size: u64, known_by: &str) -> u64 {
    if !path.is_file() {
        return 0;
    }
    Part::open(path, size, known_by).map_or(0, |part| part.received())
}

fn map_path(path: &Path) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(".map");
    PathBuf::from(name)
}

fn chunk_bytes(size: u64) -> u64 {
    (size / CHUNKS)
        .checked_next_power_of_two()
        .unwrap_or(LARGEST_CHUNK_BYTES)
        .clamp(SMALLEST_CHUNK_BYTES, LARGEST_CHUNK_BYTES)
}

fn header(size: u64, chunk: u64, known_by: &str) -> Vec<u8> {
    let mut header = MAGIC.to_vec();
    header.extend(u32::try_from(chunk).unwrap_or(u32::MAX).to_le_bytes());
    header.extend(size.to_le_bytes());
    header.extend(&sha256_hex(known_by.as_bytes()).as_bytes()[..16]);
    header
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_came_is_found_again_and_other_content_is_not() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("x");
        let size = 3 * SMALLEST_CHUNK_BYTES + 5;
        {
            let part = Part::open(&path, size, "one").unwrap();
            assert_eq!(part.chunks(), 4);
            part.append(0, &[1; 100]).unwrap();
            part.append(0, &[2; 50]).unwrap();
            part.append(3, &[3; 5]).unwrap();
        }
        let part = Part::open(&path, size, "one").unwrap();
        assert_eq!(part.received(), 155);
        assert_eq!(part.missing(0), Some((150, SMALLEST_CHUNK_BYTES - 1)));
        assert_eq!(part.missing(3), None);
        assert_eq!(part.complete_until(0), 150);
        let mut two = [0; 2];
        part.read_at(&mut two, 99).unwrap();
        assert_eq!(two, [1, 2]);
        drop(part);
        assert_eq!(Part::open(&path, size, "another").unwrap().received(), 0);
    }

    #[test]
    fn a_damaged_map_means_a_new_beginning() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("x");
        let size = 2 * SMALLEST_CHUNK_BYTES;
        Part::open(&path, size, "one")
            .unwrap()
            .append(0, &[1; 9])
            .unwrap();
        let map = map_path(&path);
        let good = std::fs::read(&map).unwrap();
        for damage in [0, good.len() / 2, good.len() - 1] {
            let mut bad = good.clone();
            bad[damage] ^= 0xff;
            std::fs::write(&map, &bad).unwrap();
            let part = Part::open(&path, size, "one").unwrap();
            assert!(
                part.received() == 0 || part.missing(0).is_some(),
                "{damage}"
            );
            std::fs::write(&map, &good[..damage]).unwrap();
            assert_eq!(Part::open(&path, size, "one").unwrap().received(), 0);
        }
        std::fs::write(&map, &good).unwrap();
        std::fs::write(&path, b"short").unwrap();
        assert_eq!(Part::open(&path, size, "one").unwrap().received(), 0);
    }
}
