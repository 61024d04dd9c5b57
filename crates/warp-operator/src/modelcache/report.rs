//! What a fetch says of itself: how far it is while it runs, and its last words.

use k8s_openapi::api::core::v1::Pod;
use serde::Deserialize;

/// How far a fetch is, as its page says.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct Moment {
    pub(crate) files: i64,
    pub(crate) files_total: i64,
    pub(crate) bytes: i64,
    pub(crate) bytes_total: i64,
    pub(crate) bytes_per_second: i64,
    pub(crate) seconds_left: Option<i64>,
    pub(crate) trouble: Option<String>,
}

/// The last words of a fetch.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) enum LastWords {
    Fetched(Fetched),
    Failed(Failed),
    /// A simulated node pretended to fetch: there are no files.
    Simulated {},
}

/// What is complete now.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Fetched {
    pub(crate) commit: String,
    pub(crate) digest: String,
    pub(crate) path: String,
    pub(crate) files: i64,
    /// Those compared with what the source says of them; an older fetch does not say.
    #[serde(default)]
    pub(crate) verified: Option<i64>,
    pub(crate) bytes: i64,
}

impl Fetched {
    /// How many files were compared with what the source says of them, where that is not all.
    pub(crate) fn verified_files(&self) -> Option<i64> {
        self.verified.filter(|verified| *verified < self.files)
    }
}

/// Why nothing is.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Failed {
    pub(crate) reason: String,
    pub(crate) message: String,
    /// Bytes of a model that has more than the fetch was allowed.
    #[serde(default)]
    pub(crate) bytes: Option<i64>,
}

/// The last words of a pod that ended.
pub(crate) fn last_words(pod: &Pod) -> Option<LastWords> {
    let statuses = pod.status.as_ref()?.container_statuses.as_ref()?;
    let ended = statuses.iter().find_map(|status| {
        let state = status
            .state
            .as_ref()
            .and_then(|state| state.terminated.as_ref());
        state?.message.as_deref()
    })?;
    let words: LastWords = serde_json::from_str(ended.trim()).ok()?;
    // They become a part of paths and of conditions: what does not look like them is none.
    let sound = match &words {
        LastWords::Fetched(fetched) => {
            // As git and the hub write commits, or a registry its digests.
            let commit = matches!(fetched.commit.len(), 40 | 64)
                && fetched
                    .commit
                    .chars()
                    .all(|letter| letter.is_ascii_hexdigit());
            let path = !fetched.path.starts_with('/')
                && fetched
                    .path
                    .split('/')
                    .all(|part| !matches!(part, "" | "." | ".."));
            commit && path
        }
        LastWords::Simulated {} => true,
        LastWords::Failed(failed) => {
            !failed.reason.is_empty()
                && failed.reason.len() <= 64
                && failed
                    .reason
                    .chars()
                    .all(|letter| letter.is_ascii_alphanumeric())
        }
    };
    sound.then_some(words)
}
