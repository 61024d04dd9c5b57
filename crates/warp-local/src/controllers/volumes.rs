//! Claims and volumes on one machine: binds claims to volumes that fit, makes directories for claims of the local class,
//! and gives them back when the claim goes.

use std::path::{Path, PathBuf};

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::core::v1::{
    HostPathVolumeSource, ObjectReference, PersistentVolume, PersistentVolumeClaim,
    PersistentVolumeClaimStatus, PersistentVolumeSpec, PersistentVolumeStatus, Pod,
};
use k8s_openapi::api::storage::v1::StorageClass;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::api::Api;
use serde_json::json;

use self::facts::{capacity, fits, is_default, is_ours, policy, refers_to};
use super::{Shared, pods, wired};
use warp_runtime::cache::Key;
use warp_runtime::driver::{Controller, SyncError};
use warp_runtime::plan::{Action, Encoding, Kind, Plan, Removal, about};

mod facts;
#[cfg(test)]
mod tests;

/// The provisioner this controller answers for; a StorageClass names it.
pub const PROVISIONER: &str = "gpu.warp.dev/local-directory";
const PROVISIONED_BY: &str = "pv.kubernetes.io/provisioned-by";
const BIND_COMPLETED: &str = "pv.kubernetes.io/bind-completed";
const BOUND_BY: &str = "pv.kubernetes.io/bound-by-controller";
const DEFAULT_CLASS: &str = "storageclass.kubernetes.io/is-default-class";
const CLAIM_PROTECTION: &str = "kubernetes.io/pvc-protection";
const VOLUME_PROTECTION: &str = "kubernetes.io/pv-protection";
/// When to look again at a volume that cannot be removed yet.
const STILL_USED: SignedDuration = SignedDuration::from_secs(5);

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Subject {
    Claim(Key),
    Volume(Key),
}

#[derive(Debug)]
pub(crate) struct Volumes(Shared);

impl Volumes {
    pub(crate) fn start(shared: &Shared) {
        let queue = wired(shared, Self(shared.clone()));
        let caches = &shared.caches;
        caches
            .claims
            .on_key(&queue, |claim| Some(Subject::Claim(Key::of(claim))));
        caches
            .volumes
            .on_key(&queue, |volume| Some(Subject::Volume(Key::of(volume))));
        // A claim's end frees its volume; a new volume may fit a waiting claim.
        let claim_queue = queue.clone();
        caches.claims.listen(move |old, new| {
            let (Some(claim), None) = (old, new) else {
                return;
            };
            if let Some(volume) = volume_name(claim) {
                claim_queue.add(Subject::Volume(Key::new("", volume)));
            }
        });
        let (claims, volume_queue) = (caches.claims.clone(), queue.clone());
        caches.volumes.listen(move |_, new| {
            if new.is_some_and(|volume| {
                volume
                    .spec
                    .as_ref()
                    .is_some_and(|spec| spec.claim_ref.is_none())
            }) {
                let waiting = claims
                    .all()
                    .into_iter()
                    .filter(|claim| volume_name(claim).is_none());
                waiting.for_each(|claim| volume_queue.add(Subject::Claim(Key::of(&*claim))));
            }
        });
        // A claim being deleted waits for the last pod that uses it.
        let claims = caches.claims.clone();
        caches.pods.listen(move |old, new| {
            let ended = new.is_none_or(pods::is_finished);
            let Some(pod) = old.filter(|_| ended) else {
                return;
            };
            for name in used_by(pod) {
                let key = Key::new(pod.metadata.namespace.as_deref().unwrap_or_default(), name);
                if claims
                    .get(&key)
                    .is_some_and(|claim| claim.metadata.deletion_timestamp.is_some())
                {
                    queue.add(Subject::Claim(key));
                }
            }
        });
    }

    async fn sync_claim(&self, key: &Key) -> Result<Option<Timestamp>, SyncError> {
        let caches = &self.0.caches;
        let Some(claim) = caches.claims.get(key) else {
            return Ok(None);
        };
        let mut plan = Plan::default();
        if claim.metadata.deletion_timestamp.is_some() {
            if !self.in_use(key) {
                drop_finalizer(&*claim, CLAIM_PROTECTION, &mut plan);
            }
            return self.0.execute(Self::NAME, plan).await;
        }
        // Before anything is bound: a claim deleted while a pod uses it must not go before the pod.
        if add_finalizer(&*claim, CLAIM_PROTECTION, &mut plan) {
            return self.0.execute(Self::NAME, plan).await;
        }
        match volume_name(&claim) {
            Some(name) => {
                if let Some(volume) = caches.volumes.get(&Key::new("", name)) {
                    complete(&claim, &volume, &mut plan);
                }
            }
            None => self.find(&claim, &mut plan),
        }
        self.0.execute(Self::NAME, plan).await
    }

    /// Does a pod that has not ended use this claim?
    fn in_use(&self, claim: &Key) -> bool {
        let pods = self.0.caches.pods.in_namespace(&claim.namespace);
        pods.iter()
            .any(|pod| !pods::is_finished(pod) && used_by(pod).any(|name| *name == *claim.name))
    }

    /// Is the claim that a volume names really gone, and does nobody write to its directory any more? Asked of the API
    /// itself: data are not removed on the word of a cache.
    async fn is_given_up(&self, reference: &ObjectReference) -> Result<bool, SyncError> {
        let namespace = reference.namespace.as_deref().unwrap_or_default();
        let name = reference.name.as_deref().unwrap_or_default();
        if self.in_use(&Key::new(namespace, name)) {
            return Ok(false);
        }
        let claims: Api<PersistentVolumeClaim> =
            Api::namespaced(self.0.client().clone(), namespace);
        let found = claims
            .get_opt(name)
            .await
            .map_err(|source| SyncError::Read {
                what: format!("PersistentVolumeClaim {namespace}/{name}"),
                source: Box::new(source),
            })?;
        Ok(found.is_none_or(|claim| claim.metadata.uid != reference.uid))
    }

    /// A volume for a claim: one that fits, or a new directory.
    fn find(&self, claim: &PersistentVolumeClaim, plan: &mut Plan) {
        let caches = &self.0.caches;
        let volumes = caches.volumes.all();
        let mine = volumes.iter().find(|volume| refers_to(volume, claim));
        let fitting = || {
            volumes
                .iter()
                .filter(|volume| fits(volume, claim))
                .min_by_key(|volume| capacity(volume))
        };
        if let Some(volume) = mine.or_else(fitting) {
            return bind(claim, volume, plan);
        }
        let classes = caches.storage_classes.all();
        let named = claim
            .spec
            .as_ref()
            .and_then(|spec| spec.storage_class_name.as_deref());
        let class = match named {
            Some(name) => classes
                .iter()
                .find(|class| class.metadata.name.as_deref() == Some(name)),
            None => classes.iter().find(|class| is_default(class)),
        };
        match (class, &self.0.options.volumes) {
            (Some(class), Some(root)) if class.provisioner == PROVISIONER => {
                provision(claim, class, root, plan);
            }
            _ => pending(claim, plan),
        }
    }

    async fn sync_volume(&self, key: &Key) -> Result<Option<Timestamp>, SyncError> {
        let caches = &self.0.caches;
        let Some(volume) = caches.volumes.get(key) else {
            return Ok(None);
        };
        let reference = volume
            .spec
            .as_ref()
            .and_then(|spec| spec.claim_ref.as_ref());
        let claim = reference.and_then(|reference| {
            caches.claims.get(&Key::new(
                reference.namespace.as_deref()?,
                reference.name.as_deref()?,
            ))
        });
        let claim = claim.filter(|claim| {
            let uid = reference.and_then(|reference| reference.uid.as_ref());
            uid.is_none() || claim.metadata.uid.as_ref() == uid
        });
        let mut plan = Plan::default();
        if volume.metadata.deletion_timestamp.is_some() {
            if claim.is_none() {
                drop_finalizer(&*volume, VOLUME_PROTECTION, &mut plan);
            }
            return self.0.execute(Self::NAME, plan).await;
        }
        if add_finalizer(&*volume, VOLUME_PROTECTION, &mut plan) {
            return self.0.execute(Self::NAME, plan).await;
        }
        let bound = reference.is_some_and(|reference| reference.uid.is_some());
        let state = match (&claim, bound) {
            (Some(_), _) => "Bound",
            (None, true) => "Released",
            (None, false) => "Available",
        };
        phase(&volume, state, "", &mut plan);
        let to_remove = state == "Released" && is_ours(&volume) && policy(&volume) == "Delete";
        let Some(reference) = reference.filter(|_| to_remove) else {
            return self.0.execute(Self::NAME, plan).await;
        };
        if !self.is_given_up(reference).await? {
            plan.look_again(self.0.now() + STILL_USED);
            return self.0.execute(Self::NAME, plan).await;
        }
        let removed = match self.own_directory(&volume) {
            Some(path) => remove(&path).await,
            None => Ok(()),
        };
        plan.actions.clear();
        match removed {
            Ok(()) => plan.delete(&*volume, Removal::default(), None),
            // The volume stays as long as its directory does: it is the only trace of the data.
            Err(message) => {
                phase(&volume, "Failed", &message, &mut plan);
                plan.look_again(self.0.now() + STILL_USED);
            }
        }
        self.0.execute(Self::NAME, plan).await
    }

    /// The directory of a volume, only if it lies directly in the folder of volumes.
    fn own_directory(&self, volume: &PersistentVolume) -> Option<PathBuf> {
        let root = self.0.options.volumes.as_ref()?;
        let path = PathBuf::from(&volume.spec.as_ref()?.host_path.as_ref()?.path);
        (path.parent() == Some(root.as_path())).then_some(path)
    }
}

async fn remove(path: &Path) -> Result<(), String> {
    match tokio::fs::remove_dir_all(path).await {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            let path = path.display();
            tracing::warn!(%path, %error, "failed to remove the directory of a volume");
            Err(format!("failed to remove {path}: {error}"))
        }
        _ => Ok(()),
    }
}

impl Controller for Volumes {
    type Key = Subject;
    const NAME: &'static str = "persistentvolume-controller";
    /// One at a time: two claims must not be given one volume.
    const WORKERS: usize = 1;

    async fn sync(&self, subject: &Subject) -> Result<Option<Timestamp>, SyncError> {
        match subject {
            Subject::Claim(key) => self.sync_claim(key).await,
            Subject::Volume(key) => self.sync_volume(key).await,
        }
    }
}

fn volume_name(claim: &PersistentVolumeClaim) -> Option<&str> {
    claim
        .spec
        .as_ref()?
        .volume_name
        .as_deref()
        .filter(|name| !name.is_empty())
}

fn used_by(pod: &Pod) -> impl Iterator<Item = &String> {
    let volumes = pod
        .spec
        .iter()
        .flat_map(|spec| spec.volumes.iter().flatten());
    volumes.filter_map(|volume| {
        volume
            .persistent_volume_claim
            .as_ref()
            .map(|claim| &claim.claim_name)
    })
}

/// True when it was missing.
fn add_finalizer<K: kube::Resource<DynamicType = ()>>(
    object: &K,
    finalizer: &str,
    plan: &mut Plan,
) -> bool {
    let known = object.meta().finalizers.as_deref().unwrap_or_default();
    if known.iter().any(|known| known == finalizer) {
        return false;
    }
    let mut finalizers: Vec<&str> = known.iter().map(String::as_str).collect();
    finalizers.push(finalizer);
    let patch = json!({ "metadata": { "finalizers": finalizers, "resourceVersion": object.meta().resource_version } });
    plan.patch(object, Encoding::Merge, patch);
    true
}

fn drop_finalizer<K: kube::Resource<DynamicType = ()>>(
    object: &K,
    finalizer: &str,
    plan: &mut Plan,
) {
    let finalizers = object.meta().finalizers.as_deref().unwrap_or_default();
    if finalizers.iter().any(|known| known == finalizer) {
        let left: Vec<_> = finalizers
            .iter()
            .filter(|known| *known != finalizer)
            .collect();
        let patch = json!({ "metadata": { "finalizers": left, "resourceVersion": object.meta().resource_version } });
        plan.patch(object, Encoding::Merge, patch);
    }
}

fn reference(claim: &PersistentVolumeClaim) -> ObjectReference {
    ObjectReference {
        field_path: None,
        ..about(claim)
    }
}

/// Both sides name each other: the volume first, so that no two claims get it.
fn bind(claim: &PersistentVolumeClaim, volume: &PersistentVolume, plan: &mut Plan) {
    let named = volume
        .spec
        .as_ref()
        .and_then(|spec| spec.claim_ref.as_ref())
        .is_some_and(|known| known.uid == claim.metadata.uid);
    if !named {
        let metadata = json!({ "annotations": { BOUND_BY: "yes" }, "resourceVersion": volume.metadata.resource_version });
        plan.patch(
            volume,
            Encoding::Merge,
            json!({ "metadata": metadata, "spec": { "claimRef": reference(claim) } }),
        );
    }
    let mut annotations = json!({ BIND_COMPLETED: "yes" });
    // Said only where the controller chose: a claim that names its volume was bound by its author.
    if volume_name(claim).is_none() {
        annotations[BOUND_BY] = json!("yes");
    }
    let patch = json!({
        "metadata": { "annotations": annotations },
        "spec": { "volumeName": volume.metadata.name },
    });
    plan.patch(claim, Encoding::Merge, patch);
}

/// A claim that names its volume is bound once the volume names it too.
fn complete(claim: &PersistentVolumeClaim, volume: &PersistentVolume, plan: &mut Plan) {
    let spec = volume.spec.clone().unwrap_or_default();
    if !refers_to(volume, claim) {
        if spec.claim_ref.is_none() {
            bind(claim, volume, plan);
        }
        return;
    }
    let status = PersistentVolumeClaimStatus {
        phase: Some("Bound".to_owned()),
        access_modes: spec.access_modes,
        capacity: spec.capacity,
        ..claim.status.clone().unwrap_or_default()
    };
    plan.status(claim, claim.status.as_ref(), &status);
}

fn pending(claim: &PersistentVolumeClaim, plan: &mut Plan) {
    let status = PersistentVolumeClaimStatus {
        phase: Some("Pending".to_owned()),
        ..claim.status.clone().unwrap_or_default()
    };
    plan.status(claim, claim.status.as_ref(), &status);
}

fn phase(volume: &PersistentVolume, phase: &str, message: &str, plan: &mut Plan) {
    let old = volume.status.clone().unwrap_or_default();
    let new = PersistentVolumeStatus {
        phase: Some(phase.to_owned()),
        message: (!message.is_empty()).then(|| message.to_owned()),
        ..old.clone()
    };
    let change = warp_runtime::plan::merge_difference(
        &warp_runtime::plan::as_json(&old),
        &warp_runtime::plan::as_json(&new),
    );
    if let Some(change) = change {
        plan.push(Action::Patch {
            kind: Kind::of::<PersistentVolume>(),
            key: Key::of(volume),
            sub: Some("status"),
            encoding: Encoding::Merge,
            patch: json!({ "status": change }),
        });
    }
}

/// A directory of its own for a claim. It is made by whoever mounts it first (`DirectoryOrCreate`).
fn provision(claim: &PersistentVolumeClaim, class: &StorageClass, root: &Path, plan: &mut Plan) {
    let name = format!("pvc-{}", claim.metadata.uid.as_deref().unwrap_or_default());
    let spec = claim.spec.as_ref();
    let asked = spec.and_then(|spec| {
        spec.resources
            .as_ref()?
            .requests
            .as_ref()?
            .get("storage")
            .cloned()
    });
    let volume = PersistentVolume {
        metadata: ObjectMeta {
            name: Some(name.clone()),
            annotations: Some([(PROVISIONED_BY.to_owned(), PROVISIONER.to_owned())].into()),
            ..ObjectMeta::default()
        },
        spec: Some(PersistentVolumeSpec {
            capacity: asked.map(|asked| [("storage".to_owned(), asked)].into()),
            access_modes: spec.and_then(|spec| spec.access_modes.clone()),
            persistent_volume_reclaim_policy: Some(
                class
                    .reclaim_policy
                    .clone()
                    .unwrap_or_else(|| "Delete".to_owned()),
            ),
            storage_class_name: class.metadata.name.clone(),
            volume_mode: spec.and_then(|spec| spec.volume_mode.clone()),
            claim_ref: Some(reference(claim)),
            host_path: Some(HostPathVolumeSource {
                path: root.join(&name).display().to_string(),
                type_: Some("DirectoryOrCreate".to_owned()),
            }),
            ..PersistentVolumeSpec::default()
        }),
        status: None,
    };
    plan.create(&volume, None);
    plan.note(
        about(claim),
        false,
        "ProvisioningSucceeded",
        format!("Successfully provisioned volume {name}"),
    );
    bind(claim, &volume, plan);
}
