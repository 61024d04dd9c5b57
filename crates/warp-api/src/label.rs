//! Labels, annotations and names on objects we create or read.

/// Job and pod: name of the workload they belong to.
pub const WORKLOAD: &str = "gpu.warp.dev/workload";
/// Job and pod: uid of that workload, because a name may be used again.
pub const WORKLOAD_UID: &str = "gpu.warp.dev/workload-uid";
/// Job and pod: which attempt, counted from 0.
pub const ATTEMPT: &str = "gpu.warp.dev/attempt";
/// Job and pod: who manages them.
pub const CONTROLLER: &str = "gpu.warp.dev/controller";
/// Value of [`CONTROLLER`] on everything the operator makes.
pub const CONTROLLER_NAME: &str = "warp-operator";
/// Job annotation: the workload's name, kept from the first design.
pub const CREATED_BY: &str = "gpu.warp.dev/created-by";
/// Job annotation: the node its pod is pinned to.
pub const NODE: &str = "gpu.warp.dev/node";
/// Job annotation: the strategy that chose the node.
pub const STRATEGY: &str = "gpu.warp.dev/strategy";
/// Job annotation: the decision in one sentence.
pub const PLACEMENT: &str = "gpu.warp.dev/placement";
/// Node label: what kind of machine it is; absent means [`PROVIDER_DEFAULT`]. On a workload
/// (label or annotation): the providers it may use, in order of preference, separated by commas.
pub const PROVIDER: &str = "gpu.warp.dev/provider";
/// Provider of a node that names none.
pub const PROVIDER_DEFAULT: &str = "kubernetes";
/// Node label: price of one GPU for one hour, decimal.
pub const GPU_HOUR_PRICE: &str = "gpu.warp.dev/gpu-hour-price";
