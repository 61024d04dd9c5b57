//! What a pod brings along, read from the API and laid out on this machine: environment and volumes.
//! Shared by the runtimes that really run things.

pub(crate) mod environment;
pub(crate) mod fields;
pub(crate) mod volumes;

/// A ConfigMap, Secret or claim that is not there, or a kind of volume no runtime of ours can make.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ContentError {
    #[error("{kind} \"{name}\" not found")]
    Missing { kind: &'static str, name: String },
    #[error("couldn't find key {key} in {kind} {namespace}/{name}")]
    MissingKey {
        kind: &'static str,
        namespace: String,
        name: String,
        key: String,
    },
    /// A volume that cannot be made, in the words of a kubelet's event.
    #[error("{0}")]
    Mount(String),
    #[error("{0}")]
    Unsupported(String),
    #[error("failed to write {path}")]
    Write {
        path: String,
        #[source]
        source: std::io::Error,
    },
    #[error("failed to read {kind} \"{name}\"")]
    Read {
        kind: &'static str,
        name: String,
        #[source]
        source: Box<kube::Error>,
    },
}

impl ContentError {
    /// The whole chain in one line, for a status.
    pub(crate) fn told(&self) -> String {
        match std::error::Error::source(self) {
            Some(source) => format!("{self}: {source}"),
            None => self.to_string(),
        }
    }
}
