//! Checksums of the server's own secrets: a key or token that changed by itself would lock everybody out, or
//! let in whom nobody knows.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use super::identity::{IdentityError, at, write_private};

const NAME: &str = "identity.sums";

/// The checksums of a directory, by file.
pub(super) struct Sums {
    path: PathBuf,
    known: BTreeMap<String, String>,
    changed: bool,
}

impl Sums {
    /// What was noted in a directory; nothing in those of earlier versions.
    pub(super) fn read(directory: &Path) -> Result<Self, IdentityError> {
        let path = directory.join(NAME);
        let text = match fs::read_to_string(&path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => String::new(),
            read => at(&path, read)?,
        };
        let known = text
            .lines()
            .filter_map(|line| line.split_once(' '))
            .map(|(name, sum)| (name.to_owned(), sum.to_owned()))
            .collect();
        Ok(Self {
            path,
            known,
            changed: false,
        })
    }

    /// Refuses a text that is not the one that was written; one of which nothing is known is noted.
    pub(super) fn check(
        &mut self,
        file: &Path,
        name: &str,
        text: &str,
    ) -> Result<(), IdentityError> {
        match self.known.get(name) {
            Some(known) if *known != sum(text) => Err(IdentityError::Changed {
                path: file.to_owned(),
                sums: self.path.clone(),
            }),
            Some(_) => Ok(()),
            None => {
                self.note(name, text);
                Ok(())
            }
        }
    }

    /// The file was made anew.
    pub(super) fn note(&mut self, name: &str, text: &str) {
        self.known.insert(name.to_owned(), sum(text));
        self.changed = true;
    }

    pub(super) fn write(&self) -> Result<(), IdentityError> {
        if !self.changed {
            return Ok(());
        }
        let lines: Vec<String> = self
            .known
            .iter()
            .map(|(name, sum)| format!("{name} {sum}\n"))
            .collect();
        write_private(&self.path, &lines.concat())
    }
}

fn sum(text: &str) -> String {
    let digest = ring::digest::digest(&ring::digest::SHA256, text.as_bytes());
    crate::codec::hex(digest.as_ref())
}

#[cfg(test)]
mod tests {
    use super::super::Identity;
    use super::*;

    #[test]
    fn a_secret_that_is_not_what_was_written_stops_the_start() {
        let folder = tempfile::tempdir().expect("a folder");
        let load = || Identity::load(Some(folder.path()), &[]);
        let token = load().expect("made").token;
        for name in ["ca.key", "ca.crt", "token", "service-account.key"] {
            let file = folder.path().join(name);
            let whole = fs::read(&file).expect("a file");
            for at in (0..whole.len()).step_by(41) {
                let mut flipped = whole.clone();
                flipped[at] ^= 1 << (at % 8);
                fs::write(&file, &flipped).expect("written");
                let error = load().expect_err("refused").to_string();
                assert!(error.contains(name), "byte {at}: {error}");
            }
            fs::write(&file, &whole).expect("written");
        }
        assert_eq!(load().expect("as it was").token, token);
        // As the sentence says: a new one for one that was removed.
        fs::remove_file(folder.path().join("token")).expect("removed");
        assert_ne!(load().expect("a new one").token, token);
        load().expect("and it stays");
        // A directory from before there were checksums gets them.
        fs::remove_file(folder.path().join(NAME)).expect("removed");
        load().expect("noted");
        assert!(folder.path().join(NAME).exists());
    }
}
