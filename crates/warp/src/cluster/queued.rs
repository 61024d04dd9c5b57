//! Work of others that says anything of the queue, whatever its kind, read with the rights of whoever asks. A kind that is
//! not installed has no objects.

use std::sync::Arc;

use anyhow::Context;
use k8s_openapi::api::batch::v1::Job;
use kube::api::{ApiResource, DynamicObject, GroupVersionKind, ListParams};
use kube::{Api, Client, ResourceExt};
use warp_api::label;
use warp_operator::foresight::{KINDS, Queued, QueuedKind};

use super::told;

/// Everything of it, with the Jobs that are known already; and the kinds that may not be read.
pub(crate) async fn all(
    client: &Client,
    jobs: &[Arc<Job>],
    namespace: Option<&str>,
) -> anyhow::Result<(Vec<Arc<Queued>>, Vec<&'static str>)> {
    let asking = jobs
        .iter()
        .filter(|job| job.labels().contains_key(label::QUEUE));
    let mut found: Vec<Arc<Queued>> = asking
        .filter_map(|job| Queued::of_job(job).map(Arc::new))
        .collect();
    let mut refused = Vec::new();
    for kind in KINDS.into_iter().filter(|kind| !kind.is_job()) {
        let api = match namespace {
            Some(namespace) => api(client, kind, namespace),
            None => Api::all_with(client.clone(), &resource(kind)),
        };
        match api.list(&ListParams::default().labels(label::QUEUE)).await {
            Ok(list) => found.extend(list.items.iter().filter_map(|one| read(kind, one))),
            Err(kube::Error::Api(status)) if status.code == 404 => {}
            Err(kube::Error::Api(status)) if status.code == 403 => refused.push(kind.plural),
            Err(error) => {
                return Err(told(error)).with_context(|| format!("failed to list {}", kind.plural));
            }
        }
    }
    Ok((found, refused))
}

/// One object; none where there is none of this name, or none of this kind.
pub(crate) async fn get(
    client: &Client,
    kind: &'static QueuedKind,
    namespace: &str,
    name: &str,
) -> Result<Option<Arc<Queued>>, kube::Error> {
    let found = api(client, kind, namespace).get_opt(name).await?;
    Ok(found.and_then(|found| read(kind, &found)))
}

pub(crate) fn api(client: &Client, kind: &QueuedKind, namespace: &str) -> Api<DynamicObject> {
    Api::namespaced_with(client.clone(), namespace, &resource(kind))
}

fn resource(kind: &QueuedKind) -> ApiResource {
    let (group, version) = kind.api_version.split_once('/').unwrap_or_default();
    let named = GroupVersionKind::gvk(group, version, kind.kind);
    ApiResource::from_gvk_with_plural(&named, kind.plural)
}

fn read(kind: &'static QueuedKind, object: &DynamicObject) -> Option<Arc<Queued>> {
    let object = serde_json::to_value(object).ok()?;
    kind.read(&object).ok().map(Arc::new)
}
