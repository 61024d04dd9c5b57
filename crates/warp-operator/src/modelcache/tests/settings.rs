//! What may be changed while a Job exists: how long, how often, how fast.

use k8s_openapi::api::batch::v1::Job;

use super::*;

/// A Job as this cache would make it, under way or ended.
fn with_made(cache: &ModelCache, status: Value) -> Seen {
    let fetcher = seen().fetcher;
    let mut made = serde_json::to_value(job(cache, &fetcher, "warp:test")).expect("a Job");
    made["metadata"]["uid"] = json!("uid-job");
    made["metadata"]["resourceVersion"] = json!("1");
    made["status"] = status;
    let mut seen = with_claim(seen());
    seen.jobs.push(Arc::new(typed::<Job>(made)));
    seen
}

fn patches(plan: &Plan) -> Vec<Value> {
    let patches = plan.actions.iter().filter_map(|action| match action {
        Action::Patch { patch, .. } => Some(patch["spec"].clone()),
        _ => None,
    });
    patches.collect()
}

#[test]
fn a_job_that_is_as_the_spec_says_is_left_alone() {
    let mut cache = hub();
    cache.spec.bandwidth = Some("10Mi".to_owned());
    let seen = with_made(&cache, json!({"active": 1}));
    let plan = plan(&cache, &seen, now());
    assert_eq!((patches(&plan).len(), deletes(&plan)), (0, 0));
}

#[test]
fn more_time_and_more_tries_are_given_to_the_job_that_runs() {
    let mut cache = hub();
    let started = json!({"startTime": "2026-11-16T11:00:00Z", "active": 1});
    let seen = with_made(&cache, started);
    cache.spec.timeout = "48h".to_owned();
    cache.spec.backoff_limit = 9;
    let plan = plan(&cache, &seen, now());
    assert_eq!(
        patches(&plan),
        [json!({"activeDeadlineSeconds": 172_800, "backoffLimit": 9})]
    );
    assert_eq!(deletes(&plan), 0);
    let told = status(&plan).deadline.map(|time| time.0.to_string());
    assert_eq!(told.as_deref(), Some("2026-11-18T11:00:00Z"));
}

#[test]
fn another_rate_begins_the_fetch_again() {
    let mut cache = hub();
    let seen = with_made(&cache, json!({"active": 1}));
    cache.spec.bandwidth = Some("5Mi".to_owned());
    let again = plan(&cache, &seen, now());
    assert_eq!((patches(&again).len(), deletes(&again)), (0, 1));
    let told = status(&again);
    assert_eq!(ready(&told), ("False", "FetchPending"));
    let message = told.message.as_deref().expect("a message");
    assert!(message.contains("from where it stopped"), "{message}");
    assert_eq!(
        creates(&plan(&cache, &with_claim(super::seen()), now())),
        ["Job"]
    );
}

#[test]
fn a_fetch_that_failed_for_want_of_time_is_begun_again_with_more() {
    let mut cache = hub();
    let late =
        json!({"conditions": [{"type": "Failed", "status": "True", "reason": "DeadlineExceeded"}]});
    let seen = with_made(&cache, late);
    let over = plan(&cache, &seen, now());
    assert_eq!(deletes(&over), 0);
    assert_eq!(ready(&status(&over)), ("False", "FetchTimeout"));
    cache.spec.timeout = "48h".to_owned();
    let again = plan(&cache, &seen, now());
    assert_eq!((patches(&again).len(), deletes(&again)), (0, 1));
    assert_eq!(ready(&status(&again)), ("False", "FetchPending"));
}
