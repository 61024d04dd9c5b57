//! Digests of files as sources state them: SHA-256 of large files, git's blob id of small ones.

use std::fmt::{self, Display, Write as _};

use ring::digest::{Context, SHA1_FOR_LEGACY_USE_ONLY, SHA256};

use crate::checksum::{Checksum, Sum};
use crate::listing::RemoteFile;

/// What a file's content must hash to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Digest {
    Sha256([u8; 32]),
    /// SHA-1 over `blob <length>\0` and the content.
    GitBlob([u8; 20]),
}

impl Digest {
    pub fn sha256(hex: &str) -> Option<Self> {
        unhex(hex).map(Self::Sha256)
    }

    pub fn git_blob(hex: &str) -> Option<Self> {
        unhex(hex).map(Self::GitBlob)
    }

    /// Reads `sha256:…` or `git:…`.
    pub(crate) fn parse(text: &str) -> Option<Self> {
        match text.split_once(':')? {
            ("sha256", hex) => Self::sha256(hex),
            ("git", hex) => Self::git_blob(hex),
            _ => None,
        }
    }

    /// The digest in hexadecimal: also the name of the file in the cache.
    pub fn hex(&self) -> String {
        match self {
            Self::Sha256(bytes) => hex(bytes),
            Self::GitBlob(bytes) => hex(bytes),
        }
    }

    fn method(&self) -> Method {
        match self {
            Self::Sha256(_) => Method::Sha256,
            Self::GitBlob(_) => Method::GitBlob,
        }
    }
}

impl Display for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Sha256(bytes) => write!(f, "sha256:{}", hex(bytes)),
            Self::GitBlob(bytes) => write!(f, "git:{}", hex(bytes)),
        }
    }
}

#[derive(Clone, Copy, Debug)]
enum Method {
    Sha256,
    GitBlob,
}

/// A digest being computed.
#[derive(Clone)]
pub(crate) struct Hasher {
    method: Method,
    context: Context,
    sum: Option<Sum>,
}

/// What a content hashes to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Hashed {
    pub(crate) digest: Digest,
    /// Of the kind the source keeps.
    pub(crate) checksum: Option<Checksum>,
}

impl Hasher {
    /// For a file of `size` bytes that should have `expected`; without one it is SHA-256.
    pub(crate) fn new(expected: Option<&Digest>, size: u64) -> Self {
        let method = expected.map_or(Method::Sha256, Digest::method);
        let context = match method {
            Method::Sha256 => Context::new(&SHA256),
            Method::GitBlob => {
                let mut context = Context::new(&SHA1_FOR_LEGACY_USE_ONLY);
                context.update(format!("blob {size}\0").as_bytes());
                context
            }
        };
        Self {
            method,
            context,
            sum: None,
        }
    }

    /// For a file with everything its source says of it.
    pub(crate) fn of(file: &RemoteFile) -> Self {
        Self {
            sum: file.checksum.map(Sum::like),
            ..Self::new(file.digest.as_ref(), file.size)
        }
    }

    pub(crate) fn update(&mut self, data: &[u8]) {
        self.context.update(data);
        if let Some(sum) = &mut self.sum {
            sum.update(data);
        }
    }

    pub(crate) fn finish_all(mut self) -> Hashed {
        let checksum = self.sum.take().map(Sum::finish);
        Hashed {
            digest: self.finish(),
            checksum,
        }
    }

    pub(crate) fn finish(self) -> Digest {
        let digest = self.context.finish();
        let bytes = digest.as_ref();
        match self.method {
            Method::Sha256 => Digest::Sha256(bytes.try_into().unwrap_or([0; 32])),
            Method::GitBlob => Digest::GitBlob(bytes.try_into().unwrap_or([0; 20])),
        }
    }
}

/// SHA-256 of some bytes, in hexadecimal.
pub(crate) fn sha256_hex(data: &[u8]) -> String {
    hex(ring::digest::digest(&SHA256, data).as_ref())
}

pub(crate) fn hex(bytes: &[u8]) -> String {
    let mut text = String::with_capacity(bytes.len() * 2);
    for byte in bytes {
        // Writing to a string does not fail.
        let _ = write!(text, "{byte:02x}");
    }
    text
}

fn unhex<const N: usize>(text: &str) -> Option<[u8; N]> {
    if text.len() != N * 2 || !text.is_ascii() {
        return None;
    }
    let mut bytes = [0; N];
    for (place, byte) in bytes.iter_mut().enumerate() {
        *byte = u8::from_str_radix(text.get(place * 2..place * 2 + 2)?, 16).ok()?;
    }
    Some(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn digests_equal_those_of_git_and_sha256sum() {
        // `printf hello | git hash-object --stdin`, `printf hello | sha256sum`.
        let git = Digest::git_blob("b6fc4c620b67d95f953a5c1c1230aaab5db5a1b0");
        let mut hasher = Hasher::new(git.as_ref(), 5);
        hasher.update(b"hello");
        assert_eq!(Some(hasher.finish()), git);
        let sha =
            Digest::sha256("2cf24dba5fb0a30e26e83b2ac5b9e29e1b161e5c1fa7425e73043362938b9824");
        let mut hasher = Hasher::new(None, 5);
        hasher.update(b"hel");
        hasher.update(b"lo");
        assert_eq!(Some(hasher.finish()), sha);
        assert_eq!(Digest::sha256("zz"), None);
        assert_eq!(Digest::git_blob(&"é".repeat(20)), None);
    }
}
