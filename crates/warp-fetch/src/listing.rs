//! What a source has: its files with sizes and digests, and which of them are wanted.

use std::collections::BTreeSet;
use std::path::{Component, Path, PathBuf};

use crate::checksum::Checksum;
use crate::digest::{Digest, sha256_hex};
use crate::error::FetchError;
use crate::pattern::matches;

/// Where the bytes of a file are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Place {
    Address(String),
    File(PathBuf),
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RemoteFile {
    /// Its path below the model's folder, with slashes.
    pub path: String,
    pub size: u64,
    /// What its content must hash to, where the source says so.
    pub digest: Option<Digest>,
    /// What the source keeps of its content where it keeps no digest.
    pub checksum: Option<Checksum>,
    /// What says that it is still the same content, where there is no digest (an `ETag`).
    pub validator: Option<String>,
    pub place: Place,
}

/// The files of a model.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Listing {
    /// `org/name`: names the folder in the cache.
    pub name: String,
    /// The branch or tag asked for; the reference that will lead to the commit.
    pub revision: String,
    /// The commit; none where the source has no such thing, and the content's digest stands for it.
    pub commit: Option<String>,
    pub files: Vec<RemoteFile>,
}

/// Which files of a listing are wanted.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Selection {
    /// Only files that match one of these; all where there are none.
    pub allow: Vec<String>,
    /// No file that matches one of these.
    pub ignore: Vec<String>,
    /// Also weights that are there as safetensors too.
    pub duplicates: bool,
}

/// Endings of weights that are read by running what they contain, or for other frameworks.
const OTHER_WEIGHTS: [&str; 7] = ["bin", "pt", "pth", "ckpt", "h5", "msgpack", "ot"];

impl Selection {
    /// Keeps the wanted files of `listing`, and refuses paths that lead out of its folder.
    pub(crate) fn of(&self, mut listing: Listing) -> Result<Listing, FetchError> {
        let mut seen = BTreeSet::new();
        for file in &listing.files {
            if !is_inside(&file.path) || !seen.insert(file.path.clone()) {
                return Err(FetchError::Path {
                    path: file.path.clone(),
                });
            }
        }
        let before = listing.files.len();
        let any = |patterns: &[String], path: &str| patterns.iter().any(|one| matches(one, path));
        listing.files.retain(|file| {
            (self.allow.is_empty() || any(&self.allow, &file.path))
                && !any(&self.ignore, &file.path)
        });
        // A file that is asked for by a pattern is wanted whatever else there is.
        if !self.duplicates && self.allow.is_empty() {
            without_duplicates(&mut listing.files);
        }
        if listing.files.is_empty() {
            let why = if before == 0 {
                String::new()
            } else {
                format!(" that the patterns select; it has {before} others")
            };
            return Err(FetchError::Empty {
                source_name: listing.name,
                why,
            });
        }
        listing
            .files
            .sort_by(|one, other| one.path.cmp(&other.path));
        Ok(listing)
    }
}

/// Leaves out pickled and foreign weights of a folder that has safetensors beside them.
fn without_duplicates(files: &mut Vec<RemoteFile>) {
    let folder = |path: &str| {
        path.rsplit_once('/')
            .map_or("", |(folder, _)| folder)
            .to_owned()
    };
    let ending = |path: &str| Path::new(path).extension()?.to_str().map(str::to_lowercase);
    let safe: BTreeSet<String> = files
        .iter()
        .filter(|file| ending(&file.path).as_deref() == Some("safetensors"))
        .map(|file| folder(&file.path))
        .collect();
    files.retain(|file| {
        let foreign = ending(&file.path).is_some_and(|ending| OTHER_WEIGHTS.contains(&&*ending))
            || file.path.ends_with(".bin.index.json");
        !(foreign && safe.contains(&folder(&file.path)))
    });
}

/// Whether a path stays below the folder it is relative to.
pub(crate) fn is_inside(path: &str) -> bool {
    !path.is_empty()
        && path.len() <= 1024
        && !path.contains(['\\', '\0'])
        && !path.chars().any(char::is_control)
        && !path.ends_with('/')
        && Path::new(path)
            .components()
            .all(|part| matches!(part, Component::Normal(_)))
        && !path.split('/').any(|part| part.is_empty() || part == ".")
}

/// One digest over names, sizes and digests of files: equal for equal content, wherever it came from.
pub(crate) fn content_digest(files: &[(String, u64, String)]) -> String {
    let mut lines: Vec<String> = files
        .iter()
        .map(|(path, size, digest)| format!("{digest} {size} {path}\n"))
        .collect();
    lines.sort();
    format!("sha256:{}", sha256_hex(lines.concat().as_bytes()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn listing(paths: &[&str]) -> Listing {
        let file = |path: &&str| RemoteFile {
            path: (*path).to_owned(),
            size: 1,
            digest: None,
            checksum: None,
            validator: None,
            place: Place::Address(String::new()),
        };
        Listing {
            name: "a/b".to_owned(),
            revision: "main".to_owned(),
            commit: None,
            files: paths.iter().map(file).collect(),
        }
    }

    fn selected(selection: &Selection, paths: &[&str]) -> Vec<String> {
        let chosen = selection.of(listing(paths)).unwrap();
        chosen.files.into_iter().map(|file| file.path).collect()
    }

    #[test]
    fn pickled_weights_are_left_out_where_there_are_safetensors_beside_them() {
        let all = [
            "config.json",
            "model.safetensors",
            "pytorch_model.bin",
            "pytorch_model.bin.index.json",
            "tf_model.h5",
            "other/pytorch_model.bin",
        ];
        assert_eq!(
            selected(&Selection::default(), &all),
            [
                "config.json",
                "model.safetensors",
                "other/pytorch_model.bin"
            ]
        );
        let everything = Selection {
            duplicates: true,
            ..Selection::default()
        };
        assert_eq!(selected(&everything, &all).len(), all.len());
        let asked = Selection {
            allow: vec!["*.bin".to_owned()],
            ignore: vec!["other/*".to_owned()],
            duplicates: false,
        };
        assert_eq!(selected(&asked, &all), ["pytorch_model.bin"]);
    }

    #[test]
    fn a_path_that_leads_out_of_the_folder_is_refused() {
        for bad in [
            "../x",
            "/etc/passwd",
            "a/../b",
            "",
            "a//b",
            "a/./b",
            "a/",
            "a\0",
            "a\nb",
        ] {
            assert!(!is_inside(bad), "{bad:?}");
            assert!(Selection::default().of(listing(&[bad])).is_err());
        }
        assert!(Selection::default().of(listing(&["a", "a"])).is_err());
        assert!(is_inside("a/b.c/d..e"));
    }

    #[test]
    fn patterns_that_select_nothing_are_told() {
        let none = Selection {
            allow: vec!["x".to_owned()],
            ..Selection::default()
        };
        let error = none.of(listing(&["a", "b"])).unwrap_err().to_string();
        assert!(error.contains("it has 2 others"), "{error}");
    }
}
