//! The mark beside a database: which database belongs here, and how far writes were acknowledged.
//!
//! It is written when a commit is safe and before anybody is told of it, and left to the system to put on
//! disk: it survives the end of the process, and after a power cut it is behind at worst. So it never
//! promises what is not there, and a start that finds less than it promises refuses. Of its two slots one is
//! written at a time: whatever happens to that one, the other is at most one commit older.

use std::fs::File;
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use super::log::Medium;
use super::sum;

const MAGIC: &[u8; 8] = b"warpmark";
const FORMAT: u32 = 1;
/// Slots lie in blocks of their own.
const SLOT: usize = 4096;
/// Magic, format, flags, database, revision, turn.
const SUMMED: usize = 8 + 4 + 4 + 8 + 8 + 8;
const USED: usize = SUMMED + 8;
const RESTORING: u32 = 1;

/// What a mark says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Stamp {
    pub(super) id: u64,
    /// Everything up to here was acknowledged; 0 before the database is there.
    pub(super) revision: u64,
    /// The database of this mark is complete and takes the place of the one that is there.
    pub(super) restoring: bool,
    /// Counts the writes of the mark: the slot with more is newer.
    turn: u64,
}

/// Why a mark cannot be read.
#[derive(Debug)]
pub(super) enum Unreadable {
    Io(io::Error),
    Damaged,
    Format(u32),
}

pub(super) struct Mark {
    medium: Box<dyn Medium>,
    stamp: Stamp,
}

pub(super) fn path(database: &Path) -> PathBuf {
    database.with_extension("mark")
}

/// What the mark of that name says; `None` when there is none.
pub(super) fn read(path: &Path) -> Result<Option<Stamp>, Unreadable> {
    let bytes = match std::fs::read(path) {
        Ok(bytes) => bytes,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(Unreadable::Io(error)),
    };
    let slots = [bytes.get(..USED), bytes.get(SLOT..SLOT + USED)];
    let mut newest: Option<Stamp> = None;
    let mut unknown = None;
    for slot in slots.into_iter().flatten() {
        match decode(slot) {
            Some(Ok(stamp)) if newest.is_none_or(|known| known.turn < stamp.turn) => {
                newest = Some(stamp);
            }
            Some(Err(format)) => unknown = Some(format),
            _ => {}
        }
    }
    match (newest, unknown) {
        (_, Some(format)) => Err(Unreadable::Format(format)),
        (Some(stamp), None) => Ok(Some(stamp)),
        (None, None) => Err(Unreadable::Damaged),
    }
}

impl Stamp {
    pub(super) fn new(id: u64, revision: u64) -> Self {
        Self {
            id,
            revision,
            restoring: false,
            turn: 0,
        }
    }

    pub(super) fn restoring(self, restoring: bool) -> Self {
        Self { restoring, ..self }
    }

    fn encode(&self) -> [u8; USED] {
        let mut slot = [0; USED];
        slot[..8].copy_from_slice(MAGIC);
        slot[8..12].copy_from_slice(&FORMAT.to_le_bytes());
        let flags = if self.restoring { RESTORING } else { 0 };
        slot[12..16].copy_from_slice(&flags.to_le_bytes());
        slot[16..24].copy_from_slice(&self.id.to_le_bytes());
        slot[24..32].copy_from_slice(&self.revision.to_le_bytes());
        slot[32..40].copy_from_slice(&self.turn.to_le_bytes());
        let sum = sum::short(&[&slot[..SUMMED]]);
        slot[SUMMED..].copy_from_slice(&sum.to_le_bytes());
        slot
    }
}

/// What a slot says, or the format it has; `None` when nobody wrote it so.
fn decode(slot: &[u8]) -> Option<Result<Stamp, u32>> {
    let (said, sum) = slot.split_at_checked(SUMMED)?;
    if !said.starts_with(MAGIC) || sum != sum::short(&[said]).to_le_bytes() {
        return None;
    }
    let narrow = |at: usize| Some(u32::from_le_bytes(*said.get(at..)?.first_chunk()?));
    let wide = |at: usize| Some(u64::from_le_bytes(*said.get(at..)?.first_chunk()?));
    let format = narrow(8)?;
    if format != FORMAT {
        return Some(Err(format));
    }
    Some(Ok(Stamp {
        id: wide(16)?,
        revision: wide(24)?,
        restoring: narrow(12)? & RESTORING != 0,
        turn: wide(32)?,
    }))
}

impl Mark {
    /// Puts a mark there, in place of the one that may be, at once and safely.
    pub(super) fn put(path: &Path, stamp: Stamp) -> io::Result<Self> {
        let part = path.with_extension("mark.part");
        let mut file = File::options()
            .write(true)
            .create(true)
            .truncate(true)
            .mode(0o600)
            .open(&part)?;
        let mut both = vec![0; 2 * SLOT];
        for at in [0, SLOT] {
            both[at..at + USED].copy_from_slice(&stamp.encode());
        }
        file.write_all(&both)?;
        file.sync_all()?;
        std::fs::rename(&part, path)?;
        sync_folder(path)?;
        Ok(Self::on(Box::new(file), stamp))
    }

    /// The mark that is there, which says `stamp`.
    pub(super) fn open(path: &Path, stamp: Stamp) -> io::Result<Self> {
        let file = File::options().write(true).open(path)?;
        Ok(Self::on(Box::new(file), stamp))
    }

    /// On a medium of the caller's.
    pub(super) fn on(medium: Box<dyn Medium>, stamp: Stamp) -> Self {
        Self { medium, stamp }
    }

    /// Writes up to `revision` are safe and about to be acknowledged.
    pub(super) fn note(&mut self, revision: u64) -> io::Result<()> {
        self.stamp.revision = revision;
        self.stamp.turn += 1;
        let slot = if self.stamp.turn.is_multiple_of(2) {
            0
        } else {
            SLOT
        };
        self.medium.write(&self.stamp.encode(), slot as u64)
    }

    /// As `note`, in both slots, and on disk when this returns.
    pub(super) fn settle(&mut self, revision: u64) -> io::Result<()> {
        self.note(revision)?;
        self.note(revision)?;
        self.medium.sync()
    }
}

/// Names in the folder of `path` are as safe as what is written under them.
pub(super) fn sync_folder(path: &Path) -> io::Result<()> {
    match path
        .parent()
        .filter(|folder| !folder.as_os_str().is_empty())
    {
        Some(folder) => File::open(folder)?.sync_all(),
        None => File::open(".")?.sync_all(),
    }
}
