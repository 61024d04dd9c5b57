//! SPDY/3.1 as clients of `exec`, `attach` and `port-forward` speak it after an upgrade: the client opens
//! streams, each a pair of byte pipes with headers.
//!
//! Memory is bounded: what is not read on one side is not read on the other, frame by frame. Windows are
//! not kept: Go's implementation, which every such client uses, neither sends nor heeds window updates, and
//! a server that waited for them would stand still.

mod frame;
mod headers;
mod inflate;

#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use tokio::io::{
    AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, DuplexStream, ReadHalf, WriteHalf,
};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc};
use tokio::task::AbortHandle;
use tokio_util::sync::{CancellationToken, DropGuard};

use frame::{Frame, Reader, Replies};
pub(crate) use headers::Headers;

/// How much of a stream waits for its reader.
const BUFFER: usize = 64 << 10;
/// The payload of one data frame we send.
const PIECE: usize = 16 << 10;
/// Frames that wait to be sent.
const QUEUE: usize = 16;
/// Streams one connection may have open.
const MOST_STREAMS: usize = 512;
/// How long a client that has been told everything may take to hang up.
const HANG_UP: Duration = Duration::from_secs(10);

/// A stream the client opened.
#[derive(Debug)]
pub(crate) struct Stream {
    pub(crate) headers: Headers,
    /// What the client sends is read here, and it gets what is written; shutting it down ends our side.
    pub(crate) io: DuplexStream,
}

/// One connection. Dropping it closes it.
#[derive(Debug)]
pub(crate) struct Connection {
    streams: mpsc::Receiver<Stream>,
    gone: CancellationToken,
    _close: DropGuard,
}

impl Connection {
    /// Serves the client at the other end of `io`.
    pub(crate) fn serve(io: impl AsyncRead + AsyncWrite + Send + 'static) -> Self {
        let (read, write) = tokio::io::split(io);
        let (accepted, streams) = mpsc::channel(1);
        let (out, queue) = mpsc::channel(QUEUE);
        let (gone, close) = (CancellationToken::new(), CancellationToken::new());
        let session = Session {
            out,
            accepted,
            open: BTreeMap::new(),
            permits: Arc::new(Semaphore::new(MOST_STREAMS)),
            replies: Replies::default(),
            buffer: vec![0; PIECE],
        };
        let (ended, closing) = (gone.clone().drop_guard(), close.clone());
        tokio::spawn(async move {
            // Whatever ends the session, the client is gone for everybody.
            let _ended = ended;
            tokio::select! {
                _ = session.run(read) => {}
                () = closing.cancelled() => {}
            }
        });
        let (failed, closing) = (close.clone(), close.clone());
        tokio::spawn(async move {
            tokio::select! {
                sent = send(write, queue) => if sent.is_err() {
                    failed.cancel();
                },
                () = closing.cancelled() => {}
            }
        });
        Self {
            streams,
            gone,
            _close: close.drop_guard(),
        }
    }

    /// The next stream; none when the client is gone.
    pub(crate) async fn accept(&mut self) -> Option<Stream> {
        self.streams.recv().await
    }

    /// Resolves when the client is gone.
    pub(crate) fn gone(&self) -> CancellationToken {
        self.gone.clone()
    }

    /// Lets the client read to the end and hang up.
    pub(crate) async fn finish(self) {
        tokio::time::timeout(HANG_UP, self.gone.cancelled())
            .await
            .ok();
    }
}

async fn send(
    mut to: WriteHalf<impl AsyncWrite>,
    mut queue: mpsc::Receiver<Bytes>,
) -> io::Result<()> {
    while let Some(frame) = queue.recv().await {
        to.write_all(&frame).await?;
        to.flush().await?;
    }
    to.shutdown().await
}

/// Our side of a stream that is open.
struct Open {
    /// Where the client's data goes; none once it has said that there is no more.
    to: Option<WriteHalf<DuplexStream>>,
    pump: AbortHandle,
    /// The stream counts until both sides have ended it.
    _permit: Arc<OwnedSemaphorePermit>,
}

struct Session {
    out: mpsc::Sender<Bytes>,
    accepted: mpsc::Sender<Stream>,
    open: BTreeMap<u32, Open>,
    permits: Arc<Semaphore>,
    replies: Replies,
    /// A piece of data on its way.
    buffer: Vec<u8>,
}

impl Session {
    /// Takes frames until the client goes away or breaks the rules.
    async fn run(mut self, from: ReadHalf<impl AsyncRead>) -> io::Result<()> {
        let mut reader = Reader::new(from);
        loop {
            match reader.next().await? {
                Frame::Open { id, fin, headers } => self.opened(id, fin, headers).await?,
                Frame::Data { id, fin, length } => self.data(&mut reader, id, fin, length).await?,
                Frame::Reset { id } => {
                    if let Some(open) = self.open.remove(&id) {
                        open.pump.abort();
                    }
                }
                // A client counts its pings in odd numbers; an even one answers ours, and we send none.
                Frame::Ping { id } if id % 2 == 1 => self.say(frame::ping(id)).await?,
                Frame::GoAway => return Ok(()),
                Frame::Ping { .. } | Frame::Other => {}
            }
        }
    }

    async fn say(&self, frame: Bytes) -> io::Result<()> {
        let sent = self.out.send(frame).await;
        sent.map_err(|_| io::ErrorKind::BrokenPipe.into())
    }

    async fn opened(&mut self, id: u32, fin: bool, headers: Headers) -> io::Result<()> {
        if id.is_multiple_of(2) || self.open.contains_key(&id) {
            return self.say(frame::reset(id, frame::PROTOCOL_ERROR)).await;
        }
        self.open
            .retain(|_, open| open.to.is_some() || !open.pump.is_finished());
        let Ok(permit) = self.permits.clone().try_acquire_owned().map(Arc::new) else {
            return self.say(frame::reset(id, frame::REFUSED)).await;
        };
        let (outside, inside) = tokio::io::duplex(BUFFER);
        let (read, to) = tokio::io::split(inside);
        let reply = self.replies.next(id);
        self.say(reply).await?;
        let out = self.out.clone();
        let pumped = Arc::clone(&permit);
        let pump = tokio::spawn(async move {
            let _permit = pumped;
            pump(id, read, out).await;
        });
        let open = Open {
            to: (!fin).then_some(to),
            pump: pump.abort_handle(),
            _permit: permit,
        };
        self.open.insert(id, open);
        let stream = Stream {
            headers,
            io: outside,
        };
        if self.accepted.send(stream).await.is_err() {
            // Nobody takes streams any more; those that are open go on.
            self.open.remove(&id);
            return self.say(frame::reset(id, frame::REFUSED)).await;
        }
        Ok(())
    }

    async fn data(
        &mut self,
        reader: &mut Reader<impl AsyncRead>,
        id: u32,
        fin: bool,
        length: usize,
    ) -> io::Result<()> {
        let mut left = length;
        while left > 0 {
            let piece = &mut self.buffer[..left.min(PIECE)];
            reader.read_exact(piece).await?;
            left -= piece.len();
            let Some(open) = self.open.get_mut(&id) else {
                continue;
            };
            if let Some(to) = &mut open.to
                && to.write_all(piece).await.is_err()
            {
                // Nobody reads it: the rest is let go.
                open.to = None;
            }
        }
        if fin && let Some(open) = self.open.get_mut(&id) {
            if let Some(mut to) = open.to.take() {
                to.shutdown().await.ok();
            }
            if open.pump.is_finished() {
                self.open.remove(&id);
            }
        }
        Ok(())
    }
}

impl Drop for Session {
    /// Readers see the end, and writers that nobody listens.
    fn drop(&mut self) {
        for open in self.open.values() {
            open.pump.abort();
        }
    }
}

/// Sends what is written to a stream, and its end.
async fn pump(id: u32, mut from: ReadHalf<DuplexStream>, out: mpsc::Sender<Bytes>) {
    let mut buffer = vec![0; PIECE];
    loop {
        let read = from.read(&mut buffer).await.unwrap_or(0);
        let frame = frame::data(id, &buffer[..read], read == 0);
        if out.send(frame).await.is_err() || read == 0 {
            return;
        }
    }
}
