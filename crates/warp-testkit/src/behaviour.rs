//! What a simulated container does.
//!
//! Owns: the names a pod says its behaviour with, as environment variables of its first container
//! (they pass through any controller) or as annotations (they win, and can be changed while the pod
//! runs, which is how a test releases a pod it has held). Must not know how it is simulated: that is
//! the stages' business.

use std::time::Duration;

use serde_json::{Value, json};

/// Annotation keys; the environment variable of each is `TESTBED_` + the upper-case last part.
pub const BEHAVIOUR: &str = "testbed.warp.dev/behaviour";
/// How long the container runs before it ends, as Go writes durations (`1.5s`).
pub const RUN_FOR: &str = "testbed.warp.dev/run-for";
/// How long the image takes to pull.
pub const START_AFTER: &str = "testbed.warp.dev/start-after";
/// How long the container needs to end after it was asked to.
pub const STOP_AFTER: &str = "testbed.warp.dev/stop-after";
/// The exit code of [`Kind::Exit`].
pub const EXIT_CODE: &str = "testbed.warp.dev/exit-code";

/// The environment variable that stands for one of the annotations above.
pub fn variable(annotation: &str) -> String {
    let last = annotation.rsplit('/').next().unwrap_or(annotation);
    format!("TESTBED_{}", last.to_uppercase().replace('-', "_"))
}

/// How a container goes on once its pod is bound to a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Kind {
    /// Runs, and ends with exit code 0 when a Job owns the pod.
    Succeed,
    /// Runs until it is deleted or its behaviour is changed.
    Hang,
    /// Ends with a non-zero exit code.
    Exit,
    /// Is killed for using more memory than its limit.
    OutOfMemory,
    /// Is evicted by its node's kubelet.
    Evicted,
    /// The image cannot be pulled.
    PullError,
    /// The image's name cannot be parsed.
    InvalidImage,
    /// A Secret or ConfigMap the container refers to does not exist.
    ConfigError,
    /// Stays in ContainerCreating (a volume that is never mounted).
    Stuck,
}

impl Kind {
    pub const ALL: [Self; 9] = [
        Self::Succeed,
        Self::Hang,
        Self::Exit,
        Self::OutOfMemory,
        Self::Evicted,
        Self::PullError,
        Self::InvalidImage,
        Self::ConfigError,
        Self::Stuck,
    ];

    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| kind.name() == name)
    }

    pub fn name(self) -> &'static str {
        match self {
            Self::Succeed => "succeed",
            Self::Hang => "hang",
            Self::Exit => "exit",
            Self::OutOfMemory => "oom",
            Self::Evicted => "evicted",
            Self::PullError => "pull-error",
            Self::InvalidImage => "invalid-image",
            Self::ConfigError => "config-error",
            Self::Stuck => "stuck",
        }
    }
}

/// A container's script: what it does and when.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Behaviour {
    kind: Kind,
    settings: Vec<(&'static str, String)>,
}

impl Behaviour {
    pub fn new(kind: Kind) -> Self {
        Self {
            kind,
            settings: Vec::new(),
        }
    }

    pub fn succeed() -> Self {
        Self::new(Kind::Succeed)
    }

    pub fn hang() -> Self {
        Self::new(Kind::Hang)
    }

    pub fn exit(code: u8) -> Self {
        Self::new(Kind::Exit).set(EXIT_CODE, code.to_string())
    }

    #[must_use]
    pub fn run_for(self, time: Duration) -> Self {
        self.set(RUN_FOR, go_duration(time))
    }

    #[must_use]
    pub fn start_after(self, time: Duration) -> Self {
        self.set(START_AFTER, go_duration(time))
    }

    #[must_use]
    pub fn stop_after(self, time: Duration) -> Self {
        self.set(STOP_AFTER, go_duration(time))
    }

    fn set(mut self, key: &'static str, value: String) -> Self {
        self.settings.push((key, value));
        self
    }

    fn pairs(&self) -> impl Iterator<Item = (&'static str, &str)> {
        std::iter::once((BEHAVIOUR, self.kind.name())).chain(
            self.settings
                .iter()
                .map(|(key, value)| (*key, value.as_str())),
        )
    }

    /// As `env` of a container.
    pub fn env(&self) -> Value {
        self.pairs()
            .map(|(key, value)| json!({"name": variable(key), "value": value}))
            .collect()
    }

    /// As `metadata.annotations` of a pod.
    pub fn annotations(&self) -> Value {
        Value::Object(
            self.pairs()
                .map(|(key, value)| (key.to_owned(), json!(value)))
                .collect(),
        )
    }
}

fn go_duration(time: Duration) -> String {
    format!("{}ms", time.as_millis())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn annotations_and_variables_say_the_same() {
        let behaviour = Behaviour::exit(3).run_for(Duration::from_millis(1500));
        assert_eq!(
            behaviour.env(),
            json!([
                {"name": "TESTBED_BEHAVIOUR", "value": "exit"},
                {"name": "TESTBED_EXIT_CODE", "value": "3"},
                {"name": "TESTBED_RUN_FOR", "value": "1500ms"},
            ])
        );
        assert_eq!(
            behaviour.annotations(),
            json!({
                "testbed.warp.dev/behaviour": "exit",
                "testbed.warp.dev/exit-code": "3",
                "testbed.warp.dev/run-for": "1500ms",
            })
        );
    }
}
