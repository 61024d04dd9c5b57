//! One action, one request: how each kind of action is put to the API server and what its answer means.

use std::sync::Arc;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::api::{
    DeleteParams, ListParams, Patch, PatchParams, PostParams, Preconditions, PropagationPolicy,
};
use kube::core::Request;
use serde::Deserialize;
use serde_json::{Value, json};

use super::{ExecuteError, Executor, OwnWrites, Trace, applied};
use crate::cache::Key;
use crate::cache::store::{self, Entry};
use crate::pass::Pass;
use crate::plan::{
    Action, Encoding, Kind, Note, Outcome, Premise, Propagation, Removal, Seen, Status,
};

type Built = Result<http::Request<Vec<u8>>, kube::core::request::Error>;

/// As much of an answer as every write has.
#[derive(Default, Deserialize)]
struct Written {
    #[serde(default)]
    metadata: ObjectMeta,
}

/// Who asks, and why: goes with every request.
struct Cause<'a> {
    pass: &'a Pass,
    why: &'a str,
}

/// What a request is about, for errors, counters and the audit trail.
struct About<'a> {
    verb: &'static str,
    kind: &'a Kind,
    sub: Option<&'static str>,
    name: &'a str,
}

impl Executor {
    /// Asks the API server whether a premise holds, as a list of one name: that needs no right that watching does not.
    pub(super) async fn check(&self, premise: &Premise) -> Result<(), ExecuteError> {
        let (kind, key) = match premise {
            Premise::Unchanged(seen) | Premise::Shows(seen, _) => (&seen.kind, &seen.key),
            Premise::Absent(kind, key) => (kind, key),
        };
        let one = ListParams::default().fields(&format!("metadata.name={}", key.name));
        let about = About {
            verb: "find",
            kind,
            sub: None,
            name: &key.name,
        };
        let text = self
            .answer(&about, Request::new(kind.path(key.scope())).list(&one))
            .await?;
        let list: Value = serde_json::from_str(&text).unwrap_or_default();
        let found = list["items"].get(0);
        let holds = match premise {
            Premise::Absent(..) => found.is_none(),
            Premise::Unchanged(seen) => found.is_some_and(|found| {
                found["metadata"]["uid"] == json!(seen.uid)
                    && found["metadata"]["resourceVersion"] == json!(seen.version)
            }),
            Premise::Shows(seen, values) => found.is_some_and(|found| {
                let mut values = values.iter();
                found["metadata"]["uid"] == json!(seen.uid)
                    && values.all(|(at, value)| found.pointer(at).unwrap_or(&Value::Null) == value)
            }),
        };
        if holds {
            return Ok(());
        }
        let message = "it is not as it was last seen";
        let status = kube::core::Status::failure(message, "Conflict").with_code(409);
        Err(about.failed(kube::Error::Api(Box::new(status))))
    }

    pub(super) async fn act(
        &self,
        pass: &Pass,
        why: &str,
        action: Action,
    ) -> Result<Option<Trace>, ExecuteError> {
        let cause = Cause { pass, why };
        match action {
            Action::Note(note) => {
                let what = format!("event {}", note.reason);
                self.observer.wrote(pass, "create", &what, &note.message);
                self.events.record(pass.component, note);
                Ok(None)
            }
            Action::Create {
                kind,
                namespace,
                object,
                or_found,
                outcome,
            } => {
                let key = Key::new(namespace.as_deref().unwrap_or_default(), "");
                self.create(&cause, kind, &key, &object, or_found, outcome)
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
                let (body, params) = (bytes_of(&object), PostParams::default());
                let (verb, request) = if put {
                    let request = request.replace_subresource(sub, &key.name, &params, body);
                    ("update", request)
                } else {
                    let request = request.create_subresource(sub, &key.name, &params, body);
                    ("create", request)
                };
                let about = About::of(verb, &kind, Some(sub), &key.name);
                match self.write(&cause, &about, request).await {
                    // Whoever is to go has gone, and another of its name is not meant.
                    Err(error) if sub == EVICTION && is_gone(&error) => Ok(None),
                    written => written.map(|_| None),
                }
            }
            Action::Patch {
                kind,
                key,
                sub,
                encoding,
                patch,
            } => {
                let patch = match encoding {
                    Encoding::Merge => Patch::Merge(patch),
                    Encoding::Strategic => Patch::Strategic(patch),
                };
                let params = PatchParams {
                    field_manager: pass.manager.map(str::to_owned),
                    ..PatchParams::default()
                };
                self.patch(&cause, kind, &key, sub, &params, &patch).await
            }
            Action::Delete {
                kind,
                key,
                uid,
                version,
                options,
                outcome,
            } => {
                let seen = Seen {
                    kind,
                    key,
                    uid,
                    version: version.unwrap_or_default(),
                };
                self.delete(&cause, seen, options, outcome).await
            }
            Action::Apply {
                kind,
                key,
                manager,
                object,
            } => self.apply(&cause, (kind, key, manager), object).await,
            Action::Status(status) => self.status(&cause, *status).await,
        }
    }

    async fn create(
        &self,
        cause: &Cause<'_>,
        kind: Kind,
        key: &Key,
        object: &Value,
        or_found: bool,
        outcome: Option<Outcome>,
    ) -> Result<Option<Trace>, ExecuteError> {
        let name = object["metadata"]["name"]
            .as_str()
            .or(object["metadata"]["generateName"].as_str());
        let name = name.unwrap_or_default();
        let about = About::of("create", &kind, None, name);
        let params = PostParams {
            field_manager: cause.pass.manager.map(str::to_owned),
            ..PostParams::default()
        };
        let request = Request::new(kind.path(key.scope())).create(&params, bytes_of(object));
        let written = self.write(cause, &about, request).await;
        if let Err(error) = &written
            && let Some(status) = super::status_of(&error.source)
            && (refused_by_ending_namespace(status) || (or_found && status.is_already_exists()))
        {
            return Ok(None);
        }
        if let Some(outcome) = outcome {
            let made = written
                .as_ref()
                .map(|written| written.metadata.name.clone().unwrap_or_default());
            self.tell(cause.pass, outcome, made.map_err(ExecuteError::reason));
        }
        written.map(|written| trace(kind, &written))
    }

    async fn patch(
        &self,
        cause: &Cause<'_>,
        kind: Kind,
        key: &Key,
        sub: Option<&'static str>,
        params: &PatchParams,
        patch: &Patch<Value>,
    ) -> Result<Option<Trace>, ExecuteError> {
        let request = Request::new(kind.path(key.scope()));
        let request = match sub {
            Some(sub) => request.patch_subresource(sub, &key.name, params, patch),
            None => request.patch(&key.name, params, patch),
        };
        let about = About::of("patch", &kind, sub, &key.name);
        match self.write(cause, &about, request).await {
            Err(error) if is_not_found(&error) => Ok(None),
            written => written.map(|written| trace(kind, &written)),
        }
    }

    async fn apply(
        &self,
        cause: &Cause<'_>,
        (kind, key, manager): (Kind, Key, &'static str),
        object: Value,
    ) -> Result<Option<Trace>, ExecuteError> {
        let wanted = applied::marked(manager, object);
        let child = (kind.clone(), key.clone(), manager);
        let shown = self.shown(&kind, &key);
        let holds = |shown| self.memory.applied.holds(&child, &wanted, shown);
        if shown.iter().any(holds) {
            return Ok(None);
        }
        let params = PatchParams::apply(manager).force();
        let request = Request::new(kind.path(key.scope()));
        let request = request.patch(&key.name, &params, &Patch::Apply(&wanted));
        let about = About::of("patch", &kind, None, &key.name);
        let written = self.write(cause, &about, request).await?;
        if let Some(version) = written.metadata.resource_version.as_deref() {
            self.memory.applied.left(child, &wanted, version);
        }
        Ok(trace(kind, &written))
    }

    async fn status(
        &self,
        cause: &Cause<'_>,
        status: Status,
    ) -> Result<Option<Trace>, ExecuteError> {
        let Status {
            seen,
            manager,
            before,
            after,
        } = status;
        let object = (seen.kind.clone(), seen.key.clone(), manager);
        let contests = &self.memory.contests;
        if let Some(until) = contests.hold(&object, &before, self.clock.now()) {
            return Ok(Some(Trace::Held(until)));
        }
        let mut meta = json!({
            "name": *seen.key.name,
            "uid": seen.uid,
            // A status computed from an older version must not replace a newer one: this is what makes a second
            // leader harmless.
            "resourceVersion": seen.version,
        });
        if let Some(namespace) = seen.key.scope() {
            meta["namespace"] = json!(namespace);
        }
        let body = json!({
            "apiVersion": seen.kind.api_version,
            "kind": seen.kind.kind,
            "metadata": meta,
            "status": after,
        });
        let params = PatchParams::apply(manager).force();
        let request = Request::new(seen.kind.path(seen.key.scope()));
        let request =
            request.patch_subresource("status", &seen.key.name, &params, &Patch::Apply(&body));
        let about = About::of("patch", &seen.kind, Some("status"), &seen.key.name);
        let written = self.write(cause, &about, request).await?;
        self.observer.status_written(cause.pass, &before, &after);
        contests.wrote(object, &after);
        Ok(trace(seen.kind, &written))
    }

    async fn delete(
        &self,
        cause: &Cause<'_>,
        seen: Seen,
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
                uid: Some(seen.uid.clone()),
                resource_version: (!seen.version.is_empty()).then(|| seen.version.clone()),
            }),
            ..DeleteParams::default()
        };
        let Seen { kind, key, uid, .. } = seen;
        let request = Request::new(kind.path(key.scope())).delete(&key.name, &params);
        let about = About::of("delete", &kind, None, &key.name);
        let deleted = match self.write(cause, &about, request).await {
            Err(error) if is_not_found(&error) => {
                self.ended(&kind, &key, &uid);
                return Ok(Some(Trace::Gone(kind, key, uid)));
            }
            deleted => deleted,
        };
        if let Some(outcome) = outcome {
            let made = deleted.as_ref().map(|_| key.name.to_string());
            self.tell(cause.pass, outcome, made.map_err(ExecuteError::reason));
        }
        // An object that is only marked comes back as itself; one that is gone as a status, which has no uid.
        if deleted?.metadata.uid.is_none() {
            self.ended(&kind, &key, &uid);
        }
        Ok(Some(Trace::Gone(kind, key, uid)))
    }

    /// The newest state of an object that is known, as each cache that has it keeps it.
    fn shown(&self, kind: &Kind, key: &Key) -> Vec<Value> {
        let caches = self.caches_of(kind).iter();
        let found = caches.filter_map(|cache| Some((cache, cache.store.get(key)?)));
        let found: Vec<_> = found.collect();
        let version = |entry: &Arc<dyn Entry>| store::version_of(&**entry);
        let newest = found.iter().map(|(_, entry)| version(entry)).max();
        let newest = found
            .iter()
            .filter(|(_, entry)| Some(version(entry)) == newest);
        newest
            .map(|(cache, entry)| (cache.encode)(&**entry))
            .collect()
    }

    fn ended(&self, kind: &Kind, key: &Key, uid: &str) {
        if self.own_writes == OwnWrites::TakenIn {
            for cache in self.caches_of(kind) {
                cache.store.take_own_end(key, uid);
            }
        }
    }

    fn tell(&self, pass: &Pass, outcome: Outcome, made: Result<String, String>) {
        let (warning, (reason, text), subject) = match made {
            Ok(name) => (false, outcome.done, name),
            Err(error) => (true, outcome.failed, error),
        };
        let note = Note {
            about: outcome.about,
            warning,
            reason: reason.to_owned(),
            action: None,
            message: text.replacen("{}", &subject, 1),
        };
        self.events.record(pass.component, note);
    }

    /// Sends one write, records it, and takes its answer into the cache of the kind.
    async fn write(
        &self,
        cause: &Cause<'_>,
        about: &About<'_>,
        request: Built,
    ) -> Result<Written, ExecuteError> {
        let resource = about.resource();
        self.observer.sends(about.verb, &resource);
        let text = self.answer(about, request).await?;
        let what = format!("{resource} {}", about.name);
        self.observer
            .wrote(cause.pass, about.verb, &what, cause.why);
        if self.own_writes == OwnWrites::TakenIn {
            for cache in self.caches_of(about.kind) {
                if let Ok(entry) = (cache.decode)(&text) {
                    cache.store.take_own(entry);
                }
            }
        }
        // A write whose answer cannot be read was made all the same; the watch brings what it made.
        Ok(serde_json::from_str(&text).unwrap_or_default())
    }

    /// Runs one request under its deadline.
    async fn answer(&self, about: &About<'_>, request: Built) -> Result<String, ExecuteError> {
        let request = request.map_err(|error| about.failed(kube::Error::BuildRequest(error)))?;
        let call = self.client.request_text(request);
        if let Ok(answer) = tokio::time::timeout(self.deadline, call).await {
            answer.map_err(|error| about.failed(error))
        } else {
            let late = format!("no answer within {} s", self.deadline.as_secs());
            Err(about.failed(kube::Error::Service(late.into())))
        }
    }
}

impl<'a> About<'a> {
    fn of(verb: &'static str, kind: &'a Kind, sub: Option<&'static str>, name: &'a str) -> Self {
        Self {
            verb,
            kind,
            sub,
            name,
        }
    }

    fn resource(&self) -> String {
        match self.sub {
            Some(sub) => format!("{}/{sub}", self.kind.plural),
            None => self.kind.plural.clone(),
        }
    }

    fn failed(&self, source: kube::Error) -> ExecuteError {
        ExecuteError {
            verb: self.verb,
            kind: self.kind.kind.clone(),
            sub: self.sub,
            name: self.name.to_owned(),
            source: Box::new(source),
        }
    }
}

fn bytes_of(value: &Value) -> Vec<u8> {
    value.to_string().into_bytes()
}

fn trace(kind: Kind, written: &Written) -> Option<Trace> {
    let version = written.metadata.resource_version.as_deref()?.parse().ok()?;
    Some(Trace::Version(kind, version))
}

/// The subresource that asks a pod to go.
const EVICTION: &str = "eviction";

/// Whether a pod that was asked to go is not there any more.
fn is_gone(error: &ExecuteError) -> bool {
    let other = super::status_of(&error.source).is_some_and(|status| {
        status.is_conflict() && status.message.contains("UID in precondition")
    });
    is_not_found(error) || other
}

fn is_not_found(error: &ExecuteError) -> bool {
    super::status_of(&error.source).is_some_and(kube::core::Status::is_not_found)
}

/// Creating inside a namespace that is being deleted is refused with this cause; it needs no report.
fn refused_by_ending_namespace(status: &kube::core::Status) -> bool {
    status.is_forbidden()
        && status.details.as_ref().is_some_and(|details| {
            let mut causes = details.causes.iter();
            causes.any(|cause| cause.reason == "NamespaceTerminating")
        })
}
