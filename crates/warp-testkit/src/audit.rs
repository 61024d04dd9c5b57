//! The API server's audit log: who asked for what.
//!
//! Owns: reading the log and counting requests per user. Must not decide how many are too many.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use anyhow::{Context, Result};
use serde::Deserialize;
use serde_json::{Value, json};

/// One finished request (or a watch that has begun).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Request {
    pub id: String,
    pub user: String,
    pub user_agent: String,
    pub uri: String,
    pub action: Action,
    pub namespace: String,
    pub name: String,
    /// HTTP status of the answer.
    pub code: u16,
}

/// What RBAC rules are about: a verb on a resource, with its subresource after a slash.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Action {
    pub group: String,
    pub resource: String,
    pub verb: String,
}

impl Request {
    pub fn is_write(&self) -> bool {
        !matches!(self.action.verb.as_str(), "get" | "list" | "watch")
    }
}

/// The name RBAC and the audit log have for a service account.
pub fn service_account(namespace: &str, name: &str) -> String {
    format!("system:serviceaccount:{namespace}:{name}")
}

/// Only service accounts are recorded: the control plane's own traffic would drown them.
pub(crate) fn policy() -> Value {
    json!({
        "apiVersion": "audit.k8s.io/v1",
        "kind": "Policy",
        "omitStages": ["RequestReceived"],
        "rules": [
            {"level": "Metadata", "userGroups": ["system:serviceaccounts"]},
            {"level": "None"},
        ],
    })
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Line {
    #[serde(rename = "auditID")]
    audit_id: String,
    verb: String,
    #[serde(rename = "requestURI")]
    request_uri: String,
    user: User,
    #[serde(default)]
    user_agent: String,
    #[serde(default)]
    object_ref: ObjectRef,
    response_status: Option<ResponseStatus>,
}

#[derive(Deserialize)]
struct User {
    username: String,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct ObjectRef {
    api_group: String,
    resource: String,
    subresource: String,
    namespace: String,
    name: String,
}

#[derive(Deserialize)]
struct ResponseStatus {
    code: u16,
}

/// Every request of `log`, each once. A last line that is still being written is left out.
pub(crate) fn read(log: &Path) -> Result<Vec<Request>> {
    let text = std::fs::read_to_string(log)
        .with_context(|| format!("failed to read audit log '{}'", log.display()))?;
    let complete = text.rfind('\n').map_or("", |end| &text[..end]);
    parse(complete)
}

fn parse(text: &str) -> Result<Vec<Request>> {
    let mut seen = BTreeSet::new();
    let mut requests = Vec::new();
    for line in text.lines().filter(|line| !line.is_empty()) {
        let line: Line = serde_json::from_str(line).context("failed to parse audit record")?;
        // A watch is recorded when it starts and again when it ends.
        if !seen.insert(line.audit_id.clone()) {
            continue;
        }
        let of = line.object_ref;
        let resource = if of.subresource.is_empty() {
            of.resource
        } else {
            format!("{}/{}", of.resource, of.subresource)
        };
        requests.push(Request {
            id: line.audit_id,
            user: line.user.username,
            user_agent: line.user_agent,
            uri: line.request_uri,
            action: Action {
                group: of.api_group,
                resource,
                verb: line.verb,
            },
            namespace: of.namespace,
            name: of.name,
            code: line.response_status.map_or(0, |status| status.code),
        });
    }
    Ok(requests)
}

/// How often each action was asked for.
pub fn count<'a>(requests: impl IntoIterator<Item = &'a Request>) -> BTreeMap<Action, usize> {
    let mut counts = BTreeMap::new();
    for request in requests {
        *counts.entry(request.action.clone()).or_default() += 1;
    }
    counts
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_watch_recorded_at_start_and_end_is_one_request() {
        let line = |stage: &str| {
            json!({
                "auditID": "a", "verb": "watch", "stage": stage,
                "requestURI": "/apis/batch/v1/jobs?watch=1",
                "user": {"username": "system:serviceaccount:n:s"},
                "objectRef": {"resource": "jobs", "apiGroup": "batch"},
                "responseStatus": {"code": 200},
            })
            .to_string()
        };
        let text = format!(
            "{}\n{}\n",
            line("ResponseStarted"),
            line("ResponseComplete")
        );
        let requests = parse(&text).unwrap();
        assert_eq!(requests.len(), 1);
        assert_eq!(requests[0].user, service_account("n", "s"));
        assert_eq!(
            requests[0].action,
            Action {
                group: "batch".to_owned(),
                resource: "jobs".to_owned(),
                verb: "watch".to_owned(),
            }
        );
        assert!(!requests[0].is_write());
    }
}
