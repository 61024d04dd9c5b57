//! The kinds a cluster serves, found by plural, singular, short name or kind.

use anyhow::{Context, bail};
use kube::Client;
use serde_json::Value;
use warp_local::node::spelling::nearest;

use super::encode;

const ACCEPT: &str = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList";

#[derive(Clone, Debug, PartialEq, Eq)]
#[allow(clippy::struct_field_names, reason = "Kubernetes calls it the kind")]
pub(crate) struct Kind {
    pub(crate) group: String,
    pub(crate) version: String,
    pub(crate) kind: String,
    pub(crate) plural: String,
    singular: String,
    short_names: Vec<String>,
    pub(crate) namespaced: bool,
    verbs: Vec<String>,
}

impl Kind {
    /// The path of a collection, or of one object in it.
    pub(crate) fn path(&self, namespace: Option<&str>, name: Option<&str>) -> String {
        let mut parts = vec![if self.group.is_empty() {
            "/api"
        } else {
            "/apis"
        }];
        parts.extend(
            [self.group.as_str(), &self.version]
                .into_iter()
                .filter(|part| !part.is_empty()),
        );
        let (namespace, name) = (namespace.map(encode), name.map(encode));
        if let Some(namespace) = namespace.as_ref().filter(|_| self.namespaced) {
            parts.extend(["namespaces", namespace]);
        }
        parts.push(&self.plural);
        parts.extend(name.as_deref());
        parts.join("/")
    }

    /// `gpuworkload.gpu.warp.dev`, `pod`: the way kubectl names what it did something to.
    pub(crate) fn label(&self) -> String {
        let name = self.kind.to_lowercase();
        if self.group.is_empty() {
            name
        } else {
            format!("{name}.{}", self.group)
        }
    }

    fn is_called(&self, name: &str) -> bool {
        let full = |name: &str| name == format!("{}.{}", self.plural, self.group);
        self.plural == name
            || self.singular == name
            || self.kind.to_lowercase() == name
            || self.short_names.iter().any(|short| short == name)
            || full(name)
    }
}

/// Everything a cluster serves, in its own order of preference.
#[derive(Clone, Debug, Default)]
pub(crate) struct Kinds(Vec<Kind>);

impl Kinds {
    pub(crate) async fn discover(client: &Client) -> anyhow::Result<Self> {
        let mut kinds = Vec::new();
        for root in ["/api", "/apis"] {
            let request = http::Request::get(root)
                .header("Accept", ACCEPT)
                .body(Vec::new())?;
            let answer: Value = client
                .request(request)
                .await
                .context("failed to ask the cluster which kinds it serves")?;
            for group in list(&answer, "items") {
                read_group(group, &mut kinds);
            }
        }
        Ok(Self(kinds))
    }

    /// The kind a person means.
    pub(crate) fn named(&self, name: &str) -> anyhow::Result<&Kind> {
        let wanted = name.to_lowercase();
        if let Some(found) = self.0.iter().find(|kind| kind.is_called(&wanted)) {
            return Ok(found);
        }
        match nearest(&wanted, self.0.iter().map(|kind| kind.plural.as_str())) {
            Some(near) => bail!("the cluster serves no \"{name}\"; did you mean \"{near}\"?"),
            None => {
                bail!("the cluster serves no \"{name}\"; `warp get --kinds` lists what it does")
            }
        }
    }

    /// The kind a manifest may have meant.
    pub(crate) fn near(&self, kind: &str) -> Option<String> {
        let near = nearest(kind, self.0.iter().map(|known| known.kind.as_str()))?;
        let known = self.0.iter().find(|known| known.kind == near)?;
        let version = if known.group.is_empty() {
            known.version.clone()
        } else {
            format!("{}/{}", known.group, known.version)
        };
        Some(format!("{near} in {version}"))
    }

    /// The kind of a manifest.
    pub(crate) fn of(&self, api_version: &str, kind: &str) -> Option<&Kind> {
        let (group, version) = api_version.split_once('/').unwrap_or(("", api_version));
        self.0
            .iter()
            .find(|known| known.group == group && known.version == version && known.kind == kind)
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &Kind> {
        self.0.iter()
    }
}

fn read_group(group: &Value, kinds: &mut Vec<Kind>) {
    let name = text(group.pointer("/metadata/name"));
    for version in list(group, "versions") {
        for resource in list(version, "resources") {
            let kind = Kind {
                group: name.clone(),
                version: text(version.get("version")),
                kind: text(resource.pointer("/responseKind/kind")),
                plural: text(resource.get("resource")),
                singular: text(resource.get("singularResource")),
                short_names: list(resource, "shortNames")
                    .iter()
                    .map(|name| text(Some(name)))
                    .collect(),
                namespaced: resource.get("scope").and_then(Value::as_str) == Some("Namespaced"),
                verbs: list(resource, "verbs")
                    .iter()
                    .map(|verb| text(Some(verb)))
                    .collect(),
            };
            if kind.verbs.iter().any(|verb| verb == "get") {
                kinds.push(kind);
            }
        }
    }
}

fn list<'a>(value: &'a Value, key: &str) -> &'a [Value] {
    value
        .get(key)
        .and_then(Value::as_array)
        .map_or(&[], Vec::as_slice)
}

fn text(value: Option<&Value>) -> String {
    value.and_then(Value::as_str).unwrap_or_default().to_owned()
}
