//! The policy of the moment: roles and bindings as stored, compiled once and kept up with every write.
//!
//! A request of the administrator never gets here, and every other one finds the policy ready unless
//! a role or binding was written since the last look.

use std::sync::Arc;

use parking_lot::{RwLock, RwLockUpgradableReadGuard};

use super::User;
use super::rbac::{Action, Policy, Verdict};
use crate::store::{Batch, Cursor, EventKind, Store, Stored, Table};

/// Tables of roles, then of bindings.
const TABLES: [(&str, Kind); 4] = [
    ("clusterroles.rbac.authorization.k8s.io", Kind::Role),
    ("roles.rbac.authorization.k8s.io", Kind::Role),
    (
        "clusterrolebindings.rbac.authorization.k8s.io",
        Kind::Binding,
    ),
    ("rolebindings.rbac.authorization.k8s.io", Kind::Binding),
];
const BATCH: usize = 256;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Role,
    Binding,
}

/// Answers whether somebody may do something.
#[derive(Debug)]
pub(crate) struct Authorizer(RwLock<State>);

#[derive(Debug)]
struct State {
    policy: Policy,
    followed: Vec<Followed>,
}

/// A table and how far it has been read.
#[derive(Debug)]
struct Followed {
    table: Arc<Table>,
    kind: Kind,
    cursor: Cursor,
}

impl Authorizer {
    pub(crate) fn new(store: &Store) -> Self {
        let mut policy = Policy::default();
        let followed = TABLES
            .iter()
            .map(|(name, kind)| {
                let table = store.table(name);
                let (page, cursor) = table.list_and_watch(None);
                for stored in &page.objects {
                    put(&mut policy, *kind, stored);
                }
                Followed {
                    table,
                    kind: *kind,
                    cursor,
                }
            })
            .collect();
        Self(RwLock::new(State { policy, followed }))
    }

    pub(crate) fn judge(&self, user: &User, action: &Action<'_>) -> Verdict {
        self.with(|policy| policy.judge(user, action))
    }

    /// Looks at the policy after every write that was answered.
    pub(crate) fn with<T>(&self, look: impl FnOnce(&Policy) -> T) -> T {
        {
            let state = self.0.read();
            if !state.is_behind() {
                return look(&state.policy);
            }
        }
        let state = self.0.upgradable_read();
        if !state.is_behind() {
            return look(&state.policy);
        }
        let mut state = RwLockUpgradableReadGuard::upgrade(state);
        state.catch_up();
        look(&state.policy)
    }
}

impl State {
    fn is_behind(&self) -> bool {
        self.followed.iter().any(|table| table.cursor.is_behind())
    }

    fn catch_up(&mut self) {
        let mut lost = false;
        for followed in &mut self.followed {
            loop {
                match followed.cursor.read(BATCH) {
                    Batch::Events(events) => {
                        for event in events {
                            if event.kind == EventKind::Deleted {
                                remove(&mut self.policy, followed.kind, &event.object.key);
                            } else {
                                put(&mut self.policy, followed.kind, &event.object);
                            }
                        }
                    }
                    Batch::Idle(_) => break,
                    Batch::Lost => {
                        lost = true;
                        break;
                    }
                }
            }
        }
        if lost {
            self.start_over();
        }
    }

    /// More was written than the tables remember: everything is read again.
    fn start_over(&mut self) {
        let mut policy = Policy::default();
        for followed in &mut self.followed {
            let (page, cursor) = followed.table.list_and_watch(None);
            followed.cursor = cursor;
            for stored in &page.objects {
                put(&mut policy, followed.kind, stored);
            }
        }
        self.policy = policy;
    }
}

fn put(policy: &mut Policy, kind: Kind, stored: &Stored) {
    let object = stored.value();
    match kind {
        Kind::Role => policy.put_role(&stored.key, &object),
        Kind::Binding => policy.put_binding(&stored.key, &object),
    }
}

fn remove(policy: &mut Policy, kind: Kind, key: &str) {
    match kind {
        Kind::Role => policy.remove_role(key),
        Kind::Binding => policy.remove_binding(key),
    }
}
