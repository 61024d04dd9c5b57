//! ClusterRoles that gather the rules of others by their labels: keeps what they have gathered up to date.

use std::fmt::Write;
use std::sync::Arc;

use serde_json::{Value, json};

use super::rbac::{GROUP, Rule};
use crate::http::Api;
use crate::kinds::metadata::selects;
use crate::store::{Batch, Cursor, Stored, Table};

const TABLE: &str = "clusterroles.rbac.authorization.k8s.io";
/// The one who owns gathered rules.
const MANAGER: &str = "clusterrole-aggregation-controller";
/// Roles gather from roles that gather: rounds until that has settled. More follow with the next change.
const ROUNDS: usize = 8;

/// Fills every role now, then follows their changes until the server stops.
pub(crate) async fn start(api: &Arc<Api>) {
    let table = api.store.table(TABLE);
    let (_, cursor) = table.list_and_watch(None);
    settle(api, &table).await;
    let api = Arc::clone(api);
    tokio::spawn(async move { follow(api, table, cursor).await });
}

async fn follow(api: Arc<Api>, table: Arc<Table>, mut cursor: Cursor) {
    while !api.stop.is_cancelled() {
        match cursor.read(usize::MAX) {
            Batch::Events(_) => settle(&api, &table).await,
            Batch::Idle(_) => {
                tokio::select! {
                    () = cursor.changed() => {}
                    () = api.stop.cancelled() => {}
                }
            }
            Batch::Lost => {
                cursor = table.list_and_watch(None).1;
                settle(&api, &table).await;
            }
        }
    }
}

async fn settle(api: &Arc<Api>, table: &Table) {
    for _ in 0..ROUNDS {
        let roles: Vec<Value> = table
            .all(None)
            .iter()
            .filter(|stored| matters(stored))
            .map(|stored| stored.value())
            .collect();
        let changes = changes(&roles);
        if changes.is_empty() {
            return;
        }
        for (name, rules) in changes {
            write(api, &name, &rules).await;
        }
    }
}

/// Only a role with labels is gathered, only one with a rule for it gathers.
fn matters(stored: &Stored) -> bool {
    const MARK: &[u8] = b"\"aggregationRule\"";
    !stored.index.labels.is_empty() || stored.bytes.windows(MARK.len()).any(|bytes| bytes == MARK)
}

/// The roles whose rules are not what they gather, with what they should be.
fn changes(roles: &[Value]) -> Vec<(String, Vec<Rule>)> {
    let gathering = roles
        .iter()
        .filter(|role| role["aggregationRule"].is_object());
    gathering
        .filter_map(|role| {
            let rules = gathered(role, roles);
            let name = role["metadata"]["name"].as_str()?.to_owned();
            (rules != Rule::all(role)).then_some((name, rules))
        })
        .collect()
}

/// The rules of all selected roles, each once, in order of selectors and names.
fn gathered(role: &Value, roles: &[Value]) -> Vec<Rule> {
    let mut rules = Vec::new();
    let selectors = role["aggregationRule"]["clusterRoleSelectors"].as_array();
    for selector in selectors.into_iter().flatten() {
        let others = roles.iter().filter(|other| {
            other["metadata"]["name"] != role["metadata"]["name"]
                && selects(Some(selector), other["metadata"].get("labels"))
        });
        for rule in others.flat_map(Rule::all) {
            if !rules.contains(&rule) {
                rules.push(rule);
            }
        }
    }
    rules
}

async fn write(api: &Arc<Api>, name: &str, rules: &[Rule]) {
    let mut patch = json!({
        "apiVersion": format!("{GROUP}/v1"), "kind": "ClusterRole", "metadata": {"name": name},
    });
    if !rules.is_empty() {
        patch["rules"] = rules.iter().map(Rule::write).collect();
    }
    let mut escaped = String::new();
    for byte in name.bytes() {
        // Writing to a text has no way to fail.
        let _ = write!(escaped, "%{byte:02X}");
    }
    let path = format!("/apis/{GROUP}/v1/clusterroles/{escaped}?fieldManager={MANAGER}&force=true");
    let written = api
        .ask("PATCH", &path, "application/apply-patch+yaml", &patch)
        .await;
    if let Err(error) = written {
        tracing::warn!(role = name, %error, "a role could not be filled with what it gathers");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn role(name: &str, labels: &Value, resource: &str) -> Value {
        let rules = if resource.is_empty() {
            json!([])
        } else {
            json!([{"apiGroups": [""], "resources": [resource], "verbs": ["get"]}])
        };
        json!({"metadata": {"name": name, "labels": labels}, "rules": rules})
    }

    #[test]
    fn a_role_gathers_each_rule_of_the_selected_once_and_never_its_own() {
        let mut all = role("all", &json!({"to": "x"}), "own");
        all["aggregationRule"] = json!({"clusterRoleSelectors": [
            {"matchLabels": {"to": "x"}},
            {"matchExpressions": [{"key": "also", "operator": "Exists"}]},
        ]});
        let roles = [
            all.clone(),
            role("b", &json!({"to": "x"}), "pods"),
            role("c", &json!({"also": "", "to": "x"}), "pods"),
            role("d", &json!({"also": ""}), "nodes"),
            role("e", &json!({"to": "y"}), "secrets"),
        ];
        let changed = changes(&roles);
        assert_eq!(changed.len(), 1);
        let resources: Vec<&str> = changed[0]
            .1
            .iter()
            .map(|rule| rule.resources[0].as_str())
            .collect();
        assert_eq!(resources, ["pods", "nodes"]);
        all["rules"] = changed[0].1.iter().map(Rule::write).collect();
        let settled = [&[all][..], &roles[1..]].concat();
        assert!(changes(&settled).is_empty());
    }
}
