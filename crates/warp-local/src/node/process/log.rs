//! Container logs in files: one line each with its time and stream, rotated, read back and followed.

use std::collections::VecDeque;
use std::fs::File;
use std::io::{self, BufRead, Read, Seek, Write};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use bytes::Bytes;
use jiff::Timestamp;
use tokio::io::{AsyncBufRead, AsyncBufReadExt, AsyncReadExt};

/// A file is put aside at this size, and this many old ones are kept.
const LARGEST: u64 = 10 * 1024 * 1024;
const KEPT: u32 = 4;
/// A longer line is stored in pieces and joined again when read.
const PIECE: u64 = 16 * 1024;
/// A follower reads this much before it hands it on.
const AT_ONCE: u64 = 256 * 1024;
const POLL: Duration = Duration::from_millis(100);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stream {
    Stdout,
    Stderr,
}

/// Appends to one container run's log.
pub(super) struct Writer {
    path: PathBuf,
    file: Option<File>,
    size: u64,
    largest: u64,
}

impl Writer {
    /// A log that cannot be opened loses its lines, never the container.
    pub(super) fn open(path: PathBuf) -> Self {
        Self::rotating_at(path, LARGEST)
    }

    pub(super) fn rotating_at(path: PathBuf, largest: u64) -> Self {
        let file = File::options().create(true).append(true).open(&path).ok();
        let size = file
            .as_ref()
            .and_then(|file| Some(file.metadata().ok()?.len()))
            .unwrap_or_default();
        Self {
            path,
            file,
            size,
            largest,
        }
    }

    pub(super) fn write(&mut self, stream: Stream, text: &[u8], whole: bool, at: Timestamp) {
        let name = if stream == Stream::Stdout {
            "stdout"
        } else {
            "stderr"
        };
        let mut entry = format!("{at:.9} {name} {} ", if whole { 'F' } else { 'P' }).into_bytes();
        entry.extend_from_slice(text);
        entry.push(b'\n');
        if let Some(file) = &mut self.file
            && file.write_all(&entry).is_ok()
        {
            self.size += entry.len() as u64;
        }
        if self.size > self.largest {
            self.rotate();
        }
    }

    fn rotate(&mut self) {
        for number in (0..KEPT).rev() {
            std::fs::rename(rotated(&self.path, number), rotated(&self.path, number + 1)).ok();
        }
        std::fs::remove_file(rotated(&self.path, KEPT)).ok();
        self.file = File::options()
            .create(true)
            .append(true)
            .open(&self.path)
            .ok();
        self.size = 0;
    }
}

/// Number 0 is the file being written.
fn rotated(path: &Path, number: u32) -> PathBuf {
    if number == 0 {
        return path.to_owned();
    }
    let mut name = path.as_os_str().to_owned();
    name.push(format!(".{number}"));
    PathBuf::from(name)
}

/// Reads a line, or as much of a long one as fits a piece. `Some(true)`: the line is whole.
pub(super) async fn read_piece(
    from: &mut (impl AsyncBufRead + Unpin),
    line: &mut Vec<u8>,
) -> io::Result<Option<bool>> {
    let read = from.take(PIECE).read_until(b'\n', line).await?;
    if read == 0 {
        return Ok(None);
    }
    let whole = line.last() == Some(&b'\n');
    if whole {
        line.pop();
    }
    // The end of the stream closes a line too; an empty read after it tells so.
    Ok(Some(whole || (read as u64) < PIECE))
}

/// What a reader asks for.
#[derive(Clone, Debug, Default)]
pub(crate) struct Query {
    pub(crate) timestamps: bool,
    pub(crate) since: Option<Timestamp>,
    pub(crate) tail: Option<usize>,
    pub(crate) limit: Option<usize>,
}

/// The kind of an entry: its stream, and whether it ends a line.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Kind {
    stdout: bool,
    whole: bool,
}

impl Kind {
    /// Whether the next entry goes on with the line this one left open.
    fn is_continued_by(self, next: Self) -> bool {
        !self.whole && self.stdout == next.stdout
    }
}

impl Query {
    /// The line as asked for, or nothing when it is too old. A piece that goes on with a line has no time
    /// in front.
    fn show(&self, entry: &[u8], before: Option<Kind>) -> Option<(Kind, Vec<u8>)> {
        let mut parts = entry.splitn(4, |byte| *byte == b' ');
        let (time, stream, kind) = (parts.next()?, parts.next()?, parts.next()?);
        let text = parts.next().unwrap_or_default();
        if let Some(since) = self.since {
            let at: Timestamp = std::str::from_utf8(time).ok()?.parse().ok()?;
            if at < since {
                return None;
            }
        }
        let kind = Kind {
            stdout: stream == b"stdout",
            whole: kind != b"P",
        };
        let mut shown = Vec::with_capacity(entry.len());
        if self.timestamps && !before.is_some_and(|before| before.is_continued_by(kind)) {
            shown.extend_from_slice(time);
            shown.push(b' ');
        }
        shown.extend_from_slice(text);
        if kind.whole {
            shown.push(b'\n');
        }
        Some((kind, shown))
    }
}

/// Where a reader of a log stands: in a file that may be rotated meanwhile.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Mark {
    /// The file's number in the file system; 0 before there is one.
    inode: u64,
    offset: u64,
}

/// Everything logged so far, and where that ended.
pub(crate) fn read(path: &Path, query: &Query) -> (Vec<u8>, Mark) {
    let mut lines: VecDeque<Vec<u8>> = VecDeque::new();
    let mut before = None;
    let mut mark = Mark::default();
    for number in (0..=KEPT).rev() {
        let Ok(file) = File::open(rotated(path, number)) else {
            continue;
        };
        mark = Mark {
            inode: file.metadata().map_or(0, |meta| meta.ino()),
            offset: 0,
        };
        let mut reader = io::BufReader::new(file);
        let mut entry = Vec::new();
        // An entry without its end is still being written: the reader who follows takes it up there.
        while reader.read_until(b'\n', &mut entry).is_ok() && entry.last() == Some(&b'\n') {
            mark.offset += entry.len() as u64;
            entry.pop();
            if let Some((kind, shown)) = query.show(&entry, before) {
                let goes_on = before.is_some_and(|before: Kind| before.is_continued_by(kind));
                match lines.back_mut().filter(|_| goes_on) {
                    Some(line) => line.extend(shown),
                    None => lines.push_back(shown),
                }
                before = Some(kind);
            }
            if query.tail.is_some_and(|tail| lines.len() > tail) {
                lines.pop_front();
            }
            entry.clear();
        }
    }
    let mut text: Vec<u8> = lines.into_iter().flatten().collect();
    if let Some(limit) = query.limit {
        text.truncate(limit);
    }
    (text, mark)
}

/// New lines after `from`, as they come, over every rotation, until `ended` says that no more will.
pub(crate) fn follow(
    path: PathBuf,
    query: Query,
    from: Mark,
    ended: impl Fn() -> bool + Send + 'static,
) -> impl futures::Stream<Item = Result<Bytes, io::Error>> + Send {
    let follower = Follower {
        path,
        query,
        at: from,
        file: None,
        rest: Vec::new(),
        before: None,
    };
    futures::stream::try_unfold(
        (follower, ended, false),
        |(mut follower, ended, mut last)| async move {
            loop {
                // Asked before reading: what was written before the end is still read.
                let over = ended();
                let shown = follower.next()?;
                if !shown.is_empty() {
                    return Ok(Some((Bytes::from(shown), (follower, ended, last))));
                }
                if follower.turn_over() {
                    continue;
                }
                if last {
                    return Ok(None);
                }
                last = over;
                if !over {
                    tokio::time::sleep(POLL).await;
                }
            }
        },
    )
}

struct Follower {
    path: PathBuf,
    query: Query,
    at: Mark,
    file: Option<File>,
    /// The beginning of an entry whose end is not there yet.
    rest: Vec<u8>,
    before: Option<Kind>,
}

impl Follower {
    /// The number a file has by now.
    fn number_of(&self, inode: u64) -> Option<u32> {
        (0..=KEPT).find(|number| {
            std::fs::metadata(rotated(&self.path, *number)).is_ok_and(|meta| meta.ino() == inode)
        })
    }

    fn open(&mut self, number: u32, offset: u64) -> io::Result<()> {
        let mut file = File::open(rotated(&self.path, number))?;
        file.seek(io::SeekFrom::Start(offset))?;
        self.at = Mark {
            inode: file.metadata()?.ino(),
            offset,
        };
        self.file = Some(file);
        Ok(())
    }

    /// What the file has grown by, at most so much at a time.
    fn next(&mut self) -> io::Result<Vec<u8>> {
        if self.file.is_none() {
            let (number, offset) = match self.number_of(self.at.inode) {
                Some(number) => (number, self.at.offset),
                None => (0, 0),
            };
            match self.open(number, offset) {
                Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
                other => other?,
            }
        }
        let mut shown = Vec::new();
        if let Some(file) = &mut self.file {
            self.at.offset += file.take(AT_ONCE).read_to_end(&mut self.rest)? as u64;
        }
        while let Some(end) = self.rest.iter().position(|byte| *byte == b'\n') {
            let entry: Vec<u8> = self.rest.drain(..=end).collect();
            if let Some((kind, text)) = self.query.show(&entry[..end], self.before) {
                shown.extend(text);
                self.before = Some(kind);
            }
        }
        Ok(shown)
    }

    /// Goes on to the next file when this one was put aside; it was read to its end just now, but its
    /// last lines may have come after that, so the end is looked for once more.
    fn turn_over(&mut self) -> bool {
        let current = std::fs::metadata(&self.path).map(|meta| meta.ino());
        let (Some(file), Ok(current)) = (&mut self.file, current) else {
            return false;
        };
        if current == self.at.inode {
            return false;
        }
        if file
            .metadata()
            .is_ok_and(|meta| meta.len() > self.at.offset)
        {
            return true;
        }
        // Without a number it was removed: the oldest that is left comes next.
        let next = match self.number_of(self.at.inode) {
            Some(number) => number.saturating_sub(1),
            None => (0..=KEPT)
                .rev()
                .find(|number| rotated(&self.path, *number).exists())
                .unwrap_or(0),
        };
        self.open(next, 0).is_ok()
    }
}
