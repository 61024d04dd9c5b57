//! Documents keep their promises: links lead somewhere, named files exist.

use std::{fs, path::Path};

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
