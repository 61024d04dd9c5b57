//! Azure Blob Storage: the blobs below a prefix of a container, asked for with a shared access signature, with requests
//! signed by the account's key, or by everybody where the container is public.

use std::fmt::{self, Debug};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use http::{Method, StatusCode, Uri};
use jiff::Timestamp;
use ring::hmac;

use crate::checksum::Checksum;
use crate::client::{ANSWER_LIMIT_BYTES, Client, escaped, escaped_value, parse};
use crate::error::FetchError;
use crate::listing::{Listing, Place, RemoteFile};
use crate::plain::{tame, validator};
use crate::proof::Headers;
use crate::s3::{elements, plain, unescaped};
use crate::source::Container;

/// Pages of a list that are followed; a page has five thousand blobs.
const PAGES: usize = 200;
/// The version of the service's language that is spoken here.
const VERSION: &str = "2021-08-06";

/// How an account is asked.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Azure {
    /// `http://127.0.0.1:10000/devstoreaccount1`; Azure's own of the account where there is none.
    pub endpoint: Option<String>,
    /// Without it, what everybody may read is read.
    pub access: Option<Access>,
}

/// What an account lets somebody in by.
#[derive(Clone, PartialEq, Eq)]
pub enum Access {
    /// A shared access signature: the part of an address after the question mark.
    Sas(String),
    /// The account's key.
    Key(Vec<u8>),
}

impl Debug for Access {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Access(…)")
    }
}

impl Access {
    /// Reads a shared access signature as Azure's tools print it.
    pub fn sas(text: &str) -> Result<Self, FetchError> {
        let text = text.trim().trim_start_matches('?');
        let sound = text.contains("sig=") && text.chars().all(|it| it.is_ascii_graphic());
        sound
            .then(|| Self::Sas(text.to_owned()))
            .ok_or_else(|| FetchError::Credentials("it has no SAS token with a sig".to_owned()))
    }

    /// Reads a key of an account, in base64.
    pub fn key(text: &str) -> Result<Self, FetchError> {
        let key = STANDARD.decode(text.trim()).ok();
        key.filter(|key| !key.is_empty())
            .map(Self::Key)
            .ok_or_else(|| FetchError::Credentials("its account key is not base64".to_owned()))
    }
}

impl Azure {
    pub(crate) fn address(&self, account: &str) -> String {
        match &self.endpoint {
            Some(endpoint) => endpoint.trim_end_matches('/').to_owned(),
            None => format!("https://{account}.blob.core.windows.net"),
        }
    }
}

/// Somebody who asks an account.
#[derive(Clone, Debug)]
pub(crate) struct Caller {
    pub(crate) account: String,
    pub(crate) access: Option<Access>,
}

impl Caller {
    /// The headers of a request without a body.
    pub(crate) fn headers(
        &self,
        method: &Method,
        address: &Uri,
        range: Option<(u64, u64)>,
        now: Timestamp,
    ) -> Headers {
        let mut headers = vec![("x-ms-version", VERSION.to_owned())];
        if let Some(Access::Key(key)) = &self.access {
            let date = now.strftime("%a, %d %b %Y %H:%M:%S GMT").to_string();
            headers.insert(0, ("x-ms-date", date));
            let text = self.to_sign(method, address, range, &headers);
            let key = hmac::Key::new(hmac::HMAC_SHA256, key);
            let signature = STANDARD.encode(hmac::sign(&key, text.as_bytes()));
            let header = format!("SharedKey {}:{signature}", self.account);
            headers.push(("authorization", header));
        }
        headers
    }

    /// What a signature is of: the method, standard headers (of which only a range is sent), Azure's own in alphabetical
    /// order, and what is asked for.
    fn to_sign(
        &self,
        method: &Method,
        address: &Uri,
        range: Option<(u64, u64)>,
        headers: &Headers,
    ) -> String {
        let range = range.map_or(String::new(), |(first, last)| {
            format!("bytes={first}-{last}")
        });
        let own: String = headers
            .iter()
            .flat_map(|(name, value)| [*name, ":", value, "\n"])
            .collect();
        let query = address.query().unwrap_or_default();
        let mut parameters: Vec<String> = query
            .split('&')
            .filter_map(|pair| pair.split_once('='))
            .map(|(name, value)| {
                let value = unescaped(value).unwrap_or_default();
                format!("\n{}:{value}", name.to_lowercase())
            })
            .collect();
        parameters.sort();
        format!(
            "{method}\n\n\n\n\n\n\n\n\n\n\n{range}\n{own}/{}{}{}",
            self.account,
            address.path(),
            parameters.concat()
        )
    }

    /// The address a request goes to: a shared access signature is a part of it, and of nothing that is kept or told.
    pub(crate) fn target(&self, address: &Uri) -> Result<Uri, FetchError> {
        let Some(Access::Sas(sas)) = &self.access else {
            return Ok(address.clone());
        };
        let sign = if address.query().is_some() { '&' } else { '?' };
        parse(&format!("{address}{sign}{sas}"))
    }

    pub(crate) fn advice(&self, status: StatusCode) -> Option<&'static str> {
        match (status, &self.access) {
            (
                StatusCode::UNAUTHORIZED
                | StatusCode::FORBIDDEN
                | StatusCode::NOT_FOUND
                | StatusCode::CONFLICT,
                None,
            ) => Some("it does not exist or needs an account key or a SAS token"),
            (StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN, Some(Access::Sas(_))) => {
                Some("the SAS token is wrong, has expired or may not read and list; make another")
            }
            (StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN, Some(Access::Key(_))) => {
                Some("the account key is wrong or may not be used; check it and the clock")
            }
            _ => None,
        }
    }
}

/// What a container has below a prefix; the blob of that very name where there is nothing below it.
pub(crate) async fn list(
    client: &Client,
    azure: &Azure,
    container: &Container,
) -> Result<Listing, FetchError> {
    let home = format!("{}/{}", azure.address(&container.account), container.name);
    let mut files = below(client, &home, container).await?;
    if files.is_empty() && !container.prefix.is_empty() {
        files.push(single(client, &home, container).await?);
    }
    let path = format!("{}/{}", container.name, container.prefix);
    Ok(Listing {
        name: format!("{}/{}", tame(&container.account), tame(&path)),
        revision: "main".to_owned(),
        commit: None,
        files,
    })
}

async fn below(
    client: &Client,
    home: &str,
    container: &Container,
) -> Result<Vec<RemoteFile>, FetchError> {
    let folder = match container.prefix.as_str() {
        "" => String::new(),
        prefix => format!("{prefix}/"),
    };
    let prefix = escaped_value(&folder);
    let mut files = Vec::new();
    let mut next = String::new();
    for _ in 0..PAGES {
        let address = format!("{home}?restype=container&comp=list&prefix={prefix}{next}");
        let (page, _) = client.whole(&address, ANSWER_LIMIT_BYTES).await?;
        let page = std::str::from_utf8(&page).map_err(|_| nonsense(container, "it is no text"))?;
        for blob in elements(page, "Blob") {
            let found = blob_of(&blob, &folder, home);
            files.extend(found.ok_or_else(|| {
                nonsense(container, "its list has a blob without a name or a size")
            })?);
        }
        match elements(page, "NextMarker").first().map(|it| plain(it)) {
            Some(marker) if !marker.is_empty() => {
                next = format!("&marker={}", escaped_value(&marker));
            }
            _ => return Ok(files),
        }
    }
    Err(nonsense(container, "its list does not end"))
}

/// One blob of a list; a folder is none.
#[expect(
    clippy::option_option,
    reason = "not understood, and understood to be no file"
)]
fn blob_of(blob: &str, folder: &str, home: &str) -> Option<Option<RemoteFile>> {
    let text = |name: &str| {
        let found = elements(blob, name).into_iter().next();
        found
            .map(|text| plain(&text))
            .filter(|text| !text.is_empty())
    };
    let name = text("Name")?;
    let path = name.strip_prefix(folder)?;
    if path.is_empty()
        || path.ends_with('/')
        || text("ResourceType").as_deref() == Some("directory")
    {
        return Some(None);
    }
    // Lists have it without the quotes that answers have.
    let tag = text("Etag").map(|tag| format!("\"{}\"", tag.trim_matches('"')));
    Some(Some(RemoteFile {
        path: path.to_owned(),
        size: text("Content-Length")?.parse().ok()?,
        digest: None,
        checksum: text("Content-MD5").and_then(|sum| md5(&sum)),
        validator: tag,
        place: Place::Address(format!("{home}/{}", escaped(&name))),
    }))
}

async fn single(
    client: &Client,
    home: &str,
    container: &Container,
) -> Result<RemoteFile, FetchError> {
    let address = format!("{home}/{}", escaped(&container.prefix));
    let answer = client.head(&address).await?;
    let headers = answer.response.headers();
    let text = |name: &str| headers.get(name).and_then(|text| text.to_str().ok());
    let size = text("content-length").and_then(|size| size.parse().ok());
    let size = size.ok_or_else(|| nonsense(container, "it does not say how long a blob is"))?;
    let name = container.prefix.rsplit('/').next().unwrap_or_default();
    Ok(RemoteFile {
        path: name.to_owned(),
        size,
        digest: None,
        checksum: text("content-md5").and_then(md5),
        validator: validator(headers),
        place: Place::Address(address),
    })
}

fn md5(text: &str) -> Option<Checksum> {
    let sum = STANDARD.decode(text).ok()?;
    Some(Checksum::Md5(sum.try_into().ok()?))
}

fn nonsense(container: &Container, why: &str) -> FetchError {
    FetchError::Nonsense {
        what: format!("container {} of {}", container.name, container.account),
        why: why.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blobs_are_read_and_folders_are_none() {
        let blob = "<Name>m/a b&amp;c.json</Name><Properties><Etag>0x8D1</Etag><Content-Length>7</Content-Length>\
                    <Content-MD5>1B2M2Y8AsgTpgAmY7PhCfg==</Content-MD5></Properties>";
        let found = blob_of(blob, "m/", "http://h/c").unwrap().unwrap();
        assert_eq!((found.path.as_str(), found.size), ("a b&c.json", 7));
        assert_eq!(found.validator.as_deref(), Some("\"0x8D1\""));
        let sum = found.checksum.map(|sum| sum.to_string());
        assert_eq!(sum.as_deref(), Some("md5:d41d8cd98f00b204e9800998ecf8427e"));
        let place = "http://h/c/m/a%20b%26c.json".to_owned();
        assert_eq!(found.place, Place::Address(place));
        let folder = "<Name>m/sub</Name><ResourceType>directory</ResourceType>";
        assert_eq!(blob_of(folder, "m/", ""), Some(None));
        assert_eq!(blob_of("<Name>m/x</Name>", "m/", ""), None);
    }

    #[test]
    fn what_is_secret_is_not_shown_and_what_is_wrong_is_refused() {
        let key = Access::key("c2VjcmV0").unwrap();
        assert_eq!(format!("{key:?}"), "Access(…)");
        assert!(Access::key("no base64!").is_err());
        assert!(Access::sas("sv=1").is_err());
        assert!(Access::sas("sv=1&sig=a b").is_err());
        let caller = Caller {
            account: "acc".to_owned(),
            access: Some(Access::sas("?sv=1&sig=x%2B\n").unwrap()),
        };
        let address: Uri = "https://h/c?comp=list".parse().unwrap();
        assert_eq!(
            caller.target(&address).unwrap(),
            "https://h/c?comp=list&sv=1&sig=x%2B"
        );
    }

    #[test]
    fn what_is_signed_is_as_the_vendor_describes_it() {
        let caller = Caller {
            account: "acc".to_owned(),
            access: Access::key("c2VjcmV0").ok(),
        };
        let address = "https://acc.blob.core.windows.net/c?restype=container&comp=list&prefix=a%2F";
        let now = "2026-11-17T09:05:00Z".parse().unwrap();
        let address = address.parse().unwrap();
        let mut headers = caller.headers(&Method::GET, &address, Some((0, 9)), now);
        let (name, signed) = headers.pop().unwrap();
        assert_eq!(name, "authorization");
        assert!(signed.starts_with("SharedKey acc:"), "{signed}");
        let text = caller.to_sign(&Method::GET, &address, Some((0, 9)), &headers);
        assert_eq!(
            text,
            "GET\n\n\n\n\n\n\n\n\n\n\nbytes=0-9\nx-ms-date:Tue, 17 Nov 2026 09:05:00 GMT\nx-ms-version:2021-08-06\n\
             /acc/c\ncomp:list\nprefix:a/\nrestype:container"
        );
    }
}
