//! What decides must not be able to do. Every file of this crate is pure unless it is named here with what
//! it does: it awaits nothing, has no client, and reads no clock, file or environment. Tests are free.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

/// Who does something, and what.
const DO_IO: &[(&str, &str)] = &[
    (
        "cloudprovider.rs",
        "hands its client to those that call clouds",
    ),
    (
        "cloudprovider/books.rs",
        "keeps the books of the fake cloud",
    ),
    ("cloudprovider/calls.rs", "calls clouds"),
    (
        "cloudprovider/clouds.rs",
        "reads credentials and opens accounts",
    ),
    (
        "containers.rs",
        "reads pods that are containers at a cloud and says that their nodes live",
    ),
    ("estimates.rs", "keeps what was learnt in a ConfigMap"),
    ("inferenceservice.rs", "waits for its observation"),
    (
        "inferenceservice/observe.rs",
        "has engines asked for their metrics",
    ),
    (
        "inferenceservice/scrape.rs",
        "asks engines for their metrics",
    ),
    (
        "joining.rs",
        "makes tokens of rented machines and approves their certificates",
    ),
    ("modelcache.rs", "waits for its observation"),
    ("modelcache/observe.rs", "asks a fetch how far it is"),
    ("placement.rs", "the loop around the pure pass"),
    (
        "placement/carry_out.rs",
        "has the executor make what was placed",
    ),
    ("rehearsal.rs", "runs passes by hand, and times them"),
    ("readiness.rs", "asks the API server about rights"),
    ("retry.rs", "repeats requests"),
    ("run.rs", "starts everything"),
    ("serve.rs", "serves metrics and health"),
];

/// Whoever writes one of these does I/O or reads a clock.
const IO: [&str; 11] = [
    ".await",
    "Client",
    "Api<",
    "tokio::",
    "Timestamp::now",
    "Instant::now",
    "SystemTime",
    "std::fs",
    "std::env",
    "TcpStream",
    "std::process",
];

/// Names of modules that decide: none of them may be an exception.
const DECIDE: [&str; 7] = [
    "plan", "objects", "assess", "claim", "choose", "decide", "evict",
];

fn sources(folder: &Path, found: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(folder).expect("a folder of sources") {
        let path = entry.expect("an entry").path();
        if path.is_dir() {
            sources(&path, found);
        } else if path.extension().is_some_and(|ending| ending == "rs") {
            found.push(path);
        }
    }
}

/// A test, or this file, which names what it looks for.
fn is_free(name: &str) -> bool {
    name == "purity.rs"
        || name
            .split('/')
            .any(|part| part == "tests" || part == "tests.rs")
}

/// The first sign of I/O in a source, its comments and its tests left out.
fn sign_of_io(source: &str) -> Option<&'static str> {
    let shipped = source.split("#[cfg(test)]\nmod tests {").next()?;
    let code = shipped
        .lines()
        .filter(|line| !line.trim_start().starts_with("//"));
    let code: Vec<&str> = code.collect();
    IO.into_iter()
        .find(|sign| code.iter().any(|line| line.contains(sign)))
}

#[test]
fn what_is_not_named_as_doing_io_does_none() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let mut paths = Vec::new();
    sources(&root, &mut paths);
    let mut wrong = Vec::new();
    let mut doing = BTreeSet::new();
    for path in paths {
        let name = path.strip_prefix(&root).expect("a path below the root");
        let name = name.to_string_lossy().into_owned();
        let source = std::fs::read_to_string(&path).expect("a source");
        let Some(sign) = sign_of_io(&source).filter(|_| !is_free(&name)) else {
            continue;
        };
        if !DO_IO.iter().any(|(exception, _)| *exception == name) {
            wrong.push(format!("{name} contains {sign}"));
        }
        doing.insert(name);
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    for (name, reason) in DO_IO {
        assert!(
            doing.contains(*name),
            "{name} ({reason}) does no I/O: it need not be named"
        );
        let decides = name.split(['/', '.']).any(|part| DECIDE.contains(&part));
        assert!(!decides, "{name} decides, so it may not do I/O");
    }
}

#[test]
fn signs_of_io_are_found_in_code_and_not_in_comments_or_tests() {
    assert_eq!(sign_of_io("let x = ask().await;"), Some(".await"));
    assert_eq!(sign_of_io("    // Client\nlet x = 1;"), None);
    assert_eq!(
        sign_of_io("let x = 1;\n#[cfg(test)]\nmod tests {\n std::fs::read(p) }"),
        None
    );
}
