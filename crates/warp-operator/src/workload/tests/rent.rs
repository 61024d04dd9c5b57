//! When a machine is rented for a workload that waits, and when it is not needed any more.

mod several;

use std::sync::Arc;

use serde_json::{Value, json};
use warp_api::workload::RentStatus;
use warp_api::{GPURequest, GPUWorkload, reason};
use warp_runtime::plan::Action;

use super::super::Seen;
use super::super::course::Course;
use super::super::rent::{Beside, Pack, Rented, look, packed};
use super::reading::{deletes, message, one_pod, planned, said};
use super::{now, pod, workload};
use crate::placement::Verdict;

const NAME: &str = "train-01234567-rent-1";

fn asks(rent: Value, state: Value) -> GPUWorkload {
    let mut spec = json!({"gpu": {"models": ["H100"]}, "rent": {"maxPrice": 7.5}});
    for (field, value) in rent.as_object().into_iter().flatten() {
        spec["rent"][field] = value.clone();
    }
    workload(spec, json!({"phase": "Pending", "rent": state}))
}

fn seen(reason: &'static str, requests: &[&Arc<GPURequest>]) -> Seen {
    Seen {
        verdict: Some(Verdict {
            reason,
            message: "all nodes are full".to_owned(),
        }),
        rented: Rented {
            requests: requests.iter().map(|request| Arc::clone(request)).collect(),
            ..Rented::default()
        },
        ..Seen::default()
    }
}

fn request(name: &str, status: Value) -> Arc<GPURequest> {
    let object = json!({
        "apiVersion": "gpu.warp.dev/v1alpha1", "kind": "GPURequest",
        "metadata": {"name": name, "namespace": "team", "uid": name, "resourceVersion": "5"},
        "spec": {"gpuModels": ["H100"], "gpuCount": 2, "maxPrice": 7.5, "idleTimeout": "10m"},
        "status": status,
    });
    Arc::new(serde_json::from_value(object).unwrap())
}

fn attempt(outcome: Value) -> Value {
    json!({
        "number": 1, "machine": "m-1", "provider": "fake", "gpu": "H100-80GB", "gpus": 2, "region": "r",
        "instanceType": "t", "price": "5.80", "priceLimit": "7.5", "intendedAt": "2026-11-15T11:00:00Z",
        "billedFrom": "2026-11-15T11:00:00Z", "outcome": outcome,
    })
}

fn made(course: &Course) -> Vec<Value> {
    let made = course
        .steps
        .actions
        .iter()
        .filter_map(|action| match action {
            Action::Create { object, .. } => Some(object.clone()),
            _ => None,
        });
    made.collect()
}

fn state(course: &Course) -> RentStatus {
    let status = course.status.as_ref().expect("a status");
    status.rent.clone().unwrap_or_default()
}

#[test]
fn it_says_when_a_machine_is_rented_and_looks_again_then() {
    let waits = asks(json!({"after": "30m"}), Value::Null);
    let course = planned(&waits, &seen(reason::WAITING_FOR_CAPACITY, &[]));
    let at = "2026-11-15T12:30:00Z";
    let state = state(&course);
    assert_eq!(state.rents_at.unwrap().0.to_string(), at);
    assert_eq!(
        state.waiting_since.unwrap().0.to_string(),
        "2026-11-15T12:00:00Z"
    );
    assert_eq!(
        message(&course),
        format!("all nodes are full; a machine is rented for it at {at} unless room comes free")
    );
    assert_eq!(said(&course).1, reason::WAITING_FOR_CAPACITY);
    assert!(
        course
            .steps
            .again
            .is_some_and(|again| *again.to_string() <= *at)
    );
    assert!(made(&course).is_empty());
}

#[test]
fn after_its_time_one_request_is_made_that_holds_it() {
    let since = json!({"waitingSince": "2026-11-15T11:29:00Z"});
    let rent = json!({"after": "30m", "maxTotalPrice": "40", "spot": true, "providers": ["a"]});
    let waits = asks(rent, since);
    let course = planned(&waits, &seen(reason::NO_SUCH_GPU, &[]));
    let [request] = made(&course).try_into().expect("one request");
    assert_eq!(request["metadata"]["name"], NAME);
    assert_eq!(request["metadata"]["namespace"], "team");
    assert_eq!(
        request["metadata"]["ownerReferences"][0]["uid"],
        "0123456789abcdef"
    );
    assert_eq!(
        request["spec"],
        json!({"gpuModels": ["H100"], "gpuCount": 2, "maxPrice": 7.5, "maxTotalPrice": "40", "spotInstance": true,
            "providers": ["a"], "idleTimeout": "10m"})
    );
    assert_eq!(
        course.steps.premises.len(),
        1,
        "the API server is asked first"
    );
    assert_eq!(state(&course).request.as_deref(), Some(NAME));
    assert!(
        message(&course).contains("2 x H100 is rented for it for at most 7.5 an hour"),
        "{}",
        message(&course)
    );
    assert_eq!(
        course.events.last().map(|event| event.reason),
        Some(reason::RENTING)
    );
}

#[test]
fn any_gpu_is_asked_for_by_vendor_and_by_what_a_node_would_report() {
    let spec = json!({"gpu": {"minMemory": "75Gi"}, "rent": {"maxPrice": 3, "after": "0s"}});
    let waits = workload(spec, json!({"phase": "Pending"}));
    let course = planned(&waits, &seen(reason::WAITING_FOR_CAPACITY, &[]));
    let spec = &made(&course)[0]["spec"];
    assert_eq!(spec["gpuVendor"], "nvidia");
    // An 80 GB card reports 79.6 GiB, a 24 GB card may report 22.5.
    assert_eq!(spec["minMemory"], "80Gi");
}

#[test]
fn a_quota_a_mistake_and_a_closed_market_buy_nothing() {
    let since = json!({"waitingSince": "2026-11-15T10:00:00Z"});
    let waits = asks(json!({}), since.clone());
    for reason in [
        reason::QUOTA_EXCEEDED,
        reason::TENANT_QUOTA_EXCEEDED,
        reason::TENANT_FORBIDS,
        reason::VOLUME_OUT_OF_REACH,
    ] {
        let course = planned(&waits, &seen(reason, &[]));
        assert!(made(&course).is_empty(), "{reason}");
        assert_eq!(state(&course), RentStatus::default(), "{reason}");
    }
    let mut closed = seen(reason::WAITING_FOR_CAPACITY, &[]);
    closed.rented.closed = Some("no CRD".to_owned());
    let course = planned(&waits, &closed);
    assert!(
        made(&course).is_empty()
            && message(&course).contains("no machine is rented for it: no CRD")
    );
    for (rent, gpu, word) in [
        (
            json!({"maxPrice": "cheap"}),
            json!(["H100"]),
            "spec.rent.maxPrice",
        ),
        (
            json!({"maxPrice": 1, "maxTotalPrice": -2}),
            json!(["H100"]),
            "spec.rent.maxTotalPrice",
        ),
        (
            json!({"maxPrice": 1}),
            json!(["MyCard"]),
            "no GPU of the catalogue",
        ),
        (
            json!({"maxPrice": 1}),
            json!(["NVIDIA-H100-PCIe"]),
            "how the board is built",
        ),
    ] {
        let spec = json!({"gpu": {"models": gpu}, "rent": rent});
        let waits = workload(spec, json!({"phase": "Pending", "rent": since.clone()}));
        let course = planned(&waits, &seen(reason::WAITING_FOR_CAPACITY, &[]));
        assert!(
            made(&course).is_empty() && message(&course).contains(word),
            "{}",
            message(&course)
        );
    }
}

fn renting() -> Value {
    json!({"waitingSince": "2026-11-15T11:00:00Z", "request": NAME, "requests": 1})
}

#[test]
fn a_request_that_is_under_way_is_followed_and_not_made_again() {
    let waits = asks(json!({}), renting());
    let open = request(
        NAME,
        json!({"phase": "Booting", "message": "m-1 starts", "gpu": "2 x H100-80GB", "pricePerHour": "5.80",
            "attempts": [attempt(Value::Null)]}),
    );
    let course = planned(&waits, &seen(reason::WAITING_FOR_CAPACITY, &[&open]));
    assert!(
        course.steps.actions.is_empty(),
        "{:?}",
        course.steps.actions
    );
    let said = state(&course);
    assert_eq!(said.phase.as_deref(), Some("Booting"));
    assert_eq!(said.price_per_hour.as_deref(), Some("5.80"));
    assert!(message(&course).ends_with("rents a machine for it: m-1 starts"));
    let dearer = asks(json!({"maxPrice": 9}), renting());
    let course = planned(&dearer, &seen(reason::WAITING_FOR_CAPACITY, &[&open]));
    let [Action::Patch { patch, .. }] = course.steps.actions.as_slice() else {
        panic!("{:?}", course.steps.actions)
    };
    assert_eq!(patch["spec"], json!({"maxPrice": 9}));
}

#[test]
fn the_next_request_spends_what_the_ones_before_left() {
    let mut used = renting();
    used["used"] = json!(true);
    let waits = asks(json!({"maxTotalPrice": "10"}), used.clone());
    let over = request(
        NAME,
        json!({"phase": "Ended", "spent": "4.2500", "attempts": [attempt(json!("IdleTimeout"))]}),
    );
    let course = planned(&waits, &seen(reason::WAITING_FOR_CAPACITY, &[&over]));
    let [next] = made(&course).try_into().expect("one request");
    assert_eq!(next["metadata"]["name"], "train-01234567-rent-2");
    assert_eq!(next["spec"]["maxTotalPrice"], "5.75");
    let poor = asks(json!({"maxTotalPrice": "4"}), used);
    let course = planned(&poor, &seen(reason::WAITING_FOR_CAPACITY, &[&over]));
    assert!(made(&course).is_empty() && message(&course).contains("is spent: raise it"));
}

#[test]
fn what_did_not_help_is_not_bought_again() {
    let waits = asks(json!({}), renting());
    for (status, word) in [
        (
            json!({"phase": "Ended", "attempts": [attempt(json!("IdleTimeout"))]}),
            "did not hold it",
        ),
        (
            json!({"phase": "Failed", "message": "5 machines came to nothing"}),
            "5 machines came to nothing",
        ),
    ] {
        let over = request(NAME, status);
        let course = planned(&waits, &seen(reason::WAITING_FOR_CAPACITY, &[&over]));
        assert!(
            course.steps.actions.is_empty() && message(&course).contains(word),
            "{}",
            message(&course)
        );
    }
}

#[test]
fn room_that_comes_free_first_takes_back_what_was_not_bought() {
    let running = asks(json!({}), renting());
    let on = |requests: &[&Arc<GPURequest>]| {
        let mut seen = one_pod(pod(json!({}), json!({}), json!({"phase": "Running"})));
        seen.rented.requests = requests.iter().map(|one| Arc::clone(one)).collect();
        planned(&running, &seen)
    };
    let pending = request(NAME, json!({"phase": "Pending"}));
    let course = on(&[&pending]);
    assert_eq!(
        deletes(&course),
        [("GPURequest".to_owned(), NAME.to_owned())]
    );
    let bought = request(
        NAME,
        json!({"phase": "Ready", "attempts": [attempt(Value::Null)]}),
    );
    let course = on(&[&bought]);
    assert!(
        deletes(&course).is_empty(),
        "others may use it until it is idle"
    );
    assert!(!state(&course).used);
    let course = on(&[]);
    assert_eq!(
        state(&course),
        RentStatus::default(),
        "nothing is left to say"
    );
}

#[test]
fn before_the_requests_are_listed_nothing_new_is_said_or_bought() {
    let mut said = renting();
    said["message"] = json!("GPURequest x rents a machine for it");
    let waits = asks(json!({}), said);
    let mut unread = seen(reason::WAITING_FOR_CAPACITY, &[]);
    unread.rented.unread = true;
    let course = planned(&waits, &unread);
    assert!(course.steps.actions.is_empty());
    let status = course.status.as_ref().expect("a status");
    assert_eq!(
        status.rent,
        waits.status.as_ref().and_then(|status| status.rent.clone())
    );
    assert!(message(&course).ends_with("; GPURequest x rents a machine for it"));
}

#[test]
fn it_remembers_that_the_machine_held_it() {
    let running = asks(json!({}), renting());
    let mut on = attempt(Value::Null);
    on["machine"] = json!("gpu-1");
    let mut seen = one_pod(pod(json!({}), json!({}), json!({"phase": "Running"})));
    seen.rented.requests = vec![request(NAME, json!({"phase": "Ready", "attempts": [on]}))];
    let course = planned(&running, &seen);
    assert!(state(&course).used && deletes(&course).is_empty());
}

/// Workloads of one shape, the oldest first, each with what its status says of renting.
fn crowd(rents: &[Value]) -> Vec<Arc<GPUWorkload>> {
    let each = rents.iter().enumerate().map(|(number, state)| {
        let mut one = asks(json!({}), state.clone());
        one.metadata.name = Some(format!("w-{number}"));
        one.metadata.uid = Some(format!("uid-{number}"));
        Arc::new(one)
    });
    each.collect()
}

/// A machine with eight GPUs, rented for the first of them.
fn eight() -> Arc<GPURequest> {
    let mut attempt = attempt(Value::Null);
    attempt["gpus"] = json!(8);
    let mut request = (*request("r", json!({"phase": "Booting", "attempts": [attempt]}))).clone();
    request.metadata.owner_references = serde_json::from_value(json!([{
        "apiVersion": "gpu.warp.dev/v1alpha1", "kind": "GPUWorkload", "name": "w-0", "uid": "uid-0", "controller": true,
    }]))
    .unwrap();
    Arc::new(request)
}

#[test]
fn those_that_fit_on_a_machine_that_comes_buy_none() {
    let first = json!({"waitingSince": "2026-11-15T11:00:00Z", "request": "r", "requests": 1});
    let counts_on_it = json!({"waitingSince": "2026-11-15T11:00:00Z", "beside": "r"});
    let nothing = json!({"waitingSince": "2026-11-15T11:00:00Z"});
    // Two GPUs each: four fit.
    let mut states = vec![first];
    states.extend(vec![counts_on_it; 3]);
    states.extend(vec![nothing; 2]);
    let all = crowd(&states);
    let looks = |at: usize| look(&all[at], &[eight()], &all, now());
    assert_eq!(looks(0), Beside::default(), "its own machine");
    for place in 1..=3 {
        assert_eq!(looks(place).room.as_deref(), Some("r"), "{place}");
    }
    assert_eq!(
        looks(4),
        Beside {
            room: None,
            before: 0
        }
    );
    assert_eq!(
        looks(5),
        Beside {
            room: None,
            before: 1
        }
    );
}

#[test]
fn who_has_room_elsewhere_or_is_not_first_waits_and_says_so() {
    let since = json!({"waitingSince": "2026-11-15T11:00:00Z"});
    let mut other = seen(reason::WAITING_FOR_CAPACITY, &[]);
    other.rented.beside.room = Some("r".to_owned());
    let course = planned(&asks(json!({}), since.clone()), &other);
    assert!(made(&course).is_empty() && message(&course).contains("has room for it"));
    assert_eq!(state(&course).beside.as_deref(), Some("r"));
    let mut later = seen(reason::WAITING_FOR_CAPACITY, &[]);
    later.rented.beside.before = 3000;
    let course = planned(&asks(json!({}), since.clone()), &later);
    assert!(made(&course).is_empty() && message(&course).contains("rent first"));
    later.rented.beside.before = 1;
    let course = planned(&asks(json!({}), since), &later);
    assert_eq!(
        made(&course).len(),
        1,
        "nobody waits for ever for those before it"
    );
}

fn selling(sizes: &[(u32, &str)]) -> Arc<warp_api::CloudProvider> {
    let offers: Vec<Value> = sizes
        .iter()
        .map(|(gpus, price)| {
            json!({"gpu": "H100-80GB", "gpus": gpus, "region": "r", "instanceType": format!("t{gpus}"),
                "price": price, "availability": "high"})
        })
        .collect();
    let object = json!({
        "apiVersion": "gpu.warp.dev/v1alpha1", "kind": "CloudProvider", "metadata": {"name": "cloud"},
        "spec": {"type": "fake"},
        "status": {"offers": offers, "conditions": [{"type": "Ready", "status": "True", "reason": "OffersKnown",
            "message": "", "lastTransitionTime": "2026-11-15T11:00:00Z"}]},
    });
    Arc::new(serde_json::from_value(object).unwrap())
}

/// One of several that have waited long enough.
fn waiting(number: usize, gpus: i32, rent: Value) -> Arc<GPUWorkload> {
    let mut it = asks(rent, json!({"waitingSince": "2026-11-15T10:00:00Z"}));
    it.metadata.name = Some(format!("w{number:02}"));
    it.metadata.uid = Some(format!("{number:02}345678"));
    it.spec.gpu_count = gpus;
    Arc::new(it)
}

#[test]
fn ten_that_wait_buy_what_they_need_together() {
    let all: Vec<_> = (0..10)
        .map(|number| waiting(number, 1, json!({"maxPrice": 3})))
        .collect();
    let clouds = [selling(&[(1, "2.90"), (2, "5.80"), (8, "23.20")])];
    let first = packed(&all[0], &all, &clouds, now());
    let eight = Pack {
        gpus: 8,
        max_price: 24.into(),
        shared_by: 8,
    };
    assert_eq!(first, Some(eight));
    assert_eq!(
        packed(&all[1], &all, &clouds, now()),
        None,
        "others come first"
    );
    // The two that are left buy one with two.
    assert_eq!(
        packed(&all[8], &all[8..], &clouds, now()).map(|pack| pack.gpus),
        Some(2)
    );
    // Nothing is gained, or nobody would pay it.
    let dear = [selling(&[(1, "2.90"), (8, "23.30")])];
    assert_eq!(packed(&all[0], &all, &dear, now()), None);
    let only = [selling(&[(8, "30.00")])];
    assert_eq!(packed(&all[0], &all[..8], &only, now()), None);
    // Whose sum is limited rents for itself.
    let limited: Vec<_> = (0..2)
        .map(|at| waiting(at, 1, json!({"maxTotalPrice": 9})))
        .collect();
    assert_eq!(packed(&limited[0], &limited, &clouds, now()), None);
}

#[test]
fn a_machine_for_several_is_asked_for_and_kept_while_it_has_them() {
    let waits = asks(json!({"after": "0s"}), Value::Null);
    let mut seen = seen(reason::WAITING_FOR_CAPACITY, &[]);
    seen.rented.pack = Some(Pack {
        gpus: 8,
        max_price: 30.into(),
        shared_by: 4,
    });
    let course = planned(&waits, &seen);
    let [asked] = made(&course).try_into().expect("one request");
    assert_eq!(
        (&asked["spec"]["gpuCount"], &asked["spec"]["maxPrice"]),
        (&json!(8), &json!("30"))
    );
    assert!(
        message(&course).contains("and 3 that wait with it"),
        "{}",
        message(&course)
    );
    let mut waits = waits;
    waits.status.as_mut().unwrap().rent = Some(state(&course));
    let mut there = (*request(NAME, json!({"phase": "Pending"}))).clone();
    there.spec = serde_json::from_value(asked["spec"].clone()).unwrap();
    let there = Arc::new(there);
    let mut seen = super::rent::seen(reason::WAITING_FOR_CAPACITY, &[&there]);
    seen.rented.shared = vec![NAME.to_owned()];
    let patched = |seen: &Seen| {
        let course = planned(&waits, seen);
        let mut patches = course
            .steps
            .actions
            .iter()
            .filter_map(|action| match action {
                Action::Patch { patch, .. } => patch.pointer("/spec/gpuCount").cloned(),
                _ => None,
            });
        patches.next()
    };
    assert_eq!(patched(&seen), None);
    // The others are gone before anything was bought.
    seen.rented.shared.clear();
    assert_eq!(patched(&seen), Some(json!(2)));
}

#[test]
fn a_gang_rents_one_machine_for_all_its_members() {
    let spec = json!({"gpu": {"models": ["H100"]}, "replicas": 3, "rent": {"maxPrice": 30, "after": "0s"}});
    let waits = workload(spec, json!({"phase": "Pending"}));
    let course = planned(&waits, &seen(reason::WAITING_FOR_CAPACITY, &[]));
    assert_eq!(made(&course)[0]["spec"]["gpuCount"], 6);
}
