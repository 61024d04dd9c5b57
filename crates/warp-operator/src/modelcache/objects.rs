//! The claim and the Job of a cache. Pure.

pub(crate) mod nodes;
pub(crate) mod optimize;

use std::collections::BTreeMap;

use k8s_openapi::api::batch::v1::{
    Job, JobSpec, PodFailurePolicy, PodFailurePolicyOnExitCodesRequirement, PodFailurePolicyRule,
};
use k8s_openapi::api::core::v1::{
    Affinity, Capabilities, Container, ContainerPort, EmptyDirVolumeSource, EnvVar, EnvVarSource,
    NodeAffinity, NodeSelectorRequirement, NodeSelectorTerm, ObjectFieldSelector,
    PersistentVolumeClaim, PersistentVolumeClaimSpec, PersistentVolumeClaimVolumeSource,
    PodSecurityContext, PodSpec, PodTemplateSpec, PreferredSchedulingTerm, ResourceRequirements,
    SeccompProfile, SecretKeySelector, SecretVolumeSource, SecurityContext, Volume, VolumeMount,
    VolumeResourceRequirements,
};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference};
use kube::{Resource, ResourceExt};
use serde_json::{Value, json};
use warp_api::modelcache::{MOUNT, ModelCacheSpec};
use warp_api::{ModelCache, label, workload};

/// What fetches.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Fetcher {
    /// The image of the Job's pod; without one, the image this operator runs from.
    pub image: Option<String>,
    /// The program itself, for nodes that run commands of this machine instead of images.
    pub program: Option<String>,
    /// Whether running fetches are asked how far they are, and engines what they do.
    pub asks_progress: bool,
}

/// Another claim's folder in the fetch's pod.
const FROM: &str = "/source";
/// A mounted Secret in the fetch's pod.
const CREDENTIALS: &str = "/credentials";
/// Where the fetch leaves its last words.
const WORDS: &str = "/run/warp";
/// Exit codes after which trying again would not help: wrong arguments, and what the fetch says is for somebody to mend.
const PERMANENT: [i32; 2] = [2, 3];
/// Progress is answered for on one of the ports from here on.
const FIRST_PORT: u16 = 20_000;
const PORTS: u64 = 10_000;
/// The word of a fetch that says how fast it may be.
pub(crate) const LIMIT_RATE: &str = "--limit-rate=";
const TIMEOUT_SECONDS: i64 = 24 * 3600;

/// Names what a spec fetches: the same source, revision and patterns have the same key.
pub(crate) fn content_key(spec: &ModelCacheSpec) -> String {
    let source = &spec.source;
    let hub = source.huggingface.as_ref();
    let mut parts = vec![
        json!(source.word()),
        json!(hub.and_then(|hub| hub.endpoint.as_deref())),
        json!(hub.and_then(|hub| hub.token_secret.as_deref())),
        json!(spec.allow_patterns),
        json!(spec.ignore_patterns),
        json!(spec.all_formats),
    ];
    parts.extend(source.http.as_ref().map(|http| json!(http.files)));
    parts.extend(
        source
            .s3
            .as_ref()
            .map(|s3| json!([s3.endpoint, s3.region, s3.credentials_secret])),
    );
    parts.extend(
        source
            .oci
            .as_ref()
            .map(|oci| json!([oci.plain_http, oci.credentials_secret])),
    );
    parts.extend(
        source
            .gcs
            .as_ref()
            .map(|gcs| json!([gcs.endpoint, gcs.credentials_secret])),
    );
    parts.extend(
        source
            .azure
            .as_ref()
            .map(|azure| json!([azure.endpoint, azure.credentials_secret])),
    );
    let text = Value::Array(parts);
    format!("{:08x}", fnv(text.to_string().as_bytes()) >> 32)
}

/// FNV-1a: stable over versions and machines, which a name must be.
fn fnv(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3)
    })
}

/// Where the fetch of a cache answers for its progress. Pods of a process node share one address.
pub(crate) fn progress_port(cache: &ModelCache) -> u16 {
    let uid = cache.uid().unwrap_or_default();
    let offset = u16::try_from(fnv(uid.as_bytes()) % PORTS).unwrap_or_default();
    FIRST_PORT + offset
}

pub(crate) fn job_name(cache: &ModelCache) -> String {
    format!("{}-fetch-{}", cache.name_any(), content_key(&cache.spec))
}

fn owner(cache: &ModelCache) -> Option<Vec<OwnerReference>> {
    cache.controller_owner_ref(&()).map(|owner| vec![owner])
}

fn labels(cache: &ModelCache) -> BTreeMap<String, String> {
    BTreeMap::from([(label::MODEL_CACHE.to_owned(), cache.name_any())])
}

/// The claim that holds the files.
pub(crate) fn claim(cache: &ModelCache) -> PersistentVolumeClaim {
    let spec = &cache.spec;
    PersistentVolumeClaim {
        metadata: ObjectMeta {
            name: Some(ModelCache::claim_name(&cache.name_any())),
            namespace: cache.namespace(),
            labels: Some(labels(cache)),
            owner_references: owner(cache),
            ..ObjectMeta::default()
        },
        spec: Some(PersistentVolumeClaimSpec {
            access_modes: Some(vec![spec.access_mode.as_str().to_owned()]),
            storage_class_name: spec.storage_class.clone(),
            resources: Some(VolumeResourceRequirements {
                requests: Some(BTreeMap::from([(
                    "storage".to_owned(),
                    Quantity(spec.size.clone()),
                )])),
                ..VolumeResourceRequirements::default()
            }),
            ..PersistentVolumeClaimSpec::default()
        }),
        ..PersistentVolumeClaim::default()
    }
}

/// The Job that fetches what the spec names, with `image`.
pub(crate) fn job(cache: &ModelCache, fetcher: &Fetcher, image: &str) -> Job {
    let name = job_name(cache);
    let pod = pod(cache, fetcher, image);
    around(
        cache,
        fetcher,
        (name, content_key(&cache.spec)),
        "fetch",
        pod,
    )
}

/// The Job around a pod in which the container `ours` is this program.
fn around(
    cache: &ModelCache,
    fetcher: &Fetcher,
    (name, key): (String, String),
    ours: &str,
    pod: PodSpec,
) -> Job {
    let spec = &cache.spec;
    let mut labels = labels(cache);
    labels.insert(label::MODEL_CONTENT.to_owned(), key);
    let command = fetcher.program.as_ref().map(|program| {
        let of_ours = format!("{}.{ours}", label::PROCESS_COMMAND);
        BTreeMap::from([(of_ours, json!([program]).to_string())])
    });
    Job {
        metadata: ObjectMeta {
            name: Some(name),
            namespace: cache.namespace(),
            labels: Some(labels.clone()),
            owner_references: owner(cache),
            ..ObjectMeta::default()
        },
        spec: Some(JobSpec {
            backoff_limit: Some(spec.backoff_limit),
            active_deadline_seconds: Some(timeout_seconds(spec)),
            pod_failure_policy: Some(PodFailurePolicy {
                rules: vec![PodFailurePolicyRule {
                    action: "FailJob".to_owned(),
                    on_exit_codes: Some(PodFailurePolicyOnExitCodesRequirement {
                        container_name: Some(ours.to_owned()),
                        operator: "In".to_owned(),
                        values: PERMANENT.to_vec(),
                    }),
                    ..PodFailurePolicyRule::default()
                }],
            }),
            template: PodTemplateSpec {
                metadata: Some(ObjectMeta {
                    labels: Some(labels),
                    annotations: command,
                    ..ObjectMeta::default()
                }),
                spec: Some(pod),
            },
            ..JobSpec::default()
        }),
        ..Job::default()
    }
}

pub(crate) fn timeout_seconds(spec: &ModelCacheSpec) -> i64 {
    workload::run_seconds(&spec.timeout).unwrap_or(TIMEOUT_SECONDS)
}

fn pod(cache: &ModelCache, fetcher: &Fetcher, image: &str) -> PodSpec {
    let source = cache.spec.source.pvc.as_ref();
    let own = ModelCache::claim_name(&cache.name_any());
    let mut volumes = vec![claimed("model", &own, false), empty("words")];
    volumes.extend(source.map(|source| claimed("source", &source.claim_name, true)));
    // As files, not as variables: which keys it has depends on its type.
    volumes.extend(mounted_secret(cache).map(|secret| Volume {
        name: "credentials".to_owned(),
        secret: Some(SecretVolumeSource {
            secret_name: Some(secret.to_owned()),
            ..SecretVolumeSource::default()
        }),
        ..Volume::default()
    }));
    PodSpec {
        restart_policy: Some("Never".to_owned()),
        // It talks to nobody in the cluster.
        automount_service_account_token: Some(false),
        enable_service_links: Some(false),
        security_context: Some(nobody(fetcher)),
        affinity: Some(away_from_simulated_nodes()),
        containers: vec![container(cache, image)],
        volumes: Some(volumes),
        ..PodSpec::default()
    }
}

/// A user with no rights but to the volumes.
fn nobody(fetcher: &Fetcher) -> PodSecurityContext {
    // Commands of this machine run as whoever runs the node; asking for another user would be refused.
    let contained = fetcher.program.is_none();
    PodSecurityContext {
        run_as_non_root: contained.then_some(true),
        run_as_user: contained.then_some(65532),
        run_as_group: contained.then_some(65532),
        fs_group: contained.then_some(65532),
        fs_group_change_policy: Some("OnRootMismatch".to_owned()),
        seccomp_profile: Some(SeccompProfile {
            type_: "RuntimeDefault".to_owned(),
            ..SeccompProfile::default()
        }),
        ..PodSecurityContext::default()
    }
}

fn claimed(name: &str, claim: &str, read_only: bool) -> Volume {
    Volume {
        name: name.to_owned(),
        persistent_volume_claim: Some(PersistentVolumeClaimVolumeSource {
            claim_name: claim.to_owned(),
            read_only: read_only.then_some(true),
        }),
        ..Volume::default()
    }
}

fn empty(name: &str) -> Volume {
    Volume {
        name: name.to_owned(),
        empty_dir: Some(EmptyDirVolumeSource::default()),
        ..Volume::default()
    }
}

fn mount(name: &str, path: &str, read_only: bool) -> VolumeMount {
    VolumeMount {
        name: name.to_owned(),
        mount_path: path.to_owned(),
        read_only: read_only.then_some(true),
        ..VolumeMount::default()
    }
}

/// What `warp fetch` itself takes is far below; the files it writes count as well until they are on the disk.
fn modest() -> ResourceRequirements {
    let amount = |cpu: Option<&str>, memory: &str| {
        let cpu = cpu.map(|cpu| ("cpu".to_owned(), Quantity(cpu.to_owned())));
        let memory = ("memory".to_owned(), Quantity(memory.to_owned()));
        Some(cpu.into_iter().chain([memory]).collect())
    };
    ResourceRequirements {
        requests: amount(Some("250m"), "128Mi"),
        limits: amount(None, "512Mi"),
        ..ResourceRequirements::default()
    }
}

fn unprivileged(read_only: bool) -> SecurityContext {
    SecurityContext {
        allow_privilege_escalation: Some(false),
        read_only_root_filesystem: read_only.then_some(true),
        capabilities: Some(Capabilities {
            drop: Some(vec!["ALL".to_owned()]),
            ..Capabilities::default()
        }),
        ..SecurityContext::default()
    }
}

fn mounted_secret(cache: &ModelCache) -> Option<&str> {
    let source = &cache.spec.source;
    let oci = source.oci.as_ref().map(|oci| &oci.credentials_secret);
    let gcs = source.gcs.as_ref().map(|gcs| &gcs.credentials_secret);
    let azure = source.azure.as_ref().map(|azure| &azure.credentials_secret);
    oci.or(gcs).or(azure)?.as_deref()
}

/// Simulated nodes fetch nothing: where there are others, the fetch runs there.
fn away_from_simulated_nodes() -> Affinity {
    let other = NodeSelectorRequirement {
        key: label::PROVIDER.to_owned(),
        operator: "NotIn".to_owned(),
        values: Some(vec!["simulated".to_owned()]),
    };
    Affinity {
        node_affinity: Some(NodeAffinity {
            preferred_during_scheduling_ignored_during_execution: Some(vec![
                PreferredSchedulingTerm {
                    weight: 100,
                    preference: NodeSelectorTerm {
                        match_expressions: Some(vec![other]),
                        ..NodeSelectorTerm::default()
                    },
                },
            ]),
            ..NodeAffinity::default()
        }),
        ..Affinity::default()
    }
}

fn container(cache: &ModelCache, image: &str) -> Container {
    let mut mounts = vec![mount("model", MOUNT, false), mount("words", WORDS, false)];
    if cache.spec.source.pvc.is_some() {
        mounts.push(mount("source", FROM, true));
    }
    if mounted_secret(cache).is_some() {
        mounts.push(mount("credentials", CREDENTIALS, true));
    }
    Container {
        name: "fetch".to_owned(),
        image: Some(image.to_owned()),
        args: Some(arguments(cache)),
        env: Some(environment(cache)),
        volume_mounts: Some(mounts),
        termination_message_path: Some(format!("{WORDS}/report")),
        ports: Some(vec![ContainerPort {
            name: Some("progress".to_owned()),
            container_port: i32::from(progress_port(cache)),
            ..ContainerPort::default()
        }]),
        resources: Some(modest()),
        security_context: Some(unprivileged(true)),
        ..Container::default()
    }
}

/// The words of `warp fetch`. Nothing of them passes through a shell.
fn arguments(cache: &ModelCache) -> Vec<String> {
    let spec = &cache.spec;
    let mut words = vec![
        "fetch".to_owned(),
        format!("--to={MOUNT}"),
        format!("--report={WORDS}/report"),
        format!("--progress-listen=$(POD_IP):{}", progress_port(cache)),
        format!("--progress-id={}", cache.uid().unwrap_or_default()),
    ];
    // A dollar in somebody's pattern is no reference to a variable.
    let literal = |text: &str| text.replace('$', "$$");
    words.extend(
        spec.allow_patterns
            .iter()
            .map(|one| format!("--allow={}", literal(one))),
    );
    words.extend(
        spec.ignore_patterns
            .iter()
            .map(|one| format!("--ignore={}", literal(one))),
    );
    if spec.all_formats {
        words.push("--all-formats".to_owned());
    }
    words.extend(
        spec.bandwidth
            .iter()
            .map(|rate| format!("{LIMIT_RATE}{rate}")),
    );
    let listed = spec.source.http.iter().flat_map(|http| &http.files);
    words.extend(listed.map(|file| {
        let digest = file.sha256.as_ref();
        let digest = digest.map_or(String::new(), |sha256| format!("#sha256={sha256}"));
        format!("--file={}{digest}", literal(&file.path))
    }));
    if spec.source.oci.as_ref().is_some_and(|oci| oci.plain_http) {
        words.push("--plain-http".to_owned());
    }
    if mounted_secret(cache).is_some() {
        words.push(format!("--credentials={CREDENTIALS}"));
    }
    words.push("--".to_owned());
    words.push(match &spec.source.pvc {
        Some(pvc) => {
            let path = pvc.path.as_deref().unwrap_or_default().trim_matches('/');
            literal(format!("{FROM}/{path}").trim_end_matches('/'))
        }
        None => literal(&spec.source.word()),
    });
    words
}

fn pod_ip() -> EnvVar {
    EnvVar {
        name: "POD_IP".to_owned(),
        value_from: Some(EnvVarSource {
            field_ref: Some(ObjectFieldSelector {
                field_path: "status.podIP".to_owned(),
                ..ObjectFieldSelector::default()
            }),
            ..EnvVarSource::default()
        }),
        ..EnvVar::default()
    }
}

fn environment(cache: &ModelCache) -> Vec<EnvVar> {
    let mut variables = vec![pod_ip()];
    let source = &cache.spec.source;
    if let Some(hub) = &source.huggingface {
        variables.extend(hub.endpoint.as_deref().map(|it| given("HF_ENDPOINT", it)));
        let secret = hub.token_secret.as_deref();
        variables.extend(secret.map(|name| secret_key("HF_TOKEN", name, "token", true)));
    }
    if let Some(http) = &source.http {
        let secret = http.token_secret.as_deref();
        variables.extend(secret.map(|name| secret_key("WARP_HTTP_TOKEN", name, "token", true)));
    }
    let other = source.gcs.as_ref().and_then(|gcs| gcs.endpoint.as_deref());
    variables.extend(other.map(|it| given("STORAGE_EMULATOR_HOST", it)));
    let other = source.azure.as_ref();
    let other = other.and_then(|azure| azure.endpoint.as_deref());
    variables.extend(other.map(|it| given("AZURE_STORAGE_ENDPOINT", it)));
    if let Some(s3) = &source.s3 {
        variables.push(given("AWS_REGION", &s3.region));
        variables.extend(
            s3.endpoint
                .as_deref()
                .map(|it| given("AWS_ENDPOINT_URL", it)),
        );
        if let Some(secret) = &s3.credentials_secret {
            let keys = [
                ("AWS_ACCESS_KEY_ID", true),
                ("AWS_SECRET_ACCESS_KEY", true),
                ("AWS_SESSION_TOKEN", false),
            ];
            variables.extend(keys.map(|(key, must)| secret_key(key, secret, key, must)));
        }
    }
    variables
}

/// A variable with somebody's value: a dollar in it is no reference to another.
fn given(name: &str, value: &str) -> EnvVar {
    EnvVar {
        name: name.to_owned(),
        value: Some(value.replace('$', "$$")),
        ..EnvVar::default()
    }
}

fn secret_key(name: &str, secret: &str, key: &str, must: bool) -> EnvVar {
    EnvVar {
        name: name.to_owned(),
        value_from: Some(EnvVarSource {
            secret_key_ref: Some(SecretKeySelector {
                name: secret.to_owned(),
                key: key.to_owned(),
                optional: (!must).then_some(true),
            }),
            ..EnvVarSource::default()
        }),
        ..EnvVar::default()
    }
}
