//! One append-only file of checksummed records: what is acknowledged before the database has it.
//!
//! A record is one group commit: the rows it puts and removes, under consecutive revisions. It is valid
//! only as a whole, at its own place, and in the file's present life: a salt, drawn anew whenever the file
//! is used again, goes into every checksum, so what an earlier life left behind is never taken for a
//! record. Room is made ahead of the writes, so that a commit changes no metadata of the file.
//!
//! This module knows bytes and revisions; which file is written when is `journal`'s.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

use super::sum;

const MAGIC: &[u8; 8] = b"warp-log";
const FORMAT: u32 = 1;
/// The header has a block of its own: it is never written together with a record.
const HEADER: usize = 4096;
/// Magic, format, database, salt, checksum.
const HEADER_USED: usize = 8 + 4 + 8 + 8 + 8;
/// Mark, length, first revision, number of changes, checksum.
const RECORD_HEAD: usize = 4 + 4 + 8 + 4 + 4 + 8;
/// Records begin at multiples of this.
const ALIGN: usize = 8;
/// Room made at once.
const EXTENT: usize = 1 << 20;

/// Where a log's bytes go.
pub(super) trait Medium: Send + std::fmt::Debug {
    fn write(&self, bytes: &[u8], at: u64) -> io::Result<()>;
    /// Returns when everything written is safe.
    fn sync(&self) -> io::Result<()>;
}

impl Medium for File {
    fn write(&self, bytes: &[u8], at: u64) -> io::Result<()> {
        self.write_all_at(bytes, at)
    }

    fn sync(&self) -> io::Result<()> {
        self.sync_data()
    }
}

/// One change of one row of the database.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Change<'a> {
    pub(super) key: &'a str,
    /// `None` removes it.
    pub(super) row: Option<&'a [u8]>,
}

/// A log that is being written.
#[derive(Debug)]
pub(super) struct Log {
    medium: Box<dyn Medium>,
    salt: u64,
    end: usize,
    /// How far the file has room.
    room: usize,
    buffer: Vec<u8>,
}

impl Log {
    /// Begins an empty file, of the database `id`. It is safe together with its first record.
    pub(super) fn begin(medium: Box<dyn Medium>, id: u64) -> io::Result<Self> {
        let salt = u64::from_le_bytes(crate::codec::random());
        let mut header = vec![0; HEADER];
        header[..8].copy_from_slice(MAGIC);
        header[8..12].copy_from_slice(&FORMAT.to_le_bytes());
        header[12..20].copy_from_slice(&id.to_le_bytes());
        header[20..28].copy_from_slice(&salt.to_le_bytes());
        let sum = sum::short(&[&header[..28]]);
        header[28..HEADER_USED].copy_from_slice(&sum.to_le_bytes());
        medium.write(&header, 0)?;
        Ok(Self {
            medium,
            salt,
            end: HEADER,
            room: HEADER,
            buffer: Vec::new(),
        })
    }

    /// The same file for records of a new life; those in it are void. That is safe before one of them is
    /// written over: the rest would look like a damaged log.
    pub(super) fn again(self, id: u64) -> io::Result<Self> {
        let room = self.room;
        let log = Self::begin(self.medium, id)?;
        log.medium.sync()?;
        Ok(Self { room, ..log })
    }

    /// Bytes of records in it.
    pub(super) fn size(&self) -> usize {
        self.end - HEADER
    }

    /// Writes one record, whose first change has revision `first`, and returns once it is safe.
    pub(super) fn append<'a>(
        &mut self,
        first: u64,
        changes: impl Iterator<Item = Change<'a>>,
    ) -> io::Result<()> {
        self.buffer.clear();
        self.buffer.resize(RECORD_HEAD, 0);
        let mut count = 0_u32;
        for change in changes {
            count += 1;
            put(&mut self.buffer, change.key.as_bytes())?;
            self.buffer.push(u8::from(change.row.is_some()));
            if let Some(row) = change.row {
                put(&mut self.buffer, row)?;
            }
        }
        let length = narrow(self.buffer.len() - RECORD_HEAD)?;
        let (head, payload) = self.buffer.split_at_mut(RECORD_HEAD);
        head[..4].copy_from_slice(&mark(self.salt));
        head[4..8].copy_from_slice(&length.to_le_bytes());
        head[8..16].copy_from_slice(&first.to_le_bytes());
        head[16..20].copy_from_slice(&count.to_le_bytes());
        let sum = record_sum(self.salt, self.end, &head[..24], payload);
        head[24..].copy_from_slice(&sum.to_le_bytes());
        let end = (self.end + self.buffer.len()).next_multiple_of(ALIGN);
        if end > self.room {
            let room = end.next_multiple_of(EXTENT);
            // A disk too full for the extent may still take the record.
            if self
                .medium
                .write(&vec![0; room - self.room], self.room as u64)
                .is_ok()
            {
                self.room = room;
            }
        }
        self.medium.write(&self.buffer, self.end as u64)?;
        self.medium.sync()?;
        self.end = end;
        self.room = self.room.max(end);
        if self.buffer.capacity() > EXTENT {
            self.buffer = Vec::new();
        }
        Ok(())
    }
}

/// What is wrong with a log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Damage {
    /// Its header is no header.
    Header,
    /// Written by a newer Warp.
    Format(u32),
    /// It continues another database.
    Stranger,
    /// A record that cannot be read lies before one that can.
    Record { at: usize },
}

/// A record as it stands in the bytes of its log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Record<'a> {
    pub(super) first: u64,
    count: u32,
    payload: &'a [u8],
}

impl<'a> Record<'a> {
    pub(super) fn last(&self) -> u64 {
        self.first + u64::from(self.count) - 1
    }

    /// Its changes with their revisions; `None` when they are not what a record holds.
    pub(super) fn changes(&self) -> Option<Vec<(u64, Change<'a>)>> {
        let mut rest = self.payload;
        let mut changes = Vec::new();
        for revision in self.first..=self.last() {
            let key = std::str::from_utf8(take(&mut rest)?).ok()?;
            let (present, after) = rest.split_first()?;
            rest = after;
            let row = match present {
                0 => None,
                _ => Some(take(&mut rest)?),
            };
            changes.push((revision, Change { key, row }));
        }
        rest.is_empty().then_some(changes)
    }
}

/// The records of a log, in order. What the last write left unfinished is dropped: nobody was told that it
/// is stored. Damage before that is not.
pub(super) fn read(bytes: &[u8], id: u64) -> Result<Vec<Record<'_>>, Damage> {
    let Some(header) = bytes.get(..HEADER) else {
        // The file was being made.
        return Ok(Vec::new());
    };
    if header.iter().all(|byte| *byte == 0) {
        return Ok(Vec::new());
    }
    let number = |at: usize| u64::from_le_bytes(chunk(&header[at..]));
    if &header[..8] != MAGIC || number(28) != sum::short(&[&header[..28]]) {
        return Err(Damage::Header);
    }
    let format = u32::from_le_bytes(chunk(&header[8..]));
    if format != FORMAT {
        return Err(Damage::Format(format));
    }
    if number(12) != id {
        return Err(Damage::Stranger);
    }
    let salt = number(20);
    let mut records = Vec::new();
    let mut at = HEADER;
    while let Some((record, end)) = record(bytes, at, salt) {
        records.push(record);
        at = end;
    }
    let unread = at;
    while let Some(next) = find(bytes, at + ALIGN, salt) {
        if record(bytes, next, salt).is_some() {
            return Err(Damage::Record { at: unread });
        }
        at = next;
    }
    Ok(records)
}

/// The valid record at that place, and where the next one begins.
fn record(bytes: &[u8], at: usize, salt: u64) -> Option<(Record<'_>, usize)> {
    let (head, rest) = bytes.get(at..)?.split_at_checked(RECORD_HEAD)?;
    if head[..4] != mark(salt) {
        return None;
    }
    let length = usize::try_from(u32::from_le_bytes(chunk(&head[4..]))).ok()?;
    let payload = rest.get(..length)?;
    let sum = u64::from_le_bytes(chunk(&head[24..]));
    if sum != record_sum(salt, at, &head[..24], payload) {
        return None;
    }
    let record = Record {
        first: u64::from_le_bytes(chunk(&head[8..])),
        count: u32::from_le_bytes(chunk(&head[16..])),
        payload,
    };
    let end = (at + RECORD_HEAD + length).next_multiple_of(ALIGN);
    (record.count > 0).then_some((record, end))
}

/// Where the mark of a record stands next, from `from` on.
fn find(bytes: &[u8], from: usize, salt: u64) -> Option<usize> {
    let mark = mark(salt);
    let places = bytes.get(from..)?.chunks_exact(ALIGN);
    places
        .enumerate()
        .find(|(_, place)| place[..4] == mark)
        .map(|(number, _)| from + number * ALIGN)
}

/// What a record begins with: not known to those who write objects.
fn mark(salt: u64) -> [u8; 4] {
    let [a, b, c, d, ..] = salt.to_le_bytes();
    // Never zeros, which is what room looks like.
    [a | 1, b, c, d]
}

fn record_sum(salt: u64, at: usize, head: &[u8], payload: &[u8]) -> u64 {
    let place = (at as u64).to_le_bytes();
    sum::short(&[&salt.to_le_bytes(), &place, head, payload])
}

/// The first bytes; callers have checked that they are there.
fn chunk<const N: usize>(bytes: &[u8]) -> [u8; N] {
    *bytes.first_chunk().unwrap_or(&[0; N])
}

fn narrow(length: usize) -> io::Result<u32> {
    u32::try_from(length).map_err(|_| io::Error::from(io::ErrorKind::FileTooLarge))
}

fn put(out: &mut Vec<u8>, bytes: &[u8]) -> io::Result<()> {
    out.extend_from_slice(&narrow(bytes.len())?.to_le_bytes());
    out.extend_from_slice(bytes);
    Ok(())
}

fn take<'a>(rest: &mut &'a [u8]) -> Option<&'a [u8]> {
    let (length, after) = rest.split_first_chunk::<4>()?;
    let length = usize::try_from(u32::from_le_bytes(*length)).ok()?;
    let (bytes, after) = after.split_at_checked(length)?;
    *rest = after;
    Some(bytes)
}

#[cfg(test)]
mod tests;
