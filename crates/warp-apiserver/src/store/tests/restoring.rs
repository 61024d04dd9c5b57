//! Backups: everything at one revision, whole or refused; a restore is complete or has not happened.

use std::time::SystemTime;

use super::super::*;
use super::{State, draft, options, state_of};

fn backup(store: &Store) -> Vec<u8> {
    let chunks = store.snapshot().into_chunks(SystemTime::UNIX_EPOCH);
    chunks.flat_map(|chunk| chunk.to_vec()).collect()
}

/// A closed store with these objects, and its state.
async fn filled(names: &[&str]) -> (tempfile::TempDir, State, Vec<u8>) {
    let folder = tempfile::tempdir().expect("a folder");
    let store = Store::open(&options(&folder, Durability::Durable)).expect("a store");
    let table = store.table("things");
    for name in names {
        store.create(&table, draft(name, 1)).await.expect("created");
    }
    let (state, bytes) = (state_of(&table.all(None)), backup(&store));
    store.close().await;
    (folder, state, bytes)
}

async fn state(folder: &tempfile::TempDir) -> (State, u64) {
    let store = Store::open(&options(folder, Durability::Durable)).expect("opens");
    let found = (state_of(&store.table("things").all(None)), store.revision());
    store.close().await;
    found
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_backup_under_writes_is_what_was_there_at_its_revision() {
    for durability in [Durability::Durable, Durability::Relaxed] {
        let folder = tempfile::tempdir().expect("a folder");
        let store = Store::open(&StoreOptions {
            ring_events: 1 << 16,
            ..options(&folder, durability)
        })
        .expect("a store");
        let tables = ["things", "others", "more"].map(|name| store.table(name));
        let writers: Vec<_> = (0..3)
            .map(|writer| {
                let (store, tables) = (store.clone(), tables.clone());
                tokio::spawn(async move {
                    for number in 0..200 {
                        let table = &tables[(writer + number) % 3];
                        let name = format!("w{writer}-{number}");
                        let made = store.create(table, draft(&name, 0)).await;
                        made.expect("created");
                    }
                })
            })
            .collect();
        let mut taken = Vec::new();
        while writers.iter().any(|writer| !writer.is_finished()) {
            if taken.len() < 25 {
                taken.push(store.snapshot());
            }
            tokio::task::yield_now().await;
        }
        for writer in writers {
            writer.await.expect("a writer");
        }
        for snapshot in taken {
            let revision = snapshot.revision();
            let bytes: Vec<u8> = snapshot
                .into_chunks(SystemTime::UNIX_EPOCH)
                .flat_map(|chunk| chunk.to_vec())
                .collect();
            let mut reader = backup::Reader::open(bytes.as_slice()).expect("a backup");
            let mut found = State::new();
            while let Some((key, object)) = reader.next().expect("whole") {
                found.insert(key, object.revision);
            }
            let mut then = State::new();
            for table in &tables {
                for object in table.all(None) {
                    if object.revision <= revision {
                        then.insert(disk::row_key(table.name(), &object.key), object.revision);
                    }
                }
            }
            assert_eq!(found, then, "at {revision}");
        }
        store.close().await;
    }
}

#[tokio::test]
async fn a_restored_store_has_the_objects_and_no_revision_anybody_has_seen() {
    let (_, before, bytes) = filled(&["a", "b"]).await;
    let (folder, other, _) = filled(&["x", "y", "z"]).await;
    let path = database_in(folder.path());
    let refused = restore(&path, bytes.as_slice(), false).expect_err("occupied");
    assert!(matches!(&refused, RestoreError::Occupied(_)), "{refused}");
    let (kept, seen) = state(&folder).await;
    assert_eq!(kept, other);
    let restored = restore(&path, bytes.as_slice(), true).expect("restored");
    assert_eq!(restored.head.objects, 2);
    let (found, revision) = state(&folder).await;
    assert_eq!(found, before, "uids and resource versions are kept");
    assert!(
        revision > seen,
        "every watch of before is told to list again"
    );
    // What was there can be had back.
    let aside = restored.aside.expect("put aside");
    let back = tempfile::tempdir().expect("a folder");
    for file in std::fs::read_dir(&aside).expect("a folder") {
        let file = file.expect("a file");
        std::fs::copy(file.path(), back.path().join(file.file_name())).expect("a copy");
    }
    assert_eq!(state(&back).await.0, other);
}

#[tokio::test]
async fn a_backup_that_is_not_whole_changes_nothing() {
    let (_, _, bytes) = filled(&["a", "b", "c"]).await;
    let (folder, before, _) = filled(&["x"]).await;
    let path = database_in(folder.path());
    let names = || std::fs::read_dir(folder.path()).expect("a folder").count();
    let count = names();
    let mut damaged: Vec<Vec<u8>> = (0..bytes.len())
        .step_by(3)
        .map(|at| {
            let mut flipped = bytes.clone();
            flipped[at] ^= 1 << (at % 8);
            flipped
        })
        .collect();
    damaged.extend((0..bytes.len()).step_by(7).map(|end| bytes[..end].to_vec()));
    damaged.push([bytes.as_slice(), b"x"].concat());
    for file in damaged {
        verify(file.as_slice()).expect_err("not whole");
        restore(&path, file.as_slice(), true).expect_err("refused");
        assert_eq!(names(), count, "nothing is left behind");
    }
    assert_eq!(state(&folder).await.0, before);
}

/// As a kill leaves a restore: decided or not, and then whoever comes next finishes it.
#[tokio::test]
async fn a_restore_broken_off_anywhere_leaves_the_old_or_the_new() {
    let (_, new, bytes) = filled(&["a", "b"]).await;
    let (folder, old, _) = filled(&["x"]).await;
    let copy = || super::crash(&folder);
    // Before the decision: a half-made database lies beside.
    let early = copy();
    std::fs::write(early.path().join("state.restored"), &bytes[..100]).expect("written");
    assert_eq!(state(&early).await.0, old);
    let path_early = database_in(early.path());
    restore(&path_early, bytes.as_slice(), true).expect("the next one succeeds");
    assert_eq!(state(&early).await.0, new);
    // After it, with none, the first or both of the steps done that follow.
    let whole = copy();
    restore(&database_in(whole.path()), bytes.as_slice(), true).expect("restored");
    let stamp = mark::read(&mark::path(&database_in(whole.path())))
        .ok()
        .flatten()
        .expect("a mark");
    for renamed in [false, true] {
        let late = copy();
        let at = database_in(late.path());
        let made = if renamed {
            at.clone()
        } else {
            at.with_extension("restored")
        };
        std::fs::copy(database_in(whole.path()), made).expect("a copy");
        mark::Mark::put(&mark::path(&at), stamp.restoring(true)).expect("a mark");
        std::fs::write(at.with_extension("log-a"), "of the old one").expect("written");
        assert_eq!(state(&late).await.0, new, "renamed: {renamed}");
        assert!(!at.with_extension("restored").exists());
    }
    assert_eq!(state(&folder).await.0, old);
}

#[tokio::test]
async fn discarded_data_is_put_aside_and_a_store_in_use_is_left_alone() {
    let (folder, before, bytes) = filled(&["a"]).await;
    let path = database_in(folder.path());
    let store = Store::open(&options(&folder, Durability::Durable)).expect("a store");
    let busy = discard(&path).expect_err("in use");
    assert!(matches!(&busy, RestoreError::InUse(_)), "{busy}");
    let busy = restore(&path, bytes.as_slice(), true).expect_err("in use");
    assert!(matches!(&busy, RestoreError::InUse(_)), "{busy}");
    store.close().await;
    drop(store);
    // Damaged beyond opening: that is what discarding is for.
    std::fs::write(&path, "nonsense").expect("written");
    let aside = discard(&path).expect("discarded").expect("there was data");
    assert_eq!(
        std::fs::read(aside.join("state.redb")).expect("kept"),
        b"nonsense"
    );
    assert_eq!(discard(&path).expect("fine"), None);
    assert_eq!(state(&folder).await.0, State::new());
    let restored = restore(&path, bytes.as_slice(), true).expect("restored");
    assert_eq!(state(&folder).await.0, before);
    assert_ne!(
        restored.aside,
        Some(aside),
        "nothing that was put aside is written over"
    );
}
