//! The objects below a prefix of a bucket, in S3 or a store that speaks its language.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use http::header::{CONTENT_LENGTH, HeaderMap};

use crate::client::{ANSWER_LIMIT_BYTES, Client, escaped};
use crate::digest::Digest;
use crate::error::FetchError;
use crate::listing::{Listing, Place, RemoteFile};
use crate::plain::{tame, validator};
use crate::sign::Credentials;
use crate::source::Bucket;

/// Pages of a list that are followed; a page has a thousand objects.
const PAGES: usize = 200;

/// Where buckets are, and who asks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Store {
    /// `https://s3.example`; Amazon's own of the region where there is none.
    pub endpoint: Option<String>,
    pub region: String,
    /// Without them, what everybody may read is read.
    pub credentials: Option<Credentials>,
}

impl Default for Store {
    fn default() -> Self {
        Self {
            endpoint: None,
            region: "us-east-1".to_owned(),
            credentials: None,
        }
    }
}

impl Store {
    /// The address below which every bucket is a folder: all stores understand that form.
    pub(crate) fn address(&self) -> String {
        match &self.endpoint {
            Some(endpoint) => endpoint.trim_end_matches('/').to_owned(),
            None => format!("https://s3.{}.amazonaws.com", self.region),
        }
    }
}

/// What a bucket has below a prefix; the object of that very name where there is nothing below it.
pub(crate) async fn list(
    client: &Client,
    store: &Store,
    bucket: &Bucket,
) -> Result<Listing, FetchError> {
    let home = format!("{}/{}", store.address(), bucket.name);
    let mut files = below(client, &home, bucket).await?;
    if files.is_empty() && !bucket.prefix.is_empty() {
        files.push(single(client, &home, bucket).await?);
    }
    Ok(Listing {
        name: format!("{}/{}", tame(&bucket.name), tame(&bucket.prefix)),
        revision: "main".to_owned(),
        commit: None,
        files,
    })
}

async fn below(
    client: &Client,
    home: &str,
    bucket: &Bucket,
) -> Result<Vec<RemoteFile>, FetchError> {
    let folder = match bucket.prefix.as_str() {
        "" => String::new(),
        prefix => format!("{prefix}/"),
    };
    let prefix = escaped(&folder).replace('/', "%2F");
    let mut files = Vec::new();
    let mut next = String::new();
    for _ in 0..PAGES {
        // In alphabetical order, as they are signed.
        let address = format!("{home}?{next}encoding-type=url&list-type=2&prefix={prefix}");
        let (page, _) = client.whole(&address, ANSWER_LIMIT_BYTES).await?;
        let page = std::str::from_utf8(&page).map_err(|_| nonsense(bucket, "it is no text"))?;
        for object in elements(page, "Contents") {
            let found = object_of(&object, &folder, home);
            let Some(mut found) = found.ok_or_else(|| {
                nonsense(bucket, "its list has an object without a name or a size")
            })?
            else {
                continue;
            };
            let kept = elements(&object, "ChecksumAlgorithm");
            if kept.iter().any(|kind| kind == "SHA256")
                && let Place::Address(address) = &found.place
            {
                found.digest = checksum(client.head(address).await?.response.headers());
            }
            files.push(found);
        }
        if elements(page, "IsTruncated").first().map(String::as_str) != Some("true") {
            return Ok(files);
        }
        let token = elements(page, "NextContinuationToken");
        let token = token
            .first()
            .ok_or_else(|| nonsense(bucket, "its list goes on and does not say where"))?;
        let token = escaped(&plain(token)).replace('/', "%2F");
        next = format!("continuation-token={token}&");
    }
    Err(nonsense(bucket, "its list does not end"))
}

/// One object of a list; a marker of a folder is none.
#[expect(
    clippy::option_option,
    reason = "not understood, and understood to be no file"
)]
fn object_of(object: &str, folder: &str, home: &str) -> Option<Option<RemoteFile>> {
    let text = |name: &str| elements(object, name).into_iter().next();
    let key = unescaped(&plain(&text("Key")?))?;
    let size = text("Size")?.trim().parse().ok()?;
    let path = key.strip_prefix(folder)?;
    if path.is_empty() || path.ends_with('/') {
        return Some(None);
    }
    Some(Some(RemoteFile {
        path: path.to_owned(),
        size,
        digest: None,
        checksum: None,
        validator: text("ETag").map(|tag| plain(&tag)),
        place: Place::Address(format!("{home}/{}", escaped(&key))),
    }))
}

async fn single(client: &Client, home: &str, bucket: &Bucket) -> Result<RemoteFile, FetchError> {
    let address = format!("{home}/{}", escaped(&bucket.prefix));
    let answer = client.head(&address).await?;
    let headers = answer.response.headers();
    let size = number(headers).ok_or_else(|| nonsense(bucket, "it does not say how long it is"))?;
    let name = bucket.prefix.rsplit('/').next().unwrap_or_default();
    Ok(RemoteFile {
        path: name.to_owned(),
        size,
        digest: checksum(headers),
        checksum: None,
        validator: validator(headers),
        place: Place::Address(address),
    })
}

/// The SHA-256 a store keeps of a whole object, where whoever put it there asked for one.
fn checksum(headers: &HeaderMap) -> Option<Digest> {
    let kind = headers.get("x-amz-checksum-type");
    if kind.is_some_and(|kind| kind != "FULL_OBJECT") {
        return None;
    }
    let text = headers.get("x-amz-checksum-sha256")?.to_str().ok()?;
    let bytes: [u8; 32] = STANDARD.decode(text).ok()?.try_into().ok()?;
    Some(Digest::Sha256(bytes))
}

fn number(headers: &HeaderMap) -> Option<u64> {
    headers.get(CONTENT_LENGTH)?.to_str().ok()?.parse().ok()
}

fn nonsense(bucket: &Bucket, why: &str) -> FetchError {
    FetchError::Nonsense {
        what: format!("bucket {}", bucket.name),
        why: why.to_owned(),
    }
}

/// What stands inside every element of this name, in order. Lists of objects have neither attributes nor elements of
/// one name inside each other.
pub(crate) fn elements(text: &str, name: &str) -> Vec<String> {
    let (open, close) = (format!("<{name}>"), format!("</{name}>"));
    let parts = text.split(open.as_str()).skip(1);
    parts
        .filter_map(|part| Some(part.split_once(close.as_str())?.0.to_owned()))
        .collect()
}

/// Text without the entities of XML.
pub(crate) fn plain(text: &str) -> String {
    text.replace("&quot;", "\"")
        .replace("&#34;", "\"")
        .replace("&apos;", "'")
        .replace("&#39;", "'")
        .replace("&lt;", "<")
        .replace("&gt;", ">")
        .replace("&amp;", "&")
}

/// A name as the list gives it, escaped like a part of an address; a plus sign is a space there.
pub(crate) fn unescaped(text: &str) -> Option<String> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.bytes();
    while let Some(byte) = rest.next() {
        match byte {
            b'%' => {
                let digits = [rest.next()?, rest.next()?];
                let digits = std::str::from_utf8(&digits).ok()?;
                bytes.push(u8::from_str_radix(digits, 16).ok()?);
            }
            b'+' => bytes.push(b' '),
            byte => bytes.push(byte),
        }
    }
    String::from_utf8(bytes).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_list_is_read_with_escaped_names_and_without_markers_of_folders() {
        let page = "<R><Contents><Key>m/a+b%2Fc%25.json</Key><ETag>&quot;x&quot;</ETag><Size>7</Size></Contents>\
                    <Contents><Key>m/</Key><Size>0</Size></Contents></R>";
        let objects = elements(page, "Contents");
        let file = object_of(&objects[0], "m/", "http://h/b").unwrap().unwrap();
        assert_eq!((file.path.as_str(), file.size), ("a b/c%.json", 7));
        assert_eq!(file.validator.as_deref(), Some("\"x\""));
        let place = "http://h/b/m/a%20b/c%25.json".to_owned();
        assert_eq!(file.place, Place::Address(place));
        assert_eq!(object_of(&objects[1], "m/", "http://h/b"), Some(None));
        assert_eq!(object_of("<Key>m/x</Key>", "m/", "http://h/b"), None);
        assert_eq!(unescaped("%zz"), None);
    }

    #[test]
    fn only_a_checksum_of_the_whole_object_counts() {
        let mut headers = HeaderMap::new();
        assert_eq!(checksum(&headers), None);
        let hello = "LPJNul+wow4m6DsqxbninhsWHlwfp0JecwQzYpOLmCQ=";
        headers.insert("x-amz-checksum-sha256", hello.parse().unwrap());
        let right = "2cf24dba5fb0a30e26e83b2ac5b9e29e1b161e5c1fa7425e73043362938b9824";
        assert_eq!(checksum(&headers), Digest::sha256(right));
        headers.insert("x-amz-checksum-type", "COMPOSITE".parse().unwrap());
        assert_eq!(checksum(&headers), None);
        headers.clear();
        for bad in [
            "LPJN-1",
            "LPJN",
            "*=",
            "LPJNul+wow4m6DsqxbninhsWHlwfp0JecwQzYpOLm=",
        ] {
            headers.insert("x-amz-checksum-sha256", bad.parse().unwrap());
            assert_eq!(checksum(&headers), None, "{bad}");
        }
    }
}
