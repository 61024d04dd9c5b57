//! One rule of a role: what it allows, and whether rules cover other rules.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Map, Value, json};

use super::Action;

/// `apiGroups`, `resources`, `resourceNames` and `verbs`, or `nonResourceURLs` and `verbs`.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Rule {
    pub(crate) verbs: Vec<String>,
    pub(crate) groups: Vec<String>,
    pub(crate) resources: Vec<String>,
    pub(crate) names: Vec<String>,
    pub(crate) urls: Vec<String>,
}

fn texts(rule: &Value, name: &str) -> Vec<String> {
    let items = rule[name].as_array().into_iter().flatten();
    items.filter_map(Value::as_str).map(str::to_owned).collect()
}

fn has(list: &[String], wanted: &str) -> bool {
    list.iter().any(|known| known == wanted)
}

fn has_or_all(list: &[String], wanted: &str) -> bool {
    list.iter().any(|known| known == "*" || known == wanted)
}

/// A pattern may end with stars: everything that begins like it.
fn url_covers(pattern: &str, url: &str) -> bool {
    pattern == url || (pattern.ends_with('*') && url.starts_with(pattern.trim_end_matches('*')))
}

impl Rule {
    pub(crate) fn read(rule: &Value) -> Self {
        Self {
            verbs: texts(rule, "verbs"),
            groups: texts(rule, "apiGroups"),
            resources: texts(rule, "resources"),
            names: texts(rule, "resourceNames"),
            urls: texts(rule, "nonResourceURLs"),
        }
    }

    /// The rules of a role as stored.
    pub(crate) fn all(role: &Value) -> Vec<Self> {
        let rules = role["rules"].as_array().into_iter().flatten();
        rules.map(Self::read).collect()
    }

    /// Everything there is.
    pub(crate) fn full_authority() -> [Self; 2] {
        let star = || vec!["*".to_owned()];
        [
            Self {
                verbs: star(),
                groups: star(),
                resources: star(),
                ..Self::default()
            },
            Self {
                verbs: star(),
                urls: star(),
                ..Self::default()
            },
        ]
    }

    /// The rule as an object's member: empty lists are left out.
    pub(crate) fn write(&self) -> Value {
        let mut rule = Map::new();
        for (name, list) in [
            ("verbs", &self.verbs),
            ("apiGroups", &self.groups),
            ("resources", &self.resources),
            ("resourceNames", &self.names),
            ("nonResourceURLs", &self.urls),
        ] {
            if !list.is_empty() {
                rule.insert(name.to_owned(), json!(list));
            }
        }
        Value::Object(rule)
    }

    pub(crate) fn allows(&self, action: &Action<'_>) -> bool {
        match action {
            Action::Resource(on) => {
                has_or_all(&self.verbs, on.verb)
                    && has_or_all(&self.groups, on.group)
                    && self.names_resource(on.resource, on.subresource)
                    && (self.names.is_empty() || has(&self.names, on.name))
            }
            Action::Path { verb, path } => {
                has_or_all(&self.verbs, verb) && self.urls.iter().any(|url| url_covers(url, path))
            }
        }
    }

    /// `*`, `pods`, `pods/log` or `*/log`.
    fn names_resource(&self, resource: &str, subresource: &str) -> bool {
        self.resources.iter().any(|known| {
            known == "*"
                || match known.split_once('/') {
                    _ if subresource.is_empty() => known == resource,
                    Some((of, sub)) => sub == subresource && (of == resource || of == "*"),
                    None => false,
                }
        })
    }

    /// Rules with one verb, group, resource and name each that together say the same.
    fn atoms(&self) -> Vec<Self> {
        let one = |text: &String| vec![text.clone()];
        let mut atoms = Vec::new();
        for group in &self.groups {
            for resource in &self.resources {
                for verb in &self.verbs {
                    let atom = Self {
                        verbs: one(verb),
                        groups: one(group),
                        resources: one(resource),
                        ..Self::default()
                    };
                    if self.names.is_empty() {
                        atoms.push(atom);
                        continue;
                    }
                    atoms.extend(self.names.iter().map(|name| Self {
                        names: one(name),
                        ..atom.clone()
                    }));
                }
            }
        }
        for url in &self.urls {
            atoms.extend(self.verbs.iter().map(|verb| Self {
                verbs: one(verb),
                urls: one(url),
                ..Self::default()
            }));
        }
        atoms
    }

    /// Whether this rule grants all an atom does. Stars in the atom are covered by stars only.
    fn covers(&self, atom: &Self) -> bool {
        let resource = |wanted: &String| {
            has_or_all(&self.resources, wanted)
                || wanted
                    .split_once('/')
                    .is_some_and(|(_, sub)| has(&self.resources, &format!("*/{sub}")))
        };
        let names = if atom.names.is_empty() {
            self.names.is_empty()
        } else {
            self.names.is_empty() || atom.names.iter().all(|name| has(&self.names, name))
        };
        let url = |wanted: &String| self.urls.iter().any(|known| url_covers(known, wanted));
        atom.verbs.iter().all(|verb| has_or_all(&self.verbs, verb))
            && atom
                .groups
                .iter()
                .all(|name| has_or_all(&self.groups, name))
            && atom.resources.iter().all(resource)
            && atom.urls.iter().all(url)
            && names
    }

    /// As refusals quote it.
    fn quoted(&self) -> String {
        let parts = [
            ("APIGroups", &self.groups),
            ("Resources", &self.resources),
            ("NonResourceURLs", &self.urls),
            ("ResourceNames", &self.names),
            ("Verbs", &self.verbs),
        ];
        let parts: Vec<String> = parts
            .into_iter()
            .filter(|(_, list)| !list.is_empty())
            .map(|(name, list)| format!("{name}:{}", crate::auth::quoted(list)))
            .collect();
        format!("{{{}}}", parts.join(", "))
    }
}

/// What `wanted` grants that `held` does not, in atoms.
pub(crate) fn uncovered(held: &[Rule], wanted: &[Rule]) -> Vec<Rule> {
    let atoms = wanted.iter().flat_map(Rule::atoms);
    atoms
        .filter(|atom| !held.iter().any(|rule| rule.covers(atom)))
        .collect()
}

/// Atoms as a refusal lists them: those that differ in their verb only in one, in order of their text.
pub(crate) fn describe(atoms: &[Rule]) -> String {
    type Place<'a> = (&'a [String], &'a [String], &'a [String]);
    let mut joined: BTreeMap<Place<'_>, Rule> = BTreeMap::new();
    let mut lines = BTreeSet::new();
    for atom in atoms {
        if atom.urls.is_empty() {
            joined
                .entry((&atom.groups, &atom.resources, &atom.names))
                .and_modify(|rule| rule.verbs.extend(atom.verbs.iter().cloned()))
                .or_insert_with(|| atom.clone());
        } else {
            lines.insert(atom.quoted());
        }
    }
    lines.extend(joined.values().map(Rule::quoted));
    lines.into_iter().collect::<Vec<_>>().join("\n")
}
