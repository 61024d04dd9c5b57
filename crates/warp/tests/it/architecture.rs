//! The map in ARCHITECTURE.md, enforced.

use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
};

pub(crate) fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../..")
        .canonicalize()
        .expect("the repository exists")
}

/// Every file below `folder`, build output and dependencies left out.
pub(crate) fn files(folder: &Path, found: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(folder).expect("a readable folder") {
        let path = entry.expect("a readable entry").path();
        let name = path
            .file_name()
            .unwrap_or_default()
            .to_string_lossy()
            .into_owned();
        if path.is_dir() {
            if !matches!(name.as_str(), "target" | "node_modules" | ".git") {
                files(&path, found);
            }
        } else {
            found.push(path);
        }
    }
}

/// The `warp-*` crates named in one section of a manifest.
fn own_crates(manifest: &str, section: &str) -> Vec<String> {
    let mut named = dependencies(manifest, section);
    named.retain(|name| name.starts_with("warp-"));
    named
}

#[test]
fn crates_depend_only_in_the_allowed_directions() {
    let allowed: BTreeMap<&str, &[&str]> = BTreeMap::from([
        ("warp-core", &[][..]),
        ("warp-apiserver", &[]),
        ("warp-api", &["warp-core"]),
        ("warp-runtime", &[]),
        ("warp-cloud", &["warp-core"]),
        ("warp-fetch", &[]),
        ("warp-vendor", &[]),
        (
            "warp-operator",
            &["warp-runtime", "warp-api", "warp-cloud", "warp-core"],
        ),
        (
            "warp-local",
            &[
                "warp-runtime",
                "warp-api",
                "warp-cloud",
                "warp-core",
                "warp-apiserver",
            ],
        ),
        (
            "warp-testkit",
            &[
                "warp-apiserver",
                "warp-local",
                "warp-runtime",
                "warp-api",
                "warp-cloud",
            ],
        ),
    ]);
    for entry in fs::read_dir(root().join("crates")).expect("crates/") {
        let folder = entry.expect("a crate").path();
        let name = folder
            .file_name()
            .unwrap_or_default()
            .to_string_lossy()
            .into_owned();
        let manifest = fs::read_to_string(folder.join("Cargo.toml")).expect("a manifest");
        let depends = own_crates(&manifest, "dependencies");
        assert!(
            !depends
                .iter()
                .any(|name| name == "warp-testkit" || name == "warp-vendor"),
            "{name}: warp-testkit and warp-vendor are for tests only"
        );
        if name == "warp" {
            continue;
        }
        let allowed = allowed.get(name.as_str()).unwrap_or_else(|| {
            panic!("{name} is not on the map: a new crate needs a reason and a row here")
        });
        for dependency in depends {
            assert!(
                allowed.contains(&dependency.as_str()),
                "{name} must not depend on {dependency}"
            );
        }
    }
}

/// What one section of a manifest names.
fn dependencies(manifest: &str, section: &str) -> Vec<String> {
    let named = |line: &str| {
        line.split(['.', ' ', '='])
            .next()
            .unwrap_or_default()
            .to_owned()
    };
    manifest
        .split("\n[")
        .filter_map(|part| {
            part.trim_start_matches('[')
                .strip_prefix(&format!("{section}]"))
        })
        .flat_map(str::lines)
        .filter(|line| line.starts_with(|letter: char| letter.is_ascii_lowercase()))
        .map(named)
        .collect()
}

/// Whether any of `sources` names the crate as code does.
fn names(sources: &[String], dependency: &str) -> bool {
    let name = dependency.replace('-', "_");
    let boundary = |letter: Option<char>| {
        !letter.is_some_and(|letter| letter.is_alphanumeric() || letter == '_')
    };
    sources.iter().any(|text| {
        text.match_indices(&name).any(|(at, _)| {
            boundary(text[..at].chars().next_back())
                && boundary(text[at + name.len()..].chars().next())
        })
    })
}

fn sources(crate_folder: &Path, folders: &[&str]) -> Vec<String> {
    let mut found = Vec::new();
    for folder in folders
        .iter()
        .map(|name| crate_folder.join(name))
        .filter(|folder| folder.is_dir())
    {
        files(&folder, &mut found);
    }
    let code = found
        .iter()
        .filter(|path| path.extension().is_some_and(|extension| extension == "rs"));
    let read = |path: &Path| fs::read_to_string(path).expect("source is text");
    code.flat_map(|path| {
        let text = read(path);
        let folder = path.parent().expect("a folder");
        // Modules that are kept elsewhere are compiled here.
        let mut all: Vec<String> = text
            .split("#[path = \"")
            .skip(1)
            .filter_map(|rest| rest.split('"').next())
            .map(|elsewhere| read(&folder.join(elsewhere)))
            .collect();
        all.push(text);
        all
    })
    .collect()
}

#[test]
fn every_dependency_is_used_where_it_is_named() {
    let mut unused = Vec::new();
    let mut named = Vec::new();
    for entry in fs::read_dir(root().join("crates")).expect("crates/") {
        let folder = entry.expect("a crate").path();
        let manifest = fs::read_to_string(folder.join("Cargo.toml")).expect("a manifest");
        let shipped = dependencies(&manifest, "dependencies");
        let tests = dependencies(&manifest, "dev-dependencies");
        let source = sources(&folder, &["src"]);
        let all = sources(&folder, &["src", "tests", "benches", "examples"]);
        unused.extend(
            shipped
                .iter()
                .filter(|name| !names(&source, name))
                .map(|name| format!("{}: {name}", folder.display())),
        );
        unused.extend(
            tests
                .iter()
                .filter(|name| !names(&all, name))
                .map(|name| format!("{}: {name} (tests)", folder.display())),
        );
        named.extend(shipped);
        named.extend(tests);
    }
    let workspace = fs::read_to_string(root().join("Cargo.toml")).expect("a manifest");
    let shared = dependencies(&workspace, "workspace.dependencies");
    assert!(shared.len() > 20, "the manifest is read: {shared:?}");
    unused.extend(
        shared
            .into_iter()
            .filter(|name| !named.contains(name))
            .map(|name| format!("workspace: {name}")),
    );
    assert!(unused.is_empty(), "take these out: {unused:#?}");
}

#[test]
fn no_module_has_a_catch_all_name() {
    let mut found = Vec::new();
    files(&root().join("crates"), &mut found);
    let bad: Vec<_> = found
        .iter()
        .filter(|path| {
            let stem = path.file_stem().unwrap_or_default().to_string_lossy();
            matches!(
                &*stem,
                "utils" | "util" | "common" | "helpers" | "misc" | "manager" | "mod"
            ) && path.extension().is_some_and(|extension| extension == "rs")
        })
        .collect();
    assert!(bad.is_empty(), "name these after what they own: {bad:?}");
}

#[test]
fn every_module_says_what_it_owns() {
    let mut found = Vec::new();
    files(&root().join("crates"), &mut found);
    let bare: Vec<_> = found
        .iter()
        .filter(|path| path.extension().is_some_and(|extension| extension == "rs"))
        .filter(|path| !path.components().any(|part| part.as_os_str() == "tests"))
        .filter(|path| path.file_stem().is_some_and(|stem| stem != "tests"))
        .filter(|path| {
            !fs::read_to_string(path)
                .expect("source is text")
                .starts_with("//!")
        })
        .collect();
    assert!(
        bare.is_empty(),
        "modules without an opening `//!`: {bare:#?}"
    );
}
