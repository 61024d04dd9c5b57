//! `warp doctor`, on machines made for it: a search path with the programs a check asks.

use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, Stdio};

fn program(folder: &Path, name: &str, prints: &str) {
    let file = folder.join(name);
    std::fs::write(&file, format!("#!/bin/sh\ncat <<'END'\n{prints}\nEND\n")).unwrap();
    std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o755)).unwrap();
}

/// The exit code, and what it says of each check.
fn doctor(path: &Path, arguments: &[&str]) -> (Option<i32>, String) {
    let output = Command::new(env!("CARGO_BIN_EXE_warp"))
        .arg("doctor")
        .args(arguments)
        .env("PATH", format!("{}:/usr/bin:/bin", path.display()))
        .env_remove("KUBECONFIG")
        .env(
            "DOCKER_HOST",
            format!("unix://{}", path.join("none").display()),
        )
        .stdin(Stdio::null())
        .output()
        .unwrap();
    (
        output.status.code(),
        String::from_utf8(output.stdout).unwrap(),
    )
}

fn line<'a>(told: &'a str, check: &str) -> &'a str {
    told.lines()
        .find(|line| line.starts_with(check))
        .unwrap_or_else(|| panic!("no {check} in {told}"))
}

#[test]
fn what_a_new_user_trips_over_is_told_with_what_to_do() {
    let folder = tempfile::tempdir().unwrap();
    let version =
        |version: &str| format!("{{\"clientVersion\": {{\"gitVersion\": \"{version}\"}}}}");
    program(folder.path(), "kubectl", &version("v1.35.1"));
    program(
        folder.path(),
        "nvidia-smi",
        "NVIDIA A100-SXM4-80GB\nNVIDIA A100-SXM4-80GB",
    );
    let data = folder.path().join("data").display().to_string();
    let (code, told) = doctor(folder.path(), &["--data", &data, "--port", "0"]);
    assert_eq!(code, Some(0), "{told}");
    assert!(line(&told, "kubectl").contains("ok"));
    assert!(line(&told, "GPUs").contains("2 × NVIDIA A100-SXM4-80GB"));
    assert!(line(&told, "data directory").contains("ok") && line(&told, "disk").contains("free"));
    // Nothing was made by looking.
    assert!(!folder.path().join("data").exists());
    for (kubectl, word) in [
        ("v1.27.0", "1.30 or newer"),
        ("v1.38.0", "more than one version ahead"),
        ("nonsense", "1.30 or newer"),
    ] {
        program(folder.path(), "kubectl", &version(kubectl));
        let (_, told) = doctor(folder.path(), &["--data", &data, "--port", "0"]);
        assert!(line(&told, "kubectl").contains(word), "{told}");
    }
    // What keeps `warp up` from working is the exit code too.
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let port = taken.local_addr().unwrap().port().to_string();
    let (code, told) = doctor(folder.path(), &["--data", &data, "--port", &port]);
    assert_eq!(code, Some(1));
    assert!(line(&told, "port").contains("--port"), "{told}");
    let below_a_file = folder.path().join("kubectl/data").display().to_string();
    let (code, told) = doctor(folder.path(), &["--data", &below_a_file, "--port", "0"]);
    assert_eq!(code, Some(1));
    assert!(line(&told, "data directory").contains("wrong"), "{told}");
    std::fs::create_dir(folder.path().join("data")).unwrap();
    let lock = std::fs::File::create(folder.path().join("data/lock")).unwrap();
    lock.lock().unwrap();
    let (code, told) = doctor(folder.path(), &["--data", &data, "--port", "0"]);
    assert_eq!(code, Some(1));
    assert!(line(&told, "data directory").contains("in use"), "{told}");
    let long = folder.path().join("x".repeat(90)).display().to_string();
    let (_, told) = doctor(folder.path(), &["--data", &long, "--port", "0"]);
    assert!(line(&told, "data directory").contains("too long"), "{told}");
}

#[test]
fn the_kubeconfig_of_a_warp_up_elsewhere_means_that_one() {
    let folder = tempfile::tempdir().unwrap();
    let data = folder.path().join("elsewhere");
    std::fs::create_dir(&data).unwrap();
    std::fs::write(data.join(".warp"), "").unwrap();
    let config = data.join("kubeconfig");
    std::fs::write(&config, "").unwrap();
    let output = Command::new(env!("CARGO_BIN_EXE_warp"))
        .args(["doctor", "--port", "0"])
        .env("KUBECONFIG", &config)
        .env("HOME", folder.path())
        .stdin(Stdio::null())
        .output()
        .unwrap();
    let told = String::from_utf8(output.stdout).unwrap();
    let place = data.display().to_string();
    assert!(line(&told, "data directory").contains(&place), "{told}");
    let said = line(&told, "KUBECONFIG");
    assert!(said.contains(&place) && said.contains("ok"), "{told}");
}
