//! Raw requests through a `kube::Client`, so that the same request can go to any server.

use http::{HeaderMap, Request};
use http_body_util::BodyExt;
use kube::Client;
use kube::client::Body;
use serde_json::Value;

/// What came back.
#[derive(Clone, Debug)]
pub(crate) struct Reply {
    pub(crate) code: u16,
    pub(crate) headers: HeaderMap,
    pub(crate) body: Vec<u8>,
}

impl Reply {
    /// The body as JSON; a stream of lines becomes a list, anything else a string.
    pub(crate) fn json(&self) -> Value {
        if let Ok(value) = serde_json::from_slice(&self.body) {
            return value;
        }
        let lines: Result<Vec<Value>, _> = self
            .body
            .split(|byte| *byte == b'\n')
            .filter(|line| !line.is_empty())
            .map(serde_json::from_slice)
            .collect();
        match lines {
            Ok(lines) if !lines.is_empty() => Value::Array(lines),
            _ => Value::String(String::from_utf8_lossy(&self.body).into_owned()),
        }
    }

    pub(crate) fn warnings(&self) -> Vec<String> {
        self.headers
            .get_all("warning")
            .iter()
            .filter_map(|value| value.to_str().ok())
            .map(str::to_owned)
            .collect()
    }
}

/// One request.
#[derive(Clone, Debug)]
pub(crate) struct Sent<'a> {
    pub(crate) method: &'a str,
    pub(crate) path: &'a str,
    pub(crate) content_type: &'a str,
    pub(crate) accept: &'a str,
    pub(crate) body: Vec<u8>,
}

/// Headers that say whom to act as.
pub(crate) type Mask = Vec<(String, String)>;

pub(crate) async fn send(client: &Client, sent: &Sent<'_>) -> Reply {
    send_as(client, sent, &Mask::new()).await
}

pub(crate) async fn send_as(client: &Client, sent: &Sent<'_>, mask: &Mask) -> Reply {
    let mut request = Request::builder()
        .method(sent.method)
        .uri(sent.path)
        .header("user-agent", "differential/1.0")
        .header("accept", sent.accept);
    if !sent.body.is_empty() {
        request = request.header("content-type", sent.content_type);
    }
    for (name, value) in mask {
        request = request.header(name, value);
    }
    let request = request
        .body(Body::from(sent.body.clone()))
        .expect("a valid request");
    let response = client.send(request).await.expect("an answer");
    let (parts, body) = response.into_parts();
    let body = body
        .collect()
        .await
        .expect("a whole body")
        .to_bytes()
        .to_vec();
    Reply {
        code: parts.status.as_u16(),
        headers: parts.headers,
        body,
    }
}

/// A JSON request with a JSON answer.
pub(crate) async fn json(client: &Client, method: &str, path: &str, body: &Value) -> (u16, Value) {
    json_as(client, method, path, body, &Mask::new()).await
}

/// A JSON request as somebody else.
pub(crate) async fn json_as(
    client: &Client,
    method: &str,
    path: &str,
    body: &Value,
    mask: &Mask,
) -> (u16, Value) {
    let content_type = match method {
        "PATCH" => "application/merge-patch+json",
        _ => "application/json",
    };
    let body = if body.is_null() {
        Vec::new()
    } else {
        body.to_string().into_bytes()
    };
    let sent = Sent {
        method,
        path,
        content_type,
        accept: "application/json",
        body,
    };
    let reply = send_as(client, &sent, mask).await;
    (reply.code, reply.json())
}
