//! Sources besides the hub, and who is shown the token.

use crate::serve::{Reply, Serving};
use crate::{MIB, MODEL, World, noise, run};

#[tokio::test(flavor = "multi_thread")]
async fn the_token_is_shown_to_the_hub_and_to_nobody_it_redirects_to() {
    let world = World::with_token(Some("hf_secret"));
    let mut options = world.options(MODEL);
    options.token = Some("hf_secret".to_owned());
    let report = run(options).await.unwrap();
    world.assert_whole(&report);
    for request in world.hub.requests() {
        assert_eq!(
            request.ends_with("+token"),
            !request.contains("/cdn/"),
            "{request}"
        );
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_model_that_needs_a_token_says_so_and_is_not_asked_for_again() {
    let world = World::with_token(Some("hf_secret"));
    let error = world.fetch().await.unwrap_err();
    assert!(error.is_permanent());
    assert_eq!(error.reason(), "Unauthorized");
    assert_eq!(world.hub.requests().len(), 1);
    let mut options = world.options(MODEL);
    options.token = Some("hf_wrong".to_owned());
    let error = run(options).await.unwrap_err().to_string();
    assert!(
        error.contains("licence") && !error.contains("hf_wrong"),
        "{error}"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_revision_that_does_not_exist_is_named() {
    let world = World::new();
    let error = run(world.options("hf://org/tiny@v9")).await.unwrap_err();
    assert_eq!(error.reason(), "NotFound");
    assert!(
        error.to_string().contains("/org/tiny/revision/v9"),
        "{error}"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_file_is_fetched_by_its_address_and_checked_if_its_digest_is_known() {
    let world = World::new();
    let right = std::fs::read(world.model().join("model-00001-of-00002.safetensors")).unwrap();
    let address = format!(
        "{}/org/tiny/resolve/main/model-00001-of-00002.safetensors",
        world.hub.endpoint()
    );
    let report = run(world.options(&address)).await.unwrap();
    let file = world
        .cache()
        .join(&report.path)
        .join("model-00001-of-00002.safetensors");
    assert!(std::fs::read(&file).unwrap() == right);
    let sha = file.canonicalize().unwrap();
    let sha = sha.file_name().unwrap().to_string_lossy().into_owned();
    let same = run(world.options(&format!("{address}#sha256={sha}")))
        .await
        .unwrap();
    assert_eq!((same.commit, same.bytes_fetched), (report.commit, 0));
    let wrong = format!("{address}#sha256={}", "0".repeat(64));
    let error = run(world.options(&wrong)).await.unwrap_err();
    assert_eq!(error.reason(), "ContentMismatch");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_list_of_files_is_fetched_whole_or_not_at_all() {
    let world = World::new();
    let base = format!("{}/org/tiny/resolve/main", world.hub.endpoint());
    let listed = |files: &[&str]| {
        let mut options = world.options(&base);
        let files: Vec<String> = files.iter().map(|file| (*file).to_owned()).collect();
        options.source = options.source.with_files(&files).unwrap();
        run(options)
    };
    let shard = "model-00001-of-00002.safetensors";
    let report = listed(&["config.json", "sub/a b.txt", shard])
        .await
        .unwrap();
    assert_eq!(report.files, 3);
    let snapshot = world.cache().join(&report.path);
    for path in ["config.json", "sub/a b.txt", shard] {
        let right = std::fs::read(world.model().join(path)).unwrap();
        assert!(
            std::fs::read(snapshot.join(path)).unwrap() == right,
            "{path}"
        );
    }
    let wrong = format!("config.json#sha256={}", "0".repeat(64));
    let error = listed(&["sub/a b.txt", &wrong]).await.unwrap_err();
    assert_eq!(error.reason(), "ContentMismatch");
    let error = listed(&["config.json", "absent"]).await.unwrap_err();
    assert_eq!(error.reason(), "NotFound");
    let error = listed(&["../secret"]).await.unwrap_err();
    assert_eq!(error.reason(), "SourceInvalid");
    let snapshots = snapshot.parent().unwrap();
    assert_eq!(crate::names(snapshots), [report.commit]);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_addresss_token_is_shown_to_its_place_only() {
    let world = World::with_token(Some("t0ken"));
    let address = format!(
        "{}/org/tiny/resolve/main/model-00001-of-00002.safetensors",
        world.hub.endpoint()
    );
    let error = run(world.options(&address)).await.unwrap_err();
    assert_eq!(error.reason(), "Unauthorized");
    world.hub.forget();
    let mut options = world.options(&address);
    options.address_token = Some("t0ken".to_owned());
    run(options).await.unwrap();
    for request in world.hub.requests() {
        assert_eq!(
            request.ends_with("+token"),
            !request.contains("/cdn/"),
            "{request}"
        );
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_folder_is_copied_and_named_by_its_content() {
    let world = World::new();
    let folder = world.folder.path().join("My Model");
    std::fs::create_dir_all(folder.join("sub")).unwrap();
    std::fs::create_dir_all(folder.join(".git")).unwrap();
    std::fs::write(folder.join(".git/x"), b"x").unwrap();
    std::fs::write(folder.join("config.json"), b"{}").unwrap();
    std::fs::write(folder.join("sub/w.safetensors"), noise(7, 3 * MIB)).unwrap();
    let source = folder.display().to_string();
    let first = run(world.options(&source)).await.unwrap();
    assert_eq!((first.files, first.name.as_str()), (2, "local/My-Model"));
    let copy = world.cache().join(&first.path).join("sub/w.safetensors");
    assert!(std::fs::read(copy).unwrap() == noise(7, 3 * MIB));
    assert_eq!(
        run(world.options(&source)).await.unwrap().commit,
        first.commit
    );
    std::fs::write(folder.join("config.json"), b"{ }").unwrap();
    assert_ne!(
        run(world.options(&source)).await.unwrap().commit,
        first.commit
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_folder_that_is_not_there_is_not_asked_for_again() {
    let world = World::new();
    let folder = world.folder.path();
    std::fs::write(folder.join("file"), b"x").unwrap();
    std::fs::create_dir(folder.join("broken")).unwrap();
    std::os::unix::fs::symlink("nowhere", folder.join("broken/model.bin")).unwrap();
    for (name, reason) in [
        ("nosuch", "NotFound"),
        ("file", "InvalidSource"),
        ("broken", "NotFound"),
    ] {
        let source = folder.join(name).display().to_string();
        let error = run(world.options(&source)).await.unwrap_err();
        assert!(error.is_permanent(), "{error}");
        assert_eq!(error.reason(), reason, "{error}");
        assert!(error.to_string().contains(&source), "{error}");
    }
}

/// A server of web pages: a folder is listed, the rest wants a login.
fn pages() -> Serving {
    Serving::start(|request| match request.path.as_str() {
        "/models" => Reply::new(301, "").with("Location", "/models/"),
        "/models/" => Reply::new(200, "<html>listing</html>"),
        "/models/page.html" => Reply::new(200, "<html></html>").with("Content-Type", "text/html"),
        _ => Reply::new(200, "<html>log in</html>").with("Content-Type", "text/html; charset=x"),
    })
}

#[tokio::test(flavor = "multi_thread")]
async fn a_listing_of_a_folder_or_a_page_is_published_as_no_model() {
    let world = World::new();
    let serving = pages();
    let address = |path: &str| format!("http://{}{path}", serving.address());
    for path in ["/", "/models/", "/models", "/models/w.gguf"] {
        let error = run(world.options(&address(path))).await.unwrap_err();
        assert!(error.is_permanent(), "{error}");
        assert_eq!(error.reason(), "InvalidSource", "{error}");
        assert!(error.to_string().contains("--file"), "{error}");
    }
    let mut options = world.options(&address("/models"));
    let files = ["w.gguf".to_owned()];
    options.source = options.source.with_files(&files).unwrap();
    assert_eq!(run(options).await.unwrap_err().reason(), "InvalidSource");
    assert!(crate::names(&world.cache()).is_empty());
    let asked_for = run(world.options(&address("/models/page.html"))).await;
    assert_eq!(asked_for.unwrap().files, 1);
}
