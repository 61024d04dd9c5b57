//! Who is asking: bearer tokens, signed service-account tokens, and where requests may come from.
//!
//! RBAC is stored, not evaluated: this server is for one user's machine.

mod identity;
mod token;

use http::{HeaderMap, header};
use jiff::Timestamp;

use crate::codec::status::Status;
pub(crate) use identity::write_kubeconfig;
pub use identity::{Identity, IdentityError, kubeconfig};
pub(crate) use token::Issued;
use token::Signer;

/// Issuer and default audience of service-account tokens.
pub(crate) const ISSUER: &str = "https://kubernetes.default.svc.cluster.local";

/// The author of a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct User {
    pub(crate) name: String,
    pub(crate) groups: Vec<String>,
    pub(crate) uid: String,
    /// Namespace and name, when it is a service account.
    pub(crate) account: Option<(String, String)>,
}

impl User {
    pub(crate) fn admin() -> Self {
        Self {
            name: "kubernetes-admin".to_owned(),
            groups: vec![
                "system:masters".to_owned(),
                "system:authenticated".to_owned(),
            ],
            uid: String::new(),
            account: None,
        }
    }

    pub(crate) fn anonymous() -> Self {
        Self {
            name: "system:anonymous".to_owned(),
            groups: vec!["system:unauthenticated".to_owned()],
            uid: String::new(),
            account: None,
        }
    }
}

/// Checks tokens and origins.
#[derive(Debug)]
pub(crate) struct Authenticator {
    admin: String,
    signer: Signer,
    hosts: Vec<String>,
    address: parking_lot::RwLock<String>,
}

impl Authenticator {
    pub(crate) fn new(identity: &Identity) -> Result<Self, IdentityError> {
        Ok(Self {
            admin: identity.token.clone(),
            signer: Signer::new(&identity.account_key)?,
            hosts: identity.hosts.clone(),
            address: parking_lot::RwLock::new(String::new()),
        })
    }

    pub(crate) fn set_address(&self, address: String) {
        *self.address.write() = address;
    }

    /// Where clients reach the server, for discovery.
    pub(crate) fn address(&self) -> String {
        self.address.read().clone()
    }

    /// Refuses requests a web page could have made: a foreign `Host` (DNS rebinding) or `Origin`.
    pub(crate) fn check_origin(&self, headers: &HeaderMap) -> Result<(), Status> {
        let text = |name: header::HeaderName| headers.get(name).and_then(|v| v.to_str().ok());
        if let Some(host) = text(header::HOST)
            && !self.knows(host)
        {
            return Err(Status::forbidden_path(format!(
                "this server does not answer for host {host:?}: use the address in its kubeconfig"
            )));
        }
        if let Some(origin) = text(header::ORIGIN) {
            let host = origin.split_once("://").map_or(origin, |(_, host)| host);
            if !self.knows(host) {
                return Err(Status::forbidden_path(format!(
                    "requests from origin {origin:?} are not allowed"
                )));
            }
        }
        Ok(())
    }

    fn knows(&self, host: &str) -> bool {
        let name = match host.strip_prefix('[') {
            Some(rest) => rest.split(']').next().unwrap_or_default(),
            None => host.rsplit_once(':').map_or(host, |(name, _)| name),
        };
        self.hosts
            .iter()
            .any(|known| known.eq_ignore_ascii_case(name))
    }

    pub(crate) fn authenticate(&self, headers: &HeaderMap, now: Timestamp) -> Result<User, Status> {
        let token = headers
            .get(header::AUTHORIZATION)
            .and_then(|value| value.to_str().ok())
            .and_then(|value| value.split_once(' '))
            .filter(|(scheme, _)| scheme.eq_ignore_ascii_case("bearer"))
            .map(|(_, token)| token.trim())
            .ok_or_else(Status::unauthorized)?;
        self.verify(token, now).ok_or_else(Status::unauthorized)
    }

    pub(crate) fn verify(&self, token: &str, now: Timestamp) -> Option<User> {
        // Compare without telling by time how much of a guess is right.
        let digest = |text: &str| ring::digest::digest(&ring::digest::SHA256, text.as_bytes());
        if digest(token).as_ref() == digest(&self.admin).as_ref() {
            return Some(User::admin());
        }
        self.signer.verify(token, now)
    }

    pub(crate) fn issue(
        &self,
        namespace: &str,
        name: &str,
        uid: &str,
        audiences: &[String],
        seconds: i64,
        now: Timestamp,
    ) -> Result<Issued, Status> {
        self.signer.issue(
            &token::Account {
                namespace,
                name,
                uid,
            },
            audiences,
            seconds,
            now,
        )
    }
}
