//! The one executor: it carries out writes in order and chooses nothing.
//!
//! Every request has a deadline. Nothing is repeated here: a pass that failed is planned again from
//! what is then true, because a request without an answer may have been carried out.

mod event;

use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::core::v1::Node;
use kube::api::{DeleteParams, ListParams, Patch, PatchParams, PostParams, Preconditions};
use kube::core::{ApiResource, DynamicObject};
use kube::{Api, Client};
use serde_json::{Value, json};
use thiserror::Error;

use crate::audit::Pass;
use crate::clock::Clock;
use crate::metrics::Metrics;
use crate::plan::{Change, Note, Target, Want, Write};

pub(crate) use event::Regarding;

/// Longest time one request may take.
const DEADLINE: Duration = Duration::from_secs(15);

#[derive(Debug, Error)]
pub(crate) enum ApplyError {
    #[error("failed to {verb} {resource} {name}")]
    Refused {
        verb: &'static str,
        resource: String,
        name: String,
        #[source]
        source: Box<kube::Error>,
    },
    #[error("failed to act on {resource} {name}: it is not as it was last seen")]
    Outdated { resource: String, name: String },
    #[error("failed to {verb} {resource} {name} within {} s", DEADLINE.as_secs())]
    Late {
        verb: &'static str,
        resource: String,
        name: String,
    },
}

impl ApplyError {
    /// The API server's own answer, if there was one.
    pub(crate) fn status(&self) -> Option<&kube::core::Status> {
        match self {
            Self::Refused { source, .. } => match &**source {
                kube::Error::Api(status) => Some(status),
                _ => None,
            },
            Self::Outdated { .. } | Self::Late { .. } => None,
        }
    }

    /// Somebody else changed the object first: look again, nothing is wrong.
    pub(crate) fn is_conflict(&self) -> bool {
        matches!(self, Self::Outdated { .. })
            || self.status().is_some_and(|status| status.code == 409)
    }
}

/// What became of a write that did not fail.
enum Outcome {
    /// It was made; with the object as it then was, unless that is gone.
    Done(Option<Box<DynamicObject>>),
    /// Somebody did it before: there was nothing to write, and nothing to record.
    FoundDone,
}

/// Carries out writes.
pub(crate) struct Executor {
    client: Client,
    clock: Clock,
    metrics: Arc<Metrics>,
    events: event::Recorder,
}

impl std::fmt::Debug for Executor {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.write_str("Executor")
    }
}

impl Executor {
    pub(crate) fn new(client: Client, clock: Clock, metrics: Arc<Metrics>, identity: &str) -> Self {
        Self {
            client,
            clock,
            metrics,
            events: event::Recorder::new(identity),
        }
    }

    /// Carries out one write. `Ok(None)`: it was done already (the object exists, or is gone).
    pub(crate) async fn write(
        &self,
        pass: &Pass,
        write: &Write,
    ) -> Result<Option<DynamicObject>, ApplyError> {
        let (verb, outcome, what) = match &write.what {
            Change::NodeGone(node) => ("find", self.node_gone(node).await, node.clone()),
            Change::Unchanged(target) => (
                "find",
                self.unchanged(target).await,
                name(&target.resource, &target.name),
            ),
            Change::Create(want) => (
                "create",
                self.create(pass, want).await,
                name(&want.resource, &want.name),
            ),
            Change::Merge(target, patch) => (
                "patch",
                self.merge(pass, target, patch).await,
                name(&target.resource, &target.name),
            ),
            Change::Delete(target) => (
                "delete",
                self.delete(target).await,
                name(&target.resource, &target.name),
            ),
        };
        match outcome? {
            Outcome::Done(object) => {
                pass.record(verb, &what, &write.why);
                Ok(object.map(|object| *object))
            }
            Outcome::FoundDone => Ok(None),
        }
    }

    /// An object as the API server has it now, for beliefs that cannot be acted on and taken back: a
    /// watch may be behind. Asked as a list of one name, which needs no right that watching does not.
    pub(crate) async fn find(
        &self,
        resource: &ApiResource,
        namespace: &str,
        name: &str,
    ) -> Result<Option<DynamicObject>, ApplyError> {
        let api = if namespace.is_empty() {
            Api::all_with(self.client.clone(), resource)
        } else {
            self.api(resource, namespace)
        };
        let one = ListParams::default().fields(&format!("metadata.name={name}"));
        let listed = self
            .answer("list", &resource.plural, name, api.list(&one))
            .await?;
        Ok(listed.items.into_iter().next())
    }

    async fn node_gone(&self, name: &str) -> Result<Outcome, ApplyError> {
        let resource = ApiResource::erase::<Node>(&());
        match self.find(&resource, "", name).await? {
            None => Ok(Outcome::FoundDone),
            Some(_) => Err(ApplyError::Outdated {
                resource: resource.plural,
                name: name.to_owned(),
            }),
        }
    }

    async fn unchanged(&self, target: &Target) -> Result<Outcome, ApplyError> {
        let found = self
            .find(&target.resource, &target.namespace, &target.name)
            .await?;
        let same = found.is_some_and(|found| {
            found.metadata.uid.as_ref() == Some(&target.uid)
                && found.metadata.resource_version.as_ref() == Some(&target.resource_version)
        });
        if same {
            return Ok(Outcome::FoundDone);
        }
        Err(ApplyError::Outdated {
            resource: target.resource.plural.clone(),
            name: target.name.clone(),
        })
    }

    /// Writes the whole status of one version of an object, as its only owner.
    pub(crate) async fn status(
        &self,
        pass: &Pass,
        target: &Target,
        status: &Value,
        why: &str,
    ) -> Result<DynamicObject, ApplyError> {
        let body = json!({
            "apiVersion": target.resource.api_version,
            "kind": target.resource.kind,
            "metadata": {
                "name": target.name,
                "namespace": target.namespace,
                "uid": target.uid,
                // A status computed from an older version must not replace a newer one: this is
                // what makes a second leader harmless.
                "resourceVersion": target.resource_version,
            },
            "status": status,
        });
        let params = PatchParams::apply(pass.manager).force();
        let api = self.api(&target.resource, &target.namespace);
        let patch = Patch::Apply(&body);
        let call = api.patch_status(&target.name, &params, &patch);
        let written = self
            .call("patch", &target.resource, "/status", &target.name, call)
            .await?;
        pass.record(
            "patch",
            &format!("{}/status", name(&target.resource, &target.name)),
            why,
        );
        Ok(written)
    }

    /// Tells people. A lost Event is logged and otherwise nothing: the status has the truth.
    pub(crate) async fn tell(&self, pass: &Pass, about: &Regarding, note: &Note) {
        let told = self.events.publish(self, about, note).await;
        match told {
            Ok(()) => pass.record("create", &format!("event {}", note.reason), &note.text),
            Err(error) => {
                tracing::warn!(reason = note.reason, error = %chain(&error), "failed to publish event");
            }
        }
    }

    async fn create(&self, pass: &Pass, want: &Want) -> Result<Outcome, ApplyError> {
        let api = self.api(&want.resource, &want.namespace);
        let params = PostParams {
            field_manager: Some(pass.manager.to_owned()),
            ..Default::default()
        };
        let call = api.create(&params, &want.body);
        match self
            .call("create", &want.resource, "", &want.name, call)
            .await
        {
            Ok(made) => Ok(Outcome::Done(Some(Box::new(made)))),
            Err(error) if is_reason(&error, "AlreadyExists") => Ok(Outcome::FoundDone),
            Err(error) => Err(error),
        }
    }

    async fn merge(
        &self,
        pass: &Pass,
        target: &Target,
        patch: &Value,
    ) -> Result<Outcome, ApplyError> {
        let api = self.api(&target.resource, &target.namespace);
        let mut body = patch.clone();
        body["metadata"]["uid"] = json!(target.uid);
        body["metadata"]["resourceVersion"] = json!(target.resource_version);
        let params = PatchParams {
            field_manager: Some(pass.manager.to_owned()),
            ..Default::default()
        };
        let patch = Patch::Merge(&body);
        let call = api.patch(&target.name, &params, &patch);
        self.call("patch", &target.resource, "", &target.name, call)
            .await
            .map(|object| Outcome::Done(Some(Box::new(object))))
    }

    async fn delete(&self, target: &Target) -> Result<Outcome, ApplyError> {
        let api = self.api(&target.resource, &target.namespace);
        let params = DeleteParams {
            preconditions: Some(Preconditions {
                uid: Some(target.uid.clone()),
                resource_version: Some(target.resource_version.clone()),
            }),
            ..DeleteParams::background()
        };
        let call = async { api.delete(&target.name, &params).await.map(|_| ()) };
        match self
            .call("delete", &target.resource, "", &target.name, call)
            .await
        {
            Ok(()) => Ok(Outcome::Done(None)),
            Err(error) if error.status().is_some_and(|status| status.code == 404) => {
                Ok(Outcome::FoundDone)
            }
            Err(error) => Err(error),
        }
    }

    fn api(&self, resource: &ApiResource, namespace: &str) -> Api<DynamicObject> {
        Api::namespaced_with(self.client.clone(), namespace, resource)
    }

    /// Runs one write under its deadline and counts it.
    async fn call<T>(
        &self,
        verb: &'static str,
        resource: &ApiResource,
        part: &'static str,
        name: &str,
        call: impl Future<Output = Result<T, kube::Error>>,
    ) -> Result<T, ApplyError> {
        let resource = format!("{}{part}", resource.plural);
        self.metrics.wrote(verb, &resource);
        self.answer(verb, &resource, name, call).await
    }

    /// Runs one request under its deadline.
    async fn answer<T>(
        &self,
        verb: &'static str,
        resource: &str,
        name: &str,
        call: impl Future<Output = Result<T, kube::Error>>,
    ) -> Result<T, ApplyError> {
        match tokio::time::timeout(DEADLINE, call).await {
            Ok(Ok(done)) => Ok(done),
            Ok(Err(source)) => Err(ApplyError::Refused {
                verb,
                resource: resource.to_owned(),
                name: name.to_owned(),
                source: Box::new(source),
            }),
            Err(_) => Err(ApplyError::Late {
                verb,
                resource: resource.to_owned(),
                name: name.to_owned(),
            }),
        }
    }
}

fn is_reason(error: &ApplyError, reason: &str) -> bool {
    error.status().is_some_and(|status| status.reason == reason)
}

fn name(resource: &ApiResource, name: &str) -> String {
    format!("{} {name}", resource.plural)
}

/// An error with its causes, leaving out what its parent already quotes.
pub(crate) fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(inner) = cause {
        let part = inner.to_string();
        if !text.contains(&part) {
            text.push_str(": ");
            text.push_str(&part);
        }
        cause = inner.source();
    }
    text
}
