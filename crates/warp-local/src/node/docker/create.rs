//! From a container of a pod to the body of Docker's create call.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{Container, Pod};
use serde_json::{Map, Value, json};
use warp_core::resources::Quantity;

use super::super::contents::volumes::Volumes;
use super::super::devices::Devices;
use super::super::facts::containers;
use super::super::lifecycle::ProbeKind;
use super::super::process::unsupported_probe;
use super::{ATTEMPT, CONTAINER, OWNER, POD};

/// The first render device of the DRM subsystem.
const FIRST_RENDER_NODE: u32 = 128;

/// What this runtime cannot do for a pod, if anything.
pub(super) fn unsupported(pod: &Pod) -> Option<String> {
    let spec = pod.spec.as_ref()?;
    for container in containers(spec) {
        for kind in ProbeKind::ALL {
            let probe = kind.of(container);
            if let Some(what) = probe.and_then(unsupported_probe) {
                return Some(format!(
                    "container {}: {what} probes are not available on a Docker node; use exec, httpGet over http or tcpSocket",
                    container.name
                ));
            }
        }
        if container
            .lifecycle
            .as_ref()
            .is_some_and(|lifecycle| lifecycle.post_start.is_some())
        {
            return Some(format!(
                "container {}: postStart hooks are not available on a Docker node",
                container.name
            ));
        }
    }
    None
}

/// Everything about one run that is not in the pod.
pub(super) struct Run<'a> {
    pub(super) owner: &'a str,
    pub(super) attempt: u32,
    pub(super) environment: &'a BTreeMap<String, String>,
    pub(super) volumes: &'a Volumes,
    pub(super) devices: &'a Devices,
    /// The container whose network this one shares.
    pub(super) network_of: Option<&'a str>,
}

/// The name a run's container has; the same every time it is asked for.
pub(super) fn name(pod: &Pod, container: &str, attempt: u32) -> String {
    let uid = pod.metadata.uid.as_deref().unwrap_or_default();
    format!(
        "warp_{}_{container}_{}_{attempt}",
        pod.metadata.name.as_deref().unwrap_or_default(),
        uid.get(..8).unwrap_or(uid)
    )
}

pub(super) fn body(pod: &Pod, container: &Container, run: &Run<'_>) -> Value {
    let environment: Vec<String> = run
        .environment
        .iter()
        .map(|(key, value)| format!("{key}={value}"))
        .collect();
    let mut body = json!({
        "Image": container.image,
        "Env": environment,
        "Labels": {
            OWNER: run.owner,
            POD: pod.metadata.uid,
            CONTAINER: container.name,
            ATTEMPT: run.attempt.to_string(),
        },
        "HostConfig": host(pod, container, run),
    });
    if run.network_of.is_none() {
        body["Hostname"] = json!(pod.metadata.name);
    }
    if let Some(command) = &container.command {
        body["Entrypoint"] = json!(command);
    }
    if let Some(arguments) = &container.args {
        body["Cmd"] = json!(arguments);
    }
    if let Some(folder) = &container.working_dir {
        body["WorkingDir"] = json!(folder);
    }
    if let Some(user) = user(pod, container) {
        body["User"] = json!(user);
    }
    if let Some(signal) = container
        .lifecycle
        .as_ref()
        .and_then(|lifecycle| lifecycle.stop_signal.as_ref())
    {
        body["StopSignal"] = json!(signal);
    }
    body
}

fn user(pod: &Pod, container: &Container) -> Option<String> {
    let own = container.security_context.as_ref();
    let shared = pod
        .spec
        .as_ref()
        .and_then(|spec| spec.security_context.as_ref());
    let user = own
        .and_then(|own| own.run_as_user)
        .or_else(|| shared?.run_as_user)?;
    let group = own
        .and_then(|own| own.run_as_group)
        .or_else(|| shared?.run_as_group);
    Some(group.map_or_else(|| user.to_string(), |group| format!("{user}:{group}")))
}

fn host(pod: &Pod, container: &Container, run: &Run<'_>) -> Value {
    let mut host = Map::new();
    let spec = pod.spec.as_ref();
    let mode = if spec.and_then(|spec| spec.host_network) == Some(true) {
        "host".to_owned()
    } else {
        run.network_of
            .map_or_else(|| "bridge".to_owned(), |other| format!("container:{other}"))
    };
    if mode == "bridge" {
        host.insert(
            "ExtraHosts".to_owned(),
            json!(["host.docker.internal:host-gateway"]),
        );
    }
    host.insert("NetworkMode".to_owned(), json!(mode));
    host.insert("AutoRemove".to_owned(), json!(false));
    host.insert("Binds".to_owned(), json!(binds(container, run.volumes)));
    let limits = container
        .resources
        .as_ref()
        .and_then(|resources| resources.limits.as_ref());
    let limit = |name: &str| limits?.get(name)?.0.parse::<Quantity>().ok();
    if let Some(bytes) = limit("memory").and_then(|quantity| quantity.value().ok()) {
        host.insert("Memory".to_owned(), json!(bytes));
        host.insert("MemorySwap".to_owned(), json!(bytes));
    }
    if let Some(milli) = limit("cpu").and_then(|quantity| quantity.milli().ok()) {
        host.insert(
            "NanoCpus".to_owned(),
            json!(milli.saturating_mul(1_000_000)),
        );
    }
    if let Some(context) = &container.security_context {
        host.insert(
            "Privileged".to_owned(),
            json!(context.privileged == Some(true)),
        );
        host.insert(
            "ReadonlyRootfs".to_owned(),
            json!(context.read_only_root_filesystem == Some(true)),
        );
        if let Some(capabilities) = &context.capabilities {
            host.insert("CapAdd".to_owned(), json!(capabilities.add));
            host.insert("CapDrop".to_owned(), json!(capabilities.drop));
        }
    }
    devices(&mut host, run.devices.get(&container.name));
    Value::Object(host)
}

fn binds(container: &Container, volumes: &Volumes) -> Vec<String> {
    container
        .volume_mounts
        .iter()
        .flatten()
        .filter_map(|mount| {
            let source = volumes
                .get(&mount.name)?
                .join(mount.sub_path.as_deref().unwrap_or_default());
            let mode = if mount.read_only == Some(true) {
                "ro"
            } else {
                "rw"
            };
            Some(format!("{}:{}:{mode}", source.display(), mount.mount_path))
        })
        .collect()
}

/// NVIDIA by device requests; AMD by device files and the groups that may use them.
fn devices(host: &mut Map<String, Value>, held: Option<&BTreeMap<String, Vec<u32>>>) {
    for (resource, numbers) in held.into_iter().flatten() {
        match resource.as_str() {
            "nvidia.com/gpu" => {
                let ids: Vec<String> = numbers.iter().map(u32::to_string).collect();
                let request =
                    json!([{"Driver": "nvidia", "DeviceIDs": ids, "Capabilities": [["gpu"]]}]);
                host.insert("DeviceRequests".to_owned(), request);
            }
            "amd.com/gpu" => {
                let files = std::iter::once("/dev/kfd".to_owned()).chain(
                    numbers
                        .iter()
                        .map(|number| format!("/dev/dri/renderD{}", FIRST_RENDER_NODE + number)),
                );
                let devices: Vec<Value> = files
                    .map(|file| json!({"PathOnHost": file, "PathInContainer": file, "CgroupPermissions": "rwm"}))
                    .collect();
                host.insert("Devices".to_owned(), json!(devices));
                host.insert("GroupAdd".to_owned(), json!(["video", "render"]));
                host.insert("SecurityOpt".to_owned(), json!(["seccomp=unconfined"]));
            }
            _ => {}
        }
    }
}
