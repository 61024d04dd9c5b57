//! Opens the account a CloudProvider describes. Credentials are read when they are needed, from the operator's own
//! namespace only, and never told.

use std::fmt::{self, Debug};
use std::sync::{Arc, Weak};

use k8s_openapi::api::core::v1::ConfigMap;
use kube::{Api, Client, ResourceExt};
use warp_api::cloudprovider::CloudProviderType;
use warp_api::gpurequest::RequestAttempt;
use warp_api::{CloudProvider, GPURequest};
use warp_cloud::fake::Fake;
use warp_cloud::{Class, Failure, Mark, Now, Provider};
use warp_runtime::cache::{Cache, Key};

use super::books::InConfigMap;
use crate::context::Context;

/// Every account that is described.
pub(crate) struct Clouds {
    client: Client,
    home: String,
    providers: Cache<CloudProvider>,
    requests: Cache<GPURequest>,
    now: Now,
    cx: Weak<Context>,
}

impl Debug for Clouds {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Clouds").finish_non_exhaustive()
    }
}

impl Clouds {
    pub(super) fn new(
        client: Client,
        home: &str,
        providers: Cache<CloudProvider>,
        requests: Cache<GPURequest>,
        now: Now,
        cx: &Arc<Context>,
    ) -> Self {
        Self {
            client,
            home: home.to_owned(),
            providers,
            requests,
            now,
            cx: Arc::downgrade(cx),
        }
    }

    /// The account of the CloudProvider `name`.
    pub(super) fn open(&self, name: &str) -> Result<Arc<dyn Provider>, Failure> {
        let Some(provider) = self.providers.get(&Key::new("", name)) else {
            let words =
                format!("there is no CloudProvider {name}: create it again, with the same account");
            return Err(Failure::new(Class::Refused, words));
        };
        match provider.spec.kind {
            CloudProviderType::Fake => {
                let store = InConfigMap {
                    api: Api::<ConfigMap>::namespaced(self.client.clone(), &self.home),
                    provider: provider.name_any(),
                };
                Ok(Arc::new(Fake::new(Arc::new(store), self.now.clone())))
            }
        }
    }

    /// The attempt that has the machine `machine` of `provider`, as its request records it.
    pub(super) fn attempt(&self, provider: &str, machine: &str) -> Option<RequestAttempt> {
        let requests = self.requests.all();
        let attempts = requests
            .iter()
            .filter_map(|request| request.status.as_ref())
            .flat_map(|status| &status.attempts);
        let mut found =
            attempts.filter(|attempt| attempt.provider == provider && attempt.machine == machine);
        found.next().cloned()
    }

    /// The mark of this cluster's machines.
    pub(super) fn mark(&self) -> Option<Mark> {
        self.cx.upgrade().and_then(|cx| mark(&cx))
    }
}

/// The mark of this cluster's machines, once the cluster's identity is known.
pub(crate) fn mark(cx: &Context) -> Option<Mark> {
    let system = cx
        .namespaces
        .get(&warp_runtime::cache::Key::new("", "kube-system"))?;
    system.uid().map(|uid| Mark::of_cluster(&uid))
}
