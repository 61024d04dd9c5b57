//! Where the volumes of a pod can be reached: those its claims are bound to, and those that could
//! still be bound or made for them.
//!
//! A claim that is missing, or that is bound without waiting for a pod, says nothing: the pod waits
//! for it wherever it is.

use std::sync::Arc;

use k8s_openapi::api::core::v1::{
    PersistentVolume, PersistentVolumeClaim, PersistentVolumeClaimSpec, PodSpec,
};
use k8s_openapi::api::storage::v1::StorageClass;
use kube::ResourceExt;
use warp_api::pod::{self, volumes};
use warp_core::fleet::{NodeTerm, Reach};

/// Names the provisioner of volumes that are made by hand.
const BY_HAND: &str = "kubernetes.io/no-provisioner";

/// Everything the API knows of volumes.
#[derive(Debug, Default)]
pub(crate) struct Storage {
    pub(crate) claims: Vec<Arc<PersistentVolumeClaim>>,
    pub(crate) volumes: Vec<Arc<PersistentVolume>>,
    pub(crate) classes: Vec<Arc<StorageClass>>,
}

impl Storage {
    /// What the volumes of a pod mean for where it may run; all must hold.
    pub(crate) fn reach(&self, namespace: &str, spec: &PodSpec) -> Vec<Reach> {
        let mut found = Vec::new();
        for volume in spec.volumes.iter().flatten() {
            if let Some(claim) = &volume.persistent_volume_claim {
                let name = &claim.claim_name;
                let claim = self.claims.iter().find(|claim| {
                    claim.name_any() == *name && claim.namespace().as_deref() == Some(namespace)
                });
                if let Some(spec) = claim.and_then(|claim| claim.spec.as_ref()) {
                    found.extend(self.reach_of(namespace, name, spec));
                }
            }
            let template = volume.ephemeral.as_ref();
            if let Some(template) = template.and_then(|one| one.volume_claim_template.as_ref()) {
                found.extend(self.reach_of(namespace, &volume.name, &template.spec));
            }
        }
        found
    }

    fn reach_of(
        &self,
        namespace: &str,
        claim: &str,
        spec: &PersistentVolumeClaimSpec,
    ) -> Vec<Reach> {
        if let Some(name) = spec.volume_name.as_ref().filter(|name| !name.is_empty()) {
            let volume = self.volumes.iter().find(|one| one.name_any() == *name);
            return volume
                .map(|volume| volumes::reach(claim, volume))
                .unwrap_or_default();
        }
        let class = spec.storage_class_name.as_deref().unwrap_or_default();
        let class = self.classes.iter().find(|one| one.name_any() == class);
        let Some(class) = class.filter(|class| waits_for_pod(class)) else {
            return Vec::new();
        };
        let mut nodes = Vec::new();
        if class.provisioner != BY_HAND {
            let topologies = class.allowed_topologies.as_deref().unwrap_or_default();
            match volumes::allowed(topologies) {
                Some(terms) => nodes.extend(terms),
                None => return Vec::new(),
            }
        }
        for volume in &self.volumes {
            if could_serve(volume, namespace, claim, spec) {
                let reach = volumes::reach(claim, volume);
                if reach.is_empty() {
                    return Vec::new();
                }
                nodes.extend(all_of(&reach));
            }
        }
        vec![Reach {
            claim: Arc::from(claim),
            nodes,
        }]
    }
}

/// Whether a claim of this class is bound only once its pod has a node.
fn waits_for_pod(class: &StorageClass) -> bool {
    class.volume_binding_mode.as_deref() == Some("WaitForFirstConsumer")
}

/// Whether a volume that nothing is bound to yet could be bound to a claim.
fn could_serve(
    volume: &PersistentVolume,
    namespace: &str,
    claim: &str,
    asked: &PersistentVolumeClaimSpec,
) -> bool {
    let Some(spec) = &volume.spec else {
        return false;
    };
    let kept_for_another = spec.claim_ref.as_ref().is_some_and(|kept| {
        kept.name.as_deref() != Some(claim) || kept.namespace.as_deref() != Some(namespace)
    });
    let size = |amounts| pod::amounts(amounts).extended("storage");
    let requests = asked.resources.as_ref();
    let modes = spec.access_modes.as_deref().unwrap_or_default();
    let mode = |mode: Option<&String>| mode.map_or("Filesystem", String::as_str).to_owned();
    let labels = pod::labels(volume.metadata.labels.as_ref());
    !kept_for_another
        && volume.metadata.deletion_timestamp.is_none()
        && spec.storage_class_name == asked.storage_class_name
        && mode(spec.volume_mode.as_ref()) == mode(asked.volume_mode.as_ref())
        && asked
            .access_modes
            .iter()
            .flatten()
            .all(|wanted| modes.contains(wanted))
        && size(spec.capacity.as_ref()) >= size(requests.and_then(|one| one.requests.as_ref()))
        && asked
            .selector
            .as_ref()
            .is_none_or(|selector| pod::selector(selector).matches(&labels))
}

/// The nodes on which all of these hold, as alternatives.
fn all_of(reaches: &[Reach]) -> Vec<NodeTerm> {
    let mut alternatives = vec![NodeTerm::default()];
    for reach in reaches {
        let joined = alternatives.iter().flat_map(|one| {
            reach.nodes.iter().map(|other| NodeTerm {
                match_expressions: [&*one.match_expressions, &*other.match_expressions].concat(),
                match_fields: [&*one.match_fields, &*other.match_fields].concat(),
            })
        });
        alternatives = joined.collect();
    }
    alternatives
}
