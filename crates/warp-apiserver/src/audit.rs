//! The audit log: who asked for what over the network, in the lines kube-apiserver writes at level `Metadata`.
//!
//! Owns the form and the file. Bodies and headers but the user agent are never recorded, so no secret can be.

use std::fs::File;
use std::io::{self, Write};
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};

use http::{Method, Request, header};
use jiff::Timestamp;
use parking_lot::Mutex;
use serde_json::{Value, json};

use crate::auth::User;
use crate::http::{Route, Target};

/// Why the audit log could not be opened.
#[derive(Debug, thiserror::Error)]
#[error("failed to open audit log {path}: {source}")]
pub struct AuditError {
    path: PathBuf,
    source: io::Error,
}

/// An open log. A line that cannot be written is told once and does not stop the server.
#[derive(Debug)]
pub(crate) struct AuditLog {
    file: Mutex<File>,
    lines: AtomicU64,
}

impl AuditLog {
    pub(crate) fn open(path: PathBuf) -> Result<Self, AuditError> {
        match File::options().create(true).append(true).open(&path) {
            Ok(file) => Ok(Self {
                file: Mutex::new(file),
                lines: AtomicU64::new(0),
            }),
            Err(source) => Err(AuditError { path, source }),
        }
    }

    pub(crate) fn write(&self, record: &Record, code: u16) {
        let number = self.lines.fetch_add(1, Ordering::Relaxed);
        let mut line = record.line(number, code).to_string();
        line.push('\n');
        if let Err(error) = self.file.lock().write_all(line.as_bytes()) {
            tracing::error!(%error, "audit record not written");
        }
    }
}

/// One request before it is answered.
#[derive(Debug)]
pub(crate) struct Record {
    user: User,
    /// Whom the user asks to act as.
    acting_as: Option<String>,
    user_agent: String,
    uri: String,
    verb: &'static str,
    target: Option<Target>,
    at: Timestamp,
}

impl Record {
    pub(crate) fn new<B>(request: &Request<B>, route: &Route, user: User, at: Timestamp) -> Self {
        let target = match route {
            Route::Resource(target) => Some(target.clone()),
            _ => None,
        };
        let told = |name: &str| {
            let value = request.headers().get(name)?;
            value.to_str().ok().map(str::to_owned)
        };
        Self {
            user,
            acting_as: told("impersonate-user"),
            user_agent: told(header::USER_AGENT.as_str()).unwrap_or_default(),
            uri: request.uri().to_string(),
            verb: verb(request, target.as_ref()),
            target,
            at,
        }
    }

    fn line(&self, number: u64, code: u16) -> Value {
        let object = self.target.as_ref().map(|target| {
            json!({
                "apiGroup": target.group,
                "apiVersion": target.version,
                "resource": target.resource,
                "subresource": target.subresource.as_deref().unwrap_or_default(),
                "namespace": target.namespace.as_deref().unwrap_or_default(),
                "name": target.name.as_deref().unwrap_or_default(),
            })
        });
        let mut line = json!({
            "kind": "Event",
            "apiVersion": "audit.k8s.io/v1",
            "level": "Metadata",
            "auditID": format!("{}-{number}", self.at.as_nanosecond()),
            "stage": if self.verb == "watch" { "ResponseStarted" } else { "ResponseComplete" },
            "requestURI": self.uri,
            "verb": self.verb,
            "user": {"username": self.user.name, "groups": self.user.groups},
            "userAgent": self.user_agent,
            "responseStatus": {"code": code},
            "requestReceivedTimestamp": self.at.to_string(),
        });
        if let Some(object) = object {
            line["objectRef"] = object;
        }
        if let Some(name) = &self.acting_as {
            line["impersonatedUser"] = json!({"username": name});
        }
        line
    }
}

/// The verb rules are written with; for paths that are no resource, the method.
fn verb<B>(request: &Request<B>, target: Option<&Target>) -> &'static str {
    let Some(target) = target else {
        return match *request.method() {
            Method::GET => "get",
            Method::HEAD => "head",
            Method::POST => "post",
            Method::PUT => "put",
            Method::PATCH => "patch",
            Method::DELETE => "delete",
            _ => "options",
        };
    };
    let query = request.uri().query().unwrap_or_default();
    let watching = || {
        target.watch
            || query
                .split('&')
                .any(|pair| matches!(pair, "watch=true" | "watch=1" | "watch"))
    };
    match (request.method(), &target.name) {
        (&Method::GET | &Method::HEAD, None) if watching() => "watch",
        (&Method::GET | &Method::HEAD, None) => "list",
        (&Method::GET | &Method::HEAD, Some(_)) => "get",
        (&Method::PUT, _) => "update",
        (&Method::PATCH, _) => "patch",
        (&Method::DELETE, None) => "deletecollection",
        (&Method::DELETE, Some(_)) => "delete",
        _ => "create",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(method: &str, uri: &str) -> Value {
        let request = Request::builder()
            .method(method)
            .uri(uri)
            .header(header::USER_AGENT, "kubectl")
            .header(header::AUTHORIZATION, "Bearer secret")
            .body(())
            .expect("a request");
        let route = Route::parse(request.uri().path());
        Record::new(&request, &route, User::admin(), Timestamp::UNIX_EPOCH).line(7, 201)
    }

    #[test]
    fn a_request_is_recorded_in_the_words_of_rules_and_without_its_secrets() {
        let base = "/apis/batch/v1/namespaces/team/jobs";
        for (method, uri, verb, subresource) in [
            ("GET", base.to_owned(), "list", ""),
            ("GET", format!("{base}?watch=true"), "watch", ""),
            ("GET", format!("{base}/j"), "get", ""),
            ("POST", base.to_owned(), "create", ""),
            ("PATCH", format!("{base}/j/status"), "patch", "status"),
            ("DELETE", base.to_owned(), "deletecollection", ""),
        ] {
            let line = line(method, &uri);
            assert_eq!(line["verb"], verb, "{method} {uri}");
            assert_eq!(line["objectRef"]["resource"], "jobs");
            assert_eq!(line["objectRef"]["apiGroup"], "batch");
            assert_eq!(line["objectRef"]["namespace"], "team");
            assert_eq!(line["objectRef"]["subresource"], subresource);
            assert_eq!(line["responseStatus"]["code"], 201);
            assert!(!line.to_string().contains("secret"));
        }
        let plain = line("GET", "/version");
        assert_eq!(plain["verb"], "get");
        assert_eq!(plain["objectRef"], Value::Null);
    }
}
