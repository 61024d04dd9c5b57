//! What a cache asks for and says, state by state.

// `json!` at the call reads best by value.
#![allow(clippy::needless_pass_by_value)]

use std::sync::Arc;

use jiff::Timestamp;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use warp_api::modelcache::ModelPhase;
use warp_api::{ModelCache, ModelCacheStatus};
use warp_runtime::plan::{Action, Plan};
use warp_runtime::reconcile::Refusal;

use super::objects::{Fetcher, claim, content_key, job, job_name, progress_port};
use super::observe::Seen;
use super::plan::{FINALIZER, plan, rejected};
use super::report::Moment;

mod last_used;
mod nodes;
mod optimize;
mod room;
mod settings;
mod share;
mod sources;

const COMMIT: &str = "0123456789abcdef0123456789abcdef01234567";

fn now() -> Timestamp {
    "2026-11-16T12:00:00Z".parse().expect("a time")
}

fn typed<T: DeserializeOwned>(value: Value) -> T {
    serde_json::from_value(value).expect("an object")
}

fn cache(spec: Value) -> ModelCache {
    typed(json!({
        "apiVersion": "gpu.warp.dev/v1alpha1", "kind": "ModelCache",
        "metadata": {
            "name": "m", "namespace": "default", "uid": "uid-m", "generation": 2,
            "resourceVersion": "7", "finalizers": [FINALIZER],
        },
        "spec": spec,
    }))
}

fn hub() -> ModelCache {
    cache(json!({"source": {"huggingface": {"repository": "org/tiny", "tokenSecret": "hub"}}}))
}

fn seen() -> Seen {
    Seen {
        fetcher: Fetcher {
            image: Some("warp:test".to_owned()),
            program: Some("/bin/warp".to_owned()),
            asks_progress: true,
        },
        ..Seen::default()
    }
}

fn owned(kind: &str, uid: &str) -> Value {
    json!([{"apiVersion": "x/v1", "kind": kind, "name": "x", "uid": uid, "controller": true}])
}

fn with_claim(mut seen: Seen) -> Seen {
    seen.claim = Some(Arc::new(typed(json!({
        "metadata": {"name": "m-model", "uid": "uid-claim", "resourceVersion": "1", "ownerReferences": owned("ModelCache", "uid-m")},
    }))));
    seen
}

fn with_job(cache: &ModelCache, mut seen: Seen, status: Value) -> Seen {
    seen = with_claim(seen);
    seen.jobs.push(Arc::new(typed(json!({
        "metadata": {"name": job_name(cache), "uid": "uid-job", "resourceVersion": "1", "ownerReferences": owned("ModelCache", "uid-m")},
        "status": status,
    }))));
    seen
}

fn with_pod(mut seen: Seen, owner: &str, phase: &str, message: Option<&str>) -> Seen {
    let ended = message.map(|message| json!({"terminated": {"exitCode": 0, "message": message}}));
    seen.fetchers.push(Arc::new(typed(json!({
        "metadata": {"name": "m-fetch-x", "ownerReferences": owned("Job", owner)},
        "status": {"phase": phase, "containerStatuses": [{
            "name": "fetch", "image": "", "imageID": "", "ready": false, "restartCount": 0, "state": ended,
        }]},
    }))));
    seen
}

fn complete() -> Value {
    json!({"conditions": [{"type": "Complete", "status": "True", "lastTransitionTime": "2026-11-16T11:59:50Z"}]})
}

fn fetched() -> String {
    json!({"fetched": {
        "name": "org/tiny", "revision": "main", "commit": COMMIT, "digest": "sha256:1",
        "path": format!("models--org--tiny/snapshots/{COMMIT}"), "files": 3, "bytes": 99,
    }})
    .to_string()
}

fn status(plan: &Plan) -> ModelCacheStatus {
    let status = plan.actions.iter().find_map(|action| match action {
        Action::Status(status) => Some(status.after.clone()),
        _ => None,
    });
    typed(status.expect("a status is written"))
}

fn ready(status: &ModelCacheStatus) -> (&str, &str) {
    let ready = &status.conditions[0];
    assert_eq!(ready.observed_generation, Some(2));
    (ready.status.as_str(), ready.reason.as_str())
}

fn creates(plan: &Plan) -> Vec<String> {
    let kinds = plan.actions.iter().filter_map(|action| match action {
        Action::Create { kind, .. } => Some(kind.kind.clone()),
        _ => None,
    });
    kinds.collect()
}

fn deletes(plan: &Plan) -> usize {
    let deletes = plan.actions.iter();
    deletes
        .filter(|action| matches!(action, Action::Delete { .. }))
        .count()
}

#[test]
fn a_claim_comes_first_then_a_job() {
    let cache = hub();
    let first = plan(&cache, &seen(), now());
    assert_eq!(creates(&first), ["PersistentVolumeClaim"]);
    assert_eq!(ready(&status(&first)), ("False", "VolumePending"));
    let second = plan(&cache, &with_claim(seen()), now());
    assert_eq!(creates(&second), ["Job"]);
    assert_eq!(status(&second).phase, ModelPhase::Pending);
    let mut nameless = with_claim(seen());
    nameless.fetcher.image = None;
    let none = plan(&cache, &nameless, now());
    assert!(creates(&none).is_empty());
    assert_eq!(ready(&status(&none)), ("False", "NoFetchImage"));
}

#[test]
fn a_claim_of_somebody_else_is_left_alone() {
    let mut seen = seen();
    seen.claim = Some(Arc::new(typed(
        json!({"metadata": {"name": "m-model", "uid": "u"}}),
    )));
    let plan = plan(&hub(), &seen, now());
    assert!(creates(&plan).is_empty());
    assert_eq!(ready(&status(&plan)), ("False", "VolumeTaken"));
}

#[test]
fn the_job_runs_warp_fetch_with_the_secret_and_without_a_shell() {
    let cache = cache(json!({
        "source": {"huggingface": {"repository": "org/tiny", "revision": "v1", "endpoint": "https://mirror", "tokenSecret": "hub"}},
        "allowPatterns": ["$(HF_TOKEN)"], "bandwidth": "10Mi",
    }));
    let job = job(&cache, &seen().fetcher, "warp:test");
    let spec = job.spec.expect("a spec");
    assert_eq!(spec.active_deadline_seconds, Some(86_400));
    let meta = spec.template.metadata.expect("metadata");
    let command = &meta.annotations.expect("annotations")["process.gpu.warp.dev/command.fetch"];
    assert_eq!(command, r#"["/bin/warp"]"#);
    let pod = spec.template.spec.expect("a pod");
    assert_eq!(pod.automount_service_account_token, Some(false));
    let user = |pod: &k8s_openapi::api::core::v1::PodSpec| {
        pod.security_context
            .as_ref()
            .and_then(|context| context.run_as_non_root)
    };
    assert_eq!(user(&pod), None);
    let fetcher = Fetcher::default();
    let contained = super::objects::job(&cache, &fetcher, "warp:test");
    let contained = contained.spec.and_then(|spec| spec.template.spec);
    assert_eq!(contained.as_ref().and_then(user), Some(true));
    let container = &pod.containers[0];
    let port = progress_port(&cache);
    let words = container.args.clone().expect("arguments");
    let listen = format!("--progress-listen=$(POD_IP):{port}");
    for word in [
        "--to=/models",
        "--limit-rate=10Mi",
        "--allow=$$(HF_TOKEN)",
        "--progress-id=uid-m",
        listen.as_str(),
    ] {
        assert!(words.iter().any(|found| found == word), "{word}: {words:?}");
    }
    assert_eq!(words[words.len() - 2..], ["--", "hf://org/tiny@v1"]);
    let token = container
        .env
        .iter()
        .flatten()
        .find(|one| one.name == "HF_TOKEN")
        .expect("a token");
    let secret = token
        .value_from
        .as_ref()
        .and_then(|from| from.secret_key_ref.as_ref());
    let secret = secret.expect("a secret");
    assert_eq!(
        (secret.name.as_str(), secret.key.as_str()),
        ("hub", "token")
    );
}

#[test]
fn another_claim_is_mounted_as_the_source() {
    let cache = cache(json!({"source": {"pvc": {"claimName": "store", "path": "/llama/"}}}));
    let job = job(&cache, &seen().fetcher, "warp:test");
    let pod = job.spec.and_then(|spec| spec.template.spec).expect("a pod");
    let volume = pod
        .volumes
        .iter()
        .flatten()
        .find(|one| one.name == "source")
        .expect("a volume");
    let source = volume.persistent_volume_claim.as_ref().expect("a claim");
    assert_eq!(
        (source.claim_name.as_str(), source.read_only),
        ("store", Some(true))
    );
    let words = pod.containers[0].args.clone().expect("arguments");
    assert_eq!(words.last().map(String::as_str), Some("/source/llama"));
}

#[test]
fn the_claim_is_what_the_contract_says() {
    let cache = cache(
        json!({"source": {"pvc": {"claimName": "s"}}, "size": "5Gi", "storageClass": "fast", "accessMode": "ReadWriteOnce"}),
    );
    let claim = claim(&cache);
    assert_eq!(claim.metadata.name.as_deref(), Some("m-model"));
    let spec = claim.spec.expect("a spec");
    assert_eq!(spec.storage_class_name.as_deref(), Some("fast"));
    assert_eq!(spec.access_modes, Some(vec!["ReadWriteOnce".to_owned()]));
}

#[test]
fn the_report_of_the_pod_makes_it_ready_and_the_job_goes() {
    let mut cache = hub();
    let job = with_job(&cache, seen(), complete());
    let told = with_pod(job.clone(), "uid-job", "Succeeded", Some(&fetched()));
    let status = status(&plan(&cache, &told, now()));
    assert_eq!(status.phase, ModelPhase::Ready);
    assert_eq!(ready(&status), ("True", "Fetched"));
    let path = format!("/models/models--org--tiny/snapshots/{COMMIT}");
    assert_eq!(status.path, Some(path));
    assert_eq!(
        (status.commit.as_deref(), status.bytes, status.files),
        (Some(COMMIT), Some(99), Some(3))
    );
    assert_eq!(status.volume.as_deref(), Some("m-model"));
    cache.status = Some(status);
    let after = plan(&cache, &told, now());
    assert_eq!(deletes(&after), 1);
    // And then nothing more happens.
    let rest = plan(&cache, &with_claim(seen()), now());
    assert!(rest.is_idle(), "{rest:?}");
}

#[test]
fn what_the_source_has_no_digests_of_is_called_complete_and_not_verified() {
    let cache = hub();
    let job = with_job(&cache, seen(), complete());
    for (verified, words) in [
        (json!(3), "are complete and verified"),
        (Value::Null, "are complete and verified"),
        (json!(0), "are complete (the source has no digests"),
        (json!(1), "are complete, 1 of them verified"),
    ] {
        let mut report: Value = serde_json::from_str(&fetched()).expect("a report");
        report["fetched"]["verified"] = verified;
        let words_of_pod = report.to_string();
        let told = with_pod(job.clone(), "uid-job", "Succeeded", Some(&words_of_pod));
        let message = &status(&plan(&cache, &told, now())).conditions[0].message;
        assert!(message.contains(words), "{message}");
    }
}

#[test]
fn a_pod_with_forged_labels_or_a_strange_report_is_not_believed() {
    let cache = hub();
    let job = with_job(&cache, seen(), complete());
    let forged = with_pod(job.clone(), "uid-other", "Succeeded", Some(&fetched()));
    assert_eq!(
        status(&plan(&cache, &forged, now())).phase,
        ModelPhase::Fetching
    );
    let outside = fetched().replace("models--org--tiny", "../../etc");
    for words in [
        outside.as_str(),
        "",
        "{}",
        "{\"fetched\": {\"commit\": \"x\"}}",
    ] {
        let seen = with_pod(job.clone(), "uid-job", "Succeeded", Some(words));
        let status = status(&plan(&cache, &seen, now()));
        assert_eq!(ready(&status), ("False", "NoReport"), "{words}");
        assert_eq!(status.path, None);
    }
}

#[test]
fn a_report_that_went_with_its_pod_is_fetched_again_after_a_while() {
    let cache = hub();
    let seen = with_job(&cache, seen(), complete());
    let waiting = plan(&cache, &seen, now());
    assert_eq!(deletes(&waiting), 0);
    let until = waiting.again.expect("a time to look again");
    assert_eq!(deletes(&plan(&cache, &seen, until)), 1);
}

#[test]
fn a_failure_ends_in_the_reason_the_fetch_gave_and_the_next_step() {
    let cache = hub();
    let failed = json!({"conditions": [{"type": "Failed", "status": "True", "reason": "PodFailurePolicy", "message": "m"}]});
    let words = json!({"failed": {"reason": "Unauthorized", "message": "it needs a token", "permanent": true}});
    let job = with_job(&cache, seen(), failed);
    let told = with_pod(job.clone(), "uid-job", "Failed", Some(&words.to_string()));
    let told = status(&plan(&cache, &told, now()));
    assert_eq!(
        (told.phase, ready(&told)),
        (ModelPhase::Failed, ("False", "Unauthorized"))
    );
    let message = told.message.as_deref().expect("a message");
    assert!(
        message.contains("it needs a token. delete Job m-fetch-"),
        "{message}"
    );
    let silent = with_pod(job, "uid-job", "Failed", Some("Killed"));
    let silent = status(&plan(&cache, &silent, now()));
    assert_eq!(ready(&silent), ("False", "FetchFailed"));
}

#[test]
fn a_fetch_that_takes_too_long_says_so() {
    let cache = hub();
    let late =
        json!({"conditions": [{"type": "Failed", "status": "True", "reason": "DeadlineExceeded"}]});
    let status = status(&plan(&cache, &with_job(&cache, seen(), late), now()));
    assert_eq!(ready(&status), ("False", "FetchTimeout"));
}

#[test]
fn a_running_fetch_shows_how_far_it_is_and_when_it_must_end() {
    let mut cache = hub();
    let started = json!({"startTime": "2026-11-16T11:00:00Z", "active": 1});
    let mut seen = with_pod(
        with_job(&cache, seen(), started),
        "uid-job",
        "Running",
        None,
    );
    seen.moment = Some(Moment {
        files: 1,
        files_total: 4,
        bytes: 50,
        bytes_total: 200,
        bytes_per_second: 10,
        seconds_left: Some(15),
        trouble: None,
    });
    let first = plan(&cache, &seen, now());
    let told = status(&first);
    assert_eq!(told.phase, ModelPhase::Fetching);
    let progress = told.progress.clone().expect("progress");
    assert_eq!(
        (progress.percent.as_str(), progress.seconds_left),
        ("25%", Some(15))
    );
    assert_eq!(
        told.deadline
            .as_ref()
            .map(|time| time.0.to_string())
            .as_deref(),
        Some("2026-11-17T11:00:00Z")
    );
    assert!(first.again.is_some_and(|again| again > now()));
    // Nobody answers: what was said last stays, with its time.
    cache.status = Some(told);
    seen.moment = None;
    let silent = plan(&cache, &seen, now());
    assert!(silent.is_idle(), "{silent:?}");
}

#[test]
fn another_revision_is_fetched_beside_what_is_there() {
    let mut cache = hub();
    let old = content_key(&cache.spec);
    cache.status = Some(typed(json!({
        "phase": "Ready", "path": "/models/old", "commit": COMMIT, "contentKey": old, "volumeUid": "uid-claim",
    })));
    let mut seen = with_job(&cache, seen(), json!({"active": 1}));
    if let Some(hub) = &mut cache.spec.source.huggingface {
        hub.revision = "v2".to_owned();
    }
    let next = plan(&cache, &seen, now());
    assert_eq!(
        (creates(&next), deletes(&next)),
        (vec!["Job".to_owned()], 1)
    );
    let told = status(&next);
    assert_eq!(
        (told.phase, told.path.as_deref()),
        (ModelPhase::Pending, Some("/models/old"))
    );
    // A new volume is empty.
    seen.claim = Some(Arc::new(typed(json!({
        "metadata": {"name": "m-model", "uid": "uid-new", "ownerReferences": owned("ModelCache", "uid-m")},
    }))));
    assert_eq!(status(&plan(&cache, &seen, now())).path, None);
}

#[test]
fn a_cache_goes_when_nobody_mounts_it_and_names_who_does() {
    let mut cache = hub();
    cache.metadata.deletion_timestamp =
        Some(k8s_openapi::apimachinery::pkg::apis::meta::v1::Time(now()));
    let mut seen = with_job(&cache, seen(), json!({"active": 1}));
    seen.users = ["a", "b", "c", "d"].map(str::to_owned).to_vec();
    let held = plan(&cache, &seen, now());
    assert_eq!(deletes(&held), 1);
    let told = status(&held);
    assert_eq!(ready(&told), ("False", "InUse"));
    let message = told.message.as_deref().expect("a message");
    assert!(message.contains("pods a, b, c and 1 more"), "{message}");
    assert!(
        !held
            .actions
            .iter()
            .any(|action| matches!(action, Action::Patch { .. }))
    );
    seen.users.clear();
    let free = plan(&cache, &seen, now());
    assert!(
        free.actions
            .iter()
            .any(|action| matches!(action, Action::Patch { .. }))
    );
}

#[test]
fn a_cache_goes_only_when_no_service_names_it() {
    let mut cache = hub();
    cache.metadata.deletion_timestamp =
        Some(k8s_openapi::apimachinery::pkg::apis::meta::v1::Time(now()));
    let mut seen = with_claim(seen());
    seen.services = vec!["chat".to_owned()];
    let held = plan(&cache, &seen, now());
    let told = status(&held);
    assert_eq!(told.services, ["chat"]);
    assert_eq!(
        told.message.as_deref(),
        Some("it is deleted when InferenceServices chat no longer name it; delete them, or wait")
    );
    seen.users = vec!["chat-1".to_owned()];
    let told = status(&plan(&cache, &seen, now()));
    let message = told.message.as_deref().expect("a message");
    assert!(
        message.contains("chat no longer name it and pods chat-1 no longer mount"),
        "{message}"
    );
}

#[test]
fn a_pretended_fetch_is_called_that_for_good() {
    let mut cache = hub();
    let job = with_job(&cache, seen(), complete());
    let told = with_pod(job, "uid-job", "Succeeded", Some(r#"{"simulated":{}}"#));
    let status = status(&plan(&cache, &told, now()));
    assert_eq!(status.phase, ModelPhase::Ready);
    assert_eq!(ready(&status), ("True", "SimulatedFetch"));
    assert_eq!((status.commit.as_deref(), status.bytes), (None, Some(0)));
    let message = status.message.clone().expect("a message");
    assert!(message.contains("the volume is empty"), "{message}");
    cache.status = Some(status);
    let rest = plan(&cache, &with_claim(seen()), now());
    assert!(rest.is_idle(), "{rest:?}");
}

#[test]
fn a_new_cache_is_kept_from_going_unseen() {
    let mut cache = hub();
    cache.metadata.finalizers = None;
    let first = plan(&cache, &seen(), now());
    assert_eq!(first.actions.len(), 1);
    assert!(matches!(first.actions[0], Action::Patch { .. }));
}

#[test]
fn what_the_api_server_does_not_take_is_told_and_what_is_complete_stays() {
    let refusal = |forbidden: bool| Refusal {
        kind: "PersistentVolumeClaim".to_owned(),
        name: "m-model".to_owned(),
        words: "exceeded quota: storage".to_owned(),
        forbidden,
    };
    let told = rejected(&hub(), &seen(), &refusal(true), now());
    assert!(creates(&told).is_empty(), "nothing but words");
    let after = status(&told);
    assert_eq!(after.phase, ModelPhase::Pending, "it may be taken later");
    assert_eq!(ready(&after), ("False", "ObjectRejected"));
    let message = after.message.expect("a message");
    assert!(
        message.contains("PersistentVolumeClaim m-model: exceeded quota"),
        "{message}"
    );
    let mut held = hub();
    held.status = Some(typed(json!({
        "phase": "Ready", "commit": COMMIT, "path": "/models/x", "contentKey": "other",
        "volume": "m-model", "volumeUid": "uid-claim",
    })));
    let after = status(&rejected(
        &held,
        &with_claim(seen()),
        &refusal(false),
        now(),
    ));
    assert_eq!(after.phase, ModelPhase::Failed);
    assert_eq!(after.path.as_deref(), Some("/models/x"));
}
