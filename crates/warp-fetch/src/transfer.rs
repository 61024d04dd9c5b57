//! Brings one file to its place among the blobs: in ranges, several at once, hashed in order behind them, and again
//! from where it stopped after any trouble.

mod ranges;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use http_body_util::BodyExt;
use parking_lot::Mutex;
use tokio::sync::Semaphore;
use tokio::time::Instant;

use self::ranges::Ranges;
use crate::client::{Answer, Client, place};
use crate::digest::{Digest, Hashed, Hasher};
use crate::error::FetchError;
use crate::layout::{Layout, replace};
use crate::listing::{Place, RemoteFile};
use crate::part::Part;
use crate::plain::validator;
use crate::progress::Progress;
use crate::verified::{Manifest, Verified, is_trusted, stamp};

/// Files up to this come whole, in one request, through memory.
const SMALL_BYTES: u64 = 1 << 20;
/// What is read at once to be hashed.
const READ_BYTES: usize = 1 << 20;
/// How often a file whose digest is wrong is fetched.
const TRIES: u32 = 2;
const FIRST_PAUSE: Duration = Duration::from_millis(500);
const LONGEST_PAUSE: Duration = Duration::from_secs(30);

/// What all files of one fetch share.
pub(crate) struct Transfer {
    pub(crate) client: Client,
    pub(crate) layout: Layout,
    pub(crate) progress: Arc<Progress>,
    pub(crate) connections: Arc<Semaphore>,
    /// What was published here before.
    pub(crate) known: Vec<Manifest>,
    /// Who brings which content: of two files of equal content, one waits for the other and finds it there.
    pub(crate) turns: Mutex<BTreeMap<String, Arc<tokio::sync::Mutex<()>>>>,
}

/// When to try again, and when to give up.
pub(crate) struct Patience {
    since: Instant,
    pause: Duration,
}

impl Patience {
    pub(crate) fn new() -> Self {
        Self {
            since: Instant::now(),
            pause: FIRST_PAUSE,
        }
    }

    pub(crate) fn moved(&mut self) {
        *self = Self::new();
    }

    /// Waits before the next try, or says that there is no use.
    pub(crate) async fn after(
        &mut self,
        error: FetchError,
        what: &str,
        client: &Client,
        progress: &Progress,
    ) -> Result<(), FetchError> {
        if error.is_permanent() {
            return Err(error);
        }
        let limit = client.limits.patience;
        let asked = match &error {
            FetchError::Refused { retry_after, .. } => *retry_after,
            _ => None,
        };
        let pause = asked.unwrap_or(self.pause);
        if self.since.elapsed() + pause > limit {
            return Err(FetchError::GaveUp {
                file: what.to_owned(),
                seconds: limit.as_secs(),
                last: Box::new(error),
            });
        }
        tracing::debug!(what, %error, ?pause, "trying again");
        progress.trouble(Some(format!("{what}: {error}")));
        if asked.is_some() || error.reason() == "RateLimited" {
            client.pace.pause(pause);
        }
        tokio::time::sleep(pause).await;
        self.pause = (self.pause * 2).min(LONGEST_PAUSE);
        Ok(())
    }
}

impl Transfer {
    /// Brings `file` to its place, if it is not there.
    pub(crate) async fn obtain(
        self: &Arc<Self>,
        file: &RemoteFile,
    ) -> Result<Verified, FetchError> {
        let turn = Arc::clone(self.turns.lock().entry(part_name(file)).or_default());
        let _turn = turn.lock().await;
        let digest = match self.present(file).await? {
            Some(digest) => {
                self.progress.found(file.size);
                digest
            }
            None => match &file.place {
                Place::File(_) => self.copied(file).await?,
                Place::Address(address) if file.size <= SMALL_BYTES => {
                    self.small(file, address).await?
                }
                Place::Address(address) => self.large(file, address).await?,
            },
        };
        let blob = digest.hex();
        let path = self.layout.blob(&blob);
        let (size, written) = stamp(&path).ok_or(FetchError::Ended)?;
        self.progress.file_done();
        Ok(Verified {
            path: file.path.clone(),
            size,
            blob,
            digest: digest.to_string(),
            written,
        })
    }

    /// The digest of a blob that is there and right.
    async fn present(&self, file: &RemoteFile) -> Result<Option<Digest>, FetchError> {
        let Some(expected) = file.digest else {
            return Ok(None);
        };
        if is_trusted(&self.layout, &self.known, &expected, file.size) {
            return Ok(Some(expected));
        }
        let path = self.layout.blob(&expected.hex());
        if stamp(&path).is_none_or(|(size, _)| size != file.size) {
            return Ok(None);
        }
        // Somebody else's word for it is a size; the content is what counts.
        let size = file.size;
        let found = blocking(move || {
            let mut hasher = Hasher::new(Some(&expected), size);
            let mut reader = std::fs::File::open(&path).map_err(FetchError::io("read", &path))?;
            let mut buffer = vec![0; READ_BYTES];
            loop {
                let count = std::io::Read::read(&mut reader, &mut buffer)
                    .map_err(FetchError::io("read", &path))?;
                if count == 0 {
                    return Ok(hasher.finish());
                }
                hasher.update(&buffer[..count]);
            }
        })
        .await?;
        Ok((found == expected).then_some(expected))
    }

    /// A file of this machine.
    async fn copied(&self, file: &RemoteFile) -> Result<Digest, FetchError> {
        let Place::File(from) = &file.place else {
            return Err(FetchError::Ended);
        };
        let (from, size, expected) = (from.clone(), file.size, file.digest);
        let name = part_name(file);
        let part = self.layout.parts().join(name);
        let layout = self.layout.clone();
        let progress = Arc::clone(&self.progress);
        let digest = blocking(move || {
            let mut reader = std::fs::File::open(&from).map_err(FetchError::io("read", &from))?;
            let mut writer =
                std::fs::File::create(&part).map_err(FetchError::io("write", &part))?;
            let mut hasher = Hasher::new(expected.as_ref(), size);
            let mut buffer = vec![0; READ_BYTES];
            let mut total = 0;
            loop {
                let count = std::io::Read::read(&mut reader, &mut buffer)
                    .map_err(FetchError::io("read", &from))?;
                if count == 0 {
                    break;
                }
                hasher.update(&buffer[..count]);
                std::io::Write::write_all(&mut writer, &buffer[..count])
                    .map_err(FetchError::io("write", &part))?;
                total += count as u64;
                progress.came(count as u64);
            }
            if total != size {
                return Err(FetchError::Changed {
                    file: from.display().to_string(),
                });
            }
            writer.sync_all().map_err(FetchError::io("write", &part))?;
            let digest = hasher.finish();
            if expected.is_none_or(|expected| expected == digest) {
                let blob = layout.blob(&digest.hex());
                std::fs::rename(&part, &blob).map_err(FetchError::io("move a file to", &blob))?;
            }
            Ok(digest)
        })
        .await?;
        let checksum = file.checksum;
        judged(file, Hashed { digest, checksum }, 1)
    }

    /// A file that comes whole.
    async fn small(&self, file: &RemoteFile, address: &str) -> Result<Digest, FetchError> {
        let mut patience = Patience::new();
        let mut tries = 0;
        loop {
            let got = {
                let _permit = self
                    .connections
                    .acquire()
                    .await
                    .map_err(|_| FetchError::Ended)?;
                self.small_once(file, address).await
            };
            let content = match got {
                Ok(content) => content,
                Err(error) => {
                    patience
                        .after(error, &file.path, &self.client, &self.progress)
                        .await?;
                    continue;
                }
            };
            self.progress.trouble(None);
            let mut hasher = Hasher::of(file);
            hasher.update(&content);
            let hashed = hasher.finish_all();
            tries += 1;
            match judged(file, hashed, tries) {
                Ok(digest) => {
                    let blob = self.layout.blob(&digest.hex());
                    let part = self.layout.parts().join(part_name(file));
                    blocking(move || {
                        replace(&part, &content)?;
                        std::fs::rename(&part, &blob)
                            .map_err(FetchError::io("move a file to", &blob))
                    })
                    .await?;
                    return Ok(digest);
                }
                Err(error) if tries >= TRIES => return Err(error),
                Err(_) => self.progress.lost(file.size),
            }
        }
    }

    async fn small_once(&self, file: &RemoteFile, address: &str) -> Result<Bytes, FetchError> {
        if file.size == 0 {
            return Ok(Bytes::new());
        }
        let answer = self.client.get(address, None).await;
        let answer = answer.map_err(|error| replaced(file, error))?;
        unchanged(file, &answer)?;
        let what = place(&answer.address);
        let mut body = answer.response.into_body();
        let mut content = BytesMut::new();
        loop {
            let frame = tokio::time::timeout(self.client.limits.stall, body.frame())
                .await
                .map_err(|_| self.client.stalled(&what))?;
            let Some(frame) = frame else { break };
            let frame = frame.map_err(|error| cut(&what, &error))?;
            let Ok(data) = frame.into_data() else {
                continue;
            };
            self.client.pace.take(data.len()).await;
            content.extend_from_slice(&data);
            if content.len() as u64 > file.size {
                return Err(longer(&what, file));
            }
        }
        let got = content.len() as u64;
        if got < file.size {
            return Err(FetchError::Truncated {
                what,
                got,
                wanted: file.size,
            });
        }
        self.progress.came(got);
        Ok(content.freeze())
    }

    /// A file that comes in ranges.
    async fn large(
        self: &Arc<Self>,
        file: &RemoteFile,
        address: &str,
    ) -> Result<Digest, FetchError> {
        let path = self.layout.parts().join(part_name(file));
        let (size, known) = (file.size, known_by(file));
        let part = Arc::new(blocking(move || Part::open(&path, size, &known)).await?);
        self.progress.found(part.received());
        let mut tries = 0;
        loop {
            let ranges = Ranges::new(self, file, &part, address);
            let hashed = ranges.run().await?;
            tries += 1;
            match judged(file, hashed, tries) {
                Ok(digest) => {
                    let (part, blob) = (Arc::clone(&part), self.layout.blob(&digest.hex()));
                    blocking(move || part.finish(&blob)).await?;
                    return Ok(digest);
                }
                Err(error) => {
                    // Which byte is wrong nobody can say: all of it comes again.
                    part.start_over()?;
                    if tries >= TRIES {
                        return Err(error);
                    }
                    tracing::warn!(file = file.path, %error, "fetching it again");
                    self.progress.lost(size);
                }
            }
        }
    }
}

/// Runs what waits for the disk where it holds up nobody.
async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, FetchError> + Send + 'static,
) -> Result<T, FetchError> {
    tokio::task::spawn_blocking(work)
        .await
        .map_err(|_| FetchError::Ended)?
}

fn ended(done: Result<Result<(), FetchError>, tokio::task::JoinError>) -> Result<(), FetchError> {
    done.map_err(|_| FetchError::Ended)?
}

/// Whether digest and checksum are the promised ones.
fn judged(file: &RemoteFile, found: Hashed, tries: u32) -> Result<Digest, FetchError> {
    let corrupt = |expected: String, found: String| FetchError::Corrupt {
        file: file.path.clone(),
        expected,
        found,
        tries,
    };
    match (file.digest, file.checksum.zip(found.checksum)) {
        (Some(expected), _) if expected != found.digest => {
            Err(corrupt(expected.to_string(), found.digest.to_string()))
        }
        (_, Some((expected, sum))) if expected != sum => {
            Err(corrupt(expected.to_string(), sum.to_string()))
        }
        _ => Ok(found.digest),
    }
}

/// Without a digest, what the server says of a file must stay the same from range to range.
fn unchanged(file: &RemoteFile, answer: &Answer) -> Result<(), FetchError> {
    let pinned = file.checksum.is_some() && file.validator.is_none();
    if file.digest.is_some() || pinned || file.validator == validator(answer.response.headers()) {
        return Ok(());
    }
    Err(FetchError::Changed {
        file: file.path.clone(),
    })
}

/// Whether the address names one version of the content and no other.
fn is_pinned(file: &RemoteFile) -> bool {
    file.checksum.is_some() && file.validator.is_none()
}

/// A version that is not there any more was replaced by another.
fn replaced(file: &RemoteFile, error: FetchError) -> FetchError {
    match error {
        FetchError::Refused { status: 404, .. } if is_pinned(file) => FetchError::Changed {
            file: file.path.clone(),
        },
        other => other,
    }
}

fn cut(what: &str, error: &hyper::Error) -> FetchError {
    FetchError::Unreachable {
        place: what.to_owned(),
        why: format!("the transfer broke off: {error}"),
    }
}

fn longer(what: &str, file: &RemoteFile) -> FetchError {
    FetchError::Nonsense {
        what: what.to_owned(),
        why: format!(
            "{} is longer than the {} bytes promised",
            file.path, file.size
        ),
    }
}

/// What says that two tries mean the same content.
pub(crate) fn known_by(file: &RemoteFile) -> String {
    match (&file.digest, &file.place) {
        (Some(digest), _) => digest.to_string(),
        (None, Place::Address(address)) => {
            format!(
                "{address} {}",
                file.validator.as_deref().unwrap_or_default()
            )
        }
        (None, Place::File(path)) => path.display().to_string(),
    }
}

/// Whether what came of it is kept for the next try.
pub(crate) fn comes_in_ranges(file: &RemoteFile) -> bool {
    matches!(file.place, Place::Address(_)) && file.size > SMALL_BYTES
}

/// The name of what is not complete.
pub(crate) fn part_name(file: &RemoteFile) -> String {
    match &file.digest {
        Some(digest) => digest.hex(),
        None => crate::digest::sha256_hex(known_by(file).as_bytes()),
    }
}
