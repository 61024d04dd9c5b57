//! The defaults of the built-in types. One function per type, called wherever the type occurs.

use serde_json::{Map, Value, json};

use super::fields::{default_to, object_in};
use super::image;

type Members = Map<String, Value>;

/// Sets a pointer to an empty text: absent and empty are different there.
fn present(map: &mut Members, name: &str) {
    if map.get(name).is_none_or(Value::is_null) {
        map.insert(name.to_owned(), json!(""));
    }
}

/// Fills the defaults of one value of the named type. Members below are visited afterwards.
pub(super) fn of_type(name: &str, map: &mut Members) {
    match name {
        "core.Pod" => pod(map),
        "core.PodSpec" => pod_spec(map),
        "core.Container" | "core.EphemeralContainerCommon" => container(map),
        "core.Probe" => {
            for (name, value) in [
                ("timeoutSeconds", 1),
                ("periodSeconds", 10),
                ("successThreshold", 1),
                ("failureThreshold", 3),
            ] {
                default_to(map, name, value);
            }
        }
        "core.ContainerPort" | "networking.NetworkPolicyPort" => {
            default_to(map, "protocol", "TCP");
        }
        "core.HTTPGetAction" => {
            default_to(map, "path", "/");
            default_to(map, "scheme", "HTTP");
        }
        "core.GRPCAction" => present(map, "service"),
        "core.ObjectFieldSelector" => default_to(map, "apiVersion", "v1"),
        "core.Volume" => volume(map),
        "core.SecretVolumeSource"
        | "core.ConfigMapVolumeSource"
        | "core.DownwardAPIVolumeSource"
        | "core.ProjectedVolumeSource" => default_to(map, "defaultMode", 0o644),
        "core.ServiceAccountTokenProjection" | "authentication.TokenRequestSpec" => {
            default_to(map, "expirationSeconds", 3600);
        }
        "core.HostPathVolumeSource" => present(map, "type"),
        "core.ISCSIVolumeSource" | "core.ISCSIPersistentVolumeSource" => {
            default_to(map, "iscsiInterface", "default");
        }
        "core.RBDVolumeSource" | "core.RBDPersistentVolumeSource" => {
            default_to(map, "pool", "rbd");
            default_to(map, "user", "admin");
            default_to(map, "keyring", "/etc/ceph/keyring");
        }
        "core.ScaleIOVolumeSource" | "core.ScaleIOPersistentVolumeSource" => {
            default_to(map, "storageMode", "ThinProvisioned");
            default_to(map, "fsType", "xfs");
        }
        "core.AzureDiskVolumeSource" => {
            default_to(map, "cachingMode", "ReadWrite");
            default_to(map, "kind", "Shared");
            default_to(map, "fsType", "ext4");
            default_to(map, "readOnly", false);
        }
        "core.Namespace" => namespace(map),
        "core.NamespaceStatus" => default_to(map, "phase", "Active"),
        "core.NodeStatus" => {
            if let (None, Some(capacity)) = (map.get("allocatable"), map.get("capacity").cloned()) {
                map.insert("allocatable".to_owned(), capacity);
            }
        }
        "core.Secret" => default_to(map, "type", "Opaque"),
        "core.PersistentVolumeSpec" => {
            default_to(map, "persistentVolumeReclaimPolicy", "Retain");
            default_to(map, "volumeMode", "Filesystem");
        }
        "core.PersistentVolumeStatus" | "core.PersistentVolumeClaimStatus" => {
            default_to(map, "phase", "Pending");
        }
        "core.PersistentVolumeClaimSpec" => default_to(map, "volumeMode", "Filesystem"),
        "core.Service" => service(map),
        "core.LimitRangeItem" => limit_range_item(map),
        "batch.Job" => job(map),
        "batch.PodFailurePolicyOnPodConditionsPattern" => default_to(map, "status", "True"),
        "apps.DeploymentSpec" => deployment(map),
        "core.ReplicationController" => replication_controller(map),
        "apps.ReplicaSetSpec" => default_to(map, "replicas", 1),
        "apps.StatefulSetSpec" => stateful_set(map),
        "storage.StorageClass" => {
            default_to(map, "reclaimPolicy", "Delete");
            default_to(map, "volumeBindingMode", "Immediate");
        }
        "scheduling.PriorityClass" => default_to(map, "preemptionPolicy", "PreemptLowerPriority"),
        "discovery.EndpointPort" => {
            present(map, "name");
            default_to(map, "protocol", "TCP");
        }
        "networking.NetworkPolicySpec" => network_policy(map),
        "networking.IngressClassParametersReference" => default_to(map, "scope", "Cluster"),
        "rbac.RoleBinding" | "rbac.ClusterRoleBinding" => role_ref(map),
        "rbac.Subject" => subject(map),
        "autoscaling.HorizontalPodAutoscalerSpec" => autoscaler(map),
        "apiextensions.CustomResourceDefinitionSpec" => definition(map),
        "apiextensions.ServiceReference" => default_to(map, "port", 443),
        _ => {}
    }
}

fn containers<'a>(spec: &'a mut Value, name: &str) -> impl Iterator<Item = &'a mut Members> {
    spec.get_mut(name)
        .and_then(Value::as_array_mut)
        .into_iter()
        .flatten()
        .filter_map(Value::as_object_mut)
}

/// What only pods get, not templates: requests from limits, service links, host ports.
fn pod(map: &mut Members) {
    let Some(spec) = map.get_mut("spec").filter(|spec| spec.is_object()) else {
        return;
    };
    let host_network = spec.get("hostNetwork") == Some(&Value::Bool(true));
    for kind in ["containers", "initContainers"] {
        for container in containers(spec, kind) {
            requests_from_limits(container);
            let ports = container.get_mut("ports").and_then(Value::as_array_mut);
            for port in ports.into_iter().flatten().filter_map(Value::as_object_mut) {
                let unset = port.get("hostPort").and_then(Value::as_i64).unwrap_or(0) == 0;
                if let Some(number) = port
                    .get("containerPort")
                    .cloned()
                    .filter(|_| unset && host_network)
                {
                    port.insert("hostPort".to_owned(), number);
                }
            }
        }
    }
    pod_level_requests(spec);
    if let Some(spec) = spec.as_object_mut() {
        default_to(spec, "enableServiceLinks", true);
    }
}

fn requests_from_limits(container: &mut Members) {
    let Some(resources) = container
        .get_mut("resources")
        .and_then(Value::as_object_mut)
    else {
        return;
    };
    let Some(limits) = resources.get("limits").and_then(Value::as_object).cloned() else {
        return;
    };
    if limits.is_empty() {
        return;
    }
    let Some(requests) = object_in(resources, "requests") else {
        return;
    };
    for (name, amount) in limits {
        requests.entry(name).or_insert(amount);
    }
}

/// Pod-level requests follow the containers' where those ask for something, else the pod's limits.
fn pod_level_requests(spec: &mut Value) {
    let supported = |name: &str| matches!(name, "cpu" | "memory") || name.starts_with("hugepages-");
    let limits = spec
        .pointer("/resources/limits")
        .and_then(Value::as_object)
        .cloned();
    let Some(limits) = limits.filter(|limits| !limits.is_empty()) else {
        return;
    };
    let asked = super::resources::pod_requests(spec);
    let Some(resources) = spec.get_mut("resources").and_then(Value::as_object_mut) else {
        return;
    };
    let Some(requests) = object_in(resources, "requests") else {
        return;
    };
    for (name, amount) in asked {
        if supported(&name) && !name.starts_with("hugepages-") {
            requests
                .entry(name)
                .or_insert_with(|| Value::String(amount.canonical()));
        }
    }
    for (name, amount) in limits {
        if supported(&name) {
            requests.entry(name).or_insert(amount);
        }
    }
}

fn pod_spec(map: &mut Members) {
    default_to(map, "dnsPolicy", "ClusterFirst");
    default_to(map, "restartPolicy", "Always");
    default_to(map, "securityContext", json!({}));
    default_to(map, "terminationGracePeriodSeconds", 30);
    default_to(map, "schedulerName", "default-scheduler");
    // The older name of the same member is written along.
    let account = map.get("serviceAccountName").cloned();
    let old = map.get("serviceAccount").cloned();
    match (account, old) {
        (Some(name), _) => {
            map.insert("serviceAccount".to_owned(), name);
        }
        (None, Some(name)) => {
            map.insert("serviceAccountName".to_owned(), name);
        }
        (None, None) => {}
    }
}

fn container(map: &mut Members) {
    let image = map.get("image").and_then(Value::as_str).unwrap_or_default();
    let policy = image::default_pull_policy(image);
    default_to(map, "imagePullPolicy", policy);
    default_to(map, "terminationMessagePath", "/dev/termination-log");
    default_to(map, "terminationMessagePolicy", "File");
}

fn volume(map: &mut Members) {
    if map
        .iter()
        .all(|(name, value)| name == "name" || value.is_null())
    {
        map.insert("emptyDir".to_owned(), json!({}));
    }
    if let Some(source) = map.get_mut("image").and_then(Value::as_object_mut) {
        let reference = source
            .get("reference")
            .and_then(Value::as_str)
            .unwrap_or_default();
        let policy = image::default_pull_policy(reference);
        default_to(source, "pullPolicy", policy);
    }
}

fn namespace(map: &mut Members) {
    let name = map
        .get("metadata")
        .and_then(|meta| meta.get("name"))
        .and_then(Value::as_str);
    let Some(name) = name.filter(|name| !name.is_empty()).map(str::to_owned) else {
        return;
    };
    if let Some(labels) = object_in(map, "metadata").and_then(|meta| object_in(meta, "labels")) {
        labels.insert(
            "kubernetes.io/metadata.name".to_owned(),
            Value::String(name),
        );
    }
}

fn service(map: &mut Members) {
    let Some(spec) = object_in(map, "spec") else {
        return;
    };
    default_to(spec, "sessionAffinity", "None");
    if spec
        .get("sessionAffinity")
        .is_some_and(|affinity| affinity == "ClientIP")
    {
        let timeout = spec
            .get("sessionAffinityConfig")
            .and_then(|config| config.pointer("/clientIP/timeoutSeconds"));
        if timeout.is_none_or(Value::is_null) {
            spec.insert(
                "sessionAffinityConfig".to_owned(),
                json!({"clientIP": {"timeoutSeconds": 10800}}),
            );
        }
    } else {
        spec.remove("sessionAffinityConfig");
    }
    default_to(spec, "type", "ClusterIP");
    let kind = spec
        .get("type")
        .and_then(Value::as_str)
        .unwrap_or_default()
        .to_owned();
    let ports = spec.get_mut("ports").and_then(Value::as_array_mut);
    for port in ports.into_iter().flatten().filter_map(Value::as_object_mut) {
        default_to(port, "protocol", "TCP");
        let unset = port
            .get("targetPort")
            .is_none_or(|target| target.is_null() || target == &json!(0) || target == &json!(""));
        if let Some(number) = port.get("port").cloned().filter(|_| unset) {
            port.insert("targetPort".to_owned(), number);
        }
    }
    let external = spec
        .get("externalIPs")
        .and_then(Value::as_array)
        .is_some_and(|ips| !ips.is_empty());
    if matches!(kind.as_str(), "NodePort" | "LoadBalancer") || (kind == "ClusterIP" && external) {
        default_to(spec, "externalTrafficPolicy", "Cluster");
    }
    if matches!(kind.as_str(), "NodePort" | "LoadBalancer" | "ClusterIP") {
        default_to(spec, "internalTrafficPolicy", "Cluster");
    }
    if kind == "LoadBalancer" {
        default_to(spec, "allocateLoadBalancerNodePorts", true);
    }
}

fn limit_range_item(map: &mut Members) {
    if map.get("type").is_none_or(|kind| kind != "Container") {
        return;
    }
    let amounts = |map: &Members, name: &str| {
        map.get(name)
            .and_then(Value::as_object)
            .cloned()
            .unwrap_or_default()
    };
    let mut limits = amounts(map, "default");
    for (name, amount) in amounts(map, "max") {
        limits.entry(name).or_insert(amount);
    }
    let mut requests = amounts(map, "defaultRequest");
    for (name, amount) in limits.clone().into_iter().chain(amounts(map, "min")) {
        requests.entry(name).or_insert(amount);
    }
    for (name, amounts) in [("default", limits), ("defaultRequest", requests)] {
        if !amounts.is_empty() {
            map.insert(name.to_owned(), Value::Object(amounts));
        }
    }
}

fn job(map: &mut Members) {
    let Some(spec) = object_in(map, "spec") else {
        return;
    };
    if !spec.contains_key("completions") && !spec.contains_key("parallelism") {
        spec.insert("completions".to_owned(), json!(1));
    }
    default_to(spec, "parallelism", 1);
    let per_index = spec.contains_key("backoffLimitPerIndex");
    default_to(spec, "backoffLimit", if per_index { i32::MAX } else { 6 });
    default_to(spec, "completionMode", "NonIndexed");
    default_to(spec, "suspend", false);
    let failure = spec.contains_key("podFailurePolicy");
    default_to(
        spec,
        "podReplacementPolicy",
        if failure {
            "Failed"
        } else {
            "TerminatingOrFailed"
        },
    );
    default_to(spec, "manualSelector", false);
}

fn replication_controller(map: &mut Members) {
    let Some(spec) = object_in(map, "spec") else {
        return;
    };
    default_to(spec, "replicas", 1);
    let labels = spec
        .get("template")
        .and_then(|template| template.pointer("/metadata/labels"))
        .filter(|labels| labels.is_object())
        .cloned();
    let Some(labels) = labels else {
        return;
    };
    let empty = |value: Option<&Value>| {
        value
            .and_then(Value::as_object)
            .is_none_or(serde_json::Map::is_empty)
    };
    if empty(spec.get("selector")) {
        spec.insert("selector".to_owned(), labels.clone());
    }
    if let Some(metadata) = object_in(map, "metadata")
        && empty(metadata.get("labels"))
    {
        metadata.insert("labels".to_owned(), labels);
    }
}

fn deployment(map: &mut Members) {
    default_to(map, "replicas", 1);
    if let Some(strategy) = object_in(map, "strategy") {
        default_to(strategy, "type", "RollingUpdate");
        if strategy
            .get("type")
            .is_some_and(|kind| kind == "RollingUpdate")
            && let Some(rolling) = object_in(strategy, "rollingUpdate")
        {
            default_to(rolling, "maxUnavailable", "25%");
            default_to(rolling, "maxSurge", "25%");
        }
    }
    default_to(map, "revisionHistoryLimit", 10);
    default_to(map, "progressDeadlineSeconds", 600);
}

fn stateful_set(map: &mut Members) {
    default_to(map, "podManagementPolicy", "OrderedReady");
    if let Some(strategy) = object_in(map, "updateStrategy") {
        let unset = strategy
            .get("type")
            .and_then(Value::as_str)
            .unwrap_or_default()
            .is_empty();
        if unset {
            strategy.insert("type".to_owned(), json!("RollingUpdate"));
            default_to(strategy, "rollingUpdate", json!({}));
        }
        let rolling = strategy
            .get("type")
            .is_some_and(|kind| kind == "RollingUpdate");
        if let Some(update) = strategy
            .get_mut("rollingUpdate")
            .and_then(Value::as_object_mut)
            && rolling
        {
            default_to(update, "partition", 0);
        }
    }
    if let Some(policy) = object_in(map, "persistentVolumeClaimRetentionPolicy") {
        default_to(policy, "whenDeleted", "Retain");
        default_to(policy, "whenScaled", "Retain");
    }
    default_to(map, "replicas", 1);
    default_to(map, "revisionHistoryLimit", 10);
    let claims = map
        .get_mut("volumeClaimTemplates")
        .and_then(Value::as_array_mut);
    for claim in claims
        .into_iter()
        .flatten()
        .filter_map(Value::as_object_mut)
    {
        default_to(claim, "apiVersion", "v1");
        default_to(claim, "kind", "PersistentVolumeClaim");
    }
}

fn network_policy(map: &mut Members) {
    let listed = map
        .get("policyTypes")
        .and_then(Value::as_array)
        .is_some_and(|l| !l.is_empty());
    if listed {
        return;
    }
    let egress = map
        .get("egress")
        .and_then(Value::as_array)
        .is_some_and(|l| !l.is_empty());
    let types = if egress {
        json!(["Ingress", "Egress"])
    } else {
        json!(["Ingress"])
    };
    map.insert("policyTypes".to_owned(), types);
}

const RBAC: &str = "rbac.authorization.k8s.io";

fn role_ref(map: &mut Members) {
    if let Some(reference) = map.get_mut("roleRef").and_then(Value::as_object_mut) {
        default_to(reference, "apiGroup", RBAC);
    }
}

fn subject(map: &mut Members) {
    if map
        .get("kind")
        .is_some_and(|kind| kind == "User" || kind == "Group")
    {
        default_to(map, "apiGroup", RBAC);
    }
}

fn autoscaler(map: &mut Members) {
    default_to(map, "minReplicas", 1);
    if map
        .get("metrics")
        .and_then(Value::as_array)
        .is_none_or(Vec::is_empty)
    {
        map.insert(
            "metrics".to_owned(),
            json!([{
                "type": "Resource",
                "resource": {"name": "cpu", "target": {"type": "Utilization", "averageUtilization": 80}},
            }]),
        );
    }
}

fn definition(map: &mut Members) {
    if let Some(names) = object_in(map, "names") {
        let kind = names
            .get("kind")
            .and_then(Value::as_str)
            .unwrap_or_default()
            .to_owned();
        default_to(names, "singular", kind.to_lowercase());
        if !kind.is_empty() {
            default_to(names, "listKind", format!("{kind}List"));
        }
    }
    let Some(conversion) = object_in(map, "conversion") else {
        return;
    };
    default_to(conversion, "strategy", "None");
}
