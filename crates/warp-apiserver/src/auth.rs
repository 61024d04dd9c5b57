//! Who is asking, and what they may do: bearer tokens, signed service-account tokens, users of the
//! machine, roles and bindings, and where requests may come from.

mod aggregation;
mod authorizer;
mod defaults;
mod identity;
pub(crate) mod rbac;
mod sums;
mod token;
mod users;

use std::collections::BTreeMap;

use http::{HeaderMap, Uri, header};
use jiff::Timestamp;

use crate::codec::status::Status;
pub(crate) use aggregation::start as start_aggregation;
pub(crate) use authorizer::Authorizer;
pub(crate) use defaults::{changed as changed_default, is_left_alone, objects as default_objects};
pub(crate) use identity::write_kubeconfig;
pub use identity::{Identity, IdentityError, kubeconfig};
use token::Signer;
pub(crate) use token::{Account, Claims, Issued, NotBelieved, Reference};
pub use users::{Known, UserError, Users};

/// Issuer and default audience of service-account tokens.
pub(crate) const ISSUER: &str = "https://kubernetes.default.svc.cluster.local";

/// The author of a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct User {
    pub(crate) name: String,
    pub(crate) groups: Vec<String>,
    pub(crate) uid: String,
    /// What else is known about the user, by name.
    pub(crate) extra: BTreeMap<String, Vec<String>>,
}

/// Everybody who showed a good token.
pub(crate) const AUTHENTICATED: &str = "system:authenticated";
/// Everybody else.
pub(crate) const UNAUTHENTICATED: &str = "system:unauthenticated";
pub(crate) const ANONYMOUS: &str = "system:anonymous";
const ACCOUNTS: &str = "system:serviceaccounts";

/// The user a service account is.
pub(crate) fn account_name(namespace: &str, name: &str) -> String {
    format!("system:serviceaccount:{namespace}:{name}")
}

/// The namespace and name of a service account, if a user is one.
pub(crate) fn account_of(user: &str) -> Option<(&str, &str)> {
    let (namespace, name) = user
        .strip_prefix("system:serviceaccount:")?
        .split_once(':')?;
    let named = crate::registry::name::label(namespace).is_empty()
        && crate::registry::name::subdomain(name).is_empty();
    named.then_some((namespace, name))
}

/// The groups of the service accounts of a namespace.
pub(crate) fn account_groups(namespace: &str) -> Vec<String> {
    vec![
        ACCOUNTS.to_owned(),
        format!("{ACCOUNTS}:{namespace}"),
        AUTHENTICATED.to_owned(),
    ]
}

/// A list of texts as Go quotes it.
pub(crate) fn quoted(list: &[String]) -> String {
    let shown: Vec<String> = list.iter().map(|item| format!("{item:?}")).collect();
    format!("[{}]", shown.join(" "))
}

impl User {
    pub(crate) fn admin() -> Self {
        Self {
            name: "kubernetes-admin".to_owned(),
            groups: vec![rbac::MASTERS.to_owned(), AUTHENTICATED.to_owned()],
            uid: String::new(),
            extra: BTreeMap::new(),
        }
    }

    pub(crate) fn anonymous() -> Self {
        Self {
            name: ANONYMOUS.to_owned(),
            groups: vec![UNAUTHENTICATED.to_owned()],
            uid: String::new(),
            extra: BTreeMap::new(),
        }
    }

    /// A service account of this cluster, known without a token: a part of this process.
    pub(crate) fn account(namespace: &str, name: &str) -> Self {
        Self {
            name: account_name(namespace, name),
            groups: account_groups(namespace),
            uid: String::new(),
            extra: BTreeMap::new(),
        }
    }

    /// Whether nothing has to be asked: members of this group may do everything.
    pub(crate) fn is_master(&self) -> bool {
        self.groups.iter().any(|group| group == rbac::MASTERS)
    }
}

/// Checks tokens and origins.
#[derive(Debug)]
pub(crate) struct Authenticator {
    admin: String,
    signer: Signer,
    users: Option<Users>,
    hosts: Vec<String>,
    address: parking_lot::RwLock<String>,
}

impl Authenticator {
    pub(crate) fn new(identity: &Identity) -> Result<Self, IdentityError> {
        Ok(Self {
            admin: identity.token.clone(),
            signer: Signer::new(&identity.account_key)?,
            users: identity.users.as_deref().map(Users::of),
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

    /// The user of this machine who was given this token.
    pub(crate) fn known_user(&self, token: &str) -> Option<User> {
        let known = self.users.as_ref()?.holder(token)?;
        let mut groups = known.groups;
        groups.push(AUTHENTICATED.to_owned());
        Some(User {
            name: known.name,
            groups,
            uid: String::new(),
            extra: BTreeMap::new(),
        })
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
