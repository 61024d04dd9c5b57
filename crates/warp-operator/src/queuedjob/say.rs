//! What is said about a queued Job: annotations, written when they change, and the Event of a new reason. Pure.

use kube::ResourceExt;
use serde_json::{Map, Value, json};
use warp_api::{label, reason};
use warp_runtime::plan::{Action, Note, Plan};

use super::kinds::QueuedKind;
use super::queued::Queued;

/// What one Job should be seen to say.
#[derive(Debug)]
pub(super) struct Say {
    pub(super) reason: &'static str,
    /// What it waits for; none for what does not wait.
    pub(super) waiting_for: Option<String>,
    pub(super) position: Option<usize>,
    /// When it is expected to start.
    pub(super) start: Option<String>,
    /// What people hear when the reason is new; none for what they need not hear.
    pub(super) told: Option<String>,
}

impl Say {
    /// A Job that waits, and hears so.
    pub(super) fn waits(reason: &'static str, message: String) -> Self {
        Self {
            reason,
            waiting_for: Some(message.clone()),
            position: None,
            start: None,
            told: Some(message),
        }
    }
}

/// Adds what has to be written for a Job to say this, and the Event of a new reason after it. `more` are further
/// changes of the same write.
pub(super) fn say(plan: &mut Plan, job: &Queued, say: Say, more: Option<Value>) {
    let has = |name: &str| job.annotations().get(name).map(String::as_str);
    let position = say.position.map(|position| position.to_string());
    let mut changed = Map::new();
    let wanted = [
        (label::QUEUE_REASON, Some(say.reason)),
        (label::WAITING_FOR, say.waiting_for.as_deref()),
        (label::QUEUE_POSITION, position.as_deref()),
        (label::ESTIMATED_START, say.start.as_deref()),
    ];
    for (name, value) in wanted {
        if has(name) != value {
            changed.insert(name.to_owned(), json!(value));
        }
    }
    let new = has(label::QUEUE_REASON) != Some(say.reason);
    let mut patch = more.unwrap_or_else(|| json!({}));
    if let Some(further) = patch.pointer_mut("/metadata/annotations") {
        if let Some(further) = further.as_object_mut() {
            further.append(&mut changed);
        }
    } else if !changed.is_empty() {
        patch["metadata"]["annotations"] = Value::Object(changed);
    }
    if patch == json!({}) {
        return;
    }
    job.merge(plan, patch);
    if let (true, Some(message)) = (new, say.told) {
        let quiet = matches!(
            say.reason,
            reason::WAITING_FOR_CAPACITY | reason::PREEMPTING
        );
        plan.push(Action::Note(Note {
            about: job.about(),
            warning: !quiet,
            reason: say.reason.to_owned(),
            action: Some("Wait"),
            message,
        }));
    }
}

/// What the scheduler says of workloads, in the words of another kind.
pub(crate) fn in_words_of(kind: &QueuedKind, message: &str) -> String {
    let priority = format!("the annotation {}", label::PRIORITY);
    let deadline = match kind.deadline {
        Some(at) => at.trim_start_matches('/').replace('/', "."),
        None => "how long it may run".to_owned(),
    };
    let selector = format!("by {}'s nodeSelector", kind.template);
    let (requires, change) = (
        format!("what the {} requires", kind.kind),
        format!("change the {}'s", kind.kind),
    );
    let words = [
        ("spec.podTemplate", kind.template),
        ("spec.priority", priority.as_str()),
        ("spec.maxRuntime", deadline.as_str()),
        ("in spec.gpu.models", selector.as_str()),
        ("what the workload requires", requires.as_str()),
        ("change the workload's", change.as_str()),
    ];
    let said = message.to_owned();
    words
        .iter()
        .fold(said, |said, (from, to)| said.replace(from, to))
}
