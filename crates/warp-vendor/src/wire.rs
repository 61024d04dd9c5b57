//! Requests and answers in a form that is easy to judge, and what is kept of them.

use std::collections::BTreeMap;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use http::{HeaderMap, Request, Response};
use serde_json::Value;

/// One request as it came.
#[derive(Clone, Debug)]
pub(crate) struct Asked {
    pub(crate) method: String,
    /// As it was sent.
    pub(crate) path: String,
    /// As it was sent, without the question mark.
    pub(crate) raw_query: String,
    pub(crate) headers: HeaderMap,
    pub(crate) body: Bytes,
}

impl Asked {
    pub(crate) fn of(request: &Request<Bytes>) -> Self {
        Self {
            method: request.method().to_string(),
            path: request.uri().path().to_owned(),
            raw_query: request.uri().query().unwrap_or_default().to_owned(),
            headers: headers(request),
            body: request.body().clone(),
        }
    }

    pub(crate) fn header(&self, name: &str) -> &str {
        let value = self.headers.get(name);
        value.and_then(|text| text.to_str().ok()).unwrap_or("")
    }

    /// The parts of the path, unescaped.
    pub(crate) fn parts(&self) -> Vec<String> {
        let parts = self.path.split('/').filter(|part| !part.is_empty());
        parts.map(unescaped).collect()
    }

    pub(crate) fn query(&self) -> BTreeMap<String, String> {
        pairs(&self.raw_query)
    }

    /// The body as a form.
    pub(crate) fn form(&self) -> BTreeMap<String, String> {
        pairs(&String::from_utf8_lossy(&self.body))
    }

    /// The body as JSON.
    pub(crate) fn json(&self) -> Result<Value, String> {
        if !self.header("content-type").starts_with("application/json") {
            return Err("the body is not declared as application/json".to_owned());
        }
        serde_json::from_slice(&self.body).map_err(|error| format!("the body is no JSON: {error}"))
    }
}

/// The headers, with the host as a connection would carry it.
fn headers(request: &Request<Bytes>) -> HeaderMap {
    let mut headers = request.headers().clone();
    if let Some(host) = request.uri().authority()
        && let Ok(host) = host.as_str().parse()
    {
        headers.entry("host").or_insert(host);
    }
    headers
}

/// `a=b&c=d`, unescaped.
fn pairs(text: &str) -> BTreeMap<String, String> {
    let pairs = text.split('&').filter(|pair| !pair.is_empty());
    let pairs = pairs.map(|pair| {
        let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
        (unescaped(name), unescaped(value))
    });
    pairs.collect()
}

/// The text that is base64 in `value`.
pub(crate) fn decoded(value: &Value) -> String {
    let bytes = STANDARD.decode(value.as_str().unwrap_or_default());
    String::from_utf8_lossy(&bytes.unwrap_or_default()).into_owned()
}

pub(crate) fn unescaped(text: &str) -> String {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((first, tail)) = rest.split_first() {
        let code = || std::str::from_utf8(tail.get(..2)?).ok();
        match (
            first,
            code().and_then(|code| u8::from_str_radix(code, 16).ok()),
        ) {
            (b'%', Some(byte)) => {
                bytes.push(byte);
                rest = &tail[2..];
            }
            (b'+', _) => {
                bytes.push(b' ');
                rest = tail;
            }
            _ => {
                bytes.push(*first);
                rest = tail;
            }
        }
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

/// One answer.
#[derive(Clone, Debug)]
pub(crate) struct Answer {
    pub(crate) status: u16,
    pub(crate) headers: Vec<(&'static str, String)>,
    pub(crate) body: Vec<u8>,
}

impl Answer {
    pub(crate) fn json(status: u16, body: &Value) -> Self {
        let kind = vec![("content-type", "application/json".to_owned())];
        Self::raw(status, kind, body.to_string().into_bytes())
    }

    pub(crate) fn empty(status: u16) -> Self {
        Self::raw(status, Vec::new(), Vec::new())
    }

    pub(crate) fn raw(status: u16, headers: Vec<(&'static str, String)>, body: Vec<u8>) -> Self {
        Self {
            status,
            headers,
            body,
        }
    }

    pub(crate) fn with(mut self, name: &'static str, value: impl Into<String>) -> Self {
        self.headers.push((name, value.into()));
        self
    }

    pub(crate) fn into_response(self) -> Response<Bytes> {
        let mut response = Response::builder().status(self.status);
        for (name, value) in self.headers {
            response = response.header(name, value);
        }
        response.body(self.body.into()).unwrap_or_default()
    }
}

/// A request that was judged and its answer, for whoever knows the vendor's full description.
#[derive(Clone, Debug)]
pub struct Recorded {
    pub method: String,
    pub path: String,
    pub query: BTreeMap<String, String>,
    /// The body as JSON; null where there is none.
    pub body: Value,
    pub status: u16,
    /// The answer as JSON; null where there is none.
    pub answer: Value,
}

impl Recorded {
    pub(crate) fn of(asked: &Asked, answer: &Answer) -> Self {
        Self {
            method: asked.method.clone(),
            path: asked.path.clone(),
            query: asked.query(),
            body: serde_json::from_slice(&asked.body).unwrap_or_default(),
            status: answer.status,
            answer: serde_json::from_slice(&answer.body).unwrap_or_default(),
        }
    }
}
