//! The list of files of a repository on the Hugging Face hub or a mirror of it.

use bytes::Bytes;
use http::{HeaderMap, Uri, header::LINK};
use serde_json::Value;

use crate::client::{ANSWER_LIMIT_BYTES, Client, escaped};
use crate::digest::Digest;
use crate::error::FetchError;
use crate::listing::{Listing, Place, RemoteFile};
use crate::source::Hub;

/// Pages of a file list that are followed; a page has a thousand files.
const PAGES: usize = 200;

/// Asks `endpoint` what a repository has at a revision.
pub(crate) async fn list(
    client: &Client,
    endpoint: &str,
    hub: &Hub,
) -> Result<Listing, FetchError> {
    let endpoint = endpoint.trim_end_matches('/');
    let name = &hub.name;
    // A slash in the name of a branch is part of one segment of the address.
    let revision = hub.revision.replace('/', "%2F");
    let about = json(
        client,
        &format!("{endpoint}/api/models/{name}/revision/{revision}"),
    )
    .await?
    .0;
    let commit = about["sha"].as_str().filter(|sha| is_commit(sha));
    let commit = commit
        .ok_or_else(|| nonsense(name, "it names no commit"))?
        .to_owned();
    let mut files = Vec::new();
    let mut next = Some(format!(
        "{endpoint}/api/models/{name}/tree/{commit}?recursive=true"
    ));
    for _ in 0..PAGES {
        let Some(address) = next.take() else { break };
        let (page, headers) = json(client, &address).await?;
        let entries = page
            .as_array()
            .ok_or_else(|| nonsense(name, "its list of files is no list"))?;
        for entry in entries.iter().filter(|entry| entry["type"] != "directory") {
            let found = file(entry, |path| {
                format!("{endpoint}/{name}/resolve/{commit}/{}", escaped(path))
            });
            files.push(found.ok_or_else(|| {
                nonsense(name, "its list of files names one without size or digest")
            })?);
        }
        next = following(&headers, endpoint);
    }
    if next.is_some() {
        return Err(nonsense(name, "its list of files does not end"));
    }
    Ok(Listing {
        name: name.clone(),
        revision: hub.revision.clone(),
        commit: Some(commit),
        files,
    })
}

/// What a repository has at a revision, and the content of one small file of it: enough to size a model without
/// fetching it.
pub async fn look(
    client: &Client,
    endpoint: &str,
    hub: &Hub,
    path: &str,
    limit_bytes: usize,
) -> Result<(Listing, Bytes), FetchError> {
    let listing = list(client, endpoint, hub).await?;
    let commit = listing.commit.as_deref().unwrap_or(&hub.revision);
    let endpoint = endpoint.trim_end_matches('/');
    let address = format!("{endpoint}/{}/resolve/{commit}/{}", hub.name, escaped(path));
    let (content, _) = client.whole(&address, limit_bytes).await?;
    Ok((listing, content))
}

async fn json(client: &Client, address: &str) -> Result<(Value, HeaderMap), FetchError> {
    let (body, headers) = client.whole(address, ANSWER_LIMIT_BYTES).await?;
    let value = serde_json::from_slice(&body).map_err(|_| nonsense(address, "it is not JSON"))?;
    Ok((value, headers))
}

fn nonsense(what: &str, why: &str) -> FetchError {
    FetchError::Nonsense {
        what: what.to_owned(),
        why: why.to_owned(),
    }
}

fn is_commit(sha: &str) -> bool {
    sha.len() == 40 && sha.chars().all(|letter| letter.is_ascii_hexdigit())
}

/// A file of the list: large ones have size and SHA-256 under `lfs`, others the id of their git blob.
fn file(entry: &Value, address: impl FnOnce(&str) -> String) -> Option<RemoteFile> {
    let path = entry["path"].as_str()?;
    let large = entry.get("lfs").filter(|lfs| lfs.is_object());
    let (size, digest) = match large {
        Some(lfs) => (lfs["size"].as_u64()?, Digest::sha256(lfs["oid"].as_str()?)?),
        None => (
            entry["size"].as_u64()?,
            Digest::git_blob(entry["oid"].as_str()?)?,
        ),
    };
    Some(RemoteFile {
        path: path.to_owned(),
        size,
        digest: Some(digest),
        checksum: None,
        validator: None,
        place: Place::Address(address(path)),
    })
}

/// The next page, `<https://…>; rel="next"`, at the endpoint that was asked: a mirror may pass on the hub's own address.
fn following(headers: &HeaderMap, endpoint: &str) -> Option<String> {
    let links = headers.get(LINK)?.to_str().ok()?;
    let link = links
        .split(',')
        .find(|link| link.contains("rel=\"next\""))?;
    let address: Uri = link.split_once('<')?.1.split_once('>')?.0.parse().ok()?;
    let path = address.path_and_query()?.as_str();
    let below = endpoint
        .parse::<Uri>()
        .ok()?
        .path()
        .trim_end_matches('/')
        .to_owned();
    Some(format!(
        "{}{path}",
        endpoint.strip_suffix(&below).unwrap_or(endpoint)
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_next_page_is_asked_of_the_mirror() {
        let mut headers = HeaderMap::new();
        let link = "<https://huggingface.co/api/models/a/b/tree/c?cursor=x>; rel=\"next\"";
        headers.insert(LINK, link.parse().unwrap());
        let next = following(&headers, "http://mirror:81");
        assert_eq!(
            next.as_deref(),
            Some("http://mirror:81/api/models/a/b/tree/c?cursor=x")
        );
    }
}
