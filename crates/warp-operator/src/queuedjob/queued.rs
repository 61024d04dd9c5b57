//! An object of others as the queue sees it, whatever its kind: read once by the row of its kind. Pure data.

use std::borrow::Cow;
use std::fmt::{self, Debug};
use std::marker::PhantomData;
use std::ops::Deref;
use std::sync::Arc;

use jiff::Timestamp;
use k8s_openapi::NamespaceResourceScope;
use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::core::v1::{ObjectReference, PodSpec};
use kube::core::ObjectMeta;
use kube::{Resource, ResourceExt};
use serde::de::{DeserializeOwned, Error};
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_json::{Value, json};
use warp_api::label;
use warp_api::workload::EstimatedStart;
use warp_runtime::pass::Pass;
use warp_runtime::plan::{Kind, Plan, Premise, Seen, about_kind, as_json};

use super::kinds::{End, JOB, KINDS, QueuedKind};
use crate::placement;

/// One object.
#[derive(Clone, Debug)]
pub struct Queued {
    pub kind: &'static QueuedKind,
    pub metadata: ObjectMeta,
    /// What it says of being held.
    pub(super) suspend: Option<bool>,
    /// Its controller says that it has suspended it.
    pub(super) seen_suspended: bool,
    /// Another than its own controller runs it.
    pub(super) managed_elsewhere: bool,
    pub end: Option<End>,
    /// When it last began to run.
    pub(super) started: Option<Timestamp>,
    pub ready: i64,
    /// Pods that have ended, as a Job counts them.
    pub(super) succeeded: usize,
    pub(super) failed: usize,
    pub(super) longest_seconds: Option<i64>,
    pub(super) groups: Vec<Group>,
    /// What of it cannot be queued.
    pub(super) problem: Option<String>,
    /// All it says, where places are written into lists of templates, which can be replaced only as a whole.
    pub(super) spec: Option<Value>,
}

/// Pods made from one template.
#[derive(Clone, Debug)]
pub(super) struct Group {
    /// Where the template is, as a JSON pointer.
    pub(super) at: String,
    pub(super) pods: usize,
    pub(super) completions: Option<usize>,
    pub(super) meta: ObjectMeta,
    pub(super) pod: PodSpec,
}

impl QueuedKind {
    /// Reads an object of this kind.
    pub fn read(&'static self, object: &Value) -> Result<Queued, serde_json::Error> {
        let metadata: ObjectMeta = part(&object["metadata"])?;
        let mut problem = (self.problem)(object).map(str::to_owned);
        let mut groups = Vec::new();
        for template in (self.templates)(object) {
            let found = object.pointer(&template.at).unwrap_or(&Value::Null);
            let read = || Ok((part(&found["metadata"])?, part(&found["spec"])?));
            let read: Result<(ObjectMeta, PodSpec), serde_json::Error> = read();
            match read {
                Ok((meta, pod)) => groups.push(Group {
                    at: template.at,
                    pods: template.pods,
                    completions: template.completions,
                    meta,
                    pod,
                }),
                Err(error) => {
                    let at = template.at.trim_start_matches('/').replace('/', ".");
                    problem.get_or_insert(format!("its pod template {at} cannot be read: {error}"));
                }
            }
        }
        let number = |at: &str| object.pointer(at).and_then(Value::as_i64);
        let size = |at: &str| usize::try_from(number(at).unwrap_or(0)).unwrap_or(0);
        let of_pod = groups
            .first()
            .and_then(|group| group.pod.active_deadline_seconds)
            .filter(|_| self.is_job());
        let deadline = self.deadline.and_then(number);
        let manager = object.pointer(self.managed_by).and_then(Value::as_str);
        let time = object.pointer("/status/startTime").and_then(Value::as_str);
        Ok(Queued {
            kind: self,
            metadata,
            suspend: object.pointer(self.suspend).and_then(Value::as_bool),
            seen_suspended: (self.is_suspended)(object),
            managed_elsewhere: manager.is_some_and(|manager| manager != self.manager),
            end: (self.end)(object),
            started: time.and_then(|time| time.parse().ok()),
            ready: (self.ready)(object),
            succeeded: size("/status/succeeded"),
            failed: size("/status/failed"),
            longest_seconds: deadline.into_iter().chain(of_pod).min(),
            groups,
            problem,
            spec: (!self.is_job()).then(|| object["spec"].clone()),
        })
    }

    /// Whether it is the one kind the cluster itself runs.
    pub fn is_job(&self) -> bool {
        self.kind == JOB.kind
    }

    fn api_kind(&self) -> Kind {
        Kind {
            api_version: self.api_version.to_owned(),
            kind: self.kind.to_owned(),
            plural: self.plural.to_owned(),
        }
    }
}

/// A part of an object; what is not there is its default.
fn part<T: DeserializeOwned + Default>(value: &Value) -> Result<T, serde_json::Error> {
    if value.is_null() {
        return Ok(T::default());
    }
    T::deserialize(value)
}

impl Queued {
    /// A Job as the queue sees it.
    pub fn of_job(job: &Job) -> Option<Self> {
        JOB.read(&as_json(job)).ok()
    }

    pub fn suspended(&self) -> bool {
        self.suspend == Some(true)
    }

    /// Whether it has ended, well or badly.
    pub fn over(&self) -> bool {
        self.end.as_ref().is_some_and(|end| *end != End::Soon)
    }

    /// When it is expected to start, as it was told.
    pub fn estimated_start(&self) -> Option<EstimatedStart> {
        let said = self.annotations().get(label::ESTIMATED_START)?;
        serde_json::from_str(said).ok()
    }

    /// Its kind and name, as people write them.
    pub fn title(&self) -> String {
        format!("{}/{}", self.kind.singular, self.name_any())
    }

    /// Whether it asks to be queued; none when what it says cannot be read.
    pub fn asks(&self) -> Option<bool> {
        match self.labels().get(label::QUEUE).map(String::as_str) {
            Some("true") => Some(true),
            Some("false") | None => Some(false),
            Some(_) => None,
        }
    }

    pub(super) fn seen(&self) -> Seen {
        Seen::of_kind(self.kind.api_kind(), &self.metadata)
    }

    pub(super) fn about(&self) -> ObjectReference {
        about_kind(&self.kind.api_kind(), &self.metadata)
    }

    /// Changes fields of exactly this version of it.
    pub(super) fn merge(&self, plan: &mut Plan, patch: Value) {
        plan.merge_seen(self.seen(), None, patch);
    }

    /// Goes on only if it still says the same of these: whether it is there, held, and what else `pointers` names.
    pub(super) fn only_if_shows(&self, plan: &mut Plan, pointers: &[(&'static str, Value)]) {
        let going = as_json(&self.metadata.deletion_timestamp);
        let mut shows = vec![
            ("/metadata/deletionTimestamp", going),
            (self.kind.suspend, json!(self.suspend)),
        ];
        shows.extend(pointers.iter().cloned());
        plan.premises.push(Premise::Shows(self.seen(), shows));
    }

    /// What the scheduler does on its behalf.
    pub(super) fn pass(&self, correlation: String) -> Pass {
        let (component, manager) = (placement::NAME, placement::MANAGER);
        let object = (self.kind.kind, &self.metadata);
        Pass::about(component, manager, object, correlation)
    }

    /// The change that holds or resumes it.
    pub fn hold(&self, held: bool) -> Value {
        let fields = self.kind.suspend.split('/').skip(1);
        let fields: Vec<&str> = fields.collect();
        let nested = |inner, field: &&str| json!({*field: inner});
        fields.iter().rev().fold(json!(held), nested)
    }

    /// Whether a controller owner is one whose own objects are queued, or of a kind of ours.
    pub(super) fn is_of_another(&self) -> bool {
        self.owner_references().iter().any(|owner| {
            let group = owner.api_version.split_once('/').map(|(group, _)| group);
            let queued = KINDS.iter().any(|kind| {
                kind.kind == owner.kind
                    && group == kind.api_version.split_once('/').map(|(group, _)| group)
            });
            owner.controller == Some(true) && (queued || group == Some(warp_api::GROUP))
        })
    }
}

impl Resource for Queued {
    type DynamicType = &'static QueuedKind;
    type Scope = NamespaceResourceScope;

    fn kind(kind: &Self::DynamicType) -> Cow<'_, str> {
        kind.kind.into()
    }

    fn group(kind: &Self::DynamicType) -> Cow<'_, str> {
        group_version(kind).0.into()
    }

    fn version(kind: &Self::DynamicType) -> Cow<'_, str> {
        group_version(kind).1.into()
    }

    fn plural(kind: &Self::DynamicType) -> Cow<'_, str> {
        kind.plural.into()
    }

    fn meta(&self) -> &ObjectMeta {
        &self.metadata
    }

    fn meta_mut(&mut self) -> &mut ObjectMeta {
        &mut self.metadata
    }
}

fn group_version(kind: &QueuedKind) -> (&'static str, &'static str) {
    kind.api_version.split_once('/').unwrap_or_default()
}

/// A kind as a type, for caches and controllers, of which there is one for each.
pub(crate) trait Row: Debug + Send + Sync + 'static {
    const KIND: &'static QueuedKind;
}

/// An object of the kind `R`.
pub(crate) struct Of<R>(pub(super) Arc<Queued>, PhantomData<R>);

impl<R> Debug for Of<R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        Debug::fmt(&self.0, f)
    }
}

impl<R> Clone for Of<R> {
    fn clone(&self) -> Self {
        Self(Arc::clone(&self.0), PhantomData)
    }
}

impl<R> Deref for Of<R> {
    type Target = Queued;

    fn deref(&self) -> &Queued {
        &self.0
    }
}

impl<R> Of<R> {
    pub(crate) fn get_mut(&mut self) -> &mut Queued {
        Arc::make_mut(&mut self.0)
    }

    pub(crate) fn shared(&self) -> Arc<Queued> {
        Arc::clone(&self.0)
    }
}

impl<R: Row> Resource for Of<R> {
    type DynamicType = ();
    type Scope = NamespaceResourceScope;

    fn kind((): &()) -> Cow<'_, str> {
        R::KIND.kind.into()
    }

    fn group((): &()) -> Cow<'_, str> {
        group_version(R::KIND).0.into()
    }

    fn version((): &()) -> Cow<'_, str> {
        group_version(R::KIND).1.into()
    }

    fn plural((): &()) -> Cow<'_, str> {
        R::KIND.plural.into()
    }

    fn meta(&self) -> &ObjectMeta {
        &self.0.metadata
    }

    fn meta_mut(&mut self) -> &mut ObjectMeta {
        &mut self.get_mut().metadata
    }
}

impl<'de, R: Row> Deserialize<'de> for Of<R> {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        let object = Value::deserialize(from)?;
        let read = R::KIND.read(&object).map_err(D::Error::custom)?;
        Ok(Self(Arc::new(read), PhantomData))
    }
}

impl<R: Row> Serialize for Of<R> {
    /// What every object has; the rest is not kept as it was read.
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        let kind = R::KIND;
        json!({"apiVersion": kind.api_version, "kind": kind.kind, "metadata": self.0.metadata})
            .serialize(to)
    }
}
