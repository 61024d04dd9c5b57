//! Labels, annotations and names on objects we create or read.

/// Job and pod: name of the workload they belong to.
pub const WORKLOAD: &str = "gpu.warp.dev/workload";
/// Job and pod: uid of that workload, because a name may be used again.
pub const WORKLOAD_UID: &str = "gpu.warp.dev/workload-uid";
/// Job and pod: which attempt, counted from 0.
pub const ATTEMPT: &str = "gpu.warp.dev/attempt";
/// Deployment, Service and pod: name of the InferenceService they belong to.
pub const INFERENCE_SERVICE: &str = "gpu.warp.dev/inference-service";
/// Deployment and pod: which of the service's `spec.accelerators` they belong to.
pub const ACCELERATOR: &str = "gpu.warp.dev/accelerator";
/// StatefulSet and pod: which copy of a service they belong to, counted from 0, where a copy spans nodes.
pub const SERVING_COPY: &str = "gpu.warp.dev/serving-copy";
/// StatefulSet and pod: `leader` answers for a copy that spans nodes, every `worker` helps it.
pub const SERVING_ROLE: &str = "gpu.warp.dev/serving-role";
/// Pod: over how many nodes its copy spans.
pub const SERVING_NODES: &str = "gpu.warp.dev/serving-nodes";
/// Deployment and StatefulSet annotation: the pod template as it was rendered, and from what.
pub const RENDERED: &str = "gpu.warp.dev/rendered";
/// Pod annotation of a service: which GPUs will do, as `spec.gpu` has it. The scheduler reads it when it gives the pod its
/// node: labels of nodes that come later count too.
pub const GPU: &str = "gpu.warp.dev/gpu";
/// Pod annotation: the model as the service's spec names it, which no label could hold.
pub const MODEL: &str = "gpu.warp.dev/model";
/// InferenceService annotation: tokens of attention cache that were estimated for one copy.
pub const ESTIMATED_CACHE: &str = "gpu.warp.dev/estimated-cache-tokens";
/// Pod annotation: the command that stands for a container's image on nodes that have no images, a JSON list of words;
/// followed by a dot and a name, of that container alone.
pub const PROCESS_COMMAND: &str = "process.gpu.warp.dev/command";
/// Job and pod: who manages them.
pub const CONTROLLER: &str = "gpu.warp.dev/controller";
/// Value of [`CONTROLLER`] on everything the operator makes.
pub const CONTROLLER_NAME: &str = "warp-operator";
/// Job annotation: the workload's name, kept from the first design.
pub const CREATED_BY: &str = "gpu.warp.dev/created-by";
/// Job annotation: the node its pod is pinned to.
pub const NODE: &str = "gpu.warp.dev/node";
/// Job annotation of a gang and of a queued Job: the node of each pod, separated by commas; of a gang by rank.
pub const NODES: &str = "gpu.warp.dev/nodes";
/// Scheduling gate of a gang's pods: they wait until all of them are there and each has its node.
pub const GANG_GATE: &str = "gpu.warp.dev/gang";
/// Scheduling gate of a service's pods: each waits until it has its node.
pub const SERVING_GATE: &str = "gpu.warp.dev/serving";
/// Pod label by which the Job controller says which member of an indexed Job a pod is.
pub const RANK: &str = "batch.kubernetes.io/job-completion-index";
/// Job annotation: the strategy that chose the node.
pub const STRATEGY: &str = "gpu.warp.dev/strategy";
/// Job annotation: what of the workload's spec it was made from, as a number that is another for every other spec.
pub const SPEC_HASH: &str = "gpu.warp.dev/spec-hash";
/// Job annotation: the decision in one sentence.
pub const PLACEMENT: &str = "gpu.warp.dev/placement";
/// Job annotation: the work (`namespace/name`) that takes its place; its pods are evicted.
pub const EVICTED_FOR: &str = "gpu.warp.dev/evicted-for";
/// Job annotation beside it: `share` where that work takes back what its tenant lent, `rank` where the queue policy ranks it
/// far better, `move` where it is a gang that starts once this is moved; absent, it has a higher priority.
pub const EVICTED_BECAUSE: &str = "gpu.warp.dev/evicted-because";
/// Pod annotation: the name of the annotation in which the pod says when it last saved its work.
pub const CHECKPOINT_ANNOTATION: &str = "gpu.warp.dev/checkpoint-annotation";
/// Pod annotation: the file or folder it writes when it saves its work.
pub const CHECKPOINT_PATH: &str = "gpu.warp.dev/checkpoint-path";
/// Pod annotation, written by a node that looks there: when the newest file was written.
pub const CHECKPOINT_FILE_TIME: &str = "gpu.warp.dev/checkpoint-file-time";
/// Node label: what kind of machine it is; absent means [`PROVIDER_DEFAULT`]. On a workload
/// (label or annotation): the providers it may use, in order of preference, separated by commas; in an annotation
/// [`PROVIDER_ANY`] stands for those it does not name, the best first.
pub const PROVIDER: &str = "gpu.warp.dev/provider";
/// The providers that are not named, the best first.
pub const PROVIDER_ANY: &str = "*";
/// Provider of a node that names none.
pub const PROVIDER_DEFAULT: &str = "kubernetes";
/// Node label: price of one GPU for one hour, decimal.
pub const GPU_HOUR_PRICE: &str = "gpu.warp.dev/gpu-hour-price";
/// GPUWorkload and GPURequest, annotation: the user who made it, as the API server knows them. `warp up` writes it
/// itself; on a cluster `deploy/creators` lets nobody write another name than their own.
pub const USER: &str = "gpu.warp.dev/user";
/// Taint: the machine was rented for a workload, and pods of others keep off it.
pub const RENTED_FOR: &str = "gpu.warp.dev/rented-for";
/// Taint: the node is a place for one container at a cloud; what cannot be one keeps off it.
pub const CONTAINER: &str = "gpu.warp.dev/container";
/// Job, pod and claim: name of the ModelCache they belong to.
pub const MODEL_CACHE: &str = "gpu.warp.dev/model-cache";
/// Job and pod of a ModelCache: what they fetch, `status.contentKey` once it is complete.
pub const MODEL_CONTENT: &str = "gpu.warp.dev/model-content";
/// Node: begins the label for a model the node has a complete copy of; a name of its content follows, and the value is
/// [`HELD`].
pub const HELD_MODEL: &str = "models.gpu.warp.dev/";
/// Value of such a label.
pub const HELD: &str = "ready";
/// Job that Warp did not make, label: with the value `true` it waits in the queue for its place.
pub const QUEUE: &str = "gpu.warp.dev/queue";
/// Queued Job, annotation of its owner: `high`, `normal` or `low`.
pub const PRIORITY: &str = "gpu.warp.dev/priority";
/// Queued Job, annotation of its owner: `true` or `false`, whether it may be evicted for work of higher priority.
pub const PREEMPTIBLE: &str = "gpu.warp.dev/preemptible";
/// Queued Job, annotation: its place in line, from 1.
pub const QUEUE_POSITION: &str = "gpu.warp.dev/queue-position";
/// Queued Job, annotation: why it stands where it does, one of the reasons conditions have.
pub const QUEUE_REASON: &str = "gpu.warp.dev/queue-reason";
/// Queued Job, annotation: what it waits for, in words.
pub const WAITING_FOR: &str = "gpu.warp.dev/waiting-for";
/// Queued Job, annotation: when it is expected to start, as `status.estimatedStart` of a workload says it.
pub const ESTIMATED_START: &str = "gpu.warp.dev/estimated-start";
/// Queued Job, annotation: when it came, finer than its creation time.
pub const QUEUED_AT: &str = "gpu.warp.dev/queued-at";
/// Queued Job, annotation: when it was given its place.
pub const PLACED_AT: &str = "gpu.warp.dev/placed-at";
/// Pod of a queued object that is no Job, label: the uid of that object.
pub const QUEUED_UID: &str = "gpu.warp.dev/queued-uid";
/// Beside it: which of the object's pod templates the pod was made from, from 0.
pub const POD_GROUP: &str = "gpu.warp.dev/pod-group";
/// Queued Job, annotation: why it was suspended again after it had been placed. Without it, somebody else suspended it.
pub const REQUEUED: &str = "gpu.warp.dev/requeued";
/// Queued Job, annotation: the nodes that did not take it, and until when each is left out.
pub const REFUSED_NODES: &str = "gpu.warp.dev/refused-nodes";
/// Namespace, RoleBinding and NetworkPolicy: the tenant they are shut off or made for.
pub const TENANT: &str = "gpu.warp.dev/tenant";
/// Namespace: the Pod Security level that its tenant had enforced; another one in force is somebody else's.
pub const TENANT_POD_SECURITY: &str = "gpu.warp.dev/tenant-pod-security";
/// Namespace: the Pod Security level in force.
pub const POD_SECURITY: &str = "pod-security.kubernetes.io/enforce";

/// On Jobs and pods that stand in for a workload that waits: its name.
pub const STANDS_IN_FOR: &str = "gpu.warp.dev/stands-in-for";
/// The scheduler of pods that stand in for a workload: there is none, so they are never bound.
pub const NO_SCHEDULER: &str = "gpu.warp.dev/never";
