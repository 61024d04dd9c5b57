//! Google Cloud Storage: the objects below a prefix of a bucket through the JSON API, each pinned by its generation and
//! checked by the CRC-32C that Google keeps of every object.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::Value;

use self::account::ServiceAccount;

use crate::checksum::Checksum;
use crate::client::{ANSWER_LIMIT_BYTES, Client, escaped_value};
use crate::error::FetchError;
use crate::listing::{Listing, Place, RemoteFile};
use crate::plain::tame;
use crate::source::Bucket;

pub(crate) mod account;

/// Pages of a list that are followed; a page has a thousand objects.
const PAGES: usize = 200;
const ENDPOINT: &str = "https://storage.googleapis.com";
const FIELDS: &str = "name,size,generation,crc32c,contentEncoding";

/// Where buckets are, and who asks.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Google {
    /// `http://emulator:4443`; Google's own where there is none.
    pub endpoint: Option<String>,
    /// Without one, what everybody may read is read.
    pub account: Option<ServiceAccount>,
}

impl Google {
    pub(crate) fn address(&self) -> String {
        let endpoint = self.endpoint.as_deref().unwrap_or(ENDPOINT);
        let endpoint = endpoint.trim_end_matches('/');
        // Emulators are often named by host and port alone.
        if endpoint.contains("://") {
            endpoint.to_owned()
        } else {
            format!("http://{endpoint}")
        }
    }
}

/// What a bucket has below a prefix; the object of that very name where there is nothing below it.
pub(crate) async fn list(
    client: &Client,
    google: &Google,
    bucket: &Bucket,
) -> Result<Listing, FetchError> {
    let home = format!("{}/storage/v1/b/{}/o", google.address(), bucket.name);
    let mut files = below(client, &home, bucket).await?;
    if files.is_empty() && !bucket.prefix.is_empty() {
        let address = format!("{home}/{}?fields={FIELDS}", escaped_value(&bucket.prefix));
        let object = json(client, &address, bucket).await?;
        let folder = bucket.prefix.rsplit_once('/');
        let folder = folder.map_or(String::new(), |(folder, _)| format!("{folder}/"));
        files.extend(file(&object, &folder, &home).map_err(|why| nonsense(bucket, &why))?);
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
    let prefix = escaped_value(&folder);
    let mut files = Vec::new();
    let mut next = String::new();
    for _ in 0..PAGES {
        let address = format!(
            "{home}?prefix={prefix}&maxResults=1000&fields=nextPageToken,items({FIELDS}){next}"
        );
        let page = json(client, &address, bucket).await?;
        for object in page["items"].as_array().into_iter().flatten() {
            files.extend(file(object, &folder, home).map_err(|why| nonsense(bucket, &why))?);
        }
        match page["nextPageToken"].as_str() {
            Some(token) => next = format!("&pageToken={}", escaped_value(token)),
            None => return Ok(files),
        }
    }
    Err(nonsense(bucket, "its list does not end"))
}

async fn json(client: &Client, address: &str, bucket: &Bucket) -> Result<Value, FetchError> {
    let (body, _) = client.whole(address, ANSWER_LIMIT_BYTES).await?;
    serde_json::from_slice(&body).map_err(|_| nonsense(bucket, "its answer is not JSON"))
}

/// One object of a list; a marker of a folder is none.
fn file(object: &Value, folder: &str, home: &str) -> Result<Option<RemoteFile>, String> {
    let text = |name: &str| object[name].as_str();
    let name = text("name").ok_or("its list has an object without a name")?;
    let path = name.strip_prefix(folder).unwrap_or(name);
    if path.is_empty() || path.ends_with('/') {
        return Ok(None);
    }
    if text("contentEncoding").is_some_and(|encoding| encoding.contains("gzip")) {
        return Err(format!(
            "'{name}' is stored compressed (contentEncoding gzip); store it as it is"
        ));
    }
    let size = text("size").and_then(|size| size.parse().ok());
    let generation = text("generation").and_then(|number| number.parse::<u64>().ok());
    let sum = text("crc32c").and_then(|sum| STANDARD.decode(sum).ok());
    let sum = sum.and_then(|sum| Some(u32::from_be_bytes(sum.try_into().ok()?)));
    let known = size.zip(generation).zip(sum);
    let ((size, generation), sum) =
        known.ok_or_else(|| format!("it does not say size, generation and CRC-32C of '{name}'"))?;
    Ok(Some(RemoteFile {
        path: path.to_owned(),
        size,
        digest: None,
        checksum: Some(Checksum::Crc32c(sum)),
        // The generation in the address says the same, and better.
        validator: None,
        place: Place::Address(format!(
            "{home}/{}?alt=media&generation={generation}",
            escaped_value(name)
        )),
    }))
}

fn nonsense(bucket: &Bucket, why: &str) -> FetchError {
    FetchError::Nonsense {
        what: format!("bucket {}", bucket.name),
        why: why.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn objects_are_pinned_by_generation_and_known_by_their_sum() {
        let object =
            json!({"name": "m/a b/c.json", "size": "7", "generation": "16", "crc32c": "4waSgw=="});
        let found = file(&object, "m/", "http://h/o").unwrap().unwrap();
        assert_eq!((found.path.as_str(), found.size), ("a b/c.json", 7));
        assert_eq!(found.checksum, Some(Checksum::Crc32c(0xe306_9283)));
        let place = "http://h/o/m%2Fa%20b%2Fc.json?alt=media&generation=16".to_owned();
        assert_eq!(found.place, Place::Address(place));
        assert_eq!(file(&json!({"name": "m/"}), "m/", ""), Ok(None));
        let mut packed = object.clone();
        packed["contentEncoding"] = json!("gzip");
        assert!(
            file(&packed, "m/", "")
                .unwrap_err()
                .contains("stored compressed")
        );
        for missing in ["size", "generation", "crc32c"] {
            let mut object = object.clone();
            object[missing] = Value::Null;
            assert!(file(&object, "m/", "").is_err(), "{missing}");
        }
    }
}
