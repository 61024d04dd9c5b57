//! The Jobs that bring a copy to a node and take it away again: `warp fetch`, and `warp model drop`. Pure.

use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::core::v1::{
    Container, HostPathVolumeSource, Node, PodSpec, Toleration, Volume,
};
use kube::ResourceExt;
use warp_api::modelcache::{MOUNT, NodeCopies};
use warp_api::{ModelCache, label};

use super::{Fetcher, around, empty, fnv, modest, mount, nobody, pod, unprivileged};
use crate::ledger::pin;

/// The container that is this program.
const DROP: &str = "drop";
/// The container that lends a copy to other nodes.
const SHARE: &str = "share";
/// How long the removal of a copy may take.
const DROP_SECONDS: i64 = 600;

/// The folder of nodes that holds one content of a namespace.
pub(crate) fn folder(copies: &NodeCopies, namespace: &str, key: &str) -> String {
    let path = copies.path.trim_end_matches('/');
    format!("{path}/{namespace}/{key}")
}

/// The label of nodes that hold one content of a namespace.
pub(crate) fn node_label(namespace: &str, key: &str) -> String {
    let name = fnv(format!("{namespace}/{key}").as_bytes()) >> 32;
    format!("{}{name:08x}", label::HELD_MODEL)
}

/// A Job of one node, by the node's name and the content.
fn named(cache: &ModelCache, what: &str, node: &str, key: &str) -> String {
    let one = fnv(format!("{node}/{key}").as_bytes()) >> 32;
    format!("{}-{what}-{one:08x}", cache.name_any())
}

pub(crate) fn copy_name(cache: &ModelCache, node: &str, key: &str) -> String {
    named(cache, "copy", node, key)
}

pub(crate) fn drop_name(cache: &ModelCache, node: &str, key: &str) -> String {
    named(cache, "drop", node, key)
}

pub(crate) fn share_name(cache: &ModelCache, node: &str, key: &str) -> String {
    named(cache, "share", node, key)
}

/// Where a copy of a cache is lent, below an address that has to be known.
pub(crate) fn peer(cache: &ModelCache, ip: &str) -> String {
    let ip = if ip.contains(':') {
        format!("[{ip}]")
    } else {
        ip.to_owned()
    };
    let id = cache.uid().unwrap_or_default();
    format!("http://{ip}:{}/{id}", share_port(cache))
}

fn share_port(cache: &ModelCache) -> u16 {
    let uid = cache.uid().unwrap_or_default();
    let offset = fnv(format!("share/{uid}").as_bytes()) % super::PORTS;
    super::FIRST_PORT + u16::try_from(offset).unwrap_or_default()
}

/// The Job that lends the copy of a node to the others, until it is deleted.
pub(crate) fn lend(
    cache: &ModelCache,
    (fetcher, image): (&Fetcher, &str),
    node: &str,
    (folder, key): (&str, &str),
) -> Job {
    let words = [
        "model".to_owned(),
        "share".to_owned(),
        format!("--from={MOUNT}"),
        format!("--listen=$(POD_IP):{}", share_port(cache)),
        format!("--id={}", cache.uid().unwrap_or_default()),
    ];
    let container = Container {
        name: SHARE.to_owned(),
        image: Some(image.to_owned()),
        args: Some(words.to_vec()),
        env: Some(vec![super::pod_ip()]),
        resources: Some(modest()),
        security_context: Some(unprivileged(true)),
        volume_mounts: Some(vec![mount("model", MOUNT, true)]),
        ..Container::default()
    };
    let pod = settled(container, vec![on_node(folder)], fetcher, node);
    let name = share_name(cache, node, key);
    // Of another content than any fetch: nobody asks it for progress.
    around(cache, fetcher, (name, SHARE.to_owned()), SHARE, pod)
}

/// The Job that brings the model to a node; `commit` is what the other nodes have of a branch, `peer` one of them, `room`
/// the bytes it may have.
pub(crate) fn bring(
    cache: &ModelCache,
    (fetcher, image): (&Fetcher, &str),
    (node, folder): (&Node, &str),
    (key, commit): (&str, Option<&str>),
    (peer, room): (Option<&str>, Option<i64>),
) -> Job {
    let mut pinned = cache.clone();
    if let (Some(hub), Some(commit)) = (&mut pinned.spec.source.huggingface, commit) {
        commit.clone_into(&mut hub.revision);
    }
    let mut pod = pod(&pinned, fetcher, image);
    let volumes = pod.volumes.get_or_insert_default();
    volumes.retain(|volume| volume.name != "model");
    volumes.push(on_node(folder));
    settle(&mut pod, fetcher, &node.name_any());
    if let (Some(peer), Some(words)) = (peer, &mut pod.containers[0].args) {
        words.insert(1, format!("--peer={peer}"));
    }
    if let (Some(room), Some(words)) = (room, &mut pod.containers[0].args) {
        // With no room at all it finds out how much it needs.
        words.insert(1, format!("--max-size={}", room.max(1)));
    }
    let name = copy_name(cache, &node.name_any(), key);
    around(cache, fetcher, (name, key.to_owned()), "fetch", pod)
}

/// The Job that removes what a node holds below `folder`.
pub(crate) fn removal(
    cache: &ModelCache,
    (fetcher, image): (&Fetcher, &str),
    node: &str,
    (folder, key): (&str, &str),
) -> Job {
    let container = Container {
        name: DROP.to_owned(),
        image: Some(image.to_owned()),
        args: Some(["model", "drop", MOUNT].map(str::to_owned).to_vec()),
        resources: Some(modest()),
        security_context: Some(unprivileged(true)),
        volume_mounts: Some(vec![
            mount("model", MOUNT, false),
            mount("words", super::WORDS, false),
        ]),
        ..Container::default()
    };
    let pod = settled(
        container,
        vec![on_node(folder), empty("words")],
        fetcher,
        node,
    );
    let name = drop_name(cache, node, key);
    let mut job = around(cache, fetcher, (name, key.to_owned()), DROP, pod);
    if let Some(spec) = &mut job.spec {
        spec.active_deadline_seconds = Some(DROP_SECONDS);
    }
    job
}

/// A pod of one container that works on the disk of a node.
fn settled(container: Container, volumes: Vec<Volume>, fetcher: &Fetcher, node: &str) -> PodSpec {
    let mut pod = PodSpec {
        restart_policy: Some("Never".to_owned()),
        automount_service_account_token: Some(false),
        enable_service_links: Some(false),
        security_context: Some(nobody(fetcher)),
        containers: vec![container],
        volumes: Some(volumes),
        ..PodSpec::default()
    };
    settle(&mut pod, fetcher, node);
    pod
}

fn on_node(folder: &str) -> Volume {
    Volume {
        name: "model".to_owned(),
        host_path: Some(HostPathVolumeSource {
            path: folder.to_owned(),
            type_: Some("DirectoryOrCreate".to_owned()),
        }),
        ..Volume::default()
    }
}

/// On that node and no other, whatever it is kept free for; as the owner of folders there, with no rights besides.
fn settle(pod: &mut PodSpec, fetcher: &Fetcher, node: &str) {
    pod.affinity = None;
    pin(pod, Some(node), None);
    pod.tolerations = Some(vec![Toleration {
        operator: Some("Exists".to_owned()),
        effect: Some("NoSchedule".to_owned()),
        ..Toleration::default()
    }]);
    if let Some(context) = &mut pod.security_context {
        let contained = fetcher.program.is_none();
        context.run_as_non_root = None;
        context.run_as_user = contained.then_some(0);
        context.run_as_group = contained.then_some(0);
        context.fs_group = None;
        context.fs_group_change_policy = None;
    }
}
