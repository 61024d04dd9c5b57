//! A bucket as a source: what is signed, what is listed, and what happens in the middle of it.

#[path = "s3/store.rs"]
mod store;

use warp_fetch::{Credentials, Options, Report, Store};

use crate::{MIB, World, noise, run};
use store::{Bucket, REGION, SECRET, Trouble};

fn credentials(secret: &str, session_token: Option<&str>) -> Credentials {
    Credentials {
        key_id: store::KEY_ID.to_owned(),
        secret: secret.to_owned(),
        session_token: session_token.map(str::to_owned),
    }
}

fn options(world: &World, bucket: &Bucket, source: &str) -> Options {
    Options {
        store: Store {
            endpoint: Some(bucket.endpoint()),
            region: REGION.to_owned(),
            credentials: Some(credentials(SECRET, None)),
        },
        ..world.options(source)
    }
}

/// A model below `llama/8b`, with names that must be escaped, and something beside it.
fn model() -> Bucket {
    let bucket = Bucket::start();
    bucket.put("llama/8b/", Vec::new());
    bucket.put("llama/8b/config.json", b"{}".to_vec());
    bucket.put("llama/8b/sub/a b+c%25ü.txt", b"text".to_vec());
    bucket.put("llama/8b/model.safetensors", noise(3, 5 * MIB + 3));
    bucket.put("llama/8b-other/config.json", b"{\"other\": 1}".to_vec());
    bucket
}

fn assert_whole(world: &World, report: &Report) {
    let snapshot = world.cache().join(&report.path);
    assert_eq!(report.files, 3);
    assert_eq!(std::fs::read(snapshot.join("config.json")).unwrap(), b"{}");
    assert_eq!(
        std::fs::read(snapshot.join("sub/a b+c%25ü.txt")).unwrap(),
        b"text"
    );
    let weights = std::fs::read(snapshot.join("model.safetensors")).unwrap();
    assert!(weights == noise(3, 5 * MIB + 3));
}

#[tokio::test(flavor = "multi_thread")]
async fn what_lies_below_a_prefix_is_fetched_with_signed_requests() {
    let (world, bucket) = (World::new(), model());
    let report = run(options(&world, &bucket, "s3://models/llama/8b"))
        .await
        .unwrap();
    assert_whole(&world, &report);
    assert_eq!(report.name, "models/llama-8b");
    assert!(bucket.pages() > 1, "the list has several pages");
    assert_eq!(bucket.refused(), 0);
    // One object by its name.
    let single = run(options(&world, &bucket, "s3://models/llama/8b/config.json"))
        .await
        .unwrap();
    assert_eq!((single.files, single.bytes), (1, 2));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_temporary_session_is_signed_too() {
    let (world, bucket) = (World::new(), model());
    bucket.demand_session("s3ss10n");
    let mut options = options(&world, &bucket, "s3://models/llama/8b");
    options.store.credentials = Some(credentials(SECRET, Some("s3ss10n")));
    assert_whole(&world, &run(options).await.unwrap());
    assert_eq!(bucket.refused(), 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn wrong_credentials_are_told_without_them_and_not_tried_again() {
    let (world, bucket) = (World::new(), model());
    for wrong in [Some(credentials("wr0ng-s3cret", None)), None] {
        let before = bucket.refused();
        let mut options = options(&world, &bucket, "s3://models/llama/8b");
        options.store.credentials = wrong;
        let shown = format!("{options:?}");
        let error = run(options).await.unwrap_err();
        assert_eq!(error.reason(), "Unauthorized");
        assert!(error.is_permanent());
        assert_eq!(bucket.refused(), before + 1);
        let told = format!("{error} {error:?} {shown}");
        assert!(!told.contains("wr0ng"), "{told}");
    }
    let missing = run(options(&world, &bucket, "s3://models/nothing")).await;
    assert_eq!(missing.unwrap_err().reason(), "NotFound");
    let mut elsewhere = options(&world, &bucket, "s3://models/llama/8b");
    elsewhere.store.region = "eu-north-1".to_owned();
    let error = run(elsewhere).await.unwrap_err();
    assert!(error.to_string().contains("check the region"), "{error}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_cut_transfer_goes_on_and_a_digest_the_store_keeps_is_compared() {
    let (world, bucket) = (World::new(), model());
    bucket.keep_checksums();
    bucket.trouble(Trouble::CutOnce);
    let fetch = || run(options(&world, &bucket, "s3://models/llama/8b"));
    let report = fetch().await.unwrap();
    assert_whole(&world, &report);
    // Known by their digests, they are not fetched a second time.
    let again = fetch().await.unwrap();
    assert_eq!(
        (again.bytes_fetched, again.commit),
        (0, report.commit.clone())
    );
    bucket.put("llama/8b/model.safetensors", noise(4, 5 * MIB + 3));
    bucket.trouble(Trouble::Flip);
    let error = fetch().await.unwrap_err();
    assert_eq!(error.reason(), "ContentMismatch");
    // What was published stays.
    assert_whole(&world, &report);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_object_that_changes_meanwhile_is_not_mixed() {
    let (world, bucket) = (World::new(), model());
    bucket.trouble(Trouble::ChangeAfterFirstRange);
    let mut options = options(&world, &bucket, "s3://models/llama/8b");
    options.limits.patience = std::time::Duration::from_secs(1);
    let error = run(options).await.unwrap_err();
    assert!(error.to_string().contains("changed while"), "{error}");
}
