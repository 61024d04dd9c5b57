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
use super::environment::{Entries, Sources, expand, unknown_name};
use super::fields::{self, Machine, Place};
use crate::node::facts::containers;

const DEFAULT_MODE: i32 = 0o644;
const TOKEN_SECONDS: i64 = 3600;

/// Where each volume of a pod is.
pub(crate) type Volumes = BTreeMap<String, PathBuf>;

/// Makes the volumes of one pod.
pub(crate) struct Maker<'a> {
    pub(crate) client: &'a Client,
    pub(crate) pod: &'a Pod,
    pub(crate) place: Place<'a>,
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
            let place = self
                .one(volume)
                .await
                .map_err(|error| told_of(volume, &error))?;
            made.insert(volume.name.clone(), place);
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
            let of = ("config", map.optional);
            return pick(entries, map.items.as_deref(), map.default_mode, of).map(Some);
        }
        if let Some(secret) = &volume.secret {
            let name = secret.secret_name.clone().unwrap_or_default();
            let entries = sources.secret(&name, secret.optional == Some(true)).await?;
            let of = ("secret", secret.optional);
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
        let bound = claimed(self.client, self.namespace(), name).await?;
        let volumes: Api<PersistentVolume> = Api::all(self.client.clone());
        let volume = volumes
            .get(&bound)
            .await
            .map_err(|source| ContentError::Read {
                kind: "persistentvolume",
                name: bound.clone(),
                source: Box::new(source),
            })?;
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
                    fields::of_pod(self.pod, field, self.place)?
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
            let of = ("config", map.optional);
            return pick(entries, map.items.as_deref(), mode, of);
        }
        if let Some(secret) = &source.secret {
            let entries = sources
                .secret(&secret.name, secret.optional == Some(true))
                .await?;
            let of = ("secret", secret.optional);
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
        let account = account(self.pod);
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
            .map_err(|source| match &source {
                kube::Error::Api(status) if status.is_not_found() => no_account(&account),
                _ => ContentError::Read {
                    kind: "token of service account",
                    name: account.clone(),
                    source: Box::new(source),
                },
            })?;
        Ok(made.status.map(|status| status.token).unwrap_or_default())
    }
}

/// The volume a claim is bound to, or why it has none, as a kubelet words it.
async fn claimed(client: &Client, namespace: &str, name: &str) -> Result<String, ContentError> {
    let refused = |why: &str| {
        ContentError::Unsupported(format!("error processing PVC {namespace}/{name}: {why}"))
    };
    let claims: Api<PersistentVolumeClaim> = Api::namespaced(client.clone(), namespace);
    let claim = claims
        .get_opt(name)
        .await
        .map_err(|source| ContentError::Read {
            kind: "persistentvolumeclaim",
            name: name.to_owned(),
            source: Box::new(source),
        })?;
    let Some(claim) = claim else {
        return Err(refused(&format!(
            "failed to fetch PVC from API server: persistentvolumeclaims \"{name}\" not found"
        )));
    };
    if claim.metadata.deletion_timestamp.is_some() {
        return Err(refused("PVC is being deleted"));
    }
    let phase = claim.status.and_then(|status| status.phase);
    let bound = claim.spec.and_then(|spec| spec.volume_name);
    match bound {
        Some(bound) if phase.as_deref() == Some("Bound") && !bound.is_empty() => Ok(bound),
        _ => Err(refused("PVC is not bound")),
    }
}

/// What a kubelet's event says of a volume that cannot be made.
fn told_of(volume: &Volume, error: &ContentError) -> ContentError {
    let (name, why) = (&volume.name, error.told());
    ContentError::Mount(if volume.persistent_volume_claim.is_some() {
        format!(
            "Unable to attach or mount volumes: unmounted volumes=[{name}], unattached volumes=[], failed to process volumes=[{name}]: {why}"
        )
    } else {
        format!("MountVolume.SetUp failed for volume \"{name}\" : {why}")
    })
}

/// The prefix of the volume admission gives every pod, for a service account it has looked up.
const ACCOUNT_VOLUME: &str = "kube-api-access-";

fn asked_for(pod: &Pod) -> impl Iterator<Item = &Volume> {
    let volumes = pod
        .spec
        .iter()
        .flat_map(|spec| spec.volumes.iter().flatten());
    volumes.filter(|volume| !volume.name.starts_with(ACCOUNT_VOLUME))
}

/// Whether any volume the pod asks for depends on another object.
pub(crate) fn name_objects(pod: &Pod) -> bool {
    asked_for(pod).any(|volume| {
        volume.config_map.is_some()
            || volume.secret.is_some()
            || volume.persistent_volume_claim.is_some()
            || volume.projected.is_some()
    })
}

/// Whether everything the pod's volumes name is there. Nothing is made.
pub(crate) async fn check(client: &Client, pod: &Pod) -> Result<(), ContentError> {
    let namespace = pod.metadata.namespace.as_deref().unwrap_or("default");
    let sources = Sources::new(client, namespace);
    for volume in asked_for(pod) {
        check_one(client, &sources, pod, volume)
            .await
            .map_err(|error| told_of(volume, &error))?;
    }
    Ok(())
}

async fn check_one(
    client: &Client,
    sources: &Sources,
    pod: &Pod,
    volume: &Volume,
) -> Result<(), ContentError> {
    let namespace = pod.metadata.namespace.as_deref().unwrap_or("default");
    if let Some(claim) = &volume.persistent_volume_claim {
        claimed(client, namespace, &claim.claim_name).await?;
    }
    if let Some(map) = &volume.config_map {
        let optional = map.optional == Some(true);
        let entries = sources.config_map(&map.name, optional).await?;
        pick(
            entries,
            map.items.as_deref(),
            None,
            ("config", map.optional),
        )?;
    }
    if let Some(secret) = &volume.secret {
        let name = secret.secret_name.clone().unwrap_or_default();
        let optional = secret.optional == Some(true);
        let entries = sources.secret(&name, optional).await?;
        pick(
            entries,
            secret.items.as_deref(),
            None,
            ("secret", secret.optional),
        )?;
    }
    let projections = volume
        .projected
        .iter()
        .flat_map(|projected| projected.sources.iter().flatten());
    for source in projections {
        if let Some(map) = &source.config_map {
            let optional = map.optional == Some(true);
            let entries = sources.config_map(&map.name, optional).await?;
            pick(
                entries,
                map.items.as_deref(),
                None,
                ("config", map.optional),
            )?;
        }
        if let Some(secret) = &source.secret {
            let optional = secret.optional == Some(true);
            let entries = sources.secret(&secret.name, optional).await?;
            pick(
                entries,
                secret.items.as_deref(),
                None,
                ("secret", secret.optional),
            )?;
        }
        if source.service_account_token.is_some() {
            let account = account(pod);
            let accounts: Api<ServiceAccount> = Api::namespaced(client.clone(), namespace);
            let found = accounts
                .get_metadata_opt(&account)
                .await
                .map_err(|source| ContentError::Read {
                    kind: "serviceaccount",
                    name: account.clone(),
                    source: Box::new(source),
                })?;
            if found.is_none() {
                return Err(no_account(&account));
            }
        }
    }
    Ok(())
}

fn account(pod: &Pod) -> String {
    let spec = pod.spec.as_ref();
    spec.and_then(|spec| spec.service_account_name.clone())
        .unwrap_or_else(|| "default".to_owned())
}

fn no_account(account: &str) -> ContentError {
    ContentError::Unsupported(format!(
        "failed to fetch token: serviceaccounts \"{account}\" not found"
    ))
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

/// The entries a volume shows, under the paths it gives them. `kind` is the word a kubelet has for keys
/// of such an object; an optional object may lack keys too.
fn pick(
    mut entries: Entries,
    items: Option<&[KeyToPath]>,
    mode: Option<i32>,
    (kind, optional): (&'static str, Option<bool>),
) -> Result<Files, ContentError> {
    let mode = mode.unwrap_or(DEFAULT_MODE);
    let Some(items) = items else {
        return Ok(entries
            .into_iter()
            .map(|(key, value)| (key, value, mode))
            .collect());
    };
    let mut files = Files::new();
    for item in items {
        match entries.remove(&item.key) {
            Some(value) => files.push((item.path.clone(), value, item.mode.unwrap_or(mode))),
            None if optional == Some(true) => {}
            None => {
                return Err(ContentError::Unsupported(format!(
                    "references non-existent {kind} key: {}",
                    item.key
                )));
            }
        }
    }
    Ok(files)
}

/// A token that has most of its life before it is kept.
fn still_good(path: &Path, seconds: i64) -> Option<Vec<u8>> {
    let written = std::fs::metadata(path).ok()?.modified().ok()?;
    let life = Duration::from_secs(seconds.max(0).unsigned_abs());
    let young = written.elapsed().ok()? < life.mul_f64(0.8);
    young.then(|| std::fs::read(path).ok())?
}

/// The part of a volume a mount shows; empty for all of it.
pub(crate) fn sub_path(
    mount: &VolumeMount,
    variables: &BTreeMap<String, String>,
) -> Result<String, ContentError> {
    let path = match (&mount.sub_path, &mount.sub_path_expr) {
        (Some(path), _) => path.clone(),
        (None, Some(text)) => {
            if let Some(name) = unknown_name(text, variables) {
                return Err(ContentError::Unsupported(format!(
                    "missing value for \"{name}\""
                )));
            }
            expand(text, variables)
        }
        (None, None) => return Ok(String::new()),
    };
    let mut parts = Path::new(&path).components();
    if parts.clone().next() == Some(Component::RootDir) {
        return Err(ContentError::Unsupported(format!(
            "error SubPath `{path}` must not be an absolute path"
        )));
    }
    if parts.any(|part| part == Component::ParentDir) {
        return Err(ContentError::Unsupported(format!(
            "unable to provision SubPath `{path}`: must not contain '..'"
        )));
    }
    Ok(path)
}

/// Where a mount leads: the volume, or a folder in it. Links inside the volume must not lead out of it: a
/// pod could have put them there.
pub(crate) fn mounted(
    volume: &Path,
    mount: &VolumeMount,
    variables: &BTreeMap<String, String>,
) -> Result<PathBuf, ContentError> {
    let inner = sub_path(mount, variables)?;
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
        if !holds(&target, content) {
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

/// Whether a plain file has exactly this content. What a container may have put in its place is not opened: a link may
/// lead to a file without end, a pipe would never answer.
fn holds(path: &Path, content: &[u8]) -> bool {
    let plain = std::fs::symlink_metadata(path)
        .is_ok_and(|found| found.is_file() && found.len() == content.len() as u64);
    plain && std::fs::read(path).is_ok_and(|found| found == content)
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
        // A container may have put a link here that leads elsewhere: it goes, and the file is a new one. Private from
        // the first byte on; the final mode comes after the content.
        match std::fs::remove_file(path) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        let mut file = std::fs::OpenOptions::new()
            .write(true)
            .create_new(true)
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
