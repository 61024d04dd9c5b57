//! What a schema cannot say about an InferenceService, as CEL.

use crate::crd::Rule;

/// Every rule with the place in the schema it hangs on.
pub const RULES: &[Rule] = &[
    Rule {
        at: "",
        rule: "size(self.metadata.name) <= 52 && self.metadata.name.matches('^[a-z]([-a-z0-9]*[a-z0-9])?$')",
        message: "a service's name is at most 52 characters, begins with a letter and has no dots: its Service and pods are named after it",
    },
    Rule {
        at: "spec.model",
        rule: "has(self.source) != has(self.cache)",
        message: "exactly one of model.source and model.cache must be given: a place the engine loads from, or a ModelCache of this namespace",
    },
    Rule {
        at: "spec.model",
        rule: "!has(self.cache) || !has(self.revision)",
        message: "model.revision is not for a cache: the ModelCache names the revision it fetches",
    },
    Rule {
        at: "spec.model",
        rule: "!has(self.source) || !self.source.startsWith('pvc://') || (self.source.matches('^pvc://[a-z0-9]([-a-z0-9.]*[a-z0-9])?(/|$)') && !self.source.split('/').exists(part, part == '..'))",
        message: "model.source on a volume is pvc://CLAIM/FOLDER: a claim of this namespace and a folder on it, without '..'",
    },
    Rule {
        at: "spec.model",
        rule: "!has(self.source) || !self.source.startsWith('hf://') || self.source.matches('^hf://[A-Za-z0-9_][A-Za-z0-9._-]*(/[A-Za-z0-9_][A-Za-z0-9._-]*)?$')",
        message: "model.source on a hub is hf://ORG/NAME, and its revision is given in model.revision",
    },
    Rule {
        at: "spec.model",
        rule: "!has(self.source) || self.source.contains('://') || !self.source.split('/').exists(part, part == '..')",
        message: "model.source is ORG/NAME on a hub: it has no '..'",
    },
    Rule {
        at: "spec.model",
        rule: "!has(self.source) || !self.source.matches('^(s3|gs|az)://') || self.source.matches('^(s3|gs|az)://[A-Za-z0-9]')",
        message: "model.source in a store is s3://BUCKET/FOLDER (gs:// and az:// likewise): name the bucket",
    },
    Rule {
        at: "spec.model",
        rule: "!has(self.cache) || !has(self.adapters) || self.adapters.all(adapter, adapter.source.startsWith('/'))",
        message: "with model.cache the engine is offline: model.adapters must be paths in the container, such as a folder below /models",
    },
    Rule {
        at: "spec",
        rule: "!has(self.parallelism) || !has(self.gpuCount) || self.gpuCount == self.parallelism.tensor * self.parallelism.pipeline * self.parallelism.data",
        message: "gpuCount must be tensor × pipeline × data of parallelism: leave one of the two out",
    },
    Rule {
        at: "spec",
        rule: "!has(self.accelerators) || !(has(self.gpu) || has(self.gpuCount) || has(self.parallelism))",
        message: "with accelerators, gpu, gpuCount and parallelism are given in each of them: take those of the spec away",
    },
    Rule {
        at: "spec",
        rule: "!has(self.accelerators) || !has(self.multiNode) || self.multiNode == 'never'",
        message: "a copy of accelerators is on one node: take multiNode away",
    },
    Rule {
        at: "spec",
        rule: "!has(self.accelerators) || self.accelerators.all(one, self.accelerators.exists_one(other, other.name == one.name))",
        message: "each of accelerators has a name of its own",
    },
    Rule {
        at: "spec.accelerators[]",
        rule: "!has(self.max) || self.min <= self.max",
        message: "min of an accelerator must not be more than its max",
    },
    Rule {
        at: "spec.accelerators[]",
        rule: "!has(self.parallelism) || !has(self.gpuCount) || self.gpuCount == self.parallelism.tensor * self.parallelism.pipeline * self.parallelism.data",
        message: "gpuCount of an accelerator must be tensor × pipeline × data of its parallelism: leave one of the two out",
    },
    Rule {
        at: "spec",
        rule: "!has(self.scaling) || (self.scaling.min <= self.scaling.max)",
        message: "scaling.min must not be more than scaling.max",
    },
    Rule {
        at: "spec",
        rule: "!has(self.scaling) || self.scaling.min > 0",
        message: "scaling.min 0 needs a gateway that holds requests meanwhile, and none runs yet: use 1 or more",
    },
    Rule {
        at: "spec",
        rule: "!has(self.scaling) || !has(self.scaling.schedule) || self.scaling.schedule.all(step, step.min <= self.scaling.max)",
        message: "no min of scaling.schedule must be more than scaling.max",
    },
    Rule {
        at: "spec",
        rule: "!has(self.scaling) || self.scaling.by == 'warp' || !has(self.scaling.schedule)",
        message: "scaling.schedule is not for autoscalers of others: take it away, or use scaling.by warp",
    },
    Rule {
        at: "spec",
        rule: "!has(self.scaling) || self.scaling.by == 'warp' || duration(self.scaling.window) <= duration('1h')",
        message: "scaling.window is at most 1h for autoscalers of others",
    },
    Rule {
        at: "spec",
        rule: "!has(self.scaling) || (self.scaling.by == 'keda') == has(self.scaling.prometheus)",
        message: "scaling.prometheus is the address that KEDA asks: give it with scaling.by keda, and only then",
    },
    Rule {
        at: "spec",
        rule: "!has(self.scaling) || self.scaling.by != 'keda' || self.engine.type != 'custom'",
        message: "KEDA asks for what the engine itself measures, which is not known of a custom engine: use scaling.by hpa or warp",
    },
    Rule {
        at: "spec",
        rule: "!has(self.scaling) || self.scaling.metric != 'cache' || self.scaling.target <= 100",
        message: "scaling.target of the metric cache is a share of the attention cache in percent: from 1 to 100",
    },
    Rule {
        at: "spec",
        rule: "self.engine.type != 'custom' || has(self.engine.image)",
        message: "a custom engine needs engine.image",
    },
    Rule {
        at: "spec",
        rule: "self.engine.type == 'custom' || !has(self.engine.command)",
        message: "engine.command is for a custom engine",
    },
    Rule {
        at: "spec",
        rule: "self.engine.type != 'custom' || !has(self.engine.args)",
        message: "engine.args are checked against the engine's own, which a custom engine has not: use engine.advanced",
    },
    Rule {
        at: "spec",
        rule: "self.engine.type != 'custom' || !has(self.model.adapters)",
        message: "model.adapters are not loaded into a custom engine: pass them in engine.advanced",
    },
    Rule {
        at: "spec.startLimit",
        rule: "self.matches('^([0-9]{1,6}h)?([0-9]{1,6}m)?([0-9]{1,6}s)?$') && duration(self) >= duration('1s') && duration(self) <= duration('168h')",
        message: "startLimit must be a time from 1s to 168h, such as 90s, 30m or 1h30m",
    },
    Rule {
        at: "spec.drain",
        rule: "self.matches('^([0-9]{1,6}h)?([0-9]{1,6}m)?([0-9]{1,6}s)?$') && duration(self) >= duration('1s') && duration(self) <= duration('24h')",
        message: "drain must be a time from 1s to 24h, such as 45s or 5m",
    },
    Rule {
        at: "spec.scaling.window",
        rule: "self.matches('^([0-9]{1,6}h)?([0-9]{1,6}m)?([0-9]{1,6}s)?$') && duration(self) >= duration('1s') && duration(self) <= duration('24h')",
        message: "window must be a time from 1s to 24h, such as 90s or 5m",
    },
];
