//! The Job of an attempt. Pure.

use std::collections::BTreeMap;

use k8s_openapi::api::batch::v1::{
    Job, JobSpec, PodFailurePolicy, PodFailurePolicyOnPodConditionsPattern, PodFailurePolicyRule,
};
use k8s_openapi::api::core::v1::{
    Capabilities, Container, EmptyDirVolumeSource, EnvVar, HostPathVolumeSource,
    PersistentVolumeClaimVolumeSource, PodSecurityContext, PodSpec, PodTemplateSpec,
    ResourceRequirements, SeccompProfile, SecurityContext, Toleration, Volume, VolumeMount,
};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference};
use kube::{Resource, ResourceExt};
use warp_api::workload::{BadSpec, GpuAsk, WorkloadVolume, run_seconds};
use warp_api::{GPUWorkload, label};
use warp_core::gpu::{Catalogue, Vendor};

use super::spec_hash::spec_hash;
use super::{checkpoint, gang, mpi};
use crate::containers::fit;
use crate::ledger::pin;
use crate::placement::{Place, part};

/// Container that gets the GPUs.
const CONTAINER: &str = "gpu-workload";
/// Longest name of a Job whose pods carry it as a label.
const NAME: usize = 63;

/// A workload's pod, still without its node and the GPU resource that node offers.
#[derive(Clone, Debug)]
pub(crate) struct Shell {
    pub(crate) ask: GpuAsk,
    pub(crate) template: PodTemplateSpec,
    /// Position of the container that gets the GPUs.
    pub(super) main: usize,
}

/// The pod a spec describes, or why it cannot be made.
pub(crate) fn shell(workload: &GPUWorkload, known: &Catalogue) -> Result<Shell, BadSpec> {
    let ask = GpuAsk::among(&workload.spec, known)?;
    let mut template = match (&workload.spec.pod_template, &workload.spec.image) {
        (Some(template), _) => template.clone(),
        (None, Some(image)) => simple(workload, image),
        (None, None) => return Err(BadSpec("spec needs image or podTemplate".to_owned())),
    };
    let Some(pod) = template.spec.as_mut() else {
        return Err(BadSpec("spec.podTemplate needs a spec".to_owned()));
    };
    readable(&workload.spec)?;
    if workload.spec.is_gang() {
        gang::check(pod)?;
    }
    pod.restart_policy = Some("Never".to_owned());
    if let Some(class) = &workload.spec.priority_class_name {
        pod.priority_class_name = Some(class.clone());
    }
    let main = main_container(pod, &ask)?;
    mpi::check(workload, pod, main)?;
    let container = &mut pod.containers[main];
    for (name, value) in [
        ("MODEL_NAME", &workload.spec.model_name),
        ("GPU_COUNT", &ask.count.to_string()),
    ] {
        let env = container.env.get_or_insert_default();
        if env.iter().all(|have| have.name != name) {
            env.push(EnvVar {
                name: name.to_owned(),
                value: Some(value.clone()),
                value_from: None,
            });
        }
    }
    // What can be one container at a cloud may be; the rest keeps off such nodes.
    let whole = !workload.spec.is_gang() && fit::objection(pod).is_none();
    let container = whole.then_some(&label::CONTAINER);
    let tolerations = pod.tolerations.get_or_insert_default();
    // Whose a rented machine is decides the scheduler here: the taint is for pods it does not place.
    let keys = ask.vendor.taints().iter().chain([&label::RENTED_FOR]);
    for key in keys.chain(container) {
        let tolerated = tolerations
            .iter()
            .any(|have| have.key.as_deref() == Some(key));
        if !tolerated {
            tolerations.push(Toleration {
                key: Some((*key).to_owned()),
                operator: Some("Exists".to_owned()),
                effect: Some("NoSchedule".to_owned()),
                ..Default::default()
            });
        }
    }
    Ok(Shell {
        ask,
        template,
        main,
    })
}

/// What no schema can judge and nothing would refuse before it is placed, or before a machine is rented for it.
fn readable(spec: &warp_api::GPUWorkloadSpec) -> Result<(), BadSpec> {
    let resources = spec.resources.iter();
    let amounts = resources.flat_map(|all| all.requests.iter().chain(&all.limits));
    for (name, amount) in amounts {
        if amount.0.parse::<warp_core::resources::Quantity>().is_err() {
            return Err(BadSpec(format!(
                "spec.resources asks for '{}' of {name}, which is no amount: write one such as 500m, 4 or 16Gi",
                amount.0
            )));
        }
    }
    let rent = spec.rent.iter();
    let prices = rent.flat_map(|rent| {
        let total = rent.max_total_price.as_ref();
        let total = total.map(|price| ("maxTotalPrice", price));
        std::iter::once(("maxPrice", &rent.max_price)).chain(total)
    });
    for (field, price) in prices {
        if let Err(wrong) = price.decimal() {
            return Err(BadSpec(format!("spec.rent.{field}: {wrong}")));
        }
    }
    Ok(())
}

/// The container that gets the GPUs: the one that asks for them, else the one named like ours, else
/// the first. GPUs a template asks for itself must agree with `gpuCount`; they are then taken out,
/// because the node decides the resource's name.
fn main_container(pod: &mut PodSpec, ask: &GpuAsk) -> Result<usize, BadSpec> {
    let named = pod
        .containers
        .iter()
        .position(|container| container.name == CONTAINER);
    let mut asking = None;
    for (at, container) in pod.containers.iter_mut().enumerate() {
        if own_gpus(container, ask)? && asking.replace(at).is_some() {
            return Err(BadSpec(format!(
                "podTemplate asks for GPUs in container {} too; ask in one container only",
                container.name
            )));
        }
    }
    for container in pod.init_containers.iter_mut().flatten() {
        if own_gpus(container, ask)? {
            return Err(BadSpec(format!(
                "podTemplate asks for GPUs in init container {}; ask in the container that does the work",
                container.name
            )));
        }
    }
    let main = asking.or(named).unwrap_or(0);
    if main < pod.containers.len() {
        Ok(main)
    } else {
        Err(BadSpec(
            "spec.podTemplate.spec.containers is empty".to_owned(),
        ))
    }
}

/// Takes a container's own request for GPUs out; whether it had one.
fn own_gpus(container: &mut Container, ask: &GpuAsk) -> Result<bool, BadSpec> {
    let Some(resources) = container.resources.as_mut() else {
        return Ok(false);
    };
    let mut asking = None;
    for list in [&mut resources.limits, &mut resources.requests]
        .into_iter()
        .flatten()
    {
        let named: Vec<String> = list
            .keys()
            .filter(|key| Vendor::of_units(key).is_some())
            .cloned()
            .collect();
        for key in named {
            let asked = list
                .remove(&key)
                .map(|quantity| quantity.0)
                .unwrap_or_default();
            let same = Vendor::of_units(&key) == Some(ask.vendor) && asked == ask.count.to_string();
            let once = asking.get_or_insert_with(|| key.clone()) == &key;
            if !same || !once {
                return Err(BadSpec(format!(
                    "podTemplate asks for {asked} of {key} in container {}, but the workload for {}; leave the GPUs out of podTemplate",
                    container.name,
                    ask.describe()
                )));
            }
        }
    }
    Ok(asking.is_some())
}

fn simple(workload: &GPUWorkload, image: &str) -> PodTemplateSpec {
    let spec = &workload.spec;
    let some = |list: &Vec<String>| Some(list.clone()).filter(|list| !list.is_empty());
    let resources = spec
        .resources
        .as_ref()
        .map(|resources| ResourceRequirements {
            requests: Some(resources.requests.clone()).filter(|all| !all.is_empty()),
            limits: Some(resources.limits.clone()).filter(|all| !all.is_empty()),
            claims: None,
        });
    let container = Container {
        name: CONTAINER.to_owned(),
        image: Some(image.to_owned()),
        command: some(&spec.command),
        args: some(&spec.args),
        env: Some(spec.env.clone()).filter(|env| !env.is_empty()),
        volume_mounts: Some(spec.volumes.iter().map(mount).collect())
            .filter(|mounts: &Vec<VolumeMount>| !mounts.is_empty()),
        resources,
        security_context: Some(confined(
            spec.security_context.clone().unwrap_or_default(),
            spec.pod_security_context.as_ref(),
        )),
        ..Default::default()
    };
    let volumes: Vec<Volume> = spec.volumes.iter().map(volume).collect();
    PodTemplateSpec {
        metadata: None,
        spec: Some(PodSpec {
            containers: vec![container],
            volumes: Some(volumes).filter(|volumes| !volumes.is_empty()),
            security_context: spec.pod_security_context.clone(),
            ..Default::default()
        }),
    }
}

/// What `restricted` asks of a container and no image needs to have said otherwise. Running as another
/// user than root is not among it: an image that is root's would not start. See [`Shell::without_root`].
pub(super) fn confined(
    mut context: SecurityContext,
    pod: Option<&PodSecurityContext>,
) -> SecurityContext {
    if context.privileged == Some(true) {
        return context;
    }
    let added = context
        .capabilities
        .iter()
        .flat_map(|all| all.add.iter().flatten());
    let administers = added
        .into_iter()
        .any(|name| matches!(name.as_str(), "SYS_ADMIN" | "CAP_SYS_ADMIN" | "ALL"));
    // The API server refuses the two together.
    if !administers {
        context.allow_privilege_escalation.get_or_insert(false);
    }
    context.capabilities.get_or_insert_with(|| Capabilities {
        drop: Some(vec!["ALL".to_owned()]),
        add: None,
    });
    // What the pod says holds for its containers, unless they say otherwise themselves.
    if pod.is_none_or(|pod| pod.seccomp_profile.is_none()) {
        context
            .seccomp_profile
            .get_or_insert_with(|| SeccompProfile {
                type_: "RuntimeDefault".to_owned(),
                localhost_profile: None,
            });
    }
    context
}

fn mount(volume: &WorkloadVolume) -> VolumeMount {
    VolumeMount {
        name: volume.name.clone(),
        mount_path: volume
            .mount_path
            .clone()
            .unwrap_or_else(|| format!("/mnt/{}", volume.name)),
        read_only: volume.read_only.then_some(true),
        ..Default::default()
    }
}

fn volume(volume: &WorkloadVolume) -> Volume {
    let claim = volume.persistent_volume_claim.as_ref();
    let empty = volume.empty_dir.as_ref();
    let host = volume.host_path.as_ref();
    Volume {
        name: volume.name.clone(),
        persistent_volume_claim: claim.map(|claim| PersistentVolumeClaimVolumeSource {
            claim_name: claim.claim_name.clone(),
            read_only: volume.read_only.then_some(true),
        }),
        empty_dir: empty.map(|empty| EmptyDirVolumeSource {
            medium: empty.medium.map(|_| "Memory".to_owned()),
            size_limit: empty.size_limit.clone(),
        }),
        host_path: host.map(|host| HostPathVolumeSource {
            path: host.path.clone(),
            type_: None,
        }),
        ..Default::default()
    }
}

impl Shell {
    /// Says that an image's pod does not run as root, where its owner has said nothing of it: a namespace that enforces
    /// `restricted` takes no other pod, and the kubelet refuses an image that is root's by name.
    pub(super) fn without_root(&mut self, spec: &warp_api::GPUWorkloadSpec) {
        let container = spec.security_context.as_ref();
        let pod = spec.pod_security_context.as_ref();
        let told = container
            .and_then(|own| own.run_as_non_root)
            .or(pod.and_then(|own| own.run_as_non_root));
        if told.is_some() || spec.image.is_none() {
            return;
        }
        if let Some(pod) = &mut self.template.spec {
            let context = pod.security_context.get_or_insert_default();
            context.run_as_non_root = Some(true);
        }
    }

    /// The pod's metadata with our labels; `app` is ours only where the owner sets none.
    pub(crate) fn labelled(&self, workload: &GPUWorkload, attempt: i32) -> ObjectMeta {
        let mut meta = self.template.metadata.clone().unwrap_or_default();
        let have = meta.labels.get_or_insert_default();
        for (key, value) in labels(workload, attempt) {
            if key == "app" {
                have.entry(key).or_insert(value);
            } else {
                have.insert(key, value);
            }
        }
        meta
    }

    /// The pod with its GPUs under this resource name, still without a node.
    pub(crate) fn pod(&self, resource: &str) -> PodSpec {
        let mut pod = self.template.spec.clone().unwrap_or_default();
        self.give_gpus(&mut pod, resource);
        pod
    }

    fn give_gpus(&self, pod: &mut PodSpec, resource: &str) {
        if let Some(container) = pod.containers.get_mut(self.main) {
            let resources = container.resources.get_or_insert_default();
            let amount = Quantity(self.ask.count.to_string());
            for list in [&mut resources.limits, &mut resources.requests] {
                list.get_or_insert_default()
                    .insert(resource.to_owned(), amount.clone());
            }
        }
    }

    /// The pods of one attempt with the GPUs of a place, still without its node.
    pub(super) fn with_gpus(
        &self,
        workload: &GPUWorkload,
        attempt: i32,
        place: &Place,
    ) -> PodTemplateSpec {
        let mut template = self.template.clone();
        template.metadata = Some(self.labelled(workload, attempt));
        if let Some(pod) = template.spec.as_mut() {
            self.give_gpus(pod, &place.resource);
            part::add(pod.containers.get_mut(self.main), &place.extra);
        }
        checkpoint::equip(&mut template, self.main, workload, attempt);
        template
    }

    /// The Job of one attempt, its pod pinned to a node.
    pub(crate) fn job(&self, workload: &GPUWorkload, attempt: i32, place: &Place) -> Job {
        let mut template = self.with_gpus(workload, attempt, place);
        if let Some(pod) = template.spec.as_mut() {
            let model = place.evidence.as_ref();
            let model = model.map(|(key, value)| (key.clone(), vec![value.clone()]));
            pin(pod, Some(&place.node), model);
        }
        let node = (label::NODE, place.node.clone());
        attempt_job(workload, attempt, place, node, template)
    }
}

/// The Job of one attempt around its pods. `nodes` is the annotation that remembers where they go.
pub(super) fn attempt_job(
    workload: &GPUWorkload,
    attempt: i32,
    place: &Place,
    nodes: (&str, String),
    template: PodTemplateSpec,
) -> Job {
    let annotations = [
        (label::CREATED_BY, workload.name_any()),
        nodes,
        (label::SPEC_HASH, spec_hash(&workload.spec)),
        (label::STRATEGY, place.strategy.to_owned()),
        (label::PROVIDER, place.provider.clone()),
        (label::PLACEMENT, place.why.clone()),
    ];
    Job {
        metadata: ObjectMeta {
            name: Some(job_name(workload, attempt)),
            namespace: workload.namespace(),
            labels: Some(labels(workload, attempt)),
            annotations: Some(
                annotations
                    .into_iter()
                    .map(|(key, value)| (key.to_owned(), value))
                    .collect(),
            ),
            owner_references: owned_by(workload),
            ..Default::default()
        },
        spec: Some(JobSpec {
            backoff_limit: Some(0),
            completions: Some(1),
            parallelism: Some(1),
            pod_failure_policy: Some(disruption_policy()),
            active_deadline_seconds: workload.spec.max_runtime.as_deref().and_then(run_seconds),
            template,
            ..Default::default()
        }),
        status: None,
    }
}

/// What is made for a workload goes with it. Blocking its deletion needs rights on finalizers and buys nothing here.
pub(super) fn owned_by(workload: &GPUWorkload) -> Option<Vec<OwnerReference>> {
    workload.controller_owner_ref(&()).map(|mut owner| {
        owner.block_owner_deletion = None;
        vec![owner]
    })
}

/// Makes the Job itself record that its pod was taken away by the cluster: the pod that says so may be
/// gone before anybody reads it.
fn disruption_policy() -> PodFailurePolicy {
    PodFailurePolicy {
        rules: vec![PodFailurePolicyRule {
            action: "FailJob".to_owned(),
            on_pod_conditions: Some(vec![PodFailurePolicyOnPodConditionsPattern {
                type_: "DisruptionTarget".to_owned(),
                status: Some("True".to_owned()),
            }]),
            on_exit_codes: None,
        }],
    }
}

fn labels(workload: &GPUWorkload, attempt: i32) -> BTreeMap<String, String> {
    let pairs = [
        ("app", label_value(&workload.spec.model_name)),
        (label::WORKLOAD, workload.name_any()),
        (label::WORKLOAD_UID, workload.uid().unwrap_or_default()),
        (label::ATTEMPT, attempt.to_string()),
        (label::CONTROLLER, label::CONTROLLER_NAME.to_owned()),
    ];
    pairs
        .into_iter()
        .map(|(key, value)| (key.to_owned(), value))
        .collect()
}

/// A model's name as a label value: other characters become `-`, the ends are letters or digits.
fn label_value(text: &str) -> String {
    let allowed = |character: char| character.is_ascii_alphanumeric() || "-_.".contains(character);
    let mapped: String = text
        .chars()
        .map(|c| if allowed(c) { c } else { '-' })
        .take(NAME)
        .collect();
    mapped
        .trim_matches(|character: char| !character.is_ascii_alphanumeric())
        .to_owned()
}

/// `<workload>-<first 8 of its uid>-<attempt>`, at most 63 bytes. The uid keeps a workload that was
/// deleted and made again from finding its predecessor's Job.
pub(crate) fn job_name(workload: &GPUWorkload, attempt: i32) -> String {
    let uid: String = workload.uid().unwrap_or_default().chars().take(8).collect();
    let tail = format!("-{uid}-{attempt}");
    let name = workload.name_any();
    if workload.spec.is_gang() {
        return gang::host_name(&name, &tail);
    }
    let head: String = name.chars().take(NAME.saturating_sub(tail.len())).collect();
    format!("{}{tail}", head.trim_end_matches(['-', '.']))
}
