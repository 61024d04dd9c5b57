//! What lies in the cache afterwards.

use std::sync::Arc;

use warp_fetch::{Phase, Progress, Selection};

use crate::{MODEL, World, names, run};

#[tokio::test(flavor = "multi_thread")]
async fn a_model_is_published_in_the_layout_of_the_hubs_own_client() {
    let world = World::new();
    let report = world.fetch().await.unwrap();
    world.assert_whole(&report);
    let commit = world.hub.commit(MODEL);
    assert_eq!(report.commit, commit);
    assert_eq!(report.path, format!("models--org--tiny/snapshots/{commit}"));
    assert_eq!(report.files, 5);
    let reference = std::fs::read_to_string(world.repository().join("refs/main")).unwrap();
    assert_eq!(reference, commit);
    // Pickled weights have safetensors beside them.
    let snapshot = world.cache().join(&report.path);
    assert!(!snapshot.join("pytorch_model.bin").exists());
    let link = std::fs::read_link(snapshot.join("sub/a b.txt")).unwrap();
    assert!(link.starts_with("../../../blobs"), "{}", link.display());
    assert!(names(&world.repository().join(".warp/parts")).is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_there_is_not_fetched_again() {
    let world = World::new();
    let first = world.fetch().await.unwrap();
    world.hub.forget();
    let second = world.fetch().await.unwrap();
    assert_eq!((second.commit, second.digest), (first.commit, first.digest));
    assert_eq!((second.bytes, second.bytes_fetched), (first.bytes, 0));
    assert_eq!(world.hub.sent(), 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_blob_of_the_right_size_and_wrong_content_is_replaced() {
    let world = World::new();
    let report = world.fetch().await.unwrap();
    let file = world
        .cache()
        .join(&report.path)
        .join("model-00001-of-00002.safetensors");
    let blob = file.canonicalize().unwrap();
    let mut bytes = std::fs::read(&blob).unwrap();
    bytes[1000] ^= 1;
    std::fs::write(&blob, &bytes).unwrap();
    let again = world.fetch().await.unwrap();
    assert_eq!(again.bytes_fetched, bytes.len() as u64);
    world.assert_whole(&again);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_new_commit_lies_beside_the_old_and_shares_what_is_equal() {
    let world = World::new();
    let old = world.fetch().await.unwrap();
    std::fs::write(world.model().join("config.json"), b"{}").unwrap();
    world.hub.read(&world.folder.path().join("hub"));
    let new = world.fetch().await.unwrap();
    assert_ne!(old.commit, new.commit);
    assert_eq!(new.bytes_fetched, 2);
    world.assert_whole(&new);
    let old_config = world.cache().join(&old.path).join("config.json");
    assert!(
        std::fs::read_to_string(old_config)
            .unwrap()
            .contains("llama")
    );
    assert_eq!(names(&world.repository().join("snapshots")).len(), 2);
}

#[tokio::test(flavor = "multi_thread")]
async fn another_selection_of_a_commit_adds_to_its_snapshot() {
    let world = World::new();
    let mut options = world.options(MODEL);
    options.selection.allow = vec!["*.json".to_owned()];
    let first = run(options).await.unwrap();
    assert_eq!(first.files, 1);
    let mut options = world.options(MODEL);
    options.selection = Selection {
        allow: vec!["sub/".to_owned()],
        ..Selection::default()
    };
    let second = run(options).await.unwrap();
    assert_eq!(first.path, second.path);
    assert_ne!(first.digest, second.digest);
    let snapshot = world.cache().join(&second.path);
    assert!(snapshot.join("config.json").is_file());
    assert!(snapshot.join("sub/a b.txt").is_file());
}

#[tokio::test(flavor = "multi_thread")]
async fn two_fetches_of_one_model_bring_it_once() {
    let world = World::new();
    let (one, other) = tokio::join!(world.fetch(), world.fetch());
    let (one, other) = (one.unwrap(), other.unwrap());
    world.assert_whole(&one);
    let total = one.bytes_fetched + other.bytes_fetched;
    assert_eq!(total, one.bytes, "{one:?} {other:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn progress_ends_where_the_report_is() {
    let world = World::new();
    let progress = Arc::new(Progress::default());
    let report = warp_fetch::fetch(world.options(MODEL), Arc::clone(&progress))
        .await
        .unwrap();
    let state = progress.state();
    assert_eq!(state.phase, Phase::Done);
    assert_eq!(
        (state.bytes, state.bytes_total),
        (report.bytes, report.bytes)
    );
    assert_eq!((state.files, state.files_total), (5, 5));
    assert_eq!(state.commit, Some(report.commit));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_published_model_that_others_changed_is_told_with_its_files() {
    let world = World::new();
    let report = world.fetch().await.unwrap();
    let snapshot = world.cache().join(&report.path);
    warp_fetch::check(&snapshot).unwrap();
    // Written again as it was: that is no change.
    let weights = snapshot.join("model-00001-of-00002.safetensors");
    let same = std::fs::read(&weights).unwrap();
    std::fs::write(&weights, &same).unwrap();
    warp_fetch::check(&snapshot).unwrap();
    let mut other = same.clone();
    other[7] ^= 1;
    std::fs::write(&weights, &other).unwrap();
    std::fs::write(snapshot.join("sub/new.bin"), b"new").unwrap();
    std::fs::remove_file(snapshot.join("config.json")).unwrap();
    let error = warp_fetch::check(&snapshot).unwrap_err();
    assert!(error.is_permanent());
    assert_eq!(error.reason(), "ModelChanged");
    let words = error.to_string();
    let files = "config.json, model-00001-of-00002.safetensors, sub/new.bin changed";
    assert!(words.contains(files), "{words}");
    // The next fetch mends it.
    let again = world.fetch().await.unwrap();
    world.assert_whole(&again);
    warp_fetch::check(&snapshot).unwrap();
    let nothing = warp_fetch::check(&world.cache().join("models--a--b/snapshots/1"));
    assert_eq!(nothing.unwrap_err().reason(), "NotComplete");
}
