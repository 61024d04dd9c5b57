use std::sync::Arc;

use serde_json::Value;

use super::*;

fn claim() -> PersistentVolumeClaim {
    serde_json::from_value(json!({
        "metadata": { "name": "c", "namespace": "n", "uid": "u" },
        "spec": { "accessModes": ["ReadWriteOnce"], "resources": { "requests": { "storage": "1Gi" } }, "storageClassName": "local" }
    }))
    .unwrap()
}

fn volume(storage: &str, class: &str, modes: &Value) -> Arc<PersistentVolume> {
    Arc::new(
        serde_json::from_value(json!({
            "metadata": { "name": "v" },
            "spec": { "capacity": { "storage": storage }, "storageClassName": class, "accessModes": modes }
        }))
        .unwrap(),
    )
}

#[test]
fn a_volume_fits_by_class_mode_and_size() {
    let modes = json!(["ReadWriteOnce", "ReadOnlyMany"]);
    assert!(fits(&volume("2Gi", "local", &modes), &claim()));
    assert!(!fits(&volume("500Mi", "local", &modes), &claim()));
    assert!(!fits(&volume("2Gi", "other", &modes), &claim()));
    assert!(!fits(
        &volume("2Gi", "local", &json!(["ReadOnlyMany"])),
        &claim()
    ));
}

#[test]
fn a_directory_is_made_for_the_claim_and_named_by_its_uid() {
    let class = StorageClass {
        provisioner: PROVISIONER.to_owned(),
        ..StorageClass::default()
    };
    let mut plan = Plan::default();
    provision(&claim(), &class, Path::new("/data"), &mut plan);
    let Some(Action::Create { object, .. }) = plan.actions.first() else {
        panic!("{plan:?}")
    };
    assert_eq!(object["spec"]["hostPath"]["path"], "/data/pvc-u");
    assert_eq!(object["spec"]["claimRef"]["uid"], "u");
}
