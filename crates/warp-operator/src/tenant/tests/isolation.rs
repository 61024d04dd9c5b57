//! Who runs a tenant's namespaces and how these are shut off.

use k8s_openapi::api::networking::v1::NetworkPolicy;
use k8s_openapi::api::rbac::v1::RoleBinding;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use warp_api::condition;

use super::*;
use crate::tenant::observe::Walls;

/// A tenant of namespaces `a` and `b` with what is asked for.
fn asking(spec: &Value) -> Tenant {
    let mut tenant = tenant("red", &json!({"names": ["a", "b"]}));
    let mut whole = serde_json::to_value(&tenant.spec).unwrap();
    for (name, value) in spec.as_object().unwrap() {
        whole[name] = value.clone();
    }
    tenant.spec = serde_json::from_value(whole).unwrap();
    tenant
}

fn applied(plan: &Plan, kind: &str) -> Vec<Value> {
    let each = plan.actions.iter().filter_map(|action| match action {
        Action::Apply {
            object, kind: of, ..
        } if of.kind == kind => Some(object.clone()),
        _ => None,
    });
    each.collect()
}

fn isolated(status: &TenantStatus) -> Option<(String, String)> {
    let found = condition::find(&status.conditions, condition::ISOLATED)?;
    Some((found.status.clone(), found.reason.clone()))
}

/// What a plan would leave in the cluster, taken in as the caches would.
fn carried_out(mut before: Seen, plan: &Plan) -> Seen {
    let mut walls = before.walls.take().unwrap_or_default();
    for action in &plan.actions {
        match action {
            Action::Apply { object, kind, .. } if kind.kind == "RoleBinding" => {
                let made: RoleBinding = serde_json::from_value(object.clone()).unwrap();
                walls.bindings.push(Arc::new(made));
            }
            Action::Apply { object, kind, .. } if kind.kind == "NetworkPolicy" => {
                let made: NetworkPolicy = serde_json::from_value(object.clone()).unwrap();
                walls.policies.push(Arc::new(made));
            }
            Action::Delete { key, kind, .. } => {
                let kept = |of: &str, metadata: &ObjectMeta| {
                    of != kind.kind
                        || metadata.name.as_deref() != Some(&*key.name)
                        || metadata.namespace.as_deref() != Some(&*key.namespace)
                };
                let bindings = &mut walls.bindings;
                bindings.retain(|one| kept("RoleBinding", &one.metadata));
                let policies = &mut walls.policies;
                policies.retain(|one| kept("NetworkPolicy", &one.metadata));
            }
            Action::Patch {
                key, patch, kind, ..
            } if kind.kind == "Namespace" => {
                let labels = patch["metadata"]["labels"].as_object().unwrap();
                for namespace in &mut before.namespaces {
                    if namespace.metadata.name.as_deref() != Some(&*key.name) {
                        continue;
                    }
                    let mut changed = (**namespace).clone();
                    let known = changed.metadata.labels.get_or_insert_default();
                    for (name, value) in labels {
                        match value.as_str() {
                            Some(value) => known.insert(name.clone(), value.to_owned()),
                            None => known.remove(name),
                        };
                    }
                    *namespace = Arc::new(changed);
                }
            }
            _ => {}
        }
    }
    before.walls = Some(walls);
    before
}

/// What is seen where the operator may shut namespaces off.
fn seen(tenants: &[&Tenant]) -> Seen {
    Seen {
        walls: Some(Walls::default()),
        ..super::seen(tenants, BTreeMap::new())
    }
}

#[test]
fn owners_are_bound_in_every_namespace_of_their_tenant() {
    let it = asking(&json!({"owners": [
        {"kind": "User", "name": "anna"},
        {"kind": "ServiceAccount", "name": "bot", "namespace": "ci"},
    ]}));
    let plan = plan(&it, &seen(&[&it]), now());
    let bindings = applied(&plan, "RoleBinding");
    let places: Vec<_> = bindings
        .iter()
        .map(|one| &one["metadata"]["namespace"])
        .collect();
    assert_eq!(places, [&json!("a"), &json!("b")]);
    assert_eq!(bindings[0]["roleRef"]["name"], json!("edit"));
    let group = "rbac.authorization.k8s.io";
    assert_eq!(
        bindings[0]["subjects"],
        json!([
            {"kind": "User", "name": "anna", "apiGroup": group},
            {"kind": "ServiceAccount", "name": "bot", "namespace": "ci"},
        ])
    );
    assert_eq!(
        isolated(&written(&plan)),
        Some(("False".to_owned(), "Isolating".to_owned()))
    );
}

#[test]
fn what_is_in_place_is_said_and_nothing_is_written_again() {
    let mut it = asking(&json!({
        "owners": [{"kind": "Group", "name": "red"}],
        "isolation": {"network": true, "podSecurity": "baseline"},
    }));
    let mut known = seen(&[&it]);
    let first = plan(&it, &known, now());
    it.status = Some(written(&first));
    known = carried_out(known, &first);
    let second = plan(&it, &known, now());
    let status = written(&second);
    assert_eq!(
        isolated(&status),
        Some(("True".to_owned(), "IsolationInPlace".to_owned()))
    );
    it.status = Some(status);
    let third = plan(&it, &known, now());
    let writes = third
        .actions
        .iter()
        .filter(|action| !matches!(action, Action::Apply { .. }));
    assert_eq!(writes.count(), 0, "{:?}", third.actions);
}

#[test]
fn only_pods_of_the_tenants_own_namespaces_are_let_in() {
    let it = asking(&json!({"isolation": {"network": true}}));
    let plan = plan(&it, &seen(&[&it]), now());
    let policies = applied(&plan, "NetworkPolicy");
    assert_eq!(policies.len(), 2);
    let spec = &policies[0]["spec"];
    let peers = &spec["ingress"][0]["from"][0]["namespaceSelector"]["matchExpressions"][0];
    assert_eq!(peers["values"], json!(["a", "b"]));
    assert_eq!(spec["podSelector"], json!({}));
    assert_eq!(spec["policyTypes"], json!(["Ingress"]));
}

#[test]
fn what_is_no_longer_asked_for_is_taken_back_and_a_level_of_others_stays() {
    let asked = json!({
        "owners": [{"kind": "User", "name": "anna"}],
        "isolation": {"podSecurity": "restricted"},
    });
    let it = asking(&asked);
    let known = seen(&[&it]);
    let mut known = carried_out(known.clone(), &plan(&it, &known, now()));
    // Somebody has chosen another level for b since.
    let mut other = (*known.namespaces[1]).clone();
    let labels = other.metadata.labels.get_or_insert_default();
    labels.insert(
        warp_api::label::POD_SECURITY.to_owned(),
        "baseline".to_owned(),
    );
    let b = Arc::new(other);
    known.namespaces[1] = b;
    let quiet = asking(&json!({}));
    let plan = plan(&quiet, &known, now());
    let deleted = plan
        .actions
        .iter()
        .filter(|action| matches!(action, Action::Delete { .. }));
    assert_eq!(deleted.count(), 2);
    let level = warp_api::label::POD_SECURITY;
    let after = carried_out(known, &plan);
    let of = |at: usize| after.namespaces[at].metadata.labels.clone().unwrap();
    assert_eq!(of(0).get(level), None);
    assert_eq!(of(1).get(level).map(String::as_str), Some("baseline"));
    assert_eq!(of(1).get(warp_api::label::TENANT), None);
}

#[test]
fn the_condition_goes_when_what_is_taken_back_has_gone_and_not_before() {
    for asked in [
        json!({"owners": [{"kind": "User", "name": "anna"}]}),
        json!({"isolation": {"network": true}}),
        json!({"isolation": {"podSecurity": "restricted"}}),
    ] {
        let it = asking(&asked);
        let known = seen(&[&it]);
        let known = carried_out(known.clone(), &plan(&it, &known, now()));
        let mut quiet = asking(&json!({}));
        quiet.status = it.status.clone();
        let taking = plan(&quiet, &known, now());
        let status = written(&taking);
        assert_eq!(
            isolated(&status),
            Some(("False".to_owned(), "TakingBack".to_owned())),
            "{asked}"
        );
        quiet.status = Some(status);
        let gone = carried_out(known, &taking);
        let after = written(&plan(&quiet, &gone, now()));
        assert_eq!(isolated(&after), None, "{asked}");
    }
}

#[test]
fn rights_that_were_taken_away_are_not_in_place_while_they_are_still_there() {
    let owners = |names: &[&str]| -> Vec<Value> {
        let each = names.iter();
        each.map(|name| json!({"kind": "User", "name": name}))
            .collect()
    };
    let it = asking(&json!({"owners": owners(&["anna", "bert"])}));
    let known = seen(&[&it]);
    let known = carried_out(known.clone(), &plan(&it, &known, now()));
    let fewer = asking(&json!({"owners": owners(&["anna"])}));
    assert_eq!(
        isolated(&written(&plan(&fewer, &known, now()))),
        Some(("False".to_owned(), "Isolating".to_owned()))
    );
}

#[test]
fn a_second_claim_of_a_namespace_does_not_open_it() {
    let asked = json!({
        "owners": [{"kind": "User", "name": "anna"}],
        "isolation": {"network": true, "podSecurity": "restricted"},
    });
    let it = asking(&asked);
    let known = seen(&[&it]);
    let mut known = carried_out(known.clone(), &plan(&it, &known, now()));
    let thief = tenant("thief", &json!({"names": ["b"]}));
    known.tenants.push(Arc::new(thief.clone()));
    for one in [&it, &thief] {
        let plan = plan(one, &known, now());
        let opened = plan
            .actions
            .iter()
            .any(|action| matches!(action, Action::Delete { .. } | Action::Patch { .. }));
        assert!(!opened, "{:?}", plan.actions);
    }
}

#[test]
fn an_operator_that_hands_out_no_rights_says_so() {
    let it = asking(&json!({"owners": [{"kind": "User", "name": "anna"}]}));
    let without = super::seen(&[&it], BTreeMap::new());
    let plan = plan(&it, &without, now());
    let status = written(&plan);
    let found = condition::find(&status.conditions, condition::ISOLATED).unwrap();
    assert_eq!(
        (found.status.as_str(), found.reason.as_str()),
        ("False", "NotAllowed")
    );
    assert!(
        found.message.contains("--isolate-tenants"),
        "{}",
        found.message
    );
    assert!(applied(&plan, "RoleBinding").is_empty());
}
