//! One large file in ranges: several at once, none too far ahead of the hash that follows them.

use std::sync::Arc;

use bytes::{Bytes, BytesMut};
use http::StatusCode;
use http::header::CONTENT_RANGE;
use http_body_util::BodyExt;
use hyper::body::Incoming;
use parking_lot::Mutex;
use tokio::sync::{Notify, OwnedSemaphorePermit, watch};
use tokio::task::JoinSet;

use super::{Patience, READ_BYTES, Transfer, blocking, cut, ended, replaced, unchanged};
use crate::client::{Answer, place};
use crate::digest::{Hashed, Hasher};
use crate::error::FetchError;
use crate::listing::RemoteFile;
use crate::part::Part;

/// What is written at once.
const WRITE_BYTES: usize = 512 << 10;
/// What is hashed at once.
const HASH_BYTES: u64 = 8 << 20;
/// Larger files are put on the disk while they come, after so many bytes each time.
const SETTLE_BYTES: u64 = 128 << 20;

/// One large file under way.
pub(super) struct Ranges {
    transfer: Arc<Transfer>,
    file: RemoteFile,
    part: Arc<Part>,
    /// Where the source last sent us: a signed address that may expire.
    address: Mutex<String>,
    home: String,
    /// Bytes came.
    moved: Notify,
    /// Whether the server knows ranges, once it has answered.
    manner: watch::Sender<Manner>,
}

/// How a server answers a request for a range.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Manner {
    /// Not answered yet.
    Unknown,
    Ranges,
    /// With the whole file: it is read once, by one request.
    Whole,
}

impl Ranges {
    pub(super) fn new(
        transfer: &Arc<Transfer>,
        file: &RemoteFile,
        part: &Arc<Part>,
        address: &str,
    ) -> Arc<Self> {
        Arc::new(Self {
            transfer: Arc::clone(transfer),
            file: file.clone(),
            part: Arc::clone(part),
            address: Mutex::new(address.to_owned()),
            home: address.to_owned(),
            moved: Notify::new(),
            manner: watch::Sender::new(Manner::Unknown),
        })
    }

    /// Fetches what is missing and hashes all of it.
    pub(super) async fn run(self: &Arc<Self>) -> Result<Hashed, FetchError> {
        let (position, hashed) = watch::channel(0);
        let mut hashing = JoinSet::new();
        hashing.spawn(Arc::clone(self).hash(position));
        let mut ranges: JoinSet<Result<(), FetchError>> = JoinSet::new();
        let window = self.transfer.client.limits.connections * 2;
        for index in 0..self.part.chunks() {
            // The first request finds out whether the server knows ranges. If not, it brings everything.
            let mut manner = self.manner.subscribe();
            if !ranges.is_empty() {
                tokio::select! {
                    _ = manner.wait_for(|manner| *manner != Manner::Unknown) => {}
                    Some(done) = ranges.join_next() => ended(done)?,
                }
            }
            if *manner.borrow() == Manner::Whole {
                break;
            }
            if self.part.missing(index).is_none() {
                continue;
            }
            let permit = {
                let mut turn = std::pin::pin!(self.turn(index, window, hashed.clone()));
                loop {
                    tokio::select! {
                        Some(done) = ranges.join_next(), if !ranges.is_empty() => ended(done)?,
                        permit = &mut turn => break permit?,
                    }
                }
            };
            let this = Arc::clone(self);
            ranges.spawn(async move {
                let _permit = permit;
                this.chunk(index).await
            });
        }
        while let Some(done) = ranges.join_next().await {
            ended(done)?;
        }
        let hashed = hashing.join_next().await.ok_or(FetchError::Ended)?;
        hashed.map_err(|_| FetchError::Ended)?
    }

    /// Waits until a chunk may be asked for: a connection is free, and hashing is not too far behind.
    async fn turn(
        &self,
        index: usize,
        window: usize,
        mut hashed: watch::Receiver<u64>,
    ) -> Result<OwnedSemaphorePermit, FetchError> {
        let near = |place: &u64| self.part.chunk_of(*place) + window > index;
        hashed.wait_for(near).await.map_err(|_| FetchError::Ended)?;
        let connections = Arc::clone(&self.transfer.connections);
        connections
            .acquire_owned()
            .await
            .map_err(|_| FetchError::Ended)
    }

    async fn chunk(&self, index: usize) -> Result<(), FetchError> {
        let mut patience = Patience::new();
        while let Some((index, first, last)) = self.next(index) {
            let Err(error) = self.range(index, first, last).await else {
                self.transfer.progress.trouble(None);
                continue;
            };
            let came = self.next(index).is_none_or(|(_, now, _)| now > first);
            if came {
                patience.moved();
            }
            let error = self.back_home(error);
            if let Some(error) = error {
                let transfer = &self.transfer;
                patience
                    .after(error, &self.file.path, &transfer.client, &transfer.progress)
                    .await?;
            }
        }
        Ok(())
    }

    /// What the request of a chunk brings next: the rest of the chunk, or of all chunks if it is the only request.
    fn next(&self, index: usize) -> Option<(usize, u64, u64)> {
        let missing = |index| {
            let (first, last) = self.part.missing(index)?;
            Some((index, first, last))
        };
        match *self.manner.borrow() {
            Manner::Whole => (0..self.part.chunks()).find_map(missing),
            Manner::Unknown | Manner::Ranges => missing(index),
        }
    }

    /// A signed address that is refused may have expired: the source is asked for another.
    fn back_home(&self, error: FetchError) -> Option<FetchError> {
        let mut address = self.address.lock();
        if *address == self.home {
            return Some(error);
        }
        address.clone_from(&self.home);
        let expired = matches!(
            &error,
            FetchError::Refused {
                permanent: true,
                ..
            }
        );
        (!expired).then_some(error)
    }

    async fn range(&self, index: usize, first: u64, last: u64) -> Result<(), FetchError> {
        let client = &self.transfer.client;
        let address = self.address.lock().clone();
        let answer = client.get(&address, Some((first, last))).await;
        let answer = answer.map_err(|error| replaced(&self.file, error))?;
        unchanged(&self.file, &answer)?;
        let what = place(&answer.address);
        self.check_range(&answer, &what, first)?;
        *self.address.lock() = answer.address.to_string();
        let is_whole = answer.response.status() == StatusCode::OK;
        // Only the first answer decides: later ones come beside other requests.
        self.manner.send_if_modified(|manner| {
            let is_first = *manner == Manner::Unknown;
            if is_first {
                *manner = if is_whole {
                    Manner::Whole
                } else {
                    Manner::Ranges
                };
            }
            is_first
        });
        if is_whole && *self.manner.borrow() == Manner::Whole {
            return self.take_whole(answer).await;
        }
        let skipped = if is_whole { first } else { 0 };
        self.take(index, answer, skipped, last - first + 1).await
    }

    /// Whether the answer is the range that was asked for, or everything.
    fn check_range(&self, answer: &Answer, what: &str, first: u64) -> Result<(), FetchError> {
        if answer.response.status() == StatusCode::OK {
            return Ok(());
        }
        let size = self.file.size;
        let range = answer.response.headers().get(CONTENT_RANGE);
        let range = range
            .and_then(|text| text.to_str().ok())
            .unwrap_or_default();
        let right = range.starts_with(&format!("bytes {first}-"))
            && (range.ends_with(&format!("/{size}")) || range.ends_with("/*"));
        if right {
            return Ok(());
        }
        Err(FetchError::Nonsense {
            what: what.to_owned(),
            why: format!(
                "asked for {} from byte {first} of {size}, it sent '{range}'",
                self.file.path
            ),
        })
    }

    /// Writes what is missing of all chunks from an answer that is the whole file.
    async fn take_whole(&self, answer: Answer) -> Result<(), FetchError> {
        let what = place(&answer.address);
        let mut body = answer.response.into_body();
        let mut rest = Bytes::new();
        let mut at = 0;
        for index in 0..self.part.chunks() {
            let end = at + self.part.chunk_size(index);
            let mut held = BytesMut::with_capacity(WRITE_BYTES);
            while at < end {
                if rest.is_empty() {
                    rest = match self.frame(&mut body, &what).await {
                        Ok(Some(data)) => data,
                        Ok(None) => {
                            self.write(index, held).await?;
                            return Err(FetchError::Truncated {
                                what,
                                got: at,
                                wanted: self.file.size,
                            });
                        }
                        Err(error) => {
                            // Every byte that came counts.
                            self.write(index, held).await?;
                            return Err(error);
                        }
                    };
                    continue;
                }
                let count = usize::try_from(end - at).unwrap_or(usize::MAX);
                let piece = rest.split_to(count.min(rest.len()));
                let length = piece.len() as u64;
                // What an earlier try brought of the chunk is passed over.
                if let Some((first, _)) = self.part.missing(index) {
                    let first = first + held.len() as u64;
                    let drop = first.saturating_sub(at).min(length);
                    let drop = usize::try_from(drop).unwrap_or(usize::MAX);
                    held.extend_from_slice(&piece[drop..]);
                }
                at += length;
                if held.len() >= WRITE_BYTES {
                    held = self.write(index, held).await?;
                }
            }
            self.write(index, held).await?;
        }
        Ok(())
    }

    /// The next bytes of an answer; none at its end.
    async fn frame(&self, body: &mut Incoming, what: &str) -> Result<Option<Bytes>, FetchError> {
        let client = &self.transfer.client;
        loop {
            let frame = tokio::time::timeout(client.limits.stall, body.frame())
                .await
                .map_err(|_| client.stalled(what))?;
            let Some(frame) = frame else {
                return Ok(None);
            };
            let frame = frame.map_err(|error| cut(what, &error))?;
            if let Ok(data) = frame.into_data() {
                client.pace.take(data.len()).await;
                return Ok(Some(data));
            }
        }
    }

    /// Writes `wanted` bytes of an answer, after `skipped`.
    async fn take(
        &self,
        index: usize,
        answer: Answer,
        mut skipped: u64,
        mut wanted: u64,
    ) -> Result<(), FetchError> {
        let what = place(&answer.address);
        let asked = wanted;
        let mut body = answer.response.into_body();
        let mut held = BytesMut::with_capacity(WRITE_BYTES);
        let trouble = loop {
            let mut data = match self.frame(&mut body, &what).await {
                Ok(Some(data)) => data,
                Ok(None) => break None,
                Err(error) => break Some(error),
            };
            let drop = usize::try_from(skipped)
                .unwrap_or(usize::MAX)
                .min(data.len());
            skipped -= drop as u64;
            bytes::Buf::advance(&mut data, drop);
            let keep = usize::try_from(wanted)
                .unwrap_or(usize::MAX)
                .min(data.len());
            held.extend_from_slice(&data[..keep]);
            wanted -= keep as u64;
            if held.len() >= WRITE_BYTES || wanted == 0 {
                held = self.write(index, held).await?;
            }
            if wanted == 0 {
                return Ok(());
            }
        };
        // Every byte that came counts.
        self.write(index, held).await?;
        Err(trouble.unwrap_or(FetchError::Truncated {
            what,
            got: asked - wanted,
            wanted: asked,
        }))
    }

    async fn write(&self, index: usize, mut held: BytesMut) -> Result<BytesMut, FetchError> {
        if held.is_empty() {
            return Ok(held);
        }
        let part = Arc::clone(&self.part);
        let (held, length) = blocking(move || {
            part.append(index, &held)?;
            let length = held.len() as u64;
            held.clear();
            Ok((held, length))
        })
        .await?;
        self.transfer.progress.came(length);
        self.moved.notify_one();
        Ok(held)
    }

    /// Hashes the file from its beginning on, behind what comes, as it lies on the disk.
    async fn hash(self: Arc<Self>, position: watch::Sender<u64>) -> Result<Hashed, FetchError> {
        let size = self.part.size();
        let mut hasher = Hasher::of(&self.file);
        let mut buffer = vec![0; READ_BYTES];
        let (mut at, mut settled) = (0, 0);
        while at < size {
            let until = self.part.complete_until(at);
            if until <= at {
                self.moved.notified().await;
                continue;
            }
            let to = until.min(at + HASH_BYTES);
            let part = Arc::clone(&self.part);
            (hasher, buffer) = blocking(move || {
                let mut place = at;
                while place < to {
                    let count = usize::try_from(to - place)
                        .unwrap_or(usize::MAX)
                        .min(READ_BYTES);
                    part.read_at(&mut buffer[..count], place)?;
                    hasher.update(&buffer[..count]);
                    place += count as u64;
                }
                Ok((hasher, buffer))
            })
            .await?;
            at = to;
            position.send_replace(at);
            if at - settled >= SETTLE_BYTES {
                let (part, from) = (Arc::clone(&self.part), settled);
                blocking(move || part.settle(from, at - from)).await?;
                settled = at;
            }
        }
        Ok(hasher.finish_all())
    }
}
