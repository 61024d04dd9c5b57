//! The name of a kind as requests need it. Nothing here knows a particular kind.

use kube::Resource;

/// Names a kind for requests.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[allow(
    clippy::struct_field_names,
    reason = "the API's own words: a kind has a field `kind`"
)]
pub struct Kind {
    pub api_version: String,
    pub kind: String,
    pub plural: String,
}

impl Kind {
    pub fn of<K: Resource<DynamicType = ()>>() -> Self {
        Self {
            api_version: K::api_version(&()).into_owned(),
            kind: K::kind(&()).into_owned(),
            plural: K::plural(&()).into_owned(),
        }
    }

    /// The path of the collection this kind has in `namespace`, or in the whole cluster.
    pub fn path(&self, namespace: Option<&str>) -> String {
        let root = if self.api_version.contains('/') {
            "apis"
        } else {
            "api"
        };
        match namespace {
            Some(namespace) => format!(
                "/{root}/{}/namespaces/{namespace}/{}",
                self.api_version, self.plural
            ),
            None => format!("/{root}/{}/{}", self.api_version, self.plural),
        }
    }
}
