//! Every kind of the table has its parts, and the table says of it what its CRD says.

use std::collections::BTreeSet;
use std::path::PathBuf;

use serde_json::{Value, json};
use warp_api::kinds::KINDS;

fn root() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../..")
}

fn text(path: &str) -> String {
    std::fs::read_to_string(root().join(path)).unwrap_or_else(|error| panic!("{path}: {error}"))
}

fn documents(path: &str) -> Vec<Value> {
    let text = text(path);
    let documents = text.split("\n---").filter(|part| !part.trim().is_empty());
    documents
        .map(|part| serde_saphyr::from_str(part).unwrap_or_else(|error| panic!("{path}: {error}")))
        .collect()
}

#[test]
fn the_table_agrees_with_the_crds() {
    for entry in KINDS {
        let spec = &(entry.crd)()["spec"];
        let scope = if entry.namespaced {
            "Namespaced"
        } else {
            "Cluster"
        };
        assert_eq!(spec["names"]["kind"], entry.kind);
        assert_eq!(spec["names"]["plural"], entry.plural);
        assert_eq!(spec["names"]["shortNames"], json!([entry.short_name]));
        assert_eq!(spec["scope"], scope, "{}", entry.kind);
        assert_eq!(spec["group"], warp_api::GROUP);
        assert_eq!(spec["versions"][0]["name"], warp_api::VERSION);
    }
}

#[test]
fn every_kind_has_conditions_an_observed_generation_and_columns() {
    for entry in KINDS {
        let crd = (entry.crd)();
        let status = &warp_api::crd::schema(&crd)["properties"]["status"]["properties"];
        for field in ["conditions", "observedGeneration"] {
            assert!(status[field].is_object(), "{} has no {field}", entry.kind);
        }
        let columns = crd["spec"]["versions"][0]["additionalPrinterColumns"].as_array();
        assert!(columns.is_some_and(|columns| columns.len() > 2));
    }
}

#[test]
fn every_kind_has_an_example_a_controller_and_tests() {
    for entry in KINDS {
        let example = documents(&format!("deploy/examples/{}", entry.example));
        assert!(
            example.iter().any(|object| object["kind"] == entry.kind),
            "{} is no {}",
            entry.example,
            entry.kind
        );
        let folder = format!("crates/warp-operator/src/{}", entry.controller);
        for part in [".rs", "/observe.rs", "/plan.rs", "/tests.rs"] {
            let path = format!("{folder}{part}");
            assert!(root().join(&path).is_file(), "{path} is missing");
        }
        let scenarios = text("crates/warp-operator/tests/it/faults/scenarios.rs");
        let prefix = format!("\"{} ", entry.kind.to_lowercase());
        assert!(
            scenarios.contains(&prefix),
            "no fault scenario of {} begins with {prefix}",
            entry.kind
        );
    }
}

#[test]
fn every_kind_has_a_word_of_its_own_to_be_counted_by() {
    let words: BTreeSet<&str> = KINDS.iter().map(|entry| entry.noun).collect();
    assert_eq!(words.len(), KINDS.len());
    // The column of `warp status`.
    assert!(words.iter().all(|word| word.len() <= 10), "{words:?}");
}

/// Whether a rule of these roles allows a verb on a resource of the group.
fn allows(roles: &[&Value], resource: &str, verb: &str) -> bool {
    let rules = roles.iter().filter_map(|role| role["rules"].as_array());
    rules.flatten().any(|rule| {
        let holds = |field: &str, value: &str| {
            let list = rule[field].as_array();
            list.is_some_and(|list| list.iter().any(|found| found == value))
        };
        holds("apiGroups", warp_api::GROUP) && holds("resources", resource) && holds("verbs", verb)
    })
}

#[test]
fn the_role_may_read_every_kind_and_write_its_status() {
    let roles = documents("deploy/rbac/cluster/role.yaml");
    let roles: Vec<&Value> = roles.iter().collect();
    for entry in KINDS {
        for verb in ["list", "watch"] {
            assert!(
                allows(&roles, entry.plural, verb),
                "{verb} {}",
                entry.plural
            );
        }
        let status = format!("{}/status", entry.plural);
        assert!(allows(&roles, &status, "patch"), "patch {status}");
    }
}

/// Kinds an operator of one namespace does not serve, and why.
const NOT_IN_ONE_NAMESPACE: [(&str, &str); 4] = [
    ("Tenant", "its namespaces are those of the whole cluster"),
    ("CloudProvider", "its account is the whole cluster's"),
    (
        "GPURequest",
        "what it rents becomes nodes of the whole cluster",
    ),
    (
        "InferenceService",
        "its role does not give Deployments and Services",
    ),
];

#[test]
fn the_role_of_one_namespace_has_every_kind_that_is_served_there() {
    let roles = documents("deploy/rbac/namespaced/role.yaml");
    let roles: Vec<&Value> = roles.iter().collect();
    for entry in KINDS {
        let not_served = NOT_IN_ONE_NAMESPACE
            .iter()
            .find(|(kind, _)| *kind == entry.kind);
        let served = allows(&roles, entry.plural, "watch");
        assert_eq!(
            served,
            not_served.is_none(),
            "{}: {not_served:?}",
            entry.kind
        );
        let status = format!("{}/status", entry.plural);
        assert_eq!(served, allows(&roles, &status, "patch"), "patch {status}");
    }
}

#[test]
fn users_read_and_write_every_kind_of_a_namespace_and_none_of_the_cluster() {
    let roles = documents("deploy/rbac/account/user-roles.yaml");
    let named = |name: &str| {
        let role = roles.iter().find(|role| role["metadata"]["name"] == name);
        role.unwrap_or_else(|| panic!("no role {name}"))
    };
    let (view, edit) = (named("warp-workloads-view"), named("warp-workloads-edit"));
    for entry in KINDS {
        let status = format!("{}/status", entry.plural);
        for (role, resource, verbs) in [
            (view, entry.plural, ["get", "list", "watch"]),
            (view, status.as_str(), ["get", "list", "watch"]),
            (edit, entry.plural, ["create", "patch", "delete"]),
        ] {
            for verb in verbs {
                let allowed = allows(&[role], resource, verb);
                assert_eq!(allowed, entry.namespaced, "{verb} {resource}");
            }
        }
    }
}

#[test]
fn undeploy_deletes_objects_of_every_kind_while_their_controllers_run() {
    let makefile = text("Makefile");
    let recipe = makefile
        .split("\nundeploy:")
        .nth(1)
        .expect("a target undeploy");
    let delete = recipe
        .lines()
        .find(|line| line.contains("--all --all-namespaces"));
    let delete = delete.expect("a line that deletes objects");
    let kinds = delete.split_whitespace().nth(2).unwrap_or_default();
    let deleted: BTreeSet<&str> = kinds.split(',').collect();
    let all: BTreeSet<&str> = KINDS.iter().map(|entry| entry.plural).collect();
    assert_eq!(deleted, all);
}

#[test]
fn every_test_run_plays_faults_against_every_kind() {
    let faults = text("crates/warp-operator/tests/it/faults.rs");
    let daily = faults.split("const DAILY").nth(1).expect("a list DAILY");
    let daily = daily.split("];").next().unwrap_or_default();
    for entry in KINDS {
        let prefix = format!("\"{} ", entry.kind.to_lowercase());
        assert!(
            daily.contains(&prefix),
            "DAILY has no scenario of {}",
            entry.kind
        );
    }
}

/// Kinds whose fields are not walked, and the tests beside this one that try each of their rules instead.
const NOT_WALKED: [(&str, &str); 5] = [
    ("Tenant", "tenant.rs"),
    ("InferenceService", "inferenceservice.rs"),
    ("GPURequest", "clouds.rs"),
    ("CloudProvider", "clouds.rs"),
    ("ModelCache", "modelcache.rs"),
];

#[test]
fn the_fields_of_every_kind_are_walked_or_its_rules_are_tried_one_by_one() {
    let walks = text("crates/warp-operator/tests/it/walks/walker.rs");
    for entry in KINDS {
        let walked = walks.contains(&format!("\"{}\"", entry.kind));
        let tried = NOT_WALKED.iter().find(|(kind, _)| *kind == entry.kind);
        assert_eq!(walked, tried.is_none(), "{}: {tried:?}", entry.kind);
        if let Some((_, file)) = tried {
            let tests = text(&format!("crates/warp-api/tests/it/{file}"));
            assert!(tests.contains(entry.kind), "{file} has no {}", entry.kind);
        }
    }
}
