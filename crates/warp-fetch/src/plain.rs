//! Files by their addresses: one, or a list below one address.

use std::ffi::OsStr;
use std::path::Path;

use http::header::{CONTENT_LENGTH, CONTENT_TYPE, ETAG, LAST_MODIFIED};
use http::{HeaderMap, Uri};

use crate::client::{Client, escaped, place};
use crate::digest::Digest;
use crate::error::FetchError;
use crate::listing::{Listing, Place, RemoteFile, is_inside};
use crate::source::ListedFile;

/// What an address has: a file, with its size and what says that it is still the same.
pub(crate) async fn list(
    client: &Client,
    address: &str,
    sha256: Option<&str>,
) -> Result<Listing, FetchError> {
    let uri: Uri = address
        .parse()
        .map_err(|_| FetchError::NoSource(address.to_owned()))?;
    let path = uri
        .path()
        .rsplit('/')
        .next()
        .filter(|name| !name.is_empty())
        .ok_or_else(|| folder(&uri))?;
    Ok(Listing {
        name: name(&uri),
        revision: "main".to_owned(),
        commit: None,
        files: vec![file(client, address, path, sha256).await?],
    })
}

/// What a list names below an address: every file of it must be there.
pub(crate) async fn list_all(
    client: &Client,
    base: &str,
    listed: &[ListedFile],
) -> Result<Listing, FetchError> {
    let uri: Uri = base
        .parse()
        .map_err(|_| FetchError::NoSource(base.to_owned()))?;
    let mut files = Vec::with_capacity(listed.len());
    for one in listed {
        if !is_inside(&one.path) {
            return Err(FetchError::Path {
                path: one.path.clone(),
            });
        }
        let address = format!("{base}{}", escaped(&one.path));
        files.push(file(client, &address, &one.path, one.sha256.as_deref()).await?);
    }
    Ok(Listing {
        name: name(&uri),
        revision: "main".to_owned(),
        commit: None,
        files,
    })
}

/// A file with its size and what says that it is still the same.
async fn file(
    client: &Client,
    address: &str,
    path: &str,
    sha256: Option<&str>,
) -> Result<RemoteFile, FetchError> {
    let answer = client.head(address).await?;
    let headers = answer.response.headers();
    check_file(&answer.address, headers, path, sha256.is_some())?;
    let size = text(headers, CONTENT_LENGTH.as_str()).and_then(|length| length.parse().ok());
    let size = size.ok_or_else(|| FetchError::Nonsense {
        what: place(&answer.address),
        why: "it does not say how long the file is".to_owned(),
    })?;
    Ok(RemoteFile {
        path: path.to_owned(),
        size,
        digest: sha256.and_then(Digest::sha256),
        checksum: None,
        validator: validator(headers),
        place: Place::Address(address.to_owned()),
    })
}

/// Refuses the listing of a folder and a page for people, such as one to log in at: both are answered as files are.
/// Whose digest is known is judged by that.
fn check_file(
    address: &Uri,
    headers: &HeaderMap,
    path: &str,
    is_known: bool,
) -> Result<(), FetchError> {
    if is_known {
        return Ok(());
    }
    if address.path().ends_with('/') {
        return Err(folder(address));
    }
    let is_page = text(headers, CONTENT_TYPE.as_str())
        .is_some_and(|kind| kind.trim().to_ascii_lowercase().starts_with("text/html"));
    let extension = Path::new(path).extension().and_then(OsStr::to_str);
    let is_meant = extension
        .is_some_and(|it| it.eq_ignore_ascii_case("html") || it.eq_ignore_ascii_case("htm"));
    if is_page && !is_meant {
        return Err(FetchError::NoFile {
            what: format!("{}{}", place(address), address.path()),
            why: "it answers with a page (text/html)",
        });
    }
    Ok(())
}

fn folder(address: &Uri) -> FetchError {
    FetchError::NoFile {
        what: format!("{}{}", place(address), address.path()),
        why: "it is the address of a folder",
    }
}

/// What says that content is unchanged.
pub(crate) fn validator(headers: &HeaderMap) -> Option<String> {
    text(headers, ETAG.as_str())
        .or_else(|| text(headers, LAST_MODIFIED.as_str()))
        .map(str::to_owned)
}

fn text<'a>(headers: &'a HeaderMap, name: &str) -> Option<&'a str> {
    headers.get(name)?.to_str().ok()
}

/// `host/path-of-the-folder`, in the letters a name of the hub may have.
fn name(uri: &Uri) -> String {
    let folder = uri.path().rsplit_once('/').map_or("", |(folder, _)| folder);
    format!("{}/{}", tame(uri.host().unwrap_or("host")), tame(folder))
}

/// Letters, digits and single dashes.
pub(crate) fn tame(text: &str) -> String {
    let mut tame = String::new();
    for letter in text.chars() {
        if letter.is_ascii_alphanumeric() || letter == '_' {
            tame.push(letter);
        } else if !tame.is_empty() && !tame.ends_with('-') {
            tame.push('-');
        }
    }
    let tame = tame.trim_end_matches('-');
    let end = tame.len().min(96);
    if tame.is_empty() {
        "files".to_owned()
    } else {
        tame[..end].to_owned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_becomes_a_name_of_the_caches_layout() {
        let named = |address: &str| name(&address.parse().unwrap());
        assert_eq!(
            named("https://h.example:8/a/--b/f.gguf?x=1"),
            "h-example/a-b"
        );
        assert_eq!(named("http://h/f"), "h/files");
    }
}
