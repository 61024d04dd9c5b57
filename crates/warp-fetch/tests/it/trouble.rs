//! Sources that misbehave, and fetches that are broken off. Never a model that is not whole, never one byte more than
//! needed.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use warp_fetch::{Progress, Report};

use crate::hub::Answer;
use crate::{MIB, MODEL, World, names, run};

/// Fetches with `script` in the way; what came in all is what there is.
async fn despite(script: impl Fn(u64, &str) -> Answer + Send + Sync + 'static) -> (World, Report) {
    let world = World::new();
    world.hub.script(script);
    let mut options = world.options(MODEL);
    options.limits.stall = Duration::from_millis(400);
    let report = run(options).await.unwrap();
    world.assert_whole(&report);
    (world, report)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_connection_that_stalls_is_given_up_and_its_bytes_are_kept() {
    let (_, report) = despite(|number, path| {
        if number % 5 == 1 && path.ends_with("safetensors") {
            Answer::Stall(300_000)
        } else {
            Answer::Right
        }
    })
    .await;
    assert_eq!(report.bytes_fetched, report.bytes);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_transfer_that_breaks_off_goes_on_where_it_stopped() {
    let (world, report) = despite(|number, path| {
        if number % 3 == 0 && path.ends_with("safetensors") {
            Answer::Cut(400_000)
        } else {
            Answer::Right
        }
    })
    .await;
    assert_eq!(report.bytes_fetched, report.bytes);
    // What was sent before a connection closed has all been used.
    assert!(
        world.hub.sent() <= report.bytes * 101 / 100,
        "{} {}",
        world.hub.sent(),
        report.bytes
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_wish_to_wait_and_passing_trouble_are_honoured() {
    let (_, report) = despite(|number, _| match number {
        1 => Answer::Status(429, 1),
        2 => Answer::Status(503, 0),
        4 => Answer::Status(408, 0),
        5 => Answer::Status(500, 1),
        _ => Answer::Right,
    })
    .await;
    assert_eq!(report.bytes_fetched, report.bytes);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_without_ranges_is_read_once() {
    let (world, report) = despite(|_, _| Answer::Whole).await;
    assert_eq!(report.bytes_fetched, report.bytes);
    assert_eq!(world.hub.sent(), report.bytes);
}

#[tokio::test(flavor = "multi_thread")]
async fn what_came_of_ranges_is_kept_where_they_are_given_no_more() {
    let world = World::new();
    world.hub.script(|_, path| {
        if path.ends_with("safetensors") {
            Answer::Cut(700_000)
        } else {
            Answer::Right
        }
    });
    let mut options = world.options(MODEL);
    options.limits.patience = Duration::from_millis(100);
    let before = run(options).await.unwrap_err();
    assert_eq!(before.reason(), "SourceUnreachable", "{before}");
    world.hub.script(|_, _| Answer::Whole);
    let report = world.fetch().await.unwrap();
    world.assert_whole(&report);
    assert!(report.bytes_fetched < report.bytes, "{report:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_byte_that_is_wrong_once_means_that_file_again_and_no_other() {
    let flipped = AtomicU64::new(0);
    let (_, report) = despite(move |_, path| {
        // The first copy of it comes in six ranges; one of them holds the byte.
        if path.starts_with("model-00001") && flipped.fetch_add(1, Ordering::SeqCst) < 6 {
            return Answer::Flip(12345);
        }
        Answer::Right
    })
    .await;
    assert_eq!(report.bytes_fetched, report.bytes + 5 * MIB as u64 + 17);
}

#[tokio::test(flavor = "multi_thread")]
async fn content_that_stays_wrong_is_never_published_and_what_was_stays() {
    let world = World::new();
    let good = world.fetch().await.unwrap();
    std::fs::write(world.model().join("config.json"), b"{\"new\": 1}").unwrap();
    let shard = "model-00001-of-00002.safetensors";
    std::fs::write(world.model().join(shard), crate::noise(77, 5 * MIB)).unwrap();
    world.hub.read(&world.folder.path().join("hub"));
    world.hub.script(move |_, path| {
        if path == shard {
            Answer::Flip(0)
        } else {
            Answer::Right
        }
    });
    let error = world.fetch().await.unwrap_err();
    assert_eq!(error.reason(), "ContentMismatch");
    assert!(
        error.is_permanent() && error.to_string().contains(shard),
        "{error}"
    );
    let snapshots = names(&world.repository().join("snapshots"));
    assert_eq!(snapshots, std::slice::from_ref(&good.commit));
    let reference = std::fs::read_to_string(world.repository().join("refs/main")).unwrap();
    assert_eq!(reference, good.commit);
    // The source is mended: nothing of the bad copy is left.
    world.hub.script(|_, _| Answer::Right);
    let mended = world.fetch().await.unwrap();
    world.assert_whole(&mended);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_source_that_is_gone_is_given_up_with_the_reason() {
    let world = World::new();
    world.hub.script(|_, _| Answer::Status(503, 0));
    let mut options = world.options(MODEL);
    options.limits.patience = Duration::from_secs(1);
    let error = run(options).await.unwrap_err();
    assert!(!error.is_permanent());
    let words = error.to_string();
    assert!(
        words.contains("gave up") && words.contains("503"),
        "{words}"
    );
    assert!(names(&world.repository().join("snapshots")).is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_fetch_broken_off_at_any_point_goes_on_and_brings_no_byte_twice() {
    let world = World::new();
    let mut fetched = 0;
    let mut breaks = 0;
    // Each run is dropped once a further piece has come.
    let report = loop {
        let progress = Arc::new(Progress::default());
        let mut options = world.options(MODEL);
        options.limits.bytes_per_second = Some(64 << 20);
        let run = warp_fetch::fetch(options, Arc::clone(&progress));
        let piece = 700_000 + breaks * 37_111;
        let enough = async {
            while progress.state().bytes_fetched < piece {
                tokio::time::sleep(Duration::from_millis(2)).await;
            }
        };
        tokio::select! {
            done = run => break done.unwrap(),
            () = enough => breaks += 1,
        }
        fetched += progress.state().bytes_fetched;
        assert!(names(&world.repository().join("snapshots")).is_empty());
    };
    world.assert_whole(&report);
    assert!(breaks >= 10, "{breaks}");
    let total = fetched + report.bytes_fetched;
    // Small files come through memory; a write under way when a run is dropped may not be counted.
    assert!(
        total <= report.bytes * 101 / 100,
        "{total} of {}",
        report.bytes
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_model_without_room_is_not_begun() {
    let world = World::new();
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let server = std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        let mut start = [0; 4];
        std::io::Read::read_exact(&mut stream, &mut start).unwrap();
        let answer = format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n", 1_u64 << 50);
        std::io::Write::write_all(&mut stream, answer.as_bytes()).unwrap();
        String::from_utf8_lossy(&start).into_owned()
    });
    let error = run(world.options(&format!("http://{address}/m/f.gguf")))
        .await
        .unwrap_err();
    assert_eq!(error.reason(), "NoSpace");
    assert_eq!(server.join().unwrap(), "HEAD");
}
