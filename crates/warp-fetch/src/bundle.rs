//! A model as one file, for machines without a network: a tar archive with the list of files first and the content after
//! it. Content is hashed when it is written and when it is read; a bundle that is not whole publishes nothing.

mod archive;

use std::io::{Read, Write};
use std::path::Path;

use crate::digest::{Digest, Hasher};
use crate::error::FetchError;
use crate::fetch::Report;
use crate::layout::Layout;
use crate::listing::{content_digest, is_inside};
use crate::publish;
use crate::source::Hub;
use crate::verified::{Manifest, is_trusted, manifests, stamp};
use archive::{Header, padding};

/// The list of files in the archive.
const LIST: &str = "warp-model.json";
/// No list of files is larger.
const LIST_LIMIT_BYTES: u64 = 64 << 20;
const COPY_BYTES: usize = 1 << 20;

/// Writes the complete model `hub` of a cache to `out`.
pub fn export(cache: &Path, hub: &Hub, out: &mut dyn Write) -> Result<Report, FetchError> {
    let folder = format!("models--{}", hub.name.replace('/', "--"));
    if !cache.join(&folder).is_dir() {
        return Err(incomplete(hub, cache));
    }
    let layout = Layout::make(cache, &hub.name)?;
    let reference = std::fs::read_to_string(layout.refs().join(&hub.revision));
    let commit = reference.unwrap_or_else(|_| hub.revision.clone());
    let known = manifests(&layout).into_iter();
    let manifest = known
        .into_iter()
        .find(|manifest| manifest.commit == commit.trim())
        .ok_or_else(|| incomplete(hub, cache))?;
    let list = serde_json::to_vec_pretty(&manifest).map_err(|_| FetchError::Ended)?;
    let mut written = 0;
    write_entry(out, LIST, list.len() as u64, &mut &*list, &mut |_| {})?;
    let mut done = std::collections::BTreeSet::new();
    for file in &manifest.files {
        // Two files of equal content are one blob.
        if !done.insert(&file.blob) {
            continue;
        }
        let path = layout.blob(&file.blob);
        let expected = digest_of(&file.digest)?;
        let mut hasher = Hasher::new(Some(&expected), file.size);
        let mut reader = std::fs::File::open(&path).map_err(FetchError::io("read", &path))?;
        let name = format!("blobs/{}", file.blob);
        write_entry(out, &name, file.size, &mut reader, &mut |data| {
            hasher.update(data);
        })?;
        agrees(&file.path, expected, hasher.finish())?;
        written += file.size;
    }
    out.write_all(&[0; 1024])
        .map_err(FetchError::io("write", Path::new("the bundle")))?;
    out.flush()
        .map_err(FetchError::io("write", Path::new("the bundle")))?;
    Ok(report(&manifest, &layout, written))
}

/// Reads a bundle into a cache and publishes it, if all of it is there and right.
pub fn import(input: &mut dyn Read, cache: &Path) -> Result<Report, FetchError> {
    let first = archive::read_header(input)?.ok_or_else(|| bad("it is empty"))?;
    if first.name != LIST || first.size > LIST_LIMIT_BYTES {
        return Err(bad("it does not begin with the list of a model's files"));
    }
    let mut list = Vec::new();
    copy(input, first.size, &mut |data| {
        list.extend_from_slice(data);
        Ok(())
    })?;
    skip(input, padding(first.size))?;
    let mut manifest: Manifest = serde_json::from_slice(&list)
        .map_err(|error| bad(&format!("its list of files cannot be read: {error}")))?;
    check(&manifest)?;
    let layout = Layout::make(cache, &manifest.name)?;
    let lock = layout.lock_now()?;
    let known = manifests(&layout);
    let mut brought = 0;
    while let Some(header) = archive::read_header(input)? {
        brought += take(input, &header, &manifest, &layout, &known)?;
    }
    for file in &mut manifest.files {
        let (size, written) = stamp(&layout.blob(&file.blob))
            .ok_or_else(|| bad(&format!("{} is not in it", file.path)))?;
        if size != file.size {
            return Err(bad(&format!("{} has another length here", file.path)));
        }
        file.written = written;
    }
    publish::publish(&layout, &manifest)?;
    drop(lock);
    Ok(report(&manifest, &layout, brought))
}

/// Takes one blob, unless it is here already.
fn take(
    input: &mut dyn Read,
    header: &Header,
    manifest: &Manifest,
    layout: &Layout,
    known: &[Manifest],
) -> Result<u64, FetchError> {
    let named = header.name.strip_prefix("blobs/");
    let file = manifest
        .files
        .iter()
        .find(|file| Some(&*file.blob) == named);
    let Some(file) = file.filter(|file| file.size == header.size) else {
        return Err(bad(&format!(
            "'{}' is not of its list of files",
            header.name
        )));
    };
    let expected = digest_of(&file.digest)?;
    if is_trusted(layout, known, &expected, file.size) {
        skip(input, header.size + padding(header.size))?;
        return Ok(0);
    }
    let path = layout.parts().join(&file.blob);
    let mut out = std::fs::File::create(&path).map_err(FetchError::io("write", &path))?;
    let mut hasher = Hasher::new(Some(&expected), file.size);
    copy(input, header.size, &mut |data| {
        hasher.update(data);
        out.write_all(data).map_err(FetchError::io("write", &path))
    })?;
    skip(input, padding(header.size))?;
    agrees(&file.path, expected, hasher.finish())?;
    out.sync_all().map_err(FetchError::io("write", &path))?;
    let blob = layout.blob(&file.blob);
    std::fs::rename(&path, &blob).map_err(FetchError::io("move a file to", &blob))?;
    Ok(header.size)
}

/// What a list of files says is used as paths and names: it must look like them, and its digest must be its own.
fn check(manifest: &Manifest) -> Result<(), FetchError> {
    let hexadecimal = |text: &str| text.chars().all(|letter| letter.is_ascii_hexdigit());
    if Hub::parse(&format!("{}@{}", manifest.name, manifest.revision)).is_none() {
        return Err(bad("its list of files names no model"));
    }
    // As git and the hub write commits, or a registry its digests.
    if !matches!(manifest.commit.len(), 40 | 64) || !hexadecimal(&manifest.commit) {
        return Err(bad("its list of files names no commit"));
    }
    for file in &manifest.files {
        if !is_inside(&file.path) {
            return Err(FetchError::Path {
                path: file.path.clone(),
            });
        }
        if digest_of(&file.digest)?.hex() != file.blob {
            return Err(bad(&format!("{} and its digest disagree", file.path)));
        }
    }
    let content: Vec<(String, u64, String)> = manifest
        .files
        .iter()
        .map(|file| (file.path.clone(), file.size, file.digest.clone()))
        .collect();
    if content_digest(&content) != manifest.digest {
        return Err(bad("its list of files is not the one that was exported"));
    }
    Ok(())
}

fn digest_of(text: &str) -> Result<Digest, FetchError> {
    Digest::parse(text).ok_or_else(|| bad(&format!("'{text}' is no digest")))
}

fn agrees(file: &str, expected: Digest, found: Digest) -> Result<(), FetchError> {
    if expected == found {
        return Ok(());
    }
    Err(FetchError::Corrupt {
        file: file.to_owned(),
        expected: expected.to_string(),
        found: found.to_string(),
        tries: 1,
    })
}

fn incomplete(hub: &Hub, cache: &Path) -> FetchError {
    FetchError::NotComplete {
        name: format!("{}@{}", hub.name, hub.revision),
        folder: cache.to_owned(),
    }
}

fn bad(why: &str) -> FetchError {
    FetchError::Bundle(why.to_owned())
}

fn write_entry(
    out: &mut dyn Write,
    name: &str,
    size: u64,
    content: &mut dyn Read,
    seen: &mut dyn FnMut(&[u8]),
) -> Result<(), FetchError> {
    let failed = || FetchError::io("write", Path::new("the bundle"));
    out.write_all(&archive::header(name, size))
        .map_err(failed())?;
    copy(content, size, &mut |data| {
        seen(data);
        out.write_all(data).map_err(failed())
    })?;
    let rest = usize::try_from(padding(size)).unwrap_or_default();
    out.write_all(&vec![0; rest]).map_err(failed())
}

/// Passes on exactly `size` bytes.
fn copy(
    input: &mut dyn Read,
    size: u64,
    to: &mut dyn FnMut(&[u8]) -> Result<(), FetchError>,
) -> Result<(), FetchError> {
    let mut buffer = vec![0; COPY_BYTES];
    let mut left = size;
    while left > 0 {
        let want = usize::try_from(left)
            .unwrap_or(usize::MAX)
            .min(buffer.len());
        let count = input
            .read(&mut buffer[..want])
            .map_err(FetchError::io("read", Path::new("the content")))?;
        if count == 0 {
            return Err(bad(&format!("it ends {left} bytes too early")));
        }
        to(&buffer[..count])?;
        left -= count as u64;
    }
    Ok(())
}

fn skip(input: &mut dyn Read, size: u64) -> Result<(), FetchError> {
    copy(input, size, &mut |_| Ok(()))
}

fn report(manifest: &Manifest, layout: &Layout, moved: u64) -> Report {
    Report {
        name: manifest.name.clone(),
        revision: manifest.revision.clone(),
        commit: manifest.commit.clone(),
        digest: manifest.digest.clone(),
        path: format!("{}/snapshots/{}", layout.folder, manifest.commit),
        files: manifest.files.len() as u64,
        // A bundle has the digest of every file.
        verified: manifest.files.len() as u64,
        bytes: manifest.files.iter().map(|file| file.size).sum(),
        bytes_fetched: moved,
        milliseconds: 0,
    }
}
