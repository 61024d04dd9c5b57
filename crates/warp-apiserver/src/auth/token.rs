//! Service-account tokens: JWTs signed with the server's own key (ES256).

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use jiff::Timestamp;
use ring::rand::SystemRandom;
use ring::signature::{
    ECDSA_P256_SHA256_FIXED, ECDSA_P256_SHA256_FIXED_SIGNING, EcdsaKeyPair, KeyPair,
    UnparsedPublicKey,
};
use serde_json::{Value, json};

use super::identity::{IdentityError, pem_body};
use super::{ISSUER, User};
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

pub(super) struct Account<'a> {
    pub(super) namespace: &'a str,
    pub(super) name: &'a str,
    pub(super) uid: &'a str,
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
        let claims = json!({
            "aud": audiences,
            "exp": expires.as_second(),
            "iat": now.as_second(),
            "iss": ISSUER,
            "kubernetes.io": {
                "namespace": account.namespace,
                "serviceaccount": {"name": account.name, "uid": account.uid},
            },
            "nbf": now.as_second(),
            "sub": format!("system:serviceaccount:{}:{}", account.namespace, account.name),
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

    pub(super) fn verify(&self, token: &str, now: Timestamp) -> Option<User> {
        let (signed, signature) = token.rsplit_once('.')?;
        let signature = URL_SAFE_NO_PAD.decode(signature).ok()?;
        UnparsedPublicKey::new(&ECDSA_P256_SHA256_FIXED, self.key.public_key().as_ref())
            .verify(signed.as_bytes(), &signature)
            .ok()?;
        let (_, claims) = signed.split_once('.')?;
        let claims: Value = serde_json::from_slice(&URL_SAFE_NO_PAD.decode(claims).ok()?).ok()?;
        if now.as_second() >= claims["exp"].as_i64()? {
            return None;
        }
        let bound = &claims["kubernetes.io"];
        let namespace = bound["namespace"].as_str()?.to_owned();
        let name = bound["serviceaccount"]["name"].as_str()?.to_owned();
        Some(User {
            name: format!("system:serviceaccount:{namespace}:{name}"),
            groups: vec![
                "system:serviceaccounts".to_owned(),
                format!("system:serviceaccounts:{namespace}"),
                "system:authenticated".to_owned(),
            ],
            uid: bound["serviceaccount"]["uid"].as_str()?.to_owned(),
            account: Some((namespace, name)),
        })
    }
}
