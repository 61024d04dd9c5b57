//! Volumes as folders: refreshed in place, and never a way out.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use k8s_openapi::api::core::v1::{ConfigMap, Pod, VolumeMount};
use kube::Api;
use kube::api::{Patch, PatchParams, PostParams};
use serde_json::{Value, json};
use warp_apiserver::{ApiServer, Options};

use super::{Maker, Volumes, mounted};
use crate::node::contents::fields::{Machine, Place};

fn text(folder: &Path, name: &str) -> Option<String> {
    fs::read_to_string(folder.join(name)).ok()
}

#[tokio::test]
async fn a_changed_config_map_reaches_the_files_of_a_running_pod() {
    let server = ApiServer::start(Options::ephemeral().unwrap())
        .await
        .unwrap();
    let client = server.client("default");
    let maps: Api<ConfigMap> = Api::namespaced(client.clone(), "default");
    let map = json!({"metadata": {"name": "settings"}, "data": {"level": "1", "old": "x"}});
    maps.create(
        &PostParams::default(),
        &serde_json::from_value(map).unwrap(),
    )
    .await
    .unwrap();
    let pod: Pod = serde_json::from_value(json!({
        "metadata": {"name": "p", "namespace": "default", "labels": {"a": "b"}},
        "spec": {"containers": [], "volumes": [
            {"name": "map", "configMap": {"name": "settings"}},
            {"name": "all", "projected": {"sources": [
                {"configMap": {"name": "settings", "items": [{"key": "level", "path": "deep/level"}]}},
                {"downwardAPI": {"items": [{"path": "labels", "fieldRef": {"fieldPath": "metadata.labels"}}]}}]}},
            {"name": "scratch", "emptyDir": {}}]}}))
    .unwrap();
    let folder = tempfile::tempdir().unwrap();
    let maker = Maker {
        client: &client,
        pod: &pod,
        place: Place {
            pod: "127.1.0.1",
            host: "127.0.0.1",
        },
        machine: Machine {
            cpu_milli: 1000,
            memory: 1 << 30,
        },
        folder: folder.path().to_owned(),
    };
    let made: Volumes = maker.make().await.unwrap();
    let place = |name: &str| -> PathBuf { made[name].clone() };
    assert_eq!(text(&place("map"), "level").as_deref(), Some("1"));
    assert_eq!(text(&place("all"), "labels").as_deref(), Some("a=\"b\""));
    fs::write(place("scratch").join("kept"), "mine").unwrap();
    let change: Value = json!({"data": {"level": "2", "old": null}});
    maps.patch("settings", &PatchParams::default(), &Patch::Merge(change))
        .await
        .unwrap();
    maker.refresh(&made).await;
    assert_eq!(text(&place("map"), "level").as_deref(), Some("2"));
    assert_eq!(text(&place("map"), "old"), None);
    assert_eq!(text(&place("all"), "deep/level").as_deref(), Some("2"));
    assert_eq!(text(&place("scratch"), "kept").as_deref(), Some("mine"));
    // What is gone from the API stays in the files: a running pod is not broken by it.
    maps.delete("settings", &kube::api::DeleteParams::default())
        .await
        .unwrap();
    maker.refresh(&made).await;
    assert_eq!(text(&place("map"), "level").as_deref(), Some("2"));
}

#[test]
fn a_sub_path_stays_inside_its_volume_whatever_links_lie_there() {
    let folder = tempfile::tempdir().unwrap();
    let volume = folder.path().join("volume");
    fs::create_dir_all(volume.join("inner")).unwrap();
    std::os::unix::fs::symlink("/", volume.join("out")).unwrap();
    std::os::unix::fs::symlink("inner", volume.join("in")).unwrap();
    let variables = BTreeMap::from([("POD".to_owned(), "p-0".to_owned())]);
    let at = |path: Option<&str>, expression: Option<&str>| {
        let mount = VolumeMount {
            name: "v".to_owned(),
            sub_path: path.map(str::to_owned),
            sub_path_expr: expression.map(str::to_owned),
            ..VolumeMount::default()
        };
        mounted(&volume, &mount, &variables)
    };
    assert_eq!(at(None, None).unwrap(), volume);
    let root = volume.canonicalize().unwrap();
    assert_eq!(
        at(Some("in/deeper"), None).unwrap(),
        root.join("inner/deeper")
    );
    assert_eq!(
        at(None, Some("logs/$(POD)")).unwrap(),
        root.join("logs/p-0")
    );
    for (out, why) in [
        ("out", "leads out of it"),
        ("out/etc", "leads out of it"),
        ("../x", "must not contain '..'"),
        ("/etc", "must not be an absolute path"),
    ] {
        let told = at(Some(out), None).unwrap_err().to_string();
        assert!(told.contains(why), "{told}");
    }
}
