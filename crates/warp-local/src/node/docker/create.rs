//! From a container of a pod to the body of Docker's create call.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{Container, Pod};
use serde_json::{Map, Value, json};
use warp_core::resources::Quantity;

use super::super::contents::ContentError;
use super::super::contents::volumes::{Volumes, mounted};
use super::super::devices::Devices;
use super::super::facts::containers;
use super::super::process::unavailable;
use super::{ATTEMPT, CONTAINER, OWNER, POD};

/// What this runtime cannot do for a pod, if anything.
pub(super) fn unsupported(pod: &Pod) -> Option<String> {
    containers(pod.spec.as_ref()?).find_map(|container| {
        let what = unavailable(container, "a Docker node")?;
        Some(format!("container {}: {what}", container.name))
    })
}

/// The device files of each device, by resource and number.
type Files = BTreeMap<&'static str, Vec<Vec<String>>>;

/// Everything about one run that is not in the pod.
pub(super) struct Run<'a> {
    pub(super) owner: &'a str,
    pub(super) attempt: u32,
    pub(super) environment: &'a BTreeMap<String, String>,
    pub(super) volumes: &'a Volumes,
    pub(super) devices: &'a Devices,
    /// The container whose network this one shares.
    pub(super) network_of: Option<&'a str>,
    /// The files of this machine's devices.
    pub(super) files: &'a Files,
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

pub(super) fn body(pod: &Pod, container: &Container, run: &Run<'_>) -> Result<Value, ContentError> {
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
        "HostConfig": host(pod, container, run)?,
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
    if container.stdin == Some(true) {
        body["OpenStdin"] = json!(true);
        body["StdinOnce"] = json!(container.stdin_once == Some(true));
    }
    if let Some(signal) = container
        .lifecycle
        .as_ref()
        .and_then(|lifecycle| lifecycle.stop_signal.as_ref())
    {
        body["StopSignal"] = json!(signal);
    }
    Ok(body)
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

fn host(pod: &Pod, container: &Container, run: &Run<'_>) -> Result<Value, ContentError> {
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
    host.insert("Binds".to_owned(), json!(binds(container, run)?));
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
    devices(&mut host, run.devices.get(&container.name), run.files);
    Ok(Value::Object(host))
}

fn binds(container: &Container, run: &Run<'_>) -> Result<Vec<String>, ContentError> {
    let mounts = container.volume_mounts.iter().flatten();
    mounts
        .filter_map(|mount| Some((mount, run.volumes.get(&mount.name)?)))
        .map(|(mount, volume)| {
            let source = mounted(volume, mount, run.environment)?;
            let mode = if mount.read_only == Some(true) {
                "ro"
            } else {
                "rw"
            };
            Ok(format!("{}:{}:{mode}", source.display(), mount.mount_path))
        })
        .collect()
}

/// NVIDIA by device requests; the others by device files and the groups that may use them.
fn devices(
    host: &mut Map<String, Value>,
    held: Option<&BTreeMap<String, Vec<u32>>>,
    files: &Files,
) {
    let mut passed: Vec<String> = Vec::new();
    for (resource, numbers) in held.into_iter().flatten() {
        if resource == "nvidia.com/gpu" {
            let ids: Vec<String> = numbers.iter().map(u32::to_string).collect();
            let request =
                json!([{"Driver": "nvidia", "DeviceIDs": ids, "Capabilities": [["gpu"]]}]);
            host.insert("DeviceRequests".to_owned(), request);
            continue;
        }
        let Some(known) = files.get(resource.as_str()) else {
            continue;
        };
        if resource == "amd.com/gpu" {
            passed.push("/dev/kfd".to_owned());
            host.insert("SecurityOpt".to_owned(), json!(["seccomp=unconfined"]));
        }
        let chosen = numbers
            .iter()
            .filter_map(|number| known.get(usize::try_from(*number).ok()?));
        passed.extend(chosen.flatten().cloned());
    }
    if passed.is_empty() {
        return;
    }
    let devices: Vec<Value> = passed
        .iter()
        .map(
            |file| json!({"PathOnHost": file, "PathInContainer": file, "CgroupPermissions": "rwm"}),
        )
        .collect();
    host.insert("Devices".to_owned(), json!(devices));
    host.insert("GroupAdd".to_owned(), json!(["video", "render"]));
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use serde_json::{Map, json};

    use super::devices;

    #[test]
    fn devices_of_each_vendor_are_passed_in_its_own_way() {
        let render = |number: u32| vec![format!("/dev/dri/renderD{number}")];
        let files = BTreeMap::from([
            ("amd.com/gpu", vec![render(129), render(130)]),
            ("gpu.intel.com/xe", vec![render(131), render(132)]),
        ]);
        let held = |resource: &str| BTreeMap::from([(resource.to_owned(), vec![1])]);
        let mut host = Map::new();
        devices(&mut host, Some(&held("amd.com/gpu")), &files);
        let paths: Vec<_> = host["Devices"]
            .as_array()
            .unwrap()
            .iter()
            .map(|device| device["PathOnHost"].clone())
            .collect();
        assert_eq!(paths, ["/dev/kfd", "/dev/dri/renderD130"]);
        assert_eq!(host["GroupAdd"], json!(["video", "render"]));
        let mut host = Map::new();
        devices(&mut host, Some(&held("nvidia.com/gpu")), &files);
        assert_eq!(host["DeviceRequests"][0]["DeviceIDs"], json!(["1"]));
        let mut host = Map::new();
        devices(&mut host, Some(&held("gpu.intel.com/xe")), &files);
        assert_eq!(host["Devices"][0]["PathOnHost"], "/dev/dri/renderD132");
        let mut host = Map::new();
        devices(&mut host, None, &files);
        assert!(host.is_empty());
    }
}
