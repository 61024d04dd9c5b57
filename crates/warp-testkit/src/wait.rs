//! Waiting for something to become true.
//!
//! Owns: waits on a watch of one object or of many, and the one poll there is for what has no watch (a
//! process that starts, a log that grows). Must not judge: the caller says what it waits for.

use std::fmt::Debug;
use std::future::Future;
use std::pin::pin;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use futures::stream::{BoxStream, StreamExt};
use kube::runtime::watcher::watch_object;
use kube::runtime::{WatchStreamExt, watcher};
use kube::{Api, Resource};
use serde::Serialize;
use serde::de::DeserializeOwned;

/// How long anything may take. Nothing in a healthy cluster takes it; a machine with other work may be
/// slow, and a deadline costs nothing when things go well.
pub const PATIENCE: Duration = Duration::from_mins(5);

/// Waits until the object fulfils `condition`, which sees `None` while it does not exist. A watch that
/// fails begins anew: a busy server may refuse one. The error shows the object as it is when `deadline`
/// has passed, and what the watch failed of last.
pub async fn wait_for<K>(
    api: &Api<K>,
    name: &str,
    what: &str,
    deadline: Duration,
    condition: impl Fn(Option<&K>) -> bool + Send,
) -> Result<Option<K>>
where
    K: Resource + Clone + Debug + Send + Sync + Serialize + DeserializeOwned + 'static,
{
    let mut trouble = None;
    let waited = tokio::time::timeout(deadline, async {
        let mut versions = pin!(watch_object(api.clone(), name).default_backoff());
        while let Some(seen) = versions.next().await {
            match seen {
                Ok(object) if condition(object.as_ref()) => return Some(object),
                Ok(_) => {}
                Err(error) => trouble = Some(error),
            }
        }
        None
    })
    .await;
    if let Ok(Some(object)) = waited {
        return Ok(object);
    }
    let last = api.get_opt(name).await?;
    let text = match &last {
        Some(object) => serde_json::to_string_pretty(object)?,
        None => "it does not exist".to_owned(),
    };
    let trouble = trouble.map_or_else(String::new, |error| format!(" (watch: {error})"));
    bail!("'{name}' is not {what} after {deadline:?}{trouble}; it is:\n{text}")
}

/// Waits until no object of that name exists.
pub async fn wait_gone<K>(api: &Api<K>, name: &str, deadline: Duration) -> Result<()>
where
    K: Resource + Clone + Debug + Send + Sync + Serialize + DeserializeOwned + 'static,
{
    wait_for(api, name, "gone", deadline, |object| object.is_none()).await?;
    Ok(())
}

/// Says so whenever an object under `api` may have changed, and once when it begins to listen.
pub fn changes<K>(api: Api<K>) -> BoxStream<'static, ()>
where
    K: Resource + Clone + DeserializeOwned + Debug + Send + 'static,
{
    let listing = |event: &Result<watcher::Event<K>, _>| {
        matches!(
            event,
            Ok(watcher::Event::Init | watcher::Event::InitApply(_))
        )
    };
    // A watch that failed begins anew, and whatever happened meanwhile is a change.
    watcher(api, watcher::Config::default())
        .default_backoff()
        .filter(move |event| std::future::ready(!listing(event)))
        .map(|_| ())
        .boxed()
}

/// Polls until `probe` gives a value. Only for what cannot be watched; `probe` may fail for good.
pub async fn until<T, F>(what: &str, deadline: Duration, mut probe: impl FnMut() -> F) -> Result<T>
where
    F: Future<Output = Result<Option<T>>>,
{
    let polled = tokio::time::timeout(deadline, async {
        loop {
            if let Some(value) = probe().await? {
                return anyhow::Ok(value);
            }
            tokio::time::sleep(Duration::from_millis(25)).await;
        }
    })
    .await;
    match polled {
        Ok(value) => value.with_context(|| format!("failed to wait until {what}")),
        Err(_) => bail!("not true after {deadline:?}: {what}"),
    }
}
