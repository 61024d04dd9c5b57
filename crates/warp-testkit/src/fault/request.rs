//! What a request is, read from its method and path.

use std::fmt;

use http::{Method, Request};

/// The broadest distinction between requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Class {
    /// Any of the others.
    Request,
    Read,
    Write,
    Watch,
}

impl Class {
    pub(super) fn of(text: &str) -> Option<Self> {
        Some(match text {
            "request" => Self::Request,
            "read" => Self::Read,
            "write" => Self::Write,
            "watch" => Self::Watch,
            _ => return None,
        })
    }
}

impl fmt::Display for Class {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(match self {
            Self::Request => "request",
            Self::Read => "read",
            Self::Write => "write",
            Self::Watch => "watch",
        })
    }
}

/// One request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Call {
    pub class: Class,
    /// As Kubernetes names it: `get`, `list`, `watch`, `create`, `update`, `patch`, `delete`,
    /// `deletecollection`.
    pub verb: &'static str,
    /// Plural; empty for what is no resource (`/version`, discovery).
    pub resource: String,
    pub sub: String,
    pub namespace: String,
    pub name: String,
}

impl Call {
    pub fn of<B>(request: &Request<B>) -> Self {
        let uri = request.uri();
        let mut parts = uri.path().split('/').filter(|part| !part.is_empty());
        let mut rest: Vec<&str> = match parts.next() {
            Some("api") => parts.skip(1).collect(),
            Some("apis") => parts.skip(2).collect(),
            _ => Vec::new(),
        };
        let mut namespace = "";
        // `/namespaces/x` alone is the object; with more behind it, what is in it.
        if rest.first() == Some(&"namespaces")
            && rest.len() > 2
            && !matches!(rest[2], "status" | "finalize")
        {
            namespace = rest[1];
            rest.drain(..2);
        }
        let at = |place: usize| rest.get(place).copied().unwrap_or_default();
        let (resource, name, sub) = (at(0), at(1), at(2));
        let watches = uri.query().is_some_and(|query| {
            query
                .split('&')
                .any(|pair| matches!(pair, "watch=true" | "watch=1"))
        });
        let verb = match *request.method() {
            Method::GET if watches => "watch",
            Method::GET if name.is_empty() => "list",
            Method::GET => "get",
            Method::POST => "create",
            Method::PUT => "update",
            Method::PATCH => "patch",
            Method::DELETE if name.is_empty() => "deletecollection",
            Method::DELETE => "delete",
            _ => "other",
        };
        let class = match verb {
            "watch" => Class::Watch,
            "get" | "list" | "other" => Class::Read,
            _ => Class::Write,
        };
        Self {
            class,
            verb,
            resource: resource.to_owned(),
            sub: sub.to_owned(),
            namespace: namespace.to_owned(),
            name: name.to_owned(),
        }
    }
}

impl fmt::Display for Call {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{} {}", self.verb, self.resource)?;
        if !self.sub.is_empty() {
            write!(out, "/{}", self.sub)?;
        }
        if !self.namespace.is_empty() || !self.name.is_empty() {
            write!(out, " {}/{}", self.namespace, self.name)?;
        }
        Ok(())
    }
}
