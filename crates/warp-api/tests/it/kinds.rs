//! Every kind of the table has its parts, and the table says of it what its CRD says.

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
fn the_role_may_read_every_kind_and_write_its_status() {
    let role = documents("deploy/rbac/cluster/role.yaml");
    let allows = |resource: &str, verb: &str| {
        let rules = role.iter().filter_map(|object| object["rules"].as_array());
        rules.flatten().any(|rule| {
            let holds = |field: &str, value: &str| {
                let list = rule[field].as_array();
                list.is_some_and(|list| list.iter().any(|found| found == value))
            };
            holds("apiGroups", warp_api::GROUP)
                && holds("resources", resource)
                && holds("verbs", verb)
        })
    };
    for entry in KINDS {
        for verb in ["list", "watch"] {
            assert!(allows(entry.plural, verb), "{verb} {}", entry.plural);
        }
        assert!(allows(&format!("{}/status", entry.plural), "patch"));
    }
}
