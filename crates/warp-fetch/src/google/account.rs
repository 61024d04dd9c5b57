//! A service account of Google's: signs a claim with its key, and gets a token for it.

use std::fmt::{self, Debug};

use base64::Engine as _;
use base64::engine::general_purpose::{STANDARD, URL_SAFE_NO_PAD};
use bytes::Bytes;
use http::Request;
use http::header::{CONTENT_TYPE, USER_AGENT};
use http_body_util::Full;
use jiff::Timestamp;
use ring::rand::SystemRandom;
use ring::signature::{RSA_PKCS1_SHA256, RsaKeyPair};
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::sync::Mutex;

use crate::client::{AGENT, Client, escaped_value, parse, place};
use crate::error::FetchError;
use crate::proof::Headers;

const SCOPE: &str = "https://www.googleapis.com/auth/devstorage.read_only";
const GRANT: &str = "urn:ietf:params:oauth:grant-type:jwt-bearer";
const TOKEN_ADDRESS: &str = "https://oauth2.googleapis.com/token";
/// How long a claim, and the token for it, is good.
const SECONDS: i64 = 3600;
/// A token that ends sooner is not used any more.
const SPARE_SECONDS: i64 = 120;
const ANSWER_BYTES: usize = 1 << 20;

/// What Google gives out as the JSON key of an account.
#[derive(Clone, PartialEq, Eq, Deserialize)]
pub struct ServiceAccount {
    client_email: String,
    private_key: String,
    #[serde(default)]
    private_key_id: String,
    #[serde(default = "token_address")]
    token_uri: String,
}

fn token_address() -> String {
    TOKEN_ADDRESS.to_owned()
}

impl Debug for ServiceAccount {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ServiceAccount(…)")
    }
}

impl ServiceAccount {
    /// Reads a key as Google writes it.
    pub fn read(key: &str) -> Result<Self, FetchError> {
        let account: Self = serde_json::from_str(key)
            .map_err(|_| wrong("it is no JSON with client_email and private_key"))?;
        account.pair()?;
        parse(&account.token_uri).map_err(|_| wrong("its token_uri is no address"))?;
        Ok(account)
    }

    fn pair(&self) -> Result<RsaKeyPair, FetchError> {
        let lines = self.private_key.lines();
        let body: String = lines.filter(|line| !line.starts_with("-----")).collect();
        let der = STANDARD.decode(body);
        let der = der.map_err(|_| wrong("its private_key is no PEM"))?;
        RsaKeyPair::from_pkcs8(&der).map_err(|_| wrong("its private_key is no RSA key"))
    }

    /// The claim that is exchanged for a token.
    fn claim(&self, now: Timestamp) -> Result<String, FetchError> {
        let mut head = json!({"alg": "RS256", "typ": "JWT"});
        if !self.private_key_id.is_empty() {
            head["kid"] = json!(self.private_key_id);
        }
        let issued = now.as_second();
        let claims = json!({
            "iss": self.client_email, "scope": SCOPE, "aud": self.token_uri,
            "iat": issued, "exp": issued + SECONDS,
        });
        let part = |value: &Value| URL_SAFE_NO_PAD.encode(value.to_string());
        let text = format!("{}.{}", part(&head), part(&claims));
        let pair = self.pair()?;
        let mut signature = vec![0; pair.public().modulus_len()];
        pair.sign(
            &RSA_PKCS1_SHA256,
            &SystemRandom::new(),
            text.as_bytes(),
            &mut signature,
        )
        .map_err(|_| wrong("its private_key does not sign"))?;
        Ok(format!("{text}.{}", URL_SAFE_NO_PAD.encode(signature)))
    }
}

fn wrong(why: &str) -> FetchError {
    FetchError::Credentials(why.to_owned())
}

/// An account that has a token, or gets one.
pub(crate) struct Tokens {
    account: ServiceAccount,
    /// The header, and when its token ends.
    held: Mutex<Option<(String, Timestamp)>>,
}

impl Tokens {
    pub(crate) fn new(account: ServiceAccount) -> Self {
        Self {
            account,
            held: Mutex::new(None),
        }
    }

    pub(crate) async fn headers(&self, client: &Client) -> Result<Headers, FetchError> {
        let mut held = self.held.lock().await;
        let now = Timestamp::now();
        let good = held
            .as_ref()
            .filter(|(_, until)| until.as_second() - now.as_second() > SPARE_SECONDS);
        let header = if let Some((header, _)) = good {
            header.clone()
        } else {
            let (header, until) = self.token(client, now).await?;
            held.insert((header, until)).0.clone()
        };
        Ok(vec![("authorization", header)])
    }

    /// Forgets a token that was refused: the next request gets another.
    pub(crate) async fn forget(&self, shown: Option<&str>) {
        let mut held = self.held.lock().await;
        if held.as_ref().map(|(header, _)| header.as_str()) == shown {
            *held = None;
        }
    }

    async fn token(
        &self,
        client: &Client,
        now: Timestamp,
    ) -> Result<(String, Timestamp), FetchError> {
        let address = parse(&self.account.token_uri)?;
        let claim = self.account.claim(now)?;
        let form = format!("grant_type={}&assertion={claim}", escaped_value(GRANT));
        let request = Request::post(address.clone())
            .header(USER_AGENT, AGENT)
            .header(CONTENT_TYPE, "application/x-www-form-urlencoded")
            .body(Full::new(Bytes::from(form)))
            .map_err(|error| FetchError::Client(error.to_string()))?;
        let answer = client.exchange(&address, request, ANSWER_BYTES).await?;
        let answer: Value = serde_json::from_slice(&answer).unwrap_or_default();
        let token = answer["access_token"].as_str().filter(|token| {
            !token.is_empty() && token.chars().all(|letter| letter.is_ascii_graphic())
        });
        let token = token.ok_or_else(|| FetchError::Nonsense {
            what: place(&address),
            why: "it gave no token".to_owned(),
        })?;
        let seconds = answer["expires_in"].as_i64().unwrap_or(SECONDS);
        let until =
            Timestamp::from_second(now.as_second().saturating_add(seconds.clamp(0, SECONDS)));
        Ok((format!("Bearer {token}"), until.unwrap_or(now)))
    }
}
