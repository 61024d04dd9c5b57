//! Everything a cache's plan needs: its claim, Jobs and pods from the caches, and how far the fetch says it is. No
//! decisions.

use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::core::v1::{Node, PersistentVolumeClaim, Pod};
use kube::{Resource, ResourceExt};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use warp_api::{ModelCache, condition, label, reason};
use warp_runtime::cache::{Cache, Key};

use super::ModelCaches;
use super::objects::nodes::folder;
use super::objects::{Fetcher, content_key, progress_port};
use super::report::Moment;
use super::share;

/// How long a fetch may take to say how far it is.
const PROGRESS_LIMIT: Duration = Duration::from_secs(1);
/// No answer about progress is longer.
const PROGRESS_BYTES: u64 = 8 << 10;

/// What is known about one cache.
#[derive(Clone, Debug, Default)]
pub(crate) struct Seen {
    pub(crate) claim: Option<Arc<PersistentVolumeClaim>>,
    /// Jobs that carry the cache's name.
    pub(crate) jobs: Vec<Arc<Job>>,
    /// Pods of those Jobs.
    pub(crate) fetchers: Vec<Arc<Pod>>,
    /// Other pods that mount the claim and have not ended.
    pub(crate) users: Vec<String>,
    /// Other caches of the namespace that name the same content, or share a volume with this one.
    pub(crate) siblings: Vec<Arc<ModelCache>>,
    /// The claims of those.
    pub(crate) sibling_claims: Vec<Arc<PersistentVolumeClaim>>,
    /// Pods that mount the volume this cache shares, and have not ended.
    pub(crate) lent_users: Vec<String>,
    /// When the last of the pods that ended and mounted either did so.
    pub(crate) ended: Option<Timestamp>,
    /// Every node, where this operator may label them and the cache keeps copies on nodes.
    pub(crate) nodes: Option<Vec<Arc<Node>>>,
    /// Pods of this namespace that mount folders of their nodes and have not ended.
    pub(crate) mounts: Vec<FolderMount>,
    /// Those that have ended, and when.
    pub(crate) past_mounts: Vec<(FolderMount, Timestamp)>,
    /// Other caches that keep copies in the same folder of nodes, where one of them limits what they take there.
    pub(crate) neighbours: Vec<Neighbour>,
    /// Pods and services that cannot start before a node has a copy.
    pub(crate) waiting: Vec<String>,
    /// InferenceServices that name it.
    pub(crate) services: Vec<String>,
    /// What the running fetch says of itself.
    pub(crate) moment: Option<Moment>,
    /// What fetches.
    pub(crate) fetcher: Fetcher,
}

/// A cache that keeps copies where another does.
#[derive(Clone, Debug)]
pub(crate) struct Neighbour {
    pub(crate) cache: Arc<ModelCache>,
    /// Whether something cannot start before a node has a copy of it.
    pub(crate) needed: bool,
}

/// A pod that mounts a folder of its node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct FolderMount {
    pub(crate) pod: String,
    pub(crate) node: String,
    pub(crate) folder: String,
}

pub(super) async fn see(kind: &ModelCaches, cache: &ModelCache) -> Seen {
    let namespace = cache.namespace().unwrap_or_default();
    let name = cache.name_any();
    let claim = ModelCache::claim_name(&name);
    let of_cache = |labels: &std::collections::BTreeMap<String, String>| {
        labels.get(label::MODEL_CACHE) == Some(&name)
    };
    let pods = kind.pods.in_namespace(&namespace);
    let (fetchers, others): (Vec<_>, Vec<_>) =
        pods.into_iter().partition(|pod| of_cache(pod.labels()));
    let users_of = |claim: &str| {
        let pods = others
            .iter()
            .filter(|pod| !is_finished(pod) && claims_of(pod).any(|mounted| mounted == claim));
        let mut names: Vec<String> = pods.map(|pod| pod.name_any()).collect();
        names.sort();
        names
    };
    let siblings = share::siblings(cache, &kind.caches);
    let claims = siblings.iter().map(|one| {
        let name = ModelCache::claim_name(&one.name_any());
        kind.claims.get(&Key::new(&namespace, &name))
    });
    let sibling_claims = claims.flatten().collect();
    let lender = cache.status.as_ref();
    let lender = lender.and_then(|status| status.shared_from.as_deref());
    let lent = lender.map(ModelCache::claim_name);
    let ended = others
        .iter()
        .filter(|pod| claims_of(pod).any(|one| one == claim || Some(one) == lent.as_deref()))
        .filter_map(|pod| end_of(pod))
        .max();
    let mut seen = Seen {
        claim: kind.claims.get(&Key::new(&namespace, &claim)),
        jobs: kind
            .jobs
            .in_namespace(&namespace)
            .into_iter()
            .filter(|job| of_cache(job.labels()))
            .collect(),
        fetchers,
        users: users_of(&claim),
        siblings,
        sibling_claims,
        lent_users: lent.map(|claim| users_of(&claim)).unwrap_or_default(),
        ended,
        nodes: match (&cache.spec.nodes, &kind.nodes) {
            (Some(_), Some(nodes)) => Some(nodes.all()),
            _ => None,
        },
        mounts: folder_mounts(cache, &others),
        past_mounts: past_mounts(cache, &others),
        neighbours: neighbours(kind, cache),
        waiting: waiting_for(kind, cache),
        services: services_of(kind, cache),
        moment: None,
        fetcher: kind.fetcher.clone(),
    };
    if seen.fetcher.image.is_none() {
        seen.fetcher.image = own_image(kind);
    }
    if let Some(address) = running(cache, &seen).filter(|_| kind.fetcher.asks_progress) {
        seen.moment = ask(&address, cache).await;
    }
    seen
}

fn mounts_of(pod: &Pod) -> impl Iterator<Item = FolderMount> {
    let node = pod.spec.as_ref().and_then(|spec| spec.node_name.clone());
    let (name, node) = (pod.name_any(), node.unwrap_or_default());
    folders_of(pod).map(move |folder| FolderMount {
        pod: name.clone(),
        node: node.clone(),
        folder: folder.to_owned(),
    })
}

/// Mounts of pods that have ended.
fn past_mounts(cache: &ModelCache, pods: &[Arc<Pod>]) -> Vec<(FolderMount, Timestamp)> {
    if cache.spec.nodes.is_none() {
        return Vec::new();
    }
    let ended = pods.iter().filter_map(|pod| Some((pod, end_of(pod)?)));
    ended
        .flat_map(|(pod, at)| mounts_of(pod).map(move |mount| (mount, at)))
        .collect()
}

/// Mounts of pods that have not.
fn folder_mounts(cache: &ModelCache, pods: &[Arc<Pod>]) -> Vec<FolderMount> {
    if cache.spec.nodes.is_none() {
        return Vec::new();
    }
    let live = pods.iter().filter(|pod| !is_finished(pod));
    let mounts = live.flat_map(|pod| mounts_of(pod));
    let mut mounts: Vec<FolderMount> = mounts.collect();
    mounts.sort_by(|a, b| (&a.pod, &a.folder).cmp(&(&b.pod, &b.folder)));
    mounts
}

fn neighbours(kind: &ModelCaches, cache: &ModelCache) -> Vec<Neighbour> {
    let mut found = share::in_same_folder(cache, &kind.caches);
    let limits = |one: &ModelCache| {
        let copies = one.spec.nodes.as_ref();
        copies.is_some_and(|copies| copies.quota.is_some())
    };
    if !limits(cache) && !found.iter().any(|one| limits(one)) {
        return Vec::new();
    }
    found.sort_by_key(|one| Key::of(&**one).to_string());
    let known = found.into_iter().map(|cache| Neighbour {
        needed: !waiting_for(kind, &cache).is_empty(),
        cache,
    });
    known.collect()
}

/// What cannot start before a node has a copy of a cache: pods that mount it and have no node, services that wait for it.
fn waiting_for(kind: &ModelCaches, cache: &ModelCache) -> Vec<String> {
    let Some(copies) = &cache.spec.nodes else {
        return Vec::new();
    };
    let namespace = cache.namespace().unwrap_or_default();
    let folder = folder(copies, &namespace, &content_key(&cache.spec));
    let pods = kind.pods.in_namespace(&namespace);
    let unplaced = pods.iter().filter(|pod| {
        let node = pod.spec.as_ref().and_then(|spec| spec.node_name.as_ref());
        // Those of a cache's own Jobs bring it.
        let ours = pod.labels().contains_key(label::MODEL_CACHE);
        let over = is_finished(pod) || pod.meta().deletion_timestamp.is_some();
        node.is_none() && !ours && !over && folders_of(pod).any(|one| one == folder)
    });
    let unplaced = unplaced.map(|pod| format!("pod {}", pod.name_any()));
    let services = kind.services.as_ref();
    let services = services.map(|all| all.by(0, &Key::of(cache).to_string()));
    let services = services.into_iter().flatten().filter(|service| {
        let told = service.status.iter().flat_map(|status| &status.conditions);
        let mut told = told.filter(|one| one.type_ == condition::READY);
        told.any(|one| one.reason == reason::WAITING_FOR_MODEL)
    });
    let services = services.map(|service| format!("InferenceService {}", service.name_any()));
    let mut names: Vec<String> = unplaced.chain(services).collect();
    names.sort();
    names
}

/// The InferenceServices that name a cache, in alphabetical order.
fn services_of(kind: &ModelCaches, cache: &ModelCache) -> Vec<String> {
    let Some(services) = &kind.services else {
        return Vec::new();
    };
    let named = services.by(0, &Key::of(cache).to_string());
    let mut names: Vec<String> = named.iter().map(|service| service.name_any()).collect();
    names.sort();
    names
}

/// The image this operator runs from, where it runs in a pod.
fn own_image(kind: &ModelCaches) -> Option<String> {
    let pods = kind.pods.all();
    let own = pods
        .iter()
        .find(|pod| is_operator(pod) && pod.name_any() == kind.identity)?;
    own.spec.as_ref()?.containers.first()?.image.clone()
}

pub(super) fn is_operator(pod: &Pod) -> bool {
    let labels = pod.labels();
    labels
        .get("app.kubernetes.io/name")
        .is_some_and(|name| name == "warp")
        && labels
            .get("app.kubernetes.io/component")
            .is_some_and(|part| part == "operator")
}

/// Where the pod that fetches what the spec names answers.
fn running(cache: &ModelCache, seen: &Seen) -> Option<String> {
    let key = content_key(&cache.spec);
    let pod = seen.fetchers.iter().find(|pod| {
        let phase = pod
            .status
            .as_ref()
            .and_then(|status| status.phase.as_deref());
        pod.labels().get(label::MODEL_CONTENT) == Some(&key) && phase == Some("Running")
    })?;
    let ip = pod.status.as_ref()?.pod_ip.as_deref()?;
    let port = progress_port(cache);
    Some(if ip.contains(':') {
        format!("[{ip}]:{port}")
    } else {
        format!("{ip}:{port}")
    })
}

/// What the fetch says; a network that lets nobody ask means that no progress is known.
async fn ask(address: &str, cache: &ModelCache) -> Option<Moment> {
    let uid = cache.meta().uid.clone()?;
    let asked = async {
        let mut stream = TcpStream::connect(address).await.ok()?;
        let question = format!("GET /{uid} HTTP/1.0\r\n\r\n");
        stream.write_all(question.as_bytes()).await.ok()?;
        let mut answer = Vec::new();
        stream
            .take(PROGRESS_BYTES)
            .read_to_end(&mut answer)
            .await
            .ok()?;
        let text = String::from_utf8(answer).ok()?;
        let (head, body) = text.split_once("\r\n\r\n")?;
        let good = head.split_whitespace().nth(1) == Some("200");
        good.then(|| serde_json::from_str(body).ok()).flatten()
    };
    tokio::time::timeout(PROGRESS_LIMIT, asked)
        .await
        .ok()
        .flatten()
}

pub(super) fn is_finished(pod: &Pod) -> bool {
    let phase = pod
        .status
        .as_ref()
        .and_then(|status| status.phase.as_deref());
    matches!(phase, Some("Succeeded" | "Failed"))
}

/// When a pod ended: with the last of its containers.
fn end_of(pod: &Pod) -> Option<Timestamp> {
    let status = pod.status.as_ref().filter(|_| is_finished(pod))?;
    let ends = status
        .container_statuses
        .iter()
        .flatten()
        .filter_map(|one| {
            let ended = one.state.as_ref()?.terminated.as_ref()?;
            ended.finished_at.as_ref().map(|time| time.0)
        });
    ends.max()
}

/// The claims a pod mounts.
pub(super) fn claims_of(pod: &Pod) -> impl Iterator<Item = &str> {
    let volumes = pod.spec.as_ref().and_then(|spec| spec.volumes.as_ref());
    volumes
        .into_iter()
        .flatten()
        .filter_map(|volume| Some(volume.persistent_volume_claim.as_ref()?.claim_name.as_str()))
}

/// The folders of its node a pod mounts.
pub(super) fn folders_of(pod: &Pod) -> impl Iterator<Item = &str> {
    let volumes = pod.spec.as_ref().and_then(|spec| spec.volumes.as_ref());
    volumes
        .into_iter()
        .flatten()
        .filter_map(|volume| Some(volume.host_path.as_ref()?.path.as_str()))
}

/// The caches that have, or are to have, a copy on a node.
pub(super) fn caches_on(node: &Node, caches: &Cache<ModelCache>) -> Vec<Key> {
    let name = node.name_any();
    let all = caches.all();
    let concerned = all.iter().filter(|cache| {
        let wanted = cache.spec.nodes.as_ref();
        let wanted = wanted.is_some_and(|copies| super::plan::matches(copies, node));
        let status = cache.status.as_ref();
        wanted || status.is_some_and(|status| status.nodes.iter().any(|copy| copy.name == name))
    });
    concerned.map(|cache| Key::of(&**cache)).collect()
}

/// The caches whose files a pod mounts.
pub(super) fn users_caches(pod: &Pod, caches: &Cache<ModelCache>) -> Vec<Key> {
    let namespace = pod.namespace().unwrap_or_default();
    let keys = claims_of(pod).filter_map(|claim| claim.strip_suffix("-model"));
    let keys = keys.map(|name| Key::new(&namespace, name));
    let keys = keys.filter(|key| caches.get(key).is_some());
    let mut all: Vec<Key> = keys
        .flat_map(|key| {
            let mut all = share::sharers(&key, caches);
            all.push(key);
            all
        })
        .collect();
    if folders_of(pod).next().is_some() {
        let here = caches.in_namespace(&namespace);
        let kept = here.iter().filter(|cache| {
            let copies = cache.spec.nodes.as_ref();
            copies.is_some_and(|copies| folders_of(pod).any(|one| one.starts_with(&copies.path)))
        });
        all.extend(kept.map(|cache| Key::of(&**cache)));
    }
    all
}
