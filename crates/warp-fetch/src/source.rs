//! Where a model comes from, read from one word.

use std::path::PathBuf;

use crate::error::FetchError;

/// A place a model can be fetched from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Source {
    Hub(Hub),
    /// One file by its address, with its SHA-256 if that is known.
    Address {
        address: String,
        sha256: Option<String>,
    },
    /// Files below an address, each with its SHA-256 if that is known.
    Addresses {
        base: String,
        files: Vec<ListedFile>,
    },
    Folder(PathBuf),
    Bucket(Bucket),
    Artifact(Artifact),
    /// A bucket of Google Cloud Storage.
    Google(Bucket),
    /// A container of Azure Blob Storage.
    Azure(Container),
}

/// A file of a list.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ListedFile {
    /// Its path below the base, and below the model's folder.
    pub path: String,
    pub sha256: Option<String>,
}

/// A bucket of a store that speaks the language of S3, and where in it a model lies.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Bucket {
    pub name: String,
    /// Without slashes around it; empty: the whole bucket.
    pub prefix: String,
}

/// A container of an account of Azure Blob Storage, and where in it a model lies.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Container {
    pub account: String,
    pub name: String,
    /// Without slashes around it; empty: the whole container.
    pub prefix: String,
}

/// An artifact of a registry, by its tag or pinned by its digest.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Artifact {
    /// `host[:port]`.
    pub registry: String,
    pub repository: String,
    pub tag: String,
    /// What its manifest must hash to, in hexadecimal.
    pub sha256: Option<String>,
}

/// A repository of the hub and a revision of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Hub {
    pub name: String,
    pub revision: String,
}

impl Source {
    /// Reads `hf://ORG/NAME[@REVISION]`, `oci://REGISTRY/NAME[:TAG][@sha256:HEX]`, `https://HOST/FILE[#sha256=HEX]`,
    /// `s3://BUCKET/PREFIX`, `gs://BUCKET/PREFIX`, `az://ACCOUNT/CONTAINER/PREFIX`, `file://FOLDER` or a path.
    pub fn parse(text: &str) -> Result<Self, FetchError> {
        let bad = || FetchError::NoSource(text.to_owned());
        if let Some(rest) = text.strip_prefix("hf://") {
            return Hub::parse(rest).map(Self::Hub).ok_or_else(bad);
        }
        if text.starts_with("http://") || text.starts_with("https://") {
            let (address, fragment) = match text.split_once('#') {
                Some((address, fragment)) => (address, Some(fragment)),
                None => (text, None),
            };
            let sha256 = match fragment {
                None => None,
                Some(fragment) => {
                    let hex = fragment.strip_prefix("sha256=").ok_or_else(bad)?;
                    crate::Digest::sha256(hex).ok_or_else(bad)?;
                    Some(hex.to_lowercase())
                }
            };
            return Ok(Self::Address {
                address: address.to_owned(),
                sha256,
            });
        }
        if let Some(rest) = text.strip_prefix("s3://") {
            return Bucket::parse(rest).map(Self::Bucket).ok_or_else(bad);
        }
        if let Some(rest) = text.strip_prefix("gs://") {
            return Bucket::parse(rest).map(Self::Google).ok_or_else(bad);
        }
        if let Some(rest) = text.strip_prefix("az://") {
            return Container::parse(rest).map(Self::Azure).ok_or_else(bad);
        }
        if let Some(rest) = text.strip_prefix("oci://") {
            return Artifact::parse(rest).map(Self::Artifact).ok_or_else(bad);
        }
        if let Some(path) = text.strip_prefix("file://") {
            return Ok(Self::Folder(PathBuf::from(path)));
        }
        if text.contains("://") || text.is_empty() {
            return Err(bad());
        }
        if text.starts_with(['/', '.']) {
            return Ok(Self::Folder(PathBuf::from(text)));
        }
        // A folder that is there is meant; otherwise `org/name` can only be a name of the hub.
        if std::path::Path::new(text).is_dir() {
            return Ok(Self::Folder(PathBuf::from(text)));
        }
        Hub::parse(text).map(Self::Hub).ok_or_else(bad)
    }
}

impl Source {
    /// The same place with a list of its files, each `PATH[#sha256=HEX]`: an address becomes the folder they are below.
    pub fn with_files(self, files: &[String]) -> Result<Self, FetchError> {
        if files.is_empty() {
            return Ok(self);
        }
        let (address, no_digest) = match self {
            Self::Address { address, sha256 } => (address, sha256.is_none()),
            other => return Err(FetchError::NoList(format!("{other:?}"))),
        };
        if !no_digest || address.contains('?') {
            return Err(FetchError::NoList(
                address.split('?').next().unwrap_or_default().to_owned(),
            ));
        }
        let files = files.iter().map(|file| ListedFile::parse(file));
        Ok(Self::Addresses {
            base: format!("{}/", address.trim_end_matches('/')),
            files: files.collect::<Result<_, _>>()?,
        })
    }
}

impl ListedFile {
    fn parse(text: &str) -> Result<Self, FetchError> {
        let (path, sha256) = match text.rsplit_once("#sha256=") {
            Some((path, hex)) => {
                let known = crate::Digest::sha256(hex);
                known.ok_or_else(|| FetchError::NoSource(text.to_owned()))?;
                (path, Some(hex.to_lowercase()))
            }
            None => (text, None),
        };
        Ok(Self {
            path: path.to_owned(),
            sha256,
        })
    }
}

impl Bucket {
    /// Reads `BUCKET[/PREFIX]`.
    pub fn parse(text: &str) -> Option<Self> {
        let (name, prefix) = text.split_once('/').unwrap_or((text, ""));
        let letters = name
            .chars()
            .all(|letter| letter.is_ascii_alphanumeric() || "-._".contains(letter));
        let named = (3..=255).contains(&name.len()) && letters && !name.starts_with(['.', '-']);
        let prefix = prefix.trim_matches('/');
        let inside = prefix.is_empty() || crate::listing::is_inside(prefix);
        (named && inside).then(|| Self {
            name: name.to_owned(),
            prefix: prefix.to_owned(),
        })
    }
}

impl Container {
    /// Reads `ACCOUNT/CONTAINER[/PREFIX]`.
    pub fn parse(text: &str) -> Option<Self> {
        let (account, rest) = text.split_once('/')?;
        let (name, prefix) = rest.split_once('/').unwrap_or((rest, ""));
        let small = |letter: char| letter.is_ascii_lowercase() || letter.is_ascii_digit();
        let known = (3..=24).contains(&account.len()) && account.chars().all(small);
        let named = (3..=63).contains(&name.len())
            && name.starts_with(small)
            && name.chars().all(|letter| small(letter) || letter == '-');
        let prefix = prefix.trim_matches('/');
        let inside = prefix.is_empty() || crate::listing::is_inside(prefix);
        (known && named && inside).then(|| Self {
            account: account.to_owned(),
            name: name.to_owned(),
            prefix: prefix.to_owned(),
        })
    }
}

impl Artifact {
    /// Reads `REGISTRY/NAME[:TAG][@sha256:HEX]`; without a tag it is `latest`.
    pub fn parse(text: &str) -> Option<Self> {
        let (named, sha256) = match text.split_once('@') {
            Some((named, digest)) => (named, Some(digest.strip_prefix("sha256:")?)),
            None => (text, None),
        };
        if let Some(hex) = sha256 {
            crate::Digest::sha256(hex)?;
        }
        let (registry, rest) = named.split_once('/')?;
        let (repository, tag) = rest.split_once(':').unwrap_or((rest, "latest"));
        let sound = is_registry(registry)
            && repository.len() <= 255
            && repository.split('/').all(is_component)
            && is_tag(tag);
        sound.then(|| Self {
            registry: registry.to_owned(),
            repository: repository.to_owned(),
            tag: tag.to_owned(),
            sha256: sha256.map(str::to_lowercase),
        })
    }
}

/// `host` or `host:port`; an address of the sixth version stands in brackets.
fn is_registry(text: &str) -> bool {
    let letters = text
        .chars()
        .all(|letter| letter.is_ascii_alphanumeric() || "-.:[]".contains(letter));
    let address: Result<http::uri::Authority, _> = text.parse();
    letters && !text.starts_with(['.', '-']) && address.is_ok_and(|it| !it.host().is_empty())
}

/// A part of a repository's name as registries allow it.
fn is_component(part: &str) -> bool {
    let small = |letter: char| letter.is_ascii_lowercase() || letter.is_ascii_digit();
    part.starts_with(small)
        && part.ends_with(small)
        && part
            .chars()
            .all(|letter| small(letter) || "-_.".contains(letter))
        && !part.contains("..")
}

fn is_tag(tag: &str) -> bool {
    let begins = |letter: char| letter.is_ascii_alphanumeric() || letter == '_';
    tag.starts_with(begins)
        && tag.len() <= 128
        && tag
            .chars()
            .all(|letter| begins(letter) || "-.".contains(letter))
}

impl Hub {
    /// Reads `ORG/NAME[@REVISION]`.
    pub fn parse(text: &str) -> Option<Self> {
        let (name, revision) = text.split_once('@').unwrap_or((text, "main"));
        let parts: Vec<&str> = name.split('/').collect();
        let named = parts.len() == 2 && parts.iter().all(|part| is_part(part));
        let revised = revision.split('/').all(is_part) && revision.len() <= 255;
        (named && revised).then(|| Self {
            name: name.to_owned(),
            revision: revision.to_owned(),
        })
    }
}

/// A part of a name as the hub allows it: it becomes a part of addresses and of folders.
fn is_part(part: &str) -> bool {
    !part.is_empty()
        && part.len() <= 96
        && part
            .chars()
            .all(|letter| letter.is_ascii_alphanumeric() || "-_.".contains(letter))
        && !part.starts_with(['.', '-'])
        && !part.contains("..")
        && !part.contains("--")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_list_of_files_is_for_an_address_without_a_digest_of_its_own() {
        let files = [
            "a.json".to_owned(),
            format!("w.bin#sha256={}", "0".repeat(64)),
        ];
        let listed = Source::parse("https://h/m").unwrap().with_files(&files);
        let Source::Addresses { base, files: found } = listed.unwrap() else {
            panic!("no list");
        };
        assert_eq!((base.as_str(), found.len()), ("https://h/m/", 2));
        assert_eq!(found[1].sha256.as_deref(), Some(&*"0".repeat(64)));
        let digest = format!("https://h/m#sha256={}", "0".repeat(64));
        for other in ["a/b", "/m", "https://h/m?signed=1", digest.as_str()] {
            let source = Source::parse(other).unwrap();
            assert!(source.clone().with_files(&files).is_err(), "{other}");
            assert_eq!(source.clone().with_files(&[]).unwrap(), source);
        }
        let source = Source::parse("https://h/m").unwrap();
        assert!(source.with_files(&["a#sha256=1".to_owned()]).is_err());
    }

    #[test]
    fn sources_are_told_apart() {
        let hub = |name: &str, revision: &str| {
            Source::Hub(Hub {
                name: name.to_owned(),
                revision: revision.to_owned(),
            })
        };
        assert_eq!(Source::parse("hf://a/b").unwrap(), hub("a/b", "main"));
        assert_eq!(Source::parse("a/b@v1.0").unwrap(), hub("a/b", "v1.0"));
        assert_eq!(
            Source::parse("hf://a/b@refs/pr/3").unwrap(),
            hub("a/b", "refs/pr/3")
        );
        assert_eq!(Source::parse("/m").unwrap(), Source::Folder("/m".into()));
        assert_eq!(
            Source::parse("file:///m").unwrap(),
            Source::Folder("/m".into())
        );
        let hex = "2cf24dba5fb0a30e26e83b2ac5b9e29e1b161e5c1fa7425e73043362938b9824";
        assert_eq!(
            Source::parse(&format!("https://h/f.gguf#sha256={hex}")).unwrap(),
            Source::Address {
                address: "https://h/f.gguf".to_owned(),
                sha256: Some(hex.to_owned())
            }
        );
        let bucket = |prefix: &str| {
            Source::Bucket(Bucket {
                name: "my-models".to_owned(),
                prefix: prefix.to_owned(),
            })
        };
        assert_eq!(Source::parse("s3://my-models/a/b/").unwrap(), bucket("a/b"));
        assert_eq!(Source::parse("s3://my-models").unwrap(), bucket(""));
        assert_eq!(
            Source::parse("gs://my-models/a/").unwrap(),
            Source::Google(Bucket {
                name: "my-models".to_owned(),
                prefix: "a".to_owned(),
            })
        );
        assert_eq!(
            Source::parse("az://acc0unt/my-models/a/b").unwrap(),
            Source::Azure(Container {
                account: "acc0unt".to_owned(),
                name: "my-models".to_owned(),
                prefix: "a/b".to_owned(),
            })
        );
        let artifact = |tag: &str, sha256: Option<&str>| {
            Source::Artifact(Artifact {
                registry: "ghcr.io:8443".to_owned(),
                repository: "org/tiny".to_owned(),
                tag: tag.to_owned(),
                sha256: sha256.map(str::to_owned),
            })
        };
        let named = |rest: &str| Source::parse(&format!("oci://ghcr.io:8443/org/tiny{rest}"));
        assert_eq!(named(":v1.0").unwrap(), artifact("v1.0", None));
        assert_eq!(named("").unwrap(), artifact("latest", None));
        assert_eq!(
            named(&format!("@sha256:{hex}")).unwrap(),
            artifact("latest", Some(hex))
        );
        assert_eq!(
            named(&format!(":v2@sha256:{}", hex.to_uppercase())).unwrap(),
            artifact("v2", Some(hex))
        );
        for bad in [
            "",
            "gs://",
            "gs://b/../c",
            "az://account",
            "az://acc.evil.example/models",
            "az://Account/models",
            "az://account/models/../x",
            "oci://",
            "oci://ghcr.io",
            "oci://ghcr.io/",
            "oci://ghcr.io/Org/x",
            "oci://ghcr.io/../x",
            "oci://ghcr.io/a/..:v1",
            "oci://ghcr.io/a:../v1",
            "oci://ghcr.io/a:",
            "oci://ghcr.io/a@sha256:12",
            "oci://ghcr.io/a@sha512:12",
            "oci://user:pw@ghcr.io/a",
            "oci://ghcr.io/a?x=1",
            "s3://",
            "s3://a b/c",
            "s3://bucket/../c",
            "gpt2",
            "a/b/c",
            "a/..",
            "a/b@",
            "a b/c",
            "a/b?x=1",
            "a/b@../../x",
            "ftp://x/y",
            "hf://a",
            "a--b/c",
            "https://h/f#sha256=12",
            "https://h/f#x",
        ] {
            assert!(Source::parse(bad).is_err(), "{bad}");
        }
    }
}
