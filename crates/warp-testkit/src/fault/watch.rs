//! A watch stream that is not what the server sent: cut, silent, repeated, merged or expired.

use std::collections::VecDeque;
use std::time::Duration;

use axum::body::Body;
use bytes::{Bytes, BytesMut};
use futures::stream::{self, BoxStream, StreamExt};
use serde_json::{Value, json};
use tokio::time::{Instant, timeout_at};
use tower::BoxError;

use super::layer::Faults;

/// A server closes a watch after about this long; a silent one is noticed by then.
const CLOSED_AFTER: Duration = Duration::from_secs(290);
/// Changes of one object within this long are merged.
const WINDOW: Duration = Duration::from_secs(2);

/// What is wrong with a stream.
#[derive(Clone, Copy, Debug)]
pub(super) enum Trouble {
    Cut(u64),
    Silence(u64),
    Expire(u64),
    Duplicate,
    Merge,
}

/// `body` with `trouble`.
pub(super) fn troubled(body: Body, trouble: Trouble) -> Body {
    let lines = Lines {
        inner: body.into_data_stream().boxed(),
        partial: BytesMut::new(),
        ready: VecDeque::new(),
        trouble,
        seen: 0,
        ended: false,
    };
    let frames = stream::unfold(lines, |mut lines| async move {
        let line = lines.next().await?;
        Some((line, lines))
    });
    Body::from_stream(frames)
}

/// `body` as a process hears it: not while it stands still, and nothing once it has died.
pub(super) fn held(body: Body, faults: Faults, life: u64) -> Body {
    let frames = body.into_data_stream().then(move |frame| {
        let faults = faults.clone();
        async move {
            faults.awake(life).await;
            frame
        }
    });
    Body::from_stream(frames)
}

type Line = Result<Bytes, BoxError>;

struct Lines {
    inner: BoxStream<'static, Result<Bytes, axum::Error>>,
    partial: BytesMut,
    ready: VecDeque<Bytes>,
    trouble: Trouble,
    seen: u64,
    ended: bool,
}

impl Lines {
    async fn next(&mut self) -> Option<Line> {
        loop {
            if let Some(line) = self.ready.pop_front() {
                return Some(Ok(line));
            }
            if self.ended {
                return None;
            }
            match self.trouble {
                Trouble::Cut(after) if self.seen >= after => return None,
                Trouble::Expire(after) if self.seen >= after => {
                    self.ended = true;
                    return Some(Ok(expired()));
                }
                Trouble::Silence(after) if self.seen >= after => {
                    tokio::time::sleep(CLOSED_AFTER).await;
                    return None;
                }
                Trouble::Merge => {
                    if let Err(error) = self.gather().await {
                        return Some(Err(error));
                    }
                }
                _ => match self.line().await? {
                    Ok(line) => {
                        self.seen += 1;
                        if matches!(self.trouble, Trouble::Duplicate) {
                            self.ready.push_back(line.clone());
                        }
                        return Some(Ok(line));
                    }
                    Err(error) => return Some(Err(error)),
                },
            }
        }
    }

    /// The next whole line of the server.
    async fn line(&mut self) -> Option<Line> {
        loop {
            if let Some(end) = self.partial.iter().position(|byte| *byte == b'\n') {
                return Some(Ok(self.partial.split_to(end + 1).freeze()));
            }
            match self.inner.next().await? {
                Ok(bytes) => self.partial.extend_from_slice(&bytes),
                Err(error) => return Some(Err(error.into())),
            }
        }
    }

    /// Reads one window's events and keeps what a watcher that looked only at its end would know.
    async fn gather(&mut self) -> Result<(), BoxError> {
        let Some(first) = self.line().await else {
            self.ended = true;
            return Ok(());
        };
        let mut events: Vec<Value> = vec![serde_json::from_slice(&first?)?];
        let end = Instant::now() + WINDOW;
        loop {
            match timeout_at(end, self.line()).await {
                Ok(Some(line)) => events.push(serde_json::from_slice(&line?)?),
                Ok(None) => {
                    self.ended = true;
                    break;
                }
                Err(_) => break,
            }
        }
        for event in merged(events) {
            let mut line = event.to_string().into_bytes();
            line.push(b'\n');
            self.ready.push_back(line.into());
        }
        Ok(())
    }
}

/// The last event of every object, as one step from the state before the first.
pub(super) fn merged(events: Vec<Value>) -> Vec<Value> {
    let uid = |event: &Value| {
        event["object"]["metadata"]["uid"]
            .as_str()
            .map(str::to_owned)
    };
    let mut kept: Vec<Value> = Vec::new();
    for mut event in events {
        let known = uid(&event).and_then(|wanted| {
            kept.iter()
                .position(|earlier| uid(earlier).as_ref() == Some(&wanted))
        });
        if let Some(place) = known {
            let earlier = kept.remove(place);
            match (earlier["type"].as_str(), event["type"].as_str()) {
                (Some("ADDED"), Some("DELETED")) => continue,
                (Some("ADDED"), _) => event["type"] = json!("ADDED"),
                _ => {}
            }
        }
        kept.push(event);
    }
    kept
}

fn expired() -> Bytes {
    let event = json!({"type": "ERROR", "object": {
        "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure",
        "message": "too old resource version (injected)", "reason": "Expired", "code": 410,
    }});
    Bytes::from(format!("{event}\n"))
}
