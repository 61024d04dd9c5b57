//! The one place that writes to the API. It makes no choices: it does what a plan says, in order, and then waits until
//! the caches have seen it, so that the next plan is made from a state that includes it.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use futures::{StreamExt, stream};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::Resource;
use kube::api::{DeleteParams, Patch, PatchParams, PostParams, Preconditions, PropagationPolicy};
use kube::core::Request;
use serde::Deserialize;
use serde::de::DeserializeOwned;

use crate::cache::store::Store;
use crate::cache::{Cache, Key};
use crate::events::Recorder;
use crate::plan::{Action, Encoding, Kind, Note, Outcome, Plan, Propagation, Removal};

/// Why a plan was not carried out to its end. What was done before stays done; the next plan sees it.
#[derive(Debug, thiserror::Error)]
#[error("failed to {verb} {kind} {name}: {source}")]
pub struct ExecuteError {
    pub verb: &'static str,
    pub kind: String,
    pub name: String,
    #[source]
    pub source: Box<kube::Error>,
}

impl ExecuteError {
    /// Somebody else changed the object first: nothing to report, only to plan again.
    pub fn is_conflict(&self) -> bool {
        status_of(&self.source).is_some_and(kube::core::Status::is_conflict)
    }

    /// The API server's own words, without this process's.
    pub fn reason(&self) -> String {
        status_of(&self.source)
            .map_or_else(|| self.source.to_string(), |status| status.message.clone())
    }
}

pub fn status_of(error: &kube::Error) -> Option<&kube::core::Status> {
    match error {
        kube::Error::Api(status) => Some(status),
        _ => None,
    }
}

#[derive(Deserialize)]
struct Written {
    #[serde(default)]
    metadata: ObjectMeta,
}

#[derive(Debug)]
enum Trace {
    Version(Kind, u64),
    Gone(Kind, Key, String),
}

/// The longest a controller waits for its own write to come back before it plans again without it.
const ECHO_LIMIT: Duration = Duration::from_secs(10);
const PARALLEL: usize = 32;

#[derive(Clone)]
pub struct Executor {
    client: kube::Client,
    events: Recorder,
    caches: Arc<BTreeMap<Kind, Arc<Store>>>,
}

impl std::fmt::Debug for Executor {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Executor").finish_non_exhaustive()
    }
}

/// Collects the caches an executor waits on.
#[derive(Debug, Default)]
pub struct Followed(BTreeMap<Kind, Arc<Store>>);

impl Followed {
    pub fn add<K: Resource<DynamicType = ()> + Send + Sync + 'static>(&mut self, cache: &Cache<K>) {
        self.0.insert(Kind::of::<K>(), cache.store().clone());
    }
}

impl Executor {
    pub fn new(client: kube::Client, events: Recorder, caches: Followed) -> Self {
        Self {
            client,
            events,
            caches: Arc::new(caches.0),
        }
    }

    pub fn client(&self) -> &kube::Client {
        &self.client
    }

    /// Carries `plan` out. Creates that follow each other run in batches that double (1, 2, 4 …), so that a quota or an
    /// admission that refuses one is not asked a thousand times; deletes that follow each other run together.
    pub async fn execute(&self, component: &'static str, plan: Plan) -> Result<(), ExecuteError> {
        let mut traces = Vec::new();
        let mut outcome = Ok(());
        let mut actions = plan.actions.into_iter().peekable();
        while let Some(first) = actions.next() {
            let run = kind_of_run(&first);
            let mut batch = vec![first];
            while run > 0 && actions.peek().is_some_and(|next| kind_of_run(next) == run) {
                batch.extend(actions.next());
            }
            outcome = self.run(component, batch, run == 1, &mut traces).await;
            if outcome.is_err() {
                break;
            }
        }
        self.settle(traces).await;
        outcome
    }

    async fn run(
        &self,
        component: &'static str,
        batch: Vec<Action>,
        slow_start: bool,
        traces: &mut Vec<Trace>,
    ) -> Result<(), ExecuteError> {
        let mut width = if slow_start { 1 } else { PARALLEL };
        let mut rest = batch.into_iter();
        loop {
            let now: Vec<Action> = rest.by_ref().take(width).collect();
            if now.is_empty() {
                return Ok(());
            }
            let results: Vec<_> = stream::iter(now)
                .map(|action| self.act(component, action))
                .buffer_unordered(PARALLEL)
                .collect()
                .await;
            let mut failed = None;
            for result in results {
                match result {
                    Ok(trace) => traces.extend(trace),
                    Err(error) => failed = Some(error),
                }
            }
            if let Some(error) = failed {
                return Err(error);
            }
            width = width.saturating_mul(2);
        }
    }

    async fn act(
        &self,
        component: &'static str,
        action: Action,
    ) -> Result<Option<Trace>, ExecuteError> {
        match action {
            Action::Note(note) => {
                self.events.record(component, note);
                Ok(None)
            }
            Action::Create {
                kind,
                namespace,
                object,
                outcome,
            } => {
                self.create(component, kind, namespace.as_deref(), &object, outcome)
                    .await
            }
            Action::Sub {
                kind,
                key,
                sub,
                put,
                object,
            } => {
                let request = Request::new(kind.path(key.scope()));
                let body = bytes_of(&object);
                let params = PostParams::default();
                let request = if put {
                    request.replace_subresource(sub, &key.name, &params, body)
                } else {
                    request.create_subresource(sub, &key.name, &params, body)
                };
                let written = self.send::<serde::de::IgnoredAny>(request).await;
                finish(written, "write", &kind, &key.name).map(|_| None)
            }
            Action::Patch {
                kind,
                key,
                sub,
                encoding,
                patch,
            } => {
                let request = Request::new(kind.path(key.scope()));
                let params = PatchParams::default();
                let patch = match encoding {
                    Encoding::Merge => Patch::Merge(patch),
                    Encoding::Strategic => Patch::Strategic(patch),
                };
                let request = match sub {
                    Some(sub) => request.patch_subresource(sub, &key.name, &params, &patch),
                    None => request.patch(&key.name, &params, &patch),
                };
                match self.send::<Written>(request).await {
                    Err(kube::Error::Api(status)) if status.is_not_found() => Ok(None),
                    written => finish(written, "patch", &kind, &key.name)
                        .map(|written| trace(kind, &written)),
                }
            }
            Action::Delete {
                kind,
                key,
                uid,
                version,
                options,
                outcome,
            } => {
                self.delete(component, kind, key, uid, version, options, outcome)
                    .await
            }
        }
    }

    async fn create(
        &self,
        component: &'static str,
        kind: Kind,
        namespace: Option<&str>,
        object: &serde_json::Value,
        outcome: Option<Outcome>,
    ) -> Result<Option<Trace>, ExecuteError> {
        let request =
            Request::new(kind.path(namespace)).create(&PostParams::default(), bytes_of(object));
        let written = self.send::<Written>(request).await;
        if let Err(kube::Error::Api(status)) = &written
            && refused_by_ending_namespace(status)
        {
            return Ok(None);
        }
        let name = object["metadata"]["name"]
            .as_str()
            .or(object["metadata"]["generateName"].as_str());
        let name = name.unwrap_or_default().to_owned();
        let written = finish(written, "create", &kind, &name);
        if let Some(outcome) = outcome {
            let made = written
                .as_ref()
                .map(|written| written.metadata.name.clone().unwrap_or_default());
            self.tell(component, outcome, made.map_err(ExecuteError::reason));
        }
        written.map(|written| trace(kind, &written))
    }

    #[allow(
        clippy::too_many_arguments,
        reason = "the fields of one action, taken apart by the caller's match"
    )]
    async fn delete(
        &self,
        component: &'static str,
        kind: Kind,
        key: Key,
        uid: String,
        version: Option<String>,
        options: Removal,
        outcome: Option<Outcome>,
    ) -> Result<Option<Trace>, ExecuteError> {
        let params = DeleteParams {
            grace_period_seconds: options.grace_seconds,
            propagation_policy: options.propagation.map(|propagation| match propagation {
                Propagation::Background => PropagationPolicy::Background,
                Propagation::Foreground => PropagationPolicy::Foreground,
                Propagation::Orphan => PropagationPolicy::Orphan,
            }),
            preconditions: Some(Preconditions {
                uid: Some(uid.clone()),
                resource_version: version,
            }),
            ..DeleteParams::default()
        };
        let request = Request::new(kind.path(key.scope())).delete(&key.name, &params);
        let deleted = match self.send::<serde::de::IgnoredAny>(request).await {
            Err(kube::Error::Api(status)) if status.is_not_found() => {
                return Ok(Some(Trace::Gone(kind, key, uid)));
            }
            deleted => finish(deleted, "delete", &kind, &key.name),
        };
        if let Some(outcome) = outcome {
            let made = deleted.as_ref().map(|_| key.name.to_string());
            self.tell(component, outcome, made.map_err(ExecuteError::reason));
        }
        deleted.map(|_| Some(Trace::Gone(kind, key, uid)))
    }

    fn tell(&self, component: &'static str, outcome: Outcome, made: Result<String, String>) {
        let (warning, (reason, text), subject) = match made {
            Ok(name) => (false, outcome.done, name),
            Err(error) => (true, outcome.failed, error),
        };
        let message = text.replacen("{}", &subject, 1);
        self.events.record(
            component,
            Note {
                about: outcome.about,
                warning,
                reason: reason.to_owned(),
                message,
            },
        );
    }

    async fn send<T: DeserializeOwned>(
        &self,
        request: Result<http::Request<Vec<u8>>, kube::core::request::Error>,
    ) -> Result<T, kube::Error> {
        self.client
            .request(request.map_err(kube::Error::BuildRequest)?)
            .await
    }

    /// Waits until every write is visible in its cache.
    async fn settle(&self, traces: Vec<Trace>) {
        let echoes = async {
            for trace in traces {
                match trace {
                    Trace::Version(kind, version) => {
                        if let Some(cache) = self.caches.get(&kind) {
                            cache.seen(version).await;
                        }
                    }
                    Trace::Gone(kind, key, uid) => {
                        if let Some(cache) = self.caches.get(&kind) {
                            cache.gone(&key, &uid).await;
                        }
                    }
                }
            }
        };
        // A lost echo (a watch being re-established) may delay a plan, never stop it.
        let _ = tokio::time::timeout(ECHO_LIMIT, echoes).await;
    }
}

fn kind_of_run(action: &Action) -> u8 {
    match action {
        Action::Create { .. } => 1,
        Action::Delete { .. } => 2,
        Action::Note(_) => 3,
        Action::Sub { .. } | Action::Patch { .. } => 0,
    }
}

fn bytes_of(value: &serde_json::Value) -> Vec<u8> {
    value.to_string().into_bytes()
}

fn trace(kind: Kind, written: &Written) -> Option<Trace> {
    let version = written.metadata.resource_version.as_deref()?.parse().ok()?;
    Some(Trace::Version(kind, version))
}

fn finish<T>(
    written: Result<T, kube::Error>,
    verb: &'static str,
    kind: &Kind,
    name: &str,
) -> Result<T, ExecuteError> {
    written.map_err(|source| ExecuteError {
        verb,
        kind: kind.kind.clone(),
        name: name.to_owned(),
        source: Box::new(source),
    })
}

/// Creating inside a namespace that is being deleted is refused with this cause; nobody needs to hear of it.
fn refused_by_ending_namespace(status: &kube::core::Status) -> bool {
    status.is_forbidden()
        && status.details.as_ref().is_some_and(|details| {
            details
                .causes
                .iter()
                .any(|cause| cause.reason == "NamespaceTerminating")
        })
}
