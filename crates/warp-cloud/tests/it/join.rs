//! What a rented machine runs when it first starts, as text: golden files, which `make user-data` shows to cloud-init and
//! shellcheck, and what must be in each of them.

use std::path::PathBuf;

use jiff::Timestamp;
use serde_json::Value;
use warp_cloud::Kind;
use warp_cloud::join::{Join, JoinToken, Way};

const AUTHORITY: &str =
    "-----BEGIN CERTIFICATE-----\nbm90IGEgcmVhbCBvbmU=\n-----END CERTIFICATE-----\n";

fn join(way: Way, cloud: Kind) -> Join {
    let name = "warp-5f0c2a9e-0b7a1c7e-8d0e-4f43-9d0f-0a4b6f9f2d11-1".to_owned();
    let ends: Timestamp = "2026-11-17T20:10:00Z".parse().expect("a time");
    Join {
        way,
        cloud,
        token: JoinToken::of(b"a key of the tests", &name),
        name,
        gpu: "H100-80GB".to_owned(),
        gpus: 8,
        region: "us-east-1".to_owned(),
        instance_type: "p5.48xlarge".to_owned(),
        gpu_hour_price: "4.1".to_owned(),
        spot: true,
        request: ("team".to_owned(), "h100".to_owned()),
        server: "https://203.0.113.7:6443".to_owned(),
        authority: AUTHORITY.to_owned(),
        version: match way {
            Way::Kubeadm => "v1.35.4".to_owned(),
            Way::K3s => "v1.35.4+k3s1".to_owned(),
        },
        setup: Some("#!/bin/sh\n  echo 'hello: world'\n".to_owned()),
        power_off_at: Some(ends),
        alone_seconds: 1800,
    }
}

/// The cases, with the file each is kept in.
fn cases() -> Vec<(&'static str, Join)> {
    let plain = Join {
        spot: false,
        setup: None,
        power_off_at: None,
        gpu: "MI300X".to_owned(),
        ..join(Way::K3s, Kind::Lambda)
    };
    vec![
        ("kubeadm-aws.yaml", join(Way::Kubeadm, Kind::Aws)),
        ("k3s-lambda.yaml", plain),
        (
            "kubeadm-paperspace.sh",
            join(Way::Kubeadm, Kind::Paperspace),
        ),
    ]
}

fn text(join: &Join) -> String {
    warp_cloud::join::rendered(join)
}

#[test]
fn texts_are_as_kept() {
    let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/it/join");
    for (name, join) in cases() {
        let path = folder.join(name);
        let text = text(&join);
        if std::env::var_os("UPDATE").is_some() {
            std::fs::write(&path, &text).expect("written");
        }
        let kept = std::fs::read_to_string(&path).unwrap_or_default();
        assert!(
            kept == text,
            "{name} is not as kept: UPDATE=1 cargo test -p warp-cloud"
        );
        assert_eq!(
            text,
            self::text(&join),
            "the same values give the same text"
        );
        // EC2 takes 16 KiB, and others want to say something too.
        assert!(
            text.len() < 14 * 1024 || text.starts_with("#!"),
            "{name}: {}",
            text.len()
        );
    }
}

fn files(join: &Join) -> Vec<(String, String, String)> {
    let read: Value = serde_saphyr::from_str(&text(join)).expect("YAML");
    let files = read["write_files"].as_array().expect("files").iter();
    let word = |file: &Value, key: &str| file[key].as_str().unwrap_or_default().to_owned();
    files
        .map(|file| {
            (
                word(file, "path"),
                word(file, "permissions"),
                word(file, "content"),
            )
        })
        .collect()
}

fn content(join: &Join, path: &str) -> String {
    let found = files(join).into_iter().find(|(known, ..)| known == path);
    found.map(|(.., content)| content).unwrap_or_default()
}

#[test]
fn a_machine_joins_under_its_own_name_with_its_token_and_the_clusters_authority() {
    let kubeadm = join(Way::Kubeadm, Kind::Aws);
    let token = format!("{}.{}", kubeadm.token.id(), kubeadm.token.secret());
    let said: Value =
        serde_saphyr::from_str(&content(&kubeadm, "/etc/warp/join.yaml")).expect("YAML");
    assert_eq!(said["nodeRegistration"]["name"], kubeadm.name.as_str());
    assert_eq!(said["discovery"]["tlsBootstrapToken"], token.as_str());
    assert_eq!(
        said["nodeRegistration"]["taints"][0]["key"],
        "gpu.warp.dev/starting"
    );
    let arguments = &said["nodeRegistration"]["kubeletExtraArgs"];
    let labels = arguments[0]["value"].as_str().unwrap_or_default();
    for label in [
        "nvidia.com/gpu.product=H100-80GB",
        "gpu.warp.dev/provider=aws",
        "gpu.warp.dev/request=h100",
    ] {
        assert!(labels.split(',').any(|known| known == label), "{labels}");
    }
    assert_eq!(
        arguments[1]["value"],
        format!("warp://aws/{}", kubeadm.name).as_str()
    );
    assert_eq!(content(&kubeadm, "/etc/warp/ca.crt"), AUTHORITY);
    let k3s = Join {
        cloud: Kind::Lambda,
        ..join(Way::K3s, Kind::Lambda)
    };
    let said: Value =
        serde_saphyr::from_str(&content(&k3s, "/etc/rancher/k3s/config.yaml")).expect("YAML");
    let shown = said["token"].as_str().unwrap_or_default();
    assert!(
        shown.starts_with("K10") && shown.ends_with(&format!("::{token}")),
        "{shown}"
    );
    assert_eq!(said["node-name"], k3s.name.as_str());
}

#[test]
fn whoever_may_not_be_root_reads_no_token() {
    for (name, join) in cases()
        .into_iter()
        .filter(|(name, _)| name.ends_with("yaml"))
    {
        let secret = join.token.secret().to_owned();
        for (path, mode, content) in files(&join) {
            assert!(
                !content.contains(&secret) || mode == "0600",
                "{name}: {path} {mode}"
            );
        }
    }
}

#[test]
fn the_switch_that_ends_a_machine_comes_before_anything_that_may_fail() {
    let join = join(Way::Kubeadm, Kind::Aws);
    let read: Value = serde_saphyr::from_str(&text(&join)).expect("YAML");
    let commands = read["runcmd"].to_string();
    let at = |unit: &str| commands.find(unit).unwrap_or_else(|| panic!("no {unit}"));
    assert!(at("warp-watch.timer") < at("warp-lifetime.timer"));
    assert!(at("warp-lifetime.timer") < at("warp-join.service"));
    let timer = content(&join, "/etc/systemd/system/warp-lifetime.timer");
    assert!(
        timer.contains("OnCalendar=2026-11-17 20:10:00 UTC"),
        "{timer}"
    );
    let values = content(&join, "/etc/warp/machine.env");
    assert!(values.contains("POWER_OFF_AT='1794946200'"), "{values}");
    assert!(values.contains("ALONE_SECONDS='1800'"), "{values}");
}

#[test]
fn only_spot_machines_of_clouds_that_give_notice_ask_for_it() {
    let asks = |join: &Join| text(join).contains("warp-notice.service");
    assert!(asks(&join(Way::Kubeadm, Kind::Aws)));
    assert!(!asks(&join(Way::Kubeadm, Kind::Lambda)));
    let kept = Join {
        spot: false,
        ..join(Way::Kubeadm, Kind::Aws)
    };
    assert!(!asks(&kept));
}
