//! Nodes of machines that were rented for one claimant: nobody has them before it, and then only those it shares a tenant
//! or a namespace with. Pure.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use k8s_openapi::api::core::v1::Namespace;
use kube::Resource;
use warp_api::{GPURequest, Tenant};

use super::{Claim, FirstUser};
use crate::tenant::claims;

/// Rented nodes, each with whom it is for.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Rented {
    tenures: BTreeMap<Arc<str>, Tenure>,
    /// Nodes whose machine goes or is taken back: nobody is placed there.
    going: BTreeSet<Arc<str>>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Tenure {
    /// Uid of whom it was rented for.
    first: String,
    /// Whose work may have what the first one leaves; nobody's before that has its place.
    namespaces: BTreeSet<String>,
}

impl Rented {
    /// `first` says whom a request is for. Requests that people make are for everybody.
    pub(crate) fn new(
        requests: &[Arc<GPURequest>],
        first: impl Fn(&GPURequest) -> Option<FirstUser>,
        tenants: &[Arc<Tenant>],
        namespaces: &[Arc<Namespace>],
    ) -> Self {
        let (mut nodes, mut going) = (BTreeMap::new(), BTreeSet::new());
        for request in requests {
            let attempts = request.status.iter().flat_map(|status| &status.attempts);
            let leaving = attempts.filter(|attempt| {
                let taken = attempt.noticed_at.is_some() || attempt.ending.is_some();
                attempt.outcome.is_none() && taken
            });
            going.extend(leaving.map(|attempt| Arc::from(attempt.machine.as_str())));
            let Some(user) = first(request) else {
                continue;
            };
            let attempts = request.status.iter().flat_map(|status| &status.attempts);
            let open: Vec<_> = attempts
                .filter(|attempt| attempt.outcome.is_none())
                .collect();
            if open.is_empty() {
                continue;
            }
            let sharing = if user.served {
                sharing(&user.key.namespace, tenants, namespaces)
            } else {
                BTreeSet::new()
            };
            for attempt in open {
                let tenure = Tenure {
                    first: user.uid.clone(),
                    namespaces: sharing.clone(),
                };
                nodes.insert(Arc::from(attempt.machine.as_str()), tenure);
            }
        }
        Self {
            tenures: nodes,
            going,
        }
    }

    /// Whether no node is rented for anybody.
    pub(super) fn is_empty(&self) -> bool {
        self.tenures.is_empty()
    }

    /// Whether a node was rented for this one.
    pub(super) fn is_first(&self, uid: &str) -> bool {
        self.tenures.values().any(|tenure| tenure.first == uid)
    }

    /// The nodes a claim has to keep off.
    pub(super) fn off_limits(&self, claim: &Claim) -> Vec<Arc<str>> {
        let namespace: &str = &claim.key.namespace;
        let kept = self.tenures.iter().filter(|(node, tenure)| {
            let others = tenure.first != claim.uid && !tenure.namespaces.contains(namespace);
            others && !self.going.contains(*node)
        });
        let going = self.going.iter().map(Arc::clone);
        kept.map(|(node, _)| Arc::clone(node))
            .chain(going)
            .collect()
    }
}

/// The namespaces that share machines with this one: those of its tenant, else itself.
fn sharing(
    namespace: &str,
    tenants: &[Arc<Tenant>],
    namespaces: &[Arc<Namespace>],
) -> BTreeSet<String> {
    let there = tenants
        .iter()
        .filter(|tenant| tenant.meta().deletion_timestamp.is_none());
    let own = there.filter_map(|tenant| {
        let own = claims(&tenant.spec.namespaces, namespaces).ok()?;
        own.contains(namespace).then_some(own)
    });
    let own: Vec<_> = own.collect();
    // One that two tenants claim counts for neither.
    match own.as_slice() {
        [only] => only.clone(),
        _ => BTreeSet::from([namespace.to_owned()]),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;
    use warp_runtime::cache::Key;

    use super::*;

    fn request() -> Arc<GPURequest> {
        let object = json!({
            "apiVersion": "gpu.warp.dev/v1alpha1", "kind": "GPURequest",
            "metadata": {"name": "r", "namespace": "team"},
            "spec": {"gpuType": "H100"},
            "status": {"attempts": [{
                "number": 1, "machine": "m-1", "provider": "fake", "gpu": "H100-80GB", "gpus": 1, "region": "r",
                "instanceType": "t", "price": "2.90", "priceLimit": "3", "intendedAt": "2026-11-15T12:00:00Z",
            }]},
        });
        Arc::new(serde_json::from_value(object).expect("a request"))
    }

    fn first(served: bool) -> FirstUser {
        FirstUser {
            key: Key::new("team", "train"),
            uid: "u".to_owned(),
            served,
        }
    }

    fn tenure(served: bool, tenants: &[Arc<Tenant>]) -> Vec<String> {
        let spaces: Vec<Arc<Namespace>> = ["team", "team-b", "other"]
            .into_iter()
            .map(|name| {
                let object = json!({"metadata": {"name": name}});
                Arc::new(serde_json::from_value(object).expect("a namespace"))
            })
            .collect();
        let rented = Rented::new(&[request()], |_| Some(first(served)), tenants, &spaces);
        let tenure = &rented.tenures["m-1"];
        assert_eq!(tenure.first, "u");
        tenure.namespaces.iter().cloned().collect()
    }

    #[test]
    fn nobody_has_a_rented_node_before_whom_it_is_for() {
        assert!(tenure(false, &[]).is_empty());
        assert_eq!(tenure(true, &[]), ["team"]);
    }

    #[test]
    fn what_it_leaves_is_for_its_tenant() {
        let tenant = json!({
            "apiVersion": "gpu.warp.dev/v1alpha1", "kind": "Tenant", "metadata": {"name": "t"},
            "spec": {"namespaces": {"names": ["team", "team-b"]}},
        });
        let tenant: Tenant = serde_json::from_value(tenant).expect("a tenant");
        assert_eq!(tenure(true, &[Arc::new(tenant)]), ["team", "team-b"]);
    }

    #[test]
    fn a_request_that_people_make_is_for_everybody() {
        let rented = Rented::new(&[request()], |_| None, &[], &[]);
        assert_eq!(rented, Rented::default());
    }
}
