//! What pods ask of namespaces and of volumes.

use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim};
use k8s_openapi::api::storage::v1::StorageClass;
use serde::de::DeserializeOwned;
use warp_core::schedule::fit::Filter;

use super::*;

fn read<K: DeserializeOwned>(object: Value) -> Arc<K> {
    Arc::new(serde_json::from_value(object).unwrap())
}

fn in_zone(name: &str, zone: &str) -> Arc<Node> {
    let mut node = (*node(name, 8)).clone();
    let zone = ("topology.kubernetes.io/zone".to_owned(), zone.to_owned());
    node.metadata
        .labels
        .get_or_insert_default()
        .extend([zone, ("host".to_owned(), name.to_owned())]);
    Arc::new(node)
}

fn nodes() -> [Arc<Node>; 3] {
    [in_zone("a1", "a"), in_zone("a2", "a"), in_zone("b1", "b")]
}

fn fitting(ledger: &Ledger, spec: Value) -> Vec<String> {
    let meta = ObjectMeta {
        namespace: Some("default".to_owned()),
        ..ObjectMeta::default()
    };
    let request = ledger.request(&meta, &serde_json::from_value(spec).unwrap());
    let filter = Filter::new(&ledger.fleet, &request);
    let fits = ledger.fleet.nodes().filter(|(id, _)| filter.fits(*id));
    fits.map(|(_, node)| node.name.to_string()).collect()
}

/// A pod that mounts the claim `data`.
fn mounting() -> Value {
    json!({"containers": asking(1), "volumes": [
        {"name": "data", "persistentVolumeClaim": {"claimName": "data"}},
    ]})
}

fn claim(spec: Value) -> Arc<PersistentVolumeClaim> {
    let mut whole = json!({
        "accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "10Gi"}},
    });
    for (key, value) in spec.as_object().unwrap() {
        whole[key] = value.clone();
    }
    read(json!({"metadata": {"name": "data", "namespace": "default"}, "spec": whole}))
}

fn volume(name: &str, labels: Value, spec: Value) -> Arc<PersistentVolume> {
    let mut whole = json!({"accessModes": ["ReadWriteOnce"], "capacity": {"storage": "10Gi"}});
    for (key, value) in spec.as_object().unwrap() {
        whole[key] = value.clone();
    }
    read(json!({"metadata": {"name": name, "labels": labels}, "spec": whole}))
}

fn only_on(host: &str) -> Value {
    json!({"required": {"nodeSelectorTerms": [
        {"matchExpressions": [{"key": "host", "operator": "In", "values": [host]}]},
    ]}})
}

fn class(name: &str, fields: Value) -> Arc<StorageClass> {
    let mut whole = json!({"metadata": {"name": name}, "provisioner": "disk.example.com"});
    for (key, value) in fields.as_object().unwrap() {
        whole[key] = value.clone();
    }
    read(whole)
}

#[test]
fn a_pod_goes_where_its_volumes_can_be_reached() {
    let zones = json!({"volumeBindingMode": "WaitForFirstConsumer", "allowedTopologies": [
        {"matchLabelExpressions": [{"key": "topology.kubernetes.io/zone", "values": ["b"]}]},
    ]});
    let by_hand = json!({
        "volumeBindingMode": "WaitForFirstConsumer", "provisioner": "kubernetes.io/no-provisioner",
    });
    let classes = vec![
        class("zones", zones),
        class("by-hand", by_hand),
        class("at-once", json!({"volumeBindingMode": "Immediate"})),
        class(
            "anywhere",
            json!({"volumeBindingMode": "WaitForFirstConsumer"}),
        ),
    ];
    let zone = json!({"topology.kubernetes.io/zone": "a"});
    let local = |host: &str| json!({"storageClassName": "by-hand", "nodeAffinity": only_on(host)});
    let mut small = local("a1");
    small["capacity"] = json!({"storage": "5Gi"});
    let mut taken = local("a2");
    taken["claimRef"] = json!({"name": "other", "namespace": "default"});
    let volumes = vec![
        volume("zonal", zone, json!({})),
        volume("local", json!({}), json!({"nodeAffinity": only_on("a2")})),
        volume("small", json!({}), small),
        volume("taken", json!({}), taken),
        volume("free", json!({}), local("b1")),
    ];
    let everywhere = ["a1", "a2", "b1"];
    let cases: [(&str, Value, &[&str]); 8] = [
        ("zonal", json!({"volumeName": "zonal"}), &["a1", "a2"]),
        ("local", json!({"volumeName": "local"}), &["a2"]),
        (
            "to be made in a zone",
            json!({"storageClassName": "zones"}),
            &["b1"],
        ),
        (
            "to be bound to one made by hand",
            json!({"storageClassName": "by-hand"}),
            &["b1"],
        ),
        (
            "bound without waiting for a pod",
            json!({"storageClassName": "at-once"}),
            &everywhere,
        ),
        (
            "to be made anywhere",
            json!({"storageClassName": "anywhere"}),
            &everywhere,
        ),
        (
            "of a class nobody knows",
            json!({"storageClassName": "lost"}),
            &everywhere,
        ),
        (
            "bound to a volume nobody knows",
            json!({"volumeName": "lost"}),
            &everywhere,
        ),
    ];
    for (what, spec, want) in cases {
        let storage = Storage {
            claims: vec![claim(spec)],
            volumes: volumes.clone(),
            classes: classes.clone(),
        };
        let ledger = build(&nodes(), &[], &[]).with_surroundings(&[], storage);
        assert_eq!(fitting(&ledger, mounting()), want, "{what}");
    }
    let storage = Storage {
        classes,
        ..Storage::default()
    };
    let ledger = build(&nodes(), &[], &[]).with_surroundings(&[], storage);
    assert_eq!(fitting(&ledger, mounting()), everywhere, "no claim yet");
    let own = json!({"containers": asking(1), "volumes": [{"name": "scratch", "ephemeral": {
        "volumeClaimTemplate": {"spec": {"accessModes": ["ReadWriteOnce"], "storageClassName": "zones",
            "resources": {"requests": {"storage": "1Gi"}}}},
    }}]});
    assert_eq!(fitting(&ledger, own), ["b1"], "a claim made with the pod");
}

#[test]
fn a_namespace_is_selected_by_its_labels() {
    let mut loud = (*pod(
        "loud",
        json!({"nodeName": "a1", "containers": asking(1)}),
        json!({"phase": "Running"}),
    ))
    .clone();
    loud.metadata.namespace = Some("blue".to_owned());
    let namespaces = [
        read(json!({"metadata": {"name": "blue", "labels": {"team": "blue"}}})),
        read(json!({"metadata": {"name": "default"}})),
    ];
    let ledger =
        build(&nodes(), &[Arc::new(loud)], &[]).with_surroundings(&namespaces, Storage::default());
    let away_from = |team: &str| {
        json!({"containers": asking(1), "affinity": {"podAntiAffinity": {
            "requiredDuringSchedulingIgnoredDuringExecution": [{
                "topologyKey": "host", "labelSelector": {},
                "namespaceSelector": {"matchLabels": {"team": team}},
            }],
        }}})
    };
    assert_eq!(fitting(&ledger, away_from("blue")), ["a2", "b1"]);
    assert_eq!(fitting(&ledger, away_from("red")), ["a1", "a2", "b1"]);
}
