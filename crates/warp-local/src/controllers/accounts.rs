//! What every namespace is born with: the `default` service account and the ConfigMap `kube-root-ca.crt`.

use std::collections::BTreeMap;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{ConfigMap, Namespace, ServiceAccount};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use serde_json::json;

use super::{Shared, wired};
use warp_runtime::cache::Key;
use warp_runtime::driver::{Controller, SyncError};
use warp_runtime::plan::{Encoding, Plan};

pub(crate) const ROOT_CA: &str = "kube-root-ca.crt";
const DEFAULT: &str = "default";
const CERTIFICATE: &str = "ca.crt";
const DESCRIPTION: (&str, &str) = (
    "kubernetes.io/description",
    "Contains a CA bundle that can be used to verify the kube-apiserver when using internal endpoints such as the \
     internal service IP or kubernetes.default.svc. No other usage is guaranteed across distributions of Kubernetes \
     clusters.",
);

#[derive(Debug)]
pub(crate) struct Accounts(Shared);

impl Accounts {
    pub(crate) fn start(shared: &Shared) {
        let queue = wired(shared, Self(shared.clone()));
        let caches = &shared.caches;
        caches
            .namespaces
            .on_key(&queue, |namespace| Some(Key::of(namespace)));
        let of_namespace =
            |namespace: Option<&String>| namespace.map(|namespace| Key::new("", namespace));
        caches.service_accounts.on_key(&queue, move |account| {
            of_namespace(account.metadata.namespace.as_ref())
        });
        caches.root_cas.on_key(&queue, move |config| {
            of_namespace(config.metadata.namespace.as_ref())
        });
    }
}

impl Controller for Accounts {
    type Key = Key;
    const NAME: &'static str = "serviceaccount-controller";

    async fn sync(&self, key: &Key) -> Result<Option<Timestamp>, SyncError> {
        let caches = &self.0.caches;
        let Some(namespace) = caches.namespaces.get(key) else {
            return Ok(None);
        };
        let account = caches.service_accounts.get(&Key::new(&key.name, DEFAULT));
        let config = caches.root_cas.get(&Key::new(&key.name, ROOT_CA));
        let plan = plan(
            &namespace,
            account.as_deref(),
            config.as_deref(),
            self.0.options.root_ca.as_deref(),
        );
        self.0.execute(Self::NAME, plan).await
    }
}

/// Creates what is missing in a namespace that is not ending, and sets right a root CA that was changed.
fn plan(
    namespace: &Namespace,
    account: Option<&ServiceAccount>,
    config: Option<&ConfigMap>,
    root_ca: Option<&str>,
) -> Plan {
    let mut plan = Plan::default();
    if namespace.metadata.deletion_timestamp.is_some() {
        return plan;
    }
    let named = |name: &str| ObjectMeta {
        name: Some(name.to_owned()),
        namespace: namespace.metadata.name.clone(),
        ..ObjectMeta::default()
    };
    if account.is_none() {
        plan.create(
            &ServiceAccount {
                metadata: named(DEFAULT),
                ..ServiceAccount::default()
            },
            None,
        );
    }
    let Some(root_ca) = root_ca else { return plan };
    match config {
        None => {
            let mut metadata = named(ROOT_CA);
            metadata.annotations =
                Some([(DESCRIPTION.0.to_owned(), DESCRIPTION.1.to_owned())].into());
            let data = BTreeMap::from([(CERTIFICATE.to_owned(), root_ca.to_owned())]);
            plan.create(
                &ConfigMap {
                    metadata,
                    data: Some(data),
                    ..ConfigMap::default()
                },
                None,
            );
        }
        Some(config) => {
            let right = BTreeMap::from([(CERTIFICATE.to_owned(), root_ca.to_owned())]);
            if config.data.as_ref() != Some(&right) {
                let mut data = json!({ CERTIFICATE: root_ca });
                for name in config
                    .data
                    .iter()
                    .flatten()
                    .map(|(name, _)| name)
                    .filter(|name| *name != CERTIFICATE)
                {
                    data[name] = serde_json::Value::Null;
                }
                plan.patch(config, Encoding::Merge, json!({ "data": data }));
            }
        }
    }
    plan
}

#[cfg(test)]
mod tests {
    use super::*;
    use warp_runtime::plan::Action;

    fn namespace() -> Namespace {
        Namespace {
            metadata: ObjectMeta {
                name: Some("team".to_owned()),
                ..ObjectMeta::default()
            },
            ..Namespace::default()
        }
    }

    #[test]
    fn a_new_namespace_gets_both_and_a_second_pass_writes_nothing() {
        let first = plan(&namespace(), None, None, Some("PEM"));
        assert_eq!(first.actions.len(), 2);
        let config = ConfigMap {
            data: Some([("ca.crt".to_owned(), "PEM".to_owned())].into()),
            ..ConfigMap::default()
        };
        assert!(
            plan(
                &namespace(),
                Some(&ServiceAccount::default()),
                Some(&config),
                Some("PEM")
            )
            .actions
            .is_empty()
        );
    }

    #[test]
    fn a_changed_root_ca_is_set_right_and_other_entries_go() {
        let config = ConfigMap {
            data: Some([("x".to_owned(), "y".to_owned())].into()),
            ..ConfigMap::default()
        };
        let plan = plan(
            &namespace(),
            Some(&ServiceAccount::default()),
            Some(&config),
            Some("PEM"),
        );
        let [Action::Patch { patch, .. }] = plan.actions.as_slice() else {
            panic!("{plan:?}")
        };
        assert_eq!(patch["data"], json!({ "ca.crt": "PEM", "x": null }));
    }

    #[test]
    fn an_ending_namespace_gets_nothing() {
        let mut ending = namespace();
        ending.metadata.deletion_timestamp = Some(jiff::Timestamp::UNIX_EPOCH.into());
        assert_eq!(plan(&ending, None, None, Some("PEM")), Plan::default());
    }
}
