//! Exec and attach over WebSocket, `v5.channel.k8s.io` and `v4.channel.k8s.io`: the first byte of a message
//! is its channel (0 input, 1 output, 2 errors, 3 outcome, 4 terminal size, 255 end of input). And
//! WebSocket as a plain pipe, for the protocols that are tunnelled through it.

use axum::extract::ws::{CloseFrame, Message, WebSocket};
use bytes::{Bytes, BytesMut};
use futures::{SinkExt, StreamExt};
use serde_json::Value;
use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream};
use tokio::sync::mpsc;

use super::{outcome, terminal_size};
use crate::hooks::ExecSession;

pub(super) const PROTOCOLS: [&str; 2] = ["v5.channel.k8s.io", "v4.channel.k8s.io"];

/// How much waits for its reader.
const BUFFER: usize = 64 << 10;

/// The bytes of a socket's messages, as one stream.
pub(super) fn tunnel(socket: WebSocket) -> DuplexStream {
    let (outside, inside) = tokio::io::duplex(BUFFER);
    let (mut read, mut write) = tokio::io::split(inside);
    let (mut sink, mut source) = socket.split();
    tokio::spawn(async move {
        while let Some(Ok(message)) = source.next().await {
            let sent = match message {
                Message::Binary(data) => write.write_all(&data).await,
                Message::Close(_) => break,
                _ => Ok(()),
            };
            if sent.is_err() {
                break;
            }
        }
        write.shutdown().await.ok();
    });
    tokio::spawn(async move {
        let mut buffer = vec![0; BUFFER];
        while let Ok(length @ 1..) = read.read(&mut buffer).await {
            let message = Message::Binary(Bytes::copy_from_slice(&buffer[..length]));
            if sink.send(message).await.is_err() {
                return;
            }
        }
        sink.send(goodbye()).await.ok();
        sink.close().await.ok();
    });
    outside
}

/// Closing without a code makes kubectl print an error.
fn goodbye() -> Message {
    Message::Close(Some(CloseFrame {
        code: 1000,
        reason: "".into(),
    }))
}

/// Reads one of the command's outputs and labels it with its channel.
fn pump(channel: u8, stream: Option<DuplexStream>, out: mpsc::Sender<Bytes>) {
    let Some(mut stream) = stream else { return };
    tokio::spawn(async move {
        let mut buffer = vec![0; 32 << 10];
        loop {
            match stream.read(&mut buffer).await {
                Ok(0) | Err(_) => return,
                Ok(read) => {
                    let mut message = BytesMut::with_capacity(read + 1);
                    message.extend_from_slice(&[channel]);
                    message.extend_from_slice(&buffer[..read]);
                    if out.send(message.freeze()).await.is_err() {
                        return;
                    }
                }
            }
        }
    });
}

pub(super) async fn carry(socket: WebSocket, session: ExecSession) {
    let (mut sink, mut source) = socket.split();
    let ExecSession {
        mut stdin,
        stdout,
        stderr,
        resize,
        exit,
    } = session;
    let (out, mut outputs) = mpsc::channel(16);
    pump(1, stdout, out.clone());
    pump(2, stderr, out);
    let (gone, mut client_gone) = mpsc::channel::<()>(1);
    let input = tokio::spawn(async move {
        let _gone = gone;
        while let Some(Ok(message)) = source.next().await {
            let Message::Binary(data) = message else {
                if matches!(message, Message::Close(_)) {
                    return;
                }
                continue;
            };
            match data.split_first() {
                Some((0, rest)) => {
                    if let Some(stdin) = &mut stdin {
                        let _ = stdin.write_all(rest).await;
                    }
                }
                Some((4, rest)) => {
                    let size: Value = serde_json::from_slice(rest).unwrap_or_default();
                    if let Some(resize) = &resize {
                        let _ = resize.send(terminal_size(&size)).await;
                    }
                }
                Some((255, [0, ..])) => stdin = None,
                _ => {}
            }
        }
    });
    loop {
        tokio::select! {
            output = outputs.recv() => match output {
                Some(message) => {
                    if sink.send(Message::Binary(message)).await.is_err() {
                        break;
                    }
                }
                None => break,
            },
            // Everything is dropped: the command's pipes break, and its runtime sees that nobody
            // waits for `exit` any more.
            _ = client_gone.recv() => return,
        }
    }
    let outcome = outcome(exit.await.ok());
    let mut message = vec![3];
    message.extend_from_slice(outcome.to_string().as_bytes());
    let _ = sink.send(Message::Binary(Bytes::from(message))).await;
    let _ = sink.send(goodbye()).await;
    let _ = sink.close().await;
    input.abort();
}
