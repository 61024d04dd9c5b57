//! `testbed/control-plane`: says what it cannot do and what to do about it, and never builds twice.

use std::path::Path;
use std::process::{Command, Output};

use warp_testkit::{control_plane, repository};

fn script(cache: &Path) -> Command {
    let mut command = Command::new(repository().join("testbed/control-plane"));
    command
        .env("XDG_CACHE_HOME", cache)
        .env_remove("WARP_CONTROL_PLANE");
    command
}

fn stderr(output: &Output) -> String {
    assert!(!output.status.success(), "{output:?}");
    assert!(output.stdout.is_empty(), "only the folder goes to stdout");
    String::from_utf8_lossy(&output.stderr).into_owned()
}

#[test]
fn without_go_it_says_what_to_install() {
    let cache = tempfile::tempdir().unwrap();
    // A PATH with what the script needs and without Go.
    let tools = tempfile::tempdir().unwrap();
    for tool in ["dirname", "sh"] {
        let found = ["/bin", "/usr/bin"].map(|folder| Path::new(folder).join(tool));
        let target = found.iter().find(|path| path.exists()).unwrap();
        std::os::unix::fs::symlink(target, tools.path().join(tool)).unwrap();
    }
    let output = script(cache.path())
        .env("PATH", tools.path())
        .output()
        .unwrap();
    let said = stderr(&output);
    assert!(said.contains("install Go"), "{said}");
    assert!(said.contains("WARP_CONTROL_PLANE"), "{said}");
}

#[test]
fn ready_binaries_are_used_and_missing_ones_are_named() {
    let cache = tempfile::tempdir().unwrap();
    let ready = control_plane().unwrap();
    let output = script(cache.path())
        .env("WARP_CONTROL_PLANE", &ready)
        .output()
        .unwrap();
    assert!(output.status.success());
    assert_eq!(
        String::from_utf8(output.stdout).unwrap().trim(),
        ready.display().to_string()
    );

    let empty = tempfile::tempdir().unwrap();
    std::fs::copy("/bin/sh", empty.path().join("etcd")).unwrap();
    let output = script(cache.path())
        .env("WARP_CONTROL_PLANE", empty.path())
        .output()
        .unwrap();
    let said = stderr(&output);
    assert!(said.contains("kube-apiserver"), "{said}");
    assert!(!said.contains("lacks: etcd"), "{said}");
}

#[test]
fn an_unknown_part_is_refused() {
    let cache = tempfile::tempdir().unwrap();
    let output = script(cache.path()).arg("everything").output().unwrap();
    assert!(stderr(&output).contains("'everything'"));
}
