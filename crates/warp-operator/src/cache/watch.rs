//! Keeps a cache up to date from a watch, for as long as it is polled.

use std::fmt::Debug;
use std::sync::Arc;
use std::time::Duration;

use futures::{StreamExt, pin_mut};
use kube::runtime::watcher;
use kube::{Api, Resource, ResourceExt};
use serde::de::DeserializeOwned;

use super::{Cache, Changed, Key, Step};
use crate::metrics::Metrics;

const FIRST_WAIT: Duration = Duration::from_millis(800);
const LONGEST_WAIT: Duration = Duration::from_secs(30);

/// What is watched and how a raw object becomes a kept one.
pub(crate) struct Source<R, K> {
    pub(crate) api: Api<R>,
    pub(crate) config: watcher::Config,
    pub(crate) name: &'static str,
    pub(crate) convert: fn(R) -> Option<K>,
}

/// Follows a watch for ever. `touched` is called with every change, after the cache shows it.
pub(crate) async fn follow<R, K>(
    source: Source<R, K>,
    cache: Arc<Cache<K>>,
    metrics: Arc<Metrics>,
    touched: impl Fn(&Changed<K>),
) where
    R: Resource<DynamicType = ()> + Clone + DeserializeOwned + Debug + Send + 'static,
    K: Resource<DynamicType = ()> + Clone,
{
    let Source {
        api,
        config,
        name,
        convert,
    } = source;
    let stream = watcher(api, config);
    pin_mut!(stream);
    let mut failures = 0;
    while let Some(event) = stream.next().await {
        let step = match event {
            Ok(event) => {
                // That a list begins says nothing about how it will end.
                if !matches!(event, watcher::Event::Init) {
                    failures = 0;
                    cache.set_stuck(None);
                }
                step(event, convert)
            }
            Err(error) => {
                metrics.watch_broke(name);
                let refusal = refusal(&error);
                let hint = refusal.map_or_else(String::new, |hint| format!("; {hint}"));
                cache.set_stuck(refusal.map(|hint| format!("{name}: {hint}")));
                tracing::warn!(resource = name, error = %error, "watch broke, starting it again{hint}");
                tokio::time::sleep(wait(failures)).await;
                failures += 1;
                continue;
            }
        };
        if let Some(step) = step {
            for change in cache.step(step) {
                touched(&change);
            }
        }
    }
}

/// How long to wait after this many failures in a row. The library's own backoff begins afresh with
/// every list that is tried.
fn wait(failures: u32) -> Duration {
    LONGEST_WAIT.min(FIRST_WAIT * 2_u32.saturating_pow(failures))
}

/// What the API server will not allow, with what to do; anything else passes by itself. That a watch
/// may not be started again is asked elsewhere: a quiet kind would never show that it may by now.
fn refusal(error: &watcher::Error) -> Option<&'static str> {
    let status = match error {
        watcher::Error::InitialListFailed(kube::Error::Api(status)) => status,
        watcher::Error::WatchStartFailed(kube::Error::Api(status)) if status.code == 404 => status,
        _ => return None,
    };
    match status.code {
        404 => Some(
            "the API server does not know this resource: is the CRD installed (warp install --print --crds-only)?",
        ),
        401 => Some("the API server does not know this account: is its token still good?"),
        403 => Some(
            "this account may not list and watch them (apply the roles of `warp install --print`)",
        ),
        _ => None,
    }
}

fn step<R, K>(event: watcher::Event<R>, convert: fn(R) -> Option<K>) -> Option<Step<K>>
where
    R: Resource<DynamicType = ()>,
{
    Some(match event {
        watcher::Event::Init => Step::Listing,
        watcher::Event::InitApply(object) => Step::Listed(convert(object)?),
        watcher::Event::InitDone => Step::ListDone,
        watcher::Event::Apply(object) => {
            let gone = deleted(&object);
            convert(object).map_or(gone, Step::Applied)
        }
        watcher::Event::Delete(object) => deleted(&object),
    })
}

fn deleted<R: Resource<DynamicType = ()>, K>(object: &R) -> Step<K> {
    let version = object.resource_version().and_then(|text| text.parse().ok());
    Step::Deleted(Key::of(object), version.unwrap_or(0))
}
