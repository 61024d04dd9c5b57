//! Documents keep their promises: links lead somewhere, named files exist.

use std::path::Path;
use std::process::Command;
use std::{env, fs};

use crate::architecture::{files, root};

/// Targets of `[text](target)` in one line.
fn links(line: &str) -> impl Iterator<Item = &str> {
    line.match_indices("](").filter_map(move |(at, _)| {
        let rest = &line[at + 2..];
        rest.find(')').map(|end| &rest[..end])
    })
}

#[test]
fn links_between_documents_lead_somewhere() {
    let root = root();
    let mut found = Vec::new();
    files(&root, &mut found);
    let mut checked = 0;
    let mut broken = Vec::new();
    for path in found
        .iter()
        .filter(|path| path.extension().is_some_and(|e| e == "md"))
    {
        let folder = path.parent().unwrap_or(Path::new("."));
        for line in fs::read_to_string(path)
            .expect("documents are text")
            .lines()
        {
            for target in links(line) {
                if target.contains("://")
                    || target.starts_with('#')
                    || target.starts_with("mailto:")
                {
                    continue;
                }
                let file = target.split('#').next().unwrap_or_default();
                checked += 1;
                if !folder.join(file).exists() {
                    broken.push(format!(
                        "{}: {target}",
                        path.strip_prefix(&root).unwrap_or(path).display()
                    ));
                }
            }
        }
    }
    assert!(broken.is_empty(), "broken links:\n{}", broken.join("\n"));
    assert!(checked > 5, "the documents have links to check");
}

#[test]
fn make_help_lists_every_target() {
    let makefile = fs::read_to_string(root().join("Makefile")).expect("a Makefile");
    for line in makefile
        .lines()
        .filter_map(|line| line.strip_prefix(".PHONY: "))
    {
        for target in line.split_whitespace() {
            assert!(
                makefile.lines().any(|line| {
                    line.strip_prefix(target)
                        .is_some_and(|rest| rest.starts_with(':') && rest.contains("## "))
                }),
                "`make {target}` has no description"
            );
        }
    }
}

/// Fenced blocks of a page: what follows the fence, and the text inside.
fn blocks(page: &str) -> Vec<(&str, String)> {
    let mut blocks = Vec::new();
    let mut open: Option<(&str, String)> = None;
    for line in page.lines() {
        match (line.strip_prefix("```"), open.take()) {
            (Some(_), Some(block)) => blocks.push(block),
            (Some(kind), None) => open = Some((kind, String::new())),
            (None, Some((kind, text))) => open = Some((kind, text + line + "\n")),
            (None, None) => {}
        }
    }
    blocks
}

/// Every `sh` block of the page runs in turn, in one empty folder; a `text` block is what the one
/// before it printed.
#[test]
fn the_commands_of_the_simulation_guide_print_what_it_shows() {
    let page = fs::read_to_string(root().join("docs/guides/simulate.md")).expect("a guide");
    let folder = tempfile::tempdir().expect("a folder");
    let binaries = Path::new(env!("CARGO_BIN_EXE_warp"))
        .parent()
        .expect("a binary is in a folder");
    let path = env::var_os("PATH").unwrap_or_default();
    let path = env::join_paths(
        [binaries.to_owned()]
            .into_iter()
            .chain(env::split_paths(&path)),
    );
    let path = path.expect("folders without colons");
    let (mut printed, mut ran) = (String::new(), 0);
    for (kind, text) in blocks(&page) {
        match kind {
            "sh" => {
                let output = Command::new("sh")
                    .args(["-euc", &text])
                    .current_dir(folder.path())
                    .env("PATH", &path)
                    .output()
                    .expect("a shell");
                let errors = String::from_utf8_lossy(&output.stderr);
                assert!(output.status.success(), "{text}\n{errors}");
                assert!(!errors.contains("warning"), "{text}\n{errors}");
                printed = String::from_utf8_lossy(&output.stdout).into_owned();
                ran += text.matches("warp simulate").count();
            }
            "text" => assert_eq!(printed.trim_end(), text.trim_end()),
            _ => {}
        }
    }
    assert!(ran >= 7, "{ran} commands ran");
    for drawing in ["waits.svg", "curves.svg"] {
        let svg = fs::read_to_string(folder.path().join(drawing)).expect("a drawing");
        assert!(svg.starts_with("<svg") && svg.contains("warp"), "{drawing}");
    }
}
