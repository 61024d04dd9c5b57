//! The kinds of others that can be queued, one row each: where its manifest says that it is held, where its pod templates
//! are and how many pods each makes, and how it says that it is suspended or has ended. A kind whose CRD is not installed
//! has no objects. Pure.

use serde_json::Value;

/// One kind.
#[derive(Debug)]
pub struct QueuedKind {
    /// Its controller's name in logs, metrics, readiness and wake-ups.
    pub(crate) controller: &'static str,
    pub api_version: &'static str,
    pub kind: &'static str,
    pub plural: &'static str,
    /// As people write it before a name.
    pub singular: &'static str,
    /// Where it says that it is held, as a JSON pointer.
    pub(super) suspend: &'static str,
    /// Where it says who runs it, and the name its own controller has there.
    pub(super) managed_by: &'static str,
    pub(super) manager: &'static str,
    /// Where it says how long it may run.
    pub(super) deadline: Option<&'static str>,
    /// Where its pod templates are, in words.
    pub(super) template: &'static str,
    /// Where it says how many pods it wants, in words.
    pub(super) width: &'static str,
    pub(super) templates: fn(&Value) -> Vec<Template>,
    /// Whether its controller says that it has suspended it.
    pub(super) is_suspended: fn(&Value) -> bool,
    pub(super) end: fn(&Value) -> Option<End>,
    /// What of it cannot be queued whatever its pods ask for.
    pub(super) problem: fn(&Value) -> Option<&'static str>,
    /// Pods that are ready, by its status.
    pub(super) ready: fn(&Value) -> i64,
}

/// One pod template of an object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Template {
    /// Where it is, as a JSON pointer.
    pub(super) at: String,
    /// Pods made from it at once.
    pub(super) pods: usize,
    /// Pods that have to end well, where that is counted.
    pub(super) completions: Option<usize>,
}

/// How an object ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum End {
    Well,
    Badly(String),
    /// Its controller has decided that it ends, and has not said how yet.
    Soon,
}

/// Every kind that can be queued.
pub const KINDS: [&QueuedKind; 5] = [JOB, JOB_SET, PYTORCH_JOB, MPI_JOB, RAY_JOB];

pub(super) const JOB: &QueuedKind = &QueuedKind {
    controller: "queuedjob",
    api_version: "batch/v1",
    kind: "Job",
    plural: "jobs",
    singular: "job",
    suspend: "/spec/suspend",
    managed_by: "/spec/managedBy",
    manager: "kubernetes.io/job-controller",
    deadline: Some("/spec/activeDeadlineSeconds"),
    template: "spec.template",
    width: "spec.parallelism",
    templates: |job| {
        let number = |at: &str| job.pointer(at).and_then(Value::as_u64).map(size);
        vec![Template {
            at: "/spec/template".to_owned(),
            pods: number("/spec/parallelism").unwrap_or(1),
            completions: number("/spec/completions"),
        }]
    },
    is_suspended: |job| has(job, "Suspended"),
    end: |job| {
        let soon = || has(job, "FailureTarget") || has(job, "SuccessCriteriaMet");
        ended(job, "Complete").or_else(|| soon().then_some(End::Soon))
    },
    problem: |_| None,
    ready: |job| job["status"]["ready"].as_i64().unwrap_or(0),
};

pub(super) const JOB_SET: &QueuedKind = &QueuedKind {
    controller: "queuedjobset",
    api_version: "jobset.x-k8s.io/v1alpha2",
    kind: "JobSet",
    plural: "jobsets",
    singular: "jobset",
    suspend: "/spec/suspend",
    managed_by: "/spec/managedBy",
    manager: "jobset.sigs.k8s.io/jobset-controller",
    deadline: None,
    template: "spec.replicatedJobs[].template.spec.template",
    width: "spec.replicatedJobs[].replicas",
    templates: |set| {
        let all = set
            .pointer("/spec/replicatedJobs")
            .and_then(Value::as_array);
        let all = all.into_iter().flatten().enumerate();
        let template = |(at, group): (usize, &Value)| {
            let job = &group["template"]["spec"];
            let parallelism = count(&job["parallelism"], 1);
            let each = count(&job["completions"], parallelism).min(parallelism);
            Template {
                at: format!("/spec/replicatedJobs/{at}/template/spec/template"),
                pods: count(&group["replicas"], 1).saturating_mul(each),
                completions: None,
            }
        };
        all.map(template).collect()
    },
    is_suspended: |set| has(set, "Suspended"),
    end: |set| ended(set, "Completed"),
    problem: |_| None,
    ready: |set| {
        let all = set.pointer("/status/replicatedJobsStatus");
        let all = all.and_then(Value::as_array).into_iter().flatten();
        all.filter_map(|group| group["ready"].as_i64()).sum()
    },
};

pub(super) const PYTORCH_JOB: &QueuedKind = &QueuedKind {
    controller: "queuedpytorchjob",
    api_version: "kubeflow.org/v1",
    kind: "PyTorchJob",
    plural: "pytorchjobs",
    singular: "pytorchjob",
    suspend: "/spec/runPolicy/suspend",
    managed_by: "/spec/runPolicy/managedBy",
    manager: "kubeflow.org/training-operator",
    deadline: Some("/spec/runPolicy/activeDeadlineSeconds"),
    template: "spec.pytorchReplicaSpecs.*.template",
    width: "spec.pytorchReplicaSpecs.*.replicas",
    templates: |job| replica_specs(job, "pytorchReplicaSpecs"),
    is_suspended: |job| has(job, "Suspended"),
    end: |job| ended(job, "Succeeded"),
    problem: |_| None,
    ready: active_replicas,
};

pub(super) const MPI_JOB: &QueuedKind = &QueuedKind {
    controller: "queuedmpijob",
    api_version: "kubeflow.org/v2beta1",
    kind: "MPIJob",
    plural: "mpijobs",
    singular: "mpijob",
    suspend: "/spec/runPolicy/suspend",
    managed_by: "/spec/runPolicy/managedBy",
    manager: "kubeflow.org/mpi-operator",
    deadline: Some("/spec/runPolicy/activeDeadlineSeconds"),
    template: "spec.mpiReplicaSpecs.*.template",
    width: "spec.mpiReplicaSpecs.*.replicas",
    templates: |job| replica_specs(job, "mpiReplicaSpecs"),
    is_suspended: |job| has(job, "Suspended"),
    end: |job| ended(job, "Succeeded"),
    problem: |_| None,
    ready: active_replicas,
};

pub(super) const RAY_JOB: &QueuedKind = &QueuedKind {
    controller: "queuedrayjob",
    api_version: "ray.io/v1",
    kind: "RayJob",
    plural: "rayjobs",
    singular: "rayjob",
    suspend: "/spec/suspend",
    managed_by: "/spec/managedBy",
    manager: "ray.io/kuberay-operator",
    deadline: Some("/spec/activeDeadlineSeconds"),
    template: "spec.rayClusterSpec",
    width: "spec.rayClusterSpec.workerGroupSpecs[].replicas",
    templates: |job| {
        let Some(cluster) = job.pointer("/spec/rayClusterSpec") else {
            return Vec::new();
        };
        let head = Template {
            at: "/spec/rayClusterSpec/headGroupSpec/template".to_owned(),
            pods: 1,
            completions: None,
        };
        let groups = cluster["workerGroupSpecs"].as_array();
        let groups = groups.into_iter().flatten().enumerate();
        let workers = groups.map(|(at, group)| {
            let least = count(&group["minReplicas"], 0);
            let replicas = count(&group["replicas"], least);
            Template {
                at: format!("/spec/rayClusterSpec/workerGroupSpecs/{at}/template"),
                pods: replicas.saturating_mul(count(&group["numOfHosts"], 1)),
                completions: None,
            }
        });
        std::iter::once(head).chain(workers).collect()
    },
    is_suspended: |job| job["status"]["jobDeploymentStatus"] == "Suspended",
    end: |job| {
        let status = &job["status"];
        let failed = || {
            let message = status["message"].as_str().unwrap_or_default();
            End::Badly(message.to_owned())
        };
        match status["jobDeploymentStatus"].as_str() {
            Some("Complete") if status["jobStatus"] == "FAILED" => Some(failed()),
            Some("Complete") => Some(End::Well),
            Some("Failed" | "ValidationFailed") => Some(failed()),
            _ => None,
        }
    },
    problem: |job| {
        let cluster = &job["spec"]["rayClusterSpec"];
        if job["spec"]["clusterSelector"].is_object() {
            Some(
                "it runs on a RayCluster that is there already (spec.clusterSelector): give it a spec.rayClusterSpec of its own to have it placed",
            )
        } else if cluster["enableInTreeAutoscaling"] == true {
            Some(
                "its cluster would change its size while it runs (spec.rayClusterSpec.enableInTreeAutoscaling): turn that off to have it placed",
            )
        } else {
            None
        }
    },
    ready: |job| i64::from(job["status"]["jobDeploymentStatus"] == "Running"),
};

/// A row by what people write before a name: `pytorchjob`, `pytorchjobs`, `pytorchjobs.kubeflow.org`.
pub fn kind_named(written: &str) -> Option<&'static QueuedKind> {
    let written = written.to_ascii_lowercase();
    let (name, rest) = match written.split_once('.') {
        Some((name, rest)) => (name, Some(rest)),
        None => (written.as_str(), None),
    };
    KINDS.into_iter().find(|kind| {
        let (group, version) = kind.api_version.split_once('/').unwrap_or_default();
        let versioned = format!("{version}.{group}");
        let here = rest.is_none_or(|rest| rest == group || rest == versioned);
        here && (name == kind.singular || name == kind.plural)
    })
}

/// The templates of kinds that have a map of replicas by their type.
fn replica_specs(job: &Value, field: &str) -> Vec<Template> {
    let all = job["spec"][field].as_object();
    let mut all: Vec<_> = all.into_iter().flatten().collect();
    all.sort_by_key(|(name, _)| name.as_str());
    let template = |(name, group): (&String, &Value)| Template {
        at: format!(
            "/spec/{field}/{}/template",
            name.replace('~', "~0").replace('/', "~1")
        ),
        pods: count(&group["replicas"], 1),
        completions: None,
    };
    all.into_iter().map(template).collect()
}

fn active_replicas(job: &Value) -> i64 {
    let all = job["status"]["replicaStatuses"].as_object();
    let all = all.into_iter().flat_map(serde_json::Map::values);
    all.filter_map(|group| group["active"].as_i64()).sum()
}

/// How an object ended whose conditions say so, by the one of a good end.
fn ended(object: &Value, well: &str) -> Option<End> {
    if let Some(failed) = condition(object, "Failed") {
        let message = failed["message"].as_str().unwrap_or_default();
        return Some(End::Badly(message.to_owned()));
    }
    has(object, well).then_some(End::Well)
}

fn has(object: &Value, kind: &str) -> bool {
    condition(object, kind).is_some()
}

/// The condition of a type, if it is true.
fn condition<'a>(object: &'a Value, kind: &str) -> Option<&'a Value> {
    let all = object.pointer("/status/conditions")?.as_array()?;
    all.iter()
        .find(|found| found["type"] == kind && found["status"] == "True")
}

fn count(value: &Value, otherwise: usize) -> usize {
    value.as_u64().map_or(otherwise, size)
}

fn size(number: u64) -> usize {
    usize::try_from(number).unwrap_or(usize::MAX)
}
