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
        ("", "Node") => json!({
            "spec": {},
            "status": {
                "daemonEndpoints": {"kubeletEndpoint": {"Port": 0}},
                "nodeInfo": {
                    "machineID": "", "systemUUID": "", "bootID": "", "kernelVersion": "",
                    "osImage": "", "containerRuntimeVersion": "", "kubeletVersion": "",
                    "kubeProxyVersion": "", "operatingSystem": "", "architecture": "",
                },
            },
        }),
        ("", "PersistentVolumeClaim") => json!({"spec": {"resources": {}}, "status": {}}),
        ("", "LimitRange") => json!({"spec": {"limits": null}}),
        ("", "Namespace" | "PersistentVolume" | "ResourceQuota") => {
            json!({"spec": {}, "status": {}})
        }
        ("policy", "PodDisruptionBudget") => json!({
            "spec": {},
            "status": {
                "disruptionsAllowed": 0, "currentHealthy": 0, "desiredHealthy": 0, "expectedPods": 0,
            },
        }),
        ("", "Event") => {
            json!({
                "involvedObject": {}, "source": {}, "firstTimestamp": null, "lastTimestamp": null,
                "eventTime": null, "reportingComponent": "", "reportingInstance": "",
            })
        }
        ("events.k8s.io", "Event") => {
            json!({"eventTime": null, "regarding": {}, "deprecatedSource": {}})
        }
        ("apps", "Deployment") => {
            json!({"spec": {"selector": null, "template": template(), "strategy": {}}, "status": {}})
        }
        ("apps", "ReplicaSet") => {
            json!({"spec": {"selector": null, "template": template()}, "status": {"replicas": 0}})
        }
        ("", "ReplicationController") => json!({"spec": {}, "status": {"replicas": 0}}),
        ("apps", "StatefulSet") => json!({
            "spec": {"selector": null, "template": template(), "updateStrategy": {}},
            "status": {"replicas": 0, "availableReplicas": 0},
        }),
        ("apps", "ControllerRevision") => json!({"data": null, "revision": 0}),
        ("batch", "Job") => json!({"spec": {"template": template()}, "status": {}}),
        ("autoscaling", "HorizontalPodAutoscaler") => {
            json!({"spec": {"scaleTargetRef": {}}, "status": {"desiredReplicas": 0}})
        }
        ("", "Service") | ("networking.k8s.io", "Ingress") => {
            json!({"spec": {}, "status": {"loadBalancer": {}}})
        }
        ("coordination.k8s.io", "Lease")
        | ("networking.k8s.io", "IngressClass")
        | ("authentication.k8s.io", "TokenReview")
        | ("authorization.k8s.io", _) => json!({"spec": {}}),
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

/// Removes members without a value: to typed kinds null means absent.
pub(crate) fn drop_nulls(value: &mut Value) {
    match value {
        Value::Object(map) => map.retain(|_, value| {
            drop_nulls(value);
            !value.is_null()
        }),
        Value::Array(list) => list.iter_mut().for_each(drop_nulls),
        _ => {}
    }
}
