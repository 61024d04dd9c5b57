//! A container of Azure Blob Storage as a source: who is let in, what is compared, and what happens in the middle of it.

#[path = "azure/store.rs"]
mod store;

use warp_fetch::{Azure, AzureAccess, Options, Report};

use crate::{MIB, World, noise, run};
use store::{Container, KEY, SAS, Trouble};

/// MD5 of `noise(3, 5 MiB + 3)` and of `{}`, as `md5sum` says.
const WEIGHTS_MD5: &str = "pzD67r6RJzcBxuUwGvavHQ==";
const CONFIG_MD5: &str = "mZFLkyvTelC5g8XnyQrpOw==";

fn options(world: &World, container: &Container, source: &str) -> Options {
    Options {
        azure: Azure {
            endpoint: Some(container.endpoint()),
            access: Some(AzureAccess::key(KEY).unwrap()),
        },
        ..world.options(source)
    }
}

fn model() -> Container {
    let container = Container::start();
    container.put("llama/8b/", Vec::new(), None);
    container.put("llama/8b/config.json", b"{}".to_vec(), Some(CONFIG_MD5));
    container.put("llama/8b/sub/a b+c%25ü&.txt", b"text".to_vec(), None);
    let weights = noise(3, 5 * MIB + 3);
    container.put("llama/8b/model.safetensors", weights, Some(WEIGHTS_MD5));
    container.put(
        "llama/8b-other/config.json",
        b"{\"other\": 1}".to_vec(),
        None,
    );
    container
}

fn assert_whole(world: &World, report: &Report) {
    let snapshot = world.cache().join(&report.path);
    assert_eq!(report.files, 3);
    assert_eq!(std::fs::read(snapshot.join("config.json")).unwrap(), b"{}");
    let text = std::fs::read(snapshot.join("sub/a b+c%25ü&.txt")).unwrap();
    assert_eq!(text, b"text");
    let weights = std::fs::read(snapshot.join("model.safetensors")).unwrap();
    assert!(weights == noise(3, 5 * MIB + 3));
}

#[tokio::test(flavor = "multi_thread")]
async fn what_lies_below_a_prefix_is_fetched_with_the_accounts_key_or_a_shared_signature() {
    let (world, container) = (World::new(), model());
    let source = "az://acc0unt/models/llama/8b";
    let report = run(options(&world, &container, source)).await.unwrap();
    assert_whole(&world, &report);
    assert_eq!(report.name, "acc0unt/models-llama-8b");
    assert_eq!(container.refused(), 0);
    let mut shared = options(&world, &container, source);
    shared.azure.access = Some(AzureAccess::sas(&format!("?{SAS}")).unwrap());
    assert_eq!(run(shared).await.unwrap().commit, report.commit);
    assert_eq!(container.refused(), 0);
    let single = run(options(
        &world,
        &container,
        &format!("{source}/config.json"),
    ));
    let single = single.await.unwrap();
    assert_eq!((single.files, single.bytes), (1, 2));
    let missing = run(options(&world, &container, "az://acc0unt/models/nothing")).await;
    assert_eq!(missing.unwrap_err().reason(), "NotFound");
}

#[tokio::test(flavor = "multi_thread")]
async fn wrong_access_is_told_without_it_and_not_tried_again() {
    let (world, container) = (World::new(), model());
    let source = "az://acc0unt/models/llama/8b";
    for access in [
        None,
        AzureAccess::key("d3Iwbmc=").ok(),
        AzureAccess::sas("sv=2021-08-06&sig=wr0ng").ok(),
    ] {
        let before = container.refused();
        let mut options = options(&world, &container, source);
        options.azure.access = access;
        let shown = format!("{options:?}");
        let error = run(options).await.unwrap_err();
        assert_eq!(
            (error.reason(), error.is_permanent()),
            ("Unauthorized", true),
            "{error}"
        );
        assert_eq!(container.refused(), before + 1);
        let told = format!("{error} {error:?} {shown}");
        assert!(
            !told.contains("wr0ng") && !told.contains("d3Iwbmc"),
            "{told}"
        );
    }
    container.open_to_everybody();
    let mut anybody = options(&world, &container, source);
    anybody.azure.access = None;
    assert_whole(&world, &run(anybody).await.unwrap());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_cut_transfer_goes_on_and_a_sum_that_is_wrong_is_never_published() {
    let (world, container) = (World::new(), model());
    let fetch = || run(options(&world, &container, "az://acc0unt/models/llama/8b"));
    container.trouble(Trouble::CutOnce);
    let report = fetch().await.unwrap();
    assert_whole(&world, &report);
    assert_eq!(report.bytes_fetched, report.bytes);
    container.trouble(Trouble::BusyOnce);
    assert_eq!(fetch().await.unwrap().commit, report.commit);
    container.trouble(Trouble::Flip);
    let error = fetch().await.unwrap_err();
    assert_eq!(error.reason(), "ContentMismatch");
    assert!(error.to_string().contains("md5:"), "{error}");
    container.trouble(Trouble::ChangeAfterFirstRange);
    let mut impatient = options(&world, &container, "az://acc0unt/models/llama/8b");
    impatient.limits.patience = std::time::Duration::from_secs(1);
    let error = run(impatient).await.unwrap_err();
    assert!(error.to_string().contains("changed while"), "{error}");
    assert_whole(&world, &report);
}
