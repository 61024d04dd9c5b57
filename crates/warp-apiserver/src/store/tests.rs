//! The model: whatever writers, watchers and restarts do, list + watch rebuild the exact state,
//! each event arrives once and in order.

mod damage;
mod media;
mod restoring;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use proptest::prelude::*;
use serde_json::json;

use super::*;

fn draft(name: &str, value: u64) -> Draft {
    let object = json!({
        "apiVersion": "v1", "kind": "Thing",
        "metadata": {"name": name, "uid": format!("u-{name}"), "labels": {"v": value.to_string()}},
        "value": value,
    });
    Draft::new(&format!("ns/{name}"), &object, &[], 0)
}

#[test]
fn a_revision_that_a_list_shows_can_be_watched_from_at_once() {
    let store = Store::memory();
    let table = store.table("things");
    let stored = Arc::new(draft("a", 1).stamp(store.revision() + 1));
    // Applied, and not announced yet: a list that arrives now shows it.
    table.apply(&Arc::new(Event::new(EventKind::Added, stored, None)));
    let (page, _) = table.list_and_watch(None);
    assert_eq!(page.objects.len(), 1);
    assert_eq!(store.revision(), page.revision);
}

/// A small random number generator: the test must be repeatable from its seed.
struct Random(u64);

impl Random {
    fn next(&mut self, below: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % below
    }
}

/// Writes at random until told to stop; returns how many writes were acknowledged.
async fn writer(store: Store, table: Arc<Table>, seed: u64, rounds: u64) -> u64 {
    let mut random = Random(seed);
    let mut done = 0;
    for round in 0..rounds {
        let name = format!("n{}", random.next(12));
        let key = format!("ns/{name}");
        let written = match store.latest(&table, &key) {
            None => store.create(&table, draft(&name, round)).await,
            Some(old) if random.next(4) == 0 => {
                store.delete(&table, old.redraft(), old.revision).await
            }
            Some(old) => {
                store
                    .update(&table, draft(&name, round), old.revision)
                    .await
            }
        };
        match written {
            Ok(_) => done += 1,
            Err(WriteError::Disk(reason)) => panic!("{reason}"),
            Err(_) => {}
        }
        if random.next(3) == 0 {
            tokio::task::yield_now().await;
        }
    }
    done
}

type State = BTreeMap<String, u64>;

fn state_of(objects: &[Arc<Stored>]) -> State {
    objects
        .iter()
        .map(|object| (object.key.to_string(), object.revision))
        .collect()
}

/// Follows from a list (or from a revision it remembers) and rebuilds the state, checking order.
async fn watcher(store: Store, table: Arc<Table>, seed: u64, stop: Arc<AtomicBool>) -> State {
    let mut random = Random(seed);
    let (page, mut cursor) = table.list_and_watch(None);
    let mut state = state_of(&page.objects);
    let mut seen = page.revision;
    loop {
        let most = usize::try_from(1 + random.next(5)).expect("small");
        match cursor.read(most) {
            Batch::Events(events) => {
                for event in events {
                    assert!(event.revision() > seen, "events come once and in order");
                    let known = state.get(&*event.object.key).copied();
                    let before = event.previous.as_ref().map(|previous| previous.revision);
                    assert_eq!(known, before, "an event follows the state before it");
                    assert_eq!(event.kind == EventKind::Added, before.is_none());
                    seen = event.revision();
                    match event.kind {
                        EventKind::Deleted => {
                            state.remove(&*event.object.key);
                        }
                        _ => {
                            state.insert(event.object.key.to_string(), seen);
                        }
                    }
                }
                if random.next(8) == 0 {
                    // A connection breaks: go on from the last revision seen.
                    match table.watch_from(seen) {
                        Ok(fresh) => cursor = fresh,
                        Err(error) => assert!(error.oldest > seen),
                    }
                }
            }
            Batch::Idle(revision) => {
                assert!(revision >= seen);
                if stop.load(Ordering::Acquire) && store.revision() == revision {
                    return state;
                }
                tokio::task::yield_now().await;
            }
            Batch::Lost => {
                assert!(
                    table.watch_from(seen).is_err(),
                    "only a lost revision ends a watch"
                );
                let (page, fresh) = table.list_and_watch(None);
                state = state_of(&page.objects);
                seen = page.revision;
                cursor = fresh;
            }
        }
    }
}

async fn exercise(store: &Store, seed: u64, rounds: u64) -> State {
    let table = store.table("things");
    let stop = Arc::new(AtomicBool::new(false));
    let watchers: Vec<_> = (0..4)
        .map(|n| {
            tokio::spawn(watcher(
                store.clone(),
                Arc::clone(&table),
                seed + 100 + n,
                Arc::clone(&stop),
            ))
        })
        .collect();
    let writers: Vec<_> = (0..4)
        .map(|n| {
            tokio::spawn(writer(
                store.clone(),
                Arc::clone(&table),
                seed + n + 1,
                rounds,
            ))
        })
        .collect();
    for writer in writers {
        writer.await.expect("a writer");
    }
    stop.store(true, Ordering::Release);
    let truth = state_of(&table.all(None));
    for watcher in watchers {
        assert_eq!(
            watcher.await.expect("a watcher"),
            truth,
            "a watcher knows the exact state"
        );
    }
    truth
}

fn options(folder: &tempfile::TempDir, durability: Durability) -> StoreOptions {
    StoreOptions {
        path: Some(folder.path().join("state.redb")),
        durability,
        ring_events: 64,
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn watchers_rebuild_the_exact_state_in_memory() {
    for seed in 1..20 {
        let store = Store::open(&StoreOptions {
            ring_events: 32,
            ..StoreOptions::default()
        })
        .expect("a store");
        exercise(&store, seed * 7919, 200).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_crowd_of_watchers_is_told_of_everything_though_not_at_once() {
    const WRITES: usize = 8 * 25;
    let folder = tempfile::tempdir().expect("a folder");
    let store = Store::open(&StoreOptions {
        ring_events: 4096,
        ..options(&folder, Durability::Durable)
    })
    .expect("a store");
    let table = store.table("things");
    let watchers: Vec<_> = (0..100)
        .map(|_| {
            let mut cursor = table.watch_from(store.revision()).expect("a cursor");
            tokio::spawn(async move {
                let mut seen = Vec::new();
                while seen.len() < WRITES {
                    match cursor.read(16) {
                        Batch::Events(events) => {
                            seen.extend(events.iter().map(|event| event.revision()));
                        }
                        Batch::Idle(_) => cursor.changed().await,
                        Batch::Lost => panic!("the ring holds every event"),
                    }
                }
                seen
            })
        })
        .collect();
    let writers = (0..8).map(|writer| {
        let (store, table) = (store.clone(), Arc::clone(&table));
        tokio::spawn(async move {
            for number in 0..25 {
                let name = format!("w{writer}-{number}");
                store
                    .create(&table, draft(&name, number))
                    .await
                    .expect("a write");
            }
        })
    });
    for writer in writers.collect::<Vec<_>>() {
        writer.await.expect("a writer");
    }
    let first = store.revision() - WRITES as u64 + 1;
    let all: Vec<u64> = (first..=store.revision()).collect();
    for watcher in watchers {
        assert_eq!(watcher.await.expect("a watcher"), all);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn restarts_lose_nothing_and_forget_old_revisions() {
    for durability in [Durability::Durable, Durability::Relaxed] {
        let folder = tempfile::tempdir().expect("a folder");
        let mut before: Option<(State, u64)> = None;
        for seed in 1..4 {
            // Logs so small that they are taken over all the time.
            let path = folder.path().join("state.redb");
            let store = Store::open_file(&path, durability, 64, 2048).expect("a store");
            let table = store.table("things");
            if let Some((state, revision)) = before {
                assert_eq!(state_of(&table.all(None)), state);
                assert!(store.revision() >= revision);
                assert!(table.watch_from(revision - 1).is_err(), "the past is gone");
                assert!(table.watch_from(store.revision()).is_ok());
            }
            let state = exercise(&store, seed * 31, 40).await;
            store.close().await;
            before = Some((state, store.revision()));
        }
    }
}

#[tokio::test]
async fn a_database_of_another_format_is_refused_with_instructions() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("state.redb");
    {
        let database = redb::Database::create(&path).expect("a database");
        let transaction = database.begin_write().expect("a transaction");
        let meta: redb::TableDefinition<'_, &str, u64> = redb::TableDefinition::new("meta");
        transaction
            .open_table(meta)
            .expect("a table")
            .insert("format", 99)
            .expect("a row");
        transaction.commit().expect("committed");
    }
    let refused = Store::open(&StoreOptions {
        path: Some(path),
        ..StoreOptions::default()
    })
    .expect_err("refused");
    let text = refused.to_string();
    assert!(
        text.contains("format 99") && text.contains("export"),
        "{text}"
    );
}

/// The files as a crash would leave them now, in a folder of their own.
fn crash(folder: &tempfile::TempDir) -> tempfile::TempDir {
    let copy = tempfile::tempdir().expect("a folder");
    for file in std::fs::read_dir(folder.path()).expect("a folder") {
        let file = file.expect("a file");
        std::fs::copy(file.path(), copy.path().join(file.file_name())).expect("a copy");
    }
    copy
}

#[tokio::test]
async fn a_crash_skips_revisions_that_may_have_been_seen() {
    let folder = tempfile::tempdir().expect("a folder");
    let store = Store::open(&options(&folder, Durability::Durable)).expect("a store");
    let table = store.table("things");
    store.create(&table, draft("a", 1)).await.expect("created");
    let seen = store.revision();
    let copy = crash(&folder);
    let crashed = Store::open(&options(&copy, Durability::Durable)).expect("opens");
    assert_eq!(
        state_of(&crashed.table("things").all(None)),
        state_of(&table.all(None))
    );
    assert!(crashed.revision() > seen);
    store.close().await;
}

/// A store with a few objects made, changed and deleted, as a crash leaves it: the files, and the state.
async fn crashed() -> (tempfile::TempDir, State) {
    let folder = tempfile::tempdir().expect("a folder");
    let store = Store::open(&options(&folder, Durability::Durable)).expect("a store");
    let table = store.table("things");
    for name in ["a", "b", "c"] {
        let made = store.create(&table, draft(name, 1)).await.expect("created");
        match name {
            "a" => drop(
                store
                    .update(&table, draft(name, 2), made.revision)
                    .await
                    .expect("updated"),
            ),
            "b" => drop(
                store
                    .delete(&table, made.redraft(), made.revision)
                    .await
                    .expect("deleted"),
            ),
            _ => {}
        }
    }
    let state = state_of(&table.all(None));
    let copy = crash(&folder);
    store.close().await;
    (copy, state)
}

#[tokio::test]
async fn logs_that_the_database_has_taken_over_are_not_applied_again() {
    let (folder, state) = crashed().await;
    let saved = crash(&folder);
    let store = Store::open(&options(&folder, Durability::Durable)).expect("opens");
    let table = store.table("things");
    assert_eq!(state_of(&table.all(None)), state);
    // What the log says is history by now: b exists again, c does not.
    store.create(&table, draft("b", 9)).await.expect("created");
    let old = table.get("ns/c").expect("there");
    store
        .delete(&table, old.redraft(), old.revision)
        .await
        .expect("deleted");
    let state = state_of(&table.all(None));
    store.close().await;
    let names = || std::fs::read_dir(folder.path()).expect("a folder").count();
    assert_eq!(names(), 2, "a closed store is a file and its mark");
    for log in replay::paths(&saved.path().join("state.redb")) {
        std::fs::copy(&log, folder.path().join(log.file_name().expect("a name"))).expect("a copy");
    }
    let store = Store::open(&options(&folder, Durability::Durable)).expect("opens");
    assert_eq!(state_of(&store.table("things").all(None)), state);
    store.close().await;
}

#[tokio::test]
async fn a_log_that_does_not_continue_the_database_is_refused_with_instructions() {
    let (folder, _) = crashed().await;
    let refused = |folder: &tempfile::TempDir| {
        let error = Store::open(&options(folder, Durability::Durable)).expect_err("refused");
        error.to_string()
    };
    let [log, other] = replay::paths(&folder.path().join("state.redb"));
    // The first record gone, the later ones there.
    let whole = std::fs::read(&log).expect("a log");
    let mut damaged = whole.clone();
    damaged[4096 + 40] ^= 1;
    std::fs::write(&log, &damaged).expect("written");
    let text = refused(&folder);
    assert!(
        text.contains("byte 4096") && text.contains("restore"),
        "{text}"
    );
    // A database from before the log was begun.
    std::fs::write(&log, &whole).expect("written");
    let older = crash(&folder);
    let store = Store::open(&options(&folder, Durability::Durable)).expect("opens");
    let table = store.table("things");
    store.create(&table, draft("d", 1)).await.expect("created");
    let mixed = crash(&folder);
    store.close().await;
    std::fs::copy(
        older.path().join("state.redb"),
        mixed.path().join("state.redb"),
    )
    .expect("a copy");
    let text = refused(&mixed);
    assert!(
        text.contains("goes on at revision") && text.contains("restore"),
        "{text}"
    );
    // A log of another database altogether.
    let (stranger, _) = crashed().await;
    std::fs::copy(stranger.path().join("state.log-a"), &other).expect("a copy");
    std::fs::copy(
        older.path().join("state.redb"),
        folder.path().join("state.redb"),
    )
    .expect("a copy");
    let text = refused(&folder);
    assert!(text.contains("another database"), "{text}");
    assert!(other.exists(), "nothing was thrown away");
}

/// Takes from a closed database what an earlier Warp did not write.
fn age(path: &Path, format: u64) {
    let database = redb::Database::open(path).expect("closed");
    let transaction = database.begin_write().expect("a transaction");
    let meta: redb::TableDefinition<'_, &str, u64> = redb::TableDefinition::new("meta");
    let objects: redb::TableDefinition<'_, &str, &[u8]> = redb::TableDefinition::new("objects");
    {
        let mut meta = transaction.open_table(meta).expect("a table");
        meta.insert("format", format).expect("a row");
        for name in ["count", "sum-low", "sum-high", "check"] {
            meta.remove(name).expect("a row");
        }
        if format == 1 {
            meta.remove("id").expect("a row");
        }
        let mut objects = transaction.open_table(objects).expect("a table");
        let rows: Vec<(String, Vec<u8>)> = redb::ReadableTable::iter(&objects)
            .expect("rows")
            .map(|row| row.expect("a row"))
            .map(|(key, row)| (key.value().to_owned(), row.value()[16..].to_vec()))
            .collect();
        for (key, row) in rows {
            objects.insert(key.as_str(), row.as_slice()).expect("a row");
        }
    }
    transaction.commit().expect("committed");
    std::fs::remove_file(mark::path(path)).expect("removed");
}

#[tokio::test]
async fn databases_of_earlier_warps_open_and_are_guarded_from_then_on() {
    for format in [1, 2] {
        let folder = tempfile::tempdir().expect("a folder");
        let store = Store::open(&options(&folder, Durability::Durable)).expect("a store");
        let table = store.table("things");
        store.create(&table, draft("a", 1)).await.expect("created");
        let state = state_of(&table.all(None));
        store.close().await;
        drop((table, store));
        let path = folder.path().join("state.redb");
        age(&path, format);
        let store = Store::open(&options(&folder, Durability::Durable)).expect("opens");
        assert_eq!(state_of(&store.table("things").all(None)), state);
        store.close().await;
        drop(store);
        let store = Store::open(&options(&folder, Durability::Durable)).expect("opens again");
        assert_eq!(state_of(&store.table("things").all(None)), state);
        store.close().await;
        drop(store);
        std::fs::remove_file(&path).expect("removed");
        let refused = Store::open(&options(&folder, Durability::Durable)).expect_err("refused");
        assert!(refused.to_string().contains("it is gone"), "{refused}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn pages_are_consistent_with_their_revision(
        writes in proptest::collection::vec((0_u64..6, any::<bool>()), 1..40),
        at in 0_usize..40,
        limit in 1_usize..4,
    ) {
        let runtime = tokio::runtime::Builder::new_current_thread().build().expect("a runtime");
        runtime.block_on(async {
            let store = Store::memory();
            let table = store.table("things");
            let mut history = Vec::new();
            for (position, (name, remove)) in writes.iter().enumerate() {
                let name = format!("n{name}");
                let key = format!("ns/{name}");
                match store.latest(&table, &key) {
                    None => drop(store.create(&table, draft(&name, position as u64)).await),
                    Some(old) if *remove => drop(store.delete(&table, old.redraft(), old.revision).await),
                    Some(old) => drop(store.update(&table, draft(&name, position as u64), old.revision).await),
                }
                history.push((store.revision(), state_of(&table.all(None))));
            }
            let (revision, expected) = &history[at % history.len()];
            let mut found = State::new();
            let mut after: Option<String> = None;
            loop {
                let query = PageQuery {
                    namespace: Some("ns"),
                    after: after.as_deref(),
                    limit,
                    at: Some(*revision),
                };
                let page = table.page(query, |_| true).expect("still known");
                found.extend(state_of(&page.objects));
                if page.remaining == 0 {
                    break;
                }
                after = page.objects.last().map(|object| object.key.to_string());
            }
            assert_eq!(&found, expected);
        });
    }

    #[test]
    fn what_is_encoded_is_the_object_with_its_revision(
        labels in proptest::collection::btree_map("[a-z]{1,5}", ".{0,8}", 0..4),
        text in ".{0,40}",
        revision in 1_u64..1_000_000_000,
    ) {
        let object = json!({
            "spec": {"text": text, "resourceVersion": "kept"},
            "kind": "Thing",
            "metadata": {"labels": labels, "resourceVersion": "old", "uid": "u", "name": "n"},
            "apiVersion": "v1",
        });
        let stored = Draft::new("n", &object, &[], 0).stamp(revision);
        let mut expected = object.clone();
        expected["metadata"]["resourceVersion"] = revision.to_string().into();
        prop_assert_eq!(stored.value(), expected.clone());
        let again = stored.redraft().stamp(revision + 1);
        expected["metadata"]["resourceVersion"] = (revision + 1).to_string().into();
        prop_assert_eq!(again.value(), expected);
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// Whoever reads when, wherever it began: joined lines are the lines of its events.
    #[test]
    fn joined_lines_are_the_lines_of_the_events(
        steps in proptest::collection::vec((0_u64..4, 0_u64..3, any::<bool>()), 1..60),
        readers in proptest::collection::vec((proptest::option::of(0_u64..3), 1_usize..9, 0_usize..60), 1..6),
    ) {
        let runtime = tokio::runtime::Builder::new_current_thread().build().expect("a runtime");
        runtime.block_on(async {
            let store = Store::open(&StoreOptions { ring_events: 16, ..StoreOptions::default() }).expect("a store");
            let table = store.table("things");
            let mut open: Vec<(Cursor, Cursor, Whole, usize)> = Vec::new();
            for (number, (name, space, reading)) in steps.iter().enumerate() {
                for (namespace, most, from) in &readers {
                    if *from == number {
                        let (_, cursor) = table.list_and_watch(None);
                        let (_, other) = table.list_and_watch(None);
                        let namespace = namespace.map(|space| format!("s{space}"));
                        open.push((cursor, other, Whole { namespace, epoch: None }, *most));
                    }
                }
                let (key, name) = (format!("s{space}/n{name}"), format!("n{name}"));
                let object = json!({"metadata": {"name": name, "namespace": format!("s{space}")}});
                let fresh = Draft::new(&key, &object, &[], 0);
                match store.latest(&table, &key) {
                    None => drop(store.create(&table, fresh).await),
                    Some(old) if number % 3 == 0 => drop(store.delete(&table, old.redraft(), old.revision).await),
                    Some(old) => drop(store.update(&table, fresh, old.revision).await),
                }
                if !reading {
                    continue;
                }
                for (joined, plain, whole, most) in &mut open {
                    let (mut lines, mut expected) = (Vec::new(), Vec::new());
                    while let Some(read) = joined.read_lines(whole, *most) {
                        lines.extend_from_slice(&read.bytes);
                    }
                    let lost = matches!(joined.peek(), Batch::Lost);
                    while let Batch::Events(events) = plain.read(*most) {
                        for event in events {
                            let space = whole.namespace.as_deref();
                            if space.is_none_or(|space| event.object.namespace() == Some(space)) {
                                expected.extend_from_slice(&event.line());
                            }
                        }
                    }
                    assert_eq!(lost, matches!(plain.peek(), Batch::Lost));
                    if !lost {
                        assert_eq!(lines, expected);
                    }
                }
            }
        });
    }
}
