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
    Folder(PathBuf),
}

/// A repository of the hub and a revision of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Hub {
    pub name: String,
    pub revision: String,
}

impl Source {
    /// Reads `hf://ORG/NAME[@REVISION]`, `https://HOST/FILE[#sha256=HEX]`, `file://FOLDER` or a path.
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
        for bad in [
            "",
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
