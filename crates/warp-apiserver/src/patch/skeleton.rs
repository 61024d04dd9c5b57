//! What an empty object of a built-in kind holds already.
//!
//! In Kubernetes a create is compared with the kind's zero value, whose struct members exist and
//! are therefore not "created" by anyone: the writer owns `spec.replicas` but not `spec` itself.
//! Custom resources have no such members.

use serde_json::{Value, json};

pub(super) fn of(group: &str, kind: &str) -> Value {
    let template = || json!({"metadata": {}, "spec": {"containers": null}});
    let body = match (group, kind) {
        ("", "Pod") => json!({"spec": {"containers": null}, "status": {}}),
        ("", "PodTemplate") => json!({"template": template()}),
        ("", "Service") => json!({"spec": {}, "status": {"loadBalancer": {}}}),
        ("", "Node") => json!({
            "spec": {},
            "status": {"daemonEndpoints": {"kubeletEndpoint": {"Port": 0}}, "nodeInfo": {}},
        }),
        ("", "PersistentVolumeClaim") => json!({"spec": {"resources": {}}, "status": {}}),
        ("", "LimitRange") => json!({"spec": {"limits": null}}),
        ("", "Namespace" | "PersistentVolume" | "ResourceQuota" | "ReplicationController")
        | ("policy", "PodDisruptionBudget") => json!({"spec": {}, "status": {}}),
        ("", "Event") => {
            json!({"involvedObject": {}, "source": {}, "firstTimestamp": null, "lastTimestamp": null})
        }
        ("events.k8s.io", "Event") => {
            json!({"eventTime": null, "regarding": {}, "deprecatedSource": {}})
        }
        ("coordination.k8s.io", "Lease") => json!({"spec": {}}),
        ("apps", "Deployment") => {
            json!({"spec": {"selector": null, "template": template(), "strategy": {}}, "status": {}})
        }
        ("apps", "ReplicaSet") => {
            json!({"spec": {"selector": null, "template": template()}, "status": {}})
        }
        ("apps", "StatefulSet" | "DaemonSet") => json!({
            "spec": {"selector": null, "template": template(), "updateStrategy": {}},
            "status": {},
        }),
        ("batch", "Job") => json!({"spec": {"template": template()}, "status": {}}),
        ("autoscaling", "HorizontalPodAutoscaler") => {
            json!({"spec": {"scaleTargetRef": {}}, "status": {"currentMetrics": null}})
        }
        ("networking.k8s.io", "Ingress") => json!({"spec": {}, "status": {"loadBalancer": {}}}),
        ("networking.k8s.io", "IngressClass") => json!({"spec": {}}),
        ("networking.k8s.io", "NetworkPolicy") => json!({"spec": {"podSelector": {}}}),
        ("rbac.authorization.k8s.io", "Role" | "ClusterRole") => json!({"rules": null}),
        ("rbac.authorization.k8s.io", "RoleBinding" | "ClusterRoleBinding") => {
            json!({"roleRef": {}})
        }
        ("discovery.k8s.io", "EndpointSlice") => json!({"endpoints": null, "ports": null}),
        ("apiextensions.k8s.io", "CustomResourceDefinition") => json!({
            "spec": {"names": {}, "versions": null},
            "status": {"conditions": null, "acceptedNames": {}, "storedVersions": null},
        }),
        _ => json!({}),
    };
    let mut object = body;
    object["metadata"] = json!({});
    object
}
