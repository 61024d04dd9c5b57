//! A pod's volumes as folders of this machine. What cannot be made is refused by name.

use std::collections::{BTreeMap, BTreeSet};
use std::io::Write;
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::{Component, Path, PathBuf};
use std::time::Duration;

use k8s_openapi::api::authentication::v1::{BoundObjectReference, TokenRequest, TokenRequestSpec};
use k8s_openapi::api::core::v1::{
    Container, DownwardAPIVolumeFile, HostPathVolumeSource, KeyToPath, PersistentVolume,
    PersistentVolumeClaim, Pod, ServiceAccount, Volume, VolumeMount, VolumeProjection,
};
use kube::api::PostParams;
use kube::{Api, Client};

use super::ContentError;
use super::environment::{Entries, Sources, expand};
use super::fields::{self, Machine};
use crate::node::facts::containers;

const DEFAULT_MODE: i32 = 0o644;
const TOKEN_SECONDS: i64 = 3600;

/// Where each volume of a pod is.
pub(crate) type Volumes = BTreeMap<String, PathBuf>;

/// Makes the volumes of one pod.
pub(crate) struct Maker<'a> {
    pub(crate) client: &'a Client,
    pub(crate) pod: &'a Pod,
    pub(crate) address: &'a str,
    pub(crate) machine: Machine,
    /// The folder the pod's own volumes are made in.
    pub(crate) folder: PathBuf,
}

/// Files of a volume, by their path inside it, with their modes.
type Files = Vec<(String, Vec<u8>, i32)>;

impl Maker<'_> {
    fn namespace(&self) -> &str {
        self.pod.metadata.namespace.as_deref().unwrap_or("default")
    }

    pub(crate) async fn make(&self) -> Result<Volumes, ContentError> {
        let mut made = Volumes::new();
        for volume in self
            .pod
            .spec
            .iter()
            .flat_map(|spec| spec.volumes.iter().flatten())
        {
            made.insert(volume.name.clone(), self.one(volume).await?);
        }
        Ok(made)
    }

    /// Brings the files of ConfigMaps, Secrets, downward fields and tokens up to date. What cannot be read
    /// now stays as it is, as on a kubelet.
    pub(crate) async fn refresh(&self, made: &Volumes) {
        let volumes = self
            .pod
            .spec
            .iter()
            .flat_map(|spec| spec.volumes.iter().flatten());
        for volume in volumes {
            let Some(place) = made.get(&volume.name) else {
                continue;
            };
            let updated = match self.files(volume).await {
                Ok(Some(files)) => update_files(place, &files),
                Ok(None) => Ok(()),
                Err(error) => Err(error),
            };
            if let Err(error) = updated {
                tracing::debug!(volume = volume.name, why = error.told(), "not refreshed");
            }
        }
    }

    async fn one(&self, volume: &Volume) -> Result<PathBuf, ContentError> {
        let own = self.folder.join(&volume.name);
        if let Some(path) = &volume.host_path {
            return host_path(path);
        }
        if let Some(claim) = &volume.persistent_volume_claim {
            return self.claim(&claim.claim_name).await;
        }
        if volume.empty_dir.is_some() {
            make_folder(&own)?;
            return Ok(own);
        }
        let files = self.files(volume).await?.ok_or_else(|| {
            ContentError::Unsupported(format!(
                "volume \"{}\": this kind of volume is not available on a local node; use emptyDir, hostPath, a claim, configMap, secret, downwardAPI or projected",
                volume.name
            ))
        })?;
        update_files(&own, &files)?;
        Ok(own)
    }

    /// The files of a volume that comes from the API; nothing for one that does not.
    async fn files(&self, volume: &Volume) -> Result<Option<Files>, ContentError> {
        let sources = Sources::new(self.client, self.namespace());
        if let Some(map) = &volume.config_map {
            let entries = sources
                .config_map(&map.name, map.optional == Some(true))
                .await?;
            let of = ("ConfigMap", map.name.as_str(), self.namespace());
            return pick(entries, map.items.as_deref(), map.default_mode, of).map(Some);
        }
        if let Some(secret) = &volume.secret {
            let name = secret.secret_name.clone().unwrap_or_default();
            let entries = sources.secret(&name, secret.optional == Some(true)).await?;
            let of = ("Secret", name.as_str(), self.namespace());
            return pick(entries, secret.items.as_deref(), secret.default_mode, of).map(Some);
        }
        if let Some(downward) = &volume.downward_api {
            let items = downward.items.as_deref().unwrap_or_default();
            return self.downward(items, downward.default_mode).map(Some);
        }
        let Some(projected) = &volume.projected else {
            return Ok(None);
        };
        let own = self.folder.join(&volume.name);
        let mut files = Files::new();
        for source in projected.sources.iter().flatten() {
            files.extend(
                self.projection(source, &sources, projected.default_mode, &own)
                    .await?,
            );
        }
        Ok(Some(files))
    }

    async fn claim(&self, name: &str) -> Result<PathBuf, ContentError> {
        let failed = |kind, name: &str, source| ContentError::Read {
            kind,
            name: name.to_owned(),
            source: Box::new(source),
        };
        let claims: Api<PersistentVolumeClaim> =
            Api::namespaced(self.client.clone(), self.namespace());
        let claim = claims
            .get_opt(name)
            .await
            .map_err(|source| failed("persistentvolumeclaim", name, source))?
            .ok_or_else(|| ContentError::Missing {
                kind: "persistentvolumeclaim",
                name: name.to_owned(),
            })?;
        let Some(bound) = claim.spec.and_then(|spec| spec.volume_name) else {
            return Err(ContentError::Unsupported(format!(
                "persistentvolumeclaim \"{name}\" is not bound to a volume yet"
            )));
        };
        let volumes: Api<PersistentVolume> = Api::all(self.client.clone());
        let volume = volumes
            .get(&bound)
            .await
            .map_err(|source| failed("persistentvolume", &bound, source))?;
        let spec = volume.spec.unwrap_or_default();
        let path = spec
            .host_path
            .map(|path| path.path)
            .or_else(|| spec.local.map(|local| local.path));
        let Some(path) = path else {
            return Err(ContentError::Unsupported(format!(
                "persistentvolume \"{bound}\" is not a folder of this machine"
            )));
        };
        let path = PathBuf::from(path);
        make_folder(&path)?;
        Ok(path)
    }

    fn downward(
        &self,
        items: &[DownwardAPIVolumeFile],
        mode: Option<i32>,
    ) -> Result<Files, ContentError> {
        let empty = Container::default();
        let all: Vec<&Container> = self.pod.spec.iter().flat_map(containers).collect();
        items
            .iter()
            .map(|item| {
                let text = if let Some(field) = &item.field_ref {
                    fields::of_pod(self.pod, field, self.address)?
                } else if let Some(resource) = &item.resource_field_ref {
                    fields::of_resources(&all, &empty, resource, self.machine)?
                } else {
                    String::new()
                };
                Ok((
                    item.path.clone(),
                    text.into_bytes(),
                    item.mode.or(mode).unwrap_or(DEFAULT_MODE),
                ))
            })
            .collect()
    }

    async fn projection(
        &self,
        source: &VolumeProjection,
        sources: &Sources,
        mode: Option<i32>,
        own: &Path,
    ) -> Result<Files, ContentError> {
        if let Some(map) = &source.config_map {
            let entries = sources
                .config_map(&map.name, map.optional == Some(true))
                .await?;
            let of = ("ConfigMap", map.name.as_str(), self.namespace());
            return pick(entries, map.items.as_deref(), mode, of);
        }
        if let Some(secret) = &source.secret {
            let entries = sources
                .secret(&secret.name, secret.optional == Some(true))
                .await?;
            let of = ("Secret", secret.name.as_str(), self.namespace());
            return pick(entries, secret.items.as_deref(), mode, of);
        }
        if let Some(downward) = &source.downward_api {
            return self.downward(downward.items.as_deref().unwrap_or_default(), mode);
        }
        if let Some(token) = &source.service_account_token {
            let seconds = token.expiration_seconds.unwrap_or(TOKEN_SECONDS);
            let text = match still_good(&own.join(&token.path), seconds) {
                Some(text) => text,
                None => self
                    .token(token.audience.as_deref(), seconds)
                    .await?
                    .into_bytes(),
            };
            // Only the pod's owner may read a token, whatever the volume's mode says.
            return Ok(vec![(token.path.clone(), text, 0o600)]);
        }
        Err(ContentError::Unsupported(
            "this kind of projected volume is not available on a local node".to_owned(),
        ))
    }

    /// A token that is worth nothing once the pod is gone.
    async fn token(&self, audience: Option<&str>, seconds: i64) -> Result<String, ContentError> {
        let account = self
            .pod
            .spec
            .as_ref()
            .and_then(|spec| spec.service_account_name.clone())
            .unwrap_or_else(|| "default".to_owned());
        let accounts: Api<ServiceAccount> = Api::namespaced(self.client.clone(), self.namespace());
        let request = TokenRequest {
            spec: TokenRequestSpec {
                audiences: audience.map(str::to_owned).into_iter().collect(),
                expiration_seconds: Some(seconds),
                bound_object_ref: Some(BoundObjectReference {
                    api_version: Some("v1".to_owned()),
                    kind: Some("Pod".to_owned()),
                    name: self.pod.metadata.name.clone(),
                    uid: self.pod.metadata.uid.clone(),
                }),
            },
            ..TokenRequest::default()
        };
        let made = accounts
            .create_token_request(&account, &PostParams::default(), &request)
            .await
            .map_err(|source| ContentError::Read {
                kind: "token of service account",
                name: account,
                source: Box::new(source),
            })?;
        Ok(made.status.map(|status| status.token).unwrap_or_default())
    }
}

fn host_path(source: &HostPathVolumeSource) -> Result<PathBuf, ContentError> {
    let path = PathBuf::from(&source.path);
    let kind = source.type_.as_deref().unwrap_or_default();
    let fits = match kind {
        "" => true,
        "DirectoryOrCreate" => {
            make_folder(&path)?;
            true
        }
        "FileOrCreate" => {
            if !path.exists() {
                write_file(&path, &[], DEFAULT_MODE)?;
            }
            path.is_file()
        }
        "Directory" => path.is_dir(),
        "File" => path.is_file(),
        _ => path.exists(),
    };
    if fits {
        return Ok(path);
    }
    Err(ContentError::Unsupported(format!(
        "hostPath {} is not a {kind}",
        source.path
    )))
}

/// The entries a volume shows, under the paths it gives them.
fn pick(
    mut entries: Entries,
    items: Option<&[KeyToPath]>,
    mode: Option<i32>,
    (kind, name, namespace): (&'static str, &str, &str),
) -> Result<Files, ContentError> {
    let mode = mode.unwrap_or(DEFAULT_MODE);
    let Some(items) = items else {
        return Ok(entries
            .into_iter()
            .map(|(key, value)| (key, value, mode))
            .collect());
    };
    items
        .iter()
        .map(|item| {
            let value = entries
                .remove(&item.key)
                .ok_or_else(|| ContentError::MissingKey {
                    kind,
                    namespace: namespace.to_owned(),
                    name: name.to_owned(),
                    key: item.key.clone(),
                })?;
            Ok((item.path.clone(), value, item.mode.unwrap_or(mode)))
        })
        .collect()
}

/// A token that has most of its life before it is kept.
fn still_good(path: &Path, seconds: i64) -> Option<Vec<u8>> {
    let written = std::fs::metadata(path).ok()?.modified().ok()?;
    let life = Duration::from_secs(seconds.max(0).unsigned_abs());
    let young = written.elapsed().ok()? < life.mul_f64(0.8);
    young.then(|| std::fs::read(path).ok())?
}

/// Where a mount leads: the volume, or a folder in it. Links inside the volume must not lead out of it: a
/// pod could have put them there.
pub(crate) fn mounted(
    volume: &Path,
    mount: &VolumeMount,
    variables: &BTreeMap<String, String>,
) -> Result<PathBuf, ContentError> {
    let inner = match (&mount.sub_path, &mount.sub_path_expr) {
        (Some(path), _) => path.clone(),
        (None, Some(text)) => expand(text, variables),
        (None, None) => String::new(),
    };
    if inner.is_empty() {
        return Ok(volume.to_owned());
    }
    let refused = || {
        ContentError::Unsupported(format!(
            "subPath \"{inner}\" of volume \"{}\" leads out of it",
            mount.name
        ))
    };
    let failed = |path: &Path, source| ContentError::Write {
        path: path.display().to_string(),
        source,
    };
    let root = volume
        .canonicalize()
        .map_err(|source| failed(volume, source))?;
    let mut place = root.clone();
    for part in Path::new(&inner).components() {
        match part {
            Component::Normal(name) => place.push(name),
            Component::CurDir => continue,
            _ => return Err(refused()),
        }
        if !place.exists() {
            make_folder(&place)?;
        }
        place = place
            .canonicalize()
            .map_err(|source| failed(&place, source))?;
        if !place.starts_with(&root) {
            return Err(refused());
        }
    }
    Ok(place)
}

/// Makes a folder hold exactly these files. Each is replaced as a whole and only when it changed.
fn update_files(folder: &Path, files: &[(String, Vec<u8>, i32)]) -> Result<(), ContentError> {
    make_folder(folder)?;
    let mut kept = BTreeSet::new();
    for (path, content, mode) in files {
        let relative = Path::new(path);
        // A key is a name in a folder of ours; it must not lead out of it.
        if !relative
            .components()
            .all(|part| matches!(part, Component::Normal(_)))
        {
            return Err(ContentError::Unsupported(format!(
                "file path \"{path}\" leads out of the volume"
            )));
        }
        let target = folder.join(relative);
        if let Some(parent) = target.parent() {
            make_folder(parent)?;
        }
        if std::fs::read(&target).ok().as_ref() != Some(content) {
            let new = target.with_file_name(format!(".{}.new", kept.len()));
            write_file(&new, content, *mode)?;
            std::fs::rename(&new, &target).map_err(|source| ContentError::Write {
                path: target.display().to_string(),
                source,
            })?;
        }
        kept.insert(target);
    }
    remove_others(folder, &kept);
    Ok(())
}

fn remove_others(folder: &Path, kept: &BTreeSet<PathBuf>) {
    for entry in std::fs::read_dir(folder).into_iter().flatten().flatten() {
        let path = entry.path();
        if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            remove_others(&path, kept);
        } else if !kept.contains(&path) {
            std::fs::remove_file(&path).ok();
        }
    }
}

fn make_folder(path: &Path) -> Result<(), ContentError> {
    std::fs::create_dir_all(path).map_err(|source| ContentError::Write {
        path: path.display().to_string(),
        source,
    })
}

fn write_file(path: &Path, content: &[u8], mode: i32) -> Result<(), ContentError> {
    let mode = u32::try_from(mode & 0o777).unwrap_or(0o600);
    let write = || {
        // Private from the first byte on; the final mode comes after the content.
        let mut file = std::fs::OpenOptions::new()
            .write(true)
            .create(true)
            .truncate(true)
            .mode(0o600)
            .open(path)?;
        file.write_all(content)?;
        file.set_permissions(std::fs::Permissions::from_mode(mode))
    };
    write().map_err(|source| ContentError::Write {
        path: path.display().to_string(),
        source,
    })
}

#[cfg(test)]
mod tests;
