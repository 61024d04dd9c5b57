//! What happens to the objects under one path of the API: a list, then every change, then a list again when the watch is
//! too old. It ends with whoever listens.
//!
//! Objects are taken off the wire as text and read by the one decoder of their kind (`decode`): a watch event that is
//! generic over its object would be read by a second one, and compiling those is most of what building this crate costs.

use std::fmt::{self, Debug};
use std::sync::Arc;
use std::time::Duration;

use futures::stream::{self, BoxStream};
use futures::{StreamExt, TryStreamExt};
use kube::api::{ListParams, Resource, WatchEvent, WatchParams};
use kube::core::{PartialObjectMeta, Request};
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::value::RawValue;
use tokio::time::Instant;

use super::selection::Selection;
use super::store::{Entry, Store};
use super::{Health, Key};
use crate::pass::Observer;

/// What it means that the API server does not serve a kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Unserved {
    /// It has no objects.
    Empty,
    /// It has none, which is no trouble: it need not be installed.
    Fine,
    /// It is waited for.
    Missing,
}

/// Where objects come from: a path and what it is asked for.
#[derive(Clone, Debug)]
pub struct Source {
    path: String,
    namespace: Option<String>,
    metadata_only: bool,
    managed_fields: bool,
    unserved: Unserved,
    field_selector: Option<String>,
    label_selector: Option<String>,
}

impl Source {
    /// Every object of `K` in every namespace.
    pub fn all<K: Resource<DynamicType = ()>>() -> Self {
        Self::under(K::url_path(&(), None))
    }

    /// Every object of `K` in one namespace, or in all.
    pub fn within<K: Resource<DynamicType = ()>>(namespace: Option<&str>) -> Self {
        Self {
            namespace: namespace.map(str::to_owned),
            ..Self::under(K::url_path(&(), namespace))
        }
    }

    /// The object `name` of `K`, and others that have its name after it.
    pub fn named<K: Resource<DynamicType = ()>>(namespace: &str, name: &str) -> Self {
        Self::within::<K>(Some(namespace)).fields(&format!("metadata.name={name}"))
    }

    /// Only the metadata of every object under a resource's path.
    pub fn metadata(path: String) -> Self {
        Self {
            metadata_only: true,
            ..Self::under(path)
        }
    }

    fn under(path: String) -> Self {
        Self {
            path,
            namespace: None,
            metadata_only: false,
            managed_fields: false,
            unserved: Unserved::Empty,
            field_selector: None,
            label_selector: None,
        }
    }

    #[must_use]
    pub fn labels(mut self, selector: &str) -> Self {
        self.label_selector = Some(selector.to_owned());
        self
    }

    /// Keeps `managedFields`, which are a third of an object and seldom read.
    #[must_use]
    pub fn with_managed_fields(mut self) -> Self {
        self.managed_fields = true;
        self
    }

    /// A kind the API server does not serve is waited for, instead of counting as one without objects.
    #[must_use]
    pub fn must_be_served(mut self) -> Self {
        self.unserved = Unserved::Missing;
        self
    }

    /// A kind that may be installed or not: while it is not served it is one without objects, which is no trouble, and is
    /// seldom asked for again.
    #[must_use]
    pub fn if_served(mut self) -> Self {
        self.unserved = Unserved::Fine;
        self
    }

    /// Whether this failure is only that a kind that need not be there is not.
    fn may_be_missing(&self, error: &kube::Error) -> bool {
        self.unserved == Unserved::Fine && missing(error)
    }

    /// The plural of the kind.
    fn resource(&self) -> &str {
        self.path.rsplit('/').next().unwrap_or_default()
    }

    /// Which objects of the kind it brings.
    pub(crate) fn selection(&self) -> Selection {
        Selection::new(
            self.namespace.clone(),
            self.label_selector.as_deref(),
            self.field_selector.as_deref(),
        )
    }

    #[must_use]
    pub fn fields(mut self, selector: &str) -> Self {
        self.field_selector = Some(selector.to_owned());
        self
    }

    fn list_request(&self) -> Result<http::Request<Vec<u8>>, kube::core::request::Error> {
        let mut params = ListParams::default();
        params.field_selector.clone_from(&self.field_selector);
        params.label_selector.clone_from(&self.label_selector);
        let request = Request::new(&self.path);
        if self.metadata_only {
            request.list_metadata(&params)
        } else {
            request.list(&params)
        }
    }

    fn watch_request(
        &self,
        version: &str,
    ) -> Result<http::Request<Vec<u8>>, kube::core::request::Error> {
        let mut params = WatchParams::default();
        params.field_selector.clone_from(&self.field_selector);
        params.label_selector.clone_from(&self.label_selector);
        let request = Request::new(&self.path);
        if self.metadata_only {
            request.watch_metadata(&params, version)
        } else {
            request.watch(&params, version)
        }
    }
}

/// What a feed says, in the order it happened.
#[derive(Debug)]
pub enum Change {
    /// All there is, and the version at which it was so.
    Listed(Vec<Arc<dyn Entry>>, Option<String>),
    Set(Arc<dyn Entry>),
    /// The last state of an object that is gone.
    Removed(Arc<dyn Entry>),
    /// Everything up to this version has been said.
    Reached(String),
}

pub type Feed = BoxStream<'static, Change>;

/// The changes of objects of `K`; it never ends, and a failure is a pause.
pub fn of<K>(client: kube::Client, source: Source) -> Feed
where
    K: Resource + DeserializeOwned + Send + Sync + 'static,
{
    endless(reader::<K>(client, source, None, None))
}

/// The same, with how it goes told to the store that takes the changes.
pub(crate) fn into_store<K>(
    client: kube::Client,
    source: Source,
    store: Arc<Store>,
    observer: Option<Arc<dyn Observer>>,
) -> Feed
where
    K: Resource + DeserializeOwned + Send + Sync + 'static,
{
    endless(reader::<K>(client, source, Some(store), observer))
}

fn reader<K>(
    client: kube::Client,
    source: Source,
    store: Option<Arc<Store>>,
    observer: Option<Arc<dyn Observer>>,
) -> Reader
where
    K: Resource + DeserializeOwned + Send + Sync + 'static,
{
    let whole = source.managed_fields;
    Reader {
        client,
        source,
        store,
        observer,
        decode: if whole {
            decode_whole::<K>
        } else {
            decode::<K>
        },
        began: Instant::now(),
        delay: FIRST_RETRY,
        place: Place::Nowhere(None),
    }
}

fn endless(reader: Reader) -> Feed {
    // The state between two changes is the stream's: whoever stops waiting for the next one loses nothing.
    stream::unfold(reader, async |mut reader| {
        Some((reader.next().await, reader))
    })
    .boxed()
}

pub(crate) type Decode = fn(&str) -> Result<Arc<dyn Entry>, serde_json::Error>;

pub(crate) fn decode_whole<K>(text: &str) -> Result<Arc<dyn Entry>, serde_json::Error>
where
    K: Resource + DeserializeOwned + Send + Sync + 'static,
{
    Ok(Arc::new(serde_json::from_str::<K>(text)?))
}

pub(crate) fn decode<K>(text: &str) -> Result<Arc<dyn Entry>, serde_json::Error>
where
    K: Resource + DeserializeOwned + Send + Sync + 'static,
{
    let mut object: K = serde_json::from_str(text)?;
    // No controller reads them, and they are a third of an object.
    object.meta_mut().managed_fields = None;
    Ok(Arc::new(object))
}

#[derive(Deserialize)]
struct List<'a> {
    #[serde(default)]
    metadata: ListMeta,
    #[serde(borrow, default)]
    items: Option<Vec<&'a RawValue>>,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase")]
struct ListMeta {
    resource_version: Option<String>,
}

type Events = BoxStream<'static, Result<WatchEvent<Box<RawValue>>, kube::Error>>;

/// How far a reader has come.
enum Place {
    /// It has to list; not before a moment.
    Nowhere(Option<Instant>),
    /// It has seen everything up to a version, and the watch before this ended at a moment.
    At(String, Option<Instant>),
    /// It watches, having asked at a moment.
    Watching(String, Instant, Events),
}

struct Reader {
    client: kube::Client,
    source: Source,
    /// Who is told how the reading goes.
    store: Option<Arc<Store>>,
    observer: Option<Arc<dyn Observer>>,
    decode: Decode,
    /// When it listed last.
    began: Instant,
    delay: Duration,
    place: Place,
}

impl Debug for Reader {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Reader")
            .field("source", &self.source)
            .finish_non_exhaustive()
    }
}

const FIRST_RETRY: Duration = Duration::from_millis(50);
const LAST_RETRY: Duration = Duration::from_secs(10);
/// What the server refuses it seldom grants a moment later, and there are dozens of kinds to ask for.
const FIRST_REFUSED: Duration = Duration::from_secs(15);
const LAST_REFUSED: Duration = Duration::from_mins(1);
/// What need not be installed is seldom installed later.
const LAST_ABSENT: Duration = Duration::from_mins(5);

/// Whether the server said that this is not ours to read.
fn refused(error: &kube::Error) -> bool {
    matches!(error, kube::Error::Api(status) if matches!(status.code, 401 | 403))
}

/// Whether the server said that it does not serve the kind.
fn missing(error: &kube::Error) -> bool {
    matches!(error, kube::Error::Api(status) if status.code == 404)
}

impl Reader {
    async fn next(&mut self) -> Change {
        loop {
            match self.step().await {
                Ok(Some(change)) => {
                    if matches!(change, Change::Listed(..)) {
                        self.tell(Health::Current);
                        self.tell_served(true);
                    }
                    return change;
                }
                Ok(None) => {}
                Err(error) => {
                    self.tell_failure(&error);
                    let absent = self.source.may_be_missing(&error);
                    if let Some(observer) = self.observer.as_ref().filter(|_| !absent) {
                        observer.watch_broke(self.source.resource(), &error);
                    }
                    let (path, delay) = (&self.source.path, self.rest(&error));
                    tracing::debug!(path, %error, ?delay, "watch ended, listing again");
                    self.delay = delay;
                    self.place = Place::Nowhere(Some(Instant::now() + delay));
                    // A kind this server does not serve has no objects; it may be served later. One that need not be there
                    // and may not be read has none that are known: others need not wait for it.
                    if missing(&error) || refused(&error) {
                        self.tell_served(false);
                    }
                    let unserved = missing(&error) && self.source.unserved != Unserved::Missing;
                    let unread = self.store.as_ref();
                    let unread = unread.is_some_and(|store| store.watermark() == 0);
                    let hidden = refused(&error) && self.source.unserved == Unserved::Fine;
                    if unserved || (hidden && unread) {
                        return Change::Listed(Vec::new(), None);
                    }
                }
            }
        }
    }

    fn tell_served(&self, served: bool) {
        if let Some(store) = &self.store {
            store.set_served(served);
        }
    }

    fn tell(&self, health: Health) {
        if let Some(store) = &self.store {
            store.set_health(health);
        }
    }

    /// A watch that ended badly says nothing yet: only a list that fails too does.
    fn tell_failure(&self, error: &kube::Error) {
        let listing = matches!(self.place, Place::Nowhere(_));
        match error {
            error if self.source.may_be_missing(error) => self.tell(Health::Current),
            kube::Error::Api(status) if status.code == 404 => self.tell(Health::Missing),
            kube::Error::Api(status) if refused(error) => {
                self.tell(Health::Refused(status.message.clone()));
            }
            error if listing => self.tell(Health::Failing(error.to_string())),
            _ => {}
        }
    }

    /// How long to leave the server alone after a failure: longer the sooner it came.
    fn rest(&self, error: &kube::Error) -> Duration {
        if self.source.may_be_missing(error) {
            return (self.delay * 3).clamp(FIRST_REFUSED, LAST_ABSENT);
        }
        let awaited = self.source.unserved == Unserved::Missing;
        if refused(error) || (missing(error) && awaited) {
            (self.delay * 3).clamp(FIRST_REFUSED, LAST_REFUSED)
        } else if self.began.elapsed() > LAST_RETRY {
            FIRST_RETRY
        } else {
            (self.delay * 2).min(LAST_RETRY)
        }
    }

    async fn step(&mut self) -> Result<Option<Change>, kube::Error> {
        match &mut self.place {
            Place::Nowhere(not_before) => {
                if let Some(moment) = not_before {
                    tokio::time::sleep_until(*moment).await;
                }
                self.began = Instant::now();
                self.list().await.map(Some)
            }
            Place::At(version, ended) => {
                if let Some(moment) = ended {
                    // A server that closes watches at once must not be asked in a tight loop.
                    tokio::time::sleep_until(*moment).await;
                }
                let version = std::mem::take(version);
                let asked = Instant::now();
                let events = self.watch(&version).await?;
                self.place = Place::Watching(version, asked, events);
                Ok(None)
            }
            Place::Watching(version, asked, events) => {
                let Some(event) = events.try_next().await? else {
                    self.place = Place::At(std::mem::take(version), Some(*asked + FIRST_RETRY));
                    return Ok(None);
                };
                let change = read(self.decode, event, &self.source.path, self.store.is_some())?;
                if let Some(reached) = change.as_ref().and_then(Change::version) {
                    reached.clone_into(version);
                }
                Ok(change)
            }
        }
    }

    async fn list(&mut self) -> Result<Change, kube::Error> {
        let request = self.source.list_request();
        let request = request.map_err(kube::Error::BuildRequest)?;
        let text = self.client.request_text(request).await?;
        let list: List<'_> = serde_json::from_str(&text).map_err(kube::Error::SerdeError)?;
        let items = list.items.unwrap_or_default().into_iter();
        let entries = items
            .filter_map(|item| readable(self.decode, item, &self.source.path))
            .collect();
        let version = list.metadata.resource_version.unwrap_or_default();
        self.place = Place::At(version.clone(), None);
        Ok(Change::Listed(entries, Some(version)))
    }

    async fn watch(&mut self, version: &str) -> Result<Events, kube::Error> {
        let request = self.source.watch_request(version);
        let request = request.map_err(kube::Error::BuildRequest)?;
        let events = self.client.request_events(request).await?;
        Ok(events.boxed())
    }
}

/// An object that this version cannot read is left alone, loudly, instead of stopping the watch.
fn readable(decode: Decode, object: &RawValue, path: &str) -> Option<Arc<dyn Entry>> {
    match decode(object.get()) {
        Ok(entry) => Some(entry),
        Err(error) => {
            let name = serde_json::from_str::<PartialObjectMeta>(object.get()).ok();
            let name = name.map(|named| Key::in_meta(&named.metadata).to_string());
            tracing::warn!(path, name, %error, "cannot read an object, leaving it alone");
            None
        }
    }
}

fn read(
    decode: Decode,
    event: WatchEvent<Box<RawValue>>,
    path: &str,
    for_store: bool,
) -> Result<Option<Change>, kube::Error> {
    let entry = |object: Box<RawValue>| readable(decode, &object, path);
    Ok(match event {
        WatchEvent::Added(object) | WatchEvent::Modified(object) => {
            match readable(decode, &object, path) {
                Some(entry) => Some(Change::Set(entry)),
                // A store must not go on showing the state before.
                None if for_store => serde_json::from_str::<PartialObjectMeta>(object.get())
                    .ok()
                    .map(|last| Change::Removed(Arc::new(last))),
                None => None,
            }
        }
        WatchEvent::Deleted(object) => entry(object).map(Change::Removed),
        WatchEvent::Bookmark(bookmark) => Some(Change::Reached(bookmark.metadata.resource_version)),
        WatchEvent::Error(status) => return Err(kube::Error::Api(status)),
    })
}

impl Change {
    fn version(&self) -> Option<&str> {
        match self {
            Self::Listed(_, version) => version.as_deref(),
            Self::Set(entry) | Self::Removed(entry) => entry.meta().resource_version.as_deref(),
            Self::Reached(version) => Some(version),
        }
    }
}
