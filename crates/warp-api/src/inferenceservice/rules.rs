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
        rule: "self.matches('^([0-9]{1,6}h)?([0-9]{1,6}m)?([0-9]{1,6}s)?$')",
        message: "startLimit must be a time such as 90s, 30m or 1h30m",
    },
    Rule {
        at: "spec.drain",
        rule: "self.matches('^([0-9]{1,6}h)?([0-9]{1,6}m)?([0-9]{1,6}s)?$')",
        message: "drain must be a time such as 45s or 5m",
    },
    Rule {
        at: "spec.scaling.window",
        rule: "self.matches('^([0-9]{1,6}h)?([0-9]{1,6}m)?([0-9]{1,6}s)?$')",
        message: "window must be a time such as 90s or 5m",
    },
];
