//! Opens the account a CloudProvider describes. Credentials are read when they are needed, from the operator's own
//! namespace only, and never told.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::{self, Debug};
use std::sync::{Arc, OnceLock, Weak};

use k8s_openapi::api::core::v1::{ConfigMap, Secret};
use kube::{Api, Client, ResourceExt};
use parking_lot::Mutex;
use warp_api::cloudprovider::RequestSetting;
use warp_api::gpurequest::RequestAttempt;
use warp_api::{CloudProvider, GPURequest};
use warp_cloud::fake::Fake;
use warp_cloud::{Account, Class, Failure, Kind, Launch, Mark, Network, Now, Provider};
use warp_runtime::cache::{Cache, Key};

use super::books::InConfigMap;
use crate::containers::{Containers, Refusal};
use crate::context::Context;
use crate::joining::Joining;

type Opened = BTreeMap<String, (Account, Arc<dyn Provider>)>;

/// Every account that is described.
pub(crate) struct Clouds {
    client: Client,
    joining: Joining,
    containers: Arc<Containers>,
    providers: Cache<CloudProvider>,
    requests: Cache<GPURequest>,
    now: Now,
    cx: Weak<Context>,
    network: OnceLock<Arc<Network>>,
    /// Accounts that are open, by the name of their CloudProvider: they know when the cloud may be asked again.
    opened: Mutex<Opened>,
}

impl Debug for Clouds {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Clouds").finish_non_exhaustive()
    }
}

impl Clouds {
    pub(super) fn new(
        client: Client,
        joining: Joining,
        containers: Arc<Containers>,
        providers: Cache<CloudProvider>,
        requests: Cache<GPURequest>,
        now: Now,
        cx: &Arc<Context>,
    ) -> Self {
        Self {
            client,
            joining,
            containers,
            providers,
            requests,
            now,
            cx: Arc::downgrade(cx),
            network: OnceLock::new(),
            opened: Mutex::default(),
        }
    }

    /// The account of the CloudProvider `name`.
    pub(super) async fn open(&self, name: &str) -> Result<Arc<dyn Provider>, Failure> {
        let Some(provider) = self.providers.get(&Key::new("", name)) else {
            let words =
                format!("there is no CloudProvider {name}: create it again, with the same account");
            return Err(Failure::new(Class::Refused, words));
        };
        let Some(kind) = Kind::of(provider.spec.kind.as_str()) else {
            let words = "its CloudProvider is of a type this version does not know";
            return Err(Failure::new(Class::Refused, words));
        };
        if kind == Kind::Fake {
            let store = InConfigMap {
                api: Api::<ConfigMap>::namespaced(self.client.clone(), &self.joining.home),
                provider: provider.name_any(),
            };
            return Ok(Arc::new(Fake::new(Arc::new(store), self.now.clone())));
        }
        let account = Account {
            kind,
            regions: provider.spec.regions.clone(),
            secrets: self.secrets(&provider).await?,
            settings: settings(&provider),
        };
        self.opened(name, account)
    }

    /// Puts into a launch what its machine joins with, and refuses what its provider does not let requests set.
    pub(super) async fn prepared(&self, name: &str, mut launch: Launch) -> Result<Launch, Failure> {
        let Some(provider) = self.providers.get(&Key::new("", name)) else {
            return Err(Failure::new(
                Class::Refused,
                "there is no such CloudProvider",
            ));
        };
        let may = |setting| provider.spec.requests_may_set.contains(&setting);
        let sets = [
            (launch.image.is_some(), RequestSetting::Image),
            (launch.user_data.is_some(), RequestSetting::UserData),
        ];
        if sets.iter().any(|(set, setting)| *set && !may(*setting)) {
            let words = format!("CloudProvider {name} lets no request set its image or userData");
            return Err(Failure::new(Class::Refused, words));
        }
        if let Some(attempt) = self.attempt(name, &launch.name) {
            let now = (self.now)();
            launch.join = self
                .joining
                .user_data(&provider, &launch, &attempt, now)
                .await?;
            if attempt.is_container() {
                let told = self.containers.container(&attempt).await;
                launch.container = Some(told.map_err(|refusal| match refusal {
                    Refusal::Pod(words) => Failure::new(Class::Refused, words),
                    Refusal::Failure(failure) => failure,
                })?);
            }
        }
        Ok(launch)
    }

    /// The open account, opened anew when anything of it has changed.
    fn opened(&self, name: &str, account: Account) -> Result<Arc<dyn Provider>, Failure> {
        let mut opened = self.opened.lock();
        if let Some((known, cloud)) = opened.get(name)
            && *known == account
        {
            return Ok(Arc::clone(cloud));
        }
        let cloud = warp_cloud::open(account.clone(), self.network()?, self.now.clone())?;
        opened.insert(name.to_owned(), (account, Arc::clone(&cloud)));
        Ok(cloud)
    }

    fn network(&self) -> Result<Arc<Network>, Failure> {
        if let Some(network) = self.network.get() {
            return Ok(Arc::clone(network));
        }
        let network = Network::new().map_err(|words| Failure::new(Class::Transient, words))?;
        Ok(Arc::clone(self.network.get_or_init(|| Arc::new(network))))
    }

    /// The values of an account's Secret.
    async fn secrets(
        &self,
        provider: &CloudProvider,
    ) -> Result<BTreeMap<String, warp_cloud::Secret>, Failure> {
        let credentials = provider.spec.credentials.as_ref();
        let Some(name) = credentials.map(|credentials| &credentials.secret_name) else {
            let words = "spec.credentials.secretName is missing: this cloud needs a Secret";
            return Err(Failure::new(Class::BadCredentials, words));
        };
        let place = format!("{}/{name}", self.joining.home);
        let found = Api::<Secret>::namespaced(self.client.clone(), &self.joining.home)
            .get_opt(name)
            .await
            .map_err(|error| unreadable(&place, &error))?;
        let Some(found) = found else {
            let words = format!("there is no Secret {place}: create it");
            return Err(Failure::new(Class::BadCredentials, words));
        };
        let values = found.data.unwrap_or_default().into_iter();
        let values = values.filter_map(|(key, value)| {
            let value = String::from_utf8(value.0).ok()?;
            Some((key, warp_cloud::Secret::new(value)))
        });
        Ok(values.collect())
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

    /// The regions where `provider` may have machines of ours, whatever its spec says by now.
    pub(super) fn places(&self, provider: &str) -> Vec<String> {
        places(&self.requests.all(), provider)
    }

    /// The mark of this cluster's machines.
    pub(super) fn mark(&self) -> Option<Mark> {
        self.cx.upgrade().and_then(|cx| mark(&cx))
    }
}

/// The regions of attempts that are open or have bought something. One that was refused has nothing anywhere, and its
/// region may be closed to the account.
pub(super) fn places(requests: &[Arc<GPURequest>], provider: &str) -> Vec<String> {
    let attempts = requests
        .iter()
        .filter_map(|request| request.status.as_ref())
        .flat_map(|status| &status.attempts);
    let held = attempts.filter(|attempt| {
        let bought = attempt.outcome.is_none() || attempt.instance_id.is_some();
        attempt.provider == provider && bought
    });
    let regions: BTreeSet<&String> = held.map(|attempt| &attempt.region).collect();
    regions.into_iter().cloned().collect()
}

/// The mark of this cluster's machines, once the cluster's identity is known.
pub(crate) fn mark(cx: &Context) -> Option<Mark> {
    let system = cx
        .namespaces
        .get(&warp_runtime::cache::Key::new("", "kube-system"))?;
    system.uid().map(|uid| Mark::of_cluster(&uid))
}

/// Why a Secret was not read. The API server's words carry nothing of it.
fn unreadable(place: &str, error: &kube::Error) -> Failure {
    let class = match error {
        kube::Error::Api(status) if status.code == 403 => Class::BadCredentials,
        _ => Class::Transient,
    };
    Failure::new(class, format!("failed to read the Secret {place}: {error}"))
}

fn settings(provider: &CloudProvider) -> warp_cloud::Settings {
    let said = provider.spec.settings.clone().unwrap_or_default();
    warp_cloud::Settings {
        image: said.image,
        ssh_key: said.ssh_key,
        network: said.network,
        security_group: said.security_group,
        disk_gib: said.disk_gib,
        project: said.project,
        subscription: said.subscription,
        resource_group: said.resource_group,
    }
}
