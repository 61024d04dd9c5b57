//! Asks the Hugging Face hub, or a mirror of it, about a repository: its commit, the sizes of its files, and
//! `config.json`. A token goes to the hub itself and to nobody it redirects to.

use std::time::Duration;

use anyhow::{Context as _, bail};
use http::header::{AUTHORIZATION, LINK, LOCATION};
use http::{HeaderMap, Request, StatusCode, Uri};
use http_body_util::{BodyExt, Empty, Limited};
use hyper::body::Bytes;
use hyper_rustls::HttpsConnectorBuilder;
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;
use serde_json::Value;

use super::description::{self, CONFIG_LIMIT_BYTES, Description};

const ENDPOINT: &str = "https://huggingface.co";
const DEADLINE: Duration = Duration::from_secs(20);
const REDIRECTS: usize = 5;
/// Pages of a file list that are followed; a page has a thousand files.
const PAGES: usize = 50;

/// A repository and a revision of it.
#[derive(Debug, PartialEq, Eq)]
struct Repository<'a> {
    name: &'a str,
    revision: &'a str,
}

impl<'a> Repository<'a> {
    fn parse(text: &'a str) -> anyhow::Result<Self> {
        let text = text.strip_prefix("hf://").unwrap_or(text);
        let (name, revision) = text.split_once('@').unwrap_or((text, "main"));
        let allowed = |part: &str| {
            let letters = part
                .chars()
                .all(|letter| letter.is_ascii_alphanumeric() || "-_.".contains(letter));
            !part.is_empty()
                && part.len() <= 96
                && letters
                && !part.starts_with('.')
                && !part.contains("..")
        };
        let parts: Vec<&str> = name.split('/').collect();
        let named = parts.len() == 2 && parts.iter().all(|part| allowed(part));
        // Branches may have slashes; the hub wants them escaped, which a commit or tag never needs.
        if !named || !allowed(revision) {
            bail!(
                "'{text}' is neither a folder here nor a model of the hub such as Qwen/Qwen3-8B or Qwen/Qwen3-8B@COMMIT"
            );
        }
        Ok(Self { name, revision })
    }
}

pub(super) fn describe(text: &str) -> anyhow::Result<Description> {
    let repository = Repository::parse(text)?;
    let endpoint = setting("HF_ENDPOINT").unwrap_or_else(|| ENDPOINT.to_owned());
    let hub = Hub::new(&endpoint, setting("HF_TOKEN"))?;
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    runtime
        .block_on(ask(&hub, &repository))
        .with_context(|| format!("failed to read {} from {}", repository.name, hub.endpoint))
}

fn setting(name: &str) -> Option<String> {
    std::env::var(name)
        .ok()
        .map(|value| value.trim().to_owned())
        .filter(|value| !value.is_empty())
}

async fn ask(hub: &Hub, repository: &Repository<'_>) -> anyhow::Result<Description> {
    let name = repository.name;
    let about = hub
        .json(&format!(
            "/api/models/{name}/revision/{}",
            repository.revision
        ))
        .await?
        .0;
    let commit = about
        .get("sha")
        .and_then(Value::as_str)
        .context("its answer names no commit")?
        .to_owned();
    let mut files = Vec::new();
    let mut next = Some(format!("/api/models/{name}/tree/{commit}"));
    for _ in 0..PAGES {
        let Some(path) = next.take() else { break };
        let (page, headers) = hub.json(&path).await?;
        files.extend(page.as_array().into_iter().flatten().filter_map(file));
        next = following(&headers);
    }
    let config = hub
        .get(
            &format!("/{name}/resolve/{commit}/config.json"),
            CONFIG_LIMIT_BYTES,
        )
        .await?
        .0;
    let config = String::from_utf8(config.to_vec()).context("its config.json is not text")?;
    description::describe(&format!("{name}@{commit}"), &config, &files)
}

/// A file at the top of the repository with its size; large ones have it beside their hash.
fn file(entry: &Value) -> Option<(String, u64)> {
    let path = entry.get("path")?.as_str()?;
    let size = entry
        .pointer("/lfs/size")
        .or_else(|| entry.get("size"))?
        .as_u64()?;
    (!path.contains('/')).then(|| (path.to_owned(), size))
}

/// The path of the next page: `<https://…>; rel="next"`.
fn following(headers: &HeaderMap) -> Option<String> {
    let links = headers.get(LINK)?.to_str().ok()?;
    let link = links
        .split(',')
        .find(|link| link.contains("rel=\"next\""))?;
    let address: Uri = link.split_once('<')?.1.split_once('>')?.0.parse().ok()?;
    Some(address.path_and_query()?.as_str().to_owned())
}

struct Hub {
    endpoint: String,
    token: Option<String>,
    client: Client<hyper_rustls::HttpsConnector<HttpConnector>, Empty<Bytes>>,
}

impl Hub {
    fn new(endpoint: &str, token: Option<String>) -> anyhow::Result<Self> {
        let connector = HttpsConnectorBuilder::new()
            .with_provider_and_native_roots(rustls::crypto::ring::default_provider())
            .context("failed to read this machine's certificate authorities")?
            .https_or_http()
            .enable_http1()
            .build();
        Ok(Self {
            endpoint: endpoint.trim_end_matches('/').to_owned(),
            token,
            client: Client::builder(TokioExecutor::new()).build(connector),
        })
    }

    async fn json(&self, path: &str) -> anyhow::Result<(Value, HeaderMap)> {
        let (body, headers) = self.get(path, CONFIG_LIMIT_BYTES).await?;
        let value = serde_json::from_slice(&body)
            .with_context(|| format!("{path} did not answer with JSON"))?;
        Ok((value, headers))
    }

    async fn get(&self, path: &str, limit: usize) -> anyhow::Result<(Bytes, HeaderMap)> {
        let late = || format!("{path} did not answer within {} s", DEADLINE.as_secs());
        tokio::time::timeout(DEADLINE, self.follow(path, limit))
            .await
            .with_context(late)?
    }

    async fn follow(&self, path: &str, limit: usize) -> anyhow::Result<(Bytes, HeaderMap)> {
        let home: Uri = format!("{}{path}", self.endpoint)
            .parse()
            .with_context(|| format!("'{}' is no address", self.endpoint))?;
        let mut address = home.clone();
        for _ in 0..=REDIRECTS {
            let mut request = Request::get(address.clone());
            if let Some(token) = self.token.as_ref().filter(|_| same_place(&address, &home)) {
                request = request.header(AUTHORIZATION, format!("Bearer {token}"));
            }
            let answer = self
                .client
                .request(request.body(Empty::new())?)
                .await
                .with_context(|| format!("failed to reach {}", place(&address)))?;
            if answer.status().is_redirection() {
                let location = answer
                    .headers()
                    .get(LOCATION)
                    .and_then(|text| text.to_str().ok());
                address = onward(
                    &address,
                    location.context("a redirection without an address")?,
                )?;
                continue;
            }
            if !answer.status().is_success() {
                bail!("{}", refusal(answer.status(), path, self.token.is_some()));
            }
            let (parts, body) = answer.into_parts();
            let body = Limited::new(body, limit).collect().await;
            let body = body.map_err(|error| anyhow::anyhow!("{path}: {error}"))?;
            return Ok((body.to_bytes(), parts.headers));
        }
        bail!("{path} redirects more than {REDIRECTS} times")
    }
}

fn same_place(one: &Uri, other: &Uri) -> bool {
    one.scheme() == other.scheme() && one.authority() == other.authority()
}

/// Scheme and host, without what may be secret in a signed address.
fn place(address: &Uri) -> String {
    format!(
        "{}://{}",
        address.scheme_str().unwrap_or("http"),
        address.authority().map_or("", http::uri::Authority::as_str)
    )
}

fn onward(from: &Uri, location: &str) -> anyhow::Result<Uri> {
    let text = if location.starts_with('/') {
        format!("{}{location}", place(from))
    } else {
        location.to_owned()
    };
    let address: Uri = text
        .parse()
        .context("it redirects to something that is no address")?;
    if from.scheme_str() == Some("https") && address.scheme_str() != Some("https") {
        bail!(
            "it redirects to {}, which is not encrypted",
            place(&address)
        );
    }
    Ok(address)
}

fn refusal(status: StatusCode, path: &str, token: bool) -> String {
    let next = match status {
        StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN if token => {
            "the token in HF_TOKEN may not read this model; accept its licence on the hub or use another token"
        }
        StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN => {
            "it does not exist or needs a token; set HF_TOKEN"
        }
        StatusCode::NOT_FOUND => "there is no such model, revision or file; check the name",
        StatusCode::TOO_MANY_REQUESTS => "the hub asks to wait; try again in some minutes",
        _ => "try again later, or name a mirror with HF_ENDPOINT",
    };
    format!("{path} answered {status}: {next}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_names_of_the_hub_are_asked_for() {
        let good = Repository::parse("hf://Qwen/Qwen3-8B@v1.0").unwrap();
        assert_eq!(
            good,
            Repository {
                name: "Qwen/Qwen3-8B",
                revision: "v1.0"
            }
        );
        for bad in [
            "",
            "gpt2",
            "a/b/c",
            "../x",
            "a/..",
            "a/b@",
            "a b/c",
            "a/b?x=1",
            "a/b@../../x",
            "https://x/y",
        ] {
            assert!(Repository::parse(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn a_redirection_never_leaves_encryption() {
        let from: Uri = "https://hub.example/x".parse().unwrap();
        assert_eq!(onward(&from, "/y").unwrap(), "https://hub.example/y");
        assert!(onward(&from, "http://other.example/y").is_err());
    }
}
