//! What happens to the objects under one path of the API: a list, then every change, then a list again when the watch is
//! too old. It ends with whoever listens.
//!
//! Objects are taken off the wire as text and read by the one decoder of their kind ([`decode`]): a watch event that is
//! generic over its object would be read by a second one, and compiling those is most of what building this crate costs.

use std::fmt::{self, Debug};
use std::sync::Arc;
use std::time::Duration;

use futures::stream::{self, BoxStream};
use futures::{StreamExt, TryStreamExt};
use kube::api::{ListParams, Resource, WatchEvent, WatchParams};
use kube::core::Request;
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::value::RawValue;
use tokio::time::Instant;

use super::store::Entry;

/// Where objects come from: a path and what it is asked for.
#[derive(Clone, Debug)]
pub struct Source {
    path: String,
    metadata_only: bool,
    field_selector: Option<String>,
}

impl Source {
    /// Every object of `K` in every namespace.
    pub fn all<K: Resource<DynamicType = ()>>() -> Self {
        Self::under(K::url_path(&(), None))
    }

    /// The object `name` of `K`, and others that have its name after it.
    pub fn named<K: Resource<DynamicType = ()>>(namespace: &str, name: &str) -> Self {
        Self::under(K::url_path(&(), Some(namespace))).fields(&format!("metadata.name={name}"))
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
            metadata_only: false,
            field_selector: None,
        }
    }

    #[must_use]
    pub fn fields(mut self, selector: &str) -> Self {
        self.field_selector = Some(selector.to_owned());
        self
    }

    fn list_request(&self) -> Result<http::Request<Vec<u8>>, kube::core::request::Error> {
        let mut params = ListParams::default();
        params.field_selector.clone_from(&self.field_selector);
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
    let reader = Reader {
        client,
        source,
        decode: decode::<K>,
        began: Instant::now(),
        delay: FIRST_RETRY,
        place: Place::Nowhere(None),
    };
    endless(reader)
}

fn endless(reader: Reader) -> Feed {
    // The state between two changes is the stream's: whoever stops waiting for the next one loses nothing.
    stream::unfold(reader, async |mut reader| {
        Some((reader.next().await, reader))
    })
    .boxed()
}

type Decode = fn(&str) -> Result<Arc<dyn Entry>, serde_json::Error>;

fn decode<K>(text: &str) -> Result<Arc<dyn Entry>, serde_json::Error>
where
    K: Resource + DeserializeOwned + Send + Sync + 'static,
{
    let mut object: K = serde_json::from_str(text)?;
    // Nobody here reads them, and they are a third of an object.
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

/// Whether the server said that this is not ours to read.
fn refused(error: &kube::Error) -> bool {
    matches!(error, kube::Error::Api(status) if matches!(status.code, 401 | 403))
}

impl Reader {
    async fn next(&mut self) -> Change {
        loop {
            match self.step().await {
                Ok(Some(change)) => return change,
                Ok(None) => {}
                Err(error) => {
                    let (path, delay) = (&self.source.path, self.rest(&error));
                    tracing::debug!(path, %error, ?delay, "watch ended, listing again");
                    self.delay = delay;
                    self.place = Place::Nowhere(Some(Instant::now() + delay));
                    // A kind this server does not serve has no objects; it may be served later.
                    if matches!(&error, kube::Error::Api(status) if status.code == 404) {
                        return Change::Listed(Vec::new(), None);
                    }
                }
            }
        }
    }

    /// How long to leave the server alone after a failure: longer the sooner it came.
    fn rest(&self, error: &kube::Error) -> Duration {
        if refused(error) {
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
                let change = read(self.decode, event)?;
                if let Some(reached) = change.version() {
                    reached.clone_into(version);
                }
                Ok(Some(change))
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
            .map(|item| (self.decode)(item.get()))
            .collect::<Result<_, _>>()
            .map_err(kube::Error::SerdeError)?;
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

fn read(decode: Decode, event: WatchEvent<Box<RawValue>>) -> Result<Change, kube::Error> {
    let entry = |object: Box<RawValue>| decode(object.get()).map_err(kube::Error::SerdeError);
    Ok(match event {
        WatchEvent::Added(object) | WatchEvent::Modified(object) => Change::Set(entry(object)?),
        WatchEvent::Deleted(object) => Change::Removed(entry(object)?),
        WatchEvent::Bookmark(bookmark) => Change::Reached(bookmark.metadata.resource_version),
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
