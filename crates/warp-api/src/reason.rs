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
/// Waiting: no node says where it is on the topology level the workload requires.
pub const NO_SUCH_LEVEL: &str = "NoSuchLevel";
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
/// Waiting: its spec changed before its Job had started; it is placed anew without a retry.
pub const SPEC_CHANGED: &str = "SpecChanged";
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
/// Queued Job: it runs without having been placed, because it was not suspended when it came or was resumed by hand.
pub const NOT_HELD: &str = "NotHeld";
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
/// Waits until work of lower priority, which was asked to end, has ended.
pub const PREEMPTING: &str = "Preempting";
/// Runs, and was asked to end for other work.
pub const EVICTING: &str = "Evicting";
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

/// Waiting: its tenant's quota leaves too little.
pub const TENANT_QUOTA_EXCEEDED: &str = "TenantQuotaExceeded";
/// Waiting: its tenant does not let it ask for this.
pub const TENANT_FORBIDS: &str = "TenantForbids";
/// Waiting: its tenant is suspended.
pub const TENANT_SUSPENDED: &str = "TenantSuspended";

/// Tenant: its namespaces are known and its own.
pub const NAMESPACES_FOUND: &str = "NamespacesFound";
/// Tenant: no namespace that exists belongs to it.
pub const NO_NAMESPACE: &str = "NoNamespace";
/// Tenant: another tenant claims one of its namespaces too.
pub const NAMESPACE_CONTESTED: &str = "NamespaceContested";
/// Tenant: its parent is missing or leads in a circle.
pub const INVALID_PARENT: &str = "InvalidParent";
/// Tenant: its limits name a GPU that nobody knows.
pub const UNKNOWN_GPU: &str = "UnknownGpu";
/// Tenant: the selector of its namespaces cannot be read.
pub const INVALID_SELECTOR: &str = "InvalidSelector";
/// Tenant: what its owners and its isolation ask for is in every namespace of it.
pub const ISOLATION_IN_PLACE: &str = "IsolationInPlace";
/// Tenant: some of that is not there yet.
pub const ISOLATING: &str = "Isolating";
/// Tenant: something of it is still there that is no longer asked for.
pub const TAKING_BACK: &str = "TakingBack";

/// InferenceService: all copies wanted answer.
pub const SERVING: &str = "Serving";
/// InferenceService: some copies answer, fewer than wanted.
pub const TOO_FEW_COPIES: &str = "TooFewCopies";
/// InferenceService: copies of a new spec take the place of old ones.
pub const UPDATING: &str = "Updating";
/// InferenceService: the API server refused the change that lets a copy go to its node.
pub const COPY_REJECTED: &str = "CopyRejected";
/// InferenceService and ModelCache: the API server does not take something that was made for it.
pub const OBJECT_REJECTED: &str = "ObjectRejected";
/// ModelCache: what `optimize` ran changed the fetched model, which is fetched again; nothing of it is published.
pub const MODEL_CHANGED: &str = "ModelChanged";
/// InferenceService: the autoscaler its spec names has been told what to do.
pub const AUTOSCALER_TOLD: &str = "AutoscalerTold";
/// InferenceService: the cluster has no autoscaler of the kind its spec names.
pub const NO_SUCH_AUTOSCALER: &str = "NoSuchAutoscaler";
/// InferenceService: this operator has no right to tell autoscalers of others.
pub const AUTOSCALERS_NOT_ALLOWED: &str = "AutoscalersNotAllowed";
/// InferenceService: a pod of a copy that spans nodes failed, so all pods of the copy are started again.
pub const GROUP_RESTARTED: &str = "GroupRestarted";
/// InferenceService: copies end again and again before they answer.
pub const COPIES_FAIL: &str = "CopiesFail";
/// InferenceService: no copies are wanted.
pub const STOPPED: &str = "Stopped";
/// InferenceService: the spec can be carried out.
pub const SPEC_ACCEPTED: &str = "SpecAccepted";
/// InferenceService: an object that is not the service's has the name its own would have.
pub const NAME_TAKEN: &str = "NameTaken";
/// InferenceService: vLLM does not run on the GPUs asked for.
pub const UNSUPPORTED_GPU: &str = "UnsupportedGpu";

/// Event: a machine is rented for a workload that waits.
pub const RENTING: &str = "Renting";

/// CloudProvider: the cloud has said what it offers.
pub const OFFERS_KNOWN: &str = "OffersKnown";
/// CloudProvider: the cloud has not answered yet.
pub const NOT_ASKED: &str = "NotAsked";
/// CloudProvider: the cloud does not accept the credentials.
pub const BAD_CREDENTIALS: &str = "BadCredentials";
/// CloudProvider: the account has no money.
pub const NO_BALANCE: &str = "NoBalance";
/// CloudProvider: the cloud refuses what it is asked.
pub const CLOUD_REFUSED: &str = "CloudRefused";
/// CloudProvider: the cloud does not answer, or not well.
pub const CLOUD_UNREACHABLE: &str = "CloudUnreachable";
/// CloudProvider: it is being deleted and something is still rented.
pub const MACHINES_EXIST: &str = "MachinesExist";
/// CloudProvider: `spec.enabled` is false.
pub const DISABLED: &str = "Disabled";
/// CloudProvider and GPURequest: nothing that is offered will do.
pub const NO_OFFER: &str = "NoOffer";
/// GPURequest: no CloudProvider that may be used is ready.
pub const NO_PROVIDER: &str = "NoProvider";
/// GPURequest: everything that would do costs more than it may.
pub const PRICE_TOO_LOW: &str = "PriceTooLow";
/// GPURequest: the last machines of every CloudProvider that would do came to nothing, and it is left alone for a while.
pub const CIRCUIT_OPEN: &str = "CircuitOpen";
/// GPURequest: the limits of the CloudProvider leave no room.
pub const PROVIDER_LIMIT: &str = "ProviderLimit";
/// GPURequest: a budget of its tenant leaves too little; as an ending: the budget asked for it. Tenant: a limit is reached.
pub const BUDGET_REACHED: &str = "BudgetReached";
/// Tenant: most of a limit of its budget is spent.
pub const BUDGET_WARNING: &str = "BudgetWarning";
/// Tenant: its spending is within its budget.
pub const BUDGET_KEPT: &str = "BudgetKept";
/// Tenant and GPURequest: a limit of a budget cannot be read.
pub const INVALID_BUDGET: &str = "InvalidBudget";
/// GPURequest: none of the providers sells what they may take back.
pub const SPOT_NOT_SOLD: &str = "SpotNotSold";
/// GPURequest: a spot machine is waited for until `spec.spotWait` is over.
pub const WAITING_FOR_SPOT: &str = "WaitingForSpot";
/// GPURequest: what was tried was refused; the next try has a time.
pub const RETRYING: &str = "Retrying";
/// GPURequest: a machine is being bought.
pub const PROVISIONING: &str = "Provisioning";
/// GPURequest: the machine starts.
pub const BOOTING: &str = "Booting";
/// GPURequest: the machine runs and its node is not ready yet.
pub const JOINING: &str = "Joining";
/// GPURequest: the machine's node is ready.
pub const NODE_READY: &str = "NodeReady";
/// GPURequest: the machine's node was ready and is not.
pub const NODE_NOT_READY: &str = "NodeNotReady";
/// GPURequest: the machine is being given back.
pub const TERMINATING: &str = "Terminating";
/// GPURequest: the cloud cannot be asked to end the machine; it may still cost money.
pub const TERMINATION_STUCK: &str = "TerminationStuck";
/// GPURequest: nothing is bought before all that belong together can be.
pub const WAITING_FOR_OTHERS: &str = "WaitingForOthers";
/// GPURequest, also as an ending: not all machines that belong together came in time.
pub const NOT_ALL_RENTED: &str = "NotAllRented";
/// GPURequest, as an ending: nobody used it for `spec.idleTimeout`.
pub const IDLE_TIMEOUT: &str = "IdleTimeout";
/// GPURequest, as an ending: `spec.maxLifetime` is over.
pub const MAX_LIFETIME: &str = "MaxLifetime";
/// GPURequest, as an ending: `spec.maxTotalPrice` is spent.
pub const MAX_TOTAL_PRICE: &str = "MaxTotalPrice";
/// GPURequest, as an ending: the request was deleted.
pub const DELETED: &str = "Deleted";
/// GPURequest, as an ending: the machine did not run in time.
pub const NEVER_RAN: &str = "NeverRan";
/// GPURequest, as an ending: the machine's node did not become ready in time.
pub const NEVER_JOINED: &str = "NeverJoined";
/// GPURequest, as an ending: the machine was there and is no more.
pub const MACHINE_LOST: &str = "MachineLost";
/// GPURequest, as an ending: the cloud took the machine back.
pub const SPOT_INTERRUPTED: &str = "SpotInterrupted";
/// GPURequest, as an ending: the cloud bills more an hour than was agreed.
pub const PRICE_ABOVE_LIMIT: &str = "PriceAboveLimit";
/// GPURequest, as an ending: the machine joined and its GPUs do not work.
pub const GPU_TEST_FAILED: &str = "GpuTestFailed";
/// GPURequest, as an ending: the pod that was its container is over.
pub const POD_ENDED: &str = "PodEnded";
/// GPURequest, as an ending: before a pod came, what was to be bought is no longer sold within the price.
pub const OFFER_GONE: &str = "OfferGone";
/// GPURequest, as an ending, pod and workload: the pod cannot be a container at this cloud; the message says why.
pub const CONTAINER_REFUSED: &str = "ContainerRefused";
/// Pod and workload: the cloud says that the container ended, and not how.
pub const EXIT_UNKNOWN: &str = "ExitUnknown";
/// Pod: the cloud ended its container, or never began it.
pub const CONTAINER_LOST: &str = "ContainerLost";
/// GPURequest: the cloud has said that it takes the machine back.
pub const SPOT_NOTICE: &str = "SpotNotice";
/// GPURequest, as an Event: a certificate was asked for that is not the machine's own.
pub const CERTIFICATE_IGNORED: &str = "CertificateIgnored";
/// GPURequest: no provider lets it join or be set up so.
pub const NOT_ALLOWED: &str = "NotAllowed";
/// GPURequest: too many machines came to nothing.
pub const ATTEMPTS_EXHAUSTED: &str = "AttemptsExhausted";

/// ModelCache: the model the spec names is complete and verified.
pub const MODEL_FETCHED: &str = "Fetched";
/// ModelCache: the model is complete and verified, on the volume of another cache that fetched the same.
pub const MODEL_SHARED: &str = "Shared";
/// ModelCache: no node has the labels of `spec.nodes.selector`.
pub const NO_NODES: &str = "NoNodes";
/// ModelCache: this operator may not label nodes, since it serves one namespace.
pub const NODES_NOT_ALLOWED: &str = "NodesNotAllowed";
/// ModelCache: it is being deleted, and its copies are being removed from nodes.
pub const REMOVING: &str = "Removing";
/// ModelCache: a copy waits until there is room for it on its node.
pub const WAITING_FOR_ROOM: &str = "WaitingForRoom";
/// ModelCache: it has more bytes than the quota of its folder on nodes.
pub const QUOTA_TOO_SMALL: &str = "QuotaTooSmall";
/// ModelCache: another cache gives its folder on nodes another quota.
pub const QUOTA_CONTRADICTS: &str = "QuotaContradicts";
/// ModelCache: a copy that is to go could not be removed from its node.
pub const COPY_LEFT: &str = "CopyLeft";
/// ModelCache: files are being fetched.
pub const FETCHING: &str = "Fetching";
/// ModelCache: the fetch has not started.
pub const FETCH_PENDING: &str = "FetchPending";
/// ModelCache: its volume is not bound yet.
pub const VOLUME_PENDING: &str = "VolumePending";
/// ModelCache: a claim of the name it needs belongs to somebody else.
pub const VOLUME_TAKEN: &str = "VolumeTaken";
/// ModelCache: the operator does not know the image that fetches.
pub const NO_FETCH_IMAGE: &str = "NoFetchImage";
/// ModelCache: the fetch took longer than `spec.timeout`.
pub const FETCH_TIMEOUT: &str = "FetchTimeout";
/// ModelCache: the fetch failed; where the fetch itself says why, its reason stands here instead.
pub const FETCH_FAILED: &str = "FetchFailed";
/// ModelCache: the fetch ended well and left no report.
pub const NO_REPORT: &str = "NoReport";
/// ModelCache: a simulated node pretended to fetch; there are no files.
pub const SIMULATED_FETCH: &str = "SimulatedFetch";
/// ModelCache: the model `optimize` makes of the fetched one is complete and verified.
pub const MODEL_OPTIMIZED: &str = "Optimized";
/// ModelCache: the fetched model is being turned into another one, or is about to be.
pub const OPTIMIZING: &str = "Optimizing";
/// ModelCache: `optimize` failed; where its publication says why, that reason stands here instead.
pub const OPTIMIZE_FAILED: &str = "OptimizeFailed";
/// ModelCache: `optimize` took longer than `spec.timeout`.
pub const OPTIMIZE_TIMEOUT: &str = "OptimizeTimeout";
/// InferenceService: the ModelCache it names is not ready yet.
pub const WAITING_FOR_MODEL: &str = "WaitingForModel";
/// InferenceService: there is no ModelCache of that name, or it is being deleted.
pub const NO_SUCH_MODEL_CACHE: &str = "NoSuchModelCache";
/// InferenceService: the ModelCache it names has failed.
pub const MODEL_CACHE_FAILED: &str = "ModelCacheFailed";
/// ModelCache: it is being deleted and is still used.
pub const IN_USE: &str = "InUse";
