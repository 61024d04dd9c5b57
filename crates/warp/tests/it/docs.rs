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

/// A fenced block of a page: what follows the fence, and the text inside.
struct Block {
    kind: String,
    text: String,
}

fn blocks(page: &str) -> Vec<Block> {
    let mut blocks = Vec::new();
    let mut open: Option<Block> = None;
    for line in page.lines() {
        match (line.strip_prefix("```"), open.take()) {
            (Some(_), Some(block)) => blocks.push(block),
            (Some(kind), None) => {
                open = Some(Block {
                    kind: kind.to_owned(),
                    text: String::new(),
                });
            }
            (None, Some(mut block)) => {
                block.text += line;
                block.text.push('\n');
                open = Some(block);
            }
            (None, None) => {}
        }
    }
    blocks
}

/// A guide as a reader follows it: every block in turn, in one folder.
///
/// - `sh` runs; `sh 1` runs and must end with exit code 1; `sh elsewhere` needs what a test does not have
///   and is only read.
/// - `text` is what the block before it printed: `…` stands for anything within a line, a line of `…` for
///   any lines, and an age for any age.
/// - `yaml NAME` is a file of that name; `yaml more NAME` goes on with it.
struct Reader<'a> {
    page: &'a str,
    folder: &'a Path,
    environment: Vec<(&'static str, std::ffi::OsString)>,
}

/// What was done of a page.
#[derive(Debug, Default)]
struct Read {
    ran: usize,
    compared: usize,
}

impl Reader<'_> {
    fn read(&self) -> Read {
        let text = fs::read_to_string(root().join("docs/guides").join(self.page)).expect("a guide");
        let mut printed = String::new();
        let mut read = Read::default();
        for Block { kind, text } in blocks(&text) {
            let words: Vec<&str> = kind.split_whitespace().collect();
            match words[..] {
                ["sh"] => {
                    printed = self.run(&text, 0);
                    read.ran += 1;
                }
                ["sh", "1"] => {
                    printed = self.run(&text, 1);
                    read.ran += 1;
                }
                ["sh", "elsewhere"] => {}
                ["text"] => {
                    let same = alike(&text, &printed);
                    assert!(
                        same,
                        "{} shows\n{text}\nbut this was printed:\n{printed}",
                        self.page
                    );
                    read.compared += 1;
                }
                ["yaml", name] => fs::write(self.folder.join(name), text).expect("a file"),
                ["yaml", "more", name] => {
                    let file = self.folder.join(name);
                    let begin = fs::read_to_string(&file).expect("the file's beginning");
                    fs::write(file, begin + &text).expect("a file");
                }
                _ => panic!("{}: what is a block of {kind:?}?", self.page),
            }
        }
        read
    }

    fn run(&self, text: &str, code: i32) -> String {
        let output = Command::new("sh")
            .args(["-euc", text])
            .current_dir(self.folder)
            .envs(self.environment.iter().map(|(name, value)| (name, value)))
            .stdin(std::process::Stdio::null())
            .output()
            .expect("a shell");
        let errors = String::from_utf8_lossy(&output.stderr);
        let printed = String::from_utf8_lossy(&output.stdout).into_owned();
        assert_eq!(
            output.status.code(),
            Some(code),
            "{}:\n{text}\n{printed}\n{errors}",
            self.page
        );
        assert!(
            !errors.contains("warning"),
            "{}: {text}\n{errors}",
            self.page
        );
        printed
    }
}

/// Whether what was printed is what a page shows.
fn alike(shown: &str, printed: &str) -> bool {
    let printed: Vec<&str> = printed.trim_end().lines().collect();
    let mut at = 0;
    let mut skipping = false;
    for line in shown.trim_end().lines() {
        if line.trim() == "…" {
            skipping = true;
            continue;
        }
        let same = |have: &&str| line_alike(line, have);
        let found = if skipping {
            printed[at..].iter().position(same)
        } else {
            printed.get(at).filter(|have| same(have)).map(|_| 0)
        };
        let Some(found) = found else { return false };
        at += found + 1;
        skipping = false;
    }
    skipping || at == printed.len()
}

/// Words are compared: how far apart columns stand depends on what is in them.
fn line_alike(shown: &str, printed: &str) -> bool {
    let (shown, printed) = (ageless(shown), ageless(printed));
    let mut parts = shown.split('…');
    let first = parts.next().unwrap_or_default().trim_end().to_owned();
    let Some(mut rest) = printed.strip_prefix(&first) else {
        return false;
    };
    let mut open = false;
    for part in parts {
        open = true;
        let part = part.trim();
        let Some(at) = rest.find(part) else {
            return false;
        };
        rest = &rest[at + part.len()..];
        open &= part.is_empty();
    }
    open || rest.is_empty()
}

/// A line with one blank between words and every age as `AGE`.
fn ageless(line: &str) -> String {
    let is_age = |word: &&str| {
        let word = word.trim_end_matches(['.', ',', ':', ';', ')']);
        let digits = word
            .chars()
            .next()
            .is_some_and(|first| first.is_ascii_digit());
        let units = word
            .chars()
            .all(|c| c.is_ascii_digit() || "smhd".contains(c));
        digits && units && word.ends_with(['s', 'm', 'h', 'd'])
    };
    let words = line.split_whitespace();
    let plain = |word: &str| {
        let bare = word.trim_end_matches(['.', ',', ':', ';', ')']);
        let age = is_age(&word).then(|| word.replacen(bare, "AGE", 1));
        age.unwrap_or_else(|| word.to_owned())
    };
    words.map(plain).collect::<Vec<_>>().join(" ")
}

#[test]
fn what_is_shown_is_compared_word_by_word() {
    assert!(alike("a  1s\n…\nz\n", "a 3m2s\nb\nc\nz\n"));
    assert!(alike("pid … at 127.0.0.1:…\n", "pid 17 at 127.0.0.1:80\n"));
    assert!(alike("a\n…\n", "a\nb\n") && alike("a …", "a"));
    assert!(alike("runs for 1s.", "runs for 12s.") && !alike("for 1s.", "for 1s,"));
    assert!(!alike("a\n", "a\nb\n") && !alike("a\nb\n", "a\n"));
    assert!(!alike("a … c", "a b d") && !alike("a b", "a c"));
}

/// The programs a guide uses, first in the search path: the `warp` under test, and the control plane's
/// kubectl. A `warp up` of a guide takes whatever port is free.
fn programs(folder: &Path) -> std::ffi::OsString {
    use std::os::unix::fs::{PermissionsExt, symlink};

    let place = folder.join("bin");
    fs::create_dir(&place).expect("a folder");
    let kubectl = warp_testkit::control_plane().expect("a control plane");
    symlink(kubectl.join("kubectl"), place.join("kubectl")).expect("a link");
    let warp = place.join("warp");
    let binary = env!("CARGO_BIN_EXE_warp");
    let script = format!(
        "#!/bin/sh\nif [ \"$1\" = up ]; then shift; exec '{binary}' up --port 0 \"$@\"; fi\nexec '{binary}' \"$@\"\n"
    );
    fs::write(&warp, script).expect("a script");
    fs::set_permissions(&warp, fs::Permissions::from_mode(0o755)).expect("a mode");
    // A process that another test starts in this moment holds the script open for writing until it becomes its own
    // program, and a file that is written cannot be run.
    let busy = |error: &std::io::Error| error.kind() == std::io::ErrorKind::ExecutableFileBusy;
    while Command::new(&warp)
        .arg("--version")
        .output()
        .is_err_and(|error| busy(&error))
    {}
    let path = env::var_os("PATH").unwrap_or_default();
    let path = [place].into_iter().chain(env::split_paths(&path));
    env::join_paths(path).expect("folders without colons")
}

/// A guide for somebody with a cluster, which here is a `warp up`.
async fn on_a_cluster(page: &str, arguments: &[&str]) -> Read {
    let folder = tempfile::tempdir().expect("a folder");
    // Where `warp status` looks by default.
    let share = folder.path().join("share");
    fs::create_dir(&share).expect("a folder");
    // The clone as its reader has it, where files of the page can be written without being left behind.
    let clone = folder.path().join("clone");
    fs::create_dir(&clone).expect("a folder");
    for entry in fs::read_dir(root()).expect("the clone") {
        let entry = entry.expect("an entry");
        std::os::unix::fs::symlink(entry.path(), clone.join(entry.file_name())).expect("a link");
    }
    let up = crate::up::Up::start(&share.join("warp"), arguments).await;
    let reader = Reader {
        page,
        folder: &clone,
        environment: vec![
            ("PATH", programs(folder.path())),
            ("KUBECONFIG", up.data.join("kubeconfig").into()),
            ("XDG_DATA_HOME", share.into()),
        ],
    };
    let read = tokio::task::block_in_place(|| reader.read());
    up.stop();
    read
}

#[test]
fn the_commands_of_the_simulation_guide_print_what_it_shows() {
    let folder = tempfile::tempdir().expect("a folder");
    let binaries = Path::new(env!("CARGO_BIN_EXE_warp"))
        .parent()
        .expect("a binary is in a folder");
    let path = env::var_os("PATH").unwrap_or_default();
    let path = [binaries.to_owned()]
        .into_iter()
        .chain(env::split_paths(&path));
    let path = env::join_paths(path).expect("folders without colons");
    let reader = Reader {
        page: "simulate.md",
        folder: folder.path(),
        environment: vec![("PATH", path)],
    };
    let read = reader.read();
    assert!(read.ran >= 6 && read.compared >= 5, "{read:?}");
    for drawing in ["waits.svg", "curves.svg"] {
        let svg = fs::read_to_string(folder.path().join(drawing)).expect("a drawing");
        assert!(svg.starts_with("<svg") && svg.contains("warp"), "{drawing}");
    }
}

#[test]
fn models_are_fetched_and_carried_as_the_guide_shows() {
    let folder = tempfile::tempdir().expect("a folder");
    let reader = Reader {
        page: "models.md",
        folder: folder.path(),
        environment: vec![("PATH", programs(folder.path()))],
    };
    let read = reader.read();
    assert!(read.ran >= 2 && read.compared >= 2, "{read:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_first_workload_does_what_its_guide_shows() {
    let read = on_a_cluster("first-workload.md", &["--demo", "--ephemeral"]).await;
    assert!(read.ran >= 6 && read.compared >= 6, "{read:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn waiting_work_is_found_as_the_autoscaler_guide_shows() {
    let read = on_a_cluster("cluster-autoscaler.md", &["--demo", "--ephemeral"]).await;
    assert!(read.ran >= 1 && read.compared >= 1, "{read:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_tenant_tells_what_its_guide_shows() {
    let read = on_a_cluster("tenants.md", &["--demo", "--ephemeral"]).await;
    assert!(read.ran >= 1 && read.compared >= 1, "{read:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_model_is_served_as_its_guide_shows() {
    let read = on_a_cluster("serve.md", &["--demo", "--ephemeral"]).await;
    assert!(read.ran >= 6 && read.compared >= 5, "{read:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_machine_is_rented_as_its_guide_shows() {
    let read = on_a_cluster("rent.md", &["--demo", "--ephemeral"]).await;
    assert!(read.ran >= 3 && read.compared >= 3, "{read:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn health_and_logs_are_as_the_guide_shows() {
    let read = on_a_cluster("operate.md", &["--demo", "--ephemeral"]).await;
    assert!(read.ran >= 2 && read.compared >= 2, "{read:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn warp_is_upgraded_and_uninstalled_as_the_guide_shows() {
    let read = on_a_cluster(
        "upgrade-and-uninstall.md",
        &["--runtime", "none", "--ephemeral"],
    )
    .await;
    assert!(read.ran >= 3 && read.compared >= 3, "{read:?}");
}

/// Ends the engine a guide left running when the test stops half-way.
struct Ended<'a>(&'a Path);

impl Drop for Ended<'_> {
    fn drop(&mut self) {
        Command::new(env!("CARGO_BIN_EXE_warp"))
            .args(["down", "--purge"])
            .env("XDG_DATA_HOME", self.0.join("share"))
            .output()
            .ok();
    }
}

#[test]
fn one_machine_does_what_its_guide_shows() {
    let folder = tempfile::tempdir().expect("a folder");
    let _ended = Ended(folder.path());
    let reader = Reader {
        page: "one-machine.md",
        folder: folder.path(),
        environment: vec![
            ("PATH", programs(folder.path())),
            ("HOME", folder.path().into()),
            ("XDG_DATA_HOME", folder.path().join("share").into()),
        ],
    };
    let read = reader.read();
    assert!(read.ran >= 6 && read.compared >= 5, "{read:?}");
}

#[test]
fn the_queue_is_as_its_guide_shows() {
    let folder = tempfile::tempdir().expect("a folder");
    let _ended = Ended(folder.path());
    let reader = Reader {
        page: "queue.md",
        folder: folder.path(),
        environment: vec![
            ("PATH", programs(folder.path())),
            ("HOME", folder.path().into()),
            ("XDG_DATA_HOME", folder.path().join("share").into()),
        ],
    };
    let read = reader.read();
    assert!(read.ran >= 9 && read.compared >= 7, "{read:?}");
}

#[test]
fn jobs_of_others_wait_as_their_guide_shows() {
    let folder = tempfile::tempdir().expect("a folder");
    let _ended = Ended(folder.path());
    let reader = Reader {
        page: "jobs.md",
        folder: folder.path(),
        environment: vec![
            ("PATH", programs(folder.path())),
            ("HOME", folder.path().into()),
            ("XDG_DATA_HOME", folder.path().join("share").into()),
        ],
    };
    let read = reader.read();
    assert!(read.ran >= 4 && read.compared >= 3, "{read:?}");
}

#[test]
fn gangs_start_together_as_the_guide_shows() {
    let folder = tempfile::tempdir().expect("a folder");
    let _ended = Ended(folder.path());
    let reader = Reader {
        page: "gangs.md",
        folder: folder.path(),
        environment: vec![
            ("PATH", programs(folder.path())),
            ("HOME", folder.path().into()),
            ("XDG_DATA_HOME", folder.path().join("share").into()),
        ],
    };
    let read = reader.read();
    assert!(read.ran >= 4 && read.compared >= 3, "{read:?}");
}

#[test]
fn gpus_are_shared_as_the_guide_shows() {
    let folder = tempfile::tempdir().expect("a folder");
    let _ended = Ended(folder.path());
    let reader = Reader {
        page: "sharing.md",
        folder: folder.path(),
        environment: vec![
            ("PATH", programs(folder.path())),
            ("HOME", folder.path().into()),
            ("XDG_DATA_HOME", folder.path().join("share").into()),
        ],
    };
    let read = reader.read();
    assert!(read.ran >= 4 && read.compared >= 4, "{read:?}");
}

#[test]
fn stopped_work_goes_on_as_the_guide_shows() {
    let folder = tempfile::tempdir().expect("a folder");
    let _ended = Ended(folder.path());
    let reader = Reader {
        page: "checkpoints.md",
        folder: folder.path(),
        environment: vec![
            ("PATH", programs(folder.path())),
            ("HOME", folder.path().into()),
            ("XDG_DATA_HOME", folder.path().join("share").into()),
        ],
    };
    let read = reader.read();
    assert!(read.ran >= 3 && read.compared >= 2, "{read:?}");
}

/// No guide is left out of the tests above.
#[test]
fn every_guide_is_followed_by_a_test() {
    let tests = fs::read_to_string(root().join("crates/warp/tests/it/docs.rs")).expect("this file");
    for entry in fs::read_dir(root().join("docs/guides")).expect("guides") {
        let path = entry.expect("a guide").path();
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        if path.extension().is_some_and(|end| end == "md") {
            assert!(
                tests.contains(&format!("\"{name}\"")),
                "{name} is followed by no test"
            );
        }
    }
}
