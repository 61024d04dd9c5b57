//! The layer around a client: it numbers every request, records it, and does to it what the plan says.
//!
//! A crash is final for everything made by [`Faults::service`] before it: such a client never sends and
//! never hears anything again, which is all an API server ever sees of a process that died. The test
//! then stops the tasks, calls [`Faults::revive`] and starts them afresh on a new client.

use std::collections::BTreeMap;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use axum::body::Body as Answer;
use bytes::Bytes;
use http::{Request, Response, StatusCode, Uri, header};
use http_body_util::BodyExt;
use kube::client::Body;
use parking_lot::Mutex;
use serde_json::{Value, json};
use tokio::sync::watch;
use tokio::time::Instant;
use tower::{BoxError, Service, ServiceExt};

use super::plan::{Extent, Fault, Plan};
use super::request::{Call, Class};
use super::watch::{self as stream, Trouble};

/// How long a client waits before it gives up on a connection that says nothing.
const CONNECTION_TIMEOUT: Duration = Duration::from_mins(1);
/// No run needs as many requests; from here on none is answered, so that a storm within one moment of
/// virtual time ends and can be told of.
const FLOOD: usize = 10_000;

/// One request as the layer saw it.
#[derive(Clone, Debug)]
pub struct Record {
    /// Counted from 1 over all clients of these faults.
    pub number: u64,
    /// Counted from 1 among the writes; 0 for a read.
    pub write: u64,
    /// Which life of the process sent it, from 0.
    pub life: u64,
    pub call: Call,
    /// What was done to it.
    pub fault: Option<Fault>,
    /// What was sent, for writes.
    pub body: Bytes,
    /// The server's own answer, for writes; none when there was none.
    pub status: Option<u16>,
}

/// How often each kind of fault met a request.
pub type Tally = BTreeMap<String, u64>;

/// The faults of one run.
#[derive(Clone, Debug)]
pub struct Faults(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    plan: Plan,
    state: Mutex<State>,
    crashes: watch::Sender<u64>,
}

/// How far one rule is.
#[derive(Clone, Debug, Default)]
struct Progress {
    /// Requests its selector matched.
    matched: u64,
    /// When it first applied.
    since: Option<Instant>,
    /// Requests that met its fault.
    met: u64,
}

#[derive(Debug, Default)]
struct State {
    writes: u64,
    /// Lives that have begun since the first.
    life: u64,
    dead: bool,
    /// Requests are neither counted nor troubled.
    disarmed: bool,
    rules: Vec<Progress>,
    records: Vec<Record>,
    tally: Tally,
    /// Versions after each write that was carried out, oldest first.
    past: Vec<u64>,
    paused_until: Option<Instant>,
}

impl Faults {
    pub fn new(plan: Plan) -> Self {
        let rules = vec![Progress::default(); plan.rules.len()];
        Self(Arc::new(Shared {
            plan,
            state: Mutex::new(State {
                rules,
                ..State::default()
            }),
            crashes: watch::Sender::new(0),
        }))
    }

    /// No faults, only records.
    pub fn none() -> Self {
        Self::new(Plan::default())
    }

    pub fn plan(&self) -> &Plan {
        &self.0.plan
    }

    /// `inner` behind these faults, for the present life of the process.
    pub fn service<S>(&self, inner: S) -> FaultService<S> {
        FaultService {
            inner,
            life: self.0.state.lock().life,
            faults: self.clone(),
        }
    }

    /// Waits for the next crash that nobody has answered with [`Self::revive`].
    pub async fn crashed(&self) {
        let mut crashes = self.0.crashes.subscribe();
        while !self.0.state.lock().dead {
            // The sender lives in `self`.
            let _ = crashes.changed().await;
        }
    }

    /// Ends the present life as a crash does.
    pub fn kill(&self) {
        self.0.state.lock().dead = true;
        self.0.crashes.send_modify(|count| *count += 1);
    }

    /// Begins the next life.
    pub fn revive(&self) {
        let mut state = self.0.state.lock();
        state.dead = false;
        state.paused_until = None;
        state.life += 1;
    }

    /// Lets everything through uncounted until [`Self::arm`]: for what comes before a scenario.
    pub fn disarm(&self) {
        self.0.state.lock().disarmed = true;
    }

    /// Counts from here on.
    pub fn arm(&self) {
        self.0.state.lock().disarmed = false;
    }

    /// Everything asked so far.
    pub fn records(&self) -> Vec<Record> {
        self.0.state.lock().records.clone()
    }

    /// The last requests of a run that made so many that the others were held back.
    pub fn flood(&self) -> Option<Vec<Record>> {
        let state = self.0.state.lock();
        let last = state.records.len().checked_sub(FLOOD)?;
        Some(state.records[last + FLOOD - 16..].to_vec())
    }

    /// How many requests each rule of the plan met, in its order.
    pub fn met(&self) -> Vec<u64> {
        let state = self.0.state.lock();
        state.rules.iter().map(|rule| rule.met).collect()
    }

    pub fn tally(&self) -> Tally {
        self.0.state.lock().tally.clone()
    }

    fn alive(&self, life: u64) -> bool {
        let state = self.0.state.lock();
        state.life == life && !state.dead
    }

    /// Waits while the process stands still; for ever when it died or has asked for too much.
    pub(super) async fn awake(&self, life: u64) {
        loop {
            if !self.alive(life) || self.0.state.lock().records.len() >= FLOOD {
                std::future::pending::<()>().await;
            }
            let until = self.0.state.lock().paused_until;
            match until {
                Some(until) if until > Instant::now() => tokio::time::sleep_until(until).await,
                _ => return,
            }
        }
    }

    /// Numbers a request and says what happens to it. The number is its place among the records.
    fn decide(&self, life: u64, call: Call, body: Bytes) -> (usize, Option<Fault>) {
        let mut state = self.0.state.lock();
        if state.disarmed {
            return (usize::MAX, None);
        }
        let state = &mut *state;
        let now = Instant::now();
        let mut fault = None;
        for (place, (rule, progress)) in self.0.plan.rules.iter().zip(&mut state.rules).enumerate()
        {
            if !rule.selector.matches(&call) {
                continue;
            }
            progress.matched += 1;
            if progress.matched < rule.nth {
                continue;
            }
            let since = *progress.since.get_or_insert(now);
            let applies = match rule.extent {
                Extent::Count(count) => progress.matched < rule.nth + count,
                Extent::All => true,
                Extent::For(time) => now < since + time,
            };
            if applies && fault.is_none() {
                fault = Some((place, rule.fault.clone()));
            }
        }
        // There is no older state yet to answer from.
        if matches!(fault, Some((_, Fault::Stale(_)))) && state.past.is_empty() {
            fault = None;
        }
        let fault = fault.map(|(place, fault)| {
            state.rules[place].met += 1;
            fault
        });
        if let Some(fault) = &fault {
            *state.tally.entry(fault.kind()).or_default() += 1;
        }
        let mut write = 0;
        if call.class == Class::Write {
            state.writes += 1;
            write = state.writes;
        }
        let place = state.records.len();
        state.records.push(Record {
            number: place as u64 + 1,
            write,
            life,
            call,
            fault: fault.clone(),
            body,
            status: None,
        });
        (place, fault)
    }

    fn answered(&self, place: usize, status: StatusCode, version: Option<u64>) {
        let mut state = self.0.state.lock();
        if let Some(record) = state.records.get_mut(place) {
            record.status = Some(status.as_u16());
        }
        state.past.extend(version);
    }

    fn pause(&self, time: Duration) {
        self.0.state.lock().paused_until = Some(Instant::now() + time);
    }

    /// The version before the last `back` writes, or the oldest known.
    fn older(&self, back: u64) -> u64 {
        let state = self.0.state.lock();
        let back = usize::try_from(back).unwrap_or(usize::MAX);
        let place = state.past.len().saturating_sub(back.saturating_add(1));
        state.past.get(place).copied().unwrap_or_default()
    }
}

/// A service behind faults.
#[derive(Clone, Debug)]
pub struct FaultService<S> {
    inner: S,
    life: u64,
    faults: Faults,
}

impl<S, B> Service<Request<Body>> for FaultService<S>
where
    S: Service<Request<Body>, Response = Response<B>> + Clone + Send + 'static,
    S::Future: Send,
    S::Error: Into<BoxError>,
    B: http_body::Body<Data = Bytes> + Send + 'static,
    B::Error: Into<BoxError>,
{
    type Response = Response<Answer>;
    type Error = BoxError;
    type Future = Pin<Box<dyn Future<Output = Result<Response<Answer>, BoxError>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        // The inner service is asked by each call itself.
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<Body>) -> Self::Future {
        let trip = Trip {
            inner: self.inner.clone(),
            life: self.life,
            faults: self.faults.clone(),
        };
        Box::pin(async move {
            let (life, faults) = (trip.life, trip.faults.clone());
            faults.awake(life).await;
            let answer = trip.make(request).await;
            faults.awake(life).await;
            answer
        })
    }
}

/// One request on its way.
struct Trip<S> {
    inner: S,
    life: u64,
    faults: Faults,
}

impl<S, B> Trip<S>
where
    S: Service<Request<Body>, Response = Response<B>> + Send + 'static,
    S::Future: Send,
    S::Error: Into<BoxError>,
    B: http_body::Body<Data = Bytes> + Send + 'static,
    B::Error: Into<BoxError>,
{
    async fn make(mut self, request: Request<Body>) -> Result<Response<Answer>, BoxError> {
        let call = Call::of(&request);
        let (parts, body) = request.into_parts();
        let (body, request) = if call.class == Class::Write {
            let bytes = body.collect_bytes().await.map_err(BoxError::from)?;
            (bytes.clone(), Request::from_parts(parts, Body::from(bytes)))
        } else {
            (Bytes::new(), Request::from_parts(parts, body))
        };
        let (place, fault) = self.faults.decide(self.life, call.clone(), body);
        let Some(fault) = fault else {
            return self.send(place, &call, request).await;
        };
        match fault {
            Fault::CrashBefore => {
                self.faults.kill();
                std::future::pending().await
            }
            Fault::CrashAfter => {
                let _ = self.send(place, &call, request).await;
                self.faults.kill();
                std::future::pending().await
            }
            Fault::Status(code) => Ok(refusal(code, None)),
            Fault::RetryAfter(seconds) => Ok(refusal(429, Some(seconds))),
            Fault::Applied(code) => {
                self.send(place, &call, request).await?;
                Ok(refusal(code, None))
            }
            Fault::Reset(applied) => {
                if applied {
                    self.send(place, &call, request).await?;
                }
                Err("connection reset by peer (injected)".into())
            }
            Fault::Timeout(applied) => {
                if applied {
                    self.send(place, &call, request).await?;
                }
                tokio::time::sleep(CONNECTION_TIMEOUT).await;
                Err("connection timed out (injected)".into())
            }
            Fault::Delay(time) => {
                self.late(place, call, request, tokio::time::sleep(time))
                    .await
            }
            Fault::Pause(time) => {
                self.faults.pause(time);
                let (faults, life) = (self.faults.clone(), self.life);
                let woken = async move { faults.awake(life).await };
                self.late(place, call, request, woken).await
            }
            Fault::Stale(back) => self.stale(place, &call, request, back).await,
            Fault::Cut(after) => {
                self.troubled(place, &call, request, Trouble::Cut(after))
                    .await
            }
            Fault::Silence(after) => {
                self.troubled(place, &call, request, Trouble::Silence(after))
                    .await
            }
            Fault::Expire(after) => {
                self.troubled(place, &call, request, Trouble::Expire(after))
                    .await
            }
            Fault::Duplicate => {
                self.troubled(place, &call, request, Trouble::Duplicate)
                    .await
            }
            Fault::Merge => self.troubled(place, &call, request, Trouble::Merge).await,
        }
    }

    /// Sends the request after `wait`, also when whoever asked has given up by then.
    async fn late(
        mut self,
        place: usize,
        call: Call,
        request: Request<Body>,
        wait: impl Future<Output = ()> + Send + 'static,
    ) -> Result<Response<Answer>, BoxError> {
        let sent = tokio::spawn(async move {
            wait.await;
            self.send(place, &call, request).await
        });
        sent.await?
    }

    /// Passes the request on. The answer to a write is read to know the version it made.
    async fn send(
        &mut self,
        place: usize,
        call: &Call,
        request: Request<Body>,
    ) -> Result<Response<Answer>, BoxError> {
        let service = self.inner.ready().await.map_err(Into::into)?;
        let response = service.call(request).await.map_err(Into::into)?;
        if call.class == Class::Watch {
            let (faults, life) = (self.faults.clone(), self.life);
            return Ok(response.map(|body| stream::held(Answer::new(body), faults, life)));
        }
        if call.class != Class::Write || response.status() == StatusCode::SWITCHING_PROTOCOLS {
            return Ok(response.map(Answer::new));
        }
        let (parts, body) = response.into_parts();
        let bytes = body.collect().await.map_err(Into::into)?.to_bytes();
        let version = parts.status.is_success().then(|| version(&bytes)).flatten();
        self.faults.answered(place, parts.status, version);
        Ok(Response::from_parts(parts, Answer::from(bytes)))
    }

    /// A watch whose stream is not what the server sent; anything else as it is.
    async fn troubled(
        &mut self,
        place: usize,
        call: &Call,
        request: Request<Body>,
        trouble: Trouble,
    ) -> Result<Response<Answer>, BoxError> {
        let response = self.send(place, call, request).await?;
        if call.class != Class::Watch || !response.status().is_success() {
            return Ok(response);
        }
        Ok(response.map(|body| stream::troubled(body, trouble)))
    }

    /// Answers a read with an older state, by asking the server for the list at that version.
    async fn stale(
        &mut self,
        place: usize,
        call: &Call,
        request: Request<Body>,
        back: u64,
    ) -> Result<Response<Answer>, BoxError> {
        let version = self.faults.older(back);
        let one = match call.verb {
            "list" => None,
            "get" if call.sub.is_empty() && !call.resource.is_empty() => Some(call.name.as_str()),
            _ => return self.send(place, call, request).await,
        };
        let (mut parts, body) = request.into_parts();
        parts.uri = past(&parts.uri, version, one)?;
        let response = self
            .send(place, call, Request::from_parts(parts, body))
            .await?;
        if one.is_none() || !response.status().is_success() {
            return Ok(response);
        }
        let (mut parts, body) = response.into_parts();
        let list: Value = serde_json::from_slice(&body.collect().await?.to_bytes())?;
        let Some(mut object) = list["items"].get(0).cloned() else {
            return Ok(refusal(404, None));
        };
        object["apiVersion"] = list["apiVersion"].clone();
        let kind = list["kind"].as_str().unwrap_or_default();
        object["kind"] = json!(kind.strip_suffix("List").unwrap_or(kind));
        parts.headers.remove(header::CONTENT_LENGTH);
        Ok(Response::from_parts(
            parts,
            Answer::from(object.to_string()),
        ))
    }
}

/// The list an older version of which answers a read of `uri`.
fn past(uri: &Uri, version: u64, one: Option<&str>) -> Result<Uri, http::Error> {
    let path = match one {
        Some(_) => uri.path().rsplit_once('/').map_or("", |(list, _)| list),
        None => uri.path(),
    };
    let mut query: Vec<String> = uri
        .query()
        .unwrap_or_default()
        .split('&')
        .filter(|pair| !pair.is_empty() && !pair.starts_with("resourceVersion"))
        .map(str::to_owned)
        .collect();
    query.push(format!("resourceVersion={version}"));
    query.push("resourceVersionMatch=Exact".to_owned());
    if let Some(name) = one {
        query.push(format!("fieldSelector=metadata.name%3D{name}"));
    }
    let text = format!("{path}?{}", query.join("&"));
    let mut parts = uri.clone().into_parts();
    parts.path_and_query = Some(text.parse()?);
    Ok(Uri::from_parts(parts)?)
}

fn version(body: &[u8]) -> Option<u64> {
    let object: Value = serde_json::from_slice(body).ok()?;
    object["metadata"]["resourceVersion"].as_str()?.parse().ok()
}

/// What an API server says when it does not do what it was asked to.
fn refusal(code: u16, retry_after: Option<u64>) -> Response<Answer> {
    let (reason, message) = match code {
        401 => ("Unauthorized", "Unauthorized"),
        403 => ("Forbidden", "the right to do this was revoked"),
        404 => ("NotFound", "not found"),
        409 => (
            "Conflict",
            "the object has been modified; please apply your changes to the latest version and try again",
        ),
        410 => ("Expired", "the provided resource version is too old"),
        422 => ("Invalid", "invalid"),
        429 => (
            "TooManyRequests",
            "too many requests, please try again later",
        ),
        500 => (
            "InternalError",
            "an error on the server has prevented the request from succeeding",
        ),
        503 => (
            "ServiceUnavailable",
            "the server is currently unable to handle the request",
        ),
        504 => (
            "Timeout",
            "the server was unable to return a response in the time allotted, but may still be processing the request",
        ),
        _ => ("Unknown", "unknown"),
    };
    let status = json!({
        "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure",
        "message": format!("{message} (injected)"), "reason": reason, "code": code,
    });
    let mut response = Response::new(Answer::from(status.to_string()));
    *response.status_mut() =
        StatusCode::from_u16(code).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    let headers = response.headers_mut();
    headers.insert(
        header::CONTENT_TYPE,
        header::HeaderValue::from_static("application/json"),
    );
    if let Some(seconds) = retry_after {
        headers.insert(header::RETRY_AFTER, header::HeaderValue::from(seconds));
    }
    response
}
