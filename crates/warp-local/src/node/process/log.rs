//! Container logs in files: one line each with its time and stream, rotated, read back and followed.

use std::fs::File;
use std::io::{self, BufRead, Write};
use std::path::{Path, PathBuf};
use std::time::Duration;

use jiff::Timestamp;
use tokio::io::{AsyncBufRead, AsyncBufReadExt, AsyncReadExt};

/// A file is put aside at this size, and this many old ones are kept.
const LARGEST: u64 = 10 * 1024 * 1024;
const KEPT: u32 = 4;
/// A longer line is stored in pieces and joined again when read.
const PIECE: u64 = 16 * 1024;
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
}

impl Writer {
    /// A log that cannot be opened loses its lines, never the container.
    pub(super) fn open(folder: &Path, name: &str) -> Self {
        let path = folder.join(name);
        let file = File::options().create(true).append(true).open(&path).ok();
        let size = file
            .as_ref()
            .and_then(|file| Some(file.metadata().ok()?.len()))
            .unwrap_or_default();
        Self { path, file, size }
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
        if self.size > LARGEST {
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

impl Query {
    /// The line as asked for, or nothing when it is too old.
    fn show(&self, entry: &[u8]) -> Option<Vec<u8>> {
        let mut parts = entry.splitn(4, |byte| *byte == b' ');
        let (time, _stream, kind) = (parts.next()?, parts.next()?, parts.next()?);
        let text = parts.next().unwrap_or_default();
        if let Some(since) = self.since {
            let at: Timestamp = std::str::from_utf8(time).ok()?.parse().ok()?;
            if at < since {
                return None;
            }
        }
        let mut shown = Vec::with_capacity(entry.len());
        if self.timestamps {
            shown.extend_from_slice(time);
            shown.push(b' ');
        }
        shown.extend_from_slice(text);
        if kind != b"P" {
            shown.push(b'\n');
        }
        Some(shown)
    }
}

/// Everything logged so far, and where the file ended.
pub(crate) fn read(path: &Path, query: &Query) -> (Vec<u8>, u64) {
    let mut entries: std::collections::VecDeque<Vec<u8>> = std::collections::VecDeque::new();
    let mut end = 0;
    for number in (0..=KEPT).rev() {
        let Ok(file) = File::open(rotated(path, number)) else {
            continue;
        };
        for entry in io::BufReader::new(file).split(b'\n') {
            let Ok(entry) = entry else {
                break;
            };
            if number == 0 {
                end += entry.len() as u64 + 1;
            }
            if let Some(shown) = query.show(&entry) {
                entries.push_back(shown);
            }
            if query.tail.is_some_and(|tail| entries.len() > tail) {
                entries.pop_front();
            }
        }
    }
    let mut text: Vec<u8> = entries.into_iter().flatten().collect();
    if let Some(limit) = query.limit {
        text.truncate(limit);
    }
    (text, end)
}

/// New lines after `from`, as they come, until `ended` says that no more will.
pub(crate) fn follow(
    path: PathBuf,
    query: Query,
    from: u64,
    ended: impl Fn() -> bool + Send + 'static,
) -> impl futures::Stream<Item = Result<bytes::Bytes, io::Error>> + Send {
    let start = (path, query, from, Vec::new(), ended, false);
    futures::stream::try_unfold(
        start,
        |(path, query, mut at, mut rest, ended, mut last)| async move {
            loop {
                // Asked before reading: what was written before the end is still read.
                let over = ended();
                let size = tokio::fs::metadata(&path)
                    .await
                    .map_or(0, |meta| meta.len());
                if size < at {
                    at = 0;
                }
                let mut file = match tokio::fs::File::open(&path).await {
                    Ok(file) => file,
                    Err(error) if error.kind() == io::ErrorKind::NotFound && !over => {
                        tokio::time::sleep(POLL).await;
                        continue;
                    }
                    Err(_) => return Ok(None),
                };
                tokio::io::AsyncSeekExt::seek(&mut file, io::SeekFrom::Start(at)).await?;
                let mut fresh = Vec::new();
                at += file.read_to_end(&mut fresh).await? as u64;
                rest.extend(fresh);
                let mut shown = Vec::new();
                while let Some(end) = rest.iter().position(|byte| *byte == b'\n') {
                    let entry: Vec<u8> = rest.drain(..=end).collect();
                    shown.extend(query.show(&entry[..entry.len() - 1]).unwrap_or_default());
                }
                if !shown.is_empty() {
                    return Ok(Some((
                        bytes::Bytes::from(shown),
                        (path, query, at, rest, ended, last),
                    )));
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
