//! Everything written arrives, in order, whatever the stream below takes at a time.

use proptest::prelude::*;
use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream};

use super::*;

/// Counts how often it is written to.
struct Counted(DuplexStream, Arc<Mutex<usize>>);

impl AsyncRead for Counted {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        into: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_read(context, into)
    }
}

impl AsyncWrite for Counted {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        *self.1.lock() += 1;
        Pin::new(&mut self.0).poll_write(context, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_shutdown(context)
    }
}

/// Sends the frames, flushing after each, through a pipe of that width; returns what arrived and in
/// how many writes.
async fn send(frames: Vec<Vec<u8>>, width: usize) -> (Vec<u8>, usize) {
    let (near, mut far) = tokio::io::duplex(width);
    let writes = Arc::new(Mutex::new(0));
    let cork = Cork::new(Counted(near, Arc::clone(&writes)));
    let mut stream = cork.clone();
    let connection = async move {
        for frame in frames {
            stream.write_all(&frame).await?;
            stream.flush().await?;
        }
        // An answer has to come back: what was flushed must not wait for the end.
        let mut answer = [0];
        stream.read_exact(&mut answer).await?;
        stream.shutdown().await
    };
    let received = async {
        let mut received = Vec::new();
        let mut part = [0; 4096];
        loop {
            let count = far.read(&mut part).await.expect("readable");
            if count == 0 {
                return received;
            }
            if received.is_empty() {
                far.write_all(b"!").await.expect("taken");
            }
            received.extend_from_slice(&part[..count]);
        }
    };
    let (sent, received) = tokio::join!(cork.drive(connection), received);
    sent.expect("sent");
    let writes = *writes.lock();
    (received, writes)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(32))]

    #[test]
    fn what_is_written_arrives_whole_and_in_order(
        frames in proptest::collection::vec(proptest::collection::vec(any::<u8>(), 1..9000), 1..40),
        width in 1_usize..100_000,
    ) {
        let runtime = tokio::runtime::Builder::new_current_thread().build().expect("a runtime");
        let (received, _) = runtime.block_on(send(frames.clone(), width));
        prop_assert_eq!(received, frames.concat());
    }
}

#[tokio::test]
async fn frames_of_one_turn_are_one_write() {
    let frames: Vec<Vec<u8>> = (0..40).map(|byte| vec![byte; 1200]).collect();
    let (received, writes) = send(frames.clone(), 1 << 20).await;
    assert_eq!(received, frames.concat());
    assert_eq!(writes, 1);
}

#[tokio::test]
async fn a_connection_learns_that_its_peer_is_gone() {
    let (near, far) = tokio::io::duplex(64);
    drop(far);
    let cork = Cork::new(near);
    let mut stream = cork.clone();
    let connection = async move {
        stream.write_all(b"lost").await?;
        stream.flush().await?;
        tokio::task::yield_now().await;
        stream.write_all(b"more").await
    };
    let told = cork.drive(connection).await.expect_err("gone");
    assert_eq!(told.kind(), io::ErrorKind::BrokenPipe);
}
