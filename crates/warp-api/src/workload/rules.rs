//! CEL rules of the kind: what its schema cannot say. Each has an accepted and a refused example in
//! `tests/it/cel.rs`.

use crate::crd::Rule;

/// Fields of the spec that make the Job of an attempt. They may change whenever nothing of the workload runs; a Job
/// made from others is replaced before it starts.
pub const PLACED_FIELDS: &[&str] = &[
    "modelName",
    "gpuCount",
    "priorityClassName",
    "replicas",
    "minReplicas",
    "topology",
    "mpi",
    "schedulingStrategy",
    "gpu",
    "image",
    "command",
    "args",
    "env",
    "resources",
    "volumes",
    "securityContext",
    "podSecurityContext",
    "podTemplate",
    "checkpoint",
];

/// What ends the wait of whoever wants to change more.
macro_rules! free_fields {
    () => {
        "only suspend, maxRuntime, retryPolicy, priority, preemptible, whenPending, rent and ttlSecondsAfterFinished may; to change more of one that runs, set suspend first"
    };
}

/// The workload neither runs nor has ended.
macro_rules! nothing_runs {
    () => {
        "!has(oldSelf.status) || !has(oldSelf.status.phase) || !(oldSelf.status.phase in ['Running', 'Succeeded', 'Failed'])"
    };
}

/// A field that may not appear, change or vanish while the workload runs and after its end.
macro_rules! frozen {
    ($field:literal) => {
        Rule {
            at: "",
            rule: concat!(
                nothing_runs!(),
                " || (has(self.spec.",
                $field,
                ") ? has(oldSelf.spec.",
                $field,
                ") && self.spec.",
                $field,
                " == oldSelf.spec.",
                $field,
                " : !has(oldSelf.spec.",
                $field,
                "))"
            ),
            message: concat!(
                $field,
                " may not change while it runs or after its end: ",
                free_fields!()
            ),
        }
    };
}

/// Every rule with the place in the schema it hangs on.
pub const RULES: &[Rule] = &[
    Rule {
        at: "",
        rule: "size(self.metadata.name) <= 63",
        message: "a workload's name is at most 63 characters: its Jobs and pods carry it as a label",
    },
    Rule {
        at: "spec",
        rule: "has(self.image) != has(self.podTemplate)",
        message: "exactly one of image and podTemplate must be given",
    },
    Rule {
        at: "spec",
        rule: "!has(self.podTemplate) || !(has(self.command) || has(self.args) || has(self.env) || has(self.resources) || has(self.volumes) || has(self.securityContext) || has(self.podSecurityContext))",
        message: "command, args, env, resources, volumes, securityContext and podSecurityContext belong to image; write them in podTemplate",
    },
    Rule {
        at: "spec",
        rule: "!has(self.minReplicas) || (has(self.replicas) && self.minReplicas <= self.replicas)",
        message: "minReplicas is the fewest members a gang starts with: give replicas, and no more than that",
    },
    Rule {
        at: "spec",
        rule: "!has(self.priorityClassName) || !has(self.priority) || self.priority == 'normal'",
        message: "priority and priorityClassName exclude each other: leave one of them out",
    },
    Rule {
        at: "spec.topology.level",
        rule: "self.matches('^([a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?/)?[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?$')",
        message: "level must be a level of the cluster, such as host, rack, zone or region, or the key of a node label",
    },
    Rule {
        at: "spec.maxRuntime",
        rule: "self == '' || (self.matches('^([0-9]+h)?([0-9]+m)?([0-9]+s)?$') && duration(self) >= duration('1s'))",
        message: "maxRuntime must be a time of at least 1s such as 90m or 1h30m; leave it out for no limit",
    },
    Rule {
        at: "spec.checkpoint",
        rule: "has(self.signal) || has(self.period) || has(self.annotation) || has(self.path)",
        message: "checkpoint must say how work is saved: give signal, period, annotation or path",
    },
    Rule {
        at: "spec.checkpoint.gracePeriod",
        rule: "self == '' || (self.matches('^([0-9]+h)?([0-9]+m)?([0-9]+s)?$') && duration(self) >= duration('1s'))",
        message: "gracePeriod must be a time of at least 1s such as 2m; leave it out for what the pod says",
    },
    Rule {
        at: "spec.checkpoint.period",
        rule: "self == '' || (self.matches('^([0-9]+h)?([0-9]+m)?([0-9]+s)?$') && duration(self) >= duration('1s'))",
        message: "period must be a time of at least 1s such as 10m; leave it out where work is not saved by itself",
    },
    Rule {
        at: "spec.gpu.minMemory",
        rule: "isQuantity(self) && quantity(self).isGreaterThan(quantity('0'))",
        message: "minMemory must be a positive quantity such as 40Gi",
    },
    Rule {
        at: "spec.gpu",
        rule: "!has(self.fraction) || !has(self.sharing) || self.sharing == 'shared'",
        message: "fraction is a share of a GPU: leave sharing out or make it shared",
    },
    Rule {
        at: "spec.gpu",
        rule: "!has(self.fraction) || !has(self.partition)",
        message: "fraction and partition exclude each other: a partition is a fixed part already",
    },
    Rule {
        at: "spec.gpu",
        rule: "!has(self.isolation) || has(self.fraction) || has(self.partition) || (has(self.sharing) && self.sharing == 'shared')",
        message: "isolation is for shared GPUs, fractions and partitions: a whole GPU is its own",
    },
    Rule {
        at: "spec",
        rule: "!has(self.gpu) || self.gpuCount == 1 || !(has(self.gpu.fraction) || (has(self.gpu.sharing) && self.gpu.sharing == 'shared'))",
        message: "a share is of one GPU: set gpuCount to 1; replicas makes several pods of one share each",
    },
    Rule {
        at: "spec",
        rule: "!has(self.rent) || !has(self.gpu) || !(has(self.gpu.fraction) || has(self.gpu.partition) || (has(self.gpu.sharing) && self.gpu.sharing == 'shared'))",
        message: "rented machines hand out whole GPUs: take rent, or fraction, partition and sharing out",
    },
    Rule {
        at: "spec.volumes[]",
        rule: "[has(self.persistentVolumeClaim), has(self.emptyDir), has(self.hostPath)].filter(given, given).size() == 1",
        message: "exactly one of persistentVolumeClaim, emptyDir and hostPath must be given",
    },
    Rule {
        at: "spec.podTemplate",
        rule: "has(self.spec)",
        message: "podTemplate needs a spec",
    },
    Rule {
        at: "spec.podTemplate.spec",
        rule: "!has(self.nodeName)",
        message: "nodeName goes around the scheduler; use nodeSelector or affinity",
    },
    Rule {
        at: "spec.podTemplate.spec",
        rule: "!has(self.restartPolicy) || self.restartPolicy == 'Never'",
        message: "restartPolicy must be Never: attempts are counted by retryPolicy",
    },
    Rule {
        at: "",
        rule: concat!(
            nothing_runs!(),
            " || (self.spec.modelName == oldSelf.spec.modelName && self.spec.gpuCount == oldSelf.spec.gpuCount)"
        ),
        message: concat!(
            "modelName and gpuCount may not change while it runs or after its end: ",
            free_fields!()
        ),
    },
    frozen!("priorityClassName"),
    frozen!("replicas"),
    frozen!("minReplicas"),
    frozen!("topology"),
    frozen!("mpi"),
    frozen!("schedulingStrategy"),
    frozen!("gpu"),
    frozen!("image"),
    frozen!("command"),
    frozen!("args"),
    frozen!("env"),
    frozen!("resources"),
    frozen!("volumes"),
    frozen!("securityContext"),
    frozen!("podSecurityContext"),
    frozen!("podTemplate"),
    frozen!("checkpoint"),
];
