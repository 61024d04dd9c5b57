//! Whatever a crash leaves of the last write, and whatever is damaged: nothing that was acknowledged is
//! dropped in silence, and nothing that was not written is read.

use std::sync::Arc;

use parking_lot::Mutex;
use proptest::prelude::*;

use super::*;

/// A file in memory.
#[derive(Clone, Debug, Default)]
struct Memory(Arc<Mutex<Vec<u8>>>);

impl Medium for Memory {
    fn write(&self, bytes: &[u8], at: u64) -> io::Result<()> {
        let at = usize::try_from(at).expect("small");
        let mut file = self.0.lock();
        let end = (at + bytes.len()).max(file.len());
        file.resize(end, 0);
        file[at..at + bytes.len()].copy_from_slice(bytes);
        Ok(())
    }

    fn sync(&self) -> io::Result<()> {
        Ok(())
    }
}

const ID: u64 = 7;

/// One group of changes: key, and row unless it is removed.
type Batch = Vec<(String, Option<Vec<u8>>)>;

fn batches(most: usize) -> impl Strategy<Value = Vec<Batch>> {
    let row = proptest::option::weighted(0.8, proptest::collection::vec(any::<u8>(), 0..700));
    let batch = proptest::collection::vec(("[a-z]{1,8}", row), 1..5);
    proptest::collection::vec(batch, 1..most)
}

fn append(log: &mut Log, first: u64, batch: &Batch) {
    let changes = batch.iter().map(|(key, row)| Change {
        key,
        row: row.as_deref(),
    });
    log.append(first, changes).expect("memory takes everything");
}

/// Writes the batches, beginning with revision `first`; returns where each record begins and the last ends.
fn fill(log: &mut Log, mut first: u64, batches: &[Batch]) -> Vec<usize> {
    let mut places = vec![log.end];
    for batch in batches {
        append(log, first, batch);
        first += batch.len() as u64;
        places.push(log.end);
    }
    places
}

fn contents(bytes: &[u8]) -> Result<Vec<Batch>, Damage> {
    let owned =
        |(_, change): (u64, Change<'_>)| (change.key.to_owned(), change.row.map(<[u8]>::to_vec));
    let records = read(bytes, ID)?;
    let mut expected = None;
    for record in &records {
        assert_eq!(expected.unwrap_or(record.first), record.first, "no gap");
        expected = Some(record.last() + 1);
    }
    Ok(records
        .iter()
        .map(|record| {
            let changes = record.changes().expect("a valid record is readable");
            changes.into_iter().map(owned).collect()
        })
        .collect())
}

fn written(batches: &[Batch]) -> (Vec<u8>, Vec<usize>) {
    let memory = Memory::default();
    let mut log = Log::begin(Box::new(memory.clone()), ID).expect("a log");
    let places = fill(&mut log, 5, batches);
    let mut bytes = memory.0.lock().clone();
    // Some of the room behind the records is as good as all of it.
    bytes.truncate(log.end + 256);
    (bytes, places)
}

#[test]
fn a_tail_torn_at_any_byte_is_dropped_and_nothing_else_is() {
    let row = |byte: u8, length: usize| Some(vec![byte; length]);
    let batches: Vec<Batch> = vec![
        vec![("a".to_owned(), row(1, 300)), ("b".to_owned(), None)],
        vec![("c".to_owned(), row(2, 40))],
        vec![("a".to_owned(), row(3, 200)), ("d".to_owned(), row(4, 900))],
    ];
    let (bytes, places) = written(&batches);
    let [.., begin, end] = places[..] else {
        panic!("three records")
    };
    assert_eq!(contents(&bytes).expect("whole"), batches);
    let payload = end - begin;
    for cut in begin..end {
        // Cut off, as when the file had not grown; and zeros, as when it had.
        assert_eq!(contents(&bytes[..cut]).expect("torn"), batches[..2]);
        let mut zeroed = bytes.clone();
        zeroed[cut..end].fill(0);
        let kept = contents(&zeroed).expect("torn");
        assert!(
            kept == batches[..2] || zeroed == bytes,
            "{cut} of {payload}"
        );
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    #[test]
    fn sectors_of_the_last_write_may_arrive_in_any_order(
        batches in batches(6),
        arrived in proptest::collection::vec(any::<bool>(), 1..64),
    ) {
        let (after, places) = written(&batches);
        let begin = places[places.len() - 2];
        let mut image = after.clone();
        for (number, sector) in image.chunks_mut(512).enumerate() {
            let at = number * 512;
            if at + sector.len() <= begin || arrived[number % arrived.len()] {
                continue;
            }
            // What was there before the last write: the end of the record before, then room.
            let from = begin.saturating_sub(at).min(sector.len());
            sector[from..].fill(0);
        }
        let kept = contents(&image).expect("a crash is no damage");
        let whole = image == after;
        prop_assert_eq!(kept.len(), batches.len() - usize::from(!whole));
        prop_assert_eq!(&kept[..], &batches[..kept.len()]);
    }

    #[test]
    fn damage_is_refused_or_takes_the_last_record_only(
        batches in batches(6),
        place in any::<prop::sample::Index>(),
        bit in 0_u8..8,
    ) {
        let (mut bytes, places) = written(&batches);
        let end = places[batches.len()];
        let at = place.index(end);
        bytes[at] ^= 1 << bit;
        match contents(&bytes) {
            // Bytes nothing depends on: the rest of the header's block, and what rounds a record up.
            Ok(kept) if kept.len() == batches.len() => {
                let unused = (HEADER_USED..HEADER).contains(&at);
                prop_assert!(kept == batches && (unused || places.iter().any(|place| (at..at + ALIGN).contains(place))));
            }
            Ok(kept) => {
                prop_assert_eq!(&kept[..], &batches[..batches.len() - 1]);
                prop_assert!(at >= places[batches.len() - 1]);
            }
            Err(Damage::Record { at: found }) => prop_assert!(places.contains(&found) && found <= at),
            Err(_) => prop_assert!(at < HEADER_USED),
        }
    }

    #[test]
    fn an_earlier_life_of_the_file_is_never_read(before in batches(8), after in batches(4)) {
        let memory = Memory::default();
        let mut log = Log::begin(Box::new(memory.clone()), ID).expect("a log");
        fill(&mut log, 1, &before);
        let mut log = log.again(ID).expect("a log");
        prop_assert_eq!(contents(&memory.0.lock()).expect("empty"), Vec::<Batch>::new());
        fill(&mut log, 100, &after);
        prop_assert_eq!(contents(&memory.0.lock()).expect("whole"), after);
    }

    #[test]
    fn no_bytes_make_reading_panic(mut bytes in proptest::collection::vec(any::<u8>(), 0..64), batches in batches(3)) {
        let (log, places) = written(&batches);
        let cut = places[0];
        // A real beginning, then anything.
        let mut file = log[..cut].to_vec();
        file.append(&mut bytes);
        prop_assert_eq!(contents(&file).expect("no record"), Vec::<Batch>::new());
        prop_assert!(contents(&file[HEADER.min(file.len())..]).is_ok_and(|kept| kept.is_empty()));
    }
}

#[test]
fn a_log_of_a_newer_warp_or_of_another_database_is_told_apart() {
    let (mut bytes, _) = written(&[vec![("a".to_owned(), None)]]);
    assert_eq!(read(&bytes, ID + 1), Err(Damage::Stranger));
    bytes[8..12].copy_from_slice(&(FORMAT + 1).to_le_bytes());
    let sum = sum::short(&[&bytes[..28]]);
    bytes[28..HEADER_USED].copy_from_slice(&sum.to_le_bytes());
    assert_eq!(read(&bytes, ID), Err(Damage::Format(FORMAT + 1)));
    bytes[0] ^= 1;
    assert_eq!(read(&bytes, ID), Err(Damage::Header));
}
