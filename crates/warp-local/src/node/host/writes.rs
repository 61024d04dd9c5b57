//! The writes a node makes for its pods: statuses, and the removal of pods that ended.

use k8s_openapi::api::core::v1::{Pod, PodCondition, PodStatus};
use kube::api::{DeleteParams, Patch, PatchParams, Preconditions};
use kube::core::Request;
use serde::Deserialize;
use serde_json::{Value, json};

/// One write, ready to be sent.
#[derive(Debug)]
pub(super) struct Write {
    pub(super) uid: String,
    namespace: String,
    name: String,
    what: What,
}

#[derive(Debug)]
enum What {
    Status(Box<PodStatus>),
    Remove,
}

/// What became of it.
#[derive(Debug)]
pub(super) struct Written {
    pub(super) uid: String,
    pub(super) outcome: Outcome,
}

#[derive(Debug)]
pub(super) enum Outcome {
    Reported {
        status: Box<PodStatus>,
        version: u64,
    },
    Removed,
    /// The object is not there any more, or another one has its name.
    Gone,
    Failed(String),
}

impl Write {
    pub(super) fn status(pod: &Pod, status: PodStatus) -> Self {
        Self::new(pod, What::Status(Box::new(status)))
    }

    pub(super) fn remove(pod: &Pod) -> Self {
        Self::new(pod, What::Remove)
    }

    fn new(pod: &Pod, what: What) -> Self {
        Self {
            uid: pod.metadata.uid.clone().unwrap_or_default(),
            namespace: pod.metadata.namespace.clone().unwrap_or_default(),
            name: pod.metadata.name.clone().unwrap_or_default(),
            what,
        }
    }

    pub(super) async fn send(self, client: &kube::Client) -> Written {
        let path = format!("/api/v1/namespaces/{}/pods", self.namespace);
        let outcome = match self.what {
            What::Status(status) => report(client, path, &self.name, &self.uid, status).await,
            What::Remove => remove(client, path, &self.name, &self.uid).await,
        };
        Written {
            uid: self.uid,
            outcome,
        }
    }
}

#[derive(Deserialize)]
struct Answer {
    metadata: AnswerMeta,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct AnswerMeta {
    resource_version: Option<String>,
}

async fn report(
    client: &kube::Client,
    path: String,
    name: &str,
    uid: &str,
    status: Box<PodStatus>,
) -> Outcome {
    // Merged by condition type, so the conditions of others stay; the uid guards against a namesake.
    let patch = Patch::Strategic(json!({"metadata": {"uid": uid}, "status": told(&status)}));
    let request =
        match Request::new(path).patch_subresource("status", name, &PatchParams::default(), &patch)
        {
            Ok(request) => request,
            Err(error) => return Outcome::Failed(error.to_string()),
        };
    match client.request_text(request).await {
        Ok(text) => {
            let answer: Option<Answer> = serde_json::from_str(&text).ok();
            let version = answer.and_then(|answer| answer.metadata.resource_version?.parse().ok());
            Outcome::Reported {
                status,
                version: version.unwrap_or_default(),
            }
        }
        Err(error) => failure(&error),
    }
}

/// The status with everything it no longer says spelt out: a merge keeps what is left out, and a
/// condition that came true would keep the reason it once failed for.
fn told(status: &PodStatus) -> Value {
    let mut told = json!(status);
    for name in ["reason", "message", "podIP", "podIPs"] {
        forget_absent(&mut told, name);
    }
    let conditions = told["conditions"].as_array_mut();
    for condition in conditions.into_iter().flatten() {
        forget_absent(condition, "reason");
        forget_absent(condition, "message");
    }
    told
}

fn forget_absent(object: &mut Value, name: &str) {
    if let Some(fields) = object.as_object_mut() {
        fields.entry(name).or_insert(Value::Null);
    }
}

async fn remove(client: &kube::Client, path: String, name: &str, uid: &str) -> Outcome {
    let parameters = DeleteParams {
        grace_period_seconds: Some(0),
        preconditions: Some(Preconditions {
            uid: Some(uid.to_owned()),
            resource_version: None,
        }),
        ..DeleteParams::default()
    };
    let request = match Request::new(path).delete(name, &parameters) {
        Ok(request) => request,
        Err(error) => return Outcome::Failed(error.to_string()),
    };
    match client.request_text(request).await {
        Ok(_) => Outcome::Removed,
        Err(error) => failure(&error),
    }
}

fn failure(error: &kube::Error) -> Outcome {
    match error {
        kube::Error::Api(status) if status.is_not_found() => Outcome::Gone,
        // Another pod has the name. Any other conflict is two writers at once, and is tried again.
        kube::Error::Api(status) if status.is_conflict() && status.message.contains("UID") => {
            Outcome::Gone
        }
        other => Outcome::Failed(other.to_string()),
    }
}

/// Whether the API already says everything `wanted` says. Conditions of others do not matter.
pub(super) fn says(known: Option<&PodStatus>, wanted: &PodStatus) -> bool {
    let Some(known) = known else {
        return false;
    };
    let conditions = |status: &PodStatus| status.conditions.clone().unwrap_or_default();
    let mine = conditions(wanted);
    let theirs: Vec<PodCondition> = conditions(known);
    let agree = mine.iter().all(|condition| theirs.contains(condition));
    agree
        && known.phase == wanted.phase
        && known.reason == wanted.reason
        && known.message == wanted.message
        && known.start_time == wanted.start_time
        && known.pod_ip == wanted.pod_ip
        && known.host_ip == wanted.host_ip
        && known.observed_generation == wanted.observed_generation
        && known.container_statuses == wanted.container_statuses
        && known.init_container_statuses == wanted.init_container_statuses
}
