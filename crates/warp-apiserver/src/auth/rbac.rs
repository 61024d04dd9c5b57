//! Who may do what: roles and bindings, judged as kube-apiserver's RBAC authorizer judges them.
//!
//! Pure: rules, what they allow and what they cover. Where the objects come from is `authorizer`'s
//! business, what a request asks for is `http::authorize`'s.

mod policy;
mod rule;

#[cfg(test)]
mod tests;

pub(crate) use policy::{Policy, Role, Verdict};
pub(crate) use rule::{Rule, describe, uncovered};

/// The API group of roles and bindings.
pub(crate) const GROUP: &str = "rbac.authorization.k8s.io";
/// Members of this group may do everything, whatever the objects say.
pub(crate) const MASTERS: &str = "system:masters";

/// One thing somebody wants to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Action<'a> {
    Resource(On<'a>),
    Path { verb: &'a str, path: &'a str },
}

/// A verb on a resource. What does not apply is empty.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct On<'a> {
    pub(crate) verb: &'a str,
    pub(crate) group: &'a str,
    pub(crate) resource: &'a str,
    pub(crate) subresource: &'a str,
    pub(crate) namespace: &'a str,
    pub(crate) name: &'a str,
}

impl Action<'_> {
    fn namespace(&self) -> &str {
        match self {
            Self::Resource(on) => on.namespace,
            Self::Path { .. } => "",
        }
    }
}
