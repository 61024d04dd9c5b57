//! Which objects of a kind a cache is filled with: an own write of the kind may be none of them. Pure.

use std::collections::BTreeMap;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;

/// What a source selects.
#[derive(Clone, Debug, Default)]
pub(crate) struct Selection {
    namespace: Option<String>,
    name: Option<String>,
    labels: Vec<Requirement>,
    /// It also selects by what only the API server knows.
    unknown: bool,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Requirement {
    Is(String, String),
    IsNot(String, String),
    Has(String),
    HasNot(String),
}

impl Selection {
    pub(crate) fn new(
        namespace: Option<String>,
        labels: Option<&str>,
        fields: Option<&str>,
    ) -> Self {
        let mut selection = Self {
            namespace,
            ..Self::default()
        };
        for part in fields.into_iter().flat_map(|text| text.split(',')) {
            match part.trim().split_once('=') {
                Some(("metadata.name", name)) => {
                    selection.name = Some(name.trim_start_matches('=').to_owned());
                }
                _ => selection.unknown = true,
            }
        }
        for part in labels.into_iter().flat_map(|text| text.split(',')) {
            match Requirement::of(part.trim()) {
                Some(requirement) => selection.labels.push(requirement),
                None => selection.unknown = true,
            }
        }
        selection
    }

    /// Whether it brings the objects of one kind without exception.
    pub(crate) fn is_whole(&self) -> bool {
        self.namespace.is_none() && self.name.is_none() && self.labels.is_empty() && !self.unknown
    }

    /// Whether it brings an object; none when only the API server knows.
    pub(crate) fn brings(&self, meta: &ObjectMeta) -> Option<bool> {
        let differs =
            |wanted: &Option<String>, is: &Option<String>| wanted.is_some() && wanted != is;
        let another = differs(&self.namespace, &meta.namespace) || differs(&self.name, &meta.name);
        let none = BTreeMap::new();
        let labels = meta.labels.as_ref().unwrap_or(&none);
        if another || !self.labels.iter().all(|each| each.holds(labels)) {
            return Some(false);
        }
        (!self.unknown).then_some(true)
    }
}

impl Requirement {
    /// None for a form that is not read here.
    fn of(text: &str) -> Option<Self> {
        let name = |text: &str| {
            let plain =
                |character: char| character.is_ascii_alphanumeric() || "-_./".contains(character);
            (!text.is_empty() && text.chars().all(plain)).then(|| text.to_owned())
        };
        let value = |text: &str| name(text).or_else(|| text.is_empty().then(String::new));
        if let Some((key, wanted)) = text.split_once("!=") {
            return Some(Self::IsNot(name(key)?, value(wanted)?));
        }
        if let Some((key, wanted)) = text.split_once('=') {
            let wanted = wanted.strip_prefix('=').unwrap_or(wanted);
            return Some(Self::Is(name(key)?, value(wanted)?));
        }
        match text.strip_prefix('!') {
            Some(key) => Some(Self::HasNot(name(key)?)),
            None => Some(Self::Has(name(text)?)),
        }
    }

    fn holds(&self, labels: &BTreeMap<String, String>) -> bool {
        match self {
            Self::Is(key, value) => labels.get(key) == Some(value),
            Self::IsNot(key, value) => labels.get(key) != Some(value),
            Self::Has(key) => labels.contains_key(key),
            Self::HasNot(key) => !labels.contains_key(key),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn meta(namespace: &str, labels: &[(&str, &str)]) -> ObjectMeta {
        let labels = labels
            .iter()
            .map(|(key, value)| ((*key).to_owned(), (*value).to_owned()));
        ObjectMeta {
            namespace: Some(namespace.to_owned()),
            labels: Some(labels.collect()),
            ..ObjectMeta::default()
        }
    }

    #[test]
    fn an_object_is_brought_when_namespace_and_labels_agree() {
        let selection = Selection::new(
            Some("team".to_owned()),
            Some("kind=a, owner ,other!=b,!hidden"),
            None,
        );
        let good = [("kind", "a"), ("owner", "x")];
        assert_eq!(selection.brings(&meta("team", &good)), Some(true));
        assert_eq!(selection.brings(&meta("elsewhere", &good)), Some(false));
        for wrong in [
            [("kind", "b"), ("owner", "x")],
            [("kind", "a"), ("none", "x")],
        ] {
            assert_eq!(selection.brings(&meta("team", &wrong)), Some(false));
        }
        let hidden = [("kind", "a"), ("owner", "x"), ("hidden", "")];
        assert_eq!(selection.brings(&meta("team", &hidden)), Some(false));
        assert!(!selection.is_whole());
        assert!(Selection::new(None, None, None).is_whole());
    }

    #[test]
    fn an_object_of_another_name_is_not_brought() {
        let selection = Selection::new(None, None, Some("metadata.name=known"));
        let named = |name: &str| ObjectMeta {
            name: Some(name.to_owned()),
            ..meta("team", &[])
        };
        assert_eq!(selection.brings(&named("known")), Some(true));
        assert_eq!(selection.brings(&named("costs-2026-11")), Some(false));
        assert!(!selection.is_whole());
    }

    #[test]
    fn what_only_the_api_server_can_tell_is_not_guessed() {
        for selection in [
            Selection::new(None, None, Some("spec.nodeName=n")),
            Selection::new(None, Some("a in (b, c)"), None),
        ] {
            assert_eq!(selection.brings(&meta("team", &[("a", "b")])), None);
        }
    }
}
