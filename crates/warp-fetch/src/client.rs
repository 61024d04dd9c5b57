//! Requests: redirections followed, the token sent to nobody but the source itself, answers judged as worth another try
//! or not. Waiting and trying again is the caller's.

use std::fmt::Write as _;
use std::time::Duration;

use bytes::Bytes;
use http::header::{AUTHORIZATION, LOCATION, RANGE, RETRY_AFTER, USER_AGENT};
use http::{HeaderMap, Method, Request, Response, StatusCode, Uri};
use http_body_util::{BodyExt, Empty, Limited};
use hyper::body::Incoming;
use hyper_rustls::HttpsConnectorBuilder;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::{TokioExecutor, TokioTimer};

use crate::error::FetchError;
use crate::pace::Pace;
use crate::sign::Signer;

type Connection =
    hyper_util::client::legacy::Client<hyper_rustls::HttpsConnector<HttpConnector>, Empty<Bytes>>;

const REDIRECTS: usize = 8;
const CONNECT_LIMIT: Duration = Duration::from_secs(15);
/// What an unfinished answer may take of memory on one connection.
const READ_BUFFER_BYTES: usize = 1 << 20;
/// No list and no description of a model is larger.
pub(crate) const ANSWER_LIMIT_BYTES: usize = 32 << 20;
/// The longest a server's wish to wait is honoured.
const RETRY_AFTER_LIMIT: Duration = Duration::from_mins(10);

/// How patient and how hungry a fetch is.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Requests at once.
    pub connections: usize,
    /// A connection that sends nothing for this long is given up.
    pub stall: Duration,
    /// A file none of whose bytes came for this long is given up.
    pub patience: Duration,
    pub bytes_per_second: Option<u64>,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            connections: 8,
            stall: Duration::from_secs(30),
            patience: Duration::from_mins(10),
            bytes_per_second: None,
        }
    }
}

/// Asks one source.
pub struct Client {
    connection: Connection,
    /// Sent to addresses that begin with this only.
    token: Option<(Uri, String)>,
    /// Signs requests to addresses that begin with this only.
    signer: Option<(Uri, Signer)>,
    pub(crate) limits: Limits,
    pub(crate) pace: Pace,
}

impl std::fmt::Debug for Client {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Client")
            .field("limits", &self.limits)
            .finish_non_exhaustive()
    }
}

/// An answer and the address that gave it.
pub(crate) struct Answer {
    pub(crate) response: Response<Incoming>,
    pub(crate) address: Uri,
}

impl Client {
    /// A client that shows `token` to the place of `home` and to nobody else.
    pub fn new(home: &str, token: Option<String>, limits: Limits) -> Result<Self, FetchError> {
        let mut tcp = HttpConnector::new();
        tcp.enforce_http(false);
        tcp.set_connect_timeout(Some(CONNECT_LIMIT));
        tcp.set_nodelay(true);
        let connector = HttpsConnectorBuilder::new()
            .with_provider_and_native_roots(rustls::crypto::ring::default_provider())
            .map_err(|error| {
                FetchError::Client(format!(
                    "failed to read this machine's certificate authorities: {error}"
                ))
            })?
            .https_or_http()
            .enable_http1()
            .wrap_connector(tcp);
        let connection = hyper_util::client::legacy::Client::builder(TokioExecutor::new())
            .pool_timer(TokioTimer::new())
            .http1_max_buf_size(READ_BUFFER_BYTES)
            .build(connector);
        let token = match token {
            None => None,
            Some(token) => Some((parse(home)?, token)),
        };
        Ok(Self {
            connection,
            token,
            signer: None,
            pace: Pace::new(limits.bytes_per_second),
            limits,
        })
    }

    /// The same client, with requests to the place of `home` signed.
    pub(crate) fn signed(mut self, home: &str, signer: Signer) -> Result<Self, FetchError> {
        self.signer = Some((parse(home)?, signer));
        Ok(self)
    }

    /// Whether a token is shown to the source.
    pub(crate) fn has_token(&self) -> bool {
        self.token.is_some()
    }

    /// Asks for `range` (first and last byte) of an address, through its redirections.
    pub(crate) async fn get(
        &self,
        address: &str,
        range: Option<(u64, u64)>,
    ) -> Result<Answer, FetchError> {
        self.ask(&Method::GET, address, range).await
    }

    pub(crate) async fn head(&self, address: &str) -> Result<Answer, FetchError> {
        self.ask(&Method::HEAD, address, None).await
    }

    /// A whole answer of bounded size.
    pub(crate) async fn whole(
        &self,
        address: &str,
        limit: usize,
    ) -> Result<(Bytes, HeaderMap), FetchError> {
        let answer = self.get(address, None).await?;
        let (parts, body) = answer.response.into_parts();
        let what = place(&answer.address);
        let body = tokio::time::timeout(self.limits.stall, Limited::new(body, limit).collect())
            .await
            .map_err(|_| self.stalled(&what))?
            .map_err(|error| FetchError::Unreachable {
                place: what,
                why: error.to_string(),
            })?;
        Ok((body.to_bytes(), parts.headers))
    }

    async fn ask(
        &self,
        method: &Method,
        address: &str,
        range: Option<(u64, u64)>,
    ) -> Result<Answer, FetchError> {
        let mut address = parse(address)?;
        for _ in 0..=REDIRECTS {
            self.pace.ready().await;
            let request = self.request(method, &address, range)?;
            let response =
                tokio::time::timeout(self.limits.stall, self.connection.request(request))
                    .await
                    .map_err(|_| self.stalled(&place(&address)))?
                    .map_err(|error| FetchError::Unreachable {
                        place: place(&address),
                        why: causes(&error),
                    })?;
            let status = response.status();
            let location = response.headers().get(LOCATION);
            let location = location.and_then(|text| text.to_str().ok());
            // A store that has the bucket in another region says so without an address.
            let elsewhere = self.signer.is_some() && location.is_none();
            if status.is_redirection() && status != StatusCode::NOT_MODIFIED && !elsewhere {
                address = onward(&address, location)?;
                continue;
            }
            if status.is_success() {
                return Ok(Answer { response, address });
            }
            return Err(self.refusal(&address, &response));
        }
        Err(FetchError::Nonsense {
            what: place(&address),
            why: format!("it redirects more than {REDIRECTS} times"),
        })
    }

    fn request(
        &self,
        method: &Method,
        address: &Uri,
        range: Option<(u64, u64)>,
    ) -> Result<Request<Empty<Bytes>>, FetchError> {
        let mut request = Request::builder()
            .method(method)
            .uri(address.clone())
            .header(USER_AGENT, concat!("warp/", env!("CARGO_PKG_VERSION")));
        if let Some((home, token)) = &self.token
            && same_place(home, address)
        {
            request = request.header(AUTHORIZATION, format!("Bearer {token}"));
        }
        if let Some((home, signer)) = &self.signer
            && same_place(home, address)
        {
            for (name, value) in signer.headers(method, address, jiff::Timestamp::now()) {
                request = request.header(name, value);
            }
        }
        if let Some((first, last)) = range {
            request = request.header(RANGE, format!("bytes={first}-{last}"));
        }
        request
            .body(Empty::new())
            .map_err(|error| FetchError::Client(error.to_string()))
    }

    pub(crate) fn stalled(&self, what: &str) -> FetchError {
        FetchError::Stalled {
            what: what.to_owned(),
            seconds: self.limits.stall.as_secs(),
        }
    }

    fn refusal(&self, address: &Uri, response: &Response<Incoming>) -> FetchError {
        let status = response.status();
        let again = matches!(
            status,
            StatusCode::REQUEST_TIMEOUT | StatusCode::TOO_MANY_REQUESTS
        ) || status.is_server_error();
        let next = match status {
            StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN if self.signer.is_some() => {
                "the credentials are wrong or may not read this; check key, secret, region and the rights on the bucket"
            }
            StatusCode::BAD_REQUEST
            | StatusCode::MOVED_PERMANENTLY
            | StatusCode::TEMPORARY_REDIRECT
                if self.signer.is_some() =>
            {
                "the bucket may be in another region; check the region and the endpoint"
            }
            StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN if self.has_token() => {
                "the token may not read this; accept the model's licence on the hub or use another token"
            }
            StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN => {
                "it does not exist or needs a token"
            }
            StatusCode::NOT_FOUND | StatusCode::GONE => {
                "there is no such model, revision or file; check the name"
            }
            StatusCode::TOO_MANY_REQUESTS => "it asks to wait",
            _ if again => "it has trouble at the moment",
            _ => "it does not give this out",
        };
        FetchError::Refused {
            what: format!("{}{}", place(address), address.path()),
            status: status.as_u16(),
            next,
            permanent: !again,
            retry_after: retry_after(response.headers()).filter(|_| again),
        }
    }
}

/// Seconds to wait as the header gives them; a date is not used by any hub or store.
fn retry_after(headers: &HeaderMap) -> Option<Duration> {
    let seconds = headers
        .get(RETRY_AFTER)?
        .to_str()
        .ok()?
        .trim()
        .parse()
        .ok()?;
    Some(Duration::from_secs(seconds).min(RETRY_AFTER_LIMIT))
}

fn parse(address: &str) -> Result<Uri, FetchError> {
    let uri: Uri = address.parse().map_err(|_| {
        FetchError::NoSource(address.split('?').next().unwrap_or_default().to_owned())
    })?;
    let known = matches!(uri.scheme_str(), Some("http" | "https"));
    if known && uri.authority().is_some() {
        Ok(uri)
    } else {
        Err(FetchError::NoSource(place(&uri)))
    }
}

fn same_place(one: &Uri, other: &Uri) -> bool {
    one.scheme() == other.scheme() && one.authority() == other.authority()
}

/// Scheme and host, without what may be secret in a signed address.
pub(crate) fn place(address: &Uri) -> String {
    let host = address.host().unwrap_or_default();
    let port = address
        .port_u16()
        .map_or(String::new(), |port| format!(":{port}"));
    format!("{}://{host}{port}", address.scheme_str().unwrap_or("http"))
}

fn onward(from: &Uri, location: Option<&str>) -> Result<Uri, FetchError> {
    let nonsense = |why: String| FetchError::Nonsense {
        what: place(from),
        why,
    };
    let location =
        location.ok_or_else(|| nonsense("a redirection without an address".to_owned()))?;
    let text = if location.starts_with('/') && !location.starts_with("//") {
        format!("{}{location}", place(from))
    } else {
        location.to_owned()
    };
    let address: Uri = text
        .parse()
        .map_err(|_| nonsense("it redirects to something that is no address".to_owned()))?;
    if address.authority().is_none() {
        return Err(nonsense(
            "it redirects to something that is no address".to_owned(),
        ));
    }
    if from.scheme_str() == Some("https") && address.scheme_str() != Some("https") {
        return Err(nonsense(format!(
            "it redirects to {}, which is not encrypted",
            place(&address)
        )));
    }
    Ok(address)
}

/// A path as a part of an address.
pub(crate) fn escaped(path: &str) -> String {
    let mut text = String::with_capacity(path.len());
    for byte in path.bytes() {
        if byte.is_ascii_alphanumeric() || b"-._~/".contains(&byte) {
            text.push(char::from(byte));
        } else {
            // Writing to a string does not fail.
            let _ = write!(text, "%{byte:02X}");
        }
    }
    text
}

/// An error with what lies below it: the top one often says nothing.
fn causes(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut below = error.source();
    while let Some(cause) = below {
        let words = cause.to_string();
        if !text.contains(&words) {
            text = format!("{text}: {words}");
        }
        below = cause.source();
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_are_escaped_and_slashes_kept() {
        assert_eq!(escaped("a b/ü#?.json"), "a%20b/%C3%BC%23%3F.json");
    }

    #[test]
    fn a_redirection_never_leaves_encryption() {
        let from: Uri = "https://hub.example:8443/x".parse().unwrap();
        assert_eq!(
            onward(&from, Some("/y")).unwrap(),
            "https://hub.example:8443/y"
        );
        assert!(onward(&from, Some("http://other.example/y")).is_err());
        assert!(onward(&from, Some("//other.example/y")).is_err());
        assert!(onward(&from, None).is_err());
    }

    #[test]
    fn a_wish_to_wait_is_honoured_within_reason() {
        let mut headers = HeaderMap::new();
        assert_eq!(retry_after(&headers), None);
        headers.insert(RETRY_AFTER, "7".parse().unwrap());
        assert_eq!(retry_after(&headers), Some(Duration::from_secs(7)));
        headers.insert(RETRY_AFTER, "999999".parse().unwrap());
        assert_eq!(retry_after(&headers), Some(RETRY_AFTER_LIMIT));
    }

    #[test]
    fn what_is_told_about_an_address_leaves_out_what_may_be_secret() {
        let signed: Uri = "https://u:p@s3.example/f?X-Signature=abc".parse().unwrap();
        assert_eq!(place(&signed), "https://s3.example");
    }
}
