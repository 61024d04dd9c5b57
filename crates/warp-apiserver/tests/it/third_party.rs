//! Definitions of other projects install: they are what users bring along.
//!
//! The files come from the projects' Go modules at test time (`go mod download`, which caches
//! them) and are not part of this repository. A missing `go` fails the test.

use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::{Value, json};
use warp_apiserver::kinds;
use warp_apiserver::schema::Schema;

/// Module and version, and the folder of its definitions.
const MODULES: [(&str, &str); 9] = [
    ("sigs.k8s.io/gateway-api@v1.4.0", "config/crd/standard"),
    ("sigs.k8s.io/gateway-api@v1.4.0", "config/crd/experimental"),
    ("github.com/kedacore/keda/v2@v2.18.0", "config/crd/bases"),
    (
        "github.com/argoproj/argo-workflows/v3@v3.7.2",
        "manifests/base/crds/full",
    ),
    ("github.com/argoproj/argo-cd/v3@v3.1.8", "manifests/crds"),
    (
        "github.com/fluxcd/source-controller@v1.7.0",
        "config/crd/bases",
    ),
    (
        "github.com/fluxcd/helm-controller@v1.4.0",
        "config/crd/bases",
    ),
    ("sigs.k8s.io/lws@v0.7.0", "config/crd/bases"),
    (
        "github.com/prometheus-operator/prometheus-operator@v0.85.0",
        "example/prometheus-operator-crd",
    ),
];

fn download(module: &str) -> PathBuf {
    let output = Command::new("go")
        .args(["mod", "download", "-json", module])
        .current_dir(std::env::temp_dir())
        .output()
        .expect("go is installed: the definitions of other projects come from their modules");
    let answer: Value = serde_json::from_slice(&output.stdout).expect("go answers with JSON");
    let folder = answer["Dir"].as_str();
    PathBuf::from(folder.unwrap_or_else(|| panic!("{module}: {}", answer["Error"])))
}

fn documents(path: &Path) -> Vec<Value> {
    let text = std::fs::read_to_string(path).expect("a readable file");
    text.split("\n---")
        .filter(|part| {
            part.lines()
                .any(|line| !line.trim().is_empty() && !line.starts_with('#'))
        })
        .map(|part| {
            serde_saphyr::from_str(part.trim_start_matches("---"))
                .unwrap_or_else(|error| panic!("{}: {error}", path.display()))
        })
        .collect()
}

#[test]
fn definitions_of_other_projects_are_accepted_and_their_schemas_work() {
    let all = kinds::builtin();
    let resource = all
        .iter()
        .find(|r| r.kind == "CustomResourceDefinition")
        .expect("served");
    let mut refused = Vec::new();
    let mut installed = 0;
    for (module, folder) in MODULES {
        let folder = download(module).join(folder);
        let mut files: Vec<PathBuf> = std::fs::read_dir(&folder)
            .unwrap_or_else(|error| panic!("{}: {error}", folder.display()))
            .map(|entry| entry.expect("an entry").path())
            .filter(|path| path.extension().is_some_and(|end| end == "yaml"))
            .collect();
        files.sort();
        for mut object in files.iter().flat_map(|file| documents(file)) {
            if object["kind"] != "CustomResourceDefinition" {
                continue;
            }
            let name = object["metadata"]["name"]
                .as_str()
                .unwrap_or_default()
                .to_owned();
            let unknown = resource.schema.unknown_fields(&object);
            let undecodable = resource.schema.decode_error(&object);
            (resource.strategy.default)(&mut object);
            object["metadata"]["uid"] = json!("uid");
            (resource.strategy.prepare_create)(&mut object);
            let errors = (resource.strategy.validate)(&object);
            if !unknown.is_empty() || undecodable.is_some() || !errors.is_empty() {
                let errors: Vec<String> = errors.iter().map(ToString::to_string).collect();
                refused.push(format!("{name}: {unknown:?} {undecodable:?} {errors:#?}"));
                continue;
            }
            for version in object["spec"]["versions"].as_array().expect("versions") {
                let schema = Schema::from_crd(&version["schema"]["openAPIV3Schema"], false);
                let schema = schema.unwrap_or_else(|errors| panic!("{name}: {errors:?}"));
                let mut empty = json!({"metadata": {"name": "x"}});
                schema.prune(&mut empty);
                schema.apply_defaults(&mut empty);
                // Whatever it says about an empty object, it must be able to say it.
                let _ = schema.validate(&empty, Some(&empty));
            }
            installed += 1;
        }
    }
    assert!(
        refused.is_empty(),
        "{} refused:\n{}",
        refused.len(),
        refused.join("\n")
    );
    assert!(installed >= 40, "only {installed} definitions were found");
}
