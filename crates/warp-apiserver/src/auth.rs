//! Who is asking: bearer tokens, signed service-account tokens, and where requests may come from.
//!
//! RBAC is stored, not evaluated: this server is for one user's machine.

mod identity;
mod sums;
mod token;

use std::collections::BTreeMap;

use http::{HeaderMap, Uri, header};
use jiff::Timestamp;

use crate::codec::status::Status;
pub(crate) use identity::write_kubeconfig;
pub use identity::{Identity, IdentityError, kubeconfig};
use token::Signer;
pub(crate) use token::{Account, Claims, Issued, NotBelieved, Reference};

/// Issuer and default audience of service-account tokens.
pub(crate) const ISSUER: &str = "https://kubernetes.default.svc.cluster.local";

/// The author of a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct User {
    pub(crate) name: String,
    pub(crate) groups: Vec<String>,
    pub(crate) uid: String,
    /// What else is known about the user, by name.
    pub(crate) extra: BTreeMap<String, String>,
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
            extra: BTreeMap::new(),
        }
    }

    pub(crate) fn anonymous() -> Self {
        Self {
            name: "system:anonymous".to_owned(),
            groups: vec!["system:unauthenticated".to_owned()],
            uid: String::new(),
            extra: BTreeMap::new(),
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
    pub(crate) fn check_origin(&self, headers: &HeaderMap, uri: &Uri) -> Result<(), Status> {
        let text = |name: header::HeaderName| headers.get(name).and_then(|v| v.to_str().ok());
        // HTTP/2 names the host in the request line.
        let hosts = text(header::HOST)
            .into_iter()
            .chain(uri.authority().map(http::uri::Authority::as_str));
        let mut named = false;
        for host in hosts {
            named = true;
            if !self.knows(host) {
                return Err(Status::forbidden_path(format!(
                    "this server does not answer for host {host:?}: use the address in its kubeconfig"
                )));
            }
        }
        if !named {
            return Err(Status::bad_request("the request does not name its host"));
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

    /// The bearer token of a request.
    pub(crate) fn bearer(headers: &HeaderMap) -> Option<&str> {
        headers
            .get(header::AUTHORIZATION)
            .and_then(|value| value.to_str().ok())
            .and_then(|value| value.split_once(' '))
            .filter(|(scheme, _)| scheme.eq_ignore_ascii_case("bearer"))
            .map(|(_, token)| token.trim())
    }

    pub(crate) fn is_admin(&self, token: &str) -> bool {
        // Compare without telling by time how much of a guess is right.
        let digest = |text: &str| ring::digest::digest(&ring::digest::SHA256, text.as_bytes());
        digest(token).as_ref() == digest(&self.admin).as_ref()
    }

    /// What a service account's token says, when it was signed here and is valid now.
    pub(crate) fn claims(
        &self,
        token: &str,
        now: Timestamp,
        audiences: &[String],
    ) -> Result<Claims, NotBelieved> {
        self.signer.verify(token, now, audiences)
    }

    pub(crate) fn issue(
        &self,
        account: &Account<'_>,
        audiences: &[String],
        seconds: i64,
        now: Timestamp,
    ) -> Result<Issued, Status> {
        self.signer.issue(account, audiences, seconds, now)
    }
}
