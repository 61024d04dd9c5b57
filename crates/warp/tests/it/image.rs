//! The image is what the rest of the repository says it is: the pinned toolchain builds it, the operator's Deployment
//! runs it as the user it has, and its bases can be exchanged.

use std::path::PathBuf;

fn text(path: &str) -> String {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR"))
        .join("../..")
        .join(path);
    std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// The arguments of an instruction, wherever it stands.
fn all<'a>(dockerfile: &'a str, instruction: &str) -> Vec<&'a str> {
    let lines = dockerfile.lines().map(str::trim);
    lines
        .filter_map(|line| line.strip_prefix(instruction)?.strip_prefix(' '))
        .collect()
}

#[test]
fn the_bases_of_the_image_are_build_arguments_and_the_first_has_the_pinned_toolchain() {
    let dockerfile = text("Dockerfile");
    let bases = all(&dockerfile, "FROM");
    assert_eq!(bases, ["${BUILD_BASE} AS build", "${RUN_BASE}"]);
    let toolchain = text("rust-toolchain.toml");
    let channel = toolchain
        .lines()
        .find_map(|line| line.strip_prefix("channel = \""))
        .map(|rest| rest.trim_end_matches('"'))
        .expect("the toolchain is pinned");
    let arguments = all(&dockerfile, "ARG");
    assert!(
        arguments.contains(&format!("BUILD_BASE=rust:{channel}-bookworm").as_str()),
        "{arguments:?} does not build with Rust {channel}"
    );
}

#[test]
fn the_image_runs_as_the_user_that_the_deployment_asks_for() {
    let dockerfile = text("Dockerfile");
    let deployment = text("deploy/manager/deployment.yaml");
    let users = all(&dockerfile, "USER");
    let (user, group) = users
        .first()
        .and_then(|user| user.split_once(':'))
        .expect("the image names its user by number");
    assert!(deployment.contains(&format!("runAsUser: {user}")));
    assert!(deployment.contains(&format!("runAsGroup: {group}")));
    // What the Deployment passes are arguments of this.
    assert_eq!(
        all(&dockerfile, "ENTRYPOINT"),
        ["[\"/usr/local/bin/warp\"]"]
    );
    assert!(dockerfile.contains("--locked"));
}
