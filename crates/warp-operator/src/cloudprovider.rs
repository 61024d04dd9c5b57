//! The CloudProvider controller: what an account offers, which machines of ours it has, and the end of those that
//! belong to nobody.
//!
//! It buys nothing: that is the GPURequest controller. Deleting a provider is held while the cloud has machines of
//! ours, or a request still needs it.

mod books;
pub(crate) mod calls;
pub(crate) mod circuit;
pub(crate) mod clouds;
mod observe;
mod plan;
mod sweep;
#[cfg(test)]
mod tests;

use std::sync::Arc;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::ConfigMap;
use kube::{Client, ResourceExt};
use warp_api::{CloudProvider, GPURequest};
use warp_cloud::{Kind, Now};
use warp_runtime::cache::{Cache, Key, Shape, Source};
use warp_runtime::outside::Outside;
use warp_runtime::plan::Plan;
use warp_runtime::reconcile::Reconcile;
use warp_runtime::runtime::{Registration, Runtime};

use self::calls::{Inventory, Machines};
use self::clouds::Clouds;
use self::observe::Seen;
use crate::containers::{self, Containers, Nodes};
use crate::context::Context;
use crate::gpurequest::{self, GpuRequests};
use crate::joining::Joining;
use crate::workload;

/// Names the controller in logs, metrics, readiness and wake-ups.
pub(crate) const NAME: &str = "cloudprovider";
/// Keeps a provider until the cloud has no machine of ours.
const FINALIZER: &str = "gpu.warp.dev/machines";
/// What plans call the list of an account by.
const INVENTORY: &str = "cloud-inventory";

/// The kind as the runtime runs it.
#[derive(Debug)]
pub(crate) struct CloudProviders {
    requests: Cache<GPURequest>,
    inventory: Outside,
    cx: Arc<Context>,
}

/// Registers this kind and GPURequest, which share their caches and their calls. Credentials and books are in the
/// operator's own namespace.
pub(crate) fn register(runtime: &mut Runtime, cx: &Arc<Context>, client: Client, home: &str) {
    let providers = runtime.cache(
        Source::all::<CloudProvider>().with_managed_fields(),
        shape(),
    );
    let requests = runtime.cache(Source::all::<GPURequest>().with_managed_fields(), shape());
    cx.requests.set(requests.clone()).ok();
    cx.providers.set(providers.clone()).ok();
    let wakes = runtime.wakes();
    requests.listen(move |old, new| {
        // Who waits for a machine follows what becomes of the request for it.
        let changed = new.or(old).and_then(workload::tenant_of);
        if let Some((key, _)) = changed {
            wakes.wake(workload::NAME, key);
        }
    });
    let costs = Source::within::<ConfigMap>(Some(home)).labels(gpurequest::LEDGER);
    let ledgers = Shape {
        // Own writes come here whatever they carry.
        keep: |object: &ConfigMap| object.labels().contains_key(gpurequest::LEDGER),
        ..shape()
    };
    let costs = runtime.cache(costs, ledgers);
    cx.costs.set(costs).ok();
    gpurequest::follow_money(cx, &requests, &runtime.wakes());
    gpurequest::follow_clouds(cx, &requests, &providers);
    let clock = cx.clock.clone();
    let joining = Joining {
        client: client.clone(),
        home: home.to_owned(),
    };
    let now: Now = Arc::new(move || clock.now());
    let containers = Arc::new(Containers {
        client: client.clone(),
        requests: requests.clone(),
        now: Arc::clone(&now),
        cx: Arc::downgrade(cx),
    });
    let clouds = Arc::new(Clouds::new(
        client,
        joining.clone(),
        Arc::clone(&containers),
        providers.clone(),
        requests.clone(),
        now,
        cx,
    ));
    let inventory = runtime.outside(INVENTORY, NAME, Inventory(Arc::clone(&clouds)));
    let mut machines = Vec::new();
    for kind in Kind::ALL {
        let calls = Machines {
            clouds: Arc::clone(&clouds),
            kind,
        };
        let outside = runtime.outside(kind.as_str(), gpurequest::NAME, calls);
        machines.push((kind, outside));
    }
    let kind = CloudProviders {
        requests: requests.clone(),
        inventory,
        cx: Arc::clone(cx),
    };
    runtime.register(
        Registration::of(kind, &providers)
            // Which machines belong to somebody, and whether somebody still needs the provider.
            .watches(&requests, providers_of),
    );
    let tended = runtime.outside(containers::NODES, gpurequest::NAME, Nodes(containers));
    GpuRequests::register(
        runtime, cx, &requests, &providers, machines, tended, &joining,
    );
}

/// The providers a request has had machines of.
fn providers_of(request: &GPURequest) -> Vec<Key> {
    let attempts = request.status.iter().flat_map(|status| &status.attempts);
    let mut names: Vec<&str> = attempts.map(|attempt| attempt.provider.as_str()).collect();
    names.sort_unstable();
    names.dedup();
    names.into_iter().map(|name| Key::new("", name)).collect()
}

/// Keeps everything but the details of who wrote what.
fn shape<K: ResourceExt>() -> Shape<K> {
    Shape {
        keep: |_| true,
        trim: |object| {
            // The audit trail names the last writer of the spec and nothing else of these.
            let fields = object.managed_fields_mut();
            fields.retain(|entry| entry.subresource.is_none());
            for entry in fields.iter_mut() {
                entry.fields_v1 = None;
            }
        },
        indexes: &[],
    }
}

impl Reconcile for CloudProviders {
    type Object = CloudProvider;
    type Seen = Seen;
    const NAME: &'static str = NAME;
    const MANAGER: &'static str = "warp-cloudprovider";

    async fn observe(&self, provider: &Arc<CloudProvider>) -> Seen {
        observe::see(self, provider)
    }

    fn plan(&self, provider: &CloudProvider, seen: &Seen, now: Timestamp) -> Plan {
        plan::plan(provider, seen, now)
    }

    fn gone(&self, key: &Key) {
        self.inventory.forget(&key.name);
    }
}
