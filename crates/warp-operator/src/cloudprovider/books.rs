//! The books of a fake cloud in a ConfigMap of the operator's own namespace: they outlive the process, and whoever
//! may write the ConfigMap may script the cloud.

use std::collections::BTreeMap;
use std::fmt::{self, Debug};

use futures::future::BoxFuture;
use k8s_openapi::api::core::v1::ConfigMap;
use kube::api::{Api, ObjectMeta, PostParams};
use warp_cloud::fake::{Books, Store, Version};
use warp_cloud::{Class, Failure};

use crate::audit;

/// On the ConfigMap: it has the books of the fake cloud of this name.
pub(crate) const LABEL: &str = "gpu.warp.dev/fake-cloud";
const MACHINES: &str = "machines";
const SCRIPT: &str = "script";

/// See the module.
#[derive(Clone)]
pub(super) struct InConfigMap {
    pub(super) api: Api<ConfigMap>,
    pub(super) provider: String,
}

impl Debug for InConfigMap {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "InConfigMap({})", self.name())
    }
}

impl InConfigMap {
    fn name(&self) -> String {
        format!("fake-cloud-{}", self.provider)
    }

    async fn load(&self) -> Result<(Books, Version), Failure> {
        let found = self.api.get_opt(&self.name()).await.map_err(unreachable)?;
        let Some(found) = found else {
            return Ok((Books::default(), Version::new()));
        };
        let data = found.data.unwrap_or_default();
        let books = Books {
            machines: read(&data, MACHINES)?,
            script: read(&data, SCRIPT)?,
        };
        Ok((books, found.metadata.resource_version.unwrap_or_default()))
    }

    /// Like every write of this process, it is in the audit trail.
    fn record(&self, verb: &'static str) {
        tracing::info!(
            target: audit::TARGET,
            object = %format_args!("CloudProvider/{}", self.provider),
            generation = 0,
            cause = "",
            manager = "fake-cloud",
            verb,
            what = %format_args!("configmap {}", self.name()),
            why = "the fake cloud keeps its books",
            correlation = "fake-cloud",
        );
    }

    async fn keep(&self, books: &Books, version: &Version) -> Result<bool, Failure> {
        let data = BTreeMap::from([
            (MACHINES.to_owned(), told(&books.machines)),
            (SCRIPT.to_owned(), told(&books.script)),
        ]);
        let object = ConfigMap {
            metadata: ObjectMeta {
                name: Some(self.name()),
                labels: Some(BTreeMap::from([(LABEL.to_owned(), self.provider.clone())])),
                resource_version: (!version.is_empty()).then(|| version.clone()),
                ..ObjectMeta::default()
            },
            data: Some(data),
            ..ConfigMap::default()
        };
        let params = PostParams::default();
        let is_new = version.is_empty();
        let written = if is_new {
            self.api.create(&params, &object).await
        } else {
            self.api.replace(&self.name(), &params, &object).await
        };
        match written {
            Ok(_) => {
                self.record(if is_new { "create" } else { "update" });
                Ok(true)
            }
            Err(kube::Error::Api(status)) if status.code == 409 => Ok(false),
            Err(error) => Err(unreachable(error)),
        }
    }
}

fn told<T: serde::Serialize>(value: &T) -> String {
    serde_json::to_string_pretty(value).unwrap_or_default()
}

fn read<T: serde::de::DeserializeOwned + Default>(
    data: &BTreeMap<String, String>,
    key: &str,
) -> Result<T, Failure> {
    let Some(text) = data.get(key).filter(|text| !text.trim().is_empty()) else {
        return Ok(T::default());
    };
    serde_json::from_str(text).map_err(|error| {
        let words = format!("the books of the fake cloud cannot be read: {key}: {error}");
        Failure::new(Class::Refused, words)
    })
}

#[expect(clippy::needless_pass_by_value, reason = "used with map_err")]
fn unreachable(error: kube::Error) -> Failure {
    Failure::new(
        Class::Transient,
        format!("the books of the fake cloud: {error}"),
    )
}

impl Store for InConfigMap {
    fn read(&self) -> BoxFuture<'_, Result<(Books, Version), Failure>> {
        Box::pin(self.load())
    }

    fn write<'a>(
        &'a self,
        books: &'a Books,
        version: &'a Version,
    ) -> BoxFuture<'a, Result<bool, Failure>> {
        Box::pin(self.keep(books, version))
    }
}
