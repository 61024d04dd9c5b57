//! How a source is shown who asks: a token, a signature, or what it asks for when it is asked. What is shown goes to the
//! source's own place only; that is the client's to see to.

use http::{Method, StatusCode, Uri};

use crate::azure::Caller;
use crate::client::Client;
use crate::error::FetchError;
use crate::google::account::Tokens;
use crate::registry::Login;
use crate::sign::Signer;

/// What a request carries to be let in.
pub(crate) enum Proof {
    /// The same token with every request.
    Token(String),
    /// A signature of every request, as S3 reads it.
    Signed(Signer),
    /// What a registry asks for.
    Registry(Login),
    /// A token of a service account of Google's.
    Google(Tokens),
    /// A signature in the address or of the request, as Azure reads it, or nothing.
    Azure(Caller),
}

/// Headers of a request.
pub(crate) type Headers = Vec<(&'static str, String)>;

impl Proof {
    /// What a request carries.
    pub(crate) async fn headers(
        &self,
        client: &Client,
        method: &Method,
        address: &Uri,
        range: Option<(u64, u64)>,
    ) -> Result<Headers, FetchError> {
        Ok(match self {
            Self::Token(token) => vec![("authorization", format!("Bearer {token}"))],
            Self::Signed(signer) => signer.headers(method, address, jiff::Timestamp::now()),
            Self::Registry(login) => login.headers().await,
            Self::Google(tokens) => tokens.headers(client).await?,
            Self::Azure(caller) => caller.headers(method, address, range, jiff::Timestamp::now()),
        })
    }

    /// After a refusal of what was `shown`: gets what the source asks for. False where there is nothing else to show.
    pub(crate) async fn renew(
        &self,
        client: &Client,
        address: &Uri,
        shown: &Headers,
        challenges: &[String],
    ) -> Result<bool, FetchError> {
        let shown = shown.iter().find(|(name, _)| *name == "authorization");
        let shown = shown.map(|(_, value)| value.as_str());
        match self {
            Self::Token(_) | Self::Signed(_) | Self::Azure(_) => Ok(false),
            Self::Google(tokens) => {
                tokens.forget(shown).await;
                Ok(true)
            }
            Self::Registry(login) => login.renew(client, address, shown, challenges).await,
        }
    }

    /// What to do about a refusal.
    pub(crate) fn advice(&self, status: StatusCode) -> Option<&'static str> {
        let forbidden = matches!(status, StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN);
        match (self, status) {
            (Self::Token(_), _) if forbidden => Some(
                "the token may not read this; accept the model's licence on the hub or use another token",
            ),
            (Self::Signed(_), _) if forbidden => Some(
                "the credentials are wrong or may not read this; check key, secret, region and the rights on the bucket",
            ),
            (
                Self::Signed(_),
                StatusCode::BAD_REQUEST
                | StatusCode::MOVED_PERMANENTLY
                | StatusCode::TEMPORARY_REDIRECT,
            ) => Some("the bucket may be in another region; check the region and the endpoint"),
            (Self::Registry(login), _) if forbidden => Some(login.advice()),
            (Self::Registry(_), StatusCode::NOT_FOUND) => {
                Some("there is no such artifact, tag or digest; check the name")
            }
            (Self::Google(_), _) if forbidden => Some(
                "the account may not read this; give it the role Storage Object Viewer on the bucket",
            ),
            (Self::Azure(caller), _) => caller.advice(status),
            _ => None,
        }
    }

    /// The address a request really goes to.
    pub(crate) fn target(&self, address: &Uri) -> Result<Uri, FetchError> {
        match self {
            Self::Azure(caller) => caller.target(address),
            _ => Ok(address.clone()),
        }
    }
}
