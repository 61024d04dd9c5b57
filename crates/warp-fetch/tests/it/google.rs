//! A bucket of Google Cloud Storage as a source: who is let in, what is pinned, and what happens in the middle of it.

#[path = "google/store.rs"]
mod store;

use warp_fetch::{Google, Options, Report, ServiceAccount};

use crate::{MIB, World, noise, run};
use store::{Bucket, Trouble};

fn options(world: &World, bucket: &Bucket, source: &str) -> Options {
    Options {
        google: Google {
            endpoint: Some(bucket.endpoint()),
            account: Some(ServiceAccount::read(&bucket.key()).unwrap()),
        },
        ..world.options(source)
    }
}

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
    let text = std::fs::read(snapshot.join("sub/a b+c%25ü.txt")).unwrap();
    assert_eq!(text, b"text");
    let weights = std::fs::read(snapshot.join("model.safetensors")).unwrap();
    assert!(weights == noise(3, 5 * MIB + 3));
}

#[tokio::test(flavor = "multi_thread")]
async fn what_lies_below_a_prefix_is_fetched_with_a_token_for_a_signed_claim() {
    let (world, bucket) = (World::new(), model());
    // Tokens run out in the middle, for one request after the other.
    bucket.uses_of_a_token(3);
    let mut alone = options(&world, &bucket, "gs://models/llama/8b");
    alone.limits.connections = 1;
    let report = run(alone).await.unwrap();
    assert_whole(&world, &report);
    assert_eq!(report.name, "models/llama-8b");
    assert!(bucket.tokens_given() > 1);
    let single = run(options(&world, &bucket, "gs://models/llama/8b/config.json"));
    let single = single.await.unwrap();
    assert_eq!((single.files, single.bytes), (1, 2));
    let missing = run(options(&world, &bucket, "gs://models/nothing")).await;
    assert_eq!(missing.unwrap_err().reason(), "NotFound");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_bucket_for_everybody_needs_no_account_and_another_is_refused_once() {
    let (world, bucket) = (World::new(), model());
    let mut nobody = options(&world, &bucket, "gs://models/llama/8b");
    nobody.google.account = None;
    let error = run(nobody.clone()).await.unwrap_err();
    assert_eq!(
        (error.reason(), error.is_permanent()),
        ("Unauthorized", true)
    );
    bucket.open_to_everybody();
    assert_whole(&world, &run(nobody).await.unwrap());
    // An account that is not the one the store knows.
    let bucket = model();
    let mut stranger = options(&world, &bucket, "gs://models/llama/8b");
    let key = bucket.key().replace("reader@", "stranger@");
    stranger.google.account = Some(ServiceAccount::read(&key).unwrap());
    let shown = format!("{stranger:?}");
    let error = run(stranger).await.unwrap_err();
    assert!(error.is_permanent(), "{error}");
    assert!(!format!("{error:?} {shown}").contains("PRIVATE"), "{shown}");
    assert!(ServiceAccount::read("{\"client_email\": \"a\", \"private_key\": \"x\"}").is_err());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_cut_transfer_goes_on_and_a_sum_that_is_wrong_is_never_published() {
    let (world, bucket) = (World::new(), model());
    bucket.trouble(Trouble::CutOnce);
    let fetch = || run(options(&world, &bucket, "gs://models/llama/8b"));
    let report = fetch().await.unwrap();
    assert_whole(&world, &report);
    assert_eq!(report.bytes_fetched, report.bytes);
    bucket.trouble(Trouble::WaitOnce);
    assert_eq!(fetch().await.unwrap().commit, report.commit);
    bucket.trouble(Trouble::Flip);
    let error = fetch().await.unwrap_err();
    assert_eq!(error.reason(), "ContentMismatch");
    assert!(error.to_string().contains("crc32c:"), "{error}");
    assert_whole(&world, &report);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_object_that_is_replaced_meanwhile_is_not_mixed() {
    let (world, bucket) = (World::new(), model());
    bucket.trouble(Trouble::ReplaceAfterFirstRange);
    let mut impatient = options(&world, &bucket, "gs://models/llama/8b");
    impatient.limits.patience = std::time::Duration::from_secs(1);
    let error = run(impatient).await.unwrap_err();
    assert!(error.to_string().contains("changed while"), "{error}");
    assert!(!error.is_permanent());
    let report = run(options(&world, &bucket, "gs://models/llama/8b"));
    assert_eq!(report.await.unwrap().files, 3);
}
