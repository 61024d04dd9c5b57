//! Where a registry of the OCI distribution API is and how it lets somebody in: without anything, by user and password,
//! or by a token that whoever the registry names gives out for them.

use std::fmt::{self, Debug};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use http::header::{AUTHORIZATION, USER_AGENT};
use http::{Request, Uri};
use http_body_util::Full;
use serde_json::Value;
use tokio::sync::Mutex;

use crate::client::{AGENT, Client, escaped_value, parse, place};
use crate::error::FetchError;
use crate::proof::Headers;
use crate::source::Artifact;

/// No token is longer.
const TOKEN_LIMIT_BYTES: usize = 1 << 20;

/// What a registry knows somebody by.
#[derive(Clone, PartialEq, Eq)]
pub struct Credentials {
    pub username: String,
    pub password: String,
}

impl Debug for Credentials {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Credentials(…)")
    }
}

/// How registries are asked.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Registry {
    /// Without them, what everybody may read is read.
    pub login: Option<Credentials>,
    /// Without encryption, also where the registry is not on this machine.
    pub plain_http: bool,
}

impl Registry {
    /// `https://host:port`; a registry on this machine is asked without encryption, as other tools do.
    pub(crate) fn home(&self, artifact: &Artifact) -> String {
        let name = match artifact.registry.as_str() {
            // The name people write is not the one that answers.
            "docker.io" => "registry-1.docker.io",
            name => name,
        };
        let host = name.parse::<http::uri::Authority>();
        let local = host.is_ok_and(|host| {
            let host = host.host().trim_matches(['[', ']']);
            let address: Result<std::net::IpAddr, _> = host.parse();
            host == "localhost" || address.is_ok_and(|address| address.is_loopback())
        });
        let scheme = if self.plain_http || local {
            "http"
        } else {
            "https"
        };
        format!("{scheme}://{name}")
    }
}

impl Credentials {
    /// What a configuration as `docker login` writes it (also a Secret of type `kubernetes.io/dockerconfigjson`) has for
    /// a registry.
    pub fn from_config(config: &str, registry: &str) -> Option<Self> {
        let config: Value = serde_json::from_str(config).ok()?;
        let known = config["auths"].as_object()?;
        let entry = known.iter().find(|(name, _)| {
            let name = name
                .split_once("://")
                .map_or(name.as_str(), |(_, rest)| rest);
            let host = name.split('/').next().unwrap_or_default();
            host == registry || (registry == "docker.io" && host == "index.docker.io")
        })?;
        let text = |name: &str| entry.1[name].as_str().filter(|text| !text.is_empty());
        if let Some((username, password)) = text("username").zip(text("password")) {
            return Some(Self {
                username: username.to_owned(),
                password: password.to_owned(),
            });
        }
        let both = String::from_utf8(STANDARD.decode(text("auth")?).ok()?).ok()?;
        let (username, password) = both.split_once(':')?;
        Some(Self {
            username: username.to_owned(),
            password: password.trim_end_matches('\0').to_owned(),
        })
    }

    fn basic(&self) -> String {
        let both = format!("{}:{}", self.username, self.password);
        format!("Basic {}", STANDARD.encode(both))
    }
}

/// Somebody who is let in by one registry.
pub(crate) struct Login {
    credentials: Option<Credentials>,
    /// The header that was accepted last.
    held: Mutex<Option<String>>,
}

/// One way of being let in that a registry offers.
#[derive(Debug, PartialEq, Eq)]
struct Challenge {
    scheme: String,
    parameters: Vec<(String, String)>,
}

impl Login {
    pub(crate) fn new(credentials: Option<Credentials>) -> Self {
        Self {
            credentials,
            held: Mutex::new(None),
        }
    }

    pub(crate) async fn headers(&self) -> Headers {
        let held = self.held.lock().await.clone();
        held.map(|value| ("authorization", value))
            .into_iter()
            .collect()
    }

    pub(crate) fn advice(&self) -> &'static str {
        if self.credentials.is_some() {
            "the user and password are wrong or may not do this; check them and the rights on the repository"
        } else {
            "it does not exist or needs a user and a password"
        }
    }

    /// Gets what the registry asks for after it refused what was `shown`.
    pub(crate) async fn renew(
        &self,
        client: &Client,
        address: &Uri,
        shown: Option<&str>,
        asked: &[String],
    ) -> Result<bool, FetchError> {
        let mut held = self.held.lock().await;
        if held.as_deref() != shown {
            // Another request got it meanwhile.
            return Ok(true);
        }
        let asked: Vec<Challenge> = asked.iter().flat_map(|text| challenges(text)).collect();
        let of = |scheme: &str| asked.iter().find(|one| one.scheme == scheme);
        let next = match (of("bearer"), of("basic"), &self.credentials) {
            (Some(bearer), ..) => Some(self.token(client, address, bearer).await?),
            (None, Some(_), Some(credentials)) => Some(credentials.basic()),
            _ => None,
        };
        if next.is_none() || next.as_deref() == shown {
            return Ok(false);
        }
        *held = next;
        Ok(true)
    }

    /// A token from the place the registry names.
    async fn token(
        &self,
        client: &Client,
        registry: &Uri,
        challenge: &Challenge,
    ) -> Result<String, FetchError> {
        let nonsense = |why: &str| FetchError::Nonsense {
            what: place(registry),
            why: why.to_owned(),
        };
        let realm = challenge.get("realm");
        let realm = realm.ok_or_else(|| nonsense("it does not say who gives out its tokens"))?;
        let mut address = realm.to_owned();
        for name in ["service", "scope"] {
            if let Some(value) = challenge.get(name) {
                let sign = if address.contains('?') { '&' } else { '?' };
                address = format!("{address}{sign}{name}={}", escaped_value(value));
            }
        }
        let address = parse(&address).map_err(|_| {
            nonsense("it names something as the giver of its tokens that is no address")
        })?;
        if registry.scheme_str() == Some("https") && address.scheme_str() != Some("https") {
            return Err(nonsense(
                "it asks to get a token where the connection is not encrypted",
            ));
        }
        let mut request = Request::get(address.clone()).header(USER_AGENT, AGENT);
        if let Some(credentials) = &self.credentials {
            request = request.header(AUTHORIZATION, credentials.basic());
        }
        let request = request
            .body(Full::default())
            .map_err(|error| FetchError::Client(error.to_string()))?;
        let answer = client
            .exchange(&address, request, TOKEN_LIMIT_BYTES)
            .await?;
        let answer: Value = serde_json::from_slice(&answer).unwrap_or_default();
        let token = answer["token"]
            .as_str()
            .or_else(|| answer["access_token"].as_str());
        let token = token.filter(|token| {
            !token.is_empty() && token.chars().all(|letter| letter.is_ascii_graphic())
        });
        token
            .map(|token| format!("Bearer {token}"))
            .ok_or_else(|| FetchError::Nonsense {
                what: place(&address),
                why: "it gave no token".to_owned(),
            })
    }
}

impl Challenge {
    fn get(&self, name: &str) -> Option<&str> {
        let found = self.parameters.iter().find(|(known, _)| known == name);
        found.map(|(_, value)| value.as_str())
    }
}

/// The ways one header offers: `Bearer realm="…",scope="a:pull,push", Basic realm="…"`.
fn challenges(text: &str) -> Vec<Challenge> {
    let mut found: Vec<Challenge> = Vec::new();
    for part in parts(text) {
        // A scheme stands before its first parameter, with a space between them.
        let (before, value) = match part.split_once('=') {
            Some((before, value)) => (before.trim(), Some(value.trim())),
            None => (part.trim(), None),
        };
        let (scheme, name) = match (before.split_once(' '), value) {
            (Some((scheme, name)), _) => (Some(scheme), Some(name.trim())),
            (None, Some(_)) => (None, Some(before)),
            (None, None) => (Some(before), None),
        };
        if let Some(scheme) = scheme.filter(|scheme| !scheme.is_empty()) {
            found.push(Challenge {
                scheme: scheme.to_lowercase(),
                parameters: Vec::new(),
            });
        }
        if let Some(((name, value), challenge)) = name.zip(value).zip(found.last_mut()) {
            let value = value.trim_matches('"').replace("\\\"", "\"");
            challenge.parameters.push((name.to_lowercase(), value));
        }
    }
    found
}

/// What stands between commas that are not in quotes.
fn parts(text: &str) -> Vec<&str> {
    let (mut quoted, mut escaped) = (false, false);
    text.split(|letter| {
        let here = letter == ',' && !quoted;
        if letter == '"' && !escaped {
            quoted = !quoted;
        }
        escaped = letter == '\\' && !escaped;
        here
    })
    .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_registry_asks_for_is_read_with_its_commas() {
        let text = r#"Bearer realm="https://auth.example/token?x=1",service="r.example", scope="repository:a/b:pull,push",Basic realm="r""#;
        let found = challenges(text);
        let [bearer, basic] = found.as_slice() else {
            panic!("{found:?}");
        };
        assert_eq!(
            (bearer.scheme.as_str(), basic.scheme.as_str()),
            ("bearer", "basic")
        );
        assert_eq!(bearer.get("realm"), Some("https://auth.example/token?x=1"));
        assert_eq!(bearer.get("scope"), Some("repository:a/b:pull,push"));
        assert_eq!(basic.get("realm"), Some("r"));
        assert_eq!(challenges("Negotiate")[0].scheme, "negotiate");
        assert_eq!(challenges(""), []);
    }

    #[test]
    fn a_configuration_has_users_by_host_and_is_not_shown() {
        let config = r#"{"auths": {
            "ghcr.io": {"auth": "bWU6czpjcmV0"},
            "https://index.docker.io/v1/": {"username": "d", "password": "p"},
            "empty.example": {}
        }}"#;
        let of = |registry: &str| Credentials::from_config(config, registry);
        let found = of("ghcr.io").unwrap();
        assert_eq!(
            (found.username.as_str(), found.password.as_str()),
            ("me", "s:cret")
        );
        assert_eq!(format!("{found:?}"), "Credentials(…)");
        assert_eq!(of("docker.io").unwrap().username, "d");
        for none in ["empty.example", "ghcr.io.evil.example", "example"] {
            assert_eq!(of(none), None, "{none}");
        }
        assert_eq!(Credentials::from_config("no json", "ghcr.io"), None);
    }

    #[test]
    fn only_this_machine_is_asked_without_encryption_unless_told() {
        let home = |registry: &str, plain_http: bool| {
            let artifact = Artifact::parse(&format!("{registry}/a")).unwrap();
            let registry = Registry {
                login: None,
                plain_http,
            };
            registry.home(&artifact)
        };
        assert_eq!(home("docker.io", false), "https://registry-1.docker.io");
        assert_eq!(home("r.example:5000", true), "http://r.example:5000");
        assert_eq!(home("localhost:5000", false), "http://localhost:5000");
        assert_eq!(home("127.0.0.1:1", false), "http://127.0.0.1:1");
        assert_eq!(
            home("127.0.0.1.evil.example", false),
            "https://127.0.0.1.evil.example"
        );
    }
}
