//! Nobody grants what they do not hold: checks on writes of roles and bindings, where a real server
//! makes them, between admission and validation.

use serde_json::Value;

use super::ResourceCall;
use crate::auth::rbac::{Action, GROUP, On, Role, Rule, describe, uncovered};
use crate::codec::status::{Status, Subject};

impl ResourceCall<'_> {
    /// Refuses a role or binding that gives away more than the writer holds. `name` is the object's as
    /// the writer knows it.
    pub(super) fn check_escalation(
        &self,
        name: &str,
        new: &Value,
        old: Option<&Value>,
    ) -> Result<(), Status> {
        let resource = &self.entry.resource;
        if resource.group != GROUP || self.call.user.is_master() {
            return Ok(());
        }
        if old.is_some_and(|old| only_collected(new, old)) {
            return Ok(());
        }
        match resource.plural.as_str() {
            "roles" | "clusterroles" => self.check_role(name, new, old),
            _ => self.check_binding(name, new),
        }
    }

    fn named<'a>(&'a self, name: &'a str) -> Subject<'a> {
        Subject {
            name,
            ..self.subject()
        }
    }

    fn place(&self) -> &str {
        self.target.namespace.as_deref().unwrap_or_default()
    }

    fn may(&self, verb: &str, resource: &str, name: &str) -> bool {
        let action = Action::Resource(On {
            verb,
            group: GROUP,
            resource,
            namespace: self.place(),
            name,
            ..On::default()
        });
        let verdict = self.api.authorizer.judge(&self.call.user, &action);
        verdict.allowed
    }

    fn check_role(&self, name: &str, new: &Value, old: Option<&Value>) -> Result<(), Status> {
        let in_path = self.target.name.as_deref().unwrap_or_default();
        if self.may("escalate", &self.entry.resource.plural, in_path) {
            return Ok(());
        }
        self.holds(name, &Rule::all(new))?;
        let gathers = |role: &Value| {
            let selectors = &role["aggregationRule"]["clusterRoleSelectors"];
            selectors.as_array().is_some_and(|list| !list.is_empty())
        };
        // What it gathers can be anything, also later.
        if (gathers(new) || old.is_some_and(gathers))
            && self.holds(name, &Rule::full_authority()).is_err()
        {
            return Err(Status::forbidden(
                &self.named(name),
                "must have cluster-admin privileges to use the aggregationRule",
            ));
        }
        Ok(())
    }

    fn check_binding(&self, name: &str, binding: &Value) -> Result<(), Status> {
        let reference = &binding["roleRef"];
        let text = |member: &str| reference[member].as_str().unwrap_or_default();
        let (kind, role) = (text("kind"), text("name"));
        let (plural, found) = match kind {
            "ClusterRole" => ("clusterroles", Role::Cluster(role)),
            "Role" => {
                let namespace = self.place();
                (
                    "roles",
                    Role::In {
                        namespace,
                        name: role,
                    },
                )
            }
            // Validation refuses it by name.
            _ => return Ok(()),
        };
        if text("apiGroup") == GROUP && self.may("bind", plural, role) {
            return Ok(());
        }
        let rules = self
            .api
            .authorizer
            .with(|policy| policy.role(found).map(<[Rule]>::to_vec));
        // A real server calls the missing role by the binding's resource.
        let rules = rules.ok_or_else(|| Status::not_found(&self.named(role)))?;
        self.holds(name, &rules)
    }

    /// Refuses rules the writer does not hold.
    fn holds(&self, name: &str, wanted: &[Rule]) -> Result<(), Status> {
        let user = &self.call.user;
        let (held, problem) = self
            .api
            .authorizer
            .with(|policy| policy.rules_of(user, self.place()));
        let missing = uncovered(&held, wanted);
        if missing.is_empty() {
            return Ok(());
        }
        let mut why = format!(
            "user {:?} (groups={}) is attempting to grant RBAC permissions not currently held:\n{}",
            user.name,
            crate::auth::quoted(&user.groups),
            describe(&missing)
        );
        if let Some(problem) = problem {
            why = format!("{why}; resolution errors: [{problem}]");
        }
        Err(Status::forbidden(&self.named(name), &why))
    }
}

/// Whether only what garbage collection writes differs.
fn only_collected(new: &Value, old: &Value) -> bool {
    let mut like = new.clone();
    for member in ["ownerReferences", "finalizers", "managedFields"] {
        match old["metadata"].get(member) {
            Some(value) => like["metadata"][member] = value.clone(),
            None => {
                if let Some(meta) = like["metadata"].as_object_mut() {
                    meta.shift_remove(member);
                }
            }
        }
    }
    like == *old
}
