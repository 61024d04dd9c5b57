//! Which kinds the API serves, by discovery: what garbage collection watches and namespace deletion empties.

use std::collections::BTreeMap;

use kube::discovery::{Discovery, Scope, verbs};

use warp_runtime::plan::Kind;

/// One served kind in the version its group prefers.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Served {
    pub(crate) kind: Kind,
    pub(crate) group: String,
    pub(crate) namespaced: bool,
    verbs: Vec<String>,
}

impl Served {
    pub(crate) fn can(&self, verb: &str) -> bool {
        self.verbs.iter().any(|known| known == verb)
    }

    /// Can its objects be listed, watched and deleted one by one?
    pub(crate) fn is_collectable(&self) -> bool {
        [verbs::LIST, verbs::WATCH, verbs::DELETE]
            .iter()
            .all(|verb| self.can(verb))
            && self.kind.kind != "Event"
    }
}

pub(crate) async fn served(client: &kube::Client) -> Result<Vec<Served>, kube::Error> {
    let discovery = Discovery::new(client.clone()).run_aggregated().await?;
    let mut found = BTreeMap::new();
    for group in discovery.groups() {
        for (resource, capabilities) in group.resources_by_stability() {
            let served = Served {
                kind: Kind {
                    api_version: resource.api_version,
                    kind: resource.kind,
                    plural: resource.plural,
                },
                group: resource.group,
                namespaced: capabilities.scope == Scope::Namespaced,
                verbs: capabilities.operations,
            };
            found.insert((served.group.clone(), served.kind.plural.clone()), served);
        }
    }
    Ok(found.into_values().collect())
}
