//! Service-account tokens over the API: issued for accounts, reviewed, and refused once what they
//! stand for is gone. A token is only as good as its account, and as the pod, secret or node it is
//! bound to: their uids are looked up at every use.

use std::sync::Arc;

use serde_json::{Map, Value, json};

use super::{Answer, Api, ResourceCall};
use crate::auth::{Account, Claims, ISSUER, NotBelieved, Reference, User};
use crate::codec::body;
use crate::codec::status::{Status, Subject};
use crate::schema::{FieldError, Path};
use crate::store::Stored;

const SHORTEST: i64 = 600;
const LONGEST: i64 = 1 << 32;

impl Api {
    /// Whose token this is, if it is good for one of `audiences` (none: for this server), and
    /// which of them it is good for.
    pub(super) fn whose(
        &self,
        token: &str,
        audiences: &[String],
    ) -> Result<(User, Vec<String>), NotBelieved> {
        let own = [ISSUER.to_owned()];
        let audiences = if audiences.is_empty() {
            &own
        } else {
            audiences
        };
        if self.auth.is_admin(token) {
            return Ok((User::admin(), audiences.to_vec()));
        }
        if let Some(user) = self.auth.known_user(token) {
            return Ok((user, audiences.to_vec()));
        }
        let claims = self.auth.claims(token, self.clock.now(), audiences)?;
        self.alive(&claims)?;
        let both = audiences
            .iter()
            .filter(|asked| claims.audiences.contains(asked))
            .cloned()
            .collect();
        Ok((claims.user(), both))
    }

    fn alive(&self, claims: &Claims) -> Result<(), NotBelieved> {
        let namespace = Some(claims.namespace.as_str());
        let account = self
            .find("serviceaccounts", namespace, &claims.account.name)
            .ok_or_else(|| {
                NotBelieved(format!(
                    "serviceaccounts {:?} not found",
                    claims.account.name
                ))
            })?;
        if *account.index.uid != *claims.account.uid {
            return Err(NotBelieved(format!(
                "service account UID ({}) does not match claim ({})",
                account.index.uid, claims.account.uid
            )));
        }
        let bound = [
            ("secrets", "secret", namespace, &claims.secret),
            ("pods", "pod", namespace, &claims.pod),
        ];
        for (table, kind, namespace, reference) in bound {
            if let Some(reference) = reference {
                self.still_there(table, kind, namespace, reference)?;
            }
        }
        match &claims.node {
            // The node of a bound pod is told, not checked: the pod is.
            Some(node) if claims.pod.is_none() => self.still_there("nodes", "node", None, node),
            _ => Ok(()),
        }
    }

    fn still_there(
        &self,
        table: &str,
        kind: &str,
        namespace: Option<&str>,
        reference: &Reference,
    ) -> Result<(), NotBelieved> {
        let stored = self
            .find(table, namespace, &reference.name)
            .ok_or_else(|| NotBelieved("service account token has been invalidated".to_owned()))?;
        if *stored.index.uid == *reference.uid {
            return Ok(());
        }
        Err(NotBelieved(format!(
            "{kind} UID ({}) does not match service account {kind} ref claim ({})",
            stored.index.uid, reference.uid
        )))
    }

    fn find(&self, table: &str, namespace: Option<&str>, name: &str) -> Option<Arc<Stored>> {
        self.store
            .table(table)
            .get(&crate::store::key(namespace, name))
    }
}

pub(super) fn user_info(user: &User) -> Value {
    let mut info = json!({"username": user.name, "groups": user.groups});
    if !user.uid.is_empty() {
        info["uid"] = user.uid.clone().into();
    }
    for (name, value) in &user.extra {
        info["extra"][name] = json!(value);
    }
    info
}

fn texts(list: &Value) -> Vec<String> {
    let items = list.as_array().into_iter().flatten();
    items.filter_map(Value::as_str).map(str::to_owned).collect()
}

/// The status of a `TokenReview`.
pub(super) fn review(request: &ResourceCall<'_>, object: &Value) -> Value {
    let token = object["spec"]["token"].as_str().unwrap_or_default();
    match request
        .api
        .whose(token, &texts(&object["spec"]["audiences"]))
    {
        Ok((user, audiences)) => json!({
            "authenticated": true,
            "user": user_info(&user),
            "audiences": audiences,
        }),
        Err(NotBelieved(why)) => json!({
            "user": {},
            "error": format!("[invalid bearer token, {why}]"),
        }),
    }
}

/// Signs a token for a service account.
pub(super) fn issue(request: &ResourceCall<'_>) -> Result<Answer, Status> {
    let call = &request.call;
    let sent = body::decode_object(&call.content_type, &call.body)?;
    let mut asked = sent.value;
    if !asked.is_object() {
        return Err(Status::bad_request("expected a TokenRequest in the body"));
    }
    let stored = request.entry.table.get(&request.key());
    let stored = stored.ok_or_else(|| Status::not_found(&request.subject()))?;
    let seconds = asked["spec"]["expirationSeconds"].as_i64().unwrap_or(3600);
    check_lifetime(seconds)?;
    let namespace = request.target.namespace.as_deref().unwrap_or_default();
    let account = Account {
        namespace,
        name: stored.name(),
        uid: &stored.index.uid,
        bound: bind(
            request,
            namespace,
            &stored,
            &asked["spec"]["boundObjectRef"],
        )?,
    };
    let audiences = texts(&asked["spec"]["audiences"]);
    let now = request.api.clock.now();
    let issued = request.api.auth.issue(&account, &audiences, seconds, now)?;
    let object = asked.as_object_mut().ok_or_else(Status::no_such_path)?;
    object.insert("kind".into(), "TokenRequest".into());
    object.insert("apiVersion".into(), "authentication.k8s.io/v1".into());
    asked["spec"]["audiences"] = issued.audiences.into();
    asked["spec"]["expirationSeconds"] = seconds.into();
    asked["metadata"] = json!({
        "name": stored.name(),
        "namespace": stored.namespace(),
        "creationTimestamp": request.api.clock.now_text(),
    });
    asked["status"] = json!({
        "token": issued.token,
        "expirationTimestamp": crate::clock::seconds(issued.expires),
    });
    Ok(Answer::value(201, asked))
}

fn check_lifetime(seconds: i64) -> Result<(), Status> {
    let problem = match seconds {
        SHORTEST..=LONGEST => return Ok(()),
        ..SHORTEST => "may not specify a duration less than 10 minutes",
        _ => "may not specify a duration larger than 2^32 seconds",
    };
    let path = Path::new("spec.expirationSeconds");
    let error = FieldError::invalid(&path, seconds, problem);
    let subject = Subject {
        group: "authentication.k8s.io",
        resource: "tokenrequests",
        kind: "TokenRequest",
        name: "",
    };
    Err(Status::invalid(&subject, &[error]))
}

/// The claims that tie a token to an object.
fn bind(
    request: &ResourceCall<'_>,
    namespace: &str,
    account: &Stored,
    reference: &Value,
) -> Result<Map<String, Value>, Status> {
    let mut claims = Map::new();
    if !reference.is_object() {
        return Ok(claims);
    }
    let text = |name: &str| reference[name].as_str().unwrap_or_default();
    let (version, kind, name) = (text("apiVersion"), text("kind"), text("name"));
    let (table, claim, within) = match (version.contains('/'), kind) {
        (false, "Pod") => ("pods", "pod", Some(namespace)),
        (false, "Secret") => ("secrets", "secret", Some(namespace)),
        (false, "Node") => ("nodes", "node", None),
        _ => {
            let (group, version) = version.split_once('/').unwrap_or(("", version));
            return Err(Status::bad_request(format!(
                "cannot bind token to object of type {group}/{version}, Kind={kind}"
            )));
        }
    };
    let subject = |resource| Subject {
        group: "",
        resource,
        kind,
        name,
    };
    let bound = request
        .api
        .find(table, within, name)
        .ok_or_else(|| Status::not_found(&subject(table)))?;
    if claim == "pod" {
        let pod = bound.value();
        if pod["spec"]["serviceAccountName"].as_str() != Some(account.name()) {
            return Err(Status::bad_request(format!(
                "cannot bind token for serviceaccount {:?} to pod running with different serviceaccount name.",
                account.name()
            )));
        }
        if let Some(node) = pod["spec"]["nodeName"]
            .as_str()
            .filter(|name| !name.is_empty())
        {
            let mut told = json!({"name": node});
            if let Some(stored) = request.api.find("nodes", None, node) {
                told["uid"] = (&*stored.index.uid).into();
            }
            claims.insert("node".to_owned(), told);
        }
    }
    let asked = text("uid");
    if !asked.is_empty() && *bound.index.uid != *asked {
        return Err(Status::conflict(
            &subject(kind),
            &format!(
                "the UID in the bound object reference ({asked}) does not match the UID in record. The object might have been deleted and then recreated"
            ),
        ));
    }
    claims.insert(
        claim.to_owned(),
        json!({"name": name, "uid": &*bound.index.uid}),
    );
    Ok(claims)
}
