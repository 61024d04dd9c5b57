//! The users of this server: who was given a token, and in which groups they are.
//!
//! Owns one file in the data directory. Tokens themselves are nowhere: only their digests are kept. A
//! running server sees a change at the next request. What users may do is said by bindings, not here.

use std::collections::HashMap;
use std::fs::File;
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use jiff::Timestamp;
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};

use super::identity::{IdentityError, random_token, write_private};
use crate::codec::hex;

/// Below the data directory.
const FOLDER: &str = "users";
const FILE: &str = "users.json";
const LOCK: &str = "lock";
/// How every token of a user begins.
const PREFIX: &str = "warp-user-";
const LONGEST_NAME: usize = 63;

/// Why a user could not be made or removed.
#[derive(Debug, thiserror::Error)]
pub enum UserError {
    #[error("failed to read or write {path}: {source}")]
    File { path: PathBuf, source: io::Error },
    #[error(
        "failed to read {path}: {reason}; restore the file from a copy, or remove it with every user in it"
    )]
    Damaged { path: PathBuf, reason: String },
    #[error(
        "{0:?} is no name for a user: use up to 63 letters, digits, '-', '_', '.' and '@', beginning and ending with a letter or digit"
    )]
    Name(String),
    #[error(
        "{0:?} is no name for a group: it must not be empty, and what begins with \"system:\" is the server's own"
    )]
    Group(String),
    #[error(
        "there is a user {0:?} already; remove it with `warp user delete {0}`, or choose another name"
    )]
    Taken(String),
    #[error("there is no user {0:?}; `warp user list` shows who there is")]
    Unknown(String),
    #[error(transparent)]
    Identity(#[from] IdentityError),
}

/// What is remembered about a user.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Known {
    pub name: String,
    #[serde(default)]
    pub groups: Vec<String>,
    pub created: Timestamp,
    /// SHA-256 of the token, in hexadecimal.
    digest: String,
}

/// The users kept in one data directory.
#[derive(Debug)]
pub struct Users {
    folder: PathBuf,
    seen: Mutex<Seen>,
}

/// What the file said when it was last read.
#[derive(Debug, Default)]
struct Seen {
    /// Tells versions of the file apart: every write makes a new one.
    version: Option<(u64, i64, i64, u64)>,
    by_digest: HashMap<String, Known>,
}

fn digest(token: &str) -> String {
    hex(ring::digest::digest(&ring::digest::SHA256, token.as_bytes()).as_ref())
}

fn check_name(name: &str) -> Result<(), UserError> {
    let ends = |c: Option<char>| c.is_some_and(|c| c.is_ascii_alphanumeric());
    let inside = |c: char| c.is_ascii_alphanumeric() || "-_.@".contains(c);
    let good = name.len() <= LONGEST_NAME
        && ends(name.chars().next())
        && ends(name.chars().last())
        && name.chars().all(inside);
    good.then_some(())
        .ok_or_else(|| UserError::Name(name.to_owned()))
}

impl Users {
    /// The users of a data directory.
    pub fn of(directory: &Path) -> Self {
        Self {
            folder: directory.join(FOLDER),
            seen: Mutex::default(),
        }
    }

    /// Where files for users may be put.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    fn file(&self) -> PathBuf {
        self.folder.join(FILE)
    }

    /// Everybody, by name.
    pub fn list(&self) -> Result<Vec<Known>, UserError> {
        let path = self.file();
        let text = match std::fs::read(&path) {
            Ok(text) => text,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            Err(source) => return Err(UserError::File { path, source }),
        };
        serde_json::from_slice(&text).map_err(|error| UserError::Damaged {
            path,
            reason: error.to_string(),
        })
    }

    /// Whether a user could be made: the name is good and free, and so are the groups.
    pub fn check(&self, name: &str, groups: &[String]) -> Result<(), UserError> {
        check_name(name)?;
        for group in groups {
            if group.is_empty() || group.starts_with("system:") {
                return Err(UserError::Group(group.clone()));
            }
        }
        if self.list()?.iter().any(|known| known.name == name) {
            return Err(UserError::Taken(name.to_owned()));
        }
        Ok(())
    }

    /// Makes a user; the answer is their token, which is not kept.
    pub fn add(&self, name: &str, groups: &[String], now: Timestamp) -> Result<String, UserError> {
        let _alone = self.alone()?;
        self.check(name, groups)?;
        let token = format!("{PREFIX}{}", random_token()?);
        let mut all = self.list()?;
        all.push(Known {
            name: name.to_owned(),
            groups: groups.to_vec(),
            created: now,
            digest: digest(&token),
        });
        all.sort_by(|a, b| a.name.cmp(&b.name));
        self.write(&all)?;
        Ok(token)
    }

    /// Removes a user: the token is refused from then on.
    pub fn remove(&self, name: &str) -> Result<(), UserError> {
        let _alone = self.alone()?;
        let mut all = self.list()?;
        let before = all.len();
        all.retain(|known| known.name != name);
        if all.len() == before {
            return Err(UserError::Unknown(name.to_owned()));
        }
        self.write(&all)
    }

    fn write(&self, all: &[Known]) -> Result<(), UserError> {
        let path = self.file();
        let text = serde_json::to_string_pretty(all).map_err(|error| UserError::Damaged {
            path: path.clone(),
            reason: error.to_string(),
        })?;
        Ok(write_private(&path, &text)?)
    }

    /// One writer at a time.
    fn alone(&self) -> Result<File, UserError> {
        let path = self.folder.join(LOCK);
        let locked = || -> io::Result<File> {
            if !self.folder.is_dir() {
                let mut folder = std::fs::DirBuilder::new();
                folder.recursive(true).mode(0o700).create(&self.folder)?;
            }
            let mut options = File::options();
            options.create(true).truncate(false).write(true).mode(0o600);
            let file = options.open(&path)?;
            file.lock()?;
            Ok(file)
        };
        locked().map_err(|source| UserError::File { path, source })
    }

    /// Whose token this is. Tokens that cannot be a user's cost nothing, others a look at the file.
    pub(super) fn holder(&self, token: &str) -> Option<Known> {
        if !token.starts_with(PREFIX) {
            return None;
        }
        let mut seen = self.seen.lock();
        let version = std::fs::metadata(self.file())
            .ok()
            .map(|meta| (meta.ino(), meta.mtime(), meta.mtime_nsec(), meta.size()));
        if version.is_none() || version != seen.version {
            let all = match self.list() {
                Ok(all) => all,
                Err(error) => {
                    // Nobody is let in on an old word.
                    tracing::error!(%error, "users cannot be read; their tokens are refused");
                    Vec::new()
                }
            };
            seen.version = version;
            seen.by_digest = all
                .into_iter()
                .map(|known| (known.digest.clone(), known))
                .collect();
        }
        seen.by_digest.get(&digest(token)).cloned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_is_good_from_the_making_of_its_user_to_the_removal() {
        let folder = tempfile::tempdir().unwrap();
        let users = Users::of(folder.path());
        let server = Users::of(folder.path());
        let now = Timestamp::UNIX_EPOCH;
        assert_eq!(server.holder("warp-user-guess"), None);
        let token = users.add("ada", &["team".to_owned()], now).unwrap();
        let known = server.holder(&token).unwrap();
        assert_eq!((known.name.as_str(), known.groups.len()), ("ada", 1));
        assert!(matches!(
            users.add("ada", &[], now),
            Err(UserError::Taken(_))
        ));
        let second = users.add("bob", &[], now).unwrap();
        assert_eq!(server.holder(&second).unwrap().name, "bob");
        users.remove("ada").unwrap();
        assert_eq!(server.holder(&token), None);
        assert_eq!(server.holder(&second).unwrap().name, "bob");
        assert!(matches!(users.remove("ada"), Err(UserError::Unknown(_))));
        let again = users.add("ada", &[], now).unwrap();
        assert_eq!(server.holder(&token), None);
        assert!(server.holder(&again).is_some());
    }

    #[test]
    fn neither_tokens_nor_readers_but_the_owner_are_in_the_folder() {
        let folder = tempfile::tempdir().unwrap();
        let users = Users::of(folder.path());
        let token = users.add("ada", &[], Timestamp::UNIX_EPOCH).unwrap();
        for entry in std::fs::read_dir(users.folder()).unwrap() {
            let path = entry.unwrap().path();
            let meta = std::fs::metadata(&path).unwrap();
            assert_eq!(meta.mode() & 0o077, 0, "{}", path.display());
            assert!(!std::fs::read_to_string(&path).unwrap().contains(&token));
        }
    }

    #[test]
    fn a_damaged_file_lets_nobody_in() {
        let folder = tempfile::tempdir().unwrap();
        let users = Users::of(folder.path());
        let token = users.add("ada", &[], Timestamp::UNIX_EPOCH).unwrap();
        assert!(users.holder(&token).is_some());
        std::fs::write(users.file(), "[{").unwrap();
        assert_eq!(users.holder(&token), None);
        std::fs::remove_file(users.file()).unwrap();
        assert_eq!(users.holder(&token), None);
    }

    #[test]
    fn names_and_groups_of_the_server_itself_cannot_be_taken() {
        let folder = tempfile::tempdir().unwrap();
        let users = Users::of(folder.path());
        for name in [
            "",
            "system:admin",
            "-a",
            "a-",
            "a b",
            "a/b",
            "é",
            &"a".repeat(64),
        ] {
            assert!(matches!(users.check(name, &[]), Err(UserError::Name(_))));
        }
        users
            .check("ada.l@example.com", &["team:a".to_owned()])
            .unwrap();
        for group in ["", "system:masters"] {
            let asked = [group.to_owned()];
            assert!(matches!(users.check("a", &asked), Err(UserError::Group(_))));
        }
    }
}
