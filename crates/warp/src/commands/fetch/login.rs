//! Who a source is told asks: what the Secret of a ModelCache has, or what the tools people know keep in variables and
//! files.

use std::path::{Path, PathBuf};

use warp_fetch::{AzureAccess, FetchError, RegistryCredentials, ServiceAccount, Source};

use super::setting;

/// What there is for the registry of a source. A Secret that was given must have something for it.
pub(crate) fn registry(
    source: &Source,
    secret: Option<&Path>,
) -> Result<Option<RegistryCredentials>, FetchError> {
    let Source::Artifact(artifact) = source else {
        return Ok(None);
    };
    if let Some(folder) = secret {
        return mounted(folder, &artifact.registry).map(Some);
    }
    let given = setting("WARP_REGISTRY_USERNAME").zip(setting("WARP_REGISTRY_PASSWORD"));
    if let Some((username, password)) = given {
        return Ok(Some(RegistryCredentials { username, password }));
    }
    let config = configuration().and_then(|path| std::fs::read_to_string(path).ok());
    Ok(config.and_then(|text| RegistryCredentials::from_config(&text, &artifact.registry)))
}

/// What `docker login` writes.
fn configuration() -> Option<PathBuf> {
    let folder = setting("DOCKER_CONFIG").map(PathBuf::from);
    let usual = || setting("HOME").map(|home| PathBuf::from(home).join(".docker"));
    folder.or_else(usual).map(|it| it.join("config.json"))
}

/// The service account that reads a bucket of Google's.
pub(crate) fn google(
    source: &Source,
    secret: Option<&Path>,
) -> Result<Option<ServiceAccount>, FetchError> {
    if !matches!(source, Source::Google(_)) {
        return Ok(None);
    }
    let path = match secret {
        Some(folder) => folder.join("key.json"),
        None => match setting("GOOGLE_APPLICATION_CREDENTIALS") {
            Some(path) => PathBuf::from(path),
            None => return Ok(None),
        },
    };
    let key = std::fs::read_to_string(&path)
        .map_err(|_| FetchError::Credentials(format!("{} cannot be read", path.display())))?;
    ServiceAccount::read(&key).map(Some)
}

/// What a container of Azure's is read with.
pub(crate) fn azure(
    source: &Source,
    secret: Option<&Path>,
) -> Result<Option<AzureAccess>, FetchError> {
    if !matches!(source, Source::Azure(_)) {
        return Ok(None);
    }
    let given = |name: &str| match secret {
        Some(folder) => std::fs::read_to_string(folder.join(name)).ok(),
        None => setting(name),
    };
    if let Some(key) = given("AZURE_STORAGE_KEY") {
        return AzureAccess::key(&key).map(Some);
    }
    match (given("AZURE_STORAGE_SAS_TOKEN"), secret) {
        (Some(token), _) => AzureAccess::sas(&token).map(Some),
        (None, None) => Ok(None),
        (None, Some(_)) => Err(FetchError::Credentials(
            "it has neither AZURE_STORAGE_KEY nor AZURE_STORAGE_SAS_TOKEN".to_owned(),
        )),
    }
}

fn mounted(folder: &Path, registry: &str) -> Result<RegistryCredentials, FetchError> {
    let read = |key: &str| std::fs::read_to_string(folder.join(key)).ok();
    if let Some(config) = read(".dockerconfigjson") {
        let found = RegistryCredentials::from_config(&config, registry);
        return found.ok_or_else(|| {
            FetchError::Credentials(format!(".dockerconfigjson has no user for {registry}"))
        });
    }
    match read("username").zip(read("password")) {
        Some((username, password)) => Ok(RegistryCredentials {
            username: username.trim().to_owned(),
            password: password.trim().to_owned(),
        }),
        None => Err(FetchError::Credentials(
            "it has neither .dockerconfigjson nor username and password".to_owned(),
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mounted_secret_has_a_configuration_or_a_user_and_a_password() {
        let folder = tempfile::tempdir().unwrap();
        let source = Source::parse("oci://ghcr.io/a/b:v1").unwrap();
        let found = || registry(&source, Some(folder.path()));
        let error = found().unwrap_err();
        assert_eq!(
            (error.reason(), error.is_permanent()),
            ("Unauthorized", true)
        );
        std::fs::write(folder.path().join("username"), "me\n").unwrap();
        std::fs::write(folder.path().join("password"), "pw\n").unwrap();
        let both = found().unwrap().unwrap();
        assert_eq!(
            (both.username.as_str(), both.password.as_str()),
            ("me", "pw")
        );
        let config = folder.path().join(".dockerconfigjson");
        std::fs::write(&config, r#"{"auths": {"ghcr.io": {"auth": "dTpw"}}}"#).unwrap();
        assert_eq!(found().unwrap().unwrap().username, "u");
        std::fs::write(&config, r#"{"auths": {}}"#).unwrap();
        assert!(found().unwrap_err().to_string().contains("ghcr.io"));
        let blobs = Source::parse("az://account/models").unwrap();
        let access = || azure(&blobs, Some(folder.path()));
        assert_eq!(access().unwrap_err().reason(), "Unauthorized");
        std::fs::write(
            folder.path().join("AZURE_STORAGE_SAS_TOKEN"),
            "?sv=1&sig=x\n",
        )
        .unwrap();
        assert_eq!(access().unwrap(), AzureAccess::sas("sv=1&sig=x").ok());
        std::fs::write(folder.path().join("AZURE_STORAGE_KEY"), "a2V5\n").unwrap();
        assert_eq!(access().unwrap(), AzureAccess::key("a2V5").ok());
        let bucket = Source::parse("gs://models/a").unwrap();
        let account = || google(&bucket, Some(folder.path()));
        assert_eq!(account().unwrap_err().reason(), "Unauthorized");
        std::fs::write(folder.path().join("key.json"), "{}").unwrap();
        assert!(account().unwrap_err().to_string().contains("client_email"));
        let other = Source::parse("hf://a/b").unwrap();
        assert_eq!(registry(&other, Some(folder.path())).unwrap(), None);
    }
}
