//! What a kubelet would not start, asked before any runtime is given an order: of the pod alone where it
//! tells, of the API where it names other objects. One set for every runtime, so that a pod a simulated
//! node starts is a pod a cluster starts.
//!
//! Runtimes that read what a pod names themselves (to lay it out) tell what is missing by the same code,
//! [`contents`](super::contents); for the others the host asks.

use std::pin::Pin;
use std::sync::Arc;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Container, Pod, Secret};
use kube::{Api, Client};

use super::contents::environment::{Scope, Sources};
use super::contents::fields::{Machine, Place};
use super::contents::volumes;
use super::facts::{Event, containers};
use super::image;
use super::lifecycle::Action;
use super::runtime::{Refusal, Runtime};

/// What the API answered: whether the action may go on, and what users are told besides.
#[derive(Debug, Default)]
pub(super) struct Answer {
    pub(super) refused: Option<String>,
    pub(super) warnings: Vec<(&'static str, String)>,
}

pub(super) type Question = Pin<Box<dyn Future<Output = Answer> + Send>>;

/// Whether a runtime is given an action.
pub(super) enum Gate {
    Open,
    /// Reason and message.
    Shut(&'static str, String),
    /// Only the API can tell.
    Ask(Question),
}

const CONFIG_ERROR: &str = "CreateContainerConfigError";

/// Namespaced kernel settings a kubelet lets pods set without being told to.
const SAFE_SYSCTLS: [&str; 12] = [
    "kernel.shm_rmid_forced",
    "net.ipv4.ip_local_port_range",
    "net.ipv4.tcp_syncookies",
    "net.ipv4.ping_group_range",
    "net.ipv4.ip_unprivileged_port_start",
    "net.ipv4.ip_local_reserved_ports",
    "net.ipv4.tcp_keepalive_time",
    "net.ipv4.tcp_fin_timeout",
    "net.ipv4.tcp_keepalive_intvl",
    "net.ipv4.tcp_keepalive_probes",
    "net.ipv4.tcp_rmem",
    "net.ipv4.tcp_wmem",
];

/// Why no Linux node takes the pod at all.
pub(super) fn refusal(pod: &Pod) -> Option<Refusal> {
    let spec = pod.spec.as_ref()?;
    if spec.os.as_ref().is_some_and(|os| os.name != "linux") {
        return Some(Refusal {
            reason: "PodOSNotSupported".to_owned(),
            message: "Pod was rejected: Failed to admit pod as the OS field doesn't match node OS"
                .to_owned(),
        });
    }
    let settings = spec.security_context.iter();
    let forbidden = settings
        .flat_map(|context| context.sysctls.iter().flatten())
        .map(|setting| setting.name.replace('/', "."))
        .find(|name| !SAFE_SYSCTLS.contains(&name.as_str()))?;
    Some(Refusal {
        reason: "SysctlForbidden".to_owned(),
        message: format!("Pod was rejected: forbidden sysctl: \"{forbidden}\" not allowlisted"),
    })
}

/// Looks at an action before the runtime gets it.
pub(super) fn before(
    runtime: &dyn Runtime,
    client: &Client,
    pod: &Arc<Pod>,
    action: &Action,
) -> Gate {
    match action {
        Action::Prepare => prepare(runtime, client, pod),
        Action::Pull { container } => match named(pod, container) {
            Some(container) => pull(runtime, container),
            None => Gate::Open,
        },
        Action::Start { container, .. } => match named(pod, container) {
            Some(container) => start(runtime, client, pod, container),
            None => Gate::Open,
        },
        Action::Probe { .. } | Action::Stop { .. } | Action::Teardown => Gate::Open,
    }
}

/// The event that tells why an action was not taken.
pub(super) fn event(
    action: &Action,
    reason: &str,
    message: String,
    at: Timestamp,
) -> Option<Event> {
    Some(match action {
        Action::Prepare => Event::PrepareFailed { message, at },
        Action::Pull { container } => Event::PullFailed {
            container: container.clone(),
            reason: reason.to_owned(),
            message,
            at,
        },
        Action::Start { container, attempt } => Event::Misconfigured {
            container: container.clone(),
            attempt: *attempt,
            reason: CONFIG_ERROR.to_owned(),
            message,
            at,
        },
        Action::Probe { .. } | Action::Stop { .. } | Action::Teardown => return None,
    })
}

fn named<'a>(pod: &'a Pod, name: &str) -> Option<&'a Container> {
    containers(pod.spec.as_ref()?).find(|container| container.name == name)
}

fn namespace(pod: &Pod) -> &str {
    pod.metadata.namespace.as_deref().unwrap_or("default")
}

fn prepare(runtime: &dyn Runtime, client: &Client, pod: &Arc<Pod>) -> Gate {
    let spec = pod.spec.as_ref();
    let secrets = spec.is_some_and(|spec| {
        spec.image_pull_secrets
            .as_ref()
            .is_some_and(|secrets| !secrets.is_empty())
    });
    let contents = !runtime.reads_contents() && volumes::name_objects(pod);
    if !(secrets || contents) {
        return Gate::Open;
    }
    let (client, pod) = (client.clone(), pod.clone());
    Gate::Ask(Box::pin(async move {
        let mut answer = Answer::default();
        if contents && let Err(error) = volumes::check(&client, &pod).await {
            answer.refused = Some(error.told());
            return answer;
        }
        answer
            .warnings
            .extend(missing_pull_secrets(&client, &pod).await);
        answer
    }))
}

/// A kubelet only warns of them: the image may be public.
async fn missing_pull_secrets(client: &Client, pod: &Pod) -> Option<(&'static str, String)> {
    let secrets: Api<Secret> = Api::namespaced(client.clone(), namespace(pod));
    let mut missing = Vec::new();
    let named = pod
        .spec
        .iter()
        .flat_map(|spec| spec.image_pull_secrets.iter().flatten());
    for reference in named {
        if let Ok(None) = secrets.get_metadata_opt(&reference.name).await {
            missing.push(reference.name.as_str());
        }
    }
    (!missing.is_empty()).then(|| {
        let text = format!(
            "Unable to retrieve some image pull secrets ({}); attempting to pull the image may not succeed.",
            missing.join(", ")
        );
        ("FailedToRetrieveImagePullSecret", text)
    })
}

fn pull(runtime: &dyn Runtime, container: &Container) -> Gate {
    let name = container.image.as_deref().unwrap_or_default();
    if runtime.is_own_image(name) {
        return Gate::Open;
    }
    match image::problem(name) {
        Some(why) => Gate::Shut("InvalidImageName", why),
        None => Gate::Open,
    }
}

fn start(runtime: &dyn Runtime, client: &Client, pod: &Arc<Pod>, container: &Container) -> Gate {
    let user = if runtime.runs_as_root() {
        User::AlwaysRoot
    } else {
        User::Unknown
    };
    if let Some(why) = root_refused(pod, container, user) {
        return Gate::Shut(CONFIG_ERROR, why);
    }
    if runtime.reads_contents() || !names_objects(container) {
        return Gate::Open;
    }
    let (client, pod, container) = (client.clone(), pod.clone(), container.clone());
    Gate::Ask(Box::pin(async move {
        let sources = Sources::new(&client, namespace(&pod));
        let scope = Scope {
            pod: &pod,
            container: &container,
            sources: &sources,
            // Only whether it can be resolved is asked; nothing sees the values.
            place: Place { pod: "", host: "" },
            machine: Machine {
                cpu_milli: 1000,
                memory: 1 << 30,
            },
        };
        let checked = async {
            let variables = scope.resolve(std::collections::BTreeMap::new()).await?;
            for mount in container.volume_mounts.iter().flatten() {
                volumes::sub_path(mount, &variables)?;
            }
            Ok::<_, super::contents::ContentError>(())
        };
        Answer {
            refused: checked.await.err().map(|error| error.told()),
            ..Answer::default()
        }
    }))
}

/// Whether the container's description depends on other objects, or on variables.
fn names_objects(container: &Container) -> bool {
    let from = container.env.iter().flatten().any(|variable| {
        variable
            .value_from
            .as_ref()
            .is_some_and(|from| from.config_map_key_ref.is_some() || from.secret_key_ref.is_some())
    });
    let mounts = container.volume_mounts.iter().flatten();
    let computed = mounts
        .into_iter()
        .any(|mount| mount.sub_path_expr.is_some());
    from || computed
        || container
            .env_from
            .as_ref()
            .is_some_and(|from| !from.is_empty())
}

/// Whom a container would run as.
#[derive(Clone, Copy, Debug)]
pub(super) enum User<'a> {
    Unknown,
    /// What the image says, unless the pod says otherwise; empty for root.
    OfImage(&'a str),
    /// Root, whatever the pod says.
    AlwaysRoot,
}

/// Why a container that must not run as root would, in a kubelet's words.
pub(super) fn root_refused(pod: &Pod, container: &Container, user: User<'_>) -> Option<String> {
    let shared = pod
        .spec
        .as_ref()
        .and_then(|spec| spec.security_context.as_ref());
    let own = container.security_context.as_ref();
    let must_not = own
        .and_then(|own| own.run_as_non_root)
        .or_else(|| shared?.run_as_non_root);
    if must_not != Some(true) {
        return None;
    }
    let place = format!(
        "(pod: \"{}_{}({})\", container: {})",
        pod.metadata.name.as_deref().unwrap_or_default(),
        namespace(pod),
        pod.metadata.uid.as_deref().unwrap_or_default(),
        container.name
    );
    let asked = own
        .and_then(|own| own.run_as_user)
        .or_else(|| shared?.run_as_user);
    let as_root = format!("container has runAsNonRoot and image will run as root {place}");
    match (asked, user) {
        (Some(0), _) => Some(format!(
            "container's runAsUser breaks non-root policy {place}"
        )),
        (_, User::AlwaysRoot) => Some(format!(
            "{as_root}: all processes of this node do; start Warp as another user"
        )),
        (None, User::OfImage(user)) => {
            let user = user.split(':').next().unwrap_or_default();
            match user.parse::<u32>() {
                Ok(0) => Some(as_root),
                Err(_) if user.is_empty() => Some(as_root),
                Ok(_) => None,
                Err(_) => Some(format!(
                    "container has runAsNonRoot and image has non-numeric user ({user}), cannot verify user is non-root {place}"
                )),
            }
        }
        (Some(_), _) | (None, User::Unknown) => None,
    }
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::core::v1::Pod;
    use serde_json::json;

    use super::{User, containers, refusal, root_refused};

    fn said(security: &serde_json::Value, user: User<'_>) -> String {
        let pod: Pod = serde_json::from_value(json!({
            "metadata": {"name": "p", "namespace": "ns", "uid": "u"},
            "spec": {"securityContext": security, "containers": [{"name": "c"}]}}))
        .unwrap();
        let container = containers(pod.spec.as_ref().unwrap()).next().unwrap();
        root_refused(&pod, container, user).unwrap_or_default()
    }

    #[test]
    fn a_pod_that_must_not_be_root_is_not_run_as_root() {
        let must = json!({"runAsNonRoot": true});
        let told = said(&must, User::AlwaysRoot);
        assert!(told.contains("start Warp as another user"), "{told}");
        // No pod gets another user where all are root.
        let other = json!({"runAsNonRoot": true, "runAsUser": 1000});
        assert_ne!(said(&other, User::AlwaysRoot), "");
        assert_eq!(said(&other, User::OfImage("")), "");
        assert_eq!(
            said(&must, User::OfImage("")),
            "container has runAsNonRoot and image will run as root (pod: \"p_ns(u)\", container: c)"
        );
        assert_ne!(said(&must, User::OfImage("0:0")), "");
        assert_eq!(said(&must, User::OfImage("65532:65532")), "");
        assert!(said(&must, User::OfImage("app")).contains("non-numeric user (app)"));
        assert_eq!(said(&must, User::Unknown), "");
        let root = json!({"runAsNonRoot": true, "runAsUser": 0});
        assert!(said(&root, User::Unknown).starts_with("container's runAsUser breaks"));
        assert_eq!(said(&json!({"runAsUser": 0}), User::AlwaysRoot), "");
    }

    #[test]
    fn other_systems_and_unsafe_kernel_settings_are_refused() {
        let reason = |spec: serde_json::Value| {
            let pod: Pod = serde_json::from_value(json!({"spec": spec})).unwrap();
            refusal(&pod).map(|refusal| refusal.reason)
        };
        let sysctl = |name: &str| json!({"containers": [], "securityContext": {"sysctls": [{"name": name, "value": "1"}]}});
        assert_eq!(reason(sysctl("net.ipv4.tcp_syncookies")), None);
        assert_eq!(
            reason(sysctl("kernel.msgmax")).as_deref(),
            Some("SysctlForbidden")
        );
        let windows = json!({"containers": [], "os": {"name": "windows"}});
        assert_eq!(reason(windows).as_deref(), Some("PodOSNotSupported"));
    }
}
