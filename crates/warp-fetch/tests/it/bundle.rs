//! A model carried as one file.

use warp_fetch::{Hub, bundle};

use crate::{World, names};

fn model() -> Hub {
    Hub::parse("org/tiny").unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_model_carried_to_another_cache_is_the_same_there() {
    let world = World::new();
    let fetched = world.fetch().await.unwrap();
    let mut file = Vec::new();
    bundle::export(&world.cache(), &model(), &mut file).unwrap();
    let there = world.folder.path().join("there");
    let report = bundle::import(&mut &*file, &there).unwrap();
    assert_eq!(
        (&report.commit, &report.digest),
        (&fetched.commit, &fetched.digest)
    );
    for path in [
        "config.json",
        "sub/a b.txt",
        "model-00002-of-00002.safetensors",
    ] {
        let right = std::fs::read(world.model().join(path)).unwrap();
        assert!(
            std::fs::read(there.join(&report.path).join(path)).unwrap() == right,
            "{path}"
        );
    }
    // A second time nothing is copied.
    let again = bundle::import(&mut &*file, &there).unwrap();
    assert_eq!((again.bytes_fetched, again.digest), (0, report.digest));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_bundle_that_is_cut_or_damaged_publishes_nothing() {
    let world = World::new();
    world.fetch().await.unwrap();
    let mut file = Vec::new();
    bundle::export(&world.cache(), &model(), &mut file).unwrap();
    let there = world.folder.path().join("there");
    let middle = file.len() / 2;
    for length in [0, 100, 600, 5000, middle, file.len() - 1024] {
        assert!(
            bundle::import(&mut &file[..length], &there).is_err(),
            "{length}"
        );
        assert!(names(&there.join("models--org--tiny/snapshots")).is_empty());
    }
    for place in [0, 520, middle] {
        let mut damaged = file.clone();
        damaged[place] ^= 1;
        assert!(bundle::import(&mut &*damaged, &there).is_err(), "{place}");
        assert!(names(&there.join("models--org--tiny/snapshots")).is_empty());
    }
    assert!(bundle::import(&mut &*file, &there).is_ok());
}

#[tokio::test(flavor = "multi_thread")]
async fn only_a_complete_model_is_exported_and_damage_is_found() {
    let world = World::new();
    let mut out = Vec::new();
    let error = bundle::export(&world.cache(), &model(), &mut out).unwrap_err();
    assert_eq!(error.reason(), "NotComplete");
    assert!(!world.cache().join("models--org--tiny").exists());
    let report = world.fetch().await.unwrap();
    let blob = world
        .cache()
        .join(&report.path)
        .join("config.json")
        .canonicalize()
        .unwrap();
    std::fs::write(&blob, b"{\"model_type\": \"lllll\"}\n").unwrap();
    let error = bundle::export(&world.cache(), &model(), &mut out).unwrap_err();
    assert_eq!(error.reason(), "ContentMismatch");
}
