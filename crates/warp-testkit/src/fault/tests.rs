use std::time::Duration;

use proptest::prelude::*;
use serde_json::json;

use super::history::without_times;
use super::layer::Faults;
use super::plan::{Extent, Fault, Plan, Rule, Selector};
use super::request::{Call, Class};

fn fault() -> impl Strategy<Value = Fault> {
    let time = (0..100_000_u64).prop_map(Duration::from_millis);
    prop_oneof![
        Just(Fault::CrashBefore),
        Just(Fault::CrashAfter),
        prop::sample::select(vec![401, 403, 409, 410, 429, 500, 503, 504_u16])
            .prop_map(Fault::Status),
        (0..100_u64).prop_map(Fault::RetryAfter),
        prop::sample::select(vec![500, 504_u16]).prop_map(Fault::Applied),
        any::<bool>().prop_map(Fault::Reset),
        any::<bool>().prop_map(Fault::Timeout),
        time.clone().prop_map(Fault::Delay),
        time.prop_map(Fault::Pause),
        (0..9_u64).prop_map(Fault::Stale),
        (0..9_u64).prop_map(Fault::Cut),
        (0..9_u64).prop_map(Fault::Silence),
        (0..9_u64).prop_map(Fault::Expire),
        Just(Fault::Duplicate),
        Just(Fault::Merge),
    ]
}

fn rule() -> impl Strategy<Value = Rule> {
    let part = || prop::option::of("[a-z]{1,8}");
    let sub = prop::option::of(prop_oneof![Just(String::new()), "[a-z]{1,8}"]);
    let selector = prop_oneof![
        prop::sample::select(vec![
            Class::Request,
            Class::Read,
            Class::Write,
            Class::Watch
        ])
        .prop_map(Selector::Class),
        (part(), part(), sub).prop_map(|(verb, resource, sub)| Selector::Path(verb, resource, sub)),
    ];
    let extent = prop_oneof![
        (1..50_u64).prop_map(Extent::Count),
        Just(Extent::All),
        (0..90_000_u64).prop_map(|time| Extent::For(Duration::from_millis(time))),
    ];
    (selector, 1..1000_u64, extent, fault()).prop_map(|(selector, nth, extent, fault)| Rule {
        selector,
        nth,
        extent,
        fault,
    })
}

proptest! {
    #[test]
    fn a_plan_reads_back_as_it_was_printed(rules in prop::collection::vec(rule(), 0..5)) {
        let plan = Plan { rules };
        prop_assert_eq!(plan.to_string().parse::<Plan>(), Ok(plan));
    }

    #[test]
    fn no_line_makes_the_reader_panic(text in ".{0,60}") {
        let _ = text.parse::<Plan>();
    }
}

#[test]
fn every_plan_of_the_weather_is_one() {
    for plan in super::campaign::WEATHER {
        assert_eq!(
            plan.parse::<Plan>().map(|read| read.to_string()),
            Ok(plan.to_owned())
        );
    }
}

#[test]
fn a_line_that_is_no_plan_is_refused_with_the_reason() {
    for text in [
        "write",
        "write#0:409",
        "write#1",
        "write#1+:409",
        "write#1:200",
        "a#1:409",
        "write#1:merge=3",
    ] {
        assert!(text.parse::<Plan>().is_err(), "{text}");
    }
}

#[test]
fn requests_are_told_apart_by_method_and_path() {
    let call = |method: &str, path: &str| {
        let request = http::Request::builder()
            .method(method)
            .uri(path)
            .body(())
            .unwrap();
        let call = Call::of(&request);
        (call.class, call.to_string())
    };
    assert_eq!(
        call("GET", "/api/v1/namespaces/team"),
        (Class::Read, "get namespaces /team".to_owned())
    );
    assert_eq!(
        call("PUT", "/api/v1/namespaces/team/finalize"),
        (Class::Write, "update namespaces/finalize /team".to_owned())
    );
    assert_eq!(
        call("GET", "/api/v1/namespaces/team/pods?watch=true"),
        (Class::Watch, "watch pods team/".to_owned())
    );
    assert_eq!(
        call(
            "PATCH",
            "/apis/gpu.warp.dev/v1alpha1/namespaces/team/gpuworkloads/w/status?force=true"
        ),
        (Class::Write, "patch gpuworkloads/status team/w".to_owned())
    );
    assert_eq!(
        call("GET", "/apis/batch/v1/jobs"),
        (Class::Read, "list jobs".to_owned())
    );
}

#[test]
fn times_and_addresses_are_told_from_other_text() {
    assert_eq!(
        without_times(
            "at 2027-01-15T08:00:00Z and 2027-01-15T08:00:00.123456Z from 10.128.0.7, v1.2"
        ),
        "at some time and some time from some address, v1.2"
    );
}

#[test]
fn merged_events_are_one_step_from_the_state_before() {
    let event = |kind: &str, uid: &str, step: u32| json!({"type": kind, "object": {"metadata": {"uid": uid}, "step": step}});
    let events = vec![
        event("ADDED", "a", 1),
        event("MODIFIED", "a", 2),
        event("ADDED", "b", 1),
        event("MODIFIED", "c", 1),
        event("DELETED", "b", 2),
        event("DELETED", "c", 2),
    ];
    assert_eq!(
        super::watch::merged(events),
        [event("ADDED", "a", 2), event("DELETED", "c", 2)]
    );
}

#[tokio::test]
async fn two_rules_with_the_same_fault_are_counted_apart() {
    let plan: Plan = "create/jobs#1:409; create/pods#1:409".parse().unwrap();
    let faults = Faults::new(plan);
    let server = tower::service_fn(async |_: http::Request<kube::client::Body>| {
        Ok::<_, std::convert::Infallible>(http::Response::new(axum::body::Body::empty()))
    });
    let mut asked = faults.service(server);
    let request = http::Request::post("/apis/batch/v1/namespaces/team/jobs")
        .body(kube::client::Body::empty())
        .unwrap();
    let answer = tower::Service::call(&mut asked, request).await.unwrap();
    assert_eq!(answer.status(), http::StatusCode::CONFLICT);
    assert_eq!(faults.met(), [1, 0]);
}
