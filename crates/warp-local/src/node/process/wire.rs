//! What Warp and a pod's supervisor say to each other: one JSON object a line over a socket in the
//! pod's folder. The supervisor repeats every state to whoever connects, so nothing said is lost.

use std::collections::BTreeMap;
use std::path::PathBuf;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

/// Everything needed to run one container once.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Launch {
    pub(crate) container: String,
    pub(crate) attempt: u32,
    pub(crate) command: Vec<String>,
    pub(crate) environment: BTreeMap<String, String>,
    pub(crate) folder: PathBuf,
    /// Folders of control groups to join.
    pub(crate) groups: Vec<PathBuf>,
    /// Folders of this machine that it mounts to be read only.
    #[serde(default)]
    pub(crate) read_only: Vec<PathBuf>,
    /// Where the container may leave a last word.
    pub(crate) last_word: Option<PathBuf>,
    /// Without a last word, the last lines of its log are it when it fails.
    #[serde(default)]
    pub(crate) last_lines: bool,
    /// Bytes of memory its processes may use together, where no control group sees to it.
    #[serde(default)]
    pub(crate) memory: Option<u64>,
    /// Whether it is given a standard input somebody can attach to.
    #[serde(default)]
    pub(crate) stdin: Option<Stdin>,
}

/// How long a standard input stays open.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Stdin {
    Kept,
    /// Until the first who attached goes.
    Once,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) enum Request {
    /// Starting an attempt that is known only repeats its state.
    Start(Box<Launch>),
    Stop {
        container: String,
        attempt: u32,
        grace_ms: u64,
        signal: String,
        /// A command to run before the signal is sent.
        before: Option<Vec<String>>,
        /// Milliseconds to wait before the signal is sent.
        wait_ms: u64,
    },
    /// Nobody will type into it any more.
    CloseInput { container: String, attempt: u32 },
    /// End everything and go.
    End,
}

/// One run of one container, as far as it has got. Also the content of its state file.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct State {
    pub(crate) container: String,
    pub(crate) attempt: u32,
    pub(crate) pid: u32,
    pub(crate) started: Timestamp,
    pub(crate) ended: Option<Ended>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Ended {
    pub(crate) at: Timestamp,
    pub(crate) code: i32,
    pub(crate) signal: Option<i32>,
    pub(crate) reason: String,
    pub(crate) message: Option<String>,
}

impl State {
    pub(crate) fn file_name(container: &str, attempt: u32) -> String {
        format!("{container}.{attempt}.json")
    }
}
