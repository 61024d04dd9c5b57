//! The Job that makes another model of a fetched one: the spec's own container runs first, then `warp fetch` verifies and
//! publishes what it left, as it does with any folder. Pure.

use std::collections::BTreeSet;

use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::core::v1::{Container, EnvVar, PodSpec, ResourceRequirements, Toleration};
use kube::ResourceExt;
use serde_json::json;
use warp_api::modelcache::{MOUNT, Optimize};
use warp_api::{ModelCache, ModelCacheStatus};
use warp_core::gpu::Vendor;

use super::{
    Fetcher, WORDS, around, away_from_simulated_nodes, claimed, empty, fnv, given, modest, mount,
    nobody, unprivileged,
};

/// The container that is this program.
const PUBLISH: &str = "publish";
/// Where the spec's container leaves the new model.
const OUTPUT: &str = "/output";
/// A place of its own for what it needs meanwhile.
const SCRATCH: &str = "/scratch";

/// Names what is made: the same model and the same container have the same key.
pub(crate) fn key(optimize: &Optimize, fetched: &ModelCacheStatus) -> String {
    let of = fetched.digest.as_ref().or(fetched.path.as_ref());
    let text = json!([optimize, of]).to_string();
    format!("{:08x}", fnv(text.as_bytes()) >> 32)
}

pub(crate) fn job_name(cache: &ModelCache, key: &str) -> String {
    format!("{}-optim-{key}", cache.name_any())
}

/// The Job that makes it of the model in `path`; `image` is this program's.
pub(crate) fn job(
    cache: &ModelCache,
    optimize: &Optimize,
    fetcher: &Fetcher,
    image: &str,
    (path, key): (&str, &str),
) -> Job {
    let claim = ModelCache::claim_name(&cache.name_any());
    let pod = PodSpec {
        restart_policy: Some("Never".to_owned()),
        automount_service_account_token: Some(false),
        enable_service_links: Some(false),
        security_context: Some(nobody(fetcher)),
        affinity: Some(away_from_simulated_nodes()),
        tolerations: Some(tolerations(optimize)).filter(|all| !all.is_empty()),
        init_containers: Some(vec![maker(optimize, path)]),
        containers: vec![publisher(cache, image, path)],
        volumes: Some(vec![
            claimed("model", &claim, false),
            empty("output"),
            empty("scratch"),
            empty("words"),
        ]),
        ..PodSpec::default()
    };
    let named = (job_name(cache, key), key.to_owned());
    around(cache, fetcher, named, PUBLISH, pod)
}

/// The spec's own container: it reads the fetched model and writes the new one.
fn maker(optimize: &Optimize, path: &str) -> Container {
    let ours = [
        ("MODEL_PATH", path),
        ("OUTPUT_PATH", OUTPUT),
        ("HF_HUB_OFFLINE", "1"),
        ("HOME", SCRATCH),
        ("TMPDIR", SCRATCH),
    ];
    // The two folders are ours to say; the rest may be said otherwise.
    let is_said = |name: &str| optimize.env.iter().any(|one| one.name == name);
    let ours = ours
        .iter()
        .filter(|(name, _)| name.ends_with("_PATH") || !is_said(name));
    let mut env: Vec<EnvVar> = ours.map(|(name, value)| given(name, value)).collect();
    let theirs = optimize.env.iter();
    env.extend(
        theirs
            .filter(|one| !matches!(&*one.name, "MODEL_PATH" | "OUTPUT_PATH"))
            .cloned(),
    );
    let list = |words: &[String]| Some(words.to_vec()).filter(|words| !words.is_empty());
    let asked = optimize.resources.clone().unwrap_or_default();
    Container {
        name: "optimize".to_owned(),
        image: Some(optimize.image.clone()),
        command: list(&optimize.command),
        args: list(&optimize.args),
        env: Some(env),
        resources: Some(ResourceRequirements {
            requests: Some(asked.requests).filter(|all| !all.is_empty()),
            limits: Some(asked.limits).filter(|all| !all.is_empty()),
            ..ResourceRequirements::default()
        }),
        termination_message_policy: Some("FallbackToLogsOnError".to_owned()),
        security_context: Some(unprivileged(false)),
        volume_mounts: Some(vec![
            mount("model", MOUNT, true),
            mount("output", OUTPUT, false),
            mount("scratch", SCRATCH, false),
        ]),
        ..Container::default()
    }
}

/// It publishes nothing that was made by changing the fetched model: not every node can keep that from being written.
fn publisher(cache: &ModelCache, image: &str, path: &str) -> Container {
    let words = vec![
        "fetch".to_owned(),
        format!("--to={MOUNT}"),
        format!("--report={WORDS}/report"),
        // What was made is what was meant.
        "--all-formats".to_owned(),
        format!("--as=optimized/{}", cache.name_any()),
        format!("--unchanged={path}"),
        "--".to_owned(),
        OUTPUT.to_owned(),
    ];
    Container {
        name: PUBLISH.to_owned(),
        image: Some(image.to_owned()),
        args: Some(words),
        termination_message_path: Some(format!("{WORDS}/report")),
        resources: Some(modest()),
        security_context: Some(unprivileged(true)),
        volume_mounts: Some(vec![
            mount("model", MOUNT, false),
            mount("output", OUTPUT, true),
            mount("words", WORDS, false),
        ]),
        ..Container::default()
    }
}

/// Nodes with GPUs are kept free of others by a taint of their vendor.
fn tolerations(optimize: &Optimize) -> Vec<Toleration> {
    let asked = optimize.resources.clone().unwrap_or_default();
    let names = asked.requests.keys().chain(asked.limits.keys());
    let taints: BTreeSet<&str> = names
        .filter_map(|name| Vendor::of_resource(name))
        .flat_map(|vendor| vendor.taints().iter().copied())
        .collect();
    taints
        .into_iter()
        .map(|key| Toleration {
            key: Some(key.to_owned()),
            operator: Some("Exists".to_owned()),
            effect: Some("NoSchedule".to_owned()),
            ..Toleration::default()
        })
        .collect()
}
