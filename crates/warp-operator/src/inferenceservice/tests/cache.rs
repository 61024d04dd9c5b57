//! A service that names a ModelCache: what it waits for, what it mounts, what it keeps.

use super::*;

const FIRST: &str = "/models/models--org--tiny/snapshots/1";
const SECOND: &str = "/models/models--org--tiny/snapshots/2";

fn cached(more: Value) -> InferenceService {
    let mut spec = json!({ "model": { "cache": "llama" }, "gpuCount": 0 });
    for (name, value) in more.as_object().expect("fields") {
        spec[name] = value.clone();
    }
    service(spec)
}

fn with_cache(status: Value) -> Seen {
    let mut status = status;
    status["observedGeneration"] = json!(3);
    let cache = serde_json::from_value(json!({
        "apiVersion": "gpu.warp.dev/v1alpha1", "kind": "ModelCache",
        "metadata": { "name": "llama", "namespace": "ns", "generation": 3 },
        "spec": { "source": { "huggingface": { "repository": "org/tiny" } } },
        "status": status,
    }));
    Seen {
        cache: Some(Arc::new(cache.expect("a cache"))),
        ..Seen::default()
    }
}

fn ready(path: &str) -> Value {
    json!({ "phase": "Ready", "volume": "llama-model", "path": path })
}

fn told(plan: &Plan) -> (ServicePhase, String, String) {
    let status = written(plan);
    let ready = &status.conditions[0];
    let phase = status.phase.expect("a phase");
    (phase, ready.reason.clone(), ready.message.clone())
}

#[test]
fn it_waits_for_its_cache_and_says_how_far_that_is() {
    let it = cached(json!({}));
    let fetching = json!({
        "phase": "Fetching", "deadline": "2026-11-17T12:00:00Z", "message": "fetching hf://org/tiny@main",
        "progress": {
            "files": 1, "filesTotal": 4, "bytes": 50, "bytesTotal": 200, "percent": "25%",
            "bytesPerSecond": 1, "secondsLeft": 150,
        },
    });
    let made = plan(&it, &with_cache(fetching), now());
    assert!(applied(&made, "Deployment").is_none(), "nothing is started");
    let (phase, reason, message) = told(&made);
    assert_eq!(
        (phase, reason.as_str()),
        (ServicePhase::Pending, "WaitingForModel")
    );
    assert_eq!(
        message,
        "waits for ModelCache llama: Fetching, 25% of 200 bytes, about 2 min left; \
         it must be complete by 2026-11-17T12:00:00Z"
    );
    assert_eq!(
        written(&made).conditions[1].status,
        "True",
        "the spec is good"
    );
    let pending = with_cache(json!({ "phase": "Pending", "message": "its volume is being made" }));
    let (_, reason, message) = told(&plan(&it, &pending, now()));
    assert_eq!(reason, "WaitingForModel");
    assert!(
        message.contains("Pending (its volume is being made)"),
        "{message}"
    );
}

#[test]
fn a_cache_that_is_missing_failed_or_going_is_named() {
    let it = cached(json!({}));
    let missing = told(&plan(&it, &Seen::default(), now()));
    assert_eq!(missing.1, "NoSuchModelCache");
    assert_eq!(
        missing.2,
        "there is no ModelCache llama in namespace ns: make one, or correct spec.model.cache"
    );
    let failed = with_cache(json!({
        "phase": "Failed", "message": "it needs a token. delete Job x",
        "conditions": [{
            "type": "Ready", "status": "False", "reason": "Unauthorized", "message": "",
            "lastTransitionTime": "2026-11-16T11:00:00Z",
        }],
    }));
    let failed = told(&plan(&it, &failed, now()));
    assert_eq!(failed.1, "ModelCacheFailed");
    assert_eq!(
        failed.2,
        "ModelCache llama failed (Unauthorized): it needs a token. delete Job x"
    );
    let mut going = with_cache(ready(FIRST));
    let mut cache = going.cache.as_deref().cloned().expect("a cache");
    cache.metadata.deletion_timestamp =
        Some(k8s_openapi::apimachinery::pkg::apis::meta::v1::Time(now()));
    going.cache = Some(Arc::new(cache));
    let made = plan(&it, &going, now());
    assert!(applied(&made, "Deployment").is_none());
    assert!(
        told(&made).2.contains("is being deleted"),
        "{:?}",
        told(&made)
    );
    // What is wrong with the spec itself comes first.
    let wrong = cached(json!({ "engine": { "args": { "no-such": "1" } } }));
    assert_eq!(
        told(&plan(&wrong, &Seen::default(), now())).0,
        ServicePhase::Refused
    );
}

#[test]
fn the_published_model_is_mounted_read_only_and_served_offline() {
    let it = cached(json!({}));
    let made = plan(&it, &with_cache(ready(FIRST)), now());
    let said = words(&made);
    assert!(
        said.starts_with(&format!("{FIRST} --served-model-name llama --port 8000")),
        "{said}"
    );
    let container = container(&made);
    let offline = json!({ "name": "HF_HUB_OFFLINE", "value": "1" });
    let env = container["env"].as_array().expect("an environment");
    assert!(env.contains(&offline), "{env:?}");
    let mount = json!({ "name": "models", "mountPath": "/models", "readOnly": true });
    assert_eq!(container["volumeMounts"], json!([mount]));
    let pod = &applied(&made, "Deployment").expect("one")["spec"]["template"]["spec"];
    let claim = json!({ "claimName": "llama-model", "readOnly": true });
    assert_eq!(pod["volumes"][0]["persistentVolumeClaim"], claim);
    let custom = cached(json!({ "engine": {
        "type": "custom", "image": "i", "advanced": ["--model=$(MODEL_PATH)"],
    } }));
    let made = plan(&custom, &with_cache(ready(FIRST)), now());
    let env = super::container(&made)["env"].clone();
    let path = json!({ "name": "MODEL_PATH", "value": FIRST });
    let env = env.as_array().expect("an environment");
    assert!(env.contains(&path) && env.contains(&offline), "{env:?}");
}

/// The Deployment as a plan made it.
fn made_by(plan: &Plan) -> Arc<Deployment> {
    let deployment = applied(plan, "Deployment").expect("a Deployment");
    Arc::new(serde_json::from_value(deployment).expect("a Deployment"))
}

#[test]
fn a_served_model_stays_while_another_is_fetched_and_then_follows_it() {
    let it = cached(json!({}));
    let first = plan(&it, &with_cache(ready(FIRST)), now());
    let deployment = made_by(&first);
    let while_it = |mut status: Value, path: &str| {
        status["volume"] = json!("llama-model");
        status["path"] = json!(path);
        let seen = Seen {
            deployment: Some(Arc::clone(&deployment)),
            ..with_cache(status)
        };
        plan(&it, &seen, now())
    };
    for phase in ["Fetching", "Failed", "Pending"] {
        let made = while_it(json!({ "phase": phase }), FIRST);
        assert!(words(&made).starts_with(FIRST), "{phase}");
    }
    let next = while_it(json!({ "phase": "Ready" }), SECOND);
    assert!(words(&next).starts_with(SECOND));
    // A volume that was lost has no complete model: nothing new is started from it.
    let lost = Seen {
        deployment: Some(deployment),
        ..with_cache(json!({ "phase": "Pending", "volume": "llama-model" }))
    };
    let lost = plan(&it, &lost, now());
    assert!(applied(&lost, "Deployment").is_none(), "what runs is left");
    assert_eq!(told(&lost).1, "WaitingForModel");
}

#[test]
fn a_fetch_that_failed_leaves_the_complete_model_to_be_served_and_says_so() {
    let it = cached(json!({}));
    let mut failed = ready(FIRST);
    failed["phase"] = json!("Failed");
    failed["commit"] = json!("c0ffee");
    failed["message"] = json!("there is no such revision. delete Job x");
    failed["conditions"] = json!([{
        "type": "Ready", "status": "False", "reason": "NotFound", "message": "",
        "lastTransitionTime": "2026-11-16T11:00:00Z",
    }]);
    let made = plan(&it, &with_cache(failed.clone()), now());
    assert!(words(&made).starts_with(FIRST), "a copy that is new starts");
    let message = told(&made).2;
    assert!(
        message.contains("the cache still holds (c0ffee) is served: ModelCache llama failed (NotFound): there is no such revision"),
        "{message}"
    );
    // What it says of an older spec says nothing of this one.
    let mut seen = with_cache(failed.clone());
    let mut cache = seen.cache.as_deref().cloned().expect("a cache");
    cache.metadata.generation = Some(4);
    seen.cache = Some(Arc::new(cache));
    assert_eq!(told(&plan(&it, &seen, now())).1, "WaitingForModel");
    // Mended: the other model follows, and nothing more is said.
    let mended = plan(&it, &with_cache(ready(SECOND)), now());
    assert!(words(&mended).starts_with(SECOND));
    assert!(!told(&mended).2.contains("still holds"));
}
