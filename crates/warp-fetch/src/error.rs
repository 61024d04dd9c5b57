//! What can go wrong, in words a person can act on. A signed address never appears in them.

use std::path::{Path, PathBuf};

use thiserror::Error;

#[derive(Debug, Error)]
pub enum FetchError {
    #[error(
        "'{0}' is no source; write hf://ORG/NAME[@REVISION], oci://REGISTRY/NAME[:TAG|@sha256:HEX], https://HOST/FILE, s3://BUCKET/PREFIX, gs://BUCKET/PREFIX, az://ACCOUNT/CONTAINER/PREFIX or the path of a folder"
    )]
    NoSource(String),
    #[error(
        "{0} cannot have a list of files; that is for https://HOST/FOLDER without a question mark and without a digest"
    )]
    NoList(String),
    #[error("{path} cannot be fetched from: {why}; name a folder of this machine that can be read")]
    NoFolder {
        path: PathBuf,
        why: &'static str,
        reason: &'static str,
    },
    #[error(
        "{what} is no file of a model: {why}; name a file, or name the files below the address, each with --file (of a ModelCache: source.http.files)"
    )]
    NoFile { what: String, why: &'static str },
    #[error("failed to reach {place}: {why}")]
    Unreachable { place: String, why: String },
    #[error("{what} answered {status}: {next}")]
    Refused {
        what: String,
        status: u16,
        next: &'static str,
        permanent: bool,
        /// What the server asks to wait before the next try.
        retry_after: Option<std::time::Duration>,
    },
    #[error("{what} gave an answer that makes no sense: {why}")]
    Nonsense { what: String, why: String },
    #[error("{what} sent nothing for {seconds} s")]
    Stalled { what: String, seconds: u64 },
    #[error("{what} ended the transfer after {got} of {wanted} bytes")]
    Truncated { what: String, got: u64, wanted: u64 },
    #[error("gave up on {file}: no byte came within {seconds} s; the last try: {last}")]
    GaveUp {
        file: String,
        seconds: u64,
        last: Box<Self>,
    },
    #[error(
        "{file} is not what was promised: its digest is {found}, not {expected}; it was fetched {tries} times and is not published. Ask whoever serves it, or use another mirror"
    )]
    Corrupt {
        file: String,
        expected: String,
        found: String,
        tries: u32,
    },
    #[error("{file} changed while it was fetched; try again")]
    Changed { file: String },
    #[error(
        "{folder} has room for {free} more bytes, the model needs {needed}; make room or choose another place"
    )]
    NoRoom {
        folder: PathBuf,
        free: u64,
        needed: u64,
    },
    #[error("the model has {total} bytes, and at most {limit} were allowed; nothing was fetched")]
    TooLarge { total: u64, limit: u64 },
    #[error("{source_name} has no files{why}")]
    Empty { source_name: String, why: String },
    #[error("'{path}' in the list of files leads out of its folder; nothing was fetched")]
    Path { path: String },
    #[error("failed to {doing} {path}")]
    Io {
        doing: &'static str,
        path: PathBuf,
        #[source]
        source: std::io::Error,
    },
    #[error("{name} is not complete in {folder}: fetch it with `warp fetch` first")]
    NotComplete { name: String, folder: PathBuf },
    #[error("{name} is not what was published: {files} changed since; nothing was published")]
    Altered { name: String, files: String },
    #[error("the bundle cannot be used: {0}; nothing was published")]
    Bundle(String),
    #[error("another fetch writes to {0}; try again when it has ended")]
    Busy(PathBuf),
    #[error("the credentials cannot be used: {0}")]
    Credentials(String),
    #[error("failed to prepare the client: {0}")]
    Client(String),
    #[error("a part of the fetch ended unexpectedly")]
    Ended,
}

impl FetchError {
    pub(crate) fn io(doing: &'static str, path: &Path) -> impl FnOnce(std::io::Error) -> Self {
        let path = path.to_owned();
        move |source| Self::Io {
            doing,
            path,
            source,
        }
    }

    /// The same of a folder that is fetched from: what is not there, or may not be read, is so at the next try too.
    pub(crate) fn folder(doing: &'static str, path: &Path) -> impl FnOnce(std::io::Error) -> Self {
        let path = path.to_owned();
        move |source| {
            let (why, reason) = match source.kind() {
                std::io::ErrorKind::NotFound => ("there is no such file or folder", "NotFound"),
                std::io::ErrorKind::NotADirectory => ("it is no folder", "InvalidSource"),
                std::io::ErrorKind::PermissionDenied => ("it may not be read", "Unauthorized"),
                _ => return Self::io(doing, &path)(source),
            };
            Self::NoFolder { path, why, reason }
        }
    }

    /// Whether trying again soon cannot help: somebody has to do something first.
    pub fn is_permanent(&self) -> bool {
        match self {
            Self::Refused { permanent, .. } => *permanent,
            Self::NoSource(_)
            | Self::NoList(_)
            | Self::NoFolder { .. }
            | Self::NoFile { .. }
            | Self::Nonsense { .. }
            | Self::Corrupt { .. }
            | Self::NoRoom { .. }
            | Self::TooLarge { .. }
            | Self::Empty { .. }
            | Self::Path { .. }
            | Self::NotComplete { .. }
            | Self::Altered { .. }
            | Self::Bundle(_)
            | Self::Credentials(_)
            | Self::Client(_) => true,
            Self::Io { source, .. } => source.kind() == std::io::ErrorKind::StorageFull,
            Self::Unreachable { .. }
            | Self::Stalled { .. }
            | Self::Truncated { .. }
            | Self::GaveUp { .. }
            | Self::Changed { .. }
            | Self::Busy(_)
            | Self::Ended => false,
        }
    }

    /// One word for conditions and scripts.
    pub fn reason(&self) -> &'static str {
        match self {
            Self::NoSource(_) | Self::NoList(_) | Self::NoFile { .. } => "InvalidSource",
            Self::NoFolder { reason, .. } => reason,
            Self::Refused { status, .. } => match status {
                401 | 403 => "Unauthorized",
                404 | 410 => "NotFound",
                429 => "RateLimited",
                _ => "SourceRefused",
            },
            Self::Unreachable { .. }
            | Self::Stalled { .. }
            | Self::Truncated { .. }
            | Self::GaveUp { .. } => "SourceUnreachable",
            Self::Nonsense { .. } | Self::Path { .. } => "SourceInvalid",
            Self::Corrupt { .. } | Self::Changed { .. } => "ContentMismatch",
            Self::NoRoom { .. } => "NoSpace",
            Self::TooLarge { .. } => "TooLarge",
            Self::Io { source, .. } if source.kind() == std::io::ErrorKind::StorageFull => {
                "NoSpace"
            }
            Self::Empty { .. } => "NoFiles",
            Self::NotComplete { .. } => "NotComplete",
            Self::Altered { .. } => "ModelChanged",
            Self::Bundle(_) => "BundleInvalid",
            Self::Credentials(_) => "Unauthorized",
            Self::Busy(_) => "Busy",
            Self::Io { .. } => "VolumeFailed",
            Self::Client(_) | Self::Ended => "FetchFailed",
        }
    }
}
