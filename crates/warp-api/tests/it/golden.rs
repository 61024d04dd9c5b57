//! Generated files equal what the code generates; `UPDATE=1` rewrites them.

use std::path::PathBuf;

use warp_api::{crd, reference};

fn root() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../..")
}

fn golden(path: &str, text: &str) {
    let path = root().join(path);
    if std::env::var_os("UPDATE").is_some() {
        let folder = path.parent().expect("a file lies in a folder");
        std::fs::create_dir_all(folder).expect("the folder can be made");
        std::fs::write(&path, text).expect("the file can be written");
    }
    let have = std::fs::read_to_string(&path).unwrap_or_default();
    assert!(
        have == text,
        "{} is out of date: UPDATE=1 cargo test -p warp-api",
        path.display()
    );
}

#[test]
fn the_crd_file_is_current_and_small_enough_to_apply() {
    let crd = crd::gpu_workload();
    let yaml = serde_saphyr::to_string(&crd).unwrap();
    assert_eq!(
        serde_saphyr::from_str::<serde_json::Value>(&yaml).unwrap(),
        crd,
        "YAML keeps it all"
    );
    golden("deploy/crds/gpuworkloads.gpu.warp.dev.yaml", &yaml);
    // Client-side apply stores the whole object in an annotation of at most 256 KiB.
    let size = serde_json::to_string(&crd).unwrap().len();
    assert!(size < 256 * 1024, "{size} bytes");
}

#[test]
fn the_reference_page_is_current() {
    golden(
        "docs/reference/gpuworkload.md",
        &reference::page(&crd::gpu_workload()),
    );
}

#[test]
fn the_pod_template_keeps_its_list_map_keys_and_no_descriptions() {
    let crd = crd::gpu_workload();
    let template = &crd::schema(&crd)["properties"]["spec"]["properties"]["podTemplate"];
    let spec = &template["properties"]["spec"]["properties"];
    assert_eq!(
        spec["containers"]["x-kubernetes-list-map-keys"],
        serde_json::json!(["name"])
    );
    assert_eq!(
        spec["containers"]["items"]["properties"]["ports"]["x-kubernetes-list-map-keys"],
        serde_json::json!(["containerPort", "protocol"])
    );
    assert!(!spec.to_string().contains("\"description\":"));
    let limits = &spec["containers"]["items"]["properties"]["resources"]["properties"]["limits"];
    assert_eq!(
        limits["additionalProperties"]["x-kubernetes-int-or-string"],
        true
    );
}

#[test]
fn every_field_we_define_is_documented() {
    fn check(schema: &serde_json::Value, path: &str) {
        for (name, field) in schema["properties"].as_object().into_iter().flatten() {
            let path = format!("{path}.{name}");
            assert!(
                field["description"].is_string(),
                "{path} has no description"
            );
            let foreign = ["podTemplate", "securityContext", "podSecurityContext"];
            if !foreign.contains(&name.as_str()) {
                check(field, &path);
                check(&field["items"], &path);
            }
        }
    }
    let crd = crd::gpu_workload();
    for part in ["spec", "status"] {
        check(&crd::schema(&crd)["properties"][part], part);
    }
}
