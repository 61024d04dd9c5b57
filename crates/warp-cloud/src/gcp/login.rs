//! Logs in at Google: a claim signed with the service account's key, exchanged for a token.

use base64::Engine as _;
use base64::engine::general_purpose::{STANDARD, URL_SAFE_NO_PAD};
use jiff::Timestamp;
use ring::rand::SystemRandom;
use ring::signature::{RSA_PKCS1_SHA256, RsaKeyPair};
use serde::Deserialize;
use serde_json::json;

use crate::failure::{Class, Failure};

pub(super) const TOKEN_URL: &str = "https://oauth2.googleapis.com/token";
const SCOPE: &str = "https://www.googleapis.com/auth/cloud-platform";
/// Seconds a claim holds.
const LASTS: i64 = 3600;

/// The key file of a service account, as Google writes it.
#[derive(Deserialize)]
pub(super) struct ServiceAccount {
    client_email: String,
    private_key: String,
    pub(super) project_id: Option<String>,
}

/// What is wrong with a key file is told without repeating any of it.
fn wrong(why: &str) -> Failure {
    let words = format!("the key serviceAccount of the Secret is no key file of Google's: {why}");
    Failure::new(Class::BadCredentials, words)
}

impl ServiceAccount {
    pub(super) fn read(text: &str) -> Result<Self, Failure> {
        serde_json::from_str(text).map_err(|_| wrong("it cannot be read as JSON with its fields"))
    }

    /// The signed claim.
    pub(super) fn claim(&self, now: Timestamp) -> Result<String, Failure> {
        let body: String = self
            .private_key
            .lines()
            .filter(|line| !line.starts_with("-----"))
            .collect();
        let der = STANDARD
            .decode(body)
            .map_err(|_| wrong("its private key is not PEM"))?;
        let pair = RsaKeyPair::from_pkcs8(&der).map_err(|_| wrong("its private key is not RSA"))?;
        let issued = now.as_second();
        let head = json!({"alg": "RS256", "typ": "JWT"});
        let claims = json!({
            "iss": self.client_email,
            "scope": SCOPE,
            "aud": TOKEN_URL,
            "iat": issued,
            "exp": issued + LASTS,
        });
        let part = |value: &serde_json::Value| URL_SAFE_NO_PAD.encode(value.to_string());
        let text = format!("{}.{}", part(&head), part(&claims));
        let mut signature = vec![0; pair.public().modulus_len()];
        pair.sign(
            &RSA_PKCS1_SHA256,
            &SystemRandom::new(),
            text.as_bytes(),
            &mut signature,
        )
        .map_err(|_| wrong("its private key does not sign"))?;
        Ok(format!("{text}.{}", URL_SAFE_NO_PAD.encode(signature)))
    }
}

#[cfg(test)]
mod tests {
    use ring::signature::{KeyPair as _, RSA_PKCS1_2048_8192_SHA256, UnparsedPublicKey};

    use super::*;

    /// Made for this test and used nowhere else.
    const KEY: &str = include_str!("throwaway.pem");

    fn account() -> ServiceAccount {
        let text = json!({"client_email": "a@b", "private_key": KEY, "project_id": "p"});
        ServiceAccount::read(&text.to_string()).unwrap()
    }

    #[test]
    fn a_claim_is_signed_with_the_accounts_key() {
        let now: Timestamp = "2026-11-17T05:00:00Z".parse().unwrap();
        let claim = account().claim(now).unwrap();
        let (text, signature) = claim.rsplit_once('.').unwrap();
        let body: String = KEY
            .lines()
            .filter(|line| !line.starts_with("-----"))
            .collect();
        let pair = RsaKeyPair::from_pkcs8(&STANDARD.decode(body).unwrap()).unwrap();
        let public = UnparsedPublicKey::new(&RSA_PKCS1_2048_8192_SHA256, pair.public_key());
        let signature = URL_SAFE_NO_PAD.decode(signature).unwrap();
        public.verify(text.as_bytes(), &signature).unwrap();
        let (_, claims) = text.split_once('.').unwrap();
        let claims = URL_SAFE_NO_PAD.decode(claims).unwrap();
        let claims: serde_json::Value = serde_json::from_slice(&claims).unwrap();
        assert_eq!(claims["iss"], "a@b");
        assert_eq!(claims["exp"].as_i64(), Some(now.as_second() + LASTS));
    }

    #[test]
    fn a_key_file_that_is_none_is_told_without_its_contents() {
        let bad = json!({"client_email": "a", "private_key": "hush-hush"}).to_string();
        let said = ServiceAccount::read("hush-hush").err().unwrap();
        let more = ServiceAccount::read(&bad)
            .unwrap()
            .claim(Timestamp::UNIX_EPOCH);
        for failure in [said, more.unwrap_err()] {
            assert_eq!(failure.class, Class::BadCredentials);
            assert!(!failure.words.contains("hush"), "{failure}");
        }
    }
}
