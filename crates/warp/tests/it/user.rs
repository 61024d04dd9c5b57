//! Access for others: users of a `warp up`, and the operator under its own role.

use std::os::unix::fs::PermissionsExt;
use std::process::{Command, Output, Stdio};

use warp_testkit::{PATIENCE, until};

use crate::up::Up;

fn warp(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_warp"))
        .args(arguments)
        .env("KUBECONFIG", "/nonexistent")
        .stdin(Stdio::null())
        .output()
        .unwrap()
}

fn done(arguments: &[&str]) -> (String, String) {
    let output = warp(arguments);
    let told = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "{arguments:?}: {told}");
    (String::from_utf8(output.stdout).unwrap(), told)
}

fn refused(arguments: &[&str], words: &[&str]) {
    let output = warp(arguments);
    let told = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{arguments:?}: {told}");
    for word in words {
        assert!(told.contains(word), "{arguments:?}: {told}");
    }
}

const WORK: &str = "apiVersion: gpu.warp.dev/v1alpha1\nkind: GPUWorkload\nmetadata: {name: w}\nspec: {modelName: m, gpuCount: 1, image: a}\n";
const MANIFEST: &str = "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: note}\n";

#[tokio::test]
async fn a_user_gets_what_the_role_says_until_the_access_is_taken_away() {
    let folder = tempfile::tempdir().unwrap();
    let data = folder.path().join("data");
    let place = data.display().to_string();
    let manifest = folder.path().join("note.yaml");
    std::fs::write(&manifest, MANIFEST).unwrap();
    let manifest = manifest.display().to_string();
    let work = folder.path().join("work.yaml");
    std::fs::write(&work, WORK).unwrap();
    let work = work.display().to_string();
    let user = |arguments: &[&'static str]| -> Vec<String> {
        let words = ["user"].into_iter().chain(arguments.iter().copied());
        let words = words.map(str::to_owned);
        words.chain(["--data".to_owned(), place.clone()]).collect()
    };
    let call = |arguments: &[&'static str]| {
        let words = user(arguments);
        done(&words.iter().map(String::as_str).collect::<Vec<_>>())
    };
    let no = |arguments: &[&'static str], told: &[&str]| {
        let words = user(arguments);
        refused(&words.iter().map(String::as_str).collect::<Vec<_>>(), told);
    };
    no(&["create", "ada"], &["no Warp runs", "warp up"]);
    let up = Up::start(&data, &["--runtime", "none"]).await;
    no(&["create", "system:ada"], &["no name for a user"]);
    no(
        &["create", "ada", "--group", "system:masters"],
        &["no name for a group"],
    );
    no(
        &["create", "ada", "--role", "nothing"],
        &["no ClusterRole \"nothing\"", "view"],
    );
    no(
        &["create", "ada", "-n", "nowhere"],
        &["no namespace \"nowhere\""],
    );
    no(&["delete", "ada"], &["no user \"ada\""]);

    let (out, _) = call(&["create", "ada"]);
    assert_eq!(out, "", "a kubeconfig is printed only when asked for");
    no(&["create", "ada"], &["a user \"ada\" already"]);
    let ada = data.join("users/ada.kubeconfig");
    let mode = std::fs::metadata(&ada).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
    let ada = ada.display().to_string();
    done(&["get", "pods", "--kubeconfig", &ada]);
    done(&["get", "gpuworkloads", "--kubeconfig", &ada]);
    // Whoever sees all work may see where it runs.
    done(&["get", "nodes", "--kubeconfig", &ada]);
    let lacks = "User \"ada\" cannot";
    refused(
        &["get", "secrets", "--kubeconfig", &ada],
        &[lacks, "list resource \"secrets\""],
    );
    refused(&["apply", "-f", &manifest, "--kubeconfig", &ada], &[lacks]);

    let (bob, _) = call(&[
        "create", "bob", "--role", "edit", "-n", "default", "-o", "-",
    ]);
    assert!(bob.contains("namespace: default"), "{bob}");
    let file = folder.path().join("bob");
    std::fs::write(&file, &bob).unwrap();
    let bob = file.display().to_string();
    done(&["apply", "-f", &manifest, "--kubeconfig", &bob]);
    refused(
        &["plan", "-f", &work, "--kubeconfig", &bob],
        &["look ahead", "bound everywhere"],
    );
    refused(
        &["get", "pods", "-n", "kube-system", "--kubeconfig", &bob],
        &["User \"bob\" cannot"],
    );
    let taken = user(&["create", "eve", "-o"]);
    let taken: Vec<&str> = taken[..4]
        .iter()
        .map(String::as_str)
        .chain([bob.as_str()])
        .collect();
    refused(
        &[&taken[..], &["--data", &place]].concat(),
        &["exists already"],
    );
    call(&["create", "team", "--group", "research"]);

    let (listed, _) = call(&["list"]);
    for words in [
        &["ada", "view"][..],
        &["bob", "edit in default"],
        &["team", "research", "<none>"],
    ] {
        let line = listed.lines().find(|line| line.starts_with(words[0]));
        let line = line.unwrap_or_else(|| panic!("{listed}"));
        assert!(words.iter().all(|word| line.contains(word)), "{line}");
    }

    // A user is remembered; what was taken away stays so.
    call(&["delete", "bob"]);
    let gone = |kubeconfig: &str| {
        let output = warp(&["get", "configmaps", "--kubeconfig", kubeconfig]);
        let told = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(
            !output.status.success() && told.contains("Unauthorized"),
            "{told}"
        );
    };
    gone(&bob);
    assert!(
        !up.ok(&["get", "rolebindings", "-A"])
            .contains("warp-user:bob")
    );
    let server = || {
        let text = std::fs::read_to_string(data.join("kubeconfig")).unwrap();
        let line = text.lines().find(|line| line.contains("server:")).unwrap();
        line.to_owned()
    };
    let before = server();
    up.stop();
    let up = Up::start(&data, &["--runtime", "none"]).await;
    // Another port was taken: the files are told, the tokens are the same.
    for file in [&ada, &bob] {
        let text = std::fs::read_to_string(file).unwrap();
        std::fs::write(file, text.replace(&before, &server())).unwrap();
    }
    done(&["get", "configmaps", "--kubeconfig", &ada]);
    gone(&bob);
    let kept = folder.path().join("kept");
    std::fs::copy(&ada, &kept).unwrap();
    call(&["delete", "ada"]);
    assert!(!std::path::Path::new(&ada).exists());
    gone(&kept.display().to_string());
    assert!(
        !up.ok(&["get", "clusterrolebindings"])
            .contains("warp-user:ada")
    );
    up.stop();
}

#[tokio::test]
async fn the_operator_of_warp_up_has_the_rights_of_its_shipped_role_and_no_others() {
    let folder = tempfile::tempdir().unwrap();
    let data = folder.path().join("data");
    let up = Up::start(&data, &["--demo"]).await;
    let example = "deploy/examples/any-gpu.yaml";
    up.ok(&["apply", "-f", example]);
    up.shows(&["get", "gpuworkloads"], "Succeeded").await;
    up.ok(&["delete", "-f", example]);
    // Without its binding the operator is refused here as it would be on a cluster.
    up.ok(&["delete", "clusterrolebinding", "warp-operator"]);
    up.ok(&["apply", "-f", example]);
    until("the refusal to be told", PATIENCE, async || {
        let log = std::fs::read_to_string(data.join("warp.log")).unwrap_or_default();
        let refused = log.contains("system:serviceaccount:warp-system:warp-operator")
            && log.contains("cannot");
        Ok(refused.then_some(()))
    })
    .await
    .unwrap();
    assert!(!up.ok(&["get", "jobs"]).contains("any-gpu"));
    up.stop();
    // The next start gives it back what it ships with.
    let up = Up::start(&data, &["--demo"]).await;
    up.shows(&["get", "gpuworkloads"], "Succeeded").await;
    up.stop();
}
