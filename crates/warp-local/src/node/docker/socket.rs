//! Where an engine may listen, in the order people expect.

use std::path::PathBuf;

use super::api::{Docker, DockerError};

/// What decides where to look; from the environment, or from a test.
#[derive(Clone, Debug, Default)]
pub struct Search {
    /// Said outright.
    pub given: Option<PathBuf>,
    /// `DOCKER_HOST`.
    pub docker_host: Option<String>,
    pub home: Option<PathBuf>,
    /// `XDG_RUNTIME_DIR`.
    pub runtime_directory: Option<PathBuf>,
}

impl Search {
    pub fn from_environment(given: Option<PathBuf>) -> Self {
        let path = |name: &str| {
            std::env::var_os(name)
                .filter(|value| !value.is_empty())
                .map(PathBuf::from)
        };
        Self {
            given,
            docker_host: std::env::var("DOCKER_HOST")
                .ok()
                .filter(|value| !value.is_empty()),
            home: path("HOME"),
            runtime_directory: path("XDG_RUNTIME_DIR"),
        }
    }

    /// Sockets to try, the first that answers is used. A socket said outright is the only one tried.
    pub fn places(&self) -> Vec<PathBuf> {
        if let Some(given) = &self.given {
            return vec![given.clone()];
        }
        let host = self
            .docker_host
            .as_deref()
            .and_then(|host| host.strip_prefix("unix://"))
            .map(PathBuf::from);
        let desktop = self
            .home
            .as_ref()
            .map(|home| home.join(".docker/run/docker.sock"));
        let podman = self
            .runtime_directory
            .as_ref()
            .map(|folder| folder.join("podman/podman.sock"));
        [
            host,
            desktop,
            podman,
            Some(PathBuf::from("/var/run/docker.sock")),
        ]
        .into_iter()
        .flatten()
        .collect()
    }
}

/// The first engine that answers.
pub async fn find(search: &Search) -> Result<Docker, DockerError> {
    let mut last = None;
    for place in search.places() {
        let docker = Docker::at(place);
        match docker.ping().await {
            Ok(()) => return Ok(docker),
            Err(error) => last = Some(error),
        }
    }
    Err(last.unwrap_or(DockerError::NoPlace))
}
