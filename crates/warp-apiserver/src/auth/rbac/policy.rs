//! Roles and bindings put together: by whom they are held, and what that allows.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

use serde_json::Value;

use super::{Action, MASTERS, Rule};
use crate::auth::User;

/// Whether an action is allowed, and by which binding; what stood in the way of knowing otherwise.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Verdict {
    pub(crate) allowed: bool,
    pub(crate) reason: String,
}

/// Which role is meant; a Role is one of a namespace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Role<'a> {
    Cluster(&'a str),
    In { namespace: &'a str, name: &'a str },
}

/// Every role and binding at one moment, indexed by who holds it.
#[derive(Debug, Default)]
pub(crate) struct Policy {
    cluster_roles: HashMap<String, Arc<[Rule]>>,
    /// By `namespace/name`.
    roles: HashMap<String, Arc<[Rule]>>,
    everywhere: Bindings,
    within: HashMap<String, Bindings>,
}

/// Names of bindings by who holds them.
type Index = HashMap<String, BTreeSet<String>>;

/// The bindings of one place.
#[derive(Debug, Default)]
struct Bindings {
    by_name: BTreeMap<String, Binding>,
    users: Index,
    groups: Index,
}

#[derive(Debug)]
struct Binding {
    kind: String,
    role: String,
    subjects: Vec<Subject>,
}

#[derive(Debug, PartialEq, Eq)]
enum Holder {
    /// Service accounts too: they are users with long names.
    User(String),
    Group(String),
    Nobody,
}

#[derive(Debug)]
struct Subject {
    holder: Holder,
    /// As verdicts quote it.
    told: String,
}

impl Subject {
    fn read(subject: &Value, namespace: &str) -> Self {
        let text = |name: &str| subject[name].as_str().unwrap_or_default();
        let (kind, name) = (text("kind"), text("name"));
        match kind {
            "ServiceAccount" => {
                let own = text("namespace");
                let namespace = if own.is_empty() { namespace } else { own };
                let holder = if namespace.is_empty() {
                    Holder::Nobody
                } else {
                    Holder::User(crate::auth::account_name(namespace, name))
                };
                Self {
                    holder,
                    told: format!("{kind} \"{name}/{namespace}\""),
                }
            }
            _ => Self {
                holder: match kind {
                    "User" => Holder::User(name.to_owned()),
                    "Group" => Holder::Group(name.to_owned()),
                    _ => Holder::Nobody,
                },
                told: format!("{kind} {name:?}"),
            },
        }
    }

    fn is(&self, user: &User) -> bool {
        match &self.holder {
            Holder::User(name) => *name == user.name,
            Holder::Group(name) => user.groups.contains(name),
            Holder::Nobody => false,
        }
    }
}

impl Bindings {
    fn index(&mut self, holder: &Holder) -> Option<(&mut Index, String)> {
        match holder {
            Holder::User(name) => Some((&mut self.users, name.clone())),
            Holder::Group(name) => Some((&mut self.groups, name.clone())),
            Holder::Nobody => None,
        }
    }

    fn remove(&mut self, name: &str) {
        let Some(binding) = self.by_name.remove(name) else {
            return;
        };
        for subject in &binding.subjects {
            if let Some((index, holder)) = self.index(&subject.holder)
                && let Some(names) = index.get_mut(&holder)
            {
                names.remove(name);
                if names.is_empty() {
                    index.remove(&holder);
                }
            }
        }
    }

    fn put(&mut self, name: &str, binding: Binding) {
        self.remove(name);
        for subject in &binding.subjects {
            if let Some((index, holder)) = self.index(&subject.holder) {
                index.entry(holder).or_default().insert(name.to_owned());
            }
        }
        self.by_name.insert(name.to_owned(), binding);
    }

    /// The bindings a user has a part in, in order of their names.
    fn of<'a>(&'a self, user: &User) -> BTreeSet<&'a str> {
        let groups = user.groups.iter().filter_map(|name| self.groups.get(name));
        let names = self.users.get(&user.name).into_iter().chain(groups);
        names.flatten().map(String::as_str).collect()
    }
}

/// A rule somebody holds, or a role that is bound and missing.
enum Found<'a> {
    Rules(&'a [Rule], Source<'a>),
    Missing(String),
}

/// Where a right comes from.
struct Source<'a> {
    name: &'a str,
    namespace: Option<&'a str>,
    binding: &'a Binding,
}

impl Source<'_> {
    fn told(&self, user: &User) -> String {
        let Binding { kind, role, .. } = self.binding;
        let subjects = &self.binding.subjects;
        let subject = subjects.iter().find(|subject| subject.is(user));
        let subject = subject.map_or("", |subject| subject.told.as_str());
        match self.namespace {
            Some(namespace) => format!(
                "RoleBinding \"{}/{namespace}\" of {kind} {role:?} to {subject}",
                self.name
            ),
            None => format!(
                "ClusterRoleBinding {:?} of {kind} {role:?} to {subject}",
                self.name
            ),
        }
    }
}

impl Policy {
    /// Takes a role in; `key` is `name` or `namespace/name`.
    pub(crate) fn put_role(&mut self, key: &str, role: &Value) {
        let roles = self.roles_of(key);
        roles.insert(key.to_owned(), Rule::all(role).into());
    }

    pub(crate) fn remove_role(&mut self, key: &str) {
        self.roles_of(key).remove(key);
    }

    fn roles_of(&mut self, key: &str) -> &mut HashMap<String, Arc<[Rule]>> {
        if key.contains('/') {
            &mut self.roles
        } else {
            &mut self.cluster_roles
        }
    }

    /// Takes a binding in; `key` is `name` or `namespace/name`.
    pub(crate) fn put_binding(&mut self, key: &str, binding: &Value) {
        let text = |name: &str| {
            let reference = &binding["roleRef"];
            reference[name].as_str().unwrap_or_default().to_owned()
        };
        let (namespace, name) = key.split_once('/').unwrap_or(("", key));
        let subjects = binding["subjects"].as_array().into_iter().flatten();
        let read = Binding {
            kind: text("kind"),
            role: text("name"),
            subjects: subjects
                .map(|subject| Subject::read(subject, namespace))
                .collect(),
        };
        if namespace.is_empty() {
            self.everywhere.put(name, read);
        } else {
            let place = self.within.entry(namespace.to_owned()).or_default();
            place.put(name, read);
        }
    }

    pub(crate) fn remove_binding(&mut self, key: &str) {
        let Some((namespace, name)) = key.split_once('/') else {
            return self.everywhere.remove(key);
        };
        if let Some(place) = self.within.get_mut(namespace) {
            place.remove(name);
            if place.by_name.is_empty() {
                self.within.remove(namespace);
            }
        }
    }

    /// The rules of a role, if it exists.
    pub(crate) fn role(&self, role: Role<'_>) -> Option<&[Rule]> {
        match role {
            Role::Cluster(name) => self.cluster_roles.get(name).map(|rules| &**rules),
            Role::In { namespace, name } => {
                let key = crate::store::key(Some(namespace), name);
                self.roles.get(&key).map(|rules| &**rules)
            }
        }
    }

    fn found<'a>(&'a self, user: &User, namespace: &'a str) -> Vec<Found<'a>> {
        let mut found = Vec::new();
        let here = Some(namespace).filter(|name| !name.is_empty());
        let local = here.and_then(|name| self.within.get(name));
        for (place, namespace) in [(Some(&self.everywhere), None), (local, here)] {
            let Some(place) = place else { continue };
            for name in place.of(user) {
                let Some(binding) = place.by_name.get(name) else {
                    continue;
                };
                found.push(self.granted(name, namespace, binding));
            }
        }
        found
    }

    fn granted<'a>(
        &'a self,
        name: &'a str,
        namespace: Option<&'a str>,
        binding: &'a Binding,
    ) -> Found<'a> {
        let role = &binding.role;
        let (rules, kind) = match (binding.kind.as_str(), namespace) {
            ("ClusterRole", _) => (self.role(Role::Cluster(role)), "clusterrole"),
            ("Role", Some(namespace)) => {
                let role = Role::In {
                    namespace,
                    name: role,
                };
                (self.role(role), "role")
            }
            (other, _) => {
                return Found::Missing(format!("unsupported role reference kind: {other:?}"));
            }
        };
        match rules {
            Some(rules) => Found::Rules(
                rules,
                Source {
                    name,
                    namespace,
                    binding,
                },
            ),
            None => Found::Missing(format!("{kind}.{} {role:?} not found", super::GROUP)),
        }
    }

    /// Whether a user may do something.
    pub(crate) fn judge(&self, user: &User, action: &Action<'_>) -> Verdict {
        if user.groups.iter().any(|group| group == MASTERS) {
            return Verdict {
                allowed: true,
                reason: String::new(),
            };
        }
        let mut missing = Vec::new();
        for found in self.found(user, action.namespace()) {
            match found {
                Found::Rules(rules, source) => {
                    if rules.iter().any(|rule| rule.allows(action)) {
                        return Verdict {
                            allowed: true,
                            reason: format!("RBAC: allowed by {}", source.told(user)),
                        };
                    }
                }
                Found::Missing(what) => missing.push(what),
            }
        }
        let reason = match together(missing) {
            Some(text) => format!("RBAC: {text}"),
            None => String::new(),
        };
        Verdict {
            allowed: false,
            reason,
        }
    }

    /// Every rule a user holds in a namespace, and what could not be found out.
    pub(crate) fn rules_of(&self, user: &User, namespace: &str) -> (Vec<Rule>, Option<String>) {
        let mut rules = Vec::new();
        let mut missing = Vec::new();
        for found in self.found(user, namespace) {
            match found {
                Found::Rules(held, _) => rules.extend_from_slice(held),
                Found::Missing(what) => missing.push(what),
            }
        }
        (rules, together(missing))
    }
}

/// Several complaints as one, each once.
fn together(complaints: Vec<String>) -> Option<String> {
    let mut distinct: Vec<String> = Vec::new();
    for complaint in complaints {
        if !distinct.contains(&complaint) {
            distinct.push(complaint);
        }
    }
    match distinct.as_slice() {
        [] => None,
        [one] => Some(one.clone()),
        several => Some(format!("[{}]", several.join(", "))),
    }
}
