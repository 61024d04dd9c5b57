//! A backup: everything as it was at one revision, in one file that says whether it is whole.
//!
//! Head, one entry per object (the row as the database keeps it, under its checksum), and the digest of all
//! of that. The server's certificates, keys and tokens are no part of it.

use std::io::{self, Read};
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use bytes::Bytes;
use ring::digest::{Context, SHA256, SHA256_OUTPUT_LEN};

use super::disk::{self, row_key};
use super::table::Still;
use super::{Store, Stored};

const MAGIC: &[u8; 8] = b"warpback";
const FORMAT: u32 = 1;
/// Magic, format, format of rows, revision, objects, seconds since 1970.
const HEAD: usize = 8 + 4 + 4 + 8 + 8 + 8;
/// Bytes after which a chunk is handed on.
const CHUNK: usize = 64 << 10;
/// No entry is longer: a length beyond this is damage, not a reason to ask for memory.
const LONGEST: usize = 64 << 20;

/// Why a file is no backup that can be used.
#[derive(Debug, thiserror::Error)]
pub enum BackupError {
    #[error("failed to read the backup: {0}")]
    Read(#[from] io::Error),
    #[error("failed to read the backup: it is not one that `warp backup` wrote")]
    Stranger,
    #[error(
        "failed to read the backup: it has format {0}, of a newer Warp; restore it with that one"
    )]
    Format(u32),
    #[error("failed to read the backup: it ends too early; take it again, or use another")]
    Short,
    #[error(
        "failed to read the backup: {0} is not what was written; take it again, or use another"
    )]
    Damaged(String),
}

/// Whether a file begins as a backup does.
pub fn begins_as_backup(file: impl Read) -> io::Result<bool> {
    let mut begin = Vec::new();
    file.take(MAGIC.len() as u64).read_to_end(&mut begin)?;
    Ok(begin == MAGIC)
}

/// What a backup says about itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Head {
    /// What it is a backup of: everything up to this revision.
    pub revision: u64,
    pub objects: u64,
    pub taken: SystemTime,
}

/// Everything there is at one revision. Holding it keeps the objects in memory and nothing else up.
#[derive(Debug)]
pub struct Snapshot {
    revision: u64,
    tables: Vec<(String, Vec<Arc<Stored>>)>,
}

impl Store {
    /// Everything at one revision. Writes wait while the objects are counted, not while they are written.
    pub fn snapshot(&self) -> Snapshot {
        let tables = self.0.tables.read();
        // Changes are applied one after the other: while no table can change, they are all at the same one.
        let still: Vec<_> = tables.values().map(|table| table.still()).collect();
        let published = self.revision();
        let revision = still.iter().map(Still::last).max();
        let mut found: Vec<_> = tables
            .keys()
            .zip(&still)
            .map(|(name, table)| (name.clone(), table.objects()))
            .collect();
        drop(still);
        found.sort_by(|(a, _), (b, _)| a.cmp(b));
        Snapshot {
            revision: revision.unwrap_or(0).max(published),
            tables: found,
        }
    }
}

impl Snapshot {
    pub fn revision(&self) -> u64 {
        self.revision
    }

    /// The backup, piece by piece.
    pub fn into_chunks(self, taken: SystemTime) -> impl Iterator<Item = Bytes> + Send {
        let objects: usize = self.tables.iter().map(|(_, objects)| objects.len()).sum();
        let head = Head {
            revision: self.revision,
            objects: objects as u64,
            taken,
        };
        let mut entries = self
            .tables
            .into_iter()
            .flat_map(|(table, objects)| {
                let named = move |object: Arc<Stored>| (row_key(&table, &object.key), object);
                objects.into_iter().map(named)
            })
            .fuse();
        let mut digest = Some(Context::new(&SHA256));
        let mut chunk = head.encode().to_vec();
        std::iter::from_fn(move || {
            let mut sum = digest.take()?;
            while chunk.len() < CHUNK {
                let Some((key, object)) = entries.next() else {
                    sum.update(&chunk);
                    chunk.extend_from_slice(sum.finish().as_ref());
                    return Some(Bytes::from(std::mem::take(&mut chunk)));
                };
                put(&mut chunk, key.as_bytes());
                let mut row = Vec::new();
                disk::seal(&key, &object, &mut row);
                put(&mut chunk, &row);
            }
            sum.update(&chunk);
            digest = Some(sum);
            Some(Bytes::from(std::mem::take(&mut chunk)))
        })
    }
}

/// Adds an entry; objects are far from as long as a length can say.
fn put(out: &mut Vec<u8>, bytes: &[u8]) {
    let length = u32::try_from(bytes.len()).unwrap_or(u32::MAX);
    out.extend_from_slice(&length.to_le_bytes());
    out.extend_from_slice(bytes);
}

impl Head {
    fn encode(&self) -> [u8; HEAD] {
        let mut head = [0; HEAD];
        head[..8].copy_from_slice(MAGIC);
        head[8..12].copy_from_slice(&FORMAT.to_le_bytes());
        let rows = u32::try_from(disk::FORMAT).unwrap_or(u32::MAX);
        head[12..16].copy_from_slice(&rows.to_le_bytes());
        head[16..24].copy_from_slice(&self.revision.to_le_bytes());
        head[24..32].copy_from_slice(&self.objects.to_le_bytes());
        let taken = self.taken.duration_since(UNIX_EPOCH).unwrap_or_default();
        head[32..].copy_from_slice(&taken.as_secs().to_le_bytes());
        head
    }

    fn decode(head: &[u8; HEAD]) -> Result<Self, BackupError> {
        let narrow = |at: usize| u32::from_le_bytes(*head[at..].first_chunk().unwrap_or(&[0; 4]));
        let wide = |at: usize| u64::from_le_bytes(*head[at..].first_chunk().unwrap_or(&[0; 8]));
        if !head.starts_with(MAGIC) {
            return Err(BackupError::Stranger);
        }
        if narrow(8) != FORMAT || u64::from(narrow(12)) != disk::FORMAT {
            return Err(BackupError::Format(narrow(8).max(narrow(12))));
        }
        Ok(Self {
            revision: wide(16),
            objects: wide(24),
            taken: UNIX_EPOCH
                .checked_add(Duration::from_secs(wide(32)))
                .unwrap_or(UNIX_EPOCH),
        })
    }
}

/// A backup that is being read.
pub(super) struct Reader<R> {
    from: R,
    digest: Context,
    pub(super) head: Head,
    left: u64,
}

impl<R: Read> Reader<R> {
    pub(super) fn open(mut from: R) -> Result<Self, BackupError> {
        let mut digest = Context::new(&SHA256);
        let mut head = [0; HEAD];
        exactly(&mut from, &mut head)?;
        digest.update(&head);
        let head = Head::decode(&head)?;
        Ok(Self {
            from,
            digest,
            head,
            left: head.objects,
        })
    }

    /// The next object under the name of its row; `None` after the last, once the whole file was checked.
    pub(super) fn next(&mut self) -> Result<Option<(String, Arc<Stored>)>, BackupError> {
        if self.left == 0 {
            return self.end().map(|()| None);
        }
        self.left -= 1;
        let damaged = |what: &str| BackupError::Damaged(what.to_owned());
        let key = self.entry()?;
        let key = String::from_utf8(key).map_err(|_| damaged("the name of an object"))?;
        let row = self.entry()?;
        let object = disk::unseal(&key, &row).and_then(|(_, body)| disk::decode(&key, body));
        let object = object.filter(|object| object.revision <= self.head.revision);
        let object = object.ok_or_else(|| BackupError::Damaged(key.replace('\0', " ")))?;
        Ok(Some((key, object)))
    }

    fn entry(&mut self) -> Result<Vec<u8>, BackupError> {
        let mut length = [0; 4];
        exactly(&mut self.from, &mut length)?;
        self.digest.update(&length);
        let length = u32::from_le_bytes(length) as usize;
        if length > LONGEST {
            return Err(BackupError::Damaged("the length of an object".to_owned()));
        }
        let mut bytes = vec![0; length];
        exactly(&mut self.from, &mut bytes)?;
        self.digest.update(&bytes);
        Ok(bytes)
    }

    fn end(&mut self) -> Result<(), BackupError> {
        let mut written = [0; SHA256_OUTPUT_LEN];
        exactly(&mut self.from, &mut written)?;
        let read = self.digest.clone().finish();
        let more = self.from.read(&mut [0])? > 0;
        if read.as_ref() != written || more {
            return Err(BackupError::Damaged("its end".to_owned()));
        }
        Ok(())
    }
}

fn exactly(from: &mut impl Read, bytes: &mut [u8]) -> Result<(), BackupError> {
    from.read_exact(bytes).map_err(|error| match error.kind() {
        io::ErrorKind::UnexpectedEof => BackupError::Short,
        _ => BackupError::Read(error),
    })
}

/// Reads a backup to its end and checks all of it.
pub fn verify(from: impl Read) -> Result<Head, BackupError> {
    let mut reader = Reader::open(from)?;
    while reader.next()?.is_some() {}
    Ok(reader.head)
}
