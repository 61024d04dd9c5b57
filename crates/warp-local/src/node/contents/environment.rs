//! A container's environment: literal values, references, and `$(NAME)` in between.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{ConfigMap, Container, EnvVarSource, Pod, Secret};
use kube::{Api, Client};

use super::super::facts::containers;
use super::ContentError;
use super::fields::{self, Machine, Place};

/// ConfigMaps and Secrets of one namespace.
#[derive(Clone)]
pub(crate) struct Sources {
    maps: Api<ConfigMap>,
    secrets: Api<Secret>,
    namespace: String,
}

impl std::fmt::Debug for Sources {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Sources")
            .field("namespace", &self.namespace)
            .finish_non_exhaustive()
    }
}

/// The content of one object, or nothing when it may be absent and is.
pub(crate) type Entries = BTreeMap<String, Vec<u8>>;

impl Sources {
    pub(crate) fn new(client: &Client, namespace: &str) -> Self {
        Self {
            maps: Api::namespaced(client.clone(), namespace),
            secrets: Api::namespaced(client.clone(), namespace),
            namespace: namespace.to_owned(),
        }
    }

    pub(crate) async fn config_map(
        &self,
        name: &str,
        optional: bool,
    ) -> Result<Entries, ContentError> {
        let found = self
            .maps
            .get_opt(name)
            .await
            .map_err(|source| read("configmap", name, source))?;
        let Some(map) = found else {
            return absent("configmap", name, optional);
        };
        let mut entries: Entries = map
            .data
            .into_iter()
            .flatten()
            .map(|(key, value)| (key, value.into_bytes()))
            .collect();
        entries.extend(
            map.binary_data
                .into_iter()
                .flatten()
                .map(|(key, value)| (key, value.0)),
        );
        Ok(entries)
    }

    pub(crate) async fn secret(&self, name: &str, optional: bool) -> Result<Entries, ContentError> {
        let found = self
            .secrets
            .get_opt(name)
            .await
            .map_err(|source| read("secret", name, source))?;
        let Some(secret) = found else {
            return absent("secret", name, optional);
        };
        Ok(secret
            .data
            .into_iter()
            .flatten()
            .map(|(key, value)| (key, value.0))
            .collect())
    }
}

fn absent(kind: &'static str, name: &str, optional: bool) -> Result<Entries, ContentError> {
    if optional {
        return Ok(Entries::new());
    }
    Err(ContentError::Missing {
        kind,
        name: name.to_owned(),
    })
}

fn read(kind: &'static str, name: &str, source: kube::Error) -> ContentError {
    ContentError::Read {
        kind,
        name: name.to_owned(),
        source: Box::new(source),
    }
}

/// Everything needed to resolve one container's environment.
pub(crate) struct Scope<'a> {
    pub(crate) pod: &'a Pod,
    pub(crate) container: &'a Container,
    pub(crate) sources: &'a Sources,
    pub(crate) place: Place<'a>,
    pub(crate) machine: Machine,
}

impl Scope<'_> {
    /// The variables the container declares, on top of `base`. Later ones win and may use earlier ones.
    pub(crate) async fn resolve(
        &self,
        base: BTreeMap<String, String>,
    ) -> Result<BTreeMap<String, String>, ContentError> {
        let mut variables = base;
        for source in self.container.env_from.iter().flatten() {
            let prefix = source.prefix.as_deref().unwrap_or_default();
            let entries = if let Some(map) = &source.config_map_ref {
                self.sources
                    .config_map(&map.name, map.optional == Some(true))
                    .await?
            } else if let Some(secret) = &source.secret_ref {
                self.sources
                    .secret(&secret.name, secret.optional == Some(true))
                    .await?
            } else {
                continue;
            };
            variables.extend(
                entries
                    .into_iter()
                    .map(|(key, value)| (format!("{prefix}{key}"), text(value))),
            );
        }
        for variable in self.container.env.iter().flatten() {
            let value = match &variable.value_from {
                Some(from) => self.from(from).await?,
                None => Some(expand(
                    variable.value.as_deref().unwrap_or_default(),
                    &variables,
                )),
            };
            if let Some(value) = value {
                variables.insert(variable.name.clone(), value);
            }
        }
        Ok(variables)
    }

    async fn from(&self, from: &EnvVarSource) -> Result<Option<String>, ContentError> {
        if let Some(field) = &from.field_ref {
            return fields::of_pod(self.pod, field, self.place).map(Some);
        }
        if let Some(resource) = &from.resource_field_ref {
            let all: Vec<&Container> = self.pod.spec.iter().flat_map(containers).collect();
            return fields::of_resources(&all, self.container, resource, self.machine).map(Some);
        }
        let (kind, name, key, optional, mut entries) = if let Some(map) = &from.config_map_key_ref {
            let optional = map.optional == Some(true);
            (
                "ConfigMap",
                &map.name,
                &map.key,
                optional,
                self.sources.config_map(&map.name, optional).await?,
            )
        } else if let Some(secret) = &from.secret_key_ref {
            let optional = secret.optional == Some(true);
            (
                "Secret",
                &secret.name,
                &secret.key,
                optional,
                self.sources.secret(&secret.name, optional).await?,
            )
        } else {
            return Err(ContentError::Unsupported(
                "this source of an environment variable is not supported".to_owned(),
            ));
        };
        match entries.remove(key) {
            Some(value) => Ok(Some(text(value))),
            None if optional => Ok(None),
            None => Err(ContentError::MissingKey {
                kind,
                namespace: self.sources.namespace.clone(),
                name: name.clone(),
                key: key.clone(),
            }),
        }
    }
}

fn text(bytes: Vec<u8>) -> String {
    String::from_utf8(bytes)
        .unwrap_or_else(|error| String::from_utf8_lossy(error.as_bytes()).into_owned())
}

/// The first `$(NAME)` nobody gave a value.
pub(crate) fn unknown_name<'a>(
    text: &'a str,
    variables: &BTreeMap<String, String>,
) -> Option<&'a str> {
    let mut rest = text;
    while let Some(at) = rest.find('$') {
        rest = &rest[at + 1..];
        if let Some(after) = rest.strip_prefix('$') {
            rest = after;
        } else if let Some((name, after)) = rest
            .strip_prefix('(')
            .and_then(|inner| inner.split_once(')'))
        {
            if !variables.contains_key(name) {
                return Some(name);
            }
            rest = after;
        }
    }
    None
}

/// Replaces `$(NAME)` by its value; `$$(NAME)` stays as `$(NAME)`, and so does an unknown name.
pub(crate) fn expand(text: &str, variables: &BTreeMap<String, String>) -> String {
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(at) = rest.find('$') {
        out.push_str(&rest[..at]);
        rest = &rest[at + 1..];
        if let Some(after) = rest.strip_prefix('$') {
            out.push('$');
            rest = after;
            continue;
        }
        let name = rest
            .strip_prefix('(')
            .and_then(|inner| inner.split_once(')'));
        match name {
            Some((name, after)) => {
                match variables.get(name) {
                    Some(value) => out.push_str(value),
                    None => out.extend(["$(", name, ")"]),
                }
                rest = after;
            }
            None => out.push('$'),
        }
    }
    out.push_str(rest);
    out
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::expand;

    #[test]
    fn references_are_replaced_and_escapes_kept() {
        let variables = BTreeMap::from([("A".to_owned(), "1".to_owned())]);
        let cases = [
            ("$(A)", "1"),
            ("x$(A)y$(A)", "x1y1"),
            ("$$(A)", "$(A)"),
            ("$(B)", "$(B)"),
            ("$(", "$("),
            ("$A $", "$A $"),
            ("100%", "100%"),
        ];
        for (text, expected) in cases {
            assert_eq!(expand(text, &variables), expected, "{text}");
        }
    }
}
