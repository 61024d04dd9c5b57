//! The token one machine joins with: made from a key only the cluster knows and the machine's name, so that a launch
//! that is repeated carries the same one, and its public half is known from the name alone.

use std::fmt::{self, Debug, Write};

use ring::{digest, hmac};

/// Lengths that Kubernetes demands of the two halves.
const ID: usize = 6;
const SECRET: usize = 16;

/// See the module.
#[derive(Clone, PartialEq, Eq)]
pub struct JoinToken {
    id: String,
    secret: String,
}

impl Debug for JoinToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "JoinToken({})", self.id)
    }
}

/// The half of a machine's token that anybody may know.
pub fn token_id(machine: &str) -> String {
    let seen = digest::digest(&digest::SHA256, format!("warp join {machine}").as_bytes());
    letters(seen.as_ref(), ID)
}

impl JoinToken {
    /// The token of `machine` in the cluster that keeps `key`.
    pub fn of(key: &[u8], machine: &str) -> Self {
        let key = hmac::Key::new(hmac::HMAC_SHA256, key);
        Self {
            id: token_id(machine),
            secret: letters(hmac::sign(&key, machine.as_bytes()).as_ref(), SECRET),
        }
    }

    pub fn id(&self) -> &str {
        &self.id
    }

    /// The half nobody is told, for the cluster's own record of it.
    pub fn secret(&self) -> &str {
        &self.secret
    }

    /// Both halves, for the machine.
    pub(super) fn shown(&self) -> String {
        format!("{}.{}", self.id, self.secret)
    }

    /// With the authority's fingerprint in front, as k3s takes it.
    pub(super) fn pinned(&self, authority: &str) -> String {
        let seen = digest::digest(&digest::SHA256, authority.as_bytes());
        let hex = seen.as_ref().iter().fold(String::new(), |mut hex, byte| {
            let _ = write!(hex, "{byte:02x}");
            hex
        });
        format!("K10{hex}::{}", self.shown())
    }
}

/// Bytes as small letters and digits.
fn letters(bytes: &[u8], count: usize) -> String {
    const ALL: &[u8; 36] = b"abcdefghijklmnopqrstuvwxyz0123456789";
    let letter = |byte: &u8| char::from(ALL[usize::from(*byte) % ALL.len()]);
    bytes.iter().take(count).map(letter).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_machine_has_one_token_and_another_machine_or_cluster_another() {
        let token = JoinToken::of(b"key", "m-1");
        assert_eq!(token, JoinToken::of(b"key", "m-1"));
        assert_ne!(token.secret, JoinToken::of(b"key", "m-2").secret);
        assert_ne!(token.secret, JoinToken::of(b"yek", "m-1").secret);
        assert_eq!(token.id, token_id("m-1"));
        assert_eq!((token.id.len(), token.secret.len()), (ID, SECRET));
        assert!(!format!("{token:?}").contains(&token.secret));
    }
}
