//! A cache that makes another model of the fetched one.

use super::*;
use crate::modelcache::objects::optimize;

fn optimized(more: Value) -> ModelCache {
    let mut of = json!({
        "image": "quantizer:1", "args": ["--in", "$(MODEL_PATH)"],
        "env": [{"name": "LEVEL", "value": "8"}, {"name": "MODEL_PATH", "value": "/etc"}],
    });
    for (name, value) in more.as_object().expect("fields") {
        of[name] = value.clone();
    }
    let mut it = cache(json!({
        "source": {"huggingface": {"repository": "org/tiny"}}, "optimize": of,
    }));
    it.status = Some(typed(json!({
        "phase": "Ready", "observedGeneration": 2, "commit": COMMIT, "digest": "sha256:1", "files": 3, "bytes": 99,
        "path": format!("/models/models--org--tiny/snapshots/{COMMIT}"),
        "contentKey": content_key(&it.spec), "volumeUid": "uid-claim", "volume": "m-model",
    })));
    it
}

fn key(cache: &ModelCache) -> String {
    let status = cache.status.as_ref().expect("a status");
    let fetched = ModelCacheStatus {
        optimized: None,
        ..status.clone()
    };
    optimize::key(cache.spec.optimize.as_ref().expect("one"), &fetched)
}

fn with_run(cache: &ModelCache, status: Value) -> Seen {
    let mut seen = with_claim(seen());
    seen.jobs.push(Arc::new(typed(json!({
        "metadata": {
            "name": optimize::job_name(cache, &key(cache)), "uid": "uid-optim", "resourceVersion": "1",
            "ownerReferences": owned("ModelCache", "uid-m"),
        },
        "status": status,
    }))));
    seen
}

fn made() -> String {
    json!({"fetched": {
        "commit": COMMIT, "digest": "sha256:2", "path": "models--optimized--m/snapshots/1", "files": 2, "bytes": 40,
    }})
    .to_string()
}

fn job_of(plan: &Plan) -> Value {
    let made = plan.actions.iter().find_map(|action| match action {
        Action::Create { object, .. } if object["kind"] == "Job" => Some(object.clone()),
        _ => None,
    });
    made.expect("a Job")
}

#[test]
fn the_fetched_model_is_read_only_to_the_container_and_only_warp_publishes() {
    let it = optimized(json!({"resources": {"limits": {"nvidia.com/gpu": "1"}}}));
    let first = plan(&it, &with_claim(seen()), now());
    let job = job_of(&first);
    assert_eq!(
        job["metadata"]["name"],
        optimize::job_name(&it, &key(&it)).as_str()
    );
    assert_eq!(
        job["spec"]["podFailurePolicy"]["rules"][0]["onExitCodes"]["containerName"],
        "publish"
    );
    let pod = &job["spec"]["template"]["spec"];
    let maker = &pod["initContainers"][0];
    assert_eq!(maker["image"], "quantizer:1");
    assert_eq!(maker["volumeMounts"][0]["readOnly"], true);
    assert_eq!(maker["env"][0]["name"], "MODEL_PATH");
    assert_eq!(
        maker["env"][0]["value"],
        format!("/models/models--org--tiny/snapshots/{COMMIT}")
    );
    let env = maker["env"].as_array().expect("variables");
    let named = |name: &str| env.iter().filter(|one| one["name"] == name).count();
    assert_eq!(
        (named("MODEL_PATH"), named("LEVEL"), named("HOME")),
        (1, 1, 1)
    );
    assert_eq!(pod["tolerations"][0]["key"], "nvidia.com/gpu");
    let publisher = &pod["containers"][0];
    assert_eq!(publisher["args"][0], "fetch");
    assert_eq!(publisher["args"][4], "--as=optimized/m");
    assert_eq!(
        publisher["args"][5],
        format!("--unchanged=/models/models--org--tiny/snapshots/{COMMIT}")
    );
    assert_eq!(publisher["volumeMounts"][1]["readOnly"], true);
    let annotations = &job["spec"]["template"]["metadata"]["annotations"];
    assert_eq!(
        annotations["process.gpu.warp.dev/command.publish"],
        r#"["/bin/warp"]"#
    );
    assert_eq!(annotations["process.gpu.warp.dev/command"], Value::Null);
    let told = status(&first);
    assert_eq!(told.phase, ModelPhase::Optimizing);
    assert_eq!(ready(&told), ("False", "Optimizing"));
    assert_eq!(
        told.commit.as_deref(),
        Some(COMMIT),
        "the fetched one stays"
    );
}

#[test]
fn what_was_made_is_told_with_where_it_comes_from_and_served() {
    let mut it = optimized(json!({}));
    let run = with_run(&it, complete());
    let done = plan(
        &it,
        &with_pod(run.clone(), "uid-optim", "Succeeded", Some(&made())),
        now(),
    );
    let told = status(&done);
    assert_eq!(ready(&told), ("True", "Optimized"));
    let model = told.optimized.clone().expect("a model");
    assert_eq!(model.path, "/models/models--optimized--m/snapshots/1");
    assert_eq!(told.served_path(), Some(model.path.as_str()));
    assert_eq!(
        (model.from_commit.as_deref(), model.image.as_str()),
        (Some(COMMIT), "quantizer:1")
    );
    assert_eq!(model.command, ["--in", "$(MODEL_PATH)"]);
    assert_eq!(told.job_name, None);
    // The Job has said everything: it goes, and nothing is run again.
    it.status = Some(told);
    let after = plan(&it, &run, now());
    assert_eq!((creates(&after).len(), deletes(&after)), (0, 1));
}

#[test]
fn a_change_runs_again_and_what_was_made_before_stays_until_then() {
    let mut it = optimized(json!({}));
    let run = with_run(&it, complete());
    let done = plan(
        &it,
        &with_pod(run, "uid-optim", "Succeeded", Some(&made())),
        now(),
    );
    it.status = Some(status(&done));
    it.spec.optimize.as_mut().expect("one").image = "quantizer:2".to_owned();
    let again = plan(&it, &with_claim(seen()), now());
    assert_eq!(creates(&again), ["Job"]);
    let told = status(&again);
    assert_eq!(told.phase, ModelPhase::Optimizing);
    assert!(told.optimized.is_some(), "what was made before stays");
    it.spec.optimize = None;
    let without = status(&plan(&it, &with_claim(seen()), now()));
    assert_eq!(ready(&without), ("True", "Fetched"));
    assert_eq!(without.optimized, None);
}

#[test]
fn a_failure_says_why_keeps_the_good_one_and_is_not_repeated_by_itself() {
    let it = optimized(json!({}));
    let failed = json!({"conditions": [{"type": "Failed", "status": "True", "reason": "BackoffLimitExceeded"}]});
    let mut run = with_run(&it, failed);
    run.fetchers.push(Arc::new(typed(json!({
        "metadata": {"name": "m-optim-x", "ownerReferences": owned("Job", "uid-optim")},
        "status": {"phase": "Failed", "initContainerStatuses": [{
            "name": "optimize", "image": "", "imageID": "", "ready": false, "restartCount": 0,
            "state": {"terminated": {"exitCode": 1, "reason": "Error", "message": "loading\nno such layer\n"}},
        }]},
    }))));
    let plan = plan(&it, &run, now());
    assert!(creates(&plan).is_empty());
    let told = status(&plan);
    assert_eq!(told.phase, ModelPhase::Failed);
    assert_eq!(ready(&told), ("False", "OptimizeFailed"));
    let message = told.message.clone().unwrap_or_default();
    for part in ["exit code 1: no such layer", COMMIT, "delete Job m-optim-"] {
        assert!(message.contains(part), "{message}");
    }
    assert_eq!(told.commit.as_deref(), Some(COMMIT));
}

#[test]
fn a_run_that_changed_the_fetched_model_has_it_fetched_again_and_is_not_repeated() {
    let mut it = optimized(json!({}));
    it.status.as_mut().expect("a status").fetched_at = Some(typed(json!("2026-11-16T11:00:00Z")));
    let failed = json!({"conditions": [{
        "type": "Failed", "status": "True", "reason": "PodFailurePolicy",
        "lastTransitionTime": "2026-11-16T11:30:00Z",
    }]});
    let words = json!({"failed": {
        "reason": "ModelChanged", "message": "org/tiny is not what was published", "permanent": true,
    }});
    let run = with_run(&it, failed);
    let run = with_pod(run, "uid-optim", "Failed", Some(&words.to_string()));
    let again = plan(&it, &run, now());
    assert_eq!(
        (creates(&again), deletes(&again)),
        (vec!["Job".to_owned()], 0)
    );
    assert_eq!(job_of(&again)["metadata"]["name"], job_name(&it).as_str());
    let told = status(&again);
    assert_eq!(told.path, None, "what is there is not served");
    let message = told.message.clone().unwrap_or_default();
    assert!(message.contains("changed the fetched model"), "{message}");
    // It is there again: the run has failed for good, and says why.
    it.status = Some(ModelCacheStatus {
        content_key: Some(content_key(&it.spec)),
        path: Some("/models/again".to_owned()),
        fetched_at: Some(typed(json!("2026-11-16T11:40:00Z"))),
        ..told
    });
    let after = plan(&it, &run, now());
    assert_eq!((creates(&after).len(), deletes(&after)), (0, 0));
    let told = status(&after);
    assert_eq!(told.phase, ModelPhase::Failed);
    assert_eq!(ready(&told), ("False", "ModelChanged"));
    assert_eq!(told.path.as_deref(), Some("/models/again"));
}
