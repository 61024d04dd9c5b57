//! What the store does when a disk refuses: nothing is shown that is not stored.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use super::super::*;
use super::draft;

/// A medium that can be broken.
#[derive(Debug, Clone, Default)]
struct Medium {
    broken: Arc<AtomicBool>,
    writes: Arc<AtomicU64>,
}

impl Medium {
    fn check(&self) -> std::io::Result<()> {
        if self.broken.load(Ordering::Acquire) {
            return Err(std::io::Error::other("no space left"));
        }
        Ok(())
    }
}

impl log::Medium for Medium {
    fn write(&self, _bytes: &[u8], _at: u64) -> std::io::Result<()> {
        self.writes.fetch_add(1, Ordering::AcqRel);
        self.check()
    }

    fn sync(&self) -> std::io::Result<()> {
        self.check()
    }
}

/// A database in memory that can be broken in the same way.
#[derive(Debug)]
struct Pages(redb::backends::InMemoryBackend, Medium);

impl redb::StorageBackend for Pages {
    fn len(&self) -> std::io::Result<u64> {
        self.0.len()
    }

    fn read(&self, offset: u64, out: &mut [u8]) -> std::io::Result<()> {
        self.0.read(offset, out)
    }

    fn set_len(&self, len: u64) -> std::io::Result<()> {
        self.1.check()?;
        self.0.set_len(len)
    }

    fn sync_data(&self) -> std::io::Result<()> {
        self.1.check()?;
        self.0.sync_data()
    }

    fn write(&self, offset: u64, data: &[u8]) -> std::io::Result<()> {
        self.1.check()?;
        self.0.write(offset, data)
    }
}

/// A store whose logs are on `log` and whose database is on `pages`.
fn on_media(log: &Medium, pages: &Medium, log_bytes: usize) -> Store {
    let backend = redb::backends::InMemoryBackend::new();
    let disk = disk::Disk::on(Pages(backend, pages.clone())).expect("a database");
    let logs: Vec<Box<dyn log::Medium>> = vec![Box::new(log.clone()), Box::new(log.clone())];
    let mark = mark::Mark::on(Box::new(Medium::default()), mark::Stamp::new(1, 1));
    let journal = Journal::on(logs, disk, mark, 1, log_bytes).expect("a journal");
    let store = Store::assemble(1, HashMap::new(), None, RING_EVENTS);
    let committer = Committer::start(journal, Durability::Durable, Arc::downgrade(&store.0));
    store.0.sequencer.lock().committer = Some(committer.expect("a committer"));
    store
}

#[tokio::test]
async fn after_a_failed_commit_nothing_queued_is_stored_or_shown() {
    let medium = Medium::default();
    let store = on_media(&medium, &Medium::default(), LOG_BYTES);
    let table = store.table("things");
    store
        .create(&table, draft("kept", 0))
        .await
        .expect("stored");
    let before = store.revision();
    medium.broken.store(true, Ordering::Release);
    let writes = (0..8).map(|n| store.create(&table, draft(&format!("lost{n}"), n)));
    let answers = futures::future::join_all(writes).await;
    assert!(
        answers
            .iter()
            .all(|answer| matches!(answer, Err(WriteError::Disk(_)))),
        "{answers:?}"
    );
    assert!(
        store
            .failure()
            .is_some_and(|reason| reason.contains("no space left"))
    );
    // Repaired or not: what was handed out in between is lost, so a restart is asked for.
    medium.broken.store(false, Ordering::Release);
    let late = store.create(&table, draft("late", 9)).await;
    assert!(matches!(late, Err(WriteError::Disk(_))), "{late:?}");
    assert_eq!((table.len(), store.revision()), (1, before));
}

#[tokio::test]
async fn a_database_that_cannot_be_brought_up_to_date_ends_writing_before_the_logs_are_full() {
    let pages = Medium::default();
    let store = on_media(&Medium::default(), &pages, 1024);
    let table = store.table("things");
    pages.broken.store(true, Ordering::Release);
    let mut accepted = 0_usize;
    let refused = loop {
        match store
            .create(&table, draft(&format!("n{accepted}"), 0))
            .await
        {
            Ok(_) => accepted += 1,
            Err(error) => break error,
        }
        assert!(accepted < 100, "two small logs hold no more");
    };
    assert!(
        matches!(&refused, WriteError::Disk(reason) if reason.contains("up to date")),
        "{refused}"
    );
    assert_eq!(table.len(), accepted, "what was accepted is shown");
}

#[tokio::test]
async fn a_lone_write_is_one_write_to_the_log() {
    let medium = Medium::default();
    let store = on_media(&medium, &Medium::default(), LOG_BYTES);
    let table = store.table("things");
    store.create(&table, draft("a", 0)).await.expect("stored");
    let before = medium.writes.load(Ordering::Acquire);
    store.create(&table, draft("b", 0)).await.expect("stored");
    assert_eq!(medium.writes.load(Ordering::Acquire) - before, 1);
    store.close().await;
}
