//! Reasons of conditions and Events. A reason is part of the API: scripts and alerts match on it.

/// Waiting: on every node that could hold it other work is in the way.
pub const WAITING_FOR_CAPACITY: &str = "WaitingForCapacity";
/// Waiting: no node of the cluster could hold it even if it were empty.
pub const NEVER_FITS: &str = "NeverFits";
/// Waiting: the nodes that could hold it are cordoned.
pub const NODES_CORDONED: &str = "NodesCordoned";
/// Waiting: the nodes that could hold it have taints it does not tolerate.
pub const NODES_TAINTED: &str = "NodesTainted";
/// Waiting: the nodes that could hold it are not ready or not well.
pub const NODES_NOT_READY: &str = "NodesNotReady";
/// Waiting: the nodes that could hold it do not reach a volume it needs.
pub const VOLUME_OUT_OF_REACH: &str = "VolumeOutOfReach";
/// Waiting: a ResourceQuota of its namespace leaves too little.
pub const QUOTA_EXCEEDED: &str = "QuotaExceeded";
/// Waiting: the operator itself lacks a right.
pub const OPERATOR_FORBIDDEN: &str = "OperatorForbidden";
/// Waiting: no node has a GPU of the kind asked for.
pub const NO_SUCH_GPU: &str = "NoSuchGpu";
/// Waiting: no node belongs to the providers the workload names.
pub const NO_SUCH_PROVIDER: &str = "NoSuchProvider";
/// Waiting: the scheduler has not looked at it yet.
pub const QUEUED: &str = "Queued";
/// Waiting: `spec.suspend` is true.
pub const SUSPENDED: &str = "Suspended";
/// Waiting: the last attempt failed, the next one starts at `status.nextRetryTime`.
pub const RETRY_BACKOFF: &str = "RetryBackoff";
/// Waiting: the cluster took the last attempt off its node; it is placed again without a retry.
pub const DISRUPTED: &str = "Disrupted";
/// Waiting: its Job was suspended by hand; its GPUs are given back.
pub const JOB_SUSPENDED: &str = "JobSuspended";
/// Waiting: its Job was deleted by hand; it is placed again without a retry.
pub const JOB_DELETED: &str = "JobDeleted";
/// Its Job was deleted or disowned by hand and left its pod behind, whose end decides.
pub const JOB_ORPHANED: &str = "JobOrphaned";
/// Waiting: pods of an earlier attempt still exist and may still run.
pub const CLEANING_UP: &str = "CleaningUp";
/// Waiting: the spec asks for something the operator cannot express.
pub const INVALID_SPEC: &str = "InvalidSpec";
/// Waiting: the API server refused the Job made from the spec.
pub const JOB_REJECTED: &str = "JobRejected";
/// Placed on a node; its pod is not bound yet.
pub const PLACED: &str = "Placed";
/// Placed; the Job's pods are refused by admission (PodSecurity, quota, a webhook).
pub const PODS_REFUSED: &str = "PodsRefused";
/// The cluster's scheduler refused the chosen node; another is looked for.
pub const PLACEMENT_REFUSED: &str = "PlacementRefused";
/// Placed; a volume claim is missing or unbound.
pub const VOLUME_NOT_READY: &str = "VolumeNotReady";
/// Bound to its node; containers are being started.
pub const STARTING: &str = "Starting";
/// Bound; the image cannot be pulled.
pub const IMAGE_PULL_FAILED: &str = "ImagePullFailed";
/// Bound; the image's name is not a valid reference.
pub const INVALID_IMAGE_NAME: &str = "InvalidImageName";
/// Bound; the container cannot be created (missing Secret, ConfigMap, command …).
pub const CONTAINER_CREATE_FAILED: &str = "ContainerCreateFailed";
/// The container runs.
pub const RUNNING: &str = "Running";
/// The node stopped answering while the pod was on it.
pub const NODE_LOST: &str = "NodeLost";
/// Finished: exit code 0.
pub const SUCCEEDED: &str = "Succeeded";
/// Finished: killed for using more memory than its limit.
pub const OUT_OF_MEMORY: &str = "OutOfMemory";
/// Finished: the container ended with another code than 0.
pub const NON_ZERO_EXIT: &str = "NonZeroExit";
/// Finished: longer than `spec.maxRuntime`.
pub const MAX_RUNTIME_EXCEEDED: &str = "MaxRuntimeExceeded";
/// The pod was evicted: a drain, a taint, a node under pressure or shutting down; or, as a failure,
/// for using more storage than it may.
pub const EVICTED: &str = "Evicted";
/// The pod made room for one of higher priority.
pub const PREEMPTED: &str = "Preempted";
/// The kubelet refused the pod.
pub const REFUSED_BY_NODE: &str = "RefusedByNode";
/// Finished: the pod was deleted by hand.
pub const POD_DELETED: &str = "PodDeleted";
/// Finished: the Job failed and no pod is left to say why.
pub const JOB_FAILED: &str = "JobFailed";
/// Not finished yet.
pub const NOT_FINISHED: &str = "NotFinished";
/// Finished: placed, but not running within the operator's `--start-timeout`.
pub const START_TIMEOUT: &str = "StartTimeout";
/// Event: a node was chosen (the first design's name).
pub const EVENT_SCHEDULED: &str = "Scheduled";
/// Event: the last retry failed too (the first design's name).
pub const EVENT_MAX_RETRIES: &str = "MaxRetriesExceeded";
/// Event: it was disrupted more often than `maxDisruptions` allows.
pub const EVENT_MAX_DISRUPTIONS: &str = "MaxDisruptionsExceeded";

/// Tenant: its namespaces are known and its own.
pub const NAMESPACES_FOUND: &str = "NamespacesFound";
/// Tenant: no namespace that exists belongs to it.
pub const NO_NAMESPACE: &str = "NoNamespace";
/// Tenant: another tenant claims one of its namespaces too.
pub const NAMESPACE_CONTESTED: &str = "NamespaceContested";
/// Tenant: the selector of its namespaces cannot be read.
pub const INVALID_SELECTOR: &str = "InvalidSelector";
