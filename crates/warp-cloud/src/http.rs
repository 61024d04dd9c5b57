//! Asks one vendor over HTTP: paced, bounded, with a deadline, repeated where the vendor's rules allow it.
//!
//! It knows no vendor: which answer means what is the vendor's module's. What it says never carries a secret.

mod pace;
mod shared;
mod transport;

use std::fmt::{self, Debug};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::header::{CONTENT_TYPE, HeaderName, RETRY_AFTER, USER_AGENT};
use http::{HeaderMap, Method, Request, StatusCode, Uri};
use serde::de::DeserializeOwned;
use serde_json::Value;
use tokio::time::{Instant, timeout_at};

pub(crate) use pace::Pace;
pub(crate) use shared::Shared;
pub use transport::{Network, Transport};

use crate::account::Secret;
use crate::failure::{Class, Failure};

/// How often one thing is asked before its answer stands.
const TRIES: u32 = 3;
/// The first pause between two tries; the next is twice as long.
const PAUSE: Duration = Duration::from_secs(1);
/// The longest a vendor's wish to wait is honoured.
const RETRY_AFTER_LIMIT: Duration = Duration::from_mins(10);
/// Letters of a vendor's words that are kept.
const WORDS: usize = 300;

/// When one thing may be asked again by itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Again {
    /// It may be done twice without harm: after any trouble.
    Always,
    /// It buys: only where the vendor said that it did not look at it.
    WhenUnheard,
}

/// One thing to ask.
pub(crate) struct Ask {
    method: Method,
    /// The vendor's own address; an override replaces its host.
    url: String,
    headers: Vec<(HeaderName, String)>,
    body: Bytes,
    /// The rate limits it counts for.
    lanes: &'static [usize],
    again: Again,
}

impl Debug for Ask {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { method, again, .. } = self;
        let path = self.url.split('?').next();
        f.debug_struct("Ask")
            .field("method", method)
            .field("path", &path)
            .field("again", again)
            .finish_non_exhaustive()
    }
}

impl Ask {
    pub(crate) fn new(method: Method, url: impl Into<String>) -> Self {
        Self {
            method,
            url: url.into(),
            headers: Vec::new(),
            body: Bytes::new(),
            lanes: &[0],
            again: Again::Always,
        }
    }

    pub(crate) fn get(url: impl Into<String>) -> Self {
        Self::new(Method::GET, url)
    }

    pub(crate) fn header(mut self, name: HeaderName, value: impl Into<String>) -> Self {
        self.headers.push((name, value.into()));
        self
    }

    pub(crate) fn json(self, body: &Value) -> Self {
        self.body("application/json", body.to_string())
    }

    pub(crate) fn body(self, kind: &str, body: impl Into<Bytes>) -> Self {
        let mut ask = self.header(CONTENT_TYPE, kind);
        ask.body = body.into();
        ask
    }

    pub(crate) fn lanes(mut self, lanes: &'static [usize]) -> Self {
        self.lanes = lanes;
        self
    }

    pub(crate) fn again(mut self, again: Again) -> Self {
        self.again = again;
        self
    }
}

/// An answer as it came.
#[derive(Clone)]
pub(crate) struct Reply {
    pub(crate) status: StatusCode,
    pub(crate) headers: HeaderMap,
    pub(crate) body: Bytes,
}

impl Reply {
    /// The body as JSON of a known form.
    pub(crate) fn read<T: DeserializeOwned>(&self) -> Result<T, Failure> {
        serde_json::from_slice(&self.body).map_err(|error| nonsense(&error))
    }

    /// The body as JSON of any form; nothing where it is none.
    pub(crate) fn value(&self) -> Value {
        serde_json::from_slice(&self.body).unwrap_or_default()
    }
}

/// An answer that cannot be read. What was asked may have been done all the same.
pub(crate) fn nonsense(why: &dyn fmt::Display) -> Failure {
    let why: String = why.to_string().chars().take(WORDS).collect();
    Failure::new(
        Class::Transient,
        format!("the answer cannot be read: {why}"),
    )
}

/// What an answer that is no success means, and the vendor's words.
pub(crate) type Judge = fn(&Reply) -> (Class, String);

/// Whether a failure says that the thing asked for is not there.
fn is_gone(failure: &Failure) -> bool {
    ["404 ", "410 "]
        .iter()
        .any(|code| failure.words.starts_with(code))
}

/// Asks one vendor in the name of one account.
pub(crate) struct Client {
    transport: Arc<dyn Transport>,
    endpoint: Option<Uri>,
    pace: Pace,
    deadline: Duration,
    /// Never told, whatever the vendor answers.
    secrets: Vec<Secret>,
}

impl Debug for Client {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Client")
            .field("endpoint", &self.endpoint)
            .finish_non_exhaustive()
    }
}

impl Client {
    pub(crate) fn new(
        transport: Arc<dyn Transport>,
        endpoint: Option<Uri>,
        secrets: Vec<Secret>,
        gaps: &[Duration],
        deadline: Duration,
    ) -> Self {
        Self {
            transport,
            endpoint,
            pace: Pace::new(gaps),
            deadline,
            secrets,
        }
    }

    /// Asks, waits its turn, and repeats what may be repeated. An answer of any status is an answer.
    pub(crate) async fn ask(&self, ask: &Ask) -> Result<Reply, Failure> {
        let deadline = Instant::now() + self.deadline;
        let mut tries = 0;
        loop {
            tries += 1;
            let outcome = timeout_at(deadline, self.once(ask)).await;
            let outcome = outcome.unwrap_or_else(|_| {
                let seconds = self.deadline.as_secs();
                Err(format!("no answer within {seconds} seconds"))
            });
            let last = tries >= TRIES;
            let pause = match &outcome {
                Err(_) if ask.again == Again::WhenUnheard || last => None,
                Err(_) => Some(PAUSE * 2_u32.pow(tries - 1)),
                Ok(reply) => pause(ask, reply, tries).filter(|_| !last),
            };
            let pause = pause.filter(|pause| Instant::now() + *pause < deadline);
            let Some(pause) = pause else {
                let failed = |words: String| Failure::new(Class::Transient, self.scrubbed(&words));
                return outcome.map_err(failed);
            };
            if outcome.is_ok_and(|reply| reply.status == StatusCode::TOO_MANY_REQUESTS) {
                self.pace.hold(Instant::now() + pause);
            }
            tokio::time::sleep(pause).await;
        }
    }

    /// The host a request to `url` is sent to, as the header names it.
    pub(crate) fn host(&self, url: &str) -> String {
        let address = address(url, self.endpoint.as_ref()).unwrap_or_default();
        address
            .authority()
            .map(ToString::to_string)
            .unwrap_or_default()
    }

    /// Asks for something that must be there.
    pub(crate) async fn told(&self, ask: &Ask, judge: Judge) -> Result<Reply, Failure> {
        let reply = self.ask(ask).await?;
        if reply.status.is_success() {
            return Ok(reply);
        }
        let (class, words) = judge(&reply);
        let words = format!("{} {words}", reply.status.as_u16());
        Err(self.failure(class, &words))
    }

    /// Asks for something that may be gone.
    pub(crate) async fn found(&self, ask: &Ask, judge: Judge) -> Result<Option<Reply>, Failure> {
        match self.told(ask, judge).await {
            Err(failure) if is_gone(&failure) => Ok(None),
            reply => reply.map(Some),
        }
    }

    async fn once(&self, ask: &Ask) -> Result<Reply, String> {
        self.pace.turn(ask.lanes).await;
        let request = self.request(ask)?;
        let response = self.transport.send(request).await?;
        let (parts, body) = response.into_parts();
        if parts.status.is_redirection() {
            return Err("it redirects, which an API with a key must not".to_owned());
        }
        if let Some(wait) = used_up(&parts.headers) {
            self.pace.hold(Instant::now() + wait);
        }
        Ok(Reply {
            status: parts.status,
            headers: parts.headers,
            body,
        })
    }

    fn request(&self, ask: &Ask) -> Result<Request<Bytes>, String> {
        let address = address(&ask.url, self.endpoint.as_ref())?;
        let mut request = Request::builder()
            .method(ask.method.clone())
            .uri(address)
            .header(USER_AGENT, concat!("warp/", env!("CARGO_PKG_VERSION")));
        for (name, value) in &ask.headers {
            request = request.header(name, value);
        }
        // A header that cannot be sent is most likely a key with a line break: it is not repeated here.
        let sent = request.body(ask.body.clone());
        sent.map_err(|_| "the request cannot be written: is there a line break in the key?".into())
    }

    /// A failure with the vendor's words, without anything secret and of bounded length.
    pub(crate) fn failure(&self, class: Class, words: &str) -> Failure {
        Failure::new(class, self.scrubbed(words))
    }

    fn scrubbed(&self, words: &str) -> String {
        let mut words = words.split_whitespace().collect::<Vec<_>>().join(" ");
        for secret in &self.secrets {
            words = secret.out_of(&words);
        }
        words.chars().take(WORDS).collect()
    }
}

/// How long to wait before the same thing is asked again because of its answer; none when the answer stands.
fn pause(ask: &Ask, reply: &Reply, tries: u32) -> Option<Duration> {
    let wished = retry_after(&reply.headers);
    let usual = PAUSE * 2_u32.pow(tries - 1);
    if reply.status == StatusCode::TOO_MANY_REQUESTS {
        return Some(wished.unwrap_or(usual * 2));
    }
    let trouble = reply.status.is_server_error() && ask.again == Again::Always;
    trouble.then(|| wished.unwrap_or(usual))
}

/// Seconds to wait as the header gives them.
fn retry_after(headers: &HeaderMap) -> Option<Duration> {
    let text = headers.get(RETRY_AFTER)?.to_str().ok()?;
    let seconds = text.trim().parse().ok()?;
    Some(Duration::from_secs(seconds).min(RETRY_AFTER_LIMIT))
}

/// How long nothing is left in a window, by the header `RateLimit: "minute";r=0;t=12, "hour";r=…;t=…`.
fn used_up(headers: &HeaderMap) -> Option<Duration> {
    let text = headers.get("ratelimit")?.to_str().ok()?;
    let windows = text.split(',').filter_map(|window| {
        let field = |name: &str| -> Option<u64> {
            let mut fields = window.split(';');
            fields.find_map(|field| field.trim().strip_prefix(name)?.parse().ok())
        };
        (field("r=")? == 0).then(|| field("t="))?
    });
    let seconds = windows.max()?;
    Some(Duration::from_secs(seconds).min(RETRY_AFTER_LIMIT))
}

/// The vendor's address, or the same path at the override.
fn address(url: &str, endpoint: Option<&Uri>) -> Result<Uri, String> {
    let uri: Uri = url.parse().map_err(|_| "this is no address".to_owned())?;
    let Some(endpoint) = endpoint else {
        return Ok(uri);
    };
    let mut parts = uri.into_parts();
    parts.scheme = endpoint.scheme().cloned();
    parts.authority = endpoint.authority().cloned();
    Uri::from_parts(parts).map_err(|_| "this is no address".to_owned())
}

/// Text as a part of a path or a query.
pub(crate) fn escaped(text: &str) -> String {
    use std::fmt::Write as _;
    let mut out = String::with_capacity(text.len());
    for byte in text.bytes() {
        if byte.is_ascii_alphanumeric() || b"-._~".contains(&byte) {
            out.push(char::from(byte));
        } else {
            // Writing to a string does not fail.
            let _ = write!(out, "%{byte:02X}");
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_override_replaces_the_host_and_keeps_the_path() {
        let over: Uri = "http://127.0.0.1:99".parse().unwrap();
        let found = address("https://cloud.example/v1/x?a=b", Some(&over)).unwrap();
        assert_eq!(found, "http://127.0.0.1:99/v1/x?a=b");
    }

    #[test]
    fn a_window_with_nothing_left_is_waited_for() {
        let mut headers = HeaderMap::new();
        assert_eq!(used_up(&headers), None);
        let text = "\"minute\";r=0;t=12, \"hour\";r=2900;t=3000";
        headers.insert("ratelimit", text.parse().unwrap());
        assert_eq!(used_up(&headers), Some(Duration::from_secs(12)));
    }

    #[test]
    fn wishes_to_wait_are_honoured_within_reason() {
        let mut headers = HeaderMap::new();
        headers.insert(RETRY_AFTER, "99999".parse().unwrap());
        assert_eq!(retry_after(&headers), Some(RETRY_AFTER_LIMIT));
    }
}
