//! Gathers what one turn of a connection writes.
//!
//! HTTP/2 hands every larger frame down on its own and flushes after it. Over TLS each would be a record
//! and a system call of its own, for every watcher of every event. Here frames are collected while the
//! connection is polled and go down together when it has nothing more to say: what is flushed is on its
//! way before the task sleeps, only not before that.

use std::future::poll_fn;
use std::io;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use parking_lot::Mutex;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

/// Bytes collected before they go down in the middle of a turn.
const MOST: usize = 64 << 10;
/// Room made for the first of them: a frame.
const FIRST: usize = 16 << 10;

/// A stream whose writes are gathered; the handles share it.
pub(super) struct Cork<S>(Arc<Mutex<Corked<S>>>);

struct Corked<S> {
    stream: S,
    gathered: Vec<u8>,
    /// How much of `gathered` is written.
    written: usize,
    failed: Option<io::ErrorKind>,
}

impl<S> Clone for Cork<S> {
    fn clone(&self) -> Self {
        Self(Arc::clone(&self.0))
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> Cork<S> {
    pub(super) fn new(stream: S) -> Self {
        Self(Arc::new(Mutex::new(Corked {
            stream,
            gathered: Vec::new(),
            written: 0,
            failed: None,
        })))
    }

    /// Runs a connection on this stream, sending what it wrote after each of its turns.
    ///
    /// Its streams are tasks of their own, and an event wakes many of them: the first that has something to
    /// send wakes the connection, which would run at once and send that alone. So a woken connection goes to the
    /// end of the queue first, behind the streams that are ready already.
    pub(super) async fn drive<F: Future>(self, connection: F) -> F::Output {
        let mut connection = pin!(connection);
        let mut queued = false;
        poll_fn(|context| {
            queued = !queued;
            if queued {
                context.waker().wake_by_ref();
                return Poll::Pending;
            }
            let polled = connection.as_mut().poll(context);
            let mut corked = self.0.lock();
            if let Poll::Ready(Err(error)) = corked.drain(context) {
                // The connection is told when it is polled again.
                corked.failed = Some(error.kind());
                context.waker().wake_by_ref();
            }
            polled
        })
        .await
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> Corked<S> {
    fn check(&self) -> io::Result<()> {
        self.failed.map_or(Ok(()), |kind| Err(kind.into()))
    }

    /// Writes what is gathered and flushes the stream.
    fn drain(&mut self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        if self.failed.is_some() {
            return Poll::Ready(Ok(()));
        }
        while self.written < self.gathered.len() {
            let rest = &self.gathered[self.written..];
            let count = ready!(Pin::new(&mut self.stream).poll_write(context, rest))?;
            if count == 0 {
                return Poll::Ready(Err(io::ErrorKind::WriteZero.into()));
            }
            self.written += count;
        }
        self.written = 0;
        // Idle connections are many and keep no buffer; a busy one keeps it, for to allocate and free it at every
        // turn costs more than the copy. What is quiet has its next small turn when it is pinged.
        if self.gathered.len() > FIRST / 2 {
            self.gathered.clear();
        } else if !self.gathered.is_empty() {
            self.gathered = Vec::new();
        }
        Pin::new(&mut self.stream).poll_flush(context)
    }

    /// Makes room for more.
    fn ready(&mut self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.check()?;
        if self.gathered.len() >= MOST {
            ready!(self.drain(context))?;
        }
        if self.gathered.capacity() == 0 {
            self.gathered.reserve(FIRST);
        }
        Poll::Ready(Ok(()))
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> AsyncRead for Cork<S> {
    fn poll_read(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        into: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let mut corked = self.0.lock();
        corked.check()?;
        Pin::new(&mut corked.stream).poll_read(context, into)
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> AsyncWrite for Cork<S> {
    fn poll_write(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let mut corked = self.0.lock();
        ready!(corked.ready(context))?;
        corked.gathered.extend_from_slice(bytes);
        Poll::Ready(Ok(bytes.len()))
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        parts: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let mut corked = self.0.lock();
        ready!(corked.ready(context))?;
        let before = corked.gathered.len();
        for part in parts {
            corked.gathered.extend_from_slice(part);
        }
        Poll::Ready(Ok(corked.gathered.len() - before))
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    /// Done at the end of the turn.
    fn poll_flush(self: Pin<&mut Self>, _context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(self.0.lock().check())
    }

    fn poll_shutdown(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let mut corked = self.0.lock();
        corked.check()?;
        ready!(corked.drain(context))?;
        Pin::new(&mut corked.stream).poll_shutdown(context)
    }
}

#[cfg(test)]
mod tests;
