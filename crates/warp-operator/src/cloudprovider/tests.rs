//! What a provider says of its account, when it is asked, what it ends, and when it may go.

use std::sync::Arc;
use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use serde_json::{Value, json};
use warp_api::{CloudProvider, CloudProviderStatus, GPURequest};
use warp_cloud::{Availability, Decimal, Machine, Mark, Offer, State};
use warp_runtime::outside::{OutsideError, Sight};
use warp_runtime::plan::{Action, Plan, What};

use super::FINALIZER;
use super::calls::Listed;
use super::observe::Seen;
use super::plan::plan;

fn at(seconds: i64) -> Timestamp {
    let start: Timestamp = "2026-11-16T12:00:00Z".parse().expect("a time");
    start + SignedDuration::from_secs(seconds)
}

fn provider(spec: &Value) -> CloudProvider {
    let mut object = json!({
        "apiVersion": "gpu.warp.dev/v1alpha1", "kind": "CloudProvider",
        "metadata": {"name": "cloud", "uid": "p1", "generation": 2, "resourceVersion": "7", "finalizers": [FINALIZER]},
        "spec": {"type": "fake"},
    });
    for (key, value) in spec.as_object().into_iter().flatten() {
        object["spec"][key] = value.clone();
    }
    serde_json::from_value(object).expect("a provider")
}

fn offer(gpu: &str, region: &str, price: i64) -> Offer {
    Offer {
        gpu: gpu.to_owned(),
        gpus: 1,
        region: region.to_owned(),
        instance_type: format!("{gpu}-{price}"),
        price: Decimal::new(price, 2),
        spot_price: None,
        availability: Availability::High,
    }
}

fn machine(name: &str, id: &str) -> Machine {
    Machine {
        id: id.to_owned(),
        name: name.to_owned(),
        state: State::Running,
        region: "us-east-1".to_owned(),
        instance_type: "t".to_owned(),
        spot: false,
        price: Some(Decimal::new(150, 2)),
        started: None,
        ended: None,
        taken_back: None,
        exit: None,
        public_ip: None,
        private_ip: None,
    }
}

fn seen(asked: i64, offers: Vec<Offer>, machines: Vec<Machine>) -> Seen {
    Seen {
        outside: "cloud-inventory",
        sight: Sight {
            asked: Some(at(asked)),
            max_age: Duration::from_mins(2),
            ..Sight::default()
        },
        listed: Some(Listed { offers, machines }),
        requests: Vec::new(),
        mark: Some(Mark::of_cluster("cluster1")),
        interruptions: Some(2),
        told: std::collections::BTreeMap::new(),
    }
}

fn written(plan: &Plan) -> CloudProviderStatus {
    let status = plan.actions.iter().find_map(|action| match action {
        Action::Status(status) => Some(status.after.clone()),
        _ => None,
    });
    serde_json::from_value(status.expect("a status is written")).expect("a provider's status")
}

fn owner(machine: &str, id: Option<&str>) -> Arc<GPURequest> {
    let request = json!({
        "apiVersion": "gpu.warp.dev/v1alpha1", "kind": "GPURequest",
        "metadata": {"name": "r", "namespace": "default"}, "spec": {"gpuType": "L4"},
        "status": {"attempts": [{
            "number": 1, "machine": machine, "provider": "cloud", "gpu": "L4", "gpus": 1, "region": "us-east-1",
            "instanceType": "t", "price": "1.50", "priceLimit": "2", "intendedAt": "2026-11-16T12:00:00Z",
            "instanceId": id,
        }]},
    });
    Arc::new(serde_json::from_value(request).expect("a request"))
}

#[test]
fn what_is_sold_in_its_regions_is_offered_cheapest_first_and_nonsense_is_not() {
    let it = provider(&json!({"regions": ["us-east", "eu-west-1"]}));
    let offers = vec![
        offer("L4", "us-east-1", 60),
        offer("L4", "us-east-1", 50),
        offer("L4", "eu-west-1", 55),
        offer("L4", "us-west-1", 10),
        offer("H100-80GB", "us-east-1", 0),
    ];
    let status = written(&plan(&it, &seen(0, offers, Vec::new()), at(0)));
    let prices: Vec<&str> = status
        .offers
        .iter()
        .map(|offer| offer.price.as_str())
        .collect();
    assert_eq!(prices, ["0.50", "0.55", "0.60"]);
    assert_eq!(status.conditions[0].reason, "OffersKnown");
    assert_eq!(status.offer_count, 3);
}

#[test]
fn an_account_is_asked_again_when_its_answer_is_old_and_writes_nothing_meanwhile() {
    let mut it = provider(&json!({}));
    let offers = vec![offer("L4", "us-east-1", 50)];
    it.status = Some(written(&plan(
        &it,
        &seen(0, offers.clone(), Vec::new()),
        at(0),
    )));
    let fresh = plan(&it, &seen(0, offers.clone(), Vec::new()), at(119));
    assert!(fresh.is_idle(), "{fresh:?}");
    assert_eq!(fresh.again, Some(at(120)));
    let old = plan(&it, &seen(0, offers.clone(), Vec::new()), at(120));
    assert!(old.actions.is_empty());
    assert_eq!(old.calls[0].what, What::LookUp);
    let renewed = plan(&it, &seen(1800, offers, Vec::new()), at(1800));
    assert_eq!(
        renewed.actions.len(),
        1,
        "half an hour later it says that it still holds"
    );
}

#[test]
fn a_machine_of_nobody_is_ended_after_a_while_and_others_never() {
    let ours = "warp-cluster1-u9-1";
    let machines = vec![
        machine(ours, "m-1"),
        machine("warp-other123-u9-1", "m-2"),
        machine("web-server", "m-3"),
        machine("warp-cluster1-u1-1", "m-4"),
        machine("warp-cluster1-u1-1", "m-5"),
    ];
    let mut it = provider(&json!({}));
    let now = |asked| Seen {
        requests: vec![owner("warp-cluster1-u1-1", Some("m-4"))],
        ..seen(asked, vec![offer("L4", "us-east-1", 50)], machines.clone())
    };
    let status = written(&plan(&it, &now(0), at(0)));
    let told: Vec<(&str, bool)> = status
        .machines
        .iter()
        .map(|machine| (machine.id.as_str(), machine.request.is_some()))
        .collect();
    assert_eq!(told, [("m-4", true), ("m-5", false), ("m-1", false)]);
    it.status = Some(status);
    assert!(
        plan(&it, &now(299), at(299)).calls.is_empty(),
        "it may be new"
    );
    let swept = plan(&it, &now(300), at(300));
    let names: Vec<&str> = swept.calls.iter().map(|call| call.name.as_str()).collect();
    assert_eq!(names, ["cloud/m-5", "cloud/m-1"]);
    assert!(swept.calls.iter().all(|call| call.what == What::Remove));
}

#[test]
fn deletion_is_held_while_anything_is_rented_and_says_what() {
    let mut it = provider(&json!({}));
    it.metadata.deletion_timestamp = Some(Time(at(10)));
    let rented = Seen {
        requests: vec![owner("warp-cluster1-u1-1", None)],
        ..seen(11, vec![offer("L4", "us-east-1", 50)], Vec::new())
    };
    let status = written(&plan(&it, &rented, at(11)));
    assert_eq!(status.conditions[0].reason, "MachinesExist");
    assert!(status.conditions[0].message.contains("default/r"));
    // A list from before the deletion does not count.
    let before = plan(&it, &seen(9, Vec::new(), Vec::new()), at(12));
    assert!(
        before
            .actions
            .iter()
            .all(|action| !matches!(action, Action::Patch { .. }))
    );
    assert_eq!(before.calls[0].what, What::LookUp);
    let gone = plan(&it, &seen(13, Vec::new(), Vec::new()), at(13));
    assert!(
        matches!(&gone.actions[..], [Action::Patch { .. }]),
        "{gone:?}"
    );
}

#[test]
fn an_account_that_never_opened_may_go_and_one_that_did_is_held() {
    let mut it = provider(&json!({}));
    it.metadata.deletion_timestamp = Some(Time(at(10)));
    let mut closed = Seen {
        listed: None,
        ..seen(0, Vec::new(), Vec::new())
    };
    let error = OutsideError {
        message: "BadCredentials: there is no Secret warp-system/lambda: create it".to_owned(),
        is_refusal: true,
    };
    closed.sight.failed = Some((error, at(20)));
    let lets_go = |it: &CloudProvider, seen: &Seen| {
        let actions = plan(it, seen, at(11)).actions;
        matches!(&actions[..], [Action::Patch { .. }])
    };
    assert!(lets_go(&it, &closed));
    // Something may have been bought while it was open.
    it.status = Some(CloudProviderStatus {
        offers_checked_at: Some(Time(at(1))),
        ..CloudProviderStatus::default()
    });
    assert!(!lets_go(&it, &closed));
}

#[test]
fn refused_credentials_are_a_condition_with_what_to_do() {
    let it = provider(&json!({}));
    let mut refused = seen(0, Vec::new(), Vec::new());
    let message = "BadCredentials: 401: the key is not valid".to_owned();
    let error = OutsideError {
        message,
        is_refusal: true,
    };
    refused.sight.failed = Some((error, at(20)));
    let pass = plan(&it, &refused, at(10));
    let status = written(&pass);
    assert_eq!(status.conditions[0].reason, "BadCredentials");
    let message = &status.conditions[0].message;
    assert!(message.contains("the key is not valid"), "{message}");
    assert!(message.contains("when its key is valid"), "{message}");
    assert!(pass.calls.is_empty(), "not before the time");
}

#[test]
fn several_kinds_of_machine_of_one_place_are_offered() {
    let kind = |name: &str, price: i64, spot: Option<i64>| Offer {
        instance_type: name.to_owned(),
        spot_price: spot.map(|spot| Decimal::new(spot, 2)),
        ..offer("L4", "us-east-1", price)
    };
    let mut offers: Vec<Offer> = (1..=6)
        .map(|size| kind(&format!("g6.{size}"), 100 * size, None))
        .collect();
    offers.push(kind("gr6.9", 900, Some(30)));
    offers[0].availability = Availability::None;
    let status = written(&plan(
        &provider(&json!({})),
        &seen(0, offers, Vec::new()),
        at(1),
    ));
    let kinds: Vec<&str> = status
        .offers
        .iter()
        .map(|offer| &*offer.instance_type)
        .collect();
    // Those that can be had first, and the cheapest as spot among them.
    assert_eq!(kinds, ["g6.2", "g6.3", "g6.4", "gr6.9"]);
}

#[test]
fn the_second_kind_of_a_place_crowds_out_no_other_place() {
    let offers = (0..350).flat_map(|place| {
        let region = format!("region-{place}");
        [100, 101].map(|price| Offer {
            instance_type: format!("t{price}"),
            ..offer("L4", &region, price)
        })
    });
    let listed = seen(0, offers.collect(), Vec::new());
    let status = written(&plan(&provider(&json!({})), &listed, at(1)));
    assert_eq!(status.offers.len(), 300);
    assert!(
        status
            .offers
            .iter()
            .all(|offer| offer.instance_type == "t100")
    );
}

#[test]
fn the_regions_of_attempts_are_asked_whatever_the_spec_says_by_now() {
    let attempt = |region: &str, more: Value| {
        let mut it = json!({
            "number": 1, "machine": "m", "provider": "cloud", "gpu": "L4", "gpus": 1, "region": region,
            "instanceType": "t", "price": "1", "priceLimit": "1", "intendedAt": "2026-11-16T12:00:00Z",
        });
        for (key, value) in more.as_object().into_iter().flatten() {
            it[key] = value.clone();
        }
        it
    };
    let request: GPURequest = serde_json::from_value(json!({
        "apiVersion": "gpu.warp.dev/v1alpha1", "kind": "GPURequest",
        "metadata": {"name": "r", "namespace": "default"}, "spec": {"gpuType": "L4"},
        "status": {"attempts": [
            attempt("eu-west-1", json!({})),
            attempt("us-west-2", json!({"instanceId": "i", "outcome": "Deleted"})),
            attempt("closed-to-us", json!({"outcome": "BadCredentials"})),
            attempt("elsewhere", json!({"provider": "other"})),
        ]},
    }))
    .expect("a request");
    let places = super::clouds::places(&[Arc::new(request)], "cloud");
    assert_eq!(places, ["eu-west-1", "us-west-2"]);
}

#[test]
fn a_lost_answer_is_told_when_what_was_seen_has_become_old_and_a_refusal_at_once() {
    let it = provider(&json!({}));
    let failing = |message: &str, now: i64| {
        let mut known = seen(0, vec![offer("L4", "us-east-1", 60)], Vec::new());
        let error = OutsideError {
            message: message.to_owned(),
            is_refusal: false,
        };
        known.sight.failed = Some((error, at(now + 15)));
        let status = written(&plan(&it, &known, at(now)));
        status.conditions[0].reason.clone()
    };
    assert_eq!(failing("Transient: no answer", 121), "OffersKnown");
    assert_eq!(failing("Transient: no answer", 239), "OffersKnown");
    assert_eq!(failing("Transient: no answer", 240), "CloudUnreachable");
    assert_eq!(
        failing("BadCredentials: who are you", 121),
        "BadCredentials"
    );
}
