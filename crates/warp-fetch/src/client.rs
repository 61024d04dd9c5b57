//! Requests: redirections followed, what is secret shown to nobody but the source itself, answers judged as worth
//! another try or not. Waiting and trying again is the caller's.

use std::fmt::Write as _;
use std::time::Duration;

use bytes::Bytes;
use http::header::{ACCEPT, LOCATION, RANGE, RETRY_AFTER, USER_AGENT, WWW_AUTHENTICATE};
use http::{HeaderMap, Method, Request, Response, StatusCode, Uri};
use http_body_util::{BodyExt, Full, Limited};
use hyper::body::Incoming;
use hyper_rustls::HttpsConnectorBuilder;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::{TokioExecutor, TokioTimer};

use crate::error::FetchError;
use crate::pace::Pace;
use crate::proof::Proof;

type Connection =
    hyper_util::client::legacy::Client<hyper_rustls::HttpsConnector<HttpConnector>, Full<Bytes>>;

/// Who asks, told to every server.
pub(crate) const AGENT: &str = concat!("warp/", env!("CARGO_PKG_VERSION"));
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
    /// A model of more bytes is not begun.
    pub most_bytes: Option<u64>,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            connections: 8,
            stall: Duration::from_secs(30),
            patience: Duration::from_mins(10),
            bytes_per_second: None,
            most_bytes: None,
        }
    }
}

/// Asks one source.
pub struct Client {
    connection: Connection,
    /// Shown to addresses that begin with this only.
    proof: Option<(Uri, Proof)>,
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

/// What is wanted of an address, besides all of it.
#[derive(Clone, Copy, Debug, Default)]
struct Wish<'a> {
    /// First and last byte.
    range: Option<(u64, u64)>,
    /// Forms the answer may have.
    accept: Option<&'a str>,
}

/// An answer and the address that gave it.
pub(crate) struct Answer {
    pub(crate) response: Response<Incoming>,
    pub(crate) address: Uri,
}

impl Client {
    /// A client that shows `token` to the place of `home` and to nobody else.
    pub fn new(home: &str, token: Option<String>, limits: Limits) -> Result<Self, FetchError> {
        Self::with(home, token.map(Proof::Token), limits)
    }

    /// A client that shows `proof` to the place of `home` and to nobody else.
    pub(crate) fn with(
        home: &str,
        proof: Option<Proof>,
        limits: Limits,
    ) -> Result<Self, FetchError> {
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
        let proof = match proof {
            None => None,
            Some(proof) => Some((parse(home)?, proof)),
        };
        Ok(Self {
            connection,
            proof,
            pace: Pace::new(limits.bytes_per_second),
            limits,
        })
    }

    /// Asks for `range` (first and last byte) of an address, through its redirections.
    pub(crate) async fn get(
        &self,
        address: &str,
        range: Option<(u64, u64)>,
    ) -> Result<Answer, FetchError> {
        let wish = Wish {
            range,
            accept: None,
        };
        self.ask(&Method::GET, address, wish).await
    }

    pub(crate) async fn head(&self, address: &str) -> Result<Answer, FetchError> {
        self.ask(&Method::HEAD, address, Wish::default()).await
    }

    /// A whole answer of bounded size.
    pub(crate) async fn whole(
        &self,
        address: &str,
        limit: usize,
    ) -> Result<(Bytes, HeaderMap), FetchError> {
        self.whole_as(address, None, limit).await
    }

    /// The same, in one of the forms that `accept` names.
    pub(crate) async fn whole_as(
        &self,
        address: &str,
        accept: Option<&str>,
        limit: usize,
    ) -> Result<(Bytes, HeaderMap), FetchError> {
        let wish = Wish {
            range: None,
            accept,
        };
        let answer = self.ask(&Method::GET, address, wish).await?;
        self.read(answer, limit).await
    }

    /// All of an answer.
    async fn read(&self, answer: Answer, limit: usize) -> Result<(Bytes, HeaderMap), FetchError> {
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
        wish: Wish<'_>,
    ) -> Result<Answer, FetchError> {
        let mut address = parse(address)?;
        let mut renewed = false;
        let mut redirects = 0;
        while redirects <= REDIRECTS {
            self.pace.ready().await;
            let proof = self.proof_for(&address);
            let shown = match proof {
                Some(proof) => proof.headers(self, method, &address, wish.range).await?,
                None => Vec::new(),
            };
            let target = match proof {
                Some(proof) => proof.target(&address)?,
                None => address.clone(),
            };
            let request = request(method, &target, wish, &shown)?;
            let response = self.send(&address, request).await?;
            let status = response.status();
            if status == StatusCode::UNAUTHORIZED
                && !renewed
                && let Some(proof) = proof
            {
                let asked = challenges(response.headers());
                renewed = proof.renew(self, &address, &shown, &asked).await?;
                if renewed {
                    continue;
                }
            }
            let location = response.headers().get(LOCATION);
            let location = location.and_then(|text| text.to_str().ok());
            // A store that has the bucket in another region says so without an address.
            let elsewhere = self.is_bucket() && location.is_none();
            if status.is_redirection() && status != StatusCode::NOT_MODIFIED && !elsewhere {
                address = onward(&address, location)?;
                redirects += 1;
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

    /// A question of its own to whoever gives out tokens: nothing is shown, nothing followed.
    pub(crate) async fn exchange(
        &self,
        address: &Uri,
        request: Request<Full<Bytes>>,
        limit: usize,
    ) -> Result<Bytes, FetchError> {
        let response = self.send(address, request).await?;
        if !response.status().is_success() {
            return Err(self.refusal(address, &response));
        }
        let address = address.clone();
        let (body, _) = self.read(Answer { response, address }, limit).await?;
        Ok(body)
    }

    async fn send(
        &self,
        address: &Uri,
        request: Request<Full<Bytes>>,
    ) -> Result<Response<Incoming>, FetchError> {
        tokio::time::timeout(self.limits.stall, self.connection.request(request))
            .await
            .map_err(|_| self.stalled(&place(address)))?
            .map_err(|error| FetchError::Unreachable {
                place: place(address),
                why: causes(&error),
            })
    }

    /// What is shown to an address.
    fn proof_for(&self, address: &Uri) -> Option<&Proof> {
        let (home, proof) = self.proof.as_ref()?;
        same_place(home, address).then_some(proof)
    }

    fn is_bucket(&self) -> bool {
        matches!(self.proof, Some((_, Proof::Signed(_))))
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
        let advice = self.proof.as_ref();
        let advice = advice.and_then(|(_, proof)| proof.advice(status));
        let next = advice.unwrap_or(match status {
            StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN => {
                "it does not exist or needs a token"
            }
            StatusCode::NOT_FOUND | StatusCode::GONE => {
                "there is no such model, revision or file; check the name"
            }
            StatusCode::TOO_MANY_REQUESTS => "it asks to wait",
            _ if again => "it has trouble at the moment",
            _ => "it does not give this out",
        });
        FetchError::Refused {
            what: format!("{}{}", place(address), address.path()),
            status: status.as_u16(),
            next,
            permanent: !again,
            retry_after: retry_after(response.headers()).filter(|_| again),
        }
    }
}

fn request(
    method: &Method,
    address: &Uri,
    wish: Wish<'_>,
    shown: &[(&'static str, String)],
) -> Result<Request<Full<Bytes>>, FetchError> {
    let mut request = Request::builder()
        .method(method)
        .uri(address.clone())
        .header(USER_AGENT, AGENT);
    for (name, value) in shown {
        request = request.header(*name, value);
    }
    if let Some((first, last)) = wish.range {
        request = request.header(RANGE, format!("bytes={first}-{last}"));
    }
    if let Some(accept) = wish.accept {
        request = request.header(ACCEPT, accept);
    }
    request
        .body(Full::default())
        .map_err(|error| FetchError::Client(error.to_string()))
}

/// What a server asks to be shown.
fn challenges(headers: &HeaderMap) -> Vec<String> {
    let asked = headers.get_all(WWW_AUTHENTICATE).iter();
    asked
        .filter_map(|text| text.to_str().ok())
        .map(str::to_owned)
        .collect()
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

pub(crate) fn parse(address: &str) -> Result<Uri, FetchError> {
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

/// A value of a query.
pub(crate) fn escaped_value(text: &str) -> String {
    escaped(text).replace('/', "%2F")
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
