//! The progress of a fetch for the operator: `GET /ID` answers with a few numbers, nothing else is answered. A place that
//! cannot be listened on means that no progress is shown, not that nothing is fetched.

use std::sync::Arc;
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinHandle;
use warp_fetch::Progress;

use crate::output;

const QUESTION_BYTES: usize = 512;
const QUESTION_LIMIT: Duration = Duration::from_secs(2);

/// Answers until it is dropped.
pub(super) struct Page(JoinHandle<()>);

impl Drop for Page {
    fn drop(&mut self) {
        self.0.abort();
    }
}

impl Page {
    pub(super) async fn open(address: &str, id: &str, progress: Arc<Progress>) -> Option<Self> {
        let listener = match TcpListener::bind(bracketed(address)).await {
            Ok(listener) => listener,
            Err(error) => {
                output::note(&format!(
                    "no progress is answered for at {address}: {error}"
                ));
                return None;
            }
        };
        let path = format!("/{id}");
        Some(Self(tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let state = serde_json::to_string(&progress.state()).unwrap_or_default();
                // One at a time, each with a limit: nobody can make it hold many.
                let _ = tokio::time::timeout(QUESTION_LIMIT, answer(stream, &path, &state)).await;
            }
        })))
    }
}

/// `host:port`, where the host may be an address with colons in it.
fn bracketed(address: &str) -> String {
    match address.rsplit_once(':') {
        Some((host, port)) if host.contains(':') && !host.starts_with('[') => {
            format!("[{host}]:{port}")
        }
        _ => address.to_owned(),
    }
}

async fn answer(mut stream: TcpStream, path: &str, state: &str) -> std::io::Result<()> {
    let mut question = Vec::new();
    while !question.windows(2).any(|two| two == b"\r\n") && question.len() < QUESTION_BYTES {
        if stream.read_buf(&mut question).await? == 0 {
            return Ok(());
        }
    }
    let question = String::from_utf8_lossy(&question).into_owned();
    let mut words = question.split_whitespace();
    let asked = words.next() == Some("GET") && words.next() == Some(path);
    let (status, body) = if asked {
        ("200 OK", state)
    } else {
        ("404 Not Found", "")
    };
    let text = format!(
        "HTTP/1.1 {status}\r\nContent-Type: application/json\r\nContent-Length: {}\r\nConnection: close\r\n\r\n{body}",
        body.len()
    );
    stream.write_all(text.as_bytes()).await?;
    stream.shutdown().await
}
