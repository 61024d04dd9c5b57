//! Whether a pod can be one container at a cloud, and what that container is told; what cannot be done is named. Pure.

use k8s_openapi::api::core::v1::{
    Container, EnvVar, EnvVarSource, PodSecurityContext, PodSpec, SecurityContext,
};

/// What Kubernetes mounts into every pod by itself: the container is told nothing of the cluster.
const TOKEN_VOLUME: &str = "kube-api-access-";

/// Fields of a pod that an environment may name.
const FIELDS: [&str; 4] = [
    "metadata.name",
    "metadata.namespace",
    "metadata.uid",
    "spec.nodeName",
];

/// Why a pod cannot be one container at a cloud; none when it can.
pub(crate) fn objection(pod: &PodSpec) -> Option<String> {
    let [container] = pod.containers.as_slice() else {
        return Some(format!(
            "it has {} containers and a cloud runs one for it",
            pod.containers.len()
        ));
    };
    let said = |set: bool, field: &str| set.then(|| field.to_owned());
    let full = |list: Option<usize>| list.is_some_and(|count| count > 0);
    let volumes = pod.volumes.iter().flatten();
    let volume = volumes
        .filter(|volume| !volume.name.starts_with(TOKEN_VOLUME))
        .map(|volume| format!("volume {}", volume.name))
        .next();
    let whole = [
        said(
            full(pod.init_containers.as_ref().map(Vec::len)),
            "initContainers",
        ),
        volume,
        said(pod.host_network == Some(true), "hostNetwork"),
        said(pod.host_pid == Some(true), "hostPID"),
        said(pod.host_ipc == Some(true), "hostIPC"),
        said(full(pod.host_aliases.as_ref().map(Vec::len)), "hostAliases"),
        said(
            full(pod.image_pull_secrets.as_ref().map(Vec::len)),
            "imagePullSecrets",
        ),
        said(
            full(pod.resource_claims.as_ref().map(Vec::len)),
            "resourceClaims",
        ),
        said(pod.runtime_class_name.is_some(), "runtimeClassName"),
        pod.security_context.as_ref().and_then(of_pod),
        of_container(container),
    ];
    if let Some(field) = whole.into_iter().flatten().next() {
        return Some(format!("a cloud's container has no {field}"));
    }
    // Kubernetes means this where nothing is said.
    let restarts = pod.restart_policy.as_deref().unwrap_or("Always");
    if restarts != "Never" {
        return Some(format!(
            "its restartPolicy is {restarts}, and a container that ended is gone: it can only be Never"
        ));
    }
    if container.image.as_deref().unwrap_or_default().is_empty() {
        return Some("it names no image".to_owned());
    }
    let mut env = container.env.iter().flatten();
    env.find_map(unreadable)
}

fn of_pod(said: &PodSecurityContext) -> Option<String> {
    let fields = [
        (said.run_as_user.is_some(), "runAsUser"),
        (said.run_as_group.is_some(), "runAsGroup"),
        (said.run_as_non_root == Some(true), "runAsNonRoot"),
        (said.fs_group.is_some(), "fsGroup"),
        (said.sysctls.is_some(), "sysctls"),
        (said.supplemental_groups.is_some(), "supplementalGroups"),
    ];
    first("securityContext", &fields)
}

fn of_container(container: &Container) -> Option<String> {
    let hooks = container.lifecycle.as_ref();
    let hooks = hooks.is_some_and(|all| all.post_start.is_some() || all.pre_stop.is_some());
    let ports = container.ports.iter().flatten();
    let fields = [
        (container.liveness_probe.is_some(), "livenessProbe"),
        (container.readiness_probe.is_some(), "readinessProbe"),
        (container.startup_probe.is_some(), "startupProbe"),
        (hooks, "lifecycle hooks"),
        (container.working_dir.is_some(), "workingDir"),
        (container.stdin == Some(true), "stdin"),
        (container.tty == Some(true), "tty"),
        (container.volume_devices.is_some(), "volumeDevices"),
        (
            ports.into_iter().any(|port| port.host_port.is_some()),
            "hostPort",
        ),
    ];
    let found = fields.into_iter().find(|(set, _)| *set);
    let found = found.map(|(_, field)| field.to_owned());
    found.or_else(|| container.security_context.as_ref().and_then(confined))
}

/// What shuts a container in on its host is its cloud's business; what it is to run as or may do cannot be told to it.
fn confined(said: &SecurityContext) -> Option<String> {
    let added = said.capabilities.as_ref().and_then(|all| all.add.as_ref());
    let fields = [
        (said.privileged == Some(true), "privileged"),
        (said.run_as_user.is_some(), "runAsUser"),
        (said.run_as_group.is_some(), "runAsGroup"),
        (said.run_as_non_root == Some(true), "runAsNonRoot"),
        (
            said.read_only_root_filesystem == Some(true),
            "readOnlyRootFilesystem",
        ),
        (added.is_some_and(|added| !added.is_empty()), "capabilities"),
    ];
    first("securityContext", &fields)
}

fn first(of: &str, fields: &[(bool, &str)]) -> Option<String> {
    let found = fields.iter().find(|(set, _)| *set);
    found.map(|(_, field)| format!("{of}.{field}"))
}

fn unreadable(env: &EnvVar) -> Option<String> {
    let from = env.value_from.as_ref()?;
    let name = &env.name;
    if let Some(field) = &from.field_ref {
        let known = FIELDS.contains(&field.field_path.as_str());
        return (!known).then(|| {
            format!(
                "the variable {name} is {}, which no container at a cloud is told",
                field.field_path
            )
        });
    }
    let known = from.secret_key_ref.is_some() || from.config_map_key_ref.is_some();
    (!known).then(|| format!("the variable {name} is of a kind no container at a cloud is told"))
}

/// Where the value of a variable is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Value {
    Text(String),
    /// A key of an object of the pod's namespace.
    Key {
        object: Object,
        key: String,
        optional: bool,
    },
    /// Every key of an object, each with this before its name.
    Whole {
        object: Object,
        prefix: String,
        optional: bool,
    },
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Object {
    Secret(String),
    ConfigMap(String),
}

/// The environment of a container, in the order in which later ones replace earlier ones.
pub(crate) fn environment(
    container: &Container,
    fields: impl Fn(&str) -> String,
) -> Vec<(String, Value)> {
    let mut all = Vec::new();
    for from in container.env_from.iter().flatten() {
        let prefix = from.prefix.clone().unwrap_or_default();
        let secret = from.secret_ref.as_ref();
        let secret = secret.map(|one| (Object::Secret(one.name.clone()), one.optional));
        let map = from.config_map_ref.as_ref();
        let map = map.map(|one| (Object::ConfigMap(one.name.clone()), one.optional));
        if let Some((object, optional)) = secret.or(map) {
            let optional = optional == Some(true);
            let whole = Value::Whole {
                object,
                prefix,
                optional,
            };
            all.push((String::new(), whole));
        }
    }
    for env in container.env.iter().flatten() {
        let value = match &env.value_from {
            None => Value::Text(env.value.clone().unwrap_or_default()),
            Some(from) => match value_from(from, &fields) {
                Some(value) => value,
                None => continue,
            },
        };
        all.push((env.name.clone(), value));
    }
    all
}

fn value_from(from: &EnvVarSource, fields: &impl Fn(&str) -> String) -> Option<Value> {
    if let Some(field) = &from.field_ref {
        return Some(Value::Text(fields(&field.field_path)));
    }
    let secret = from.secret_key_ref.as_ref();
    let secret = secret.map(|one| (Object::Secret(one.name.clone()), &one.key, one.optional));
    let map = from.config_map_key_ref.as_ref();
    let map = map.map(|one| (Object::ConfigMap(one.name.clone()), &one.key, one.optional));
    let (object, key, optional) = secret.or(map)?;
    Some(Value::Key {
        object,
        key: key.clone(),
        optional: optional == Some(true),
    })
}

/// `$(NAME)` in a text becomes what was said of that name before; `$$` is a dollar.
pub(crate) fn expanded(text: &str, known: &[(String, String)]) -> String {
    let mut out = String::new();
    let mut rest = text;
    while let Some(at) = rest.find('$') {
        out.push_str(&rest[..at]);
        let tail = &rest[at + 1..];
        if let Some(after) = tail.strip_prefix('$') {
            out.push('$');
            rest = after;
            continue;
        }
        let named = tail
            .strip_prefix('(')
            .and_then(|inner| inner.split_once(')'));
        let value = named.and_then(|(name, after)| {
            let mut said = known.iter().rev();
            let found = said.find(|(one, _)| one == name)?;
            Some((&found.1, after))
        });
        if let Some((value, after)) = value {
            out.push_str(value);
            rest = after;
        } else {
            out.push('$');
            rest = tail;
        }
    }
    out.push_str(rest);
    out
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn pod(more: &serde_json::Value, container: &serde_json::Value) -> PodSpec {
        let mut object =
            json!({"restartPolicy": "Never", "containers": [{"name": "c", "image": "i:1"}]});
        for (key, value) in more.as_object().into_iter().flatten() {
            object[key] = value.clone();
        }
        for (key, value) in container.as_object().into_iter().flatten() {
            object["containers"][0][key] = value.clone();
        }
        serde_json::from_value(object).expect("a pod")
    }

    #[test]
    fn what_a_cloud_cannot_do_is_named() {
        let none = json!({});
        let container = json!({"name": "d", "image": "j"});
        for (more, own, named) in [
            (
                json!({"restartPolicy": "Always"}),
                none.clone(),
                "restartPolicy is Always",
            ),
            (
                json!({"initContainers": [container]}),
                none.clone(),
                "initContainers",
            ),
            (
                json!({"containers": [container, container]}),
                none.clone(),
                "2 containers",
            ),
            (
                json!({"volumes": [{"name": "data", "emptyDir": {}}]}),
                none.clone(),
                "volume data",
            ),
            (json!({"hostNetwork": true}), none.clone(), "hostNetwork"),
            (json!({"hostPID": true}), none.clone(), "hostPID"),
            (
                json!({"imagePullSecrets": [{"name": "s"}]}),
                none.clone(),
                "imagePullSecrets",
            ),
            (
                json!({"runtimeClassName": "r"}),
                none.clone(),
                "runtimeClassName",
            ),
            (
                json!({"securityContext": {"fsGroup": 7}}),
                none.clone(),
                "securityContext.fsGroup",
            ),
            (none.clone(), json!({"image": ""}), "names no image"),
            (none.clone(), json!({"tty": true}), "tty"),
            (none.clone(), json!({"workingDir": "/w"}), "workingDir"),
            (
                none.clone(),
                json!({"livenessProbe": {"exec": {"command": ["a"]}}}),
                "livenessProbe",
            ),
            (
                none.clone(),
                json!({"ports": [{"containerPort": 1, "hostPort": 2}]}),
                "hostPort",
            ),
            (
                none.clone(),
                json!({"lifecycle": {"preStop": {"exec": {"command": ["a"]}}}}),
                "lifecycle hooks",
            ),
            (
                none.clone(),
                json!({"securityContext": {"privileged": true}}),
                "securityContext.privileged",
            ),
            (
                none.clone(),
                json!({"securityContext": {"runAsUser": 7}}),
                "securityContext.runAsUser",
            ),
            (
                none.clone(),
                json!({"securityContext": {"capabilities": {"add": ["X"]}}}),
                "securityContext.capabilities",
            ),
            (
                none.clone(),
                json!({"env": [{"name": "A", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}}]}),
                "variable A is status.podIP",
            ),
            (
                none.clone(),
                json!({"env": [{"name": "A", "valueFrom": {"resourceFieldRef": {"resource": "limits.cpu"}}}]}),
                "variable A",
            ),
        ] {
            let said = objection(&pod(&more, &own)).unwrap_or_default();
            assert!(said.contains(named), "{more} {own}: {said}");
        }
    }

    #[test]
    fn what_kubernetes_adds_by_itself_is_no_objection() {
        let more = json!({"volumes": [{"name": "kube-api-access-x7", "projected": {}}], "serviceAccountName": "default"});
        let own = json!({
            "volumeMounts": [{"name": "kube-api-access-x7", "mountPath": "/var/run"}], "args": ["a"],
            "securityContext": {"allowPrivilegeEscalation": false, "capabilities": {"drop": ["ALL"]}},
            "env": [{"name": "A", "valueFrom": {"secretKeyRef": {"name": "s", "key": "k"}}},
                {"name": "B", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}}],
        });
        assert_eq!(objection(&pod(&more, &own)), None);
    }

    #[test]
    fn an_environment_is_read_in_the_order_in_which_it_holds() {
        let own = json!({
            "envFrom": [{"prefix": "P_", "configMapRef": {"name": "m", "optional": true}}, {"secretRef": {"name": "s"}}],
            "env": [{"name": "A", "value": "1"}, {"name": "B", "valueFrom": {"configMapKeyRef": {"name": "m", "key": "k"}}},
                {"name": "C", "valueFrom": {"fieldRef": {"fieldPath": "metadata.uid"}}}],
        });
        let read = environment(&pod(&json!({}), &own).containers[0], |field| {
            format!("<{field}>")
        });
        let map = || Object::ConfigMap("m".to_owned());
        let whole = |object, prefix: &str, optional| Value::Whole {
            object,
            prefix: prefix.to_owned(),
            optional,
        };
        let secret = Object::Secret("s".to_owned());
        let key = Value::Key {
            object: map(),
            key: "k".to_owned(),
            optional: false,
        };
        assert_eq!(
            read,
            [
                (String::new(), whole(map(), "P_", true)),
                (String::new(), whole(secret, "", false)),
                ("A".to_owned(), Value::Text("1".to_owned())),
                ("B".to_owned(), key),
                ("C".to_owned(), Value::Text("<metadata.uid>".to_owned())),
            ]
        );
    }

    #[test]
    fn names_in_a_text_become_their_values() {
        let known =
            [("A", "1"), ("B", "two"), ("A", "3")].map(|(a, b)| (a.to_owned(), b.to_owned()));
        for (text, want) in [
            ("$(A)-$(B)", "3-two"),
            ("$$(A) $(C) $A 5$", "$(A) $(C) $A 5$"),
            ("plain", "plain"),
            ("$(A", "$(A"),
        ] {
            assert_eq!(expanded(text, &known), want);
        }
    }
}
