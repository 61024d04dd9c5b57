//! Whatever happens to the files of a store: it opens with exactly what was acknowledged, or not at all, and
//! then with a sentence that names the ways out.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde_json::json;

use super::super::*;
use super::Random;

/// Every object there is, whole.
type Everything = BTreeMap<(String, String), (u64, u64, Index, Vec<u8>)>;

fn everything(store: &Store) -> Everything {
    let mut found = Everything::new();
    for table in store.tables() {
        for object in table.all(None) {
            let whole = (
                object.revision,
                object.epoch,
                object.index.clone(),
                object.bytes.to_vec(),
            );
            found.insert((table.name().to_owned(), object.key.to_string()), whole);
        }
    }
    found
}

fn open(folder: &Path) -> Result<Store, OpenError> {
    // Small logs: with many objects both are in use, and most of the state is in the database.
    let path = database_in(folder);
    Store::open_file(&path, Durability::Durable, 64, 256 << 10)
}

fn object(number: u64, version: u64) -> Draft {
    let object = json!({
        "apiVersion": "v1", "kind": "Thing",
        "metadata": {"name": format!("n{number}"), "uid": format!("u-{number}"), "labels": {"v": version.to_string()}},
        "data": {"text": "0123456789".repeat(usize::try_from(number % 17).unwrap_or(0))},
    });
    Draft::new(&format!("ns{}/n{number}", number % 7), &object, &[], number)
}

fn copy(from: &Path) -> tempfile::TempDir {
    let to = tempfile::tempdir().expect("a folder");
    for file in std::fs::read_dir(from).expect("a folder") {
        let file = file.expect("a file");
        std::fs::copy(file.path(), to.path().join(file.file_name())).expect("a copy");
    }
    to
}

/// Data directories of a store with so many objects: as it was a while before, killed, and closed.
struct Images {
    earlier: tempfile::TempDir,
    killed: tempfile::TempDir,
    closed: tempfile::TempDir,
    state: Everything,
}

async fn images(count: u64) -> Images {
    let folder = tempfile::tempdir().expect("a folder");
    let store = open(folder.path()).expect("a store");
    let tables = ["things", "others"].map(|name| store.table(name));
    let writes = (0..count).map(|number| {
        let table = &tables[usize::from(number % 5 == 0)];
        store.create(table, object(number, 1))
    });
    for written in futures::future::join_all(writes).await {
        written.expect("created");
    }
    let earlier = copy(folder.path());
    // Some changed and some gone, one after the other: records of one write each.
    for number in 0..count.min(12) {
        let table = &tables[usize::from(number % 5 == 0)];
        let key = format!("ns{}/n{number}", number % 7);
        let known = table.get(&key).expect("there");
        if number % 4 == 3 {
            let gone = store.delete(table, known.redraft(), known.revision).await;
            gone.expect("deleted");
        } else {
            let changed = store.update(table, object(number, 2), known.revision).await;
            changed.expect("updated");
        }
    }
    let state = everything(&store);
    let killed = copy(folder.path());
    store.close().await;
    drop((tables, store));
    Images {
        earlier,
        killed,
        closed: folder,
        state,
    }
}

/// Something done to a file.
type Deed<'a> = Box<dyn Fn(&Path) + 'a>;

/// What became of a damaged directory.
#[derive(Debug, PartialEq, Eq)]
enum Verdict {
    Refused,
    Unharmed,
}

/// Opens the directory, writes to it and opens it again: everything is there every time, or it is refused.
async fn judge(folder: &Path, state: &Everything, what: &str) -> Verdict {
    let store = match open(folder) {
        Ok(store) => store,
        Err(error) => {
            let text = error.to_string();
            let told = text.contains("warp restore FILE") && text.contains("--discard-data");
            assert!(
                told || text.contains("of a newer Warp") || text.contains("has format"),
                "{what}: {text}"
            );
            return Verdict::Refused;
        }
    };
    assert!(
        everything(&store) == *state,
        "{what}: other objects are served"
    );
    let table = store.table("things");
    for number in 1_000_000..1_000_003 {
        let made = store.create(&table, object(number, 1)).await;
        made.unwrap_or_else(|error| panic!("{what}: {error}"));
    }
    let later = everything(&store);
    store.close().await;
    drop((table, store));
    match open(folder) {
        Ok(store) => {
            assert!(
                everything(&store) == later,
                "{what}: other objects are served later"
            );
            store.close().await;
        }
        Err(error) => panic!("{what}: refused after it was opened: {error}"),
    }
    Verdict::Unharmed
}

fn files(folder: &Path) -> Vec<PathBuf> {
    let mut files: Vec<PathBuf> = std::fs::read_dir(folder)
        .expect("a folder")
        .map(|file| file.expect("a file").path())
        .collect();
    files.sort();
    files
}

/// Changes one bit somewhere. Every other time where there is something: most of a log is room, most of a
/// database free pages.
fn flip(folder: &Path, random: &mut Random) -> String {
    let files = files(folder);
    let length = |path: &PathBuf| std::fs::metadata(path).expect("a file").len();
    let all: u64 = files.iter().map(length).sum();
    let used = random.next(2) == 0;
    loop {
        let mut at = if used && random.next(2) == 0 {
            // Small files have their share.
            let file = usize::try_from(random.next(files.len() as u64)).expect("small");
            let before: u64 = files[..file].iter().map(length).sum();
            before + random.next(length(&files[file]).max(1))
        } else {
            random.next(all)
        };
        let mut place = None;
        for file in &files {
            if at < length(file) {
                place = Some(file);
                break;
            }
            at -= length(file);
        }
        let Some(file) = place else { continue };
        let mut byte = [0];
        let handle = std::fs::File::options()
            .read(true)
            .write(true)
            .open(file)
            .expect("a file");
        std::os::unix::fs::FileExt::read_exact_at(&handle, &mut byte, at).expect("read");
        if used && byte == [0] {
            continue;
        }
        byte[0] ^= 1 << random.next(8);
        std::os::unix::fs::FileExt::write_all_at(&handle, &byte, at).expect("written");
        let name = file.file_name().unwrap_or_default().to_string_lossy();
        return format!("a bit of byte {at} of {name}");
    }
}

/// How often each size of directory is damaged: `WARP_FLIPS` says so, and where it does not the sizes share
/// what an ordinary test run has time for.
fn rounds(count: u64) -> u64 {
    let told = std::env::var("WARP_FLIPS").ok();
    told.and_then(|text| text.parse().ok())
        .unwrap_or(match count {
            0..=100 => 80,
            _ => 6,
        })
}

/// The sizes of directories that are damaged; `WARP_FLIP_OBJECTS` names one of them alone.
fn sizes() -> Vec<u64> {
    let told = std::env::var("WARP_FLIP_OBJECTS").ok();
    let only: Option<u64> = told.and_then(|text| text.parse().ok());
    only.map_or_else(|| vec![1, 100, 10_000], |size| vec![size])
}

#[tokio::test]
async fn after_any_flipped_bit_a_store_is_refused_or_unharmed() {
    for count in sizes() {
        let images = images(count).await;
        let mut random = Random(0x9e37_79b9 + count);
        let (mut refused, mut unharmed) = (0, 0);
        for round in 0..rounds(count) {
            let image = if round % 2 == 0 {
                &images.killed
            } else {
                &images.closed
            };
            let folder = copy(image.path());
            let what = flip(folder.path(), &mut random);
            let what = format!("{count} objects, round {round}, {what}");
            match judge(folder.path(), &images.state, &what).await {
                Verdict::Refused => refused += 1,
                Verdict::Unharmed => unharmed += 1,
            }
        }
        println!(
            "{count} objects: {refused} refused, {unharmed} unharmed, 0 wrong, 0 lost in silence"
        );
        assert!(refused > 0 && unharmed > 0, "{refused} and {unharmed}");
    }
}

#[tokio::test]
async fn files_cut_emptied_zeroed_removed_or_exchanged_are_refused_or_change_nothing() {
    let images = images(60).await;
    let stranger = self::images(60).await;
    let mut verdicts = BTreeMap::new();
    for (state, image) in [("killed", &images.killed), ("closed", &images.closed)] {
        let other = if state == "killed" {
            &stranger.killed
        } else {
            &stranger.closed
        };
        for file in files(image.path()) {
            let name = file.file_name().expect("a name").to_owned();
            let length = std::fs::metadata(&file).expect("a file").len();
            let cut = |at: u64| {
                move |path: &Path| {
                    let file = std::fs::File::options().write(true).open(path);
                    file.and_then(|file| file.set_len(at)).expect("cut");
                }
            };
            let zero = |from: u64| {
                move |path: &Path| {
                    let file = std::fs::File::options().write(true).open(path);
                    let file = file.expect("a file");
                    std::os::unix::fs::FileExt::write_all_at(&file, &[0; 4096], from)
                        .expect("zeroed");
                }
            };
            let replace = |from: &Path| {
                let from = from.join(&name);
                move |path: &Path| {
                    if from.exists() {
                        std::fs::copy(&from, path).expect("a copy");
                    }
                }
            };
            let deeds: Vec<(&str, Deed<'_>)> = vec![
                ("emptied", Box::new(cut(0))),
                ("cut to a block", Box::new(cut(4096))),
                ("cut in the middle", Box::new(cut(length / 2))),
                ("cut at its end", Box::new(cut(length.saturating_sub(1)))),
                ("without its first block", Box::new(zero(0))),
                ("without its second block", Box::new(zero(4096))),
                (
                    "removed",
                    Box::new(|path| std::fs::remove_file(path).expect("removed")),
                ),
                ("a stranger's", Box::new(replace(other.path()))),
                ("an earlier one", Box::new(replace(images.earlier.path()))),
            ];
            for (deed, act) in deeds {
                let folder = copy(image.path());
                act(&folder.path().join(&name));
                let name = name.to_string_lossy();
                let what = format!("{state}, {name} {deed}");
                let verdict = judge(folder.path(), &images.state, &what).await;
                verdicts.insert(what, verdict);
            }
        }
    }
    for what in [
        "killed, state.redb emptied",
        "closed, state.redb emptied",
        "closed, state.redb removed",
        "closed, state.redb a stranger's",
        "closed, state.redb an earlier one",
        "closed, state.mark removed",
        "killed, state.log-a emptied",
        "killed, state.log-a removed",
        "killed, state.log-a without its second block",
    ] {
        assert_eq!(verdicts.get(what), Some(&Verdict::Refused), "{what}");
    }
}

/// The last write is the one a torn end of the log could be taken for.
#[tokio::test]
async fn damage_to_the_last_write_that_was_acknowledged_is_no_torn_end() {
    let images = images(3).await;
    let log = images.killed.path().join("state.log-a");
    let bytes = std::fs::read(&log).expect("a log");
    let last = bytes.iter().rposition(|byte| *byte != 0).expect("records");
    for at in [last, last - 40] {
        let folder = copy(images.killed.path());
        let mut damaged = bytes.clone();
        damaged[at] ^= 1;
        std::fs::write(folder.path().join("state.log-a"), &damaged).expect("written");
        let error = open(folder.path()).expect_err("refused");
        assert!(
            matches!(&error, OpenError::Behind { reached, marked, .. } if reached < marked),
            "{error}"
        );
    }
}

/// A start that was broken off before anything was stored is not taken for a loss.
#[tokio::test]
async fn a_store_that_was_never_finished_is_begun_again() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = database_in(folder.path());
    let stamp = mark::Stamp::new(7, 0);
    for left in [None, Some(Vec::new()), Some(b"redb".to_vec())] {
        for file in files(folder.path()) {
            std::fs::remove_file(file).expect("removed");
        }
        mark::Mark::put(&mark::path(&path), stamp).expect("a mark");
        if let Some(left) = left {
            std::fs::write(&path, left).expect("written");
        }
        let store = open(folder.path()).expect("begun again");
        let table = store.table("things");
        store.create(&table, object(1, 1)).await.expect("created");
        let state = everything(&store);
        store.close().await;
        drop((table, store));
        let store = open(folder.path()).expect("opens");
        assert_eq!(everything(&store), state);
        store.close().await;
    }
}

/// What is damaged on disk while the server runs is noticed when it is replaced, and said.
#[tokio::test]
async fn a_row_damaged_under_a_running_server_ends_writing_with_its_name() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = database_in(folder.path());
    let mut disk = disk::Disk::create(&path, 1).expect("a database");
    let object = Arc::new(object(1, 1).stamp(5));
    let row = disk::Row {
        key: disk::row_key("things", &object.key),
        object: Some(Arc::clone(&object)),
    };
    disk.checkpoint(std::slice::from_ref(&row), 5)
        .expect("written");
    drop(disk);
    {
        let database = redb::Database::open(&path).expect("closed");
        let transaction = database.begin_write().expect("a transaction");
        let objects: redb::TableDefinition<'_, &str, &[u8]> = redb::TableDefinition::new("objects");
        let mut bytes = Vec::new();
        disk::seal(&row.key, &object, &mut bytes);
        let last = bytes.len() - 1;
        bytes[last] ^= 1;
        transaction
            .open_table(objects)
            .expect("a table")
            .insert(row.key.as_str(), bytes.as_slice())
            .expect("a row");
        transaction.commit().expect("committed");
    }
    let mut disk = disk::Disk::create(&path, 1).expect("a database");
    let error = disk.checkpoint(&[row], 6).expect_err("refused");
    assert!(error.to_string().contains("things ns1/n1"), "{error}");
}
