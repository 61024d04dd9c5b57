//! An artifact of a registry as a source: how readers are let in, what is pinned, and trouble in the middle of it.

#[path = "oci/registry.rs"]
mod registry;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use serde_json::json;
use warp_fetch::{Options, Progress, RegistryCredentials, Report};

use crate::{MIB, World, names, noise, run};
use registry::{Answer, Door, PASSWORD, Registry, USER, sha256};

const WEIGHTS: usize = 20 * MIB + 3;

fn options(world: &World, registry: &Registry, reference: &str) -> Options {
    world.options(&registry.source(reference))
}

fn credentials(password: &str) -> RegistryCredentials {
    RegistryCredentials {
        username: USER.to_owned(),
        password: password.to_owned(),
    }
}

/// A registry with one model under the tag `v1`; returns the digest of its manifest too.
fn model(door: Door) -> (Registry, String) {
    let registry = Registry::start(door);
    let weights = json!({"org.cncf.model.filepath": "sub/model.safetensors"});
    let layers = [
        registry.file("config.json", b"{}".to_vec()),
        registry.file("empty", Vec::new()),
        registry.blob(
            "application/vnd.cncf.model.weight.v1.raw",
            noise(3, WEIGHTS),
            &weights,
        ),
    ];
    let digest = registry.manifest("v1", &layers);
    (registry, digest)
}

fn assert_whole(world: &World, report: &Report) {
    let snapshot = world.cache().join(&report.path);
    assert_eq!(report.files, 3);
    assert_eq!(std::fs::read(snapshot.join("config.json")).unwrap(), b"{}");
    assert_eq!(std::fs::read(snapshot.join("empty")).unwrap(), b"");
    let weights = std::fs::read(snapshot.join("sub/model.safetensors")).unwrap();
    assert!(weights == noise(3, WEIGHTS));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_tag_is_pinned_to_its_digest_and_every_layer_is_a_file() {
    let (world, (registry, digest)) = (World::new(), model(Door::Open));
    let report = run(options(&world, &registry, ":v1")).await.unwrap();
    assert_whole(&world, &report);
    assert_eq!(format!("sha256:{}", report.commit), digest);
    assert_eq!(report.revision, "v1");
    assert!(report.name.ends_with("/org-tiny"), "{}", report.name);
    assert!(registry.lines().iter().all(|line| !line.contains("shown")));
    // By its digest it is the same, and nothing comes twice.
    let pinned = run(options(&world, &registry, &format!("@{digest}")));
    let pinned = pinned.await.unwrap();
    assert_eq!(
        (pinned.path, pinned.bytes_fetched),
        (report.path.clone(), 0)
    );
    // The tag moves: a new commit beside the old one.
    let layer = registry.file("config.json", b"{\"new\": 1}".to_vec());
    registry.manifest("v1", &[layer]);
    let moved = run(options(&world, &registry, ":v1")).await.unwrap();
    assert_ne!(moved.commit, report.commit);
    assert_whole(&world, &report);
}

#[tokio::test(flavor = "multi_thread")]
async fn readers_are_let_in_by_password_or_token_and_nobody_else_is_shown_them() {
    for door in [Door::Basic, Door::AnonymousToken, Door::Token] {
        let (world, (registry, _)) = (World::new(), model(door));
        // Tokens run out in the middle, for one request after the other.
        registry.uses_of_a_token(2);
        let mut options = options(&world, &registry, ":v1");
        options.limits.connections = 1;
        if door != Door::AnonymousToken {
            options.registry.login = Some(credentials(PASSWORD));
        }
        let report = run(options).await.unwrap();
        assert_whole(&world, &report);
        assert_eq!(registry.tokens_given() > 1, door != Door::Basic, "{door:?}");
        for line in registry.lines() {
            assert!(
                !(line.contains("/store/") && line.contains("shown")),
                "{line}"
            );
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn wrong_credentials_are_told_without_them_and_not_tried_again() {
    for door in [Door::Basic, Door::Token] {
        let (world, (registry, _)) = (World::new(), model(door));
        for login in [None, Some(credentials("wr0ng"))] {
            let before = registry.lines().len();
            let mut options = options(&world, &registry, ":v1");
            options.registry.login = login;
            let shown = format!("{options:?}");
            let error = run(options).await.unwrap_err();
            assert_eq!(error.reason(), "Unauthorized", "{error}");
            assert!(error.is_permanent());
            let told = format!("{error} {error:?} {shown}");
            assert!(!told.contains("wr0ng"), "{told}");
            assert!(
                registry.lines().len() - before <= 2,
                "{:?}",
                registry.lines()
            );
        }
    }
    let (world, (registry, _)) = (World::new(), model(Door::Open));
    let error = run(options(&world, &registry, ":v9")).await.unwrap_err();
    assert_eq!(error.reason(), "NotFound");
    assert!(
        error.to_string().contains("no such artifact, tag"),
        "{error}"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_manifest_that_is_not_what_its_digest_says_is_not_used() {
    let (world, (registry, digest)) = (World::new(), model(Door::Open));
    registry.damage(&digest);
    let error = run(options(&world, &registry, &format!("@{digest}")))
        .await
        .unwrap_err();
    assert_eq!(error.reason(), "ContentMismatch");
    // Of an index too the digest counts.
    registry.index("all", &[&digest]);
    let error = run(options(&world, &registry, ":all")).await.unwrap_err();
    assert_eq!(error.reason(), "ContentMismatch");
    let (registry, digest) = model(Door::Open);
    let index = registry.index("all", &[&digest]);
    let report = run(options(&world, &registry, ":all")).await.unwrap();
    assert_whole(&world, &report);
    assert_eq!(format!("sha256:{}", report.commit), index);
}

#[tokio::test(flavor = "multi_thread")]
async fn archives_and_paths_that_lead_out_are_refused_before_anything_is_fetched() {
    let (world, registry) = (World::new(), Registry::start(Door::Open));
    let packed =
        json!({"org.opencontainers.image.title": "folder", "io.deis.oras.content.unpack": "true"});
    let kind = "application/vnd.oci.image.layer.v1.tar+gzip";
    registry.manifest("archive", &[registry.blob(kind, noise(1, 9), &packed)]);
    registry.manifest("image", &[registry.blob(kind, noise(2, 9), &json!({}))]);
    for path in ["../out", "/etc/x", "a/../../b", "a\\b", ""] {
        registry.manifest("outside", &[registry.file(path, b"x".to_vec())]);
        let error = run(options(&world, &registry, ":outside"))
            .await
            .unwrap_err();
        assert_eq!(error.reason(), "SourceInvalid", "{path}: {error}");
    }
    for (tag, said) in [
        ("archive", "'folder' is an archive"),
        ("image", "has no file name"),
    ] {
        let error = run(options(&world, &registry, &format!(":{tag}")))
            .await
            .unwrap_err();
        assert!(error.is_permanent());
        assert!(error.to_string().contains(said), "{error}");
    }
    assert_eq!(registry.sent(), 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn two_files_of_equal_content_are_fetched_once() {
    let (world, registry) = (World::new(), Registry::start(Door::Open));
    let content = noise(5, 3 * MIB);
    let layers = ["a.bin", "b.bin", "c.bin"].map(|path| registry.file(path, content.clone()));
    registry.manifest("v1", &layers);
    let report = run(options(&world, &registry, ":v1")).await.unwrap();
    assert_eq!(report.files, 3);
    assert_eq!(registry.sent(), content.len() as u64);
    for path in ["a.bin", "b.bin", "c.bin"] {
        let file = world.cache().join(&report.path).join(path);
        assert!(std::fs::read(file).unwrap() == content, "{path}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn cut_transfers_go_on_and_a_wish_to_wait_is_honoured() {
    let (world, (registry, _)) = (World::new(), model(Door::Token));
    registry.script(|number, length| match number {
        1 | 4 if length > MIB => Answer::Cut(100_000),
        2 => Answer::Status(429),
        5 => Answer::Status(503),
        _ => Answer::Right,
    });
    let mut options = options(&world, &registry, ":v1");
    options.registry.login = Some(credentials(PASSWORD));
    let report = run(options).await.unwrap();
    assert_whole(&world, &report);
    assert_eq!(report.bytes_fetched, report.bytes);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_flipped_byte_means_that_layer_again_and_one_that_stays_is_never_published() {
    let (world, (registry, _)) = (World::new(), model(Door::Open));
    let flipped = AtomicU64::new(0);
    registry.script(move |_, length| {
        if length == WEIGHTS && flipped.fetch_add(1, Ordering::SeqCst) == 0 {
            return Answer::Flip(77);
        }
        Answer::Right
    });
    let good = run(options(&world, &registry, ":v1")).await.unwrap();
    assert_whole(&world, &good);
    assert_eq!(good.bytes_fetched, good.bytes + WEIGHTS as u64);
    let content = noise(8, 2 * MIB);
    registry.manifest("v1", &[registry.file("w.bin", content.clone())]);
    registry.script(|_, _| Answer::Flip(5));
    let error = run(options(&world, &registry, ":v1")).await.unwrap_err();
    assert_eq!(error.reason(), "ContentMismatch");
    assert!(error.to_string().contains(&sha256(&content)), "{error}");
    let snapshots = world.cache().join(&good.path);
    let snapshots = snapshots.parent().unwrap();
    assert_eq!(names(snapshots), [good.commit]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_fetch_broken_off_at_any_point_goes_on_and_brings_no_byte_twice() {
    let (world, (registry, _)) = (World::new(), model(Door::Open));
    let (mut fetched, mut breaks) = (0, 0);
    let report = loop {
        let progress = Arc::new(Progress::default());
        let mut options = options(&world, &registry, ":v1");
        options.limits.bytes_per_second = Some(64 << 20);
        let run = warp_fetch::fetch(options, Arc::clone(&progress));
        let piece = 900_000 + breaks * 41_113;
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
    };
    assert_whole(&world, &report);
    assert!(breaks >= 5, "{breaks}");
    let total = fetched + report.bytes_fetched;
    assert!(
        total <= report.bytes * 101 / 100,
        "{total} of {}",
        report.bytes
    );
}
