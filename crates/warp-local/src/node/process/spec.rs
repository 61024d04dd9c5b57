//! From a container's description to the command that runs: words, environment, folder, devices.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use k8s_openapi::api::core::v1::{Container, Pod};
use warp_core::gpu::Vendor;

use super::cgroup::memory_limit;
use super::names;
use super::sweep::MARK;
use super::wire::{Launch, Stdin};
use super::{COMMAND_ANNOTATION, LOCAL_IMAGE, Shared, WARP_IMAGE};
use crate::node::contents::ContentError;
use crate::node::contents::environment::{Scope, Sources, expand};
use crate::node::contents::fields::Place;
use crate::node::contents::volumes::{Volumes, mounted};
use crate::node::devices::Devices;
use crate::node::task::{Record, replace};

/// Variables of Warp's own environment a container sees; the rest is nobody's business.
const INHERITED: [&str; 7] = ["PATH", "HOME", "USER", "LANG", "LC_ALL", "TZ", "TMPDIR"];
/// Where the folders of a container's mounts are found: `$WARP_ROOT/data` is the mount at `/data`. It
/// is unset on a cluster, so `${WARP_ROOT}/data` is right in both places.
const ROOT: &str = "WARP_ROOT";
const DEFAULT_LAST_WORD: &str = "/dev/termination-log";

/// Why an image cannot be run, or the words its container begins with.
pub(super) fn entry(pod: &Pod, container: &Container) -> Result<Vec<String>, String> {
    let image = container.image.as_deref().unwrap_or_default();
    let annotations = pod.metadata.annotations.as_ref();
    let own = format!("{COMMAND_ANNOTATION}.{}", container.name);
    let told = annotations.and_then(|all| all.get(&own).or_else(|| all.get(COMMAND_ANNOTATION)));
    if let Some(text) = told {
        return serde_json::from_str(text).map_err(|error| {
            format!("annotation {COMMAND_ANNOTATION} must be a JSON list of words: {error}")
        });
    }
    let Some(program) = image.strip_prefix(LOCAL_IMAGE) else {
        return Err(format!(
            "a process node has no images, so \"{image}\" stands for nothing here: use image {LOCAL_IMAGE}, name the command in the annotation {COMMAND_ANNOTATION}, or start Docker"
        ));
    };
    if program.starts_with('/') {
        return Ok(vec![program.to_owned()]);
    }
    Ok(Vec::new())
}

/// The folder that shows a container's mounts.
fn root(folder: &Path, container: &Container) -> PathBuf {
    folder.join("root").join(&container.name)
}

/// Where a container's mounts are found, and which folders of this machine it may only read.
#[derive(Debug, Default)]
struct Mounts {
    links: Vec<(String, PathBuf)>,
    read_only: Vec<PathBuf>,
}

/// Links every mount below the container's root.
fn link_mounts(
    root: &Path,
    container: &Container,
    volumes: &Volumes,
    variables: &BTreeMap<String, String>,
) -> Result<Mounts, ContentError> {
    let failed = |path: &Path, source| ContentError::Write {
        path: path.display().to_string(),
        source,
    };
    std::fs::create_dir_all(root).map_err(|source| failed(root, source))?;
    let mut links = Vec::new();
    let (mut read_only, mut writable) = (Vec::new(), Vec::new());
    for mount in container.volume_mounts.iter().flatten() {
        let Some(volume) = volumes.get(&mount.name) else {
            continue;
        };
        let target = mounted(volume, mount, variables)?;
        let link = root.join(mount.mount_path.trim_matches('/'));
        if let Some(parent) = link.parent() {
            std::fs::create_dir_all(parent).map_err(|source| failed(parent, source))?;
        }
        std::fs::remove_file(&link).ok();
        std::os::unix::fs::symlink(&target, &link).map_err(|source| failed(&link, source))?;
        links.push((mount.mount_path.trim_end_matches('/').to_owned(), link));
        if mount.read_only == Some(true) {
            read_only.push(target);
        } else {
            writable.push(target);
        }
    }
    // A folder is closed for the whole container: one it may also write stays open.
    let meets = |one: &Path| {
        let mut others = writable.iter();
        others.any(|other| one.starts_with(other) || other.starts_with(one))
    };
    read_only.retain(|one| !meets(one));
    Ok(Mounts { links, read_only })
}

/// A word that names a mount, or something below one, names it where it really is.
pub(super) fn relocate(word: &str, mounts: &[(String, PathBuf)]) -> String {
    let (option, path) = match word.split_once('=') {
        Some((option, path)) if option.starts_with('-') => (Some(option), path),
        _ => (None, word),
    };
    let longest = mounts
        .iter()
        .filter(|(mount, _)| {
            path.strip_prefix(mount.as_str())
                .is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
        })
        .max_by_key(|(mount, _)| mount.len());
    let Some((mount, place)) = longest else {
        return word.to_owned();
    };
    let moved = format!("{}{}", place.display(), &path[mount.len()..]);
    match option {
        Some(option) => format!("{option}={moved}"),
        None => moved,
    }
}

/// Where a path is that the containers of a pod may mean, the one whose mounts have it first.
pub(super) fn places(folder: &Path, pod: &Pod, path: &str) -> Vec<PathBuf> {
    let containers = pod.spec.iter().flat_map(|spec| &spec.containers);
    let mounted = containers.filter_map(|container| {
        let root = root(folder, container);
        let mounts = container.volume_mounts.iter().flatten().map(|mount| {
            let link = root.join(mount.mount_path.trim_matches('/'));
            (mount.mount_path.trim_end_matches('/').to_owned(), link)
        });
        let place = relocate(path, &mounts.collect::<Vec<_>>());
        (place != path).then(|| PathBuf::from(place))
    });
    // What is below no mount is on the machine itself.
    let mut places: Vec<PathBuf> = mounted.collect();
    if places.is_empty() {
        places.push(PathBuf::from(path));
    }
    places
}

/// The variables that show a container exactly the devices it was given.
fn devices(container: &str, devices: &Devices) -> BTreeMap<String, String> {
    let held = devices.get(container);
    let list = |resources: &[&str]| {
        let numbers: Vec<String> = resources
            .iter()
            .filter_map(|resource| held?.get(*resource))
            .flatten()
            .map(u32::to_string)
            .collect();
        numbers.join(",")
    };
    // An empty list hides the devices a container did not ask for.
    [
        ("CUDA_VISIBLE_DEVICES", Vendor::Nvidia),
        ("HIP_VISIBLE_DEVICES", Vendor::Amd),
        ("ZE_AFFINITY_MASK", Vendor::Intel),
        ("HABANA_VISIBLE_DEVICES", Vendor::Habana),
    ]
    .into_iter()
    .map(|(variable, vendor)| (variable.to_owned(), list(vendor.resources())))
    .filter(|(variable, list)| {
        !list.is_empty() || variable.starts_with("CUDA") || variable.starts_with("HIP")
    })
    .collect()
}

/// Puts together one run of `container`.
pub(super) async fn launch(
    shared: &Shared,
    pod: &Pod,
    container: &Container,
    attempt: u32,
    record: &Record,
) -> Result<Launch, ContentError> {
    let uid = pod.metadata.uid.as_deref().unwrap_or_default();
    let folder = shared.folder(uid);
    let root = root(&folder, container);
    let mut base: BTreeMap<String, String> = INHERITED
        .iter()
        .filter_map(|name| Some(((*name).to_owned(), std::env::var(name).ok()?)))
        .collect();
    base.insert(
        "HOSTNAME".to_owned(),
        pod.metadata.name.clone().unwrap_or_default(),
    );
    let sources = Sources::new(
        &shared.client,
        pod.metadata.namespace.as_deref().unwrap_or("default"),
    );
    let address = record
        .address
        .map_or_else(|| shared.address.clone(), |own| own.to_string());
    let scope = Scope {
        pod,
        container,
        sources: &sources,
        place: Place {
            pod: &address,
            host: &shared.address,
        },
        machine: shared.machine,
    };
    let mut declared = scope.resolve(base).await?;
    names::resolve(shared, pod, &mut declared).await?;
    // Last: which devices a container has is not its own to say.
    declared.extend(devices(&container.name, &record.devices));
    let Mounts {
        links: mounts,
        read_only,
    } = link_mounts(&root, container, &record.volumes, &declared)?;
    let mut environment: BTreeMap<String, String> = declared
        .iter()
        .map(|(name, value)| (name.clone(), relocate(value, &mounts)))
        .collect();
    environment.insert(ROOT.to_owned(), root.display().to_string());
    environment.insert(MARK.to_owned(), uid.to_owned());
    let mut entry = entry(pod, container).map_err(ContentError::Unsupported)?;
    if container.image.as_deref() == Some(WARP_IMAGE) {
        entry = vec![shared.program.display().to_string()];
    }
    let given = container.command.clone().unwrap_or(entry);
    let command: Vec<String> = given
        .iter()
        .chain(container.args.iter().flatten())
        .map(|word| relocate(&expand(word, &declared), &mounts))
        .collect();
    if command.is_empty() {
        return Err(ContentError::Unsupported(format!(
            "container {} has no command",
            container.name
        )));
    }
    let working = container
        .working_dir
        .as_deref()
        .map(|path| PathBuf::from(relocate(path, &mounts)));
    let last_word = container
        .termination_message_path
        .as_deref()
        .unwrap_or(DEFAULT_LAST_WORD);
    let last_word = PathBuf::from(relocate(last_word, &mounts));
    let groups = shared
        .cgroups
        .make(uid, container, attempt)
        .map_err(|source| ContentError::Write {
            path: "the control group".to_owned(),
            source,
        })?;
    Ok(Launch {
        container: container.name.clone(),
        attempt,
        command,
        environment,
        folder: working.filter(|path| path.is_dir()).unwrap_or(root),
        groups,
        read_only,
        // Only a file of the pod's own can be a last word; the default one does not exist here.
        last_word: last_word.starts_with(&folder).then_some(last_word),
        last_lines: container.termination_message_policy.as_deref()
            == Some("FallbackToLogsOnError"),
        stdin: match (container.stdin, container.stdin_once) {
            (Some(true), Some(true)) => Some(Stdin::Once),
            (Some(true), _) => Some(Stdin::Kept),
            _ => None,
        },
        memory: if shared.cgroups.are_there() {
            None
        } else {
            memory_limit(container)
        },
    })
}

/// Keeps a launch for probes and `exec` after a restart; it holds secrets.
pub(super) fn save(folder: &Path, launch: &Launch) -> std::io::Result<()> {
    replace(
        &saved(folder, &launch.container),
        &serde_json::to_vec(launch)?,
    )
}

pub(super) fn load(folder: &Path, container: &str) -> Option<Launch> {
    serde_json::from_slice(&std::fs::read(saved(folder, container)).ok()?).ok()
}

fn saved(folder: &Path, container: &str) -> PathBuf {
    folder.join(format!("launch.{container}.json"))
}
