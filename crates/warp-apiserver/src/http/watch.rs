//! Watch streams: events of a table, narrowed and shaped for one client.

use std::collections::VecDeque;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use bytes::{Bytes, BytesMut};
use http::Response;
use serde_json::{Value, json};
use tokio::sync::OwnedSemaphorePermit;
use tokio::time::{Instant, Sleep};

use super::options::ListOptions;
use super::selector::Selector;
use super::{Api, ResourceCall, respond};
use crate::codec::negotiate::{Form, View};
use crate::codec::status::Status;
use crate::codec::table::IncludeObject;
use crate::registry::Entry;
use crate::store::{Batch, Cursor, Event, EventKind, Stored, Whole};

/// How often an idle watcher is told the present revision.
const BOOKMARK_EVERY: Duration = Duration::from_mins(1);
/// How long before its end a watch gets a last bookmark.
const LAST_BOOKMARK: Duration = Duration::from_secs(2);
/// How long a watch lasts when the client does not say.
const DEFAULT_TIMEOUT: u64 = 45 * 60;
/// The longest a client can ask for.
const LONGEST: u64 = 365 * 24 * 60 * 60;
/// Events turned into one chunk.
const CHUNK: usize = 128;

pub(super) fn watch(
    request: &ResourceCall<'_>,
    warnings: &[String],
) -> Result<Response<Body>, Status> {
    let query = &request.call.query;
    let options = ListOptions::parse(query, true)?;
    let entry = Arc::clone(&request.entry);
    if !entry.resource.allows("watch") {
        return Err(Status::no_such_method());
    }
    let selector = Selector::parse(
        query.get("labelSelector"),
        query.get("fieldSelector"),
        &entry.resource,
    )?;
    let include = request.include()?;
    let slot = Arc::clone(&request.api.watches)
        .try_acquire_owned()
        .map_err(|_| {
            Status::too_many_requests(
                format!(
                    "too many watches are open (limit {})",
                    request.api.limits.watches
                ),
                1,
            )
        })?;
    let current = request.api.store.revision();
    if let Some(asked) = options.revision.filter(|asked| *asked > current) {
        return Err(Status::revision_too_large(asked, current));
    }
    let namespace = request.target.namespace.clone();
    let name = request.target.name.clone();
    let mut ready = VecDeque::new();
    let shape = Shape {
        api: Arc::clone(request.api),
        entry,
        form: request.call.form,
        include,
        selector,
        namespace,
        name,
        columns_sent: false,
    };
    let (start, shape) = open(&options, shape, &mut ready);
    let timeout = options
        .timeout
        .filter(|seconds| *seconds > 0)
        .unwrap_or(DEFAULT_TIMEOUT)
        .min(LONGEST);
    let now = Instant::now();
    let ends = now + Duration::from_secs(timeout);
    let next_bookmark = (now + BOOKMARK_EVERY)
        .min(ends - LAST_BOOKMARK.min(ends - now))
        .max(now + LAST_BOOKMARK);
    request.api.metrics.watch_opened();
    let closed = shape.entry.closed.clone();
    let stop = request.api.stop.clone();
    let stream = Stream {
        cursor: start,
        ready,
        next_bookmark: options.bookmarks.then_some(next_bookmark),
        ends,
        timer: Box::pin(tokio::time::sleep_until(ends.min(next_bookmark))),
        ended: Box::pin(async move {
            tokio::select! {
                () = closed.cancelled() => {}
                () = stop.cancelled() => {}
            }
        }),
        done: false,
        whole: shape.whole(),
        shape,
        _slot: slot,
    };
    let body = Body::from_stream(futures::stream::unfold(stream, |mut stream| async move {
        let chunk = stream.next().await?;
        Some((Ok::<Bytes, std::convert::Infallible>(chunk), stream))
    }));
    let mut response = Response::new(body);
    response.headers_mut().insert(
        http::header::CONTENT_TYPE,
        http::HeaderValue::from_static("application/json"),
    );
    response.headers_mut().insert(
        http::header::CACHE_CONTROL,
        http::HeaderValue::from_static("no-cache, private"),
    );
    respond::warn(&mut response, warnings);
    Ok(response)
}

/// Finds the starting point, and the events that come before it.
fn open(
    options: &ListOptions,
    mut shape: Shape,
    ready: &mut VecDeque<Bytes>,
) -> (Option<Cursor>, Shape) {
    let from_state = match options.initial_events {
        Some(initial) => initial,
        None => matches!(options.revision, None | Some(0)),
    };
    if from_state {
        let table = Arc::clone(&shape.entry.table);
        let (page, cursor) = table.list_and_watch(shape.namespace.as_deref());
        for stored in &page.objects {
            if shape.wants(stored) {
                ready.push_back(shape.encode(EventKind::Added, stored));
            }
        }
        if options.initial_events == Some(true) && options.bookmarks {
            ready.push_back(shape.bookmark(page.revision, true));
        }
        return (Some(cursor), shape);
    }
    let revision = match options.revision {
        Some(revision) if revision > 0 => revision,
        _ => shape.api.store.revision(),
    };
    match shape.entry.table.watch_from(revision) {
        Ok(cursor) => (Some(cursor), shape),
        Err(error) => {
            let status = Status::gone(format!(
                "too old resource version: {} ({})",
                error.asked, error.oldest
            ));
            ready.push_back(error_line(&status));
            (None, shape)
        }
    }
}

fn error_line(status: &Status) -> Bytes {
    let line = json!({"type": "ERROR", "object": status.to_json()});
    Bytes::from(format!("{line}\n"))
}

/// What one client sees of an event.
struct Shape {
    api: Arc<Api>,
    entry: Arc<Entry>,
    form: Form,
    include: IncludeObject,
    selector: Selector,
    namespace: Option<String>,
    name: Option<String>,
    /// Tables carry their columns in the first event only.
    columns_sent: bool,
}

impl Shape {
    /// What the client wants if that is every event, as it is stored.
    fn whole(&self) -> Option<Whole> {
        let resource = &self.entry.resource;
        let plain = self.form.view == View::Object
            && self.selector.is_empty()
            && self.name.is_none()
            && resource.conversion.is_none();
        plain.then(|| Whole {
            namespace: self.namespace.clone(),
            epoch: resource.custom.as_ref().map(|custom| custom.epoch),
        })
    }

    fn wants(&self, stored: &Stored) -> bool {
        self.in_place(stored) && self.selector.matches(stored)
    }

    fn in_place(&self, stored: &Stored) -> bool {
        self.namespace
            .as_deref()
            .is_none_or(|namespace| stored.namespace() == Some(namespace))
            && self
                .name
                .as_deref()
                .is_none_or(|name| stored.name() == name)
    }

    /// An object that begins or ceases to match is added or deleted for this client.
    fn line(&mut self, event: &Event) -> Option<Bytes> {
        if !self.in_place(&event.object) {
            return None;
        }
        let now = self.selector.matches(&event.object);
        let before = event
            .previous
            .as_ref()
            .is_some_and(|previous| self.selector.matches(previous));
        let kind = match (event.kind, before, now) {
            (EventKind::Deleted, false, _) | (_, false, false) => return None,
            (EventKind::Added, _, true) | (EventKind::Modified, false, true) => EventKind::Added,
            (EventKind::Modified, true, true) => EventKind::Modified,
            (EventKind::Deleted, true, _) | (_, true, false) => EventKind::Deleted,
        };
        let plain = self.form.view == View::Object
            && kind == event.kind
            && self.entry.serves_as_stored(&event.object);
        if plain {
            return Some(event.line());
        }
        if kind == EventKind::Deleted && event.kind == EventKind::Modified {
            // The client is shown the last state it could see, under the revision of the change.
            if let Some(previous) = &event.previous {
                let mut object = self.entry.read(previous);
                object["metadata"]["resourceVersion"] = event.revision().to_string().into();
                return Some(self.encode_value(kind, object));
            }
        }
        Some(self.encode(kind, &event.object))
    }

    fn encode(&mut self, kind: EventKind, stored: &Stored) -> Bytes {
        if self.form.view == View::Object {
            return crate::store::line(kind, &self.entry.bytes(stored));
        }
        let object = self.entry.read(stored);
        self.encode_value(kind, object)
    }

    fn encode_value(&mut self, kind: EventKind, object: Value) -> Bytes {
        let shown = self.view(object);
        crate::store::line(kind, shown.to_string().as_bytes())
    }

    fn view(&mut self, object: Value) -> Value {
        let view = self.form.view;
        match respond::view_of(&self.api, &self.entry, object, view, self.include) {
            Ok(mut shown) => {
                if matches!(view, View::Table(_)) {
                    if self.columns_sent {
                        shown["columnDefinitions"] = Value::Null;
                    }
                    self.columns_sent = true;
                }
                shown
            }
            Err(status) => status.to_json(),
        }
    }

    fn bookmark(&mut self, revision: u64, initial_end: bool) -> Bytes {
        let mut object = json!({
            "kind": self.entry.resource.kind,
            "apiVersion": self.entry.api_version(),
            "metadata": {"resourceVersion": revision.to_string()},
        });
        if initial_end {
            object["metadata"]["annotations"] = json!({"k8s.io/initial-events-end": "true"});
        }
        let shown = match self.form.view {
            View::Object => object,
            View::Metadata(_) => self.view(object),
            View::Table(version) => json!({
                "kind": "Table",
                "apiVersion": format!("meta.k8s.io/{version}"),
                "metadata": {"resourceVersion": revision.to_string()},
                "columnDefinitions": null,
                "rows": [{"cells": [], "object": object}],
            }),
        };
        Bytes::from(format!("{{\"type\":\"BOOKMARK\",\"object\":{shown}}}\n"))
    }
}

/// One open watch.
struct Stream {
    cursor: Option<Cursor>,
    ready: VecDeque<Bytes>,
    /// When the client is told the revision; `None` for one that did not ask for it.
    next_bookmark: Option<Instant>,
    ends: Instant,
    /// Runs out when the watch ends or a bookmark is due. Like `ended` it is made once: a watcher is woken
    /// for every event, and must not enter and leave the queues of others each time.
    timer: Pin<Box<Sleep>>,
    /// Resolves when the resource goes or the server stops.
    ended: Pin<Box<dyn Future<Output = ()> + Send>>,
    done: bool,
    /// Set for a client that is sent events as they are stored.
    whole: Option<Whole>,
    shape: Shape,
    _slot: OwnedSemaphorePermit,
}

impl Drop for Stream {
    fn drop(&mut self) {
        self.shape.api.metrics.watch_closed();
    }
}

impl Stream {
    /// The next chunk; `None` ends the stream.
    async fn next(&mut self) -> Option<Bytes> {
        loop {
            if let Some(chunk) = self.take_ready() {
                return Some(chunk);
            }
            if self.done {
                return None;
            }
            self.cursor.as_ref()?;
            self.fill().await;
        }
    }

    fn take_ready(&mut self) -> Option<Bytes> {
        let first = self.ready.pop_front()?;
        if self.ready.is_empty() {
            return Some(first);
        }
        let mut chunk = BytesMut::from(first.as_ref());
        while chunk.len() < 64 << 10 {
            let Some(next) = self.ready.pop_front() else {
                break;
            };
            chunk.extend_from_slice(&next);
        }
        Some(chunk.freeze())
    }

    /// Reads what there is, or waits for it.
    async fn fill(&mut self) {
        let Some(cursor) = &mut self.cursor else {
            return;
        };
        if let Some(whole) = &self.whole
            && let Some(lines) = cursor.read_lines(whole, CHUNK)
        {
            self.shape.api.metrics.watch_events(lines.count);
            if lines.count > 0 {
                self.ready.push_back(lines.bytes);
            }
            return;
        }
        match cursor.read(CHUNK) {
            Batch::Events(events) => {
                for event in &events {
                    if let Some(line) = self.shape.line(event) {
                        self.ready.push_back(line);
                    }
                }
                self.shape.api.metrics.watch_events(self.ready.len() as u64);
            }
            // Too slow: the client starts again from what it saw last.
            Batch::Lost => self.done = true,
            Batch::Idle(_) => {
                tokio::select! {
                    biased;
                    // First, so that a watch of a busy resource ends in time as well.
                    () = self.timer.as_mut() => self.look_at_the_time(),
                    () = cursor.changed() => {}
                    () = self.ended.as_mut() => self.done = true,
                }
            }
        }
    }

    fn look_at_the_time(&mut self) {
        let now = Instant::now();
        if now >= self.ends {
            self.done = true;
            return;
        }
        if self.next_bookmark.is_some_and(|due| now >= due) {
            let last = self.ends - LAST_BOOKMARK.min(self.ends - now);
            let next = if now < last {
                (now + BOOKMARK_EVERY).min(last)
            } else {
                self.ends + BOOKMARK_EVERY
            };
            self.next_bookmark = Some(next);
            self.say_revision();
        }
        let next = self
            .next_bookmark
            .map_or(self.ends, |due| due.min(self.ends));
        self.timer.as_mut().reset(next);
    }

    fn say_revision(&mut self) {
        if let Some(cursor) = &self.cursor
            && let Batch::Idle(revision) = cursor.peek()
        {
            let line = self.shape.bookmark(revision, false);
            self.ready.push_back(line);
        }
    }
}
