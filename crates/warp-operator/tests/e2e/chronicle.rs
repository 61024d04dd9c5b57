//! Everything that happens in one namespace, as watches tell it: the history the judge of the fault
//! suite reads, for a cluster whose store cannot be looked into.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use anyhow::{Context, Result, ensure};
use futures::StreamExt;
use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::core::v1::{Node, Pod};
use kube::api::{ApiResource, DynamicObject, ListParams, WatchEvent, WatchParams};
use kube::{Api, Client};
use serde_json::{Value, json};
use tokio::task::JoinSet;
use warp_testkit::fault::history::Change;
use warp_testkit::fault::judge;
use warp_testkit::{EventKind, until};

use super::invariants::INVARIANTS;
use super::world::{DEADLINE, workload_resource};

/// What watches have told so far, in the order of each.
#[derive(Default)]
struct Told {
    changes: Vec<(u64, EventKind, Value)>,
    /// Why something may be missing.
    broken: Option<String>,
}

pub(super) struct Chronicle {
    told: Arc<Mutex<Told>>,
    /// What ends with the play; nodes stay.
    kinds: Vec<Api<DynamicObject>>,
    dawn: u64,
    /// The watches; they end with this.
    _watches: JoinSet<()>,
}

impl Chronicle {
    /// Starts to listen; what there is already counts as made before.
    pub(super) async fn begin(client: &Client, namespace: &str) -> Result<Self> {
        let here = |kind: &ApiResource| -> Api<DynamicObject> {
            Api::namespaced_with(client.clone(), namespace, kind)
        };
        let kinds = vec![
            here(&workload_resource()),
            here(&ApiResource::erase::<Job>(&())),
            here(&ApiResource::erase::<Pod>(&())),
        ];
        let nodes = Api::all_with(client.clone(), &ApiResource::erase::<Node>(&()));
        let told = Arc::new(Mutex::new(Told::default()));
        let mut watches = JoinSet::new();
        let mut dawn = 0;
        for (api, kind) in std::iter::once((&nodes, "Node")).chain(
            kinds
                .iter()
                .map(|api| (api, "an object of an empty namespace")),
        ) {
            let all = api.list(&ListParams::default()).await?;
            let version = all.metadata.resource_version.unwrap_or_default();
            dawn = dawn.max(version.parse()?);
            let mut here = told.lock().unwrap_or_else(PoisonError::into_inner);
            for object in all.items {
                let mut object = serde_json::to_value(object)?;
                object["kind"] = json!(kind);
                let revision = revision(&object);
                here.changes.push((revision, EventKind::Added, object));
            }
            drop(here);
            watches.spawn(listen(api.clone(), version, Arc::clone(&told)));
        }
        Ok(Self {
            told,
            kinds,
            dawn,
            _watches: watches,
        })
    }

    fn told(&self) -> std::sync::MutexGuard<'_, Told> {
        self.told.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Fails with what was wrong at any moment, once everything up to now was told.
    pub(super) async fn judge(&self) -> Result<()> {
        until("every change was told", DEADLINE, || async {
            let mut now = BTreeMap::new();
            for api in &self.kinds {
                for object in api.list(&ListParams::default()).await? {
                    let object = serde_json::to_value(object)?;
                    now.insert(uid(&object), revision(&object));
                }
            }
            let told = self.told();
            if let Some(broken) = &told.broken {
                anyhow::bail!("a watch broke: {broken}");
            }
            let mut known = BTreeMap::new();
            for (revision, kind, object) in &told.changes {
                if object["kind"] == "Node" {
                    continue;
                }
                if *kind == EventKind::Deleted {
                    known.remove(&uid(object));
                } else {
                    known.insert(uid(object), *revision);
                }
            }
            Ok((known == now).then_some(()))
        })
        .await?;
        let changes = self.changes();
        ensure!(
            changes.iter().any(|change| change.of() == "GPUWorkload"),
            "nothing was told of"
        );
        let wrong = judge::violations(&changes, self.dawn, false, &INVARIANTS);
        ensure!(wrong.is_empty(), "invariants broken: {}", wrong.join("; "));
        Ok(())
    }

    fn changes(&self) -> Vec<Change> {
        let mut told = self.told().changes.clone();
        told.sort_by_key(|(revision, ..)| *revision);
        let mut last: BTreeMap<String, Value> = BTreeMap::new();
        let changes = told.into_iter().map(|(revision, kind, object)| Change {
            revision,
            kind,
            previous: last.insert(uid(&object), object.clone()),
            object,
        });
        changes.collect()
    }
}

/// Notes every change from `version` on.
async fn listen(api: Api<DynamicObject>, mut version: String, told: Arc<Mutex<Told>>) {
    loop {
        let heard = hear(&api, &mut version, &told).await;
        if let Err(error) = heard {
            let mut told = told.lock().unwrap_or_else(PoisonError::into_inner);
            told.broken = Some(format!("{error:#}"));
            return;
        }
    }
}

/// One watch, until the server ends it.
async fn hear(api: &Api<DynamicObject>, version: &mut String, told: &Mutex<Told>) -> Result<()> {
    let mut events = api.watch(&WatchParams::default(), version).await?.boxed();
    while let Some(event) = events.next().await {
        let (kind, object) = match event.context("failed to read an event")? {
            WatchEvent::Added(object) => (EventKind::Added, object),
            WatchEvent::Modified(object) => (EventKind::Modified, object),
            WatchEvent::Deleted(object) => (EventKind::Deleted, object),
            WatchEvent::Bookmark(mark) => {
                *version = mark.metadata.resource_version;
                continue;
            }
            WatchEvent::Error(error) => anyhow::bail!("the server says {error:?}"),
        };
        let object = serde_json::to_value(object)?;
        let revision = revision(&object);
        *version = revision.to_string();
        let mut told = told.lock().unwrap_or_else(PoisonError::into_inner);
        told.changes.push((revision, kind, object));
    }
    Ok(())
}

fn uid(object: &Value) -> String {
    let uid = object["metadata"]["uid"].as_str();
    uid.unwrap_or_default().to_owned()
}

fn revision(object: &Value) -> u64 {
    let version = object["metadata"]["resourceVersion"].as_str();
    version.and_then(|text| text.parse().ok()).unwrap_or(0)
}
