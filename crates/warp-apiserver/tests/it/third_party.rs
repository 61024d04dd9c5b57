//! Definitions of other projects install: they are what users bring along.
//!
//! The files come from the projects' Go modules at test time (`go mod download`, which caches
//! them) and are not part of this repository. A missing `go` fails the test.

use std::path::{Path, PathBuf};
use std::process::Command;

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::Api;
use kube::runtime::wait::{await_condition, conditions};
use serde_json::Value;
use warp_apiserver::kinds;
use warp_apiserver::schema::Schema;

use crate::exchange::json;

/// Module and version, and the folder of its definitions.
const MODULES: [(&str, &str); 11] = [
    ("sigs.k8s.io/gateway-api@v1.4.0", "config/crd/standard"),
    ("sigs.k8s.io/gateway-api@v1.4.0", "config/crd/experimental"),
    ("github.com/kedacore/keda/v2@v2.18.0", "config/crd/bases"),
    (
        "github.com/argoproj/argo-workflows/v3@v3.7.2",
        "manifests/base/crds/minimal",
    ),
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
    (
        "github.com/fluxcd/kustomize-controller@v1.7.3",
        "config/crd/bases",
    ),
    ("sigs.k8s.io/lws@v0.7.0", "config/crd/bases"),
    (
        "github.com/prometheus-operator/prometheus-operator@v0.85.0",
        "example/prometheus-operator-crd",
    ),
];

fn download(module: &str) -> PathBuf {
    let mut refused = Value::Null;
    // A proxy has its moments; what is cached is not asked for.
    for _ in 0..3 {
        let output = Command::new("go")
            .args(["mod", "download", "-json", module])
            .current_dir(std::env::temp_dir())
            .output()
            .expect("go is installed: the definitions of other projects come from their modules");
        let answer: Value = serde_json::from_slice(&output.stdout).unwrap_or_default();
        if let Some(folder) = answer["Dir"].as_str() {
            return PathBuf::from(folder);
        }
        refused = answer["Error"].clone();
    }
    panic!("{module}: {refused}")
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

/// One object of each project, with the file of its definition.
const OBJECTS: [(&str, &str, &str); 9] = [
    (
        "sigs.k8s.io/gateway-api@v1.4.0",
        "config/crd/experimental/gateway.networking.k8s.io_httproutes.yaml",
        r#"{"apiVersion": "gateway.networking.k8s.io/v1", "kind": "HTTPRoute", "metadata": {"name": "x"}, "spec": {
            "parentRefs": [{"name": "gate"}],
            "rules": [{"matches": [{"path": {"type": "PathPrefix", "value": "/a"}}], "backendRefs": [{"name": "b", "port": 80}]}]}}"#,
    ),
    (
        "github.com/kedacore/keda/v2@v2.18.0",
        "config/crd/bases/keda.sh_scaledobjects.yaml",
        r#"{"apiVersion": "keda.sh/v1alpha1", "kind": "ScaledObject", "metadata": {"name": "x"}, "spec": {
            "scaleTargetRef": {"name": "d"}, "triggers": [{"type": "cpu", "metadata": {"value": "50"}}]}}"#,
    ),
    (
        "github.com/argoproj/argo-workflows/v3@v3.7.2",
        "manifests/base/crds/minimal/argoproj.io_workflows.yaml",
        r#"{"apiVersion": "argoproj.io/v1alpha1", "kind": "Workflow", "metadata": {"name": "x"}, "spec": {
            "entrypoint": "main", "templates": [{"name": "main", "container": {"image": "busybox", "command": ["true"]}}]}}"#,
    ),
    (
        "github.com/argoproj/argo-cd/v3@v3.1.8",
        "manifests/crds/application-crd.yaml",
        r#"{"apiVersion": "argoproj.io/v1alpha1", "kind": "Application", "metadata": {"name": "x"}, "spec": {
            "project": "default", "source": {"repoURL": "https://example.com/r", "path": "."},
            "destination": {"namespace": "default", "server": "https://kubernetes.default.svc"}}}"#,
    ),
    (
        "github.com/fluxcd/source-controller@v1.7.0",
        "config/crd/bases/source.toolkit.fluxcd.io_gitrepositories.yaml",
        r#"{"apiVersion": "source.toolkit.fluxcd.io/v1", "kind": "GitRepository", "metadata": {"name": "x"}, "spec": {
            "url": "https://example.com/r", "interval": "5m"}}"#,
    ),
    (
        "github.com/fluxcd/helm-controller@v1.4.0",
        "config/crd/bases/helm.toolkit.fluxcd.io_helmreleases.yaml",
        r#"{"apiVersion": "helm.toolkit.fluxcd.io/v2", "kind": "HelmRelease", "metadata": {"name": "x"}, "spec": {
            "interval": "5m", "chart": {"spec": {"chart": "c", "sourceRef": {"kind": "HelmRepository", "name": "r"}}}}}"#,
    ),
    (
        "github.com/fluxcd/kustomize-controller@v1.7.3",
        "config/crd/bases/kustomize.toolkit.fluxcd.io_kustomizations.yaml",
        r#"{"apiVersion": "kustomize.toolkit.fluxcd.io/v1", "kind": "Kustomization", "metadata": {"name": "x"}, "spec": {
            "interval": "5m", "prune": true, "sourceRef": {"kind": "GitRepository", "name": "r"}}}"#,
    ),
    (
        "sigs.k8s.io/lws@v0.7.0",
        "config/crd/bases/leaderworkerset.x-k8s.io_leaderworkersets.yaml",
        r#"{"apiVersion": "leaderworkerset.x-k8s.io/v1", "kind": "LeaderWorkerSet", "metadata": {"name": "x"}, "spec": {
            "replicas": 1, "leaderWorkerTemplate": {"size": 2, "workerTemplate": {"spec": {"containers": [{"name": "c", "image": "busybox"}]}}}}}"#,
    ),
    (
        "github.com/prometheus-operator/prometheus-operator@v0.85.0",
        "example/prometheus-operator-crd/monitoring.coreos.com_servicemonitors.yaml",
        r#"{"apiVersion": "monitoring.coreos.com/v1", "kind": "ServiceMonitor", "metadata": {"name": "x"}, "spec": {
            "selector": {"matchLabels": {"a": "b"}}, "endpoints": [{"port": "web"}]}}"#,
    ),
];

#[tokio::test]
async fn one_object_of_every_project_is_created_read_and_refused_when_it_is_wrong() {
    let server = crate::api::server().await;
    let client = server.client("default");
    for (module, file, text) in OBJECTS {
        let definition = documents(&download(module).join(file)).remove(0);
        let name = definition["metadata"]["name"].as_str().expect("a name");
        let path = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";
        let (code, answer) = json(&client, "POST", path, &definition).await;
        assert_eq!(code, 201, "{name}: {answer}");
        let definitions: Api<CustomResourceDefinition> = Api::all(client.clone());
        await_condition(definitions, name, conditions::is_crd_established())
            .await
            .expect("an established definition");
        let object: Value = serde_json::from_str(text).expect("an object");
        let version = object["apiVersion"].as_str().expect("a version");
        let plural = definition["spec"]["names"]["plural"].as_str();
        let path = format!(
            "/apis/{version}/namespaces/default/{}?fieldValidation=Strict",
            plural.expect("a plural")
        );
        let (code, made) = json(&client, "POST", &path, &object).await;
        assert_eq!(code, 201, "{name}: {made}");
        assert_eq!(made["kind"], object["kind"]);
        let one = path.replace('?', "/x?");
        let (code, read) = json(&client, "GET", &one, &Value::Null).await;
        assert_eq!((code, &read), (200, &made), "{name}");
        let mut wrong = object.clone();
        wrong["spec"] = "text".into();
        let (code, refused) = json(&client, "POST", &path, &wrong).await;
        assert_eq!(code, 422, "{name}: {refused}");
    }
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
            object["metadata"]["uid"] = Value::from("uid");
            (resource.strategy.prepare_create)(&mut object);
            let errors = (resource.strategy.validate)(&object);
            if !unknown.is_empty() || undecodable.is_some() || !errors.is_empty() {
                let errors: Vec<String> = errors.iter().map(ToString::to_string).collect();
                refused.push(format!("{name}: {unknown:?} {undecodable:?} {errors:#?}"));
                continue;
            }
            for version in object["spec"]["versions"].as_array().expect("versions") {
                let schema = Schema::from_checked(&version["schema"]["openAPIV3Schema"], false);
                let schema = schema.unwrap_or_else(|errors| panic!("{name}: {errors:?}"));
                let mut empty = serde_json::json!({"metadata": {"name": "x"}});
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
    assert!(installed >= 35, "only {installed} definitions were found");
}
