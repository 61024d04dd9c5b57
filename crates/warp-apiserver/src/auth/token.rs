//! Service-account tokens: JWTs signed with the server's own key (ES256).

use std::collections::BTreeMap;

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use jiff::Timestamp;
use ring::rand::SystemRandom;
use ring::signature::{
    ECDSA_P256_SHA256_FIXED, ECDSA_P256_SHA256_FIXED_SIGNING, EcdsaKeyPair, KeyPair,
    UnparsedPublicKey,
};
use serde_json::{Map, Value, json};

use super::identity::{IdentityError, pem_body};
use super::{ISSUER, User, account_name, quoted};
use crate::codec::status::Status;

pub(super) struct Signer {
    key: EcdsaKeyPair,
    random: SystemRandom,
}

impl std::fmt::Debug for Signer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Signer")
    }
}

/// A signed token.
#[derive(Debug)]
pub(crate) struct Issued {
    pub(crate) token: String,
    pub(crate) audiences: Vec<String>,
    pub(crate) expires: Timestamp,
}

/// Whom a token is for, and what it lives and dies with.
#[derive(Clone, Debug)]
pub(crate) struct Account<'a> {
    pub(crate) namespace: &'a str,
    pub(crate) name: &'a str,
    pub(crate) uid: &'a str,
    /// The object the token is bound to, and the node of a bound pod, as claims.
    pub(crate) bound: Map<String, Value>,
}

/// Why a well-formed request's token is not believed, in Kubernetes' words.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct NotBelieved(pub(crate) String);

impl NotBelieved {
    fn unknown() -> Self {
        Self("token lookup failed".to_owned())
    }
}

impl Signer {
    /// `pem` is a PKCS #8 private key on the P-256 curve.
    pub(super) fn new(pem: &str) -> Result<Self, IdentityError> {
        let random = SystemRandom::new();
        let body = pem_body(pem).ok_or(IdentityError::Key("service-account.key"))?;
        let key = EcdsaKeyPair::from_pkcs8(&ECDSA_P256_SHA256_FIXED_SIGNING, &body, &random)
            .map_err(|_| IdentityError::Key("service-account.key"))?;
        Ok(Self { key, random })
    }

    pub(super) fn issue(
        &self,
        account: &Account<'_>,
        audiences: &[String],
        seconds: i64,
        now: Timestamp,
    ) -> Result<Issued, Status> {
        let expires = now
            .checked_add(jiff::SignedDuration::from_secs(seconds))
            .map_err(Status::internal)?;
        let audiences = if audiences.is_empty() {
            vec![ISSUER.to_owned()]
        } else {
            audiences.to_vec()
        };
        let header = json!({"alg": "ES256", "typ": "JWT"});
        let mut private = account.bound.clone();
        private.insert("namespace".to_owned(), account.namespace.into());
        private.insert(
            "serviceaccount".to_owned(),
            json!({"name": account.name, "uid": account.uid}),
        );
        let claims = json!({
            "aud": audiences,
            "exp": expires.as_second(),
            "iat": now.as_second(),
            "iss": ISSUER,
            "jti": crate::codec::new_uid(),
            "kubernetes.io": private,
            "nbf": now.as_second(),
            "sub": account_name(account.namespace, account.name),
        });
        let text = format!(
            "{}.{}",
            URL_SAFE_NO_PAD.encode(header.to_string()),
            URL_SAFE_NO_PAD.encode(claims.to_string())
        );
        let signature = self
            .key
            .sign(&self.random, text.as_bytes())
            .map_err(|_| Status::internal("failed to sign the token"))?;
        let token = format!("{text}.{}", URL_SAFE_NO_PAD.encode(signature));
        Ok(Issued {
            token,
            audiences,
            expires,
        })
    }

    /// The claims of a token this server signed that is valid now for one of `audiences`.
    pub(super) fn verify(
        &self,
        token: &str,
        now: Timestamp,
        audiences: &[String],
    ) -> Result<Claims, NotBelieved> {
        let claims = self.signed(token).ok_or_else(NotBelieved::unknown)?;
        let claims = Claims::read(&claims).ok_or_else(NotBelieved::unknown)?;
        if now.as_second() < claims.not_before {
            return Err(NotBelieved(
                "service account token is not valid yet".to_owned(),
            ));
        }
        if now.as_second() >= claims.expires {
            return Err(NotBelieved("service account token has expired".to_owned()));
        }
        if !audiences
            .iter()
            .any(|asked| claims.audiences.contains(asked))
        {
            return Err(NotBelieved(format!(
                "token audiences {} is invalid for the target audiences {}",
                quoted(&claims.audiences),
                quoted(audiences)
            )));
        }
        Ok(claims)
    }

    fn signed(&self, token: &str) -> Option<Value> {
        let (signed, signature) = token.rsplit_once('.')?;
        let signature = URL_SAFE_NO_PAD.decode(signature).ok()?;
        UnparsedPublicKey::new(&ECDSA_P256_SHA256_FIXED, self.key.public_key().as_ref())
            .verify(signed.as_bytes(), &signature)
            .ok()?;
        let (_, claims) = signed.split_once('.')?;
        serde_json::from_slice(&URL_SAFE_NO_PAD.decode(claims).ok()?).ok()
    }
}

/// A name and the uid it had.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Reference {
    pub(crate) name: String,
    pub(crate) uid: String,
}

impl Reference {
    fn read(claim: &Value) -> Option<Self> {
        Some(Self {
            name: claim["name"].as_str()?.to_owned(),
            uid: claim["uid"].as_str().unwrap_or_default().to_owned(),
        })
    }
}

/// What a signed token says. Whether the objects it names still exist is for the caller to find out.
#[derive(Clone, Debug)]
pub(crate) struct Claims {
    pub(crate) namespace: String,
    pub(crate) account: Reference,
    pub(crate) pod: Option<Reference>,
    pub(crate) secret: Option<Reference>,
    pub(crate) node: Option<Reference>,
    pub(crate) audiences: Vec<String>,
    id: String,
    not_before: i64,
    expires: i64,
}

impl Claims {
    fn read(claims: &Value) -> Option<Self> {
        let private = &claims["kubernetes.io"];
        Some(Self {
            namespace: private["namespace"].as_str()?.to_owned(),
            account: Reference::read(&private["serviceaccount"])?,
            pod: Reference::read(&private["pod"]),
            secret: Reference::read(&private["secret"]),
            node: Reference::read(&private["node"]),
            audiences: claims["aud"]
                .as_array()?
                .iter()
                .filter_map(Value::as_str)
                .map(str::to_owned)
                .collect(),
            id: claims["jti"].as_str().unwrap_or_default().to_owned(),
            not_before: claims["nbf"].as_i64()?,
            expires: claims["exp"].as_i64()?,
        })
    }

    pub(crate) fn user(&self) -> User {
        let Self {
            namespace, account, ..
        } = self;
        let mut extra = BTreeMap::new();
        let mut say = |name: &str, value: String| {
            if !value.is_empty() {
                extra.insert(format!("authentication.kubernetes.io/{name}"), vec![value]);
            }
        };
        if !self.id.is_empty() {
            say("credential-id", format!("JTI={}", self.id));
        }
        for (kind, bound) in [("pod", &self.pod), ("node", &self.node)] {
            if let Some(bound) = bound {
                say(&format!("{kind}-name"), bound.name.clone());
                say(&format!("{kind}-uid"), bound.uid.clone());
            }
        }
        User {
            name: account_name(namespace, &account.name),
            groups: super::account_groups(namespace),
            uid: account.uid.clone(),
            extra,
        }
    }
}
