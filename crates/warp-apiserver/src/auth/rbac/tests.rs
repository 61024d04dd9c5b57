// `json!` at the call reads best by value.
#![allow(clippy::needless_pass_by_value)]

//! Rules and policies by table: what allows what, what covers what, and in which words.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use super::{Action, On, Policy, Rule, describe, uncovered};
use crate::auth::User;

fn rule(rule: Value) -> Rule {
    Rule::read(&rule)
}

fn on<'a>(verb: &'a str, group: &'a str, resource: &'a str, name: &'a str) -> Action<'a> {
    let (resource, subresource) = resource.split_once('/').unwrap_or((resource, ""));
    Action::Resource(On {
        verb,
        group,
        resource,
        subresource,
        namespace: "ns",
        name,
    })
}

#[test]
fn a_rule_allows_exactly_what_it_names() {
    let pods = json!({"apiGroups": [""], "resources": ["pods"], "verbs": ["get", "list"]});
    let all = json!({"apiGroups": ["*"], "resources": ["*"], "verbs": ["*"]});
    let logs = json!({"apiGroups": [""], "resources": ["pods/log"], "verbs": ["get"]});
    let scale = json!({"apiGroups": ["*"], "resources": ["*/scale"], "verbs": ["update"]});
    let one = json!({"apiGroups": [""], "resources": ["secrets"], "resourceNames": ["a"], "verbs": ["*"]});
    let table: [(&Value, Action<'_>, bool); 21] = [
        (&pods, on("get", "", "pods", "p"), true),
        (&pods, on("watch", "", "pods", ""), false),
        (&pods, on("get", "apps", "pods", "p"), false),
        (&pods, on("get", "", "pods/log", "p"), false),
        (&pods, on("get", "", "podtemplates", "p"), false),
        (&all, on("anything", "x.io", "things/sub", "t"), true),
        (
            &all,
            Action::Path {
                verb: "get",
                path: "/metrics",
            },
            false,
        ),
        (&logs, on("get", "", "pods/log", "p"), true),
        (&logs, on("get", "", "pods", "p"), false),
        (&logs, on("get", "", "nodes/log", "p"), false),
        (&scale, on("update", "apps", "deployments/scale", "d"), true),
        (&scale, on("update", "apps", "deployments", "d"), false),
        (
            &scale,
            on("update", "apps", "deployments/status", "d"),
            false,
        ),
        (
            &scale,
            on("update", "apps", "deployments/autoscale", "d"),
            false,
        ),
        (&scale, on("get", "apps", "deployments/scale", "d"), false),
        (&one, on("get", "", "secrets", "a"), true),
        (&one, on("get", "", "secrets", "b"), false),
        (&one, on("list", "", "secrets", ""), false),
        (&one, on("list", "", "secrets", "a"), true),
        (&one, on("create", "", "secrets", ""), false),
        (&one, on("deletecollection", "", "secrets", ""), false),
    ];
    for (held, action, allowed) in table {
        assert_eq!(
            rule(held.clone()).allows(&action),
            allowed,
            "{held} {action:?}"
        );
    }
}

#[test]
fn a_path_may_end_with_a_star() {
    for (pattern, path, allowed) in [
        ("/healthz", "/healthz", true),
        ("/healthz", "/healthz/ping", false),
        ("/healthz/*", "/healthz/ping", true),
        ("/healthz/*", "/healthz", false),
        ("/health*", "/healthz", true),
        ("/*z", "/healthz", false),
        ("*", "/anything", true),
        ("/api/**", "/api/v1", true),
    ] {
        let held = rule(json!({"nonResourceURLs": [pattern], "verbs": ["get"]}));
        let path = Action::Path { verb: "get", path };
        assert_eq!(held.allows(&path), allowed, "{pattern} {path:?}");
        let Action::Path { path, .. } = path else {
            unreachable!()
        };
        assert!(!held.allows(&Action::Path { verb: "post", path }));
    }
}

#[test]
fn rules_cover_others_only_as_a_whole() {
    let pods = |verbs: Value| json!({"apiGroups": [""], "resources": ["pods"], "verbs": verbs});
    let named = |names: Value| json!({"apiGroups": [""], "resources": ["pods"], "resourceNames": names, "verbs": ["get"]});
    let url = |url: &str| json!({"nonResourceURLs": [url], "verbs": ["get"]});
    let all = json!({"apiGroups": ["*"], "resources": ["*"], "verbs": ["*"]});
    let subs = json!({"apiGroups": [""], "resources": ["*/log"], "verbs": ["get"]});
    let log = json!({"apiGroups": [""], "resources": ["pods/log"], "verbs": ["get"]});
    for (held, wanted, covered) in [
        (
            vec![pods(json!(["get", "list"]))],
            pods(json!(["get"])),
            true,
        ),
        (
            vec![pods(json!(["get"])), pods(json!(["list"]))],
            pods(json!(["get", "list"])),
            true,
        ),
        (vec![pods(json!(["get"]))], pods(json!(["*"])), false),
        (vec![pods(json!(["*"]))], pods(json!(["get"])), true),
        (vec![pods(json!(["get"]))], named(json!(["a"])), true),
        (vec![named(json!(["a"]))], pods(json!(["get"])), false),
        (
            vec![named(json!(["a"])), named(json!(["b"]))],
            named(json!(["a", "b"])),
            true,
        ),
        (vec![subs.clone()], log.clone(), true),
        (vec![log], subs, false),
        (vec![all.clone()], url("/metrics"), false),
        (vec![url("*")], url("/metrics"), true),
        (vec![url("/a/*")], url("/a/b*"), true),
        (vec![url("/a/b*")], url("/a/*"), false),
        (vec![all], pods(json!(["escalate"])), true),
        (
            vec![],
            json!({"apiGroups": [], "resources": [], "verbs": ["get"]}),
            true,
        ),
    ] {
        let missing = uncovered(
            &held.iter().cloned().map(rule).collect::<Vec<_>>(),
            &[rule(wanted.clone())],
        );
        assert_eq!(missing.is_empty(), covered, "{held:?} {wanted}");
    }
}

#[test]
fn what_is_missing_is_told_in_one_line_for_each_resource() {
    let wanted = [
        rule(json!({"apiGroups": ["", "apps"], "resources": ["pods"], "verbs": ["get", "list"]})),
        rule(json!({"nonResourceURLs": ["/metrics"], "verbs": ["get", "post"]})),
        rule(
            json!({"apiGroups": [""], "resources": ["secrets"], "resourceNames": ["a"], "verbs": ["get"]}),
        ),
    ];
    let held = [rule(
        json!({"apiGroups": ["apps"], "resources": ["pods"], "verbs": ["list"]}),
    )];
    assert_eq!(
        describe(&uncovered(&held, &wanted)),
        "{APIGroups:[\"\"], Resources:[\"pods\"], Verbs:[\"get\" \"list\"]}\n\
         {APIGroups:[\"\"], Resources:[\"secrets\"], ResourceNames:[\"a\"], Verbs:[\"get\"]}\n\
         {APIGroups:[\"apps\"], Resources:[\"pods\"], Verbs:[\"get\"]}\n\
         {NonResourceURLs:[\"/metrics\"], Verbs:[\"get\"]}\n\
         {NonResourceURLs:[\"/metrics\"], Verbs:[\"post\"]}"
    );
}

fn user(name: &str, groups: &[&str]) -> User {
    User {
        name: name.to_owned(),
        groups: groups.iter().map(|group| (*group).to_owned()).collect(),
        uid: String::new(),
        extra: BTreeMap::new(),
    }
}

fn subject(kind: &str, name: &str, namespace: &str) -> Value {
    json!({"kind": kind, "name": name, "namespace": namespace})
}

fn policy() -> Policy {
    let mut policy = Policy::default();
    let pods = json!({"rules": [{"apiGroups": [""], "resources": ["pods"], "verbs": ["get"]}]});
    policy.put_role("reader", &pods);
    policy.put_role("ns/local", &pods);
    let bind = |kind: &str, role: &str, subjects: Value| json!({"roleRef": {"kind": kind, "name": role}, "subjects": subjects});
    policy.put_binding(
        "everywhere",
        &bind(
            "ClusterRole",
            "reader",
            json!([subject("Group", "readers", ""), subject("User", "eve", "")]),
        ),
    );
    policy.put_binding(
        "ns/here",
        &bind(
            "ClusterRole",
            "reader",
            json!([
                subject("User", "ada", ""),
                subject("ServiceAccount", "robot", "")
            ]),
        ),
    );
    policy.put_binding(
        "ns/local",
        &bind(
            "Role",
            "local",
            json!([subject("ServiceAccount", "far", "other")]),
        ),
    );
    policy.put_binding(
        "gone",
        &bind("ClusterRole", "gone", json!([subject("User", "lost", "")])),
    );
    policy
}

#[test]
fn a_binding_grants_to_its_subjects_where_it_is() {
    let policy = policy();
    let get = |namespace: &'static str| {
        Action::Resource(On {
            verb: "get",
            resource: "pods",
            namespace,
            ..On::default()
        })
    };
    for (who, namespace, allowed, reason) in [
        (
            user("eve", &[]),
            "",
            true,
            "RBAC: allowed by ClusterRoleBinding \"everywhere\" of ClusterRole \"reader\" to User \"eve\"",
        ),
        (
            user("x", &["readers"]),
            "any",
            true,
            "RBAC: allowed by ClusterRoleBinding \"everywhere\" of ClusterRole \"reader\" to Group \"readers\"",
        ),
        (
            user("ada", &[]),
            "ns",
            true,
            "RBAC: allowed by RoleBinding \"here/ns\" of ClusterRole \"reader\" to User \"ada\"",
        ),
        (user("ada", &[]), "", false, ""),
        (user("ada", &[]), "other", false, ""),
        (
            user("system:serviceaccount:ns:robot", &[]),
            "ns",
            true,
            "RBAC: allowed by RoleBinding \"here/ns\" of ClusterRole \"reader\" to ServiceAccount \"robot/ns\"",
        ),
        (
            user("system:serviceaccount:other:robot", &[]),
            "ns",
            false,
            "",
        ),
        (
            user("system:serviceaccount:other:far", &[]),
            "ns",
            true,
            "RBAC: allowed by RoleBinding \"local/ns\" of Role \"local\" to ServiceAccount \"far/other\"",
        ),
        (
            user("lost", &[]),
            "ns",
            false,
            "RBAC: clusterrole.rbac.authorization.k8s.io \"gone\" not found",
        ),
        (user("nobody", &["system:masters"]), "ns", true, ""),
        // Groups are not users and users are not groups.
        (user("readers", &["eve"]), "", false, ""),
    ] {
        let verdict = policy.judge(&who, &get(namespace));
        assert_eq!(
            (verdict.allowed, verdict.reason.as_str()),
            (allowed, reason),
            "{who:?} {namespace}"
        );
    }
}

#[test]
fn what_is_taken_away_is_gone() {
    let mut policy = policy();
    let get = Action::Resource(On {
        verb: "get",
        resource: "pods",
        namespace: "ns",
        ..On::default()
    });
    let (ada, eve) = (user("ada", &[]), user("eve", &[]));
    assert!(policy.judge(&ada, &get).allowed && policy.judge(&eve, &get).allowed);
    policy.remove_binding("ns/here");
    assert!(!policy.judge(&ada, &get).allowed);
    policy.put_binding(
        "everywhere",
        &json!({"roleRef": {"kind": "ClusterRole", "name": "reader"}, "subjects": [subject("User", "ada", "")]}),
    );
    assert!(policy.judge(&ada, &get).allowed && !policy.judge(&eve, &get).allowed);
    policy.remove_role("reader");
    assert!(!policy.judge(&ada, &get).allowed);
}
